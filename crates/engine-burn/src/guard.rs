//! Nothing that Burn or a driver panics about leaves this room.

use cytoscope_engine::{DeviceId, EngineError};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `work`; a panic becomes an error of the device.
pub(crate) fn guard<T>(device: DeviceId, work: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    // What `work` may leave half done is device memory, and a session that failed gives none of it back.
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(panic) => Err(device_error(device, &message(panic.as_ref()))),
    }
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

/// What a driver said as an error: memory it lacks is told apart.
pub(crate) fn device_error(device: DeviceId, said: &str) -> EngineError {
    let lower = said.to_lowercase();
    let full =
        ["out of memory", "outofmemory", "out_of_memory", "can't allocate buffer", "too big", "exceeds the max buffer"];
    if full.iter().any(|text| lower.contains(text)) {
        return EngineError::OutOfMemory { device, needed_bytes: bytes_named(&lower), available_bytes: 0 };
    }
    let mut reason: String = said.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = reason.char_indices().nth(500) {
        reason.truncate(end);
    }
    EngineError::Device { device, reason }
}

/// The largest number in a message: that of the bytes that were asked for, where it names any.
fn bytes_named(said: &str) -> u64 {
    said.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_become_errors_and_full_memory_is_told_apart() {
        let device = DeviceId::Wgpu(0);
        let failed: Result<(), _> = guard(device, || panic!("the driver is {}", "gone"));
        assert!(matches!(failed, Err(EngineError::Device { reason, .. }) if reason == "the driver is gone"));
        let full: Result<(), _> = guard(device, || panic!("CUDA_ERROR_OUT_OF_MEMORY: 4096 bytes"));
        assert!(matches!(full, Err(EngineError::OutOfMemory { needed_bytes: 4096, .. })));
    }
}

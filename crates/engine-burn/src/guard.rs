//! Turns panics of Burn and drivers into errors.

use cytoscope_engine::{DeviceId, EngineError};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// Messages of all panics of device threads since the program started.
static DEVICE_PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static HOOK: Once = Once::new();

/// Length to which panic messages are truncated, in characters.
const MAX_MESSAGE_CHARS: usize = 500;

/// Name prefixes of Burn's device threads. Its collector threads have no name.
const DEVICE_THREADS: [&str; 2] = ["DSU-", "DSD-"];

/// Runs `work` and turns panics, also of the device's threads, into errors of the device.
///
/// Work is queued to Burn's threads. These catch panics and continue without the result of the failed task, so that
/// outputs are silently wrong. A panic hook therefore counts panics on those threads. `work` must wait for the device
/// before it returns.
///
/// # Errors
/// The error of `work`, or [`EngineError::Device`] or [`EngineError::OutOfMemory`] if a thread panicked.
pub(crate) fn guard<T>(device: DeviceId, work: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    HOOK.call_once(count_device_panics);
    let before = device_panics().len();
    // Unwind safety: only device memory may be left inconsistent, and a failed session never frees it.
    let result = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(panic) => Err(device_error(device, &message(panic.as_ref()))),
    };
    let since = device_panics().get(before..).unwrap_or_default().to_vec();
    // The first panic is usually the cause, but running out of memory explains the others.
    let cause = since.iter().find(|said| is_out_of_memory(said)).or(since.first());
    match result {
        // Panics after running out of memory are consequences of it.
        Err(error @ EngineError::OutOfMemory { .. }) => Err(error),
        result => match cause {
            Some(said) => Err(device_error(device, &format!("device thread failed: {said}"))),
            None => result,
        },
    }
}

fn device_panics() -> MutexGuard<'static, Vec<String>> {
    DEVICE_PANICS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Extends the current panic hook by one that records panics of device threads.
fn count_device_panics() {
    let earlier = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let thread = std::thread::current();
        let of_device = thread.name().is_none_or(|name| DEVICE_THREADS.iter().any(|d| name.starts_with(d)));
        if of_device {
            let said = info.payload_as_str().unwrap_or("panic without a message");
            device_panics().push(said.chars().take(MAX_MESSAGE_CHARS).collect());
        }
        earlier(info);
    }));
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
        .unwrap_or_else(|| "panic without a message".to_owned())
}

/// Turns a driver's message into an error, distinguishing out-of-memory.
pub(crate) fn device_error(device: DeviceId, said: &str) -> EngineError {
    if is_out_of_memory(said) {
        return EngineError::OutOfMemory { device, needed_bytes: largest_number(said), available_bytes: 0 };
    }
    let mut reason: String = said.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = reason.char_indices().nth(500) {
        reason.truncate(end);
    }
    EngineError::Device { device, reason }
}

/// Returns whether a driver's message reports a lack of memory.
fn is_out_of_memory(said: &str) -> bool {
    let lower = said.to_lowercase();
    let full =
        ["out of memory", "outofmemory", "out_of_memory", "can't allocate buffer", "too big", "exceeds the max buffer"];
    full.iter().any(|text| lower.contains(text))
}

/// Returns the largest number in a message, which is usually the number of requested bytes; 0 if there is none.
fn largest_number(said: &str) -> u64 {
    said.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swallowed_panics_of_device_threads_become_errors() {
        let device = DeviceId::Cuda(0);
        let on = |name: &'static str, said: &'static str| {
            guard(device, move || {
                let thread = std::thread::Builder::new().name(name.to_owned());
                let swallowed = thread.spawn(move || drop(catch_unwind(|| panic!("{said}")))).unwrap();
                swallowed.join().unwrap();
                Ok("a wrong result")
            })
        };
        assert!(matches!(on("DSD-0-0", "reserve failed"), Err(EngineError::Device { .. })));
        let full = on("DSD-0-0", "CUDA_ERROR_OUT_OF_MEMORY: 4096 bytes");
        assert!(matches!(full, Err(EngineError::OutOfMemory { needed_bytes: 4096, .. })), "{full:?}");
        assert_eq!(on("another thread", "something else").ok(), Some("a wrong result"));
    }

    #[test]
    fn panics_become_errors_and_out_of_memory_is_distinguished() {
        let device = DeviceId::Wgpu(0);
        let failed: Result<(), _> = guard(device, || panic!("the driver is {}", "gone"));
        assert!(matches!(failed, Err(EngineError::Device { reason, .. }) if reason == "the driver is gone"));
        let full: Result<(), _> = guard(device, || panic!("CUDA_ERROR_OUT_OF_MEMORY: 4096 bytes"));
        assert!(matches!(full, Err(EngineError::OutOfMemory { needed_bytes: 4096, .. })));
    }
}

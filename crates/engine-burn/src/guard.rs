//! Nothing that Burn or a driver panics about leaves this room.

use cytoscope_engine::{DeviceId, EngineError};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

/// What the panics of device threads said since the program began.
static DEVICE_PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());
static HOOK: Once = Once::new();

/// Letters kept of what a panic said.
const MAX_SAID_CHARS: usize = 500;

/// How Burn's device threads are called. Its collector threads have no name at all.
const DEVICE_THREADS: [&str; 2] = ["DSU-", "DSD-"];

/// Runs `work`; a panic becomes an error of the device, and so does one of the device's own threads.
///
/// Work is queued to threads of Burn, which catch their panics and go on without what the panicking task would have done: the
/// result is then wrong, and nothing says so. Therefore panics on those threads are counted by a hook. `work` has to wait for the
/// device before it ends.
pub(crate) fn guard<T>(device: DeviceId, work: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    HOOK.call_once(count_device_panics);
    let before = device_panics().len();
    // What `work` may leave half done is device memory, and a session that failed gives none of it back.
    let result = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(panic) => Err(device_error(device, &message(panic.as_ref()))),
    };
    let since = device_panics().get(before..).unwrap_or_default().to_vec();
    // The first is the cause; that memory is full says more than any other.
    let cause = since.iter().find(|said| is_memory(said)).or(since.first());
    match result {
        // Memory that the device lacks says more than what followed from it.
        Err(error @ EngineError::OutOfMemory { .. }) => Err(error),
        result => match cause {
            Some(said) => Err(device_error(device, &format!("a device thread failed: {said}"))),
            None => result,
        },
    }
}

fn device_panics() -> MutexGuard<'static, Vec<String>> {
    DEVICE_PANICS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds to the panic hook that is there one that counts panics of device threads.
fn count_device_panics() {
    let earlier = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let thread = std::thread::current();
        let of_device = thread.name().is_none_or(|name| DEVICE_THREADS.iter().any(|d| name.starts_with(d)));
        if of_device {
            let said = info.payload_as_str().unwrap_or("a panic without a message");
            device_panics().push(said.chars().take(MAX_SAID_CHARS).collect());
        }
        earlier(info);
    }));
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

/// What a driver said as an error: memory it lacks is told apart.
pub(crate) fn device_error(device: DeviceId, said: &str) -> EngineError {
    if is_memory(said) {
        return EngineError::OutOfMemory { device, needed_bytes: bytes_named(said), available_bytes: 0 };
    }
    let mut reason: String = said.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = reason.char_indices().nth(500) {
        reason.truncate(end);
    }
    EngineError::Device { device, reason }
}

/// Whether a driver's words are of memory that it lacks.
fn is_memory(said: &str) -> bool {
    let lower = said.to_lowercase();
    let full =
        ["out of memory", "outofmemory", "out_of_memory", "can't allocate buffer", "too big", "exceeds the max buffer"];
    full.iter().any(|text| lower.contains(text))
}

/// The largest number in a message: that of the bytes that were asked for, where it names any.
fn bytes_named(said: &str) -> u64 {
    said.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_that_a_device_thread_swallows_fails_the_work_it_belongs_to() {
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
        assert_eq!(on("a thread of ours", "something else").ok(), Some("a wrong result"));
    }

    #[test]
    fn panics_become_errors_and_full_memory_is_told_apart() {
        let device = DeviceId::Wgpu(0);
        let failed: Result<(), _> = guard(device, || panic!("the driver is {}", "gone"));
        assert!(matches!(failed, Err(EngineError::Device { reason, .. }) if reason == "the driver is gone"));
        let full: Result<(), _> = guard(device, || panic!("CUDA_ERROR_OUT_OF_MEMORY: 4096 bytes"));
        assert!(matches!(full, Err(EngineError::OutOfMemory { needed_bytes: 4096, .. })));
    }
}

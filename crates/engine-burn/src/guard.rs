//! Turns panics of Burn and drivers into errors.

use crate::explain::{explained, rank};
use cytoscope_engine::{DeviceId, EngineError};
use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

static DEVICE_PANICS: Mutex<DevicePanics> = Mutex::new(DevicePanics { count: 0, last: VecDeque::new() });
static HOOK: Once = Once::new();

thread_local! {
    /// Whether this thread does work under a watch, which turns its panics into errors.
    static IS_GUARDED: Cell<bool> = const { Cell::new(false) };
}

/// Length to which panic messages are kept, in characters. Those of Burn's tuning state the cause late.
const MAX_KEPT_CHARS: usize = 8000;
/// Number of the last panic messages that are kept.
const MAX_KEPT_PANICS: usize = 1000;
/// Size of the smallest buffer that a device may lack memory for.
const MIN_REQUEST_BYTES: u64 = 1024;
/// Length to which reasons are truncated, in characters.
const MAX_REASON_CHARS: usize = 500;

/// Name prefixes of Burn's device threads. Its collector threads have no name.
#[cfg(not(test))]
const DEVICE_THREADS: [&str; 2] = ["DSU-", "DSD-"];
/// Names of threads in unit tests, whose panics must not fail the sessions of other tests in the same process.
#[cfg(test)]
const DEVICE_THREADS: [&str; 2] = ["test-DSU-", "test-DSD-"];

/// Panics of device threads since the program started.
struct DevicePanics {
    /// Number of all panics.
    count: usize,
    /// Messages of the last ones, at most [`MAX_KEPT_PANICS`].
    last: VecDeque<String>,
}

impl DevicePanics {
    fn push(&mut self, error_text: String) {
        if self.last.len() >= MAX_KEPT_PANICS {
            self.last.pop_front();
        }
        self.last.push_back(error_text);
        self.count += 1;
    }

    /// Returns the messages of the panics after the first `seen` ones that are still kept.
    fn since(&self, seen: usize) -> Vec<String> {
        let new = self.count.saturating_sub(seen);
        self.last.iter().skip(self.last.len().saturating_sub(new)).cloned().collect()
    }
}

/// The panics of device threads that a user of a device has seen.
///
/// Work is queued to Burn's threads. These catch panics and continue without the result of the failed task, so that
/// outputs are silently wrong. A panic hook therefore counts panics on those threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PanicWatch {
    seen: usize,
}

impl PanicWatch {
    /// Watches for panics from now on.
    pub(crate) fn start() -> Self {
        HOOK.call_once(count_device_panics);
        Self { seen: device_panics().count }
    }

    /// Runs `work` and turns its panics, and those of device threads since the watch started or last looked, into errors
    /// of the device. If `work` does not wait for the device before it returns, its panics may fail a later call instead.
    ///
    /// # Errors
    /// The error of `work`, or [`EngineError::Device`] or [`EngineError::OutOfMemory`] if a thread panicked.
    pub(crate) fn guard<T>(
        &mut self,
        device: DeviceId,
        work: impl FnOnce() -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let result = match caught(work) {
            Ok(result) => result,
            Err(panic) => Err(device_error(device, &panic_message(panic.as_ref()))),
        };
        let since = self.new_panics();
        // Running out of memory explains all others; the first of equal rank is usually the cause.
        let full = since.iter().find(|error_text| is_out_of_memory(error_text));
        let cause = full.or_else(|| since.iter().min_by_key(|error_text| rank(error_text)));
        match (result, cause) {
            // Panics after running out of memory are consequences of it.
            (Err(error @ EngineError::OutOfMemory { .. }), _) => Err(error),
            (Err(EngineError::Device { device, reason }), Some(error_text))
                if full.is_none() && rank(&reason) < rank(error_text) =>
            {
                Err(EngineError::Device { device, reason })
            }
            (result, Some(error_text)) => {
                let error = device_error(device, error_text);
                if matches!(error, EngineError::Device { .. }) {
                    // Freeing memory of a failed device may fail again and abort the process.
                    std::mem::forget(result);
                } else if let Err(panic) = caught(|| drop(result)) {
                    tracing::debug!("freeing a result after running out of memory: {}", panic_message(panic.as_ref()));
                }
                Err(error)
            }
            (result, None) => result,
        }
    }

    /// Returns the messages of panics since the watch started or last looked. They are copied, because results that are
    /// dropped after a panic use their own watches, for which the list must not be locked.
    fn new_panics(&mut self) -> Vec<String> {
        let all = device_panics();
        let since = all.since(self.seen);
        self.seen = all.count;
        since
    }
}

/// Runs `work` once under a new [`PanicWatch`].
///
/// # Errors
/// Those of [`PanicWatch::guard`].
pub(crate) fn guard<T>(device: DeviceId, work: impl FnOnce() -> Result<T, EngineError>) -> Result<T, EngineError> {
    PanicWatch::start().guard(device, work)
}

/// Runs `work` and returns the panic that ends it, if any.
fn caught<T>(work: impl FnOnce() -> T) -> std::thread::Result<T> {
    let was_guarded = IS_GUARDED.replace(true);
    // Unwind safety: only device memory may be left inconsistent, and a failed session is not used again.
    let caught = catch_unwind(AssertUnwindSafe(work));
    IS_GUARDED.set(was_guarded);
    caught
}

fn device_panics() -> MutexGuard<'static, DevicePanics> {
    DEVICE_PANICS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Extends the current panic hook by one that records panics of device threads. Those of threads with a device's name, and
/// those of work under a watch, are only logged, not passed on: they become errors, after which a job may continue, and
/// standard error may be lines of JSON.
fn count_device_panics() {
    let earlier = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let thread = std::thread::current();
        let is_device_thread = thread.name().map(|name| DEVICE_THREADS.iter().any(|d| name.starts_with(d)));
        if is_device_thread.unwrap_or(true) {
            let error_text = info.payload_as_str().unwrap_or("panic without a message");
            device_panics().push(error_text.chars().take(MAX_KEPT_CHARS).collect());
        }
        if is_device_thread == Some(true) {
            tracing::debug!("a device thread has ended a task: {info}");
        } else if IS_GUARDED.get() {
            tracing::debug!("a device call has failed: {info}");
        } else {
            earlier(info);
        }
    }));
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    text.or_else(|| panic.downcast_ref::<&str>().map(|s| (*s).to_owned()))
        .unwrap_or_else(|| "panic without a message".to_owned())
}

/// Turns a driver's message into an error, distinguishing out-of-memory.
pub(crate) fn device_error(device: DeviceId, error_text: &str) -> EngineError {
    if is_out_of_memory(error_text) {
        return EngineError::OutOfMemory { device, needed_bytes: requested_bytes(error_text), available_bytes: 0 };
    }
    let reason = explained(error_text);
    let end = reason.char_indices().nth(MAX_REASON_CHARS).map(|(end, _)| end);
    // The names of options come before the driver's message, which is what is cut.
    let start = end.and_then(|end| reason.split_at(end)).map(|(start, _)| start);
    EngineError::Device { device, reason: start.unwrap_or(reason) }
}

/// Returns whether a driver's message reports a lack of memory, or a buffer that is larger than the device allows. In
/// both cases, a smaller tile may work.
fn is_out_of_memory(error_text: &str) -> bool {
    let lower = error_text.to_lowercase();
    let full = [
        "out of memory",
        "outofmemory",
        "out_of_memory",
        "not enough memory",
        "can't allocate buffer",
        "buffertoobig",
        "too big",
        "exceeds the max buffer",
        "greater than the maximum buffer size",
        "buffer_binding_size` limit",
    ];
    full.iter().any(|text| lower.contains(text))
}

/// Returns the number of requested bytes: the one after "size", or else the largest number at the start of a message; 0
/// if there is none. Backtraces, which follow, contain other numbers; small ones are codes or indices.
fn requested_bytes(error_text: &str) -> u64 {
    let lower: String = error_text.to_lowercase().chars().take(300).collect();
    let numbers =
        |text: &str| -> Vec<u64> { text.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect() };
    let after_size = lower.split_once(" size").and_then(|(_, after)| numbers(after).first().copied());
    let requested = after_size.or_else(|| numbers(&lower).into_iter().max());
    requested.filter(|bytes| *bytes >= MIN_REQUEST_BYTES).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tests count the panics of the same process.
    static ALONE: Mutex<()> = Mutex::new(());

    /// Panics on a thread of this name, which swallows the panic.
    fn swallow(name: &'static str, error_text: &'static str) {
        let thread = std::thread::Builder::new().name(name.to_owned());
        let swallowed = thread.spawn(move || drop(catch_unwind(|| panic!("{error_text}")))).unwrap();
        swallowed.join().unwrap();
    }

    #[test]
    fn swallowed_panics_of_device_threads_become_errors() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let device = DeviceId::Cuda(0);
        let on = |name: &'static str, error_text: &'static str| {
            guard(device, move || {
                swallow(name, error_text);
                Ok("a wrong result")
            })
        };
        assert!(matches!(on("test-DSD-0-0", "reserve failed"), Err(EngineError::Device { .. })));
        let full = on("test-DSD-0-0", "CUDA_ERROR_OUT_OF_MEMORY: 4096 bytes");
        assert!(matches!(full, Err(EngineError::OutOfMemory { needed_bytes: 4096, .. })), "{full:?}");
        assert_eq!(on("another thread", "something else").ok(), Some("a wrong result"));
    }

    #[test]
    fn panics_of_device_threads_are_recorded_and_not_printed() {
        static PRINTED: Mutex<Vec<String>> = Mutex::new(Vec::new());
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut watch = PanicWatch::start();
        // In the place of the hook that prints; it stays, like the one that is extended.
        let earlier = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PRINTED.lock().unwrap().extend(info.payload_as_str().map(str::to_owned));
            earlier(info);
        }));
        count_device_panics();
        swallow("test-DSD-0-1", "the buffer of a device is gone");
        swallow("no device thread", "a thread of the program is gone");
        let failed = watch.guard(DeviceId::Cuda(0), || Ok(1));
        assert!(
            matches!(failed, Err(EngineError::Device { reason, .. }) if reason.as_str() == "the buffer of a device is gone")
        );
        let failed: Result<(), _> = watch.guard(DeviceId::Cuda(0), || panic!("a call of the driver is gone"));
        assert!(matches!(failed, Err(EngineError::Device { .. })));
        let printed = PRINTED.lock().unwrap().clone();
        let has = |error_text: &str| printed.iter().any(|line| line == error_text);
        assert!(has("a thread of the program is gone"), "{printed:?}");
        assert!(!has("the buffer of a device is gone") && !has("a call of the driver is gone"), "{printed:?}");
    }

    #[test]
    fn a_panic_between_two_runs_fails_the_next_run_once() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let device = DeviceId::Cuda(0);
        let mut watch = PanicWatch::start();
        assert_eq!(watch.guard(device, || Ok(1)).ok(), Some(1));
        swallow("test-DSU-0-0", "can't allocate buffer of size: 8192");
        let full = watch.guard(device, || Ok(2));
        assert!(matches!(full, Err(EngineError::OutOfMemory { needed_bytes: 8192, .. })), "{full:?}");
        assert_eq!(watch.guard(device, || Ok(3)).ok(), Some(3));
    }

    #[test]
    fn only_the_last_panics_are_kept_and_all_are_counted() {
        let mut panics = DevicePanics { count: 0, last: VecDeque::new() };
        for number in 0..MAX_KEPT_PANICS + 5 {
            panics.push(number.to_string());
        }
        assert_eq!((panics.count, panics.last.len()), (MAX_KEPT_PANICS + 5, MAX_KEPT_PANICS));
        assert_eq!(panics.since(0).first().map(String::as_str), Some("5"));
        assert_eq!(panics.since(MAX_KEPT_PANICS + 3), ["1003", "1004"]);
        assert!(panics.since(panics.count).is_empty());
    }

    /// A tensor that is freed on its device, like those that a training step leaves there.
    struct OnDevice;

    impl Drop for OnDevice {
        fn drop(&mut self) {
            guard(DeviceId::Cuda(0), || Ok(())).unwrap();
        }
    }

    #[test]
    fn a_result_dropped_after_a_panic_is_freed_without_a_deadlock() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let failed = guard(DeviceId::Cuda(0), || {
                swallow("test-DSD-0-2", "can't allocate buffer of size: 4096");
                Ok(OnDevice)
            });
            sender.send(failed.err().map(|error| error.to_string())).unwrap();
        });
        let failed = receiver.recv_timeout(std::time::Duration::from_secs(60)).expect("the guard waits for itself");
        assert!(failed.is_some_and(|error| error.contains("4 KiB needed")));
    }

    /// A tensor that cannot be freed, because its device has no memory left.
    #[derive(Debug)]
    struct Unfreed;

    impl Drop for Unfreed {
        fn drop(&mut self) {
            panic!("the device is full");
        }
    }

    #[test]
    fn a_panic_while_a_useless_result_is_freed_stays_an_error() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let failed = guard(DeviceId::Cuda(0), || {
            swallow("test-DSD-0-3", "can't allocate buffer of size: 4096");
            Ok(Unfreed)
        });
        assert!(matches!(failed, Err(EngineError::OutOfMemory { needed_bytes: 4096, .. })), "{failed:?}");
    }

    #[test]
    fn panics_become_errors_and_out_of_memory_is_distinguished() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let device = DeviceId::Wgpu(0);
        let failed: Result<(), _> = guard(device, || panic!("the driver is {}", "gone"));
        assert!(matches!(failed, Err(EngineError::Device { reason, .. }) if reason.as_str() == "the driver is gone"));
        let full: Result<(), _> = guard(device, || panic!("CUDA_ERROR_OUT_OF_MEMORY: 4096 bytes"));
        assert!(matches!(full, Err(EngineError::OutOfMemory { needed_bytes: 4096, .. })));
    }

    #[test]
    fn requested_bytes_are_not_taken_from_a_backtrace() {
        let error_text =
            "`Err` value: can't allocate buffer of size: 33554432\n   0: 0x55d0c6a2f3e1 core 99999999999999\n";
        assert_eq!(requested_bytes(error_text), 33_554_432);
        assert_eq!(requested_bytes("wgpu error: Out of Memory"), 0);
        assert_eq!(requested_bytes("stream 12: out of memory (code 2)"), 0, "no size is stated");
    }

    #[test]
    fn real_messages_about_memory_are_recognized() {
        for error_text in [
            "called `Result::unwrap()` on an `Err` value: can't allocate buffer of size: 33554432\n<backtrace>",
            "wgpu error: Out of Memory\n\nCaused by:\n  In Device::create_buffer\n    Not enough memory left.\n",
            "wgpu error: Validation Error\n\nCaused by:\n  In Device::create_buffer\n    Buffer size 8589934592 is greater \
             than the maximum buffer size (268435456)\n",
            "Buffer binding 0 range 268435456 exceeds `max_*_buffer_binding_size` limit 134217728",
        ] {
            let error = device_error(DeviceId::Wgpu(0), error_text);
            assert!(matches!(error, EngineError::OutOfMemory { .. }), "{error_text}: {error}");
        }
    }
}

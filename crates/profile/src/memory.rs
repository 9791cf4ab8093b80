//! Memory use of this process.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time for which spans reuse a reading of the memory on systems that list all processes for it, which takes milliseconds.
const REUSED_FOR: Duration = Duration::from_millis(100);
/// The peak resident bytes of this process before [`restart_peak`] was last called.
static EARLIER_PEAK: AtomicU64 = AtomicU64::new(0);

/// Memory of the process at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryMark {
    /// Label of the moment, such as the current stage.
    pub label: Cow<'static, str>,
    /// Time in µs since the recorder was created.
    pub at_us: f64,
    /// Memory of the process that is in RAM, in bytes.
    pub resident_bytes: u64,
}

/// Returns the resident bytes of this process, if the system reports them.
#[cfg(target_os = "linux")]
pub fn resident_bytes() -> Option<u64> {
    status_kib("/proc/self/status", "VmRSS:").map(|k| k * 1024)
}

/// Returns the resident bytes of this process, if the system reports them.
#[cfg(not(target_os = "linux"))]
pub fn resident_bytes() -> Option<u64> {
    use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System, get_current_pid};
    let id = get_current_pid().ok()?;
    let mut system = System::new();
    let memory = ProcessRefreshKind::nothing().with_memory();
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[id]), false, memory);
    system.process(id).map(sysinfo::Process::memory)
}

/// A reading of the memory, and when it was made.
type Reading = Option<(Instant, u64)>;

/// Returns the resident bytes of this process for a span: on Linux the current ones, elsewhere those of a reading that is at
/// most [`REUSED_FOR`] old.
pub(crate) fn span_resident_bytes() -> Option<u64> {
    static LAST: Mutex<Reading> = Mutex::new(None);
    if cfg!(target_os = "linux") { resident_bytes() } else { reused(&LAST, resident_bytes) }
}

/// Returns the last reading, or a new one if that is too old.
fn reused(last: &Mutex<Reading>, read: impl FnOnce() -> Option<u64>) -> Option<u64> {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((at, bytes)) = *last
        && at.elapsed() < REUSED_FOR
    {
        return Some(bytes);
    }
    let bytes = read()?;
    *last = Some((Instant::now(), bytes));
    Some(bytes)
}

/// Returns the peak resident bytes of this process, if the system reports them: on Linux.
pub fn peak_resident_bytes() -> Option<u64> {
    recent_peak_bytes().map(|bytes| bytes.max(EARLIER_PEAK.load(Ordering::Relaxed)))
}

/// Returns the peak resident bytes of this process since [`restart_peak`] was last called, if the system reports them: on Linux.
pub fn recent_peak_bytes() -> Option<u64> {
    status_kib("/proc/self/status", "VmHWM:").map(|k| k * 1024)
}

/// Makes [`recent_peak_bytes`] start over from the present resident bytes. Returns whether the system allows that; otherwise,
/// it stays the peak of the process.
pub fn restart_peak() -> bool {
    let Some(earlier) = recent_peak_bytes() else { return false };
    EARLIER_PEAK.fetch_max(earlier, Ordering::Relaxed);
    std::fs::write("/proc/self/clear_refs", "5").is_ok()
}

fn status_kib(path: &str, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()?.parse().ok()
}

/// Formats bytes for display, such as `512 MiB` or `1.3 MiB`.
pub fn bytes_text(n: u64) -> String {
    let in_unit = |bytes: f64, unit: &str| {
        let value = n as f64 / bytes;
        let text = if value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") };
        format!("{} {unit}", text.strip_suffix(".0").unwrap_or(&text))
    };
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => in_unit(1024.0, "KiB"),
        1_048_576..1_073_741_824 => in_unit(1_048_576.0, "MiB"),
        _ => format!("{:.2} GiB", n as f64 / 1_073_741_824.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_at_least_two_digits_unless_they_are_whole() {
        let shown = [0, 1023, 1024, 1536, 200_000, 5 << 20, 1_347_400, 512 << 20, 3 << 30].map(bytes_text);
        let expected = ["0 B", "1023 B", "1 KiB", "1.5 KiB", "195 KiB", "5 MiB", "1.3 MiB", "512 MiB", "3.00 GiB"];
        assert_eq!(shown, expected);
    }

    #[test]
    fn a_reading_is_reused_until_it_is_old() {
        let last = Mutex::new(None);
        assert_eq!(reused(&last, || None), None);
        assert_eq!(reused(&last, || Some(5)), Some(5));
        *last.lock().unwrap() = Some((Instant::now() + Duration::from_secs(60), 7));
        assert_eq!(reused(&last, || Some(9)), Some(7), "it is recent");
        *last.lock().unwrap() = Instant::now().checked_sub(REUSED_FOR).map(|at| (at, 7));
        assert_eq!(reused(&last, || Some(9)), Some(9), "it is old");
    }

    #[test]
    fn a_peak_starts_over_but_that_of_the_process_stays() {
        let bytes = 256 << 20;
        let values = std::hint::black_box(vec![1u8; bytes]);
        let Some(peak) = peak_resident_bytes() else {
            return cytoscope_testkit::skip("this system does not report the peak of a process");
        };
        drop(values);
        if !restart_peak() {
            return cytoscope_testkit::skip("this system does not allow the peak of a process to start over");
        }
        assert!(peak >= bytes as u64, "{peak}");
        assert!(recent_peak_bytes().is_some_and(|recent| recent + bytes as u64 / 2 < peak));
        // The system counts pages of several threads approximately.
        assert!(peak_resident_bytes().is_some_and(|all| all + (4 << 20) >= peak));
    }
}

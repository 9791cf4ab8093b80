//! Memory of this process and of the machine.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// The process' memory at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MemoryMark {
    /// What was going on.
    pub label: Cow<'static, str>,
    /// µs since the recorder was made.
    pub at_us: f64,
    /// Resident bytes.
    pub resident_bytes: u64,
}

/// Resident bytes of this process, where the system tells.
pub fn resident_bytes() -> Option<u64> {
    status_kib("/proc/self/status", "VmRSS:").map(|k| k * 1024)
}

/// The most resident bytes this process ever had, where the system tells.
pub fn peak_resident_bytes() -> Option<u64> {
    status_kib("/proc/self/status", "VmHWM:").map(|k| k * 1024)
}

/// Bytes this machine (or this process' control group, if that allows fewer) could still give, where the system tells.
pub fn available_bytes() -> Option<u64> {
    let machine = status_kib("/proc/meminfo", "MemAvailable:").map(|k| k * 1024)?;
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let group = number("/sys/fs/cgroup/memory.max")
        .zip(number("/sys/fs/cgroup/memory.current"))
        .map(|(limit, used)| limit.saturating_sub(used));
    Some(group.map_or(machine, |g| g.min(machine)))
}

fn status_kib(path: &str, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().find_map(|line| line.strip_prefix(key))?.split_whitespace().next()?.parse().ok()
}

/// Bytes for people, such as `512 MiB`.
pub fn bytes_text(n: u64) -> String {
    let value = n as f64;
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => format!("{:.0} KiB", value / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.0} MiB", value / 1_048_576.0),
        _ => format!("{:.2} GiB", value / 1_073_741_824.0),
    }
}

//! Available memory and CPU name of the machine.

use std::sync::OnceLock;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, RefreshKind, System};

/// Returns the available bytes of this machine, or of this process' control group if it allows fewer, if the system
/// reports them.
pub fn available_bytes() -> Option<u64> {
    let memory = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(memory);
    // `cgroup_limits` panics if the memory of the machine is unknown.
    let total = Some(system.total_memory()).filter(|bytes| *bytes > 0)?;
    let machine = if cfg!(target_os = "macos") {
        // There, memory that other programs are using counts as available.
        system.available_memory().min(total.saturating_sub(system.used_memory()))
    } else {
        system.available_memory()
    };
    // A group without a limit counts the files it has cached, so only a limit is compared.
    let group = system.cgroup_limits().filter(|group| group.total_memory < total);
    Some(group.map_or(machine, |group| group.free_memory.min(machine)))
}

/// Returns the memory budget of jobs for which none is given: three quarters of the available bytes; 4 GiB if the system does
/// not report them.
pub fn default_budget_bytes() -> u64 {
    available_bytes().map_or(4 << 30, |bytes| bytes / 4 * 3)
}

/// Returns the bytes of memory of this machine, or of this process' control group if it allows fewer, if the system
/// reports them.
pub fn total_bytes() -> Option<u64> {
    let memory = RefreshKind::nothing().with_memory(MemoryRefreshKind::nothing().with_ram());
    let system = System::new_with_specifics(memory);
    // `cgroup_limits` panics if the memory of the machine is unknown.
    let total = Some(system.total_memory()).filter(|bytes| *bytes > 0)?;
    let group = system.cgroup_limits().map(|group| group.total_memory).filter(|bytes| *bytes > 0);
    Some(group.map_or(total, |bytes| bytes.min(total)))
}

/// Returns the name of the CPU as its maker writes it, if the system reports it.
pub fn cpu_name() -> Option<&'static str> {
    static NAME: OnceLock<String> = OnceLock::new();
    let name = NAME.get_or_init(|| {
        let system = System::new_with_specifics(RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing()));
        system.cpus().first().map(|cpu| cpu.brand().trim().to_owned()).unwrap_or_default()
    });
    (!name.is_empty()).then_some(name.as_str())
}

/// Returns when the system was started, in seconds since 1970. On some systems, this differs by seconds from call to call.
pub fn system_start_secs() -> u64 {
    System::boot_time()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_was_started_in_the_past() {
        let now_secs =
            std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        assert!(system_start_secs() <= now_secs + 1);
        assert!(system_start_secs().abs_diff(system_start_secs()) <= 2);
    }

    #[test]
    fn every_supported_system_reports_its_memory() {
        if sysinfo::IS_SUPPORTED_SYSTEM {
            let bytes = available_bytes().expect("the system reports its memory");
            assert!((1 << 20..1 << 50).contains(&bytes), "{bytes}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn no_more_is_available_than_the_machine_and_the_control_group_have() {
        let total = System::new_with_specifics(RefreshKind::nothing().with_memory(MemoryRefreshKind::everything()));
        let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let limit = number("/sys/fs/cgroup/memory.max").unwrap_or(u64::MAX).min(total.total_memory());
        assert!(available_bytes().is_some_and(|bytes| bytes <= limit));
        assert!(total_bytes().is_some_and(|bytes| bytes <= limit));
    }
}

//! Freed memory is returned to the operating system. One test: others in the process would change its memory.
#![cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
#![allow(clippy::unwrap_used, reason = "a test")]

use cytoscope_kernels::return_free_memory;

/// The resident memory of the process in KiB.
fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn memory_that_a_thread_has_freed_is_returned() {
    // 64 MiB in blocks that are too small for separate mappings. The last one is kept, so that they stay below the top of
    // the heap.
    let mut blocks = std::thread::spawn(|| (0..1024).map(|_| vec![1u8; 64 << 10]).collect::<Vec<_>>()).join().unwrap();
    let held = resident_kib();
    let last = blocks.pop().unwrap();
    drop(blocks);
    let freed = resident_kib();
    return_free_memory();
    let returned = resident_kib();
    assert_eq!(last[0], 1);
    // Sanitizers have their own allocators.
    if freed + (32 << 10) > held {
        assert!(returned + (32 << 10) < held, "{held} KiB held, {freed} KiB after freeing, {returned} KiB at last");
    }
}

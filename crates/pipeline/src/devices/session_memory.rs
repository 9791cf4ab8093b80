//! What is known about the memory that sessions on a device may take.

use cytoscope_engine::{Device, DeviceId};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Known limits of the memory of sessions on a device, in bytes.
#[derive(Debug)]
pub(super) struct SessionMemory {
    /// Maximum size of a session.
    pub limit: AtomicU64,
    /// Size of the session that was compiled last; 0 if there was none.
    pub last: AtomicU64,
    /// Tiles of a run of that session.
    pub last_batch: AtomicUsize,
    /// Size of the smallest session that ran out of memory.
    pub failed: AtomicU64,
}

impl SessionMemory {
    /// Starts with the device's available memory, minus a share for what Burn allocates besides tensors.
    pub fn of(device: &Device) -> Self {
        let available = device.available_bytes().filter(|_| device.id != DeviceId::Cpu);
        Self {
            limit: AtomicU64::new(available.map_or(u64::MAX, |bytes| bytes / 8 * 7)),
            last: AtomicU64::new(0),
            last_batch: AtomicUsize::new(1),
            failed: AtomicU64::new(u64::MAX),
        }
    }

    /// Halves the limit after the last session ran out of memory. Returns false if it was not smaller than an earlier one
    /// that did, so that there is nothing left to try.
    pub fn shrink(&self) -> bool {
        let last = self.last.load(Ordering::Relaxed);
        if last == 0 || last >= self.failed.load(Ordering::Relaxed) {
            return false;
        }
        self.failed.store(last, Ordering::Relaxed);
        self.limit.store(last / 2, Ordering::Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_engine::Engine;
    use cytoscope_engine_cpu::CpuEngine;

    #[test]
    fn sessions_shrink_until_the_smallest_one_runs_out_of_memory() {
        let memory = |free_bytes| {
            SessionMemory::of(&Device { id: DeviceId::Cuda(0), free_bytes, ..CpuEngine::new().device().clone() })
        };
        assert_eq!(memory(Some(8000)).limit.into_inner(), 7000);
        let memory = memory(Some(1 << 30));
        assert!(!memory.shrink(), "there was no session");
        memory.last.store(1 << 20, Ordering::Relaxed);
        assert!(memory.shrink());
        assert_eq!(memory.limit.load(Ordering::Relaxed), 1 << 19);
        memory.last.store(1 << 18, Ordering::Relaxed);
        assert!(memory.shrink());
        assert!(!memory.shrink(), "the same size was tried already");
        let cpu = SessionMemory::of(CpuEngine::new().device());
        assert_eq!(cpu.limit.into_inner(), u64::MAX, "the CPU has the job's budget");
    }
}

//! The memory that the engines of this process hold.

use cytoscope_profile::EngineMemory;

/// Returns the memory that all engines of this process hold now: the arenas of the CPU engine, and the device memory of
/// sessions on GPUs.
pub fn engine_memory() -> EngineMemory {
    EngineMemory {
        arena_bytes: Some(cytoscope_engine_cpu::arena_bytes()),
        device: cytoscope_engine_burn::device_memory(),
    }
}

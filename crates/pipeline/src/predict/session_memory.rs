//! How much memory the session of a tile may take.

/// Bytes of a session up to which only the work counts if no memory budget is given: see [`memory_cost`].
pub(super) const SESSION_BYTES: u64 = 192 << 20;
/// Maximum bytes of a session for one tile in a device's own memory: GPU engines index elements of 32-bit floats with 31
/// bits.
const MAX_DEVICE_SESSION_BYTES: u64 = (8 << 30) - 1;
/// The session of one tile may take this fraction (1 / `DEVICE_PARTS`) of a device's memory for sessions; the rest is
/// for batches of tiles and for slabs.
const DEVICE_PARTS: u64 = 4;

/// Returns the maximum bytes of a session for one tile in a device's own memory, where `limit_bytes` are free for
/// sessions. If a session has run out of memory (`has_run_out`), that limit was already lowered.
pub(super) fn device_session_cap_bytes(limit_bytes: u64, has_run_out: bool) -> u64 {
    let part_bytes = if has_run_out { limit_bytes } else { limit_bytes / DEVICE_PARTS };
    part_bytes.min(MAX_DEVICE_SESSION_BYTES)
}

/// The factor by which the work of a plan is multiplied for the memory of its session when plans are compared, if no
/// memory budget is given: 1 up to [`SESSION_BYTES`], and above it the square root of the ratio, so that a session four
/// times as large must halve the work to be chosen. Networks with a wide receptive field compute most voxels of a small
/// tile several times.
pub(super) fn memory_cost(session_bytes: u64) -> f64 {
    (session_bytes as f64 / SESSION_BYTES as f64).max(1.0).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_on_a_gpu_are_limited_by_its_memory_and_its_indices() {
        const GIB: u64 = 1 << 30;
        // A large GPU is not limited by the host's memory; a small one is limited to a part of its own memory.
        let large = device_session_cap_bytes(120 * GIB, false);
        assert!(large > 2 * GIB && large / 4 < 1 << 31, "{large}");
        assert_eq!(device_session_cap_bytes(2 * GIB, false), GIB / 2);
        // After running out of memory, the next session may have what is left.
        assert_eq!(device_session_cap_bytes(GIB / 4, true), GIB / 4);
    }
}

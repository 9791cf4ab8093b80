//! The portable micro-kernel: plain loops over 16 output channels, vectorized by the compiler.

use super::Micro;

/// Computes a run of voxels for the blocks of one group.
///
/// # Safety
/// Every pointer of `m` must reach what its fields say for `len` voxels.
pub(crate) unsafe fn micro(blocks: usize, len: usize, m: &Micro<'_, f32, f32, f32>) {
    // SAFETY: the caller guarantees that every pointer of `m` reaches `len` voxels; the array accesses are unaligned.
    unsafe {
        for o in 0..blocks {
            for p in 0..len {
                let mut acc = m.start.add(o * 16).cast::<[f32; 16]>().read_unaligned();
                let mut weights = m.weights.add(o * 16);
                for block in 0..m.in_blocks {
                    let plane = m.input.add(block * m.in_block_stride + p * m.in_step);
                    for tap in m.taps {
                        for c in 0..m.channels(block) {
                            let x = *plane.add(*tap + c);
                            let w = weights.cast::<[f32; 16]>().read_unaligned();
                            acc.iter_mut().zip(w).for_each(|(a, w)| *a += x * w);
                            weights = weights.add(blocks * 16);
                        }
                    }
                }
                m.sums.add(o * m.sum_block_stride + p * 16).cast::<[f32; 16]>().write_unaligned(acc);
            }
        }
    }
}

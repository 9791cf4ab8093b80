//! Portable kernel: plain loops over 16 output channels, vectorized by the compiler.

use super::Bytes;

/// Computes a run of voxels.
///
/// # Safety
/// Every pointer of `m` must reach what its fields say for `len` voxels.
pub(super) unsafe fn micro(blocks: usize, len: usize, m: &Bytes<'_>) {
    let quads = m.in_per_block / 4;
    // SAFETY: the caller guarantees that every pointer of `m` reaches `len` voxels; the array accesses are unaligned.
    unsafe {
        for o in 0..blocks {
            for p in 0..len {
                let mut acc = m.start.add(o * 16).cast::<[i32; 16]>().read_unaligned();
                let mut weights = m.weights.add(o * 64);
                for block in 0..m.in_blocks {
                    let plane = m.input.add(block * m.in_block_stride + p * m.in_step);
                    for tap in m.taps {
                        for q in 0..quads {
                            let x = plane.add(tap + q * 4).cast::<[u8; 4]>().read_unaligned().map(i32::from);
                            let w = weights.cast::<[[i8; 4]; 16]>().read_unaligned();
                            for (sum, w) in acc.iter_mut().zip(w) {
                                for j in 0..4 {
                                    *sum += x[j] * i32::from(w[j]);
                                }
                            }
                            weights = weights.add(blocks * 64);
                        }
                    }
                }
                m.sums.add(o * m.sum_block_stride + p * 16).cast::<[i32; 16]>().write_unaligned(acc);
            }
        }
    }
}

//! AVX2 micro-kernels: up to 6 voxels × 16 output channels in registers.
#![cfg(target_arch = "x86_64")]

use super::Micro;
use std::arch::x86_64::*;

/// Computes a run of `len` voxels for one block of output channels.
///
/// # Safety
/// The CPU must support AVX2 and FMA, and every pointer of `m` must reach what its fields say for `len` voxels.
pub(crate) unsafe fn micro(len: usize, m: &Micro<'_, f32, f32, f32>) {
    macro_rules! pick {
        ($step:literal, $($p:literal)*) => {
            match len {
                // SAFETY: the caller guarantees AVX2, FMA and pointers that reach `len` voxels, which is `$p`.
                $($p => unsafe { kernel::<$p, $step>(m) },)*
                _ => unreachable!("run of {len} voxels"),
            }
        };
    }
    match m.in_step {
        16 => pick!(16, 1 2 3 4 5 6),
        1 => pick!(1, 1 2 3 4 5 6),
        _ => pick!(0, 1 2 3 4 5 6),
    }
}

/// Computes `P` voxels. `STEP` is the distance of two input voxels in values; 0 means that of `m`.
#[target_feature(enable = "avx2,fma")]
unsafe fn kernel<const P: usize, const STEP: usize>(m: &Micro<'_, f32, f32, f32>) {
    let step = if STEP == 0 { m.in_step } else { STEP };
    // SAFETY: the caller guarantees AVX2, FMA and that every pointer of `m` reaches `P` voxels; all accesses are
    // unaligned.
    unsafe {
        let mut acc = [[_mm256_loadu_ps(m.start), _mm256_loadu_ps(m.start.add(8))]; P];
        let mut weights = m.weights;
        for block in 0..m.in_blocks {
            let channels = m.channels(block);
            let plane = m.input.add(block * m.in_block_stride);
            for tap in m.taps {
                let start = plane.add(*tap);
                for c in 0..channels {
                    let w = [_mm256_loadu_ps(weights), _mm256_loadu_ps(weights.add(8))];
                    weights = weights.add(16);
                    for p in 0..P {
                        let x = _mm256_broadcast_ss(&*start.add(p * step + c));
                        acc[p][0] = _mm256_fmadd_ps(x, w[0], acc[p][0]);
                        acc[p][1] = _mm256_fmadd_ps(x, w[1], acc[p][1]);
                    }
                }
            }
        }
        for (p, row) in acc.iter().enumerate() {
            _mm256_storeu_ps(m.sums.add(p * 16), row[0]);
            _mm256_storeu_ps(m.sums.add(p * 16 + 8), row[1]);
        }
    }
}

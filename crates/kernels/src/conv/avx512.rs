//! AVX-512 micro-kernels: up to 28 voxels × 16 or 14 voxels × 32 output channels in registers.
#![cfg(target_arch = "x86_64")]

use super::Micro;
use std::arch::x86_64::*;

/// Computes one run of `len` voxels.
///
/// # Safety
/// The machine has AVX-512 F, and every pointer of `m` reaches what its fields say for `len` voxels.
pub(crate) unsafe fn micro(blocks: usize, len: usize, m: &Micro<'_, f32, f32, f32>) {
    macro_rules! pick {
        ($ob:literal, $step:literal, $($p:literal)*) => {
            match len {
                // SAFETY: passed on from this function's contract.
                $($p => unsafe { kernel::<$ob, $p, $step>(m) },)*
                _ => unreachable!("run of {len} voxels"),
            }
        };
    }
    match (blocks, m.in_step) {
        (2, 16) => pick!(2, 16, 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
        (2, 32) => pick!(2, 32, 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
        (2, _) => pick!(2, 0, 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
        (_, 16) => pick!(1, 16, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28),
        (_, 1) => pick!(1, 1, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28),
        (_, _) => pick!(1, 0, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28),
    }
}

/// `OB` blocks × `P` voxels; `STEP` is the distance of two input voxels in values, 0 = take it from `m`.
#[target_feature(enable = "avx512f")]
unsafe fn kernel<const OB: usize, const P: usize, const STEP: usize>(m: &Micro<'_, f32, f32, f32>) {
    let step = if STEP == 0 { m.in_step } else { STEP };
    // SAFETY: every pointer reaches what `m` says, by this function's contract.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); P]; OB];
        for (o, row) in acc.iter_mut().enumerate() {
            *row = [_mm512_loadu_ps(m.start.add(o * 16)); P];
        }
        let mut weights = m.weights;
        for block in 0..m.in_blocks {
            let channels = m.channels(block);
            let plane = m.input.add(block * m.in_block_stride);
            for tap in m.taps {
                let start = plane.add(*tap);
                for c in 0..channels {
                    let mut w = [_mm512_setzero_ps(); OB];
                    for (o, v) in w.iter_mut().enumerate() {
                        *v = _mm512_loadu_ps(weights.add(o * 16));
                    }
                    weights = weights.add(OB * 16);
                    for p in 0..P {
                        let x = _mm512_set1_ps(*start.add(p * step + c));
                        for o in 0..OB {
                            acc[o][p] = _mm512_fmadd_ps(x, w[o], acc[o][p]);
                        }
                    }
                }
            }
        }
        for o in 0..OB {
            for p in 0..P {
                _mm512_storeu_ps(m.sums.add(o * m.block_room + p * 16), acc[o][p]);
            }
        }
    }
}

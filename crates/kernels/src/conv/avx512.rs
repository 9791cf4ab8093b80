//! AVX-512 micro-kernels: up to 28 voxels × 16 or 14 voxels × 32 output channels in registers. If taps come in threes
//! one voxel apart, each input is read once for all three.
#![cfg(target_arch = "x86_64")]

use super::Micro;
use std::arch::x86_64::*;

/// Computes a run of `len` voxels for one or two blocks of output channels.
///
/// # Safety
/// The CPU must support AVX-512 F, and every pointer of `m` must reach what its fields say for `len` voxels.
pub(crate) unsafe fn micro(blocks: usize, len: usize, m: &Micro<'_, f32, f32, f32>) {
    macro_rules! pick {
        ($ob:literal, $step:literal, $($p:literal)*) => {
            match len {
                // SAFETY: the caller guarantees AVX-512 F and pointers that reach `len` voxels, which is `$p`.
                $($p => unsafe { kernel::<$ob, $p, $step>(m) },)*
                _ => unreachable!("run of {len} voxels"),
            }
        };
    }
    if m.three_in_a_row() {
        macro_rules! pick_three {
            ($ob:literal, $step:literal, $($p:literal)*) => {
                match len {
                    // SAFETY: the caller guarantees AVX-512 F and pointers that reach `len` voxels; `three_in_a_row`
                    // shows that the taps come in threes, and the match picks the input's step.
                    $($p => unsafe { three::<$ob, $p, $step>(m) },)*
                    _ => unreachable!("run of {len} voxels"),
                }
            };
        }
        return match (blocks, m.in_step) {
            (2, 1) => pick_three!(2, 1, 1 2 3 4 5 6 7 8 9 10 11 12),
            (2, _) => pick_three!(2, 16, 1 2 3 4 5 6 7 8 9 10 11 12),
            (_, 1) => pick_three!(1, 1, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28),
            (_, _) => pick_three!(1, 16, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28),
        };
    }
    match (blocks, m.in_step) {
        (2, 16) => pick!(2, 16, 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
        (2, 32) => pick!(2, 32, 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
        (2, _) => pick!(2, 0, 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
        (_, 16) => pick!(1, 16, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28),
        (_, 32) => pick!(1, 32, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28),
        (_, 1) => pick!(1, 1, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28),
        (_, _) => pick!(1, 0, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28),
    }
}

/// Computes `OB` blocks × `P` voxels. `STEP` is the distance of two input voxels in values; 0 means that of `m`.
#[target_feature(enable = "avx512f")]
unsafe fn kernel<const OB: usize, const P: usize, const STEP: usize>(m: &Micro<'_, f32, f32, f32>) {
    let step = if STEP == 0 { m.in_step } else { STEP };
    // SAFETY: the caller guarantees AVX-512 F and that every pointer of `m` reaches `P` voxels. All accesses are
    // unaligned; prefetching any address is harmless.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); P]; OB];
        for (o, row) in acc.iter_mut().enumerate() {
            *row = [_mm512_loadu_ps(m.start.add(o * 16)); P];
        }
        let mut weights = m.weights;
        for block in 0..m.in_blocks {
            let channels = m.channels(block);
            let plane = m.input.add(block * m.in_block_stride);
            for (at, tap) in m.taps.iter().enumerate() {
                let start = plane.add(*tap);
                // With a stride of 2, few taps read the same cache lines: prefetch two taps ahead.
                let ahead = plane.add(m.taps[(at + 2).min(m.taps.len() - 1)]);
                for c in 0..channels {
                    if STEP == 32 {
                        for p in (0..P).step_by(16) {
                            _mm_prefetch::<_MM_HINT_T0>(ahead.wrapping_add((p + c) * STEP).cast());
                        }
                    }
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
                _mm512_storeu_ps(m.sums.add(o * m.sum_block_stride + p * 16), acc[o][p]);
            }
        }
    }
}

/// Computes three adjacent taps at a time on voxels `STEP` values apart; each input is multiplied by all three weights.
#[target_feature(enable = "avx512f")]
unsafe fn three<const OB: usize, const P: usize, const STEP: usize>(m: &Micro<'_, f32, f32, f32>) {
    // SAFETY: the caller guarantees AVX-512 F and that every pointer of `m` reaches `P` voxels, the input two more
    // through its taps; accesses are unaligned.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); P]; OB];
        for (o, row) in acc.iter_mut().enumerate() {
            *row = [_mm512_loadu_ps(m.start.add(o * 16)); P];
        }
        let mut weights = m.weights;
        for block in 0..m.in_blocks {
            let channels = m.channels(block);
            let plane = m.input.add(block * m.in_block_stride);
            let tap_weights = channels * OB * 16;
            for tap in m.taps.iter().step_by(3) {
                let start = plane.add(*tap);
                for c in 0..channels {
                    let mut w = [[_mm512_setzero_ps(); 3]; OB];
                    for (o, row) in w.iter_mut().enumerate() {
                        for (k, v) in row.iter_mut().enumerate() {
                            *v = _mm512_loadu_ps(weights.add(k * tap_weights + o * 16));
                        }
                    }
                    weights = weights.add(OB * 16);
                    // Unrolled by hand: the compiler would not unroll a loop this long nor keep its sums in registers.
                    macro_rules! inputs {
                        ($($i:literal)*) => { $(
                            if $i < P + 2 {
                                let x = _mm512_set1_ps(*start.add($i * STEP + c));
                                for k in 0..3 {
                                    if $i >= k && $i - k < P {
                                        for o in 0..OB {
                                            acc[o][$i - k] = _mm512_fmadd_ps(x, w[o][k], acc[o][$i - k]);
                                        }
                                    }
                                }
                            }
                        )* };
                    }
                    inputs!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29);
                }
                weights = weights.add(2 * tap_weights);
            }
        }
        for o in 0..OB {
            for p in 0..P {
                _mm512_storeu_ps(m.sums.add(o * m.sum_block_stride + p * 16), acc[o][p]);
            }
        }
    }
}

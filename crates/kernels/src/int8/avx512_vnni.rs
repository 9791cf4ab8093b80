//! Kernels for AVX-512 VNNI: up to 28 voxels × 16 or 14 voxels × 32 output channels in registers. If taps come in
//! threes one voxel apart, each input is read once for all three.
#![cfg(target_arch = "x86_64")]

use super::Bytes;
use std::arch::x86_64::*;

/// Computes a run of `len` voxels for one or two blocks of output channels.
///
/// # Safety
/// The CPU must support AVX-512 F and VNNI, and every pointer of `m` must reach what its fields say for `len` voxels.
pub(super) unsafe fn micro(blocks: usize, len: usize, m: &Bytes<'_>) {
    macro_rules! pick {
        ($ob:literal, $step:literal, $($p:literal)*) => {
            match len {
                // SAFETY: the caller guarantees AVX-512 F and VNNI and pointers that reach `len` voxels, which is `$p`.
                $($p => unsafe { kernel::<$ob, $p, $step>(m) },)*
                _ => unreachable!("run of {len} voxels"),
            }
        };
    }
    if m.three_in_a_row() {
        macro_rules! pick_three {
            ($ob:literal, $step:literal, $($p:literal)*) => {
                match len {
                    // SAFETY: the caller guarantees AVX-512 F and VNNI and pointers that reach `len` voxels;
                    // `three_in_a_row` shows that the taps come in threes, and the match picks the input's step.
                    $($p => unsafe { three::<$ob, $p, $step>(m) },)*
                    _ => unreachable!("run of {len} voxels"),
                }
            };
        }
        return match (blocks, m.in_step) {
            (2, 16) => pick_three!(2, 16, 1 2 3 4 5 6 7 8 9 10 11 12),
            (2, _) => pick_three!(2, 4, 1 2 3 4 5 6 7 8 9 10 11 12),
            (_, 16) => pick_three!(1, 16, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28),
            (_, _) => pick_three!(1, 4, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28),
        };
    }
    match (blocks, m.in_step) {
        (2, 16) => pick!(2, 16, 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
        (2, _) => pick!(2, 0, 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
        (_, 16) => pick!(1, 16, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28),
        (_, _) => pick!(1, 0, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28),
    }
}

/// Computes `OB` blocks × `P` voxels. `STEP` is the distance of two input voxels in bytes; 0 means that of `m`.
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn kernel<const OB: usize, const P: usize, const STEP: usize>(m: &Bytes<'_>) {
    let step = if STEP == 0 { m.in_step } else { STEP };
    let quads = m.in_per_block / 4;
    // SAFETY: the caller guarantees AVX-512 F and VNNI and that every pointer of `m` reaches `P` voxels; all accesses
    // are unaligned.
    unsafe {
        let mut acc = [[_mm512_setzero_si512(); P]; OB];
        for (o, row) in acc.iter_mut().enumerate() {
            *row = [_mm512_loadu_si512(m.start.add(o * 16).cast()); P];
        }
        let mut weights = m.weights;
        for block in 0..m.in_blocks {
            let plane = m.input.add(block * m.in_block_stride);
            for tap in m.taps {
                let start = plane.add(*tap);
                for q in 0..quads {
                    let mut w = [_mm512_setzero_si512(); OB];
                    for (o, v) in w.iter_mut().enumerate() {
                        *v = _mm512_loadu_si512(weights.add(o * 64).cast());
                    }
                    weights = weights.add(OB * 64);
                    for p in 0..P {
                        let x = _mm512_set1_epi32(start.add(p * step + q * 4).cast::<i32>().read_unaligned());
                        for o in 0..OB {
                            acc[o][p] = _mm512_dpbusd_epi32(acc[o][p], x, w[o]);
                        }
                    }
                }
            }
        }
        for o in 0..OB {
            for p in 0..P {
                _mm512_storeu_si512(m.sums.add(o * m.sum_block_stride + p * 16).cast(), acc[o][p]);
            }
        }
    }
}

/// Computes three adjacent taps at a time on voxels `STEP` bytes apart; each input is multiplied by all three weights.
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn three<const OB: usize, const P: usize, const STEP: usize>(m: &Bytes<'_>) {
    let quads = STEP / 4;
    // SAFETY: the caller guarantees AVX-512 F and VNNI and that every pointer of `m` reaches `P` voxels, the input two
    // more through its taps; accesses are unaligned.
    unsafe {
        let mut acc = [[_mm512_setzero_si512(); P]; OB];
        for (o, row) in acc.iter_mut().enumerate() {
            *row = [_mm512_loadu_si512(m.start.add(o * 16).cast()); P];
        }
        let mut weights = m.weights;
        let tap_weights = quads * OB * 64;
        for block in 0..m.in_blocks {
            let plane = m.input.add(block * m.in_block_stride);
            for tap in m.taps.iter().step_by(3) {
                let start = plane.add(*tap);
                for q in 0..quads {
                    let mut w = [[_mm512_setzero_si512(); 3]; OB];
                    for (o, row) in w.iter_mut().enumerate() {
                        for (k, v) in row.iter_mut().enumerate() {
                            *v = _mm512_loadu_si512(weights.add(k * tap_weights + o * 64).cast());
                        }
                    }
                    weights = weights.add(OB * 64);
                    // Unrolled by hand: the compiler would not unroll a loop this long nor keep its sums in registers.
                    macro_rules! inputs {
                        ($($i:literal)*) => { $(
                            if $i < P + 2 {
                                let x = _mm512_set1_epi32(start.add($i * STEP + q * 4).cast::<i32>().read_unaligned());
                                for k in 0..3 {
                                    if $i >= k && $i - k < P {
                                        for o in 0..OB {
                                            acc[o][$i - k] = _mm512_dpbusd_epi32(acc[o][$i - k], x, w[o][k]);
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
                _mm512_storeu_si512(m.sums.add(o * m.sum_block_stride + p * 16).cast(), acc[o][p]);
            }
        }
    }
}

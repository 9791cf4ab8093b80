//! Kernels for AVX-512 BF16: up to 28 voxels × 16 or 14 voxels × 32 output channels in registers. If taps come in threes
//! one voxel apart, each input is read once for all three.
#![cfg(target_arch = "x86_64")]

use super::{Floats, PAIRS, Stage, voxels_read};
use crate::CHANNEL_BLOCK;
use crate::peak::CHAINS;
use std::arch::x86_64::*;
use std::hint::black_box;

/// Weights of a pair of input channels and a block of output channels.
const PAIR_WEIGHTS: usize = 2 * CHANNEL_BLOCK;

/// Computes a run of `len` voxels for one or two blocks of output channels.
///
/// # Safety
/// The CPU must support AVX-512 F and BF16, the buffer for rounded inputs must hold what the run reads, and every pointer
/// of `m` must reach what its fields say for `len` voxels.
pub(super) unsafe fn micro(blocks: usize, len: usize, m: &Floats<'_>) {
    macro_rules! pick {
        ($kernel:ident, $ob:literal, $($p:literal)*) => {
            match len {
                // SAFETY: the caller guarantees AVX-512 F and BF16 and pointers that reach `len` voxels, which is `$p`.
                // `three` is picked only if `three_in_a_row` shows that the taps come in threes.
                $($p => unsafe { $kernel::<$ob, $p>(m) },)*
                _ => unreachable!("run of {len} voxels"),
            }
        };
    }
    match (blocks, m.three_in_a_row()) {
        (2, true) => pick!(three, 2, 1 2 3 4 5 6 7 8 9 10 11 12),
        (2, false) => pick!(kernel, 2, 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
        (_, true) => pick!(three, 1, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28),
        (_, false) => pick!(kernel, 1, 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28),
    }
}

/// Loads the weights of a pair of input channels.
///
/// # Safety
/// The CPU must support AVX-512 F and BF16, and 32 weights must lie at `from`.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn weights_at(from: *const u16) -> __m512bh {
    // SAFETY: the caller guarantees the weights; the access is unaligned, and both types are 64 bytes of any value.
    unsafe { std::mem::transmute(_mm512_loadu_si512(from.cast())) }
}

/// Loads a pair of channels of one voxel into all lanes.
///
/// # Safety
/// The CPU must support AVX-512 F and BF16, and two inputs must lie at `from`.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn inputs_at(from: *const u16) -> __m512bh {
    // SAFETY: the caller guarantees the inputs; the access is unaligned, and both types are 64 bytes of any value.
    unsafe { std::mem::transmute(_mm512_set1_epi32(from.cast::<i32>().read_unaligned())) }
}

/// Computes `OB` blocks × `P` voxels.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn kernel<const OB: usize, const P: usize>(m: &Floats<'_>) {
    let (step, voxels) = (m.in_step, voxels_read(P, m));
    let mut stage = Stage::new();
    // SAFETY: the caller guarantees AVX-512 F and BF16, that every pointer of `m` reaches `P` voxels, and that the buffer
    // holds the inputs of these; all accesses are unaligned.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); P]; OB];
        for (o, row) in acc.iter_mut().enumerate() {
            *row = [_mm512_loadu_ps(m.start.add(o * CHANNEL_BLOCK)); P];
        }
        let mut weights = m.weights;
        for block in 0..m.in_blocks {
            let plane = m.input.add(block * m.in_block_stride);
            for tap in m.taps.iter().step_by(m.adjacent) {
                stage.fill(plane.add(*tap), voxels, m.channels(block));
                for k in 0..m.adjacent {
                    let start = stage.0.as_ptr().add(k * CHANNEL_BLOCK);
                    for q in 0..PAIRS {
                        let mut w = [weights_at(weights); OB];
                        for (o, v) in w.iter_mut().enumerate().skip(1) {
                            *v = weights_at(weights.add(o * PAIR_WEIGHTS));
                        }
                        weights = weights.add(OB * PAIR_WEIGHTS);
                        for p in 0..P {
                            let x = inputs_at(start.add(p * step + q * 2));
                            for o in 0..OB {
                                acc[o][p] = _mm512_dpbf16_ps(acc[o][p], x, w[o]);
                            }
                        }
                    }
                }
                weights = weights.add(m.adjacent % 2 * PAIRS * OB * PAIR_WEIGHTS);
            }
        }
        for o in 0..OB {
            for p in 0..P {
                _mm512_storeu_ps(m.sums.add(o * m.sum_block_stride + p * CHANNEL_BLOCK), acc[o][p]);
            }
        }
    }
}

/// Computes three adjacent taps at a time on adjacent voxels; each input is multiplied by all three weights.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn three<const OB: usize, const P: usize>(m: &Floats<'_>) {
    let tap_weights = PAIRS * OB * PAIR_WEIGHTS;
    let mut stage = Stage::new();
    // SAFETY: the caller guarantees AVX-512 F and BF16, that every pointer of `m` reaches `P` voxels, the input two more
    // through its taps, and that the buffer holds these; accesses are unaligned.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); P]; OB];
        for (o, row) in acc.iter_mut().enumerate() {
            *row = [_mm512_loadu_ps(m.start.add(o * CHANNEL_BLOCK)); P];
        }
        let mut weights = m.weights;
        for block in 0..m.in_blocks {
            let plane = m.input.add(block * m.in_block_stride);
            for tap in m.taps.iter().step_by(3) {
                stage.fill(plane.add(*tap), P + 2, m.channels(block));
                let start = stage.0.as_ptr();
                for q in 0..PAIRS {
                    let mut w = [[weights_at(weights); 3]; OB];
                    for (o, row) in w.iter_mut().enumerate() {
                        for (k, v) in row.iter_mut().enumerate() {
                            *v = weights_at(weights.add(k * tap_weights + (q * OB + o) * PAIR_WEIGHTS));
                        }
                    }
                    // Unrolled by hand: the compiler would not unroll a loop this long nor keep its sums in registers.
                    macro_rules! inputs {
                        ($($i:literal)*) => { $(
                            if $i < P + 2 {
                                let x = inputs_at(start.add($i * CHANNEL_BLOCK + q * 2));
                                for k in 0..3 {
                                    if $i >= k && $i - k < P {
                                        for o in 0..OB {
                                            acc[o][$i - k] = _mm512_dpbf16_ps(acc[o][$i - k], x, w[o][k]);
                                        }
                                    }
                                }
                            }
                        )* };
                    }
                    inputs!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29);
                }
                // A fourth tap with weights of 0 follows, which only the matrix unit needs.
                weights = weights.add(4 * tap_weights);
            }
        }
        for o in 0..OB {
            for p in 0..P {
                _mm512_storeu_ps(m.sums.add(o * m.sum_block_stride + p * CHANNEL_BLOCK), acc[o][p]);
            }
        }
    }
}

/// Computes `rounds` products for each of several independent sums, to measure the peak rate.
///
/// # Safety
/// The CPU must support AVX-512 F and BF16.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(crate) unsafe fn run_products(rounds: usize) {
    // SAFETY: both types are 64 bytes of any value.
    let ones: __m512bh = black_box(unsafe { std::mem::transmute::<__m512i, __m512bh>(_mm512_set1_epi16(0x3f80)) });
    let mut sums = [black_box(_mm512_setzero_ps()); CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_dpbf16_ps(*sum, ones, ones);
        }
    }
    black_box(sums);
}

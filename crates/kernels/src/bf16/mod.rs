//! Micro-kernels that round floats to bf16 before they multiply them, and accumulate in 32 bits.
//!
//! Inputs stay in memory as 32-bit floats. The inputs of a row of taps are rounded into a small buffer ([`Stage`]), from
//! which all taps, channels and output blocks of the run read them.
#![cfg(target_arch = "x86_64")]

pub(crate) mod amx;
pub(crate) mod avx512;

use crate::conv::Micro;
use crate::isa::Bf16Unit;
use crate::{CHANNEL_BLOCK, Isa};
use std::arch::x86_64::*;

/// Arguments of the kernels. Weights are the bits of bf16 values.
pub(crate) type Floats<'a> = Micro<'a, f32, u16, f32>;

/// Longest run of voxels of any kernel.
const WIDEST: usize = 64;
/// Largest number of taps along W.
pub(crate) const MAX_ADJACENT: usize = 8;
/// Largest distance of the inputs of neighboring output voxels, in voxels.
pub(crate) const MAX_STRIDE: usize = 2;
/// Voxels that the buffer for rounded inputs holds.
const STAGE_VOXELS: usize = WIDEST * MAX_STRIDE + MAX_ADJACENT;

/// Pairs of input channels in a block: the products of a pair are added in one instruction.
pub(crate) const PAIRS: usize = CHANNEL_BLOCK / 2;

/// Returns the longest run of voxels for a number of output blocks; `three` is [`Micro::three_in_a_row`].
pub(crate) fn widest(unit: Bf16Unit, blocks: usize, three: bool) -> usize {
    match (unit, blocks, three) {
        (Bf16Unit::Amx, 2, _) => 32,
        (Bf16Unit::Amx, ..) => WIDEST,
        (Bf16Unit::Avx512, 2, true) => 12,
        (Bf16Unit::Avx512, 2, false) => 14,
        (Bf16Unit::Avx512, ..) => 28,
    }
}

/// Configures this thread's matrix unit, if it is used.
pub(crate) fn prepare(isa: Isa) {
    if isa.bf16_unit() == Some(Bf16Unit::Amx) {
        // SAFETY: the unit is AMX only if `amx::is_available` returned true.
        unsafe { crate::amx::configure(crate::amx::ROW_BYTES) };
    }
}

/// Releases the matrix unit, if it is used.
pub(crate) fn release(isa: Isa) {
    if isa.bf16_unit() == Some(Bf16Unit::Amx) {
        // SAFETY: the unit is AMX only if `amx::is_available` returned true.
        unsafe { crate::amx::release() };
    }
}

/// Computes a run of `len` voxels.
///
/// # Panics
/// If the run reads more voxels than the buffer for rounded inputs holds, or this CPU does not multiply bf16.
///
/// # Safety
/// Every pointer of `m` must reach what its fields say for `len` voxels, with the weights that complete an odd number of
/// taps along W, and the sums must have space for whole tiles of 16 voxels. [`prepare`] must have been called on this
/// thread.
pub(crate) unsafe fn sums(isa: Isa, blocks: usize, len: usize, m: &Floats<'_>) {
    let step = m.in_step / CHANNEL_BLOCK;
    assert!(
        m.in_per_block == CHANNEL_BLOCK
            && (1..=WIDEST).contains(&len)
            && step <= MAX_STRIDE
            && m.adjacent <= MAX_ADJACENT,
        "run of {len} voxels, {step} apart, with {} taps, exceeds the buffer for rounded inputs",
        m.adjacent
    );
    // SAFETY: `bf16_unit` proves that the CPU has the instructions. The caller guarantees the pointers and that `prepare`
    // was called; the assertion shows that the buffer holds the inputs.
    unsafe {
        match isa.bf16_unit() {
            Some(Bf16Unit::Amx) => amx::micro(blocks, len, m),
            Some(Bf16Unit::Avx512) => avx512::micro(blocks, len, m),
            None => unreachable!("{isa} has no products of bf16"),
        }
    }
}

/// Buffer for the rounded inputs of a run at one row of taps: 16 channels per voxel.
#[repr(align(64))]
struct Stage([u16; STAGE_VOXELS * CHANNEL_BLOCK]);

impl Stage {
    /// Returns a buffer of zeros.
    fn new() -> Self {
        Self([0; STAGE_VOXELS * CHANNEL_BLOCK])
    }

    /// Rounds the first `channels` channels of `voxels` adjacent voxels, to nearest, half to even. Subnormal numbers and the
    /// other channels of a block become 0.
    ///
    /// # Safety
    /// The CPU must support AVX-512 F and BF16, `from` must reach that many voxels, and the buffer must hold them.
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn fill(&mut self, from: *const f32, voxels: usize, channels: usize) {
        let lanes = (1u32 << channels).wrapping_sub(1) as __mmask16;
        let to = self.0.as_mut_ptr();
        // SAFETY: the caller guarantees the instructions, and that input and buffer have `voxels` voxels. Accesses are
        // unaligned.
        unsafe {
            for pair in 0..voxels / 2 {
                let at = pair * 2 * CHANNEL_BLOCK;
                let low = _mm512_maskz_loadu_ps(lanes, from.add(at));
                let high = _mm512_maskz_loadu_ps(lanes, from.add(at + CHANNEL_BLOCK));
                let rounded: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(high, low));
                _mm512_storeu_si512(to.add(at).cast(), rounded);
            }
            if voxels % 2 == 1 {
                let at = (voxels - 1) * CHANNEL_BLOCK;
                let last = _mm512_maskz_loadu_ps(lanes, from.add(at));
                let rounded: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(last));
                _mm256_storeu_si256(to.add(at).cast(), rounded);
            }
        }
    }
}

/// Returns the number of voxels that a run of `len` voxels reads at one row of taps.
fn voxels_read(len: usize, m: &Floats<'_>) -> usize {
    (len - 1) * (m.in_step / CHANNEL_BLOCK) + m.adjacent
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_testkit::{skip, uniform};
    use half::bf16;

    /// Returns the units of this CPU, whichever of them its instruction sets use.
    fn units() -> Vec<Bf16Unit> {
        let has_vectors = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16");
        let has_matrices = has_vectors && crate::amx::has_bf16();
        let all = [(Bf16Unit::Avx512, has_vectors), (Bf16Unit::Amx, has_matrices)];
        all.into_iter().filter(|(_, is_there)| *is_there).map(|(unit, _)| unit).collect()
    }

    /// Compares a run of `len` voxels, whose inputs are `stride` voxels apart, with naive loops over rounded inputs. The kernel
    /// has two rows of `adjacent` taps; the input has two blocks, of which the second has 5 channels.
    fn check(unit: Bf16Unit, blocks: usize, len: usize, adjacent: usize, stride: usize) {
        let (channels, lanes, stored) = ([CHANNEL_BLOCK, 5], blocks * CHANNEL_BLOCK, adjacent.next_multiple_of(2));
        let row = ((len - 1) * stride + adjacent) * CHANNEL_BLOCK;
        let mut x: Vec<f32> = uniform(1, 4 * row).iter().map(|v| v - 0.5).collect();
        // What is stored in the channels that the second block lacks does not matter.
        x[2 * row..].chunks_mut(CHANNEL_BLOCK).for_each(|voxel| voxel[channels[1]..].fill(f32::NAN));
        let tap_weights = CHANNEL_BLOCK * lanes;
        let weights = uniform(2, 4 * stored * tap_weights);
        let mut weights: Vec<u16> = weights.iter().map(|v| bf16::from_f32(v - 0.5).to_bits()).collect();
        weights.chunks_mut(stored * tap_weights).for_each(|taps| taps[adjacent * tap_weights..].fill(0));
        let start = uniform(3, lanes);
        let taps: Vec<usize> = (0..2 * adjacent).map(|t| t / adjacent * row + t % adjacent * CHANNEL_BLOCK).collect();
        let sum_block_stride = WIDEST * CHANNEL_BLOCK;
        let mut sums = vec![f32::NAN; blocks * sum_block_stride];
        let m = Floats {
            input: x.as_ptr(),
            input_left: x.len(),
            in_step: stride * CHANNEL_BLOCK,
            in_block_stride: 2 * row,
            in_blocks: channels.len(),
            in_per_block: CHANNEL_BLOCK,
            last_in_per_block: channels[1],
            taps: &taps,
            adjacent,
            weights: weights.as_ptr(),
            excess: &[],
            depthwise: false,
            start: start.as_ptr(),
            sums: sums.as_mut_ptr(),
            sum_block_stride,
        };
        // SAFETY: `units` has found the instructions. The input has the voxels that the run reads at each tap, the weights an even
        // number of taps, and the sums whole tiles.
        unsafe {
            match unit {
                Bf16Unit::Avx512 => avx512::micro(blocks, len, &m),
                Bf16Unit::Amx => {
                    crate::amx::configure(crate::amx::ROW_BYTES);
                    amx::micro(blocks, len, &m);
                    crate::amx::release();
                }
            }
        }
        let rounded: Vec<f64> = x.iter().map(|v| bf16::from_f32(*v).to_f64()).collect();
        let weights: Vec<f64> = weights.iter().map(|w| bf16::from_bits(*w).to_f64()).collect();
        for (o, p) in (0..lanes).flat_map(|o| (0..len).map(move |p| (o, p))) {
            let mut want = f64::from(start[o]);
            for (r, k) in (0..4).flat_map(|r| (0..adjacent).map(move |k| (r, k))) {
                for c in 0..channels[r / 2] {
                    let x = rounded[r * row + (p * stride + k) * CHANNEL_BLOCK + c];
                    let w = weights[(r * stored + k) * tap_weights + c / 2 * 2 * lanes + o * 2 + c % 2];
                    want += x * w;
                }
            }
            let got = sums[o / CHANNEL_BLOCK * sum_block_stride + p * CHANNEL_BLOCK + o % CHANNEL_BLOCK];
            assert!(
                (f64::from(got) - want).abs() < 1e-4,
                "{unit:?}, {blocks} blocks, voxel {p} of {len}, {adjacent} taps, stride {stride}: {got}, expected {want}"
            );
        }
    }

    #[test]
    fn runs_of_every_shape_match_naive_loops_on_each_unit_of_the_cpu() {
        let units = units();
        if units.is_empty() {
            return skip("this machine has no instructions for bf16");
        }
        for unit in units {
            for (adjacent, stride) in (1..=MAX_ADJACENT).flat_map(|a| (1..=MAX_STRIDE).map(move |s| (a, s))) {
                for blocks in 1..=2 {
                    let longest = widest(unit, blocks, adjacent == 3 && stride == 1);
                    for len in [1, longest / 2 + 1, longest - 1, longest] {
                        check(unit, blocks, len, adjacent, stride);
                    }
                }
            }
        }
    }
}

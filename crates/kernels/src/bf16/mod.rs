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
        m.in_per_block == CHANNEL_BLOCK && len <= WIDEST && step <= MAX_STRIDE && m.adjacent <= MAX_ADJACENT,
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

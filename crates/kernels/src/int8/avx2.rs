//! Kernels for AVX2 without byte dot products: up to 6 voxels × 16 output channels in registers. The products of two
//! neighboring channels are summed in 16 bits; weights were split so that this is exact, see [`super::pairs`].
#![cfg(target_arch = "x86_64")]

use super::Bytes;
use super::quads::micro_by_quads;
use std::arch::x86_64::*;

micro_by_quads!(
    #[target_feature(enable = "avx2")]
    multiply
);

/// Adds the products of a quad of input channels of `P` voxels.
///
/// # Safety
/// The CPU must support AVX2. `input` must reach `P` quads, `step` apart, and `weights` 64 values.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn multiply<const P: usize>(acc: &mut [[__m256i; 2]; P], input: *const u8, step: usize, weights: *const i8) {
    let ones = _mm256_set1_epi16(1);
    // SAFETY: the caller guarantees AVX2 and the reach of both pointers; all accesses are unaligned.
    unsafe {
        let w = [_mm256_loadu_si256(weights.cast()), _mm256_loadu_si256(weights.add(32).cast())];
        for (p, row) in acc.iter_mut().enumerate() {
            let x = _mm256_set1_epi32(input.add(p * step).cast::<i32>().read_unaligned());
            for (sum, w) in row.iter_mut().zip(w) {
                let pairs = _mm256_maddubs_epi16(x, w);
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
            }
        }
    }
}

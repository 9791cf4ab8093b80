//! Kernels for AVX-VNNI: up to 6 voxels × 16 output channels in registers.
#![cfg(target_arch = "x86_64")]

use super::Bytes;
use super::quads::micro_by_quads;
use std::arch::x86_64::*;

micro_by_quads!(
    #[target_feature(enable = "avx2,avxvnni")]
    multiply
);

/// Adds the products of a quad of input channels of `P` voxels.
///
/// # Safety
/// The CPU must support AVX2 and AVX-VNNI. `input` must reach `P` quads, `step` apart, and `weights` 64 values.
#[inline]
#[target_feature(enable = "avx2,avxvnni")]
unsafe fn multiply<const P: usize>(acc: &mut [[__m256i; 2]; P], input: *const u8, step: usize, weights: *const i8) {
    // SAFETY: the caller guarantees AVX2, AVX-VNNI and the reach of both pointers; all accesses are unaligned.
    unsafe {
        let w = [_mm256_loadu_si256(weights.cast()), _mm256_loadu_si256(weights.add(32).cast())];
        for (p, row) in acc.iter_mut().enumerate() {
            let x = _mm256_set1_epi32(input.add(p * step).cast::<i32>().read_unaligned());
            for (sum, w) in row.iter_mut().zip(w) {
                *sum = _mm256_dpbusd_avx_epi32(*sum, x, w);
            }
        }
    }
}

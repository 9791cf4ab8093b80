//! Kernels for AVX2 without byte dot products: up to 6 voxels × 16 output channels in registers. The products of two
//! neighboring channels are summed in 16 bits; weights were split so that this is exact, see [`super::pairs`].
#![cfg(target_arch = "x86_64")]

use super::Bytes;
use std::arch::x86_64::*;

/// Computes a run of up to 6 voxels for one block of output channels.
///
/// # Safety
/// The CPU must support AVX2, and every pointer of `m` must reach what its fields say for `len` voxels.
pub(super) unsafe fn micro(len: usize, m: &Bytes<'_>) {
    // SAFETY: the caller guarantees AVX2 and pointers that reach `len` voxels, as many as the match gives to `kernel`.
    unsafe {
        match len {
            1 => kernel::<1>(m),
            2 => kernel::<2>(m),
            3 => kernel::<3>(m),
            4 => kernel::<4>(m),
            5 => kernel::<5>(m),
            6 => kernel::<6>(m),
            _ => unreachable!("run of {len} voxels"),
        }
    }
}

#[target_feature(enable = "avx2")]
unsafe fn kernel<const P: usize>(m: &Bytes<'_>) {
    let quads = m.in_per_block / 4;
    // SAFETY: the caller guarantees AVX2 and that every pointer of `m` reaches `P` voxels; all accesses are unaligned. Excess
    // weights belong to quads that the other weights have, too.
    unsafe {
        let start = [_mm256_loadu_si256(m.start.cast()), _mm256_loadu_si256(m.start.add(8).cast())];
        let mut acc = [start; P];
        let mut weights = m.weights;
        for block in 0..m.in_blocks {
            let plane = m.input.add(block * m.in_block_stride);
            for tap in m.taps {
                let start = plane.add(*tap);
                for q in 0..quads {
                    multiply(&mut acc, start.add(q * 4), m.in_step, weights);
                    weights = weights.add(64);
                }
            }
        }
        for excess in m.excess {
            let start = m.input.add(excess.in_block * m.in_block_stride + m.taps[excess.tap] + excess.quad * 4);
            multiply(&mut acc, start, m.in_step, excess.weights.as_ptr());
        }
        for (p, row) in acc.iter().enumerate() {
            _mm256_storeu_si256(m.sums.add(p * 16).cast(), row[0]);
            _mm256_storeu_si256(m.sums.add(p * 16 + 8).cast(), row[1]);
        }
    }
}

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

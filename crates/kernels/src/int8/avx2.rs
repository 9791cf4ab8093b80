//! Kernels for AVX2 without byte dot products: bytes are widened to 16 bits, so that no sum of two products can
//! saturate.
#![cfg(target_arch = "x86_64")]

use super::Bytes;
use std::arch::x86_64::*;

/// Computes a run of up to 3 voxels for one block of output channels.
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
            _ => unreachable!("run of {len} voxels"),
        }
    }
}

#[target_feature(enable = "avx2")]
unsafe fn kernel<const P: usize>(m: &Bytes<'_>) {
    let quads = m.in_per_block / 4;
    // SAFETY: the caller guarantees AVX2 and that every pointer of `m` reaches `P` voxels; all accesses are unaligned.
    unsafe {
        // Each register holds two partial sums of each of four output channels.
        let mut acc = [[_mm256_setzero_si256(); 4]; P];
        let mut weights = m.weights;
        for block in 0..m.in_blocks {
            let plane = m.input.add(block * m.in_block_stride);
            for tap in m.taps {
                let start = plane.add(*tap);
                for q in 0..quads {
                    let mut w = [_mm256_setzero_si256(); 4];
                    for (i, v) in w.iter_mut().enumerate() {
                        *v = _mm256_cvtepi8_epi16(_mm_loadu_si128(weights.add(i * 16).cast()));
                    }
                    weights = weights.add(64);
                    for p in 0..P {
                        let quad = start.add(p * m.in_step + q * 4).cast::<i32>().read_unaligned();
                        let x = _mm256_cvtepu8_epi16(_mm_set1_epi32(quad));
                        for i in 0..4 {
                            acc[p][i] = _mm256_add_epi32(acc[p][i], _mm256_madd_epi16(x, w[i]));
                        }
                    }
                }
            }
        }
        for (p, row) in acc.iter().enumerate() {
            for half in 0..2 {
                // The sums of pairs of a0a1 a2a3 | a4a5 a6a7 and b are a01 a23 b01 b23 | ...; restore the order.
                let pairs = _mm256_hadd_epi32(row[half * 2], row[half * 2 + 1]);
                let ordered = _mm256_permute4x64_epi64::<0b11_01_10_00>(pairs);
                let start = _mm256_loadu_si256(m.start.add(half * 8).cast());
                _mm256_storeu_si256(m.sums.add(p * 16 + half * 8).cast(), _mm256_add_epi32(ordered, start));
            }
        }
    }
}

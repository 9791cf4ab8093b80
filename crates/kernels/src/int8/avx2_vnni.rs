//! Kernels for AVX-VNNI: up to 6 voxels × 16 output channels in registers.
#![cfg(target_arch = "x86_64")]

use super::Bytes;
use std::arch::x86_64::*;

/// Computes a run of up to 6 voxels for one block of output channels.
///
/// # Safety
/// The CPU must support AVX2 and AVX-VNNI, and every pointer of `m` must reach what its fields say for `len` voxels.
pub(super) unsafe fn micro(len: usize, m: &Bytes<'_>) {
    // SAFETY: the caller guarantees AVX2, AVX-VNNI and pointers that reach `len` voxels, as many as the match gives to
    // `kernel`.
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

#[target_feature(enable = "avx2,avxvnni")]
unsafe fn kernel<const P: usize>(m: &Bytes<'_>) {
    let quads = m.in_per_block / 4;
    // SAFETY: the caller guarantees AVX2, AVX-VNNI and that every pointer of `m` reaches `P` voxels; all accesses are
    // unaligned.
    unsafe {
        let start = [_mm256_loadu_si256(m.start.cast()), _mm256_loadu_si256(m.start.add(8).cast())];
        let mut acc = [start; P];
        let mut weights = m.weights;
        for block in 0..m.in_blocks {
            let plane = m.input.add(block * m.in_block_stride);
            for tap in m.taps {
                let start = plane.add(*tap);
                for q in 0..quads {
                    let w = [_mm256_loadu_si256(weights.cast()), _mm256_loadu_si256(weights.add(32).cast())];
                    weights = weights.add(64);
                    for p in 0..P {
                        let x = _mm256_set1_epi32(start.add(p * m.in_step + q * 4).cast::<i32>().read_unaligned());
                        acc[p][0] = _mm256_dpbusd_avx_epi32(acc[p][0], x, w[0]);
                        acc[p][1] = _mm256_dpbusd_avx_epi32(acc[p][1], x, w[1]);
                    }
                }
            }
        }
        for (p, row) in acc.iter().enumerate() {
            _mm256_storeu_si256(m.sums.add(p * 16).cast(), row[0]);
            _mm256_storeu_si256(m.sums.add(p * 16 + 8).cast(), row[1]);
        }
    }
}

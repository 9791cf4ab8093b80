//! The loop of the byte kernels for AVX2, over quads of input channels.
#![cfg(target_arch = "x86_64")]

/// Defines `micro`, which computes a run of up to 6 voxels × 16 output channels in registers. The arguments are the attribute
/// with the instruction set, and a function that adds the products of a quad of input channels of `P` voxels to their sums:
/// `unsafe fn multiply<const P: usize>(acc: &mut [[__m256i; 2]; P], input: *const u8, step: usize, weights: *const i8)`.
macro_rules! micro_by_quads {
    (#[$isa:meta] $multiply:ident) => {
        /// Computes a run of up to 6 voxels for one block of output channels.
        ///
        /// # Safety
        /// The CPU must support the instruction set of this file, and every pointer of `m` must reach what its fields say for
        /// `len` voxels.
        pub(super) unsafe fn micro(len: usize, m: &Bytes<'_>) {
            // SAFETY: the caller guarantees the instruction set and pointers that reach `len` voxels, as many as the match
            // gives to `kernel`.
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

        #[$isa]
        unsafe fn kernel<const P: usize>(m: &Bytes<'_>) {
            let quads = m.in_per_block / 4;
            // SAFETY: the caller guarantees the instruction set and that every pointer of `m` reaches `P` voxels; all accesses
            // are unaligned. Excess weights belong to quads that the other weights have, too.
            unsafe {
                let start = [_mm256_loadu_si256(m.start.cast()), _mm256_loadu_si256(m.start.add(8).cast())];
                let mut acc = [start; P];
                let mut weights = m.weights;
                for block in 0..m.in_blocks {
                    let plane = m.input.add(block * m.in_block_stride);
                    for tap in m.taps {
                        let start = plane.add(*tap);
                        for q in 0..quads {
                            $multiply(&mut acc, start.add(q * 4), m.in_step, weights);
                            weights = weights.add(64);
                        }
                    }
                }
                for excess in m.excess {
                    let start = m.input.add(excess.in_block * m.in_block_stride + m.taps[excess.tap] + excess.quad * 4);
                    $multiply(&mut acc, start, m.in_step, excess.weights.as_ptr());
                }
                for (p, row) in acc.iter().enumerate() {
                    _mm256_storeu_si256(m.sums.add(p * 16).cast(), row[0]);
                    _mm256_storeu_si256(m.sums.add(p * 16 + 8).cast(), row[1]);
                }
            }
        }
    };
}
pub(super) use micro_by_quads;

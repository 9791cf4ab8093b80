//! The portable micro-kernel: plain loops over 16 output channels, vectorised by the compiler.

use crate::conv::Micro;

/// Computes one run of up to 4 voxels for one block of output channels.
///
/// # Safety
/// Every pointer of `m` reaches what its fields say for `len` voxels.
pub(crate) unsafe fn micro(len: usize, m: &Micro<'_>) {
    // SAFETY: every pointer reaches what `m` says, by this function's contract.
    unsafe {
        let bias = std::slice::from_raw_parts(m.bias, 16);
        for p in 0..len {
            let mut acc = [0.0f32; 16];
            acc.copy_from_slice(bias);
            let mut weights = m.weights;
            for block in 0..m.in_blocks {
                let channels = if block + 1 == m.in_blocks { m.last_in_per_block } else { m.in_per_block };
                let plane = m.input.add(block * m.in_block_stride + p * m.in_step);
                for tap in m.taps {
                    for c in 0..channels {
                        let x = *plane.add(*tap + c);
                        let w = std::slice::from_raw_parts(weights, 16);
                        acc.iter_mut().zip(w).for_each(|(a, w)| *a += x * w);
                        weights = weights.add(16);
                    }
                }
            }
            let out = std::slice::from_raw_parts_mut(m.out[0].add(p * m.out_step), 16);
            for (o, (target, sum)) in out.iter_mut().zip(acc).enumerate() {
                let v = sum + m.residual.map_or(0.0, |r| *r[0].add(p * 16 + o));
                *target = if v < 0.0 { v * m.slope } else { v };
            }
        }
    }
}

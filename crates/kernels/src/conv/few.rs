//! Convolution from planes to planes (few input and output channels), vectorized along W.

use super::drive::Plan;
use super::{Activation, PackedConv, WeightShape, leaky};
use crate::parallel::{Shared, for_each, multiversion};
use crate::{Blocked, Isa};

/// Convolves planar buffers.
#[allow(clippy::too_many_arguments)]
pub(super) fn few_channels(
    isa: Isa,
    input: &[f32],
    in_layout: &Blocked,
    weights: &PackedConv,
    plan: &Plan,
    activation: Activation,
    output: &mut [f32],
    out_layout: &Blocked,
) {
    let [depth, height, width] = plan.geometry.counts;
    let WeightShape { in_channels, taps, .. } = weights.packing.shape;
    let per_output = in_channels * taps;
    let shared = Shared::new(output);
    for_each(out_layout.channels * depth, |task| {
        let (o, d) = (task / depth, task % depth);
        let own = &weights.plain[o * per_output..(o + 1) * per_output];
        // Offset and weight of each product of a voxel, without zero weights.
        let terms: Vec<(usize, f32)> = own
            .iter()
            .enumerate()
            .filter(|(_, w)| **w != 0.0)
            .map(|(i, w)| (i / taps * in_layout.block_stride() + plan.taps[i % taps], *w))
            .collect();
        for h in 0..height {
            // SAFETY: each task has its own slice and channel and so writes its own rows; `Shared::slice` checks the
            // bounds.
            let row = unsafe { shared.slice(out_layout.row_start(o, d, h), width) };
            let geometry = &plan.geometry;
            let from = &input[geometry.in_start + d * geometry.in_step[0] + h * geometry.in_step[1]..];
            weighted_row(isa, row, from, &terms, weights.bias[o], activation.slope());
        }
    });
}

multiversion! {
    fn weighted_row(row: &mut [f32], from: &[f32], terms: &[(usize, f32)], bias: f32, slope: f32) {
        const WIDTH: usize = 64;
        let mut at = 0;
        while at < row.len() {
            let len = WIDTH.min(row.len() - at);
            let mut sums = [bias; WIDTH];
            if len == WIDTH {
                for (offset, w) in terms {
                    let source = &from[at + offset..at + offset + WIDTH];
                    for i in 0..WIDTH {
                        sums[i] += w * source[i];
                    }
                }
            } else {
                for (offset, w) in terms {
                    let source = &from[at + offset..at + offset + len];
                    sums.iter_mut().zip(source).for_each(|(s, v)| *s += w * v);
                }
            }
            for (target, s) in row[at..at + len].iter_mut().zip(sums) {
                *target = leaky(s, slope);
            }
            at += len;
        }
    }
}

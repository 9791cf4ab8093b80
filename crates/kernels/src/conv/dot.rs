//! Convolution of a single tap from blocks to few planes, as at the end of most networks: a dot product per voxel and
//! output channel.

use super::drive::Plan;
use super::{Activation, PackedConv};
use crate::lanes::with_lanes;
use crate::parallel::{Shared, for_each};
use crate::{Blocked, CHANNEL_BLOCK, Isa};

/// Convolves blocks of 16 channels to planar outputs. The distance of the inputs along W must be one voxel.
#[allow(clippy::too_many_arguments)]
pub(super) fn few_outputs(
    isa: Isa,
    input: &[f32],
    in_layout: &Blocked,
    weights: &PackedConv,
    plan: &Plan,
    activation: Activation,
    output: &mut [f32],
    out_layout: &Blocked,
) {
    let geometry = &plan.geometry;
    let [depth, height, width] = geometry.counts;
    let (blocks, block_stride) = (in_layout.blocks(), in_layout.block_stride());
    let shared = Shared::new(output);
    for_each(depth, |d| {
        for h in 0..height {
            let from = geometry.in_start + d * geometry.in_step[0] + h * geometry.in_step[1];
            let inputs = &input[from..];
            let end = (blocks - 1) * block_stride + width * CHANNEL_BLOCK;
            assert!(end <= inputs.len(), "convolution reads outside its input");
            for (o, own) in weights.plain.chunks_exact(blocks * CHANNEL_BLOCK).enumerate() {
                let row = Row {
                    inputs: inputs.as_ptr(),
                    blocks,
                    block_stride,
                    weights: own.as_ptr(),
                    bias: weights.bias[o],
                    slope: activation.slope(),
                    out: shared.pointer(out_layout.row_start(o, d, h), width),
                    len: width,
                };
                // SAFETY: the assertion shows that the input holds `width` voxels of all blocks, `chunks_exact` that
                // there are 16 weights per block, and `pointer` checked the output. Each task writes the rows of its
                // own slice.
                unsafe { dot_row(isa, &row) };
            }
        }
    });
}

/// A row of one output channel.
struct Row {
    /// The first voxel of the first input block.
    inputs: *const f32,
    blocks: usize,
    block_stride: usize,
    /// 16 per input block.
    weights: *const f32,
    bias: f32,
    slope: f32,
    out: *mut f32,
    len: usize,
}

with_lanes! {
    /// Computes one row.
    unsafe fn dot_row<L>(row: &Row) {
        // SAFETY: the caller guarantees `len` voxels of 16 values in each input block, 16 weights per block, and `len`
        // outputs; `with_lanes` checked the CPU.
        unsafe {
            let (bias, slope) = (L::splat(row.bias), L::splat(row.slope));
            let first = L::load(row.weights);
            let whole = row.len - row.len % 16;
            for at in (0..whole).step_by(16) {
                let mut products = [first; 16];
                for (p, product) in products.iter_mut().enumerate() {
                    let from = row.inputs.add((at + p) * CHANNEL_BLOCK);
                    *product = L::load(from).mul(first);
                    for block in 1..row.blocks {
                        let w = L::load(row.weights.add(block * CHANNEL_BLOCK));
                        *product = L::load(from.add(block * row.block_stride)).fma(w, *product);
                    }
                }
                L::sums(products).add(bias).leaky(slope).store(row.out.add(at));
            }
            for at in whole..row.len {
                let from = row.inputs.add(at * CHANNEL_BLOCK);
                let mut product = L::load(from).mul(first);
                for block in 1..row.blocks {
                    let w = L::load(row.weights.add(block * CHANNEL_BLOCK));
                    product = L::load(from.add(block * row.block_stride)).fma(w, product);
                }
                let sum = product.sum() + row.bias;
                *row.out.add(at) = if sum < 0.0 { sum * row.slope } else { sum };
            }
        }
    }
}

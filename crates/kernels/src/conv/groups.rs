//! Convolutions with groups whose channels share blocks. Blocks are multiplied as a whole, with weights of 0 between channels of
//! different groups, which gives NaN if the inputs of another group are infinite or NaN. Sums that are NaN are therefore computed
//! again, from the inputs of their own group.

use super::PackedConv;
use super::pack::Group;
use crate::CHANNEL_BLOCK;

/// A run of output voxels along W, and its inputs.
pub(crate) struct Run<'a, X> {
    /// Inputs, from the first voxel of the run in the first input block that the group reads.
    pub input: &'a [X],
    /// Number of voxels.
    pub len: usize,
    /// Distance of the inputs of neighboring voxels.
    pub in_step: usize,
    /// Distance of the input blocks.
    pub in_block_stride: usize,
    /// Position of each tap.
    pub taps: &'a [usize],
    /// Distance of the sums of neighboring output blocks.
    pub sum_block_stride: usize,
}

/// Replaces the sums that are NaN, given as bits, by those of the inputs of their own group.
pub(super) fn separate(weights: &PackedConv, group: &Group, run: &Run<'_, f32>, sums: &mut [i32]) {
    let is_nan = |bits: i32| f32::from_bits(bits as u32).is_nan();
    for block in 0..group.blocks {
        let first = block * run.sum_block_stride;
        let own = &mut sums[first..first + run.len * CHANNEL_BLOCK];
        // Without an early exit, the loop runs on vectors.
        if !own.iter().fold(false, |any, bits| any | is_nan(*bits)) {
            continue;
        }
        for (at, bits) in own.iter_mut().enumerate().filter(|(_, bits)| is_nan(**bits)) {
            let (voxel, lane) = (at / CHANNEL_BLOCK, block * CHANNEL_BLOCK + at % CHANNEL_BLOCK);
            *bits = own_sum(weights, group, run, lane, voxel).to_bits() as i32;
        }
    }
}

/// Returns the sum of an output channel, `lane` channels after the first of `group`, over the inputs of its own group.
fn own_sum(weights: &PackedConv, group: &Group, run: &Run<'_, f32>, lane: usize, voxel: usize) -> f32 {
    let (shape, in_block) = (weights.packing.shape, weights.packing.in_block);
    let output = group.first_block * CHANNEL_BLOCK + lane;
    if output >= shape.out_channels {
        return 0.0;
    }
    let (per_in, per_out) = (shape.in_channels / shape.groups, shape.out_channels / shape.groups);
    let first = output / per_out * per_in;
    let mut sum = weights.bias[output];
    for i in first..first + per_in {
        let (block, channel) = (i / in_block - group.in_first, i % in_block);
        // The last block may lack channels, and then stores no weights for them.
        let channels = in_block.min(shape.in_channels - (i - channel));
        for (t, tap) in run.taps.iter().enumerate() {
            let row = (block * shape.taps * in_block) + t * channels + channel;
            let weight = weights.values[group.at + row * group.blocks * CHANNEL_BLOCK + lane];
            sum += weight * run.input[voxel * run.in_step + block * run.in_block_stride + tap + channel];
        }
    }
    sum
}

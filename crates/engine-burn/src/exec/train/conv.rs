//! Runs gradients of convolutions.

use super::super::elementwise::{Fold, folded};
use super::super::{Image, is_half, moves};
use crate::form::Form;
use crate::kernels::{DeviceBackend, Factors, Training};
use crate::plan::{TAPS_AT_ONCE, Taps};
use burn_tensor::backend::Backend;
use burn_tensor::module::conv3d;
use burn_tensor::ops::{ConvOptions, PadMode};
use burn_tensor::{FloatDType, Slice, Tensor};

/// Returns the weights of the convolution that computes the input gradient: input and output channels of each group are
/// swapped, and the taps are reversed.
pub(super) fn flip_weights<B: Backend>(w: Image<B>, groups: usize, form: Form) -> Image<B> {
    let [outputs, each, d, h, width] = w.dims();
    let taps = d * h * width;
    let mut w: Tensor<B, 4> = w.reshape([groups, outputs / groups.max(1), each, taps]);
    if taps > 1 {
        w = w.flip([3]);
    }
    w.swap_dims(1, 2).reshape(form)
}

/// Concatenates along the first axis.
fn concat<B: Backend, const D: usize>(mut parts: Vec<Tensor<B, D>>) -> Tensor<B, D> {
    match parts.pop() {
        Some(only) if parts.is_empty() => only,
        last => Tensor::cat(parts.into_iter().chain(last).collect(), 0),
    }
}

/// Turns rows into the channels of single voxels, in a memory layout that lets Burn read four channels at once: no axis
/// but the channel axis may have a stride of 1, not even an axis of length 1.
fn as_channels<B: Backend>(rows: Tensor<B, 2>) -> Image<B> {
    let [count, channels] = rows.dims();
    let last: Image<B> = rows.reshape([count, 1, 1, 1, channels]);
    last.permute([0, 4, 1, 2, 3])
}

/// Number of voxels that one device thread sums up; more parts give more parallelism and more accurate sums.
const VOXELS_PER_PART: usize = 1024;

/// Returns the gradient of a convolution's weights: for each tap, the products of its input and the output gradient,
/// summed over samples and space. A kernel of this crate computes it, if there is one.
pub(super) fn weight_gradient<B: DeviceBackend>(
    x: Image<B>,
    dy: Image<B>,
    taps: &Taps,
    form: Form,
    wide_factors: Option<Factors>,
) -> Image<B> {
    let kernel = Training::WeightGradient { taps: *taps, form, wide_factors };
    if let Some(dw) = B::train(&kernel, vec![x.clone(), dy.clone()]).and_then(|mut made| made.pop()) {
        return dw;
    }
    let around = |[z, y, x]: [usize; 3]| [0, 0, z, y, x];
    voxel_groups(moves::fill(x, &around(taps.before), &around(taps.after), 0.0), dy, taps, form)
}

/// Returns the gradient of a convolution's weights, of which `x` is the padded input.
///
/// These are matrix products with short outer axes and a very long inner axis. Burn 0.21 has no kernel that splits the
/// inner axis, and some of its kernels are wrong. The voxels are therefore split here: each part is one group of a
/// grouped convolution whose channels are voxels, and the results of the parts are added.
fn voxel_groups<B: Backend>(x: Image<B>, dy: Image<B>, taps: &Taps, form: Form) -> Image<B> {
    let Taps { kernel, stride, dilation, groups, .. } = *taps;
    let [outputs, inputs, ..] = form;
    let [samples, _, d, h, w] = dy.dims();
    let voxels = samples * d * h * w;
    // A single part would be a convolution without groups, which Burn may run as a matrix product.
    let parts = voxels.div_ceil(VOXELS_PER_PART).max(2);
    let each = voxels.div_ceil(parts).next_multiple_of(4);
    let sides = |x: Image<B>| if samples == 1 { x.swap_dims(0, 1) } else { x.permute([1, 0, 2, 3, 4]) };
    let filled = |x: Tensor<B, 2>| {
        let missing = parts * each - voxels;
        if missing == 0 { x } else { x.pad([(0, 0), (0, missing)], PadMode::Constant(0.0)) }
    };
    let dtype = x.dtype();
    // Burn's grouped convolutions accumulate in the type of their inputs; 16 bits are too few for so many voxels.
    let wide = |x: Image<B>| if is_half(&x) { x.cast(FloatDType::F32) } else { x };
    let (x, dy) = (sides(wide(x)), sides(wide(dy)));
    let count = kernel.iter().product::<usize>().max(1);
    let at_once = (TAPS_AT_ONCE / (inputs * parts * each).max(1)).clamp(1, count);
    let per_group = outputs / groups.max(1);
    let mut gradients = Vec::with_capacity(groups);
    for group in 0..groups {
        let dy = dy.clone().slice_dim(0, group * per_group..(group + 1) * per_group);
        let flat: Tensor<B, 2> = filled(dy.reshape([per_group, voxels]));
        let cut: Tensor<B, 3> = flat.reshape([per_group, parts, each]).swap_dims(0, 1);
        let seen_by = as_channels(cut.reshape([parts * per_group, each]));
        let mut sums: Vec<Tensor<B, 2>> = Vec::new();
        for first in (0..count).step_by(at_once) {
            let some = first..(first + at_once).min(count);
            let number = some.len();
            let seen = some.map(|tap| {
                let at = [tap / (kernel[1] * kernel[2]), tap / kernel[2] % kernel[1], tap % kernel[2]];
                let along = |a: usize, len: usize| {
                    let start = at[a] * dilation[a];
                    let end = start + (len - 1) * stride[a] + 1;
                    Slice::new(start as isize, Some(end as isize), stride[a] as isize)
                };
                let part = |start: usize, len: usize| Slice::new(start as isize, Some((start + len) as isize), 1);
                let seen = x.clone().slice([
                    part(group * inputs, inputs),
                    part(0, samples),
                    along(0, d),
                    along(1, h),
                    along(2, w),
                ]);
                filled(seen.reshape([inputs, voxels]))
            });
            let seen = as_channels(concat(seen.collect()));
            let products = conv3d(seen, seen_by.clone(), None, ConvOptions::new([1; 3], [0; 3], [1; 3], parts));
            let products: Tensor<B, 3> = products.reshape([number * inputs, parts, per_group]);
            sums.push(folded(products, Fold::Sum).reshape([number * inputs, per_group]));
        }
        let sums: Tensor<B, 3> = concat(sums).reshape([count, inputs, per_group]);
        gradients.push(sums.permute([2, 1, 0]).reshape([per_group, inputs, kernel[0], kernel[1], kernel[2]]));
    }
    let gradients = concat(gradients);
    if gradients.dtype() == dtype { gradients } else { gradients.cast(dtype) }
}

//! Runs convolutions, normalizations and pooling.

use super::elementwise::{Fold, extreme, folded};
use super::{Image, Uploaded, moves};
use crate::form::Form;
use crate::kernels::{Curve, DeviceBackend, Training};
use crate::plan::{ConvGeometry, NormScope, PoolAxis, Taps};
use burn_tensor::backend::Backend;
use burn_tensor::{Slice, Tensor};

/// Reshapes one number per channel to `[1, C, 1, 1, 1]`, which is broadcast over images.
pub(super) fn by_channel<B: Backend>(values: Image<B>) -> Image<B> {
    let channels = values.dims().iter().product();
    moves::reshape(values, [1, channels, 1, 1, 1])
}

/// Convolves with weights and optional biases, and applies an activation. Returns `None` if the inputs do not match the plan.
pub(super) fn conv<B: DeviceBackend>(
    x: Image<B>,
    filter: [Option<Image<B>>; 2],
    window: &ConvGeometry,
    form: Form,
    curve: Curve,
    uploaded: &Uploaded<B>,
) -> Option<Image<B>> {
    let kernel = Training::Convolve { window: *window, form, curve, wide_factor_type: uploaded.wide_factor_type };
    B::train(&kernel, std::iter::once(x).chain(filter.into_iter().flatten()).collect())?.pop()
}

/// Computes a transposed convolution of this form with weights and optional biases. Returns `None` if the inputs do not match
/// the plan.
pub(super) fn conv_transpose<B: DeviceBackend>(
    x: Image<B>,
    filter: [Option<Image<B>>; 2],
    taps: &Taps,
    form: Form,
    uploaded: &Uploaded<B>,
) -> Option<Image<B>> {
    let kernel = Training::InputGradient { taps: *taps, form, wide_factor_type: uploaded.wide_factor_type };
    B::train(&kernel, std::iter::once(x).chain(filter.into_iter().flatten()).collect())?.pop()
}

/// Upsamples by a 1×1×1 convolution whose output channels are then rearranged into blocks of `factors` voxels.
pub(super) fn upsample<B: DeviceBackend>(
    x: Image<B>,
    w: Image<B>,
    bias: Option<Image<B>>,
    factors: [usize; 3],
    channels: usize,
    uploaded: &Uploaded<B>,
) -> Option<Image<B>> {
    let [n, _, d, h, width] = x.dims();
    let point = ConvGeometry { stride: [1; 3], padding: [0; 3], dilation: [1; 3], groups: 1 };
    let form = [n, channels * factors.iter().product::<usize>(), d, h, width];
    let y = conv(x, [Some(w), bias], &point, form, Curve::IDENTITY, uploaded)?;
    let [a, b, c] = factors;
    let blocks: Tensor<B, 7> = y.reshape([n * channels, a, b, c, d, h, width]);
    Some(blocks.permute([0, 4, 1, 5, 2, 6, 3]).reshape([n, channels, d * a, h * b, width * c]))
}

/// Normalizes each group of channels to mean 0 and variance 1, then scales and shifts each channel.
pub(super) fn normalize<B: DeviceBackend>(
    x: Image<B>,
    scale: Image<B>,
    bias: Image<B>,
    groups: usize,
    epsilon: f32,
) -> Image<B> {
    let kernel = Training::Norm { over: NormScope::Groups(groups), epsilon, statistics: [false; 2], curve: None };
    let made = B::train(&kernel, vec![x.clone(), scale.clone(), bias.clone()]);
    if let Some(y) = made.and_then(|mut made| made.pop()) {
        return y;
    }
    let form = x.dims();
    let [n, channels, ..] = form;
    let rows = n * groups;
    let each = form.iter().product::<usize>() / rows.max(1);
    let x: Tensor<B, 3> = x.reshape([rows, each, 1]);
    let mean = |of: Tensor<B, 3>| folded(of, Fold::Sum).div_scalar(each as f32);
    let centered = x.clone() - mean(x);
    let variance = mean(centered.clone() * centered.clone());
    let unit = (centered / variance.add_scalar(epsilon).sqrt()).reshape(form);
    let spread = |values: Image<B>| -> Image<B> {
        // Older files have one number per group.
        let count: usize = values.dims().iter().product();
        if count == channels {
            return by_channel(values);
        }
        let repeated: Tensor<B, 2> = values.reshape([count, 1]).expand([count, channels / count.max(1)]);
        repeated.reshape([1, channels, 1, 1, 1])
    };
    unit * spread(scale) + spread(bias)
}

/// Max or average pooling. The windows are separable, so the axes are processed one after the other.
pub(super) fn pool<B: Backend>(
    x: Image<B>,
    max: bool,
    (before, after): (&[usize; 5], &[usize; 5]),
    axes: &[PoolAxis],
    constants: &[Image<B>],
) -> Option<Image<B>> {
    let mut x = moves::fill(x, before, after, if max { f32::NEG_INFINITY } else { 0.0 });
    for of in axes {
        let tap = |t: usize| {
            let start = t * of.dilation;
            let end = start + (of.len - 1) * of.stride + 1;
            x.clone().slice_dim(of.axis, Slice::new(start as isize, Some(end as isize), of.stride as isize))
        };
        let taps = (0..of.kernel).map(tap);
        let y = taps.reduce(|a, b| if max { extreme(a, b, true) } else { a + b })?;
        x = match of.weights {
            Some(weights) => y * constants.get(weights)?.clone(),
            None => y,
        };
    }
    Some(x)
}

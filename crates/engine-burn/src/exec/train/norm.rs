//! Runs batch normalization with batch statistics, and gradients of normalizations.

use super::super::elementwise::{Fold, activate, folded};
use super::super::{Image, layers};
use super::activation;
use crate::form::Form;
use crate::kernels::{Curve, DeviceBackend, Training};
use crate::plan::NormScope;
use burn_tensor::Tensor;
use burn_tensor::backend::Backend;
use cytoscope_graph::Activation;

/// Reshapes to one row per set of elements that are normalized together.
fn rows<B: Backend>(x: Image<B>, over: NormScope) -> Tensor<B, 3> {
    let [n, channels, d, h, w] = x.dims();
    let rows = match over {
        NormScope::Groups(groups) => n * groups,
        NormScope::Batch => channels,
    };
    let x = if over == NormScope::Batch && n > 1 { x.permute([1, 0, 2, 3, 4]) } else { x };
    x.reshape([rows, n * channels * d * h * w / rows.max(1), 1])
}

/// Reverts [`rows`].
fn from_rows<B: Backend>(x: Tensor<B, 3>, over: NormScope, form: Form) -> Image<B> {
    let [n, channels, d, h, w] = form;
    if over == NormScope::Batch && n > 1 {
        return x.reshape([channels, n, d, h, w]).permute([1, 0, 2, 3, 4]);
    }
    x.reshape(form)
}

fn mean<B: Backend>(x: Tensor<B, 3>) -> Tensor<B, 3> {
    let [_, each, _] = x.dims();
    folded(x, Fold::Sum).div_scalar(each as f32)
}

/// Returns the sum of each channel, as `[C, 1, 1, 1, 1]`.
pub(super) fn channel_sums<B: DeviceBackend>(x: Image<B>) -> Image<B> {
    if let Some(sums) = B::train(&Training::ChannelSums, vec![x.clone()]).and_then(|mut made| made.pop()) {
        return sums;
    }
    let [n, channels, d, h, w] = x.dims();
    let sums = folded(x.reshape([n * channels, d * h * w, 1]), Fold::Sum);
    folded(sums.reshape([1, n, channels]), Fold::Sum).reshape([channels, 1, 1, 1, 1])
}

/// Returns the batch-normalized tensor, followed by those of the mean and variance of the batch that `statistics` asks for.
pub(super) fn batch<B: DeviceBackend>(
    x: Image<B>,
    scale: Image<B>,
    bias: Image<B>,
    epsilon: f32,
    statistics: [bool; 2],
) -> Vec<Image<B>> {
    let kernel = Training::Norm { over: NormScope::Batch, epsilon, statistics, curve: None };
    if let Some(made) = B::train(&kernel, vec![x.clone(), scale.clone(), bias.clone()]) {
        return made;
    }
    let form = x.dims();
    let x = rows(x, NormScope::Batch);
    let batch_mean = mean(x.clone());
    let centered = x - batch_mean.clone();
    let variance = mean(centered.clone() * centered.clone());
    let unit = from_rows(centered / variance.clone().add_scalar(epsilon).sqrt(), NormScope::Batch, form);
    let mut outputs = vec![unit * layers::by_channel(scale) + layers::by_channel(bias)];
    for (of, wanted) in [batch_mean, variance].into_iter().zip(statistics) {
        if wanted {
            outputs.push(of.reshape([form[1], 1, 1, 1, 1]));
        }
    }
    outputs
}

/// Returns the normalized tensor, those of the mean and variance of the batch that `statistics` asks for, and the normalized
/// tensor after an activation.
pub(super) fn activated<B: DeviceBackend>(
    [x, scale, bias]: [Image<B>; 3],
    (over, epsilon): (NormScope, f32),
    statistics: [bool; 2],
    activation: Activation,
) -> Vec<Image<B>> {
    if let Some(curve) = Curve::of(activation) {
        let kernel = Training::Norm { over, epsilon, statistics, curve: Some(curve) };
        if let Some(made) = B::train(&kernel, vec![x.clone(), scale.clone(), bias.clone()]) {
            return made;
        }
    }
    let mut outputs = match over {
        NormScope::Groups(groups) => vec![layers::normalize(x, scale, bias, groups, epsilon)],
        NormScope::Batch => batch(x, scale, bias, epsilon, statistics),
    };
    let y = outputs.first().cloned();
    outputs.extend(y.map(|y| activate(y, activation)));
    outputs
}

/// Returns the requested gradients of x, scale and bias of a norm whose result `y` passes an activation that is linear above 0
/// with slope 1 and below with this slope; `dy` is the gradient of the activation.
pub(super) fn activated_gradients<B: DeviceBackend>(
    [x, scale, dy, y]: [Image<B>; 4],
    (over, epsilon): (NormScope, f32),
    wanted: [bool; 3],
    slope: f32,
) -> Vec<Image<B>> {
    let kernel = Training::NormGradient { over, epsilon, wanted, slope: Some(slope) };
    if let Some(made) = B::train(&kernel, vec![x.clone(), scale.clone(), dy.clone(), y.clone()]) {
        return made;
    }
    let dy = activation::gradient(y, dy, Activation::LeakyRelu { alpha: slope });
    gradients(x, scale, dy, over, epsilon, wanted)
}

/// Returns the requested gradients of x, scale and bias. With r = 1/√(variance + ε), x̂ = (x − mean)·r and g =
/// dy·scale, dx = r·(g − mean(g) − x̂·mean(g·x̂)), where means are over the elements that are normalized together.
pub(super) fn gradients<B: DeviceBackend>(
    x: Image<B>,
    scale: Image<B>,
    dy: Image<B>,
    over: NormScope,
    epsilon: f32,
    wanted: [bool; 3],
) -> Vec<Image<B>> {
    let kernel = Training::NormGradient { over, epsilon, wanted, slope: None };
    if let Some(made) = B::train(&kernel, vec![x.clone(), scale.clone(), dy.clone()]) {
        return made;
    }
    let [to_x, to_scale, to_bias] = wanted;
    let form = x.dims();
    let x = rows(x, over);
    let centered = x.clone() - mean(x);
    let variance = mean(centered.clone() * centered.clone());
    let inverse = variance.add_scalar(epsilon).sqrt().recip();
    let unit = centered * inverse.clone();
    let mut outputs = Vec::with_capacity(3);
    if to_x {
        let g = rows(dy.clone() * layers::by_channel(scale), over);
        let along = mean(g.clone() * unit.clone());
        let rest = g.clone() - mean(g) - unit.clone() * along;
        outputs.push(from_rows(rest * inverse, over, form));
    }
    if to_scale {
        outputs.push(channel_sums(dy.clone() * from_rows(unit, over, form)));
    }
    if to_bias {
        outputs.push(channel_sums(dy));
    }
    outputs
}

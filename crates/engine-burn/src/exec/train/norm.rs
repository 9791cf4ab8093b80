//! Normalisation by the batch, and gradients of normalisations.

use super::super::elementwise::{Fold, folded};
use super::super::{Image, layers};
use crate::form::Form;
use crate::plan::Over;
use burn_tensor::Tensor;
use burn_tensor::backend::Backend;

/// A row for what is normalised together.
fn rows<B: Backend>(x: Image<B>, over: Over) -> Tensor<B, 3> {
    let [n, channels, d, h, w] = x.dims();
    let rows = match over {
        Over::Groups(groups) => n * groups,
        Over::Batch => channels,
    };
    let x = if over == Over::Batch && n > 1 { x.permute([1, 0, 2, 3, 4]) } else { x };
    x.reshape([rows, n * channels * d * h * w / rows.max(1), 1])
}

/// Back from [`rows`].
fn back<B: Backend>(x: Tensor<B, 3>, over: Over, form: Form) -> Image<B> {
    let [n, channels, d, h, w] = form;
    if over == Over::Batch && n > 1 {
        return x.reshape([channels, n, d, h, w]).permute([1, 0, 2, 3, 4]);
    }
    x.reshape(form)
}

fn mean<B: Backend>(x: Tensor<B, 3>) -> Tensor<B, 3> {
    let [_, each, _] = x.dims();
    folded(x, Fold::Sum).div_scalar(each as f32)
}

/// Sums by channel.
pub(super) fn channel_sums<B: Backend>(x: Image<B>) -> Image<B> {
    let [n, channels, d, h, w] = x.dims();
    let sums = folded(x.reshape([n * channels, d * h * w, 1]), Fold::Sum);
    folded(sums.reshape([1, n, channels]), Fold::Sum).reshape([channels, 1, 1, 1, 1])
}

/// Normalised by the statistics of the batch, with these after it where they are wanted.
pub(super) fn batch<B: Backend>(
    x: Image<B>,
    scale: Image<B>,
    bias: Image<B>,
    epsilon: f32,
    statistics: [bool; 2],
) -> Vec<Image<B>> {
    let form = x.dims();
    let x = rows(x, Over::Batch);
    let middle = mean(x.clone());
    let centred = x - middle.clone();
    let variance = mean(centred.clone() * centred.clone());
    let unit = back(centred / variance.clone().add_scalar(epsilon).sqrt(), Over::Batch, form);
    let mut made = vec![unit * layers::by_channel(scale) + layers::by_channel(bias)];
    for (of, wanted) in [middle, variance].into_iter().zip(statistics) {
        if wanted {
            made.push(of.reshape([form[1], 1, 1, 1, 1]));
        }
    }
    made
}

/// Gradients of x, scale and bias, those that are wanted. With r = 1/√(variance + ε), x̂ = (x − mean)·r and g the gradient times
/// scale, dx = r·(g − mean(g) − x̂·mean(g·x̂)), means over what is normalised together.
pub(super) fn gradients<B: Backend>(
    x: Image<B>,
    scale: Image<B>,
    dy: Image<B>,
    over: Over,
    epsilon: f32,
    [to_x, to_scale, to_bias]: [bool; 3],
) -> Vec<Image<B>> {
    let form = x.dims();
    let x = rows(x, over);
    let centred = x.clone() - mean(x);
    let variance = mean(centred.clone() * centred.clone());
    let inverse = variance.add_scalar(epsilon).sqrt().recip();
    let unit = centred * inverse.clone();
    let mut made = Vec::with_capacity(3);
    if to_x {
        let g = rows(dy.clone() * layers::by_channel(scale), over);
        let along = mean(g.clone() * unit.clone());
        let rest = g.clone() - mean(g) - unit.clone() * along;
        made.push(back(rest * inverse, over, form));
    }
    if to_scale {
        made.push(channel_sums(dy.clone() * back(unit, over, form)));
    }
    if to_bias {
        made.push(channel_sums(dy));
    }
    made
}

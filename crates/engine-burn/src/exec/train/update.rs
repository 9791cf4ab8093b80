//! Runs optimizer updates.

use super::super::Image;
use super::super::elementwise::{Fold, folded};
use crate::plan::RATES;
use burn_tensor::Tensor;
use burn_tensor::backend::Backend;
use cytoscope_graph::Optimizer;

/// Returns the global L2 norm of all gradients.
pub(super) fn global_norm<B: Backend>(gradients: impl Iterator<Item = Image<B>>) -> Option<Image<B>> {
    let squares = gradients.map(|g| {
        let count: usize = g.dims().iter().product();
        let g: Tensor<B, 3> = g.reshape([1, count, 1]);
        folded(g.clone() * g, Fold::Sum)
    });
    Some(squares.reduce(|a, b| a + b)?.sqrt().reshape([1; 5]))
}

/// Returns one element of a list.
fn pick<B: Backend>(list: &Image<B>, index: usize) -> Image<B> {
    list.clone().slice_dim(0, index..index + 1)
}

/// Returns Adam's bias correction 1 − βˢ after s steps, without cancellation where βˢ is near 1.
fn bias_correction<B: Backend>(steps: Image<B>, beta: f32) -> Image<B> {
    if beta <= 0.0 {
        return steps.zeros_like().add_scalar(1.0);
    }
    let y = steps.mul_scalar(f64::from(beta).ln());
    let far = y.clone().exp().neg().add_scalar(1.0);
    // 1 − eʸ ≈ −(y + y²/2 + y³/6)
    let near = y.clone() * (y.clone().mul_scalar(1.0 / 6.0).add_scalar(0.5) * y.clone()).add_scalar(1.0);
    far.mask_where(y.greater_elem(-0.05), near.neg())
}

/// Returns the factor of the gradients (scale and clipping), the learning rate, and the bias corrections of both
/// moments.
pub(super) fn rates<B: Backend>(hyper: Image<B>, norm: Image<B>, [beta1, beta2]: [f32; 2]) -> [Image<B>; RATES] {
    let [rate, steps, scale, limit] = [0, 1, 2, 3].map(|i| pick(&hyper, i));
    let scaled = norm * scale.clone();
    let clipped = (limit.clone() / scaled.clamp_min(1e-30)).clamp_max(1.0);
    let factor = scale * clipped.mask_fill(limit.lower_equal_elem(0.0), 1.0);
    [factor, rate, bias_correction(steps.clone(), beta1), bias_correction(steps, beta2)]
}

/// Updates one parameter tensor; returns it and its optimizer states.
pub(super) fn update<B: Backend>(
    optimizer: Optimizer,
    [factor, rate, correction1, correction2]: [Image<B>; RATES],
    mut p: Image<B>,
    g: Image<B>,
    first: Image<B>,
    second: Option<Image<B>>,
) -> Option<Vec<Image<B>>> {
    let mut g = g * factor;
    let (beta1, beta2, epsilon) = match optimizer {
        Optimizer::Sgd { momentum, nesterov, weight_decay } => {
            let g = g + p.clone().mul_scalar(weight_decay);
            let first = first.mul_scalar(momentum) + g.clone();
            let direction = if nesterov { g + first.clone().mul_scalar(momentum) } else { first.clone() };
            return Some(vec![p - direction * rate, first]);
        }
        Optimizer::AdamW { beta1, beta2, epsilon, weight_decay } => {
            p = p.clone() - p.mul_scalar(weight_decay) * rate.clone();
            (beta1, beta2, epsilon)
        }
        Optimizer::Adam { beta1, beta2, epsilon, weight_decay } => {
            g = g + p.clone().mul_scalar(weight_decay);
            (beta1, beta2, epsilon)
        }
    };
    let complement = |beta: f32| 1.0 - f64::from(beta);
    let first = first.mul_scalar(beta1) + g.clone().mul_scalar(complement(beta1));
    let second = second?.mul_scalar(beta2) + (g.clone() * g).mul_scalar(complement(beta2));
    let spread = (second.clone() / correction2).sqrt().add_scalar(epsilon);
    let p = p - first.clone() / correction1 / spread * rate;
    Some(vec![p, first, second])
}

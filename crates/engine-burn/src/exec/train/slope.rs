//! Gradients of activations; at a kink the side of smaller x counts.

use super::super::Image;
use super::super::elementwise::{sigmoid, softplus, tanh};
use burn_tensor::backend::Backend;
use cytoscope_graph::Activation;

/// The gradient times the slope at x.
pub(super) fn slope<B: Backend>(x: Image<B>, dy: Image<B>, activation: Activation) -> Image<B> {
    // One where x is above 0, else what is given.
    let bent = |x: Image<B>, below: Image<B>| {
        let above = x.greater_elem(0.0);
        below.mask_fill(above, 1.0)
    };
    let falling = |x: &Image<B>| x.clone().clamp_max(0.0);
    match activation {
        Activation::Relu => dy.mask_fill(x.lower_equal_elem(0.0), 0.0),
        Activation::LeakyRelu { alpha } => {
            let below = x.lower_equal_elem(0.0);
            dy.clone().mask_where(below, dy.mul_scalar(alpha))
        }
        Activation::Elu { alpha } => {
            let below = falling(&x).exp().mul_scalar(alpha);
            dy * bent(x, below)
        }
        Activation::Celu { alpha } => {
            let below = falling(&x).div_scalar(alpha).exp();
            dy * bent(x, below)
        }
        Activation::Selu { alpha, gamma } => {
            let below = falling(&x).exp().mul_scalar(alpha);
            dy * bent(x, below).mul_scalar(gamma)
        }
        Activation::Gelu { tanh: false } => {
            let share = x.clone().mul_scalar(std::f32::consts::FRAC_1_SQRT_2).erf().add_scalar(1.0).mul_scalar(0.5);
            let square = (x.clone() * x.clone()).clamp_max(160.0);
            let density = square.mul_scalar(-0.5).exp().div_scalar(std::f64::consts::TAU.sqrt());
            dy * (share + x * density)
        }
        Activation::Gelu { tanh: true } => {
            let root = (2.0 / std::f64::consts::PI).sqrt();
            let square = x.clone() * x.clone();
            let inner = (x.clone() + square.clone() * x.clone().mul_scalar(0.044_715)).mul_scalar(root);
            let t = tanh(inner);
            let rest = (t.clone() * t.clone()).neg().add_scalar(1.0);
            let steep = square.mul_scalar(3.0 * 0.044_715).add_scalar(1.0).mul_scalar(root);
            dy * (t.add_scalar(1.0) + x * rest * steep).mul_scalar(0.5)
        }
        Activation::Silu => {
            let s = sigmoid(x.clone());
            let rest = s.clone().neg().add_scalar(1.0);
            dy * s * (x * rest).add_scalar(1.0)
        }
        Activation::Sigmoid => {
            let s = sigmoid(x);
            dy * s.clone() * s.neg().add_scalar(1.0)
        }
        Activation::HardSigmoid { alpha, beta } => {
            let inner = x.mul_scalar(alpha).add_scalar(beta);
            let g = dy.mul_scalar(alpha).mask_fill(inner.clone().lower_equal_elem(0.0), 0.0);
            g.mask_fill(inner.greater_equal_elem(1.0), 0.0)
        }
        Activation::HardSwish => {
            let steep = x.clone().div_scalar(3.0).add_scalar(0.5);
            let steep = steep.mask_fill(x.clone().lower_equal_elem(-3.0), 0.0);
            dy * steep.mask_fill(x.greater_equal_elem(3.0), 1.0)
        }
        Activation::Mish => {
            let t = tanh(softplus(x.clone()));
            let rest = (t.clone() * t.clone()).neg().add_scalar(1.0);
            let s = sigmoid(x.clone());
            dy * (t + x * rest * s)
        }
        Activation::Tanh => {
            let t = tanh(x);
            dy * (t.clone() * t).neg().add_scalar(1.0)
        }
        Activation::Softplus => dy * sigmoid(x),
        Activation::Softsign => {
            let root = x.abs().add_scalar(1.0);
            dy / (root.clone() * root)
        }
        Activation::ThresholdedRelu { alpha } => dy.mask_fill(x.lower_equal_elem(alpha), 0.0),
        Activation::Clip { min, max } => {
            // Shader languages have no infinite literals.
            let g = if min > f32::MIN { dy.mask_fill(x.clone().lower_equal_elem(min), 0.0) } else { dy };
            if max < f32::MAX { g.mask_fill(x.greater_equal_elem(max), 0.0) } else { g }
        }
    }
}

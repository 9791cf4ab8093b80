//! Runs gradients of activations. At a kink, the derivative from the left is used.

use super::super::Image;
use super::super::elementwise::{sigmoid, softplus, tanh};
use crate::kernels::{Curve, DeviceBackend, Training};
use burn_tensor::backend::Backend;
use cytoscope_graph::Activation;

/// Returns `dy` times the derivative of the activation at `x`.
pub(super) fn gradient<B: DeviceBackend>(x: Image<B>, dy: Image<B>, activation: Activation) -> Image<B> {
    if let Some(slope) = Curve::of(activation).and_then(Curve::slope) {
        let kernel = Training::ActivationGradient { slope };
        if let Some(dx) = B::train(&kernel, vec![x.clone(), dy.clone()]).and_then(|mut made| made.pop()) {
            return dx;
        }
    }
    // Returns 1 where x is above 0, else `below`.
    let one_above_zero = |x: Image<B>, below: Image<B>| {
        let above = x.greater_elem(0.0);
        below.mask_fill(above, 1.0)
    };
    let negative_part = |x: &Image<B>| x.clone().clamp_max(0.0);
    match activation {
        Activation::Relu => dy.mask_fill(x.lower_equal_elem(0.0), 0.0),
        Activation::LeakyRelu { alpha } => {
            let below = x.lower_equal_elem(0.0);
            dy.clone().mask_where(below, dy.mul_scalar(alpha))
        }
        Activation::Elu { alpha } => {
            let below = negative_part(&x).exp().mul_scalar(alpha);
            dy * one_above_zero(x, below)
        }
        Activation::Celu { alpha } => {
            let below = negative_part(&x).div_scalar(alpha).exp();
            dy * one_above_zero(x, below)
        }
        Activation::Selu { alpha, gamma } => {
            let below = negative_part(&x).exp().mul_scalar(alpha);
            dy * one_above_zero(x, below).mul_scalar(gamma)
        }
        Activation::Gelu { tanh: false } => {
            let share = x.clone().mul_scalar(std::f32::consts::FRAC_1_SQRT_2).erf().add_scalar(1.0).mul_scalar(0.5);
            let square = (x.clone() * x.clone()).clamp_max(160.0);
            let density = square.mul_scalar(-0.5).exp().div_scalar(std::f64::consts::TAU.sqrt());
            dy * (share + x * density)
        }
        Activation::Gelu { tanh: true } => gelu_tanh_gradient(x, dy),
        Activation::Silu => {
            let s = sigmoid(x.clone());
            let complement = s.clone().neg().add_scalar(1.0);
            dy * s * (x * complement).add_scalar(1.0)
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
            let derivative = x.clone().div_scalar(3.0).add_scalar(0.5);
            let derivative = derivative.mask_fill(x.clone().lower_equal_elem(-3.0), 0.0);
            dy * derivative.mask_fill(x.greater_equal_elem(3.0), 1.0)
        }
        Activation::Mish => {
            let t = tanh(softplus(x.clone()));
            let complement = (t.clone() * t.clone()).neg().add_scalar(1.0);
            let s = sigmoid(x.clone());
            dy * (t + x * complement * s)
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
        Activation::ThresholdedRelu { alpha } => dy.mask_fill(x.greater_elem(alpha).bool_not(), 0.0),
        Activation::Clip { min, max } => {
            // Shader languages have no infinite literals.
            let g = if min > f32::MIN { dy.mask_fill(x.clone().lower_equal_elem(min), 0.0) } else { dy };
            if max < f32::MAX { g.mask_fill(x.greater_equal_elem(max), 0.0) } else { g }
        }
    }
}

/// Returns `dy` times the derivative of the GELU that is approximated with tanh.
fn gelu_tanh_gradient<B: Backend>(x: Image<B>, dy: Image<B>) -> Image<B> {
    let root = (2.0 / std::f64::consts::PI).sqrt();
    let square = x.clone() * x.clone();
    let inner = (x.clone() + square.clone() * x.clone().mul_scalar(0.044_715)).mul_scalar(root);
    let t = tanh(inner);
    let complement = (t.clone() * t.clone()).neg().add_scalar(1.0);
    let derivative = square.mul_scalar(3.0 * 0.044_715).add_scalar(1.0).mul_scalar(root);
    dy * (t.add_scalar(1.0) + x * complement * derivative).mul_scalar(0.5)
}

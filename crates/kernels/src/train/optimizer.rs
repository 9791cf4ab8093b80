//! Optimizer updates. Parameters, gradients and moments are flat arrays; an update is one pass over them.

use crate::parallel::{Shared, for_each, multiversion};
use crate::{Isa, KernelError, check_len};

/// Number of parameters per task. Partial sums of tasks are added in order, so results do not depend on the threads.
const CHUNK: usize = 1 << 14;

/// Settings of Adam (Kingma & Ba 2015) and AdamW (Loshchilov & Hutter 2019).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adam {
    /// Learning rate of this step.
    pub rate: f32,
    /// Decay rate of the running average of gradients.
    pub beta1: f32,
    /// Decay rate of the running average of squared gradients.
    pub beta2: f32,
    /// Added to the root of the average squared gradient.
    pub epsilon: f32,
    /// Weight decay; [`Self::decoupled`] says how it is applied.
    pub weight_decay: f32,
    /// Whether weights are multiplied by `1 − rate · weight_decay` (AdamW); else `weight_decay · weight` is added to
    /// the gradient.
    pub decoupled: bool,
}

/// Settings of gradient descent with momentum, as in PyTorch's `SGD`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// Learning rate of this step.
    pub rate: f32,
    /// Fraction of the velocity of the previous step that is kept.
    pub momentum: f32,
    /// Whether Nesterov momentum is used.
    pub nesterov: bool,
    /// Weight decay: `weight_decay · weight` is added to the gradient.
    pub weight_decay: f32,
}

/// Factors of one step of [`adam`], computed once for all parameters.
#[derive(Clone, Copy)]
struct AdamFactors {
    /// Multiplies the gradient.
    gradient: f32,
    /// Multiplies the weight that is added to the gradient; 0 for AdamW.
    decay_in_gradient: f32,
    /// Multiplies the weight before the step; 1 for Adam.
    keep: f32,
    /// Multiply the running average of gradients, and the gradient that is added to it.
    first: [f32; 2],
    /// Multiply the running average of squared gradients, and the square that is added to it.
    second: [f32; 2],
    /// Learning rate, with the bias correction of the average gradient.
    step: f32,
    /// Bias correction of the root of the average squared gradient.
    root: f32,
    /// Added to that root.
    epsilon: f32,
}

/// Performs one step of Adam. The gradient is multiplied by `gradient_scale`, `step` counts from 1, and `first` and
/// `second` are the running averages of the gradient and its square (zeros before the first step).
///
/// # Errors
/// [`KernelError::Length`] if the buffers differ in length.
#[allow(clippy::too_many_arguments)]
pub fn adam(
    isa: Isa,
    adam: &Adam,
    step: u64,
    gradient_scale: f32,
    gradient: &[f32],
    weights: &mut [f32],
    first: &mut [f32],
    second: &mut [f32],
) -> Result<(), KernelError> {
    check_len("gradient", gradient.len(), weights.len())?;
    check_len("first average", first.len(), weights.len())?;
    check_len("second average", second.len(), weights.len())?;
    let bias_correction = |beta: f32| 1.0 - f64::from(beta).powf(step.max(1) as f64);
    let decay = |decoupled: bool| if adam.decoupled == decoupled { adam.weight_decay } else { 0.0 };
    let factors = AdamFactors {
        gradient: gradient_scale,
        decay_in_gradient: decay(false),
        keep: 1.0 - adam.rate * decay(true),
        first: [adam.beta1, 1.0 - adam.beta1],
        second: [adam.beta2, 1.0 - adam.beta2],
        step: (f64::from(adam.rate) / bias_correction(adam.beta1)) as f32,
        root: (1.0 / bias_correction(adam.beta2).sqrt()) as f32,
        epsilon: adam.epsilon,
    };
    let len = weights.len();
    let (weights, first, second) = (Shared::new(weights), Shared::new(first), Shared::new(second));
    for_each(len.div_ceil(CHUNK), |task| {
        let (at, n) = chunk(task, len);
        // SAFETY: each task has its own chunk of each buffer; `Shared::slice` checks the bounds.
        let (w, m, v) = unsafe { (weights.slice(at, n), first.slice(at, n), second.slice(at, n)) };
        adam_chunk(isa, factors, &gradient[at..at + n], w, m, v);
    });
    Ok(())
}

/// Returns the first parameter of a task and the number of its parameters, of `len` in total.
fn chunk(task: usize, len: usize) -> (usize, usize) {
    (task * CHUNK, CHUNK.min(len - task * CHUNK))
}

multiversion! {
    fn adam_chunk(f: AdamFactors, gradient: &[f32], weights: &mut [f32], first: &mut [f32], second: &mut [f32]) {
        let averages = first.iter_mut().zip(second.iter_mut());
        for ((g, w), (m, v)) in gradient.iter().zip(weights.iter_mut()).zip(averages) {
            let g = g * f.gradient + *w * f.decay_in_gradient;
            *m = *m * f.first[0] + g * f.first[1];
            *v = *v * f.second[0] + g * g * f.second[1];
            *w = *w * f.keep - f.step * *m / (v.sqrt() * f.root + f.epsilon);
        }
    }
}

/// Performs one step of gradient descent. The gradient is multiplied by `gradient_scale`. `velocity` (zeros before the
/// first step) may be empty if there is no momentum.
///
/// # Errors
/// [`KernelError::Length`] if the buffers differ in length.
pub fn sgd(
    isa: Isa,
    sgd: &Sgd,
    gradient_scale: f32,
    gradient: &[f32],
    weights: &mut [f32],
    velocity: &mut [f32],
) -> Result<(), KernelError> {
    check_len("gradient", gradient.len(), weights.len())?;
    let plain = sgd.momentum == 0.0 && velocity.is_empty();
    if !plain {
        check_len("velocity", velocity.len(), weights.len())?;
    }
    let len = weights.len();
    let (weights, velocity) = (Shared::new(weights), Shared::new(velocity));
    for_each(len.div_ceil(CHUNK), |task| {
        let (at, n) = chunk(task, len);
        // SAFETY: each task has its own chunk of each buffer, or an empty slice without momentum; `Shared::slice`
        // checks the bounds.
        let (w, v) =
            unsafe { (weights.slice(at, n), if plain { velocity.slice(0, 0) } else { velocity.slice(at, n) }) };
        sgd_chunk(isa, *sgd, gradient_scale, &gradient[at..at + n], w, v);
    });
    Ok(())
}

multiversion! {
    fn sgd_chunk(s: Sgd, gradient_scale: f32, gradient: &[f32], weights: &mut [f32], velocity: &mut [f32]) {
        if velocity.is_empty() {
            for (g, w) in gradient.iter().zip(weights.iter_mut()) {
                *w -= s.rate * (g * gradient_scale + *w * s.weight_decay);
            }
            return;
        }
        // Coefficients of the new velocity and of the gradient.
        let (velocity_factor, gradient_factor) = if s.nesterov { (s.momentum, 1.0) } else { (1.0, 0.0) };
        for ((g, w), v) in gradient.iter().zip(weights.iter_mut()).zip(velocity.iter_mut()) {
            let g = g * gradient_scale + *w * s.weight_decay;
            *v = *v * s.momentum + g;
            *w -= s.rate * (*v * velocity_factor + g * gradient_factor);
        }
    }
}

/// Returns the sum of squares, in `f64` and in a fixed order. It is finite if and only if all values are.
pub fn sum_of_squares(isa: Isa, values: &[f32]) -> f64 {
    let mut parts = vec![0.0f64; values.len().div_ceil(CHUNK)];
    let shared = Shared::new(&mut parts);
    for_each(values.len().div_ceil(CHUNK), |task| {
        let (at, n) = chunk(task, values.len());
        // SAFETY: each task has its own sum; `Shared::slice` checks the bounds.
        let sum = unsafe { shared.slice(task, 1) };
        sum[0] = squares_chunk(isa, &values[at..at + n]);
    });
    parts.iter().sum()
}

multiversion! {
    fn squares_chunk(values: &[f32]) -> f64 {
        let mut sums = [0.0f64; 32];
        let mut groups = values.chunks_exact(32);
        for group in &mut groups {
            for i in 0..32 {
                let v = f64::from(group[i]);
                sums[i] += v * v;
            }
        }
        for (s, v) in sums.iter_mut().zip(groups.remainder()) {
            *s += f64::from(*v) * f64::from(*v);
        }
        sums.iter().sum()
    }
}

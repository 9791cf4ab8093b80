//! Vector-Jacobian products of operators that need their own loops, in f64.

use super::conv::Geometry;
use super::elementwise::sigmoid;
use super::pool::{Windows, flat};
use super::{Call, eval as run, loss, ops, training, typed};
use cytoscope_graph::infer::resolve_axis;
use cytoscope_graph::{Activation, GraphError, Op, Result, Tensor, op_name};

/// Returns the gradients of the inputs of `op`; integer inputs and inputs without a derivative have gradient zero.
pub(super) fn eval(op: &Op, call: &Call<'_>) -> Result<Vec<Tensor>> {
    let Some((Some(dy), arguments)) = call.inputs.split_last() else {
        return Err(GraphError::misused("inputs", "no gradient", "a gradient after the operator's inputs"));
    };
    let need = |i: usize| {
        arguments
            .get(i)
            .copied()
            .flatten()
            .ok_or_else(|| GraphError::misused("inputs", format!("no input {i}"), "a tensor"))
    };
    let (x, g) = (need(0)?, dy.to_f64_vec());
    let found: Vec<Vec<f64>> = match op {
        Op::Conv(a) => {
            let geometry = Geometry::new(a, x.shape(), dy.shape());
            let (values, weights) = (x.to_f64_vec(), need(1)?.to_f64_vec());
            let (mut dx, mut dw) = (vec![0.0; values.len()], vec![0.0; weights.len()]);
            geometry.visit(|x, w, y| {
                dx[x] += weights[w] * g[y];
                dw[w] += values[x] * g[y];
            });
            vec![dx, dw, Channels::of(dy.shape()).sums(&g)]
        }
        Op::Activation(a) => {
            // Where one of these is constant, the gradient is 0, even if that of the output is infinite.
            let has_constant_parts = matches!(
                a,
                Activation::Relu
                    | Activation::HardSigmoid { .. }
                    | Activation::ThresholdedRelu { .. }
                    | Activation::Clip { .. }
            );
            let product = |v: f64, g: f64| {
                let slope = slope(a, v);
                if has_constant_parts && slope == 0.0 { 0.0 } else { g * slope }
            };
            vec![x.to_f64_vec().iter().zip(&g).map(|(v, g)| product(*v, *g)).collect()]
        }
        Op::FakeQuantize { scales, axis, low, high } => {
            let (low, high) = (f64::from(*low) - 0.5, f64::from(*high) + 0.5);
            let steps = training::Steps::new(x.shape(), scales, *axis);
            let inside = |at: usize, v: f64| (low..=high).contains(&(v / steps.scale(at)));
            let values = x.to_f64_vec();
            vec![values.iter().zip(&g).enumerate().map(|(at, (v, g))| if inside(at, *v) { *g } else { 0.0 }).collect()]
        }
        Op::BatchNormalizationTraining { .. }
        | Op::InstanceNormalization { .. }
        | Op::GroupNormalization { .. }
        | Op::LayerNormalization { .. } => norm(op, x, need(1)?, &g)?,
        Op::MaxPool(_) | Op::AveragePool(_) => vec![pool(op, x, dy.shape(), &g)],
        Op::Loss(loss) => {
            let inputs = training::LossInputs::of(x, need(1)?, arguments.get(2).copied().flatten())?;
            let scale = g.first().copied().unwrap_or(0.0);
            vec![loss::gradient(loss, &inputs.loss_data(), scale)]
        }
        _ if op.moves_only() => vec![moved(op, x, arguments, &g)?],
        other => match ops::gradient(other, x, arguments, &g) {
            Some(dx) => vec![dx?],
            None => return Err(GraphError::unsupported(format!("the derivative of {}", op_name(other)))),
        },
    };
    let mut found = found.into_iter();
    arguments
        .iter()
        .take(call.shapes.len())
        .map(|input| {
            let Some(input) = input else { return Tensor::new([0], Vec::<f32>::new()) };
            let values = found.next().unwrap_or_else(|| vec![0.0; input.len()]);
            Ok(Tensor::new(input.shape(), values)?.cast(input.dtype()))
        })
        .collect()
}

/// Channels of a tensor: axis 1.
pub(super) struct Channels {
    /// Number of channels, at least 1; 1 for a tensor without axis 1.
    pub channels: usize,
    inner: usize,
}

impl Channels {
    pub(super) fn of(shape: &[usize]) -> Self {
        Self {
            channels: shape.get(1).copied().unwrap_or(1).max(1),
            inner: shape.iter().skip(2).product::<usize>().max(1),
        }
    }

    pub(super) fn channel(&self, at: usize) -> usize {
        at / self.inner % self.channels
    }

    pub(super) fn sums(&self, values: &[f64]) -> Vec<f64> {
        let mut sums = vec![0.0; self.channels];
        for (at, v) in values.iter().enumerate() {
            sums[self.channel(at)] += v;
        }
        sums
    }

    /// Returns mean and variance of each channel over all other axes.
    pub(super) fn statistics(&self, values: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let count = (values.len() / self.channels).max(1) as f64;
        let mean: Vec<f64> = self.sums(values).iter().map(|s| s / count).collect();
        let away: Vec<f64> = values.iter().enumerate().map(|(at, v)| (v - mean[self.channel(at)]).powi(2)).collect();
        let variance = self.sums(&away).iter().map(|s| s / count).collect();
        (mean, variance)
    }
}

/// Returns the derivative of an activation; at a kink, the one of its left or its right side.
pub(crate) fn slope(activation: &Activation, x: f64) -> f64 {
    let f = f64::from;
    match *activation {
        Activation::Relu => f64::from(u8::from(x > 0.0)),
        Activation::LeakyRelu { alpha } => {
            if x > 0.0 {
                1.0
            } else {
                f(alpha)
            }
        }
        Activation::Elu { alpha } => {
            if x > 0.0 {
                1.0
            } else {
                f(alpha) * x.exp()
            }
        }
        Activation::Celu { alpha } => {
            if x > 0.0 {
                1.0
            } else {
                (x / f(alpha)).exp()
            }
        }
        Activation::Selu { alpha, gamma } => f(gamma) * if x > 0.0 { 1.0 } else { f(alpha) * x.exp() },
        Activation::Gelu { tanh: false } => {
            let density = (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
            0.5 * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)) + x * density
        }
        Activation::Gelu { tanh: true } => {
            let root = (2.0 / std::f64::consts::PI).sqrt();
            let t = (root * (x + 0.044715 * x * x * x)).tanh();
            0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * root * (1.0 + 3.0 * 0.044715 * x * x)
        }
        Activation::Silu => {
            let s = sigmoid(x);
            s * (1.0 + x * (1.0 - s))
        }
        Activation::Sigmoid => {
            let s = sigmoid(x);
            s * (1.0 - s)
        }
        Activation::HardSigmoid { alpha, beta } => {
            let inner = f(alpha) * x + f(beta);
            if inner > 0.0 && inner < 1.0 { f(alpha) } else { 0.0 }
        }
        Activation::HardSwish => {
            let gate = x / 6.0 + 0.5;
            if gate <= 0.0 {
                0.0
            } else if gate >= 1.0 {
                1.0
            } else {
                x / 3.0 + 0.5
            }
        }
        Activation::Mish => {
            let t = super::activate(&Activation::Softplus, x).tanh();
            t + x * (1.0 - t * t) * sigmoid(x)
        }
        Activation::Tanh => 1.0 - x.tanh().powi(2),
        Activation::Softplus => sigmoid(x),
        Activation::Softsign => 1.0 / (1.0 + x.abs()).powi(2),
        Activation::ThresholdedRelu { alpha } => f64::from(u8::from(x > f(alpha))),
        Activation::Clip { min, max } => f64::from(u8::from(x > f(min) && x < f(max))),
    }
}

/// Returns the gradients of x, scale and bias of a norm: with r = 1/√(variance + ε), x̂ = (x − mean)·r and g the
/// gradient times scale, dx = r·(g − mean(g) − x̂·mean(g·x̂)), with means over the elements normalized together.
fn norm(op: &Op, x: &Tensor, scale: &Tensor, dy: &[f64]) -> Result<Vec<Vec<f64>>> {
    let shape = x.shape();
    let layout = Channels::of(shape);
    // The set of elements that an element is normalized with, and its entry of scale and bias.
    let block = match op {
        Op::LayerNormalization { axis, .. } => {
            shape[resolve_axis(*axis, shape.len())?..].iter().product::<usize>().max(1)
        }
        _ => 1,
    };
    let set = |at: usize| match op {
        Op::InstanceNormalization { .. } => at / layout.inner,
        Op::GroupNormalization { groups, .. } => at / (layout.inner * (layout.channels / groups).max(1)),
        Op::LayerNormalization { .. } => at / block,
        _ => layout.channel(at),
    };
    if let Op::LayerNormalization { .. } = op
        && scale.len() != block
    {
        return Err(GraphError::unsupported("the derivative of LayerNormalization whose scale broadcasts"));
    }
    let parameter = |at: usize| match op {
        Op::LayerNormalization { .. } => at % block,
        _ => layout.channel(at),
    };
    let epsilon = match op {
        Op::InstanceNormalization { epsilon }
        | Op::GroupNormalization { epsilon, .. }
        | Op::LayerNormalization { epsilon, .. }
        | Op::BatchNormalizationTraining { epsilon } => f64::from(*epsilon),
        _ => 0.0,
    };
    let values = x.to_f64_vec();
    let gain = scale.to_f64_vec();
    let sets = values.len().checked_sub(1).map_or(0, |last| set(last) + 1).max(layout.channels);
    let mut count = vec![0.0f64; sets];
    let mean_of = |f: &dyn Fn(usize) -> f64, count: &[f64]| {
        let mut sums = vec![0.0; sets];
        for at in 0..values.len() {
            sums[set(at)] += f(at);
        }
        sums.iter_mut().zip(count).for_each(|(s, n)| *s /= n.max(1.0));
        sums
    };
    (0..values.len()).for_each(|at| count[set(at)] += 1.0);
    let mean = mean_of(&|at| values[at], &count);
    let variance = mean_of(&|at| (values[at] - mean[set(at)]).powi(2), &count);
    let inverse: Vec<f64> = variance.iter().map(|v| 1.0 / (v + epsilon).sqrt()).collect();
    let normal = |at: usize| (values[at] - mean[set(at)]) * inverse[set(at)];
    let g = |at: usize| dy[at] * gain[parameter(at)];
    let mean_g = mean_of(&g, &count);
    let mean_gx = mean_of(&|at| g(at) * normal(at), &count);
    let dx = (0..values.len())
        .map(|at| inverse[set(at)] * (g(at) - mean_g[set(at)] - normal(at) * mean_gx[set(at)]))
        .collect();
    let (mut d_scale, mut d_bias) = (vec![0.0; gain.len()], vec![0.0; gain.len()]);
    for at in 0..values.len() {
        d_scale[parameter(at)] += dy[at] * normal(at);
        d_bias[parameter(at)] += dy[at];
    }
    Ok(vec![dx, d_scale, d_bias])
}

fn pool(op: &Op, x: &Tensor, output: &[usize], dy: &[f64]) -> Vec<f64> {
    let (Op::MaxPool(a) | Op::AveragePool(a)) = op else { return Vec::new() };
    let values = x.to_f64_vec();
    let input = &x.shape()[2..];
    let (per_in, per_out): (usize, usize) = (input.iter().product(), output[2..].iter().product());
    let windows = Windows::new(a, input, &output[2..]);
    let mut dx = vec![0.0; values.len()];
    for (index, g) in dy.iter().enumerate() {
        let start = index / per_out * per_in;
        if matches!(op, Op::MaxPool(_)) {
            let mut best: Option<usize> = None;
            windows.visit(index % per_out, |position| {
                let at = start + flat(position, input);
                if best.is_none_or(|b| values[at] > values[b]) {
                    best = Some(at);
                }
            });
            if let Some(at) = best {
                dx[at] += g;
            }
        } else {
            let mut inside = 0usize;
            let padded = windows.visit(index % per_out, |_| inside += 1);
            let share = g / (if a.count_include_pad { padded } else { inside }).max(1) as f64;
            windows.visit(index % per_out, |position| dx[start + flat(position, input)] += share);
        }
    }
    dx
}

/// Returns the gradient of an operator that only moves elements, by running it on their positions (starting at 1,
/// because 0 marks fill values).
fn moved(op: &Op, x: &Tensor, arguments: &[Option<&Tensor>], dy: &[f64]) -> Result<Vec<f64>> {
    let positions = Tensor::new(x.shape(), (1..=x.len()).map(|i| i as f64).collect::<Vec<_>>())?;
    let zero = Tensor::new(Vec::new(), vec![0.0f64])?;
    let mut inputs = arguments.to_vec();
    if let Some(first) = inputs.first_mut() {
        *first = Some(&positions);
    }
    if let (Op::Pad { .. }, Some(slot)) = (op, inputs.get_mut(2)) {
        *slot = slot.map(|_| &zero);
    }
    let places = run(op, &inputs, 1)?.pop().ok_or_else(|| GraphError::misused("outputs", "none", "one"))?;
    let mut dx = vec![0.0; x.len()];
    for (place, g) in typed::<f64>(&places)?.iter().zip(dy) {
        if let Some(slot) = (*place as usize).checked_sub(1).and_then(|at| dx.get_mut(at)) {
            *slot += g;
        }
    }
    Ok(dx)
}

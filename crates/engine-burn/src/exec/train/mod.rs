//! What only training asks for: gradients, losses, optimizers.

mod conv;
mod loss;
mod norm;
mod pool;
mod slope;
mod update;

use super::{Image, Inputs, Uploaded, layers};
use crate::form::Form;
use crate::plan::Teach;
use burn_tensor::backend::Backend;
use cytoscope_graph::ValueId;

/// Runs a step of training; `None` if its inputs are not those it was planned with.
pub(super) fn run<B: Backend>(
    kind: &Teach,
    outputs: &[(ValueId, Form)],
    inputs: Vec<Image<B>>,
    uploaded: &Uploaded<B>,
) -> Option<Vec<Image<B>>> {
    let (_, form) = *outputs.first()?;
    let mut inputs = Inputs(inputs.into_iter());
    if let Teach::GlobalNorm = kind {
        return Some(vec![update::norm(inputs.0)?]);
    }
    let x = inputs.next()?;
    Some(match kind {
        Teach::Slope(activation) => vec![slope::slope(x, inputs.next()?, *activation)],
        Teach::Turn { groups } => vec![conv::turn(x, *groups, form)],
        Teach::Weights(taps) => vec![conv::weights(x, inputs.next()?, taps, form)],
        Teach::Frozen { epsilon } => {
            let (scale, bias) = (layers::by_channel(inputs.next()?), layers::by_channel(inputs.next()?));
            let (mean, variance) = (layers::by_channel(inputs.next()?), layers::by_channel(inputs.next()?));
            let gain = scale / variance.add_scalar(*epsilon).sqrt();
            vec![(x - mean) * gain + bias]
        }
        Teach::Batch { epsilon, statistics } => {
            let (scale, bias) = (inputs.next()?, inputs.next()?);
            norm::batch(x, scale, bias, *epsilon, *statistics)
        }
        Teach::Norm { over, epsilon, wanted } => {
            let (scale, dy) = (inputs.next()?, inputs.next()?);
            norm::gradients(x, scale, dy, *over, *epsilon, *wanted)
        }
        Teach::Pool { max: true, before, after, axes } => vec![pool::of_max(x, inputs.next()?, (before, after), axes)?],
        Teach::Pool { max: false, before, axes, after } => {
            vec![pool::of_mean(x.dims(), inputs.next()?, (before, after), axes, &uploaded.constants)?]
        }
        Teach::Round { low, high } => {
            let scales = inputs.next()?;
            vec![(x / scales.clone()).round().clamp(*low, *high) * scales]
        }
        Teach::Inside { low, high } => {
            let (scales, dy) = (inputs.next()?, inputs.next()?);
            let steps = x / scales;
            let dy = dy.mask_fill(steps.clone().lower_elem(*low - 0.5), 0.0);
            vec![dy.mask_fill(steps.greater_elem(*high + 0.5), 0.0)]
        }
        Teach::Loss { loss, weighted } => {
            let (target, weight) = (inputs.next()?, inputs.next_if(*weighted)?);
            vec![loss::value(loss, x, &target, weight.as_ref())?]
        }
        Teach::LossSlope { loss, weighted } => {
            let (target, weight) = (inputs.next()?, inputs.next_if(*weighted)?);
            vec![loss::slope(loss, x, &target, weight.as_ref(), inputs.next()?)?]
        }
        Teach::Rates { beta1, beta2 } => vec![update::rates(x, inputs.next()?, [*beta1, *beta2])],
        Teach::Update(optimizer) => {
            let (p, g, first) = (inputs.next()?, inputs.next()?, inputs.next()?);
            let second = inputs.next_if(optimizer.has_second())?;
            update::update(*optimizer, x, p, g, first, second)?
        }
        Teach::GlobalNorm => return None,
    })
}

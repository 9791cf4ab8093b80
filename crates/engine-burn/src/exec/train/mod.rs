//! Runs the steps of training: gradients, losses, optimizers.

mod activation;
mod conv;
mod norm;
mod pool;

use super::{Image, Inputs, Uploaded, elementwise, layers, moves};
use crate::form::Form;
use crate::kernels::{DeviceBackend, Training};
use crate::plan::TrainKind;
use cytoscope_graph::ValueId;

/// Returns the kernel of a step that only a kernel computes; `None` for steps that may also be computed by Burn's operators.
fn kernel(kind: &TrainKind) -> Option<Training> {
    Some(match kind {
        TrainKind::ScaledActivation { factor, curve } => Training::Activate { factor: *factor, curve: *curve },
        TrainKind::SumActivationGradient { slope } => Training::ActivationGradient { slope: *slope },
        TrainKind::Blend => Training::Blend,
        TrainKind::Loss(loss) => Training::Loss(loss.clone()),
        TrainKind::LossGradient(loss) => Training::LossGradient(loss.clone()),
        TrainKind::GlobalNorm => Training::GlobalNorm,
        TrainKind::LossScale(rule) => Training::LossScale(*rule),
        TrainKind::Update(optimizer) => Training::Update(*optimizer),
        _ => return None,
    })
}

/// Runs a step of training. Returns `None` if the inputs do not match the plan.
pub(super) fn run<B: DeviceBackend>(
    kind: &TrainKind,
    outputs: &[(ValueId, Form)],
    inputs: Vec<Image<B>>,
    uploaded: &Uploaded<B>,
) -> Option<Vec<Image<B>>> {
    let (_, form) = *outputs.first()?;
    let mut inputs = Inputs(inputs.into_iter());
    if let Some(kernel) = kernel(kind) {
        return B::train(&kernel, inputs.0.collect());
    }
    if let TrainKind::Join { starts } = kind {
        return Some(vec![moves::join(inputs.0.collect(), starts, form[0])?]);
    }
    let x = inputs.next()?;
    Some(match kind {
        TrainKind::ActivationGradient(activation) => vec![activation::gradient(x, inputs.next()?, *activation)],
        TrainKind::ChannelSums => vec![norm::channel_sums(x)],
        TrainKind::InputGradient(taps) => {
            vec![layers::conv_transpose(x, [inputs.next(), None], taps, form, uploaded)?]
        }
        TrainKind::WeightGradient(taps) => conv::weight_gradient(x, inputs.next()?, taps, form, uploaded)?,
        TrainKind::FrozenBatchNorm { epsilon } => {
            let (scale, bias) = (layers::by_channel(inputs.next()?), layers::by_channel(inputs.next()?));
            let (mean, variance) = (layers::by_channel(inputs.next()?), layers::by_channel(inputs.next()?));
            let gain = scale / variance.add_scalar(*epsilon).sqrt();
            vec![(x - mean) * gain + bias]
        }
        TrainKind::BatchNorm { epsilon, statistics } => {
            let (scale, bias) = (inputs.next()?, inputs.next()?);
            norm::batch(x, scale, bias, *epsilon, *statistics)
        }
        TrainKind::NormGradient { over, epsilon, wanted } => {
            let (scale, dy) = (inputs.next()?, inputs.next()?);
            norm::gradients(x, scale, dy, *over, *epsilon, *wanted)
        }
        TrainKind::NormActivation { over, epsilon, statistics, activation } => {
            let inputs = [x, inputs.next()?, inputs.next()?];
            norm::activated(inputs, (*over, *epsilon), *statistics, *activation)
        }
        TrainKind::NormActivationGradient { over, epsilon, wanted, slope } => {
            let inputs = [x, inputs.next()?, inputs.next()?, inputs.next()?];
            norm::activated_gradients(inputs, (*over, *epsilon), *wanted, *slope)
        }
        TrainKind::PoolGradient { max: true, before, after, axes } => {
            vec![pool::max_gradient(x, inputs.next()?, (before, after), axes)?]
        }
        TrainKind::PoolGradient { max: false, before, axes, after } => {
            vec![pool::mean_gradient(x.dims(), inputs.next()?, (before, after), axes, &uploaded.constants)?]
        }
        TrainKind::FakeQuantize { low, high } => {
            let scales = inputs.next()?;
            vec![elementwise::bounded((x / scales.clone()).round(), *low, *high) * scales]
        }
        TrainKind::FakeQuantizeGradient { low, high } => {
            let (scales, dy) = (inputs.next()?, inputs.next()?);
            let steps = x / scales;
            let dy = dy.mask_fill(steps.clone().lower_elem(*low - 0.5), 0.0);
            vec![dy.mask_fill(steps.greater_elem(*high + 0.5), 0.0)]
        }
        _ => return None,
    })
}

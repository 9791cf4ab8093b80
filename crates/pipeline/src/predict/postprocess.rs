//! Postprocessing of a predicted volume: softmax as the network's output is stored, the other steps as it is read.

use super::prediction::{Prediction, Unprocessed};
use crate::ops::{self, Statistics};
use crate::slice_statistics::{Chains, are_per_slice, resolve_slice_postprocessing};
use crate::stack::{Stack, references};
use crate::{Context, JobError, Model};
use cytoscope_model_package::{Processing, TensorType};

/// Returns whether a model's postprocessing begins with a softmax, and the steps after it.
pub(crate) fn split_softmax(model: &Model) -> (bool, &[Processing]) {
    split(&model.postprocessing)
}

/// Returns whether steps begin with a softmax, and the steps after it. Conversions to floats before it change nothing, because
/// outputs of networks are in 32-bit floats.
fn split(steps: &[Processing]) -> (bool, &[Processing]) {
    let mut later = steps;
    while let [Processing::EnsureDtype { dtype: TensorType::Float32 | TensorType::Float64 }, rest @ ..] = later {
        later = rest;
    }
    match later {
        [Processing::Softmax, rest @ ..] => (true, rest),
        _ => (false, steps),
    }
}

/// Applies softmax over the channels of values `[C][voxels]`.
pub(crate) fn softmax_channels(values: &mut [f32], channels: usize) {
    let voxels = values.len() / channels.max(1);
    for v in 0..voxels {
        let at = |c: usize| c * voxels + v;
        let max = (0..channels).map(|c| values[at(c)]).fold(f32::NEG_INFINITY, f32::max);
        let sum: f32 = (0..channels).map(|c| (values[at(c)] - max).exp()).sum();
        (0..channels).for_each(|c| values[at(c)] = (values[at(c)] - max).exp() / sum);
    }
}

/// Resolves the steps after softmax for a complete prediction; they are applied when it is read. `channels` are those
/// of the stack that are the model's input.
///
/// # Errors
/// [`JobError`] if the prediction or the stack cannot be read, or a step is not supported.
pub(super) fn resolve(
    context: &Context,
    model: &Model,
    channels: &[usize],
    stack: &Stack,
    prediction: &mut Prediction,
) -> Result<(), JobError> {
    let (_, steps) = split_softmax(model);
    let chains = if are_per_slice(model, prediction.model_shape[0], steps) {
        resolve_slice_postprocessing(context, (model, steps), channels, stack, prediction)?
    } else {
        let mut tensors = stack.input_tensors(context, model, channels);
        let mut references = references(&mut tensors);
        let chains = ops::resolve(steps, &mut Unprocessed(prediction), Statistics::Current, &mut references)?;
        chains.map(Chains::Stack)
    };
    prediction.chains = chains.map_err(|step| unsupported_step(model, &step))?;
    Ok(())
}

/// Returns the error for a step that is not supported.
pub(crate) fn unsupported_step(model: &Model, step: &str) -> JobError {
    let problem = format!("postprocessing step {step} is not supported (softmax is supported only as the first step)");
    JobError::model(model.name.clone(), problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_softmax_may_follow_a_conversion_to_floats_only() {
        let to = |dtype| Processing::EnsureDtype { dtype };
        let clip = Processing::Clip { min: Some(0.5), max: None };
        let floats = [to(TensorType::Float32), to(TensorType::Float64), Processing::Softmax, clip.clone()];
        assert_eq!(split(&floats), (true, &[clip.clone()][..]));
        assert_eq!(split(&[Processing::Softmax]), (true, &[][..]));
        for others in [[to(TensorType::Uint8), Processing::Softmax], [to(TensorType::Float32), clip]] {
            assert_eq!(split(&others), (false, others.as_slice()));
        }
    }
}

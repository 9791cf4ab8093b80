//! The extent of statistics in processing steps: a network on slices treats each slice as a separate image, so percentiles
//! and moments are those of each slice; other networks see the whole stack, unless a step asks for statistics of slices.

use crate::diameter::IntensityChange;
use crate::ops::{self, Elementwise, Reference, Statistics, Volume, apply};
use crate::predict::prediction::Prediction;
use crate::stack::{Stack, StackChannels, references, unsupported_step};
use crate::{Context, JobError, Model};
use cytoscope_model_package::Processing;
use cytoscope_profile::Stage;
use cytoscope_volume::{Samples, with_samples};
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::ops::Range;

/// Extent over which the statistics of a model's processing steps, such as percentiles, are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StatisticsScope {
    /// All slices together.
    Stack,
    /// Each slice separately, because the network processes single slices, or a step has statistics of slices.
    Slice,
}

impl StatisticsScope {
    /// Returns the scope of a model's steps; `None` if none of them needs statistics.
    pub fn of(model: &Model) -> Option<Self> {
        let steps = || model.inputs.iter().flat_map(|input| &input.preprocessing).chain(&model.postprocessing);
        if steps().any(|step| is_of_slices(model, step)) {
            return Some(Self::Slice);
        }
        steps().any(Processing::needs_statistics).then_some(Self::Stack)
    }
}

/// Returns whether a step of a model has statistics of each slice.
fn is_of_slices(model: &Model, step: &Processing) -> bool {
    step.needs_statistics() && (model.spatial_axes == 2 || step.has_statistics_of_slices())
}

/// Resolved processing steps: a chain of functions for each channel, for all slices or for each slice.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Chains {
    /// The chain of each channel, the same for all slices.
    Stack(Vec<Vec<Elementwise>>),
    /// The chain of each channel of each slice, from the first slice of the stack on.
    Slices(Vec<Vec<Vec<Elementwise>>>),
}

impl Chains {
    /// Applies the chain of a channel to consecutive slices of `plane` values each, of which the first has the index `first`.
    pub fn apply(&self, channel: usize, first: usize, plane: usize, values: &mut [f32]) {
        match self {
            Self::Stack(chains) => chains.get(channel).into_iter().for_each(|chain| apply(chain, values)),
            Self::Slices(slices) => {
                for (slice, values) in slices.iter().skip(first).zip(values.chunks_mut(plane.max(1))) {
                    slice.get(channel).into_iter().for_each(|chain| apply(chain, values));
                }
            }
        }
    }

    /// Returns the chains with results that are changed.
    pub fn changed(mut self, change: IntensityChange) -> Self {
        let IntensityChange { background, factor } = change;
        let extend = |chain: &mut Vec<Elementwise>| {
            chain.push(Elementwise::Affine { gain: factor, offset: -background * factor });
            if background > 0.0 {
                chain.push(Elementwise::Clip { min: 0.0, max: f64::INFINITY });
            }
        };
        match &mut self {
            _ if change == IntensityChange::NONE => {}
            Self::Stack(chains) => chains.iter_mut().for_each(extend),
            Self::Slices(slices) => slices.iter_mut().flatten().for_each(extend),
        }
        self
    }

    /// Returns the chains for the slices of the stack from slice `first` on.
    pub fn starting_at(&self, first: usize) -> Self {
        match self {
            Self::Stack(_) => self.clone(),
            Self::Slices(slices) => Self::Slices(slices.get(first..).unwrap_or_default().to_vec()),
        }
    }
}

/// Returns whether the statistics of any of the steps are those of each slice of a stack with `depth` slices.
pub(crate) fn are_per_slice<'a>(model: &Model, depth: usize, steps: impl IntoIterator<Item = &'a Processing>) -> bool {
    depth > 1 && steps.into_iter().any(|step| is_of_slices(model, step))
}

/// A chain of functions for each channel.
type ChannelChains = Vec<Vec<Elementwise>>;

/// Resolves the preprocessing steps of each input of a model that have statistics of the whole stack, which is read for each of
/// them; the other steps are `None`. The statistics are those before the first step, so steps do not depend on each other.
fn resolve_steps_of_stack(
    context: &Context,
    stack: &Stack,
    model: &Model,
    channels: &[usize],
) -> Result<Vec<Vec<Option<ChannelChains>>>, JobError> {
    let mut tensors = stack.input_tensors(context, model, channels);
    let mut all = Vec::with_capacity(model.inputs.len());
    for (input, channels) in model.inputs_with(channels) {
        let mut steps = Vec::with_capacity(input.preprocessing.len());
        for step in &input.preprocessing {
            if !step.needs_statistics() || is_of_slices(model, step) {
                steps.push(None);
                continue;
            }
            let mut volume = StackChannels { stack, context, channels };
            let (one, mut references) = (std::slice::from_ref(step), references(&mut tensors));
            let found = ops::resolve(one, &mut volume, Statistics::Unprocessed, &mut references)?;
            steps.push(Some(found.map_err(|step| unsupported_step(model, &step))?));
        }
        all.push(steps);
    }
    Ok(all)
}

/// Resolves the preprocessing steps of an input for one slice of it; `known` are the steps with statistics of the whole stack.
fn resolve_steps_of_slice(
    model: &Model,
    steps: &[Processing],
    known: &[Option<ChannelChains>],
    (own, slice): (SliceSamples<'_>, &[Samples]),
) -> Result<ChannelChains, JobError> {
    let mut chains: ChannelChains = vec![Vec::new(); own.channels()];
    for (step, known) in steps.iter().zip(known) {
        let found = match known {
            Some(known) => Ok(known.clone()),
            None => resolve(std::slice::from_ref(step), own, Statistics::Unprocessed, input_tensors(model, slice)),
        };
        let added = found.map_err(|step| unsupported_step(model, &step))?;
        chains.iter_mut().zip(added).for_each(|(chain, added)| chain.extend(added));
    }
    Ok(chains)
}

/// Resolves a model's preprocessing for each slice of a stack, which is read once, and again for each step with statistics of
/// the whole stack; `channels` are the channels of all inputs.
///
/// # Errors
/// [`JobError`] if the stack cannot be read, or a step is not supported.
pub(crate) fn resolve_slice_preprocessing(
    context: &Context,
    stack: &Stack,
    model: &Model,
    channels: &[usize],
) -> Result<Chains, JobError> {
    let depth = stack.extents.zyx[0];
    let known = resolve_steps_of_stack(context, stack, model, channels)?;
    let step = (stack.slab_slices() / channels.len().max(1)).max(1);
    let mut all = Vec::with_capacity(depth);
    for z in (0..depth).step_by(step) {
        context.check()?;
        let slices = read_slices(context, stack, channels, z..(z + step).min(depth))?;
        let _span = context.recorder.span(Stage::Normalize, "statistics").voxels(slices.len() * stack.slice_len());
        for slice in &slices {
            let mut chains = Vec::with_capacity(channels.len());
            for ((input, known), (_, own)) in model.inputs.iter().zip(&known).zip(input_tensors(model, slice)) {
                chains.extend(resolve_steps_of_slice(model, &input.preprocessing, known, (own, slice))?);
            }
            all.push(chains);
        }
    }
    Ok(Chains::Slices(all))
}

/// Resolves postprocessing steps for each slice of a complete prediction, all of whose statistics are those of slices: packages
/// with steps of both kinds after the network are refused. The outer error comes from reading the prediction or the stack; the
/// inner one names an unsupported step.
///
/// # Errors
/// [`JobError`] if the prediction or the stack cannot be read.
pub(crate) fn resolve_slice_postprocessing(
    context: &Context,
    (model, steps): (&Model, &[Processing]),
    channels: &[usize],
    stack: &Stack,
    prediction: &mut Prediction,
) -> Result<Result<Chains, String>, JobError> {
    let refers = steps.iter().any(|step| {
        matches!(step, Processing::ScaleMeanVariance { .. } | Processing::ScaleRange { reference_tensor: Some(_), .. })
    });
    let last = stack.extents.zyx[0].saturating_sub(1);
    let depth = prediction.model_shape[0];
    let mut all = Vec::with_capacity(depth);
    for z in 0..depth {
        context.check()?;
        let maps = prediction.unprocessed_slice(z)?;
        // A network on slices is applied to the slices of the stack, which therefore have the same numbers.
        let at = z.min(last);
        let inputs = if refers { read_slices(context, stack, channels, at..at + 1)? } else { Vec::new() };
        let inputs = inputs.into_iter().next().unwrap_or_default();
        let tensors = input_tensors(model, &inputs);
        match resolve(steps, SliceSamples(&maps), Statistics::Current, tensors) {
            Ok(chains) => all.push(chains),
            Err(step) => return Ok(Err(step)),
        }
    }
    Ok(Ok(Chains::Slices(all)))
}

/// Reads slices of some channels; returns the samples of each channel for each slice.
fn read_slices(
    context: &Context,
    stack: &Stack,
    channels: &[usize],
    z: Range<usize>,
) -> Result<Vec<Vec<Samples>>, JobError> {
    let plane = stack.slice_len();
    let slabs: Vec<Samples> =
        channels.iter().map(|channel| stack.read(context, *channel, z.clone())).collect::<Result<_, _>>()?;
    let slice = |slab: &Samples, at: usize| {
        let range = at * plane..(at + 1) * plane;
        with_samples!(slab, v => Samples::from(v.get(range).unwrap_or_default().to_vec()))
    };
    Ok((0..z.len()).map(|at| slabs.iter().map(|slab| slice(slab, at)).collect()).collect())
}

/// The channels of a tensor in one slice.
#[derive(Debug, Clone, Copy)]
struct SliceSamples<'a>(&'a [Samples]);

impl Volume for SliceSamples<'_> {
    type Error = Infallible;

    fn channels(&self) -> usize {
        self.0.len()
    }

    fn each(&mut self, channel: usize, f: &mut dyn FnMut(Samples)) -> Result<(), Infallible> {
        self.0.get(channel).into_iter().for_each(|samples| f(samples.clone()));
        Ok(())
    }
}

/// Returns the input tensors of a model in a slice of their channels, with their ids.
fn input_tensors<'a>(model: &'a Model, slice: &'a [Samples]) -> Vec<(&'a str, SliceSamples<'a>)> {
    let mut rest = slice;
    let tensor = |input: &'a crate::ModelInput| {
        let (own, later) = rest.split_at(input.channels.min(rest.len()));
        rest = later;
        (input.id.as_str(), SliceSamples(own))
    };
    model.inputs.iter().map(tensor).collect()
}

/// Resolves steps for one slice of a tensor; `tensors` are those that steps can refer to.
fn resolve(
    steps: &[Processing],
    mut own: SliceSamples<'_>,
    statistics: Statistics,
    mut tensors: Vec<(&str, SliceSamples<'_>)>,
) -> Result<Vec<Vec<Elementwise>>, String> {
    let mut references: Vec<Reference<'_, Infallible>> =
        tensors.iter_mut().map(|(id, volume)| Reference { id, volume }).collect();
    let Ok(chains) = ops::resolve(steps, &mut own, statistics, &mut references);
    chains
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slice_has_its_own_chain() {
        let times = |gain| vec![vec![Elementwise::Affine { gain, offset: 0.0 }]];
        let chains = Chains::Slices(vec![times(1.0), times(10.0), times(100.0)]);
        let mut values = [1.0, 2.0, 3.0, 4.0];
        chains.apply(0, 1, 2, &mut values);
        assert_eq!(values, [10.0, 20.0, 300.0, 400.0]);
        let mut values = [1.0, 2.0, 3.0, 4.0];
        Chains::Stack(times(5.0)).apply(0, 1, 2, &mut values);
        assert_eq!(values, [5.0, 10.0, 15.0, 20.0]);
        let mut values = [1.0, 2.0, 3.0, 4.0];
        chains.starting_at(1).apply(0, 0, 2, &mut values);
        assert_eq!(values, [10.0, 20.0, 300.0, 400.0]);
    }
}

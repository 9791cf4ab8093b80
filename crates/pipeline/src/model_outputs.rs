//! The output tensors of a model: what a package declares about each, and the choice of the one that is predicted.

use crate::{JobError, Model};
use cytoscope_graph::Graph;
use cytoscope_graph_passes::join_outputs;
use cytoscope_model_package::{AxisKind, AxisSize, Package, Processing, TensorSpec};
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::OUTPUT_TENSOR;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// Text for all outputs in [`OutputTensor`].
const ALL: &str = "all";

/// An output tensor of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelOutput {
    /// Id of the tensor, which `--output-tensor` takes.
    pub id: String,
    /// Number of channels.
    pub channels: usize,
    /// Names of the channels; empty if the package declares none.
    pub channel_names: Vec<String>,
    /// Steps that are applied after inference, in order.
    pub postprocessing: Vec<Processing>,
    /// Kinds of the axes, in order.
    axes: Vec<AxisKind>,
}

/// The output tensor of a model that is predicted. As text, it is the id of the tensor, or `all`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum OutputTensor {
    /// The output with this id.
    Id(String),
    /// All outputs, whose channels are predicted together, unless the model has an output with the id `all`.
    All,
}

impl From<String> for OutputTensor {
    fn from(text: String) -> Self {
        if text == ALL { Self::All } else { Self::Id(text) }
    }
}

impl From<OutputTensor> for String {
    fn from(output: OutputTensor) -> Self {
        output.id().to_owned()
    }
}

impl FromStr for OutputTensor {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self::from(text.to_owned()))
    }
}

impl fmt::Display for OutputTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

impl OutputTensor {
    /// Returns the id of the output, or `all`.
    pub fn id(&self) -> &str {
        match self {
            Self::Id(id) => id,
            Self::All => ALL,
        }
    }
}

/// Returns the output tensors of a package in their order.
pub(crate) fn list_outputs(package: &Package) -> Vec<ModelOutput> {
    let output = |(at, spec): (usize, &TensorSpec)| {
        let axis = spec.axis(AxisKind::Channel);
        let channels = match axis.map(|axis| &axis.size) {
            Some(AxisSize::Fixed(count)) => *count,
            _ => output_channels(&package.graph, at).unwrap_or(1),
        };
        let declared = axis.map(|axis| axis.channel_names.as_slice()).unwrap_or_default();
        ModelOutput {
            id: spec.id.clone(),
            channels,
            channel_names: if are_names(declared, channels) { declared.to_vec() } else { Vec::new() },
            postprocessing: spec.postprocessing(),
            axes: spec.axes.iter().map(|axis| axis.kind).collect(),
        }
    };
    package.outputs.iter().enumerate().map(output).collect()
}

/// Returns the number of channels of an output of a network, if it is known.
pub(crate) fn output_channels(graph: &Graph, output: usize) -> Option<usize> {
    graph.value(*graph.outputs.get(output)?).shape.as_ref()?.get(1)?.fixed()
}

/// Whether a package declares real names for its `count` channels. Packages whose channels have no names list `channel0`,
/// `channel1`, …, because the specification requires names.
fn are_names(declared: &[String], count: usize) -> bool {
    let is_filler = |(at, name): (usize, &String)| {
        let name = name.trim().to_lowercase();
        name.is_empty() || name == format!("channel{at}") || name == format!("channel_{at}")
    };
    declared.len() == count && !declared.iter().enumerate().all(is_filler)
}

/// Returns the names of the channels of one of several outputs: those that it declares, or else its id, with a number if it
/// has several channels.
fn channel_names(output: &ModelOutput) -> Vec<String> {
    match output.channels {
        _ if !output.channel_names.is_empty() => output.channel_names.clone(),
        1 => vec![output.id.clone()],
        count => (0..count).map(|channel| format!("{} {channel}", output.id)).collect(),
    }
}

/// Returns the names of the channels of the first output; none if it is the only one and declares none.
pub(crate) fn first_names(outputs: &[ModelOutput]) -> Vec<String> {
    match outputs {
        [] => Vec::new(),
        [only] => only.channel_names.clone(),
        [first, ..] => channel_names(first),
    }
}

/// Returns the names of the channels of joined outputs: the id of an output with one channel, otherwise the id with the name
/// or number of the channel.
fn joined_names(outputs: &[ModelOutput]) -> Vec<String> {
    let names = |output: &ModelOutput| match output.channels {
        1 => vec![output.id.clone()],
        count => (0..count)
            .map(|channel| match output.channel_names.get(channel) {
                Some(name) => format!("{} {name}", output.id),
                None => format!("{} {channel}", output.id),
            })
            .collect(),
    };
    outputs.iter().flat_map(names).collect()
}

/// Whether a step computes every channel in the same way, independently of the other channels.
fn is_alike_for_channels(step: &Processing) -> bool {
    let counts = match step {
        Processing::Softmax => return false,
        Processing::Binarize { threshold } => vec![threshold.len()],
        Processing::ScaleLinear { gain, offset } => vec![gain.len(), offset.len()],
        Processing::FixedZeroMeanUnitVariance { mean, std } => vec![mean.len(), std.len()],
        _ => Vec::new(),
    };
    let has_own_statistics = step.statistics_axes().is_none_or(|axes| !axes.channel);
    has_own_statistics && step.reference_tensor().is_none() && counts.iter().all(|count| *count == 1)
}

/// Returns the steps after inference that all outputs have in common, or why their channels cannot be predicted together.
fn common_steps(outputs: &[ModelOutput]) -> Result<Vec<Processing>, String> {
    let Some((first, others)) = outputs.split_first() else { return Ok(Vec::new()) };
    let differs = |other: &&ModelOutput| {
        other.axes != first.axes
            || other.postprocessing != first.postprocessing
            || !other.postprocessing.iter().all(is_alike_for_channels)
    };
    match others.iter().find(differs) {
        None => Ok(first.postprocessing.clone()),
        Some(other) => Err(format!("the outputs {} and {} have other axes or postprocessing", first.id, other.id)),
    }
}

impl Model {
    /// Returns this model with the chosen output tensor as the one that is predicted; without a choice, it is the
    /// first. The channels of objects and seeds that a package states apply to the first output, and to all outputs
    /// together; for any other output, its first channel serves as both.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] if the model has no such output, or its outputs cannot be predicted together;
    /// [`JobError::Model`] if the output has axes that stacks do not have.
    pub fn with_output(mut self, wanted: Option<&OutputTensor>) -> Result<Self, JobError> {
        let Some(wanted) = wanted else { return Ok(self) };
        let found = self.outputs.iter().position(|output| output.id == wanted.id());
        match found.and_then(|index| Some((index, self.outputs.get(index)?))) {
            None if *wanted == OutputTensor::All => return self.with_joined_outputs(),
            None => {
                let ids = self.output_ids().join(", ");
                let name = &self.name;
                return Err(JobError::wrong_use_with(
                    format!("the model {name} has no output \"{wanted}\""),
                    format!("choose one of {ids}"),
                ));
            }
            Some((0, _)) => {}
            Some((index, output)) => {
                if self.outputs.first().is_some_and(|first| first.axes != output.axes) {
                    let problem =
                        format!("the axes of its output {} differ from those of its input; choose another", output.id);
                    return Err(JobError::model(self.path.display().to_string(), problem));
                }
                self.output_channels = output.channels;
                self.output_channel_names = channel_names(output);
                self.postprocessing = output.postprocessing.clone();
                self.output_index = index;
                (self.segment_channel, self.seed_channel) = (0, 0);
            }
        }
        Ok(self)
    }

    /// Returns this model with all its outputs joined into one.
    fn with_joined_outputs(mut self) -> Result<Self, JobError> {
        if self.outputs.len() < 2 {
            return Ok(self);
        }
        let refused = |problem: String| {
            JobError::wrong_use_with(
                format!("the outputs of {} cannot be predicted together: {problem}", self.name),
                message!("choose one output at a time with {OUTPUT_TENSOR}"),
            )
        };
        let steps = common_steps(&self.outputs).map_err(&refused)?;
        let (mut graph, mut float_graph) = (self.graph.clone(), self.float_graph.clone());
        for network in std::iter::once(&mut graph).chain(float_graph.as_mut()) {
            join_outputs(network).map_err(|error| refused(error.to_string()))?;
        }
        self.postprocessing = steps;
        self.output_channels = self.outputs.iter().map(|output| output.channels).sum();
        self.output_channel_names = joined_names(&self.outputs);
        self.has_joined_outputs = true;
        (self.graph, self.float_graph) = (graph, float_graph);
        Ok(self)
    }

    /// Returns whether all outputs can be predicted together; `false` for a model with a single one.
    pub(crate) fn can_join_outputs(&self) -> bool {
        self.outputs.len() > 1 && self.clone().with_joined_outputs().is_ok()
    }

    fn output_ids(&self) -> Vec<&str> {
        self.outputs.iter().map(|output| output.id.as_str()).collect()
    }

    /// Returns the note that names the outputs that are not predicted; `None` if there are none.
    pub(crate) fn outputs_note(&self) -> Option<Message> {
        if self.has_joined_outputs || self.outputs.len() < 2 {
            return None;
        }
        let mut ids = self.output_ids();
        let predicted = (self.output_index < ids.len()).then(|| ids.remove(self.output_index))?;
        let verb = if ids.len() == 1 { "is" } else { "are" };
        Some(message!(
            "the model has {} outputs: {predicted} is predicted, {} {verb} not written (choose another with {OUTPUT_TENSOR})",
            self.outputs.len(),
            ids.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_model_package::StatisticsAxes;

    fn output(id: &str, channels: usize, names: &[&str]) -> ModelOutput {
        let declared: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        ModelOutput {
            id: id.to_owned(),
            channels,
            channel_names: if are_names(&declared, channels) { declared } else { Vec::new() },
            postprocessing: Vec::new(),
            axes: Vec::new(),
        }
    }

    #[test]
    fn channels_have_the_names_that_packages_declare() {
        let stains = [output("y", 2, &["dna", "actin"])];
        assert_eq!(first_names(&stains), ["dna", "actin"]);
        // Names that only number the channels say nothing.
        for filler in [&["channel0", "channel1"][..], &["dna"], &[]] {
            assert!(first_names(&[output("y", 2, filler)]).is_empty(), "{filler:?}");
        }
        let several = [output("mask", 1, &["channel0"]), output("flow", 2, &["z", "y"]), output("rest", 2, &[])];
        assert_eq!(first_names(&several), ["mask"]);
        assert_eq!(channel_names(&several[1]), ["z", "y"]);
        assert_eq!(joined_names(&several), ["mask", "flow z", "flow y", "rest 0", "rest 1"]);
    }

    #[test]
    fn an_output_is_an_id_or_all_in_text_and_json() {
        let parsed: Vec<OutputTensor> = ["mask", "all"].iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(parsed, [OutputTensor::Id("mask".to_owned()), OutputTensor::All]);
        let json = serde_json::to_string(&parsed).unwrap();
        assert_eq!(json, r#"["mask","all"]"#);
        assert_eq!(serde_json::from_str::<Vec<OutputTensor>>(&json).unwrap(), parsed);
    }

    #[test]
    fn outputs_with_steps_of_their_own_are_not_joined() {
        let with = |steps: &[Processing]| ModelOutput { postprocessing: steps.to_vec(), ..output("y", 1, &[]) };
        let sigmoid = [Processing::Sigmoid];
        assert_eq!(common_steps(&[with(&sigmoid), with(&sigmoid)]).unwrap(), sigmoid);
        assert!(common_steps(&[with(&sigmoid), with(&[])]).is_err());
        let pooled = Processing::ZeroMeanUnitVariance { eps: 0.0, axes: StatisticsAxes::default() };
        let per_channel = Processing::ScaleLinear { gain: vec![1.0, 2.0], offset: vec![0.0] };
        for step in [Processing::Softmax, pooled, per_channel] {
            assert!(common_steps(&[with(std::slice::from_ref(&step)), with(&[step])]).is_err());
        }
    }
}

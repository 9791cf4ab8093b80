//! The input tensors of a model: what a package declares about each, and whether stacks can be cut into tiles for all of
//! them at once.

use cytoscope_graph::{Dim, Graph};
use cytoscope_graph_passes::{channels_first, join_inputs};
use cytoscope_model_package::{AxisKind, AxisSize, Package, Processing, TensorSpec};

/// Relative difference below which voxel sizes count as equal, so that nothing is resampled.
pub(crate) const SAME_VOXEL: f64 = 0.02;

/// An input tensor of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelInput {
    /// Id of the tensor, by which processing steps refer to it.
    pub id: String,
    /// Number of channels.
    pub channels: usize,
    /// Names of the channels, if the package declares them.
    pub channel_names: Vec<String>,
    /// Steps that are applied to the image before inference, in order.
    pub preprocessing: Vec<Processing>,
}

/// Turns channels-last tensors, as in TensorFlow, into channels-first ones, in the description and in the networks, and
/// leaves out the test tensors, which are channels-last. Returns whether there were any.
///
/// # Errors
/// Why that is not possible.
pub fn move_channels(package: &mut Package) -> Result<bool, String> {
    let is_last = |specs: &[TensorSpec]| specs.iter().map(TensorSpec::has_channels_last).collect::<Vec<bool>>();
    let (inputs, outputs) = (is_last(&package.inputs), is_last(&package.outputs));
    if !inputs.contains(&true) && !outputs.contains(&true) {
        return Ok(false);
    }
    for graph in std::iter::once(&mut package.graph).chain(package.float_graph.as_mut()) {
        channels_first(graph, &inputs, &outputs).map_err(|error| error.to_string())?;
    }
    for spec in package.inputs.iter_mut().chain(&mut package.outputs) {
        spec.test_tensor = None;
        if spec.has_channels_last()
            && let Some(channels) = spec.axes.pop()
        {
            spec.axes.insert(1, channels);
        }
    }
    Ok(true)
}

/// Returns the input tensors of a package in their order.
pub(crate) fn list_inputs(package: &Package) -> Vec<ModelInput> {
    let channels = |at: usize, spec: &TensorSpec| {
        let from_graph = || package.graph.value(*package.graph.inputs.get(at)?).shape.as_ref()?.get(1)?.fixed();
        let from_spec = || match spec.axis(AxisKind::Channel).map(|axis| &axis.size) {
            Some(AxisSize::Fixed(count)) => Some(*count),
            _ => None,
        };
        from_graph().or_else(from_spec).unwrap_or(1).max(1)
    };
    let input = |(at, spec): (usize, &TensorSpec)| ModelInput {
        id: spec.id.clone(),
        channels: channels(at, spec),
        channel_names: spec.axis(AxisKind::Channel).map(|axis| axis.channel_names.clone()).unwrap_or_default(),
        preprocessing: spec.processing.clone(),
    };
    package.inputs.iter().enumerate().map(input).collect()
}

/// Returns the names of the channels of all inputs. If there is one input, these are the declared names. Of several inputs,
/// those with one channel are named by their id, the others by the declared names or, without such names, by numbered ids.
pub(crate) fn channel_names(inputs: &[ModelInput]) -> Vec<String> {
    if let [input] = inputs {
        return input.channel_names.clone();
    }
    let names = |input: &ModelInput| match input.channels {
        1 => vec![input.id.clone()],
        count if input.channel_names.len() == count => input.channel_names.clone(),
        count => (0..count).map(|channel| format!("{} {channel}", input.id)).collect(),
    };
    inputs.iter().flat_map(names).collect()
}

/// Joins the inputs of a network into one with the channels of all, so that tiles are cut from all inputs at the same place.
/// Returns why that is not possible.
pub(crate) fn join(graph: &mut Graph, inputs: &[ModelInput]) -> Result<(), String> {
    let channels: Vec<usize> = inputs.iter().map(|input| input.channels).collect();
    join_inputs(graph, &channels).map_err(|error| error.to_string())
}

/// Refuses a network with an input of several samples at a time: the number of tiles is not a multiple of theirs.
pub(crate) fn check_batch(package: &Package) -> Result<(), String> {
    for graph in std::iter::once(&package.graph).chain(package.float_graph.as_ref()) {
        for (spec, id) in package.inputs.iter().zip(&graph.inputs) {
            let has_batch = spec.axes.first().is_some_and(|axis| axis.kind == AxisKind::Batch);
            let first = graph.value(*id).shape.as_ref().and_then(|shape| shape.first());
            if let Some(samples) = first.and_then(Dim::fixed).filter(|samples| has_batch && *samples > 1) {
                return Err(format!(
                    "its input {} has a fixed batch of {samples} samples, expected 1 or a free length: export the network \
                     again with a batch of 1, or with a dynamic batch axis",
                    spec.id
                ));
            }
        }
    }
    Ok(())
}

/// Refuses inputs that are not on the same grid: with other axes, voxel sizes, or lengths that depend on those of another
/// input by a factor or an offset.
pub(crate) fn check_same_grid(inputs: &[TensorSpec]) -> Result<(), String> {
    let Some((first, others)) = inputs.split_first() else { return Err("it has no input".to_owned()) };
    let is_scaled = |spec: &TensorSpec| {
        spec.axes.iter().filter(|axis| axis.kind.is_space()).any(|axis| match axis.size {
            AxisSize::Reference { scale, offset, .. } => scale != 1.0 || offset != 0.0,
            _ => false,
        })
    };
    for other in others {
        let differ = |what: &str| {
            let (a, b) = (&first.id, &other.id);
            Err(format!("its inputs {a} and {b} differ in {what}: all inputs of a model must be on the same grid"))
        };
        if first.axes.iter().map(|axis| axis.kind).ne(other.axes.iter().map(|axis| axis.kind)) {
            return differ("their axes");
        }
        if is_scaled(first) || is_scaled(other) {
            return differ("their size");
        }
        if let (Some(a), Some(b)) = (first.voxel_um(), other.voxel_um())
            && a.iter().zip(&b).any(|(a, b)| (a / b - 1.0).abs() > SAME_VOXEL)
        {
            return differ("their voxel size");
        }
    }
    Ok(())
}

/// Refuses step and minimum Z, Y, X of tile sizes that an input of fixed size does not accept.
pub(crate) fn check_fixed_sizes(inputs: &[TensorSpec], step: [usize; 3], min_size: [usize; 3]) -> Result<(), String> {
    for (a, kind) in [AxisKind::Z, AxisKind::Y, AxisKind::X].into_iter().enumerate() {
        for input in inputs {
            if let Some(AxisSize::Fixed(length)) = input.axis(kind).map(|axis| &axis.size)
                && [step.get(a), min_size.get(a)] != [Some(length); 2]
            {
                return Err(format!(
                    "its input {} has the fixed length {length} along {}, which another input does not accept",
                    input.id,
                    kind.id()
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(id: &str, channels: usize, names: &[&str]) -> ModelInput {
        let channel_names = names.iter().map(|name| (*name).to_owned()).collect();
        ModelInput { id: id.to_owned(), channels, channel_names, preprocessing: Vec::new() }
    }

    #[test]
    fn channels_of_several_inputs_have_the_names_of_these() {
        assert_eq!(channel_names(&[input("raw", 2, &["a", "b"])]), ["a", "b"]);
        let several = [input("nuclei", 1, &["channel0"]), input("colors", 2, &["red", "green"]), input("rest", 2, &[])];
        assert_eq!(channel_names(&several), ["nuclei", "red", "green", "rest 0", "rest 1"]);
    }
}

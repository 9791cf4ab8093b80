//! Finds out which other axis lengths a network accepts that was exported for inputs of one shape.

use crate::error::model_error;
use crate::step::input_parts;
use cytoscope_graph::{Dim, Graph, ValueId};
use cytoscope_graph_passes::{analysis, infer_shapes, input_channels, join_inputs};
use cytoscope_pipeline::JobError;
use cytoscope_storage::message;
use cytoscope_storage::setting::FROM_SCRATCH;

/// Axes of the input before those of space: batch and channels.
const BEFORE_SPACE: usize = 2;
/// Number of patches of the batch with which networks are tried.
const TRIED_BATCH: usize = 2;

/// The lengths that a network takes after [`free_lengths`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Lengths {
    /// The only number of patches in a batch; `None` if it takes any.
    pub batch: Option<usize>,
    /// The only length that the network accepts along each spatial axis; `None` if it accepts several.
    pub space: Vec<Option<usize>>,
    /// Numbers of which the lengths along the spatial axes must be multiples, if the network had fixed lengths before.
    pub multiples: Option<Vec<usize>>,
}

/// Frees the fixed lengths of a network's inputs, except those of the channels, if the network computes the same for other
/// lengths: exporters store the shapes of example inputs, although most networks take others, too. The lengths of all inputs
/// are those of the first one.
pub(crate) fn free_lengths(graph: &mut Graph) -> Lengths {
    let input = graph.inputs.first().copied();
    let Some(dims) = input.and_then(|id| graph.value(id).shape.clone()) else { return Lengths::default() };
    let is_fixed = |axis: &usize| dims.get(*axis).is_some_and(|dim| dim.fixed().is_some());
    let batch: Vec<usize> = [0].into_iter().filter(is_fixed).collect();
    let space: Vec<usize> = (BEFORE_SPACE..dims.len()).filter(is_fixed).collect();
    let multiples: Vec<usize> = match analysis::receptive_field(graph) {
        Ok(field) => field.axes.iter().map(|axis| axis.multiple_of.max(1)).collect(),
        Err(_) => vec![1; dims.len().saturating_sub(BEFORE_SPACE)],
    };
    let choices = [[batch.as_slice(), space.as_slice()].concat(), space.clone(), batch.clone()];
    let fixed = |axis: usize| dims.get(axis).and_then(Dim::fixed);
    for axes in choices.into_iter().filter(|axes| !axes.is_empty()) {
        let length = |axis: usize| match (axis, axes.contains(&axis), fixed(axis)) {
            (0, false, count) => count.unwrap_or(1),
            (0, true, _) => TRIED_BATCH,
            (1, _, count) => count.unwrap_or(1),
            (_, is_freed, length) => {
                let multiple = axis.checked_sub(BEFORE_SPACE).and_then(|a| multiples.get(a)).copied().unwrap_or(1);
                // A length other than that of the export.
                length.map_or(4 * multiple, |length| if is_freed { length + multiple } else { length })
            }
        };
        let tried: Vec<usize> = (0..dims.len()).map(length).collect();
        if let Some(free) = with_free(graph, &axes, &tried) {
            *graph = free;
            let kept = |axis: usize| fixed(axis).filter(|_| !axes.contains(&axis));
            let is_freed = space.iter().any(|axis| axes.contains(axis));
            return Lengths {
                batch: kept(0),
                space: (BEFORE_SPACE..dims.len()).map(kept).collect(),
                multiples: is_freed.then_some(multiples),
            };
        }
    }
    Lengths { batch: fixed(0), space: (BEFORE_SPACE..dims.len()).map(fixed).collect(), multiples: None }
}

/// Returns a network whose inputs have free `axes`, if it maps inputs of the shape `tried` to an output with the same
/// lengths except that of the channels, and computes the patches of a batch independently of each other.
fn with_free(graph: &Graph, axes: &[usize], tried: &[usize]) -> Option<Graph> {
    let output = graph.outputs.first().copied()?;
    let channels = input_channels(graph);
    let shape = |count: usize| -> Vec<usize> {
        tried.iter().enumerate().map(|(axis, length)| if axis == 1 { count } else { *length }).collect()
    };
    let mut free = graph.clone();
    let made: Vec<_> = free.nodes.iter().flat_map(|node| node.outputs.iter().flatten().copied()).collect();
    for id in made {
        free.values.get_mut(id.index())?.shape = None;
    }
    for input in &graph.inputs {
        let dims = free.values.get_mut(input.index())?.shape.as_mut()?;
        for axis in axes {
            *dims.get_mut(*axis)? = Dim::Free(format!("axis{axis}"));
        }
    }
    let mut inferred = free.clone();
    let shapes: Vec<_> = graph.inputs.iter().zip(&channels).map(|(input, count)| (*input, shape(*count))).collect();
    infer_shapes(&mut inferred, &shapes).ok()?;
    let found = inferred.value(output).fixed_shape()?;
    let keeps_lengths =
        found.len() == tried.len() && found.iter().zip(tried).enumerate().all(|(axis, (a, b))| axis == 1 || a == b);
    if !keeps_lengths {
        return None;
    }
    let mut joined = free.clone();
    join_inputs(&mut joined, &channels).ok()?;
    let keeps_patches_apart = || analysis::samples_are_independent(&joined, &shape(channels.iter().sum()));
    (!axes.contains(&0) || keeps_patches_apart()).then_some(free)
}

/// Refuses a network whose output does not have the size of its input for a batch of the shape `batch`, which has the
/// channels of all inputs: targets have the size of the input. `name` is the name of the model.
///
/// # Errors
/// [`JobError::Model`] with both sizes.
pub(crate) fn check_output_size(graph: &Graph, name: &str, batch: &[usize]) -> Result<(), JobError> {
    let mut graph = graph.clone();
    let inputs = graph.inputs.iter().copied().zip(input_parts(batch, &input_channels(&graph)));
    let shapes: Vec<(ValueId, Vec<usize>)> = inputs.collect();
    infer_shapes(&mut graph, &shapes).map_err(model_error(name))?;
    let output = graph.outputs.first().and_then(|id| graph.value(*id).fixed_shape());
    let is_other = |output: &Vec<usize>| output.get(BEFORE_SPACE..) != batch.get(BEFORE_SPACE..);
    let Some(output) = output.filter(is_other) else { return Ok(()) };
    let size = |shape: &[usize]| -> String {
        let lengths: Vec<String> = shape.iter().skip(BEFORE_SPACE).map(usize::to_string).collect();
        lengths.join(" × ")
    };
    let problem = message!(
        "its output has {} voxels for an input of {}, but training requires outputs of the size of the input: start from a \
         network that pads its convolutions and returns to the resolution of its input, or from scratch ({FROM_SCRATCH})",
        size(&output),
        size(batch)
    );
    Err(JobError::model(name, problem))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use cytoscope_graph::{BinaryOp, ConvAttrs, ElementType, Op, Padding, PoolAttrs, Tensor};

    /// A network for one input shape; `lengths` is the shape that its middle is given, if any.
    fn exported(shape: [usize; 4], lengths: Option<[i64; 4]>) -> Graph {
        let mut graph = Graph::new("exported");
        let x = graph.add_input("x", ElementType::F32, shape.map(Dim::Fixed).to_vec());
        let w = graph.add_initializer("w", Tensor::new([2, 1, 3, 3], vec![0.1f32; 18]).unwrap());
        let mut y = graph.push("y", Op::Conv(ConvAttrs::same(&[3, 3])), &[Some(x), Some(w)]);
        if let Some(lengths) = lengths {
            let lengths = graph.add_initializer("lengths", Tensor::vector(lengths.to_vec()));
            y = graph.push("reshaped", Op::Reshape { allow_zero: false }, &[Some(y), Some(lengths)]);
        }
        let pool = PoolAttrs {
            kernel: vec![2; 2],
            strides: vec![2; 2],
            dilations: vec![1; 2],
            padding: Padding::none(2),
            ceil_mode: false,
            count_include_pad: false,
            column_major_indices: false,
        };
        let small = graph.push("small", Op::AveragePool(pool), &[Some(y)]);
        let scales = graph.add_initializer("scales", Tensor::vector(vec![1.0f32, 1.0, 2.0, 2.0]));
        let up = Op::resize(cytoscope_graph::ResizeAttrs::nearest());
        let large = graph.push("large", up, &[Some(small), None, Some(scales)]);
        let sum = graph.push("sum", Op::Binary(BinaryOp::Add), &[Some(large), Some(y)]);
        graph.outputs.push(sum);
        infer_shapes::<ValueId>(&mut graph, &[]).unwrap();
        graph
    }

    #[test]
    fn lengths_of_an_example_input_are_freed_if_the_network_takes_others() {
        let mut graph = exported([1, 1, 8, 8], None);
        let lengths = free_lengths(&mut graph);
        assert_eq!(lengths, Lengths { batch: None, space: vec![None; 2], multiples: Some(vec![2, 2]) });
        let shapes = [(graph.inputs[0], vec![3, 1, 6, 10])];
        infer_shapes(&mut graph, &shapes).unwrap();
        assert_eq!(graph.value(graph.outputs[0]).fixed_shape().unwrap(), [3, 2, 6, 10]);
    }

    #[test]
    fn lengths_that_the_network_requires_stay() {
        // The middle has the lengths of the example, but any number of patches.
        let mut graph = exported([1, 1, 8, 8], Some([-1, 2, 8, 8]));
        let lengths = Lengths { batch: None, space: vec![Some(8); 2], multiples: None };
        assert_eq!(free_lengths(&mut graph), lengths);
        // It has all lengths of the example.
        let mut graph = exported([1, 1, 8, 8], Some([1, 2, 8, 8]));
        assert_eq!(free_lengths(&mut graph), Lengths { batch: Some(1), ..lengths });
        // Free lengths stay as they are.
        let mut graph = exported([1, 1, 8, 8], None);
        let input = graph.inputs[0];
        graph.values[input.index()].shape = Some(["n", "c", "y", "x"].map(|name| Dim::Free(name.into())).to_vec());
        let before = graph.clone();
        let free = Lengths { space: vec![None; 2], ..Lengths::default() };
        assert_eq!((free_lengths(&mut graph), graph == before), (free, true));
    }

    #[test]
    fn a_network_whose_output_has_another_size_than_its_input_is_refused() {
        let mut graph = exported([1, 1, 8, 8], None);
        check_output_size(&graph, "exported", &[1, 1, 8, 8]).unwrap();
        // The pooled maps, before they return to the resolution of the input.
        graph.outputs = vec![graph.find("small").unwrap()];
        let refused = check_output_size(&graph, "exported", &[1, 1, 8, 8]).unwrap_err().to_string();
        assert!(refused.contains("4 × 4 voxels for an input of 8 × 8"), "{refused}");
    }
}

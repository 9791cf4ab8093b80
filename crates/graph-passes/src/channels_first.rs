//! Rewrites networks whose channels are the last axis, as in TensorFlow, to take and return channels as the second axis.

use cytoscope_graph::{Graph, Node, Op, Result, Value, ValueId};

/// Moves the channels of inputs and outputs from the last axis to the second. `inputs` and `outputs` state for each whether
/// its channels are the last axis. Values of unknown shape stay as they are.
///
/// # Errors
/// Same as [`Graph::validate`].
pub fn channels_first(graph: &mut Graph, inputs: &[bool], outputs: &[bool]) -> Result<()> {
    for (index, _) in inputs.iter().enumerate().filter(|(_, is_last)| **is_last) {
        let Some(&own) = graph.inputs.get(index) else { continue };
        let Some((moved, rank)) = with_channels_first(graph, own) else { continue };
        // Axis i of the network's input is this axis of the new one.
        let perm = [0].into_iter().chain(2..rank).chain([1]).collect();
        let name = graph.value(own).name.clone();
        let (op, from, to) = (Op::Transpose { perm }, vec![Some(moved)], vec![Some(own)]);
        graph.nodes.insert(0, Node { name, op, inputs: from, outputs: to });
        if let Some(input) = graph.inputs.get_mut(index) {
            *input = moved;
        }
    }
    for (index, _) in outputs.iter().enumerate().filter(|(_, is_last)| **is_last) {
        let Some(&own) = graph.outputs.get(index) else { continue };
        let Some((moved, rank)) = with_channels_first(graph, own) else { continue };
        let perm = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
        let name = graph.value(moved).name.clone();
        let (op, from, to) = (Op::Transpose { perm }, vec![Some(own)], vec![Some(moved)]);
        graph.nodes.push(Node { name, op, inputs: from, outputs: to });
        if let Some(output) = graph.outputs.get_mut(index) {
            *output = moved;
        }
    }
    graph.validate()
}

/// Adds a value with the axes of `id`, but the channels second, and with its name; `id` gets another name. Returns the value
/// and its number of axes, or `None` if the shape is unknown or has no spatial axes.
fn with_channels_first(graph: &mut Graph, id: ValueId) -> Option<(ValueId, usize)> {
    let Value { name, dtype, shape } = graph.value(id).clone();
    let mut shape = shape.filter(|shape| shape.len() > 2)?;
    let rank = shape.len();
    let channels = shape.pop()?;
    shape.insert(1, channels);
    let moved = graph.add_value(format!("{name}.last"), dtype, Some(shape));
    let unused = graph.value(moved).name.clone();
    for (id, name) in [(id, unused), (moved, name)] {
        if let Some(value) = graph.values.get_mut(id.index()) {
            value.name = name;
        }
    }
    Some((moved, rank))
}

//! The last layers of a start model: another number of output channels, and the final sigmoid.

use cytoscope_graph::{Activation, ConvAttrs, Graph, GraphError, Node, Op, Tensor, ValueId};
use std::sync::Arc;

/// Returns the index of the node that computes the first output.
fn output_node(graph: &Graph) -> Option<usize> {
    let output = *graph.outputs.first()?;
    graph.nodes.iter().position(|n| n.output(0) == Some(output))
}

/// Replaces the weights of the last convolution (before activations) by random ones for another number of output
/// channels. Returns `None` if there is no such convolution.
pub(super) fn new_head(graph: &mut Graph, channels: usize, seed: u64) -> Option<()> {
    let mut index = output_node(graph)?;
    while matches!(graph.nodes.get(index)?.op, Op::Activation(_) | Op::Identity) {
        let input = graph.nodes.get(index)?.input(0)?;
        index = graph.nodes.iter().position(|n| n.output(0) == Some(input))?;
    }
    let node = graph.nodes.get(index)?.clone();
    let Op::Conv(attrs) = &node.op else { return None };
    let weight = graph.constant(node.input(1)?)?.clone();
    let shape: Vec<usize> = std::iter::once(channels).chain(weight.shape().iter().skip(1).copied()).collect();
    if attrs.group != 1 {
        return None;
    }
    let (weight, bias) = random_layer(graph, shape, seed)?;
    if let Some(node) = graph.nodes.get_mut(index) {
        node.inputs = vec![node.input(0), Some(weight), Some(bias)];
    }
    let made: Vec<ValueId> = graph.nodes.iter().skip(index).flat_map(|n| n.outputs.iter().flatten().copied()).collect();
    for id in made {
        if let Some(value) = graph.values.get_mut(id.index()) {
            value.shape = None;
        }
    }
    cytoscope_graph_passes::eliminate_dead(graph);
    Some(())
}

/// Adds constants for the weights of a convolution, with this shape, and its bias.
fn random_layer(graph: &mut Graph, shape: Vec<usize>, seed: u64) -> Option<(ValueId, ValueId)> {
    let channels = *shape.first()?;
    let fan_in: usize = shape.iter().skip(1).product();
    let mut state = seed ^ 0x9E37_79B9_7F4A_7C15;
    let mut uniform = || {
        // SplitMix64 (Steele, Lea & Flood 2014).
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (((z ^ (z >> 31)) >> 40) as f32 / (1u32 << 24) as f32) * 2.0 - 1.0
    };
    let bound = (3.0 / fan_in.max(1) as f32).sqrt();
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| uniform() * bound).collect();
    let weight = graph.add_initializer("head.new.weight", Arc::new(Tensor::new(shape, values).ok()?));
    let bias = graph.add_initializer("head.new.bias", Tensor::vector(vec![0.0f32; channels]));
    Some((weight, bias))
}

/// Appends a convolution with a `kernel` of length 1 and random weights, which computes `channels` output channels from
/// the `before` channels of the first output.
pub(super) fn further_layer(
    graph: &mut Graph,
    before: usize,
    channels: usize,
    kernel: &[usize],
    seed: u64,
) -> Result<(), GraphError> {
    let shape: Vec<usize> = [channels, before].into_iter().chain(kernel.iter().copied()).collect();
    let missing = || GraphError::misused("outputs", "none", "one");
    let output = graph.outputs.first().copied().ok_or_else(missing)?;
    let (weight, bias) = random_layer(graph, shape, seed).ok_or_else(missing)?;
    let op = Op::Conv(ConvAttrs::same(kernel));
    let made = graph.push("head.new", op, &[Some(output), Some(weight), Some(bias)]);
    graph.outputs = vec![made];
    Ok(())
}

/// Returns whether the first output is computed by a sigmoid.
pub(super) fn ends_in_sigmoid(graph: &Graph) -> bool {
    output_node(graph)
        .and_then(|i| graph.nodes.get(i))
        .is_some_and(|n| matches!(n, Node { op: Op::Activation(Activation::Sigmoid), .. }))
}

/// Makes the input of the sigmoid that the first output ends in the only output. Returns whether there is one.
pub(super) fn remove_sigmoid(graph: &mut Graph) -> bool {
    let last = output_node(graph).and_then(|i| graph.nodes.get(i)).filter(|_| ends_in_sigmoid(graph));
    let Some(input) = last.and_then(|node| node.input(0)) else { return false };
    graph.outputs = vec![input];
    cytoscope_graph_passes::eliminate_dead(graph);
    true
}

/// Appends a sigmoid to the first output, unless it already ends in one.
pub(super) fn append_sigmoid(graph: &mut Graph) {
    if ends_in_sigmoid(graph) {
        return;
    }
    if let Some(output) = graph.outputs.first().copied() {
        let made = graph.push("probability", Op::Activation(Activation::Sigmoid), &[Some(output)]);
        graph.outputs = vec![made];
    }
}

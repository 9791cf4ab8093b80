//! Rewrites a network on slices as a network on stacks that computes each slice separately.

use cytoscope_graph::{Dim, Graph, Node, Op, Padding, Tensor, ValueId, axis_over_slices};
use std::sync::Arc;

/// Name of the free length of the new axis; no axis of a file has it.
const SLICES: &str = "slices of the stack";

/// Returns the network that applies a network on slices (batch, channel, Y, X) to each slice of a stack (batch, channel, Z,
/// Y, X): along Z, kernels have length 1, and nothing is padded or resized. `None` for networks with an operator for which
/// that is not certain, such as one that reads lengths or computes statistics over all spatial axes.
pub fn over_slices(graph: &Graph) -> Option<Graph> {
    let mut lifted = graph.clone();
    for (index, value) in lifted.values.iter_mut().enumerate() {
        let id = ValueId(u32::try_from(index).ok()?);
        if graph.inputs.contains(&id) {
            let shape = value.shape.as_mut().filter(|shape| shape.len() == 4)?;
            shape.insert(2, Dim::Free(SLICES.to_owned()));
        } else if let Some(tensor) = graph.constant(id) {
            // Weights, and constants that are broadcast to values; vectors have no spatial axes.
            let Some(before) = tensor.rank().checked_sub(2).filter(|before| *before > 0) else { continue };
            let mut shape = tensor.shape().to_vec();
            shape.insert(before, 1);
            let tensor = Tensor::clone(tensor).reshaped(shape.clone()).ok()?;
            value.shape = Some(shape.into_iter().map(Dim::Fixed).collect());
            lifted.initializers.insert(id, Arc::new(tensor));
        } else {
            value.shape = None;
        }
    }
    let mut nodes = std::mem::take(&mut lifted.nodes);
    for node in &mut nodes {
        lift(&mut lifted, node)?;
    }
    lifted.nodes = nodes;
    Some(lifted)
}

/// Adds the axis Z to a node; `None` if that may change its result in a slice.
fn lift(graph: &mut Graph, node: &mut Node) -> Option<()> {
    let has = |index: usize| node.inputs.get(index).is_some_and(Option::is_some);
    let constant = |index: usize| graph.constant(node.inputs.get(index).copied().flatten()?).cloned();
    match &mut node.op {
        Op::Conv(conv) | Op::FusedConv { conv, .. } => {
            window([&mut conv.kernel, &mut conv.strides, &mut conv.dilations], &mut conv.padding)
        }
        Op::ConvTranspose(conv) if conv.output_shape.is_none() && conv.output_padding.len() == 2 => {
            conv.output_padding.insert(0, 0);
            window([&mut conv.kernel, &mut conv.strides, &mut conv.dilations], &mut conv.padding)
        }
        // Indices count through all axes.
        Op::MaxPool(_) if node.outputs.get(1).is_some_and(Option::is_some) => None,
        Op::MaxPool(pool) | Op::AveragePool(pool) => {
            window([&mut pool.kernel, &mut pool.strides, &mut pool.dilations], &mut pool.padding)
        }
        Op::Softmax { axis } | Op::LogSoftmax { axis } => {
            *axis = axis_over_slices(*axis)?;
            Some(())
        }
        Op::Pad { .. } if !has(3) => {
            let mut pads = constant(1)?.as_i64().filter(|pads| pads.len() == 8)?.to_vec();
            // Amounts before all axes, then those after them.
            pads.insert(6, 0);
            pads.insert(2, 0);
            let pads = graph.add_initializer(format!("{}.pads", node.name), Tensor::vector(pads));
            node.inputs.iter_mut().skip(1).take(1).for_each(|input| *input = Some(pads));
            Some(())
        }
        Op::QuantizeLinear { axis: 0 | 1, block_size: 0, .. } | Op::DequantizeLinear { axis: 0 | 1, block_size: 0 } => {
            Some(())
        }
        Op::BatchNormalization { .. }
        | Op::Activation(_)
        | Op::PRelu
        | Op::Clip
        | Op::Unary(_)
        | Op::Binary(_)
        | Op::Where
        | Op::Cast { .. }
        | Op::Identity => Some(()),
        _ => {
            *node = node.over_slices(graph)?;
            Some(())
        }
    }
}

/// Adds the axis Z, along which neighbors are not read, to lengths, strides and dilations of a window.
fn window(lengths: [&mut Vec<usize>; 3], padding: &mut Padding) -> Option<()> {
    for lengths in lengths {
        if lengths.len() != 2 {
            return None;
        }
        lengths.insert(0, 1);
    }
    if let Padding::Explicit { before, after } = padding {
        before.insert(0, 0);
        after.insert(0, 0);
    }
    Some(())
}

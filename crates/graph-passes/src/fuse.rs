//! Fusion: a residual sum and an activation that follow a convolution are merged into its node.

use super::Readers;
use super::fold::same_shape;
use cytoscope_graph::{Activation, BinaryOp, Graph, Node, Op, ValueId};

/// Recognizes activations written as several nodes or with constant parameters: x·σ(x) becomes SiLU, `PRelu` with one
/// constant slope becomes `LeakyRelu`, `Clip` with constant f32 bounds becomes an activation. Returns the number found.
pub fn simplify_activations(graph: &mut Graph) -> usize {
    let mut found = 0;
    // Nodes are neither added nor removed here.
    let producers = graph.producers();
    for index in 0..graph.nodes.len() {
        let Some(node) = graph.nodes.get(index) else { break };
        let scalar = |id: Option<ValueId>| {
            let t = id.and_then(|id| graph.constant(id))?;
            t.as_f32().filter(|v| v.len() == 1).and_then(|v| v.first().copied())
        };
        let replacement = match &node.op {
            Op::PRelu => scalar(node.input(1)).map(|alpha| (Activation::LeakyRelu { alpha }, node.input(0))),
            Op::Clip => {
                let bound =
                    |i: usize, none: f32| if node.input(i).is_some() { scalar(node.input(i)) } else { Some(none) };
                match (bound(1, f32::NEG_INFINITY), bound(2, f32::INFINITY)) {
                    (Some(min), Some(max)) if node.inputs.len() > 1 => {
                        Some((Activation::Clip { min, max }, node.input(0)))
                    }
                    _ => None,
                }
            }
            Op::Binary(BinaryOp::Mul) => {
                let gate = |x: Option<ValueId>, s: Option<ValueId>| {
                    let node = s.and_then(|s| producers.get(&s)).and_then(|&i| graph.nodes.get(i))?;
                    let matches = node.op == Op::Activation(Activation::Sigmoid) && node.input(0) == x;
                    matches.then_some((Activation::Silu, x))
                };
                gate(node.input(0), node.input(1)).or_else(|| gate(node.input(1), node.input(0)))
            }
            _ => None,
        };
        if let (Some((activation, x)), Some(node)) = (replacement, graph.nodes.get_mut(index)) {
            node.op = Op::Activation(activation);
            node.inputs = vec![x];
            found += 1;
        }
    }
    found
}

/// Merges `Conv` [+ `Add` of a value of the same known shape] [+ activation] into [`Op::FusedConv`], if the
/// intermediate values have no other reader. Returns the number of fused convolutions.
pub fn fuse_activations(graph: &mut Graph) -> usize {
    let mut readers = Readers::of(graph);
    let mut gone = vec![false; graph.nodes.len()];
    let mut fused = 0;
    for index in 0..graph.nodes.len() {
        let Some(parts) = fuse_one(graph, &mut readers, index) else { continue };
        parts.into_iter().for_each(|part| gone[part] = true);
        fused += 1;
    }
    super::remove_marked(graph, &gone);
    fused
}

/// Merges convolution `index` and the nodes after it into the last of these nodes. Returns the nodes for the caller to
/// remove.
fn fuse_one(graph: &mut Graph, readers: &mut Readers, index: usize) -> Option<Vec<usize>> {
    let node = graph.nodes.get(index)?;
    let Op::Conv(conv) = &node.op else { return None };
    let conv = conv.clone();
    let mut output = node.output(0)?;
    let mut parts = vec![index];
    let mut residual = None;
    let mut activation = None;
    let mut next = readers.sole_reader(output);
    if let Some(at) = next
        && let Some(add) = graph.nodes.get(at)
        && add.op == Op::Binary(BinaryOp::Add)
        && let (Some(a), Some(b), Some(sum)) = (add.input(0), add.input(1), add.output(0))
    {
        let other = if a == output { b } else { a };
        if other != output && same_shape(graph, other, output) {
            residual = Some(other);
            output = sum;
            parts.push(at);
            next = readers.sole_reader(output);
        }
    }
    if let Some(at) = next
        && let Some(Node { op: Op::Activation(a), outputs, .. }) = graph.nodes.get(at)
        && let Some(Some(result)) = outputs.first()
    {
        activation = Some(*a);
        output = *result;
        parts.push(at);
    }
    if parts.len() == 1 {
        return None;
    }
    let node = graph.nodes.get(index)?;
    let mut inputs = vec![node.input(0), node.input(1), node.input(2)];
    if residual.is_some() {
        inputs.push(residual);
    }
    let name = node.name.clone();
    let last = parts.pop()?;
    for id in inputs.iter().flatten() {
        parts.iter().for_each(|part| readers.replace_reader(*id, *part, last));
    }
    let op = Op::FusedConv { conv, activation, residual: residual.is_some() };
    *graph.nodes.get_mut(last)? = Node { name, op, inputs, outputs: vec![Some(output)] };
    Some(parts)
}

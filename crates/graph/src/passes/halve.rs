//! Mixed precision: convolutions and matrix products, forward and backward, in 16-bit floats; everything else stays as it is.
//!
//! What is cast is decided operator by operator, after Micikevicius et al., "Mixed precision training" (2018): products gain from
//! narrow operands and are summed in 32 bits by the devices; norms, losses, reductions and optimizers need the range or the digits
//! of 32 bits and get them; what only moves, compares or adds two maps takes the type its inputs have. Parameters are inputs of
//! the graph in 32 bits, and so are their gradients among its outputs.

use std::collections::{BTreeMap, BTreeSet};

use crate::graph::{Graph, Node, ValueId};
use crate::op::{Activation, BinaryOp, Op};
use crate::tensor::ElementType;

/// What became of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Halved {
    /// Operators that compute in 16 bits.
    pub nodes: usize,
    /// Casts put in.
    pub casts: usize,
}

/// What an operator does in mixed precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// Computes in 16 bits.
    Narrow,
    /// Does if all its inputs have 16 bits anyhow.
    Follow,
    /// Computes in 32 bits.
    Wide,
}

fn rule(op: &Op) -> Rule {
    match op {
        Op::Conv(_) | Op::ConvTranspose(_) | Op::MatMul | Op::Gemm { .. } => Rule::Narrow,
        Op::Activation(Activation::Relu | Activation::LeakyRelu { .. })
        | Op::Binary(BinaryOp::Add)
        | Op::Concat { .. }
        | Op::Slice
        | Op::Split { .. }
        | Op::Identity
        | Op::DepthToSpace { .. }
        | Op::SpaceToDepth { .. } => Rule::Follow,
        Op::Vjp(of) => rule(of),
        _ => Rule::Wide,
    }
}

/// Rewrites a graph of known types so that what gains from it computes in `half` ([`ElementType::F16`] or
/// [`ElementType::BF16`]). Inputs and outputs of the graph keep their types. Types must be inferred anew afterwards.
pub fn halve(graph: &mut Graph, half: ElementType) -> Halved {
    let mut made = Halved::default();
    // Values that have 16 bits by now, and 16-bit copies of those that have 32.
    let mut narrow: BTreeSet<ValueId> = BTreeSet::new();
    let mut copies: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let mut nodes = Vec::with_capacity(graph.nodes.len());
    let is_wide = |graph: &Graph, id: ValueId| matches!(graph.value(id).dtype, Some(ElementType::F32) | None);
    for mut node in std::mem::take(&mut graph.nodes) {
        let floats: Vec<ValueId> =
            node.inputs.iter().flatten().copied().filter(|id| narrow.contains(id) || is_wide(graph, *id)).collect();
        let is_narrow = match rule(&node.op) {
            Rule::Narrow => !floats.is_empty(),
            Rule::Follow => !floats.is_empty() && floats.iter().all(|id| narrow.contains(id)),
            Rule::Wide => false,
        };
        for id in node.inputs.iter_mut().flatten() {
            if is_narrow && !narrow.contains(id) && is_wide(graph, *id) {
                // The backward pass reads the same copy: it is what is held in between.
                *id = *copies.entry(*id).or_insert_with(|| cast(graph, &mut nodes, &mut made, *id, half));
            } else if !is_narrow && narrow.contains(id) {
                // Made anew for each reader, so that none is held.
                *id = cast(graph, &mut nodes, &mut made, *id, ElementType::F32);
            }
        }
        if is_narrow {
            made.nodes += 1;
            for id in node.outputs.iter().flatten() {
                if let Some(value) = graph.values.get_mut(id.index()).filter(|v| v.dtype != Some(ElementType::Bool)) {
                    value.dtype = Some(half);
                    narrow.insert(*id);
                }
            }
        }
        nodes.push(node);
    }
    for index in 0..graph.outputs.len() {
        let Some(id) = graph.outputs.get(index).copied().filter(|id| narrow.contains(id)) else { continue };
        let wide = cast(graph, &mut nodes, &mut made, id, ElementType::F32);
        if let Some(slot) = graph.outputs.get_mut(index) {
            *slot = wide;
        }
    }
    graph.nodes = nodes;
    made
}

/// Puts a cast among the nodes; gives its result.
fn cast(graph: &mut Graph, nodes: &mut Vec<Node>, made: &mut Halved, id: ValueId, to: ElementType) -> ValueId {
    made.casts += 1;
    let (name, shape) = {
        let value = graph.value(id);
        (format!("{}.{to}", value.name), value.shape.clone())
    };
    let output = graph.add_value(name.clone(), Some(to), shape);
    nodes.push(Node { name, op: Op::Cast { to }, inputs: vec![Some(id)], outputs: vec![Some(output)] });
    output
}

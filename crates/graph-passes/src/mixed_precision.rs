//! Mixed precision: convolutions and matrix products, forward and backward, in 16-bit floats; everything else is
//! unchanged.
//!
//! Each operator is treated individually, after Micikevicius et al., "Mixed precision training" (2018): products
//! benefit from 16-bit operands and are accumulated in 32 bits by the devices; norms, losses, reductions and optimizers
//! need the range or precision of 32 bits; operators that only move, compare or add two maps take the type of their
//! inputs. Parameters are 32-bit inputs of the graph, and their gradients are 32-bit outputs.

use std::collections::{BTreeMap, BTreeSet};

use cytoscope_graph::{Activation, BinaryOp, ElementType, Graph, Node, Op, ValueId};

/// Statistics of [`to_mixed_precision`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MixedPrecisionStats {
    /// Number of operators that compute in 16 bits.
    pub nodes: usize,
    /// Number of `Cast` nodes that were inserted.
    pub casts: usize,
}

/// Precision of an operator in mixed precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    /// The operator computes in 16 bits.
    Narrow,
    /// 16 bits if all its inputs are 16-bit, otherwise 32 bits.
    Follow,
    /// The operator computes in 32 bits.
    Wide,
}

fn rule(op: &Op) -> Rule {
    match op {
        Op::Conv(_) | Op::ConvTranspose(_) | Op::MatMul | Op::Gemm { .. } => Rule::Narrow,
        Op::Activation(Activation::Relu | Activation::LeakyRelu { .. })
        | Op::Binary(BinaryOp::Add)
        | Op::Slice
        | Op::Split { .. }
        | Op::Identity
        | Op::DepthToSpace { .. }
        | Op::SpaceToDepth { .. } => Rule::Follow,
        Op::Vjp(of) => rule(of),
        op if op.joined_axis().is_some() => Rule::Follow,
        _ => Rule::Wide,
    }
}

/// Rewrites a graph with inferred types so that operators that benefit compute in `half` ([`ElementType::F16`] or
/// [`ElementType::BF16`]). Inputs and outputs of the graph keep their types. Types must be inferred again afterwards.
pub fn to_mixed_precision(graph: &mut Graph, half: ElementType) -> MixedPrecisionStats {
    let mut stats = MixedPrecisionStats::default();
    // Values that are 16-bit now, and 16-bit copies of 32-bit values.
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
                // The backward pass reads the same copy: only the copy is kept until then.
                *id = *copies.entry(*id).or_insert_with(|| cast(graph, &mut nodes, &mut stats, *id, half));
            } else if !is_narrow && narrow.contains(id) {
                // Cast again for each reader, so that no 32-bit copy is kept.
                *id = cast(graph, &mut nodes, &mut stats, *id, ElementType::F32);
            }
        }
        if is_narrow {
            stats.nodes += 1;
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
        let wide = cast(graph, &mut nodes, &mut stats, id, ElementType::F32);
        if let Some(slot) = graph.outputs.get_mut(index) {
            *slot = wide;
        }
    }
    graph.nodes = nodes;
    stats
}

/// Inserts a cast and returns its output.
fn cast(
    graph: &mut Graph,
    nodes: &mut Vec<Node>,
    stats: &mut MixedPrecisionStats,
    id: ValueId,
    to: ElementType,
) -> ValueId {
    stats.casts += 1;
    let (name, shape) = {
        let value = graph.value(id);
        (format!("{}.{to}", value.name), value.shape.clone())
    };
    let output = graph.add_value(name.clone(), Some(to), shape);
    nodes.push(Node { name, op: Op::Cast { to }, inputs: vec![Some(id)], outputs: vec![Some(output)] });
    output
}

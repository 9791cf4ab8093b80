//! Whether the samples of a batch are computed independently of each other.

use crate::{infer_shapes, optimize};
use cytoscope_graph::{AxisEffect, AxisLengths, Dim, Graph, Node, Op, ValueId};
use std::collections::BTreeSet;

/// Whether a batch gives the results of its samples, one by one: the first axis of the graph's only input is free, and
/// each sample of every output is computed from the same sample of the input. `shape` is the shape of the input with at
/// least two samples. Returns false for graphs that cannot be analyzed, and for operators that are not known to keep
/// samples apart.
pub fn samples_are_independent(graph: &Graph, shape: &[usize]) -> bool {
    let (&[input], Some(&samples)) = (graph.inputs.as_slice(), shape.first()) else { return false };
    let first_axis = graph.value(input).shape.as_ref().and_then(|axes| axes.first());
    if samples < 2 || !matches!(first_axis, Some(Dim::Free(_))) {
        return false;
    }
    let mut graph = graph.clone();
    let shapes = [(input, shape.to_vec())];
    // Shape arithmetic is folded, so that only operators on samples remain.
    let prepared = infer_shapes(&mut graph, &shapes)
        .and_then(|()| optimize(&mut graph))
        .and_then(|()| infer_shapes(&mut graph, &shapes));
    if prepared.is_err() {
        return false;
    }
    let mut batches = Batches { graph: &graph, samples, values: BTreeSet::from([input]) };
    let nodes_are_independent = graph.nodes.iter().all(|node| batches.keeps_samples_apart(node));
    nodes_are_independent && graph.outputs.iter().all(|id| batches.values.contains(id))
}

/// The values of a graph that hold one part for each sample, along their first axis.
struct Batches<'a> {
    graph: &'a Graph,
    /// Number of samples in the batch: the length of the first axis of the input.
    samples: usize,
    values: BTreeSet<ValueId>,
}

impl Batches<'_> {
    fn rank(&self, id: ValueId) -> Option<usize> {
        Some(self.graph.value(id).shape.as_ref()?.len())
    }

    /// Returns the length of the first axis.
    fn length(&self, id: ValueId) -> Option<usize> {
        self.graph.value(id).shape.as_ref()?.first()?.fixed()
    }

    fn has(&self, id: Option<ValueId>) -> bool {
        id.is_some_and(|id| self.values.contains(&id))
    }

    /// Returns whether a node computes each sample of its outputs from the same sample of its inputs, and adds those
    /// outputs. Nodes that read no samples compute constants.
    fn keeps_samples_apart(&mut self, node: &Node) -> bool {
        if !node.inputs.iter().any(|id| self.has(*id)) {
            return true;
        }
        let keeps = self.has_effect_within_samples(node) && self.keeps_first_axis(node);
        self.values.extend(node.outputs.iter().flatten());
        keeps
    }

    /// Returns whether the outputs have as many samples as the input. Operators that only change the shape keep the
    /// order of elements, so each part along the first axis stays one sample.
    fn keeps_first_axis(&self, node: &Node) -> bool {
        node.outputs.iter().flatten().all(|id| self.length(*id) == Some(self.samples))
    }

    fn has_effect_within_samples(&self, node: &Node) -> bool {
        let first_alone = || self.reads_samples_from_first_alone(node);
        match &node.op {
            Op::Conv(_)
            | Op::ConvTranspose(_)
            | Op::BatchNormalization { .. }
            | Op::InstanceNormalization { .. }
            | Op::GroupNormalization { .. }
            | Op::Activation(_)
            | Op::Clip
            | Op::MaxPool(_)
            | Op::AveragePool(_)
            | Op::GlobalAveragePool
            | Op::GlobalMaxPool
            | Op::Unary(_)
            | Op::Cast { .. }
            | Op::Identity
            | Op::Reshape { .. }
            | Op::Flatten { .. }
            | Op::Squeeze
            | Op::Unsqueeze
            | Op::DepthToSpace { .. }
            | Op::SpaceToDepth { .. } => first_alone(),
            Op::FusedConv { .. } => {
                let is_weight = |index: usize| !self.has(node.input(index));
                self.has(node.input(0)) && is_weight(1) && is_weight(2) && self.is_aligned(node)
            }
            Op::Binary(_) | Op::Where | Op::PRelu => self.is_aligned(node),
            Op::Split { axis } | Op::Softmax { axis } | Op::LogSoftmax { axis } => {
                first_alone() && self.is_within(node, std::slice::from_ref(axis))
            }
            Op::Transpose { perm } => first_alone() && perm.first() == Some(&0),
            Op::Slice => first_alone() && self.integers(node, 3).is_some_and(|axes| self.is_within(node, &axes)),
            Op::Reduce { .. } => {
                first_alone() && self.integers(node, 1).is_some_and(|axes| self.is_within(node, &axes))
            }
            // The number of samples is unchanged, so the end of the batch is not padded either.
            Op::Pad { .. } => {
                let is_unpadded = || self.integers(node, 1).is_some_and(|pads| pads.first() == Some(&0));
                first_alone() && node.input(3).is_none() && is_unpadded()
            }
            _ => self.states_effect_within_samples(node),
        }
    }

    fn reads_samples_from_first_alone(&self, node: &Node) -> bool {
        self.has(node.input(0)) && node.inputs.iter().skip(1).all(|id| !self.has(*id))
    }

    /// Returns whether an operator that states its effect along an axis reads only the same sample; false for other operators.
    fn states_effect_within_samples(&self, node: &Node) -> bool {
        let Some(rank) = node.input(0).and_then(|id| self.rank(id)) else { return false };
        let length = |id: Option<ValueId>| id.and_then(|id| self.length(id));
        let (input, output) = (length(node.input(0)), length(node.output(0)));
        let shape = node.input(0).and_then(|id| self.graph.value(id).fixed_shape()).unwrap_or_default();
        let constant = |index: usize| self.graph.constant(node.input(index)?).map(|tensor| &**tensor);
        let factor = node.op.factor_along(0, &shape, constant);
        let first_axis = AxisLengths { axis: 0, rank, input, output, factor };
        match node.op.axis_effect(&first_axis) {
            Ok(Some(AxisEffect::Same)) => self.reads_samples_from_first_alone(node),
            Ok(Some(AxisEffect::SameOfAll)) => node.inputs.iter().all(|id| self.has(*id)),
            Ok(Some(AxisEffect::All | AxisEffect::Window { .. }) | None) | Err(_) => false,
        }
    }

    /// Returns whether broadcasting keeps the samples of a batch apart: every batched input has the rank of the output,
    /// so that the first axes of both correspond, and every other input is the same for all samples.
    fn is_aligned(&self, node: &Node) -> bool {
        let Some(rank) = node.output(0).and_then(|id| self.rank(id)) else { return false };
        // The weights of a fused convolution are not broadcast.
        let weights = if matches!(node.op, Op::FusedConv { .. }) { 1..3 } else { 0..0 };
        let inputs = node.inputs.iter().enumerate().filter(|(index, _)| !weights.contains(index));
        inputs.filter_map(|(_, id)| *id).all(|id| match self.rank(id) {
            Some(own) if self.has(Some(id)) => own == rank,
            Some(own) => own < rank || (own == rank && self.length(id) == Some(1)),
            None => false,
        })
    }

    /// Returns whether `axes` names at least one axis of the first input, and not the first axis.
    fn is_within(&self, node: &Node, axes: &[i64]) -> bool {
        let Some(rank) = node.input(0).and_then(|id| self.rank(id)) else { return false };
        !axes.is_empty() && axes.iter().all(|axis| *axis != 0 && *axis != -(rank as i64))
    }

    /// Returns the integers of a constant input.
    fn integers(&self, node: &Node, index: usize) -> Option<Vec<i64>> {
        self.graph.constant(node.input(index)?)?.to_i64_vec()
    }
}

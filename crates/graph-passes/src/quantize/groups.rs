//! Groups of tensors that share one scale.

use std::collections::{BTreeMap, BTreeSet};

use super::layers::Layer;
use cytoscope_graph::{Graph, Node, Op, ValueId};

/// Tensors that are quantized with a common scale and zero point.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Group {
    /// Tensors with newly computed values; their ranges determine the group's range.
    pub sources: Vec<ValueId>,
    /// Tensors whose values are moved from other tensors of the group.
    pub moved: Vec<ValueId>,
}

impl Group {
    /// Iterates over all tensors of the group.
    pub fn tensors(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.sources.iter().chain(&self.moved).copied()
    }
}

/// Returns the inputs of a node that only moves or selects values and therefore can run on bytes; `None` for any other
/// node.
pub(super) fn moved_inputs(graph: &Graph, node: &Node) -> Option<Vec<ValueId>> {
    let inputs = match &node.op {
        Op::MaxPool(_) if node.output(1).is_none() => vec![node.input(0)?],
        _ => {
            let rank = node.output(0).and_then(|id| graph.value(id).shape.as_ref()).map(Vec::len);
            node.moved_inputs(rank)?
        }
    };
    inputs.iter().all(|id| graph.constant(*id).is_none()).then_some(inputs)
}

/// Returns the groups of the tensors that these layers read, in the order of their first tensors.
pub fn groups(graph: &Graph, layers: &[Layer]) -> Vec<Group> {
    let producers = graph.producers();
    // Union-find over the tensors: each one's parent.
    let mut parent: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    fn root(parent: &BTreeMap<ValueId, ValueId>, mut id: ValueId) -> ValueId {
        while let Some(&up) = parent.get(&id).filter(|up| **up != id) {
            id = up;
        }
        id
    }
    let mut moved: BTreeSet<ValueId> = BTreeSet::new();
    let mut pending: Vec<ValueId> = layers.iter().map(|l| l.input).collect();
    while let Some(id) = pending.pop() {
        parent.entry(id).or_insert(id);
        let producer = producers.get(&id).and_then(|i| graph.nodes.get(*i));
        let Some(inputs) = producer.and_then(|node| moved_inputs(graph, node)) else { continue };
        if !moved.insert(id) {
            continue;
        }
        for input in inputs {
            parent.entry(input).or_insert(input);
            let (a, b) = (root(&parent, id), root(&parent, input));
            parent.insert(a.max(b), a.min(b));
            pending.push(input);
        }
    }
    let mut groups: BTreeMap<ValueId, Group> = BTreeMap::new();
    for &id in parent.keys() {
        let group = groups.entry(root(&parent, id)).or_default();
        if moved.contains(&id) { group.moved.push(id) } else { group.sources.push(id) }
    }
    groups.into_values().collect()
}

//! The order in which nodes are imported, and those that are left out.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashMap, HashSet};

use super::Importer;
use super::inline::Arguments;
use crate::proto::{AttributeValue, NodeProto};
use cytoscope_graph::{GraphError, GraphErrorKind, Result, ValueId, check_limit};

impl Importer<'_> {
    /// Adds nodes in topological order. `outputs` are the names of the values that are needed: a node on which none of them depends
    /// is left out if it is not supported. `call` are the arguments of the function that the nodes belong to.
    pub(super) fn nodes(
        &mut self,
        nodes: &[NodeProto<'_>],
        outputs: &[&str],
        call: Option<&Arguments<'_>>,
    ) -> Result<()> {
        let used = used_nodes(nodes, outputs);
        let mut left_out: HashSet<&str> = HashSet::new();
        for index in topological_order(nodes, &self.names)? {
            let Some((node, is_used)) = nodes.get(index).zip(used.get(index)) else { continue };
            if !node.inputs.iter().any(|input| left_out.contains(input)) {
                match self.node(node, call) {
                    // What is added for a call of a function cannot be taken back.
                    Err(error) if !is_used && error.kind() == GraphErrorKind::Unsupported && !self.is_call(node) => {}
                    other => {
                        other?;
                        check_limit("nodes", "the graph", self.graph.nodes.len() as u128, self.limits.nodes as u128)?;
                        continue;
                    }
                }
            }
            left_out.extend(node.outputs.iter().filter(|output| !output.is_empty()));
        }
        Ok(())
    }

    /// Whether a node calls a function of the model.
    fn is_call(&self, node: &NodeProto<'_>) -> bool {
        let overloads = self.functions.get(node.op_type).and_then(|by_domain| by_domain.get(node.domain));
        overloads.is_some_and(|overloads| overloads.contains_key(node.overload))
    }
}

/// Returns for each node whether one of the outputs depends on it. Without outputs, or with branches, which may read any value by
/// its name, all nodes count as used.
fn used_nodes(nodes: &[NodeProto<'_>], outputs: &[&str]) -> Vec<bool> {
    let has_branches = |node: &NodeProto<'_>| {
        node.op_type == "If" || node.attributes.iter().any(|a| matches!(a.value, AttributeValue::Graph(_)))
    };
    if outputs.is_empty() || nodes.iter().any(has_branches) {
        return vec![true; nodes.len()];
    }
    let mut makers: HashMap<&str, usize> = HashMap::new();
    for (index, node) in nodes.iter().enumerate() {
        makers.extend(node.outputs.iter().filter(|output| !output.is_empty()).map(|output| (*output, index)));
    }
    let mut used = vec![false; nodes.len()];
    let mut needed: Vec<&str> = outputs.to_vec();
    while let Some(name) = needed.pop() {
        let Some(index) = makers.get(name).copied() else { continue };
        let (Some(is_used), Some(node)) = (used.get_mut(index), nodes.get(index)) else { continue };
        if !std::mem::replace(is_used, true) {
            needed.extend(node.inputs.iter().copied());
        }
    }
    used
}

/// Returns the node indices in topological order, keeping the file's order where possible.
fn topological_order(nodes: &[NodeProto<'_>], given: &HashMap<String, Option<ValueId>>) -> Result<Vec<usize>> {
    let mut makers: HashMap<&str, usize> = HashMap::new();
    for (index, node) in nodes.iter().enumerate() {
        for &output in node.outputs.iter().filter(|o| !o.is_empty()) {
            if given.contains_key(output) || makers.insert(output, index).is_some() {
                return Err(GraphError::malformed(format!("\"{output}\" is produced twice")));
            }
        }
    }
    let mut waiting: Vec<usize> = vec![0; nodes.len()];
    let mut readers: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (index, node) in nodes.iter().enumerate() {
        let sources: BTreeSet<usize> = node.inputs.iter().filter_map(|i| makers.get(i).copied()).collect();
        if let Some(w) = waiting.get_mut(index) {
            *w = sources.len();
        }
        for source in sources {
            if let Some(r) = readers.get_mut(source) {
                r.push(index);
            }
        }
    }
    let mut ready: BinaryHeap<Reverse<usize>> =
        waiting.iter().enumerate().filter(|(_, w)| **w == 0).map(|(i, _)| Reverse(i)).collect();
    let mut sorted = Vec::with_capacity(nodes.len());
    while let Some(Reverse(index)) = ready.pop() {
        sorted.push(index);
        for &reader in readers.get(index).into_iter().flatten() {
            if let Some(w) = waiting.get_mut(reader) {
                *w -= 1;
                if *w == 0 {
                    ready.push(Reverse(reader));
                }
            }
        }
    }
    if sorted.len() == nodes.len() {
        return Ok(sorted);
    }
    let stuck = waiting.iter().position(|&w| w > 0).and_then(|i| nodes.get(i));
    let name = stuck.map_or("", |n| if n.name.is_empty() { n.outputs.first().copied().unwrap_or("") } else { n.name });
    Err(GraphError::malformed(format!("the graph has a cycle through node \"{name}\"")))
}

//! Recomputation (gradient checkpointing): tensors of the forward pass are freed and computed again where the backward
//! pass reads them.
//!
//! Most memory of a training step holds activations until their gradients are computed. If memory is short, the pass
//! frees the tensors that are cheapest to recompute per byte held at the peak, one after the other, until the rest
//! fits.

use std::collections::{BTreeMap, BTreeSet};

use crate::analysis::node_macs;
use cytoscope_graph::{Graph, Node, Op, Result, ValueId};

/// Savings and cost of recomputation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecomputeStats {
    /// Peak bytes of tensors before, without the graph's inputs and constants.
    pub bytes_before: u64,
    /// Peak bytes of tensors after.
    pub bytes_after: u64,
    /// Number of nodes that are computed again.
    pub nodes: usize,
    /// Multiply-accumulates of the recomputed nodes.
    pub recomputed_macs: u64,
    /// Multiply-accumulates of the whole step before.
    pub macs: u64,
}

/// Maximum number of nodes recomputed for one tensor.
const MAX_CHAIN: usize = 6;

/// Producer, readers and size of each tensor.
struct Lifetimes {
    producers: BTreeMap<ValueId, usize>,
    reads: BTreeMap<ValueId, Vec<usize>>,
    bytes: BTreeMap<ValueId, u64>,
}

impl Lifetimes {
    fn of(graph: &Graph) -> Self {
        let producers = graph.producers();
        let mut reads: BTreeMap<ValueId, Vec<usize>> = BTreeMap::new();
        for (index, node) in graph.nodes.iter().enumerate() {
            for id in node.inputs.iter().flatten() {
                reads.entry(*id).or_default().push(index);
            }
        }
        for id in &graph.outputs {
            reads.entry(*id).or_default().push(graph.nodes.len());
        }
        let bytes = producers.keys().map(|id| (*id, value_bytes(graph, *id))).collect();
        Self { producers, reads, bytes }
    }

    /// Returns the last node that reads a tensor.
    fn last(&self, id: ValueId) -> usize {
        let produced = self.producers.get(&id).copied().unwrap_or(0);
        self.reads.get(&id).and_then(|r| r.iter().copied().max()).unwrap_or(produced)
    }

    /// Returns the peak of bytes held at once, and the node at which it occurs.
    fn peak(&self, nodes: usize) -> (u64, usize) {
        let mut changes = vec![0i128; nodes + 2];
        for (id, produced) in &self.producers {
            let bytes = i128::from(self.bytes.get(id).copied().unwrap_or(0));
            for (at, change) in [(*produced, bytes), (self.last(*id) + 1, -bytes)] {
                if let Some(slot) = changes.get_mut(at) {
                    *slot += change;
                }
            }
        }
        let (mut held, mut max, mut when) = (0, 0, 0);
        for (at, change) in changes.into_iter().enumerate() {
            held += change;
            if held > max {
                (max, when) = (held, at);
            }
        }
        (u64::try_from(max).unwrap_or(0), when)
    }
}

fn value_bytes(graph: &Graph, id: ValueId) -> u64 {
    let value = graph.value(id);
    let elements = value.fixed_shape().map_or(0, |s| s.iter().product::<usize>()) as u64;
    elements * value.dtype.map_or(4, |t| t.size_bytes() as u64)
}

/// A tensor that can be freed and recomputed.
struct Candidate {
    value: ValueId,
    /// Nodes to recompute, in order.
    chain: Vec<usize>,
    /// The next node that reads the tensor.
    reader: usize,
    /// Bytes freed per unit of work.
    worth: f64,
}

/// Frees tensors of the forward pass until at most `budget_bytes` are held at once, or as few as possible. The graph
/// computes identical values. All shapes must have been inferred and fixed; a graph without [`Op::Loss`] is not
/// changed.
///
/// # Errors
/// If a shape is unknown.
pub fn recompute(graph: &mut Graph, budget_bytes: u64) -> Result<RecomputeStats> {
    let (bytes, _) = Lifetimes::of(graph).peak(graph.nodes.len());
    let mut report = RecomputeStats { bytes_before: bytes, bytes_after: bytes, ..RecomputeStats::default() };
    for node in &graph.nodes {
        report.macs += node_macs(graph, node)?;
    }
    let mut best = (bytes, graph.clone(), report);
    let mut tried: BTreeSet<ValueId> = BTreeSet::new();
    while best.0 > budget_bytes {
        let Some(loss) = graph.nodes.iter().position(|n| matches!(n.op, Op::Loss(_))) else { break };
        let lifetimes = Lifetimes::of(graph);
        let (_, when) = lifetimes.peak(graph.nodes.len());
        let Some(found) = candidate(graph, &lifetimes, loss, when, &tried)? else { break };
        tried.insert(found.value);
        report.nodes += found.chain.len();
        for index in &found.chain {
            if let Some(node) = graph.nodes.get(*index) {
                report.recomputed_macs += node_macs(graph, node)?;
            }
        }
        insert_recomputation(graph, &found);
        let (bytes, _) = Lifetimes::of(graph).peak(graph.nodes.len());
        report.bytes_after = bytes;
        if bytes < best.0 {
            best = (bytes, graph.clone(), report);
        }
    }
    *graph = best.1;
    graph.validate()?;
    Ok(best.2)
}

/// Returns the tensor that frees the most bytes at node `when` for the least work.
fn candidate(
    graph: &Graph,
    lifetimes: &Lifetimes,
    loss: usize,
    when: usize,
    tried: &BTreeSet<ValueId>,
) -> Result<Option<Candidate>> {
    let mut best: Option<Candidate> = None;
    for (&value, &produced) in &lifetimes.producers {
        if produced >= loss || tried.contains(&value) || graph.outputs.contains(&value) {
            continue;
        }
        let reads = lifetimes.reads.get(&value).map(Vec::as_slice).unwrap_or_default();
        let before = reads.iter().copied().filter(|r| *r <= loss).max().unwrap_or(produced);
        let Some(reader) = reads.iter().copied().filter(|r| *r > loss).min() else { continue };
        if !(before < when && when < reader) {
            continue;
        }
        let mut chain = Vec::new();
        if !collect(graph, lifetimes, value, reader, &mut chain) {
            continue;
        }
        let mut work = 0.0;
        for index in &chain {
            let Some(node) = graph.nodes.get(*index) else { continue };
            let elements = node.output(0).map_or(0, |id| value_bytes(graph, id)) as f64 / 4.0;
            work += node_macs(graph, node)? as f64 + 4.0 * elements;
        }
        let worth = lifetimes.bytes.get(&value).copied().unwrap_or(0) as f64 / work.max(1.0);
        if best.as_ref().is_none_or(|b| worth > b.worth) {
            best = Some(Candidate { value, chain, reader, worth });
        }
    }
    Ok(best)
}

/// Collects the nodes that recompute a tensor from tensors still held when `reader` runs; returns false if there are
/// too many.
fn collect(graph: &Graph, lifetimes: &Lifetimes, value: ValueId, reader: usize, chain: &mut Vec<usize>) -> bool {
    let Some(&index) = lifetimes.producers.get(&value) else { return false };
    if chain.contains(&index) {
        return true;
    }
    let Some(node) = graph.nodes.get(index) else { return false };
    if chain.len() >= MAX_CHAIN || node.output(0) != Some(value) || matches!(node.op, Op::Vjp(_)) {
        return false;
    }
    for input in node.inputs.iter().flatten() {
        let given = !lifetimes.producers.contains_key(input);
        if !given && lifetimes.last(*input) < reader && !collect(graph, lifetimes, *input, reader, chain) {
            return false;
        }
    }
    chain.push(index);
    chain.len() <= MAX_CHAIN
}

/// Inserts copies of nodes before the reader; from there on, readers use the copies' results.
fn insert_recomputation(graph: &mut Graph, found: &Candidate) {
    let mut again: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let mut nodes = Vec::with_capacity(found.chain.len());
    for index in &found.chain {
        let Some(node) = graph.nodes.get(*index).cloned() else { continue };
        let Some(output) = node.output(0) else { continue };
        let value = graph.value(output).clone();
        let produced = graph.add_value(format!("{}.again", value.name), value.dtype, value.shape);
        let inputs = node.inputs.iter().map(|id| id.map(|id| again.get(&id).copied().unwrap_or(id))).collect();
        again.insert(output, produced);
        nodes.push(Node { name: format!("{}.again", node.name), op: node.op, inputs, outputs: vec![Some(produced)] });
    }
    for node in graph.nodes.iter_mut().skip(found.reader) {
        for id in node.inputs.iter_mut().flatten() {
            *id = again.get(id).copied().unwrap_or(*id);
        }
    }
    graph.nodes.splice(found.reader..found.reader, nodes);
}

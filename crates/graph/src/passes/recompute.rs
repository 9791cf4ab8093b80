//! Recomputation: tensors of the forward pass are let go and made again where the backward pass reads them.
//!
//! What a step holds at once is mostly activations that wait for their gradients. Where memory is short, the pass lets go of those
//! that cost least work for the bytes they hold when most is held, again and again, until the rest fits.

use std::collections::{BTreeMap, BTreeSet};

use crate::analysis::node_macs;
use crate::error::Result;
use crate::graph::{Graph, Node, ValueId};
use crate::op::Op;

/// What recomputing brings, and what it costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Recomputed {
    /// Most bytes of tensors held at once before, the graph's inputs and constants left out.
    pub bytes_before: u64,
    /// The same after.
    pub bytes_after: u64,
    /// Nodes that are run again.
    pub nodes: usize,
    /// Multiply-accumulates that are done again.
    pub macs_again: u64,
    /// Multiply-accumulates of the whole step before.
    pub macs: u64,
}

/// Nodes that may be run again for one tensor.
const LONGEST_CHAIN: usize = 6;

/// When each tensor is made and read.
struct Lives {
    made: BTreeMap<ValueId, usize>,
    reads: BTreeMap<ValueId, Vec<usize>>,
    bytes: BTreeMap<ValueId, u64>,
}

impl Lives {
    fn of(graph: &Graph) -> Self {
        let made = graph.producers();
        let mut reads: BTreeMap<ValueId, Vec<usize>> = BTreeMap::new();
        for (index, node) in graph.nodes.iter().enumerate() {
            for id in node.inputs.iter().flatten() {
                reads.entry(*id).or_default().push(index);
            }
        }
        for id in &graph.outputs {
            reads.entry(*id).or_default().push(graph.nodes.len());
        }
        let bytes = made.keys().map(|id| (*id, bytes_of(graph, *id))).collect();
        Self { made, reads, bytes }
    }

    /// The last node that reads a tensor.
    fn last(&self, id: ValueId) -> usize {
        let made = self.made.get(&id).copied().unwrap_or(0);
        self.reads.get(&id).and_then(|r| r.iter().copied().max()).unwrap_or(made)
    }

    /// Most bytes held at once, and the node at which.
    fn peak(&self, nodes: usize) -> (u64, usize) {
        let mut changes = vec![0i128; nodes + 2];
        for (id, made) in &self.made {
            let bytes = i128::from(self.bytes.get(id).copied().unwrap_or(0));
            for (at, change) in [(*made, bytes), (self.last(*id) + 1, -bytes)] {
                if let Some(slot) = changes.get_mut(at) {
                    *slot += change;
                }
            }
        }
        let (mut held, mut most, mut when) = (0, 0, 0);
        for (at, change) in changes.into_iter().enumerate() {
            held += change;
            if held > most {
                (most, when) = (held, at);
            }
        }
        (u64::try_from(most).unwrap_or(0), when)
    }
}

fn bytes_of(graph: &Graph, id: ValueId) -> u64 {
    let value = graph.value(id);
    let elements = value.fixed_shape().map_or(0, |s| s.iter().product::<usize>()) as u64;
    elements * value.dtype.map_or(4, |t| t.size_bytes() as u64)
}

/// A tensor that can be let go of.
struct Candidate {
    value: ValueId,
    /// Nodes to run again, in order.
    chain: Vec<usize>,
    /// The node that reads it next.
    reader: usize,
    /// Bytes freed for a unit of work.
    worth: f64,
}

/// Lets go of tensors of the forward pass until at most `budget_bytes` are held at once, or as near to that as gets. The graph
/// computes the same values from the same numbers. Shapes must have been inferred, all of them fixed; a graph without a
/// [`Op::Loss`] is left as it is.
///
/// # Errors
/// When a shape on the way is not known.
pub fn recompute(graph: &mut Graph, budget_bytes: u64) -> Result<Recomputed> {
    let (bytes, _) = Lives::of(graph).peak(graph.nodes.len());
    let mut report = Recomputed { bytes_before: bytes, bytes_after: bytes, ..Recomputed::default() };
    for node in &graph.nodes {
        report.macs += node_macs(graph, node)?;
    }
    let mut best = (bytes, graph.clone(), report);
    let mut tried: BTreeSet<ValueId> = BTreeSet::new();
    while best.0 > budget_bytes {
        let Some(loss) = graph.nodes.iter().position(|n| matches!(n.op, Op::Loss(_))) else { break };
        let lives = Lives::of(graph);
        let (_, when) = lives.peak(graph.nodes.len());
        let Some(found) = candidate(graph, &lives, loss, when, &tried)? else { break };
        tried.insert(found.value);
        report.nodes += found.chain.len();
        for index in &found.chain {
            if let Some(node) = graph.nodes.get(*index) {
                report.macs_again += node_macs(graph, node)?;
            }
        }
        run_again(graph, &found);
        let (bytes, _) = Lives::of(graph).peak(graph.nodes.len());
        report.bytes_after = bytes;
        if bytes < best.0 {
            best = (bytes, graph.clone(), report);
        }
    }
    *graph = best.1;
    graph.validate()?;
    Ok(best.2)
}

/// The tensor that frees most at a moment for the least work.
fn candidate(
    graph: &Graph,
    lives: &Lives,
    loss: usize,
    when: usize,
    tried: &BTreeSet<ValueId>,
) -> Result<Option<Candidate>> {
    let mut best: Option<Candidate> = None;
    for (&value, &made) in &lives.made {
        if made >= loss || tried.contains(&value) || graph.outputs.contains(&value) {
            continue;
        }
        let reads = lives.reads.get(&value).map(Vec::as_slice).unwrap_or_default();
        let before = reads.iter().copied().filter(|r| *r <= loss).max().unwrap_or(made);
        let Some(reader) = reads.iter().copied().filter(|r| *r > loss).min() else { continue };
        if !(before < when && when < reader) {
            continue;
        }
        let mut chain = Vec::new();
        if !collect(graph, lives, value, reader, &mut chain) {
            continue;
        }
        let mut work = 0.0;
        for index in &chain {
            let Some(node) = graph.nodes.get(*index) else { continue };
            let elements = node.output(0).map_or(0, |id| bytes_of(graph, id)) as f64 / 4.0;
            work += node_macs(graph, node)? as f64 + 4.0 * elements;
        }
        let worth = lives.bytes.get(&value).copied().unwrap_or(0) as f64 / work.max(1.0);
        if best.as_ref().is_none_or(|b| worth > b.worth) {
            best = Some(Candidate { value, chain, reader, worth });
        }
    }
    Ok(best)
}

/// The nodes that make a tensor again out of what is still held when `reader` runs; false if they are too many.
fn collect(graph: &Graph, lives: &Lives, value: ValueId, reader: usize, chain: &mut Vec<usize>) -> bool {
    let Some(&index) = lives.made.get(&value) else { return false };
    if chain.contains(&index) {
        return true;
    }
    let Some(node) = graph.nodes.get(index) else { return false };
    if chain.len() >= LONGEST_CHAIN || node.output(0) != Some(value) || matches!(node.op, Op::Vjp(_)) {
        return false;
    }
    for input in node.inputs.iter().flatten() {
        let given = !lives.made.contains_key(input);
        if !given && lives.last(*input) < reader && !collect(graph, lives, *input, reader, chain) {
            return false;
        }
    }
    chain.push(index);
    chain.len() <= LONGEST_CHAIN
}

/// Runs nodes again before the reader, which reads their results from then on.
fn run_again(graph: &mut Graph, found: &Candidate) {
    let mut again: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let mut nodes = Vec::with_capacity(found.chain.len());
    for index in &found.chain {
        let Some(node) = graph.nodes.get(*index).cloned() else { continue };
        let Some(output) = node.output(0) else { continue };
        let value = graph.value(output).clone();
        let made = graph.add_value(format!("{}.again", value.name), value.dtype, value.shape);
        let inputs = node.inputs.iter().map(|id| id.map(|id| again.get(&id).copied().unwrap_or(id))).collect();
        again.insert(output, made);
        nodes.push(Node { name: format!("{}.again", node.name), op: node.op, inputs, outputs: vec![Some(made)] });
    }
    for node in graph.nodes.iter_mut().skip(found.reader) {
        for id in node.inputs.iter_mut().flatten() {
            *id = again.get(id).copied().unwrap_or(*id);
        }
    }
    graph.nodes.splice(found.reader..found.reader, nodes);
}

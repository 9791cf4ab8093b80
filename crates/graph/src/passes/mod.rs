//! Rewrites that keep what a graph computes.
//!
//! Values keep their ids; those that nothing makes any more stay in [`Graph::values`] and are simply unused.

pub(crate) mod differentiate;
mod fold;
mod fuse;
mod halve;
mod norms;
pub mod quantize;
mod recompute;

use std::collections::{BTreeMap, BTreeSet};

use crate::error::Result;
use crate::graph::{Graph, ValueId};
use crate::op::Op;

pub use differentiate::differentiate;
pub use fold::{fold_batch_norm, fold_constants, fold_constants_within, fold_dequantized, fold_dequantized_within};
pub use fuse::{fuse_activations, simplify_activations};
pub use halve::{Halved, halve};
pub use norms::recognise_group_norms;
pub use recompute::{Recomputed, recompute};

/// Everything an engine wants done before it plans: identities out, constants and batch norms folded, activations and
/// residuals fused, dead code out. Quantized weights stay quantized. Shapes must have been inferred for residuals to be
/// fused.
///
/// # Errors
/// When folding a constant fails or would exceed [`crate::GraphLimits::folded_elements`].
pub fn optimize(graph: &mut Graph) -> Result<()> {
    eliminate_identity(graph);
    fold_constants(graph)?;
    fold_batch_norm(graph)?;
    simplify_activations(graph);
    fuse_activations(graph);
    eliminate_dead(graph);
    Ok(())
}

/// Takes out copies: `Identity`, and casts to the type a value has. Gives the number of nodes taken out.
pub fn eliminate_identity(graph: &mut Graph) -> usize {
    let outputs: BTreeSet<ValueId> = graph.outputs.iter().copied().collect();
    let given: BTreeSet<ValueId> = graph.inputs.iter().chain(graph.initializers.keys()).copied().collect();
    // What each copy stands for; what stands for a value that takes the name of an output.
    let mut same: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let mut renamed: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let mut gone = vec![false; graph.nodes.len()];
    for (node, gone) in graph.nodes.iter().zip(&mut gone) {
        let copies = match &node.op {
            Op::Identity => true,
            Op::Cast { to } => node.input(0).is_some_and(|id| graph.value(id).dtype == Some(*to)),
            _ => false,
        };
        let (true, Some(from), Some(to)) = (copies, node.input(0), node.output(0)) else { continue };
        // Nodes come after what they read, so what `from` stands for is known.
        let from = same.get(&from).copied().unwrap_or(from);
        if !outputs.contains(&to) {
            same.insert(to, from);
            *gone = true;
        } else if !outputs.contains(&from) && !given.contains(&from) && !renamed.contains_key(&from) {
            // The name of an output must stay: whoever makes the original makes the output instead.
            renamed.insert(from, to);
            *gone = true;
        }
    }
    let now = |id: ValueId| {
        let id = same.get(&id).copied().unwrap_or(id);
        renamed.get(&id).copied().unwrap_or(id)
    };
    for node in &mut graph.nodes {
        node.inputs.iter_mut().chain(&mut node.outputs).flatten().for_each(|id| *id = now(*id));
    }
    graph.outputs.iter_mut().for_each(|id| *id = now(*id));
    remove_marked(graph, &gone)
}

/// Takes out nodes whose results nothing reads, and constants nothing reads. Gives the number of nodes taken out.
pub fn eliminate_dead(graph: &mut Graph) -> usize {
    let before = graph.nodes.len();
    let mut needed: BTreeSet<ValueId> = graph.outputs.iter().copied().collect();
    let mut kept = Vec::with_capacity(before);
    for node in std::mem::take(&mut graph.nodes).into_iter().rev() {
        if node.outputs.iter().flatten().any(|id| needed.contains(id)) {
            needed.extend(node.inputs.iter().flatten());
            kept.push(node);
        }
    }
    kept.reverse();
    graph.nodes = kept;
    graph.initializers.retain(|id, _| needed.contains(id));
    before - graph.nodes.len()
}

/// Who reads and makes each value, kept up while a pass rewrites nodes in place.
struct Readers {
    readers: BTreeMap<ValueId, Vec<usize>>,
    makers: BTreeMap<ValueId, usize>,
    outputs: BTreeSet<ValueId>,
}

impl Readers {
    fn of(graph: &Graph) -> Self {
        let outputs = graph.outputs.iter().copied().collect();
        Self { readers: graph.consumers(), makers: graph.producers(), outputs }
    }

    /// The value's one reader, if there is exactly one and it is no output of the graph.
    fn only(&self, id: ValueId) -> Option<usize> {
        match self.readers.get(&id)?.as_slice() {
            [one] if !self.outputs.contains(&id) => Some(*one),
            _ => None,
        }
    }

    /// The node that makes a value.
    fn maker(&self, id: ValueId) -> Option<usize> {
        self.makers.get(&id).copied()
    }

    /// Notes that a node makes a value now.
    fn made_by(&mut self, id: ValueId, node: usize) {
        self.makers.insert(id, node);
    }

    /// Notes that node `to` reads what node `from` read.
    fn moved(&mut self, id: ValueId, from: usize, to: usize) {
        for reader in self.readers.get_mut(&id).into_iter().flatten().filter(|r| **r == from) {
            *reader = to;
        }
    }
}

/// Takes out the nodes that are marked. Gives their number.
fn remove_marked(graph: &mut Graph, gone: &[bool]) -> usize {
    let before = graph.nodes.len();
    let mut marks = gone.iter();
    graph.nodes.retain(|_| !marks.next().copied().unwrap_or(false));
    before - graph.nodes.len()
}

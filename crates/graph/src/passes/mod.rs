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

use std::collections::BTreeSet;

use crate::error::Result;
use crate::graph::{Graph, ValueId};
use crate::op::Op;

pub use differentiate::differentiate;
pub use fold::{fold_batch_norm, fold_constants, fold_dequantized};
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
    let before = graph.nodes.len();
    let mut index = 0;
    while index < graph.nodes.len() {
        let Some(node) = graph.nodes.get(index) else { break };
        let copies = match &node.op {
            Op::Identity => true,
            Op::Cast { to } => node.input(0).is_some_and(|id| graph.value(id).dtype == Some(*to)),
            _ => false,
        };
        let (true, Some(from), Some(to)) = (copies, node.input(0), node.output(0)) else {
            index += 1;
            continue;
        };
        if !graph.outputs.contains(&to) {
            graph.nodes.remove(index);
            graph.replace_uses(to, from);
            continue;
        }
        // The name of an output must stay: whoever makes the original makes the output instead.
        let maker = graph.producers().get(&from).copied().filter(|_| !graph.outputs.contains(&from));
        if let Some(maker) = maker {
            graph.nodes.remove(index);
            graph.replace_uses(from, to);
            for output in graph.nodes.get_mut(maker).into_iter().flat_map(|n| n.outputs.iter_mut()) {
                if *output == Some(from) {
                    *output = Some(to);
                }
            }
            continue;
        }
        index += 1;
    }
    before - graph.nodes.len()
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

/// The value's one reader, if there is exactly one and it is no output of the graph.
fn only_reader(graph: &Graph, readers: &std::collections::BTreeMap<ValueId, Vec<usize>>, id: ValueId) -> Option<usize> {
    match readers.get(&id)?.as_slice() {
        [one] if !graph.outputs.contains(&id) => Some(*one),
        _ => None,
    }
}

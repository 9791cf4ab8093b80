//! Shape inference, analysis and rewriting of whole graphs.
//!
//! The crate owns [`infer_shapes`], the receptive field and cost of a network ([`analysis`]), the rewrites that prepare
//! a graph for execution ([`optimize`]), for training ([`recompute()`], [`to_mixed_precision`]) and for int8 arithmetic
//! ([`quantize`]). Rewrites preserve the result, quantization up to rounding. Values keep their ids; values that no
//! node produces any more stay in [`Graph::values`] unused.
//!
//! Errors are [`cytoscope_graph::GraphError`]s that name the node. Computing constants is bounded by a
//! [`cytoscope_graph::Budget`]: beyond it, shapes stay unknown and nodes are not folded.
#![forbid(unsafe_code)]

pub mod analysis;
mod channels_first;
mod fold;
mod fuse;
mod infer;
mod join_inputs;
mod join_outputs;
mod mixed_precision;
mod norms;
mod over_slices;
pub mod quantize;
mod quantized_convolutions;
mod recompute;
mod single_precision;
mod upsampling;

use std::collections::{BTreeMap, BTreeSet};

use cytoscope_graph::{Graph, Node, Op, Result, ValueId};

pub use channels_first::channels_first;
pub use fold::{fold_batch_norm, fold_constants, fold_constants_within, fold_dequantized, fold_dequantized_within};
pub use fuse::{fuse_activations, simplify_activations};
pub use infer::{
    InputKey, all_infos, infer_node, infer_shapes, infer_shapes_limited, infer_shapes_within, merged_shape,
};
pub use join_inputs::{input_channels, join_first_inputs, join_inputs};
pub use join_outputs::join_outputs;
pub use mixed_precision::{MixedPrecisionStats, to_mixed_precision};
pub use norms::{recognize_group_norms, recognize_trainable_group_norms};
pub use over_slices::over_slices;
pub use recompute::{RecomputeStats, recompute};
pub use single_precision::to_single_precision;
pub use upsampling::{InputLengths, convolve_before_upsampling};

/// Prepares a graph for execution: removes identities, folds constants and batch norms, fuses activations and
/// residuals, and removes dead code. Quantized weights stay quantized. Residuals are fused only if shapes have been
/// inferred.
///
/// # Errors
/// If folding a constant fails or would exceed [`cytoscope_graph::GraphLimits::folded_elements`].
pub fn optimize(graph: &mut Graph) -> Result<()> {
    eliminate_identity(graph);
    fold_constants(graph)?;
    fold_batch_norm(graph)?;
    simplify_activations(graph);
    fuse_activations(graph);
    eliminate_dead(graph);
    Ok(())
}

/// Removes copies: `Identity`, and casts to a value's own type. Returns the number of removed nodes.
pub fn eliminate_identity(graph: &mut Graph) -> usize {
    let outputs: BTreeSet<ValueId> = graph.outputs.iter().copied().collect();
    let given: BTreeSet<ValueId> = graph.inputs.iter().chain(graph.initializers.keys()).copied().collect();
    // `same`: each removed copy and its source. `renamed`: each value that takes the name of a graph output.
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
        // Nodes are in topological order, so the source of `from` is already known.
        let from = same.get(&from).copied().unwrap_or(from);
        if !outputs.contains(&to) {
            same.insert(to, from);
            *gone = true;
        } else if !outputs.contains(&from) && !given.contains(&from) && !renamed.contains_key(&from) {
            // Names of graph outputs must stay: the node that produces the source now produces the output.
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

/// Returns the inputs of a concatenation along the channels; `None` for any other node.
pub fn channel_parts(graph: &Graph, node: &Node) -> Option<Vec<ValueId>> {
    let axis = node.op.joined_axis()?;
    let rank = graph.value(node.output(0)?).shape.as_ref()?.len() as i64;
    if axis != 1 && axis + rank != 1 {
        return None;
    }
    node.inputs.iter().copied().collect()
}

/// Removes nodes whose results are not read, and constants that are not read. Returns the number of removed nodes.
pub fn eliminate_dead(graph: &mut Graph) -> usize {
    let before = graph.nodes.len();
    let mut needed: BTreeSet<ValueId> = graph.outputs.iter().copied().collect();
    let mut remaining = Vec::with_capacity(before);
    for node in std::mem::take(&mut graph.nodes).into_iter().rev() {
        if node.outputs.iter().flatten().any(|id| needed.contains(id)) {
            needed.extend(node.inputs.iter().flatten());
            remaining.push(node);
        }
    }
    remaining.reverse();
    graph.nodes = remaining;
    graph.initializers.retain(|id, _| needed.contains(id));
    before - graph.nodes.len()
}

/// Readers and producers of each value, kept up to date while a pass rewrites nodes in place.
struct Readers {
    readers: BTreeMap<ValueId, Vec<usize>>,
    producers: BTreeMap<ValueId, usize>,
    outputs: BTreeSet<ValueId>,
}

impl Readers {
    fn of(graph: &Graph) -> Self {
        let outputs = graph.outputs.iter().copied().collect();
        Self { readers: graph.consumers(), producers: graph.producers(), outputs }
    }

    /// Returns the value's only reader, if it has exactly one and is not a graph output.
    fn sole_reader(&self, id: ValueId) -> Option<usize> {
        match self.readers.get(&id)?.as_slice() {
            [one] if !self.outputs.contains(&id) => Some(*one),
            _ => None,
        }
    }

    /// Returns the node that produces a value.
    fn producer(&self, id: ValueId) -> Option<usize> {
        self.producers.get(&id).copied()
    }

    /// Records that a node now produces a value.
    fn set_producer(&mut self, id: ValueId, node: usize) {
        self.producers.insert(id, node);
    }

    /// Records that node `to` reads what node `from` read.
    fn replace_reader(&mut self, id: ValueId, from: usize, to: usize) {
        for reader in self.readers.get_mut(&id).into_iter().flatten().filter(|r| **r == from) {
            *reader = to;
        }
    }
}

/// Removes the marked nodes. Returns their number.
fn remove_marked(graph: &mut Graph, gone: &[bool]) -> usize {
    let before = graph.nodes.len();
    let mut marks = gone.iter();
    graph.nodes.retain(|_| !marks.next().copied().unwrap_or(false));
    before - graph.nodes.len()
}

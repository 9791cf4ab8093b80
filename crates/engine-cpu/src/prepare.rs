//! Prepares a graph for lowering: shape inference, constant folding and fusion.

use crate::Optimizations;
use crate::purpose::Purpose;
use cytoscope_engine::{EngineError, shapes_by_input};
use cytoscope_graph::{Budget, ElementType, Graph, GraphLimits, Interrupt, Op, Tensor, ValueId};
use cytoscope_graph_passes::{InputLengths, infer_shapes_limited};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The integers that a weight is dequantized from: weight = (stored − zero) · scale, with one scale or one per channel
/// along `axis`.
#[derive(Debug, Clone)]
pub(crate) struct StoredWeight {
    /// The stored 8-bit integers.
    pub values: Arc<Tensor>,
    /// One scale, or one per channel.
    pub scales: Vec<f32>,
    /// Axis along which the scales vary.
    pub axis: usize,
    /// Zero point, the same for all channels.
    pub zero: i32,
}

/// A graph that is ready for planning.
pub(crate) struct Prepared {
    /// The folded and fused graph; its weights are floats.
    pub graph: Graph,
    /// The integers that weights are dequantized from, by weight.
    pub stored: BTreeMap<ValueId, StoredWeight>,
    /// Purpose that the graph is compiled for.
    pub purpose: Purpose,
}

/// Returns a copy of `graph` with concrete shapes, rewritten for its purpose.
///
/// # Errors
/// [`EngineError::Graph`] if the graph is invalid, a tensor is above `limits`, or `interrupt` is set.
pub(crate) fn prepare(
    graph: &Graph,
    input_shapes: &[Vec<usize>],
    purpose: Purpose,
    limits: &GraphLimits,
    interrupt: &Interrupt,
) -> Result<Prepared, EngineError> {
    let mut graph = graph.clone();
    let shapes = shapes_by_input(&graph, input_shapes)?;
    let budget = Budget::new(&graph, interrupt.clone());
    infer_shapes_limited(&mut graph, &shapes, limits, &budget)?;
    let stored = match purpose {
        Purpose::Inference { optimizations, .. } => rewrite_for_inference(&mut graph, optimizations, &budget)?,
        Purpose::Training => {
            cytoscope_graph_passes::eliminate_identity(&mut graph);
            BTreeMap::new()
        }
    };
    cytoscope_graph_passes::eliminate_dead(&mut graph);
    infer_shapes_limited(&mut graph, &shapes, limits, &budget)?;
    Ok(Prepared { graph, stored, purpose })
}

/// Folds constants; with all optimizations, also folds batch norms, and fuses activations and residuals. Returns the
/// integers that weights are dequantized from.
fn rewrite_for_inference(
    graph: &mut Graph,
    optimizations: Optimizations,
    budget: &Budget,
) -> Result<BTreeMap<ValueId, StoredWeight>, EngineError> {
    cytoscope_graph_passes::fold_constants_within(graph, budget)?;
    let stored = stored_weights(graph);
    cytoscope_graph_passes::fold_dequantized_within(graph, budget)?;
    if optimizations.rewrites {
        cytoscope_graph_passes::fold_batch_norm(graph)?;
        budget.check()?;
        cytoscope_graph_passes::simplify_activations(graph);
        cytoscope_graph_passes::recognize_group_norms(graph);
        budget.check()?;
        cytoscope_graph_passes::convolve_before_upsampling(graph, InputLengths::Inferred, &BTreeSet::new())?;
    }
    if optimizations.fusion {
        cytoscope_graph_passes::fuse_activations(graph);
    }
    if optimizations.rewrites {
        cytoscope_graph_passes::eliminate_identity(graph);
    }
    Ok(stored)
}

/// Finds the integers of every dequantized 8-bit constant that has a single zero point.
fn stored_weights(graph: &Graph) -> BTreeMap<ValueId, StoredWeight> {
    let mut stored = BTreeMap::new();
    for node in &graph.nodes {
        let Op::DequantizeLinear { axis, block_size: 0 } = node.op else { continue };
        let (Some(output), Some(values), Some(scales)) = (
            node.output(0),
            node.input(0).and_then(|id| graph.constant(id)),
            node.input(1).and_then(|id| graph.constant(id)).and_then(|t| t.as_f32()),
        ) else {
            continue;
        };
        if !matches!(values.dtype(), ElementType::I8 | ElementType::U8) {
            continue;
        }
        let zeros = match node.input(2).map(|id| graph.constant(id)) {
            None => Vec::new(),
            Some(Some(zeros)) => zeros.to_f64_vec(),
            // A zero point that is computed at run time.
            Some(None) => continue,
        };
        let zero = zeros.first().copied().unwrap_or(0.0);
        let rank = values.shape().len() as i64;
        let Ok(axis) = usize::try_from(if axis < 0 { axis + rank } else { axis }) else { continue };
        let fits = scales.len() == 1 || values.shape().get(axis) == Some(&scales.len());
        if fits && zeros.iter().all(|z| *z == zero) {
            let values = Arc::clone(values);
            stored.insert(output, StoredWeight { values, scales: scales.to_vec(), axis, zero: zero as i32 });
        }
    }
    stored
}

//! From a model's graph to one whose shapes are all known and whose constants are folded.

use cytoscope_engine::{EngineError, shapes_by_input};
use cytoscope_graph::{Budget, ElementType, Graph, Interrupt, Op, Tensor, ValueId, infer_shapes_within, passes};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Stored integers behind a weight: real value = (stored − zero) · scale, one scale or one a channel along `axis`.
#[derive(Debug, Clone)]
pub(crate) struct StoredWeight {
    /// The integers.
    pub values: Arc<Tensor>,
    /// Scales.
    pub scales: Vec<f32>,
    /// The axis of the scales.
    pub axis: usize,
    /// The one zero point.
    pub zero: i32,
}

/// A graph ready to be planned.
pub(crate) struct Prepared {
    /// Folded and fused; weights are floats.
    pub graph: Graph,
    /// The integers that weights were dequantized from.
    pub stored: BTreeMap<ValueId, StoredWeight>,
}

/// A copy of `graph` with concrete shapes, constants and batch norms folded, activations and residuals fused.
/// Stops where `interrupt` says so.
pub(crate) fn prepare(
    graph: &Graph,
    input_shapes: &[Vec<usize>],
    interrupt: &Interrupt,
) -> Result<Prepared, EngineError> {
    let mut graph = graph.clone();
    let shapes = shapes_by_input(&graph, input_shapes)?;
    let budget = Budget::new(&graph, interrupt.clone());
    infer_shapes_within(&mut graph, &shapes, &budget)?;
    passes::fold_constants_within(&mut graph, &budget)?;
    let stored = stored_weights(&graph);
    passes::fold_dequantized_within(&mut graph, &budget)?;
    passes::fold_batch_norm(&mut graph)?;
    budget.check()?;
    passes::simplify_activations(&mut graph);
    passes::recognise_group_norms(&mut graph);
    passes::fuse_activations(&mut graph);
    passes::eliminate_identity(&mut graph);
    passes::eliminate_dead(&mut graph);
    infer_shapes_within(&mut graph, &shapes, &budget)?;
    Ok(Prepared { graph, stored })
}

/// The integers behind every dequantized constant of 8 bits with one zero point.
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
        let zeros = node.input(2).and_then(|id| graph.constant(id)).map(|t| t.to_f64_vec()).unwrap_or_default();
        let zero = zeros.first().copied().unwrap_or(0.0);
        let rank = values.shape().len() as i64;
        let axis = usize::try_from(if axis < 0 { axis + rank } else { axis }).unwrap_or(0);
        let fits = scales.len() == 1 || values.shape().get(axis) == Some(&scales.len());
        if fits && zeros.iter().all(|z| *z == zero) {
            let values = Arc::clone(values);
            stored.insert(output, StoredWeight { values, scales: scales.to_vec(), axis, zero: zero as i32 });
        }
    }
    stored
}

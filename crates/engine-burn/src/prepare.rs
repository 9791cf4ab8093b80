//! Prepares a graph for planning: shape inference, constant folding and fusion.

use cytoscope_engine::{EngineError, shapes_by_input};
use cytoscope_graph::{ElementType, Graph};
use cytoscope_graph_passes::infer_shapes;

/// Returns a copy of `graph` with concrete shapes, folded constants and batch norms, and fused activations and
/// residuals. With `half`, convolutions and matrix products compute in this 16-bit type, as do the operators between
/// them that only move, add or compare; norms, softmax and other functions stay in 32 bits.
pub(crate) fn prepare(
    graph: &Graph,
    input_shapes: &[Vec<usize>],
    half: Option<ElementType>,
) -> Result<Graph, EngineError> {
    let mut graph = graph.clone();
    let shapes = shapes_by_input(&graph, input_shapes)?;
    infer_shapes(&mut graph, &shapes)?;
    if let Some(half) = half {
        // Batch norms are folded into weights of 32 bits.
        cytoscope_graph_passes::eliminate_identity(&mut graph);
        cytoscope_graph_passes::fold_constants(&mut graph)?;
        cytoscope_graph_passes::fold_batch_norm(&mut graph)?;
        infer_shapes(&mut graph, &shapes)?;
        cytoscope_graph_passes::to_mixed_precision(&mut graph, half);
        infer_shapes(&mut graph, &shapes)?;
    }
    cytoscope_graph_passes::optimize(&mut graph)?;
    infer_shapes(&mut graph, &shapes)?;
    Ok(graph)
}

//! Prepares a graph for planning: shape inference, constant folding and fusion.

use cytoscope_engine::{EngineError, shapes_by_input};
use cytoscope_graph::Graph;
use cytoscope_passes::infer_shapes;

/// Returns a copy of `graph` with concrete shapes, folded constants and batch norms, and fused activations and
/// residuals.
pub(crate) fn prepare(graph: &Graph, input_shapes: &[Vec<usize>]) -> Result<Graph, EngineError> {
    let mut graph = graph.clone();
    let shapes = shapes_by_input(&graph, input_shapes)?;
    infer_shapes(&mut graph, &shapes)?;
    cytoscope_passes::optimize(&mut graph)?;
    infer_shapes(&mut graph, &shapes)?;
    Ok(graph)
}

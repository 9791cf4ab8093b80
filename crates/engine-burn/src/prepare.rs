//! From a model's graph to one whose shapes are all known and whose constants are folded.

use cytoscope_engine::{EngineError, shapes_by_input};
use cytoscope_graph::{Graph, infer_shapes, passes};

/// A copy of `graph` with concrete shapes, constants and batch norms folded, activations and residuals fused.
pub(crate) fn prepare(graph: &Graph, input_shapes: &[Vec<usize>]) -> Result<Graph, EngineError> {
    let mut graph = graph.clone();
    let shapes = shapes_by_input(&graph, input_shapes)?;
    infer_shapes(&mut graph, &shapes)?;
    passes::optimize(&mut graph)?;
    infer_shapes(&mut graph, &shapes)?;
    Ok(graph)
}

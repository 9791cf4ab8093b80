//! Graphs of a training step: forward pass, loss, backward pass and optimizer update.
//!
//! Differences from inference: weights are inputs, so they are packed at every run; tensors that the backward pass
//! reads stay in the arena until then; and training operators have their own kernels. Parameter gradients, losses and
//! everything without a kernel are dense tensors.

mod kind;
mod lower;
mod plan;

use crate::emit::Program;
use cytoscope_engine::{EngineError, shapes_by_input};
use cytoscope_graph::Graph;
use cytoscope_graph_passes::infer_shapes;
use cytoscope_kernels::Isa;

/// Returns whether a graph contains operators of training.
pub(crate) fn is_step(graph: &Graph) -> bool {
    graph.nodes.iter().any(|n| n.op.is_training_only())
}

/// Lowers a training graph for the given input shapes.
pub(crate) fn compile(graph: &Graph, input_shapes: &[Vec<usize>], isa: Isa) -> Result<Program, EngineError> {
    let mut graph = graph.clone();
    let shapes = shapes_by_input(&graph, input_shapes)?;
    infer_shapes(&mut graph, &shapes)?;
    cytoscope_graph_passes::eliminate_identity(&mut graph);
    cytoscope_graph_passes::eliminate_dead(&mut graph);
    infer_shapes(&mut graph, &shapes)?;
    lower::lower(graph, isa)
}

//! Graphs of a training step: forward pass, loss, backward pass and optimizer update.
//!
//! Differences from inference: weights are inputs, so they are packed at every run; tensors that the backward pass
//! reads stay in the arena until then; and training operators have their own kernels. Parameter gradients, losses and
//! everything without a kernel are dense tensors.

mod emit;
mod kind;
mod plan;
mod run;
mod session;
mod update;

pub(crate) use session::TrainSession;

use cytoscope_graph::Graph;

/// Returns whether a graph contains operators of training.
pub(crate) fn is_step(graph: &Graph) -> bool {
    graph.nodes.iter().any(|n| n.op.is_training_only())
}

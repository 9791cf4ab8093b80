//! Step graphs: forward, loss and backward of a network that is being taught, and optimizers.
//!
//! What sets them apart from networks that are only run: weights are inputs, so they are packed at every run; what the backward
//! pass reads stays in the arena until then; and the operators of training have kernels of their own. Gradients by parameters,
//! losses and whatever has no kernel are dense tensors.

mod emit;
mod kind;
mod plan;
mod run;
mod session;
mod update;

pub(crate) use session::TrainSession;

use cytoscope_graph::Graph;

/// Whether a graph is one of a training step.
pub(crate) fn is_step(graph: &Graph) -> bool {
    graph.nodes.iter().any(|n| n.op.is_of_training())
}

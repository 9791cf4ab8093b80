//! Training of a network as graphs: differentiation, the graphs of a training step, and learning-rate schedules.
//!
//! The crate owns the gradient rules of operators ([`differentiate()`]). A step consists of two graphs. The gradient
//! graph ([`gradient_graph`]) takes the stack, the target, voxel weights and the parameters, and returns the loss and
//! the gradient of every parameter. The update graph ([`update_graph`]) takes parameters, gradients and the optimizer's
//! state, and returns the updated ones. Between them, a caller can accumulate gradients of several batches, or skip a
//! step whose loss is not a number. Any engine with the training operators of [`cytoscope_graph::Op`] can run them.
//!
//! Errors are [`cytoscope_graph::GraphError`]s: an operator without a derivative is refused with the name of its node.
#![forbid(unsafe_code)]

mod differentiate;
mod quantized;
mod schedule;
mod step;

pub use differentiate::differentiate;
pub use quantized::{FakeQuantized, fake_quantized};
pub use schedule::{Decay, Schedule};
pub use step::{
    GradientGraph, Parameter, RunningNorm, StepOptions, UpdateGraph, gradient_graph, prepare, set_constant,
    update_graph,
};

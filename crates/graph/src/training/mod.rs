//! What teaching a network needs beside the network: losses, optimizers, schedules, and the graphs of a training step.
//!
//! A step is two graphs. The first ([`gradient_graph`]) takes the stack, what should come out, weights and the parameters, and gives
//! the loss and every parameter's gradient; the second ([`update_graph`]) takes parameters, gradients and the optimizer's state and
//! gives the next ones. Between them a caller can add up gradients of several batches, or refuse a step whose loss is not a number.

mod loss;
mod optimizer;
mod quantized;
mod schedule;
mod step;

pub use loss::{Loss, LossKind, LossTerm};
pub use optimizer::{Hyper, Optimizer};
pub use quantized::{FakeQuantized, fake_quantized};
pub use schedule::{Decay, Schedule};
pub use step::{
    GradientGraph, Parameter, RunningNorm, StepOptions, UpdateGraph, gradient_graph, prepare, set_constant,
    update_graph,
};

pub(crate) use loss::{Compared, evaluate as evaluate_loss, gradient as loss_gradient};
pub(crate) use optimizer::update;

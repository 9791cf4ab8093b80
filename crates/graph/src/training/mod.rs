//! Everything that training needs in addition to the network: losses, optimizers, schedules, and the graphs of a
//! training step.
//!
//! A step consists of two graphs. The gradient graph ([`gradient_graph`]) takes the stack, the target, voxel weights
//! and the parameters, and returns the loss and the gradient of every parameter. The update graph ([`update_graph`])
//! takes parameters, gradients and the optimizer's state, and returns the updated ones. Between them, a caller can
//! accumulate gradients of several batches, or skip a step whose loss is not a number.

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

pub(crate) use loss::{LossData, evaluate as evaluate_loss, gradient as loss_gradient};
pub(crate) use optimizer::update;

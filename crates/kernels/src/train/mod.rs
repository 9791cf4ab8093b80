//! What training adds to the forward kernels: gradients of convolutions, norms and activations, and the
//! optimizers' steps.
//!
//! One image at a time, in the same [`crate::Blocked`] layouts; weights and their gradients are dense in ONNX order. Sums over
//! voxels are cut into the same parts and added in the same order whatever the number of threads, so that a run can be
//! repeated bit by bit.

mod input;
mod norm;
pub mod optimizer;
mod outer;
mod pointwise;
mod transpose;
mod weight;

pub use input::{InputGradient, conv_input_gradient};
pub use norm::{Activated, Branch, NormFactors, norm_gradient, norm_gradient_sums};
pub use pointwise::{Derivative, activation_gradient, add, bias_gradient, channel_sums};
pub use transpose::{TransposeInputGradient, transpose_input_gradient, transpose_weight_gradient};
pub use weight::conv_weight_gradient;

//! Training kernels: gradients of convolutions, normalizations, activations, pooling and resampling, and optimizer
//! updates.
//!
//! Kernels process one image at a time, in the same [`crate::Blocked`] layouts as the forward kernels; weights and
//! their gradients are dense in ONNX order. Sums over voxels are split into the same parts and added in the same order
//! for any number of threads, so that training is reproducible bit for bit.

mod input;
mod norm;
pub mod optimizer;
mod outer;
mod pointwise;
mod pool;
mod resize;
mod weight;

pub use input::{InputGradient, conv_input_gradient};
pub use norm::{Activated, NormFactors, norm_gradient, norm_gradient_sums};
pub use pointwise::{Derivative, activation_gradient, add, channel_sums};
pub use pool::pool_gradient;
pub use resize::resize_gradient;
pub use weight::conv_weight_gradient;

use crate::Blocked;

/// Sets the rows of one slice to 0, except for the border between them.
fn clear_slice(slice: &mut [f32], layout: &Blocked) {
    let row = layout.row_len();
    slice.chunks_mut(layout.row_stride().max(1)).for_each(|line| line[..row].fill(0.0));
}

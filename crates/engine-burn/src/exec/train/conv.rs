//! Runs gradients of convolutions.

use super::super::{Image, Uploaded};
use crate::form::Form;
use crate::kernels::{DeviceBackend, Training};
use crate::plan::Taps;

/// Returns the gradient of a convolution's weights: for each tap, the products of its input and the output gradient,
/// summed over samples and space. Returns `None` if the inputs do not match the plan.
pub(super) fn weight_gradient<B: DeviceBackend>(
    x: Image<B>,
    dy: Image<B>,
    taps: &Taps,
    form: Form,
    uploaded: &Uploaded<B>,
) -> Option<Vec<Image<B>>> {
    let kernel = Training::WeightGradient { taps: *taps, form, wide_factor_type: uploaded.wide_factor_type };
    B::train(&kernel, vec![x, dy])
}

//! Gradients of transposed convolutions whose kernel is their stride: the input's is a convolution of the output's gradient, the
//! weights' that of a convolution in which input and output have changed places.

use super::weight::conv_weight_gradient;
use crate::conv::{ConvShape, Finish, PackedConv, Target, WeightShape, check_window, drive, window_plan};
use crate::{Blocked, CHANNEL_BLOCK, Isa, KernelError, check_len, check_that};

/// A transposed convolution's weights, packed for [`transpose_input_gradient`].
#[derive(Debug, Clone)]
pub struct TransposeInputGradient {
    weights: PackedConv,
    shape: ConvShape,
}

/// Windows that touch one another.
fn tiling(kernel: [usize; 3]) -> ConvShape {
    ConvShape { kernel, stride: kernel, dilation: [1; 3], pad_before: [0; 3] }
}

fn check_extent(in_layout: &Blocked, out_layout: &Blocked, kernel: [usize; 3]) -> Result<(), KernelError> {
    let expected = [0, 1, 2].map(|axis| in_layout.dims[axis] * kernel[axis]);
    check_that(out_layout.dims == expected, "output extent", format!("{expected:?}"), format!("{:?}", out_layout.dims))
}

impl TransposeInputGradient {
    /// Packs the weights `[I][O][kd·kh·kw]` for gradients of the output in blocks of `out_block` (1 or 16).
    ///
    /// # Errors
    /// [`KernelError`] if the weights do not fit.
    pub fn new(
        isa: Isa,
        weights: &[f32],
        [in_channels, out_channels]: [usize; 2],
        kernel: [usize; 3],
        out_block: usize,
    ) -> Result<Self, KernelError> {
        let of = WeightShape::dense(in_channels, out_channels, kernel.iter().product());
        Ok(Self { weights: PackedConv::new(isa, weights, None, of, out_block)?, shape: tiling(kernel) })
    }
}

/// Gradient of a transposed convolution (kernel = stride) with respect to its input: added to `in_gradient` if `accumulate`, else
/// written there; borders are left as they are and need not hold zeros.
///
/// # Errors
/// [`KernelError`] if the buffers, layouts and weights do not fit.
pub fn transpose_input_gradient(
    isa: Isa,
    out_gradient: &[f32],
    out_layout: &Blocked,
    weights: &TransposeInputGradient,
    accumulate: bool,
    in_gradient: &mut [f32],
    in_layout: &Blocked,
) -> Result<(), KernelError> {
    check_len("gradient of the output", out_gradient.len(), out_layout.len())?;
    check_len("gradient of the input", in_gradient.len(), in_layout.len())?;
    let (packed, shape) = (&weights.weights, &weights.shape);
    check_extent(in_layout, out_layout, shape.kernel)?;
    let of = WeightShape::dense(in_layout.channels, out_layout.channels, shape.kernel.iter().product());
    check_that(packed.shape() == of, "weights", format!("{of:?}"), format!("{:?}", packed.shape()))?;
    check_that(out_layout.block == packed.in_block(), "block of the output", packed.in_block(), out_layout.block)?;
    check_that(matches!(in_layout.block, 1 | CHANNEL_BLOCK), "block of floats", "1 or 16", in_layout.block)?;
    if in_layout.voxels() == 0 {
        return Ok(());
    }
    check_window(out_layout, in_layout, shape, of.taps)?;
    let plan = crate::conv::Plan { accumulate, ..window_plan(out_layout, in_layout, shape) };
    let mut target = Target::F32(in_gradient);
    drive(isa, out_gradient, out_layout, packed, &plan, &Finish::default(), &mut target, in_layout);
    Ok(())
}

/// Adds the gradient of a transposed convolution (kernel = stride) with respect to its weights to `gradient`, dense
/// `[I][O][kd·kh·kw]`.
///
/// # Errors
/// [`KernelError`] if the buffers and layouts do not fit.
pub fn transpose_weight_gradient(
    isa: Isa,
    input: &[f32],
    in_layout: &Blocked,
    out_gradient: &[f32],
    out_layout: &Blocked,
    kernel: [usize; 3],
    gradient: &mut [f32],
) -> Result<(), KernelError> {
    check_extent(in_layout, out_layout, kernel)?;
    conv_weight_gradient(isa, out_gradient, out_layout, input, in_layout, &tiling(kernel), gradient)
}

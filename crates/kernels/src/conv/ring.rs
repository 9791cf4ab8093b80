//! Convolutions of an input whose slices form a ring: after its last slice, the first one follows. A stack that flows through
//! a network is kept in such a ring, in which no slice has to be moved.

use super::micro::Core;
use super::{
    ConvShape, Finish, PackedConv, PackedConvBf16, PackedConvInt8, Plan, Target, check_axes, run_plan, taps_at,
    window_plan,
};
use crate::norm::Moments;
use crate::{Blocked, Isa, KernelError, check_isa, check_that};

/// Float convolution like [`super::conv`] of an input whose slices form a ring. The first output slice reads the slice at
/// position `first`, and those that follow in the ring. The border lies within slices: the window is not padded along D.
/// Returns mean and variance of each channel, if `finish` asks for them.
///
/// # Errors
/// Same as [`super::conv`], and [`KernelError`] if the window is longer than the ring.
#[allow(clippy::too_many_arguments)]
pub fn conv_in_ring(
    isa: Isa,
    input: &[f32],
    in_layout: &Blocked,
    first: usize,
    weights: &PackedConv,
    shape: &ConvShape,
    finish: &Finish<'_>,
    target: Target<'_>,
    out_layout: &Blocked,
) -> Result<Option<Moments>, KernelError> {
    in_ring(isa, input, in_layout, first, weights, shape, finish, target, out_layout)
}

/// Convolution of bytes like [`super::conv_int8`], of an input whose slices form a ring; see [`conv_in_ring`].
///
/// # Errors
/// Same as [`conv_in_ring`].
#[allow(clippy::too_many_arguments)]
pub fn conv_int8_in_ring(
    isa: Isa,
    input: &[u8],
    in_layout: &Blocked,
    first: usize,
    weights: &PackedConvInt8,
    shape: &ConvShape,
    finish: &Finish<'_>,
    target: Target<'_>,
    out_layout: &Blocked,
) -> Result<Option<Moments>, KernelError> {
    in_ring(isa, input, in_layout, first, weights, shape, finish, target, out_layout)
}

/// Convolution like [`super::conv_bf16`], of an input whose slices form a ring; see [`conv_in_ring`].
///
/// # Errors
/// Same as [`conv_in_ring`] and [`super::conv_bf16`].
#[allow(clippy::too_many_arguments)]
pub fn conv_bf16_in_ring(
    isa: Isa,
    input: &[f32],
    in_layout: &Blocked,
    first: usize,
    weights: &PackedConvBf16,
    shape: &ConvShape,
    finish: &Finish<'_>,
    target: Target<'_>,
    out_layout: &Blocked,
) -> Result<Option<Moments>, KernelError> {
    weights.check_shape(shape)?;
    in_ring(isa, input, in_layout, first, weights, shape, finish, target, out_layout)
}

/// Convolves an input whose slices form a ring, of floats or bytes.
#[allow(clippy::too_many_arguments)]
fn in_ring<C: Core>(
    isa: Isa,
    input: &[C::In],
    in_layout: &Blocked,
    first: usize,
    weights: &C,
    shape: &ConvShape,
    finish: &Finish<'_>,
    target: Target<'_>,
    out_layout: &Blocked,
) -> Result<Option<Moments>, KernelError> {
    check_isa(weights.isa(), isa)?;
    let plan = ring_plan(in_layout, first, out_layout, shape, weights.shape().taps)?;
    run_plan(isa, input, in_layout, weights, &plan, finish, target, out_layout)
}

/// Returns the taps of each output slice, and how the window moves over slices.
fn ring_plan(
    in_layout: &Blocked,
    first: usize,
    out_layout: &Blocked,
    shape: &ConvShape,
    taps: usize,
) -> Result<Plan, KernelError> {
    check_that(taps == shape.kernel.iter().product::<usize>(), "kernel taps", taps, format!("{:?}", shape.kernel))?;
    check_axes(in_layout, out_layout, shape, 1..3)?;
    let length = in_layout.dims[0];
    check_that(in_layout.halo[0] == 0 && shape.pad_before[0] == 0, "ring", "no border along D", in_layout.halo[0])?;
    let reach = (shape.kernel[0].max(1) - 1).saturating_mul(shape.dilation[0]).saturating_add(1);
    check_that(shape.kernel[0] > 0 && shape.stride[0] > 0, "kernel along D", "a length and a stride", "none")?;
    check_that(reach <= length, "slices of the ring", format!("at least {reach}"), length)?;
    let mut plan = window_plan(in_layout, &Blocked { dims: [1, 1, 1], ..*out_layout }, shape);
    let position = |slice: usize, kd: usize| {
        let from_first = slice.saturating_mul(shape.stride[0]).saturating_add(kd * shape.dilation[0]);
        (first % length + from_first % length) % length * in_layout.slice_stride()
    };
    plan.geometry.in_step[0] = 0;
    plan.geometry.counts = out_layout.dims;
    plan.ring_taps = (0..out_layout.dims[0])
        .map(|slice| taps_at((0..shape.kernel[0]).map(|kd| position(slice, kd)), in_layout, shape))
        .collect();
    Ok(plan)
}

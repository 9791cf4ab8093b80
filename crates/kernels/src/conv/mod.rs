//! Direct convolution and transposed convolution (kernel = stride) on blocked buffers, in floats, bf16 and bytes.
//!
//! Weights are packed once ([`PackedConv`], [`PackedConvBf16`], [`PackedConvInt8`]). Micro-kernels accumulate a run of output
//! voxels along W in registers and write the sums to a buffer in the L1 cache. The epilogue scales them, adds bias and
//! residual, applies the activation, computes statistics and stores them in the format of [`Target`]. The input layout's
//! border serves as padding.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bf16;
mod bounds;
mod depthwise;
mod dot;
mod drive;
mod few;
mod finish;
mod groups;
mod micro;
mod pack;
mod portable;
mod ring;
mod transposed;

pub use bf16::{PackedConvBf16, conv_bf16};
pub use pack::{PackedConv, PackedConvInt8, WeightShape};
pub use ring::{conv_bf16_in_ring, conv_in_ring, conv_int8_in_ring};
pub use transposed::{Transposed, TransposedShape, conv_transpose, conv_transpose_int8};

pub(crate) use drive::{Geometry, Plan, drive};
pub(crate) use finish::LaneStats;
pub(crate) use micro::{AVX2_VOXELS, Micro};

use crate::norm::{Moments, combine};
use crate::{Blocked, CHANNEL_BLOCK, Isa, KernelError, check_isa, check_len, check_that};
use dot::End;
use micro::Core;
use pack::FEW_CHANNELS;

/// Activation after bias and residual.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Activation {
    /// No activation.
    #[default]
    None,
    /// `x` where `x > 0`, else `slope · x`; slope 0 is ReLU.
    Leaky {
        /// Slope of the negative side.
        slope: f32,
    },
}

impl Activation {
    /// Returns the slope of the negative side: 1 for no activation.
    pub(crate) fn slope(self) -> f32 {
        match self {
            Activation::None => 1.0,
            Activation::Leaky { slope } => slope,
        }
    }
}

/// Returns `x` where it is not negative, else `slope · x`, which is 0 for all `x` if the slope is 0: −∞ · 0 would be NaN.
#[inline(always)]
pub(crate) fn leaky(x: f32, slope: f32) -> f32 {
    let below = if slope == 0.0 { 0.0 } else { x * slope };
    if x < 0.0 { below } else { x }
}

/// Geometry of a convolution along D, H, W.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvShape {
    /// Kernel size in taps along D, H, W.
    pub kernel: [usize; 3],
    /// Distance between the windows of neighboring outputs, in input voxels.
    pub stride: [usize; 3],
    /// Distance between neighboring taps, in input voxels.
    pub dilation: [usize; 3],
    /// Voxels of padding before the first input voxel.
    pub pad_before: [usize; 3],
}

/// The residual of a convolution: a tensor of the output's layout added before the activation.
pub type Residual<'a> = Option<(&'a [f32], &'a Blocked)>;

/// Quantization to bytes: `clamp(round_half_even(x · inverse_scale) + zero_point, 0, 255)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quantizer {
    /// Reciprocal of the quantization scale.
    pub inverse_scale: f32,
    /// The byte that represents 0.
    pub zero_point: u8,
}

impl Quantizer {
    /// Creates a quantizer with a scale and a zero point.
    pub fn new(scale: f32, zero_point: u8) -> Self {
        Self { inverse_scale: 1.0 / scale, zero_point }
    }

    /// Quantizes a value; NaN becomes 0.
    #[inline(always)]
    pub(crate) fn byte(self, v: f32) -> u8 {
        let (v, zero) = (v * self.inverse_scale, f32::from(self.zero_point));
        let v = if v > -zero { v.min(255.0 - zero) } else { -zero };
        // The result is within 0..=255. Adding and subtracting 1.5 · 2^23 rounds to integers, half to even.
        let whole = (v + 12_582_912.0) - 12_582_912.0;
        (whole + zero) as i32 as u8
    }
}

/// Output buffer and its number format. Kernels do not change borders; see [`crate::reorder::clear_border`].
pub enum Target<'a> {
    /// 32-bit floats.
    F32(&'a mut [f32]),
    /// 16-bit floats as their bits; only for layouts with blocks of 16 channels.
    F16(&'a mut [u16]),
    /// Bytes.
    U8(&'a mut [u8], Quantizer),
}

impl Target<'_> {
    fn len(&self) -> usize {
        match self {
            Target::F32(v) => v.len(),
            Target::F16(v) => v.len(),
            Target::U8(v, _) => v.len(),
        }
    }
}

/// Epilogue of a convolution: `activation(sums · scale + bias + residual)`.
#[derive(Clone, Copy, Default)]
pub struct Finish<'a> {
    /// Scale of each output channel; `None` means 1.
    pub scale: Option<&'a [f32]>,
    /// Bias of each output channel, added after scaling; `None` means 0. Packed float weights have their own bias,
    /// which is added before scaling.
    pub bias: Option<&'a [f32]>,
    /// Added before the activation.
    pub residual: Residual<'a>,
    /// Applied last.
    pub activation: Activation,
    /// Whether mean and variance of the results are computed.
    pub moments: bool,
}

/// Float convolution of one image. Returns mean and variance of each channel, if `finish` asks for them.
///
/// # Errors
/// [`KernelError`] if the buffers, layouts and weights do not fit, the weights were packed for another instruction set,
/// or the input's border is narrower than the padding.
#[allow(clippy::too_many_arguments)]
pub fn conv(
    isa: Isa,
    input: &[f32],
    in_layout: &Blocked,
    weights: &PackedConv,
    shape: &ConvShape,
    finish: &Finish<'_>,
    mut target: Target<'_>,
    out_layout: &Blocked,
) -> Result<Option<Moments>, KernelError> {
    check_isa(weights.isa(), isa)?;
    check_window(in_layout, out_layout, shape, weights.shape().taps)?;
    let with_plain = (weights, weights.plain.as_slice());
    if finish.scale.is_none()
        && finish.bias.is_none()
        && let Some(output) =
            few_channel_output(input.len(), in_layout, with_plain, shape, finish, &mut target, out_layout)?
    {
        let (plan, slope) = (window_plan(in_layout, out_layout, shape), finish.activation.slope());
        if weights.in_block() == 1 {
            few::few_channels(isa, input, in_layout, weights, &plan, finish.activation, output, out_layout);
        } else {
            let ends: Vec<End> =
                weights.bias.iter().map(|bias| End { start: 0.0, scale: 1.0, bias: *bias, slope }).collect();
            let input = dot::Input::F32(input);
            dot::few_outputs(isa, input, in_layout, (&weights.plain, &ends), &plan, output, out_layout);
        }
        return Ok(None);
    }
    windows(isa, input, in_layout, weights, shape, finish, target, out_layout)
}

/// Returns the output of a convolution for the kernel of few output channels, after checking the buffers; `None` if it has no
/// such kernel, or needs more than that computes. The weights are given with their plain form, which only this kernel reads.
fn few_channel_output<'a, C: Core>(
    input_len: usize,
    in_layout: &Blocked,
    (weights, plain): (&C, &[f32]),
    shape: &ConvShape,
    finish: &Finish<'_>,
    target: &'a mut Target<'_>,
    out_layout: &Blocked,
) -> Result<Option<&'a mut [f32]>, KernelError> {
    let takes_all = !plain.is_empty() && out_layout.block == 1 && shape.stride[2] == 1;
    if !takes_all || finish.residual.is_some() || finish.moments || !matches!(target, Target::F32(_)) {
        return Ok(None);
    }
    check_io(input_len, in_layout, weights.shape(), weights.in_block(), finish, target, out_layout)?;
    let Target::F32(output) = target else { return Ok(None) };
    let output: &mut [f32] = output;
    Ok(Some(output))
}

/// Convolution of bytes with [`PackedConvInt8`] weights; the sums are exact.
///
/// The input's border and unused channels must hold its zero point.
///
/// # Errors
/// Same as [`conv`].
#[allow(clippy::too_many_arguments)]
pub fn conv_int8(
    isa: Isa,
    input: &[u8],
    in_layout: &Blocked,
    weights: &PackedConvInt8,
    shape: &ConvShape,
    finish: &Finish<'_>,
    mut target: Target<'_>,
    out_layout: &Blocked,
) -> Result<Option<Moments>, KernelError> {
    check_isa(weights.isa(), isa)?;
    check_window(in_layout, out_layout, shape, weights.shape().taps)?;
    let with_plain = (weights, weights.plain.as_slice());
    if let Some(output) =
        few_channel_output(input.len(), in_layout, with_plain, shape, finish, &mut target, out_layout)?
    {
        let of = |values: Option<&[f32]>, o: usize, none: f32| values.and_then(|v| v.get(o)).copied().unwrap_or(none);
        let end = |(o, start): (usize, &i32)| End {
            start: *start as f32,
            scale: of(finish.scale, o, 1.0),
            bias: of(finish.bias, o, 0.0),
            slope: finish.activation.slope(),
        };
        let ends: Vec<End> = weights.start.iter().enumerate().map(end).collect();
        let (plan, input) = (window_plan(in_layout, out_layout, shape), dot::Input::U8(input));
        dot::few_outputs(isa, input, in_layout, (&weights.plain, &ends), &plan, output, out_layout);
        return Ok(None);
    }
    windows(isa, input, in_layout, weights, shape, finish, target, out_layout)
}

#[allow(clippy::too_many_arguments)]
fn windows<C: Core>(
    isa: Isa,
    input: &[C::In],
    in_layout: &Blocked,
    weights: &C,
    shape: &ConvShape,
    finish: &Finish<'_>,
    target: Target<'_>,
    out_layout: &Blocked,
) -> Result<Option<Moments>, KernelError> {
    let plan = window_plan(in_layout, out_layout, shape);
    run_plan(isa, input, in_layout, weights, &plan, finish, target, out_layout)
}

/// Runs a plan whose window was checked.
#[allow(clippy::too_many_arguments)]
fn run_plan<C: Core>(
    isa: Isa,
    input: &[C::In],
    in_layout: &Blocked,
    weights: &C,
    plan: &Plan,
    finish: &Finish<'_>,
    mut target: Target<'_>,
    out_layout: &Blocked,
) -> Result<Option<Moments>, KernelError> {
    check_io(input.len(), in_layout, weights.shape(), weights.in_block(), finish, &target, out_layout)?;
    let partial = drive(isa, input, in_layout, weights, plan, finish, &mut target, out_layout);
    Ok(finish.moments.then(|| combine(&partial, out_layout)))
}

pub(crate) fn check_window(
    in_layout: &Blocked,
    out_layout: &Blocked,
    shape: &ConvShape,
    taps: usize,
) -> Result<(), KernelError> {
    check_that(taps == shape.kernel.iter().product::<usize>(), "kernel taps", taps, format!("{:?}", shape.kernel))?;
    check_axes(in_layout, out_layout, shape, 0..3)
}

/// Checks that the windows along some axes lie in the input and its border.
fn check_axes(
    in_layout: &Blocked,
    out_layout: &Blocked,
    shape: &ConvShape,
    axes: std::ops::Range<usize>,
) -> Result<(), KernelError> {
    for axis in axes {
        check_that(shape.kernel[axis] > 0, "kernel", "lengths above 0", format!("{:?}", shape.kernel))?;
        // Saturating, so that an overflow cannot make the reach look shorter.
        let reach = (out_layout.dims[axis].max(1) - 1)
            .saturating_mul(shape.stride[axis])
            .saturating_add((shape.kernel[axis] - 1).saturating_mul(shape.dilation[axis]));
        let before = in_layout.halo[axis];
        check_that(
            shape.stride[axis] > 0
                && shape.pad_before[axis] <= before
                && (before - shape.pad_before[axis]).saturating_add(reach) < in_layout.padded()[axis],
            "border of the convolution's input",
            format!("at least {} before and {} voxels in all", shape.pad_before[axis], reach.saturating_add(1)),
            format!("{before} before, {} in all", in_layout.padded()[axis]),
        )?;
    }
    Ok(())
}

/// Returns the positions of a window's taps, given those of the slices that it reads.
fn taps_at(slices: impl Iterator<Item = usize>, in_layout: &Blocked, shape: &ConvShape) -> Vec<usize> {
    let (row, block) = (shape.dilation[1] * in_layout.row_stride(), shape.dilation[2] * in_layout.block);
    let mut taps = Vec::with_capacity(shape.kernel.iter().product());
    for slice in slices {
        for kh in 0..shape.kernel[1] {
            taps.extend((0..shape.kernel[2]).map(|kw| slice + kh * row + kw * block));
        }
    }
    taps
}

/// Returns the number of successive taps that are one voxel apart along W.
fn adjacent_taps(shape: &ConvShape) -> usize {
    if shape.dilation[2] == 1 { shape.kernel[2] } else { 1 }
}

/// Returns the taps of a convolution and how it moves over the image.
pub(crate) fn window_plan(in_layout: &Blocked, out_layout: &Blocked, shape: &ConvShape) -> Plan {
    let (row, slice, block) = (in_layout.row_stride(), in_layout.slice_stride(), in_layout.block);
    let taps = taps_at((0..shape.kernel[0]).map(|kd| kd * shape.dilation[0] * slice), in_layout, shape);
    let origin = [0, 1, 2].map(|i| in_layout.halo[i] - shape.pad_before[i]);
    Plan {
        taps,
        ring_taps: Vec::new(),
        adjacent: adjacent_taps(shape),
        geometry: Geometry {
            in_start: origin[0] * slice + origin[1] * row + origin[2] * block,
            in_step: [shape.stride[0] * slice, shape.stride[1] * row, shape.stride[2] * block],
            out_offset: [0; 3],
            out_stride: [1; 3],
            counts: out_layout.dims,
        },
        accumulate: false,
        fold: None,
    }
}

fn check_io(
    input: usize,
    in_layout: &Blocked,
    weights: WeightShape,
    in_block: usize,
    finish: &Finish<'_>,
    target: &Target<'_>,
    out_layout: &Blocked,
) -> Result<(), KernelError> {
    check_len("input", input, in_layout.len())?;
    check_len("output", target.len(), out_layout.len())?;
    check_that(in_layout.channels == weights.in_channels, "input channels", weights.in_channels, in_layout.channels)?;
    check_that(in_layout.block == in_block, "input block", in_block, in_layout.block)?;
    let channels = out_layout.channels;
    check_that(channels == weights.out_channels, "output channels", weights.out_channels, channels)?;
    for (what, values) in [("scale", finish.scale), ("bias", finish.bias)] {
        if let Some(v) = values {
            check_len(what, v.len(), channels)?;
        }
    }
    let whole_blocks = !matches!(target, Target::F16(_)) && finish.residual.is_none() && !finish.moments;
    check_that(whole_blocks || out_layout.block == CHANNEL_BLOCK, "output block", CHANNEL_BLOCK, out_layout.block)?;
    if let Some((values, layout)) = finish.residual {
        check_len("residual", values.len(), layout.len())?;
        check_that(
            (layout.channels, layout.dims, layout.block) == (out_layout.channels, out_layout.dims, out_layout.block),
            "residual layout",
            format!("{out_layout:?}"),
            format!("{layout:?}"),
        )?;
    }
    Ok(())
}

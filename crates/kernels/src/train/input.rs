//! Gradient of a convolution with respect to its input.
//!
//! Input voxels whose positions have the same remainders modulo the strides are read by the same taps. Each such phase
//! is a convolution of the output's gradient with those taps at stride 1, whose results are a stride apart.

use crate::conv::{ConvShape, Finish, Geometry, PackedConv, Plan, Target, drive};
use crate::parallel::for_each_row;
use crate::{Blocked, CHANNEL_BLOCK, Isa, KernelError, check_isa, check_len, check_that};

/// A convolution's weights, packed for [`conv_input_gradient`] in the order of one instruction set; others refuse to run
/// them.
#[derive(Debug, Clone)]
pub struct InputGradient {
    /// Instruction set that the weights were packed for.
    isa: Isa,
    phases: Vec<Phase>,
    stride: [usize; 3],
    out_channels: usize,
    in_channels: usize,
    out_block: usize,
    /// Whether some input voxels are in no window.
    gaps: bool,
}

#[derive(Debug, Clone)]
struct Phase {
    /// Remainder of the input positions modulo the strides, which is also the first input voxel.
    remainder: [usize; 3],
    /// Output positions that the taps read along each axis, relative to the position of the step, in ascending order.
    reads: [Vec<isize>; 3],
    weights: PackedConv,
}

/// Returns the taps along one axis that read input voxels with a given remainder: relative output position and tap
/// index.
fn taps_for_remainder(shape: &ConvShape, axis: usize, remainder: usize) -> Vec<(isize, usize)> {
    let (stride, pad) = (shape.stride[axis] as isize, shape.pad_before[axis] as isize);
    (0..shape.kernel[axis])
        .rev()
        .map(|k| (remainder as isize + pad - (k * shape.dilation[axis]) as isize, k))
        .filter(|(at, _)| at.rem_euclid(stride) == 0)
        .map(|(at, k)| (at.div_euclid(stride), k))
        .collect()
}

impl InputGradient {
    /// Packs the weights `[O][I][kd·kh·kw]` of a convolution with a single group, for output gradients with block size
    /// `out_block` (1 or 16). This is fast enough to be done at every training step.
    ///
    /// # Errors
    /// [`KernelError`] if the weights do not fit, or a stride or a dilation is 0.
    pub fn new(
        isa: Isa,
        weights: &[f32],
        [out_channels, in_channels]: [usize; 2],
        shape: &ConvShape,
        out_block: usize,
    ) -> Result<Self, KernelError> {
        let taps: usize = shape.kernel.iter().product();
        check_len("weights", weights.len(), out_channels * in_channels * taps)?;
        check_that(!weights.is_empty(), "convolution", "channels and taps", "none")?;
        let steps = [shape.stride, shape.dilation];
        check_that(steps.iter().flatten().all(|s| *s > 0), "strides and dilations", "above 0", format!("{steps:?}"))?;
        let out_block = if out_block == 1 { 1 } else { CHANNEL_BLOCK };
        let lanes: Vec<usize> = (0..in_channels).map(|i| i * taps).collect();
        let mut phases = Vec::new();
        let remainders: usize = shape.stride.iter().product();
        for at in 0..remainders {
            let remainder = [
                at / (shape.stride[1] * shape.stride[2]),
                at / shape.stride[2] % shape.stride[1],
                at % shape.stride[2],
            ];
            let seen = [0, 1, 2].map(|axis| taps_for_remainder(shape, axis, remainder[axis]));
            let mut own = Vec::with_capacity(taps);
            for (_, d) in &seen[0] {
                for (_, h) in &seen[1] {
                    own.extend(seen[2].iter().map(|(_, w)| (d * shape.kernel[1] + h) * shape.kernel[2] + w));
                }
            }
            if own.is_empty() {
                continue;
            }
            let ins = [out_channels, in_channels * taps];
            phases.push(Phase {
                remainder,
                reads: seen.map(|axis| axis.into_iter().map(|(at, _)| at).collect()),
                weights: PackedConv::strided(isa, weights, None, &lanes, ins, &own, out_block)?,
            });
        }
        Ok(Self {
            isa,
            gaps: phases.len() < remainders,
            phases,
            stride: shape.stride,
            out_channels,
            in_channels,
            out_block,
        })
    }

    /// Returns the border of zeros that the output's gradient needs for these input and output sizes.
    pub fn border(&self, in_dims: [usize; 3], out_dims: [usize; 3]) -> [usize; 3] {
        [0, 1, 2].map(|axis| {
            let phase_border = |phase: &Phase| {
                let count = count(in_dims[axis], phase.remainder[axis], self.stride[axis]) as isize;
                let (Some(first), Some(last)) = (phase.reads[axis].first(), phase.reads[axis].last()) else { return 0 };
                if count == 0 { 0 } else { (-first).max(count - 1 + last - (out_dims[axis] as isize - 1)).max(0) }
            };
            self.phases.iter().map(phase_border).max().unwrap_or(0) as usize
        })
    }
}

/// Returns the number of input voxels with a given remainder along an axis.
fn count(extent: usize, remainder: usize, stride: usize) -> usize {
    extent.saturating_sub(remainder).div_ceil(stride)
}

/// Computes the gradient of a convolution with respect to its input from that of its output. The result is added to
/// `in_gradient` if `accumulate`, otherwise overwrites it; borders are not changed.
///
/// The border of `out_gradient` must hold zeros and be at least as wide as [`InputGradient::border`]. Both images may
/// be in blocks of 16 channels or in planes.
///
/// # Errors
/// [`KernelError`] if the buffers, layouts and weights do not fit, or the weights were packed for another instruction
/// set.
pub fn conv_input_gradient(
    isa: Isa,
    out_gradient: &[f32],
    out_layout: &Blocked,
    weights: &InputGradient,
    accumulate: bool,
    in_gradient: &mut [f32],
    in_layout: &Blocked,
) -> Result<(), KernelError> {
    check_isa(weights.isa, isa)?;
    check_len("gradient of the output", out_gradient.len(), out_layout.len())?;
    check_len("gradient of the input", in_gradient.len(), in_layout.len())?;
    check_that(
        out_layout.channels == weights.out_channels && in_layout.channels == weights.in_channels,
        "channels",
        format!("{} -> {}", weights.in_channels, weights.out_channels),
        format!("{} -> {}", in_layout.channels, out_layout.channels),
    )?;
    check_that(out_layout.block == weights.out_block, "block of the output", weights.out_block, out_layout.block)?;
    check_that(matches!(in_layout.block, 1 | CHANNEL_BLOCK), "block of floats", "1 or 16", in_layout.block)?;
    let border = weights.border(in_layout.dims, out_layout.dims);
    check_that(
        (0..3).all(|axis| out_layout.halo[axis] >= border[axis]),
        "border of the output's gradient",
        format!("at least {border:?}"),
        format!("{:?}", out_layout.halo),
    )?;
    if !accumulate && (weights.gaps || out_layout.voxels() == 0) {
        clear(in_gradient, in_layout);
    }
    if out_layout.voxels() == 0 {
        return Ok(());
    }
    let steps = [out_layout.slice_stride(), out_layout.row_stride(), out_layout.block];
    for phase in &weights.phases {
        let counts = [0, 1, 2].map(|a| count(in_layout.dims[a], phase.remainder[a], weights.stride[a]));
        if counts.contains(&0) {
            continue;
        }
        // Reads are relative to the first one, which may be in the border.
        let first = [0, 1, 2].map(|a| phase.reads[a].first().copied().unwrap_or(0));
        let offset = |axis: usize| phase.reads[axis].iter().map(move |at| (at - first[axis]) as usize * steps[axis]);
        let taps: Vec<usize> =
            offset(0).flat_map(|d| offset(1).flat_map(move |h| offset(2).map(move |w| d + h + w))).collect();
        let along = &phase.reads[2];
        let plan = Plan {
            taps,
            ring_taps: Vec::new(),
            adjacent: if along.windows(2).all(|p| p[1] == p[0] + 1) { along.len() } else { 1 },
            geometry: Geometry {
                in_start: (0..3).map(|a| (out_layout.halo[a] as isize + first[a]) as usize * steps[a]).sum(),
                in_step: steps,
                out_offset: phase.remainder,
                out_stride: weights.stride,
                counts,
            },
            accumulate,
            fold: None,
        };
        let mut target = Target::F32(in_gradient);
        drive(isa, out_gradient, out_layout, &phase.weights, &plan, &Finish::default(), &mut target, in_layout);
    }
    Ok(())
}

/// Sets an image to 0, except for its border.
fn clear(values: &mut [f32], layout: &Blocked) {
    for_each_row(values, layout, |_, _, _, row| row.fill(0.0));
}

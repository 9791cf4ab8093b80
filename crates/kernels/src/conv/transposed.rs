//! Transposed convolutions: the input voxel `i` adds its products with tap `t` to the output voxel
//! `i · stride + t − pad_before`, along each axis.

use super::drive::{Geometry, Plan, drive};
use super::micro::Core;
use super::pack::{NO_LANE, check_in_block, pad_to_blocks};
use super::{Finish, PackedConv, PackedConvInt8, Target, WeightShape, check_io};
use crate::{Blocked, CHANNEL_BLOCK, Isa, KernelError, check_isa, check_len, check_that};

/// Geometry of a transposed convolution along D, H, W.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransposedShape {
    /// Kernel size in taps along D, H, W; at least the stride.
    pub kernel: [usize; 3],
    /// Distance between the outputs of neighboring inputs, in output voxels.
    pub stride: [usize; 3],
    /// Voxels that are cropped before the first output voxel.
    pub pad_before: [usize; 3],
}

/// Outputs along one axis whose positions plus `pad_before` leave the same remainder when divided by the stride: a
/// convolution with stride 1 and with every `stride`-th tap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Phase {
    /// First output voxel.
    first: usize,
    /// Number of output voxels, `stride` apart.
    count: usize,
    /// Number of taps.
    taps: usize,
    /// Input voxel of the first output voxel at the first tap; negative before the image.
    input: isize,
}

impl TransposedShape {
    /// Returns a shape whose outputs do not overlap: the kernel equals the stride, without padding.
    pub fn exact(kernel: [usize; 3]) -> Self {
        Self { kernel, stride: kernel, pad_before: [0; 3] }
    }

    /// Returns whether the outputs of different input voxels do not overlap and fill the image.
    fn is_exact(&self) -> bool {
        self.kernel == self.stride && self.pad_before == [0; 3]
    }

    fn check(&self) -> Result<(), KernelError> {
        let fits = (0..3).all(|axis| self.stride[axis] > 0 && self.kernel[axis] >= self.stride[axis]);
        check_that(fits, "kernel", "at least the stride", format!("{:?}, stride {:?}", self.kernel, self.stride))
    }

    /// Returns the phase of outputs with a remainder along an axis, of an image with `outputs` voxels.
    fn phase(&self, axis: usize, remainder: usize, outputs: usize) -> Phase {
        let (kernel, stride, pad) = (self.kernel[axis], self.stride[axis], self.pad_before[axis]);
        let first = (remainder + stride - pad % stride) % stride;
        let taps = (kernel - remainder).div_ceil(stride);
        let input = ((first + pad - remainder) / stride) as isize + 1 - taps as isize;
        Phase { first, count: outputs.saturating_sub(first).div_ceil(stride), taps, input }
    }

    /// Returns the remainders along D, H, W in the order of the packed weights.
    fn remainders(&self) -> impl Iterator<Item = [usize; 3]> + use<> {
        let [d, h, w] = self.stride;
        (0..d).flat_map(move |rd| (0..h).flat_map(move |rh| (0..w).map(move |rw| [rd, rh, rw])))
    }

    /// Returns the width of the border that an input of `inputs` voxels needs for an output of `outputs` voxels.
    pub fn border(&self, inputs: [usize; 3], outputs: [usize; 3]) -> [usize; 3] {
        [0, 1, 2].map(|axis| {
            let reach = |remainder: usize| {
                let phase = self.phase(axis, remainder, outputs[axis]);
                if phase.count == 0 {
                    return 0;
                }
                let end = phase.input + (phase.taps + phase.count) as isize - 1;
                usize::try_from((-phase.input).max(end - inputs[axis] as isize)).unwrap_or(0)
            };
            (0..self.stride[axis]).map(reach).max().unwrap_or(0)
        })
    }
}

/// Packed weights of a transposed convolution.
#[derive(Debug, Clone)]
pub struct Transposed<P> {
    parts: Vec<P>,
    kernel: [usize; 3],
    stride: [usize; 3],
    /// Whether `parts` are, for each tap along D and H, a 1×1×1 convolution whose output blocks are those of the taps
    /// along W, one after the other. Otherwise, they are one convolution for each remainder of the output position, with
    /// its taps.
    rows: bool,
    out_channels: usize,
}

impl<P> Transposed<P> {
    /// Packs `weights` `[I][O][kd·kh·kw]` part by part, as `[O][I][taps]`.
    fn of<T: Copy + Default>(
        weights: &[T],
        [in_channels, out_channels]: [usize; 2],
        shape: &TransposedShape,
        mut pack: impl FnMut(&[T], WeightShape) -> Result<P, KernelError>,
    ) -> Result<Self, KernelError> {
        shape.check()?;
        let (kernel, stride) = (shape.kernel, shape.stride);
        let all: usize = kernel.iter().product();
        WeightShape::dense(out_channels, in_channels, all).check(weights.len(), None)?;
        let rows = shape.is_exact();
        let mut part = |outputs: &[Option<(usize, usize)>], taps: &[usize]| {
            let of = WeightShape::dense(outputs.len(), in_channels, taps.len());
            let mut values = Vec::with_capacity(of.count());
            for output in outputs {
                for i in 0..in_channels {
                    values.extend(taps.iter().map(|tap| {
                        let at = output.map(|(o, more)| (i * out_channels + o) * all + tap + more);
                        at.and_then(|at| weights.get(at)).copied().unwrap_or_default()
                    }));
                }
            }
            pack(&values, of)
        };
        let parts = if rows {
            let padded = out_channels.next_multiple_of(CHANNEL_BLOCK);
            let output = |o: usize, tap: usize| (o < out_channels).then_some((o, tap));
            let outputs: Vec<_> = (0..kernel[2]).flat_map(|tap| (0..padded).map(move |o| output(o, tap))).collect();
            (0..kernel[0] * kernel[1]).map(|row| part(&outputs, &[row * kernel[2]])).collect::<Result<_, _>>()?
        } else {
            let outputs: Vec<_> = (0..out_channels).map(|o| Some((o, 0))).collect();
            shape
                .remainders()
                .map(|remainder| part(&outputs, &taps_for_remainder(shape, remainder)))
                .collect::<Result<_, _>>()?
        };
        Ok(Self { parts, kernel, stride, rows, out_channels })
    }

    /// Returns the number of output channels.
    pub fn out_channels(&self) -> usize {
        self.out_channels
    }
}

/// Returns the taps of the outputs with a remainder, in the order of the input voxels that they read: the farthest first.
fn taps_for_remainder(shape: &TransposedShape, remainder: [usize; 3]) -> Vec<usize> {
    let along = |axis: usize| {
        let (first, step) = (remainder[axis], shape.stride[axis]);
        (first..shape.kernel[axis]).step_by(step).rev().collect::<Vec<usize>>()
    };
    let (all_d, all_h, all_w) = (along(0), along(1), along(2));
    let mut taps = Vec::with_capacity(all_d.len() * all_h.len() * all_w.len());
    for d in &all_d {
        for h in &all_h {
            taps.extend(all_w.iter().map(|w| (d * shape.kernel[1] + h) * shape.kernel[2] + w));
        }
    }
    taps
}

impl Transposed<PackedConv> {
    /// Packs `weights` `[I][O][kd·kh·kw]` and an optional bias `[O]` for inputs with block size `in_block` (1 or 16).
    ///
    /// # Errors
    /// Same as [`PackedConv::new`], and if the kernel is shorter than the stride.
    pub fn new(
        isa: Isa,
        weights: &[f32],
        bias: Option<&[f32]>,
        channels: [usize; 2],
        shape: &TransposedShape,
        in_block: usize,
    ) -> Result<Self, KernelError> {
        let [in_channels, out_channels] = channels;
        if let Some(b) = bias {
            check_len("bias", b.len(), out_channels)?;
        }
        if !shape.is_exact() {
            return Self::of(weights, channels, shape, |part, of| PackedConv::new(isa, part, bias, of, in_block));
        }
        // As `of`, but in parallel, as weights may change in every step of a training run.
        let (kernel, stride) = (shape.kernel, shape.stride);
        let bias = bias.map(|b| pad_to_blocks(b, out_channels).repeat(kernel[2]));
        let taps: usize = kernel.iter().product();
        WeightShape::dense(out_channels, in_channels, taps).check(weights.len(), None)?;
        check_in_block(in_block, 1)?;
        let padded = out_channels.next_multiple_of(CHANNEL_BLOCK);
        let parts = (0..kernel[0] * kernel[1])
            .map(|row| {
                let lane =
                    |tap: usize, o: usize| if o < out_channels { o * taps + row * kernel[2] + tap } else { NO_LANE };
                let lanes: Vec<usize> = (0..kernel[2]).flat_map(|tap| (0..padded).map(move |o| lane(tap, o))).collect();
                let ins = [in_channels, out_channels * taps];
                PackedConv::strided(isa, weights, bias.as_deref(), &lanes, ins, &[0], in_block)
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { parts, kernel, stride, rows: true, out_channels })
    }

    /// Returns the size of the packed weights in bytes.
    pub fn size_bytes(&self) -> usize {
        self.parts.iter().map(PackedConv::size_bytes).sum()
    }
}

impl Transposed<PackedConvInt8> {
    /// Packs `weights` `[I][O][kd·kh·kw]` for inputs with block size `in_block` (4 or 16) and zero point `zero_point`.
    ///
    /// # Errors
    /// Same as [`PackedConvInt8::new`], and if the kernel is shorter than the stride.
    pub fn new_int8(
        isa: Isa,
        weights: &[i8],
        zero_point: u8,
        channels: [usize; 2],
        shape: &TransposedShape,
        in_block: usize,
    ) -> Result<Self, KernelError> {
        Self::of(weights, channels, shape, |part, of| PackedConvInt8::new(isa, part, zero_point, of, in_block))
    }

    /// Returns the size of the packed weights in bytes.
    pub fn size_bytes(&self) -> usize {
        self.parts.iter().map(PackedConvInt8::size_bytes).sum()
    }
}

/// Computes `output = activation(conv_transpose(input) · scale + bias)`. The number of outputs follows from `out_layout`.
///
/// # Errors
/// [`KernelError`] if the buffers, layouts, weights and shape do not fit, the weights were packed for another instruction
/// set, the input's border is narrower than [`TransposedShape::border`], `finish` asks for moments or a residual, or the
/// weights were packed for [`TransposedShape::exact`] and the output is not as long as the input times the kernel.
#[allow(clippy::too_many_arguments)]
pub fn conv_transpose(
    isa: Isa,
    input: &[f32],
    in_layout: &Blocked,
    weights: &Transposed<PackedConv>,
    pad_before: [usize; 3],
    finish: &Finish<'_>,
    target: Target<'_>,
    out_layout: &Blocked,
) -> Result<(), KernelError> {
    transposed(isa, input, in_layout, weights, pad_before, finish, target, out_layout)
}

/// [`conv_transpose`] of bytes.
///
/// # Errors
/// Same as [`conv_transpose`].
#[allow(clippy::too_many_arguments)]
pub fn conv_transpose_int8(
    isa: Isa,
    input: &[u8],
    in_layout: &Blocked,
    weights: &Transposed<PackedConvInt8>,
    pad_before: [usize; 3],
    finish: &Finish<'_>,
    target: Target<'_>,
    out_layout: &Blocked,
) -> Result<(), KernelError> {
    transposed(isa, input, in_layout, weights, pad_before, finish, target, out_layout)
}

#[allow(clippy::too_many_arguments)]
fn transposed<C: Core>(
    isa: Isa,
    input: &[C::In],
    in_layout: &Blocked,
    weights: &Transposed<C>,
    pad_before: [usize; 3],
    finish: &Finish<'_>,
    mut target: Target<'_>,
    out_layout: &Blocked,
) -> Result<(), KernelError> {
    check_that(!finish.moments, "moments", "none of a transposed convolution", "some")?;
    check_that(finish.residual.is_none(), "residual", "none of a transposed convolution", "one")?;
    let shape = TransposedShape { kernel: weights.kernel, stride: weights.stride, pad_before };
    let plans = if weights.rows {
        check_that(pad_before == [0; 3], "padding", "none if the kernel equals the stride", format!("{pad_before:?}"))?;
        row_plans(in_layout, &shape, weights.out_channels, out_layout)?
    } else {
        phase_plans(in_layout, &shape, out_layout)?
    };
    for (part, plan) in weights.parts.iter().zip(plans) {
        check_isa(part.isa(), isa)?;
        let of = WeightShape::dense(weights.out_channels, part.shape().in_channels, 1);
        check_io(input.len(), in_layout, of, part.in_block(), finish, &target, out_layout)?;
        if plan.geometry.counts.iter().all(|count| *count > 0) {
            drive(isa, input, in_layout, part, &plan, finish, &mut target, out_layout);
        }
    }
    Ok(())
}

/// Plans one pass for each tap along D and H, whose output blocks are those of the taps along W.
fn row_plans(
    in_layout: &Blocked,
    shape: &TransposedShape,
    out_channels: usize,
    out_layout: &Blocked,
) -> Result<Vec<Plan>, KernelError> {
    let kernel = shape.kernel;
    for axis in 0..3 {
        let expected = in_layout.dims[axis] * kernel[axis];
        check_that(out_layout.dims[axis] == expected, "output extent", expected, out_layout.dims[axis])?;
    }
    let plan = |row: usize| Plan {
        taps: vec![0],
        ring_taps: Vec::new(),
        adjacent: 1,
        geometry: Geometry {
            in_start: in_layout.row_start(0, 0, 0),
            in_step: [in_layout.slice_stride(), in_layout.row_stride(), in_layout.block],
            out_offset: [row / kernel[1], row % kernel[1], 0],
            out_stride: kernel,
            counts: in_layout.dims,
        },
        accumulate: false,
        fold: Some(out_channels.div_ceil(CHANNEL_BLOCK)),
    };
    Ok((0..kernel[0] * kernel[1]).map(plan).collect())
}

/// Plans one pass for each remainder of the output position.
fn phase_plans(in_layout: &Blocked, shape: &TransposedShape, out_layout: &Blocked) -> Result<Vec<Plan>, KernelError> {
    let needed = shape.border(in_layout.dims, out_layout.dims);
    for axis in 0..3 {
        let width = in_layout.halo[axis];
        check_that(needed[axis] <= width, "border of the convolution's input", needed[axis], width)?;
    }
    let steps = [in_layout.slice_stride(), in_layout.row_stride(), in_layout.block];
    let plan = |remainder: [usize; 3]| {
        let along = [0, 1, 2].map(|axis| shape.phase(axis, remainder[axis], out_layout.dims[axis]));
        let [d, h, w] = along.map(|phase| phase.taps);
        let mut taps = Vec::with_capacity(d * h * w);
        for kd in 0..d {
            for kh in 0..h {
                taps.extend((0..w).map(|kw| kd * steps[0] + kh * steps[1] + kw * steps[2]));
            }
        }
        // The border is wide enough, as checked above, unless there are no outputs.
        let start = |axis: usize| in_layout.halo[axis].saturating_add_signed(along[axis].input) * steps[axis];
        Plan {
            taps,
            ring_taps: Vec::new(),
            adjacent: w,
            geometry: Geometry {
                in_start: start(0) + start(1) + start(2),
                in_step: steps,
                out_offset: along.map(|phase| phase.first),
                out_stride: shape.stride,
                counts: along.map(|phase| phase.count),
            },
            accumulate: false,
            fold: None,
        }
    };
    Ok(shape.remainders().map(plan).collect())
}

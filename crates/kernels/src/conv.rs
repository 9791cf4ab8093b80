//! Direct convolution and transposed convolution (kernel = stride) on blocked buffers.
//!
//! Weights are packed once: output-channel groups, input blocks, taps, input channels, output channels, so that the
//! kernels read them in one stream. Padding is the input layout's border; bias, a residual and a leaky rectifier are applied
//! in registers before the one store.

use crate::parallel::{Shared, for_each, multiversion};
use crate::{Blocked, CHANNEL_BLOCK, Isa, IsaName, KernelError, check_len, check_that};

/// Up to so many output channels a planar input has a kernel of its own.
const FEW_CHANNELS: usize = 4;

/// What is done to a convolution's sums in registers, in this order: bias, residual, activation.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// `x` where `x > 0`, else `slope · x`; slope 0 is ReLU.
    Leaky {
        /// Slope of the negative side.
        slope: f32,
    },
}

impl Activation {
    /// The slope of the negative side: 1 for no activation.
    pub(crate) fn slope(self) -> f32 {
        match self {
            Activation::None => 1.0,
            Activation::Leaky { slope } => slope,
        }
    }
}

/// Shape of a convolution's kernel and its steps along D, H, W.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvShape {
    /// Kernel extent.
    pub kernel: [usize; 3],
    /// Stride.
    pub stride: [usize; 3],
    /// Dilation.
    pub dilation: [usize; 3],
    /// Zeros before the first voxel.
    pub pad_before: [usize; 3],
}

/// Weights of a convolution in the order the kernels read them.
#[derive(Debug, Clone)]
pub struct PackedConv {
    values: Vec<f32>,
    /// `[O][I][taps]` as given, for the kernel of few channels.
    plain: Vec<f32>,
    bias: Vec<f32>,
    groups: Vec<Group>,
    taps: usize,
    in_channels: usize,
    out_channels: usize,
    in_block: usize,
}

/// Output blocks computed together.
#[derive(Debug, Clone, Copy)]
struct Group {
    first_block: usize,
    blocks: usize,
    at: usize,
}

/// What one call of a micro-kernel computes: a run of output voxels along W for one or two blocks of output channels.
#[derive(Clone, Copy)]
pub(crate) struct Micro<'a> {
    pub input: *const f32,
    pub in_step: usize,
    pub in_block_stride: usize,
    pub in_blocks: usize,
    pub in_per_block: usize,
    pub last_in_per_block: usize,
    pub taps: &'a [usize],
    pub weights: *const f32,
    pub bias: *const f32,
    pub out: [*mut f32; 2],
    pub out_step: usize,
    pub residual: Option<[*const f32; 2]>,
    pub slope: f32,
}

impl PackedConv {
    /// Packs `weights` of shape `[O][I][kd·kh·kw]` and an optional bias `[O]` for inputs whose layout has `in_block`.
    ///
    /// # Errors
    /// [`KernelError::Length`] if the weights or the bias do not fit.
    pub fn new(
        isa: Isa,
        weights: &[f32],
        bias: Option<&[f32]>,
        out_channels: usize,
        in_channels: usize,
        taps: usize,
        in_block: usize,
    ) -> Result<Self, KernelError> {
        check_len("weights", weights.len(), out_channels * in_channels * taps)?;
        if let Some(b) = bias {
            check_len("bias", b.len(), out_channels)?;
        }
        check_that(out_channels > 0 && in_channels > 0 && taps > 0, "convolution", "channels and taps", "none")?;
        let in_block = if in_block == 1 { 1 } else { CHANNEL_BLOCK };
        let blocks = out_channels.div_ceil(CHANNEL_BLOCK);
        let together = if isa.name() == IsaName::Avx512 { 2 } else { 1 };
        let mut groups = Vec::new();
        let mut values = Vec::with_capacity(blocks * CHANNEL_BLOCK * in_channels * taps);
        let mut first_block = 0;
        while first_block < blocks {
            let n = together.min(blocks - first_block);
            groups.push(Group { first_block, blocks: n, at: values.len() });
            for ib in 0..in_channels.div_ceil(in_block) {
                for tap in 0..taps {
                    for i in (ib * in_block)..((ib + 1) * in_block).min(in_channels) {
                        for o in first_block * CHANNEL_BLOCK..(first_block + n) * CHANNEL_BLOCK {
                            let w = if o < out_channels { weights[(o * in_channels + i) * taps + tap] } else { 0.0 };
                            values.push(w);
                        }
                    }
                }
            }
            first_block += n;
        }
        let mut padded_bias = vec![0.0; blocks * CHANNEL_BLOCK];
        if let Some(b) = bias {
            padded_bias[..out_channels].copy_from_slice(b);
        }
        let few = in_block == 1 && out_channels <= FEW_CHANNELS;
        let plain = if few { weights.to_vec() } else { Vec::new() };
        Ok(Self { values, plain, bias: padded_bias, groups, taps, in_channels, out_channels, in_block })
    }

    /// Output channels.
    pub fn out_channels(&self) -> usize {
        self.out_channels
    }

    /// Bytes held.
    pub fn size_bytes(&self) -> usize {
        (self.values.len() + self.bias.len()) * size_of::<f32>()
    }
}

/// The residual of a convolution: a tensor of the output's layout added before the activation.
pub type Residual<'a> = Option<(&'a [f32], &'a Blocked)>;

/// `output = activation(conv(input) + bias + residual)`; one image.
///
/// The output's border is left as it is: see [`crate::reorder::clear_border`].
///
/// # Errors
/// [`KernelError`] if the buffers, layouts and weights do not fit, or the input's border is narrower than the padding.
#[allow(clippy::too_many_arguments)]
pub fn conv(
    isa: Isa,
    input: &[f32],
    in_layout: &Blocked,
    weights: &PackedConv,
    shape: &ConvShape,
    activation: Activation,
    residual: Residual<'_>,
    output: &mut [f32],
    out_layout: &Blocked,
) -> Result<(), KernelError> {
    check_io(input, in_layout, weights, residual, output, out_layout)?;
    check_that(
        weights.taps == shape.kernel.iter().product::<usize>(),
        "kernel taps",
        weights.taps,
        format!("{:?}", shape.kernel),
    )?;
    for axis in 0..3 {
        let reach =
            (out_layout.dims[axis].max(1) - 1) * shape.stride[axis] + (shape.kernel[axis] - 1) * shape.dilation[axis];
        let before = in_layout.halo[axis];
        check_that(
            shape.stride[axis] > 0
                && shape.pad_before[axis] <= before
                && before - shape.pad_before[axis] + reach < in_layout.padded()[axis],
            "border of the convolution's input",
            format!("at least {} before and {} voxels in all", shape.pad_before[axis], reach + 1),
            format!("{before} before, {} in all", in_layout.padded()[axis]),
        )?;
    }
    let (row, slice, block) = (in_layout.row_stride(), in_layout.slice_stride(), in_layout.block);
    let mut taps = Vec::with_capacity(weights.taps);
    for kd in 0..shape.kernel[0] {
        for kh in 0..shape.kernel[1] {
            for kw in 0..shape.kernel[2] {
                taps.push(
                    kd * shape.dilation[0] * slice + kh * shape.dilation[1] * row + kw * shape.dilation[2] * block,
                );
            }
        }
    }
    let origin = [0, 1, 2].map(|i| in_layout.halo[i] - shape.pad_before[i]);
    let geometry = Geometry {
        in_start: origin[0] * slice + origin[1] * row + origin[2] * block,
        in_step: [shape.stride[0] * slice, shape.stride[1] * row, shape.stride[2] * block],
        out_offset: [0; 3],
        out_stride: [1; 3],
        counts: out_layout.dims,
    };
    if out_layout.block == 1 && !weights.plain.is_empty() && shape.stride[2] == 1 && residual.is_none() {
        few_channels(isa, input, in_layout, weights, &taps, &geometry, activation, output, out_layout);
    } else {
        run(isa, input, in_layout, weights, &taps, &geometry, activation, residual, output, out_layout);
    }
    Ok(())
}

/// Planes to planes, vectorised along W.
#[allow(clippy::too_many_arguments)]
fn few_channels(
    isa: Isa,
    input: &[f32],
    in_layout: &Blocked,
    weights: &PackedConv,
    taps: &[usize],
    geometry: &Geometry,
    activation: Activation,
    output: &mut [f32],
    out_layout: &Blocked,
) {
    let [depth, height, width] = geometry.counts;
    let shared = Shared::new(output);
    for_each(out_layout.channels * depth, |task| {
        let (o, d) = (task / depth, task % depth);
        let own = &weights.plain[o * weights.in_channels * weights.taps..(o + 1) * weights.in_channels * weights.taps];
        // Offset and weight of everything a voxel sums, zeros left out.
        let terms: Vec<(usize, f32)> = own
            .iter()
            .enumerate()
            .filter(|(_, w)| **w != 0.0)
            .map(|(i, w)| (i / weights.taps * in_layout.block_stride() + taps[i % weights.taps], *w))
            .collect();
        for h in 0..height {
            // SAFETY: each task owns the rows of one slice of one channel.
            let row = unsafe { shared.slice(out_layout.row_start(o, d, h), width) };
            let from = &input[geometry.in_start + d * geometry.in_step[0] + h * geometry.in_step[1]..];
            weighted_row(isa, row, from, &terms, weights.bias[o], activation.slope());
        }
    });
}

multiversion! {
    fn weighted_row(row: &mut [f32], from: &[f32], terms: &[(usize, f32)], bias: f32, slope: f32) {
        const WIDTH: usize = 64;
        let mut at = 0;
        while at < row.len() {
            let len = WIDTH.min(row.len() - at);
            let mut sums = [bias; WIDTH];
            if len == WIDTH {
                for (offset, w) in terms {
                    let source = &from[at + offset..at + offset + WIDTH];
                    for i in 0..WIDTH {
                        sums[i] += w * source[i];
                    }
                }
            } else {
                for (offset, w) in terms {
                    let source = &from[at + offset..at + offset + len];
                    sums.iter_mut().zip(source).for_each(|(s, v)| *s += w * v);
                }
            }
            for (target, s) in row[at..at + len].iter_mut().zip(sums) {
                *target = if s < 0.0 { s * slope } else { s };
            }
            at += len;
        }
    }
}

/// `output = activation(conv_transpose(input) + bias)` for a kernel equal to its stride: each tap is a 1×1×1 convolution
/// whose results land `kernel` voxels apart. `taps[t]` holds the weights of tap `t` in D, H, W order, each packed with one tap.
///
/// # Errors
/// [`KernelError`] if the buffers, layouts and weights do not fit.
#[allow(clippy::too_many_arguments)]
pub fn conv_transpose_exact(
    isa: Isa,
    input: &[f32],
    in_layout: &Blocked,
    taps: &[PackedConv],
    kernel: [usize; 3],
    activation: Activation,
    output: &mut [f32],
    out_layout: &Blocked,
) -> Result<(), KernelError> {
    check_that(taps.len() == kernel.iter().product::<usize>(), "taps", format!("{kernel:?}"), taps.len())?;
    for axis in 0..3 {
        let expected = in_layout.dims[axis] * kernel[axis];
        check_that(out_layout.dims[axis] == expected, "output extent", expected, out_layout.dims[axis])?;
    }
    for (t, weights) in taps.iter().enumerate() {
        check_io(input, in_layout, weights, None, output, out_layout)?;
        check_that(weights.taps == 1, "taps a weight set", 1, weights.taps)?;
        let offset = [t / (kernel[1] * kernel[2]), t / kernel[2] % kernel[1], t % kernel[2]];
        let geometry = Geometry {
            in_start: in_layout.row_start(0, 0, 0),
            in_step: [in_layout.slice_stride(), in_layout.row_stride(), in_layout.block],
            out_offset: offset,
            out_stride: kernel,
            counts: in_layout.dims,
        };
        run(isa, input, in_layout, weights, &[0], &geometry, activation, None, output, out_layout);
    }
    Ok(())
}

fn check_io(
    input: &[f32],
    in_layout: &Blocked,
    weights: &PackedConv,
    residual: Residual<'_>,
    output: &[f32],
    out_layout: &Blocked,
) -> Result<(), KernelError> {
    check_len("input", input.len(), in_layout.len())?;
    check_len("output", output.len(), out_layout.len())?;
    check_that(in_layout.channels == weights.in_channels, "input channels", weights.in_channels, in_layout.channels)?;
    check_that(in_layout.block == weights.in_block, "input block", weights.in_block, in_layout.block)?;
    check_that(
        out_layout.channels == weights.out_channels,
        "output channels",
        weights.out_channels,
        out_layout.channels,
    )?;
    if let Some((values, layout)) = residual {
        check_len("residual", values.len(), layout.len())?;
        check_that(
            (layout.channels, layout.dims, layout.block) == (out_layout.channels, out_layout.dims, out_layout.block),
            "residual layout",
            format!("{out_layout:?}"),
            format!("{layout:?}"),
        )?;
        check_that(out_layout.block == CHANNEL_BLOCK, "residual block", CHANNEL_BLOCK, out_layout.block)?;
    }
    Ok(())
}

/// Where the outputs of one pass lie and what they read.
struct Geometry {
    in_start: usize,
    in_step: [usize; 3],
    out_offset: [usize; 3],
    out_stride: [usize; 3],
    counts: [usize; 3],
}

/// Runs of output voxels: as few as the kernel's widest allows, of nearly equal length.
fn runs(width: usize, widest: usize) -> impl Iterator<Item = (usize, usize)> {
    let n = width.div_ceil(widest);
    (0..n).map(move |i| (i * width / n, (i + 1) * width / n - i * width / n))
}

#[allow(clippy::too_many_arguments)]
fn run(
    isa: Isa,
    input: &[f32],
    in_layout: &Blocked,
    weights: &PackedConv,
    taps: &[usize],
    geometry: &Geometry,
    activation: Activation,
    residual: Residual<'_>,
    output: &mut [f32],
    out_layout: &Blocked,
) {
    let [depth, height, width] = geometry.counts;
    if depth * height * width == 0 {
        return;
    }
    let in_blocks = in_layout.blocks();
    let last_in_per_block = in_layout.channels - (in_blocks - 1) * in_layout.block;
    let planar = out_layout.block == 1;
    // The farthest value any micro-kernel of a row reads, for the bounds check before the pointer is made.
    let in_room = (in_blocks - 1) * in_layout.block_stride()
        + taps.iter().max().copied().unwrap_or(0)
        + (width - 1) * geometry.in_step[2]
        + in_layout.block;
    let out_room = out_layout.block_stride();
    let shared = Shared::new(output);
    let residual_room = residual.map_or(0, |(v, _)| v.len());
    for_each(weights.groups.len() * depth * height, |task| {
        let (g, rest) = (task / (depth * height), task % (depth * height));
        let (d, h) = (rest / height, rest % height);
        let group = weights.groups[g];
        let in_at = geometry.in_start + d * geometry.in_step[0] + h * geometry.in_step[1];
        assert!(in_at + in_room <= input.len(), "convolution reads outside its input");
        let (od, oh) =
            (geometry.out_offset[0] + d * geometry.out_stride[0], geometry.out_offset[1] + h * geometry.out_stride[1]);
        let ow_step = geometry.out_stride[2];
        let mut scratch = [0.0f32; 2 * CHANNEL_BLOCK * WIDEST];
        for (w, len) in runs(width, widest(isa, group.blocks)) {
            let ow = geometry.out_offset[2] + w * ow_step;
            let mut out = [std::ptr::null_mut(); 2];
            let mut res = [std::ptr::null(); 2];
            for b in 0..group.blocks {
                if planar {
                    // SAFETY: the scratch holds two runs of the widest kernel.
                    out[b] = unsafe { scratch.as_mut_ptr().add(b * CHANNEL_BLOCK * WIDEST) };
                } else {
                    let at = out_layout.row_start(group.first_block + b, od, oh) + ow * CHANNEL_BLOCK;
                    out[b] = shared.pointer(at, ((len - 1) * ow_step + 1) * CHANNEL_BLOCK);
                    if let Some((values, layout)) = residual {
                        let at = layout.row_start(group.first_block + b, od, oh) + ow * CHANNEL_BLOCK;
                        assert!(at + len * CHANNEL_BLOCK <= residual_room, "residual too short");
                        res[b] = values[at..].as_ptr();
                    }
                }
            }
            let micro = Micro {
                input: input[in_at + w * geometry.in_step[2]..].as_ptr(),
                in_step: geometry.in_step[2],
                in_block_stride: in_layout.block_stride(),
                in_blocks,
                in_per_block: in_layout.block,
                last_in_per_block,
                taps,
                weights: weights.values[group.at..].as_ptr(),
                bias: weights.bias[group.first_block * CHANNEL_BLOCK..].as_ptr(),
                out,
                out_step: if planar { CHANNEL_BLOCK } else { ow_step * CHANNEL_BLOCK },
                residual: residual.is_some().then_some(res),
                slope: activation.slope(),
            };
            // SAFETY: all reads lie in `input` (checked against in_room), weights and bias were packed for this group, the
            // output run was checked by `pointer`, and every task writes its own rows of its own blocks.
            unsafe {
                match isa.name() {
                    #[cfg(target_arch = "x86_64")]
                    IsaName::Avx512 => crate::conv_avx512::micro(group.blocks, len, &micro),
                    #[cfg(target_arch = "x86_64")]
                    IsaName::Avx2 => crate::conv_avx2::micro(len, &micro),
                    _ => crate::conv_portable::micro(len, &micro),
                }
            }
            if planar {
                for c in 0..out_layout
                    .channels
                    .saturating_sub(group.first_block * CHANNEL_BLOCK)
                    .min(group.blocks * CHANNEL_BLOCK)
                {
                    let at = out_layout.row_start(group.first_block * CHANNEL_BLOCK + c, od, oh) + ow;
                    // SAFETY: each task writes its own rows of its own channels.
                    let row = unsafe { shared.slice(at, ((len - 1) * ow_step + 1).min(out_room)) };
                    let from = &scratch[(c / CHANNEL_BLOCK) * CHANNEL_BLOCK * WIDEST + c % CHANNEL_BLOCK..];
                    for p in 0..len {
                        row[p * ow_step] = from[p * CHANNEL_BLOCK];
                    }
                }
            }
        }
    });
}

/// The longest run of any kernel.
const WIDEST: usize = 24;

/// The longest run of voxels a micro-kernel takes for a number of output blocks.
fn widest(isa: Isa, blocks: usize) -> usize {
    match (isa.name(), blocks) {
        (IsaName::Avx512, 2) => 12,
        (IsaName::Avx512, _) => WIDEST,
        (IsaName::Avx2, _) => 6,
        (IsaName::Portable, _) => 4,
    }
}

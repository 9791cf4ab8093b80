//! Custom kernels for the operators of segmentation networks, and the backends that have them.
//!
//! Tensors stay in memory with their channels last, as the convolutions want them; only their axes are renamed between
//! [`Image`]s and kernels. Arguments are arrays and numbers, which CUDA receives with the launch, so that a launch copies
//! nothing to the device. One source serves CUDA and wgpu.

mod channels;
mod conv;
mod conv_training;
mod curve;
mod division;
mod elementwise;
mod fused;
mod loss;
mod loss_scale;
mod memory;
mod mma;
mod moves;
mod norm;
mod norm_training;
mod optimizer;
mod parts;
mod sums;
mod tile;
mod tiled;
mod tiled_gradient;
mod training;
mod weights;

pub(crate) use conv::Convolution;
pub(crate) use curve::Curve;
pub(crate) use memory::ALIGNMENT;
pub(crate) use moves::Pooling;
pub(crate) use tile::{FactorType, launches};
pub(crate) use training::Training;
pub(crate) use weights::sum_count;

use crate::exec::{self, Image};
use crate::form::Form;
use crate::plan::Part;
use burn_cubecl::tensor::CubeTensor;
use burn_cubecl::{BoolElement, CubeBackend, CubeRuntime};
use burn_cuda::Cuda;
use burn_tensor::backend::Backend;
use burn_tensor::{DType, Int, Tensor, TensorPrimitive};
use burn_wgpu::Wgpu;
use cytoscope_graph::ElementType;
use memory::{Layout, SampleBox, axes, dense};
use norm::Term;
use std::ops::Range;

/// Computation of a kernel, in f32 except for the products of [`Convolution::factor_type`]; elements may be stored in 16
/// bits. Each variant lists its inputs in order. Weights and other constants are dense arrays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Direct {
    /// `[x, weights, bias]`: a convolution with bias and activation.
    Conv(Convolution),
    /// `[x, scale, bias]`: for each sample, a factor and a shift for each channel that normalize groups of channels.
    Coefficients { groups: usize, epsilon: f32 },
    /// `[x, coefficients]`, or two of them if `two`: applies factors and shifts, adds the tensors, and applies the
    /// activation.
    Scale { two: bool, curve: Curve },
    /// `[a, b]`: concatenates the channels of two tensors.
    Concat,
    /// `[x]`: pools windows of voxels, and multiplies the results by `factor`.
    Pool { pooling: Pooling, factor: f32 },
    /// `[x]`: repeats each voxel this many times along Z, Y, X.
    Repeat([usize; 3]),
    /// `[x]`: softmax over the channels, or its logarithm.
    Softmax { log: bool },
    /// `[x]`: the channel with the largest or smallest number of each voxel; of equal ones the first or the last.
    ArgReduce { max: bool, last: bool },
}

/// A backend of Burn, and the kernels that it has in addition.
pub(crate) trait DeviceBackend: Backend {
    /// Computes an output of this form and with elements of type `to`. Returns `None` if the backend has no kernels, or if
    /// the inputs do not suit.
    fn direct(kind: &Direct, to: ElementType, form: Form, inputs: Vec<Image<Self>>) -> Option<Image<Self>>;

    /// Cuts tiles of a slab with one sample, and stacks them as the samples of a tensor of this form. `starts` are the
    /// positions Z, Y, X of the tiles; `upload` brings them to the device. Returns `None` if there are no tiles, or
    /// if a position does not fit 32 bits.
    fn gather_tiles(
        slab: &Image<Self>,
        starts: &[[usize; 3]],
        form: Form,
        upload: impl FnOnce(Vec<i32>) -> Tensor<Self, 1, Int>,
    ) -> Option<Image<Self>>;

    /// Computes the outputs of a kernel for training steps. Returns `None` if the backend has no such kernel for these
    /// inputs.
    fn train(_: &Training, _: Vec<Image<Self>>) -> Option<Vec<Image<Self>>> {
        None
    }

    /// Returns the parts of a tensor as tensors that share its memory. Returns `None` if the backend has no kernels.
    fn split(_: Image<Self>, _: &[Part]) -> Option<Vec<Image<Self>>> {
        None
    }

    /// Returns the elements of a tensor of 32-bit floats in their order, as tensors of at most `length` elements that share
    /// memory. Returns `None` for other tensors, or if the backend has no kernels.
    fn pieces(_: &Image<Self>, _: usize) -> Option<Vec<Tensor<Self, 1>>> {
        None
    }

    /// Copies parts of the samples, in their order, with all channels and these ranges along Z, Y, X; `upload` brings
    /// numbers to the device. Returns `None` if a part exceeds the tensor.
    fn copy_parts(
        x: &Image<Self>,
        parts: &[[Range<usize>; 3]],
        _: impl FnOnce(Vec<i32>) -> Tensor<Self, 1, Int>,
    ) -> Option<Vec<Image<Self>>> {
        parts.iter().enumerate().map(|(sample, ranges)| exec::copy_part(x, sample, ranges)).collect()
    }

    /// Adds a sample of `tiles`, times the weights of its voxels, to `sums`, from row and column `corner` on. Voxels beyond
    /// the sums are left out. Returns `None` if the forms do not fit.
    fn add_weighted(
        sums: Image<Self>,
        tiles: &Image<Self>,
        sample: usize,
        weights: &Image<Self>,
        corner: [usize; 2],
    ) -> Option<Image<Self>> {
        exec::add_weighted(sums, tiles, sample, weights, corner)
    }

    /// Joins parts, in rows of `columns`, along Y and X. Returns `None` if they do not fit together.
    fn join_parts(parts: Vec<Image<Self>>, columns: usize) -> Option<Image<Self>> {
        exec::join_parts(parts, columns)
    }
}

macro_rules! with_training_kernels {
    ($backend:ty, $beneath:ty) => {
        impl DeviceBackend for $backend {
            fn direct(_: &Direct, _: ElementType, _: Form, _: Vec<Image<Self>>) -> Option<Image<Self>> {
                None
            }

            fn gather_tiles(
                slab: &Image<Self>,
                starts: &[[usize; 3]],
                form: Form,
                _: impl FnOnce(Vec<i32>) -> Tensor<Self, 1, Int>,
            ) -> Option<Image<Self>> {
                exec::gather_tiles(slab, starts, form)
            }

            fn train(kernel: &Training, inputs: Vec<Image<Self>>) -> Option<Vec<Image<Self>>> {
                fused::train::<$beneath>(kernel, inputs)
            }
        }
    };
}

// These backends have only the kernels that training steps use.
with_training_kernels!(Cuda, DirectCuda);
with_training_kernels!(Wgpu, DirectWgpu);

/// CUDA without Burn's fusion of operators, for programs whose steps are all kernels of this module.
pub(crate) type DirectCuda = CubeBackend<cubecl::cuda::CudaRuntime, f32, i32, u8>;
/// wgpu without Burn's fusion of operators, for programs whose steps are all kernels of this module.
pub(crate) type DirectWgpu = CubeBackend<cubecl::wgpu::WgpuRuntime, f32, i32, u32>;

impl<R: CubeRuntime, BT: BoolElement> DeviceBackend for CubeBackend<R, f32, i32, BT> {
    fn direct(kind: &Direct, to: ElementType, form: Form, inputs: Vec<Image<Self>>) -> Option<Image<Self>> {
        let to = float_type(to)?;
        let mut inputs = inputs.into_iter();
        let y = match kind {
            Direct::Conv(by) => {
                let x = dense(channels_last(inputs.next()?))?;
                let (weights, bias) = (array(inputs.next()?), array(inputs.next()?));
                conv::launch(x, weights, Some(bias), by, to)
            }
            Direct::Coefficients { groups, epsilon } => {
                let x = dense(channels_last(inputs.next()?))?;
                let (scale, bias) = (array(inputs.next()?), array(inputs.next()?));
                norm::coefficients(&x, scale, bias, *groups, *epsilon)
            }
            Direct::Scale { two, curve } => {
                let term = Term { x: dense(channels_last(inputs.next()?))?, coefficients: array(inputs.next()?) };
                let more = if *two {
                    let x = dense(channels_last(inputs.next()?))?;
                    Some(Term { x, coefficients: array(inputs.next()?) })
                } else {
                    None
                };
                norm::scale(term, more, *curve, to)
            }
            Direct::Concat => {
                let a = dense(channels_last(inputs.next()?))?;
                moves::concatenate(a, dense(channels_last(inputs.next()?))?, to)
            }
            Direct::Pool { pooling, factor } => {
                let lengths = [form[2], form[3], form[4]];
                moves::pool(dense(channels_last(inputs.next()?))?, lengths, (*pooling, *factor), to)
            }
            Direct::Repeat(factors) => moves::repeat(dense(channels_last(inputs.next()?))?, *factors, to),
            Direct::Softmax { log } => channels::softmax(dense(channels_last(inputs.next()?))?, *log, to),
            Direct::ArgReduce { max, last } => channels::search(dense(channels_last(inputs.next()?))?, *max, *last),
        };
        Some(channels_second(y))
    }

    fn gather_tiles(
        slab: &Image<Self>,
        starts: &[[usize; 3]],
        form: Form,
        upload: impl FnOnce(Vec<i32>) -> Tensor<Self, 1, Int>,
    ) -> Option<Image<Self>> {
        if slab.dims() == form || starts.is_empty() {
            return exec::gather_tiles(slab, starts, form);
        }
        if let [start] = starts {
            let region = SampleBox { sample: 0, start: *start, lengths: [form[2], form[3], form[4]] };
            let upload = |table| memory::flat_view(upload(table).into_primitive());
            let tile = memory::regions(channels_last(slab.clone()), &[region], upload)?.pop()?;
            return Some(channels_second(tile));
        }
        let positions = starts.iter().flatten().map(|at| i32::try_from(*at)).collect::<Result<Vec<i32>, _>>().ok()?;
        let positions = memory::flat_view(upload(positions).into_primitive());
        let [samples, channels, depth, height, width] = form;
        let slab = channels_last(slab.clone());
        Some(channels_second(memory::tiles(slab, positions, [samples, depth, height, width, channels])?))
    }

    fn train(kernel: &Training, inputs: Vec<Image<Self>>) -> Option<Vec<Image<Self>>> {
        training::run(kernel, inputs)
    }

    fn split(packed: Image<Self>, parts: &[Part]) -> Option<Vec<Image<Self>>> {
        let packed = primitive(packed);
        let image = |part: &Part| {
            let own = memory::part(&packed, part.start, part.form)?;
            Some(channels_kept(match part.half {
                Some(half) => burn_cubecl::kernel::cast(own, float_type(half)?),
                None => own,
            }))
        };
        parts.iter().map(image).collect()
    }

    fn pieces(x: &Image<Self>, length: usize) -> Option<Vec<Tensor<Self, 1>>> {
        let pieces = memory::pieces(primitive(x.clone()), length)?;
        Some(pieces.into_iter().map(|piece| Tensor::from_primitive(TensorPrimitive::Float(piece))).collect())
    }

    fn copy_parts(
        x: &Image<Self>,
        parts: &[[Range<usize>; 3]],
        upload: impl FnOnce(Vec<i32>) -> Tensor<Self, 1, Int>,
    ) -> Option<Vec<Image<Self>>> {
        let region = |(sample, ranges): (usize, &[Range<usize>; 3])| SampleBox {
            sample,
            start: std::array::from_fn(|a| ranges[a].start),
            lengths: std::array::from_fn(|a| ranges[a].len()),
        };
        let all: Vec<SampleBox> = parts.iter().enumerate().map(region).collect();
        let upload = |table| memory::flat_view(upload(table).into_primitive());
        let copied = memory::regions(channels_last(x.clone()), &all, upload)?;
        Some(copied.into_iter().map(channels_second).collect())
    }

    fn add_weighted(
        sums: Image<Self>,
        tiles: &Image<Self>,
        sample: usize,
        weights: &Image<Self>,
        corner: [usize; 2],
    ) -> Option<Image<Self>> {
        let [rows, columns] = exec::covered(&sums.dims(), &tiles.dims(), sample, corner)?;
        let (sums, tiles, weights) = (primitive(sums), primitive(tiles.clone()), primitive(weights.clone()));
        memory::add_weighted((tiles, sample), weights, &sums, corner, [rows, columns])?;
        Some(channels_kept(sums))
    }

    fn join_parts(parts: Vec<Image<Self>>, columns: usize) -> Option<Image<Self>> {
        let forms: Vec<Form> = parts.iter().map(Tensor::dims).collect();
        let [_, channels, depth, ..] = *forms.first()?;
        let rows = forms.chunks(columns.max(1));
        let height: usize = rows.clone().filter_map(|row| row.first()).map(|form| form[3]).sum();
        let width: usize = rows.clone().next()?.iter().map(|form| form[4]).sum();
        let fits = |row: &[Form]| {
            let expected = row.first().map(|form| [1, channels, depth, form[3]]);
            let alike = row.iter().all(|form| Some([form[0], form[1], form[2], form[3]]) == expected);
            alike && row.iter().map(|form| form[4]).sum::<usize>() == width
        };
        if !rows.clone().all(fits) {
            return None;
        }
        let parts: Vec<CubeTensor<R>> = parts.into_iter().map(channels_last).collect();
        // In the order in which the host wants it.
        let y = memory::empty(parts.first()?, [1, channels, depth, height, width], parts.first()?.dtype);
        let [sample_stride, channel_stride, z_stride, y_stride, x_stride] =
            Layout::of([1, channels, depth, height, width]).strides;
        let (mut row_start, mut column_start) = (0, 0);
        for (index, part) in parts.into_iter().enumerate() {
            let (lengths, strides) = axes(&part)?;
            let to = Layout {
                start: row_start * y_stride + column_start * x_stride,
                strides: [sample_stride, z_stride, y_stride, x_stride, channel_stride],
            };
            memory::copy(part, Layout { start: 0, strides }, lengths, &y, to);
            column_start += lengths[3];
            if (index + 1) % columns.max(1) == 0 {
                (row_start, column_start) = (row_start + lengths[2], 0);
            }
        }
        Some(channels_kept(y))
    }
}

/// Returns Burn's name of a type of floats; `None` for other types.
fn float_type(element_type: ElementType) -> Option<DType> {
    match element_type {
        ElementType::F32 => Some(DType::F32),
        ElementType::F16 => Some(DType::F16),
        ElementType::BF16 => Some(DType::BF16),
        _ => None,
    }
}

/// Returns the tensor beneath an image.
fn primitive<R: CubeRuntime, BT: BoolElement>(x: Image<CubeBackend<R, f32, i32, BT>>) -> CubeTensor<R> {
    x.into_primitive().tensor()
}

/// Returns the tensor beneath an image, with axes N, Z, Y, X, C.
fn channels_last<R: CubeRuntime, BT: BoolElement>(x: Image<CubeBackend<R, f32, i32, BT>>) -> CubeTensor<R> {
    primitive(x.permute([0, 2, 3, 4, 1]))
}

/// Returns a tensor with axes N, Z, Y, X, C as an image. Nothing is moved.
fn channels_second<R: CubeRuntime, BT: BoolElement>(y: CubeTensor<R>) -> Image<CubeBackend<R, f32, i32, BT>> {
    channels_kept(y).permute([0, 4, 1, 2, 3])
}

/// Returns a tensor with five axes as an image with the same axes.
fn channels_kept<R: CubeRuntime, BT: BoolElement>(y: CubeTensor<R>) -> Image<CubeBackend<R, f32, i32, BT>> {
    Tensor::from_primitive(TensorPrimitive::Float(y))
}

/// Returns all numbers beneath an image as an array with one axis.
fn array<R: CubeRuntime, BT: BoolElement>(x: Image<CubeBackend<R, f32, i32, BT>>) -> CubeTensor<R> {
    memory::flat_view(primitive(x))
}

/// Returns the numbers of an image in their order as an array with one axis.
fn packed<R: CubeRuntime, BT: BoolElement>(x: Image<CubeBackend<R, f32, i32, BT>>) -> CubeTensor<R> {
    memory::flat_view(burn_cubecl::kernel::into_contiguous(primitive(x)))
}

//! Convolutions of training steps, whose weights are computed on the device: those of the forward pass and of input
//! gradients. Both put the weights in the order of [`Convolution`] with one launch, and convolve with another.

use super::conv::{self, Convolution};
use super::curve::Curve;
use super::elementwise::wide_array;
use super::memory::{self, Dense, Layout, axes, length, per_element};
use super::tile::FactorType;
use crate::form::Form;
use crate::plan::{ConvGeometry, Taps};
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use burn_tensor::DType;
use cubecl::prelude::*;

/// Returns the type to which numbers of the type `dtype` are rounded before matrix units multiply them; `wide_factor_type` is
/// the one for 32-bit floats.
pub(super) fn factor_type(dtype: DType, wide_factor_type: Option<FactorType>) -> Option<FactorType> {
    match dtype {
        DType::F16 => Some(FactorType::F16),
        DType::BF16 => Some(FactorType::Bf16),
        _ => wide_factor_type,
    }
}

/// The weights of a convolution, with axes output channel, input channel of a group, Z, Y, X.
pub(super) struct Filter<R: CubeRuntime> {
    /// Weights `[O][I / groups][Z][Y][X]`.
    pub weights: CubeTensor<R>,
    /// Bias of each output channel, in one array.
    pub bias: Option<CubeTensor<R>>,
    /// The type to which factors of 32 bits are rounded for matrix units, if any.
    pub wide_factor_type: Option<FactorType>,
}

/// Returns a convolution with an activation, whose output has this form, in the type of `x`. Returns `None` unless the weights
/// are floats with five axes.
pub(super) fn forward<R: CubeRuntime>(
    x: Dense<R>,
    filter: Filter<R>,
    window: &ConvGeometry,
    form: Form,
    curve: Curve,
) -> Option<CubeTensor<R>> {
    let dtype = x.tensor.dtype;
    let w = filter.weights;
    let ([outputs, inputs, kz, ky, kx], strides) = axes(&w)?;
    let order = memory::empty(&w, [kz * ky * kx, inputs, outputs, 1, 1], DType::F32);
    let to = [1, outputs, ky * kx * inputs * outputs, kx * inputs * outputs, inputs * outputs];
    let lengths = [outputs, inputs, kz, ky, kx];
    memory::copy(w, Layout { start: 0, strides }, lengths, &order, Layout { start: 0, strides: to });
    let by = Convolution {
        kernel: [kz, ky, kx],
        stride: window.stride,
        padding: window.padding.map(|zeros| zeros as isize),
        dilation: window.dilation,
        groups: window.groups,
        outputs,
        upscale: [1; 3],
        lengths: [form[2], form[3], form[4]],
        curve,
        factor_type: factor_type(dtype, filter.wide_factor_type),
    };
    Some(conv::launch(x, memory::flat_view(order), filter.bias.map(wide_array), &by, dtype))
}

/// The properties of reordered weights that are fixed when their kernel is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Order {
    /// Lengths of the kernel of the forward pass along Z, Y, X.
    kernel: [usize; 3],
    stride: [usize; 3],
    dilation: [usize; 3],
    groups: usize,
    /// Lengths of the kernel of the gradient.
    taps: [usize; 3],
    /// Dilated kernel position that the first tap reads for the first voxel of a block.
    first: [isize; 3],
    /// By how much the position decreases from one tap to the next.
    step: [usize; 3],
}

/// Returns, along one axis, the position in the kernel of the forward pass whose weight a tap of the gradient multiplies for
/// a voxel of a block. If there is no such position, the result is at least the length of the kernel.
#[cube]
fn kernel_position(tap: u32, voxel: u32, #[comptime] axis: usize, #[comptime] order: Order) -> u32 {
    let dilation = comptime!(order.dilation[axis] as u32);
    let end = comptime!(order.kernel[axis] as u32);
    let away = voxel as i32 + comptime!(order.first[axis] as i32) - (tap * comptime!(order.step[axis] as u32)) as i32;
    let mut position = voxel + end;
    if away >= 0 {
        let reached = away as u32;
        let at = reached / dilation;
        if at * dilation == reached && at < end {
            position = at;
        }
    }
    position
}

/// Reorders weights with axes output channel, input channel of a group, Z, Y, X to axes tap, output channel of a group, voxel
/// of a block and input channel. Taps that do not reach a voxel of the block get zeros.
#[cube(launch)]
fn reorder<F: Float>(
    weights: &Array<F>,
    y: &mut Array<f32>,
    count: u32,
    inputs: u32,
    group_outputs: u32,
    #[comptime] order: Order,
    #[define(F)] _type: StorageType,
) {
    let unit = ABSOLUTE_POS as u32;
    if unit >= count {
        terminate!();
    }
    let stride_y = comptime!(order.stride[1] as u32);
    let stride_x = comptime!(order.stride[2] as u32);
    let voxels = comptime!(order.stride.iter().product::<usize>() as u32);
    let taps_y = comptime!(order.taps[1] as u32);
    let taps_x = comptime!(order.taps[2] as u32);
    let kernel_z = comptime!(order.kernel[0] as u32);
    let kernel_y = comptime!(order.kernel[1] as u32);
    let kernel_x = comptime!(order.kernel[2] as u32);

    let input = unit % inputs;
    let voxel = unit / inputs % voxels;
    let group_inputs = inputs / comptime!(order.groups as u32);
    let output = unit / inputs / voxels % group_outputs + input / group_inputs * group_outputs;
    let tap = unit / inputs / voxels / group_outputs;
    let kz = kernel_position(tap / taps_x / taps_y, voxel / stride_x / stride_y, 0usize, order);
    let ky = kernel_position(tap / taps_x % taps_y, voxel / stride_x % stride_y, 1usize, order);
    let kx = kernel_position(tap % taps_x, voxel % stride_x, 2usize, order);
    let mut value = 0.0f32;
    if kz < kernel_z && ky < kernel_y && kx < kernel_x {
        let from = (((output * group_inputs + input % group_inputs) * kernel_z + kz) * kernel_y + ky) * kernel_x + kx;
        value = f32::cast_from(weights[from as usize]);
    }
    y[unit as usize] = value;
}

/// Returns the input gradient of a convolution, of this form, in the type of `dy`; a transposed convolution computes the same.
/// The weights are a dense array. The gradient is itself a convolution of `dy`: its output channels are the voxels of a block as
/// large as the stride, for each input channel.
pub(super) fn input_gradient<R: CubeRuntime>(
    dy: Dense<R>,
    filter: Filter<R>,
    taps: &Taps,
    form: Form,
) -> CubeTensor<R> {
    let w = filter.weights;
    let adjoint = taps.adjoint(form);
    let (inputs, group_outputs) = (form[1], dy.form[4] / taps.groups);
    let channels = inputs * taps.stride.iter().product::<usize>();
    let lengths = [adjoint.kernel.iter().product(), group_outputs, channels, 1, 1];
    let order = Order {
        kernel: taps.kernel,
        stride: taps.stride,
        dilation: taps.dilation,
        groups: taps.groups,
        taps: adjoint.kernel,
        first: std::array::from_fn(|a| taps.before[a] + taps.stride[a] as isize * adjoint.padding[a]),
        step: std::array::from_fn(|a| taps.stride[a] * adjoint.dilation[a]),
    };
    let weights = memory::empty(&w, lengths, DType::F32);
    let (count, dtype) = (lengths.iter().product(), dy.tensor.dtype);
    let (client, cubes, dim) = per_element(&w, count);
    let kind = w.dtype.into();
    reorder::launch::<R>(
        &client,
        cubes,
        dim,
        w.into_array_arg(),
        weights.clone().into_array_arg(),
        length(count),
        length(inputs),
        length(group_outputs),
        order,
        kind,
    );
    let by = Convolution {
        kernel: adjoint.kernel,
        stride: [1; 3],
        padding: adjoint.padding,
        dilation: adjoint.dilation,
        groups: taps.groups,
        outputs: channels,
        upscale: taps.stride,
        lengths: adjoint.lengths,
        curve: Curve::IDENTITY,
        factor_type: factor_type(dtype, filter.wide_factor_type),
    };
    let dx = conv::launch(dy, memory::flat_view(weights), filter.bias.map(wide_array), &by, dtype);
    cropped(dx, [form[0], form[2], form[3], form[4], form[1]])
}

/// Returns the first part, of this form, of a dense tensor with axes N, Z, Y, X, C; nothing is copied if it is the whole.
fn cropped<R: CubeRuntime>(x: CubeTensor<R>, form: [usize; 5]) -> CubeTensor<R> {
    let x_form: [usize; 5] = std::array::from_fn(|axis| x.meta.shape()[axis]);
    if x_form == form {
        return x;
    }
    let y = memory::empty(&x, form, x.dtype);
    memory::copy(x, Layout::of(x_form), form, &y, Layout::of(form));
    y
}

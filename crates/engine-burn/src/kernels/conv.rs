//! A convolution that computes in f32, with bias and activation, and optionally rearranges channels into blocks of voxels.
//!
//! Every unit computes a few neighboring voxels along X and a few vectors of output channels, so that each weight that it
//! reads serves several voxels, and each input several channels.

use super::curve::{Curve, curve};
use super::memory::{
    Dense, LengthsZyx, Place, Reach, empty, length, lengths_zyx, per_element, place, read_at, vector, voxel_number,
};
use super::tile::FactorType;
use super::tiled;
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use burn_tensor::DType;
use cubecl::prelude::*;

/// A convolution. The axes of its weights are tap, input channel, output channel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Convolution {
    /// Lengths of the kernel along Z, Y, X.
    pub kernel: [usize; 3],
    /// Distance between the windows of neighboring outputs along Z, Y, X, in voxels of the input.
    pub stride: [usize; 3],
    /// Number of zeros before the first voxel; negative if the first voxels are not read.
    pub padding: [isize; 3],
    /// Distance between neighboring taps along Z, Y, X, in voxels of the input.
    pub dilation: [usize; 3],
    /// Number of groups of channels, which do not mix. Weights have the input channels of one group.
    pub groups: usize,
    /// Output channels, including those that become voxels.
    pub outputs: usize,
    /// Lengths of the blocks of voxels that output channels become, whose slowest axes are Z, Y, X of the block; 1 each
    /// if they stay channels.
    pub upscale: [usize; 3],
    /// Lengths of the result along Z, Y, X before channels become voxels.
    pub lengths: [usize; 3],
    /// Activation of the result.
    pub curve: Curve,
    /// The type to which factors are rounded for matrix units; `None` multiplies in f32. Devices without such units, and
    /// numbers of channels that do not suit them, are computed in f32, too.
    pub factor_type: Option<FactorType>,
}

/// The properties of a convolution that are fixed when its kernel is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    reach: Reach,
    /// Same as [`Convolution::upscale`].
    upscale: [usize; 3],
    /// Number of vectors of input channels of a group.
    inputs: usize,
    /// Number of vectors of output channels.
    outputs: usize,
    /// Number of vectors of channels of the stored result.
    stored: usize,
    /// Number of vectors of stored channels of a group.
    group_stored: usize,
    /// Voxels along X that a unit computes.
    voxels: usize,
    /// Vectors of output channels that a unit computes.
    vectors: usize,
    /// Whether there is a bias.
    bias: bool,
    curve: super::curve::Kind,
}

#[cube(launch)]
fn convolve<FX: Float, FY: Float, NI: Size, NO: Size>(
    x: &Array<Vector<FX, NI>>,
    weights: &Array<Vector<f32, NO>>,
    bias: &Array<Vector<f32, NO>>,
    y: &mut Array<Vector<FY, NO>>,
    samples: u32,
    lengths: LengthsZyx,
    pitch: u32,
    out_lengths: LengthsZyx,
    columns: u32,
    first: f32,
    second: f32,
    #[comptime] shape: Shape,
    #[define(FX, FY)] _types: [StorageType; 2],
) {
    let outputs = comptime!(shape.outputs as u32);
    let inputs = comptime!(shape.inputs as u32);
    let blocks = comptime!((shape.outputs / shape.vectors) as u32);
    let block_vectors = comptime!(shape.vectors as u32);
    let column_voxels = comptime!(shape.voxels as u32);
    let kernel_z = comptime!(shape.reach.kernel[0] as u32);
    let kernel_y = comptime!(shape.reach.kernel[1] as u32);
    let kernel_x = comptime!(shape.reach.kernel[2] as u32);

    let unit = ABSOLUTE_POS as u32;
    let at = place(unit, out_lengths.depth, out_lengths.height, columns, blocks);
    if at.sample >= samples {
        terminate!();
    }
    let block = at.channel * block_vectors;
    let group = block % comptime!(shape.stored as u32) / comptime!(shape.group_stored as u32);
    let first_input = group * inputs;
    let start = at.x * column_voxels;
    let depth = lengths.depth as i32;
    let height = lengths.height as i32;
    let width = lengths.width as i32;
    let mut sums = Array::<Vector<f32, NO>>::new(comptime!(shape.voxels * shape.vectors));
    begin::<NO>(bias, &mut sums, block, shape);
    for kz in 0..kernel_z {
        let iz = read_at(at.z, kz, 0usize, shape.reach);
        if iz >= 0 && iz < depth {
            for ky in 0..kernel_y {
                let iy = read_at(at.y, ky, 1usize, shape.reach);
                if iy >= 0 && iy < height {
                    let row = voxel_number(at.sample, iz as u32, iy as u32, 0u32, &lengths);
                    for kx in 0..kernel_x {
                        let tap = (kz * kernel_y + ky) * kernel_x + kx;
                        for ic in 0..inputs {
                            accumulate::<FX, NI, NO>(
                                x,
                                weights,
                                &mut sums,
                                read_at(start, kx, 2usize, shape.reach),
                                width,
                                row * pitch + first_input + ic,
                                pitch,
                                (tap * inputs + ic) * outputs,
                                block,
                                shape,
                            );
                        }
                    }
                }
            }
        }
    }
    store::<FY, NO>(&sums, y, &at, &out_lengths, first, second, shape);
}

/// Sets the sums of all voxels to the biases of vectors of channels, from `block` on, or to 0 without biases. Channels that become
/// voxels of the same stored channel have the same bias.
#[cube]
fn begin<NO: Size>(
    bias: &Array<Vector<f32, NO>>,
    sums: &mut Array<Vector<f32, NO>>,
    block: u32,
    #[comptime] shape: Shape,
) {
    let voxels = comptime!(shape.voxels);
    let vectors = comptime!(shape.vectors);
    #[unroll]
    for o in 0..vectors {
        let mut start = Vector::<f32, NO>::new(0.0);
        if comptime!(shape.bias) {
            start = bias[((block + o as u32) % comptime!(shape.stored as u32)) as usize];
        }
        #[unroll]
        for v in 0..voxels {
            sums[v * vectors + o] = start;
        }
    }
}

/// Returns the number of a voxel of the result, counted over all samples: number `in_block`, along X first, of the block that
/// the voxel z, y, x becomes. `lengths` are those before voxels become blocks.
#[cube]
pub(super) fn block_voxel(
    sample: u32,
    z: u32,
    y: u32,
    x: u32,
    in_block: u32,
    lengths: &LengthsZyx,
    #[comptime] upscale: [usize; 3],
) -> u32 {
    let factor_z = comptime!(upscale[0] as u32);
    let factor_y = comptime!(upscale[1] as u32);
    let factor_x = comptime!(upscale[2] as u32);
    let z_at = z * factor_z + in_block / (factor_y * factor_x);
    let y_at = y * factor_y + in_block / factor_x % factor_y;
    let x_at = x * factor_x + in_block % factor_x;
    let slice = sample * (lengths.depth * factor_z) + z_at;
    (slice * (lengths.height * factor_y) + y_at) * (lengths.width * factor_x) + x_at
}

/// Applies the activation to the sums of voxels of a row, and stores them. In `at`, `x` counts the groups of voxels that a
/// unit computes, and `channel` those of vectors.
#[cube]
fn store<FY: Float, NO: Size>(
    sums: &Array<Vector<f32, NO>>,
    y: &mut Array<Vector<FY, NO>>,
    at: &Place,
    lengths: &LengthsZyx,
    first: f32,
    second: f32,
    #[comptime] shape: Shape,
) {
    let voxels = comptime!(shape.voxels);
    let vectors = comptime!(shape.vectors);
    let stored = comptime!(shape.stored as u32);
    let column_voxels = comptime!(shape.voxels as u32);
    let block_vectors = comptime!(shape.vectors as u32);
    #[unroll]
    for v in 0..voxels {
        let ox = at.x * column_voxels + v as u32;
        if ox < lengths.width {
            #[unroll]
            for o in 0..vectors {
                let value = curve::<NO>(sums[v * vectors + o], first, second, shape.curve);
                let channel = at.channel * block_vectors + o as u32;
                let voxel = block_voxel(at.sample, at.z, at.y, ox, channel / stored, lengths, shape.upscale);
                y[(voxel * stored + channel % stored) as usize] = Vector::<FY, NO>::cast_from(value);
            }
        }
    }
}

/// Adds the products of one vector of input channels of each voxel, from `start` along X, with their weights.
#[cube]
fn accumulate<FX: Float, NI: Size, NO: Size>(
    x: &Array<Vector<FX, NI>>,
    weights: &Array<Vector<f32, NO>>,
    sums: &mut Array<Vector<f32, NO>>,
    start: i32,
    width: i32,
    row: u32,
    pitch: u32,
    tap: u32,
    block: u32,
    #[comptime] shape: Shape,
) {
    let voxels = comptime!(shape.voxels);
    let vectors = comptime!(shape.vectors);
    let stride = comptime!(shape.reach.stride[2] as i32);
    let outputs = comptime!(shape.outputs as u32);
    let lanes = NI::value();
    let lanes_wide = comptime!(lanes as u32);
    let mut inputs = Array::<Vector<f32, NI>>::new(comptime!(shape.voxels));
    #[unroll]
    for v in 0..voxels {
        let at = start + v as i32 * stride;
        let mut value = Vector::<f32, NI>::new(0.0);
        if at >= 0 && at < width {
            value = Vector::<f32, NI>::cast_from(x[(row + at as u32 * pitch) as usize]);
        }
        inputs[v] = value;
    }
    #[unroll]
    for lane in 0..lanes {
        let from = tap * lanes_wide + lane as u32 * outputs + block;
        #[unroll]
        for o in 0..vectors {
            let weight = weights[from as usize + o];
            #[unroll]
            for v in 0..voxels {
                let input = inputs[v];
                let sum = sums[v * vectors + o];
                sums[v * vectors + o] = sum + Vector::<f32, NO>::new(input[lane]) * weight;
            }
        }
    }
}

/// Convolves `x`, with one launch, to elements of type `to`. `weights` and `bias` are dense; without `bias`, nothing is added.
pub(super) fn launch<R: CubeRuntime>(
    x: Dense<R>,
    weights: CubeTensor<R>,
    bias: Option<CubeTensor<R>>,
    by: &Convolution,
    to: DType,
) -> CubeTensor<R> {
    if let Some(factor_type) = by.factor_type
        && let Some(y) = tiled::launch(&x, &weights, bias.as_ref(), by, factor_type, to)
    {
        return y;
    }
    let [samples, depth, height, width, inputs] = x.form;
    let block_voxels: usize = by.upscale.iter().product();
    let stored = by.outputs / block_voxels;
    let (group_inputs, group_stored) = (inputs / by.groups, stored / by.groups);
    let (wide, narrow) = (vector(&x, group_inputs), if group_stored.is_multiple_of(4) { 4 } else { 1 });
    let vectors = by.outputs / narrow;
    // The vectors of a unit are in one group.
    let may_pair = if by.groups == 1 { vectors } else { group_stored / narrow };
    let shape = Shape {
        reach: Reach { kernel: by.kernel, stride: by.stride, padding: by.padding, dilation: by.dilation },
        upscale: by.upscale,
        inputs: group_inputs / wide,
        outputs: vectors,
        stored: stored / narrow,
        group_stored: group_stored / narrow,
        voxels: if by.lengths[2] >= 4 { 4 } else { 1 },
        vectors: if may_pair.is_multiple_of(2) { 2 } else { 1 },
        bias: bias.is_some(),
        curve: by.curve.kind,
    };
    let columns = by.lengths[2].div_ceil(shape.voxels);
    let count = samples * by.lengths[0] * by.lengths[1] * columns * (vectors / shape.vectors);
    let scaled = |a: usize| by.lengths[a] * by.upscale[a];
    let y = empty(&x.tensor, [samples, scaled(0), scaled(1), scaled(2), stored], to);
    let types = [x.tensor.dtype.into(), to.into()];
    let (client, cubes, dim) = per_element(&x.tensor, count);
    convolve::launch::<R>(
        &client,
        cubes,
        dim,
        wide,
        narrow,
        x.tensor.clone().into_array_arg(),
        weights.into_array_arg(),
        bias.unwrap_or_else(|| unread(&x.tensor)).into_array_arg(),
        y.clone().into_array_arg(),
        length(samples),
        lengths_zyx([depth, height, width]),
        length(x.pitch / wide),
        lengths_zyx(by.lengths),
        length(columns),
        by.curve.first,
        by.curve.second,
        shape,
        types,
    );
    y
}

/// Returns a small tensor for an argument that a kernel does not read.
pub(super) fn unread<R: CubeRuntime>(like: &CubeTensor<R>) -> CubeTensor<R> {
    empty(like, [1, 1, 1, 1, 4], DType::F32)
}

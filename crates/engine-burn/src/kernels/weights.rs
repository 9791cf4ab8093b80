//! The gradient of the weights of a convolution, with sums in f32.
//!
//! These are matrix products with short outer axes and a very long inner axis, the voxels. The voxels are therefore divided
//! into parts: every unit adds up the products of one part for one tap and a few input and output channels, and a second
//! kernel adds up the parts.

use super::division::max_sums;
use super::memory::{
    Dense, LengthsZyx, Reach, empty, length, lengths_zyx, per_element, place, read_at, vector, voxel_number,
};
use super::tile::FactorType;
use super::tiled_gradient;
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use burn_tensor::DType;
use cubecl::prelude::*;

/// Number of voxels whose products a unit adds up if there are enough of them: more would be less accurate.
const VOXELS_PER_UNIT: usize = 1024;
/// Largest number of parts of the voxels.
const MAX_PARTS: usize = 1024;
/// Largest number of sums of all parts, unless a single part has more.
const MAX_SUMS: usize = 1 << 24;

/// The properties of a gradient that are fixed when its kernel is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    reach: Reach,
    /// Number of input channels of a group.
    inputs: usize,
    /// Number of vectors of output channels.
    outputs: usize,
    /// Number of vectors of output channels of a group.
    group_outputs: usize,
    /// Input channels in a vector.
    lanes: usize,
    /// Vectors of input channels that a unit works on.
    input_vectors: usize,
    /// Vectors of output channels that a unit works on.
    output_vectors: usize,
}

/// Adds up the products of the voxels of one part. A part is some of the rows along X of all samples of `dy`.
#[cube(launch)]
fn multiply<FX: Float, FY: Float, NI: Size, NO: Size>(
    x: &Array<Vector<FX, NI>>,
    dy: &Array<Vector<FY, NO>>,
    sums: &mut Array<Vector<f32, NO>>,
    parts: u32,
    rows: u32,
    part_rows: u32,
    lengths: LengthsZyx,
    pitch: u32,
    out_lengths: LengthsZyx,
    out_pitch: u32,
    #[comptime] shape: Shape,
    #[define(FX, FY)] _types: [StorageType; 2],
) {
    let kernel_z = comptime!(shape.reach.kernel[0] as u32);
    let kernel_y = comptime!(shape.reach.kernel[1] as u32);
    let kernel_x = comptime!(shape.reach.kernel[2] as u32);
    let input_vectors = comptime!(shape.input_vectors as u32);
    let output_vectors = comptime!(shape.output_vectors as u32);
    let output_blocks = comptime!((shape.outputs / shape.output_vectors) as u32);
    let blocks =
        comptime!((shape.inputs / shape.lanes / shape.input_vectors * (shape.outputs / shape.output_vectors)) as u32);
    let count = comptime!(shape.input_vectors * shape.lanes * shape.output_vectors);

    // Neighboring units read the same voxels: the blocks of channels come first, then the taps, then the parts.
    let unit = ABSOLUTE_POS as u32;
    let at = place(unit, kernel_z, kernel_y, kernel_x, blocks);
    if at.sample >= parts {
        terminate!();
    }
    let input = at.channel / output_blocks * input_vectors;
    let output = at.channel % output_blocks * output_vectors;
    let first_input = output / comptime!(shape.group_outputs as u32) * comptime!((shape.inputs / shape.lanes) as u32);

    let mut found = Array::<Vector<f32, NO>>::new(comptime!(shape.input_vectors * shape.lanes * shape.output_vectors));
    #[unroll]
    for i in 0..count {
        found[i] = Vector::<f32, NO>::new(0.0);
    }
    let depth = lengths.depth as i32;
    let height = lengths.height as i32;
    let width = lengths.width as i32;
    let out_width = out_lengths.width;
    let mut row = at.sample * part_rows;
    let mut end = row + part_rows;
    if end > rows {
        end = rows;
    }
    while row < end {
        let oy = row % out_lengths.height;
        let oz = row / out_lengths.height % out_lengths.depth;
        let sample = row / out_lengths.height / out_lengths.depth;
        let iz = read_at(oz, at.z, 0usize, shape.reach);
        let iy = read_at(oy, at.y, 1usize, shape.reach);
        if iz >= 0 && iz < depth && iy >= 0 && iy < height {
            let line = voxel_number(sample, iz as u32, iy as u32, 0u32, &lengths);
            for ox in 0..out_width {
                let ix = read_at(ox, at.x, 2usize, shape.reach);
                if ix >= 0 && ix < width {
                    let x_at = (line + ix as u32) * pitch + first_input + input;
                    let dy_at = (row * out_width + ox) * out_pitch + output;
                    add_products::<FX, FY, NI, NO>(x, dy, &mut found, x_at, dy_at, shape);
                }
            }
        }
        row += 1;
    }
    let tap = (at.z * kernel_y + at.y) * kernel_x + at.x;
    store::<NO>(&found, sums, at.sample, tap, input, output, shape);
}

/// Stores the sums of a part and a tap for a few channels; `input` and `output` are the first vectors of channels.
#[cube]
fn store<NO: Size>(
    found: &Array<Vector<f32, NO>>,
    sums: &mut Array<Vector<f32, NO>>,
    part: u32,
    tap: u32,
    input: u32,
    output: u32,
    #[comptime] shape: Shape,
) {
    let taps = comptime!((shape.reach.kernel[0] * shape.reach.kernel[1] * shape.reach.kernel[2]) as u32);
    let inputs = comptime!(shape.inputs as u32);
    let outputs = comptime!(shape.outputs as u32);
    let lanes = comptime!(shape.lanes as u32);
    let channels = comptime!(shape.input_vectors * shape.lanes);
    let vectors = comptime!(shape.output_vectors);
    let first = (part * taps + tap) * inputs + input * lanes;
    #[unroll]
    for i in 0..channels {
        let to = (first + i as u32) * outputs + output;
        #[unroll]
        for o in 0..vectors {
            sums[to as usize + o] = found[i * vectors + o];
        }
    }
}

/// Adds the products of a few input channels of one voxel with a few channels of the output gradient.
#[cube]
fn add_products<FX: Float, FY: Float, NI: Size, NO: Size>(
    x: &Array<Vector<FX, NI>>,
    dy: &Array<Vector<FY, NO>>,
    sums: &mut Array<Vector<f32, NO>>,
    x_at: u32,
    dy_at: u32,
    #[comptime] shape: Shape,
) {
    let input_vectors = comptime!(shape.input_vectors);
    let vectors = comptime!(shape.output_vectors);
    let lanes = comptime!(shape.lanes);
    #[unroll]
    for i in 0..input_vectors {
        let input = Vector::<f32, NI>::cast_from(x[x_at as usize + i]);
        #[unroll]
        for o in 0..vectors {
            let gradient = Vector::<f32, NO>::cast_from(dy[dy_at as usize + o]);
            #[unroll]
            for lane in 0..lanes {
                let sum = sums[(i * lanes + lane) * vectors + o];
                sums[(i * lanes + lane) * vectors + o] = sum + Vector::<f32, NO>::new(input[lane]) * gradient;
            }
        }
    }
}

/// Adds up the sums of all parts, whose axes are part, tap, input and output channel. The axes of the result are output
/// channel, input channel, tap.
#[cube(launch)]
fn add_parts<F: Float>(
    sums: &Array<f32>,
    y: &mut Array<F>,
    parts: u32,
    taps: u32,
    inputs: u32,
    outputs: u32,
    #[define(F)] _type: StorageType,
) {
    let unit = ABSOLUTE_POS as u32;
    let count = taps * inputs * outputs;
    if unit >= count {
        terminate!();
    }
    let output = unit % outputs;
    let rest = unit / outputs;
    let input = rest % inputs;
    let tap = rest / inputs;
    let mut sum = 0.0f32;
    for part in 0..parts {
        sum += sums[(part * count + unit) as usize];
    }
    y[((output * inputs + input) * taps + tap) as usize] = F::cast_from(sum);
}

/// Returns the number of parts of the voxels of the output, for this many weights.
fn part_count(voxels: usize, weights: usize) -> usize {
    let most = (MAX_SUMS / weights.max(1)).clamp(1, MAX_PARTS);
    voxels.div_ceil(VOXELS_PER_UNIT).clamp(1, most)
}

/// Returns the largest number of sums that the gradient of this many weights with `taps` taps holds, for an output of
/// `voxels` voxels in all samples.
pub(crate) fn sum_count(voxels: usize, weights: usize, taps: usize) -> usize {
    let sums = part_count(voxels, weights) * weights;
    sums.max(max_sums(weights, taps))
}

/// Returns how many neighboring vectors a unit works on.
fn at_once(vectors: usize) -> usize {
    if vectors.is_multiple_of(2) { 2 } else { 1 }
}

/// Returns the gradient of the weights in the type of `x`, axes O, I, Z, Y, X, with two launches: for each output channel, input channel
/// and tap, the products of the voxels of `x` that the tap reads with those of `dy`, summed over samples and space. Matrix
/// units multiply factors of the type `factor_type`, if there is one and it suits.
pub(super) fn gradient<R: CubeRuntime>(
    x: Dense<R>,
    dy: Dense<R>,
    reach: Reach,
    groups: usize,
    factor_type: Option<FactorType>,
) -> CubeTensor<R> {
    let (inputs, outputs) = (x.form[4] / groups, dy.form[4]);
    let taps: usize = reach.kernel.iter().product();
    let (client, cubes, dim) = per_element(&x.tensor, taps * inputs * outputs);
    let [kernel_z, kernel_y, kernel_x] = reach.kernel;
    let dtype = x.tensor.dtype;
    let made = empty(&x.tensor, [outputs, inputs, kernel_z, kernel_y, kernel_x], dtype);
    let tiled = factor_type.filter(|_| groups == 1).and_then(|of| tiled_gradient::partial_sums(&x, &dy, reach, of));
    let (sums, parts) = tiled.unwrap_or_else(|| partial_sums(x, dy, reach, groups));
    add_parts::launch::<R>(
        &client,
        cubes,
        dim,
        sums.into_array_arg(),
        made.clone().into_array_arg(),
        length(parts),
        length(taps),
        length(inputs),
        length(outputs),
        dtype.into(),
    );
    made
}

/// Returns sums of products whose axes are part, tap, input channel and output channel, and the number of parts, with one
/// launch.
fn partial_sums<R: CubeRuntime>(x: Dense<R>, dy: Dense<R>, reach: Reach, groups: usize) -> (CubeTensor<R>, usize) {
    let [_, depth, height, width, channels] = x.form;
    let inputs = channels / groups;
    let [samples, out_depth, out_height, out_width, outputs] = dy.form;
    let (lanes, narrow) = (vector(&x, inputs), vector(&dy, outputs / groups));
    let group_outputs = outputs / groups / narrow;
    let shape = Shape {
        reach,
        inputs,
        outputs: outputs / narrow,
        group_outputs,
        lanes,
        input_vectors: at_once(inputs / lanes),
        output_vectors: at_once(group_outputs),
    };
    let taps: usize = reach.kernel.iter().product();
    let rows = samples * out_depth * out_height;
    let wanted = part_count(rows * out_width, taps * inputs * outputs);
    let part_rows = rows.div_ceil(wanted).max(1);
    let parts = rows.div_ceil(part_rows);

    let sums = empty(&x.tensor, [parts, taps, inputs, outputs, 1], DType::F32);
    let blocks = inputs / lanes / shape.input_vectors * (shape.outputs / shape.output_vectors);
    let types = [x.tensor.dtype.into(), dy.tensor.dtype.into()];
    let (client, cubes, dim) = per_element(&x.tensor, parts * taps * blocks);
    multiply::launch::<R>(
        &client,
        cubes,
        dim,
        lanes,
        narrow,
        x.tensor.clone().into_array_arg(),
        dy.tensor.into_array_arg(),
        sums.clone().into_array_arg(),
        length(parts),
        length(rows),
        length(part_rows),
        lengths_zyx([depth, height, width]),
        length(x.pitch / lanes),
        lengths_zyx([out_depth, out_height, out_width]),
        length(dy.pitch / narrow),
        shape,
        types,
    );
    (sums, parts)
}

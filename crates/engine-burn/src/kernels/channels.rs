//! Softmax and ArgMax over the channels of each voxel. Each unit computes a voxel.

use super::memory::{Dense, empty, length, per_element};
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use burn_tensor::DType;
use cubecl::prelude::*;

/// Computes softmax, or its logarithm if `log`, over the channels of a voxel. The largest channel is subtracted first, so that
/// no exponential overflows.
#[cube(launch)]
fn softmax_channels<FX: Float, FY: Float>(
    x: &Array<FX>,
    y: &mut Array<FY>,
    count: u32,
    channels: u32,
    pitch: u32,
    #[comptime] log: bool,
    #[define(FX, FY)] _types: [StorageType; 2],
) {
    let voxel = ABSOLUTE_POS as u32;
    if voxel >= count {
        terminate!();
    }
    let from = voxel * pitch;
    let mut largest = f32::cast_from(x[from as usize]);
    for channel in 1u32..channels {
        largest = max(largest, f32::cast_from(x[(from + channel) as usize]));
    }
    // NaN makes the sum NaN, and with it all channels.
    let mut sum = 0.0f32;
    for channel in 0u32..channels {
        let above = f32::cast_from(x[(from + channel) as usize]) - largest;
        sum += above.exp();
    }
    for channel in 0u32..channels {
        let above = f32::cast_from(x[(from + channel) as usize]) - largest;
        let mut value = above.exp() / sum;
        if comptime!(log) {
            value = above - sum.ln();
        }
        y[(voxel * channels + channel) as usize] = FY::cast_from(value);
    }
}

/// Returns the softmax, or its logarithm, over the channels of each voxel, with one launch, with elements of type `to`.
pub(super) fn softmax<R: CubeRuntime>(x: Dense<R>, log: bool, to: DType) -> CubeTensor<R> {
    let (count, channels, types) = (x.voxels(), x.form[4], [x.tensor.dtype.into(), to.into()]);
    let y = empty(&x.tensor, x.form, to);
    let (client, cubes, dim) = per_element(&x.tensor, count);
    softmax_channels::launch::<R>(
        &client,
        cubes,
        dim,
        x.tensor.into_array_arg(),
        y.clone().into_array_arg(),
        length(count),
        length(channels),
        length(x.pitch),
        log,
        types,
    );
    y
}

/// Finds the first channel with the largest product with `sign`, in the order that starts at channel `start` and goes `forward`
/// or `backward` (1 and 0, or 0 and 1). `zero` is 0: voxels with NaN, or with infinity as the result, get NaN.
#[cube(launch)]
fn search_channels<FX: Float>(
    x: &Array<FX>,
    y: &mut Array<f32>,
    count: u32,
    channels: u32,
    pitch: u32,
    sign: f32,
    start: u32,
    forward: u32,
    backward: u32,
    zero: f32,
    #[define(FX)] _type: StorageType,
) {
    let voxel = ABSOLUTE_POS as u32;
    if voxel >= count {
        terminate!();
    }
    let from = voxel * pitch;
    let mut best = f32::cast_from(x[(from + start) as usize]) * sign;
    let mut position = start;
    // Finite for all numbers but NaN.
    let mut sum = 1.0f32 / (1.0f32 + best * best);
    for channel in 1u32..channels {
        let at = start + channel * forward - channel * backward;
        let value = f32::cast_from(x[(from + at) as usize]) * sign;
        sum += 1.0f32 / (1.0f32 + value * value);
        if value > best {
            best = value;
            position = at;
        }
    }
    y[voxel as usize] = f32::cast_from(position) + (sum + max(best, -1e30f32)) * zero;
}

/// Returns the index of the channel with the largest (`max`) or smallest value of each voxel, as f32 with axes N, Z, Y, X, 1; of
/// equal values, the first or the `last`. Takes one launch.
pub(super) fn search<R: CubeRuntime>(x: Dense<R>, max: bool, last: bool) -> CubeTensor<R> {
    let (count, [samples, depth, height, width, channels]) = (x.voxels(), x.form);
    let y = empty(&x.tensor, [samples, depth, height, width, 1], DType::F32);
    let (start, forward) = if last { (channels.saturating_sub(1), 0) } else { (0, 1) };
    let kind = x.tensor.dtype.into();
    let (client, cubes, dim) = per_element(&x.tensor, count);
    search_channels::launch::<R>(
        &client,
        cubes,
        dim,
        x.tensor.into_array_arg(),
        y.clone().into_array_arg(),
        length(count),
        length(channels),
        length(x.pitch),
        if max { 1.0 } else { -1.0 },
        length(start),
        forward,
        1 - forward,
        0.0,
        kind,
    );
    y
}

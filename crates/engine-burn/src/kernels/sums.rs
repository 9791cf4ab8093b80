//! Sums of training steps, in f32: those of each channel, and of the squares of many numbers.

use super::memory::{Dense, empty, length, per_element, vector};
use super::norm::{FOLD_UNITS, add_rows};
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use burn_tensor::DType;
use cubecl::prelude::*;

/// Number of numbers that a unit adds up if there are enough of them.
const NUMBERS_PER_UNIT: usize = 256;
/// Largest number of partial sums of a channel or a tensor.
const MAX_PARTS: usize = 1024;

/// Maximum number of channels: WebGPU starts at most 65,535 cubes along an axis.
pub(super) const MAX_CHANNELS: usize = 65_535;

/// Returns how many partial sums there are of this many numbers.
fn part_count(numbers: usize) -> usize {
    numbers.div_ceil(NUMBERS_PER_UNIT).clamp(1, MAX_PARTS)
}

/// Adds up a part of each channel: every unit reads one vector of channels of every `parts`-th voxel.
#[cube(launch)]
fn add_channels<F: Float, N: Size>(
    x: &Array<Vector<F, N>>,
    sums: &mut Array<Vector<f32, N>>,
    voxels: u32,
    pitch: u32,
    parts: u32,
    #[comptime] vectors: u32,
    #[define(F)] _type: StorageType,
) {
    let unit = ABSOLUTE_POS as u32;
    let channel = unit % vectors;
    let part = unit / vectors;
    if part >= parts {
        terminate!();
    }
    let mut sum = Vector::<f32, N>::new(0.0);
    let mut voxel = part;
    while voxel < voxels {
        sum += Vector::<f32, N>::cast_from(x[(voxel * pitch + channel) as usize]);
        voxel += parts;
    }
    sums[unit as usize] = sum;
}

/// Adds up the partial sums of a channel. A cube works on a channel.
#[cube(launch)]
fn fold_channels<F: Float>(
    sums: &Array<f32>,
    y: &mut Array<F>,
    parts: u32,
    #[comptime] channels: u32,
    #[comptime] units: u32,
    #[define(F)] _type: StorageType,
) {
    let channel = CUBE_POS as u32;
    let mut unit_sums = SharedMemory::<f32>::new(comptime!(units as usize));
    let mut row_sums = SharedMemory::<f32>::new(1usize);
    add_rows(sums, &mut unit_sums, &mut row_sums, channel, parts, 1u32, channels, units);
    if UNIT_POS == 0 {
        y[channel as usize] = F::cast_from(row_sums[0]);
    }
}

/// Returns the sum of each channel over samples and space in the type of `x` (axes C, 1, 1, 1, 1), with two launches.
pub(super) fn channel_sums<R: CubeRuntime>(x: Dense<R>) -> CubeTensor<R> {
    let channels = x.form[4];
    let (voxels, vector_len, dtype) = (x.voxels(), vector(&x, channels), x.tensor.dtype);
    let parts = part_count(voxels);
    let sums = empty(&x.tensor, [parts, channels, 1, 1, 1], DType::F32);
    let (client, cubes, dim) = per_element(&x.tensor, parts * (channels / vector_len));
    add_channels::launch::<R>(
        &client,
        cubes,
        dim,
        vector_len,
        x.tensor.into_array_arg(),
        sums.clone().into_array_arg(),
        length(voxels),
        length(x.pitch / vector_len),
        length(parts),
        length(channels / vector_len),
        dtype.into(),
    );
    let y = empty(&sums, [channels, 1, 1, 1, 1], dtype);
    fold_channels::launch::<R>(
        &client,
        CubeCount::Static(length(channels), 1, 1),
        CubeDim::new_1d(FOLD_UNITS),
        sums.into_array_arg(),
        y.clone().into_array_arg(),
        length(parts),
        length(channels),
        FOLD_UNITS,
        dtype.into(),
    );
    y
}

/// Adds up the squares of a part of the numbers: every unit reads every `parts`-th one.
#[cube(launch)]
fn add_squares(x: &Array<f32>, sums: &mut Array<f32>, count: u32, parts: u32, first: u32) {
    let unit = ABSOLUTE_POS as u32;
    if unit >= parts {
        terminate!();
    }
    let mut sum = 0.0f32;
    let mut at = unit;
    while at < count {
        let value = x[at as usize];
        sum += value * value;
        at += parts;
    }
    sums[(first + unit) as usize] = sum;
}

/// Computes the square root of a sum, with one cube.
#[cube(launch)]
fn root_of_sum(sums: &Array<f32>, y: &mut Array<f32>, parts: u32, #[comptime] units: u32) {
    let mut unit_sums = SharedMemory::<f32>::new(comptime!(units as usize));
    let mut row_sums = SharedMemory::<f32>::new(1usize);
    add_rows(sums, &mut unit_sums, &mut row_sums, 0u32, parts, 1u32, 1u32, units);
    if UNIT_POS == 0 {
        y[0] = row_sums[0].sqrt();
    }
}

/// Returns the L2 norm of all numbers of these arrays of f32 (axes 1, 1, 1, 1, 1), with a launch for each array and one more.
/// Returns `None` if there are no arrays.
pub(super) fn global_norm<R: CubeRuntime>(arrays: Vec<CubeTensor<R>>) -> Option<CubeTensor<R>> {
    let counts: Vec<usize> = arrays.iter().map(|array| array.meta.num_elements()).collect();
    let all: usize = counts.iter().map(|count| part_count(*count)).sum();
    let like = arrays.first()?.clone();
    let sums = empty(&like, [all, 1, 1, 1, 1], DType::F32);
    let mut first = 0;
    for (array, count) in arrays.into_iter().zip(counts) {
        let parts = part_count(count);
        let (client, cubes, dim) = per_element(&array, parts);
        add_squares::launch::<R>(
            &client,
            cubes,
            dim,
            array.into_array_arg(),
            sums.clone().into_array_arg(),
            length(count),
            length(parts),
            length(first),
        );
        first += parts;
    }
    let y = empty(&like, [1; 5], DType::F32);
    root_of_sum::launch::<R>(
        &like.client,
        CubeCount::Static(1, 1, 1),
        CubeDim::new_1d(FOLD_UNITS),
        sums.into_array_arg(),
        y.clone().into_array_arg(),
        length(all),
        FOLD_UNITS,
    );
    Some(y)
}

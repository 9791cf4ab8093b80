//! Norms: the statistics of each sample and channel become a factor and a shift, which are applied together with the
//! activation and, in residual blocks, with the sum.

use super::curve::{Curve, Kind, curve};
use super::memory::{
    self, ALIGNMENT, Dense, VoxelVector, empty, length, per_element, read_vector, vector, voxel_vector,
};
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use burn_tensor::DType;
use cubecl::prelude::*;

/// Number of units that add up the partial sums of a channel.
pub(super) const FOLD_UNITS: u32 = 64;
/// Number of voxels that a unit adds up if there are enough of them.
const VOXELS_PER_UNIT: usize = 256;
/// Maximum number of partial sums of a channel.
const MAX_PARTS: usize = 1024;

/// Adds up a part of each channel: every unit reads one vector of channels of every `parts`-th voxel. Numbers are taken
/// relative to those of the sample's first voxel, so that their squares do not cancel out if the mean is large.
#[cube(launch)]
fn add_up<F: Float, N: Size>(
    x: &Array<Vector<F, N>>,
    sums: &mut Array<Vector<f32, N>>,
    samples: u32,
    voxels: u32,
    pitch: u32,
    parts: u32,
    #[comptime] vectors: u32,
    #[define(F)] _type: StorageType,
) {
    let unit = ABSOLUTE_POS as u32;
    let channel = unit % vectors;
    let part = unit / vectors % parts;
    let sample = unit / vectors / parts;
    if sample >= samples {
        terminate!();
    }
    let first = sample * voxels * pitch + channel;
    let origin = Vector::<f32, N>::cast_from(x[first as usize]);
    let mut sum = Vector::<f32, N>::new(0.0);
    let mut squares = Vector::<f32, N>::new(0.0);
    let mut voxel = part;
    while voxel < voxels {
        let value = Vector::<f32, N>::cast_from(x[(first + voxel * pitch) as usize]) - origin;
        sum += value;
        squares += value * value;
        voxel += parts;
    }
    let to = (sample * parts + part) * (2 * vectors) + channel;
    sums[to as usize] = sum;
    sums[(to + vectors) as usize] = squares;
}

/// Turns the partial sums of a group of channels into a factor and a shift for each channel. A cube works on a group. If
/// `mean_at` is not 0, the mean and the variance of each channel are stored from `mean_at` and `variance_at` on.
#[cube(launch)]
fn fold<F: Float>(
    x: &Array<F>,
    sums: &Array<f32>,
    scale: &Array<f32>,
    bias: &Array<f32>,
    coefficients: &mut Array<f32>,
    voxels: u32,
    pitch: u32,
    parts: u32,
    epsilon: f32,
    #[comptime] channels: u32,
    #[comptime] group: u32,
    #[comptime] units: u32,
    #[comptime] mean_at: u32,
    #[comptime] variance_at: u32,
    #[define(F)] _type: StorageType,
) {
    let groups = comptime!(channels / group);
    let cube = CUBE_POS as u32;
    let sample = cube / groups;
    let start = cube % groups * group;
    let unit = UNIT_POS;
    let count = f32::cast_from(voxels);

    // Two rows with one number for each unit, and their sums.
    let mut unit_sums = SharedMemory::<f32>::new(comptime!((2 * units) as usize));
    let mut row_sums = SharedMemory::<f32>::new(2usize);
    // Mean and sum of squared differences of each channel, then of the group.
    let mut means = SharedMemory::<f32>::new(comptime!(group as usize));
    let mut spreads = SharedMemory::<f32>::new(comptime!(group as usize));
    let mut group_terms = SharedMemory::<f32>::new(3usize);

    for member in 0..group {
        let channel = start + member;
        let first = sample * parts * (2 * channels) + channel;
        add_rows(sums, &mut unit_sums, &mut row_sums, first, parts, 2u32, channels, units);
        if unit == 0 {
            let origin = f32::cast_from(x[(sample * voxels * pitch + channel) as usize]);
            means[member as usize] = origin + row_sums[0] / count;
            spreads[member as usize] = row_sums[1] - row_sums[0] * row_sums[0] / count;
        }
        sync_cube();
    }
    if unit == 0 {
        join_channels(&means, &spreads, &mut group_terms, count, epsilon, group);
    }
    sync_cube();
    let mut member = unit;
    while member < group {
        let channel = start + member;
        let factor = scale[channel as usize] * group_terms[1];
        let to = sample * (2 * channels) + channel;
        coefficients[to as usize] = factor;
        coefficients[(to + channels) as usize] = bias[channel as usize] - group_terms[0] * factor;
        if comptime!(mean_at > 0) {
            coefficients[(channel + mean_at) as usize] = group_terms[0];
            coefficients[(channel + variance_at) as usize] = group_terms[2];
        }
        member += units;
    }
}

/// Adds up rows of partial sums of a channel: `first` is the position of the first part's first row. All units of a cube
/// take part.
#[cube]
pub(super) fn add_rows(
    sums: &Array<f32>,
    unit_sums: &mut SharedMemory<f32>,
    row_sums: &mut SharedMemory<f32>,
    first: u32,
    parts: u32,
    #[comptime] rows: u32,
    #[comptime] channels: u32,
    #[comptime] units: u32,
) {
    let unit = UNIT_POS;
    #[unroll]
    for row in 0..rows {
        let mut sum = 0.0f32;
        let mut part = unit;
        while part < parts {
            sum += sums[(first + part * comptime!(rows * channels) + comptime!(row * channels)) as usize];
            part += units;
        }
        unit_sums[(unit + comptime!(row * units)) as usize] = sum;
    }
    sync_cube();
    if unit < rows {
        let mut all = 0.0f32;
        for other in 0..units {
            all += unit_sums[(unit * units + other) as usize];
        }
        row_sums[unit as usize] = all;
    }
    sync_cube();
}

/// Computes the mean of a group of channels, the reciprocal of its standard deviation and its variance, in this order, from
/// means and sums of squared differences of its channels, of `count` voxels each.
#[cube]
pub(super) fn join_channels(
    means: &SharedMemory<f32>,
    spreads: &SharedMemory<f32>,
    group_terms: &mut SharedMemory<f32>,
    count: f32,
    epsilon: f32,
    #[comptime] group: u32,
) {
    let members = f32::cast_from(group);
    let mut mean = 0.0f32;
    for member in 0..group {
        mean += means[member as usize];
    }
    mean /= members;
    let mut spread = 0.0f32;
    for member in 0..group {
        let distance = means[member as usize] - mean;
        spread += spreads[member as usize] + count * distance * distance;
    }
    // Rounding can make it slightly negative. NaN stays NaN.
    let variance = (spread / (count * members)).abs();
    group_terms[0] = mean;
    group_terms[1] = 1.0f32 / (variance + epsilon).sqrt();
    group_terms[2] = variance;
}

/// Returns the coefficients of a norm of groups of channels, two rows for each sample (axes N, 1, 1, 1, 2·C), with two
/// launches. `scale` and `bias` are dense and have one number for each channel.
pub(super) fn coefficients<R: CubeRuntime>(
    x: &Dense<R>,
    scale: CubeTensor<R>,
    bias: CubeTensor<R>,
    groups: usize,
    epsilon: f32,
) -> CubeTensor<R> {
    fold_channels(x, scale, bias, (groups, epsilon), [0; 2])
}

/// Returns the coefficients of a norm of single channels of one sample, and the mean and the variance of each channel (axes
/// C, 1, 1, 1, 1), with two launches.
pub(super) fn coefficients_and_statistics<R: CubeRuntime>(
    x: &Dense<R>,
    scale: CubeTensor<R>,
    bias: CubeTensor<R>,
    epsilon: f32,
) -> Option<[CubeTensor<R>; 3]> {
    let channels = x.form[4];
    let mean_at = (2 * channels).next_multiple_of(ALIGNMENT);
    let variance_at = mean_at + channels.next_multiple_of(ALIGNMENT);
    let y = fold_channels(x, scale, bias, (channels, epsilon), [mean_at, variance_at]);
    let row = |start: usize| memory::part(&y, start, [channels, 1, 1, 1, 1]);
    let (mean, variance) = (row(mean_at)?, row(variance_at)?);
    Some([y, mean, variance])
}

/// Returns how many partial sums each channel of a sample has.
pub(super) fn part_count(voxels: usize) -> usize {
    voxels.div_ceil(VOXELS_PER_UNIT).clamp(1, MAX_PARTS)
}

/// Computes coefficients for groups of channels, and stores statistics at `statistics` unless these are 0.
fn fold_channels<R: CubeRuntime>(
    x: &Dense<R>,
    scale: CubeTensor<R>,
    bias: CubeTensor<R>,
    (groups, epsilon): (usize, f32),
    statistics: [usize; 2],
) -> CubeTensor<R> {
    let [samples, depth, height, width, channels] = x.form;
    let (voxels, vector_len) = (depth * height * width, vector(x, channels));
    let parts = part_count(voxels);
    let dtype = x.tensor.dtype.into();
    let sums = empty(&x.tensor, [samples, parts, 2, 1, channels], DType::F32);
    let (client, cubes, dim) = per_element(&x.tensor, samples * parts * (channels / vector_len));
    add_up::launch::<R>(
        &client,
        cubes,
        dim,
        vector_len,
        x.tensor.clone().into_array_arg(),
        sums.clone().into_array_arg(),
        length(samples),
        length(voxels),
        length(x.pitch / vector_len),
        length(parts),
        length(channels / vector_len),
        dtype,
    );
    let [mean_at, variance_at] = statistics;
    let form = if mean_at > 0 { [1, 1, 1, 1, variance_at + channels] } else { [samples, 1, 1, 1, 2 * channels] };
    let y = empty(&x.tensor, form, DType::F32);
    fold::launch::<R>(
        &client,
        CubeCount::Static(length(samples * groups), 1, 1),
        CubeDim::new_1d(FOLD_UNITS),
        x.tensor.clone().into_array_arg(),
        sums.into_array_arg(),
        scale.into_array_arg(),
        bias.into_array_arg(),
        y.clone().into_array_arg(),
        length(voxels),
        length(x.pitch),
        length(parts),
        epsilon,
        length(channels),
        length(channels / groups),
        FOLD_UNITS,
        length(mean_at),
        length(variance_at),
        dtype,
    );
    y
}

/// Returns a vector of channels times its factors plus its shifts. Samples have `voxels` voxels; `step` is the number of vectors of
/// coefficients from one sample to the next, 0 if they are common to all.
#[cube]
pub(super) fn scaled<F: Float, N: Size>(
    x: &Array<Vector<F, N>>,
    coefficients: &Array<Vector<f32, N>>,
    at: &VoxelVector,
    voxels: u32,
    pitch: u32,
    step: u32,
    #[comptime] vectors: u32,
) -> Vector<f32, N> {
    let first = at.voxel / voxels * step + at.channel;
    read_vector::<F, N>(x, at, pitch) * coefficients[first as usize] + coefficients[(first + vectors) as usize]
}

/// Applies coefficients and an activation to a tensor.
#[cube(launch)]
fn scale_one<FX: Float, FY: Float, N: Size>(
    x: &Array<Vector<FX, N>>,
    coefficients: &Array<Vector<f32, N>>,
    y: &mut Array<Vector<FY, N>>,
    count: u32,
    voxels: u32,
    pitch: u32,
    step: u32,
    first: f32,
    second: f32,
    #[comptime] vectors: u32,
    #[comptime] kind: Kind,
    #[define(FX, FY)] _types: [StorageType; 2],
) {
    let unit = ABSOLUTE_POS as u32;
    let at = voxel_vector(unit, vectors);
    if at.voxel >= count {
        terminate!();
    }
    let value = scaled::<FX, N>(x, coefficients, &at, voxels, pitch, step, vectors);
    y[unit as usize] = Vector::<FY, N>::cast_from(curve::<N>(value, first, second, kind));
}

/// Applies coefficients to two tensors, adds them, and applies an activation.
#[cube(launch)]
fn scale_two<FX: Float, FO: Float, FY: Float, N: Size>(
    x: &Array<Vector<FX, N>>,
    coefficients: &Array<Vector<f32, N>>,
    other: &Array<Vector<FO, N>>,
    other_coefficients: &Array<Vector<f32, N>>,
    y: &mut Array<Vector<FY, N>>,
    count: u32,
    voxels: u32,
    pitch: u32,
    step: u32,
    other_pitch: u32,
    other_step: u32,
    first: f32,
    second: f32,
    #[comptime] vectors: u32,
    #[comptime] kind: Kind,
    #[define(FX, FO, FY)] _types: [StorageType; 3],
) {
    let unit = ABSOLUTE_POS as u32;
    let at = voxel_vector(unit, vectors);
    if at.voxel >= count {
        terminate!();
    }
    let value = scaled::<FX, N>(x, coefficients, &at, voxels, pitch, step, vectors);
    let more = scaled::<FO, N>(other, other_coefficients, &at, voxels, other_pitch, other_step, vectors);
    y[unit as usize] = Vector::<FY, N>::cast_from(curve::<N>(value + more, first, second, kind));
}

/// A tensor with a factor and an increment for each channel.
pub(super) struct Term<R: CubeRuntime> {
    /// The tensor, axes N, Z, Y, X, C.
    pub x: Dense<R>,
    /// Factors of all channels, followed by their increments: 2·C numbers for each sample, or once for all samples.
    pub coefficients: CubeTensor<R>,
}

impl<R: CubeRuntime> Term<R> {
    /// Returns the distance between the coefficients of two samples, in vectors of this length.
    fn step(&self, vector_len: usize) -> u32 {
        let rows = self.coefficients.meta.shape().num_elements();
        let channels = self.x.form[4];
        if rows == 2 * channels && self.x.form[0] > 1 { 0 } else { length(2 * channels / vector_len) }
    }
}

/// Applies the coefficients to one or two tensors of the same form, adds them, and applies the activation, with one
/// launch. The result has elements of type `to`.
pub(super) fn scale<R: CubeRuntime>(
    term: Term<R>,
    more: Option<Term<R>>,
    activation: Curve,
    to: DType,
) -> CubeTensor<R> {
    let [samples, depth, height, width, channels] = term.x.form;
    let vector_len = more.as_ref().map_or(4, |m| vector(&m.x, channels)).min(vector(&term.x, channels));
    let (voxels, vectors) = (depth * height * width, channels / vector_len);
    let y = empty(&term.x.tensor, term.x.form, to);
    let (client, cubes, dim) = per_element(&term.x.tensor, samples * voxels * vectors);
    let dtype = term.x.tensor.dtype.into();
    let (step, pitch) = (term.step(vector_len), length(term.x.pitch / vector_len));
    match more {
        None => scale_one::launch::<R>(
            &client,
            cubes,
            dim,
            vector_len,
            term.x.tensor.into_array_arg(),
            term.coefficients.into_array_arg(),
            y.clone().into_array_arg(),
            length(samples * voxels),
            length(voxels),
            pitch,
            step,
            activation.first,
            activation.second,
            length(vectors),
            activation.kind,
            [dtype, to.into()],
        ),
        Some(more) => {
            let types = [dtype, more.x.tensor.dtype.into(), to.into()];
            let (other_step, other_pitch) = (more.step(vector_len), length(more.x.pitch / vector_len));
            scale_two::launch::<R>(
                &client,
                cubes,
                dim,
                vector_len,
                term.x.tensor.into_array_arg(),
                term.coefficients.into_array_arg(),
                more.x.tensor.into_array_arg(),
                more.coefficients.into_array_arg(),
                y.clone().into_array_arg(),
                length(samples * voxels),
                length(voxels),
                pitch,
                step,
                other_pitch,
                other_step,
                activation.first,
                activation.second,
                length(vectors),
                activation.kind,
                types,
            );
        }
    }
    y
}

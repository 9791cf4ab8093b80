//! Norms of training steps and their gradients, with sums in f32.
//!
//! For each channel, the gradient needs the statistics of x and two sums. One pass over x and dy computes all of them;
//! a second pass applies the factors that follow from them.

use super::curve::{Curve, Kind, curve};
use super::memory::{self, ALIGNMENT, Dense, empty, length, per_element, read_vector, reshaped, vector, voxel_vector};
use super::norm::{self, FOLD_UNITS, Term, add_rows, join_channels, part_count, scaled};
use crate::plan::NormScope;
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use burn_tensor::DType;
use cubecl::prelude::*;

/// Maximum number of groups of channels of all samples: WebGPU starts at most 65,535 cubes along an axis.
const MAX_GROUPS: usize = 65_535;
/// Maximum number of channels of a group: their sums are in the memory that a cube shares, of which WebGPU guarantees
/// 16 KiB.
const MAX_GROUP_CHANNELS: usize = 512;

/// Returns whether there are kernels for a norm of a tensor with this many samples and channels.
pub(super) fn suits(over: NormScope, samples: usize, channels: usize) -> bool {
    match over {
        NormScope::Groups(groups) => {
            let fits = |groups: usize| samples * groups <= MAX_GROUPS && channels / groups <= MAX_GROUP_CHANNELS;
            groups > 0 && channels.is_multiple_of(groups) && fits(groups)
        }
        NormScope::Batch => channels <= MAX_GROUPS,
    }
}

/// Returns a tensor as one whose samples are normalized separately, and the number of groups of channels of a sample.
fn as_samples<R: CubeRuntime>(x: Dense<R>, over: NormScope) -> (Dense<R>, usize) {
    let [samples, depth, height, width, channels] = x.form;
    match over {
        NormScope::Groups(groups) => (x, groups),
        NormScope::Batch => (Dense { form: [1, samples * depth, height, width, channels], ..x }, channels),
    }
}

/// A normalized tensor.
pub(super) struct Normalized<R: CubeRuntime> {
    /// Axes N, Z, Y, X, C.
    pub y: CubeTensor<R>,
    /// Mean and variance of each channel (axes C, 1, 1, 1, 1) if channels are normalized over the batch.
    pub statistics: Option<[CubeTensor<R>; 2]>,
    /// `y` after the activation, if there is one.
    pub activated: Option<CubeTensor<R>>,
}

/// Normalizes a tensor, and applies an activation to a copy of the result, with three launches. The elements keep their type.
pub(super) fn normalize<R: CubeRuntime>(
    x: Dense<R>,
    scale: CubeTensor<R>,
    bias: CubeTensor<R>,
    (over, epsilon): (NormScope, f32),
    activation: Option<Curve>,
) -> Option<Normalized<R>> {
    let (form, dtype) = (x.form, x.tensor.dtype);
    let (x, groups) = as_samples(x, over);
    let (coefficients, statistics) = match over {
        NormScope::Groups(_) => (norm::coefficients(&x, scale, bias, groups, epsilon), None),
        NormScope::Batch => {
            let [found, mean, variance] = norm::coefficients_and_statistics(&x, scale, bias, epsilon)?;
            (found, Some([mean, variance]))
        }
    };
    let (y, activated) = match activation {
        Some(activation) => {
            let (y, activated) = scale_and_activate(x, coefficients, activation);
            (y, Some(reshaped(activated, form)))
        }
        None => (norm::scale(Term { x, coefficients }, None, Curve::IDENTITY, dtype), None),
    };
    Some(Normalized { y: reshaped(y, form), statistics, activated })
}

/// Applies coefficients, and stores the results before and after the activation.
#[cube(launch)]
fn scale_both<F: Float, N: Size>(
    x: &Array<Vector<F, N>>,
    coefficients: &Array<Vector<f32, N>>,
    y: &mut Array<Vector<F, N>>,
    activated: &mut Array<Vector<F, N>>,
    count: u32,
    voxels: u32,
    pitch: u32,
    step: u32,
    first: f32,
    second: f32,
    #[comptime] vectors: u32,
    #[comptime] kind: Kind,
    #[define(F)] _type: StorageType,
) {
    let unit = ABSOLUTE_POS as u32;
    let at = voxel_vector(unit, vectors);
    if at.voxel >= count {
        terminate!();
    }
    let value = scaled::<F, N>(x, coefficients, &at, voxels, pitch, step, vectors);
    y[unit as usize] = Vector::<F, N>::cast_from(value);
    activated[unit as usize] = Vector::<F, N>::cast_from(curve::<N>(value, first, second, kind));
}

/// Applies the coefficients of each sample, with one launch. Returns the results before and after the activation.
fn scale_and_activate<R: CubeRuntime>(
    x: Dense<R>,
    coefficients: CubeTensor<R>,
    activation: Curve,
) -> (CubeTensor<R>, CubeTensor<R>) {
    let [samples, depth, height, width, channels] = x.form;
    let vector_len = vector(&x, channels);
    let (voxels, vectors) = (depth * height * width, channels / vector_len);
    let dtype = x.tensor.dtype;
    let (y, activated) = (empty(&x.tensor, x.form, dtype), empty(&x.tensor, x.form, dtype));
    let (client, cubes, dim) = per_element(&x.tensor, samples * voxels * vectors);
    scale_both::launch::<R>(
        &client,
        cubes,
        dim,
        vector_len,
        x.tensor.into_array_arg(),
        coefficients.into_array_arg(),
        y.clone().into_array_arg(),
        activated.clone().into_array_arg(),
        length(samples * voxels),
        length(voxels),
        length(x.pitch / vector_len),
        length(2 * vectors),
        activation.first,
        activation.second,
        length(vectors),
        activation.kind,
        dtype.into(),
    );
    (y, activated)
}

/// Returns the derivative of an activation with slope 1 above 0 and `slope` below. Between 0 and 1e-18, where numbers vanish in
/// sums anyway, the result is between both.
#[cube]
pub(super) fn slope_at<N: Size>(y: Vector<f32, N>, slope: f32) -> Vector<f32, N> {
    let one = Vector::<f32, N>::new(1.0);
    let positive = min(max(y, Vector::<f32, N>::new(0.0)), one);
    let above = min(positive * Vector::<f32, N>::new(1e18), one);
    above + (one - above) * Vector::<f32, N>::new(slope)
}

/// Adds up a part of each channel: every unit reads one vector of channels of every `parts`-th voxel. The sums are those of
/// x, its squares, dy and the products of both, with x relative to the sample's first voxel. If `is_activated`, dy is
/// multiplied by the derivative of the activation at y.
#[cube(launch)]
fn add_up<FX: Float, FG: Float, N: Size>(
    x: &Array<Vector<FX, N>>,
    dy: &Array<Vector<FG, N>>,
    y: &Array<Vector<FG, N>>,
    sums: &mut Array<Vector<f32, N>>,
    samples: u32,
    voxels: u32,
    pitch: u32,
    dy_pitch: u32,
    y_pitch: u32,
    parts: u32,
    slope: f32,
    #[comptime] vectors: u32,
    #[comptime] is_activated: bool,
    #[define(FX, FG)] _types: [StorageType; 2],
) {
    let unit = ABSOLUTE_POS as u32;
    let channel = unit % vectors;
    let part = unit / vectors % parts;
    let sample = unit / vectors / parts;
    if sample >= samples {
        terminate!();
    }
    let first = sample * voxels * pitch + channel;
    let dy_first = sample * voxels * dy_pitch + channel;
    let y_first = sample * voxels * y_pitch + channel;
    let origin = Vector::<f32, N>::cast_from(x[first as usize]);
    let mut sum = Vector::<f32, N>::new(0.0);
    let mut squares = Vector::<f32, N>::new(0.0);
    let mut gradients = Vector::<f32, N>::new(0.0);
    let mut products = Vector::<f32, N>::new(0.0);
    let mut voxel = part;
    while voxel < voxels {
        let value = Vector::<f32, N>::cast_from(x[(first + voxel * pitch) as usize]) - origin;
        let mut gradient = Vector::<f32, N>::cast_from(dy[(dy_first + voxel * dy_pitch) as usize]);
        if comptime!(is_activated) {
            let result = Vector::<f32, N>::cast_from(y[(y_first + voxel * y_pitch) as usize]);
            gradient *= slope_at::<N>(result, slope);
        }
        sum += value;
        squares += value * value;
        gradients += gradient;
        products += value * gradient;
        voxel += parts;
    }
    let to = (sample * parts + part) * (4 * vectors) + channel;
    sums[to as usize] = sum;
    sums[(to + vectors) as usize] = squares;
    sums[(to + 2 * vectors) as usize] = gradients;
    sums[(to + 3 * vectors) as usize] = products;
}

/// Turns the partial sums of a group of channels into four coefficients for each sample and channel: the factor of dy, the
/// mean of x, the factor of the distance of x from it, and a shift. Also adds up the gradients of scale and bias over all
/// samples. A cube works on a group.
#[cube(launch)]
fn fold<F: Float>(
    x: &Array<F>,
    sums: &Array<f32>,
    scale: &Array<f32>,
    coefficients: &mut Array<f32>,
    gradients: &mut Array<f32>,
    voxels: u32,
    pitch: u32,
    parts: u32,
    epsilon: f32,
    #[comptime] samples: u32,
    #[comptime] channels: u32,
    #[comptime] group: u32,
    #[comptime] units: u32,
    #[comptime] bias_at: u32,
    #[define(F)] _type: StorageType,
) {
    let cube = CUBE_POS as u32;
    let start = cube * group;
    let unit = UNIT_POS;
    let count = f32::cast_from(voxels);

    // Four rows with one number for each unit, and their sums.
    let mut unit_sums = SharedMemory::<f32>::new(comptime!((4 * units) as usize));
    let mut row_sums = SharedMemory::<f32>::new(4usize);
    // Mean and sum of squared differences of each channel, sum of dy, and sum of the products of dy with x - mean.
    let mut means = SharedMemory::<f32>::new(comptime!(group as usize));
    let mut spreads = SharedMemory::<f32>::new(comptime!(group as usize));
    let mut totals = SharedMemory::<f32>::new(comptime!(group as usize));
    let mut products = SharedMemory::<f32>::new(comptime!(group as usize));
    // Gradients of scale and bias.
    let mut scale_sums = SharedMemory::<f32>::new(comptime!(group as usize));
    let mut bias_sums = SharedMemory::<f32>::new(comptime!(group as usize));
    // Mean, reciprocal of the standard deviation, variance, factor and shift of the group.
    let mut group_terms = SharedMemory::<f32>::new(5usize);

    let mut reset = unit;
    while reset < group {
        scale_sums[reset as usize] = 0.0f32;
        bias_sums[reset as usize] = 0.0f32;
        reset += units;
    }
    for sample in 0..samples {
        for member in 0..group {
            let channel = start + member;
            let first = sample * parts * (4 * channels) + channel;
            add_rows(sums, &mut unit_sums, &mut row_sums, first, parts, 4u32, channels, units);
            if unit == 0 {
                let origin = f32::cast_from(x[(sample * voxels * pitch + channel) as usize]);
                center_sums(&row_sums, &mut means, &mut spreads, &mut totals, &mut products, member, origin, count);
            }
            sync_cube();
        }
        if unit == 0 {
            join_channels(&means, &spreads, &mut group_terms, count, epsilon, group);
            join_gradients(&means, &totals, &products, scale, &mut group_terms, start, count, group);
        }
        sync_cube();
        store_coefficients(scale, coefficients, &group_terms, sample, start, channels, group, units);
        add_sample(&means, &totals, &products, &group_terms, &mut scale_sums, &mut bias_sums, group, units);
        sync_cube();
    }
    let mut stored = unit;
    while stored < group {
        let channel = start + stored;
        gradients[channel as usize] = scale_sums[stored as usize];
        gradients[(channel + bias_at) as usize] = bias_sums[stored as usize];
        stored += units;
    }
}

/// Stores the results of a channel's sums, in which x was shifted by −`origin`: the mean of x, the sum of its squared
/// differences from the mean, the sum of dy, and that of the products of dy with x - mean.
#[cube]
fn center_sums(
    row_sums: &SharedMemory<f32>,
    means: &mut SharedMemory<f32>,
    spreads: &mut SharedMemory<f32>,
    totals: &mut SharedMemory<f32>,
    products: &mut SharedMemory<f32>,
    member: u32,
    origin: f32,
    count: f32,
) {
    let away = row_sums[0] / count;
    means[member as usize] = origin + away;
    spreads[member as usize] = row_sums[1] - row_sums[0] * away;
    totals[member as usize] = row_sums[2];
    products[member as usize] = row_sums[3] - row_sums[2] * away;
}

/// Stores the coefficients of the channels of a group for one sample; `start` is the group's first channel.
#[cube]
fn store_coefficients(
    scale: &Array<f32>,
    coefficients: &mut Array<f32>,
    group_terms: &SharedMemory<f32>,
    sample: u32,
    start: u32,
    #[comptime] channels: u32,
    #[comptime] group: u32,
    #[comptime] units: u32,
) {
    let mut index = UNIT_POS;
    while index < group {
        let channel = start + index;
        let to = sample * (4 * channels) + channel;
        coefficients[to as usize] = scale[channel as usize] * group_terms[1];
        coefficients[(to + channels) as usize] = group_terms[0];
        coefficients[(to + 2 * channels) as usize] = group_terms[3];
        coefficients[(to + 3 * channels) as usize] = group_terms[4];
        index += units;
    }
}

/// Adds a sample to the gradients of scale and bias of the channels of a group.
#[cube]
fn add_sample(
    means: &SharedMemory<f32>,
    totals: &SharedMemory<f32>,
    products: &SharedMemory<f32>,
    group_terms: &SharedMemory<f32>,
    scale_sums: &mut SharedMemory<f32>,
    bias_sums: &mut SharedMemory<f32>,
    #[comptime] group: u32,
    #[comptime] units: u32,
) {
    let mut index = UNIT_POS;
    while index < group {
        let total = totals[index as usize];
        let product = products[index as usize] + (means[index as usize] - group_terms[0]) * total;
        let scale_before = scale_sums[index as usize];
        let bias_before = bias_sums[index as usize];
        scale_sums[index as usize] = scale_before + product * group_terms[1];
        bias_sums[index as usize] = bias_before + total;
        index += units;
    }
}

/// Computes the terms that the gradients of all elements of a group share: the factor of their distances from the mean,
/// and a shift. With r the reciprocal of the standard deviation and g = dy · scale, these are −r³ · mean(g · (x − mean)) and
/// −r · mean(g).
#[cube]
fn join_gradients(
    means: &SharedMemory<f32>,
    totals: &SharedMemory<f32>,
    products: &SharedMemory<f32>,
    scale: &Array<f32>,
    group_terms: &mut SharedMemory<f32>,
    start: u32,
    count: f32,
    #[comptime] group: u32,
) {
    let members = f32::cast_from(group);
    let elements = count * members;
    let mean = group_terms[0];
    let inverse = group_terms[1];
    let mut all = 0.0f32;
    let mut all_products = 0.0f32;
    for member in 0..group {
        let factor = scale[(start + member) as usize];
        let total = totals[member as usize];
        all += factor * total;
        all_products += factor * (products[member as usize] + (means[member as usize] - mean) * total);
    }
    group_terms[3] = 0.0f32 - inverse * inverse * inverse * (all_products / elements);
    group_terms[4] = 0.0f32 - inverse * (all / elements);
}

/// Applies the coefficients of [`fold`] to x and dy. If `is_activated`, dy is multiplied by the derivative of the activation at
/// y.
#[cube(launch)]
fn apply<FX: Float, FG: Float, N: Size>(
    x: &Array<Vector<FX, N>>,
    dy: &Array<Vector<FG, N>>,
    y: &Array<Vector<FG, N>>,
    coefficients: &Array<Vector<f32, N>>,
    dx: &mut Array<Vector<FX, N>>,
    count: u32,
    voxels: u32,
    pitch: u32,
    dy_pitch: u32,
    y_pitch: u32,
    slope: f32,
    #[comptime] vectors: u32,
    #[comptime] is_activated: bool,
    #[define(FX, FG)] _types: [StorageType; 2],
) {
    let unit = ABSOLUTE_POS as u32;
    let at = voxel_vector(unit, vectors);
    if at.voxel >= count {
        terminate!();
    }
    let first = at.voxel / voxels * (4 * vectors) + at.channel;
    let away = read_vector::<FX, N>(x, &at, pitch) - coefficients[(first + vectors) as usize];
    let mut gradient = read_vector::<FG, N>(dy, &at, dy_pitch);
    if comptime!(is_activated) {
        let result = read_vector::<FG, N>(y, &at, y_pitch);
        gradient *= slope_at::<N>(result, slope);
    }
    let value = gradient * coefficients[first as usize]
        + away * coefficients[(first + 2 * vectors) as usize]
        + coefficients[(first + 3 * vectors) as usize];
    dx[unit as usize] = Vector::<FX, N>::cast_from(value);
}

/// Gradients of a norm.
pub(super) struct Gradients<R: CubeRuntime> {
    /// Axes N, Z, Y, X, C; `None` if it was not requested.
    pub x: Option<CubeTensor<R>>,
    /// Axes C, 1, 1, 1, 1.
    pub scale: CubeTensor<R>,
    /// Axes C, 1, 1, 1, 1.
    pub bias: CubeTensor<R>,
}

/// The gradient that a norm receives.
struct Upstream<R: CubeRuntime> {
    dy: Dense<R>,
    /// The result of the norm, on which the derivative of the activation depends; `dy` if there is no activation.
    y: Dense<R>,
    /// Slope of the activation below 0.
    slope: f32,
    is_activated: bool,
}

impl<R: CubeRuntime> Upstream<R> {
    fn new(dy: Dense<R>, activation: Option<(Dense<R>, f32)>, over: NormScope) -> Self {
        let (dy, _) = as_samples(dy, over);
        match activation {
            Some((y, slope)) => Self { dy, y: as_samples(y, over).0, slope, is_activated: true },
            None => {
                let y = Dense { tensor: dy.tensor.clone(), form: dy.form, pitch: dy.pitch };
                Self { dy, y, slope: 1.0, is_activated: false }
            }
        }
    }

    /// Returns the number of neighboring channels that may be read at once.
    fn vector(&self, channels: usize) -> usize {
        vector(&self.dy, channels).min(vector(&self.y, channels))
    }
}

/// Returns the gradients of a norm, that of `x` if `to_x`, with two or three launches. `x` and `dy` have the same form; `scale`
/// is dense and has one number for each channel. With an activation, given as the result of the norm and the slope of the
/// activation below 0, `dy` is the gradient of the activated result.
pub(super) fn gradients<R: CubeRuntime>(
    x: Dense<R>,
    scale: CubeTensor<R>,
    (dy, activation): (Dense<R>, Option<(Dense<R>, f32)>),
    (over, epsilon): (NormScope, f32),
    to_x: bool,
) -> Option<Gradients<R>> {
    let form = x.form;
    let (x, groups) = as_samples(x, over);
    let upstream = Upstream::new(dy, activation, over);
    let [samples, depth, height, width, channels] = x.form;
    let vector_len = vector(&x, channels).min(upstream.vector(channels));
    let voxels = depth * height * width;
    let parts = part_count(voxels);
    let sums = empty(&x.tensor, [samples, parts, 4, 1, channels], DType::F32);
    let (client, cubes, dim) = per_element(&x.tensor, samples * parts * (channels / vector_len));
    add_up::launch::<R>(
        &client,
        cubes,
        dim,
        vector_len,
        x.tensor.clone().into_array_arg(),
        upstream.dy.tensor.clone().into_array_arg(),
        upstream.y.tensor.clone().into_array_arg(),
        sums.clone().into_array_arg(),
        length(samples),
        length(voxels),
        length(x.pitch / vector_len),
        length(upstream.dy.pitch / vector_len),
        length(upstream.y.pitch / vector_len),
        length(parts),
        upstream.slope,
        length(channels / vector_len),
        upstream.is_activated,
        [x.tensor.dtype.into(), upstream.dy.tensor.dtype.into()],
    );
    let coefficients = empty(&x.tensor, [samples, 1, 1, 4, channels], DType::F32);
    let bias_at = channels.next_multiple_of(ALIGNMENT);
    let found = empty(&x.tensor, [1, 1, 1, 1, bias_at + channels], DType::F32);
    fold::launch::<R>(
        &client,
        CubeCount::Static(length(groups), 1, 1),
        CubeDim::new_1d(FOLD_UNITS),
        x.tensor.clone().into_array_arg(),
        sums.into_array_arg(),
        scale.into_array_arg(),
        coefficients.clone().into_array_arg(),
        found.clone().into_array_arg(),
        length(voxels),
        length(x.pitch),
        length(parts),
        epsilon,
        length(samples),
        length(channels),
        length(channels / groups),
        FOLD_UNITS,
        length(bias_at),
        x.tensor.dtype.into(),
    );
    let row = |start: usize| memory::part(&found, start, [channels, 1, 1, 1, 1]);
    let (d_scale, d_bias) = (row(0)?, row(bias_at)?);
    let dx = to_x.then(|| reshaped(apply_coefficients(x, upstream, coefficients, vector_len), form));
    Some(Gradients { x: dx, scale: d_scale, bias: d_bias })
}

/// Returns the gradient of `x` from the coefficients of each sample, with one launch that reads `vector_len` channels at once.
fn apply_coefficients<R: CubeRuntime>(
    x: Dense<R>,
    upstream: Upstream<R>,
    coefficients: CubeTensor<R>,
    vector_len: usize,
) -> CubeTensor<R> {
    let [samples, depth, height, width, channels] = x.form;
    let (voxels, vectors) = (depth * height * width, channels / vector_len);
    let Upstream { dy, y, slope, is_activated } = upstream;
    let types = [x.tensor.dtype.into(), dy.tensor.dtype.into()];
    let dx = empty(&x.tensor, x.form, x.tensor.dtype);
    let (client, cubes, dim) = per_element(&x.tensor, samples * voxels * vectors);
    apply::launch::<R>(
        &client,
        cubes,
        dim,
        vector_len,
        x.tensor.into_array_arg(),
        dy.tensor.into_array_arg(),
        y.tensor.into_array_arg(),
        coefficients.into_array_arg(),
        dx.clone().into_array_arg(),
        length(samples * voxels),
        length(voxels),
        length(x.pitch / vector_len),
        length(dy.pitch / vector_len),
        length(y.pitch / vector_len),
        slope,
        length(vectors),
        is_activated,
        types,
    );
    dx
}

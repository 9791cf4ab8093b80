//! Element-wise kernels of training steps: activations and their gradients, sums, and conversions.

use super::curve::{Curve, Kind, curve};
use super::memory::{Dense, empty, flat_view, length, per_element, read_vector, vector, voxel_vector};
use super::norm_training::slope_at;
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use burn_tensor::DType;
use cubecl::prelude::*;

/// Multiplies `dy`, or the sum of `dy` and `more`, by the derivative at `y` of an activation that is linear on both sides of 0,
/// with slope 1 above.
#[cube(launch)]
fn multiply_by_slope<F: Float, N: Size>(
    y: &Array<Vector<F, N>>,
    dy: &Array<Vector<F, N>>,
    more: &Array<Vector<F, N>>,
    dx: &mut Array<Vector<F, N>>,
    count: u32,
    y_pitch: u32,
    dy_pitch: u32,
    more_pitch: u32,
    slope: f32,
    #[comptime] vectors: u32,
    #[comptime] has_more: bool,
    #[define(F)] _type: StorageType,
) {
    let unit = ABSOLUTE_POS as u32;
    let at = voxel_vector(unit, vectors);
    if at.voxel >= count {
        terminate!();
    }
    let mut gradient = read_vector::<F, N>(dy, &at, dy_pitch);
    if comptime!(has_more) {
        gradient += read_vector::<F, N>(more, &at, more_pitch);
    }
    let result = read_vector::<F, N>(y, &at, y_pitch);
    dx[unit as usize] = Vector::<F, N>::cast_from(gradient * slope_at::<N>(result, slope));
}

/// Returns the gradient of an activation with slope 1 above 0 and `slope` below, with one launch. `y` is its result or its
/// input, and its gradient is `dy`, or the sum of `dy` and `more`. All have the same form and type.
pub(super) fn activation_gradient<R: CubeRuntime>(
    y: Dense<R>,
    dy: Dense<R>,
    more: Option<Dense<R>>,
    slope: f32,
) -> CubeTensor<R> {
    let channels = y.form[4];
    let all = [Some(&y), Some(&dy), more.as_ref()];
    let vector_len = all.into_iter().flatten().map(|x| vector(x, channels)).min().unwrap_or(1);
    let (voxels, dtype) = (y.voxels(), y.tensor.dtype);
    let dx = empty(&y.tensor, y.form, dtype);
    let (client, cubes, dim) = per_element(&y.tensor, voxels * (channels / vector_len));
    let has_more = more.is_some();
    let more = more.unwrap_or_else(|| Dense { tensor: dy.tensor.clone(), ..dy });
    multiply_by_slope::launch::<R>(
        &client,
        cubes,
        dim,
        vector_len,
        y.tensor.into_array_arg(),
        dy.tensor.into_array_arg(),
        more.tensor.into_array_arg(),
        dx.clone().into_array_arg(),
        length(voxels),
        length(y.pitch / vector_len),
        length(dy.pitch / vector_len),
        length(more.pitch / vector_len),
        slope,
        length(channels / vector_len),
        has_more,
        dtype.into(),
    );
    dx
}

/// Adds two tensors, and applies an activation.
#[cube(launch)]
fn add_and_activate<F: Float, N: Size>(
    a: &Array<Vector<F, N>>,
    b: &Array<Vector<F, N>>,
    y: &mut Array<Vector<F, N>>,
    count: u32,
    a_pitch: u32,
    b_pitch: u32,
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
    let sum = read_vector::<F, N>(a, &at, a_pitch) + read_vector::<F, N>(b, &at, b_pitch);
    y[unit as usize] = Vector::<F, N>::cast_from(curve::<N>(sum, first, second, kind));
}

/// Adds two tensors of the same form and type, and applies an activation, with one launch.
pub(super) fn sum<R: CubeRuntime>(a: Dense<R>, b: Dense<R>, activation: Curve) -> CubeTensor<R> {
    let channels = a.form[4];
    let vector_len = vector(&a, channels).min(vector(&b, channels));
    let (voxels, dtype) = (a.voxels(), a.tensor.dtype);
    let y = empty(&a.tensor, a.form, dtype);
    let (client, cubes, dim) = per_element(&a.tensor, voxels * (channels / vector_len));
    add_and_activate::launch::<R>(
        &client,
        cubes,
        dim,
        vector_len,
        a.tensor.into_array_arg(),
        b.tensor.into_array_arg(),
        y.clone().into_array_arg(),
        length(voxels),
        length(a.pitch / vector_len),
        length(b.pitch / vector_len),
        activation.first,
        activation.second,
        length(channels / vector_len),
        activation.kind,
        dtype.into(),
    );
    y
}

/// Multiplies a tensor by a factor, and applies an activation.
#[cube(launch)]
fn scale_and_activate<F: Float, N: Size>(
    x: &Array<Vector<F, N>>,
    y: &mut Array<Vector<F, N>>,
    count: u32,
    pitch: u32,
    factor: f32,
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
    let value = read_vector::<F, N>(x, &at, pitch) * Vector::<f32, N>::new(factor);
    y[unit as usize] = Vector::<F, N>::cast_from(curve::<N>(value, first, second, kind));
}

/// Multiplies each element by `factor`, and applies an activation, with one launch.
pub(super) fn activate<R: CubeRuntime>(x: Dense<R>, factor: f32, activation: Curve) -> CubeTensor<R> {
    let channels = x.form[4];
    let vector_len = vector(&x, channels);
    let (voxels, dtype) = (x.voxels(), x.tensor.dtype);
    let y = empty(&x.tensor, x.form, dtype);
    let (client, cubes, dim) = per_element(&x.tensor, voxels * (channels / vector_len));
    scale_and_activate::launch::<R>(
        &client,
        cubes,
        dim,
        vector_len,
        x.tensor.into_array_arg(),
        y.clone().into_array_arg(),
        length(voxels),
        length(x.pitch / vector_len),
        factor,
        activation.first,
        activation.second,
        length(channels / vector_len),
        activation.kind,
        dtype.into(),
    );
    y
}

/// Adds two arrays, each multiplied by the only element of its share.
#[cube(launch)]
fn add_shares(
    a: &Array<f32>,
    a_share: &Array<f32>,
    b: &Array<f32>,
    b_share: &Array<f32>,
    y: &mut Array<f32>,
    count: u32,
) {
    let unit = ABSOLUTE_POS as u32;
    if unit >= count {
        terminate!();
    }
    let at = unit as usize;
    y[at] = a[at] * a_share[0] + b[at] * b_share[0];
}

/// Returns `a · a_share + b · b_share` for two arrays of f32 of this form and shares of one element each, with one launch.
pub(super) fn blend<R: CubeRuntime>([a, a_share, b, b_share]: [CubeTensor<R>; 4], form: [usize; 5]) -> CubeTensor<R> {
    let count = form.iter().product();
    let y = empty(&a, form, DType::F32);
    let (client, cubes, dim) = per_element(&a, count);
    add_shares::launch::<R>(
        &client,
        cubes,
        dim,
        a.into_array_arg(),
        a_share.into_array_arg(),
        b.into_array_arg(),
        b_share.into_array_arg(),
        y.clone().into_array_arg(),
        length(count),
    );
    y
}

/// Converts each element to another type, into an array without gaps between voxels.
#[cube(launch)]
fn convert<FX: Float, FY: Float>(
    x: &Array<FX>,
    y: &mut Array<FY>,
    count: u32,
    channels: u32,
    pitch: u32,
    #[define(FX, FY)] _types: [StorageType; 2],
) {
    let unit = ABSOLUTE_POS as u32;
    if unit >= count {
        terminate!();
    }
    y[unit as usize] = FY::cast_from(x[(unit / channels * pitch + unit % channels) as usize]);
}

/// Converts the elements to another float type, with one launch.
pub(super) fn converted<R: CubeRuntime>(x: Dense<R>, to: DType) -> CubeTensor<R> {
    let count = x.form.iter().product();
    let types = [x.tensor.dtype.into(), to.into()];
    let y = empty(&x.tensor, x.form, to);
    let (client, cubes, dim) = per_element(&x.tensor, count);
    convert::launch::<R>(
        &client,
        cubes,
        dim,
        x.tensor.into_array_arg(),
        y.clone().into_array_arg(),
        length(count),
        length(x.form[4]),
        length(x.pitch),
        types,
    );
    y
}

/// Returns the elements of a dense tensor as a flat array of f32, converted with one launch if they have another type.
pub(super) fn wide_array<R: CubeRuntime>(tensor: CubeTensor<R>) -> CubeTensor<R> {
    if tensor.dtype == DType::F32 {
        return flat_view(tensor);
    }
    let elements = tensor.meta.num_elements();
    flat_view(converted(Dense { tensor: flat_view(tensor), form: [elements, 1, 1, 1, 1], pitch: 1 }, DType::F32))
}

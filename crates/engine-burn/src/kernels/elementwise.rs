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
    let wide = all.into_iter().flatten().map(|x| vector(x, channels)).min().unwrap_or(1);
    let (voxels, dtype) = (y.voxels(), y.tensor.dtype);
    let dx = empty(&y.tensor, y.form, dtype);
    let (client, cubes, dim) = per_element(&y.tensor, voxels * (channels / wide));
    let has_more = more.is_some();
    let more = more.unwrap_or_else(|| Dense { tensor: dy.tensor.clone(), ..dy });
    multiply_by_slope::launch::<R>(
        &client,
        cubes,
        dim,
        wide,
        y.tensor.into_array_arg(),
        dy.tensor.into_array_arg(),
        more.tensor.into_array_arg(),
        dx.clone().into_array_arg(),
        length(voxels),
        length(y.pitch / wide),
        length(dy.pitch / wide),
        length(more.pitch / wide),
        slope,
        length(channels / wide),
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
pub(super) fn sum<R: CubeRuntime>(a: Dense<R>, b: Dense<R>, by: Curve) -> CubeTensor<R> {
    let channels = a.form[4];
    let wide = vector(&a, channels).min(vector(&b, channels));
    let (voxels, dtype) = (a.voxels(), a.tensor.dtype);
    let y = empty(&a.tensor, a.form, dtype);
    let (client, cubes, dim) = per_element(&a.tensor, voxels * (channels / wide));
    add_and_activate::launch::<R>(
        &client,
        cubes,
        dim,
        wide,
        a.tensor.into_array_arg(),
        b.tensor.into_array_arg(),
        y.clone().into_array_arg(),
        length(voxels),
        length(a.pitch / wide),
        length(b.pitch / wide),
        by.first,
        by.second,
        length(channels / wide),
        by.kind,
        dtype.into(),
    );
    y
}

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

/// Applies an activation to the elements times a factor, with one launch.
pub(super) fn activate<R: CubeRuntime>(x: Dense<R>, factor: f32, by: Curve) -> CubeTensor<R> {
    let channels = x.form[4];
    let wide = vector(&x, channels);
    let (voxels, dtype) = (x.voxels(), x.tensor.dtype);
    let y = empty(&x.tensor, x.form, dtype);
    let (client, cubes, dim) = per_element(&x.tensor, voxels * (channels / wide));
    scale_and_activate::launch::<R>(
        &client,
        cubes,
        dim,
        wide,
        x.tensor.into_array_arg(),
        y.clone().into_array_arg(),
        length(voxels),
        length(x.pitch / wide),
        factor,
        by.first,
        by.second,
        length(channels / wide),
        by.kind,
        dtype.into(),
    );
    y
}

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

/// Returns the sum of two arrays of f32 of this form, each times the number in another array, with one launch.
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

/// Converts the elements to another type of floats, with one launch.
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

/// Returns the numbers of a tensor without gaps in 32 bits as an array; converting them takes a launch.
pub(super) fn wide_array<R: CubeRuntime>(tensor: CubeTensor<R>) -> CubeTensor<R> {
    if tensor.dtype == DType::F32 {
        return flat_view(tensor);
    }
    let elements = tensor.meta.num_elements();
    flat_view(converted(Dense { tensor: flat_view(tensor), form: [elements, 1, 1, 1, 1], pitch: 1 }, DType::F32))
}

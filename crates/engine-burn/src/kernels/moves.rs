//! Concatenation of channels, pooling, and upsampling by repetition.

use super::memory::{
    Dense, LengthsZyx, Reach, empty, length, lengths_zyx, per_element, place, read_at, vector, voxel_number,
};
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use burn_tensor::DType;
use cubecl::prelude::*;

#[cube(launch)]
fn join<FA: Float, FB: Float, FY: Float, N: Size>(
    a: &Array<Vector<FA, N>>,
    b: &Array<Vector<FB, N>>,
    y: &mut Array<Vector<FY, N>>,
    voxels: u32,
    pitch_a: u32,
    pitch_b: u32,
    #[comptime] vectors_a: u32,
    #[comptime] vectors_b: u32,
    #[define(FA, FB, FY)] _types: [StorageType; 3],
) {
    let vectors = comptime!(vectors_a + vectors_b);
    let unit = ABSOLUTE_POS as u32;
    let channel = unit % vectors;
    let voxel = unit / vectors;
    if voxel >= voxels {
        terminate!();
    }
    if channel < vectors_a {
        y[unit as usize] = Vector::<FY, N>::cast_from(a[(voxel * pitch_a + channel) as usize]);
    } else {
        y[unit as usize] = Vector::<FY, N>::cast_from(b[(voxel * pitch_b + channel - vectors_a) as usize]);
    }
}

/// Concatenates the channels of two tensors whose other axes have the same lengths, with one launch, to elements
/// of type `to`.
pub(super) fn concatenate<R: CubeRuntime>(a: Dense<R>, b: Dense<R>, to: DType) -> CubeTensor<R> {
    let ([samples, depth, height, width, channels_a], channels_b) = (a.form, b.form[4]);
    let vector_len = vector(&a, channels_a).min(vector(&b, channels_b));
    let y = empty(&a.tensor, [samples, depth, height, width, channels_a + channels_b], to);
    let types = [a.tensor.dtype.into(), b.tensor.dtype.into(), to.into()];
    let voxels = a.voxels();
    let (client, cubes, dim) = per_element(&a.tensor, voxels * ((channels_a + channels_b) / vector_len));
    join::launch::<R>(
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
        length(channels_a / vector_len),
        length(channels_b / vector_len),
        types,
    );
    y
}

/// How the voxels of a pooling window become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Pooling {
    /// Whether the largest number is taken, for which padding does not count; otherwise numbers are added up.
    pub max: bool,
    /// Lengths of the kernel along Z, Y, X.
    pub kernel: [usize; 3],
    /// Distance between neighboring windows along Z, Y, X, in voxels of the input.
    pub stride: [usize; 3],
    /// Voxels before the first one along Z, Y, X.
    pub padding: [usize; 3],
    /// Distance between neighboring voxels of a window along Z, Y, X.
    pub dilation: [usize; 3],
}

#[cube(launch)]
fn pool_windows<FX: Float, FY: Float, N: Size>(
    x: &Array<Vector<FX, N>>,
    y: &mut Array<Vector<FY, N>>,
    samples: u32,
    lengths: LengthsZyx,
    pitch: u32,
    out_lengths: LengthsZyx,
    factor: f32,
    start: f32,
    #[comptime] vectors: u32,
    #[comptime] is_max: bool,
    #[comptime] reach: Reach,
    #[define(FX, FY)] _types: [StorageType; 2],
) {
    let unit = ABSOLUTE_POS as u32;
    let at = place(unit, out_lengths.depth, out_lengths.height, out_lengths.width, vectors);
    if at.sample >= samples {
        terminate!();
    }
    let kernel_z = comptime!(reach.kernel[0] as u32);
    let kernel_y = comptime!(reach.kernel[1] as u32);
    let kernel_x = comptime!(reach.kernel[2] as u32);
    let depth = lengths.depth as i32;
    let height = lengths.height as i32;
    let width = lengths.width as i32;
    let mut value = Vector::<f32, N>::new(start);
    for kz in 0..kernel_z {
        let iz = read_at(at.z, kz, 0usize, reach);
        for ky in 0..kernel_y {
            let iy = read_at(at.y, ky, 1usize, reach);
            for kx in 0..kernel_x {
                let ix = read_at(at.x, kx, 2usize, reach);
                let is_inside = iz >= 0 && iz < depth && iy >= 0 && iy < height && ix >= 0 && ix < width;
                if is_inside {
                    let voxel = voxel_number(at.sample, iz as u32, iy as u32, ix as u32, &lengths);
                    let other = Vector::<f32, N>::cast_from(x[(voxel * pitch + at.channel) as usize]);
                    if comptime!(is_max) {
                        // `max` ignores NaN, which the result must keep.
                        let larger = max(value, other);
                        let kept = select_many(Vector::is_nan(value), value, larger);
                        value = select_many(Vector::is_nan(other), other, kept);
                    } else {
                        value += other;
                    }
                }
            }
        }
    }
    y[unit as usize] = Vector::<FY, N>::cast_from(value * Vector::<f32, N>::new(factor));
}

/// Pools `x` to these lengths along Z, Y, X and multiplies by `factor`, with one launch, to elements of type `to`.
pub(super) fn pool<R: CubeRuntime>(
    x: Dense<R>,
    lengths: [usize; 3],
    (by, factor): (Pooling, f32),
    to: DType,
) -> CubeTensor<R> {
    let [samples, depth, height, width, channels] = x.form;
    let vector_len = vector(&x, channels);
    let y = empty(&x.tensor, [samples, lengths[0], lengths[1], lengths[2], channels], to);
    let types = [x.tensor.dtype.into(), to.into()];
    let padding = by.padding.map(|zeros| zeros as isize);
    let reach = Reach { kernel: by.kernel, stride: by.stride, padding, dilation: by.dilation };
    // An argument, because shader languages have no infinite literals.
    let start = if by.max { f32::NEG_INFINITY } else { 0.0 };
    let (client, cubes, dim) =
        per_element(&x.tensor, samples * lengths.iter().product::<usize>() * (channels / vector_len));
    pool_windows::launch::<R>(
        &client,
        cubes,
        dim,
        vector_len,
        x.tensor.into_array_arg(),
        y.clone().into_array_arg(),
        length(samples),
        lengths_zyx([depth, height, width]),
        length(x.pitch / vector_len),
        lengths_zyx(lengths),
        factor,
        start,
        length(channels / vector_len),
        by.max,
        reach,
        types,
    );
    y
}

#[cube(launch)]
fn repeat_voxels<FX: Float, FY: Float, N: Size>(
    x: &Array<Vector<FX, N>>,
    y: &mut Array<Vector<FY, N>>,
    samples: u32,
    lengths: LengthsZyx,
    pitch: u32,
    #[comptime] vectors: u32,
    #[comptime] factors: [usize; 3],
    #[define(FX, FY)] _types: [StorageType; 2],
) {
    let factor_z = comptime!(factors[0] as u32);
    let factor_y = comptime!(factors[1] as u32);
    let factor_x = comptime!(factors[2] as u32);
    let unit = ABSOLUTE_POS as u32;
    let at = place(unit, lengths.depth * factor_z, lengths.height * factor_y, lengths.width * factor_x, vectors);
    if at.sample >= samples {
        terminate!();
    }
    let voxel = voxel_number(at.sample, at.z / factor_z, at.y / factor_y, at.x / factor_x, &lengths);
    y[unit as usize] = Vector::<FY, N>::cast_from(x[(voxel * pitch + at.channel) as usize]);
}

/// Repeats each voxel this many times along Z, Y, X, with one launch, to elements of type `to`.
pub(super) fn repeat<R: CubeRuntime>(x: Dense<R>, factors: [usize; 3], to: DType) -> CubeTensor<R> {
    let [samples, depth, height, width, channels] = x.form;
    let vector_len = vector(&x, channels);
    let form = [samples, depth * factors[0], height * factors[1], width * factors[2], channels];
    let y = empty(&x.tensor, form, to);
    let types = [x.tensor.dtype.into(), to.into()];
    let (client, cubes, dim) = per_element(&x.tensor, form.iter().product::<usize>() / vector_len);
    repeat_voxels::launch::<R>(
        &client,
        cubes,
        dim,
        vector_len,
        x.tensor.into_array_arg(),
        y.clone().into_array_arg(),
        length(samples),
        lengths_zyx([depth, height, width]),
        length(x.pitch / vector_len),
        length(channels / vector_len),
        factors,
        types,
    );
    y
}

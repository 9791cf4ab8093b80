//! The convolution of [`super::conv`] with matrix units (tensor cores): products of factors of 10 or fewer mantissa bits
//! are summed in f32.
//!
//! A cube computes a box of voxels for a few blocks of 16 output channels. For each 16 input channels, it copies the part
//! of the input that the box reads, with zeros outside, and the weights to the memory that its units share. Each plane
//! then multiplies rows of 16 voxels along X with the weights of every tap: a tap only shifts the position from which a
//! row is read.

use super::conv::{Convolution, block_voxel, unread};
use super::curve::curve;
use super::memory::{Dense, LengthsZyx, empty, length, lengths_zyx};
use super::mma::{Sums, multiply_rows, share_rows, zero_rows};
use super::tile::{
    Corner, EDGE, FactorType, LANES, LAUNCHES, PLANE_UNITS, PLANES, SHARED_ALIGNMENT, Shape, UNIT_ELEMENTS, UNITS,
    box_corner, load_patch, row_start, share_sum, store_lanes, zero_sums,
};
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use burn_tensor::DType;
use cubecl::cmma;
use cubecl::ir::StorageType;
use cubecl::prelude::*;
use std::sync::atomic::Ordering;

/// Candidates for the rows of a cube along Z and Y and for its blocks of output channels; the first that fits in shared
/// memory is taken.
const CUBES: [([usize; 2], usize); 6] = [([4, 4], 2), ([4, 4], 1), ([2, 4], 2), ([2, 4], 1), ([1, 8], 1), ([8, 1], 1)];

#[cube(launch)]
fn convolve_tiled<FX: Float, FS: Float, FY: Float, NI: Size, NO: Size>(
    x: &Array<Vector<FX, NI>>,
    weights: &Array<Vector<f32, NI>>,
    bias: &Array<f32>,
    y: &mut Array<Vector<FY, NO>>,
    lengths: LengthsZyx,
    pitch: u32,
    out_lengths: LengthsZyx,
    first: f32,
    second: f32,
    #[comptime] shape: Shape,
    #[define(FX, FS, FY)] _types: [StorageType; 3],
) {
    let channels = comptime!((EDGE * shape.blocks) as u32);
    let cubes_of_channels = comptime!((shape.outputs / EDGE / shape.blocks) as u32);
    // Neighboring cubes read the same voxels.
    let cube = CUBE_POS as u32;
    let channel = cube % cubes_of_channels * channels;
    let corner = box_corner(cube / cubes_of_channels, channel, &out_lengths, shape);

    let mut patch = SharedMemory::<FS>::new_aligned(comptime!(shape.patch_elements()), SHARED_ALIGNMENT);
    let mut filters = SharedMemory::<FS>::new_aligned(comptime!(shape.weight_elements()), SHARED_ALIGNMENT);
    let mut stored = SharedMemory::<f32>::new_aligned(PLANES * EDGE * EDGE, SHARED_ALIGNMENT);

    let steps = comptime!((shape.inputs / EDGE) as u32);
    let rows = comptime!(shape.rows[0] * shape.rows[1] / PLANES);
    let blocks = comptime!(shape.blocks);
    // Sums on matrix units, or those of the units themselves.
    let mut sums = Sequence::<cmma::Matrix<f32>>::new();
    let mut own_sums = Array::<f32>::new(comptime!(shape.unit_sums()));
    let mut row_sums = Sequence::<Sums>::new();
    if comptime!(shape.loads_rows) {
        zero_rows(&mut row_sums, comptime!(rows * blocks));
    } else {
        zero_sums(&mut sums, &mut own_sums, comptime!(rows * blocks), shape);
    }
    for step in 0..steps {
        load_patch::<FX, FS, NI>(x, &mut patch, &corner, &lengths, pitch, step, shape);
        load_filters::<FS, NI>(weights, &mut filters, &corner, step, shape);
        sync_cube();
        if comptime!(shape.loads_rows) {
            multiply_rows::<FS>(&patch, &filters, &mut row_sums, shape);
        } else if comptime!(shape.depth > 0) {
            multiply_matrices::<FS>(&patch, &filters, &sums, shape);
        } else {
            multiply_elements::<FS>(&patch, &filters, &mut own_sums, shape);
        }
        sync_cube();
    }
    #[unroll]
    for row in 0..rows {
        #[unroll]
        for block in 0..blocks {
            // Each plane has its own part.
            if comptime!(shape.loads_rows) {
                share_rows(&row_sums, &mut stored, comptime!(row * blocks + block));
                sync_plane();
            } else {
                share_sum(&sums, &own_sums, &mut stored, comptime!(row * blocks + block), shape);
                sync_cube();
            }
            store::<FY, NO>(&stored, bias, y, &corner, &out_lengths, first, second, row, block, shape);
            if comptime!(shape.loads_rows) {
                sync_plane();
            } else {
                sync_cube();
            }
        }
    }
}

/// Copies the weights of 16 input channels and the output channels of a cube to shared memory, in the order tap, input
/// channel, output channel.
#[cube]
fn load_filters<FS: Float, NI: Size>(
    weights: &Array<Vector<f32, NI>>,
    filters: &mut SharedMemory<FS>,
    corner: &Corner,
    step: u32,
    #[comptime] shape: Shape,
) {
    let vectors = comptime!((EDGE * shape.blocks / LANES) as u32);
    let all_vectors = comptime!((shape.outputs / LANES) as u32);
    let count = comptime!(shape.weight_vectors() as u32);
    let row_vectors = comptime!((shape.weight_pitch() / LANES) as u32);
    let edge = comptime!(EDGE as u32);
    let inputs = comptime!(shape.inputs as u32);
    let first = corner.channel / comptime!(LANES as u32);
    let mut i = UNIT_POS;
    while i < count {
        let vector = i % vectors;
        let row = i / vectors;
        let input = row / edge * inputs + step * edge + row % edge;
        let value = weights[(input * all_vectors + first + vector) as usize];
        store_lanes::<FS, NI>(value, filters, row * row_vectors + vector);
        i += comptime!(UNITS as u32);
    }
}

/// Adds the products of the rows of this unit's plane with the weights of all taps, on matrix units.
#[cube]
fn multiply_matrices<FS: Float>(
    patch: &SharedMemory<FS>,
    filters: &SharedMemory<FS>,
    sums: &Sequence<cmma::Matrix<f32>>,
    #[comptime] shape: Shape,
) {
    let rows = comptime!(shape.rows[0] * shape.rows[1] / PLANES);
    let blocks = comptime!(shape.blocks);
    let depth = comptime!(shape.depth);
    let parts = comptime!(EDGE / shape.depth);
    let row_stride = comptime!((shape.reach.stride[2] * EDGE) as u32);
    let filter_stride = comptime!((EDGE * shape.blocks) as u32);
    let row_span = comptime!((EDGE - 1) * shape.reach.stride[2] * EDGE + shape.depth);
    let filter_span = comptime!((shape.depth - 1) * EDGE * shape.blocks + EDGE);
    let kernel_y = comptime!(shape.reach.kernel[1] as u32);
    let kernel_x = comptime!(shape.reach.kernel[2] as u32);
    let plane = UNIT_POS / comptime!(PLANE_UNITS as u32);
    for kz in 0..comptime!(shape.reach.kernel[0] as u32) {
        for ky in 0..kernel_y {
            for kx in 0..kernel_x {
                let tap = (kz * kernel_y + ky) * kernel_x + kx;
                #[unroll]
                for part in 0..parts {
                    let filter =
                        tap * comptime!(EDGE as u32) * filter_stride + comptime!((part * depth) as u32) * filter_stride;
                    let mut right = Sequence::<cmma::Matrix<FS>>::new();
                    #[unroll]
                    for block in 0..blocks {
                        let from = filter as usize + comptime!(block * EDGE);
                        right.push(cmma::Matrix::<FS>::from_slice(
                            cmma::MatrixIdent::B,
                            EDGE,
                            EDGE,
                            depth,
                            cmma::MatrixLayout::RowMajor,
                            &filters.slice(from, from + filter_span),
                            filter_stride,
                        ));
                    }
                    #[unroll]
                    for row in 0..rows {
                        let start =
                            row_start(plane * comptime!(rows as u32) + comptime!(row as u32), kz, ky, kx, shape);
                        let from = start as usize + comptime!(part * depth);
                        let left = cmma::Matrix::<FS>::from_slice(
                            cmma::MatrixIdent::A,
                            EDGE,
                            EDGE,
                            depth,
                            cmma::MatrixLayout::RowMajor,
                            &patch.slice(from, from + row_span),
                            row_stride,
                        );
                        #[unroll]
                        for block in 0..blocks {
                            let sum = sums.index(row * blocks + block);
                            cmma::execute::<FS, FS, f32, f32>(&left, right.index(block), sum, sum);
                        }
                    }
                }
            }
        }
    }
}

/// Like [`multiply_matrices`], without matrix units.
#[cube]
fn multiply_elements<FS: Float>(
    patch: &SharedMemory<FS>,
    filters: &SharedMemory<FS>,
    sums: &mut Array<f32>,
    #[comptime] shape: Shape,
) {
    let rows = comptime!(shape.rows[0] * shape.rows[1] / PLANES);
    let blocks = comptime!(shape.blocks);
    let row_stride = comptime!((shape.reach.stride[2] * EDGE) as u32);
    let filter_stride = comptime!((EDGE * shape.blocks) as u32);
    let edge = comptime!(EDGE as u32);
    let kernel_y = comptime!(shape.reach.kernel[1] as u32);
    let kernel_x = comptime!(shape.reach.kernel[2] as u32);
    let plane = UNIT_POS / comptime!(PLANE_UNITS as u32);
    let element = UNIT_POS % comptime!(PLANE_UNITS as u32) * comptime!(UNIT_ELEMENTS as u32);
    let voxel = element / edge;
    let column = element % edge;
    for kz in 0..comptime!(shape.reach.kernel[0] as u32) {
        for ky in 0..kernel_y {
            for kx in 0..kernel_x {
                let tap = (kz * kernel_y + ky) * kernel_x + kx;
                #[unroll]
                for row in 0..rows {
                    let start = row_start(plane * comptime!(rows as u32) + comptime!(row as u32), kz, ky, kx, shape);
                    for input in 0..edge {
                        let left = f32::cast_from(patch[(start + voxel * row_stride + input) as usize]);
                        let filter = (tap * edge + input) * filter_stride + column;
                        #[unroll]
                        for block in 0..blocks {
                            #[unroll]
                            for i in 0..UNIT_ELEMENTS {
                                let right = f32::cast_from(filters[filter as usize + comptime!(block * EDGE + i)]);
                                let at = comptime!((row * blocks + block) * UNIT_ELEMENTS + i);
                                sums[at] = sums[at] + left * right;
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Adds the bias, if there is one, to a row of 16 voxels and 16 channels of this unit's plane, applies the activation and stores it.
#[cube]
fn store<FY: Float, NO: Size>(
    stored: &SharedMemory<f32>,
    bias: &Array<f32>,
    y: &mut Array<Vector<FY, NO>>,
    corner: &Corner,
    out_lengths: &LengthsZyx,
    first: f32,
    second: f32,
    #[comptime] row: usize,
    #[comptime] block: usize,
    #[comptime] shape: Shape,
) {
    let rows = comptime!((shape.rows[0] * shape.rows[1] / PLANES) as u32);
    let rows_y = comptime!(shape.rows[1] as u32);
    let edge = comptime!(EDGE as u32);
    let lanes = comptime!(LANES as u32);
    let channels = comptime!(shape.stored as u32);
    let from = UNIT_POS * comptime!(UNIT_ELEMENTS as u32);
    let element = UNIT_POS % comptime!(PLANE_UNITS as u32) * comptime!(UNIT_ELEMENTS as u32);
    let own_row = UNIT_POS / comptime!(PLANE_UNITS as u32) * rows + comptime!(row as u32);
    let oz = corner.z + own_row / rows_y;
    let oy = corner.y + own_row % rows_y;
    let ox = corner.x + element / edge;
    if oz < out_lengths.depth && oy < out_lengths.height && ox < out_lengths.width {
        #[unroll]
        for part in 0..comptime!(UNIT_ELEMENTS / LANES) {
            let offset = comptime!((part * LANES) as u32);
            let channel = corner.channel + comptime!((block * EDGE) as u32) + element % edge + offset;
            let mut cell = RuntimeCell::<Vector<f32, NO>>::new(Vector::<f32, NO>::new(0.0));
            #[unroll]
            for lane in 0..LANES {
                let mut value = stored[(from + offset) as usize + lane];
                if comptime!(shape.bias) {
                    value += bias[(channel % channels) as usize + lane];
                }
                cell.store_at(lane, value);
            }
            let value = curve::<NO>(cell.consume(), first, second, shape.curve);
            let voxel = block_voxel(corner.sample, oz, oy, ox, channel / channels, out_lengths, shape.upscale);
            y[((voxel * channels + channel % channels) / lanes) as usize] = Vector::<FY, NO>::cast_from(value);
        }
    }
}

/// Convolves `x` with factors of this type, with one launch, to elements of type `to`. `weights`, with axes tap, input
/// channel, output channel, and `bias` are dense. Returns `None` if the device has no such matrix units, or if the
/// numbers of channels do not suit.
pub(super) fn launch<R: CubeRuntime>(
    x: &Dense<R>,
    weights: &CubeTensor<R>,
    bias: Option<&CubeTensor<R>>,
    by: &Convolution,
    factor_type: FactorType,
    to: DType,
) -> Option<CubeTensor<R>> {
    let [samples, depth, height, width, inputs] = x.form;
    let block_voxels: usize = by.upscale.iter().product();
    let stored = by.outputs / block_voxels.max(1);
    let suits = by.groups == 1
        && inputs.is_multiple_of(EDGE)
        && by.outputs.is_multiple_of(EDGE)
        && stored.is_multiple_of(LANES);
    if !suits
        || weights.dtype != DType::F32
        || super::memory::vector(x, inputs) != LANES
        || !factor_type.is_supported(&x.tensor)
    {
        return None;
    }
    let shared_bytes = x.tensor.client.properties().hardware.max_shared_memory_size;
    let blocks_of = |blocks: usize| (by.outputs / EDGE).is_multiple_of(blocks);
    let depth_at_once = (factor_type.depth().unwrap_or(0), factor_type.loads_rows(&x.tensor));
    let shape = CUBES.into_iter().filter(|(_, blocks)| blocks_of(*blocks)).find_map(|cube| {
        let shape = Shape::of(by, inputs, depth_at_once, bias.is_some(), cube);
        (shape.shared_bytes(factor_type) <= shared_bytes).then_some(shape)
    })?;
    let [out_depth, out_height, out_width] = by.lengths;
    let columns =
        samples * out_depth.div_ceil(shape.rows[0]) * out_height.div_ceil(shape.rows[1]) * out_width.div_ceil(EDGE);
    let cubes = u32::try_from(columns * (by.outputs / EDGE / shape.blocks)).ok()?;
    let scaled = |a: usize| by.lengths[a] * by.upscale[a];
    let y = empty(&x.tensor, [samples, scaled(0), scaled(1), scaled(2), stored], to);
    convolve_tiled::launch::<R>(
        &x.tensor.client.clone(),
        CubeCount::Static(cubes, 1, 1),
        CubeDim::new_2d(PLANE_UNITS as u32, PLANES as u32),
        LANES,
        LANES,
        x.tensor.clone().into_array_arg(),
        weights.clone().into_array_arg(),
        bias.cloned().unwrap_or_else(|| unread(&x.tensor)).into_array_arg(),
        y.clone().into_array_arg(),
        lengths_zyx([depth, height, width]),
        length(x.pitch / LANES),
        lengths_zyx(by.lengths),
        by.curve.first,
        by.curve.second,
        shape,
        [x.tensor.dtype.into(), factor_type.storage(), to.into()],
    );
    LAUNCHES.fetch_add(1, Ordering::Relaxed);
    Some(y)
}

//! The weight gradient of [`super::weights`] with matrix units (tensor cores): products of factors of 10 or fewer mantissa
//! bits are summed in f32.
//!
//! In CubeCL's terms, a cube is a thread block, a plane a warp, and a unit a thread. A cube works on 16 input and 16 output
//! channels. For each box of voxels of its part of the output, it copies the output gradient, and the input that the box
//! reads, to shared memory. Each plane keeps the sums of a few taps of the kernel, to which it adds products of rows of 16
//! voxels along X. If there are more planes than taps, planes with the same taps divide the rows.

use super::conv::Convolution;
use super::curve::Curve;
use super::division::{part_limit, row_groups};
use super::memory::{Dense, LengthsZyx, Reach, empty, length, lengths_zyx, vector, voxel_number};
use super::mma::{Sums, multiply_columns, share_rows, zero_rows};
use super::tile::{
    Corner, EDGE, FactorType, LANES, LAUNCHES, PLANE_UNITS, PLANES, SHARED_ALIGNMENT, Shape, UNIT_ELEMENTS, UNITS,
    box_corner, load_patch, row_start, share_sum, store_lanes, zero_sums,
};
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use burn_tensor::DType;
use cubecl::cmma;
use cubecl::prelude::*;
use std::sync::atomic::Ordering;

/// Candidates for the rows of a box along Z and Y; the first that fits in shared memory is taken.
const BOXES: [[usize; 2]; 6] = [[4, 4], [2, 4], [2, 2], [1, 4], [1, 2], [1, 1]];

/// How the planes of a cube divide the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Division {
    /// Number of taps of the kernel.
    pub(super) taps: usize,
    /// Number of taps whose sums each plane (warp) keeps.
    pub(super) plane_taps: usize,
    /// Number of groups of rows, each of which has its own sums.
    row_groups: usize,
    /// Number of rows in each group.
    pub(super) group_rows: usize,
}

impl Division {
    /// Returns the division of boxes of `rows` rows; `None` if the rows cannot be divided.
    fn of(taps: usize, rows: usize) -> Option<Self> {
        let row_groups = row_groups(taps);
        let plane_taps = taps.div_ceil(PLANES / row_groups);
        rows.is_multiple_of(row_groups).then_some(Self { taps, plane_taps, row_groups, group_rows: rows / row_groups })
    }

    /// Returns the number of sums that each unit keeps without matrix units; 1 with them, as arrays cannot be empty.
    fn unit_sums(&self, depth: usize) -> usize {
        if depth > 0 { 1 } else { self.plane_taps * UNIT_ELEMENTS }
    }
}

/// Returns the shared memory of a cube in bytes.
fn shared_bytes(shape: &Shape, factor_type: FactorType) -> usize {
    let elements = shape.patch_elements() + gradient_elements(shape);
    elements * factor_type.bytes() + PLANES * EDGE * EDGE * size_of::<f32>() + 3 * SHARED_ALIGNMENT
}

/// Returns the number of elements of the output gradient in shared memory.
fn gradient_elements(shape: &Shape) -> usize {
    shape.rows[0] * shape.rows[1] * EDGE * shape.patch_pitch()
}

#[cube(launch)]
fn multiply_tiled<FX: Float, FG: Float, FS: Float, NI: Size, NO: Size>(
    x: &Array<Vector<FX, NI>>,
    dy: &Array<Vector<FG, NO>>,
    sums: &mut Array<f32>,
    boxes: u32,
    part_boxes: u32,
    lengths: LengthsZyx,
    pitch: u32,
    out_lengths: LengthsZyx,
    out_pitch: u32,
    #[comptime] shape: Shape,
    #[comptime] division: Division,
    #[define(FX, FG, FS)] _types: [StorageType; 3],
) {
    let edge = comptime!(EDGE as u32);
    let output_blocks = comptime!((shape.outputs / EDGE) as u32);
    let channel_blocks = comptime!((shape.outputs / EDGE * (shape.inputs / EDGE)) as u32);
    let taps = comptime!(division.plane_taps);

    let cube = CUBE_POS as u32;
    let part = cube / channel_blocks;
    let input_block = cube % channel_blocks / output_blocks;
    let output_block = cube % output_blocks;

    let mut patch = SharedMemory::<FS>::new_aligned(comptime!(shape.patch_elements()), SHARED_ALIGNMENT);
    let mut gradients = SharedMemory::<FS>::new_aligned(comptime!(gradient_elements(&shape)), SHARED_ALIGNMENT);
    let mut stored = SharedMemory::<f32>::new_aligned(PLANES * EDGE * EDGE, SHARED_ALIGNMENT);

    // Sums on matrix units, or those of the units themselves.
    let mut products = Sequence::<cmma::Matrix<f32>>::new();
    let mut own_products = Array::<f32>::new(comptime!(division.unit_sums(shape.depth)));
    let mut row_products = Sequence::<Sums>::new();
    if comptime!(shape.loads_rows) {
        zero_rows(&mut row_products, taps);
    } else {
        zero_sums(&mut products, &mut own_products, taps, shape);
    }
    let mut at = part * part_boxes;
    let mut end = at + part_boxes;
    if end > boxes {
        end = boxes;
    }
    while at < end {
        let corner = box_corner(at, output_block * edge, &out_lengths, shape);
        load_patch::<FX, FS, NI>(x, &mut patch, &corner, &lengths, pitch, input_block, shape);
        load_gradients::<FG, FS, NO>(dy, &mut gradients, &corner, &out_lengths, out_pitch, shape);
        sync_cube();
        if comptime!(shape.loads_rows) {
            multiply_columns::<FS>(&patch, &gradients, &mut row_products, shape, division);
        } else if comptime!(shape.depth > 0) {
            add_matrices::<FS>(&patch, &gradients, &products, shape, division);
        } else {
            add_elements::<FS>(&patch, &gradients, &mut own_products, shape, division);
        }
        sync_cube();
        at += 1;
    }
    #[unroll]
    for tap in 0..taps {
        // Each plane has its own part.
        if comptime!(shape.loads_rows) {
            share_rows(&row_products, &mut stored, tap);
            sync_plane();
        } else {
            share_sum(&products, &own_products, &mut stored, tap, shape);
            sync_cube();
        }
        store_sums(&stored, sums, part, input_block * edge, output_block * edge, tap, shape, division);
        if comptime!(shape.loads_rows) {
            sync_plane();
        } else {
            sync_cube();
        }
    }
}

/// Copies 16 channels of the output gradient of a box to shared memory; voxels outside are zeros.
#[cube]
fn load_gradients<FG: Float, FS: Float, NO: Size>(
    dy: &Array<Vector<FG, NO>>,
    gradients: &mut SharedMemory<FS>,
    corner: &Corner,
    lengths: &LengthsZyx,
    pitch: u32,
    #[comptime] shape: Shape,
) {
    let rows_y = comptime!(shape.rows[1] as u32);
    let vectors = comptime!((EDGE / LANES) as u32);
    let edge = comptime!(EDGE as u32);
    let count = comptime!((shape.rows[0] * shape.rows[1] * EDGE * EDGE / LANES) as u32);
    let voxel_vectors = comptime!((shape.patch_pitch() / LANES) as u32);
    let mut i = UNIT_POS;
    while i < count {
        let vector = i % vectors;
        let voxel = i / vectors;
        let z = corner.z + voxel / edge / rows_y;
        let y = corner.y + voxel / edge % rows_y;
        let x = corner.x + voxel % edge;
        let mut value = Vector::<f32, NO>::new(0.0);
        if z < lengths.depth && y < lengths.height && x < lengths.width {
            let at = voxel_number(corner.sample, z, y, x, lengths);
            let first = corner.channel / comptime!(LANES as u32);
            value = Vector::<f32, NO>::cast_from(dy[(at * pitch + first + vector) as usize]);
        }
        store_lanes::<FS, NO>(value, gradients, voxel * voxel_vectors + vector);
        i += comptime!(UNITS as u32);
    }
}

/// Returns the first tap of this unit's plane.
#[cube]
pub(super) fn first_tap(#[comptime] division: Division) -> u32 {
    UNIT_POS / comptime!((PLANE_UNITS * division.row_groups) as u32) * comptime!(division.plane_taps as u32)
}

/// Returns the group of rows of this unit's plane.
#[cube]
pub(super) fn row_group(#[comptime] division: Division) -> u32 {
    UNIT_POS / comptime!(PLANE_UNITS as u32) % comptime!(division.row_groups as u32)
}

/// Returns where the row that a tap reads starts in the patch.
#[cube]
pub(super) fn tap_start(row: u32, tap: u32, #[comptime] shape: Shape) -> u32 {
    let kernel_y = comptime!(shape.reach.kernel[1] as u32);
    let kernel_x = comptime!(shape.reach.kernel[2] as u32);
    row_start(row, tap / kernel_x / kernel_y, tap / kernel_x % kernel_y, tap % kernel_x, shape)
}

/// Adds the products of the rows and taps of this unit's plane, on matrix units: input channels by voxels, times voxels by
/// output channels.
#[cube]
fn add_matrices<FS: Float>(
    patch: &SharedMemory<FS>,
    gradients: &SharedMemory<FS>,
    products: &Sequence<cmma::Matrix<f32>>,
    #[comptime] shape: Shape,
    #[comptime] division: Division,
) {
    let depth = comptime!(shape.depth);
    let parts = comptime!(EDGE / shape.depth);
    let taps = comptime!(division.plane_taps);
    let voxel_stride = comptime!(shape.reach.stride[2] * EDGE);
    let left_span = comptime!((shape.depth - 1) * shape.reach.stride[2] * EDGE + EDGE);
    let right_span = comptime!(shape.depth * EDGE);
    let group_rows = comptime!(division.group_rows as u32);
    let first = row_group(division) * group_rows;
    for own_row in 0..group_rows {
        let row = first + own_row;
        #[unroll]
        for part in 0..parts {
            let from = (row * comptime!((EDGE * EDGE) as u32)) as usize + comptime!(part * depth * EDGE);
            let right = cmma::Matrix::<FS>::from_slice(
                cmma::MatrixIdent::B,
                EDGE,
                EDGE,
                depth,
                cmma::MatrixLayout::RowMajor,
                &gradients.slice(from, from + right_span),
                comptime!(EDGE as u32),
            );
            #[unroll]
            for own_tap in 0..taps {
                let tap = first_tap(division) + comptime!(own_tap as u32);
                if tap < comptime!(division.taps as u32) {
                    let start = tap_start(row, tap, shape) as usize + comptime!(part * depth * voxel_stride);
                    let left = cmma::Matrix::<FS>::from_slice(
                        cmma::MatrixIdent::A,
                        EDGE,
                        EDGE,
                        depth,
                        cmma::MatrixLayout::ColMajor,
                        &patch.slice(start, start + left_span),
                        comptime!(voxel_stride as u32),
                    );
                    let sum = products.index(own_tap);
                    cmma::execute::<FS, FS, f32, f32>(&left, &right, sum, sum);
                }
            }
        }
    }
}

/// Like [`add_matrices`], without matrix units.
#[cube]
fn add_elements<FS: Float>(
    patch: &SharedMemory<FS>,
    gradients: &SharedMemory<FS>,
    products: &mut Array<f32>,
    #[comptime] shape: Shape,
    #[comptime] division: Division,
) {
    let edge = comptime!(EDGE as u32);
    let taps = comptime!(division.plane_taps);
    let voxel_stride = comptime!((shape.reach.stride[2] * EDGE) as u32);
    let group_rows = comptime!(division.group_rows as u32);
    let first = row_group(division) * group_rows;
    let element = UNIT_POS % comptime!(PLANE_UNITS as u32) * comptime!(UNIT_ELEMENTS as u32);
    let input = element / edge;
    let column = element % edge;
    for own_row in 0..group_rows {
        let row = first + own_row;
        #[unroll]
        for own_tap in 0..taps {
            let tap = first_tap(division) + comptime!(own_tap as u32);
            if tap < comptime!(division.taps as u32) {
                let start = tap_start(row, tap, shape) + input;
                for voxel in 0..edge {
                    let left = f32::cast_from(patch[(start + voxel * voxel_stride) as usize]);
                    let from = (row * edge + voxel) * edge + column;
                    #[unroll]
                    for i in 0..UNIT_ELEMENTS {
                        let right = f32::cast_from(gradients[from as usize + i]);
                        let at = comptime!(own_tap * UNIT_ELEMENTS + i);
                        products[at] = products[at] + left * right;
                    }
                }
            }
        }
    }
}

/// Stores the sums of this unit's plane for a tap; `input` and `output` are the first channels of the cube. The axes are
/// part and group of rows, tap, input channel, output channel.
#[cube]
fn store_sums(
    stored: &SharedMemory<f32>,
    sums: &mut Array<f32>,
    part: u32,
    input: u32,
    output: u32,
    #[comptime] own_tap: usize,
    #[comptime] shape: Shape,
    #[comptime] division: Division,
) {
    let edge = comptime!(EDGE as u32);
    let taps = comptime!(division.taps as u32);
    let tap = first_tap(division) + comptime!(own_tap as u32);
    if tap < taps {
        let from = UNIT_POS * comptime!(UNIT_ELEMENTS as u32);
        let element = UNIT_POS % comptime!(PLANE_UNITS as u32) * comptime!(UNIT_ELEMENTS as u32);
        let own_part = part * comptime!(division.row_groups as u32) + row_group(division);
        let row = (own_part * taps + tap) * comptime!(shape.inputs as u32) + input + element / edge;
        let to = row * comptime!(shape.outputs as u32) + output + element % edge;
        #[unroll]
        for i in 0..UNIT_ELEMENTS {
            sums[to as usize + i] = stored[from as usize + i];
        }
    }
}

/// Returns sums of products whose axes are part, tap, input channel and output channel, and the number of parts, with one
/// launch. Returns `None` if the device has no such matrix units, or if the numbers of channels are not multiples of 16.
pub(super) fn partial_sums<R: CubeRuntime>(
    x: &Dense<R>,
    dy: &Dense<R>,
    reach: Reach,
    factor_type: FactorType,
) -> Option<(CubeTensor<R>, usize)> {
    let [samples, depth, height, width, inputs] = x.form;
    let [_, out_depth, out_height, out_width, outputs] = dy.form;
    let suits = inputs.is_multiple_of(EDGE) && outputs.is_multiple_of(EDGE);
    if !suits || [vector(x, inputs), vector(dy, outputs)] != [LANES; 2] || !factor_type.is_supported(&x.tensor) {
        return None;
    }
    let by = Convolution {
        kernel: reach.kernel,
        stride: reach.stride,
        padding: reach.padding,
        dilation: reach.dilation,
        groups: 1,
        outputs,
        upscale: [1; 3],
        lengths: [out_depth, out_height, out_width],
        curve: Curve::IDENTITY,
        factor_type: Some(factor_type),
    };
    let taps: usize = reach.kernel.iter().product();
    let most_bytes = x.tensor.client.properties().hardware.max_shared_memory_size;
    let depth_at_once = (factor_type.depth().unwrap_or(0), factor_type.loads_rows(&x.tensor));
    let (shape, division) = BOXES.into_iter().find_map(|rows| {
        let shape = Shape::of(&by, inputs, depth_at_once, false, (rows, 1));
        let division = Division::of(taps, rows.iter().product())?;
        (shared_bytes(&shape, factor_type) <= most_bytes).then_some((shape, division))
    })?;
    let boxes =
        samples * out_depth.div_ceil(shape.rows[0]) * out_height.div_ceil(shape.rows[1]) * out_width.div_ceil(EDGE);
    let channel_blocks = inputs / EDGE * (outputs / EDGE);
    let part_boxes = boxes.div_ceil(part_limit(channel_blocks, division.row_groups, boxes));
    let parts = boxes.div_ceil(part_boxes);
    let sums = empty(&x.tensor, [parts * division.row_groups, taps, inputs, outputs, 1], DType::F32);
    multiply_tiled::launch::<R>(
        &x.tensor.client.clone(),
        CubeCount::Static(u32::try_from(parts * channel_blocks).ok()?, 1, 1),
        CubeDim::new_2d(PLANE_UNITS as u32, PLANES as u32),
        LANES,
        LANES,
        x.tensor.clone().into_array_arg(),
        dy.tensor.clone().into_array_arg(),
        sums.clone().into_array_arg(),
        length(boxes),
        length(part_boxes),
        lengths_zyx([depth, height, width]),
        length(x.pitch / LANES),
        lengths_zyx([out_depth, out_height, out_width]),
        length(dy.pitch / LANES),
        shape,
        division,
        [x.tensor.dtype.into(), dy.tensor.dtype.into(), factor_type.storage()],
    );
    LAUNCHES.fetch_add(1, Ordering::Relaxed);
    Some((sums, parts * division.row_groups))
}

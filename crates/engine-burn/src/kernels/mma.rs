//! Products on matrix units whose factors are loaded by rows of 16 bytes (`ldmatrix`), for [`super::tiled`] and
//! [`super::tiled_gradient`]: rows may start at any multiple of 16 bytes, so that they can be spread over the banks of
//! shared memory.
//!
//! A product is a matrix of 16 × 8 sums over 16 elements. Each unit of a plane holds two neighboring sums of two rows of it
//! (PTX ISA, `mma.m16n8k16`).

use super::tile::{EDGE, PLANE_UNITS, PLANES, ROW_ELEMENTS, Shape, row_start};
use super::tiled_gradient::{Division, first_tap, row_group, tap_start};
use cubecl::cmma::{MatrixIdent, MmaDefinition};
use cubecl::prelude::*;

/// Two neighboring elements of a row.
type Pair<F> = Vector<F, Const<2>>;

/// Sums that a unit holds, 16 × 16: columns 0 to 7 and 8 to 15, each of rows 0 to 7 and 8 to 15.
#[derive(CubeType)]
pub(super) struct Sums {
    first: Array<Pair<f32>>,
    second: Array<Pair<f32>>,
}

/// Creates `count` sums, all zero.
#[cube]
pub(super) fn zero_rows(sums: &mut Sequence<Sums>, #[comptime] count: usize) {
    #[unroll]
    for _ in 0..count {
        let mut first = Array::<Pair<f32>>::new(2usize);
        let mut second = Array::<Pair<f32>>::new(2usize);
        #[unroll]
        for i in 0..2usize {
            first[i] = Pair::<f32>::new(0.0);
            second[i] = Pair::<f32>::new(0.0);
        }
        sums.push(Sums { first, second });
    }
}

/// Adds the products of the rows of this unit's plane with the weights of all taps.
#[cube]
pub(super) fn multiply_rows<FS: Float>(
    patch: &SharedMemory<FS>,
    filters: &SharedMemory<FS>,
    sums: &mut Sequence<Sums>,
    #[comptime] shape: Shape,
) {
    let unit = MmaDefinition::<FS, FS, f32>::new(EDGE, ROW_ELEMENTS, EDGE);
    let rows = comptime!(shape.rows[0] * shape.rows[1] / PLANES);
    let blocks = comptime!(shape.blocks);
    let edge = comptime!(EDGE as u32);
    let plane = UNIT_POS / comptime!(PLANE_UNITS as u32);
    let lane = UNIT_POS % comptime!(PLANE_UNITS as u32);
    // The row of 16 bytes whose address this unit passes: units 0 to 15 pass the first halves of 16 rows, the others the
    // second halves.
    let half = lane / edge * comptime!(ROW_ELEMENTS as u32);
    let voxel = lane % edge * comptime!((shape.reach.stride[2] * shape.patch_pitch()) as u32) + half;
    let channel = lane % edge * comptime!(shape.weight_pitch() as u32) + half;
    let kernel_y = comptime!(shape.reach.kernel[1] as u32);
    let kernel_x = comptime!(shape.reach.kernel[2] as u32);
    for kz in 0..comptime!(shape.reach.kernel[0] as u32) {
        for ky in 0..kernel_y {
            #[unroll]
            for kx in 0..kernel_x {
                let tap = (kz * kernel_y + ky) * kernel_x + kx;
                let filter = tap * comptime!((EDGE * shape.weight_pitch()) as u32) + channel;
                let mut right = Sequence::<Array<Pair<FS>>>::new();
                #[unroll]
                for block in 0..blocks {
                    let from = filter as usize + comptime!(block * EDGE);
                    load_right::<FS>(&filters.slice(from, from + ROW_ELEMENTS), &mut right);
                }
                #[unroll]
                for row in 0..rows {
                    let start = row_start(plane * comptime!(rows as u32) + comptime!(row as u32), kz, ky, kx, shape);
                    let from = (start + voxel) as usize;
                    let left = unit.load_matrix::<FS, Const<2>>(
                        &patch.slice(from, from + ROW_ELEMENTS),
                        MatrixIdent::A,
                        4usize,
                        false,
                    );
                    #[unroll]
                    for block in 0..blocks {
                        let sum = sums.index_mut(comptime!(row * blocks + block));
                        add_products::<FS>(&left, &right, sum, comptime!(2 * block));
                    }
                }
            }
        }
    }
}

/// Loads 16 × 16 elements as right factors: those of columns 0 to 7 and of 8 to 15. Each unit passes a row of 16 bytes:
/// units 0 to 15 the first halves of the rows, the others the second halves.
#[cube]
fn load_right<FS: Float>(row: &Slice<FS>, right: &mut Sequence<Array<Pair<FS>>>) {
    let unit = MmaDefinition::<FS, FS, f32>::new(EDGE, ROW_ELEMENTS, EDGE);
    let loaded = unit.load_matrix::<FS, Const<2>>(row, MatrixIdent::B, 4usize, true);
    #[unroll]
    for half in 0..2usize {
        let mut part = Array::<Pair<FS>>::new(2usize);
        part[0] = loaded[comptime!(2 * half)];
        part[1] = loaded[comptime!(2 * half + 1)];
        right.push(part);
    }
}

/// Adds the products of a left factor with two right factors, from `at` on.
#[cube]
fn add_products<FS: Float>(
    left: &Array<Pair<FS>>,
    right: &Sequence<Array<Pair<FS>>>,
    sum: &mut Sums,
    #[comptime] at: usize,
) {
    let unit = MmaDefinition::<FS, FS, f32>::new(EDGE, ROW_ELEMENTS, EDGE);
    let first = unit.execute(left, right.index(at), &sum.first);
    let second = unit.execute(left, right.index(comptime!(at + 1)), &sum.second);
    #[unroll]
    for i in 0..2usize {
        sum.first[i] = first[i];
        sum.second[i] = second[i];
    }
}

/// Adds the products of the rows and taps of this unit's plane, for the gradient of weights: input channels by voxels, times
/// voxels by output channels.
#[cube]
pub(super) fn multiply_columns<FS: Float>(
    patch: &SharedMemory<FS>,
    gradients: &SharedMemory<FS>,
    sums: &mut Sequence<Sums>,
    #[comptime] shape: Shape,
    #[comptime] division: Division,
) {
    let unit = MmaDefinition::<FS, FS, f32>::new(EDGE, ROW_ELEMENTS, EDGE);
    let taps = comptime!(division.plane_taps);
    let group_rows = comptime!(division.group_rows as u32);
    let edge = comptime!(EDGE as u32);
    let eight = comptime!(ROW_ELEMENTS as u32);
    let pitch = comptime!(shape.patch_pitch() as u32);
    let lane = UNIT_POS % comptime!(PLANE_UNITS as u32);
    // The left factor is loaded as four matrices of 8 × 8: channels 0 to 7 and 8 to 15 of voxels 0 to 7, then of 8 to 15.
    let left_voxel = lane / edge * eight + lane % eight;
    let left_at =
        left_voxel * comptime!((shape.reach.stride[2] * shape.patch_pitch()) as u32) + lane / eight % 2 * eight;
    let right_at = lane % edge * pitch + lane / edge * eight;
    let first = row_group(division) * group_rows;
    for own_row in 0..group_rows {
        let row = first + own_row;
        let from = (row * edge * pitch + right_at) as usize;
        let mut right = Sequence::<Array<Pair<FS>>>::new();
        load_right::<FS>(&gradients.slice(from, from + ROW_ELEMENTS), &mut right);
        #[unroll]
        for own_tap in 0..taps {
            let tap = first_tap(division) + comptime!(own_tap as u32);
            if tap < comptime!(division.taps as u32) {
                let from = (tap_start(row, tap, shape) + left_at) as usize;
                let left = unit.load_matrix::<FS, Const<2>>(
                    &patch.slice(from, from + ROW_ELEMENTS),
                    MatrixIdent::A,
                    4usize,
                    true,
                );
                add_products::<FS>(&left, &right, sums.index_mut(own_tap), 0usize);
            }
        }
    }
}

/// Copies a sum of each plane to the part of `shared` that the plane has, by rows.
#[cube]
pub(super) fn share_rows(sums: &Sequence<Sums>, shared: &mut SharedMemory<f32>, #[comptime] index: usize) {
    let sum = sums.index(index);
    let lane = UNIT_POS % comptime!(PLANE_UNITS as u32);
    let from = UNIT_POS / comptime!(PLANE_UNITS as u32) * comptime!((EDGE * EDGE) as u32)
        + lane / 4 * comptime!(EDGE as u32)
        + lane % 4 * 2;
    #[unroll]
    for i in 0..2usize {
        let to = from as usize + comptime!(i * ROW_ELEMENTS * EDGE);
        let first = sum.first[i];
        let second = sum.second[i];
        #[unroll]
        for channel in 0..2usize {
            shared[to + channel] = first[channel];
            shared[to + channel + ROW_ELEMENTS] = second[channel];
        }
    }
}

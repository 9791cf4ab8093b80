//! The convolution of [`super::conv`] with matrix units (tensor cores): products of factors of 10 or fewer mantissa bits
//! are summed in f32.
//!
//! A cube computes a box of voxels for a few blocks of 16 output channels. For each 16 input channels, it copies the part
//! of the input that the box reads, with zeros outside, and the weights to the memory that its units share. Each plane
//! then multiplies rows of 16 voxels along X with the weights of every tap: a tap only shifts the position from which a
//! row is read.

use super::conv::{Convolution, unread};
use super::curve::{Kind as CurveKind, curve};
use super::memory::{Dense, Reach, empty, length};
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use burn_tensor::DType;
use cubecl::cmma;
use cubecl::features::MmaConfig;
use cubecl::ir::{ElemType, FloatKind, StorageType};
use cubecl::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of launches of kernels for matrix units in this process.
pub(super) static LAUNCHES: AtomicU64 = AtomicU64::new(0);

/// Returns the number of convolutions and weight gradients that this process has started with kernels for matrix units.
pub(crate) fn launches() -> u64 {
    LAUNCHES.load(Ordering::Relaxed)
}

/// Voxels of a row, input channels of a step, and output channels of a block: the edge of a matrix.
pub(super) const EDGE: usize = 16;
/// Planes of a cube.
pub(super) const PLANES: usize = 8;
/// Units of a plane.
pub(super) const PLANE_UNITS: usize = 32;
/// Units of a cube.
pub(super) const UNITS: usize = PLANES * PLANE_UNITS;
/// Elements of a matrix that each unit stores.
pub(super) const UNIT_ELEMENTS: usize = EDGE * EDGE / PLANE_UNITS;
/// Channels that are read or written at once.
pub(super) const LANES: usize = 4;
/// Alignment of shared memory in bytes, as matrix units need it.
pub(super) const SHARED_ALIGNMENT: usize = 128;
/// Candidates for the rows of a cube along Z and Y and for its blocks of output channels; the first that fits in shared
/// memory is taken.
const CUBES: [([usize; 2], usize); 6] = [([4, 4], 2), ([4, 4], 1), ([2, 4], 2), ([2, 4], 1), ([1, 8], 1), ([8, 1], 1)];

/// The type of the factors of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Factors {
    /// 16 bits, 10 of them mantissa.
    F16,
    /// 16 bits, 7 of them mantissa.
    Bf16,
    /// 10 mantissa bits, with the range of f32.
    Tf32,
    /// f32, which the units multiply themselves: for devices without matrix units, to test everything else.
    F32,
}

impl Factors {
    pub(super) fn storage(self) -> StorageType {
        let kind = match self {
            Factors::F16 => FloatKind::F16,
            Factors::Bf16 => FloatKind::BF16,
            Factors::Tf32 => FloatKind::TF32,
            Factors::F32 => FloatKind::F32,
        };
        StorageType::Scalar(ElemType::Float(kind))
    }

    /// Returns the size of an element in shared memory in bytes.
    pub(super) fn bytes(self) -> usize {
        match self {
            Factors::F16 | Factors::Bf16 => 2,
            Factors::Tf32 | Factors::F32 => 4,
        }
    }

    /// Whether convolutions of 32-bit tensors use them.
    pub(crate) fn are_wide(self) -> bool {
        matches!(self, Factors::Tf32 | Factors::F32)
    }

    /// Returns the number of input channels that a matrix unit multiplies at once; `None` without matrix units.
    pub(super) fn depth(self) -> Option<usize> {
        match self {
            Factors::F16 | Factors::Bf16 => Some(EDGE),
            Factors::Tf32 => Some(EDGE / 2),
            Factors::F32 => None,
        }
    }

    /// Returns whether a device multiplies matrices of these factors.
    pub(super) fn are_supported<R: CubeRuntime>(self, on: &CubeTensor<R>) -> bool {
        let Some(depth) = self.depth() else { return true };
        let properties = on.client.properties();
        let config = MmaConfig {
            a_type: self.storage(),
            b_type: self.storage(),
            cd_type: StorageType::Scalar(ElemType::Float(FloatKind::F32)),
            m: EDGE as u32,
            n: EDGE as u32,
            k: depth as u32,
        };
        let planes = [properties.hardware.plane_size_min, properties.hardware.plane_size_max];
        planes == [PLANE_UNITS as u32; 2] && properties.features.matmul.cmma.contains(&config)
    }
}

/// The properties of a convolution that are fixed when its kernel is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub(super) reach: Reach,
    factors: [usize; 3],
    /// Input channels.
    pub(super) inputs: usize,
    /// Output channels, including those that become voxels.
    pub(super) outputs: usize,
    /// Channels of the stored result.
    stored: usize,
    /// Rows of a cube along Z and Y.
    pub(super) rows: [usize; 2],
    /// Blocks of output channels of a cube.
    blocks: usize,
    /// Lengths of the part of the input that a cube reads.
    pub(super) patch: [usize; 3],
    /// Input channels that a matrix unit multiplies at once; 0 without matrix units.
    pub(super) depth: usize,
    /// Whether there is a bias.
    bias: bool,
    curve: CurveKind,
}

impl Shape {
    /// Returns the shape for cubes of some rows and blocks.
    pub(super) fn of(
        by: &Convolution,
        inputs: usize,
        depth: usize,
        bias: bool,
        (rows, blocks): ([usize; 2], usize),
    ) -> Self {
        let box_lengths = [rows[0], rows[1], EDGE];
        let patch =
            std::array::from_fn(|a| (box_lengths[a] - 1) * by.stride[a] + (by.kernel[a] - 1) * by.dilation[a] + 1);
        let reach = Reach { kernel: by.kernel, stride: by.stride, padding: by.padding, dilation: by.dilation };
        let stored = by.outputs / by.factors.iter().product::<usize>().max(1);
        Self {
            reach,
            factors: by.factors,
            inputs,
            outputs: by.outputs,
            stored,
            rows,
            blocks,
            patch,
            depth,
            bias,
            curve: by.curve.kind,
        }
    }

    pub(super) fn patch_elements(&self) -> usize {
        self.patch.iter().product::<usize>() * EDGE
    }

    fn weight_elements(&self) -> usize {
        self.reach.kernel.iter().product::<usize>() * EDGE * EDGE * self.blocks
    }

    /// Returns the number of sums that each unit keeps without matrix units; 1 with them, as arrays cannot be empty.
    fn unit_sums(&self) -> usize {
        let rows = self.rows[0] * self.rows[1] / PLANES;
        if self.depth > 0 { 1 } else { rows * self.blocks * UNIT_ELEMENTS }
    }

    /// Returns the shared memory of a cube in bytes.
    fn shared_bytes(&self, factors: Factors) -> usize {
        let elements = self.patch_elements() + self.weight_elements();
        elements * factors.bytes() + PLANES * EDGE * EDGE * size_of::<f32>() + 3 * SHARED_ALIGNMENT
    }
}

/// Where the box of a cube starts in the output, and its first output channel.
#[derive(CubeType, Clone)]
pub(super) struct Corner {
    pub(super) sample: u32,
    pub(super) z: u32,
    pub(super) y: u32,
    pub(super) x: u32,
    pub(super) channel: u32,
}

#[cube(launch)]
fn convolve_tiled<FX: Float, FS: Float, FY: Float, NI: Size, NO: Size>(
    x: &Array<Vector<FX, NI>>,
    weights: &Array<Vector<f32, NI>>,
    bias: &Array<f32>,
    y: &mut Array<Vector<FY, NO>>,
    depth: u32,
    height: u32,
    width: u32,
    pitch: u32,
    out_depth: u32,
    out_height: u32,
    out_width: u32,
    first: f32,
    second: f32,
    #[comptime] shape: Shape,
    #[define(FX, FS, FY)] _types: [StorageType; 3],
) {
    let rows_z = comptime!(shape.rows[0] as u32);
    let rows_y = comptime!(shape.rows[1] as u32);
    let edge = comptime!(EDGE as u32);
    let channels = comptime!((EDGE * shape.blocks) as u32);
    let cubes_of_channels = comptime!((shape.outputs / EDGE / shape.blocks) as u32);

    // Neighboring cubes read the same voxels.
    let cube = CUBE_POS as u32;
    let column = cube / cubes_of_channels;
    let cubes_x = (out_width - 1) / edge + 1;
    let cubes_y = (out_height - 1) / rows_y + 1;
    let cubes_z = (out_depth - 1) / rows_z + 1;
    let corner = Corner {
        sample: column / cubes_x / cubes_y / cubes_z,
        z: column / cubes_x / cubes_y % cubes_z * rows_z,
        y: column / cubes_x % cubes_y * rows_y,
        x: column % cubes_x * edge,
        channel: cube % cubes_of_channels * channels,
    };

    let mut patch = SharedMemory::<FS>::new_aligned(comptime!(shape.patch_elements()), SHARED_ALIGNMENT);
    let mut filters = SharedMemory::<FS>::new_aligned(comptime!(shape.weight_elements()), SHARED_ALIGNMENT);
    let mut stored = SharedMemory::<f32>::new_aligned(PLANES * EDGE * EDGE, SHARED_ALIGNMENT);

    let steps = comptime!((shape.inputs / EDGE) as u32);
    let rows = comptime!(shape.rows[0] * shape.rows[1] / PLANES);
    let blocks = comptime!(shape.blocks);
    // Sums on matrix units, or those of the units themselves.
    let mut sums = Sequence::<cmma::Matrix<f32>>::new();
    let mut own_sums = Array::<f32>::new(comptime!(shape.unit_sums()));
    if comptime!(shape.depth > 0) {
        #[unroll]
        for _ in 0..rows * blocks {
            sums.push(cmma::Matrix::<f32>::from_value(
                cmma::MatrixIdent::Accumulator,
                EDGE,
                EDGE,
                comptime!(shape.depth),
                cmma::MatrixLayout::Undefined,
                0.0,
            ));
        }
    } else {
        #[unroll]
        for i in 0..rows * blocks * UNIT_ELEMENTS {
            own_sums[i] = 0.0f32;
        }
    }
    for step in 0..steps {
        load_patch::<FX, FS, NI>(x, &mut patch, &corner, depth, height, width, pitch, step, shape);
        load_filters::<FS, NI>(weights, &mut filters, &corner, step, shape);
        sync_cube();
        if comptime!(shape.depth > 0) {
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
            if comptime!(shape.depth > 0) {
                let from = (UNIT_POS / comptime!(PLANE_UNITS as u32) * comptime!((EDGE * EDGE) as u32)) as usize;
                cmma::store(
                    &mut stored.slice_mut(from, from + comptime!(EDGE * EDGE)),
                    sums.index(row * blocks + block),
                    comptime!(EDGE as u32),
                    cmma::MatrixLayout::RowMajor,
                );
            } else {
                let from = UNIT_POS * comptime!(UNIT_ELEMENTS as u32);
                #[unroll]
                for i in 0..UNIT_ELEMENTS {
                    stored[from as usize + i] = own_sums[(row * blocks + block) * UNIT_ELEMENTS + i];
                }
            }
            sync_cube();
            store::<FY, NO>(
                &stored, bias, y, &corner, out_depth, out_height, out_width, first, second, row, block, shape,
            );
            sync_cube();
        }
    }
}

/// Copies 16 channels of the part of the input that a cube reads to shared memory; voxels outside are zeros.
#[cube]
pub(super) fn load_patch<FX: Float, FS: Float, NI: Size>(
    x: &Array<Vector<FX, NI>>,
    patch: &mut SharedMemory<FS>,
    corner: &Corner,
    depth: u32,
    height: u32,
    width: u32,
    pitch: u32,
    step: u32,
    #[comptime] shape: Shape,
) {
    let reach = comptime!(shape.reach);
    let patch_y = comptime!(shape.patch[1] as u32);
    let patch_x = comptime!(shape.patch[2] as u32);
    let vectors = comptime!((EDGE / LANES) as u32);
    let count = comptime!((shape.patch_elements() / LANES) as u32);
    let start_z = (corner.z * comptime!(reach.stride[0] as u32)) as i32 - comptime!(reach.padding[0] as i32);
    let start_y = (corner.y * comptime!(reach.stride[1] as u32)) as i32 - comptime!(reach.padding[1] as i32);
    let start_x = (corner.x * comptime!(reach.stride[2] as u32)) as i32 - comptime!(reach.padding[2] as i32);
    let mut i = UNIT_POS;
    while i < count {
        let vector = i % vectors;
        let voxel = i / vectors;
        let iz = start_z + (voxel / patch_x / patch_y) as i32;
        let iy = start_y + (voxel / patch_x % patch_y) as i32;
        let ix = start_x + (voxel % patch_x) as i32;
        let mut value = Vector::<f32, NI>::new(0.0);
        if iz >= 0 && iz < depth as i32 && iy >= 0 && iy < height as i32 && ix >= 0 && ix < width as i32 {
            let at = ((corner.sample * depth + iz as u32) * height + iy as u32) * width + ix as u32;
            value = Vector::<f32, NI>::cast_from(x[(at * pitch + step * vectors + vector) as usize]);
        }
        let to = (i * comptime!(LANES as u32)) as usize;
        #[unroll]
        for lane in 0..LANES {
            patch[to + lane] = FS::cast_from(value[lane]);
        }
        i += comptime!(UNITS as u32);
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
    let count = comptime!((shape.weight_elements() / LANES) as u32);
    let edge = comptime!(EDGE as u32);
    let inputs = comptime!(shape.inputs as u32);
    let first = corner.channel / comptime!(LANES as u32);
    let mut i = UNIT_POS;
    while i < count {
        let vector = i % vectors;
        let row = i / vectors;
        let input = row / edge * inputs + step * edge + row % edge;
        let value = weights[(input * all_vectors + first + vector) as usize];
        let to = (i * comptime!(LANES as u32)) as usize;
        #[unroll]
        for lane in 0..LANES {
            filters[to + lane] = FS::cast_from(value[lane]);
        }
        i += comptime!(UNITS as u32);
    }
}

/// Returns where the row that a tap reads starts in the patch.
#[cube]
pub(super) fn row_start(row: u32, kz: u32, ky: u32, kx: u32, #[comptime] shape: Shape) -> u32 {
    let rows_y = comptime!(shape.rows[1] as u32);
    let reach = comptime!(shape.reach);
    let z = row / rows_y * comptime!(reach.stride[0] as u32) + kz * comptime!(reach.dilation[0] as u32);
    let y = row % rows_y * comptime!(reach.stride[1] as u32) + ky * comptime!(reach.dilation[1] as u32);
    let x = kx * comptime!(reach.dilation[2] as u32);
    ((z * comptime!(shape.patch[1] as u32) + y) * comptime!(shape.patch[2] as u32) + x) * comptime!(EDGE as u32)
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
    out_depth: u32,
    out_height: u32,
    out_width: u32,
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
    let factor_z = comptime!(shape.factors[0] as u32);
    let factor_y = comptime!(shape.factors[1] as u32);
    let factor_x = comptime!(shape.factors[2] as u32);
    let channels = comptime!(shape.stored as u32);
    let from = UNIT_POS * comptime!(UNIT_ELEMENTS as u32);
    let element = UNIT_POS % comptime!(PLANE_UNITS as u32) * comptime!(UNIT_ELEMENTS as u32);
    let own_row = UNIT_POS / comptime!(PLANE_UNITS as u32) * rows + comptime!(row as u32);
    let oz = corner.z + own_row / rows_y;
    let oy = corner.y + own_row % rows_y;
    let ox = corner.x + element / edge;
    if oz < out_depth && oy < out_height && ox < out_width {
        #[unroll]
        for part in 0..comptime!(UNIT_ELEMENTS / LANES) {
            let offset = comptime!((part * LANES) as u32);
            let channel = corner.channel + comptime!((block * EDGE) as u32) + element % edge + offset;
            let mut cell = RuntimeCell::<Vector<f32, NO>>::new(Vector::<f32, NO>::new(0.0));
            #[unroll]
            for lane in 0..LANES {
                let mut value = stored[(from + offset) as usize + lane];
                if comptime!(shape.bias) {
                    value += bias[channel as usize + lane];
                }
                cell.store_at(lane, value);
            }
            let value = curve::<NO>(cell.consume(), first, second, shape.curve);
            let of_block = channel / channels;
            let z = oz * factor_z + of_block / (factor_y * factor_x);
            let y_at = oy * factor_y + of_block / factor_x % factor_y;
            let x_at = ox * factor_x + of_block % factor_x;
            let slice = corner.sample * (out_depth * factor_z) + z;
            let voxel = (slice * (out_height * factor_y) + y_at) * (out_width * factor_x) + x_at;
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
    factors: Factors,
    to: DType,
) -> Option<CubeTensor<R>> {
    let [samples, depth, height, width, inputs] = x.form;
    let taps: usize = by.factors.iter().product();
    let stored = by.outputs / taps.max(1);
    let suits = by.groups == 1
        && inputs.is_multiple_of(EDGE)
        && by.outputs.is_multiple_of(EDGE)
        && stored.is_multiple_of(LANES);
    if !suits
        || weights.dtype != DType::F32
        || super::memory::vector(x, inputs) != LANES
        || !factors.are_supported(&x.tensor)
    {
        return None;
    }
    let shared_bytes = x.tensor.client.properties().hardware.max_shared_memory_size;
    let blocks_of = |blocks: usize| (by.outputs / EDGE).is_multiple_of(blocks);
    let shape = CUBES.into_iter().filter(|(_, blocks)| blocks_of(*blocks)).find_map(|cube| {
        let shape = Shape::of(by, inputs, factors.depth().unwrap_or(0), bias.is_some(), cube);
        (shape.shared_bytes(factors) <= shared_bytes).then_some(shape)
    })?;
    let [out_depth, out_height, out_width] = by.lengths;
    let columns =
        samples * out_depth.div_ceil(shape.rows[0]) * out_height.div_ceil(shape.rows[1]) * out_width.div_ceil(EDGE);
    let cubes = u32::try_from(columns * (by.outputs / EDGE / shape.blocks)).ok()?;
    let scaled = |a: usize| by.lengths[a] * by.factors[a];
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
        length(depth),
        length(height),
        length(width),
        length(x.pitch / LANES),
        length(out_depth),
        length(out_height),
        length(out_width),
        by.curve.first,
        by.curve.second,
        shape,
        [x.tensor.dtype.into(), factors.storage(), to.into()],
    );
    LAUNCHES.fetch_add(1, Ordering::Relaxed);
    Some(y)
}

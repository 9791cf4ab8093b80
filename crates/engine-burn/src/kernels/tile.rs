//! Functions that the kernels for matrix units (tensor cores) share; used by [`super::tiled`] and
//! [`super::tiled_gradient`].
//!
//! Cubes work on boxes of voxels, whose rows of 16 voxels along X form matrices of 16 voxels × 16 channels. A cube copies
//! the part of the input that a box reads to the memory that its units share.

use super::conv::Convolution;
use super::curve::Kind as CurveKind;
pub(super) use super::division::{EDGE, PLANES};
use super::memory::{LengthsZyx, Reach, voxel_number};
use burn_cubecl::CubeRuntime;
use burn_cubecl::tensor::CubeTensor;
use cubecl::cmma;
use cubecl::features::{MmaConfig, Plane};
use cubecl::ir::{DeviceProperties, ElemType, FloatKind, StorageType};
use cubecl::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of launches of kernels for matrix units in this process.
pub(super) static LAUNCHES: AtomicU64 = AtomicU64::new(0);

/// Returns the number of convolutions and weight gradients that this process has started with kernels for matrix units.
pub(crate) fn launches() -> u64 {
    LAUNCHES.load(Ordering::Relaxed)
}

/// Number of units (threads) of a plane (warp).
pub(super) const PLANE_UNITS: usize = 32;
/// Units of a cube.
pub(super) const UNITS: usize = PLANES * PLANE_UNITS;
/// Elements of a matrix that each unit stores.
pub(super) const UNIT_ELEMENTS: usize = EDGE * EDGE / PLANE_UNITS;
/// Channels that are read or written at once.
pub(super) const LANES: usize = 4;
/// Elements of 16 bits in the 16 bytes that `ldmatrix` loads of a row.
pub(super) const ROW_ELEMENTS: usize = 8;
/// Alignment of shared memory in bytes, as matrix units need it.
pub(super) const SHARED_ALIGNMENT: usize = 128;

/// The number type to which matrix units round the factors of their products: voxels and weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum FactorType {
    /// 16 bits, 10 of them mantissa.
    F16,
    /// 16 bits, 7 of them mantissa.
    Bf16,
    /// 10 mantissa bits, with the range of f32.
    Tf32,
    /// f32, which the units multiply themselves: for devices without matrix units, to test everything else.
    F32,
}

impl FactorType {
    pub(super) fn storage(self) -> StorageType {
        let kind = match self {
            FactorType::F16 => FloatKind::F16,
            FactorType::Bf16 => FloatKind::BF16,
            FactorType::Tf32 => FloatKind::TF32,
            FactorType::F32 => FloatKind::F32,
        };
        StorageType::Scalar(ElemType::Float(kind))
    }

    /// Returns the size of an element in shared memory in bytes.
    pub(super) fn bytes(self) -> usize {
        match self {
            FactorType::F16 | FactorType::Bf16 => 2,
            FactorType::Tf32 | FactorType::F32 => 4,
        }
    }

    /// Whether convolutions of 32-bit tensors round their factors to this type.
    pub(crate) fn is_wide(self) -> bool {
        matches!(self, FactorType::Tf32 | FactorType::F32)
    }

    /// Returns the number of input channels that a matrix unit multiplies at once; `None` without matrix units.
    pub(super) fn depth(self) -> Option<usize> {
        match self {
            FactorType::F16 | FactorType::Bf16 => Some(EDGE),
            FactorType::Tf32 => Some(EDGE / 2),
            FactorType::F32 => None,
        }
    }

    /// Returns whether the device of a tensor multiplies matrices of factors of this type.
    pub(super) fn is_supported<R: CubeRuntime>(self, on: &CubeTensor<R>) -> bool {
        self.is_registered(on.client.properties())
    }

    /// Returns products of 16 × `depth` with `depth` × `columns` factors of this type, with sums in f32, as CubeCL names
    /// them.
    fn product(self, columns: usize, depth: usize) -> MmaConfig {
        MmaConfig {
            a_type: self.storage(),
            b_type: self.storage(),
            cd_type: StorageType::Scalar(ElemType::Float(FloatKind::F32)),
            m: EDGE as u32,
            n: columns as u32,
            k: depth as u32,
        }
    }

    /// Returns whether the device of a tensor loads matrices of factors of this type by rows, and multiplies them.
    pub(super) fn loads_rows<R: CubeRuntime>(self, on: &CubeTensor<R>) -> bool {
        let features = &on.client.properties().features;
        self.bytes() == 2
            && features.matmul.ldmatrix.contains(&self.storage())
            && features.matmul.mma.contains(&self.product(ROW_ELEMENTS, EDGE))
            && features.plane.contains(Plane::Sync)
    }

    /// Returns whether CubeCL has registered products of matrices of factors of this type for a device.
    pub(crate) fn is_registered(self, properties: &DeviceProperties) -> bool {
        let Some(depth) = self.depth() else { return true };
        let planes = [properties.hardware.plane_size_min, properties.hardware.plane_size_max];
        planes == [PLANE_UNITS as u32; 2] && properties.features.matmul.cmma.contains(&self.product(EDGE, depth))
    }
}

/// The properties of a convolution that are fixed when its kernel is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Shape {
    pub(super) reach: Reach,
    /// Lengths along Z, Y, X of the blocks of voxels that output channels become, as [`Convolution::upscale`].
    pub(super) upscale: [usize; 3],
    /// Input channels.
    pub(super) inputs: usize,
    /// Output channels, including those that are rearranged into voxels.
    pub(super) outputs: usize,
    /// Channels of the stored result.
    pub(super) stored: usize,
    /// Rows of a cube along Z and Y.
    pub(super) rows: [usize; 2],
    /// Blocks of output channels of a cube.
    pub(super) blocks: usize,
    /// Lengths of the part of the input that a cube reads.
    pub(super) patch: [usize; 3],
    /// Input channels that a matrix unit multiplies at once; 0 without matrix units.
    pub(super) depth: usize,
    /// Whether planes load matrices by rows of 16 bytes (`ldmatrix`), which may start anywhere in shared memory.
    pub(super) loads_rows: bool,
    /// Whether there is a bias.
    pub(super) bias: bool,
    pub(super) curve: CurveKind,
}

impl Shape {
    /// Returns the shape for cubes of some rows and blocks.
    pub(super) fn of(
        by: &Convolution,
        inputs: usize,
        (depth, loads_rows): (usize, bool),
        bias: bool,
        (rows, blocks): ([usize; 2], usize),
    ) -> Self {
        let box_lengths = [rows[0], rows[1], EDGE];
        let patch =
            std::array::from_fn(|a| (box_lengths[a] - 1) * by.stride[a] + (by.kernel[a] - 1) * by.dilation[a] + 1);
        let reach = Reach { kernel: by.kernel, stride: by.stride, padding: by.padding, dilation: by.dilation };
        let stored = by.outputs / by.upscale.iter().product::<usize>().max(1);
        Self {
            reach,
            upscale: by.upscale,
            inputs,
            outputs: by.outputs,
            stored,
            rows,
            blocks,
            patch,
            depth,
            loads_rows,
            bias,
            curve: by.curve.kind,
        }
    }

    /// Returns the elements from one voxel of the patch to the next: with rows of 48 bytes, the eight rows that are loaded at
    /// once are in different banks of shared memory.
    pub(super) fn patch_pitch(&self) -> usize {
        if self.loads_rows { EDGE + ROW_ELEMENTS } else { EDGE }
    }

    /// Returns the elements from the weights of one input channel to those of the next; see [`Self::patch_pitch`].
    pub(super) fn weight_pitch(&self) -> usize {
        EDGE * self.blocks + if self.loads_rows { ROW_ELEMENTS } else { 0 }
    }

    pub(super) fn patch_elements(&self) -> usize {
        self.patch.iter().product::<usize>() * self.patch_pitch()
    }

    pub(super) fn weight_elements(&self) -> usize {
        self.reach.kernel.iter().product::<usize>() * EDGE * self.weight_pitch()
    }

    /// Returns the number of vectors of weights that a cube copies.
    pub(super) fn weight_vectors(&self) -> usize {
        self.reach.kernel.iter().product::<usize>() * EDGE * EDGE * self.blocks / LANES
    }

    /// Returns the number of sums that each unit keeps without matrix units; 1 with them, as arrays cannot be empty.
    pub(super) fn unit_sums(&self) -> usize {
        let rows = self.rows[0] * self.rows[1] / PLANES;
        if self.depth > 0 { 1 } else { rows * self.blocks * UNIT_ELEMENTS }
    }

    /// Returns the shared memory of a cube in bytes.
    pub(super) fn shared_bytes(&self, factor_type: FactorType) -> usize {
        let elements = self.patch_elements() + self.weight_elements();
        elements * factor_type.bytes() + PLANES * EDGE * EDGE * size_of::<f32>() + 3 * SHARED_ALIGNMENT
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

/// Returns the corner of a box; boxes are counted along X first.
#[cube]
pub(super) fn box_corner(at: u32, channel: u32, out_lengths: &LengthsZyx, #[comptime] shape: Shape) -> Corner {
    let rows_z = comptime!(shape.rows[0] as u32);
    let rows_y = comptime!(shape.rows[1] as u32);
    let edge = comptime!(EDGE as u32);
    let boxes_x = (out_lengths.width - 1) / edge + 1;
    let boxes_y = (out_lengths.height - 1) / rows_y + 1;
    let boxes_z = (out_lengths.depth - 1) / rows_z + 1;
    Corner {
        sample: at / boxes_x / boxes_y / boxes_z,
        z: at / boxes_x / boxes_y % boxes_z * rows_z,
        y: at / boxes_x % boxes_y * rows_y,
        x: at % boxes_x * edge,
        channel,
    }
}

/// Creates `count` sums of 16 × 16 elements of each plane on matrix units, all zero; without matrix units, sets the sums of
/// the units to zero.
#[cube]
pub(super) fn zero_sums(
    sums: &mut Sequence<cmma::Matrix<f32>>,
    own_sums: &mut Array<f32>,
    #[comptime] count: usize,
    #[comptime] shape: Shape,
) {
    if comptime!(shape.depth > 0) {
        #[unroll]
        for _ in 0..count {
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
        for i in 0..count * UNIT_ELEMENTS {
            own_sums[i] = 0.0f32;
        }
    }
}

/// Copies a sum of each plane to the memory that the units of the cube share.
#[cube]
pub(super) fn share_sum(
    sums: &Sequence<cmma::Matrix<f32>>,
    own_sums: &Array<f32>,
    shared: &mut SharedMemory<f32>,
    #[comptime] index: usize,
    #[comptime] shape: Shape,
) {
    if comptime!(shape.depth > 0) {
        let from = (UNIT_POS / comptime!(PLANE_UNITS as u32) * comptime!((EDGE * EDGE) as u32)) as usize;
        cmma::store(
            &mut shared.slice_mut(from, from + comptime!(EDGE * EDGE)),
            sums.index(index),
            comptime!(EDGE as u32),
            cmma::MatrixLayout::RowMajor,
        );
    } else {
        let from = UNIT_POS * comptime!(UNIT_ELEMENTS as u32);
        #[unroll]
        for i in 0..UNIT_ELEMENTS {
            shared[from as usize + i] = own_sums[comptime!(index * UNIT_ELEMENTS + i)];
        }
    }
}

/// Stores the elements of a vector as those of vector `index` of shared memory.
#[cube]
pub(super) fn store_lanes<FS: Float, N: Size>(value: Vector<f32, N>, shared: &mut SharedMemory<FS>, index: u32) {
    let to = (index * comptime!(LANES as u32)) as usize;
    #[unroll]
    for lane in 0..LANES {
        shared[to + lane] = FS::cast_from(value[lane]);
    }
}

/// Copies 16 channels of the part of the input that a cube reads to shared memory; voxels outside are zeros.
#[cube]
pub(super) fn load_patch<FX: Float, FS: Float, NI: Size>(
    x: &Array<Vector<FX, NI>>,
    patch: &mut SharedMemory<FS>,
    corner: &Corner,
    lengths: &LengthsZyx,
    pitch: u32,
    step: u32,
    #[comptime] shape: Shape,
) {
    let reach = comptime!(shape.reach);
    let patch_y = comptime!(shape.patch[1] as u32);
    let patch_x = comptime!(shape.patch[2] as u32);
    let vectors = comptime!((EDGE / LANES) as u32);
    let count = comptime!((shape.patch.iter().product::<usize>() * EDGE / LANES) as u32);
    let voxel_vectors = comptime!((shape.patch_pitch() / LANES) as u32);
    let start_z = (corner.z * comptime!(reach.stride[0] as u32)) as i32 - comptime!(reach.padding[0] as i32);
    let start_y = (corner.y * comptime!(reach.stride[1] as u32)) as i32 - comptime!(reach.padding[1] as i32);
    let start_x = (corner.x * comptime!(reach.stride[2] as u32)) as i32 - comptime!(reach.padding[2] as i32);
    let depth = lengths.depth as i32;
    let height = lengths.height as i32;
    let width = lengths.width as i32;
    let mut i = UNIT_POS;
    while i < count {
        let vector = i % vectors;
        let voxel = i / vectors;
        let iz = start_z + (voxel / patch_x / patch_y) as i32;
        let iy = start_y + (voxel / patch_x % patch_y) as i32;
        let ix = start_x + (voxel % patch_x) as i32;
        let mut value = Vector::<f32, NI>::new(0.0);
        if iz >= 0 && iz < depth && iy >= 0 && iy < height && ix >= 0 && ix < width {
            let at = voxel_number(corner.sample, iz as u32, iy as u32, ix as u32, lengths);
            value = Vector::<f32, NI>::cast_from(x[(at * pitch + step * vectors + vector) as usize]);
        }
        store_lanes::<FS, NI>(value, patch, voxel * voxel_vectors + vector);
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
    ((z * comptime!(shape.patch[1] as u32) + y) * comptime!(shape.patch[2] as u32) + x)
        * comptime!(shape.patch_pitch() as u32)
}

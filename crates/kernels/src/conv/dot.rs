//! Convolution of a single tap from blocks to few planes, as at the end of most networks: a dot product per voxel and
//! output channel.

use super::drive::Plan;
use crate::lanes::{Lanes, with_lanes};
use crate::parallel::{Shared, for_each};
use crate::{Blocked, CHANNEL_BLOCK, Isa};

/// Input voxels.
#[derive(Clone, Copy)]
pub(super) enum Input<'a> {
    F32(&'a [f32]),
    U8(&'a [u8]),
}

/// What follows the dot product `sum` of an output channel: `activation((sum + start) · scale + bias)`.
#[derive(Clone, Copy)]
pub(super) struct End {
    pub start: f32,
    pub scale: f32,
    pub bias: f32,
    /// Slope of the activation's negative side.
    pub slope: f32,
}

/// Convolves blocks of 16 channels to planar outputs. The distance of the inputs along W must be one voxel; `weights` are
/// `[O][I]`, padded to whole blocks, and `ends` has one entry per output channel. Sums of products of bytes and 8-bit weights
/// are exact for up to [`EXACT_CHANNELS`] input channels.
pub(super) fn few_outputs(
    isa: Isa,
    input: Input<'_>,
    in_layout: &Blocked,
    (weights, ends): (&[f32], &[End]),
    plan: &Plan,
    output: &mut [f32],
    out_layout: &Blocked,
) {
    let geometry = &plan.geometry;
    let [depth, height, width] = geometry.counts;
    let (blocks, block_stride) = (in_layout.blocks(), in_layout.block_stride());
    let shared = Shared::new(output);
    for_each(depth, |d| {
        for h in 0..height {
            let from = geometry.in_start + d * geometry.in_step[0] + h * geometry.in_step[1];
            let end = from + (blocks - 1) * block_stride + width * CHANNEL_BLOCK;
            let inputs = match input {
                Input::F32(values) => Pointer::F32(values[from..end].as_ptr()),
                Input::U8(values) => Pointer::U8(values[from..end].as_ptr()),
            };
            for ((o, own), end) in weights.chunks_exact(blocks * CHANNEL_BLOCK).enumerate().zip(ends) {
                let out = shared.pointer(out_layout.row_start(o, d, h), width);
                let row = Row { inputs, blocks, block_stride, weights: own.as_ptr(), end: *end, out, len: width };
                // SAFETY: slicing has shown that the input holds `width` voxels of all blocks, `chunks_exact` that there are
                // 16 weights per block, and `pointer` checked the output. Each task writes the rows of its own slice.
                unsafe { dot_row(isa, &row) };
            }
        }
    });
}

/// Largest number of input channels for which sums of products of bytes and 8-bit weights stay below 2^24.
pub(super) const EXACT_CHANNELS: usize = (1 << 24) / (255 * 128);

/// The first voxel of the first input block of a row.
#[derive(Clone, Copy)]
enum Pointer {
    F32(*const f32),
    U8(*const u8),
}

/// A row of one output channel.
struct Row {
    inputs: Pointer,
    blocks: usize,
    block_stride: usize,
    /// 16 per input block.
    weights: *const f32,
    end: End,
    out: *mut f32,
    len: usize,
}

/// An element of the input.
trait Element: Copy {
    /// Loads 16 elements as floats.
    ///
    /// # Safety
    /// As [`Lanes`]: `from` must reach 16 elements.
    unsafe fn load<L: Lanes>(from: *const Self) -> L;
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const Self) -> L {
        // SAFETY: the caller guarantees 16 elements and a CPU that supports `L`.
        unsafe { L::load(from) }
    }
}

impl Element for u8 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const Self) -> L {
        // SAFETY: the caller guarantees 16 elements and a CPU that supports `L`.
        unsafe { L::load_u8(from) }
    }
}

with_lanes! {
    /// Computes one row.
    unsafe fn dot_row<L>(row: &Row) {
        // SAFETY: the caller guarantees what `row_of` needs; `with_lanes` checked the CPU.
        unsafe {
            match row.inputs {
                Pointer::F32(inputs) => row_of::<L, f32>(row, inputs),
                Pointer::U8(inputs) => row_of::<L, u8>(row, inputs),
            }
        }
    }
}

#[inline(always)]
unsafe fn row_of<L: Lanes, T: Element>(row: &Row, inputs: *const T) {
    // SAFETY: the caller guarantees `len` voxels of 16 values in each input block, 16 weights per block, `len` outputs, and a
    // CPU that supports `L`.
    unsafe {
        let End { start, scale, bias, slope } = row.end;
        let lanes = [start, scale, bias, slope].map(|v| L::splat(v));
        let whole = row.len - row.len % 16;
        for at in (0..whole).step_by(16) {
            let mut products = [lanes[0]; 16];
            for p in 0..16 {
                products[p] = product::<L, T>(row, inputs, at + p);
            }
            let sums = L::sums(products).add(lanes[0]).fma(lanes[1], lanes[2]);
            sums.leaky(lanes[3]).store(row.out.add(at));
        }
        for at in whole..row.len {
            let sum = (product::<L, T>(row, inputs, at).sum() + start).mul_add(scale, bias);
            *row.out.add(at) = if sum < 0.0 { sum * slope } else { sum };
        }
    }
}

/// Returns the products of a voxel, summed over the blocks.
// A function, because closures that are used twice are not inlined into code for a target feature.
#[inline(always)]
unsafe fn product<L: Lanes, T: Element>(row: &Row, inputs: *const T, at: usize) -> L {
    // SAFETY: as `row_of`; `at` is a voxel of the row.
    unsafe {
        let from = inputs.add(at * CHANNEL_BLOCK);
        let mut sum = T::load::<L>(from).mul(L::load(row.weights));
        for block in 1..row.blocks {
            let w = L::load(row.weights.add(block * CHANNEL_BLOCK));
            sum = T::load::<L>(from.add(block * row.block_stride)).fma(w, sum);
        }
        sum
    }
}

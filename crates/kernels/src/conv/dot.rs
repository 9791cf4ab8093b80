//! Convolution from blocks to few planes, as at the end of most networks: a dot product of channels per voxel, tap and
//! output channel, where a block of 16 output channels would be mostly empty.

use super::drive::Plan;
use super::leaky;
use crate::lanes::{Lanes, with_lanes};
use crate::parallel::{Shared, for_each};
use crate::{Blocked, CHANNEL_BLOCK, Isa};

/// Input voxels.
#[derive(Clone, Copy)]
pub(super) enum Input<'a> {
    F32(&'a [f32]),
    U8(&'a [u8]),
}

/// Computation after the dot product `sum` of an output channel: `activation((sum + start) · scale + bias)`.
#[derive(Clone, Copy)]
pub(super) struct End {
    /// Added to the sum before scaling: with bytes, it corrects for the input's zero point.
    pub start: f32,
    /// Factor of the sum.
    pub scale: f32,
    /// Added after scaling.
    pub bias: f32,
    /// Slope of the activation's negative side.
    pub slope: f32,
}

/// Convolves blocks of 16 channels to planar outputs. The distance of the inputs along W must be one voxel; `weights` are
/// `[O][input block][tap][16]`, and `ends` has one entry per output channel. Sums of products of bytes and 8-bit weights are
/// exact for up to [`EXACT_TERMS`] products.
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
    let last_tap = plan.taps.iter().max().copied().unwrap_or(0);
    let per_output = blocks * plan.taps.len() * CHANNEL_BLOCK;
    let shared = Shared::new(output);
    for_each(depth, |d| {
        for h in 0..height {
            let from = geometry.in_start + d * geometry.in_step[0] + h * geometry.in_step[1];
            let end = from + (blocks - 1) * block_stride + last_tap + width * CHANNEL_BLOCK;
            let inputs = match input {
                Input::F32(values) => Pointer::F32(values[from..end].as_ptr()),
                Input::U8(values) => Pointer::U8(values[from..end].as_ptr()),
            };
            for ((o, own), end) in weights.chunks_exact(per_output).enumerate().zip(ends) {
                let out = shared.pointer(out_layout.row_start(o, d, h), width);
                let (taps, weights) = (plan.taps.as_slice(), own.as_ptr());
                let row = Row { inputs, blocks, block_stride, taps, weights, end: *end, out, len: width };
                // SAFETY: slicing has shown that the input holds `width` voxels of all blocks at the last tap,
                // `chunks_exact` that there are 16 weights per block and tap, and `pointer` checked the output. Each task
                // writes the rows of its own slice.
                unsafe { dot_row(isa, &row) };
            }
        }
    });
}

/// Largest number of products of bytes and 8-bit weights whose sum stays below 2^24.
pub(super) const EXACT_TERMS: usize = (1 << 24) / (255 * 128);

/// The first voxel of the first input block of a row.
#[derive(Clone, Copy)]
enum Pointer {
    F32(*const f32),
    U8(*const u8),
}

/// A row of one output channel.
struct Row<'a> {
    inputs: Pointer,
    blocks: usize,
    block_stride: usize,
    /// Offsets of the taps, in values.
    taps: &'a [usize],
    /// 16 per input block and tap.
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
    /// Same as [`Lanes`]: `from` must reach 16 elements.
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
    unsafe fn dot_row<L>(row: &Row<'_>) {
        // SAFETY: the caller guarantees what `compute_row` needs; `with_lanes` checked the CPU.
        unsafe {
            match row.inputs {
                Pointer::F32(inputs) => compute_row::<L, f32>(row, inputs),
                Pointer::U8(inputs) => compute_row::<L, u8>(row, inputs),
            }
        }
    }
}

#[inline(always)]
unsafe fn compute_row<L: Lanes, T: Element>(row: &Row<'_>, inputs: *const T) {
    // SAFETY: the caller guarantees `len` voxels of 16 values in each input block at every tap, 16 weights per block and tap,
    // `len` outputs, and a CPU that supports `L`.
    unsafe {
        let End { start, scale, bias, slope } = row.end;
        let lanes = [start, scale, bias, slope].map(|v| L::splat(v));
        let aligned_len = row.len - row.len % 16;
        for at in (0..aligned_len).step_by(16) {
            let sums = L::sums(if L::HAS_32_REGISTERS {
                let ([a, b, c, d, e, f, g, h], [i, j, k, l, m, n, o, p]) =
                    (products::<L, T, 8>(row, inputs, at), products::<L, T, 8>(row, inputs, at + 8));
                [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
            } else {
                let ([a, b, c, d], [e, f, g, h]) =
                    (products::<L, T, 4>(row, inputs, at), products::<L, T, 4>(row, inputs, at + 4));
                let ([i, j, k, l], [m, n, o, p]) =
                    (products::<L, T, 4>(row, inputs, at + 8), products::<L, T, 4>(row, inputs, at + 12));
                [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p]
            });
            let sums = sums.add(lanes[0]).fma(lanes[1], lanes[2]);
            sums.activate(slope, lanes[3]).store(row.out.add(at));
        }
        for at in aligned_len..row.len {
            let [product] = products::<L, T, 1>(row, inputs, at);
            let sum = (product.sum() + start).mul_add(scale, bias);
            *row.out.add(at) = leaky(sum, slope);
        }
    }
}

/// Returns the products of `N` voxels from `at` on, summed over blocks and taps.
// A function, because closures that are used twice are not inlined into code for a target feature.
#[inline(always)]
unsafe fn products<L: Lanes, T: Element, const N: usize>(row: &Row<'_>, inputs: *const T, at: usize) -> [L; N] {
    // SAFETY: as `compute_row`; `at` and the `N - 1` voxels after it are voxels of the row.
    unsafe {
        let mut sums = [L::splat(0.0); N];
        let mut weights = row.weights;
        for block in 0..row.blocks {
            let first = inputs.add(block * row.block_stride + at * CHANNEL_BLOCK);
            for tap in row.taps {
                let (from, w) = (first.add(*tap), L::load(weights));
                weights = weights.add(CHANNEL_BLOCK);
                for (p, sum) in sums.iter_mut().enumerate() {
                    *sum = T::load::<L>(from.add(p * CHANNEL_BLOCK)).fma(w, *sum);
                }
            }
        }
        sums
    }
}

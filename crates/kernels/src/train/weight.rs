//! Gradient of a convolution with respect to its weights.
//!
//! Work is split into tiles (up to two output blocks by one input block, all taps) and slabs of voxels. Each task sums
//! one tile over one slab, strip by strip, so that a strip's values stay in the L1 cache for all taps. The sums of
//! slabs are added in order.

use super::outer::{Dot, MAX_VALUES, Outer, Slide, Steps, dot, outer, slide};
use crate::conv::{ConvShape, Plan, check_window, window_plan};
use crate::parallel::{Shared, for_each};
use crate::{Blocked, CHANNEL_BLOCK, Isa, KernelError, check_len, check_that};

/// Number of voxels of a strip: its values of two blocks fit into the L1 cache.
const STRIP_VOXELS: usize = 256;
/// Smallest number of voxels of a slab, and largest number of tasks. Neither depends on the number of threads.
const SLAB_VOXELS: usize = 4096;
const TASKS: usize = 64;
/// Number of sums for one input block, one output block and one tap.
const SUMS_PER_TAP: usize = CHANNEL_BLOCK * CHANNEL_BLOCK;

/// Adds the gradient of a convolution with respect to its weights to `gradient`, dense `[O][I][kd·kh·kw]`.
///
/// `input` is the convolution's input with the border of zeros that [`crate::conv::conv`] needs, `out_gradient` the
/// gradient of its output (its border is ignored); both in blocks of 16 channels or in planes. Only single-group
/// convolutions are supported: for several groups, call it for the channels of each group.
///
/// # Errors
/// [`KernelError`] if the buffers and layouts do not fit, or the input's border is narrower than the padding.
pub fn conv_weight_gradient(
    isa: Isa,
    input: &[f32],
    in_layout: &Blocked,
    out_gradient: &[f32],
    out_layout: &Blocked,
    shape: &ConvShape,
    gradient: &mut [f32],
) -> Result<(), KernelError> {
    check_len("input", input.len(), in_layout.len())?;
    check_len("gradient of the output", out_gradient.len(), out_layout.len())?;
    for layout in [in_layout, out_layout] {
        check_that(matches!(layout.block, 1 | CHANNEL_BLOCK), "block of floats", "1 or 16", layout.block)?;
    }
    let taps: usize = shape.kernel.iter().product();
    check_len("gradient of the weights", gradient.len(), out_layout.channels * in_layout.channels * taps)?;
    check_window(in_layout, out_layout, shape, taps)?;
    if gradient.is_empty() || out_layout.voxels() == 0 {
        return Ok(());
    }
    let planes = (in_layout.block == 1, out_layout.block == 1);
    let pass = Pass {
        isa,
        input,
        in_layout,
        out_gradient,
        out_layout,
        plan: window_plan(in_layout, out_layout, shape),
        strips: Strips::new(out_layout.dims),
        slides: shape.kernel[2] == 3 && shape.dilation[2] == 1 && shape.stride[2] == 1 && isa.has_wide_registers(),
    };
    match planes {
        (true, true) => pass.planes_by_planes(gradient),
        _ => pass.tiles(gradient),
    }
    Ok(())
}

/// Splits an image into boxes of nearly equal size.
struct Strips {
    dims: [usize; 3],
    counts: [usize; 3],
}

impl Strips {
    fn new(dims: [usize; 3]) -> Self {
        let width = dims[2].min(STRIP_VOXELS);
        let rows = (STRIP_VOXELS / width).clamp(1, dims[1]);
        let slices = (STRIP_VOXELS / (width * rows)).clamp(1, dims[0]);
        Self { dims, counts: [dims[0].div_ceil(slices), dims[1].div_ceil(rows), dims[2].div_ceil(width)] }
    }

    fn len(&self) -> usize {
        self.counts.iter().product()
    }

    /// Returns the first voxel and the size of a box.
    fn get(&self, at: usize) -> ([usize; 3], [usize; 3]) {
        let [_, rows, runs] = self.counts;
        let place = [at / (rows * runs), at / runs % rows, at % runs];
        let edge = |axis: usize, i: usize| i * self.dims[axis] / self.counts[axis];
        let first = [0, 1, 2].map(|a| edge(a, place[a]));
        (first, [0, 1, 2].map(|a| edge(a, place[a] + 1) - first[a]))
    }
}

/// The output and input channels whose weights one task sums.
#[derive(Clone, Copy)]
struct Tile {
    out_first: usize,
    outs: usize,
    in_first: usize,
    ins: usize,
}

/// Strides of a tile's sums by output lane, input channel and tap.
struct SumStrides {
    out_lane: usize,
    input: usize,
    tap: usize,
}

struct Pass<'a> {
    isa: Isa,
    input: &'a [f32],
    in_layout: &'a Blocked,
    out_gradient: &'a [f32],
    out_layout: &'a Blocked,
    plan: Plan,
    strips: Strips,
    /// Whether [`slide`] applies: taps come in threes one voxel apart, the stride is 1, and there are enough registers.
    slides: bool,
}

impl Pass<'_> {
    fn taps(&self) -> usize {
        self.plan.taps.len()
    }

    fn tile_list(&self) -> Vec<Tile> {
        let [outs, ins] = [self.out_layout.channels, self.in_layout.channels];
        let together =
            if self.out_layout.block == CHANNEL_BLOCK && self.isa.has_wide_registers() { 2 } else { 1 } * CHANNEL_BLOCK;
        let mut tiles = Vec::new();
        for out_first in (0..outs).step_by(together) {
            for in_first in (0..ins).step_by(CHANNEL_BLOCK) {
                tiles.push(Tile {
                    out_first,
                    outs: together.min(outs - out_first),
                    in_first,
                    ins: CHANNEL_BLOCK.min(ins - in_first),
                });
            }
        }
        tiles
    }

    /// Sums all tiles over all slabs.
    fn tiles(&self, gradient: &mut [f32]) {
        let tiles = self.tile_list();
        let sum_count =
            tiles.iter().map(|t| t.outs.div_ceil(CHANNEL_BLOCK)).max().unwrap_or(1) * self.taps() * SUMS_PER_TAP;
        let slabs =
            (TASKS / tiles.len()).min(self.out_layout.voxels().div_ceil(SLAB_VOXELS)).clamp(1, self.strips.len());
        let shared = Shared::new(gradient);
        if slabs == 1 {
            return for_each(tiles.len(), |task| {
                let mut sums = vec![0.0; sum_count];
                self.tile(tiles[task], 0..self.strips.len(), &mut sums);
                self.add_to_gradient(tiles[task], &sums, &shared);
            });
        }
        let mut partial = vec![0.0f32; slabs * tiles.len() * sum_count];
        let parts = Shared::new(&mut partial);
        for_each(slabs * tiles.len(), |task| {
            let (slab, tile) = (task / tiles.len(), task % tiles.len());
            let edge = |i: usize| i * self.strips.len() / slabs;
            // SAFETY: each task has its own part; `Shared::slice` checks the bounds.
            let sums = unsafe { parts.slice(task * sum_count, sum_count) };
            self.tile(tiles[tile], edge(slab)..edge(slab + 1), sums);
        });
        for_each(tiles.len(), |tile| {
            let mut sums = vec![0.0f64; sum_count];
            for slab in 0..slabs {
                let at = (slab * tiles.len() + tile) * sum_count;
                sums.iter_mut().zip(&partial[at..at + sum_count]).for_each(|(s, v)| *s += f64::from(*v));
            }
            let sums: Vec<f32> = sums.iter().map(|v| *v as f32).collect();
            self.add_to_gradient(tiles[tile], &sums, &shared);
        });
    }

    /// Returns the strides of a tile's sums.
    fn sum_strides(&self) -> SumStrides {
        let taps = self.taps();
        match (self.in_layout.block, self.out_layout.block) {
            (1, _) => SumStrides { out_lane: 1, input: taps * CHANNEL_BLOCK, tap: CHANNEL_BLOCK },
            (_, 1) => SumStrides { out_lane: taps * CHANNEL_BLOCK, input: 1, tap: CHANNEL_BLOCK },
            _ => SumStrides { out_lane: 1, input: CHANNEL_BLOCK, tap: SUMS_PER_TAP },
        }
    }

    /// Adds a tile's sums to the gradient.
    fn add_to_gradient(&self, tile: Tile, sums: &[f32], gradient: &Shared<'_>) {
        let (taps, strides) = (self.taps(), self.sum_strides());
        for o in 0..tile.outs {
            let lane = o / CHANNEL_BLOCK * taps * SUMS_PER_TAP + o % CHANNEL_BLOCK * strides.out_lane;
            let at = ((tile.out_first + o) * self.in_layout.channels + tile.in_first) * taps;
            // SAFETY: tiles have no weights in common, and each tile is delivered by one task; `Shared::slice` checks
            // the bounds.
            let row = unsafe { gradient.slice(at, tile.ins * taps) };
            for (i, own) in row.chunks_exact_mut(taps).enumerate() {
                for (tap, g) in own.iter_mut().enumerate() {
                    *g += sums[lane + i * strides.input + tap * strides.tap];
                }
            }
        }
    }

    /// Returns the strides of the input from one output voxel to the next.
    fn in_steps(&self) -> Steps {
        let [slice, row, voxel] = self.plan.geometry.in_step;
        Steps { slice, row, voxel }
    }

    fn out_steps(&self) -> Steps {
        let l = self.out_layout;
        Steps { slice: l.slice_stride(), row: l.row_stride(), voxel: l.block }
    }

    /// Returns the index of the input at the first tap of an output voxel, in the block of a channel.
    fn input_at(&self, channel: usize, [d, h, w]: [usize; 3]) -> usize {
        let g = &self.plan.geometry;
        channel / self.in_layout.block * self.in_layout.block_stride()
            + g.in_start
            + d * g.in_step[0]
            + h * g.in_step[1]
            + w * g.in_step[2]
    }

    fn out_at(&self, channel: usize, [d, h, w]: [usize; 3]) -> usize {
        self.out_layout.row_start(channel / self.out_layout.block, d, h) + w * self.out_layout.block
    }

    /// Sums one tile over some strips.
    fn tile(&self, tile: Tile, strips: std::ops::Range<usize>, sums: &mut [f32]) {
        assert!(
            sums.len() >= tile.outs.div_ceil(CHANNEL_BLOCK) * self.taps() * SUMS_PER_TAP,
            "buffer of sums is too small"
        );
        for at in strips {
            let (first, counts) = self.strips.get(at);
            match (self.in_layout.block, self.out_layout.block) {
                (1, _) => self.blocks_by_planes(tile, first, counts, sums),
                (_, 1) => self.planes_by_blocks(tile, first, counts, sums),
                _ => self.blocks_by_blocks(tile, first, counts, sums),
            }
        }
    }

    /// Returns the output gradient's blocks of a tile at the start of a strip, and the offsets of their sums.
    fn out_blocks(&self, tile: Tile, first: [usize; 3]) -> Vec<(*const f32, usize)> {
        (0..tile.outs.div_ceil(CHANNEL_BLOCK))
            .map(|b| {
                let at = self.out_at(tile.out_first + b * CHANNEL_BLOCK, first);
                (self.out_gradient[at..].as_ptr(), b * self.taps() * SUMS_PER_TAP)
            })
            .collect()
    }

    fn blocks_by_blocks(&self, tile: Tile, first: [usize; 3], counts: [usize; 3], sums: &mut [f32]) {
        let input = self.input_at(tile.in_first, first);
        let vectors = self.out_blocks(tile, first);
        let (vector_steps, value_steps) = (self.out_steps(), self.in_steps());
        let taps = &self.plan.taps;
        if self.slides {
            for row in (0..taps.len()).step_by(3) {
                for channel in (0..tile.ins).step_by(8) {
                    let from = self.input[input + taps[row] + channel..].as_ptr();
                    let values: [_; 8] =
                        std::array::from_fn(|j| (from, row * SUMS_PER_TAP + (channel + j) * CHANNEL_BLOCK));
                    for &(vector, at) in &vectors {
                        let sums = sums[at..].as_mut_ptr();
                        let job = Slide {
                            counts,
                            vector,
                            vector_steps,
                            values: &values,
                            value_steps,
                            tap_stride: SUMS_PER_TAP,
                            sums,
                        };
                        // SAFETY: `vector` is a block of the output's strip. The values are eight channels of one
                        // input block, at the first of three adjacent taps, whose windows lie in the padded input
                        // (`check_window`). `tile` asserts room for the sums of 16 channels at every tap.
                        unsafe { slide(self.isa, &job) };
                    }
                }
            }
            return;
        }
        let adjacent = match (self.isa.has_wide_registers(), vectors.len(), taps.len()) {
            (true, 2, 2..) => 4,
            (true, 2, _) | (true, 1, 2..) => 8,
            (true, ..) => 16,
            _ => 2,
        };
        for own in even_parts(taps.len(), 3) {
            for channel in (0..tile.ins).step_by(adjacent) {
                let values: Vec<_> = own
                    .clone()
                    .map(|t| {
                        (self.input[input + taps[t] + channel..].as_ptr(), t * SUMS_PER_TAP + channel * CHANNEL_BLOCK)
                    })
                    .collect();
                // SAFETY: the vectors are blocks of the output's strip. `adjacent` divides 16, so the values of a group
                // are in one input block; their windows lie in the padded input (`check_window`). `tile` asserts room
                // for the sums of 16 channels at every tap.
                unsafe { self.outer(counts, &vectors, vector_steps, &values, value_steps, adjacent, sums) };
            }
        }
    }

    /// Sums one strip for an input in planes and an output in blocks.
    fn blocks_by_planes(&self, tile: Tile, first: [usize; 3], counts: [usize; 3], sums: &mut [f32]) {
        let vectors = self.out_blocks(tile, first);
        let (vector_steps, value_steps) = (self.out_steps(), self.in_steps());
        let step = if self.slides { 3 } else { 1 };
        let taps = &self.plan.taps;
        let values: Vec<_> = (0..tile.ins)
            .flat_map(|c| (0..taps.len()).step_by(step).map(move |t| (c, t)))
            .map(|(c, t)| {
                let at = self.input_at(tile.in_first + c, first) + taps[t];
                (self.input[at..].as_ptr(), (c * taps.len() + t) * CHANNEL_BLOCK)
            })
            .collect();
        let max_values = if self.isa.has_wide_registers() { MAX_VALUES } else { 5 };
        for own in even_parts(values.len(), max_values) {
            let values = &values[own];
            if !self.slides {
                // SAFETY: the vectors are blocks of the output's strip. Each value is in a plane of the input, and its
                // windows lie in the padded plane (`check_window`). A tile has at most 16 planes, and `tile` asserts
                // room for the sums of 16 at every tap.
                unsafe { self.outer(counts, &vectors, vector_steps, values, value_steps, 1, sums) };
                continue;
            }
            for &(vector, at) in &vectors {
                let sums = sums[at..].as_mut_ptr();
                let job = Slide { counts, vector, vector_steps, values, value_steps, tap_stride: CHANNEL_BLOCK, sums };
                // SAFETY: `vector` is a block of the output's strip. The values are at the first of three adjacent taps
                // of a plane, whose windows lie in the padded plane (`check_window`). A tile has at most 16 planes, and
                // `tile` asserts room for the sums of 16 at every tap.
                unsafe { slide(self.isa, &job) };
            }
        }
    }

    /// Sums one strip for an input in blocks and an output in planes: the input's voxels are the vectors.
    fn planes_by_blocks(&self, tile: Tile, first: [usize; 3], counts: [usize; 3], sums: &mut [f32]) {
        let input = self.input_at(tile.in_first, first);
        let taps = &self.plan.taps;
        let values: Vec<_> = (0..tile.outs)
            .map(|o| {
                let at = self.out_at(tile.out_first + o, first);
                (self.out_gradient[at..].as_ptr(), o * taps.len() * CHANNEL_BLOCK)
            })
            .collect();
        for own in even_parts(taps.len(), 3) {
            let vectors: Vec<_> = own.map(|t| (self.input[input + taps[t]..].as_ptr(), t * CHANNEL_BLOCK)).collect();
            for some in even_parts(values.len(), if self.isa.has_wide_registers() { 4 } else { 2 }) {
                // SAFETY: the vectors are blocks of the input at some taps, whose windows lie in the padded input
                // (`check_window`). The values are planes of the output's strip; a tile has at most 16, and `tile`
                // asserts room for the sums of 16 at every tap.
                unsafe { self.outer(counts, &vectors, self.in_steps(), &values[some], self.out_steps(), 1, sums) };
            }
        }
    }

    /// Adds the products of vectors and groups of adjacent values in a box of voxels to `sums`.
    ///
    /// # Safety
    /// Every pointer must reach a box of `counts` voxels with its steps: 16 values per voxel of a vector, `adjacent` per
    /// voxel of a value. `sums` must hold 16 · `adjacent` values at the sum of the offsets of each vector and each value.
    #[allow(clippy::too_many_arguments)]
    unsafe fn outer(
        &self,
        counts: [usize; 3],
        vectors: &[(*const f32, usize)],
        vector_steps: Steps,
        values: &[(*const f32, usize)],
        value_steps: Steps,
        adjacent: usize,
        sums: &mut [f32],
    ) {
        let sums = sums.as_mut_ptr();
        let job = Outer { counts, vectors, vector_steps, values, value_steps, adjacent, sums };
        // SAFETY: the caller guarantees that the pointers of `job` reach their boxes and that `sums` holds all offsets.
        unsafe { outer(self.isa, &job) };
    }

    /// Sums products for each weight, for input and output in planes.
    fn planes_by_planes(&self, gradient: &mut [f32]) {
        let taps = self.taps();
        let shared = Shared::new(gradient);
        for_each(self.out_layout.channels * self.in_layout.channels * taps, |task| {
            let (o, i, tap) =
                (task / taps / self.in_layout.channels, task / taps % self.in_layout.channels, task % taps);
            let mut sum = 0.0f64;
            for strip in 0..self.strips.len() {
                let (first, counts) = self.strips.get(strip);
                let job = Dot {
                    counts,
                    first: self.out_gradient[self.out_at(o, first)..].as_ptr(),
                    first_steps: self.out_steps(),
                    second: self.input[self.input_at(i, first) + self.plan.taps[tap]..].as_ptr(),
                    second_steps: self.in_steps(),
                };
                // SAFETY: `first` is a plane of the output's strip; `second` is a plane of the input at one tap, whose
                // windows lie in the padded plane (`check_window`).
                sum += f64::from(unsafe { dot(self.isa, &job) });
            }
            // SAFETY: each task has its own weight; `Shared::slice` checks the bounds.
            let own = unsafe { shared.slice(task, 1) };
            own[0] += sum as f32;
        });
    }
}

/// Splits `0..len` into as few parts of at most `max_len` as possible, of nearly equal length.
fn even_parts(len: usize, max_len: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let parts = len.div_ceil(max_len);
    (0..parts).map(move |i| i * len / parts..(i + 1) * len / parts)
}

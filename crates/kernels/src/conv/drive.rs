//! The loops around the micro-kernels: tasks, runs of voxels, bounds checks and the epilogue.

use super::bounds::assert_in_bounds;
use super::finish::{LaneStats, Out, OutputRun, finish};
use super::groups::Run;
use super::micro::{Core, Micro};
use super::pack::{Group, pad_to_blocks};
use super::{Finish, Target};
use crate::parallel::{Shared, for_each, thread_count};
use crate::{Blocked, CHANNEL_BLOCK, Isa};

/// Taps of a window and how it moves over the image.
pub(crate) struct Plan {
    /// Position of each tap, in input values from the position that [`Plan::geometry`] gives.
    pub taps: Vec<usize>,
    /// If the input's slices form a ring, the position of each tap for each output slice, in place of `taps`; else empty.
    pub ring_taps: Vec<Vec<usize>>,
    /// Number of successive taps that are one voxel apart along W.
    pub adjacent: usize,
    /// Which outputs are computed, and where their inputs are.
    pub geometry: Geometry,
    /// Whether results are added to the output (floats only).
    pub accumulate: bool,
    /// For transposed convolutions, whose weights of all taps along W are consecutive output blocks, the number of
    /// blocks of one tap: block `b` is block `b % fold` of the voxel `b / fold` positions further on.
    pub fold: Option<usize>,
}

impl Plan {
    /// Returns the position of each tap for an output slice.
    pub(crate) fn slice_taps(&self, slice: usize) -> &[usize] {
        self.ring_taps.get(slice).unwrap_or(&self.taps)
    }

    /// Returns the positions of the taps for all output slices: more than one list if the input's slices form a ring.
    pub(crate) fn all_taps(&self) -> impl Iterator<Item = &[usize]> {
        let shared = self.ring_taps.is_empty().then_some(&self.taps);
        self.ring_taps.iter().chain(shared).map(Vec::as_slice)
    }
}

/// Positions of the outputs of one pass, in voxels, and of the inputs that they read, in values.
pub(crate) struct Geometry {
    /// Position of the first output's input, in values.
    pub in_start: usize,
    /// Distance of the inputs of neighboring outputs along D, H, W, in values.
    pub in_step: [usize; 3],
    /// First output voxel along D, H, W.
    pub out_offset: [usize; 3],
    /// Distance of neighboring outputs along D, H, W, in voxels.
    pub out_stride: [usize; 3],
    /// Number of outputs along D, H, W.
    pub counts: [usize; 3],
}

/// Splits a row into runs (first voxel, length): as few as `parts` times the kernel's widest run allows, of nearly equal
/// length. If the kernel computes multiples of 16 voxels anyway, all runs but the last have the greatest length.
fn runs(width: usize, widest: usize, parts: usize) -> impl Iterator<Item = (usize, usize)> {
    let even = !widest.is_multiple_of(16);
    let widest = widest * parts;
    let n = width.div_ceil(widest);
    (0..n).map(move |i| {
        if even {
            (i * width / n, (i + 1) * width / n - i * width / n)
        } else {
            (i * widest, widest.min(width - i * widest))
        }
    })
}

/// Buffer for the sums of a run of the widest kernel.
#[repr(align(64))]
struct Scratch([i32; SCRATCH]);

const SCRATCH: usize = 64 * CHANNEL_BLOCK;

/// Buffer for a finished run of an output with fewer channels than a block, before it is written to the output.
#[repr(align(64))]
struct Narrow([f32; SCRATCH]);

/// The output, shared by tasks.
enum SharedTarget<'a> {
    F32(Shared<'a, f32>),
    F16(Shared<'a, u16>),
    U8(Shared<'a, u8>, super::Quantizer),
}

impl<'a> SharedTarget<'a> {
    fn new(target: &'a mut Target<'_>) -> Self {
        match target {
            Target::F32(v) => Self::F32(Shared::new(v)),
            Target::F16(v) => Self::F16(Shared::new(v)),
            Target::U8(v, q) => Self::U8(Shared::new(v), *q),
        }
    }
}

/// Number of rows of a task, and its largest number of slices.
const TASK_ROWS: usize = 16;
const TASK_SLICES: usize = 8;
/// Tasks per thread; several of them balance the load.
const TASKS_A_THREAD: usize = 4;
/// Bytes of input that stay in the L1 cache from one row of outputs to the next.
const NEAR_BYTES: usize = 40 << 10;
/// Larger weights are processed group by group over the whole image, so that those of a group stay in the L2 cache.
const RESIDENT_WEIGHT_BYTES: usize = 1 << 20;

/// Runs a plan over one image. Returns the statistics of each task and output block, if `end` asks for them.
///
/// # Panics
/// If the plan, the weights and the buffers do not fit, see [`assert_in_bounds`]; callers have checked this.
#[allow(clippy::too_many_arguments)]
pub(crate) fn drive<C: Core>(
    isa: Isa,
    input: &[C::In],
    in_layout: &Blocked,
    core: &C,
    plan: &Plan,
    end: &Finish<'_>,
    target: &mut Target<'_>,
    out_layout: &Blocked,
) -> Vec<LaneStats> {
    let geometry = &plan.geometry;
    let [depth, height, width] = geometry.counts;
    if depth * height * width == 0 {
        return Vec::new();
    }
    assert_in_bounds(isa, core, plan, input.len(), in_layout, target, out_layout);
    assert!(!end.moments || plan.fold.is_none(), "a transposed convolution has no moments");
    let rows = TASK_ROWS.min(height);
    let chunks = height.div_ceil(rows);
    let groups = core.groups();
    // Either a task processes all groups, or groups are separate tasks, in order.
    let apart = if size_of_val(core.weights()) > RESIDENT_WEIGHT_BYTES { groups.len() } else { 1 };
    // Slices of one task share inputs. Their number does not change the results.
    let wanted = TASKS_A_THREAD * thread_count();
    let slices = (depth * chunks * apart / wanted.max(1)).clamp(1, TASK_SLICES);
    let thick = depth.div_ceil(slices);
    let out_blocks = out_layout.channels.div_ceil(CHANNEL_BLOCK);
    let mut stats = if end.moments { vec![LaneStats::NEW; depth * chunks * out_blocks] } else { Vec::new() };
    let shared_stats = Shared::new(&mut stats);
    let shared = SharedTarget::new(target);
    let padded = |values: Option<&[f32]>, none: f32| -> Vec<f32> {
        values.map_or_else(|| vec![none; out_blocks * CHANNEL_BLOCK], |v| pad_to_blocks(v, out_layout.channels))
    };
    let (scale, bias) = (padded(end.scale, 1.0), padded(end.bias, 0.0));
    let fresh: Vec<Vec<usize>> = plan.all_taps().map(|taps| fresh_taps(taps, plan)).collect();
    let row = Row {
        isa,
        core,
        plan,
        end,
        input,
        in_layout,
        out_layout,
        fresh: &fresh,
        scale: &scale,
        bias: &bias,
        target: &shared,
    };
    for_each(apart * thick * chunks, |task| {
        let (part, place) = (task / (thick * chunks), task % (thick * chunks));
        let (first, chunk) = (place / chunks * slices, place % chunks);
        core.prepare(isa, plan.adjacent);
        let mut scratch = Scratch([0; SCRATCH]);
        let own = if apart == 1 { groups } else { &groups[part..=part] };
        for group in own {
            let mut own_stats = [[LaneStats::NEW; 2]; TASK_SLICES];
            let runs = row.runs(group);
            for strip in runs.chunks(row.runs_near(group, runs.first().map_or(1, |(_, len)| *len))) {
                for d in first..(first + slices).min(depth) {
                    for h in chunk * rows..((chunk + 1) * rows).min(height) {
                        row.run(group, d, h, strip, &mut scratch, &mut own_stats[d - first]);
                    }
                }
            }
            if end.moments {
                for d in first..(first + slices).min(depth) {
                    for b in 0..group.blocks {
                        let at = (d * chunks + chunk) * out_blocks + group.first_block + b;
                        // SAFETY: each task owns the statistics of its slices, rows and blocks; `Shared::slice` checks
                        // the bounds.
                        let slot = unsafe { shared_stats.slice(at, 1) };
                        slot[0] = own_stats[d - first][b];
                    }
                }
            }
        }
        core.release(isa, plan.adjacent);
    });
    stats
}

/// Returns those of `taps` that read a row of inputs that the previous row of outputs did not read: the first of each run of
/// adjacent taps.
fn fresh_taps(taps: &[usize], plan: &Plan) -> Vec<usize> {
    let firsts: Vec<usize> = taps.iter().step_by(plan.adjacent.max(1)).copied().collect();
    let is_fresh = |tap: &usize| !firsts.contains(&(tap + plan.geometry.in_step[1]));
    firsts.iter().filter(|tap| is_fresh(tap)).copied().collect()
}

/// Arguments that all rows of a pass share.
struct Row<'a, C: Core> {
    isa: Isa,
    core: &'a C,
    plan: &'a Plan,
    end: &'a Finish<'a>,
    input: &'a [C::In],
    in_layout: &'a Blocked,
    out_layout: &'a Blocked,
    /// Taps whose inputs are prefetched for the next row of outputs, see [`fresh_taps`]: for each list of
    /// [`Plan::all_taps`].
    fresh: &'a [Vec<usize>],
    scale: &'a [f32],
    bias: &'a [f32],
    target: &'a SharedTarget<'a>,
}

impl<C: Core> Row<'_, C> {
    /// Returns the runs of a row: first voxel and length.
    fn runs(&self, group: &Group) -> Vec<(usize, usize)> {
        let geometry = &self.plan.geometry;
        let three = self.plan.adjacent == 3 && geometry.in_step[2] == self.in_layout.block;
        let widest = self.core.widest(self.isa, group.blocks, three);
        let parts = self.runs_near(group, widest).min(self.core.most_parts(self.isa));
        runs(geometry.counts[2], widest, parts).collect()
    }

    /// Returns the number of runs of `len` voxels whose inputs stay in the L1 cache from one row to the next.
    fn runs_near(&self, group: &Group, len: usize) -> usize {
        let rows = self.plan.taps.len() / self.plan.adjacent.max(1);
        let run_bytes = len * self.plan.geometry.in_step[2] * size_of::<C::In>();
        (NEAR_BYTES / (rows * run_bytes * group.in_blocks).max(1)).max(1)
    }

    /// Computes some runs of one row of output voxels for one group.
    fn run(
        &self,
        group: &Group,
        d: usize,
        h: usize,
        strip: &[(usize, usize)],
        scratch: &mut Scratch,
        stats: &mut [LaneStats; 2],
    ) {
        let geometry = &self.plan.geometry;
        let in_blocks = self.in_layout.blocks();
        let (od, oh) =
            (geometry.out_offset[0] + d * geometry.out_stride[0], geometry.out_offset[1] + h * geometry.out_stride[1]);
        let in_at = geometry.in_start
            + group.in_first * self.in_layout.block_stride()
            + d * geometry.in_step[0]
            + h * geometry.in_step[1];
        let last_block = in_blocks - 1;
        let last_in_per_block = if group.in_first + group.in_blocks == in_blocks {
            self.in_layout.channels - last_block * self.in_layout.block
        } else {
            self.in_layout.block
        };
        let sum_block_stride = SCRATCH / group.blocks;
        for &(w, len) in strip {
            let from = in_at + w * geometry.in_step[2];
            let micro = Micro {
                input: self.input[from..].as_ptr(),
                input_left: self.input.len() - from,
                in_step: geometry.in_step[2],
                in_block_stride: self.in_layout.block_stride(),
                in_blocks: group.in_blocks,
                in_per_block: self.in_layout.block,
                last_in_per_block,
                taps: self.plan.slice_taps(d),
                adjacent: self.plan.adjacent,
                weights: self.core.weights()[group.at..].as_ptr(),
                excess: self.core.excess(group),
                depthwise: self.core.depthwise(),
                start: self.core.start()[group.first_block * CHANNEL_BLOCK..].as_ptr(),
                sums: scratch.0.as_mut_ptr().cast::<C::Sum>(),
                sum_block_stride,
            };
            assert!(len * CHANNEL_BLOCK <= sum_block_stride, "run exceeds the scratch buffer");
            if geometry.out_stride[2] == 1 && self.out_layout.block == CHANNEL_BLOCK {
                for b in 0..group.blocks {
                    self.fetch(self.out_layout.row_start(group.first_block + b, od, oh) + w * CHANNEL_BLOCK, len);
                }
            }
            self.fetch_inputs(from + geometry.in_step[1], d, group.in_blocks, len);
            // SAFETY: `assert_in_bounds` has shown that all reads of the pass lie in the input, the weights and the
            // initial sums, which were packed for this instruction set. The scratch holds the run, as the assertion
            // above shows, and whole tiles of 16 voxels. `prepare` was called on this thread.
            unsafe { C::sums(self.isa, group.blocks, len, &micro) };
            let inputs = Run {
                input: &self.input[from..],
                len,
                in_step: micro.in_step,
                in_block_stride: micro.in_block_stride,
                taps: micro.taps,
                sum_block_stride,
            };
            self.core.separate(group, &inputs, &mut scratch.0);
            for b in 0..group.blocks {
                let sums = scratch.0[b * sum_block_stride..].as_ptr();
                let place = [group.first_block + b, od, oh, geometry.out_offset[2] + w * geometry.out_stride[2]];
                self.out(place, len, sums, &mut stats[b]);
            }
        }
    }

    /// Prefetches the cache lines to which a run will be written, while it is computed.
    fn fetch(&self, at: usize, len: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let span = len * CHANNEL_BLOCK;
            let (from, bytes) = match self.target {
                SharedTarget::F32(v) => (v.pointer(at, span).cast::<i8>(), span * 4),
                SharedTarget::F16(v) => (v.pointer(at, span).cast::<i8>(), span * 2),
                SharedTarget::U8(v, _) => (v.pointer(at, span).cast::<i8>(), span),
            };
            for line in (0..bytes).step_by(64) {
                // SAFETY: prefetching reads nothing, and the address is inside the range that `pointer` checked.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(from.add(line).cast_const()) };
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = (at, len);
    }

    /// Prefetches the inputs of a run of the next row of outputs in slice `slice`, which starts at value `from`, except those
    /// that the current row has read. Rows are so short that the CPU's own prefetching would start over with each of them.
    fn fetch_inputs(&self, from: usize, slice: usize, in_blocks: usize, len: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let values = (len - 1) * self.plan.geometry.in_step[2] + self.plan.adjacent * self.in_layout.block;
            let line = 64 / size_of::<C::In>();
            let fresh = self.fresh.get(slice).or(self.fresh.first()).map_or(&[][..], Vec::as_slice);
            for block in 0..in_blocks {
                for tap in fresh {
                    let first = from + block * self.in_layout.block_stride() + tap;
                    for at in (first..first + values).step_by(line) {
                        // SAFETY: prefetching reads nothing and accepts any address: after the last row, this one is
                        // outside of the input.
                        unsafe { _mm_prefetch::<_MM_HINT_T0>(self.input.as_ptr().wrapping_add(at).cast()) };
                    }
                }
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = (from, slice, in_blocks, len);
    }

    /// Applies the epilogue to a run of one output block that starts at `[block, d, h, w]`.
    fn out(&self, [block, d, h, w]: [usize; 4], len: usize, sums: *const i32, stats: &mut LaneStats) {
        let (block, w) = match self.plan.fold {
            Some(blocks) => (block % blocks, w + block / blocks),
            None => (block, w),
        };
        let layout = self.out_layout;
        let narrow = layout.block != CHANNEL_BLOCK;
        let step = self.plan.geometry.out_stride[2];
        let span = ((len - 1) * step + 1) * CHANNEL_BLOCK;
        let mut held = if narrow { Some(Narrow([0.0; SCRATCH])) } else { None };
        let at = if narrow { 0 } else { layout.row_start(block, d, h) + w * CHANNEL_BLOCK };
        let out = match (self.target, &mut held) {
            (SharedTarget::F32(_), Some(n)) => Out::F32(n.0.as_mut_ptr()),
            (SharedTarget::U8(_, q), Some(n)) => {
                Out::U8 { to: n.0.as_mut_ptr().cast(), inverse_scale: q.inverse_scale, zero_point: q.zero_point }
            }
            (SharedTarget::F32(v), None) => Out::F32(v.pointer(at, span)),
            (SharedTarget::F16(v), _) => Out::F16(v.pointer(at, span)),
            (SharedTarget::U8(v, q), None) => {
                Out::U8 { to: v.pointer(at, span), inverse_scale: q.inverse_scale, zero_point: q.zero_point }
            }
        };
        let out_step = if narrow { CHANNEL_BLOCK } else { step * CHANNEL_BLOCK };
        let (residual, residual_step) = match (self.end.residual, out) {
            (None, Out::F32(to)) if self.plan.accumulate && !narrow => (to.cast_const(), out_step),
            (None, _) => (std::ptr::null(), 0),
            (Some((values, layout)), _) => {
                let at = layout.row_start(block, d, h) + w * CHANNEL_BLOCK;
                assert!(at + len * CHANNEL_BLOCK <= values.len(), "residual too short");
                (values[at..].as_ptr(), CHANNEL_BLOCK)
            }
        };
        let mut run = OutputRun {
            sums,
            integer: C::INTEGER,
            len,
            scale: self.scale[block * CHANNEL_BLOCK..].as_ptr(),
            bias: self.bias[block * CHANNEL_BLOCK..].as_ptr(),
            slope: self.end.activation.slope(),
            residual,
            residual_step,
            out,
            out_step,
            stats: self.end.moments.then_some(stats),
        };
        // SAFETY: `sums` holds `len` voxels, scale and bias hold a block, as `assert_in_bounds` has shown that there are
        // enough output channels, the residual was checked above, and `pointer` checked the output. Every task writes
        // its own rows of its own blocks, and `assert_in_bounds` has shown that these are different values.
        unsafe { finish(self.isa, &mut run) };
        if let Some(held) = held {
            self.spread([block, d, h, w], len, step, &held);
        }
    }

    /// Writes a run of few channels to planes or narrow blocks.
    fn spread(&self, [block, d, h, w]: [usize; 4], len: usize, step: usize, held: &Narrow) {
        let layout = self.out_layout;
        let first = block * CHANNEL_BLOCK;
        for c in first..(first + CHANNEL_BLOCK).min(layout.channels) {
            let at = layout.row_start(c / layout.block, d, h) + w * layout.block + c % layout.block;
            let span = (len - 1) * step * layout.block + 1;
            // SAFETY: `pointer` checked the range, each task writes its own rows of its own channels, and `held`
            // contains the `len` voxels that `finish` wrote.
            unsafe {
                match self.target {
                    SharedTarget::F32(v) => {
                        let to = v.pointer(at, span);
                        for p in 0..len {
                            let (to, v) = (to.add(p * step * layout.block), held.0[p * CHANNEL_BLOCK + c - first]);
                            *to = if self.plan.accumulate { *to + v } else { v };
                        }
                    }
                    SharedTarget::U8(v, _) => {
                        let to = v.pointer(at, span);
                        let bytes = held.0.as_ptr().cast::<u8>();
                        for p in 0..len {
                            *to.add(p * step * layout.block) = *bytes.add(p * CHANNEL_BLOCK + c - first);
                        }
                    }
                    SharedTarget::F16(_) => {}
                }
            }
        }
    }
}

//! The loops around the micro-kernels: tasks, runs of voxels, bounds checks and the epilogue.

use super::bounds::assert_in_bounds;
use super::finish::{LaneStats, Out, OutputRun, finish};
use super::pack::{Group, by_block};
use super::{Finish, PackedConv, PackedConvInt8, Target, WeightShape, portable};
use crate::int8::pairs::Excess;
use crate::isa::Simd;
use crate::parallel::{Shared, for_each, thread_count};
use crate::{Blocked, CHANNEL_BLOCK, Isa};

/// Arguments of a micro-kernel, which computes a run of output voxels along W for the blocks of one group. `X`, `W` and
/// `S` are the types of inputs, weights and sums.
pub(crate) struct Micro<'a, X, W, S> {
    /// The first input voxel of the run, at the first tap.
    pub input: *const X,
    /// Number of inputs that may be read from there.
    pub input_left: usize,
    /// Distance of the inputs of neighboring output voxels.
    pub in_step: usize,
    /// Values from one input block to the next.
    pub in_block_stride: usize,
    /// Number of input blocks that the group reads.
    pub in_blocks: usize,
    /// Channels that an input block stores: 16, 4 or 1.
    pub in_per_block: usize,
    /// Channels of the last of these input blocks that the image has; the others hold zeros.
    pub last_in_per_block: usize,
    /// Position of each tap, in values from `input`.
    pub taps: &'a [usize],
    /// Number of successive taps that are one voxel apart.
    pub adjacent: usize,
    /// First weight of the group, in the order in which [`PackedConv`] or [`PackedConvInt8`] stores them.
    pub weights: *const W,
    /// Weights that are multiplied in addition; see [`crate::int8::pairs`].
    pub excess: &'a [Excess],
    /// Whether the convolution is depthwise, with 16 weights per tap.
    pub depthwise: bool,
    /// Initial sum of each output channel.
    pub start: *const S,
    /// Output of the sums: 16 per voxel, `sum_block_stride` from block to block.
    pub sums: *mut S,
    /// Distance of the sums of neighboring output blocks.
    pub sum_block_stride: usize,
}

impl<X, W, S> Micro<'_, X, W, S> {
    /// Returns whether taps come in threes one voxel apart, and output voxels read inputs one voxel apart.
    #[inline(always)]
    pub(crate) fn three_in_a_row(&self) -> bool {
        self.adjacent == 3 && self.in_step == self.in_per_block
    }

    /// Returns the number of channels of an input block.
    #[inline(always)]
    pub(crate) fn channels(&self, block: usize) -> usize {
        if block + 1 == self.in_blocks { self.last_in_per_block } else { self.in_per_block }
    }
}

/// Voxels whose sums the AVX2 micro-kernels hold in registers.
pub(crate) const AVX2_VOXELS: usize = 6;

impl<X, W, S> Micro<'_, X, W, S> {
    /// Computes a run with `kernel`, in as few parts of at most `widest` voxels as possible, of nearly equal length.
    ///
    /// # Safety
    /// Input and sums must reach `len` voxels; `kernel` must only rely on those of its part.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) unsafe fn in_parts(&self, len: usize, widest: usize, kernel: impl Fn(usize, &Self)) {
        if len <= widest {
            return kernel(len, self);
        }
        let parts = len.div_ceil(widest);
        for part in 0..parts {
            let (first, end) = (part * len / parts, (part + 1) * len / parts);
            // SAFETY: `first < len`, and the caller guarantees that input and sums reach `len` voxels.
            let (input, sums) = unsafe { (self.input.add(first * self.in_step), self.sums.add(first * CHANNEL_BLOCK)) };
            let input_left = self.input_left - first * self.in_step;
            kernel(end - first, &Self { input, input_left, sums, ..*self });
        }
    }
}

/// Packed weights with their micro-kernels.
pub(crate) trait Core: Sync {
    type In: Copy + Sync;
    type Weight;
    /// Type of the sums, 32 bits wide.
    type Sum;
    const INTEGER: bool;
    /// Returns the instruction set that the weights were packed for.
    fn isa(&self) -> Isa;
    fn groups(&self) -> &[Group];
    fn shape(&self) -> WeightShape;
    fn in_block(&self) -> usize;
    fn depthwise(&self) -> bool;
    fn weights(&self) -> &[Self::Weight];
    /// Returns the weights of a group that are multiplied in addition.
    fn excess(&self, _group: &Group) -> &[Excess] {
        &[]
    }
    /// Returns the initial sum of each output channel, padded to whole blocks.
    fn start(&self) -> &[Self::Sum];
    /// Returns the longest run of voxels for a number of output blocks; `three` is [`Micro::three_in_a_row`].
    fn widest(&self, isa: Isa, blocks: usize, three: bool) -> usize;
    /// Returns how many times as long a run may be. Longer runs call the epilogue less often.
    fn most_parts(&self, _isa: Isa) -> usize {
        1
    }
    /// Called before the runs of a task, as `release` is called after them.
    fn prepare(&self, _isa: Isa, _adjacent: usize) {}
    fn release(&self, _isa: Isa, _adjacent: usize) {}
    /// Computes the sums of a run.
    ///
    /// # Safety
    /// Every pointer of `micro` must reach what its fields say for `len` voxels; `prepare` must have been called on
    /// this thread.
    unsafe fn sums(isa: Isa, blocks: usize, len: usize, micro: &Micro<'_, Self::In, Self::Weight, Self::Sum>);
}

impl Core for PackedConv {
    type In = f32;
    type Weight = f32;
    type Sum = f32;
    const INTEGER: bool = false;

    fn isa(&self) -> Isa {
        self.isa
    }
    fn groups(&self) -> &[Group] {
        &self.groups
    }
    fn shape(&self) -> WeightShape {
        self.shape
    }
    fn in_block(&self) -> usize {
        self.in_block
    }
    fn depthwise(&self) -> bool {
        self.depthwise
    }
    fn weights(&self) -> &[f32] {
        &self.values
    }
    fn start(&self) -> &[f32] {
        &self.bias
    }
    fn widest(&self, isa: Isa, blocks: usize, three: bool) -> usize {
        match (isa.simd(), blocks) {
            #[cfg(target_arch = "x86_64")]
            (Simd::Avx512, 2) if three => 12,
            #[cfg(target_arch = "x86_64")]
            (Simd::Avx512, 2) => 14,
            #[cfg(target_arch = "x86_64")]
            (Simd::Avx512, _) => 28,
            #[cfg(target_arch = "x86_64")]
            (Simd::Avx2, _) => AVX2_VOXELS,
            (Simd::Portable, _) => 8,
        }
    }
    fn most_parts(&self, isa: Isa) -> usize {
        match isa.simd() {
            #[cfg(target_arch = "x86_64")]
            Simd::Avx2 => 8,
            _ => 1,
        }
    }
    unsafe fn sums(isa: Isa, blocks: usize, len: usize, micro: &Micro<'_, f32, f32, f32>) {
        // SAFETY: holding `isa` proves that the CPU has the instruction set. The caller guarantees that the pointers of
        // `micro` reach `len` voxels.
        unsafe {
            if micro.depthwise {
                return super::depthwise::floats(isa, len, micro);
            }
            match isa.simd() {
                #[cfg(target_arch = "x86_64")]
                Simd::Avx512 => super::avx512::micro(blocks, len, micro),
                #[cfg(target_arch = "x86_64")]
                Simd::Avx2 => micro.in_parts(len, AVX2_VOXELS, |len, part| super::avx2::micro(len, part)),
                Simd::Portable => portable::micro(blocks, len, micro),
            }
        }
    }
}

impl Core for PackedConvInt8 {
    type In = u8;
    type Weight = i8;
    type Sum = i32;
    const INTEGER: bool = true;

    fn isa(&self) -> Isa {
        self.isa
    }
    fn groups(&self) -> &[Group] {
        &self.groups
    }
    fn shape(&self) -> WeightShape {
        self.shape
    }
    fn in_block(&self) -> usize {
        self.in_block
    }
    fn depthwise(&self) -> bool {
        self.depthwise
    }
    fn weights(&self) -> &[i8] {
        &self.values
    }
    fn excess(&self, group: &Group) -> &[Excess] {
        self.excess.get(group.first_block).map_or(&[], Vec::as_slice)
    }
    fn start(&self) -> &[i32] {
        &self.start
    }
    fn widest(&self, isa: Isa, blocks: usize, three: bool) -> usize {
        crate::int8::widest(isa, blocks, three)
    }
    fn most_parts(&self, isa: Isa) -> usize {
        crate::int8::most_parts(isa)
    }
    fn prepare(&self, isa: Isa, adjacent: usize) {
        crate::int8::prepare(isa, adjacent * self.in_block);
    }
    fn release(&self, isa: Isa, adjacent: usize) {
        crate::int8::release(isa, adjacent * self.in_block);
    }
    unsafe fn sums(isa: Isa, blocks: usize, len: usize, micro: &Micro<'_, u8, i8, i32>) {
        // SAFETY: the caller guarantees that the pointers of `micro` reach `len` voxels and that `prepare` was called
        // on this thread.
        unsafe {
            if micro.depthwise {
                super::depthwise::bytes(isa, len, micro);
            } else {
                crate::int8::sums(isa, blocks, len, micro);
            }
        }
    }
}

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
    pub(crate) fn taps_of(&self, slice: usize) -> &[usize] {
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
    let shared = match target {
        Target::F32(v) => SharedTarget::F32(Shared::new(v)),
        Target::F16(v) => SharedTarget::F16(Shared::new(v)),
        Target::U8(v, q) => SharedTarget::U8(Shared::new(v), *q),
    };
    let padded = |values: Option<&[f32]>, none: f32| -> Vec<f32> {
        values.map_or_else(|| vec![none; out_blocks * CHANNEL_BLOCK], |v| by_block(v, out_layout.channels))
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
                taps: self.plan.taps_of(d),
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

//! Runs the network over a volume, slab by slab: tiles in, blended slices out.

use super::grid::ModelView;
use super::live::Live;
use super::plan::{Blend, TilePlan};
use super::tiles::{Slab, TileRunner};
use crate::{Context, JobError, Meter};
use cytoscope_profile::Stage;
use cytoscope_volume::blend::{Weights, Windows};
use cytoscope_volume::tile::{Span, crop_spans};
use std::ops::Range;

/// Receives finished slices `[C][z][Y][X]`, in order and without gaps.
pub(crate) type Sink<'a> = dyn FnMut(Range<usize>, &[f32]) -> Result<(), JobError> + 'a;

/// Sums for the visibility of seams: differences of neighboring voxels across tile borders and beside them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seams {
    across: f64,
    across_count: u64,
    beside: f64,
    beside_count: u64,
}

impl Seams {
    /// Returns `(mean |difference| across borders) / (mean |difference| beside them) − 1`, at least 0; `None` without
    /// borders. 0 means no visible seams.
    pub(crate) fn energy(&self) -> Option<f64> {
        if self.across_count == 0 || self.beside_count == 0 || self.beside <= 0.0 {
            return None;
        }
        let ratio = (self.across / self.across_count as f64) / (self.beside / self.beside_count as f64);
        Some((ratio - 1.0).max(0.0))
    }

    /// Adds a finished slice: the differences along X at the columns where tiles end, and beside them.
    fn add_slice(&mut self, slice: &[f32], width: usize, borders: &[usize]) {
        for row in slice.chunks_exact(width.max(1)).step_by(4) {
            for &b in borders {
                let step = |x: usize| match (row.get(x.wrapping_sub(1)), row.get(x)) {
                    (Some(a), Some(c)) => Some(f64::from((a - c).abs())),
                    _ => None,
                };
                if let Some(s) = step(b) {
                    self.across += s;
                    self.across_count += 1;
                }
                for s in [step(b.saturating_sub(3)), step(b + 3)].into_iter().flatten() {
                    self.beside += s;
                    self.beside_count += 1;
                }
            }
        }
    }
}

/// A box in a volume `[C][Z][Y][X]`.
struct Part {
    shape: [usize; 3],
    start: [usize; 3],
    size: [usize; 3],
}

impl Part {
    /// Collects the values of the box row by row: `row` appends those of an index range.
    fn collect(&self, channels: usize, row: impl Fn(Range<usize>, &mut Vec<f32>)) -> Vec<f32> {
        let mut values = Vec::with_capacity(channels * self.size.iter().product::<usize>());
        for c in 0..channels {
            for z in self.start[0]..self.start[0] + self.size[0] {
                for y in self.start[1]..self.start[1] + self.size[1] {
                    let at = ((c * self.shape[0] + z) * self.shape[1] + y) * self.shape[2] + self.start[2];
                    row(at..at + self.size[2], &mut values);
                }
            }
        }
        values
    }
}

/// Number of slices that are normalized and passed on at once.
const EMITTED_SLICES: usize = 4;

/// A run of a compiled network over one volume.
pub(crate) struct InferenceRun<'a> {
    /// Cancellation, progress and spans of the job.
    pub context: &'a Context,
    /// Size, halo and blending of the tiles.
    pub plan: &'a TilePlan,
    /// Runs the compiled network on tiles of the plan's size.
    pub tiles: TileRunner<'a>,
    /// Slices that are finished; if tiles are blended, in the same tiles.
    pub finished: usize,
    /// Counts finished voxels on the model's grid.
    pub meter: Meter<'a>,
    /// Differences across tile borders so far, including earlier time points of the image.
    pub seams: Seams,
    /// Receives finished tiles, if present.
    pub live: Option<Live<'a>>,
}

/// Slices whose windows are being blended.
struct HeldSlices<'a> {
    /// Weighted sums of slices `base..base + depth`, axes C, Z, Y, X; `None` while they are in device memory.
    sums: Option<&'a mut [f32]>,
    weights: &'a Weights<'a>,
    base: usize,
    depth: usize,
    /// Shape Z, Y, X of the volume.
    shape: [usize; 3],
    /// Columns at which windows start or end.
    borders: &'a [usize],
}

impl InferenceRun<'_> {
    /// Runs the whole volume, except slices that are finished.
    pub(crate) fn run(&mut self, view: &mut ModelView<'_>, sink: &mut Sink<'_>) -> Result<(), JobError> {
        if self.finished >= view.shape[0] {
            return Ok(());
        }
        match self.plan.blend {
            Blend::Crop => self.crop(view, sink),
            Blend::Gaussian => self.gaussian(view, sink),
        }
    }

    fn crop(&mut self, view: &mut ModelView<'_>, sink: &mut Sink<'_>) -> Result<(), JobError> {
        let (shape, plan) = (view.shape, self.plan);
        let spans: Vec<Vec<Span>> =
            (0..3).map(|a| crop_spans(shape[a], plan.tile[a], plan.halo[a], plan.step[a])).collect::<Result<_, _>>()?;
        let borders: Vec<usize> = spans[2].iter().skip(1).map(|s| s.keep_start).collect();
        let channels = self.tiles.network.output_channels;
        let tiles: Vec<[&Span; 2]> = spans[1].iter().flat_map(|sy| spans[2].iter().map(move |sx| [sy, sx])).collect();
        let ends = [1, 2].map(|a| spans[a].iter().map(|s| s.start + s.len).max().unwrap_or(0));
        let finished = self.finished;
        let unfinished = |sz: &&Span| sz.kept_in_volume().end > finished;
        if finished > 0 {
            // The first slab is computed as a whole.
            let skipped = spans[0].iter().find(unfinished).map_or(shape[0], |sz| sz.keep_start);
            self.meter.skip_completed((skipped * shape[1] * shape[2]) as u64);
        }
        for sz in spans[0].iter().filter(unfinished) {
            let values = view.read(self.context, sz.start..sz.start + sz.len)?;
            let slab = Slab { values: &values, shape: [sz.len, shape[1], shape[2]] };
            self.tiles.load(&slab, sz.start, ends)?;
            let kept_shape = [sz.keep_len, shape[1], shape[2]];
            if self.live.is_none() && self.tiles.can_keep(kept_shape) {
                drop(values);
                let out = self.crop_on_device(sz, &tiles, spans[2].len(), kept_shape)?;
                self.measure_seams(&out, sz.keep_len, shape, &borders);
                self.pass_on(sz.kept_in_volume(), out, sink)?;
                continue;
            }
            let mut out = vec![0.0f32; channels * sz.keep_len * shape[1] * shape[2]];
            // The first column of the row of tiles that was not yet passed to `live`.
            let mut unsent = 0;
            for batch in tiles.chunks(self.tiles.batch) {
                let starts: Vec<[usize; 3]> = batch.iter().map(|[sy, sx]| [0, sy.start, sx.start]).collect();
                let size = batch.first().map_or([0; 3], |[sy, sx]| [sz.len, sy.len, sx.len]);
                let results = self.tiles.run(&slab, &starts, size)?;
                let each = channels * size.iter().product::<usize>();
                for (&[sy, sx], result) in batch.iter().zip(results.chunks_exact(each)) {
                    self.keep(result, [sz, sy, sx], shape, &mut out);
                    let end = sx.kept_in_volume().end;
                    if sx.keep_start == 0 {
                        unsent = 0;
                    }
                    if let Some(live) = self.live.as_ref().filter(|live| end == shape[2] || live.is_due()) {
                        let size = [sz.keep_len, sy.keep_len, end - unsent];
                        let held = [sz.keep_len, shape[1], shape[2]];
                        let part = Part { shape: held, start: [0, sy.keep_start, unsent], size };
                        let values = part.collect(channels, |at, to| to.extend_from_slice(&out[at]));
                        live.tile([sz.keep_start, sy.keep_start, unsent], size, values);
                        unsent = end;
                    }
                    self.meter.add((sz.keep_len * sy.keep_len * sx.keep_len) as u64)?;
                }
            }
            drop(values);
            self.measure_seams(&out, sz.keep_len, shape, &borders);
            self.pass_on(sz.kept_in_volume(), out, sink)?;
        }
        Ok(())
    }

    /// Passes on the slices `z`, with values `[C][z][Y][X]`, except for finished ones: if the tiles differ from those
    /// of the earlier run, they compute some finished slices again.
    fn pass_on(&self, z: Range<usize>, mut values: Vec<f32>, sink: &mut Sink<'_>) -> Result<(), JobError> {
        let skipped = self.finished.saturating_sub(z.start).min(z.len());
        if skipped > 0 {
            let channel = values.len() / self.tiles.network.output_channels.max(1);
            let left = channel / z.len().max(1) * (z.len() - skipped);
            let starts = (0..values.len()).step_by(channel.max(1)).map(|start| start + channel - left);
            for (index, start) in starts.enumerate() {
                values.copy_within(start..start + left, index * left);
            }
            values.truncate(self.tiles.network.output_channels * left);
        }
        sink(z.start + skipped..z.end, &values)
    }

    /// Runs the tiles of the slab that the device holds, `columns` in each row, and returns their kept voxels, which are
    /// joined there.
    fn crop_on_device(
        &mut self,
        sz: &Span,
        tiles: &[[&Span; 2]],
        columns: usize,
        kept_shape: [usize; 3],
    ) -> Result<Vec<f32>, JobError> {
        for batch in tiles.chunks(self.tiles.batch) {
            let starts: Vec<[usize; 3]> = batch.iter().map(|[sy, sx]| [0, sy.start, sx.start]).collect();
            let kept: Vec<[Range<usize>; 3]> =
                batch.iter().map(|[sy, sx]| [sz.kept_in_tile(), sy.kept_in_tile(), sx.kept_in_tile()]).collect();
            let size = batch.first().map_or([0; 3], |[sy, sx]| [sz.len, sy.len, sx.len]);
            self.tiles.run_kept(&starts, &kept, size)?;
            for [sy, sx] in batch {
                let voxels = sz.keep_len * sy.keep_len * sx.keep_len;
                // Tiles are counted by these spans.
                self.context.recorder.span(Stage::Blend, "crop").voxels(voxels).finish();
                self.meter.add(voxels as u64)?;
            }
        }
        self.tiles.take_kept(columns, kept_shape)
    }

    /// Copies the kept voxels of a tile, whose spans along Z, Y, X are given, to the kept slices of a volume of this
    /// shape.
    fn keep(&self, result: &[f32], [sz, sy, sx]: [&Span; 3], shape: [usize; 3], out: &mut [f32]) {
        let _span = self.context.recorder.span(Stage::Blend, "crop").voxels(sz.keep_len * sy.keep_len * sx.keep_len);
        let (kz, ky, kx) = (sz.kept_in_tile(), sy.kept_in_tile(), sx.kept_in_tile());
        let kept_channel = (sz.keep_len * shape[1] * shape[2]).max(1);
        let channels = result.chunks_exact(sz.len * sy.len * sx.len).zip(out.chunks_exact_mut(kept_channel));
        for (tile, kept) in channels {
            for (oz, tz) in kz.clone().enumerate() {
                for (oy, ty) in sy.kept_in_volume().zip(ky.clone()) {
                    let from = (tz * sy.len + ty) * sx.len;
                    let to = (oz * shape[1] + oy) * shape[2];
                    kept[to + sx.keep_start..to + sx.keep_start + sx.keep_len]
                        .copy_from_slice(&tile[from + kx.start..from + kx.end]);
                }
            }
        }
    }

    fn gaussian(&mut self, view: &mut ModelView<'_>, sink: &mut Sink<'_>) -> Result<(), JobError> {
        let (shape, plan) = (view.shape, self.plan);
        let size: [usize; 3] = std::array::from_fn(|a| plan.tile[a].next_multiple_of(plan.step[a]));
        let windows = Windows::new(shape, size, plan.overlap)?;
        let first = self.first_window(&windows);
        let starts = &windows.starts;
        let borders: Vec<usize> =
            starts[2].iter().skip(1).flat_map(|s| [*s, s + size[2]]).filter(|b| *b < shape[2]).collect();
        let channels = self.tiles.network.output_channels;
        let plane = shape[1] * shape[2];
        // Weighted sums of slices base..base + depth; slices below `base` are finished.
        let depth = size[0];
        let mut base = starts[0].get(first).copied().unwrap_or(0);
        let mut sums: Option<Vec<f32>> = None;
        let weights = windows.weights();
        // Indices of the windows along Y and X.
        let tiles: Vec<[usize; 2]> =
            (0..starts[1].len()).flat_map(|j| (0..starts[2].len()).map(move |k| [j, k])).collect();
        let voxels_in_all = shape.iter().product::<usize>() as u64;
        let rows = starts[0].len() as u64;
        let ends = [1, 2].map(|a| starts[a].iter().map(|s| s + size[a]).max().unwrap_or(0));
        if first > 0 {
            self.meter.skip_completed((first as u64 * voxels_in_all) / rows);
        }
        for (i, &z) in starts[0].iter().enumerate().skip(first) {
            if z > base {
                let sums = sums.as_deref_mut();
                let held = HeldSlices { sums, weights: &weights, base, depth, shape, borders: &borders };
                self.emit(held, z - base, sink)?;
                base = z;
            }
            let values = view.read(self.context, z..z + size[0])?;
            let slab = Slab { values: &values, shape: [size[0], shape[1], shape[2]] };
            self.tiles.load(&slab, z, ends)?;
            let held_shape = [depth, shape[1], shape[2]];
            if i == first && (self.live.is_some() || !self.tiles.begin_sums(&windows.map, size, held_shape)?) {
                sums = Some(vec![0.0f32; channels * depth * plane]);
            }
            // Windows overlap, so progress is counted in shares of the volume.
            let (done, next) = ((i as u64 * voxels_in_all) / rows, ((i as u64 + 1) * voxels_in_all) / rows);
            let share = (next - done) / tiles.len() as u64;
            let Some(sums) = sums.as_deref_mut() else {
                drop(values);
                self.blend_on_device(&windows, i, &tiles, share)?;
                continue;
            };
            // The first column of the windows that were not yet passed to `live`.
            let mut unsent = None;
            for batch in tiles.chunks(self.tiles.batch) {
                let corners: Vec<[usize; 3]> = batch.iter().map(|[j, k]| [0, starts[1][*j], starts[2][*k]]).collect();
                let results = self.tiles.run(&slab, &corners, size)?;
                let each = channels * windows.map.len();
                for (&[j, k], result) in batch.iter().zip(results.chunks_exact(each)) {
                    let (y, x) = (starts[1][j], starts[2][k]);
                    let kept = windows.own_voxels([i, j, k]);
                    let span = self.context.recorder.span(Stage::Blend, "gaussian").voxels(kept);
                    windows.add(result, y, x, sums);
                    drop(span);
                    self.send_means(&windows, sums, base, [i, j, k], &mut unsent);
                    self.meter.add(share)?;
                }
            }
        }
        let sums = sums.as_deref_mut();
        let held = HeldSlices { sums, weights: &weights, base, depth, shape, borders: &borders };
        self.emit(held, shape[0] - base, sink)
    }

    /// Returns the index along Z of the first windows that are run: all that cover a slice that is not finished. A sum then
    /// has the same terms in the same order as if all were run.
    fn first_window(&self, windows: &Windows) -> usize {
        windows.starts[0].iter().position(|z| z + windows.size[0] > self.finished).unwrap_or(0)
    }

    /// Runs all windows at index `i` along Z, whose slab the device holds, and adds them to the sums there. Each of them
    /// advances the progress by `share` voxels.
    fn blend_on_device(
        &mut self,
        windows: &Windows,
        i: usize,
        tiles: &[[usize; 2]],
        share: u64,
    ) -> Result<(), JobError> {
        for batch in tiles.chunks(self.tiles.batch) {
            let corner = |[j, k]: &[usize; 2]| [0, windows.starts[1][*j], windows.starts[2][*k]];
            let corners: Vec<[usize; 3]> = batch.iter().map(corner).collect();
            self.tiles.run_summed(&corners, windows.size)?;
            for &[j, k] in batch {
                // Tiles are counted by these spans.
                let kept = windows.own_voxels([i, j, k]);
                self.context.recorder.span(Stage::Blend, "gaussian").voxels(kept).finish();
                self.meter.add(share)?;
            }
        }
        Ok(())
    }

    /// Passes the weighted means of a row's windows up to `window` to `live`, if it is due or the row ends. `sums` start
    /// at slice `base`; `unsent` is the first column that was not passed on yet.
    fn send_means(
        &self,
        windows: &Windows,
        sums: &[f32],
        base: usize,
        [i, j, k]: [usize; 3],
        unsent: &mut Option<usize>,
    ) {
        let Windows { shape, starts, size, .. } = windows;
        let (z, y, x) = (starts[0][i], starts[1][j], starts[2][k]);
        let (ny, nx) = (size[1].min(shape[1] - y), size[2].min(shape[2] - x));
        let last = x + nx == shape[2];
        let Some(live) = self.live.as_ref().filter(|live| last || live.is_due()) else {
            *unsent = unsent.or(Some(x));
            return;
        };
        let (weights, first) = (windows.weights(), self.first_window(windows));
        let from = unsent.take().unwrap_or(x);
        let held = [size[0], shape[1], shape[2]];
        let valid = [size[0].min(shape[0] - z), ny, x + nx - from];
        let part = Part { shape: held, start: [0, y, from], size: valid };
        let means = part.collect(self.tiles.network.output_channels, |at, to| {
            let (row, column) = (at.start / shape[2], at.start % shape[2]);
            let (sz, sy) = (base + row / shape[1] % size[0], row % shape[1]);
            let is_before = |[iz, iy, ix]: [usize; 3]| iz < i || iz == i && (iy < j || iy == j && ix <= k);
            let done = |window: [usize; 3]| window[0] >= first && is_before(window);
            let weights = weights.row(sz, sy, done);
            to.extend(sums[at].iter().zip(&weights[column..]).map(|(s, w)| s / w));
        });
        live.tile([z, y, from], valid, means);
    }

    /// Normalizes the first `count` slices by their weights, passes on those that an earlier run has not finished, and moves
    /// the others to the front.
    fn emit(&mut self, held: HeldSlices<'_>, count: usize, sink: &mut Sink<'_>) -> Result<(), JobError> {
        let HeldSlices { sums, weights, base, depth, shape, borders } = held;
        let mut taken;
        let (sums, depth) = match sums {
            Some(sums) => (sums, depth),
            None => {
                taken = self.tiles.take_sums([count, shape[1], shape[2]])?;
                (taken.as_mut_slice(), count)
            }
        };
        let plane = shape[1] * shape[2];
        let channels = sums.len() / (depth * plane);
        for first in (0..count).step_by(EMITTED_SLICES) {
            let slices = EMITTED_SLICES.min(count - first);
            if base + first + slices <= self.finished {
                continue;
            }
            let mut out = vec![0.0f32; channels * slices * plane];
            for z in 0..slices {
                for y in 0..shape[1] {
                    let weights = weights.row(base + first + z, y, |_| true);
                    for c in 0..channels {
                        let from = (c * depth + first + z) * plane + y * shape[2];
                        let to = (c * slices + z) * plane + y * shape[2];
                        let pairs = sums[from..from + shape[2]].iter().zip(&weights);
                        out[to..to + shape[2]].iter_mut().zip(pairs).for_each(|(o, (s, w))| *o = s / w);
                    }
                }
            }
            self.measure_seams(&out, slices, shape, borders);
            sink(base + first..base + first + slices, &out)?;
        }
        for c in 0..channels {
            let held = &mut sums[c * depth * plane..(c + 1) * depth * plane];
            held.copy_within(count * plane.., 0);
            held[(depth - count) * plane..].fill(0.0);
        }
        Ok(())
    }

    fn measure_seams(&mut self, out: &[f32], slices: usize, shape: [usize; 3], borders: &[usize]) {
        let plane = shape[1] * shape[2];
        // Every fourth slice of the first channel is enough.
        for z in (0..slices).step_by(4) {
            self.seams.add_slice(&out[z * plane..(z + 1) * plane], shape[2], borders);
        }
    }
}

//! Runs the network over a volume, slab by slab: tiles in, blended slices out.

use super::grid::ModelView;
use super::live::Live;
use super::plan::{Blend, TilePlan};
use crate::model::Model;
use crate::{Context, JobError, Meter};
use cytoscope_engine::Session;
use cytoscope_graph::Tensor;
use cytoscope_profile::Stage;
use cytoscope_volume::blend::gaussian_map;
use cytoscope_volume::tile::{Span, crop_spans, window_starts};
use std::ops::Range;

/// Receives finished slices `[C][z][Y][X]`, in order and without gaps.
pub(crate) type Sink<'a> = dyn FnMut(Range<usize>, &[f32]) -> Result<(), JobError> + 'a;

/// Sums for the visibility of seams: differences of neighbouring voxels across tile borders and beside them.
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

/// Weights of a volume's voxels, summed over the windows that cover them. They are computed row by row when needed,
/// because all of them would take as much memory as the sums that they divide.
struct Weights<'a> {
    starts: &'a [Vec<usize>],
    size: [usize; 3],
    map: &'a [f32],
    width: usize,
}

impl Weights<'_> {
    /// Returns the weights of row `(z, y)`, summed over the windows for which `counts` is true; windows are identified
    /// by their indices along Z, Y, X.
    fn row(&self, z: usize, y: usize, counts: impl Fn([usize; 3]) -> bool) -> Vec<f32> {
        let mut row = vec![0.0f32; self.width];
        let covering = |axis: usize, at: usize| {
            let starts = self.starts[axis].iter().enumerate();
            starts.filter(move |(_, s)| (**s..**s + self.size[axis]).contains(&at))
        };
        for (iz, sz) in covering(0, z) {
            for (iy, sy) in covering(1, y) {
                let at = ((z - sz) * self.size[1] + y - sy) * self.size[2];
                for (ix, sx) in self.starts[2].iter().enumerate() {
                    if counts([iz, iy, ix]) {
                        let share = &self.map[at..at + self.size[2].min(self.width - sx)];
                        row[*sx..].iter_mut().zip(share).for_each(|(w, s)| *w += s);
                    }
                }
            }
        }
        row
    }
}

/// Number of slices that are normalised and passed on at once.
const EMITTED_SLICES: usize = 4;

/// A run of a compiled network over one volume.
pub(crate) struct InferenceRun<'a> {
    pub context: &'a Context,
    pub model: &'a Model,
    pub plan: &'a TilePlan,
    pub session: &'a mut dyn Session,
    pub meter: Meter<'a>,
    pub seams: Seams,
    /// Receives finished tiles, if present.
    pub live: Option<Live<'a>>,
}

impl InferenceRun<'_> {
    /// Runs the whole volume.
    pub(crate) fn run(&mut self, view: &mut ModelView<'_>, sink: &mut Sink<'_>) -> Result<(), JobError> {
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
        let channels = self.model.output_channels;
        for sz in &spans[0] {
            let slab = view.read(self.context, sz.start..sz.start + sz.len)?;
            let mut out = vec![0.0f32; channels * sz.keep_len * shape[1] * shape[2]];
            for sy in &spans[1] {
                // The first column that was not yet passed to `live`.
                let mut unsent = 0;
                for sx in &spans[2] {
                    let size = [sz.len, sy.len, sx.len];
                    let result = self.tile(&slab, sz.len, shape, [0, sy.start, sx.start], size)?;
                    let _span = self
                        .context
                        .recorder
                        .span(Stage::Blend, "crop")
                        .voxels(sz.keep_len * sy.keep_len * sx.keep_len);
                    let (kz, ky, kx) = (sz.kept_in_tile(), sy.kept_in_tile(), sx.kept_in_tile());
                    for c in 0..channels {
                        for (oz, tz) in kz.clone().enumerate() {
                            for (oy, ty) in sy.kept_in_volume().zip(ky.clone()) {
                                let from = ((c * size[0] + tz) * size[1] + ty) * size[2];
                                let to = ((c * sz.keep_len + oz) * shape[1] + oy) * shape[2];
                                out[to + sx.keep_start..to + sx.keep_start + sx.keep_len]
                                    .copy_from_slice(&result[from + kx.start..from + kx.end]);
                            }
                        }
                    }
                    let end = sx.kept_in_volume().end;
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
            drop(slab);
            self.measure_seams(&out, sz.keep_len, shape, &borders);
            sink(sz.kept_in_volume(), &out)?;
        }
        Ok(())
    }

    fn gaussian(&mut self, view: &mut ModelView<'_>, sink: &mut Sink<'_>) -> Result<(), JobError> {
        let (shape, plan) = (view.shape, self.plan);
        let size: [usize; 3] = std::array::from_fn(|a| plan.tile[a].next_multiple_of(plan.step[a]));
        let starts: Vec<Vec<usize>> =
            (0..3).map(|a| window_starts(shape[a], size[a], plan.overlap)).collect::<Result<_, _>>()?;
        let borders: Vec<usize> =
            starts[2].iter().skip(1).flat_map(|s| [*s, s + size[2]]).filter(|b| *b < shape[2]).collect();
        let map = gaussian_map(size);
        let channels = self.model.output_channels;
        let plane = shape[1] * shape[2];
        // Weighted sums of slices base..base + depth; slices below `base` are finished.
        let depth = size[0];
        let mut base = 0;
        let mut sums = vec![0.0f32; channels * depth * plane];
        let weights = Weights { starts: &starts, size, map: &map, width: shape[2] };
        let tiles = (starts[1].len() * starts[2].len()) as u64;
        let voxels_in_all = shape.iter().product::<usize>() as u64;
        let rows = starts[0].len() as u64;
        for (i, &z) in starts[0].iter().enumerate() {
            if z > base {
                self.emit(&mut sums, &weights, base, z - base, depth, shape, &borders, sink)?;
                base = z;
            }
            let slab = view.read(self.context, z..z + size[0])?;
            for (j, &y) in starts[1].iter().enumerate() {
                // The first column of the windows that were not yet passed to `live`.
                let mut unsent = None;
                for (k, &x) in starts[2].iter().enumerate() {
                    let result = self.tile(&slab, size[0], shape, [0, y, x], size)?;
                    let _span = self.context.recorder.span(Stage::Blend, "gaussian").voxels(size.iter().product());
                    let (ny, nx) = (size[1].min(shape[1] - y), size[2].min(shape[2] - x));
                    for tz in 0..size[0] {
                        for ty in 0..ny {
                            let at = (tz * size[1] + ty) * size[2];
                            let to = (tz * shape[1] + y + ty) * shape[2] + x;
                            let share = &map[at..at + nx];
                            for c in 0..channels {
                                let from = &result[c * map.len() + at..][..nx];
                                let sum = &mut sums[c * depth * plane + to..][..nx];
                                sum.iter_mut().zip(from.iter().zip(share)).for_each(|(t, (v, s))| *t += v * s);
                            }
                        }
                    }
                    let last = x + nx == shape[2];
                    if let Some(live) = self.live.as_ref().filter(|live| last || live.is_due()) {
                        let from = std::mem::take(&mut unsent).unwrap_or(x);
                        let held = [depth, shape[1], shape[2]];
                        let valid = [size[0].min(shape[0] - z), ny, x + nx - from];
                        let part = Part { shape: held, start: [0, y, from], size: valid };
                        let means = part.collect(channels, |at, to| {
                            let (row, column) = (at.start / shape[2], at.start % shape[2]);
                            let (sz, sy) = (base + row / shape[1] % depth, row % shape[1]);
                            let done = |[iz, iy, ix]: [usize; 3]| iz < i || iz == i && (iy < j || iy == j && ix <= k);
                            let weights = weights.row(sz, sy, done);
                            to.extend(sums[at].iter().zip(&weights[column..]).map(|(s, w)| s / w));
                        });
                        live.tile([z, y, from], valid, means);
                    } else {
                        unsent = unsent.or(Some(x));
                    }
                    // Windows overlap, so progress is counted in shares of the volume.
                    let done = (i as u64 * voxels_in_all) / rows;
                    let next = ((i as u64 + 1) * voxels_in_all) / rows;
                    self.meter.add((next - done) / tiles)?;
                }
            }
        }
        self.emit(&mut sums, &weights, base, shape[0] - base, depth, shape, &borders, sink)
    }

    /// Normalises the first `count` slices by their weights, passes them on, and moves the others to the front.
    #[allow(clippy::too_many_arguments)]
    fn emit(
        &mut self,
        sums: &mut [f32],
        weights: &Weights<'_>,
        base: usize,
        count: usize,
        depth: usize,
        shape: [usize; 3],
        borders: &[usize],
        sink: &mut Sink<'_>,
    ) -> Result<(), JobError> {
        let plane = shape[1] * shape[2];
        let channels = sums.len() / (depth * plane);
        for first in (0..count).step_by(EMITTED_SLICES) {
            let slices = EMITTED_SLICES.min(count - first);
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

    /// Runs one tile of a slab `[C][slab_z][Y][X]`; voxels outside the volume repeat its last ones.
    fn tile(
        &mut self,
        slab: &[f32],
        slab_z: usize,
        shape: [usize; 3],
        start: [usize; 3],
        size: [usize; 3],
    ) -> Result<Vec<f32>, JobError> {
        let channels = self.model.input_channels;
        let mut values = Vec::with_capacity(channels * size.iter().product::<usize>());
        {
            let _span = self.context.recorder.span(Stage::Upload, "tile").bytes(values.capacity() * 4);
            let inside = size[2].min(shape[2] - start[2]);
            for c in 0..channels {
                for z in 0..size[0] {
                    for y in 0..size[1] {
                        let (sz, sy) = ((start[0] + z).min(slab_z - 1), (start[1] + y).min(shape[1] - 1));
                        let row = ((c * slab_z + sz) * shape[1] + sy) * shape[2] + start[2];
                        values.extend_from_slice(&slab[row..row + inside]);
                        let last = slab[row + inside - 1];
                        values.extend(std::iter::repeat_n(last, size[2] - inside));
                    }
                }
            }
        }
        let voxels = size.iter().product::<usize>();
        let input = Tensor::new(self.model.tensor_shape(channels, size), values)?;
        let macs = self.session.report().macs;
        let span = self.context.recorder.span(Stage::Compute, "tile").voxels(voxels).macs(macs);
        let outputs = self.session.run(&[input])?;
        drop(span);
        let output = outputs.into_iter().nth(self.model.output_index).and_then(Tensor::into_f32);
        let expected = self.model.output_channels * voxels;
        match output {
            Some(values) if values.len() == expected => Ok(values),
            other => Err(JobError::model(
                self.model.name.clone(),
                format!(
                    "its output has {} values for a tile of {size:?}, expected {expected}: only models whose output has the \
                     same shape as their input can be tiled",
                    other.map_or(0, |v| v.len())
                ),
            )),
        }
    }
}

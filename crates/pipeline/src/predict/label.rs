//! Segmentation and measurement of a predicted volume of any number of slices in bounded memory.

use super::label_slices::SliceLabeler;
use super::prediction::{FOREGROUND_BYTES, Prediction};
use super::resolve::Resolved;
use crate::measure::measure_slices;
use crate::spool::{Scratch, Spool};
use crate::stack::Stack;
use crate::{Context, JobError, ProgressStage, ProgressUnit};
use cytoscope_objects::measure::{Measurer, ObjectRow};
use cytoscope_objects::stitch::Stitcher;
use cytoscope_objects::threshold::Histogram;
use cytoscope_objects::{Foreground, Height, SegmentOptions, Threshold, segment_with_foreground, smooth};
use cytoscope_profile::Stage;
use cytoscope_storage::counted;
use std::ops::Range;

/// Maximum number of voxels segmented at once, except in slabs of [`MIN_SLAB_SLICES`]; larger stacks are segmented slice by
/// slice, or in overlapping slabs.
pub(crate) const SLAB_VOXELS: usize = 16 << 20;
/// Minimum number of slices of a slab, however large they are: objects are joined in the slices that slabs share.
const MIN_SLAB_SLICES: usize = 4;
/// Minimum volume of the part of an object that is in a slab, as a fraction of that of a whole object. It is above 0 because
/// each part of the noise that a map may have costs a watershed.
const MIN_PART: f64 = 0.125;
/// Overlap of slabs in µm for objects of the model's nominal size; larger than a nucleus.
pub(crate) const OVERLAP_UM: f64 = 16.0;

/// Maximum memory in bytes of segmenting a stack slice by slice. Most of it holds the maps in the boxes of the
/// components that a slice divides.
const MAX_STREAMED_BYTES: u64 = 1 << 30;
/// Maximum memory in bytes of finding objects during a pass.
const MAX_PASS_BYTES: u64 = 256 << 20;
/// A stack is segmented slice by slice in at most this fraction (1 / `BUDGET_PARTS`) of the memory budget.
const BUDGET_PARTS: u64 = 4;

/// Returns the memory in bytes that segmenting a stack slice by slice may take.
pub(crate) fn streamed_bytes(budget_bytes: u64) -> u64 {
    (budget_bytes / BUDGET_PARTS).min(MAX_STREAMED_BYTES)
}

/// Returns the peak memory in bytes of segmenting a volume, if segmenting it slice by slice may take `streamed_bytes`, and of
/// measuring its objects takes `measured_bytes`; 0 if they are not measured.
pub(crate) fn peak_bytes(shape: [usize; 3], streamed_bytes: u64, measured_bytes: u64) -> u64 {
    let streamed_bytes = if is_segmented_at_once(shape) { 0 } else { streamed_bytes };
    slab_bytes(shape).max(streamed_bytes).max(measured_bytes) + (64 << 20)
}

/// Returns the memory in bytes that finding objects during a pass may take, if segmenting a stack slice by slice may take
/// `streamed_bytes`. If it takes more, objects are found after the pass.
pub(super) fn bytes_during_pass(shape: [usize; 3], streamed_bytes: u64) -> u64 {
    if is_segmented_at_once(shape) { FOREGROUND_BYTES } else { MAX_PASS_BYTES.min(streamed_bytes) }
}

/// Returns the memory in bytes of a slab.
fn slab_bytes(shape: [usize; 3]) -> u64 {
    let voxels = shape[0].min(slab_slices(shape)).saturating_mul(shape[1] * shape[2]) as u64;
    // Map, seed map, labels, mask, and the boxes in progress.
    voxels * (4 + 4 + 4 + 1)
}

/// Returns the number of slices that are segmented at once.
fn slab_slices(shape: [usize; 3]) -> usize {
    (SLAB_VOXELS / (shape[1] * shape[2]).max(1)).max(MIN_SLAB_SLICES)
}

/// Returns the number of slices that slabs of `slab` slices share, if an overlap of `wanted` slices is wanted.
fn overlap_slices(slab: usize, wanted: f64) -> usize {
    (wanted.ceil() as usize).clamp(1, slab / 3 + 1).min(slab.saturating_sub(1))
}

/// Returns whether a volume is segmented at once, not in slabs.
pub(super) fn is_segmented_at_once(shape: [usize; 3]) -> bool {
    shape[0] <= slab_slices(shape)
}

/// A map on the input's grid that can be read slice by slice.
pub(crate) trait MapSource {
    /// Returns the shape Z, Y, X.
    fn shape(&self) -> [usize; 3];
    /// Reads slices `z` of one channel.
    fn read(&mut self, context: &Context, channel: usize, z: Range<usize>) -> Result<Vec<f32>, JobError>;
}

/// Labels in a spool; [`Labels::renumbering`] maps them to `1..=count`.
pub(crate) struct Labels {
    spool: Spool<u32>,
    shape: [usize; 3],
    /// Final number of each stored label; 0 for dropped objects.
    renumbering: Vec<u32>,
    /// Number of objects, without those that were dropped.
    pub count: u32,
    /// Whether there may be objects below the minimum volume: parts of objects in slabs must be joined before they are measured.
    has_small: bool,
    /// A note that objects may differ from those of the whole stack.
    pub note: Option<String>,
}

/// How a map is segmented.
pub(crate) struct LabelSettings<'a> {
    /// Channel that is segmented.
    pub channel: usize,
    /// Channel that seeds are found in, if the options say so.
    pub seed_channel: usize,
    /// Voxel size Z, Y, X in µm.
    pub voxel_um: [f64; 3],
    /// Thresholds, smoothing and seeds, with lengths in µm of the stack.
    pub options: &'a SegmentOptions,
    /// Overlap of slabs in µm.
    pub overlap_um: f64,
    /// Maximum memory in bytes of segmenting a stack slice by slice; if it takes more, it is segmented in slabs.
    pub streamed_bytes: u64,
}

impl LabelSettings<'_> {
    /// Returns whether seeds and objects are found in different channels.
    pub(super) fn has_seeds(&self) -> bool {
        let uses_seed_height = matches!(self.options.height, Some(Height::Seeds | Height::DistancePlusSeeds { .. }));
        uses_seed_height && self.seed_channel != self.channel
    }
}

/// Smoothing of a map that is read in parts.
#[derive(Clone, Copy)]
pub(super) struct Smoothing {
    /// Sigma in voxels along Z, Y, X; 0 without smoothing.
    sigma: [f64; 3],
    /// Number of slices on either side that a smoothed slice depends on.
    pub reach: usize,
}

impl Smoothing {
    pub(super) fn new(smooth_um: f64, voxel_um: [f64; 3]) -> Self {
        let sigma = voxel_um.map(|v| smooth_um / v);
        Self { sigma, reach: (3.0 * sigma[0]).ceil() as usize }
    }

    /// Reads slices `z` of a channel, smoothed as in the whole stack.
    pub(super) fn read(
        &self,
        context: &Context,
        map: &mut dyn MapSource,
        channel: usize,
        z: Range<usize>,
    ) -> Result<Vec<f32>, JobError> {
        let [depth, ny, nx] = map.shape();
        let around = z.start.saturating_sub(self.reach)..z.end.saturating_add(self.reach).min(depth);
        let mut values = map.read(context, channel, around.clone())?;
        if self.sigma != [0.0; 3] {
            smooth::gaussian(&mut values, [around.len(), ny, nx], self.sigma)?;
            values.truncate((z.end - around.start) * ny * nx);
            values.drain(..(z.start - around.start) * ny * nx);
        }
        Ok(values)
    }
}

/// Segments a map, with its labels stored in `scratch`: at once, slice by slice, or, if that takes too much memory, in slabs.
/// `foreground` is the foreground of the map, if it was found while the map was made. The caller must call
/// [`Labels::filter_objects`].
pub(crate) fn label(
    context: &Context,
    map: &mut dyn MapSource,
    settings: &LabelSettings<'_>,
    scratch: Scratch<'_>,
    foreground: Option<Foreground>,
) -> Result<Labels, JobError> {
    let slab = slab_slices(map.shape());
    if map.shape()[0] <= slab {
        return label_in_slabs(context, map, settings, scratch, foreground, slab);
    }
    match label_slice_by_slice(context, map, settings, scratch, slab)? {
        Ok(labels) => Ok(labels),
        Err(threshold) => {
            let options = SegmentOptions { threshold, ..settings.options.clone() };
            label_in_slabs(context, map, &LabelSettings { options: &options, ..*settings }, scratch, None, slab)
        }
    }
}

/// Like [`label`], with slices read `step` at a time. The result is the same as if the map were segmented at once. If that
/// takes too much memory, the inner error is the threshold, which is known by then unless nothing was read.
fn label_slice_by_slice(
    context: &Context,
    map: &mut dyn MapSource,
    settings: &LabelSettings<'_>,
    scratch: Scratch<'_>,
    step: usize,
) -> Result<Result<Labels, Threshold>, JobError> {
    let (shape, options) = (map.shape(), settings.options);
    let limit_bytes = settings.streamed_bytes.max(slab_bytes(shape));
    let begin = |threshold: Threshold| {
        let options = SegmentOptions { threshold, ..options.clone() };
        SliceLabeler::new(shape, &LabelSettings { options: &options, ..*settings }, step, limit_bytes, scratch)
    };
    let threshold = match options.threshold {
        // Memory that does not suffice for any threshold is found before the map is read.
        Threshold::Otsu if begin(Threshold::Fixed(0.0))?.is_none() => return Ok(Err(Threshold::Otsu)),
        Threshold::Otsu => {
            let smoothing = Smoothing::new(options.smooth_um, settings.voxel_um);
            Threshold::Fixed(otsu(context, map, settings.channel, step, &smoothing)?)
        }
        fixed @ Threshold::Fixed(_) => fixed,
    };
    let Some(mut labeler) = begin(threshold)? else { return Ok(Err(threshold)) };
    // Every slice is read twice.
    let mut meter = context.meter(ProgressStage::Objects, 2 * shape[0] as u64, ProgressUnit::Slices);
    let fits = labeler.advance(context, map, shape[0], &mut |slices| meter.add(slices))?;
    context.recorder.mark_memory("objects");
    Ok(if fits { Ok(labeler.finish(context)) } else { Err(threshold) })
}

/// Returns the options for segmenting a slab of a stack that is segmented with `options`. Unless the slab is the whole stack
/// (`is_whole`), its values are smoothed already, and small and dim objects are dropped when all slabs are joined. Objects at the
/// border of the stack are always dropped later.
fn slab_options(options: &SegmentOptions, is_whole: bool) -> SegmentOptions {
    let drop_border = false;
    if is_whole {
        return SegmentOptions { drop_border, ..options.clone() };
    }
    SegmentOptions {
        smooth_um: 0.0,
        min_volume_um3: options.min_volume_um3 * MIN_PART,
        min_peak: 0.0,
        drop_border,
        // Whether an object is isolated is not known in a slab.
        isolated: None,
        ..options.clone()
    }
}

/// Like [`label`], in slabs of `slab` slices: objects are split within each slab, and joined across slabs.
fn label_in_slabs(
    context: &Context,
    map: &mut dyn MapSource,
    settings: &LabelSettings<'_>,
    scratch: Scratch<'_>,
    foreground: Option<Foreground>,
    slab: usize,
) -> Result<Labels, JobError> {
    let LabelSettings { channel, seed_channel, voxel_um, options, overlap_um, .. } = *settings;
    let shape = map.shape();
    let plane = shape[1] * shape[2];
    let mut spool = Spool::new(scratch, plane)?;
    let fits_one_slab = shape[0] <= slab;
    let mut foreground = foreground.filter(|_| fits_one_slab);
    let overlap = if fits_one_slab { 0 } else { overlap_slices(slab, overlap_um / voxel_um[0]) };
    let mut meter = context.meter(ProgressStage::Objects, shape[0] as u64, ProgressUnit::Slices);
    // A single slab is smoothed while it is segmented. The slices around a slab are limited to twice as many as it has.
    let mut smoothing = Smoothing::new(if fits_one_slab { 0.0 } else { options.smooth_um }, voxel_um);
    smoothing.reach = smoothing.reach.min(slab);
    // Otsu's threshold is computed from the whole volume, not from single slabs.
    let threshold = match options.threshold {
        Threshold::Otsu if !fits_one_slab => Threshold::Fixed(otsu(context, map, channel, slab, &smoothing)?),
        other => other,
    };
    let min_peak = options.min_peak;
    let options = SegmentOptions { threshold, ..slab_options(options, fits_one_slab) };
    let mut bright = Vec::new();
    let mut stitcher = Stitcher::new();
    let mut start = 0;
    loop {
        let end = (start + slab).min(shape[0]);
        let mut values = smoothing.read(context, map, channel, start..end)?;
        let seeds = if settings.has_seeds() { Some(map.read(context, seed_channel, start..end)?) } else { None };
        let span = context.recorder.span(Stage::Objects, "segment").voxels(values.len());
        let (found, size) = (foreground.take(), [end - start, shape[1], shape[2]]);
        let (mut labels, _) = segment_with_foreground(&mut values, seeds.as_deref(), found, size, voxel_um, &options)?;
        drop(seeds);
        stitcher.renumber(&mut labels, if start == 0 { 0 } else { overlap * plane });
        // The first half of the overlap belongs to the previous slab.
        let skip = if start == 0 { 0 } else { overlap / 2 };
        bright.resize(stitcher.count() as usize + 1, fits_one_slab || min_peak <= 0.0);
        if !fits_one_slab && min_peak > 0.0 {
            mark_bright(&mut bright, &labels[skip * plane..], &values[skip * plane..], min_peak as f32);
        }
        drop((values, span));
        let span = context.recorder.span(Stage::Write, "label spool").bytes(labels.len() * 4);
        spool.write(start + skip, &labels[skip * plane..])?;
        drop(span);
        let repeated = if start == 0 { 0 } else { overlap };
        meter.add((end - start - repeated) as u64)?;
        context.recorder.mark_memory("objects");
        if end == shape[0] {
            break;
        }
        stitcher.keep_tail(&labels[(end - start - overlap) * plane..]);
        start = end - overlap;
    }
    let order: Vec<u32> = (1..=stitcher.count()).filter(|label| bright[*label as usize]).collect();
    let and_small = if settings.options.isolated.is_some() { ", and small objects," } else { "" };
    let note = (!fits_one_slab).then(|| {
        format!(
            "segmenting the whole stack takes too much memory, so it was segmented in slabs of {}: objects that slabs divide\
             {and_small} may differ from those of the whole stack",
            counted(slab, "slice")
        )
    });
    Ok(Labels { note, has_small: !fits_one_slab, ..Labels::new(spool, shape, stitcher.count(), &order) })
}

/// Marks the labels with a voxel whose value is at least `min_peak`.
fn mark_bright(bright: &mut [bool], labels: &[u32], values: &[f32], min_peak: f32) {
    for (label, _) in labels.iter().zip(values).filter(|(_, value)| **value >= min_peak) {
        if let Some(is_bright) = bright.get_mut(*label as usize) {
            *is_bright = true;
        }
    }
}

/// Returns Otsu's threshold of a whole volume, read in parts of `step` slices and smoothed.
fn otsu(
    context: &Context,
    map: &mut dyn MapSource,
    channel: usize,
    step: usize,
    smoothing: &Smoothing,
) -> Result<f64, JobError> {
    let depth = map.shape()[0];
    let mut each = |f: &mut dyn FnMut(&[f32])| -> Result<(), JobError> {
        for z in (0..depth).step_by(step) {
            context.check()?;
            let values = smoothing.read(context, map, channel, z..(z + step).min(depth))?;
            let _span = context.recorder.span(Stage::Objects, "threshold").voxels(values.len());
            f(&values);
        }
        Ok(())
    };
    let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
    each(&mut |values| {
        for v in values.iter().filter(|v| v.is_finite()) {
            (low, high) = (low.min(f64::from(*v)), high.max(f64::from(*v)));
        }
    })?;
    if low >= high {
        return Ok(if low.is_finite() { low } else { 0.0 });
    }
    let mut histogram = Histogram::new(low, high);
    each(&mut |values| histogram.add(values))?;
    Ok(histogram.otsu())
}

impl Labels {
    /// Labels up to `stored`, of which those in `order` are kept and numbered in this order.
    pub(super) fn new(spool: Spool<u32>, shape: [usize; 3], stored: u32, order: &[u32]) -> Self {
        let mut renumbering = vec![0; stored as usize + 1];
        for (number, label) in (1..).zip(order) {
            renumbering[*label as usize] = number;
        }
        Self { spool, shape, renumbering, count: order.len() as u32, has_small: false, note: None }
    }

    /// Reads one slice, with final label numbers.
    pub(crate) fn slice(&mut self, z: usize, values: &mut Vec<u32>) -> Result<(), JobError> {
        self.spool.read(z..z + 1, values)?;
        for v in values.iter_mut() {
            *v = self.renumbering.get(*v as usize).copied().unwrap_or(0);
        }
        Ok(())
    }

    /// Returns all slices, axes Z, Y, X, with final label numbers.
    pub(super) fn all_slices(&mut self, context: &Context) -> Result<Vec<u32>, JobError> {
        let mut all = Vec::with_capacity(self.shape.iter().product());
        let mut slice = Vec::new();
        for z in 0..self.shape[0] {
            context.check()?;
            self.slice(z, &mut slice)?;
            all.extend_from_slice(&slice);
        }
        Ok(all)
    }

    /// Drops objects below `min_voxels`, unless small ones were dropped before, and, if `drop_border`, those that touch the
    /// border of the stack, and numbers the remaining ones consecutively.
    pub(crate) fn filter_objects(
        &mut self,
        context: &Context,
        min_voxels: u64,
        drop_border: bool,
    ) -> Result<(), JobError> {
        // Even without a minimum, labels of slabs may have no voxels: those of parts that belong to the slab before.
        if !self.has_small && !drop_border {
            return Ok(());
        }
        let min_voxels = if self.has_small { min_voxels } else { 0 };
        let _span = context.recorder.span(Stage::Objects, "filter objects");
        let [depth, ny, nx] = self.shape;
        let mut voxels = vec![0u64; self.count as usize + 1];
        let mut border = vec![false; self.count as usize + 1];
        let mut slice = Vec::new();
        for z in 0..depth {
            context.check()?;
            self.slice(z, &mut slice)?;
            let end_slice = depth > 1 && (z == 0 || z + 1 == depth);
            for (y, row) in slice.chunks_exact(nx.max(1)).enumerate() {
                let end_row = end_slice || (ny > 1 && (y == 0 || y + 1 == ny));
                for (x, label) in row.iter().enumerate().filter(|(_, l)| **l > 0) {
                    let label = *label as usize;
                    voxels[label] += 1;
                    border[label] |= end_row || (nx > 1 && (x == 0 || x + 1 == nx));
                }
            }
        }
        let mut numbers = vec![0; voxels.len()];
        let mut next = 0;
        for label in 1..voxels.len() {
            if voxels[label] > 0 && voxels[label] >= min_voxels && !(drop_border && border[label]) {
                next += 1;
                numbers[label] = next;
            }
        }
        for label in &mut self.renumbering {
            *label = numbers[*label as usize];
        }
        (self.count, self.has_small) = (next, false);
        Ok(())
    }

    /// Passes each slice to `take`. Returns the measurements of the objects, if they are wanted.
    pub(crate) fn finish(
        mut self,
        context: &Context,
        measured: MeasuredStack<'_>,
        mut take: impl FnMut(&[u32]) -> Result<(), JobError>,
    ) -> Result<Vec<ObjectRow>, JobError> {
        let MeasuredStack { stack, channels, channel_names, voxel_um, measure } = measured;
        let [depth, ny, nx] = self.shape;
        let mut measurer = Measurer::new(voxel_um, [ny, nx], channel_names);
        let mut meter = context.meter(ProgressStage::Write, depth as u64, ProgressUnit::Slices);
        let step = if measure { stack.slab_slices() } else { 1 };
        let (mut slab, mut slice) = (Vec::new(), Vec::new());
        for z in (0..depth).step_by(step) {
            let slices = z..(z + step).min(depth);
            slab.clear();
            let reading = context.recorder.span(Stage::Read, "label spool");
            for z in slices.clone() {
                self.slice(z, &mut slice)?;
                slab.extend_from_slice(&slice);
            }
            reading.finish();
            if measure {
                measure_slices(context, &mut measurer, &slab, (stack, channels), slices)?;
            }
            for slice in slab.chunks((ny * nx).max(1)) {
                let _span = context.recorder.span(Stage::Write, "labels").bytes(slice.len() * 4);
                take(slice)?;
                meter.add(1)?;
            }
        }
        Ok(measurer.finish())
    }
}

/// The stack whose intensities are measured in objects.
pub(crate) struct MeasuredStack<'a> {
    /// The stack, on the grid of the labels.
    pub stack: &'a Stack,
    /// Numbers of the channels that are measured, from 0.
    pub channels: &'a [usize],
    /// Names of these channels, in the same order, for the columns of the table.
    pub channel_names: Vec<String>,
    /// Voxel size Z, Y, X in µm.
    pub voxel_um: [f64; 3],
    /// Whether objects are measured; otherwise nothing is read.
    pub measure: bool,
}

/// Returns how a prediction is segmented with the settings of its model, slice by slice in at most `streamed_bytes`.
pub(super) fn label_settings<'a>(resolved: &'a Resolved<'_>, streamed_bytes: u64) -> LabelSettings<'a> {
    let Resolved { model, segment, voxel_um, .. } = resolved;
    LabelSettings {
        channel: model.segment_channel,
        seed_channel: model.seed_channel,
        voxel_um: *voxel_um,
        options: segment,
        overlap_um: OVERLAP_UM * resolved.scale(),
        streamed_bytes,
    }
}

/// Segments a prediction with the settings of its model, unless it was segmented during the prediction, and drops small
/// objects and, if the settings say so, those at the border.
///
/// # Errors
/// [`JobError`] if the maps cannot be read, the labels cannot be stored, or the job is canceled.
pub(super) fn label_prediction(
    context: &Context,
    resolved: &Resolved<'_>,
    prediction: &mut Prediction,
    scratch: Scratch<'_>,
) -> Result<Labels, JobError> {
    let Resolved { segment, voxel_um, .. } = resolved;
    let mut labels = match prediction.take_labels(context) {
        Some(labels) => labels,
        None => {
            let (settings, foreground) =
                (label_settings(resolved, resolved.budget.for_labels_bytes()), prediction.take_foreground());
            label(context, prediction, &settings, scratch, foreground)?
        }
    };
    labels.filter_objects(context, segment.min_voxels(labels.shape[0], *voxel_um), segment.drop_border)?;
    Ok(labels)
}

#[cfg(test)]
#[path = "label_tests.rs"]
mod tests;

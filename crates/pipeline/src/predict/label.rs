//! Segmentation and measurement of a predicted volume of any number of slices in bounded memory.

use super::prediction::Prediction;
use super::resolve::Resolved;
use crate::spool::{Scratch, Spool};
use crate::stack::Stack;
use crate::{Context, JobError, ProgressStage, ProgressUnit};
use cytoscope_objects::measure::{Measurer, ObjectRow};
use cytoscope_objects::stitch::Stitcher;
use cytoscope_objects::threshold::Histogram;
use cytoscope_objects::{Foreground, Height, SegmentOptions, Threshold, segment_with_foreground};
use cytoscope_profile::Stage;
use std::ops::Range;

/// Maximum number of voxels segmented at once, except in slabs of [`MIN_SLAB_SLICES`]; larger stacks are divided into
/// overlapping slabs.
pub(crate) const SLAB_VOXELS: usize = 16 << 20;
/// Minimum number of slices of a slab, however large they are: objects are joined in the slices that slabs share.
const MIN_SLAB_SLICES: usize = 4;
/// Minimum volume of the part of an object that is in a slab, as a fraction of that of a whole object. It is above 0 because
/// each part of the noise that a map may have costs a watershed.
const MIN_PART: f64 = 0.125;
/// Overlap of slabs in µm for objects of the model's nominal size; larger than a nucleus.
pub(crate) const OVERLAP_UM: f64 = 16.0;

/// Returns the peak memory in bytes of segmenting a volume.
pub(crate) fn peak_bytes(shape: [usize; 3]) -> u64 {
    let least = MIN_SLAB_SLICES.saturating_mul(shape[1] * shape[2]);
    let voxels = (shape.iter().product::<usize>()).min(SLAB_VOXELS.max(least)) as u64;
    // Map, seed map, labels, mask, and the boxes in progress.
    voxels * (4 + 4 + 4 + 1) + (64 << 20)
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
}

/// Segments a map, slab by slab, with its labels stored in `scratch`. `foreground` is the foreground of the map, if it
/// was found while the map was made.
pub(crate) fn label(
    context: &Context,
    map: &mut dyn MapSource,
    settings: &LabelSettings<'_>,
    scratch: Scratch<'_>,
    foreground: Option<Foreground>,
) -> Result<Labels, JobError> {
    let slab = slab_slices(map.shape());
    label_in_slabs(context, map, settings, scratch, foreground, slab)
}

/// As [`label`], in slabs of `slab` slices.
fn label_in_slabs(
    context: &Context,
    map: &mut dyn MapSource,
    settings: &LabelSettings<'_>,
    scratch: Scratch<'_>,
    foreground: Option<Foreground>,
    slab: usize,
) -> Result<Labels, JobError> {
    let LabelSettings { channel, seed_channel, voxel_um, options, overlap_um } = *settings;
    let shape = map.shape();
    let plane = shape[1] * shape[2];
    let mut spool = Spool::new(scratch, plane)?;
    let whole = shape[0] <= slab;
    let mut foreground = foreground.filter(|_| whole);
    let overlap = if whole { 0 } else { overlap_slices(slab, overlap_um / voxel_um[0]) };
    let mut meter = context.meter(ProgressStage::Objects, shape[0] as u64, ProgressUnit::Slices);
    // Otsu's threshold is computed from the whole volume, not from single slabs.
    let threshold = match options.threshold {
        Threshold::Otsu if !whole => Threshold::Fixed(otsu(context, map, channel, slab, voxel_um, options.smooth_um)?),
        other => other,
    };
    // Small objects are dropped when all slabs are joined.
    let min_volume_um3 = options.min_volume_um3 * if whole { 1.0 } else { MIN_PART };
    let options = SegmentOptions { threshold, min_volume_um3, drop_border: false, ..options.clone() };
    let mut stitcher = Stitcher::new();
    let mut start = 0;
    loop {
        let end = (start + slab).min(shape[0]);
        let mut values = map.read(context, channel, start..end)?;
        let of_seeds = matches!(options.height, Some(Height::Seeds | Height::DistancePlusSeeds { .. }));
        let wants_seeds = of_seeds && seed_channel != channel;
        let seeds = if wants_seeds { Some(map.read(context, seed_channel, start..end)?) } else { None };
        let span = context.recorder.span(Stage::Objects, "segment").voxels(values.len());
        let (found, size) = (foreground.take(), [end - start, shape[1], shape[2]]);
        let (mut labels, _) = segment_with_foreground(&mut values, seeds.as_deref(), found, size, voxel_um, &options)?;
        drop((values, seeds));
        stitcher.renumber(&mut labels, if start == 0 { 0 } else { overlap * plane });
        drop(span);
        // The first half of the overlap belongs to the previous slab.
        let skip = if start == 0 { 0 } else { overlap / 2 };
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
    Ok(Labels { spool, shape, renumbering: (0..=stitcher.count()).collect(), count: stitcher.count() })
}

/// Returns Otsu's threshold of a whole volume, read in slabs and smoothed like them (except for a few slices where
/// slabs meet).
fn otsu(
    context: &Context,
    map: &mut dyn MapSource,
    channel: usize,
    slab: usize,
    voxel_um: [f64; 3],
    smooth_um: f64,
) -> Result<f64, JobError> {
    let [depth, ny, nx] = map.shape();
    let mut each = |f: &mut dyn FnMut(&[f32])| -> Result<(), JobError> {
        for z in (0..depth).step_by(slab) {
            context.check()?;
            let end = (z + slab).min(depth);
            let mut values = map.read(context, channel, z..end)?;
            if smooth_um > 0.0 {
                cytoscope_objects::smooth::gaussian(&mut values, [end - z, ny, nx], voxel_um.map(|v| smooth_um / v))?;
            }
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

    /// Drops objects below `min_voxels` and, if `drop_border`, those that touch the border of the stack, and numbers
    /// the remaining ones consecutively.
    pub(crate) fn filter_objects(
        &mut self,
        context: &Context,
        min_voxels: u64,
        drop_border: bool,
    ) -> Result<(), JobError> {
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
        let mut next = 0;
        for label in 1..voxels.len() {
            let keep = voxels[label] > 0 && voxels[label] >= min_voxels && !(drop_border && border[label]);
            self.renumbering[label] = if keep {
                next += 1;
                next
            } else {
                0
            };
        }
        self.count = next;
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
        let mut slice = Vec::new();
        let mut meter = context.meter(ProgressStage::Write, depth as u64, ProgressUnit::Slices);
        let step = stack.slab_slices();
        let mut intensities: Vec<Vec<f32>> = Vec::new();
        for z in 0..depth {
            self.slice(z, &mut slice)?;
            if measure {
                if z % step == 0 {
                    intensities = channels
                        .iter()
                        .map(|c| Ok(stack.read(context, *c, z..(z + step).min(depth))?.to_f32()))
                        .collect::<Result<_, JobError>>()?;
                }
                let _span = context.recorder.span(Stage::Objects, "measure").voxels(slice.len());
                let at = (z % step) * ny * nx;
                let planes = intensities.iter().map(|l| l.get(at..at + ny * nx)).collect::<Option<Vec<&[f32]>>>();
                let planes = planes.ok_or_else(|| JobError::Internal(format!("measure: slice {z} is incomplete")))?;
                measurer.add_slice(&slice, &planes);
            }
            let _span = context.recorder.span(Stage::Write, "labels").bytes(slice.len() * 4);
            take(&slice)?;
            meter.add(1)?;
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

/// Segments a prediction with the settings of its model, and drops small objects and, if the settings say so, those at
/// the border.
///
/// # Errors
/// [`JobError`] if the maps cannot be read, the labels cannot be stored, or the job is cancelled.
pub(super) fn label_prediction(
    context: &Context,
    resolved: &Resolved<'_>,
    prediction: &mut Prediction,
    scratch: Scratch<'_>,
) -> Result<Labels, JobError> {
    let Resolved { model, segment, voxel_um, .. } = resolved;
    let settings = LabelSettings {
        channel: model.segment_channel,
        seed_channel: model.seed_channel,
        voxel_um: *voxel_um,
        options: segment,
        overlap_um: OVERLAP_UM * resolved.scale(),
    };
    let foreground = prediction.take_foreground();
    let mut labels = label(context, prediction, &settings, scratch, foreground)?;
    let min_voxels = (segment.min_volume_um3 / voxel_um.iter().product::<f64>()).ceil().max(0.0) as u64;
    labels.filter_objects(context, min_voxels, segment.drop_border)?;
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A map in memory.
    struct Map {
        shape: [usize; 3],
        values: Vec<f32>,
    }

    impl MapSource for Map {
        fn shape(&self) -> [usize; 3] {
            self.shape
        }

        fn read(&mut self, _context: &Context, _channel: usize, z: Range<usize>) -> Result<Vec<f32>, JobError> {
            let plane = self.shape[1] * self.shape[2];
            Ok(self.values[z.start * plane..z.end * plane].to_vec())
        }
    }

    #[test]
    fn an_object_is_whole_although_its_parts_in_slabs_are_small() {
        // A box of 4 × 3 × 3 voxels, which slabs of 4 slices divide.
        let (context, shape) = (Context::default(), [8, 5, 5]);
        let inside =
            |i: usize| (2..6).contains(&(i / 25)) && (1..4).contains(&(i / 5 % 5)) && (1..4).contains(&(i % 5));
        let mut map = Map { shape, values: (0..200).map(|i| if inside(i) { 1.0 } else { 0.0 }).collect() };
        let options = SegmentOptions {
            threshold: Threshold::Fixed(0.5),
            fill_holes: false,
            height: None,
            min_volume_um3: 30.0,
            ..SegmentOptions::default()
        };
        let settings =
            LabelSettings { channel: 0, seed_channel: 0, voxel_um: [1.0; 3], options: &options, overlap_um: 2.0 };
        for slab in [4, 8] {
            let mut labels = label_in_slabs(&context, &mut map, &settings, Scratch::Memory, None, slab).unwrap();
            labels.filter_objects(&context, 30, false).unwrap();
            let expected: Vec<u32> = (0..200).map(|i| u32::from(inside(i))).collect();
            assert_eq!(labels.all_slices(&context).unwrap(), expected, "slabs of {slab} slices");
        }
    }

    #[test]
    fn slabs_overlap_however_large_a_slice_is() {
        for edge in [16, 2048, 2897, 4096, 20_000] {
            let shape = [100, edge, edge];
            let slab = slab_slices(shape);
            assert!(slab >= MIN_SLAB_SLICES);
            for wanted in [0.1, 2.5, 1e9] {
                let overlap = overlap_slices(slab, wanted);
                assert!((1..slab).contains(&overlap), "{overlap} of {slab} slices of {edge}² voxels");
            }
            // Map, seeds and labels of a slab.
            let held = (slab.min(shape[0]) * edge * edge * 3 * 4) as u64;
            assert!(peak_bytes(shape) >= held, "{edge}² voxels");
        }
    }
}

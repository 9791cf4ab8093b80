//! Segmentation of a map slice by slice, as its slices become available.

use super::label::{LabelSettings, Labels, MapSource, Smoothing};
use crate::spool::{Scratch, Spool};
use crate::{Context, JobError};
use cytoscope_objects::{SegmentOptions, StreamedSegmentation};
use cytoscope_profile::Stage;
use std::ops::Range;

/// A segmentation whose map is read slice by slice, with the same result as if it were segmented at once. Its labels are stored
/// in a spool.
pub(super) struct SliceLabeler {
    segmentation: StreamedSegmentation,
    channel: usize,
    seed_channel: usize,
    smoothing: Smoothing,
    shape: [usize; 3],
    /// Number of slices that are read at once.
    step: usize,
    /// Maximum memory in bytes, without the slices that are read at once.
    limit_bytes: u64,
    spool: Spool<u32>,
    /// The next slice of labels.
    labels: Vec<u32>,
    /// Number of slices of labels in the spool.
    written: usize,
    first: FirstSeen,
}

impl SliceLabeler {
    /// Starts without slices, which will be read `step` at a time, in at most `limit_bytes` of memory. `None` if the slices that
    /// are read at once take more than that.
    ///
    /// # Errors
    /// [`JobError`] if the spool cannot be created, or an option is out of range; the threshold must be a number.
    pub(super) fn new(
        shape: [usize; 3],
        settings: &LabelSettings<'_>,
        step: usize,
        limit_bytes: u64,
        scratch: Scratch<'_>,
    ) -> Result<Option<Self>, JobError> {
        let LabelSettings { channel, seed_channel, voxel_um, options, .. } = *settings;
        let (depth, plane) = (shape[0], shape[1] * shape[2]);
        let smoothing = Smoothing::new(options.smooth_um, voxel_um);
        // The slices that are read at once, twice: smoothing copies them, or there are seeds; and one of labels.
        let read_slices = smoothing.reach.saturating_mul(2).saturating_add(step).min(depth);
        let held_values = read_slices.saturating_mul(2).saturating_add(1).saturating_mul(plane);
        let read_bytes = (held_values as u64).saturating_mul(4);
        let limit_bytes = limit_bytes.saturating_sub(read_bytes);
        if limit_bytes == 0 {
            return Ok(None);
        }
        let options = SegmentOptions { smooth_um: 0.0, ..options.clone() };
        let segmentation = StreamedSegmentation::new(shape, settings.has_seeds(), voxel_um, &options)?;
        Ok(Some(Self {
            segmentation,
            channel,
            seed_channel,
            smoothing,
            shape,
            step: step.max(1),
            limit_bytes,
            spool: Spool::new(scratch, plane)?,
            labels: vec![0; plane],
            written: 0,
            first: FirstSeen::default(),
        }))
    }

    /// Returns the number of slices whose foreground was found.
    pub(super) fn foreground_slices(&self) -> usize {
        self.segmentation.foreground_slices()
    }

    /// Returns whether all labels are in the spool.
    pub(super) fn is_complete(&self) -> bool {
        self.written == self.shape[0]
    }

    /// Segments as much as the first `available` slices of the map allow. Each slice is read twice, and `progress` gets
    /// the number of slices each time. Returns whether the memory suffices; if not, the segmentation must be given up.
    ///
    /// # Errors
    /// [`JobError`] if a slice cannot be read or stored, there are too many objects, or `progress` fails.
    pub(super) fn advance(
        &mut self,
        context: &Context,
        map: &mut dyn MapSource,
        available: usize,
        progress: &mut dyn FnMut(u64) -> Result<(), JobError>,
    ) -> Result<bool, JobError> {
        loop {
            let start = self.segmentation.foreground_slices();
            let slices = start..(start + self.step).min(available);
            if slices.is_empty() {
                return Ok(true);
            }
            self.find_foreground(context, map, slices.clone())?;
            progress(slices.len() as u64)?;
            while self.segmentation.added() < self.segmentation.ready() {
                let start = self.segmentation.added();
                let slices = start..(start + self.step).min(self.segmentation.ready());
                if self.segmentation.needed_bytes() > self.limit_bytes {
                    return Ok(false);
                }
                self.segment(context, map, slices.clone())?;
                progress(slices.len() as u64)?;
            }
            if self.segmentation.needed_bytes() > self.limit_bytes {
                return Ok(false);
            }
        }
    }

    fn find_foreground(
        &mut self,
        context: &Context,
        map: &mut dyn MapSource,
        slices: Range<usize>,
    ) -> Result<(), JobError> {
        let values = self.smoothing.read(context, map, self.channel, slices)?;
        let _span = context.recorder.span(Stage::Objects, "foreground").voxels(values.len());
        for slice in values.chunks_exact(self.labels.len().max(1)) {
            self.segmentation.add_foreground(slice)?;
        }
        Ok(())
    }

    /// Segments slices that are ready, and stores the labels that are complete.
    fn segment(&mut self, context: &Context, map: &mut dyn MapSource, slices: Range<usize>) -> Result<(), JobError> {
        let (needs, plane) = (self.segmentation.needs(), self.labels.len());
        let values =
            if needs.map { self.smoothing.read(context, map, self.channel, slices.clone())? } else { Vec::new() };
        let seeds = if needs.seeds { map.read(context, self.seed_channel, slices.clone())? } else { Vec::new() };
        for at in (0..slices.len()).map(|index| index * plane) {
            // A map that is not needed is empty.
            let [values, seeds] = [&values, &seeds].map(|all| all.get(at..at + plane).unwrap_or_default());
            let span = context.recorder.span(Stage::Objects, "segment").voxels(plane);
            self.segmentation.add_slice(values, seeds)?;
            drop(span);
            while self.segmentation.take_slice(&mut self.labels) {
                let _span = context.recorder.span(Stage::Write, "label spool").bytes(plane * 4);
                self.spool.write(self.written, &self.labels)?;
                self.first.add(&self.labels);
                self.written += 1;
            }
        }
        Ok(())
    }

    /// Returns the labels, once they are complete.
    pub(super) fn finish(self, context: &Context) -> Labels {
        let _span = context.recorder.span(Stage::Objects, "renumber");
        let (stored, kept) = self.segmentation.finish();
        Labels::new(self.spool, self.shape, stored, &self.first.of(&kept))
    }
}

/// The order in which labels appear in slices, by which a stack that is segmented at once is numbered, too (see
/// [`Stitcher::renumber`](cytoscope_objects::stitch::Stitcher::renumber)).
#[derive(Default)]
struct FirstSeen {
    is_seen: Vec<bool>,
    order: Vec<u32>,
}

impl FirstSeen {
    /// Adds the labels of the next slice.
    fn add(&mut self, labels: &[u32]) {
        for run in labels.chunk_by(|a, b| a == b) {
            let Some(label) = run.first().copied().filter(|label| *label > 0) else { continue };
            if self.is_seen.len() <= label as usize {
                self.is_seen.resize(label as usize + 1, false);
            }
            if !std::mem::replace(&mut self.is_seen[label as usize], true) {
                self.order.push(label);
            }
        }
    }

    /// Returns those of the labels that were seen, in the order in which they appeared.
    fn of(self, labels: &[u32]) -> Vec<u32> {
        let mut is_wanted = vec![false; self.is_seen.len()];
        for label in labels {
            if let Some(slot) = is_wanted.get_mut(*label as usize) {
                *slot = true;
            }
        }
        self.order.into_iter().filter(|label| is_wanted[*label as usize]).collect()
    }
}

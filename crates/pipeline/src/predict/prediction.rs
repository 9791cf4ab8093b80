//! The network's output, stored in a spool on the model's grid and read on the input's grid.

use super::label::{self, LabelSettings, Labels, MapSource};
use super::label_slices::SliceLabeler;
use crate::ops::Volume;
use crate::slice_statistics::Chains;
use crate::spool::{Scratch, Spool};
use crate::{Context, JobError};
use cytoscope_objects::Foreground;
use cytoscope_profile::Stage;
use cytoscope_volume::Samples;
use cytoscope_volume::resample::{AxisMap, linear};
use std::ops::Range;

/// A predicted volume.
pub(crate) struct Prediction {
    spool: Spool<f32>,
    /// Number of channels of the predicted output tensor.
    pub channels: usize,
    /// Shape Z, Y, X on the model's grid.
    pub model_shape: [usize; 3],
    /// Shape Z, Y, X on the input's grid.
    pub shape: [usize; 3],
    /// Maps back to the input's grid; `None` if both grids are equal.
    back: Option<[AxisMap; 3]>,
    /// Postprocessing of the channels, applied to slices on the model's grid.
    pub chains: Chains,
    buffer: Vec<f32>,
    /// Number of complete slices on the model's grid, from the first on.
    complete: usize,
    /// What was found of the objects in the slices that could be read so far.
    found: Option<FoundObjects>,
}

/// What is found of objects while slices are stored.
enum FoundObjects {
    /// The foreground of a channel of a stack that is segmented at once.
    Foreground(usize, Foreground),
    /// The labels of a larger stack.
    Labels(Box<SliceLabeler>),
}

/// Maximum runs of foreground voxels that are held while the network runs; see [`FOREGROUND_BYTES`].
const MAX_RUNS: usize = 1 << 19;
/// Bytes of that many runs, 12 for each, and of where rows start.
pub(super) const FOREGROUND_BYTES: u64 = 7 << 20;

/// Voxels of the model's grid that are held at once while slices of the input's grid are computed from them, unless these
/// have more voxels, or a single one is computed from more.
const READ_VOXELS: usize = 4 << 20;

/// Returns the bytes of the slices of the model's grid that one slice of the input's grid is computed from, as far as they
/// exceed those of [`READ_VOXELS`]. Slices that are far apart are computed from many.
pub(super) fn extra_source_bytes(model_shape: [usize; 3], shape: [usize; 3]) -> u64 {
    let [depth, height, width] = model_shape;
    let map_z = AxisMap::new(depth, shape[0]);
    let slices = (0..shape[0]).map(|z| map_z.sources(z..z + 1).len()).max().unwrap_or(0);
    let voxels = if model_shape == shape { 0 } else { slices.saturating_mul(height * width) };
    (voxels.saturating_sub(READ_VOXELS) as u64).saturating_mul(4)
}

/// Number of voxels that are segmented at once while slices are stored, unless a single slice has more.
const STEP_VOXELS: usize = 1 << 20;

impl Prediction {
    pub(crate) fn new(spool: Spool<f32>, channels: usize, model_shape: [usize; 3], shape: [usize; 3]) -> Self {
        let back = super::grid::maps(model_shape, shape);
        let chains = Chains::Stack(vec![Vec::new(); channels]);
        Self { spool, channels, model_shape, shape, back, chains, buffer: Vec::new(), complete: 0, found: None }
    }

    /// Stores finished rows and columns `[C][z][rows][columns]` of slices of the model's grid. Slices are complete once the
    /// last columns of their last rows are stored; they are completed in order.
    pub(crate) fn put(
        &mut self,
        context: &Context,
        z: Range<usize>,
        [rows, columns]: [Range<usize>; 2],
        values: &[f32],
    ) -> Result<(), JobError> {
        let [_, height, width] = self.model_shape;
        let part = rows.len() * columns.len();
        let _span = context.recorder.span(Stage::Write, "spool").bytes(values.len() * 4);
        for (i, slice) in z.clone().enumerate() {
            for c in 0..self.channels {
                let from = (c * z.len() + i) * part;
                let (at, values) = (slice * self.channels + c, &values[from..from + part]);
                if columns.len() == width {
                    self.spool.write_from(at, rows.start * width, values)?;
                    continue;
                }
                for (y, row) in rows.clone().zip(values.chunks_exact(columns.len().max(1))) {
                    self.spool.write_from(at, y * width + columns.start, row)?;
                }
            }
        }
        if rows.end == height && columns.end == width && z.start == self.complete {
            self.complete = z.end;
        }
        Ok(())
    }

    /// Continues a prediction whose first `finished` slices are in the spool.
    pub(crate) fn continue_after(&mut self, finished: usize) {
        self.complete = finished;
    }

    /// Returns the number of complete slices on the model's grid, from the first on.
    pub(crate) fn complete(&self) -> usize {
        self.complete
    }

    /// Returns whether all slices from which slice `z` of the input's grid is computed are stored.
    pub(crate) fn is_ready(&self, z: usize) -> bool {
        let needed = self.back.as_ref().map_or(z + 1, |maps| maps[0].sources(z..z + 1).end);
        z < self.shape[0] && needed <= self.complete
    }

    /// Finds objects while slices are stored, or their foreground if the stack is segmented at once, in at most
    /// `settings.streamed_bytes` of memory. Nothing is found if the whole map is needed first: for Otsu's threshold, or to
    /// smooth the map.
    ///
    /// # Errors
    /// [`JobError`] if the labels cannot be stored, or an option is out of range.
    pub(super) fn find_objects(&mut self, settings: &LabelSettings<'_>, scratch: Scratch<'_>) -> Result<(), JobError> {
        let Some(foreground) = Foreground::new(self.shape, settings.options) else { return Ok(()) };
        if label::is_segmented_at_once(self.shape) {
            self.found = Some(FoundObjects::Foreground(settings.channel, foreground));
            return Ok(());
        }
        self.find_labels(settings, scratch)
    }

    /// Like [`Prediction::find_objects`], for a stack that is segmented slice by slice.
    pub(super) fn find_labels(&mut self, settings: &LabelSettings<'_>, scratch: Scratch<'_>) -> Result<(), JobError> {
        let step = (STEP_VOXELS / (self.shape[1] * self.shape[2]).max(1)).max(1);
        let labeler = SliceLabeler::new(self.shape, settings, step, settings.streamed_bytes, scratch)?;
        self.found = labeler.map(|labeler| FoundObjects::Labels(Box::new(labeler)));
        Ok(())
    }

    /// Finds the objects for which enough slices are stored; gives up if this takes too much memory.
    ///
    /// # Errors
    /// [`JobError`] if a slice cannot be read, labels cannot be stored, or the job is canceled.
    pub(super) fn advance_objects(&mut self, context: &Context) -> Result<(), JobError> {
        let Some(mut found) = self.found.take() else { return Ok(()) };
        let fits = match &mut found {
            FoundObjects::Foreground(channel, foreground) => self.advance_foreground(context, *channel, foreground)?,
            FoundObjects::Labels(labeler) => {
                let first = labeler.foreground_slices();
                let ready = (first..).take_while(|z| self.is_ready(*z)).count();
                labeler.advance(context, self, first + ready, &mut |_| context.check())?
            }
        };
        if fits {
            self.found = Some(found);
        } else {
            tracing::debug!("objects take too much memory during the pass: they are found after it");
        }
        Ok(())
    }

    /// Adds the slices that can already be read to the foreground; returns `false` if it has too many parts.
    fn advance_foreground(
        &mut self,
        context: &Context,
        channel: usize,
        foreground: &mut Foreground,
    ) -> Result<bool, JobError> {
        while self.is_ready(foreground.slices()) && foreground.runs() <= MAX_RUNS {
            let z = foreground.slices();
            let values = self.read(context, channel, z..z + 1)?;
            let _span = context.recorder.span(Stage::Objects, "foreground").voxels(values.len());
            foreground.add_slice(&values)?;
            context.check()?;
        }
        Ok(foreground.runs() <= MAX_RUNS)
    }

    /// Returns the foreground of a stack that is segmented at once, if it was found while slices were stored.
    pub(super) fn take_foreground(&mut self) -> Option<Foreground> {
        match self.found.take() {
            Some(FoundObjects::Foreground(_, foreground)) => Some(foreground),
            other => {
                self.found = other;
                None
            }
        }
    }

    /// Returns the labels, if they were found while slices were stored.
    pub(super) fn take_labels(&mut self, context: &Context) -> Option<Labels> {
        match self.found.take() {
            Some(FoundObjects::Labels(labeler)) if labeler.is_complete() => Some(labeler.finish(context)),
            other => {
                self.found = other;
                None
            }
        }
    }

    /// Reads all channels of a slice of the model's grid, before postprocessing.
    pub(crate) fn unprocessed_slice(&mut self, z: usize) -> Result<Vec<Samples>, JobError> {
        let mut channels = Vec::with_capacity(self.channels);
        for channel in 0..self.channels {
            let at = z * self.channels + channel;
            self.spool.read(at..at + 1, &mut self.buffer)?;
            channels.push(Samples::F32(self.buffer.clone()));
        }
        Ok(channels)
    }

    /// Reads slices `z` of one channel on the input's grid, postprocessed.
    pub(crate) fn read(&mut self, context: &Context, channel: usize, z: Range<usize>) -> Result<Vec<f32>, JobError> {
        let voxels = z.len().saturating_mul(self.shape[1] * self.shape[2]);
        self.read_in_parts(context, channel, z, voxels.max(READ_VOXELS))
    }

    /// Like [`Prediction::read`], with at most `max_voxels` of the model's grid in memory, or those of one slice.
    fn read_in_parts(
        &mut self,
        context: &Context,
        channel: usize,
        z: Range<usize>,
        max_voxels: usize,
    ) -> Result<Vec<f32>, JobError> {
        let mut all = Vec::new();
        let mut start = z.start;
        while start < z.end {
            let end = self.part_end(start..z.end, max_voxels);
            let part = self.read_at_once(context, channel, start..end)?;
            if all.is_empty() && end == z.end {
                // A single part is passed on without a copy.
                return Ok(part);
            }
            all.reserve_exact((z.end - start) * self.shape[1] * self.shape[2]);
            all.extend(part);
            start = end;
        }
        Ok(all)
    }

    /// Returns the end of the slices from the first of `z` on that are computed from at most `max_voxels` of the model's grid, at
    /// least one slice.
    fn part_end(&self, z: Range<usize>, max_voxels: usize) -> usize {
        let Some([map_z, ..]) = &self.back else { return z.end };
        let plane = self.model_shape[1] * self.model_shape[2];
        let fits = |end: &usize| map_z.sources(z.start..*end).len().saturating_mul(plane) <= max_voxels;
        (z.start + 2..=z.end).take_while(fits).last().unwrap_or(z.start + 1)
    }

    /// Like [`Prediction::read`], with all slices of the model's grid that are needed in memory.
    fn read_at_once(&mut self, context: &Context, channel: usize, z: Range<usize>) -> Result<Vec<f32>, JobError> {
        let sources = self.back.as_ref().map_or(z.clone(), |maps| maps[0].sources(z.clone()));
        let plane = self.model_shape[1] * self.model_shape[2];
        let mut slab = Vec::with_capacity(sources.len() * plane);
        let span = context.recorder.span(Stage::Read, "spool").bytes(sources.len() * plane * 4);
        for s in sources.clone() {
            let at = s * self.channels + channel;
            self.spool.read(at..at + 1, &mut self.buffer)?;
            slab.extend_from_slice(&self.buffer);
        }
        drop(span);
        self.chains.apply(channel, sources.start, plane, &mut slab);
        match &self.back {
            None => Ok(slab),
            Some(maps) => {
                let _span =
                    context.recorder.span(Stage::Resample, "to input").voxels(z.len() * self.shape[1] * self.shape[2]);
                Ok(linear(&slab, sources.start, [self.model_shape[1], self.model_shape[2]], maps, z))
            }
        }
    }
}

impl MapSource for Prediction {
    fn shape(&self) -> [usize; 3] {
        self.shape
    }

    fn read(&mut self, context: &Context, channel: usize, z: Range<usize>) -> Result<Vec<f32>, JobError> {
        Prediction::read(self, context, channel, z)
    }
}

/// A prediction before postprocessing, for statistics.
pub(crate) struct Unprocessed<'a>(pub &'a mut Prediction);

impl Volume for Unprocessed<'_> {
    type Error = JobError;

    fn channels(&self) -> usize {
        self.0.channels
    }

    fn each(&mut self, channel: usize, f: &mut dyn FnMut(Samples)) -> Result<(), JobError> {
        let p = &mut *self.0;
        for slice in 0..p.model_shape[0] {
            let at = slice * p.channels + channel;
            p.spool.read(at..at + 1, &mut p.buffer)?;
            f(Samples::F32(p.buffer.clone()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn slices_are_ready_once_all_slices_that_they_are_resampled_from_are_complete() {
        let context = Context::default();
        for (grid, own) in [([5, 4, 3], [5, 4, 3]), ([5, 4, 3], [12, 6, 3]), ([9, 4, 3], [4, 4, 2])] {
            let width = grid[2];
            let spool = Spool::new(Scratch::Memory, grid[1] * width).unwrap();
            let mut prediction = Prediction::new(spool, 1, grid, own);
            let mut early = Vec::new();
            for z in 0..grid[0] {
                let slice: Vec<f32> = (0..grid[1] * width).map(|v| ((z * 31 + v * 7) % 13) as f32).collect();
                let (first, last) = slice.split_at(3 * width);
                prediction.put(&context, z..z + 1, [0..3, 0..width], first).unwrap();
                assert!(!prediction.is_ready(early.len()), "slice {z} has rows left");
                for columns in [0..1, 1..width] {
                    assert!(!prediction.is_ready(early.len()), "slice {z} has columns left");
                    let part: Vec<f32> = last.chunks(width).flat_map(|row| row[columns.clone()].to_vec()).collect();
                    prediction.put(&context, z..z + 1, [3..grid[1], columns], &part).unwrap();
                }
                while prediction.is_ready(early.len()) {
                    early.push(prediction.read(&context, 0, early.len()..early.len() + 1).unwrap());
                }
            }
            assert_eq!(early.len(), own[0]);
            for (z, early) in early.iter().enumerate() {
                assert_eq!(prediction.read(&context, 0, z..z + 1).unwrap(), *early, "slice {z}");
            }
            let whole = early.concat();
            for max_voxels in [0, 3 * grid[1] * width, usize::MAX] {
                let parts = prediction.read_in_parts(&context, 0, 0..own[0], max_voxels).unwrap();
                assert_eq!(parts, whole, "{max_voxels} voxels");
            }
        }
    }

    #[test]
    fn slices_that_are_far_apart_are_read_in_parts_of_which_the_plan_knows_the_memory() {
        let (grid, own) = ([7765, 100, 100], [24, 90, 90]);
        let prediction = Prediction::new(Spool::new(Scratch::Memory, 10_000).unwrap(), 1, grid, own);
        let parts: Vec<usize> = (0..24).map(|z| prediction.part_end(z..24, READ_VOXELS) - z).collect();
        assert!(parts.iter().all(|slices| *slices == 1), "{parts:?}");
        let one_slice = extra_source_bytes(grid, own) + 4 * READ_VOXELS as u64;
        assert!((16 << 20..60 << 20).contains(&one_slice), "{one_slice}");
        // Grids that are alike need no more than a part.
        assert_eq!((extra_source_bytes(own, own), extra_source_bytes([30, 100, 100], own)), (0, 0));
        let alike = Prediction::new(Spool::new(Scratch::Memory, 10_000).unwrap(), 1, [30, 100, 100], own);
        assert_eq!(alike.part_end(0..24, READ_VOXELS), 24);
    }
}

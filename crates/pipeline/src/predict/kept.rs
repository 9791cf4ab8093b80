//! The finished slices of a prediction, kept beside the results, so that a run with `--resume` continues an interrupted one.

use super::plan::{PlannedTiles, TilePlan};
use super::resolve::Resolved;
use super::{Output, PredictJob};
use crate::spool::Spool;
use crate::{JobError, provenance};
use cytoscope_storage::growing::GrowingFile;
use cytoscope_storage::lock::ResultsLock;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Time after which the finished slices are recorded again, in case the process is killed. A cancelled job records them at
/// its end.
const INTERVAL: Duration = Duration::from_secs(20);

/// Voxels on the model's grid, of all time points, from which on a prediction takes so long that its finished slices are kept.
const LARGE_VOXELS: usize = 64 << 20;

/// Whether a prediction keeps its finished slices beside the results until it is done, so that a job that resumes can
/// continue it after an interruption.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum KeepSlices {
    /// If the prediction is large: at least 64 million voxels on the model's grid. Those of several time points are kept
    /// only if maps are written, which take as much space.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Only if the job resumes.
    Never,
}

impl KeepSlices {
    /// Whether the size of the prediction decides.
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

impl FromStr for KeepSlices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "always" => Ok(Self::Always),
            "never" => Ok(Self::Never),
            _ => Err(format!("invalid choice \"{text}\": expected auto, always or never")),
        }
    }
}

/// Whether slices are kept by default. The file holds those of all time points, which is as large as the maps.
fn is_large(grid: [usize; 3], times: usize, has_maps: bool) -> bool {
    let voxels = grid.iter().fold(times, |product, extent| product.saturating_mul(*extent));
    voxels >= LARGE_VOXELS && (times == 1 || has_maps)
}

/// What separates the fingerprint of a job from that of its tiles.
const TILES: &str = ", tiles ";

/// Finished slices of all time points, one after the other, as the network returned them, in a file that outlives the
/// process.
pub(super) struct KeptSlices {
    growing: GrowingFile,
    /// The handle that spools write with.
    file: File,
    folder: PathBuf,
    /// Slices of a time point on the model's grid.
    depth: usize,
    /// Number of time points.
    times: usize,
    /// Number of output channels of a slice.
    channels: usize,
    /// Index of the time point that is predicted.
    index: usize,
    /// Voxels of a slice on the model's grid.
    slice_len: usize,
    /// Bytes of a slice with all channels.
    slice_bytes: u64,
    /// Slices of all time points that an earlier run has finished.
    finished: usize,
    /// Whether the job resumes.
    resumes: bool,
    /// A note about slices of an earlier run that are not continued.
    discarded: Option<String>,
    recorded: Instant,
}

/// What determines whether slices are kept, and which are continued.
pub(super) struct KeptRequest<'a, 'b> {
    pub job: &'a PredictJob,
    pub resolved: &'a Resolved<'b>,
    /// Fingerprint of the job and its input.
    pub fingerprint: &'a str,
    /// Name of the results without their endings.
    pub stem: &'a str,
}

impl KeptRequest<'_, '_> {
    /// Whether the finished slices are kept until the job is done.
    fn keeps(&self) -> bool {
        let Self { job, resolved, .. } = self;
        let by_choice = match job.keep_slices {
            KeepSlices::Auto => is_large(resolved.grid, resolved.times.len(), resolved.wants(Output::Maps)),
            KeepSlices::Always => true,
            KeepSlices::Never => false,
        };
        job.resume || by_choice
    }

    /// Whether the stack may pass through the network once.
    fn may_pass(&self) -> bool {
        let (model, tiles) = (self.resolved.model, &self.resolved.tiles);
        tiles.tile.is_none() && tiles.blend.is_none() && model.reach.is_some()
    }

    fn of_pass(&self) -> String {
        let (grid, precision) = (self.resolved.grid, self.resolved.precision());
        // Another version may compute other values.
        format!("{}, {}, {precision}, {grid:?}", provenance::program(), self.fingerprint)
    }

    /// Returns the fingerprint of a job in these tiles on this device: others may differ by rounding.
    fn of_tiles(&self, plan: &TilePlan) -> String {
        let TilePlan { tile, blend, overlap, batch, .. } = plan;
        let device = self.resolved.engine.choice.id;
        format!("{}{TILES}{device}, {tile:?}, {blend:?}, {overlap}, {batch}", self.of_pass())
    }

    /// Returns a note if an interrupted run has kept slices of this job that the plan cannot continue.
    fn note_discarded(&self, fingerprint: &str) -> Option<String> {
        let recorded = GrowingFile::recorded_fingerprint(self.job.folder(), self.stem)?;
        let is_of_job = recorded.starts_with(&self.of_pass()) && recorded != fingerprint;
        is_of_job.then(|| {
            "the slices that an interrupted run had finished in other tiles or on another device are computed again; --tile \
             and --device keep them the same"
                .to_owned()
        })
    }

    /// Opens the slices that an interrupted pass of this job has kept, because the plan of a pass depends on them. At least
    /// one slice is left to compute. `None` if the job does not resume or cannot be run in one pass, or if the kept slices
    /// are of tiles.
    ///
    /// # Errors
    /// [`JobError::Storage`] if the file cannot be opened.
    pub(super) fn before_plan(&self) -> Result<Option<KeptSlices>, JobError> {
        let of_tiles = self.of_pass() + TILES;
        let recorded = GrowingFile::recorded_fingerprint(self.job.folder(), self.stem);
        let has_tiles = recorded.is_some_and(|recorded| recorded.starts_with(&of_tiles));
        if self.job.resume && self.may_pass() && !has_tiles { self.open_pass().map(Some) } else { Ok(None) }
    }

    /// Returns the slices that a planned job keeps, and continues if it resumes; `None` if it keeps none. `opened` are those
    /// of [`KeptRequest::before_plan`]. A job that does not resume removes the slices of an earlier run.
    ///
    /// # Errors
    /// [`JobError::Storage`] if the file cannot be opened, or that of an earlier run cannot be removed.
    pub(super) fn after_plan(
        &self,
        opened: Option<KeptSlices>,
        tiles: &PlannedTiles,
    ) -> Result<Option<KeptSlices>, JobError> {
        if !self.keeps() {
            KeptSlices::remove(self.job.folder(), self.stem);
            return Ok(None);
        }
        if !self.job.resume {
            GrowingFile::remove(self.job.folder(), self.stem)?;
        }
        match opened {
            Some(kept) if tiles.is_pass() => Ok(Some(kept)),
            None if tiles.is_pass() => self.open_pass().map(Some),
            opened => {
                // The file of a pass is closed before it is opened for tiles.
                drop(opened);
                self.open(&self.of_tiles(&tiles.plan), self.all_slices()).map(Some)
            }
        }
    }

    /// Opens the slices of a pass. At least one is computed, so that there is a pass to run.
    fn open_pass(&self) -> Result<KeptSlices, JobError> {
        self.open(&self.of_pass(), self.all_slices().saturating_sub(1))
    }

    /// Returns the number of slices of all time points on the model's grid.
    fn all_slices(&self) -> usize {
        self.resolved.times.len().saturating_mul(self.resolved.grid[0])
    }

    fn open(&self, fingerprint: &str, max_finished: usize) -> Result<KeptSlices, JobError> {
        let (folder, grid) = (self.job.folder(), self.resolved.grid);
        let discarded = self.note_discarded(fingerprint);
        let (growing, file) = GrowingFile::open(folder, self.stem, fingerprint)?;
        let (slice_len, channels) = (grid[1] * grid[2], self.resolved.model.output_channels);
        let slice_bytes = (slice_len * channels * size_of::<f32>()).max(1) as u64;
        let stored = usize::try_from(growing.kept_bytes() / slice_bytes).unwrap_or(0);
        Ok(KeptSlices {
            growing,
            file,
            folder: folder.to_owned(),
            depth: grid[0],
            times: self.resolved.times.len(),
            channels,
            index: 0,
            slice_len,
            slice_bytes,
            finished: stored.min(max_finished),
            resumes: self.job.resume,
            discarded,
            recorded: Instant::now(),
        })
    }
}

impl KeptSlices {
    /// Returns the number of slices that an earlier run has finished of a time point, given by its index among those that
    /// are predicted.
    pub(super) fn finished_of(&self, index: usize) -> usize {
        self.finished.saturating_sub(index.saturating_mul(self.depth)).min(self.depth)
    }

    /// Returns the number of slices that an earlier run has finished of the first time point that is not complete.
    pub(super) fn finished_of_next(&self) -> usize {
        self.finished.checked_rem(self.depth).unwrap_or(0)
    }

    /// Begins a time point, given by its index; returns the spool that holds its slices.
    ///
    /// # Errors
    /// [`JobError::Io`] if the file cannot be opened once more.
    pub(super) fn begin(&mut self, index: usize) -> Result<Spool<f32>, JobError> {
        self.index = index;
        // Spools of different time points are not used at the same time.
        let file = self.file.try_clone().map_err(|error| JobError::Io { path: self.folder.clone(), error })?;
        let first = index.saturating_mul(self.depth).saturating_mul(self.channels);
        Ok(Spool::of_file(file, &self.folder, self.slice_len, first))
    }

    /// Records that the first `slices` slices of the time point are complete, if the last record is old.
    ///
    /// # Errors
    /// [`JobError::Storage`] if that fails.
    pub(super) fn keep_if_due(&mut self, slices: usize) -> Result<(), JobError> {
        if self.recorded.elapsed() < INTERVAL { Ok(()) } else { self.keep(slices) }
    }

    /// Records that the first `slices` slices of the time point are complete, and all of the time points before it.
    ///
    /// # Errors
    /// [`JobError::Storage`] if that fails.
    pub(super) fn keep(&mut self, slices: usize) -> Result<(), JobError> {
        let complete = self.index.saturating_mul(self.depth).saturating_add(slices);
        self.growing.keep((complete as u64).saturating_mul(self.slice_bytes))?;
        self.recorded = Instant::now();
        Ok(())
    }

    /// Returns whether slices are to be kept although the job was cancelled; `is_discarding` is the request of the one who
    /// cancelled it.
    pub(super) fn outlives(&self, is_discarding: bool) -> bool {
        self.resumes || !is_discarding
    }

    /// Returns whether the next run has slices to continue.
    pub(super) fn has_any(&self) -> bool {
        self.growing.kept_bytes() > 0
    }

    /// Returns a note about slices of an interrupted run; `None` if there are none.
    pub(super) fn note(&self) -> Option<String> {
        let note = || match (self.times, self.finished.checked_div(self.depth).unwrap_or(0)) {
            (1, _) => format!("continued after {} slices that an interrupted run had finished", self.finished),
            (times, complete) => format!(
                "continued after {complete} of {times} time points and {} slices of the next one that an interrupted run had \
                 finished",
                self.finished_of_next()
            ),
        };
        (self.finished > 0).then(note).or_else(|| self.discarded.clone())
    }

    /// Removes the kept slices of the results `folder/stem_*`, once these are published. A failure is only logged,
    /// because the results are complete.
    pub(super) fn remove(folder: &Path, stem: &str) {
        if let Err(error) = GrowingFile::remove(folder, stem) {
            tracing::warn!("slices of a prediction remain: {error}");
        }
    }

    /// Removes the kept slices of the results `folder/stem_*` of a job that has ended without them, unless it resumes or
    /// another run has started.
    pub(super) fn discard(job: &PredictJob, stem: &str) {
        if job.resume {
            return;
        }
        if let Ok(_lock) = ResultsLock::acquire(job.folder(), stem) {
            Self::remove(job.folder(), stem);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_large_predictions_are_kept_if_they_take_no_more_space_than_the_maps() {
        assert!(is_large([64, 1024, 1024], 1, false) && !is_large([63, 1024, 1024], 1, true));
        assert!(is_large([16, 1024, 1024], 4, true) && !is_large([16, 1024, 1024], 4, false));
        assert!(is_large([usize::MAX, 2, 2], 2, true));
        for (text, choice) in [("auto", KeepSlices::Auto), ("always", KeepSlices::Always), ("never", KeepSlices::Never)]
        {
            assert_eq!(text.parse(), Ok(choice));
        }
    }
}

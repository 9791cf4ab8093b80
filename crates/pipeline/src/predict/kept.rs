//! The finished slices of a prediction, kept beside the results, so that a run with `--resume` continues an interrupted one.

use super::PredictJob;
use super::plan::{PlannedTiles, TilePlan};
use super::resolve::Resolved;
use crate::spool::Spool;
use crate::{JobError, provenance};
use cytoscope_storage::growing::GrowingFile;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time after which the finished slices are recorded again, in case the process is killed. A cancelled job records them at
/// its end.
const INTERVAL: Duration = Duration::from_secs(20);

/// What separates the fingerprint of a job from that of its tiles.
const TILES: &str = ", tiles ";

/// Finished slices, as the network returned them, in a file that outlives the process.
pub(super) struct KeptSlices {
    growing: GrowingFile,
    /// The handle that the spool writes with, until it is taken.
    file: Option<File>,
    folder: PathBuf,
    /// Voxels of a slice on the model's grid.
    slice_len: usize,
    /// Bytes of a slice with all channels.
    slice_bytes: u64,
    /// Slices that an earlier run has finished.
    finished: usize,
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
    /// Whether the job resumes and has a single time point.
    fn is_resumed(&self) -> bool {
        self.job.resume && self.resolved.times.len() == 1
    }

    /// Whether the stack may pass through the network once.
    fn may_pass(&self) -> bool {
        let (model, tiles) = (self.resolved.model, &self.resolved.tiles);
        tiles.tile.is_none() && tiles.blend.is_none() && model.reach.is_some() && model.spatial_axes == 3
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

    /// Opens the slices that an interrupted pass of this job has kept, of which at least one is left, because the plan of a
    /// pass depends on them. `None` unless the job resumes and can be run in one pass, or if slices of tiles are kept.
    ///
    /// # Errors
    /// [`JobError::Storage`] if the file cannot be opened.
    pub(super) fn before_plan(&self) -> Result<Option<KeptSlices>, JobError> {
        let of_tiles = self.of_pass() + TILES;
        let recorded = GrowingFile::recorded_fingerprint(self.job.folder(), self.stem);
        let has_tiles = recorded.is_some_and(|recorded| recorded.starts_with(&of_tiles));
        if self.is_resumed() && self.may_pass() && !has_tiles { self.open_pass().map(Some) } else { Ok(None) }
    }

    /// Returns the slices that a planned job continues and keeps; `None` unless it resumes. `opened` are those of
    /// [`KeptRequest::before_plan`].
    ///
    /// # Errors
    /// [`JobError::Storage`] if the file cannot be opened.
    pub(super) fn after_plan(
        &self,
        opened: Option<KeptSlices>,
        tiles: &PlannedTiles,
    ) -> Result<Option<KeptSlices>, JobError> {
        match opened {
            _ if !self.is_resumed() => Ok(None),
            Some(kept) if tiles.is_pass() => Ok(Some(kept)),
            None if tiles.is_pass() => self.open_pass().map(Some),
            opened => {
                // The file of a pass is closed before it is opened for tiles.
                drop(opened);
                self.open(&self.of_tiles(&tiles.plan), self.resolved.grid[0]).map(Some)
            }
        }
    }

    /// Opens the slices of a pass. At least one is computed, so that there is a pass to run.
    fn open_pass(&self) -> Result<KeptSlices, JobError> {
        self.open(&self.of_pass(), self.resolved.grid[0].saturating_sub(1))
    }

    fn open(&self, fingerprint: &str, max_finished: usize) -> Result<KeptSlices, JobError> {
        let (folder, grid) = (self.job.folder(), self.resolved.grid);
        let discarded = self.note_discarded(fingerprint);
        let (growing, file) = GrowingFile::open(folder, self.stem, fingerprint)?;
        let slice_len = grid[1] * grid[2];
        let slice_bytes = (slice_len * self.resolved.model.output_channels * size_of::<f32>()).max(1) as u64;
        let stored = usize::try_from(growing.kept_bytes() / slice_bytes).unwrap_or(0);
        Ok(KeptSlices {
            growing,
            file: Some(file),
            folder: folder.to_owned(),
            slice_len,
            slice_bytes,
            finished: stored.min(max_finished),
            discarded,
            recorded: Instant::now(),
        })
    }
}

impl KeptSlices {
    /// Returns the number of slices that an earlier run has finished.
    pub(super) fn finished(&self) -> usize {
        self.finished
    }

    /// Returns the spool that holds the slices; `None` if it was taken before.
    pub(super) fn spool(&mut self) -> Option<Spool<f32>> {
        Some(Spool::of_file(self.file.take()?, &self.folder, self.slice_len))
    }

    /// Records that the first `slices` slices are complete, if the last record is old.
    ///
    /// # Errors
    /// [`JobError::Storage`] if that fails.
    pub(super) fn keep_if_due(&mut self, slices: usize) -> Result<(), JobError> {
        if self.recorded.elapsed() < INTERVAL { Ok(()) } else { self.keep(slices) }
    }

    /// Records that the first `slices` slices are complete.
    ///
    /// # Errors
    /// [`JobError::Storage`] if that fails.
    pub(super) fn keep(&mut self, slices: usize) -> Result<(), JobError> {
        self.growing.keep(slices as u64 * self.slice_bytes)?;
        self.recorded = Instant::now();
        Ok(())
    }

    /// Returns a note about slices of an interrupted run; `None` if there are none.
    pub(super) fn note(&self) -> Option<String> {
        let note = || format!("continued after {} slices that an interrupted run had finished", self.finished);
        (self.finished > 0).then(note).or_else(|| self.discarded.clone())
    }

    /// Removes the kept slices of the results `folder/stem_*`, once these are published. A failure is only logged,
    /// because the results are complete.
    pub(super) fn remove(folder: &Path, stem: &str) {
        if let Err(error) = GrowingFile::remove(folder, stem) {
            tracing::warn!("the slices of a finished prediction remain: {error}");
        }
    }
}

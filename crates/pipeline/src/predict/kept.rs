//! The finished slices of a pass, kept beside the results, so that a run with `--resume` continues an interrupted one.

use super::PredictJob;
use super::resolve::Resolved;
use crate::spool::Spool;
use crate::{JobError, provenance};
use cytoscope_storage::growing::GrowingFile;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time after which the finished slices are recorded again, in case the process is killed. A cancelled pass records them
/// at its end.
const INTERVAL: Duration = Duration::from_secs(20);

/// The slices of a pass, as the network returned them, in a file that outlives the process.
pub(super) struct KeptPass {
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
    recorded: Instant,
}

impl KeptPass {
    /// Opens the slices that an interrupted run of this job has kept. `None` unless the job resumes and can be run in one
    /// pass over a single time point.
    ///
    /// # Errors
    /// [`JobError::Storage`] if the file cannot be opened.
    pub(super) fn open(
        job: &PredictJob,
        resolved: &Resolved<'_>,
        fingerprint: &str,
        stem: &str,
    ) -> Result<Option<Self>, JobError> {
        let (model, tiles) = (resolved.model, &resolved.tiles);
        let in_tiles =
            tiles.tile.is_some() || tiles.blend.is_some() || model.reach.is_none() || model.spatial_axes != 3;
        if !job.resume || resolved.times.len() != 1 || in_tiles {
            return Ok(None);
        }
        let (grid, precision) = (resolved.grid, resolved.precision());
        // Another version may compute other values.
        let fingerprint = format!("{}, {fingerprint}, {precision}, {grid:?}", provenance::program());
        let (growing, file) = GrowingFile::open(job.folder(), stem, &fingerprint)?;
        let slice_len = grid[1] * grid[2];
        let slice_bytes = (slice_len * model.output_channels * size_of::<f32>()).max(1) as u64;
        let stored = usize::try_from(growing.kept_bytes() / slice_bytes).unwrap_or(0);
        Ok(Some(Self {
            growing,
            file: Some(file),
            folder: job.folder().to_owned(),
            slice_len,
            slice_bytes,
            // At least one slice is computed, so that there is a pass to run.
            finished: stored.min(grid[0].saturating_sub(1)),
            recorded: Instant::now(),
        }))
    }

    /// Returns the number of slices that an earlier run has finished; at least one slice is left.
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

    /// Returns a note about slices that are not computed again; `None` if there are none.
    pub(super) fn note(&self) -> Option<String> {
        let note = || format!("continued after {} slices that an interrupted run had finished", self.finished);
        (self.finished > 0).then(note)
    }

    /// Removes the kept slices of the results `folder/stem_*`, once these are published. That they cannot be removed is
    /// only logged, because the results are complete.
    pub(super) fn remove(folder: &Path, stem: &str) {
        if let Err(error) = GrowingFile::remove(folder, stem) {
            tracing::warn!("the slices of a finished pass remain: {error}");
        }
    }
}

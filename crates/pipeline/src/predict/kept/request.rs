//! Whether the slices of a prediction are kept, and which kept ones it continues.

use super::{KeptRecord, KeptSlices, job_prefix};
use crate::predict::Output;
use crate::predict::one::InputRun;
use crate::predict::pass_plan::PassBand;
use crate::predict::plan::{Blend, PlannedTiles, Runner};
use crate::predict::resolve::Resolved;
use crate::{JobError, ProgressStage};
use cytoscope_engine::Precision;
use cytoscope_storage::growing::GrowingFile;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::{DIAMETER, PRECISION, TILE};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Returns the note about slices of the same job that are not continued.
fn discarded_note() -> Message {
    message!(
        "the slices that were finished on another grid, in other blended tiles or in another precision are computed again; \
         to continue them, use the same {DIAMETER}, {TILE} and {PRECISION}"
    )
}

/// The note about slices of the same job whose file has changed since they were recorded.
const CHANGED: &str =
    "the slices that were finished before are computed again, because their file was changed or damaged";

/// Voxels on the model's grid, of all time points, from which on a prediction takes so long that its finished slices are
/// kept.
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
    /// Whatever the size of the prediction.
    Always,
    /// Only if the job resumes.
    Never,
}

impl KeepSlices {
    /// All choices.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Always, Self::Never];

    /// Whether the size of the prediction decides.
    pub fn is_auto(&self) -> bool {
        *self == Self::Auto
    }
}

cytoscope_storage::named! {
    /// Returns the name of the choice on the command line and in files.
    pub fn name(KeepSlices) {
        Auto => "auto",
        Always => "always",
        Never => "never",
    }
}

cytoscope_storage::parsed_by_name!(KeepSlices, "invalid choice");

/// Whether slices are kept by default.
fn keeps_by_default(grid: [usize; 3], times: usize, has_maps: bool) -> bool {
    let voxels = grid.iter().fold(times, |product, extent| product.saturating_mul(*extent));
    voxels >= LARGE_VOXELS && takes_no_more_than_maps(times, has_maps)
}

/// Whether the file of kept slices takes no more space than a prediction without it. The file holds the slices of all
/// time points, so it is as large as the maps.
fn takes_no_more_than_maps(times: usize, has_maps: bool) -> bool {
    times == 1 || has_maps
}

/// How long finished slices are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeping {
    /// Not at all.
    No,
    /// While the job runs, in case its device fails.
    ForAttempts,
    /// Until the results exist, also for later runs.
    ForLater,
}

/// What determines whether slices are kept, and which are continued.
pub(in crate::predict) struct KeptRequest<'a, 'b> {
    /// The job and the input whose slices are kept.
    pub run: &'a InputRun<'a>,
    /// Engine, grid and time points of the prediction.
    pub resolved: &'a Resolved<'b>,
    /// Fingerprint of the job and its input, whatever the device, the precision and the size of the tiles.
    pub fingerprint: &'a str,
}

impl KeptRequest<'_, '_> {
    /// Returns how long the finished slices are kept.
    fn keeping(&self) -> Keeping {
        let (InputRun { job, is_later, .. }, resolved) = (self.run, self.resolved);
        let (times, has_maps) = (resolved.times.len(), resolved.wants(Output::Maps));
        let by_choice = match job.keep_slices {
            KeepSlices::Auto => keeps_by_default(resolved.grid, times, has_maps),
            KeepSlices::Always => true,
            KeepSlices::Never => false,
        };
        // Another device may take over, or has done so.
        let may_change_device = *is_later || resolved.engine.has_fallback();
        if job.resume || by_choice {
            Keeping::ForLater
        } else if job.keep_slices.is_auto() && may_change_device && takes_no_more_than_maps(times, has_maps) {
            Keeping::ForAttempts
        } else {
            Keeping::No
        }
    }

    /// Returns whether slices of an earlier run or attempt are continued.
    fn continues(&self) -> bool {
        self.run.job.resume || (self.run.is_later && self.keeping() != Keeping::No)
    }

    /// Returns whether the stack passes through the network once, or is predicted in tiles that are cropped.
    fn is_cropped(&self) -> bool {
        self.resolved.model.reach.is_some() && self.resolved.tiles.blend != Some(Blend::Gaussian)
    }

    /// Returns what the fingerprints of all slices on the grid of the job begin with.
    fn on_grid(&self) -> String {
        format!("{}{:?}, ", job_prefix(self.fingerprint), self.resolved.grid)
    }

    /// Returns the fingerprint of slices that depend on tiles by rounding only.
    fn cropped_fingerprint(&self) -> String {
        self.on_grid() + "cropped"
    }

    /// Returns the fingerprint of slices of blended tiles.
    fn blended_fingerprint(&self, tile: [usize; 3], overlap: f64) -> String {
        format!("{}blended, {tile:?}, {overlap}", self.on_grid())
    }

    /// Returns whether this run may continue after slices that were computed in the precision `earlier`.
    fn can_follow(&self, earlier: Precision) -> bool {
        let now = self.resolved.precision();
        let is_int8 = |precision: Precision| precision == Precision::Int8;
        // In 16 bits, slices that are more exact than requested are continued, too.
        let is_allowed = |asked: Precision| asked == earlier || (asked.is_half() && !earlier.is_half());
        is_int8(earlier) == is_int8(now) && (earlier == now || self.run.job.precision.is_none_or(is_allowed))
    }

    /// Opens the slices that an earlier run or attempt of this job has kept, because the plan of a pass depends on them.
    /// `None` if the job starts over, or if slices depend on the plan. If all slices are finished, the plan is that of a whole
    /// pass, which is stated but not run.
    ///
    /// # Errors
    /// [`JobError::Storage`] if the file cannot be opened.
    pub(in crate::predict) fn before_plan(&self) -> Result<Option<KeptSlices>, JobError> {
        if self.continues() && self.is_cropped() {
            self.open(&self.cropped_fingerprint(), None).map(Some)
        } else {
            Ok(None)
        }
    }

    /// Returns the slices that a planned job keeps, and continues if it resumes or an earlier attempt has failed;
    /// `None` if it keeps none. `opened` is what [`KeptRequest::before_plan`] returned. A job that starts over removes
    /// the slices of an earlier run.
    ///
    /// # Errors
    /// [`JobError::Storage`] if the file cannot be opened, or the file of an earlier run cannot be removed.
    pub(in crate::predict) fn after_plan(
        &self,
        opened: Option<KeptSlices>,
        tiles: &PlannedTiles,
    ) -> Result<Option<KeptSlices>, JobError> {
        let (folder, stem) = (self.run.job.folder(), self.run.stem);
        if self.keeping() == Keeping::No {
            KeptSlices::remove(folder, stem);
            return Ok(None);
        }
        if !self.continues() {
            GrowingFile::remove(folder, stem)?;
        }
        let mut kept = match opened {
            Some(kept) => kept,
            None if self.is_cropped() => self.open(&self.cropped_fingerprint(), None)?,
            None => {
                let (tile, overlap) = (tiles.plan.tile, tiles.plan.overlap);
                self.open(&self.blended_fingerprint(tile, overlap), Some(tile))?
            }
        };
        let bands: &[PassBand] = if let Runner::Pass { bands, .. } = &tiles.runner { bands } else { &[] };
        self.run.context.report_alive(ProgressStage::Check, || kept.continue_bands(bands));
        Ok(Some(kept))
    }

    /// Opens the slices with this fingerprint. `tile` is the size of blended tiles.
    fn open(&self, fingerprint: &str, tile: Option<[usize; 3]>) -> Result<KeptSlices, JobError> {
        let (InputRun { job, context, stem, is_later, .. }, resolved) = (self.run, self.resolved);
        let (folder, grid) = (job.folder(), resolved.grid);
        let earlier = KeptRecord::read(folder, stem);
        let can_continue = |(found, record): &(String, KeptRecord)| {
            found == fingerprint && record.parts.iter().all(|part| self.can_follow(part.precision))
        };
        let (earlier, bands, discarded) = match earlier {
            Some(earlier) if can_continue(&earlier) => (earlier.1.parts, earlier.1.bands, None),
            Some((found, _)) => {
                (Vec::new(), None, found.starts_with(&job_prefix(self.fingerprint)).then(discarded_note))
            }
            None => (Vec::new(), None, None),
        };
        if discarded.is_some() {
            GrowingFile::remove(folder, stem)?;
        }
        let open = || GrowingFile::open(folder, stem, fingerprint);
        let (growing, file) = context.report_alive(ProgressStage::Check, open)?;
        let (slice_len, channels) = (grid[1] * grid[2], resolved.model.output_channels);
        let slice_bytes = (slice_len * channels * size_of::<f32>()).max(1) as u64;
        let all_slices = resolved.times.len().saturating_mul(grid[0]);
        let described = earlier.iter().fold(0usize, |sum, part| sum.saturating_add(part.slices));
        let kept_bytes = growing.kept_bytes();
        let stored = usize::try_from(kept_bytes / slice_bytes).unwrap_or(0).min(described).min(all_slices);
        let is_changed = described > 0 && kept_bytes == 0;
        let is_for_attempts = self.keeping() == Keeping::ForAttempts;
        Ok(KeptSlices {
            growing,
            file,
            folder: folder.to_owned(),
            depth: grid[0],
            height: grid[1],
            times: resolved.times.len(),
            channels,
            index: 0,
            slice_len,
            slice_bytes,
            complete: 0,
            finished: stored,
            record: KeptRecord { parts: earlier, tile, diameter: resolved.diameter, bands, is_for_attempts },
            bands: None,
            device: resolved.engine.choice.id,
            precision: resolved.precision(),
            has_fallback: resolved.engine.has_fallback(),
            resumes: job.resume,
            is_later: *is_later,
            discarded: discarded.or_else(|| is_changed.then(|| Message::from(CHANGED))),
            recorded: Instant::now(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_of_large_predictions_are_kept_if_they_take_no_more_space_than_the_maps() {
        assert!(keeps_by_default([64, 1024, 1024], 1, false) && !keeps_by_default([63, 1024, 1024], 1, true));
        assert!(keeps_by_default([16, 1024, 1024], 4, true) && !keeps_by_default([16, 1024, 1024], 4, false));
        assert!(keeps_by_default([usize::MAX, 2, 2], 2, true));
        for (text, choice) in [("auto", KeepSlices::Auto), ("always", KeepSlices::Always), ("never", KeepSlices::Never)]
        {
            assert_eq!(text.parse(), Ok(choice));
        }
    }
}

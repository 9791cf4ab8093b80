//! The finished slices of a prediction, kept beside the results, so that a run with `--resume` continues an interrupted
//! prediction, and another device takes over from one that has failed.
//!
//! The same job on the same grid continues slices of cropped tiles and of a pass, which depend on the tiles by rounding only,
//! and slices of blended tiles in tiles of the same size. The record beside the slices states which device computed them in
//! which precision. Floats are continued in another precision of floats, unless a precision was requested; the 8-bit network
//! of a model continues only its own slices.

mod request;

use super::PredictJob;
use super::kept_bands::{BandProgress, KeptBands, SlicesInFile};
use super::one::InputRun;
use super::pass_plan::PassBand;
use super::resolve::Resolved;
use crate::devices::SelectedEngine;
use crate::diameter::{DiameterRequest, ObjectDiameter};
use crate::spool::Spool;
use crate::verify::{Verification, verify};
use crate::{JobError, JobErrorKind, provenance};
use cytoscope_engine::{DeviceId, Precision};
use cytoscope_storage::growing::GrowingFile;
use cytoscope_storage::lock::ResultsLock;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::{DEVICE, MEMORY_BUDGET, PRECISION};
use cytoscope_storage::{by_count, counted};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub use request::KeepSlices;
pub(super) use request::KeptRequest;

/// Time after which the finished slices are recorded again, in case the process is killed. A canceled job records them at
/// its end.
const INTERVAL: Duration = Duration::from_secs(20);

/// Consecutive slices that one device computed in one precision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PredictedSlices {
    /// Number of slices on the model's grid, counted through all time points.
    pub slices: usize,
    /// Device that computed them.
    pub device: DeviceId,
    /// Precision in which the network ran.
    pub precision: Precision,
}

/// Appends slices to a list in which neighbors differ in device or precision.
fn append(parts: &mut Vec<PredictedSlices>, next: PredictedSlices) {
    match parts.last_mut() {
        Some(last) if (last.device, last.precision) == (next.device, next.precision) => last.slices += next.slices,
        _ if next.slices > 0 => parts.push(next),
        _ => {}
    }
}

/// Returns the parts of a result that its report lists: none if the device of the report computed all of it in its precision.
fn listed(parts: Vec<PredictedSlices>, device: DeviceId, precision: Precision) -> Vec<PredictedSlices> {
    let is_own = |part: &PredictedSlices| (part.device, part.precision) == (device, precision);
    if parts.iter().all(is_own) { Vec::new() } else { parts }
}

/// Returns a note about the devices and precisions that computed the slices of a result; `None` if there is one only.
pub(super) fn parts_note(parts: &[PredictedSlices]) -> Option<String> {
    let part = |PredictedSlices { slices, device, precision }: &PredictedSlices| {
        let were = by_count(slices, "was", "were");
        format!("{} {were} computed on {device} in {precision}", counted(slices, "slice"))
    };
    (parts.len() > 1).then(|| parts.iter().map(part).collect::<Vec<String>>().join(", the next "))
}

/// Record of an earlier run or attempt of a job about the slices that it has kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct KeptRecord {
    /// The devices and precisions that computed them.
    parts: Vec<PredictedSlices>,
    /// Size Z, Y, X of the tiles, if they were blended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tile: Option<[usize; 3]>,
    /// The object diameter, which decides the grid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    diameter: Option<ObjectDiameter>,
    /// The finished bands of a pass, whose slices are not complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bands: Option<KeptBands>,
    /// Whether they are kept for other attempts of the same run only.
    #[serde(default)]
    is_for_attempts: bool,
}

impl KeptRecord {
    /// Reads the record of the results `folder/stem_*`, with the fingerprint of its job; `None` if there is none that can be read,
    /// which [`KeptRecord::unused_note`] says.
    fn read(folder: &Path, stem: &str) -> Option<(String, Self)> {
        let recorded = GrowingFile::recorded(folder, stem)?;
        Some((recorded.fingerprint, serde_json::from_str(&recorded.about).ok()?))
    }

    /// Returns the record that a run continues; `None` if it starts over, or if nothing of its job is kept.
    pub(super) fn to_continue(run: &InputRun<'_>, fingerprint: &str) -> Option<Self> {
        let (found, record) = Self::read(run.job.folder(), run.stem)?;
        ((run.job.resume || run.is_later) && found.starts_with(&job_prefix(fingerprint))).then_some(record)
    }

    /// Returns the note that a run with `--resume` starts over although slices are kept; `None` if it continues `earlier` ones,
    /// or if none are kept.
    pub(super) fn unused_note(earlier: Option<&Self>, run: &InputRun<'_>, fingerprint: &str) -> Option<Message> {
        if earlier.is_some() || !run.job.resume || run.is_later {
            return None;
        }
        let (folder, stem) = (run.job.folder(), run.stem);
        let why = match GrowingFile::recorded(folder, stem) {
            Some(recorded) if !recorded.fingerprint.starts_with(&job_prefix(fingerprint)) => {
                "the input, the options or the version of this program have changed since"
            }
            None if !GrowingFile::has_damaged_record(folder, stem) => return None,
            _ => "their record cannot be read",
        };
        Some(message!(
            "predicted from the beginning: the slices that an interrupted run had finished are not used, because {why}"
        ))
    }

    /// Returns the object diameter that a job which estimates it takes over, so that the grid stays the same.
    pub(super) fn diameter_for(&self, request: DiameterRequest) -> Option<ObjectDiameter> {
        self.diameter.filter(|_| request == DiameterRequest::Auto)
    }

    /// Prefers the tiles of the kept slices, if they were blended and the job leaves their size open.
    pub(super) fn prefer_tiles(&self, resolved: &mut Resolved<'_>) {
        let tiles = &mut resolved.tiles;
        if tiles.tile.is_none() && tiles.recorded.is_none() {
            tiles.recorded = self.tile;
        }
    }

    /// Returns the engine in f32 if it would compute in 8-bit integers, but the kept slices are floats and no precision was
    /// requested; `None` otherwise.
    ///
    /// # Errors
    /// [`JobError::Canceled`] if the job is canceled while the network is checked.
    pub(super) fn in_floats(
        &self,
        run: &InputRun<'_>,
        engine: &SelectedEngine,
    ) -> Result<Option<SelectedEngine>, JobError> {
        let InputRun { job, context, model, .. } = run;
        let mut precisions = self.parts.iter().map(|part| part.precision).chain(self.bands.iter().map(|b| b.precision));
        let is_float = precisions.all(|precision| precision != Precision::Int8);
        if job.precision.is_some() || !is_float || engine.precision(model, None) != Precision::Int8 {
            return Ok(None);
        }
        let floats = engine.in_precision(Precision::F32);
        match verify(context, model, floats.engine(), Precision::F32, job.threads) {
            Ok(Verification::Differs { .. }) => Ok(None),
            Err(error) if error.kind() == JobErrorKind::Canceled => Err(error),
            // If the network does not run at all, predicting the stack reports that.
            Ok(Verification::Agrees) | Err(_) => Ok(Some(floats)),
        }
    }
}

/// Returns the beginning of the fingerprints of a job's kept slices. It has the program's version, because another
/// version may compute other values.
fn job_prefix(fingerprint: &str) -> String {
    format!("{}, {fingerprint}, ", provenance::program())
}

/// Finished slices of all time points, one after the other, as the network returned them, in a file that outlives the
/// process.
pub(super) struct KeptSlices {
    growing: GrowingFile,
    /// The handle that spools write with.
    file: File,
    folder: PathBuf,
    /// Slices of a time point on the model's grid.
    depth: usize,
    /// Rows of a slice on the model's grid.
    height: usize,
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
    /// Complete slices of all time points, also those that are not recorded yet.
    complete: usize,
    /// Slices of all time points that were stored when the file was opened, and are not computed again.
    finished: usize,
    /// Record of the slices; its parts cover the finished ones.
    record: KeptRecord,
    /// The bands of the pass over the time point, unless whole slices pass.
    bands: Option<BandProgress>,
    /// The device that computes the others, and its precision.
    device: DeviceId,
    precision: Precision,
    /// Whether another device takes over if this one fails.
    has_fallback: bool,
    /// Whether the job resumes.
    resumes: bool,
    /// Whether an earlier attempt of the same run has stored the slices.
    is_later: bool,
    /// A note about slices of an earlier run that are not continued.
    discarded: Option<Message>,
    recorded: Instant,
}

/// Returns the note about bands of the same job that are not continued.
fn discarded_bands_note() -> Message {
    message!(
        "the bands that were finished are computed again, because the bands, the device or the precision differ, or their \
         values were changed; to continue them, use the same {MEMORY_BUDGET}, {DEVICE} and {PRECISION}"
    )
}

impl KeptSlices {
    /// Returns the number of slices of a time point that are finished and continued; the time point is given by its index
    /// among those that are predicted.
    pub(super) fn finished_slices(&self, index: usize) -> usize {
        self.finished.saturating_sub(index.saturating_mul(self.depth)).min(self.depth)
    }

    /// Returns the number of slices that are finished of the first time point that is not complete.
    pub(super) fn finished_slices_of_next(&self) -> usize {
        self.finished.checked_rem(self.depth).unwrap_or(0)
    }

    /// Returns the bytes of the file of the slices; 0 if that is unknown.
    pub(super) fn file_bytes(&self) -> u64 {
        self.file.metadata().map_or(0, |about| about.len())
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
        Ok(Spool::from_file(file, &self.folder, self.slice_len, first))
    }

    /// Continues after the finished bands of an interrupted run, if the pass over the next time point is in `bands`.
    fn continue_bands(&mut self, bands: &[PassBand]) {
        let Some(earlier) = self.record.bands.take() else { return };
        // Slices of a time point are complete in its last band.
        let index = self.finished.checked_div(self.depth).unwrap_or(0);
        self.bands = self.band_progress(index, bands);
        let is_continued =
            self.bands.as_mut().is_some_and(|progress| progress.continue_after(&earlier, &mut self.file));
        if !is_continued && self.discarded.is_none() {
            self.discarded = Some(discarded_bands_note());
        }
    }

    /// Returns the bands of a pass over a time point, given by its index; `None` if whole slices pass, or if all slices are
    /// stored.
    fn band_progress(&self, index: usize, bands: &[PassBand]) -> Option<BandProgress> {
        if self.finished >= self.times.saturating_mul(self.depth) {
            return None;
        }
        let grid = [self.depth, self.height, self.slice_len.checked_div(self.height).unwrap_or(0)];
        let slices = SlicesInFile { index, grid, channels: self.channels };
        BandProgress::new(bands, slices, self.finished_slices(index), (self.device, self.precision))
    }

    /// Begins a pass over the time point in `bands`; returns the number of those that are finished, and the voxels of a slice
    /// in them.
    pub(super) fn begin_bands(&mut self, bands: &[PassBand]) -> [usize; 2] {
        if self.bands.as_ref().is_none_or(|progress| progress.index() != self.index) {
            self.bands = self.band_progress(self.index, bands);
        }
        self.bands.as_ref().map_or([0; 2], |progress| [progress.counts()[0], progress.finished_area()])
    }

    /// States that the next band is finished.
    pub(super) fn finish_band(&mut self) {
        if let Some(bands) = &mut self.bands {
            bands.finish_band();
        }
    }

    /// Records that the first `slices` slices of the time point are complete, if the last record is old. Another thread does
    /// it, so the prediction goes on meanwhile.
    ///
    /// # Errors
    /// [`JobError::Storage`] if the slices before could not be recorded.
    pub(super) fn keep_if_due(&mut self, slices: usize) -> Result<(), JobError> {
        self.complete = self.complete_with(slices);
        if self.recorded.elapsed() < INTERVAL { Ok(()) } else { self.keep_soon() }
    }

    /// Records the slices of a time point in another thread, because the prediction of all of its `slices` slices has ended.
    /// They are not recorded at once if the results are written `soon`, which takes less time than syncing the slices.
    ///
    /// # Errors
    /// Same as [`KeptSlices::keep_if_due`].
    pub(super) fn keep_time_point(&mut self, slices: usize, soon: bool) -> Result<(), JobError> {
        self.complete = self.complete_with(slices);
        if self.record.is_for_attempts {
            // Another device continues them only if this one fails.
            return Ok(());
        }
        if soon { self.keep_if_due(slices) } else { self.keep_soon() }
    }

    /// Records that the first `slices` slices of the time point are complete, and all of the time points before it.
    ///
    /// # Errors
    /// [`JobError::Storage`] if that fails.
    pub(super) fn keep(&mut self, slices: usize) -> Result<(), JobError> {
        self.complete = self.complete_with(slices);
        self.keep_complete()
    }

    /// Returns the number of complete slices of all time points, if there are `slices` of the one that is predicted.
    fn complete_with(&self, slices: usize) -> usize {
        self.index.saturating_mul(self.depth).saturating_add(slices)
    }

    /// Like [`KeptSlices::keep`], for the slices that are known to be complete.
    fn keep_complete(&mut self) -> Result<(), JobError> {
        let (bytes, has_bands, about) = self.next_record()?;
        if has_bands {
            self.growing.state(bytes, &about)?;
        } else {
            self.growing.keep(bytes, &about)?;
        }
        self.recorded = Instant::now();
        Ok(())
    }

    /// Like [`KeptSlices::keep_complete`], in another thread, unless that still records earlier slices.
    fn keep_soon(&mut self) -> Result<(), JobError> {
        let (bytes, has_bands, about) = self.next_record()?;
        // A record without slices and bands would keep the file of a job that is canceled, for nothing.
        let is_empty = bytes == 0 && !has_bands;
        if is_empty || self.growing.state_soon(bytes, about)? {
            self.recorded = Instant::now();
        }
        Ok(())
    }

    /// Returns the bytes of the complete slices, whether there are finished bands in addition, and the record of both as JSON.
    fn next_record(&mut self) -> Result<(u64, bool, String), JobError> {
        let is_part = self.complete < self.index.saturating_add(1).saturating_mul(self.depth);
        let bands = match &mut self.bands {
            Some(bands) if is_part && bands.index() == self.index => {
                bands.record(&mut self.file).map_err(|error| JobError::Io { path: self.folder.clone(), error })?
            }
            _ => None,
        };
        let has_bands = bands.is_some();
        let record = KeptRecord { parts: self.predicted_parts(self.complete), bands, ..self.record.clone() };
        let about = serde_json::to_string(&record)
            .map_err(|error| JobError::Io { path: self.folder.clone(), error: error.into() })?;
        Ok(((self.complete as u64).saturating_mul(self.slice_bytes), has_bands, about))
    }

    /// Records all complete slices, because the job has ended after its prediction without results. `is_discarding` is
    /// whether nothing is to be kept of a canceled job.
    pub(super) fn keep_rest(&mut self, is_discarding: bool) {
        let is_discarded = is_discarding && !self.resumes;
        if self.record.is_for_attempts || is_discarded || self.complete == 0 {
            return;
        }
        if let Err(error) = self.keep_complete() {
            tracing::warn!("the slices of a prediction were not kept: {error}");
        }
    }

    /// Returns whether the slices are recorded when the prediction of a time point has `ended` early; `is_discarding` is
    /// whether nothing is to be kept of a canceled job.
    pub(super) fn outlives(&self, ended: &Result<(), JobError>, is_discarding: bool) -> bool {
        if self.record.is_for_attempts {
            // Only another device continues them.
            return self.has_fallback && matches!(ended, Err(JobError::Engine(_)));
        }
        self.resumes || !is_discarding
    }

    /// Returns the devices and precisions of the first `complete` slices of all time points.
    fn predicted_parts(&self, complete: usize) -> Vec<PredictedSlices> {
        let mut left = self.finished.min(complete);
        let (device, precision, slices) = (self.device, self.precision, complete - left);
        let mut parts = Vec::new();
        for part in &self.record.parts {
            let slices = part.slices.min(left);
            left -= slices;
            append(&mut parts, PredictedSlices { slices, ..*part });
        }
        append(&mut parts, PredictedSlices { slices, device, precision });
        parts
    }

    /// Returns the devices and precisions of the slices of the result, in order; none if all of them are those of this run.
    pub(super) fn parts(&self) -> Vec<PredictedSlices> {
        listed(self.predicted_parts(self.times.saturating_mul(self.depth)), self.device, self.precision)
    }

    /// Returns what the next run continues after: slices, or bands of a pass; `None` if there is nothing.
    pub(super) fn kept_name(&self) -> Option<&'static str> {
        let has_bands = || self.bands.as_ref().is_some_and(|bands| bands.counts()[0] > 0);
        if self.growing.kept_bytes() > 0 { Some("slices") } else { has_bands().then_some("bands") }
    }

    /// Returns notes about slices and bands of an interrupted run or an earlier attempt; none if there are none.
    pub(super) fn notes(&self) -> Vec<Message> {
        let origin = if self.is_later { "that were finished before" } else { "that an interrupted run had finished" };
        let slice_origin = if self.is_later && self.finished == 1 { "that was finished before" } else { origin };
        let note = || match (self.times, self.finished.checked_div(self.depth).unwrap_or(0)) {
            (1, _) => format!("continued after {} {slice_origin}", counted(self.finished, "slice")),
            (times, complete) if complete >= times => format!("continued after all {times} time points {origin}"),
            (times, complete) => format!(
                "continued after {complete} of {times} time points and {} of the next one {origin}",
                counted(self.finished_slices_of_next(), "slice")
            ),
        };
        let slices = (self.finished > 0).then(note);
        let band_counts = self.bands.as_ref().map(BandProgress::counts).filter(|[finished, _]| *finished > 0);
        let bands = band_counts.map(|[finished, all]| format!("continued after {finished} of {all} bands {origin}"));
        slices.into_iter().chain(bands).map(Message::from).chain(self.discarded.clone()).collect()
    }

    /// Ends the recording of the slices, and removes them as [`KeptSlices::remove`] does.
    pub(super) fn abandon(self, folder: &Path, stem: &str) {
        let Self { growing, file, .. } = self;
        drop(file);
        growing.abandon();
        Self::remove(folder, stem);
    }

    /// Removes the kept slices of the results `folder/stem_*`, once these are published. A failure is only logged,
    /// because the results are complete.
    pub(super) fn remove(folder: &Path, stem: &str) {
        if let Err(error) = GrowingFile::remove(folder, stem) {
            tracing::warn!("the kept slices of a prediction were not removed: {error}");
        }
    }

    /// Removes the kept slices of a job that has ended without its results `folder/stem_*`, unless it resumes or another run
    /// has started.
    pub(super) fn discard(job: &PredictJob, stem: &str) {
        if !job.resume {
            Self::start_over(job, stem);
        }
    }

    /// Like [`KeptSlices::discard`], if the slices are kept only while the job runs.
    pub(super) fn discard_temporary(job: &PredictJob, stem: &str) {
        if KeptRecord::read(job.folder(), stem).is_some_and(|(_, record)| record.is_for_attempts) {
            Self::discard(job, stem);
        }
    }

    /// Removes the kept slices of the results `folder/stem_*`, whose values are in doubt, unless another run has started.
    pub(super) fn start_over(job: &PredictJob, stem: &str) {
        if let Ok(_lock) = ResultsLock::acquire(job.folder(), stem) {
            Self::remove(job.folder(), stem);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_names_the_devices_and_precisions_of_the_slices_in_order() {
        let mut parts = Vec::new();
        let computed = |slices, device, precision| PredictedSlices { slices, device, precision };
        append(&mut parts, computed(5, DeviceId::Cuda(0), Precision::F16));
        append(&mut parts, computed(3, DeviceId::Cuda(0), Precision::F16));
        append(&mut parts, computed(0, DeviceId::Wgpu(0), Precision::F32));
        assert_eq!(parts, [computed(8, DeviceId::Cuda(0), Precision::F16)]);
        assert_eq!(parts_note(&parts), None);
        assert!(listed(parts.clone(), DeviceId::Cuda(0), Precision::F16).is_empty());
        // Another device found all slices finished.
        assert_eq!(listed(parts.clone(), DeviceId::Cpu, Precision::F32), parts);
        append(&mut parts, computed(4, DeviceId::Cpu, Precision::F32));
        let note = "8 slices were computed on cuda:0 in f16, the next 4 slices were computed on cpu in f32";
        assert_eq!(parts_note(&parts).as_deref(), Some(note));
    }
}

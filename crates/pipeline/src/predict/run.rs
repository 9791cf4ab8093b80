//! Runs a prediction job: its checks, then its inputs one after the other.

use super::attempts::{Attempts, NextAttempt};
use super::kept::KeptSlices;
use super::one::InputRun;
use super::resolve::check_given_axes;
use super::series::SeriesInput;
use super::{InputFailure, InputReport, LiveSink, Output, PredictJob, PredictOutcome};
use super::{expand_inputs, files, is_raster, one, only_stacks, zarr};
use crate::devices::{Devices, SelectedEngine};
use crate::diameter;
use crate::job_record::absolute;
use crate::{AppliedProfile, ArtifactKind, Context, Event, JobError, Model, ModelTask, Note, preprocess, results};
use cytoscope_formats::FormatError;
use cytoscope_model_package::refuse_inside_package;
use cytoscope_profile::Stage;
use cytoscope_storage::message;
use cytoscope_storage::setting::{CHANNEL, CHANNELS, INPUT, OUTPUT_PREPROCESSED, PREPROCESS};
use cytoscope_storage::{ResultsFolder, StorageError, by_count, counted, panic_text, target};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

impl PredictJob {
    /// Runs the job. If an input fails, the error is reported and the other inputs are processed; cancellation and a
    /// full disk end the job.
    ///
    /// # Errors
    /// [`JobError`] if the job cannot start (no model, device or output folder), or is canceled.
    pub fn run(&self, context: &Context, devices: &Devices) -> Result<PredictOutcome, JobError> {
        self.run_live(context, devices, None)
    }

    /// Like [`PredictJob::run`], but passes finished tiles to `live`. The results are bitwise identical.
    ///
    /// # Errors
    /// Same as [`PredictJob::run`].
    pub fn run_live(
        &self,
        context: &Context,
        devices: &Devices,
        live: Option<&dyn LiveSink>,
    ) -> Result<PredictOutcome, JobError> {
        self.run_profiled(context, devices, live, None)
    }

    /// Like [`PredictJob::run_live`]; reports and records state which settings came from a machine profile.
    ///
    /// # Errors
    /// Same as [`PredictJob::run`].
    pub fn run_profiled(
        &self,
        context: &Context,
        devices: &Devices,
        live: Option<&dyn LiveSink>,
        profile: Option<&AppliedProfile>,
    ) -> Result<PredictOutcome, JobError> {
        self.check()?;
        let files = self.stacks(context)?;
        let inputs = self.series_inputs(&files);
        self.check_zarr_out(inputs.len())?;
        let loading = context.recorder.span(Stage::Load, "model");
        let model = Model::load(&self.model)?.with_output(self.output_tensor.as_ref())?;
        loading.finish();
        diameter::check(self.diameter, &model)?;
        // The series of a file are matched with those of the tensors' files.
        let stacks: BTreeSet<&Path> = inputs.iter().map(|input| input.input.as_path()).collect();
        self.check_input_tensors(&model, stacks.len())?;
        let _folder = self.prepare_folder(&files, &inputs, &model)?;
        let choosing = context.recorder.span(Stage::Verify, "device");
        let mut engine = match &self.cpu_because {
            None => devices.for_model(context, &model, self.device, &self.options())?,
            Some(why) => devices.cpu_after(context, &model, &self.options(), why.clone(), Vec::new())?,
        };
        choosing.finish();
        engine.profile = profile.cloned();
        engine.report(context);
        self.predict_each(context, devices, &model, &mut engine, inputs, live)
    }

    /// Refuses options that conflict, or that need an option that is missing.
    pub(crate) fn check(&self) -> Result<(), JobError> {
        self.options().check()?;
        if !self.input_tensors.is_empty() && (self.channel.is_some() || !self.channels.is_empty()) {
            return Err(JobError::wrong_use_with(
                message!("{INPUT} cannot be combined with {CHANNEL} or {CHANNELS}"),
                message!("give the channels of the inputs with {INPUT}"),
            ));
        }
        check_given_axes(self.voxel_axes_um)?;
        preprocess::check(&self.preprocess)?;
        if self.outputs.contains(&Output::Preprocessed) && self.preprocess.is_empty() {
            return Err(JobError::wrong_use_with(
                message!("{OUTPUT_PREPROCESSED} writes the preprocessed stack, but there are no steps"),
                message!("give them with {PREPROCESS}"),
            ));
        }
        Ok(())
    }

    /// Returns the stacks among the inputs, each once, without label images and earlier results in folders.
    ///
    /// # Errors
    /// [`JobError::Io`] if a folder cannot be read; [`JobError::Mismatch`] if there are no stacks.
    pub fn stacks(&self, context: &Context) -> Result<Vec<PathBuf>, JobError> {
        let found = expand_inputs(&self.inputs, self.axes.as_ref())?;
        let unread = unread_pictures(&self.inputs, &found);
        if unread > 0 {
            let (pictures, were, them) =
                (counted(unread, "PNG or JPEG file"), by_count(unread, "was", "were"), by_count(unread, "it", "them"));
            context.note(format!(
                "{pictures} in the folder {were} not read, because the folder contains stacks of other formats: to read {them}, \
                 give {them} by name"
            ));
        }
        let mut files = only_stacks(&self.inputs, found.clone());
        if files.len() < found.len() {
            let skipped = match found.len() - files.len() {
                1 => "1 label image or earlier result in the folder was skipped".to_owned(),
                left => format!("{left} label images and earlier results in the folder were skipped"),
            };
            context.note(skipped);
        }
        let all = files.len();
        let mut seen = BTreeSet::new();
        files.retain(|file| seen.insert(std::path::absolute(file).unwrap_or_else(|_| file.clone())));
        if files.len() < all {
            let repeated = counted(all - files.len(), "repeated input");
            context.note(format!("{repeated} left out: each file is used once"));
        }
        if files.is_empty() {
            return Err(JobError::Mismatch {
                path: self.inputs.first().cloned().unwrap_or_default(),
                problem: "the folder contains only results of earlier predictions".into(),
                next_step: "give the folder that contains the stacks".into(),
            });
        }
        Ok(files)
    }

    /// Creates the folder of the results, unless they would overwrite inputs, be written inside other data, or could not be
    /// named in their record. A new folder is removed again if nothing was written to it.
    fn prepare_folder(
        &self,
        files: &[PathBuf],
        inputs: &[SeriesInput],
        model: &Model,
    ) -> Result<ResultsFolder, JobError> {
        self.refuse_inputs(files, inputs, model.task)?;
        refuse_inside_package(self.folder(), &[&model.path])?;
        let tensor_files = self.tensor_files(files);
        let paths: Vec<&Path> = files.iter().chain(&tensor_files).map(PathBuf::as_path).collect();
        results::refuse_inside_zarr(self.folder(), &paths)?;
        for path in [absolute(&model.path), absolute(&self.out)] {
            if path.to_str().is_none() {
                let what = "the path is not valid Unicode (UTF-8), so the provenance record cannot name it";
                return Err(JobError::wrong_use_with(format!("{}: {what}", path.display()), "rename it"));
            }
        }
        let folder = self.folder();
        ResultsFolder::create(folder).map_err(JobError::results_folder(folder))
    }

    /// Predicts the inputs one after the other. An input that fails does not stop the others, unless the disk is full.
    fn predict_each(
        &self,
        context: &Context,
        devices: &Devices,
        model: &Model,
        engine: &mut SelectedEngine,
        inputs: Vec<SeriesInput>,
        live: Option<&dyn LiveSink>,
    ) -> Result<PredictOutcome, JobError> {
        let mut outcome = PredictOutcome::default();
        let count = inputs.len();
        for (index, SeriesInput { input, series, stem }) in inputs.into_iter().enumerate() {
            context.emit(&Event::Started { input: input.clone(), index, count });
            let number = series.as_ref().map_or(0, |series| *series);
            let report = series.and_then(|series| {
                let job = self.for_series(series);
                let (input, stem, series) = (input.as_path(), stem.as_str(), &self.series);
                let run = InputRun { job: &job, series, context, model, input, stem, live, is_later: false };
                catch_unwind(AssertUnwindSafe(|| predict_input(run, devices, engine)))
                    .unwrap_or_else(|panic| Err(JobError::Panicked(panic_text(&*panic))))
            });
            match &report {
                Err(error) if context.cancel.is_discarding() || is_full_disk(error) => {
                    KeptSlices::discard(self, &stem);
                }
                Err(_) => KeptSlices::discard_temporary(self, &stem),
                Ok(_) => {}
            }
            match report {
                Ok(report) => {
                    let outputs = report.outputs.iter().map(|artifact| artifact.path.clone()).collect();
                    context.emit(&Event::Finished { input: input.clone(), outputs });
                    outcome.done.push(report);
                }
                Err(JobError::Canceled) => return Err(JobError::Canceled),
                // After canceling, reading a preprocessed image fails with another error.
                Err(_) if context.cancel.is_canceled() => return Err(JobError::Canceled),
                Err(error) => {
                    let series_prefix = if number > 0 { format!("series {number}: ") } else { String::new() };
                    context.emit(&Event::Failed {
                        input: input.clone(),
                        reason: format!("{series_prefix}{error}"),
                        names_input: error.names(&input),
                    });
                    let fatal = count > 1 && is_full_disk(&error);
                    let named = error.message_about(&input);
                    let message = if number > 0 { message!("series {number} of {named}") } else { named };
                    outcome.failed.push(InputFailure {
                        input,
                        series: number,
                        kind: error.kind(),
                        settings: message.named_settings(),
                        message: message.into(),
                        next_step: error.next_step().map(String::from),
                        existing: error.existing_output(),
                    });
                    if fatal {
                        context.note("the disk is full: the remaining inputs were not processed");
                        break;
                    }
                }
            }
        }
        Ok(outcome)
    }

    /// Refuses a job whose results would overwrite its inputs.
    fn refuse_inputs(&self, files: &[PathBuf], results: &[SeriesInput], task: ModelTask) -> Result<(), JobError> {
        // A folder that does not exist holds no inputs.
        let Ok(out) = self.folder().canonicalize() else { return Ok(()) };
        // Canonical paths are compared, because the file system may be case-insensitive.
        let inputs: BTreeSet<PathBuf> = files.iter().map(|f| target::resolved(f)).collect();
        let is_input = |path: &PathBuf| path.canonicalize().is_ok_and(|path| inputs.contains(&path));
        let paths = |result: &SeriesInput| {
            let files = files::Paths::new(&out, &result.stem, task, self.table_format).all();
            files.into_iter().chain(zarr::paths_in(&out, &result.stem, task))
        };
        match results.iter().flat_map(paths).find(is_input) {
            None => Ok(()),
            Some(path) => Err(StorageError::IsInput { path }.into()),
        }
    }
}

/// Predicts an input on the job's device, and if that fails, with smaller tiles, in 32 bits or on the next devices; the
/// report has notes about that. `engine` becomes the device of the next input.
fn predict_input(
    mut run: InputRun<'_>,
    devices: &Devices,
    engine: &mut SelectedEngine,
) -> Result<InputReport, JobError> {
    let InputRun { job, context, model, input, stem, .. } = run;
    if std::path::absolute(input).is_ok_and(|path| path.to_str().is_none()) {
        return Err(JobError::Mismatch {
            path: input.to_owned(),
            problem: "the name is not valid Unicode (UTF-8), so the provenance record cannot name it".into(),
            next_step: "rename the file".into(),
        });
    }
    engine.come_back(context);
    let options = job.options();
    let mut attempts = Attempts::new(context, devices, model, &options, engine, true);
    if engine.is_wide {
        let precision = engine.precision(model, job.precision);
        attempts.note(format!("an earlier input exceeded the range of 16-bit floats; computing in {precision}"));
    }
    let result = loop {
        let error = match one::predict(&run, attempts.engine()) {
            Ok(report) => break Ok(report),
            Err(error) => error,
        };
        match attempts.after(error) {
            // Finished slices may be close to the limits of the range of 16-bit floats.
            Ok(NextAttempt::In32Bits) => KeptSlices::start_over(job, stem),
            // The finished slices are continued.
            Ok(NextAttempt::SmallerSessions | NextAttempt::OnNextDevice) => run.is_later = true,
            Err(error) => break Err(error),
        }
    };
    let (next, notes) = attempts.end_input();
    *engine = next;
    let mut report: InputReport = result?;
    report.notes.splice(..0, notes.into_iter().map(Note::from)).for_each(drop);
    Ok(report)
}

/// Whether an error means a full disk or an exhausted quota, so that the next input would also fail.
fn is_full_disk(error: &JobError) -> bool {
    let source = match error {
        JobError::Io { error, .. } => error,
        JobError::Format(FormatError::Io { source, .. }) | JobError::Storage(StorageError::Io { source, .. }) => source,
        _ => return false,
    };
    matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Returns the number of PNG and JPEG files that are not read, because the folder that was given has stacks of other formats.
/// Hidden files and previews of predictions do not count.
fn unread_pictures(inputs: &[PathBuf], found: &[PathBuf]) -> usize {
    let is_picture = |path: &Path| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let is_preview = matches!(ArtifactKind::from_name(&name), Some((ArtifactKind::Preview, _)));
        is_raster(path) && path.is_file() && !name.starts_with('.') && !is_preview
    };
    let has_stacks = |folder: &Path| found.iter().any(|file| file.parent() == Some(folder) && !is_raster(file));
    let folders = inputs.iter().filter(|input| has_stacks(input.as_path()));
    let entries = folders.filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten();
    entries.filter(|entry| is_picture(&entry.path())).count()
}

#[cfg(test)]
#[path = "run_tests.rs"]
mod fallback_tests;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_full_disk_ends_the_job() {
        let path = Path::new("x");
        let errors = |kind: ErrorKind| {
            [
                JobError::Io { path: path.to_owned(), error: kind.into() },
                JobError::Format(FormatError::Io { file: path.to_owned(), doing: "writing", source: kind.into() }),
                JobError::Storage(StorageError::Io { path: path.to_owned(), doing: "writing", source: kind.into() }),
            ]
        };
        for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded] {
            assert!(errors(kind).iter().all(is_full_disk), "{kind}");
        }
        for kind in [ErrorKind::OutOfMemory, ErrorKind::PermissionDenied] {
            assert!(!errors(kind).iter().any(is_full_disk), "{kind}");
        }
    }
}

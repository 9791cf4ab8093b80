//! Runs a prediction job: its checks, then its inputs one after the other.

use super::kept::KeptSlices;
use super::series::SeriesInput;
use super::{InputFailure, InputReport, LiveSink, Output, PredictJob, PredictOutcome};
use super::{expand_inputs, files, one, only_stacks, panic_text, zarr};
use crate::devices::{Devices, SelectedEngine};
use crate::diameter;
use crate::error::with_name;
use crate::{AppliedProfile, Context, Event, JobError, JobErrorKind, Model, ModelTask, preprocess, results};
use cytoscope_engine::{EngineError, Precision};
use cytoscope_formats::FormatError;
use cytoscope_model_package::refuse_inside_package;
use cytoscope_profile::Stage;
use cytoscope_storage::{StorageError, target};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

impl PredictJob {
    /// Runs the job. If an input fails, the error is reported and the other inputs are processed; cancellation and a
    /// full disk end the job.
    ///
    /// # Errors
    /// [`JobError`] if the job cannot start (no model, device or output folder), or is cancelled.
    pub fn run(&self, context: &Context, devices: &Devices) -> Result<PredictOutcome, JobError> {
        self.run_live(context, devices, None)
    }

    /// Like [`PredictJob::run`], but passes finished tiles to `live`. The results are bitwise identical.
    ///
    /// # Errors
    /// As [`PredictJob::run`].
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
    /// As [`PredictJob::run`].
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
        self.prepare_folder(&files, &inputs, &model)?;
        let choosing = context.recorder.span(Stage::Verify, "device");
        let mut engine = devices.for_model(context, &model, self.device, &self.options())?;
        choosing.finish();
        engine.profile = profile.cloned();
        engine.report(context);
        self.predict_each(context, devices, &model, &mut engine, inputs, live)
    }

    /// Refuses options that conflict, or that need an option that is missing.
    pub(crate) fn check(&self) -> Result<(), JobError> {
        self.options().check()?;
        if !self.input_tensors.is_empty() && (self.channel.is_some() || !self.channels.is_empty()) {
            let problem = "--input cannot be combined with --channel or --channels";
            return Err(JobError::WrongUse(format!("{problem}: give the channels of the inputs with --input")));
        }
        preprocess::check(&self.preprocess)?;
        if self.outputs.contains(&Output::Preprocessed) && self.preprocess.is_empty() {
            let problem = "--outputs preprocessed writes the preprocessed stack, but there are no steps";
            return Err(JobError::WrongUse(format!("{problem}: give them with --preprocess")));
        }
        Ok(())
    }

    /// Returns the stacks among the inputs, without label images and earlier results in folders.
    ///
    /// # Errors
    /// [`JobError::Io`] if a folder cannot be read; [`JobError::Mismatch`] if there are no stacks.
    pub fn stacks(&self, context: &Context) -> Result<Vec<PathBuf>, JobError> {
        let found = expand_inputs(&self.inputs, self.axes.as_ref())?;
        let files = only_stacks(&self.inputs, found.clone());
        if files.len() < found.len() {
            let skipped = match found.len() - files.len() {
                1 => "1 label image or earlier result in the folder was skipped".to_owned(),
                left => format!("{left} label images and earlier results in the folder were skipped"),
            };
            context.note(skipped);
        }
        if files.is_empty() {
            return Err(JobError::Mismatch {
                path: self.inputs.first().cloned().unwrap_or_default(),
                problem: "the folder contains only results of earlier predictions".to_owned(),
                next_step: "give the folder that contains the stacks".to_owned(),
            });
        }
        Ok(files)
    }

    /// Creates the folder of the results, unless they would overwrite inputs, be written inside other data, or could not be
    /// named in their record.
    fn prepare_folder(&self, files: &[PathBuf], inputs: &[SeriesInput], model: &Model) -> Result<(), JobError> {
        self.refuse_inputs(files, inputs, model.task)?;
        refuse_inside_package(self.folder(), &[&model.path])?;
        let of_tensors = self.tensor_files(files);
        let paths: Vec<&Path> = files.iter().chain(&of_tensors).map(PathBuf::as_path).collect();
        results::refuse_inside_zarr(self.folder(), &paths)?;
        for path in [&model.path, &std::path::absolute(&self.out).unwrap_or_else(|_| self.out.clone())] {
            if path.to_str().is_none() {
                let what = "the path is not valid Unicode (UTF-8), so the provenance record cannot name it";
                return Err(JobError::WrongUse(format!("{}: {what}; rename it", path.display())));
            }
        }
        let folder = self.folder();
        std::fs::create_dir_all(folder).map_err(|error| JobError::Io { path: folder.to_owned(), error })
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
                let job = self.of_series(series);
                let attempt =
                    Attempt { job: &job, context, model, input: &input, stem: &stem, live, notes: Vec::new() };
                catch_unwind(AssertUnwindSafe(|| attempt.run(engine, devices)))
                    .unwrap_or_else(|panic| Err(JobError::Panicked(panic_text(&*panic))))
            });
            if let Err(error) = &report
                && (context.cancel.is_discarding() || is_full_disk(error))
            {
                KeptSlices::discard(self, &stem);
            }
            match report {
                Ok(report) => {
                    let outputs = report.outputs.iter().map(|artifact| artifact.path.clone()).collect();
                    context.emit(&Event::Finished { input: input.clone(), outputs });
                    outcome.done.push(report);
                }
                Err(JobError::Cancelled) => return Err(JobError::Cancelled),
                // After cancelling, reading a preprocessed image fails with another error.
                Err(_) if context.cancel.is_cancelled() => return Err(JobError::Cancelled),
                Err(error) => {
                    context.emit(&Event::Failed { input: input.clone(), reason: error.to_string() });
                    let fatal = count > 1 && is_full_disk(&error);
                    let named = with_name(&input.display().to_string(), &error.to_string());
                    let message = if number > 0 { format!("series {number} of {named}") } else { named };
                    outcome.failed.push(InputFailure { input, series: number, kind: error.kind(), message });
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

/// The prediction of an input, and what it took.
struct Attempt<'a> {
    job: &'a PredictJob,
    context: &'a Context,
    model: &'a Model,
    input: &'a Path,
    /// Name of the results without their endings.
    stem: &'a str,
    live: Option<&'a dyn LiveSink>,
    /// What did not work, and what was tried instead.
    notes: Vec<String>,
}

impl Attempt<'_> {
    /// Shows a note, and keeps it for the report of the input.
    fn note(&mut self, note: String) {
        self.context.note(note.clone());
        self.notes.push(note);
    }

    /// Predicts the input on the device of `engine`; if that fails, in 32 bits or on the CPU, where this can help. Another
    /// device is kept for the next inputs.
    fn run(mut self, engine: &mut SelectedEngine, devices: &Devices) -> Result<InputReport, JobError> {
        if std::path::absolute(self.input).is_ok_and(|path| path.to_str().is_none()) {
            return Err(JobError::Mismatch {
                path: self.input.to_owned(),
                problem: "the name is not valid Unicode (UTF-8), so the provenance record cannot name it".to_owned(),
                next_step: "rename the file".to_owned(),
            });
        }
        engine.come_back(self.context);
        let mut result = self.on_device(engine);
        // In 32 bits, the network may stay within the range of the type.
        if let Err(JobError::Engine(e @ EngineError::NotFinite { .. })) = &result {
            let wide = engine.in_32_bits();
            self.note(format!("{e}; computing in {}", wide.precision(self.model, self.job.precision)));
            result = self.on_device(&wide);
        }
        let is_half = self.job.precision.is_some_and(Precision::is_half);
        let mut report = match result {
            Err(error) if error.kind() == JobErrorKind::Cancelled => Err(JobError::Cancelled),
            // The CPU has no 16-bit floats either.
            Err(JobError::Engine(e @ EngineError::UnsupportedPrecision { .. })) if is_half => Err(JobError::Engine(e)),
            // If a device fails, the CPU takes over.
            Err(JobError::Engine(e)) if engine.has_fallback() => {
                self.note(format!("{e}; continuing on the CPU{}", if is_half { " in f32" } else { "" }));
                let cpu = devices.fall_back_to_cpu(self.context, self.model, &self.job.options(), engine, &e)?;
                cpu.report(self.context);
                let report = self.predict(&cpu);
                // Other inputs may fit the memory of the device; one that has failed is not used again.
                if matches!(e, EngineError::OutOfMemory { .. }) {
                    engine.leave();
                } else {
                    *engine = cpu;
                }
                report
            }
            other => other,
        }?;
        report.notes.splice(..0, self.notes).for_each(drop);
        Ok(report)
    }

    fn predict(&self, engine: &SelectedEngine) -> Result<InputReport, JobError> {
        one::predict(self.job, self.context, self.model, engine, self.input, self.stem, self.live)
    }

    /// Predicts the input on a device. If that runs out of memory, fewer tiles at once or smaller ones are tried, as long as
    /// the CPU could take over.
    fn on_device(&mut self, engine: &SelectedEngine) -> Result<InputReport, JobError> {
        let mut result = self.predict(engine);
        while let Err(JobError::Engine(e @ EngineError::OutOfMemory { .. })) = &result
            && engine.has_fallback()
            && (self.job.tiles.tile.is_none() || engine.last_batch() > 1)
            && engine.shrink_sessions()
        {
            let change = if engine.last_batch() > 1 { "fewer tiles at once" } else { "smaller tiles" };
            self.note(format!("{e}; trying {change}"));
            result = self.predict(engine);
        }
        result
    }
}

/// Whether an error is that of a full disk or an exhausted quota, so that the next input would fail, too.
fn is_full_disk(error: &JobError) -> bool {
    let source = match error {
        JobError::Io { error, .. } => error,
        JobError::Format(FormatError::Io { source, .. }) | JobError::Storage(StorageError::Io { source, .. }) => source,
        _ => return false,
    };
    matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
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

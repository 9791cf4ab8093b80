//! `cytoscope provenance`: shows how a result was made, and makes it again.

use super::failure::{Failure, Outcome};
use super::options::ReportOptions;
use super::simulate::SimulateJob;
use super::train::resume_command;
use super::{check_folder, devices, eprint_json, eprint_line, note_line, predict, print, print_json, progress};
use clap::Args;
use cytoscope_formats::{is_zarr_name, is_zarr_zip_name};
use cytoscope_pipeline::job_record::{AnyRecord, JobKind, JobRecord, read_record_of, record_path};
use cytoscope_pipeline::provenance::Provenance as PredictionRecord;
use cytoscope_pipeline::results::FileRecord;
use cytoscope_pipeline::{
    AS_RECORDED, ArtifactKind, Context, Event, JobErrorKind, Note, RecordSummary, Rerun as PredictionRerun,
};
use cytoscope_profile::Recorder;
use cytoscope_storage::Overwrite;
use cytoscope_storage::message;
use cytoscope_storage::setting::{FORCE, OUT, RESUME};
use cytoscope_train::{TrainEvent, TrainJob};
use cytoscope_worker::{ComparedOutput, ComparedOutputs, Job, RecordedRun, RerunOutput};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// Why the OME-Zarr of a prediction differs from a recorded one with another name.
const OTHER_NAME: &str = "an OME-Zarr states its name, so one with another name differs from the recorded one even if its \
                          values are the same: to compare them, write to the recorded name in another folder";

#[derive(Args)]
pub(crate) struct Provenance {
    /// Provenance record (NAME_provenance.json), or the result it belongs to.
    file: PathBuf,
    /// Run the recorded job again, and compare its results with the recorded ones.
    #[arg(long)]
    rerun: bool,
    /// Path that --rerun writes to instead of the recorded one: a file or folder, as the recorded command takes it. Further
    /// files are written beside it.
    #[arg(long, requires = "rerun", value_name = "PATH")]
    out: Option<PathBuf>,
    /// Folder that --rerun reads the inputs from, if they were moved: they are found by their names in it. A model that was
    /// moved is looked for in it, too.
    #[arg(long, requires = "rerun", value_name = "FOLDER")]
    inputs_in: Option<PathBuf>,
    /// Overwrite existing files; an input is never overwritten.
    #[arg(long, requires = "rerun")]
    force: bool,
    #[command(flatten)]
    report: ReportOptions,
}

/// Report of `provenance --json`.
#[derive(Serialize)]
struct ShownRecord<'a, R> {
    record: &'a R,
    /// Differences from the time when the record was written, one sentence each.
    differences: Vec<String>,
}

/// Report of `provenance --rerun --json`.
#[derive(Serialize)]
struct Rerun {
    /// Differences from the recorded run, one sentence each.
    differences: Vec<String>,
    outputs: Vec<ComparedOutput>,
}

impl Provenance {
    pub(crate) fn run(self) -> Outcome {
        let (path, record) = read_record_of(&self.file)?;
        if !self.rerun {
            return self.show(&path, &record);
        }
        self.refuse_changed(&path, &record)?;
        match self.with_inputs_found(record)? {
            AnyRecord::Prediction(record) => self.rerun_prediction(*record),
            AnyRecord::Job(record) => self.rerun_job(&path, &record),
        }
    }

    /// Returns the record with the inputs at their new place, if one is given.
    ///
    /// # Errors
    /// The failure of a folder without the inputs, or of an input that no longer exists.
    fn with_inputs_found(&self, mut record: AnyRecord) -> Result<AnyRecord, Failure> {
        if let Some(folder) = &self.inputs_in {
            record = record.with_inputs_in(folder)?.ok_or_else(|| {
                Failure::bad_input(format!("{}: no recorded input is in this folder", folder.display()))
                    .and_next("give the folder that contains them")
            })?;
        }
        match record.missing_inputs()?.first() {
            Some(path) => Err(Failure::bad_input(format!("the input {} no longer exists", path.display()))
                .and_next("restore it, or give the folder that contains it now with --inputs-in")),
            None => Ok(record),
        }
    }

    /// Refuses to replace results that have changed since they were recorded, such as labels that were edited; `path` is that of
    /// the record.
    fn refuse_changed(&self, path: &Path, record: &AnyRecord) -> Outcome {
        let first = match record {
            AnyRecord::Prediction(record) => record.outputs.first(),
            AnyRecord::Job(record) => record.outputs.first(),
        };
        // In a folder that was moved, the results are not those that would be replaced.
        let is_in_place = first.is_some_and(|first| first.path.exists());
        if self.out.is_some() || self.force || !is_in_place {
            return Ok(());
        }
        match record.changed_outputs(path).into_iter().next() {
            Some(change) => Err(Failure::new(JobErrorKind::WouldOverwrite, change)
                .and_next(message!("write to another path with {OUT}, or replace it with {FORCE}"))),
            None => Ok(()),
        }
    }

    /// Shows how the result was made, and what differs now; `path` is that of the record.
    fn show(&self, path: &Path, record: &AnyRecord) -> Outcome {
        let changed = record.changed_outputs(path);
        if self.report.json {
            let with_changed = |differences: Vec<String>| [differences, changed].concat();
            return match record {
                AnyRecord::Prediction(record) => {
                    print_json(&ShownRecord { differences: with_changed(record.differences()), record })
                }
                AnyRecord::Job(record) => {
                    print_json(&ShownRecord { differences: with_changed(record.differences()), record })
                }
            };
        }
        let RecordSummary { title, lines, mut differences } = record.summary();
        differences.extend(changed);
        print(&title);
        lines.iter().for_each(|line| print(&format!("  {}", line.text)));
        differences.iter().for_each(|message| print(&format!("  note: {message}")));
        if differences.is_empty() {
            print(&format!("  {AS_RECORDED}; --rerun makes the result again"));
        }
        Ok(())
    }

    /// Runs a prediction again, and compares its outputs with the recorded ones.
    fn rerun_prediction(&self, record: PredictionRecord) -> Outcome {
        let recorded = record.outputs.clone();
        let PredictionRerun { mut job, devices, notes: mut differences } = record.rerun(devices::for_request)?;
        if let Some(out) = &self.out {
            job.out.clone_from(out);
        }
        predict::check_out(&job.out)?;
        job.overwrite = Overwrite::from_force(self.force);
        let context = progress::context(self.report.json_progress, self.report.json, Recorder::totals_only());
        differences.iter().for_each(|message| context.note(message.as_str()));
        let outcome = job.run(&context, &devices)?;
        predict::finish(&outcome)?;
        let written = outcome.done.iter().flat_map(|report| &report.outputs);
        let records = written.filter(|output| output.kind == ArtifactKind::Provenance);
        let compared = ComparedOutputs::read_all(&recorded, records.map(|record| record.path.as_path()))?;
        if compared.outputs.iter().any(|output| !output.identical && is_renamed_zarr(&recorded, &output.path)) {
            context.note(OTHER_NAME);
            differences.push(OTHER_NAME.to_owned());
        }
        self.print_rerun(differences, compared)
    }

    /// Runs a job other than a prediction again, and compares its outputs with the recorded ones.
    fn rerun_job(&self, path: &Path, record: &JobRecord) -> Outcome {
        let existing = record.outputs.iter().map(|output| &output.path).find(|output| output.exists());
        if let Some(existing) = existing.filter(|_| self.out.is_none() && !self.force) {
            return Err(Failure::wrong_use(format!("the recorded result {} exists", existing.display()))
                .and_next(message!("write to another path with {OUT}, or replace it with {FORCE}")));
        }
        let (context, display) =
            progress::training_context(self.report.json_progress, self.report.json, Recorder::totals_only());
        let overwrite = Overwrite::from_force(self.force);
        let note = |differences: &[String]| differences.iter().for_each(|message| context.note(message.as_str()));
        let (output, differences) = if record.kind == JobKind::Simulate {
            let differences = record.differences();
            note(&differences);
            let job: SimulateJob = record.job_again(path, self.out.as_deref(), overwrite)?;
            check_folder(job.folder())?;
            job.run(&context, &[])?;
            (job.image_path(), differences)
        } else {
            let output = self.out.clone().map_or(RerunOutput::Recorded, RerunOutput::Path);
            let again = RecordedRun::of_job(path, record, &output, overwrite, devices::for_request)?;
            note(&again.differences);
            let on_event = |event: &TrainEvent| display.training_event(event);
            if let Job::Train(job) = &again.job {
                refuse_unfinished(job)?;
            }
            let (context, hints) = without_resume_hints(context);
            let result = again.job.run(&context, &again.devices, None, &on_event);
            if let (Err(_), Job::Train(job)) = (&result, &again.job) {
                self.note_unfinished(job, &hints);
            }
            result?;
            (again.output, again.differences)
        };
        self.print_rerun(differences, ComparedOutputs::read(&record.outputs, &record_path(&output))?)
    }

    /// Notes how a training run that was canceled or has failed is continued, if it has a checkpoint. `--rerun` cannot continue
    /// it. Without a checkpoint that can be read, the run's own hints are shown.
    fn note_unfinished(&self, job: &TrainJob, hints: &Mutex<Vec<Note>>) {
        let notes = match job.checkpoint_job() {
            Some(unfinished) => {
                let reached =
                    job.checkpoint_summary().map(|kept| format!(" up to step {} of {}", kept.step, kept.steps));
                let (reached, command) = (reached.unwrap_or_default(), resume_command(&unfinished));
                vec![Note::info(format!("the training run is kept{reached}; continue it with: {command}"))]
            }
            None => std::mem::take(&mut *hints.lock().unwrap_or_else(PoisonError::into_inner)),
        };
        for note in notes {
            match self.report.json_progress {
                true => eprint_json(&Event::Note(note)),
                false => eprint_line(&note_line(&note)),
            }
        }
    }

    /// Prints what differs from the recorded run, and how the new outputs compare with the recorded ones.
    fn print_rerun(&self, mut differences: Vec<String>, compared: ComparedOutputs) -> Outcome {
        let ComparedOutputs { outputs, missing } = compared;
        let not_written = missing.iter().map(|output| format!("{} was not written again", output.display()));
        if self.report.json {
            differences.extend(not_written);
            return print_json(&Rerun { differences, outputs });
        }
        for ComparedOutput { path, identical, other_format } in &outputs {
            let how = match (*identical, *other_format) {
                (true, _) => "identical to",
                (false, true) => "in another format than",
                (false, false) => "different from",
            };
            print(&format!("wrote {}: {how} the recorded result", path.display()));
        }
        not_written.for_each(|text| print(&text));
        Ok(())
    }
}

/// Whether an output is an OME-Zarr, as some of the recorded outputs are, but none of these has its name.
fn is_renamed_zarr(recorded: &[FileRecord], output: &Path) -> bool {
    let is_zarr = |path: &Path| is_zarr_name(path) || is_zarr_zip_name(path);
    let has_name = |known: &FileRecord| known.path.file_name() == output.file_name();
    is_zarr(output) && recorded.iter().any(|known| is_zarr(&known.path)) && !recorded.iter().any(has_name)
}

/// Returns a context that keeps notes that name `--resume` instead of showing them, and the kept notes. A training run that
/// provenance repeats is continued by another command, which a note states in full.
fn without_resume_hints(context: Context) -> (Context, Arc<Mutex<Vec<Note>>>) {
    let hints = Arc::<Mutex<Vec<Note>>>::default();
    let (kept, shown) = (Arc::clone(&hints), Arc::clone(&context.sink));
    let sink = move |event: &Event| match event {
        Event::Note(note) if note.message.settings().any(|(_, setting)| setting == RESUME) => {
            kept.lock().unwrap_or_else(PoisonError::into_inner).push(note.clone());
        }
        _ => shown(event),
    };
    (Context { sink: Arc::new(sink), ..context }, hints)
}

/// Refuses to repeat a training run where an unfinished one exists, such as one that was killed, and says how to continue
/// that.
fn refuse_unfinished(job: &TrainJob) -> Outcome {
    let Some(unfinished) = job.checkpoint_job() else { return Ok(()) };
    let (folder, command) = (job.folder(), resume_command(&unfinished));
    let problem = format!("{}: an unfinished training run already exists here", folder.display());
    let next_step = message!("write to another path with {OUT}, or continue it with: {command}");
    Err(Failure::bad_input(problem).and_next(next_step))
}

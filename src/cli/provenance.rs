//! `cytoscope provenance`: shows how a result was made, and makes it again.

use super::failure::{Failure, Outcome};
use super::options::ReportOptions;
use super::simulate::SimulateJob;
use super::{check_folder, devices, predict, print, print_json, progress};
use clap::Args;
use cytoscope_engine::DeviceRequest;
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::job_record::{
    AnyRecord, JobKind, JobRecord, Recordable, read_any, read_record_of, record_path,
};
use cytoscope_pipeline::packages::ImportJob;
use cytoscope_pipeline::provenance::Provenance as PredictionRecord;
use cytoscope_pipeline::results::FileRecord;
use cytoscope_pipeline::{
    AS_RECORDED, ArtifactKind, ConvertJob, EvaluateJob, ExportJob, JobError, MeasureJob, MeshJob, RecordSummary,
    Rerun as PredictionRerun, SegmentJob,
};
use cytoscope_profile::Recorder;
use cytoscope_storage::Overwrite;
use cytoscope_storage::message;
use cytoscope_storage::setting::{FORCE, OUT};
use cytoscope_train::{EvaluateModelJob, LimitedQuantization, TrainEvent, TrainJob, TrainPrecision};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};

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
    outputs: Vec<Compared>,
}

/// An output of a rerun.
#[derive(Serialize)]
struct Compared {
    path: PathBuf,
    /// Whether it has the same bytes as the recorded one. Packages state when and how fast they were made, so they
    /// usually differ.
    identical: bool,
}

impl Provenance {
    pub(crate) fn run(self) -> Outcome {
        let (path, record) = read_record_of(&self.file)?;
        if !self.rerun {
            return self.show(&record);
        }
        match record {
            AnyRecord::Prediction(record) => self.rerun_prediction(*record),
            AnyRecord::Job(record) => self.rerun_job(&path, &record),
        }
    }

    /// Shows how the result was made, and what differs now.
    fn show(&self, record: &AnyRecord) -> Outcome {
        if self.report.json {
            return match record {
                AnyRecord::Prediction(record) => print_json(&ShownRecord { differences: record.differences(), record }),
                AnyRecord::Job(record) => print_json(&ShownRecord { differences: record.differences(), record }),
            };
        }
        let RecordSummary { title, lines, differences } = record.summary();
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
        let PredictionRerun { mut job, devices, notes: differences } = record.rerun(devices::for_request)?;
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
        let mut outputs = Vec::new();
        for record in written.filter(|output| output.kind == ArtifactKind::Provenance) {
            if let AnyRecord::Prediction(new) = read_any(&record.path)? {
                outputs.extend(compared(&recorded, new.outputs));
            }
        }
        self.print_rerun(differences, outputs)
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
        let mut differences = record.differences();
        let again =
            RerunRequest { path, record, out: self.out.as_deref(), overwrite: Overwrite::from_force(self.force) };
        differences.iter().for_each(|message| context.note(message.as_str()));
        let output = match record.kind {
            JobKind::Segment => again.run(|job: &SegmentJob| job.run(&context).map(drop)),
            JobKind::Measure => again.run(|job: &MeasureJob| job.run(&context).map(drop)),
            JobKind::Mesh => again.run(|job: &MeshJob| job.run(&context).map(drop)),
            JobKind::Convert => again.run(|job: &ConvertJob| job.run(&context)),
            JobKind::Evaluate => again.run(|job: &EvaluateJob| job.run(&context).map(drop)),
            JobKind::EvaluateModel => {
                let mut job = again.job::<EvaluateModelJob>()?;
                let (devices, device_differences) = replay_device(&mut job.device, record, || job.precision = None);
                device_differences.iter().for_each(|message| context.note(message.as_str()));
                differences.extend(device_differences);
                let out = job.out.clone().ok_or_else(no_output)?;
                job.run(&context, &devices).map(|_| out)
            }
            // The package does not depend on the devices: all of this machine are compared with the reference executor.
            JobKind::Import => again.run(|job: &ImportJob| job.run(&context, &devices::discover()).map(drop)),
            JobKind::Export => again.run(|job: &ExportJob| job.run(&context).map(drop)),
            JobKind::Quantize => again.run(|job: &LimitedQuantization| job.run(&context).map(drop)),
            JobKind::Simulate => {
                let job = again.job::<SimulateJob>()?;
                check_folder(job.folder())?;
                job.run(&context, &[]).map(|_| job.image_path())
            }
            JobKind::Train => {
                let mut job = again.job::<TrainJob>()?;
                let (devices, device_differences) = replay_device(&mut job.device, record, || {
                    job.config.precision = TrainPrecision::Auto;
                });
                device_differences.iter().for_each(|message| context.note(message.as_str()));
                differences.extend(device_differences);
                let on_event = |event: &TrainEvent| display.training_event(event);
                job.run(&context, &devices, &on_event).map(|report| report.out)
            }
        }?;
        let outputs = match read_any(&record_path(&output))? {
            AnyRecord::Job(new) => {
                let missing = record.outputs.iter().skip(new.outputs.len());
                differences.extend(missing.map(|output| format!("{} was not written again", output.path.display())));
                compared(&record.outputs, new.outputs)
            }
            AnyRecord::Prediction(_) => Vec::new(),
        };
        self.print_rerun(differences, outputs)
    }

    /// Prints what differs from the recorded run, and how the new outputs compare with the recorded ones.
    fn print_rerun(&self, differences: Vec<String>, outputs: Vec<Compared>) -> Outcome {
        if self.report.json {
            return print_json(&Rerun { differences, outputs });
        }
        for Compared { path, identical } in &outputs {
            let how = if *identical { "identical to" } else { "different from" };
            print(&format!("wrote {}: {how} the recorded result", path.display()));
        }
        Ok(())
    }
}

/// A recorded job that is run again.
struct RerunRequest<'a> {
    /// The record's path.
    path: &'a Path,
    record: &'a JobRecord,
    out: Option<&'a Path>,
    overwrite: Overwrite,
}

impl RerunRequest<'_> {
    fn job<J: Recordable + DeserializeOwned>(&self) -> Result<J, JobError> {
        self.record.job_again(self.path, self.out, self.overwrite)
    }

    /// Runs the job, and returns the path of its first output.
    fn run<J: Recordable + DeserializeOwned>(
        &self,
        run: impl FnOnce(&J) -> Result<(), JobError>,
    ) -> Result<PathBuf, JobError> {
        let job = self.job::<J>()?;
        let first = job.outputs().first().map(|path| path.to_path_buf()).ok_or_else(no_output)?;
        run(&job)?;
        Ok(first)
    }
}

/// Returns the error for a recorded job that states no output.
fn no_output() -> JobError {
    JobError::wrong_use_with("the recorded job states no output", message!("give a path for its result with {OUT}"))
}

/// Compares the outputs of a rerun with the recorded ones, which are in the same order.
fn compared(recorded: &[FileRecord], new: Vec<FileRecord>) -> Vec<Compared> {
    let same = |a: &FileRecord, b: &FileRecord| (a.bytes, &a.sha256) == (b.bytes, &b.sha256);
    let pairs = new.into_iter().enumerate();
    pairs
        .map(|(i, new)| Compared { identical: recorded.get(i).is_some_and(|old| same(old, &new)), path: new.path })
        .collect()
}

/// Requests the recorded device, or another one if it is not available. Returns the devices to choose from, and what
/// differs, one sentence each. `choose_precision` leaves the precision to the program, if the recorded one is not available.
fn replay_device(
    request: &mut DeviceRequest,
    record: &JobRecord,
    choose_precision: impl FnOnce(),
) -> (Devices, Vec<String>) {
    let mut differences = Vec::new();
    let Some(recorded) = &record.device else { return (devices::for_request(*request), differences) };
    let available = devices::for_request(DeviceRequest::Device(recorded.id));
    let found = available.list().iter().find(|device| device.id == recorded.id);
    if let Some(device) = found.filter(|device| device.usable) {
        *request = DeviceRequest::Device(recorded.id);
        if device.name != recorded.name {
            differences.push(format!(
                "the recorded result was made on {} ({}), which is {} now: for the same result, use that device",
                recorded.id, recorded.name, device.name
            ));
        }
        return (available, differences);
    }
    let reason = found.map_or("there is no such device", |device| device.reason.as_str());
    differences.push(format!(
        "the recorded device {} ({}) is not available ({reason}): another one is used; for the same result, use a machine \
         that has it",
        recorded.id, recorded.name
    ));
    *request = DeviceRequest::Auto;
    let mut precisions = available.list().iter().filter(|device| device.usable).flat_map(|device| &device.precisions);
    if let Some(precision) = record.precision
        && !precisions.any(|known| *known == precision)
    {
        choose_precision();
        differences.push(format!("the recorded precision {precision} is not available: another one is used"));
    }
    (available, differences)
}

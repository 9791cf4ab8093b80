//! Recorded jobs that are run again: they are read and prepared on separate threads, run in the engine like other jobs,
//! and what they have written is compared with the record.

use crate::disk::may_write;
use crate::document::file_name;
use crate::effect::Wake;
use crate::engine_notes::{failure_in_window, message_in_window};
use cytoscope_engine::{Device, EngineError};
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::job_record::{AnyRecord, JobKind, read_any, record_path};
use cytoscope_pipeline::results::FileRecord;
use cytoscope_pipeline::{ArtifactKind, JobError, user_folder};
use cytoscope_storage::{Overwrite, ResultsFolder, io_message};
use cytoscope_train::TrainJob;
use cytoscope_worker::{ComparedOutputs, Job, JobId, JobResult, RecordedRun, RerunOutput};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Name of the default folder for the results of a job that is run again, beside its record.
const FOLDER: &str = "rerun";

/// Maximum number of names that are tried for that folder.
const MAX_FOLDERS: usize = 1000;

/// Why a simulation cannot be run again in the window.
const SIMULATED: &str = "On the command line, cytoscope provenance --rerun simulates the stack again.";

/// A recorded job that is ready to be run again.
#[derive(Debug)]
pub(crate) struct PreparedRerun {
    /// Title of the job.
    pub(crate) title: String,
    /// The job.
    pub(crate) job: Job,
    /// Differences from the recorded run, one sentence each.
    pub(crate) differences: Vec<String>,
    /// What its results are compared with.
    pub(crate) rerun: Rerun,
}

/// A job that is run again.
#[derive(Debug)]
pub(crate) struct Rerun {
    /// Name of the recorded result.
    name: String,
    /// The recorded outputs, in order.
    recorded: Vec<FileRecord>,
    /// The first new output.
    output: PathBuf,
    /// Whether the result is a package, which states when it was made.
    is_package: bool,
    /// The checkpoint folder, if it is a training run. It is removed before the folder of the results.
    training: Option<TrainingFolder>,
    /// The folder of the results, which is removed if it stays empty.
    _folder: ResultsFolder,
}

/// How a job that was run again has ended without a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RerunEnd {
    /// The user has canceled it.
    Canceled,
    /// It has failed.
    Failed,
}

/// The checkpoint folder of a training run that is run again, which this window has created. It is removed when this is
/// dropped, so that nothing is left of a run that was canceled or that ends with the window.
#[derive(Debug)]
struct TrainingFolder(Option<Box<TrainJob>>);

impl TrainingFolder {
    /// Creates the folder of a run; `None` if something exists at its path, which the run will refuse.
    fn reserve(job: &TrainJob) -> Result<Option<Self>, JobError> {
        let is_new = job.reserve_folder()?;
        Ok(is_new.then(|| Self(Some(Box::new(job.clone())))))
    }

    /// Leaves the folder as it is from now on.
    fn release(&mut self) {
        self.0 = None;
    }

    /// Leaves the folder as it is from now on, if it holds a checkpoint. Returns its path then.
    fn keep_checkpoint(&mut self) -> Option<PathBuf> {
        self.0.take_if(|job| job.has_checkpoint()).map(|job| job.folder())
    }

    /// Removes the folder with the checkpoint in it.
    fn discard(&mut self) -> Result<(), String> {
        let Some(job) = self.0.take() else { return Ok(()) };
        job.discard_unused().map_err(|error| message_in_window(&error.message()))
    }
}

impl Drop for TrainingFolder {
    fn drop(&mut self) {
        if let Err(reason) = self.discard() {
            tracing::warn!("the folder of a training run that was run again is kept: {reason}");
        }
    }
}

/// New results beside the recorded ones.
#[derive(Debug)]
pub(crate) struct ComparedRerun {
    /// Name of the recorded result.
    pub(crate) name: String,
    /// Whether the result is a package, which states when it was made.
    pub(crate) is_package: bool,
    /// The comparison.
    pub(crate) outputs: ComparedOutputs,
}

/// What a thread has done.
#[derive(Debug)]
pub(crate) enum RerunEvent {
    /// A job was prepared, or why it cannot be run.
    Prepared(Result<Box<PreparedRerun>, String>),
    /// The results of a job were compared, or why not.
    Compared(Result<ComparedRerun, String>),
    /// What a training run without a result has left was removed, or why not; the folder of its checkpoint, if that is kept.
    Discarded(Result<Option<PathBuf>, String>),
}

/// The jobs that are run again.
pub(crate) struct Reruns {
    /// Those that were queued and have not ended.
    active: BTreeMap<JobId, Rerun>,
    /// Number of threads that have not reported.
    busy: usize,
    sender: Sender<RerunEvent>,
    receiver: Receiver<RerunEvent>,
    wake: Wake,
}

impl Reruns {
    /// No jobs.
    pub(crate) fn new(wake: &Wake) -> Self {
        let (sender, receiver) = channel();
        Self { active: BTreeMap::new(), busy: 0, sender, receiver, wake: Arc::clone(wake) }
    }

    /// Whether a job is being prepared, or results are being compared.
    pub(crate) fn is_busy(&self) -> bool {
        self.busy > 0
    }

    /// Reads and prepares the job of a record, which writes to a folder. The devices are those to choose from.
    ///
    /// # Errors
    /// A message if the system starts no thread.
    pub(crate) fn prepare(&mut self, record: PathBuf, folder: PathBuf, devices: Vec<Device>) -> Result<(), String> {
        self.spawn(move || RerunEvent::Prepared(prepared(&record, &folder, devices).map(Box::new)))
    }

    /// Adds a job that was queued.
    pub(crate) fn started(&mut self, id: JobId, rerun: Rerun) {
        self.active.insert(id, rerun);
    }

    /// Compares the results of a job with the recorded ones, if it is one that was run again. Returns whether it is.
    ///
    /// # Errors
    /// A message if the system starts no thread.
    pub(crate) fn finished(&mut self, id: JobId, result: &JobResult) -> Result<bool, String> {
        let Some(mut rerun) = self.active.remove(&id) else { return Ok(false) };
        // The run itself has removed its folder.
        rerun.training.iter_mut().for_each(TrainingFolder::release);
        let records = new_records(&rerun.output, result);
        self.spawn(move || RerunEvent::Compared(compared(rerun, &records)))?;
        Ok(true)
    }

    /// Forgets the jobs that ended without a result; `end` states how, if a job has ended. The checkpoint of a training run is
    /// kept if it has failed, and removed if it was canceled.
    pub(crate) fn forget_ended(&mut self, end: impl Fn(JobId) -> Option<RerunEnd>) {
        let ended: Vec<(JobId, RerunEnd)> = self.active.keys().filter_map(|id| Some((*id, end(*id)?))).collect();
        for (id, end) in ended {
            let Some(mut rerun) = self.active.remove(&id) else { continue };
            let Some(mut training) = rerun.training.take() else { continue };
            let discard = move || {
                let kept = if end == RerunEnd::Failed { training.keep_checkpoint() } else { None };
                let discarded = training.discard();
                drop(rerun);
                RerunEvent::Discarded(discarded.map(|()| kept))
            };
            if let Err(reason) = self.spawn(discard) {
                // The folder was removed without a thread.
                tracing::warn!("{reason}");
            }
        }
    }

    /// What the threads have done since the last call.
    pub(crate) fn poll(&mut self) -> Vec<RerunEvent> {
        let events: Vec<RerunEvent> = self.receiver.try_iter().collect();
        self.busy = self.busy.saturating_sub(events.len());
        events
    }

    fn spawn(&mut self, work: impl FnOnce() -> RerunEvent + Send + 'static) -> Result<(), String> {
        let (sender, wake) = (self.sender.clone(), Arc::clone(&self.wake));
        let spawned = std::thread::Builder::new().name("rerun".to_owned()).spawn(move || {
            // Sending fails only if the window is closed.
            let _ = sender.send(work());
            wake();
        });
        spawned.map_err(|error| format!("{error}: close other programs and try again"))?;
        self.busy += 1;
        Ok(())
    }
}

/// Returns the folder in which the results of a record's job are written by default when it is run again: a new one beside
/// the record, or else, if that is not writable, in the user's folder. It is not created.
///
/// # Errors
/// Why the window cannot run the job.
pub(crate) fn default_folder(path: &Path, record: &AnyRecord) -> Result<PathBuf, &'static str> {
    if matches!(record, AnyRecord::Job(record) if record.kind == JobKind::Simulate) {
        return Err(SIMULATED);
    }
    let beside = path.parent().map(free_folder).filter(|folder| may_write(folder));
    Ok(beside.unwrap_or_else(|| free_folder(&user_folder().unwrap_or_else(std::env::temp_dir).join("results"))))
}

/// Returns a folder in `parent` that does not exist.
fn free_folder(parent: &Path) -> PathBuf {
    let name = |n: usize| parent.join(if n == 1 { FOLDER.to_owned() } else { format!("{FOLDER}_{n}") });
    (1..MAX_FOLDERS).map(name).find(|folder| !folder.exists()).unwrap_or_else(|| name(MAX_FOLDERS))
}

/// Reads a record and prepares its job to write to a folder.
fn prepared(path: &Path, folder: &Path, devices: Vec<Device>) -> Result<PreparedRerun, String> {
    let failure = |error: JobError| failure_in_window(&error.message(), error.next_step().as_deref());
    let record = read_any(path).map_err(failure)?;
    let created = ResultsFolder::create(folder).map_err(|error| io_message(folder, &error))?;
    let output = RerunOutput::Folder(folder.to_owned());
    let recorded = match &record {
        AnyRecord::Prediction(record) => record.outputs.clone(),
        AnyRecord::Job(record) => record.outputs.clone(),
    };
    let devices_for = |_| known_devices(devices);
    let run = match record {
        AnyRecord::Prediction(record) => {
            RecordedRun::of_prediction(*record, &output, Overwrite::Refuse, devices_for).map_err(failure)?
        }
        AnyRecord::Job(record) => {
            RecordedRun::of_job(path, &record, &output, Overwrite::Refuse, devices_for).map_err(failure)?
        }
    };
    let name = recorded.first().map_or_else(|| file_name(path), |first| file_name(&first.path));
    let is_package = matches!(run.job, Job::Import(_) | Job::Quantize { .. } | Job::Train(_));
    let training = match &run.job {
        Job::Train(job) => TrainingFolder::reserve(job).map_err(failure)?,
        _ => None,
    };
    let rerun = Rerun { name: name.clone(), recorded, output: run.output, is_package, training, _folder: created };
    Ok(PreparedRerun { title: format!("{name} · run again"), job: run.job, differences: run.differences, rerun })
}

/// The devices to choose from. Their engines are opened by the engine process only.
fn known_devices(devices: Vec<Device>) -> Devices {
    Devices::with_engines(devices, |device| {
        Err(EngineError::Unavailable { device: device.id, reason: device.reason_message() })
    })
}

/// Returns the records that a job has written: those of the inputs of a prediction, or that of the first output.
fn new_records(output: &Path, result: &JobResult) -> Vec<PathBuf> {
    let JobResult::Predict(outcome) = result else { return vec![record_path(output)] };
    let written = outcome.done.iter().flat_map(|report| &report.outputs);
    written.filter(|output| output.kind == ArtifactKind::Provenance).map(|output| output.path.clone()).collect()
}

/// Compares the outputs that the new records list with the recorded ones.
fn compared(rerun: Rerun, records: &[PathBuf]) -> Result<ComparedRerun, String> {
    let outputs = ComparedOutputs::read_all(&rerun.recorded, records.iter().map(PathBuf::as_path))
        .map_err(|error| message_in_window(&error.message()))?;
    Ok(ComparedRerun { name: rerun.name, is_package: rerun.is_package, outputs })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
    use super::*;
    use serde_json::{Value, json};

    fn write_record(folder: &Path, kind: &str, job: Value) -> PathBuf {
        let path = folder.join("c.npy_provenance.json");
        let output = json!({"path": folder.join("c.npy"), "bytes": 1, "sha256": "a"});
        let record = json!({
            "program": "cytoscope 0.0.1", "kind": kind, "job": job, "inputs": [], "outputs": [output],
            "finished_unix_secs": 7,
        });
        std::fs::write(&path, record.to_string()).unwrap();
        path
    }

    #[test]
    fn results_are_written_to_a_new_folder_beside_the_record_and_nothing_is_left_of_a_job_that_does_not_run() {
        let folder = tempfile::tempdir().unwrap();
        let job = json!({"input": folder.path().join("a.tif"), "output": folder.path().join("c.npy")});
        let path = write_record(folder.path(), "convert", job);
        let default = || default_folder(&path, &read_any(&path).unwrap());
        assert_eq!(default(), Ok(folder.path().join("rerun")));
        let prepared = prepared(&path, &default().unwrap(), Vec::new()).unwrap();
        assert_eq!(prepared.title, "c.npy · run again");
        assert!(prepared.differences.join("; ").contains("was made by cytoscope 0.0.1"), "{:?}", prepared.differences);
        let Job::Convert(job) = &prepared.job else { panic!("{:?}", prepared.job) };
        assert_eq!((&job.output, job.overwrite), (&folder.path().join("rerun/c.npy"), Overwrite::Refuse));
        assert_eq!(default(), Ok(folder.path().join("rerun_2")), "the folder is kept until the job has ended");
        drop(prepared);
        assert_eq!(default(), Ok(folder.path().join("rerun")));
    }

    fn training_record(folder: &Path) -> PathBuf {
        let (data, out) = (folder.join("pairs"), folder.join("m"));
        write_record(folder, "train", json!({"task": "segmentation", "data": data, "from": "scratch", "out": out}))
    }

    #[test]
    fn a_canceled_training_run_leaves_nothing_and_a_failed_one_its_checkpoint() {
        let folder = tempfile::tempdir().unwrap();
        let path = training_record(folder.path());
        let again = folder.path().join("rerun");
        let training = again.join("m.training");
        let wake: Wake = Arc::new(|| {});
        let mut reruns = Reruns::new(&wake);
        for (end, writes_checkpoint, is_kept) in [
            (RerunEnd::Failed, false, false),
            (RerunEnd::Canceled, false, false),
            (RerunEnd::Canceled, true, false),
            (RerunEnd::Failed, true, true),
        ] {
            let prepared = prepared(&path, &again, Vec::new()).unwrap();
            assert!(training.is_dir());
            if writes_checkpoint {
                std::fs::write(training.join("training.json"), "{}").unwrap();
            }
            reruns.started(JobId(1), prepared.rerun);
            reruns.forget_ended(|_| None);
            assert!(training.is_dir(), "it is still active");
            reruns.forget_ended(|_| Some(end));
            let event = reruns.receiver.recv().unwrap();
            let RerunEvent::Discarded(Ok(kept)) = &event else { panic!("{event:?}") };
            assert_eq!(kept.as_ref(), is_kept.then_some(&training), "{end:?}");
            assert_eq!((training.exists(), again.exists()), (is_kept, is_kept), "{end:?}");
        }
        // Another run has left this checkpoint now.
        let prepared = prepared(&path, &again, Vec::new()).unwrap();
        reruns.started(JobId(2), prepared.rerun);
        reruns.forget_ended(|_| Some(RerunEnd::Canceled));
        assert!(training.join("training.json").is_file());
    }

    #[test]
    fn a_training_run_that_ends_with_the_window_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let path = training_record(folder.path());
        let again = folder.path().join("rerun");
        let prepared = prepared(&path, &again, Vec::new()).unwrap();
        let wake: Wake = Arc::new(|| {});
        let mut reruns = Reruns::new(&wake);
        reruns.started(JobId(1), prepared.rerun);
        std::fs::write(again.join("m.training/training.json"), "{}").unwrap();
        drop(reruns);
        assert!(!again.exists());
    }

    #[test]
    fn a_simulation_is_not_run_again_in_the_window() {
        let folder = tempfile::tempdir().unwrap();
        let path = write_record(folder.path(), "simulate", json!({}));
        assert_eq!(default_folder(&path, &read_any(&path).unwrap()), Err(SIMULATED));
    }

    #[test]
    fn a_record_that_cannot_be_run_again_is_reported_and_leaves_no_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = write_record(folder.path(), "convert", json!({"input": 7}));
        let reason = prepared(&path, &folder.path().join("rerun"), Vec::new()).unwrap_err();
        assert!(reason.contains("the recorded job cannot be read"), "{reason}");
        assert!(!folder.path().join("rerun").exists());
    }
}

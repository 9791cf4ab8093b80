//! The training job and its report.

use crate::checkpoint::{CheckpointSummary, RunFolder};
use crate::config::TrainConfig;
use crate::event::TrainSink;
use crate::history::History;
use crate::network::trainable_for;
use crate::score_name::{ScoreName, SelectionMetric};
use crate::start::TrainStart;
use crate::train;
use crate::validator::{Comparison, PairScore};
use cytoscope_engine::{DeviceId, DeviceRequest};
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::job_record::{JobKind, Recordable, recorded};
use cytoscope_pipeline::{Context, JobError};
use cytoscope_profile::DeviceTraffic;
use cytoscope_quantize::TileTime;
use cytoscope_storage::Overwrite;
use cytoscope_training_data::TrainingTask;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A training job: everything that determines its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainJob {
    /// The task: segmentation or label-free prediction.
    pub task: TrainingTask,
    /// Folder or table (`.csv`) of the training pairs.
    pub data: PathBuf,
    /// Starting point of the training run.
    pub from: TrainStart,
    /// Path of the package to write: a folder, or a zip file if it ends in `.zip`.
    pub out: PathBuf,
    /// Settings of the training run.
    #[serde(default)]
    pub config: TrainConfig,
    /// Resume from the checkpoint that an earlier run of the same job left.
    #[serde(default)]
    pub resume: bool,
    /// Discard the checkpoint of an earlier run and start over. An existing checkpoint is an error if neither this nor
    /// `resume` is set. Clients of earlier versions call it `anew`.
    #[serde(default, alias = "anew")]
    pub restart: bool,
    /// Seed of the random number generators.
    #[serde(default)]
    pub seed: u64,
    /// Number of threads; 0 uses all cores. On the CPU, the same number of threads gives bit-identical results.
    #[serde(default)]
    pub threads: usize,
    /// Do not add an int8 network to the package.
    #[serde(default)]
    pub without_int8: bool,
    /// Device that computes training steps, or `auto` for the one with the fastest measured step. Everything else runs on
    /// the CPU.
    #[serde(default)]
    pub device: DeviceRequest,
    /// Whether another device may continue if the requested one fails, because not the user but a machine profile chose it.
    /// If `device` is `auto`, another one may always continue.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub may_change_device: bool,
    /// Treatment of a file or folder at `out` that is not a Cytoscope package.
    #[serde(default)]
    pub overwrite: Overwrite,
}

/// Which network the package contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChosenNetwork {
    /// The trained network.
    #[serde(alias = "taught")]
    Trained,
    /// The start model: no trained network scored clearly better.
    Start,
}

/// Why a package has no int8 network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FloatOnly {
    /// The job asked for none.
    NotRequested,
    /// Its score was too low.
    LessAccurate,
    /// The time budget was spent.
    NoTime,
    /// It could not be made, as a note says.
    Failed,
}

/// Size and speed of the int8 network compared with the float network, measured on this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Quantized {
    /// Size of the float network in bytes.
    pub float_bytes: u64,
    /// Size of the int8 network in bytes.
    pub int8_bytes: u64,
    /// Shape of the timed tile, in the axis order of the network.
    pub tile_shape: Vec<usize>,
    /// Inference times of the tile with one thread and with all threads.
    pub tile_times: Vec<TileTime>,
}

/// Result of a training run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainReport {
    /// Path of the package that was written.
    pub out: PathBuf,
    /// Which network the package contains.
    pub verdict: ChosenNetwork,
    /// How the best trained network compares with the start model; `None` if the package contains the trained one, or if
    /// none was scored on the current validation images.
    #[serde(rename = "kept", default, skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
    /// The validation score that networks are compared by.
    pub metric: SelectionMetric,
    /// Scores of the start model, by name; empty if it could not be scored.
    pub before: BTreeMap<ScoreName, f64>,
    /// Whether the scores of the start model are those of its int8 network, because its float network scored lower.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub before_is_int8: bool,
    /// Scores of the float network of the package, by name.
    pub after: BTreeMap<ScoreName, f64>,
    /// Scores of the int8 network, by name; empty if there is none.
    pub after_int8: BTreeMap<ScoreName, f64>,
    /// Size and speed of the int8 network; `None` if the package has only a float network.
    #[serde(default)]
    pub quantized: Option<Quantized>,
    /// Why the package has no int8 network; `None` if it has one, and in reports of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub float_only: Option<FloatOnly>,
    /// Scores of the start model on each validation pair; empty if it could not be scored.
    pub pairs_before: Vec<PairScore>,
    /// Scores of the float network of the package on each validation pair.
    pub pairs_after: Vec<PairScore>,
    /// Number of completed optimizer steps.
    pub steps: u64,
    /// Number of optimizer steps per epoch.
    pub epoch_steps: u64,
    /// Number of patches per optimizer step.
    pub batch: usize,
    /// Shape of a patch along Z, Y, X in voxels.
    pub patch_zyx: [usize; 3],
    /// Number of trainable parameters.
    pub parameters: usize,
    /// Number of training pairs.
    pub train_pairs: usize,
    /// Number of validation pairs.
    pub validation_pairs: usize,
    /// Number of data workers.
    #[serde(default)]
    pub workers: usize,
    /// Maximum number of patches that were prepared in advance.
    #[serde(default)]
    pub prefetch: usize,
    /// Duration of all runs of this job in seconds, without the time between them.
    pub seconds: f64,
    /// Mean duration of the last steps in seconds.
    pub step_secs: f64,
    /// Part of `step_secs` that was spent waiting for patches.
    pub stalled_secs: f64,
    /// Peak resident memory of the process in bytes, if known.
    pub peak_rss_bytes: Option<u64>,
    /// Name of the device that the network was trained on; if others have continued after a failure, all names in order.
    pub device: String,
    /// The last of these devices; earlier versions do not report it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_id: Option<DeviceId>,
    /// Traffic of the training steps between the host and the device since this process started or resumed the run, or since
    /// the device continued it; `None` on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<DeviceTraffic>,
    /// Training loss and validation scores of the run.
    pub history: History,
}

impl TrainReport {
    /// Returns why the start model is kept, as a clause in lower case.
    pub fn kept_reason(&self) -> String {
        kept_reason(self.comparison.as_ref())
    }

    /// Returns whether the network is unchanged, but its segmentation settings now fit the data better.
    pub fn only_segmentation_improved(&self) -> bool {
        let sum = |scores: &BTreeMap<ScoreName, f64>| scores.values().sum::<f64>();
        // The scores of a float network and of its int8 network also differ with the same settings.
        let is_int8 = self.before_is_int8 && !self.after_int8.is_empty();
        let after = if is_int8 { &self.after_int8 } else { &self.after };
        self.verdict == ChosenNetwork::Start && !self.before.is_empty() && sum(after) > sum(&self.before) + 1e-9
    }
}

/// Returns why a start model is kept, as a clause in lower case, from the comparison with the best trained network.
pub(crate) fn kept_reason(comparison: Option<&Comparison>) -> String {
    comparison
        .map_or_else(|| "no trained network was scored on the current validation images".to_owned(), Comparison::reason)
}

impl TrainJob {
    /// Returns the folder that holds the checkpoint during training, and after it was canceled.
    pub fn folder(&self) -> PathBuf {
        RunFolder::for_package(&self.out).path
    }

    /// Returns whether an earlier run has left a checkpoint.
    pub fn has_checkpoint(&self) -> bool {
        RunFolder::for_package(&self.out).has_checkpoint()
    }

    /// Reads the checkpoint of an earlier run; `None` if there is none that can be read.
    pub fn checkpoint_summary(&self) -> Option<CheckpointSummary> {
        CheckpointSummary::read(&RunFolder::for_package(&self.out))
    }

    /// Returns the settings that an unfinished earlier run was started with; `None` without a checkpoint that can be read.
    pub fn checkpoint_config(&self) -> Option<TrainConfig> {
        Some(RunFolder::for_package(&self.out).started_job()?.config)
    }

    /// Returns the job that an unfinished earlier run was started with, with the path of this one; `None` without a checkpoint
    /// that can be read.
    pub fn checkpoint_job(&self) -> Option<TrainJob> {
        let started = RunFolder::for_package(&self.out).started_job()?;
        Some(TrainJob { out: self.out.clone(), ..started })
    }

    /// Returns the path of the preview (PNG) written by the last validation: the prediction on a validation image;
    /// `None` if there is none.
    pub fn preview_path(&self) -> Option<PathBuf> {
        Some(RunFolder::for_package(&self.out).preview()).filter(|path| path.is_file())
    }

    /// Asks the current run, or the next one that resumes it, to take no further step and to write the best network so
    /// far. [`cytoscope_pipeline::CancelToken::finish`] does the same for a run in this process.
    ///
    /// # Errors
    /// [`JobError::Io`] if there is no training run, or its folder is not writable.
    pub fn finish_early(&self) -> Result<(), JobError> {
        RunFolder::for_package(&self.out).request_finish()
    }

    /// Creates the folder of a new run before it starts, so that no other run takes its path. A run that fails before its first
    /// checkpoint removes the folder. Returns `false` if something exists at its path.
    ///
    /// # Errors
    /// [`JobError`] if the folder cannot be created.
    pub fn reserve_folder(&self) -> Result<bool, JobError> {
        RunFolder::for_package(&self.out).reserve()
    }

    /// Removes the checkpoint of an earlier run, and its folder unless that holds other files.
    ///
    /// # Errors
    /// [`JobError::Storage`] if the folder cannot be removed, or was not created by a training run.
    pub fn discard(&self) -> Result<(), JobError> {
        RunFolder::for_package(&self.out).remove().map(drop)
    }

    /// Like [`TrainJob::discard`], but refuses to remove the folder of a run that is in progress, and leaves an empty
    /// folder that no run created.
    ///
    /// # Errors
    /// Same as [`TrainJob::discard`], and [`JobError::Storage`] if a run uses the folder.
    pub fn discard_unused(&self) -> Result<(), JobError> {
        Self::discard_unused_at(&self.out)
    }

    /// Like [`TrainJob::discard_unused`], for the run that writes the package `out`.
    ///
    /// # Errors
    /// Same as [`TrainJob::discard_unused`].
    pub fn discard_unused_at(out: &Path) -> Result<(), JobError> {
        let folder = RunFolder::for_package(out);
        folder.check(&[])?;
        if !folder.belongs_to_run() {
            return Ok(());
        }
        drop(folder.lock()?);
        folder.remove().map(drop)
    }

    /// Returns whether another device may continue if one fails, because the user did not choose that one.
    pub(crate) fn another_device_may_continue(&self) -> bool {
        self.may_change_device || self.device == DeviceRequest::Auto
    }

    /// Runs the job. If it is canceled, the checkpoint is kept for [`TrainJob::resume`]; if it is asked to finish, it
    /// stops training and writes the package. `on_event` receives its training events. A provenance record is written
    /// beside the package.
    ///
    /// # Errors
    /// [`JobError`] if the data or the model cannot be used, memory or disk is full, or the job was canceled. The
    /// package is written completely or not at all.
    pub fn run(&self, context: &Context, devices: &Devices, on_event: &TrainSink<'_>) -> Result<TrainReport, JobError> {
        let mut job = Self { resume: false, restart: false, ..self.clone() };
        // The record names the model that training starts from.
        if let Some(path) = self.from.model().and_then(trainable_for).as_deref().and_then(Path::to_str) {
            job.from = TrainStart::Model(path.to_owned());
        }
        let result = recorded(&job, context, |record| train::run(self, context, devices, on_event, record));
        if result.is_err() {
            // A reserved folder would keep its name from the next run.
            RunFolder::for_package(&self.out).remove_unwritten();
        }
        result
    }
}

impl Recordable for TrainJob {
    const KIND: JobKind = JobKind::Train;

    fn inputs(&self) -> Vec<&Path> {
        vec![self.data.as_path()]
    }

    fn outputs(&self) -> Vec<&Path> {
        vec![self.out.as_path()]
    }

    fn paths_mut(&mut self) -> Vec<&mut PathBuf> {
        vec![&mut self.data, &mut self.out]
    }

    fn model_mut(&mut self) -> Option<&mut String> {
        match &mut self.from {
            TrainStart::Scratch => None,
            TrainStart::Model(model) => Some(model),
        }
    }

    fn working_folders(&self) -> Vec<PathBuf> {
        vec![self.folder()]
    }

    cytoscope_pipeline::recordable_setters!(overwrite: overwrite, output: out);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use serde_json::json;

    #[test]
    fn better_segmentation_of_the_same_network_is_recognized() {
        let report = |verdict: &str, before: serde_json::Value, after: serde_json::Value| -> TrainReport {
            serde_json::from_value(json!({
                "out": "m", "verdict": verdict, "metric": "Dice", "before": before, "after": after, "after_int8": {},
                "pairs_before": [], "pairs_after": [], "steps": 1, "epoch_steps": 1, "batch": 1, "patch_zyx": [1, 1, 1],
                "parameters": 1, "train_pairs": 1, "validation_pairs": 1, "seconds": 1.0, "step_secs": 1.0,
                "stalled_secs": 0.0, "peak_rss_bytes": null, "device": "", "history": History::default(),
            }))
            .unwrap()
        };
        let (low, high) = (json!({"f1@0.5": 0.5, "f1@0.7": 0.4}), json!({"f1@0.5": 0.9, "f1@0.7": 0.8}));
        assert!(report("start", low.clone(), high.clone()).only_segmentation_improved());
        assert!(!report("start", high.clone(), high.clone()).only_segmentation_improved());
        assert!(!report("trained", low.clone(), high.clone()).only_segmentation_improved());
        assert!(!report("start", json!({}), high.clone()).only_segmentation_improved(), "the start model has no score");
        // The float network scores higher than the int8 network did, which scores as before.
        let mut kept = report("start", low.clone(), high.clone());
        kept.before_is_int8 = true;
        kept.after_int8 = serde_json::from_value(low).unwrap();
        assert!(!kept.only_segmentation_improved());
        kept.after_int8 = serde_json::from_value(high).unwrap();
        assert!(kept.only_segmentation_improved());
    }

    #[test]
    fn only_what_a_run_created_is_discarded() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("m");
        let job: TrainJob =
            serde_json::from_value(json!({"task": "segmentation", "data": "d", "from": "scratch", "out": out}))
                .unwrap();
        job.discard_unused().unwrap();
        // The user's own folder, first empty, then with a file.
        std::fs::create_dir(job.folder()).unwrap();
        job.discard_unused().unwrap();
        assert_eq!(std::fs::read_dir(job.folder()).unwrap().count(), 0);
        std::fs::write(job.folder().join("mine.txt"), "mine").unwrap();
        assert!(matches!(job.discard_unused(), Err(JobError::Storage(_))));
        assert_eq!(std::fs::read(job.folder().join("mine.txt")).unwrap(), b"mine");
        std::fs::remove_dir_all(job.folder()).unwrap();
        // The folder of a run, while it is in use and afterwards.
        let lock = RunFolder::for_package(&job.out).lock().unwrap();
        assert!(job.discard_unused().is_err() && job.folder().is_dir());
        drop(lock);
        job.discard_unused().unwrap();
        assert!(!job.folder().exists());
    }

    #[test]
    fn a_precision_that_the_requested_cpu_lacks_is_refused_before_the_data_are_read() {
        let parent = tempfile::tempdir().unwrap();
        let job = |precision: &str| -> TrainJob {
            let (out, config) = (parent.path().join("m"), json!({ "precision": precision }));
            let data = parent.path().join("no-such-folder");
            serde_json::from_value(json!({
                "task": "segmentation", "data": data, "from": "scratch", "out": out, "device": "cpu", "config": config,
            }))
            .unwrap()
        };
        let failed =
            |job: TrainJob| job.run(&Context::default(), &Devices::cpu_only(), &|_| {}).unwrap_err().to_string();
        for precision in ["f16", "tf32"] {
            let error = failed(job(precision));
            assert!(error.contains(" trains in ") && !error.contains("no-such-folder"), "{error}");
        }
        assert!(failed(job("f32")).contains("no-such-folder"));
    }

    /// Otherwise, only the int8 network would be missing, after hours.
    #[cfg(unix)]
    #[test]
    fn a_path_that_is_not_unicode_is_refused_before_training() {
        use std::os::unix::ffi::OsStrExt;
        let parent = tempfile::tempdir().unwrap();
        let mut job: TrainJob =
            serde_json::from_value(json!({"task": "segmentation", "data": "d", "from": "scratch", "out": "m"}))
                .unwrap();
        job.out = parent.path().join(std::ffi::OsStr::from_bytes(b"m\xff"));
        assert!(job.folder().as_os_str().as_bytes().ends_with(b"/m\xff.training"), "{:?}", job.folder());
        let error = job.run(&Context::default(), &Devices::cpu_only(), &|_| {}).unwrap_err();
        assert!(matches!(error, JobError::WrongUse(_)) && error.to_string().contains("not valid Unicode"), "{error}");
        assert_eq!(std::fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn only_one_of_two_runs_gets_a_path_and_leaves_it_if_it_fails() {
        let parent = tempfile::tempdir().unwrap();
        let job: TrainJob = serde_json::from_value(
            json!({"task": "segmentation", "data": "d", "from": "scratch", "out": parent.path().join("m")}),
        )
        .unwrap();
        assert!(job.reserve_folder().unwrap());
        assert!(!job.reserve_folder().unwrap(), "another run has it");
        let folder = RunFolder::for_package(&job.out);
        folder.check(&[]).unwrap();
        // A run that is in progress keeps its folder.
        let lock = folder.lock().unwrap();
        folder.remove_unwritten();
        assert!(folder.belongs_to_run());
        drop(lock);
        std::fs::write(folder.path.join("float"), "a network").unwrap();
        folder.remove_unwritten();
        assert!(folder.belongs_to_run(), "a run has written to it");
        std::fs::remove_file(folder.path.join("float")).unwrap();
        folder.remove_unwritten();
        assert!(!folder.path.exists());
    }

    #[test]
    fn the_reason_for_keeping_the_start_model_states_the_numbers() {
        let kept = |before, after, standard_error, samples| {
            kept_reason(Some(&Comparison { before, after, standard_error, samples }))
        };
        let within = kept(0.8, 0.82, Some(0.05), 9);
        assert!(within.contains("0.0200") && within.contains("0.8200") && within.contains("0.0500"), "{within}");
        let lower = kept(0.8, 0.75, Some(0.05), 9);
        assert!(
            lower.contains("score of the best trained network is 0.7500, that of the start model 0.8000"),
            "{lower}"
        );
        assert!(kept(0.8, 0.9, None, 1).contains("only 1 object"));
        assert_eq!(kept_reason(None), "no trained network was scored on the current validation images");
    }
}

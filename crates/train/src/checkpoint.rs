//! The checkpoint folder of a training run: everything needed to resume it. Files are written completely or not at all.
//!
//! `training.json` holds the state of the run, `tensors-STEP.safetensors` the parameters, optimizer state, EMA and
//! batch norm statistics (`tensors-STEP-2.safetensors` if the last checkpoint of the same step has other ones).
//! `training.json` names its tensor file; an older tensor file is removed only after the new `training.json` has been
//! written. The best network is a package named by its step, so that the one `training.json`
//! refers to always exists. A file named `finish` asks the run to take no further step and to write the best network so
//! far.

mod best;
mod locking;
mod tensors;

pub(crate) use tensors::restore;

use crate::budget::ValidationSize;
use crate::config::{TrainConfig, TrainPrecision};
use crate::error::io_error;
use crate::history::History;
use crate::job::TrainJob;
use crate::scoring::ScoredNetwork;
use crate::step::ModelState;
use crate::validator::Comparison;
use cytoscope_graph::Tensor;
use cytoscope_model_package::PACKAGE_KIND;
use cytoscope_pipeline::{Context, JobError};
use cytoscope_profile::bytes_text;
use cytoscope_storage::json::{JsonError, read_json};
use cytoscope_storage::message;
use cytoscope_storage::read::open_regular;
use cytoscope_storage::setting::{RESTART, RESUME};
use cytoscope_storage::write::{atomic_write, sweep_marker};
use cytoscope_storage::{MARKER, Manifest, ResultsFolder, StorageError, folder, sha256_of_bytes, space, target};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use tensors::{parse_tensors, tensor_file};

/// Version of the checkpoint format.
const VERSION: u32 = 2;
/// Prefix of the name of the tensor file; the step follows.
const TENSORS: &str = "tensors-";
/// Follows the step in the name of a tensor file if the last checkpoint of the same step has other tensors.
const SECOND: &str = "-2";
/// Maximum size of `training.json` in bytes.
const MAX_JSON_BYTES: u64 = 64 << 20;
/// Maximum size of the tensor file in bytes.
const MAX_TENSOR_BYTES: u64 = 16 << 30;
/// Name of the file with the state of the run.
const JSON: &str = "training.json";
/// Name of the lock file, which the active run holds.
const LOCK: &str = "lock";
/// Kind of the folder, as stored in its marker file.
const KIND: &str = cytoscope_storage::folder_kind::TRAINING;
/// Prefix of the folders of the best networks; the step follows.
const BEST: &str = "best-";
/// Name of the file that asks the run to finish.
const FINISH: &str = "finish";
/// Name of the preview image of the last validation.
const PREVIEW: &str = "shown.png";
/// Name of the package of the start model.
const START: &str = "start";
/// Name of the package of the final network, before its quantization.
pub(crate) const FLOAT: &str = "float";
/// Name of the package with the quantized final network.
pub(crate) const INT8: &str = "int8";
/// Name of the package with the int8 network of the start model.
pub(crate) const KEPT: &str = "kept";
/// Suffixes of the names of calibration images, after their number, which earlier versions wrote.
const CALIBRATION: [&str; 2] = ["_calibration.tif", "_calibration.ome.tif"];

/// State of a training run, as stored in `training.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct TrainState {
    /// Version of the checkpoint format.
    pub version: u32,
    /// Data, start model and output path that the run was started with.
    pub job: TrainJob,
    /// All settings of the run, with those that were derived from the data.
    pub config: TrainConfig,
    /// Hash of names, sizes and modification times of the data files, to detect changes.
    pub data_fingerprint: String,
    /// Number of completed optimizer steps.
    pub step: u64,
    /// Number of optimizer steps of the whole run.
    pub steps: u64,
    /// Number of the next patch.
    pub next_patch: u64,
    /// Whether batch norms have been folded into the convolutions.
    pub folded: bool,
    /// Factor of the learning rate, halved by each rollback.
    pub rate_factor: f64,
    /// Number of rollbacks after a loss that was not finite.
    #[serde(rename = "rescues")]
    pub rollbacks: u32,
    /// Duration of all runs in seconds, without the time between them.
    pub seconds: f64,
    /// Version of the definition of scores ([`crate::validator::SCORE_VERSION`]).
    #[serde(default)]
    pub score_version: u32,
    /// Score and step of the best checkpoint; step 0 is the start model.
    pub best: Option<(f64, u64)>,
    /// Highest validation score so far; `None` before the first validation.
    pub peak: Option<f64>,
    /// Score of the start model.
    pub start_score: Option<f64>,
    /// Fingerprint of the weights of the start model; empty for a new network, and in checkpoints of earlier versions.
    #[serde(default)]
    pub start_weights: String,
    /// How the trained network with the highest score compares with the start model; `None` before the first comparison.
    #[serde(rename = "closest", default)]
    pub best_comparison: Option<Comparison>,
    /// Validations since the score last rose. A network that was trained longer but has an equal score is kept without
    /// resetting this number.
    #[serde(rename = "since_best")]
    pub validations_since_best: usize,
    /// Whether the next action is a validation.
    #[serde(rename = "due")]
    pub validation_due: bool,
    /// Whether training has ended and only the package is still to be written.
    #[serde(default)]
    pub ended: bool,
    /// Sum of the losses, and number of steps, since the last point of the loss curve.
    #[serde(default)]
    pub since_point: (f64, u64),
    /// Names of the validation pairs.
    #[serde(default)]
    pub validation: Vec<String>,
    /// Images that the network has been trained on, as in records; empty in checkpoints of earlier versions.
    #[serde(default)]
    pub images: String,
    /// Mean and standard deviation of each stain, by which the targets are normalized; empty for labels.
    #[serde(default)]
    pub intensities: Vec<(f64, f64)>,
    /// Training loss and validation scores so far.
    pub history: History,
    /// Optimizer steps since the optimizer state was initialized.
    pub optimizer_steps: u32,
    /// Precision of the last steps, to which the loss scale belongs; `None` in checkpoints of earlier versions.
    #[serde(default)]
    pub precision: Option<TrainPrecision>,
    /// Loss scale of mixed precision.
    #[serde(default = "one")]
    pub loss_scale: f32,
    /// Steps since the loss scale changed.
    #[serde(default)]
    pub steady_steps: u32,
    /// Duration of the last validation, or expected duration of the next one, in seconds.
    #[serde(default)]
    pub validation_secs: f64,
    /// Duration of all validations in seconds.
    #[serde(default)]
    pub validating_secs: f64,
    /// Duration of a step, measured at the start of the run, in seconds.
    #[serde(default = "one_second")]
    pub first_step_secs: f64,
    /// Step after which the next validation follows, if there is a time budget.
    #[serde(default)]
    pub next_validation: u64,
    /// Reduced number of validation pairs and voxels, if the time budget requires it.
    #[serde(default, rename = "extent")]
    pub validation_size: Option<ValidationSize>,
    /// Name of the tensor file.
    pub tensors: String,
    /// SHA-256 of the tensor file in lower-case hexadecimal; empty in checkpoints of earlier versions.
    #[serde(default)]
    pub tensors_sha256: String,
}

fn one() -> f32 {
    1.0
}

/// Duration of a step in checkpoints of earlier versions, which do not state one.
fn one_second() -> f64 {
    1.0
}

/// Maximum counter of steps and patches in a checkpoint: one step per microsecond for 30 years stays below it.
const MAX_COUNT: u64 = 1 << 50;

impl TrainState {
    /// Records the duration of a validation.
    pub(crate) fn add_validation_time(&mut self, scored: &ScoredNetwork) {
        self.validation_secs = scored.secs;
        self.validating_secs += scored.total_secs;
    }

    /// Checks counters and factors: the file may be damaged or edited by hand.
    fn check(&self, path: &Path) -> Result<(), JobError> {
        let bad = |problem: String| bad(path, problem);
        self.config.check().map_err(|e| bad(format!("its settings are invalid: {e}")))?;
        let counts = [
            ("step", self.step, MAX_COUNT),
            ("steps", self.steps, MAX_COUNT),
            ("next_patch", self.next_patch, MAX_COUNT),
            ("next_validation", self.next_validation, MAX_COUNT),
            ("optimizer_steps", self.optimizer_steps.into(), u64::from(u32::MAX / 2)),
        ];
        if let Some((name, count, max)) = counts.into_iter().find(|(_, count, max)| count > max) {
            return Err(bad(format!("{name} is {count}: expected at most {max}")));
        }
        let factors =
            [("rate_factor", self.rate_factor, 1.0), ("loss_scale", f64::from(self.loss_scale), f64::from(f32::MAX))];
        if let Some((name, value, max)) = factors.into_iter().find(|(_, v, max)| !(*v > 0.0 && v <= max)) {
            return Err(bad(format!("{name} is {value}: expected a number above 0 and at most {max}")));
        }
        let times = [
            ("seconds", self.seconds),
            ("validation_secs", self.validation_secs),
            ("validating_secs", self.validating_secs),
            ("first_step_secs", self.first_step_secs),
        ];
        match times.into_iter().find(|(_, secs)| !(secs.is_finite() && *secs >= 0.0)) {
            Some((name, secs)) => Err(bad(format!("{name} is {secs}: expected 0 or more"))),
            None => Ok(()),
        }
    }
}

/// Progress of an unfinished training run, as read from its checkpoint.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct CheckpointSummary {
    /// Number of completed optimizer steps.
    pub step: u64,
    /// Number of optimizer steps of the whole run.
    pub steps: u64,
    /// Training loss and validation scores so far.
    pub history: History,
}

impl CheckpointSummary {
    /// Reads the summary of a run folder; `None` if it has no checkpoint, or a damaged one, which is logged.
    pub(crate) fn read(folder: &RunFolder) -> Option<Self> {
        let path = folder.json();
        read_json(&path, MAX_JSON_BYTES).unwrap_or_else(|error| {
            tracing::warn!("the checkpoint {} cannot be read: {error}", path.display());
            None
        })
    }
}

/// Description of the run that a checkpoint belongs to.
#[derive(Deserialize)]
struct StartedRun {
    /// The job that the run was started with.
    job: TrainJob,
}

/// Checks that a folder holds a checkpoint that can be resumed: its state, tensors, settings and counters.
///
/// # Errors
/// [`JobError`] with the file at fault and what is wrong with it.
pub fn check_checkpoint(folder: &Path) -> Result<(), JobError> {
    RunFolder { path: folder.to_owned() }.load().map(drop)
}

/// Checks that `bytes` are a tensor file of a checkpoint: safetensors of 32-bit floats. `path` is named in errors.
///
/// # Errors
/// [`JobError`] with what is wrong with the file.
pub fn check_checkpoint_tensors(path: &Path, bytes: &[u8]) -> Result<(), JobError> {
    parse_tensors(path, bytes).map(drop)
}

/// The checkpoint folder of a training run.
#[derive(Debug, Clone)]
pub(crate) struct RunFolder {
    /// Path of the folder: the output package's with `.training` appended.
    pub path: PathBuf,
}

impl RunFolder {
    /// Returns the folder beside the output package `out`: its path with `.training` appended.
    pub(crate) fn for_package(out: &Path) -> Self {
        let mut name = out.file_name().unwrap_or(std::ffi::OsStr::new("model")).to_owned();
        name.push(".training");
        Self { path: out.with_file_name(name) }
    }

    fn json(&self) -> PathBuf {
        self.path.join(JSON)
    }

    /// Returns whether the folder holds a checkpoint.
    pub(crate) fn has_checkpoint(&self) -> bool {
        self.json().is_file()
    }

    /// Returns the job that the unfinished run was started with; `None` without a checkpoint that can be read.
    pub(crate) fn started_job(&self) -> Option<TrainJob> {
        let log = |error: &JsonError| tracing::warn!("{}: the run is not known: {error}", self.json().display());
        let run: Option<StartedRun> = read_json(&self.json(), MAX_JSON_BYTES).inspect_err(log).ok()?;
        run.map(|run| run.job)
    }

    /// Refuses an existing folder that was not created by a training run, or whose marker is damaged, and one that is or
    /// contains an input.
    pub(crate) fn check(&self, inputs: &[&Path]) -> Result<(), JobError> {
        target::refuse_input(&self.path, inputs)?;
        if self.path.is_dir() && !self.belongs_to_run() {
            // A run that was killed while it created the folder has left an unfinished marker.
            sweep_marker(&self.path);
            self.wait_until_created()?;
        }
        let is_free = std::fs::read_dir(&self.path).map_or(true, |mut entries| entries.next().is_none());
        let is_file = self.path.is_file() || self.path.is_symlink();
        if !is_file && (is_free || self.belongs_to_run()) {
            return Ok(());
        }
        if !is_file && self.has_checkpoint() {
            let marker = serde_json::to_string(&Manifest::working(KIND)).unwrap_or_default();
            return Err(JobError::Mismatch {
                path: self.path.clone(),
                problem: format!(
                    "the folder holds an unfinished training run ({JSON}), but its file {MARKER}, by which Cytoscope \
                     recognizes its own folders, is missing or damaged"
                )
                .into(),
                next_step: message!(
                    "to continue the run, restore this file (its content is {marker}); to start over, move the folder away"
                ),
            });
        }
        Err(StorageError::NotReplaceable {
            path: self.path.clone(),
            problem: "is where an unfinished training run would be kept, but Cytoscope did not make it".to_owned(),
            can_force: false,
        }
        .into())
    }

    /// Returns whether the folder was created by a training run.
    pub(crate) fn belongs_to_run(&self) -> bool {
        folder::is_working(&self.path, KIND)
    }

    /// Creates the folders around it. Those that did not exist are removed if they are empty when the result is dropped.
    pub(crate) fn create_parents(&self) -> Result<ResultsFolder, JobError> {
        let parent = self.path.parent().unwrap_or(Path::new(""));
        ResultsFolder::create(parent).map_err(JobError::results_folder(parent))
    }

    /// Creates the folder of a run that starts later. Returns `false` if something exists at its path.
    pub(crate) fn reserve(&self) -> Result<bool, JobError> {
        match std::fs::create_dir(&self.path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(false),
            Err(error) => return Err(io_error(&self.path)(error)),
        }
        folder::create_working(&self.path, KIND)?;
        Ok(true)
    }

    /// Removes the folder if no run has written to it and none uses it.
    pub(crate) fn remove_unwritten(&self) {
        let is_mark =
            |entry: &std::fs::DirEntry| [MARKER, LOCK].iter().any(|name| entry.file_name().to_str() == Some(*name));
        let is_unwritten = std::fs::read_dir(&self.path)
            .is_ok_and(|mut entries| entries.all(|entry| entry.is_ok_and(|entry| is_mark(&entry))));
        if !is_unwritten || !self.belongs_to_run() {
            return;
        }
        let Ok(lock) = self.lock() else { return };
        // On Unix, the lock is held during this, so no other run begins in the folder. Other systems remove no locked files.
        let lock = cfg!(unix).then_some(lock);
        // A folder without a checkpoint that stays does no harm.
        let _ = self.remove();
        drop(lock);
    }

    /// Removes the files of an earlier run from the folder.
    pub(crate) fn clear(&self) -> Result<(), JobError> {
        // The state file is removed first, so that a partly cleared folder is not taken for a checkpoint.
        Ok(folder::clear_own(&self.path, KIND, JSON, &|name| name != LOCK && belongs_to_run(name))?)
    }

    /// Removes the files of a run and the folder, unless other files are in it. Returns their names.
    pub(crate) fn remove(&self) -> Result<Vec<String>, JobError> {
        Ok(folder::remove_own(&self.path, KIND, &belongs_to_run)?)
    }

    /// Removes the folder after the run has ended. If it stays, a note says so: why it cannot be removed, or the name of a
    /// file in it that the run did not write.
    pub(crate) fn clean_up(&self, context: &Context) {
        let folder = self.path.display();
        match self.remove() {
            Ok(others) => {
                if let Some(first) = others.first() {
                    context.note(format!(
                        "the folder {folder} is kept: it holds files that the run did not write, such as {first}"
                    ));
                }
            }
            // The run itself has succeeded, or failed with an error that is reported.
            Err(error) => context.note(message!("the folder of the checkpoint is kept ({error}): delete it yourself")),
        }
    }

    /// Returns the path of the file that asks the run to finish.
    fn finish_file(&self) -> PathBuf {
        self.path.join(FINISH)
    }

    /// Returns whether the run was asked to finish.
    pub(crate) fn is_finish_requested(&self) -> bool {
        self.finish_file().exists()
    }

    /// Asks the run to finish with the best network so far.
    pub(crate) fn request_finish(&self) -> Result<(), JobError> {
        let path = self.finish_file();
        Ok(atomic_write(&path, &[])?)
    }

    /// Returns the path of the preview image of the last validation.
    pub(crate) fn preview(&self) -> PathBuf {
        self.path.join(PREVIEW)
    }

    /// Returns the path of the package of the best network, found at `step`.
    pub(crate) fn best(&self, step: u64) -> PathBuf {
        self.path.join(format!("{BEST}{step}"))
    }

    /// Removes a package in the folder that an earlier attempt has left, because a trained one would be moved aside, not
    /// replaced.
    pub(crate) fn remove_package(&self, path: &Path) {
        if path.starts_with(&self.path) {
            // A leftover package only takes disk space.
            let _ = folder::remove_finished(path, PACKAGE_KIND);
        }
    }

    /// Returns the path of the package of the start model.
    pub(crate) fn start(&self) -> PathBuf {
        self.path.join(START)
    }

    /// Checks that a checkpoint of the network and a package of the best one fit on the disk, where its free space is known, so
    /// that a run does not lose its network at the end.
    pub(crate) fn check_space(&self, model: &ModelState) -> Result<(), JobError> {
        let bytes = |tensors: &[Tensor]| tensors.iter().map(Tensor::size_bytes).sum::<u64>();
        let optimizer = bytes(&model.first_moment) + bytes(&model.second_moment) + bytes(&model.average);
        let needed_bytes = 2 * bytes(&model.values) + optimizer;
        let free_bytes = space::free_bytes(&self.path).filter(|free| *free < needed_bytes);
        let Some(free_bytes) = free_bytes.filter(|_| !space::may_compress(&self.path)) else { return Ok(()) };
        let (needed, free) = (bytes_text(needed_bytes), bytes_text(free_bytes));
        let problem = format!("the training run needs at least {needed} of disk space, but {free} are free");
        Err(JobError::Io { path: self.path.clone(), error: io::Error::new(io::ErrorKind::StorageFull, problem) })
    }

    /// Saves the state of the run and of the network; `names` are the names of the parameters. If that fails, the checkpoint
    /// that was saved before is unchanged.
    pub(crate) fn save(&self, state: &mut TrainState, names: &[String], model: &ModelState) -> Result<(), JobError> {
        let bytes = tensor_file(names, model)?;
        let sha256 = sha256_of_bytes(&bytes);
        let mut tensors = format!("{TENSORS}{}.safetensors", state.step);
        // The file that the last checkpoint names is not replaced by one with other content.
        if tensors == state.tensors && sha256 != state.tensors_sha256 {
            tensors = format!("{TENSORS}{}{SECOND}.safetensors", state.step);
        }
        let last =
            (std::mem::replace(&mut state.tensors, tensors), std::mem::replace(&mut state.tensors_sha256, sha256));
        let mut written = self.write(state, &bytes, model);
        // On a full disk, earlier networks may take the space that is missing.
        if written.is_err() && self.remove_unused_best(state) {
            written = self.write(state, &bytes, model);
        }
        if let Err(error) = written {
            (state.tensors, state.tensors_sha256) = last;
            return Err(error);
        }
        self.remove_older_tensors(&state.tensors);
        if let Some((_, step)) = state.best {
            self.remove_other_best(&[step]);
        }
        Ok(())
    }

    /// Writes the tensor file that `state` names, and then the state.
    fn write(&self, state: &mut TrainState, tensors: &[u8], model: &ModelState) -> Result<(), JobError> {
        state.optimizer_steps = model.optimizer_steps;
        (state.loss_scale, state.steady_steps) = (model.loss_scale, model.steady_steps);
        state.version = VERSION;
        let json = serde_json::to_vec_pretty(state).map_err(|e| JobError::Internal(e.to_string()))?;
        atomic_write(&self.path.join(&state.tensors), tensors)?;
        Ok(atomic_write(&self.json(), &json)?)
    }

    /// Removes the tensor files of earlier checkpoints.
    fn remove_older_tensors(&self, current: &str) {
        for entry in std::fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let is_older = |name: &str| name.starts_with(TENSORS) && belongs_to_run(name) && name != current;
            if name.to_str().is_some_and(is_older) {
                // A leftover file only takes disk space; the checkpoint names the current one.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }

    /// Reads the state of the run without its tensors.
    pub(crate) fn load_state(&self) -> Result<TrainState, JobError> {
        let path = self.json();
        let bytes = read(&path, MAX_JSON_BYTES)?;
        let state: TrainState =
            serde_json::from_slice(&bytes).map_err(|e| bad(&path, format!("it is not a valid checkpoint: {e}")))?;
        if state.version != VERSION {
            return Err(bad(&path, format!("its format version is {}, expected {VERSION}", state.version)));
        }
        state.check(&path)?;
        let is_plain_name = state.tensors.starts_with(TENSORS) && !state.tensors.contains(['/', '\\']);
        if !is_plain_name {
            return Err(bad(&path, "it does not name a tensors file".to_owned()));
        }
        Ok(state)
    }

    /// Reads the state of the run and the tensors by name.
    pub(crate) fn load(&self) -> Result<(TrainState, BTreeMap<String, Tensor>), JobError> {
        let state = self.load_state()?;
        let path = self.path.join(&state.tensors);
        if !path.is_file() {
            return Err(bad(&path, "the file of the checkpoint's tensors is missing".to_owned()));
        }
        let bytes = read(&path, MAX_TENSOR_BYTES)?;
        if !state.tensors_sha256.is_empty() && sha256_of_bytes(&bytes) != state.tensors_sha256 {
            return Err(bad(&path, "it was damaged or changed after the checkpoint was saved".to_owned()));
        }
        // The package of the start model is written again if it is missing.
        if let Some((_, step)) = state.best.filter(|(_, step)| *step > 0)
            && !self.best(step).is_dir()
        {
            return Err(bad(&self.best(step), "the package of the best network so far is missing".to_owned()));
        }
        let tensors = parse_tensors(&path, &bytes)?;
        Ok((state, tensors))
    }
}

/// Returns whether a training run gives this name to an entry of its checkpoint folder.
fn belongs_to_run(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let tensors = || {
        let step = name.strip_prefix(TENSORS)?.strip_suffix(".safetensors")?;
        Some(step.strip_suffix(SECOND).unwrap_or(step))
    };
    [JSON, LOCK, FINISH, PREVIEW, START, FLOAT, INT8, KEPT].contains(&name)
        || name.strip_prefix(BEST).is_some_and(is_number)
        || CALIBRATION.iter().any(|suffix| name.strip_suffix(suffix).is_some_and(is_number))
        || tensors().is_some_and(is_number)
}

/// An error of a checkpoint file that cannot be used.
fn bad(path: &Path, problem: String) -> JobError {
    JobError::Mismatch {
        path: path.to_owned(),
        problem: problem.into(),
        next_step: message!("use {RESTART} instead of {RESUME} to start over"),
    }
}

fn read(path: &Path, max_bytes: u64) -> Result<Vec<u8>, JobError> {
    let file = open_regular(path).map_err(io_error(path))?;
    let size = file.metadata().map_err(io_error(path))?.len();
    if size > max_bytes {
        return Err(bad(path, format!("it has {size} bytes, expected at most {max_bytes}")));
    }
    let mut bytes = Vec::new();
    file.take(max_bytes).read_to_end(&mut bytes).map_err(io_error(path))?;
    Ok(bytes)
}

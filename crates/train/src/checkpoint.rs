//! The folder of a training: everything needed to go on, written whole or not at all.
//!
//! `training.json` says where the training stands, `tensors.safetensors` holds parameters, optimizer state, averages and statistics.
//! Both belong together: the tensors' file is named by the step, and the older one goes after the newer `training.json` is there.
//! The best network lies in a folder named by its step, so that the one `training.json` speaks of is always there.
//! A file named `finish` asks the training to take no further step and end with the best network so far.

use crate::budget::Extent;
use crate::config::TrainConfig;
use crate::error::io;
use crate::history::History;
use crate::job::TrainJob;
use crate::step::State;
use cytoscope_graph::Tensor;
use cytoscope_graph::package::PACKAGE_KIND;
use cytoscope_pipeline::JobError;
use cytoscope_storage::folder;
use cytoscope_storage::lock::ResultsLock;
use cytoscope_storage::read::open_regular;
use cytoscope_storage::write::atomic_write;
use cytoscope_storage::{StorageError, target};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Version of the layout.
const VERSION: u32 = 2;
/// Most bytes of `training.json`.
const MAX_JSON_BYTES: u64 = 64 << 20;
/// Most bytes of the tensors.
const MAX_TENSOR_BYTES: u64 = 16 << 30;
/// The state of the training.
const JSON: &str = "training.json";
/// Locked by the run that trains.
const LOCK: &str = "lock";
/// The kind of the folder, as its marker says it.
const KIND: &str = "training";
/// Folders of the best networks begin so.
const BEST: &str = "best-";

/// Where a training stands.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Standing {
    pub version: u32,
    /// What was asked for.
    pub job: TrainJob,
    /// With every setting.
    pub config: TrainConfig,
    /// What the data were: names, sizes and times of files, so that changes are noticed.
    pub data_fingerprint: String,
    /// Steps done.
    pub step: u64,
    /// Steps planned.
    pub steps: u64,
    /// Number of the next patch.
    pub next_patch: u64,
    /// Whether batch norms are folded into the convolutions.
    pub folded: bool,
    /// Factor of the rate, lowered by rescues.
    pub rate_factor: f64,
    /// Rescues so far.
    pub rescues: u32,
    /// Seconds it has run, pauses left out.
    pub seconds: f64,
    /// Score of the network that is kept, and the step it was found at.
    pub best: Option<(f64, u64)>,
    /// Greatest score so far.
    pub peak: Option<f64>,
    /// Score of what training started from.
    pub start_score: Option<f64>,
    /// Validations since the best.
    pub since_best: usize,
    /// Whether a validation comes before the next step.
    pub due: bool,
    /// Whether no further step comes: what is left is the package.
    #[serde(default)]
    pub ended: bool,
    /// Sum of the losses since the last point of the curve, and of how many steps.
    #[serde(default)]
    pub since_point: (f64, u64),
    /// Names of the pairs that are validated on.
    #[serde(default)]
    pub validation: Vec<String>,
    /// Mean and standard deviation of a stain, which the network's output is scaled by.
    #[serde(default)]
    pub intensity: Option<(f64, f64)>,
    pub history: History,
    /// Optimizer steps of the state.
    pub optimizer_steps: u32,
    /// Factor of the loss in mixed precision.
    #[serde(default = "one")]
    pub loss_scale: f32,
    /// Steps since it changed.
    #[serde(default)]
    pub steady_steps: u32,
    /// What the last validation took, or the next one is expected to take.
    #[serde(default)]
    pub validation_secs: f64,
    /// What all validations took.
    #[serde(default)]
    pub validating_secs: f64,
    /// What a step took when the training began.
    #[serde(default = "second")]
    pub first_step_secs: f64,
    /// The step after which the network is validated next, where minutes are kept.
    #[serde(default)]
    pub next_validation: u64,
    /// How much is validated on, where that is less than was asked for.
    #[serde(default)]
    pub extent: Option<Extent>,
    /// The tensors' file.
    pub tensors: String,
}

fn one() -> f32 {
    1.0
}

fn second() -> f64 {
    1.0
}

/// Most steps and patches that a checkpoint may count: a step a microsecond for 30 years stays below.
const MAX_COUNT: u64 = 1 << 50;

impl Standing {
    /// Counts the time of a validation.
    pub(crate) fn took(&mut self, secs: f64) {
        self.validation_secs = secs;
        self.validating_secs += secs;
    }

    /// Refuses counters and factors that no training writes: the file may be damaged or made by hand.
    fn check(&self, path: &Path) -> Result<(), JobError> {
        let bad = |problem: String| JobError::Mismatch {
            path: path.to_owned(),
            problem,
            next_step: "begin anew with --anew in place of --resume".to_owned(),
        };
        self.config.check().map_err(|e| bad(format!("its settings cannot be: {e}")))?;
        let counts = [
            ("step", self.step, MAX_COUNT),
            ("steps", self.steps, MAX_COUNT),
            ("next_patch", self.next_patch, MAX_COUNT),
            ("next_validation", self.next_validation, MAX_COUNT),
            ("optimizer_steps", self.optimizer_steps.into(), u64::from(u32::MAX / 2)),
        ];
        if let Some((name, count, most)) = counts.into_iter().find(|(_, count, most)| count > most) {
            return Err(bad(format!("{name} is {count}: expected at most {most}")));
        }
        let factors =
            [("rate_factor", self.rate_factor, 1.0), ("loss_scale", f64::from(self.loss_scale), f64::from(f32::MAX))];
        if let Some((name, value, most)) = factors.into_iter().find(|(_, v, most)| !(*v > 0.0 && v <= most)) {
            return Err(bad(format!("{name} is {value}: expected a number above 0, at most {most}")));
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

/// What a training left to go on with, for those who only look.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Kept {
    /// Steps done.
    pub step: u64,
    /// Steps planned.
    pub steps: u64,
    /// The curves.
    pub history: History,
}

impl Kept {
    pub(crate) fn read(folder: &Folder) -> Option<Self> {
        serde_json::from_slice(&read(&folder.json(), MAX_JSON_BYTES).ok()?).ok()
    }
}

/// Checks that a folder holds a checkpoint that a training can go on from: its file, its tensors, its settings and counters.
///
/// # Errors
/// [`JobError`] with the file at fault and what is wrong with it.
pub fn check_checkpoint(folder: &Path) -> Result<(), JobError> {
    Folder { path: folder.to_owned() }.load().map(drop)
}

/// A training's folder.
#[derive(Debug, Clone)]
pub(crate) struct Folder {
    pub path: PathBuf,
}

impl Folder {
    /// Beside the package that will come out.
    pub(crate) fn beside(out: &Path) -> Self {
        let name = out.file_name().map_or_else(|| "model".into(), |n| n.to_string_lossy().into_owned());
        Self { path: out.with_file_name(format!("{name}.training")) }
    }

    fn json(&self) -> PathBuf {
        self.path.join(JSON)
    }

    /// Whether there is a training in it.
    pub(crate) fn holds_one(&self) -> bool {
        self.json().is_file()
    }

    /// Refuses a folder that is there and was not made for a training, and one that is, or holds, any of the inputs.
    pub(crate) fn check(&self, inputs: &[&Path]) -> Result<(), JobError> {
        target::refuse_input(&self.path, inputs)?;
        let is_free = std::fs::read_dir(&self.path).map_or(true, |mut entries| entries.next().is_none());
        let is_file = self.path.is_file() || self.path.is_symlink();
        if !is_file && (is_free || folder::is_working(&self.path, KIND)) {
            return Ok(());
        }
        Err(StorageError::NotOurs {
            path: self.path.clone(),
            problem: "is where an unfinished training run would be kept, but Cytoscope did not make it".to_owned(),
            can_force: false,
        }
        .into())
    }

    /// Creates the folder if it does not exist, and keeps other runs out of it for as long as the lock is held.
    pub(crate) fn claim(&self) -> Result<ResultsLock, JobError> {
        folder::create_working(&self.path, KIND)?;
        Ok(ResultsLock::of_file(self.path.join(LOCK), &self.path)?)
    }

    /// Removes what an earlier training left in the folder.
    pub(crate) fn begin(&self) -> Result<(), JobError> {
        // First what makes it a training: a folder that is half empty is none.
        Ok(folder::clear_working(&self.path, KIND, &[JSON], &[LOCK])?)
    }

    /// Removes the folder.
    pub(crate) fn remove(&self) -> Result<(), JobError> {
        Ok(folder::remove_working(&self.path, KIND)?)
    }

    /// Removes the folder, its work being done; one that stays only takes room.
    pub(crate) fn finish(&self) {
        let _ = self.remove();
    }

    /// The file that asks the training to end with the best so far.
    fn finish_file(&self) -> PathBuf {
        self.path.join("finish")
    }

    /// Whether the training was asked to end with the best so far.
    pub(crate) fn is_asked_to_finish(&self) -> bool {
        self.finish_file().exists()
    }

    /// Asks the training to end with the best so far.
    pub(crate) fn ask_to_finish(&self) -> Result<(), JobError> {
        let path = self.finish_file();
        Ok(atomic_write(&path, &[])?)
    }

    /// The picture of what the network made of a validation pair last.
    pub(crate) fn shown(&self) -> PathBuf {
        self.path.join("shown.png")
    }

    /// The package of the best network, which was found at a step.
    pub(crate) fn best(&self, step: u64) -> PathBuf {
        self.path.join(format!("{BEST}{step}"))
    }

    /// Takes out networks that are not the best any more.
    fn forget_others(&self, best: &Path) {
        for entry in std::fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let path = entry.path();
            let is_one = entry.file_name().to_string_lossy().starts_with(BEST);
            if is_one && path != best {
                let _ = folder::remove_finished(&path, PACKAGE_KIND);
            }
        }
    }

    /// The package of what training started from.
    pub(crate) fn start(&self) -> PathBuf {
        self.path.join("start")
    }

    /// Keeps a standing and its state.
    pub(crate) fn save(&self, standing: &mut Standing, names: &[String], state: &State) -> Result<(), JobError> {
        let old = std::mem::replace(&mut standing.tensors, format!("tensors-{}.safetensors", standing.step));
        standing.optimizer_steps = state.optimizer_steps;
        (standing.loss_scale, standing.steady_steps) = (state.loss_scale, state.steady_steps);
        standing.version = VERSION;
        let mut tensors: Vec<(String, &Tensor)> = Vec::new();
        for (i, name) in names.iter().enumerate() {
            for (part, list) in [
                ("value", &state.values),
                ("first", &state.first),
                ("second", &state.second),
                ("average", &state.average),
            ] {
                tensors.extend(list.get(i).map(|t| (format!("{part}/{name}"), t)));
            }
        }
        tensors.extend(state.running.iter().map(|(name, t)| (format!("running/{name}"), t)));
        // SafeTensors keeps little-endian bytes, which these machines all have.
        let views: Vec<(String, TensorView<'_>)> = tensors
            .into_iter()
            .filter_map(|(name, tensor)| {
                let bytes = bytes_of(tensor.as_f32()?);
                Some((name, TensorView::new(Dtype::F32, tensor.shape().to_vec(), bytes).ok()?))
            })
            .collect();
        let bytes = safetensors::serialize(views, None).map_err(|e| JobError::Panicked(e.to_string()))?;
        atomic_write(&self.path.join(&standing.tensors), &bytes)?;
        let json = serde_json::to_vec_pretty(standing).map_err(|e| JobError::Panicked(e.to_string()))?;
        atomic_write(&self.json(), &json)?;
        if old != standing.tensors && !old.is_empty() {
            let _ = std::fs::remove_file(self.path.join(old));
        }
        if let Some((_, step)) = standing.best {
            self.forget_others(&self.best(step));
        }
        Ok(())
    }

    /// Reads what was kept.
    pub(crate) fn load(&self) -> Result<(Standing, BTreeMap<String, Tensor>), JobError> {
        let bad = |path: &Path, problem: String| JobError::Mismatch {
            path: path.to_owned(),
            problem,
            next_step: "begin anew with --anew in place of --resume".to_owned(),
        };
        let path = self.json();
        let bytes = read(&path, MAX_JSON_BYTES)?;
        let standing: Standing =
            serde_json::from_slice(&bytes).map_err(|e| bad(&path, format!("it is no training: {e}")))?;
        if standing.version != VERSION {
            return Err(bad(&path, format!("it is of version {}, this program reads {VERSION}", standing.version)));
        }
        standing.check(&path)?;
        let plain = standing.tensors.starts_with("tensors-") && !standing.tensors.contains(['/', '\\']);
        if !plain {
            return Err(bad(&path, "it names no file of tensors".to_owned()));
        }
        let path = self.path.join(&standing.tensors);
        let bytes = read(&path, MAX_TENSOR_BYTES)?;
        let file = SafeTensors::deserialize(&bytes).map_err(|e| bad(&path, e.to_string()))?;
        let mut tensors = BTreeMap::new();
        for (name, view) in file.tensors() {
            if view.dtype() != Dtype::F32 {
                return Err(bad(&path, format!("\"{name}\" is {:?}, expected F32", view.dtype())));
            }
            let values: Vec<f32> =
                view.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            let tensor = Tensor::new(view.shape(), values).map_err(|e| bad(&path, e.to_string()))?;
            tensors.insert(name, tensor);
        }
        Ok((standing, tensors))
    }
}

/// Puts what was kept into a state of the same names and shapes.
pub(crate) fn restore(
    state: &mut State,
    names: &[String],
    standing: &Standing,
    tensors: &BTreeMap<String, Tensor>,
    path: &Path,
) -> Result<(), JobError> {
    let take = |key: String, to: &mut Tensor| -> Result<(), JobError> {
        let found = tensors.get(&key).filter(|t| t.shape() == to.shape());
        *to = found.cloned().ok_or_else(|| JobError::Mismatch {
            path: path.to_owned(),
            problem: format!("it does not hold \"{key}\" as {:?}", to.shape()),
            next_step: "begin anew with --anew in place of --resume".to_owned(),
        })?;
        Ok(())
    };
    for (i, name) in names.iter().enumerate() {
        for (part, list) in [
            ("value", &mut state.values),
            ("first", &mut state.first),
            ("second", &mut state.second),
            ("average", &mut state.average),
        ] {
            if let Some(t) = list.get_mut(i) {
                take(format!("{part}/{name}"), t)?;
            }
        }
    }
    for (name, t) in &mut state.running {
        take(format!("running/{name}"), t)?;
    }
    state.optimizer_steps = standing.optimizer_steps;
    (state.loss_scale, state.steady_steps) = (standing.loss_scale, standing.steady_steps);
    Ok(())
}

fn read(path: &Path, most: u64) -> Result<Vec<u8>, JobError> {
    let file = open_regular(path).map_err(io(path))?;
    let size = file.metadata().map_err(io(path))?.len();
    if size > most {
        return Err(JobError::Mismatch {
            path: path.to_owned(),
            problem: format!("it has {size} bytes, more than the {most} that a training's file may have"),
            next_step: "begin anew with --anew in place of --resume".to_owned(),
        });
    }
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes).map_err(io(path))?;
    Ok(bytes)
}

fn bytes_of(values: &[f32]) -> &[u8] {
    bytemuck::cast_slice(values)
}

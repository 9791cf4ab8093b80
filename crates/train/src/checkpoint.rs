//! The folder of a training: everything needed to go on, written whole or not at all.
//!
//! `training.json` says where the training stands, `tensors.safetensors` holds parameters, optimizer state, averages and statistics.
//! Both belong together: the tensors' file is named by the step, and the older one goes after the newer `training.json` is there.
//! The best network lies in a folder named by its step, so that the one `training.json` speaks of is always there.
//! A file named `finish` asks the training to take no further step and end with the best network so far.

use crate::config::TrainConfig;
use crate::error::io;
use crate::history::History;
use crate::job::TrainJob;
use crate::step::State;
use cytoscope_formats::atomic_write;
use cytoscope_graph::Tensor;
use cytoscope_pipeline::JobError;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Version of the layout.
const VERSION: u32 = 2;
/// Most bytes of `training.json`.
const MAX_JSON_BYTES: u64 = 64 << 20;
/// Most bytes of the tensors.
const MAX_TENSOR_BYTES: u64 = 16 << 30;
/// Locked by the run that teaches.
const LOCK: &str = "lock";
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
    /// What the last validation took.
    #[serde(default)]
    pub validation_secs: f64,
    /// The tensors' file.
    pub tensors: String,
}

fn one() -> f32 {
    1.0
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
        self.path.join("training.json")
    }

    /// Whether there is a training in it.
    pub(crate) fn holds_one(&self) -> bool {
        self.json().is_file()
    }

    /// Makes the folder where it is not there, and keeps others from teaching in it for as long as the file is held.
    pub(crate) fn claim(&self) -> Result<File, JobError> {
        std::fs::create_dir_all(&self.path).map_err(io(&self.path))?;
        let path = self.path.join(LOCK);
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(io(&path))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            // Some network drives know no locks.
            Err(TryLockError::Error(e)) if e.kind() == ErrorKind::Unsupported => Ok(file),
            Err(TryLockError::Error(e)) => Err(io(&path)(e)),
            Err(TryLockError::WouldBlock) => Err(JobError::Mismatch {
                path: self.path.clone(),
                problem: "another run of Cytoscope is teaching in it".to_owned(),
                next_step: "wait for it or stop it, or give another --out".to_owned(),
            }),
        }
    }

    /// Takes out what an earlier training left.
    pub(crate) fn begin(&self) -> Result<(), JobError> {
        // First what makes it one: a folder that is half gone is no training.
        let json = self.json();
        if json.exists() {
            std::fs::remove_file(&json).map_err(io(&json))?;
        }
        for entry in std::fs::read_dir(&self.path).map_err(io(&self.path))? {
            let path = entry.map_err(io(&self.path))?.path();
            if path.file_name().is_some_and(|name| name == LOCK) {
                continue;
            }
            let is_folder = path.is_dir() && !path.is_symlink();
            if is_folder { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) }.map_err(io(&path))?;
        }
        Ok(())
    }

    /// Takes the folder away, its work being done.
    pub(crate) fn finish(&self) {
        let _ = std::fs::remove_dir_all(&self.path);
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
        std::fs::write(&path, []).map_err(io(&path))
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
                let _ = std::fs::remove_dir_all(path);
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
    let size = std::fs::metadata(path).map_err(io(path))?.len();
    if size > most {
        return Err(JobError::Mismatch {
            path: path.to_owned(),
            problem: format!("it has {size} bytes, more than the {most} that a training's file may have"),
            next_step: "begin anew with --anew in place of --resume".to_owned(),
        });
    }
    std::fs::read(path).map_err(io(path))
}

fn bytes_of(values: &[f32]) -> &[u8] {
    bytemuck::cast_slice(values)
}

//! Predicting: stack in, labels, maps and tables out.

pub(crate) mod files;
pub(crate) mod grid;
mod infer;
pub(crate) mod label;
mod live;
pub(crate) mod one;
mod plan;
mod prediction;
mod preview;

pub use live::{LiveSink, LiveVolume};
pub use plan::{Blend, TilePlan, TileRequest};

use crate::devices::{Chosen, ChosenEngine, Devices};
use crate::diameter::{self, DiameterRequest, ObjectDiameter};
use crate::error::naming;
use crate::evaluate::{looks_like_labels, pair_key};
use crate::job::check_threads;
use crate::wire;
use crate::{Context, Event, JobError, JobErrorKind, Model, Task, provenance};
use cytoscope_engine::{DeviceRequest, Precision};
use cytoscope_formats::OpenOptions;
use cytoscope_objects::SegmentOptions;
use cytoscope_profile::StageTotal;
use cytoscope_storage::{Overwrite, StorageError};
use cytoscope_volume::Axes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// What is written for each input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Output {
    /// The network's output, 32-bit float: `NAME_probability.tif`, or `NAME_prediction.tif` for a stain. Jobs of earlier versions
    /// call it `raw`.
    #[serde(alias = "raw")]
    Maps,
    /// The objects: `NAME_labels.tif`.
    Labels,
    /// Their measurements: `NAME_objects.csv`.
    Table,
    /// A picture of the middle slice: objects outlined, or the predicted stain beside it: `NAME_preview.png`.
    Preview,
}

impl std::str::FromStr for Output {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            // `raw` is what earlier versions called it.
            "maps" | "raw" => Ok(Self::Maps),
            "labels" => Ok(Self::Labels),
            "table" => Ok(Self::Table),
            "preview" => Ok(Self::Preview),
            _ => Err(format!("\"{text}\" is no output: expected maps, labels, table or preview")),
        }
    }
}

/// A prediction of one or many stacks: everything that decides its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PredictJob {
    /// Files and folders.
    pub inputs: Vec<PathBuf>,
    /// Package by path or name.
    pub model: String,
    /// Folder of the results.
    pub out: PathBuf,
    /// `auto`, or a device.
    #[serde(default = "auto")]
    pub device: String,
    /// Number format; `None`: the best the device has for this model.
    #[serde(default)]
    pub precision: Option<Precision>,
    /// Tiles.
    #[serde(default)]
    pub tiles: TileRequest,
    /// What is written; empty: all that the model's task has.
    #[serde(default)]
    pub outputs: BTreeSet<Output>,
    /// First channel the model sees (from 0).
    #[serde(default)]
    pub channel: Option<usize>,
    /// Time point (from 0); `None`: all.
    #[serde(default)]
    pub time: Option<usize>,
    /// Series of files with several.
    #[serde(default)]
    pub series: usize,
    /// Axes of the file, where its own are wrong.
    #[serde(default)]
    pub axes: Option<Axes>,
    /// Voxel size Z, Y, X in µm, where the file's own is wrong or missing.
    #[serde(default)]
    pub voxel_um: Option<[f64; 3]>,
    /// Median diameter of the objects, which are brought to the model's nominal one where it states one.
    #[serde(default)]
    pub diameter: DiameterRequest,
    /// Most bytes to hold; `None`: three quarters of what is free.
    #[serde(default)]
    pub memory_budget_bytes: Option<u64>,
    /// Skip inputs whose results are there and were made by the same job.
    #[serde(default)]
    pub resume: bool,
    /// Threads; 0: all.
    #[serde(default)]
    pub threads: usize,
    /// What happens to files under the names of results that no prediction wrote.
    #[serde(default)]
    pub overwrite: Overwrite,
}

fn auto() -> String {
    "auto".to_owned()
}

/// One input's report.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InputReport {
    /// The input.
    pub input: PathBuf,
    /// Files written.
    pub outputs: Vec<PathBuf>,
    /// Whether results of an earlier run were kept.
    pub resumed: bool,
    /// Shape Z, Y, X.
    pub shape_zyx: [usize; 3],
    /// Time points predicted.
    pub times: usize,
    /// Objects found, a time point.
    pub objects: Vec<u32>,
    /// Where it ran and why.
    pub device: Chosen,
    /// Precision it ran in.
    pub precision: String,
    /// The object diameter used; absent for models that state none.
    #[serde(default)]
    pub diameter: Option<ObjectDiameter>,
    /// How objects were made, in µm of the stack; absent where none were.
    #[serde(default)]
    pub segment: Option<SegmentOptions>,
    /// Tiles, halo, blending, stated peak.
    pub plan: TilePlan,
    /// Operators the reference executor ran.
    #[serde(deserialize_with = "wire::fallbacks")]
    pub fallbacks: Vec<cytoscope_engine::OpFallback>,
    /// Seams along X: 0 is none; absent where there is a single tile.
    pub seam_energy: Option<f64>,
    /// Seconds, bytes and voxels by stage.
    pub stages: Vec<StageTotal>,
    /// Wall seconds.
    pub seconds: f64,
    /// Most bytes this process ever held.
    pub actual_peak_bytes: Option<u64>,
    /// Things worth knowing.
    pub notes: Vec<String>,
}

/// An input that failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InputFailure {
    /// The input.
    pub input: PathBuf,
    /// What kind of end it was.
    pub kind: JobErrorKind,
    /// Why, in a sentence that names the input.
    pub sentence: String,
}

/// What a prediction came to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PredictOutcome {
    /// Inputs done.
    pub done: Vec<InputReport>,
    /// Inputs that failed.
    pub failed: Vec<InputFailure>,
}

/// Longest edge of a tile that can be asked for, in voxels.
const MAX_TILE_EDGE: usize = 1 << 20;

/// Endings of files taken from folders.
const STACK_ENDINGS: [&str; 6] = ["tif", "tiff", "btf", "tf8", "tf2", "npy"];

/// Endings of the maps a prediction writes; the last is that of earlier versions.
const MAP_ENDINGS: [&str; 3] = ["_probability.tif", "_prediction.tif", "_raw.tif"];

/// Ending of the maps that a model of a task writes.
pub(crate) fn map_ending(task: Task) -> &'static str {
    match task {
        Task::Segmentation => MAP_ENDINGS[0],
        Task::LabelFree => MAP_ENDINGS[1],
    }
}

/// The stem of the results that a file belongs to if it is a prediction's map, by its name alone.
pub fn map_stem(name: &str) -> Option<&str> {
    MAP_ENDINGS.iter().find_map(|ending| name.strip_suffix(ending))
}

/// The files that maps of a prediction with this stem may have, those written now first.
pub fn map_files(stem: &str) -> [String; 3] {
    MAP_ENDINGS.map(|ending| format!("{stem}{ending}"))
}

/// The files of inputs: files as they are, folders by their stacks, in order.
///
/// # Errors
/// [`JobError`] for a path that is not there and for a folder without stacks.
pub fn expand_inputs(inputs: &[PathBuf]) -> Result<Vec<PathBuf>, JobError> {
    let mut files = Vec::new();
    for input in inputs {
        if !input.is_dir() {
            std::fs::metadata(input).map_err(|error| JobError::unreadable(input, error))?;
            files.push(input.clone());
            continue;
        }
        let entries = std::fs::read_dir(input).map_err(|error| JobError::Io { path: input.clone(), error })?;
        let mut found: Vec<PathBuf> = entries
            .flatten()
            .map(|e| e.path())
            .filter(|p| {
                let name = p.file_name().map(|n| n.to_string_lossy().to_lowercase()).unwrap_or_default();
                let stack = STACK_ENDINGS.iter().any(|e| name.ends_with(&format!(".{e}")));
                stack && !name.starts_with('.') && p.is_file()
            })
            .collect();
        if found.is_empty() {
            return Err(JobError::Mismatch {
                path: input.clone(),
                problem: "the folder holds no stacks".to_owned(),
                next_step: format!("give a folder with files that end in .{}", STACK_ENDINGS.join(", .")),
            });
        }
        found.sort();
        files.extend(found);
    }
    if files.is_empty() {
        return Err(JobError::WrongUse("no input was given: name a file or a folder".to_owned()));
    }
    Ok(files)
}

/// The stacks of a folder to predict: neither label images beside the stack they belong to nor results of earlier predictions.
pub(crate) fn only_stacks(inputs: &[PathBuf], files: Vec<PathBuf>) -> Vec<PathBuf> {
    let is_result = |file: &Path| {
        let name = file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        let of_labels = ["_labels.tif", "_labels.ome.tif"].iter().filter_map(|ending| name.strip_suffix(ending));
        of_labels.into_iter().any(|stem| file.with_file_name(format!("{stem}_provenance.json")).is_file())
            || (map_stem(&name).is_some() && provenance::is_of_prediction(file))
    };
    let of_stacks: BTreeSet<(Option<PathBuf>, String)> = files
        .iter()
        .filter(|f| !looks_like_labels(f) && !is_result(f))
        .map(|f| (f.parent().map(Path::to_owned), pair_key(f)))
        .collect();
    files
        .iter()
        .filter(|f| {
            let beside = || of_stacks.contains(&(f.parent().map(Path::to_owned), pair_key(f)));
            inputs.contains(f) || !(is_result(f) || (looks_like_labels(f) && beside()))
        })
        .cloned()
        .collect()
}

/// The stem of results: the file's name without its ending (`.ome.tif` counts as one); a number is added where two inputs share it.
fn stems(files: &[PathBuf]) -> Vec<String> {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    files
        .iter()
        .map(|f| {
            let name = f.file_name().map_or_else(|| "stack".to_owned(), |n| n.to_string_lossy().into_owned());
            let lower = name.to_lowercase();
            let cut = [".ome.tiff", ".ome.tif"].into_iter().find(|e| lower.ends_with(e)).map(|e| name.len() - e.len());
            let stem = match cut.or_else(|| name.rfind('.').filter(|i| *i > 0)) {
                Some(at) => name.get(..at).unwrap_or(&name).to_owned(),
                None => name,
            };
            let mut unique = stem.clone();
            let mut n = 2;
            // Some disks do not tell upper case from lower.
            while !seen.insert(unique.to_lowercase()) {
                unique = format!("{stem}_{n}");
                n += 1;
            }
            unique
        })
        .collect()
}

impl PredictJob {
    /// Options the inputs are opened with.
    pub(crate) fn open_options(&self) -> OpenOptions {
        OpenOptions { series: self.series, axes: self.axes.clone(), ..OpenOptions::default() }
    }

    /// Runs the job. An input that fails is reported and the rest goes on; cancelling and a full disk end it.
    ///
    /// # Errors
    /// [`JobError`] if nothing can be begun (no model, no device, no folder to write to), or on cancelling.
    pub fn run(&self, context: &Context, devices: &Devices) -> Result<PredictOutcome, JobError> {
        self.run_live(context, devices, None)
    }

    /// As [`PredictJob::run`], with someone who sees the prediction grow; the results are the same to the bit.
    ///
    /// # Errors
    /// As [`PredictJob::run`].
    pub fn run_live(
        &self,
        context: &Context,
        devices: &Devices,
        live: Option<&dyn LiveSink>,
    ) -> Result<PredictOutcome, JobError> {
        self.check()?;
        let request: DeviceRequest = self.device.parse()?;
        let found = expand_inputs(&self.inputs)?;
        let files = only_stacks(&self.inputs, found.clone());
        if files.len() < found.len() {
            let left = found.len() - files.len();
            context.note(format!("{left} label images and earlier results in the folder are left out"));
        }
        if files.is_empty() {
            return Err(JobError::Mismatch {
                path: self.inputs.first().cloned().unwrap_or_default(),
                problem: "the folder holds only results of earlier predictions".to_owned(),
                next_step: "give the folder of the stacks themselves".to_owned(),
            });
        }
        let stems = stems(&files);
        let model = Model::load(&self.model)?;
        diameter::check(self.diameter, &model)?;
        self.refuse_inputs(&files, &stems, model.task)?;
        for path in [&model.path, &std::path::absolute(&self.out).unwrap_or_else(|_| self.out.clone())] {
            if path.to_str().is_none() {
                let what = "the path is not valid Unicode (UTF-8), so the results' record could not name it";
                return Err(JobError::WrongUse(format!("{}: {what}; rename the folder", path.display())));
            }
        }
        std::fs::create_dir_all(&self.out).map_err(|error| JobError::Io { path: self.out.clone(), error })?;
        let mut outcome = PredictOutcome::default();
        let mut engine = devices.for_model(context, &model, request, self)?;
        engine.tell(context);
        let count = files.len();
        for (index, (input, stem)) in files.iter().zip(stems).enumerate() {
            context.tell(&Event::Started { input: input.clone(), index, count });
            let report =
                catch_unwind(AssertUnwindSafe(|| self.one(context, &model, &mut engine, devices, input, &stem, live)))
                    .unwrap_or_else(|panic| Err(JobError::Panicked(panic_text(&*panic))));
            match report {
                Ok(report) => {
                    context.tell(&Event::Finished { input: input.clone(), outputs: report.outputs.clone() });
                    outcome.done.push(report);
                }
                Err(JobError::Cancelled) => return Err(JobError::Cancelled),
                Err(error) => {
                    context.tell(&Event::Failed { input: input.clone(), reason: error.to_string() });
                    let fatal = error.kind() == JobErrorKind::OutOfResources && count > 1 && is_full_disk(&error);
                    let sentence = naming(&input.display().to_string(), &error.to_string());
                    outcome.failed.push(InputFailure { input: input.clone(), kind: error.kind(), sentence });
                    if fatal {
                        context.note("the disk is full: the remaining inputs were not begun");
                        break;
                    }
                }
            }
        }
        Ok(outcome)
    }

    /// Refuses values that no command line would take: jobs also come from files.
    fn check(&self) -> Result<(), JobError> {
        let wrong = |what: String| Err(JobError::WrongUse(what));
        check_threads(self.threads)?;
        if let Some(tile) = self.tiles.tile.filter(|t| t.iter().any(|n| *n == 0 || *n > MAX_TILE_EDGE)) {
            return wrong(format!("--tile {tile:?}: expected lengths from 1 to {MAX_TILE_EDGE} voxels"));
        }
        if let Some(overlap) = self.tiles.overlap.filter(|v| !(0.0..1.0).contains(v)) {
            return wrong(format!("--overlap {overlap} is outside 0 to below 1"));
        }
        if self.memory_budget_bytes == Some(0) {
            return wrong("--memory-budget 0: expected a size such as 2G".to_owned());
        }
        match self.voxel_um.filter(|v| v.iter().any(|um| !um.is_finite() || *um <= 0.0)) {
            Some(um) => wrong(format!("--voxel-size {um:?}: expected three sizes above 0 in µm")),
            None => Ok(()),
        }
    }

    /// Refuses a job whose results would overwrite its inputs.
    fn refuse_inputs(&self, files: &[PathBuf], stems: &[String], task: Task) -> Result<(), JobError> {
        let Ok(out) = self.out.canonicalize() else { return Ok(()) };
        let inputs: BTreeSet<PathBuf> = files.iter().filter_map(|f| f.canonicalize().ok()).collect();
        // Existing paths as the disk spells them: it may not tell upper case from lower.
        let is_input = |path: &PathBuf| path.canonicalize().is_ok_and(|path| inputs.contains(&path));
        match stems.iter().flat_map(|stem| files::Paths::new(&out, stem, task).all()).find(is_input) {
            None => Ok(()),
            Some(path) => Err(StorageError::IsInput { path }.into()),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn one(
        &self,
        context: &Context,
        model: &Model,
        engine: &mut ChosenEngine,
        devices: &Devices,
        input: &Path,
        stem: &str,
        live: Option<&dyn LiveSink>,
    ) -> Result<InputReport, JobError> {
        if std::path::absolute(input).is_ok_and(|path| path.to_str().is_none()) {
            return Err(JobError::Mismatch {
                path: input.to_owned(),
                problem: "the name is not valid Unicode (UTF-8), so the result's record could not name it".to_owned(),
                next_step: "rename the file".to_owned(),
            });
        }
        let result = one::predict(self, context, model, engine, input, stem, live);
        match result {
            Err(error) if error.kind() == JobErrorKind::Cancelled => Err(JobError::Cancelled),
            // A device that gives up is not the end of the run: the processor takes over.
            Err(JobError::Engine(e)) if engine.can_step_down() => {
                context.note(format!("{e}; going on with the processor"));
                *engine = devices.step_down(context, model, self, engine, &e)?;
                engine.tell(context);
                one::predict(self, context, model, engine, input, stem, live)
            }
            other => other,
        }
    }

    /// The part of the job that decides an input's result, for `--resume` and provenance.
    pub(crate) fn fingerprint(&self, model: &Model, input: &Path, files: &[provenance::InputRecord]) -> String {
        let job = PredictJob {
            resume: false,
            memory_budget_bytes: None,
            threads: 0,
            overwrite: Overwrite::Refuse,
            inputs: vec![input.to_owned()],
            ..self.clone()
        };
        provenance::fingerprint(&job, &model.fingerprint, files)
    }
}

fn is_full_disk(error: &JobError) -> bool {
    match error {
        JobError::Io { error, .. } => error.kind() == std::io::ErrorKind::StorageFull,
        JobError::Format(e) => e.kind() == cytoscope_formats::FormatErrorKind::OutOfResources,
        _ => false,
    }
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn maps_are_known_by_the_name_of_earlier_versions() {
        let read: BTreeSet<Output> = serde_json::from_str(r#"["raw", "labels", "maps"]"#).unwrap();
        assert_eq!(read, [Output::Maps, Output::Labels].into());
        assert_eq!(serde_json::to_string(&read).unwrap(), r#"["maps","labels"]"#);
        assert_eq!("raw".parse(), Ok(Output::Maps));
        assert_eq!("maps".parse(), Ok(Output::Maps));
        for name in ["x_probability.tif", "x_prediction.tif", "x_raw.tif"] {
            assert_eq!(map_stem(name), Some("x"));
        }
        assert_eq!(map_stem("x_labels.tif"), None);
    }

    #[test]
    fn stems_drop_endings_and_never_collide() {
        let files = ["a/x.ome.tif", "b/x.tif", "c/y.z.TIFF", "d/.hidden"].map(PathBuf::from);
        assert_eq!(stems(&files), ["x", "x_2", "y.z", ".hidden"]);
    }
}

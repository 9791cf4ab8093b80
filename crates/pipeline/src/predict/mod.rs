//! Prediction: from stacks to labels, maps and tables.

mod batch;
mod facts;
pub(crate) mod files;
pub(crate) mod grid;
mod in_memory;
mod infer;
pub(crate) mod input_tensors;
mod kept;
pub(crate) mod label;
mod live;
mod maps;
mod one;
mod options;
mod outputs;
mod pass;
mod pass_plan;
mod plan;
pub(crate) mod postprocess;
mod prediction;
mod preprocessed;
mod preview;
pub(crate) mod resolve;
mod series;
mod session_memory;
mod tiles;
pub(crate) mod zarr;

pub use cytoscope_formats::{ChannelRef, SeriesChoice};
pub use facts::input_facts;
pub use in_memory::{PredictedVolume, VolumeOutputs, predict_volume};
pub use input_tensors::{InputTensor, check_input_files};
pub use live::{LiveSink, LiveVolume};
pub use options::PredictOptions;
pub use pass_plan::PassPlan;
pub use plan::{Blend, TilePlan, TileRequest};
pub use zarr::ResultFormat;

use crate::deserialize;
use crate::devices::{DeviceChoice, Devices, SelectedEngine};
use crate::diameter::{self, DiameterRequest, ObjectDiameter};
use crate::error::with_name;
use crate::evaluate::{looks_like_labels, pair_key};
use crate::{
    AppliedProfile, Artifact, ArtifactKind, Context, Event, JobError, JobErrorKind, Model, ModelTask, preprocess,
    provenance, results, stack_stem,
};
use cytoscope_engine::{DeviceRequest, EngineError, Precision};
use cytoscope_formats::{is_zarr_folder, one_of_each_series};
use cytoscope_model_package::refuse_inside_package;
use cytoscope_objects::SegmentOptions;
use cytoscope_preprocess::PreprocessStep;
use cytoscope_profile::{DeviceTraffic, Stage, StageTotal};
use cytoscope_storage::{Overwrite, StorageError, target};
use cytoscope_volume::Axes;
use serde::{Deserialize, Serialize};
use series::SeriesInput;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// A kind of result that is written for each input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Output {
    /// The network's output as 32-bit floats: `NAME_probability.tif`, or `NAME_prediction.tif` for a stain. Earlier
    /// versions call it `raw`. As OME-Zarr: `NAME_probability.zarr` or `NAME_prediction.zarr`.
    #[serde(alias = "raw")]
    Maps,
    /// The label image: `NAME_labels.tif`. As OME-Zarr: the label image `objects` in the folder of the maps, or
    /// `NAME_labels.zarr` without maps.
    Labels,
    /// The measurements of the objects: `NAME_objects.csv`.
    Table,
    /// A PNG of the middle slice with outlined objects, or with the predicted stain beside it: `NAME_preview.png`.
    Preview,
    /// The stack after the steps of [`PredictJob::preprocess`]: `NAME_preprocessed.ome.tif`.
    Preprocessed,
}

impl std::str::FromStr for Output {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            // Earlier versions called maps `raw`.
            "maps" | "raw" => Ok(Self::Maps),
            "labels" => Ok(Self::Labels),
            "table" => Ok(Self::Table),
            "preview" => Ok(Self::Preview),
            "preprocessed" => Ok(Self::Preprocessed),
            _ => Err(format!("invalid output \"{text}\": expected maps, labels, table, preview or preprocessed")),
        }
    }
}

/// Predicts one or many stacks.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PredictJob {
    /// Stacks to predict; of a folder, all files that can be read.
    pub inputs: Vec<PathBuf>,
    /// Path of a package, or name of an installed model.
    pub model: String,
    /// Folder for the results. If its name ends in `.zarr`, it is the OME-Zarr folder of the maps and labels of the only
    /// input, and the other results are written beside it.
    pub out: PathBuf,
    /// File format of maps and labels.
    #[serde(default, skip_serializing_if = "ResultFormat::is_auto")]
    pub format: ResultFormat,
    /// The device to run on.
    #[serde(default)]
    pub device: DeviceRequest,
    /// Precision; `None` selects the best one of the device for this model.
    #[serde(default)]
    pub precision: Option<Precision>,
    /// Tile size, overlap and blending.
    #[serde(default)]
    pub tiles: TileRequest,
    /// Results to write; if empty, the default ones of the model's task.
    #[serde(default)]
    pub outputs: BTreeSet<Output>,
    /// First channel to use as the model's input, from 0.
    #[serde(default)]
    pub channel: Option<usize>,
    /// The channels to use as the model's inputs, in their order, by name or number; if empty, consecutive ones from
    /// [`PredictJob::channel`] on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub channels: Vec<ChannelRef>,
    /// The images of the model's input tensors that are not read from the channels of their names in the stacks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub input_tensors: Vec<InputTensor>,
    /// Time point, from 0; `None` predicts all.
    #[serde(default)]
    pub time: Option<usize>,
    /// Series to read from multi-series files, by number or name, or all of them.
    #[serde(default)]
    pub series: SeriesChoice,
    /// Axis order, to use instead of the files' own.
    #[serde(default)]
    pub axes: Option<Axes>,
    /// Voxel size Z, Y, X in µm, to use instead of the files' own.
    #[serde(default)]
    pub voxel_um: Option<[f64; 3]>,
    /// Median diameter of the objects, for models with a nominal diameter, to which the stacks are rescaled.
    #[serde(default)]
    pub diameter: DiameterRequest,
    /// Steps that are applied to the stacks before everything else, in this order. Results have the shape of the
    /// preprocessed stack.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preprocess: Vec<PreprocessStep>,
    /// Memory budget in bytes; `None` uses three quarters of the free memory.
    #[serde(default)]
    pub memory_budget_bytes: Option<u64>,
    /// Skip inputs whose results from the same job exist, and continue one that was interrupted: a job with this option
    /// keeps the finished slices beside the results until it is done.
    #[serde(default)]
    pub resume: bool,
    /// Number of threads; 0 uses all cores.
    #[serde(default)]
    pub threads: usize,
    /// Whether to overwrite existing files at the paths of the results that no prediction wrote.
    #[serde(default)]
    pub overwrite: Overwrite,
}

/// What was computed and written for one input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InputReport {
    /// Path of the input.
    pub input: PathBuf,
    /// Number of the series of the input, from 0.
    #[serde(default, skip_serializing_if = "is_first_series")]
    pub series: usize,
    /// Files that were written for this input.
    pub outputs: Vec<Artifact>,
    /// Whether the input was skipped because its results exist.
    pub resumed: bool,
    /// Shape Z, Y, X in voxels.
    pub shape_zyx: [usize; 3],
    /// Number of predicted time points.
    pub times: usize,
    /// Number of objects at each time point.
    pub objects: Vec<u32>,
    /// The device, and why it was chosen.
    pub device: DeviceChoice,
    /// Precision in which the network ran.
    pub precision: Precision,
    /// The object diameter used; absent for models that declare none.
    #[serde(default)]
    pub diameter: Option<ObjectDiameter>,
    /// Segmentation settings, with lengths in µm of the stack; absent if there was no segmentation.
    #[serde(default)]
    pub segment: Option<SegmentOptions>,
    /// Tile size, halo, blending, planned peak memory.
    pub plan: TilePlan,
    /// Shape Z, Y, X of the stack on the model's grid, which was cut into tiles; absent in reports of earlier versions, and
    /// if the input was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grid_zyx: Option<[usize; 3]>,
    /// Operators that the reference executor ran.
    #[serde(deserialize_with = "deserialize::fallbacks")]
    pub fallbacks: Vec<cytoscope_engine::OpFallback>,
    /// Visibility of tile seams along X, 0 for none; absent if there is a single tile.
    pub seam_energy: Option<f64>,
    /// Time, bytes and voxels by stage.
    pub stages: Vec<StageTotal>,
    /// What passed between the host and the device during inference; absent on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<DeviceTraffic>,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Peak memory of this process in bytes.
    pub actual_peak_bytes: Option<u64>,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// The settings that came from a machine profile, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<AppliedProfile>,
}

fn is_first_series(series: &usize) -> bool {
    *series == 0
}

/// An input without results, and the reason.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InputFailure {
    /// Path of the input.
    pub input: PathBuf,
    /// Number of the series of the input, from 0.
    #[serde(default, skip_serializing_if = "is_first_series")]
    pub series: usize,
    /// Kind of the error, from which exit codes are derived.
    pub kind: JobErrorKind,
    /// The error message, which names the input.
    pub sentence: String,
}

/// Reports and failures of all inputs, the result of a [`PredictJob`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PredictOutcome {
    /// Reports of the inputs that succeeded.
    pub done: Vec<InputReport>,
    /// The inputs that failed.
    pub failed: Vec<InputFailure>,
}

/// Extensions of files that are read from folders.
const STACK_ENDINGS: [&str; 16] = [
    "tif", "tiff", "btf", "tf8", "tf2", "npy", "lsm", "stk", "svs", "ndpi", "czi", "nd2", "nii", "nii.gz", "zarr.zip",
    "ozx",
];

/// Extensions of slices, which are read from folders without other stacks.
const SLICE_ENDINGS: [&str; 3] = ["png", "jpg", "jpeg"];

/// Returns the input files, with folders expanded to the stacks in them, sorted by name. An OME-Zarr folder is a stack.
///
/// # Errors
/// [`JobError`] for a missing path or a folder without stacks.
pub fn expand_inputs(inputs: &[PathBuf]) -> Result<Vec<PathBuf>, JobError> {
    let mut files = Vec::new();
    for input in inputs {
        if !input.is_dir() || is_zarr_folder(input) {
            std::fs::metadata(input).map_err(|error| JobError::unreadable(input, error))?;
            files.push(input.clone());
            continue;
        }
        let ends_in = |p: &PathBuf, endings: &[&str]| {
            let name = p.file_name().map(|n| n.to_string_lossy().to_lowercase()).unwrap_or_default();
            let fits = endings.iter().any(|e| name.ends_with(&format!(".{e}")));
            !name.starts_with('.') && ((fits && p.is_file()) || is_zarr_folder(p))
        };
        let listed = std::fs::read_dir(input).and_then(|entries| {
            entries.map(|entry| entry.map(|e| e.path())).collect::<std::io::Result<Vec<PathBuf>>>()
        });
        let mut found = listed.map_err(|error| JobError::Io { path: input.clone(), error })?;
        if found.iter().any(|p| ends_in(p, &STACK_ENDINGS)) {
            found.retain(|p| ends_in(p, &STACK_ENDINGS));
        } else {
            found.retain(|p| ends_in(p, &SLICE_ENDINGS));
            found.sort();
            found = one_of_each_series(&found);
        }
        if found.is_empty() {
            return Err(JobError::Mismatch {
                path: input.clone(),
                problem: "the folder contains no stacks".to_owned(),
                next_step: format!(
                    "give a folder with files that end in .{}, or an OME-Zarr folder",
                    STACK_ENDINGS.join(", .")
                ),
            });
        }
        found.sort();
        files.extend(found);
    }
    if files.is_empty() {
        return Err(JobError::WrongUse("no input was given: give a file or a folder".to_owned()));
    }
    Ok(files)
}

/// Removes files that folders contributed but are not stacks to predict: label images beside their stack, and results
/// of earlier predictions.
pub(crate) fn only_stacks(inputs: &[PathBuf], files: Vec<PathBuf>) -> Vec<PathBuf> {
    let is_result = |file: &Path| {
        if zarr::is_result(file) {
            return true;
        }
        let name = file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        match ArtifactKind::of_name(&name) {
            Some((ArtifactKind::Labels, stem)) => {
                file.with_file_name(ArtifactKind::Provenance.file_name(stem)).is_file()
            }
            Some((ArtifactKind::Preprocessed, _)) => provenance::is_of_prediction(file),
            Some((kind, _)) => kind.is_maps() && provenance::is_of_prediction(file),
            None => false,
        }
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

/// Returns the stems of the results: those of the stacks. A number is added if two inputs have the same name.
fn stems(files: &[PathBuf]) -> Vec<String> {
    let mut seen: BTreeSet<String> = BTreeSet::new();
    files
        .iter()
        .map(|f| {
            let stem = stack_stem(f);
            let mut unique = stem.clone();
            let mut n = 2;
            // Some file systems are case-insensitive.
            while !seen.insert(unique.to_lowercase()) {
                unique = format!("{stem}_{n}");
                n += 1;
            }
            unique
        })
        .collect()
}

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
        self.options().check()?;
        if !self.input_tensors.is_empty() && (self.channel.is_some() || !self.channels.is_empty()) {
            let problem = "--input and --channel or --channels exclude each other";
            return Err(JobError::WrongUse(format!("{problem}: give the channels of the inputs with --input")));
        }
        preprocess::check(&self.preprocess)?;
        if self.outputs.contains(&Output::Preprocessed) && self.preprocess.is_empty() {
            let problem = "--outputs preprocessed writes the preprocessed stack, but there are no steps";
            return Err(JobError::WrongUse(format!("{problem}: give them with --preprocess")));
        }
        let found = expand_inputs(&self.inputs)?;
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
        let inputs = self.series_inputs(&files);
        self.check_zarr_out(inputs.len())?;
        let loading = context.recorder.span(Stage::Load, "model");
        let model = Model::load(&self.model)?;
        loading.finish();
        diameter::check(self.diameter, &model)?;
        // A file with several series is read together with the series of the tensors' files.
        let stacks: BTreeSet<&Path> = inputs.iter().map(|input| input.input.as_path()).collect();
        self.check_input_tensors(&model, stacks.len())?;
        self.refuse_inputs(&files, &inputs, model.task)?;
        refuse_inside_package(self.folder(), &[&model.path])?;
        let of_tensors = self.tensor_files(&files);
        let paths: Vec<&Path> = files.iter().chain(&of_tensors).map(PathBuf::as_path).collect();
        results::refuse_inside_zarr(self.folder(), &paths)?;
        for path in [&model.path, &std::path::absolute(&self.out).unwrap_or_else(|_| self.out.clone())] {
            if path.to_str().is_none() {
                let what = "the path is not valid Unicode (UTF-8), so the provenance record cannot name it";
                return Err(JobError::WrongUse(format!("{}: {what}; rename the folder", path.display())));
            }
        }
        let folder = self.folder();
        std::fs::create_dir_all(folder).map_err(|error| JobError::Io { path: folder.to_owned(), error })?;
        let mut outcome = PredictOutcome::default();
        let choosing = context.recorder.span(Stage::Verify, "device");
        let mut engine = devices.for_model(context, &model, self.device, &self.options())?;
        choosing.finish();
        engine.profile = profile.cloned();
        engine.report(context);
        let count = inputs.len();
        for (index, SeriesInput { input, series, stem }) in inputs.into_iter().enumerate() {
            context.emit(&Event::Started { input: input.clone(), index, count });
            let number = series.as_ref().map_or(0, |series| *series);
            let report = series.and_then(|series| {
                let job = self.of_series(series);
                catch_unwind(AssertUnwindSafe(|| job.one(context, &model, &mut engine, devices, &input, &stem, live)))
                    .unwrap_or_else(|panic| Err(JobError::Panicked(panic_text(&*panic))))
            });
            match report {
                Ok(report) => {
                    let outputs = report.outputs.iter().map(|artifact| artifact.path.clone()).collect();
                    context.emit(&Event::Finished { input: input.clone(), outputs });
                    outcome.done.push(report);
                }
                Err(JobError::Cancelled) => return Err(JobError::Cancelled),
                // A preprocessed image that is cancelled fails to be read.
                Err(_) if context.cancel.is_cancelled() => return Err(JobError::Cancelled),
                Err(error) => {
                    context.emit(&Event::Failed { input: input.clone(), reason: error.to_string() });
                    let fatal = error.kind() == JobErrorKind::OutOfResources && count > 1 && is_full_disk(&error);
                    let named = with_name(&input.display().to_string(), &error.to_string());
                    let sentence = if number > 0 { format!("series {number} of {named}") } else { named };
                    outcome.failed.push(InputFailure { input, series: number, kind: error.kind(), sentence });
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
            let files = files::Paths::new(&out, &result.stem, task).all();
            files.into_iter().chain(zarr::paths_in(&out, &result.stem, task))
        };
        match results.iter().flat_map(paths).find(is_input) {
            None => Ok(()),
            Some(path) => Err(StorageError::IsInput { path }.into()),
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn one(
        &self,
        context: &Context,
        model: &Model,
        engine: &mut SelectedEngine,
        devices: &Devices,
        input: &Path,
        stem: &str,
        live: Option<&dyn LiveSink>,
    ) -> Result<InputReport, JobError> {
        if std::path::absolute(input).is_ok_and(|path| path.to_str().is_none()) {
            return Err(JobError::Mismatch {
                path: input.to_owned(),
                problem: "the name is not valid Unicode (UTF-8), so the provenance record cannot name it".to_owned(),
                next_step: "rename the file".to_owned(),
            });
        }
        if engine.is_replacement()
            && let Some(job) = self.in_32_bits()
        {
            return one::predict(&job, context, model, engine, input, stem, live);
        }
        let mut result = one::predict(self, context, model, engine, input, stem, live);
        // If a device runs out of memory, fewer tiles at once or smaller ones may fit.
        while let Err(JobError::Engine(e @ EngineError::OutOfMemory { .. })) = &result
            && engine.has_fallback()
            && (self.tiles.tile.is_none() || engine.last_batch() > 1)
            && engine.shrink_sessions()
        {
            let change = if engine.last_batch() > 1 { "fewer tiles at once" } else { "smaller tiles" };
            context.note(format!("{e}; trying {change}"));
            result = one::predict(self, context, model, engine, input, stem, live);
        }
        match result {
            Err(error) if error.kind() == JobErrorKind::Cancelled => Err(JobError::Cancelled),
            // The CPU has no 16-bit floats either.
            Err(JobError::Engine(e @ EngineError::UnsupportedPrecision { .. })) if self.in_32_bits().is_some() => {
                Err(JobError::Engine(e))
            }
            // If a device fails, the CPU takes over.
            Err(JobError::Engine(e)) if engine.has_fallback() => {
                let (job, how) = match self.in_32_bits() {
                    Some(job) => (job, " in f32"),
                    None => (self.clone(), ""),
                };
                context.note(format!("{e}; continuing on the CPU{how}"));
                *engine = devices.fall_back_to_cpu(context, model, &job.options(), engine, &e)?;
                engine.report(context);
                one::predict(&job, context, model, engine, input, stem, live)
            }
            other => other,
        }
    }

    /// Returns a job in 16-bit floats as one in 32 bits, for the CPU; `None` for other jobs.
    fn in_32_bits(&self) -> Option<PredictJob> {
        let is_half = matches!(self.precision, Some(Precision::F16 | Precision::Bf16));
        is_half.then(|| PredictJob { precision: Some(Precision::F32), ..self.clone() })
    }

    /// Returns the fingerprint of everything that determines an input's result, for `--resume` and provenance.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] if a path is not Unicode.
    pub(crate) fn fingerprint(
        &self,
        model: &Model,
        input: &Path,
        files: &[provenance::InputRecord],
    ) -> Result<String, JobError> {
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

/// Returns the message of a panic.
pub fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
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
    fn outputs_of_earlier_versions_are_recognized() {
        let read: BTreeSet<Output> = serde_json::from_str(r#"["raw", "labels", "maps"]"#).unwrap();
        assert_eq!(read, [Output::Maps, Output::Labels].into());
        assert_eq!(serde_json::to_string(&read).unwrap(), r#"["maps","labels"]"#);
        assert_eq!("raw".parse(), Ok(Output::Maps));
        assert_eq!("maps".parse(), Ok(Output::Maps));
    }

    #[test]
    fn stems_drop_extensions_and_are_unique() {
        let files = ["a/x.ome.tif", "b/x.tif", "c/y.z.TIFF", "d/.hidden"].map(PathBuf::from);
        assert_eq!(stems(&files), ["x", "x_2", "y.z", ".hidden"]);
    }
}

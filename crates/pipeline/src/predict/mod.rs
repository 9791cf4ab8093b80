//! Prediction: from stacks to labels, maps and tables.

pub(crate) mod attempts;
mod batch;
mod colors;
mod constant_channels;
mod disk_space;
mod facts;
pub(crate) mod file_notes;
pub(crate) mod files;
pub(crate) mod grid;
mod image_preprocessing;
mod in_memory;
mod infer;
pub(crate) mod input_channels;
pub(crate) mod input_tensors;
mod kept;
mod kept_bands;
pub(crate) mod label;
mod label_slices;
mod live;
mod maps;
mod one;
mod options;
pub(crate) mod output_check;
mod outputs;
mod pass;
mod pass_plan;
mod plan;
pub(crate) mod postprocess;
pub(crate) mod prediction;
mod preprocessed;
mod preview;
pub(crate) mod resolve;
mod run;
mod series;
mod session_memory;
#[cfg(test)]
#[path = "../../tests/suite/common.rs"]
pub(crate) mod test_common;
mod tiles;
pub(crate) mod zarr;

pub use cytoscope_formats::{ChannelRef, SeriesChoice};
pub use facts::input_facts;
pub use file_notes::is_on_absent_chunks;
pub use image_preprocessing::ImagePreprocessing;
pub use in_memory::{PredictedVolume, VolumeOutputs, predict_part, predict_volume, predict_volume_on_devices};
pub use input_channels::channel_by_name;
pub use input_tensors::{InputTensor, TensorImage, check_input_files};
pub use kept::{KeepSlices, PredictedSlices};
pub use live::{LiveSink, LiveVolume};
pub use options::PredictOptions;
pub use pass_plan::PassPlan;
pub use plan::{Blend, BlendRequest, NoPass, TilePlan, TileRequest};
pub use resolve::completed_voxel_um;
pub use zarr::{ResultFormat, containing_maps};

use crate::deserialize;
use crate::devices::DeviceChoice;
use crate::diameter::{DiameterRequest, ObjectDiameter};
use crate::evaluate::{looks_like_labels, pair_key};
use crate::{
    AppliedProfile, Artifact, ArtifactKind, ExistingOutput, JobError, JobErrorKind, Model, Note, OutputTensor,
    StatisticsScope, TableFormat, provenance,
};
use cytoscope_engine::{DeviceRequest, Precision};
use cytoscope_formats::{STACK_EXTENSIONS, first_file_per_series, is_zarr_folder, stack_stem};
use cytoscope_objects::SegmentOptions;
use cytoscope_preprocess::PreprocessStep;
use cytoscope_profile::{DeviceTraffic, StageTotal};
use cytoscope_storage::Overwrite;
use cytoscope_storage::message;
use cytoscope_storage::message::NamedSetting;
use cytoscope_volume::{Axes, Axis, VoxelSize};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
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
    /// The measurements of the objects: `NAME_objects.csv`, or `NAME_objects.parquet` as Parquet.
    Table,
    /// A PNG of the middle slice with outlined objects, or with the predicted stain beside it: `NAME_preview.png`.
    Preview,
    /// The stack after the steps of [`PredictJob::preprocess`]: `NAME_preprocessed.ome.tif`.
    Preprocessed,
}

cytoscope_storage::named! {
    /// Returns the name in records and on the command line.
    pub fn name(Output) {
        Maps => "maps",
        Labels => "labels",
        Table => "table",
        Preview => "preview",
        Preprocessed => "preprocessed",
    }
}

impl Output {
    /// All kinds of results.
    pub const ALL: [Self; 5] = [Self::Maps, Self::Labels, Self::Table, Self::Preview, Self::Preprocessed];

    /// Name of [`Output::Maps`] in earlier versions.
    pub const EARLIER_MAPS: &str = "raw";
}

impl std::str::FromStr for Output {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|output| output.name() == text);
        let earlier = (text == Self::EARLIER_MAPS).then_some(Self::Maps);
        known.or(earlier).ok_or_else(|| {
            let expected = cytoscope_storage::names::alternatives(&Self::ALL.map(Self::name));
            format!("invalid output \"{text}\": expected {expected}")
        })
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
    /// input, or one zip file with that folder if the name ends in `.ozx` or `.zarr.zip`; the other results are written
    /// beside it.
    pub out: PathBuf,
    /// File format of maps and labels.
    #[serde(default, skip_serializing_if = "ResultFormat::is_auto")]
    pub format: ResultFormat,
    /// Format of the tables of objects.
    #[serde(default, skip_serializing_if = "TableFormat::is_csv")]
    pub table_format: TableFormat,
    /// The device to run on.
    #[serde(default)]
    pub device: DeviceRequest,
    /// Why the CPU computes instead of `device`, which has failed in an earlier run of the same job; `None` if `device`
    /// computes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_because: Option<String>,
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
    /// Images of those input tensors of the model that are not read from the channel of the stack with their name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub input_tensors: Vec<InputTensor>,
    /// The output tensor of the model that is predicted; `None` for the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_tensor: Option<OutputTensor>,
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
    /// Voxel size in µm along single axes, to use instead of that of the files, which keep their own along the others.
    /// [`PredictJob::voxel_um`] takes its place.
    #[serde(default, skip_serializing_if = "VoxelSize::is_unknown")]
    pub voxel_axes_um: VoxelSize,
    /// Median diameter of the objects, for models with a nominal diameter: stacks are rescaled so that objects have that one.
    #[serde(default)]
    pub diameter: DiameterRequest,
    /// Steps that are applied to the stacks before everything else, in this order. Results have the shape of the
    /// preprocessed stack.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub preprocess: Vec<PreprocessStep>,
    /// Memory budget in bytes; `None` uses three quarters of the free memory.
    #[serde(default)]
    pub memory_budget_bytes: Option<u64>,
    /// Skip inputs that have results of the same job, and continue an interrupted prediction after the slices that it has
    /// kept. A job with this option always keeps its finished slices.
    #[serde(default)]
    pub resume: bool,
    /// Whether the finished slices are kept beside the results until the job is done.
    #[serde(default, skip_serializing_if = "KeepSlices::is_auto")]
    pub keep_slices: KeepSlices,
    /// Number of threads; 0 uses all cores.
    #[serde(default)]
    pub threads: usize,
    /// Whether results may overwrite files that no prediction wrote.
    #[serde(default)]
    pub overwrite: Overwrite,
}

/// Report of the computed and written results of one input.
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
    /// Number of objects at each time point; empty without labels, and if the input was skipped.
    pub objects: Vec<u32>,
    /// The device, and why it was chosen; the existing results of a skipped input may be from another one.
    pub device: DeviceChoice,
    /// Precision in which the network ran; the existing results of a skipped input may have another one.
    pub precision: Precision,
    /// The devices and precisions that computed the slices, in order, if some were not computed on `device` in `precision`,
    /// because another device failed or an interrupted run was continued.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<PredictedSlices>,
    /// The object diameter used; absent for models that declare none.
    #[serde(default)]
    pub diameter: Option<ObjectDiameter>,
    /// Segmentation settings, with lengths in µm of the stack; absent if there was no segmentation.
    #[serde(default)]
    pub segment: Option<SegmentOptions>,
    /// Channels of the maps in which objects and their seeds were found; absent if there was no segmentation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub segment_channels: Option<[usize; 2]>,
    /// Tile size, halo, blending, planned peak memory; absent if the input was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<TilePlan>,
    /// Shape Z, Y, X of the stack on the model's grid, which was cut into tiles; absent in reports of earlier versions, and
    /// if the input was skipped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grid_zyx: Option<[usize; 3]>,
    /// Operators that the reference executor ran.
    #[serde(deserialize_with = "deserialize::fallbacks")]
    pub fallbacks: Vec<cytoscope_engine::OpFallback>,
    /// Visibility of tile seams along X: how much more neighboring voxels differ across borders of tiles than beside them, as a
    /// share; at least 0. Absent if there is a single tile.
    pub seam_energy: Option<f64>,
    /// Time, bytes and voxels by stage.
    pub stages: Vec<StageTotal>,
    /// Traffic between the host and the device during inference; absent on the CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<DeviceTraffic>,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Peak memory of this process in bytes during this prediction; where the system does not allow that, since the process
    /// started.
    pub actual_peak_bytes: Option<u64>,
    /// Notes for the user, in JSON a list of texts.
    #[serde(flatten, with = "crate::note::texts")]
    pub notes: Vec<Note>,
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
    #[serde(rename = "sentence")]
    pub message: String,
    /// What to do next, which is the end of the message after `; `, if the error states it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_step: Option<String>,
    /// The settings that the message names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<NamedSetting>,
    /// The file that the job would replace if the user allowed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub existing: Option<ExistingOutput>,
}

/// Reports and failures of all inputs, the result of a [`PredictJob`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PredictOutcome {
    /// Reports of the inputs that succeeded.
    pub done: Vec<InputReport>,
    /// The inputs that failed.
    pub failed: Vec<InputFailure>,
}

/// Extensions of slices, which are read from folders without other stacks.
pub const SLICE_EXTENSIONS: [&str; 3] = ["png", "jpg", "jpeg"];

/// Returns the input files, with folders expanded to the stacks in them, sorted by name. An OME-Zarr folder is a stack. Of
/// the files of a numbered series, only one is returned, unless `axes` are the axes of a single slice.
///
/// # Errors
/// [`JobError`] for a missing path or a folder without stacks.
pub fn expand_inputs(inputs: &[PathBuf], axes: Option<&Axes>) -> Result<Vec<PathBuf>, JobError> {
    let is_of_slice = |axes: &Axes| !axes.iter().any(|axis| matches!(axis, Axis::T | Axis::Z | Axis::C));
    if axes.is_some_and(is_of_slice) {
        return listed(inputs, &<[PathBuf]>::to_vec);
    }
    Ok(first_file_per_series(&list_inputs(inputs)?))
}

/// Returns the input files, with folders expanded to the stacks in them, sorted by name, as [`expand_inputs`], but with all
/// TIFF files of a numbered series. Of PNG and JPEG files in folders, one of each series is returned.
///
/// # Errors
/// [`JobError`] for a missing path or a folder without stacks.
pub(crate) fn list_inputs(inputs: &[PathBuf]) -> Result<Vec<PathBuf>, JobError> {
    listed(inputs, &first_file_per_series)
}

/// Returns the input files, with folders expanded to the stacks in them, sorted by name. `select` returns those PNG and JPEG
/// files of a folder that are inputs.
fn listed(inputs: &[PathBuf], select: &dyn Fn(&[PathBuf]) -> Vec<PathBuf>) -> Result<Vec<PathBuf>, JobError> {
    let mut files = Vec::new();
    for input in inputs {
        if !input.is_dir() || is_zarr_folder(input) {
            std::fs::metadata(input).map_err(|error| JobError::unreadable(input, error))?;
            files.push(input.clone());
            continue;
        }
        let ends_in = |p: &PathBuf, extensions: &[&str]| {
            let name = p.file_name().map(|n| n.to_string_lossy().to_lowercase()).unwrap_or_default();
            let fits = extensions.iter().any(|e| name.ends_with(&format!(".{e}")));
            !name.starts_with('.') && ((fits && (p.is_file() || is_broken_link(p))) || is_zarr_folder(p))
        };
        let entries = std::fs::read_dir(input).and_then(|entries| {
            entries.map(|entry| entry.map(|e| e.path())).collect::<std::io::Result<Vec<PathBuf>>>()
        });
        let mut found = entries.map_err(|error| JobError::Io { path: input.clone(), error })?;
        if found.iter().any(|p| ends_in(p, &STACK_EXTENSIONS)) {
            found.retain(|p| ends_in(p, &STACK_EXTENSIONS));
        } else {
            found.retain(|p| ends_in(p, &SLICE_EXTENSIONS));
            found.sort();
            found = select(&found);
        }
        if found.is_empty() {
            return Err(JobError::Mismatch {
                path: input.clone(),
                problem: "the folder contains no stacks".into(),
                next_step: message!(
                    "give a folder with files that end in .{}, or an OME-Zarr folder",
                    STACK_EXTENSIONS.join(", .")
                ),
            });
        }
        found.sort();
        files.extend(found);
    }
    if files.is_empty() {
        return Err(JobError::wrong_use_with("no input was given", "give a file or a folder"));
    }
    Ok(files)
}

/// Whether a path is a symbolic link to a file that does not exist. In a folder of links to stacks, it is an input that fails:
/// if it were left out, nobody would notice that a stack is missing.
fn is_broken_link(path: &Path) -> bool {
    path.is_symlink() && !path.exists()
}

/// Whether a file's name has the extension of a PNG or JPEG image.
pub(crate) fn is_raster(path: &Path) -> bool {
    let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
    extension.is_some_and(|extension| SLICE_EXTENSIONS.contains(&extension.as_str()))
}

/// Removes files that folders contributed but are not stacks to predict: label images beside their stack, and results
/// of earlier predictions.
pub(crate) fn only_stacks(inputs: &[PathBuf], files: Vec<PathBuf>) -> Vec<PathBuf> {
    let is_result = |file: &Path| {
        if zarr::is_result(file) || provenance::is_prediction_zip(file) {
            return true;
        }
        let name = file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        match ArtifactKind::from_name(&name) {
            Some((ArtifactKind::Labels, stem)) => {
                file.with_file_name(ArtifactKind::Provenance.file_name(stem)).is_file()
            }
            Some((ArtifactKind::Preprocessed, _)) => provenance::is_prediction_result(file),
            Some((kind, _)) => kind.is_maps() && provenance::is_prediction_result(file),
            None => false,
        }
    };
    let stack_keys: BTreeSet<(Option<PathBuf>, String)> = files
        .iter()
        .filter(|f| !looks_like_labels(f) && !is_result(f))
        .map(|f| (f.parent().map(Path::to_owned), pair_key(f)))
        .collect();
    files
        .iter()
        .filter(|f| {
            let beside = || stack_keys.contains(&(f.parent().map(Path::to_owned), pair_key(f)));
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
            cpu_because: None,
            resume: false,
            keep_slices: KeepSlices::default(),
            memory_budget_bytes: None,
            threads: 0,
            overwrite: Overwrite::Refuse,
            inputs: vec![input.to_owned()],
            ..self.clone()
        };
        // Earlier versions computed the statistics of slices over the whole stack.
        let is_per_slice = StatisticsScope::of(model) == Some(StatisticsScope::Slice);
        let model = format!("{}{}", model.fingerprint, if is_per_slice { ", statistics of slices" } else { "" });
        provenance::fingerprint(&job, &model, files)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_volume::Array;

    #[test]
    fn outputs_of_earlier_versions_are_recognized() {
        let read: BTreeSet<Output> = serde_json::from_str(r#"["raw", "labels", "maps"]"#).unwrap();
        assert_eq!(read, [Output::Maps, Output::Labels].into());
        assert_eq!(serde_json::to_string(&read).unwrap(), r#"["maps","labels"]"#);
        assert_eq!("raw".parse(), Ok(Output::Maps));
        assert_eq!("maps".parse(), Ok(Output::Maps));
    }

    #[test]
    fn outputs_have_the_same_names_in_records_and_on_the_command_line() {
        for output in Output::ALL {
            assert_eq!(serde_json::to_value(output).unwrap(), output.name());
            assert_eq!(output.name().parse(), Ok(output));
        }
        let refused = "map".parse::<Output>().unwrap_err();
        assert_eq!(refused, "invalid output \"map\": expected maps, labels, table, preview or preprocessed");
    }

    #[test]
    fn stems_drop_extensions_and_are_unique() {
        let files = ["a/x.ome.tif", "b/x.tif", "c/y.z.TIFF", "d/.hidden"].map(PathBuf::from);
        assert_eq!(stems(&files), ["x", "x_2", "y.z", ".hidden"]);
    }

    #[test]
    fn numbered_slices_are_one_input_unless_the_axes_are_those_of_a_slice() {
        let folder = tempfile::tempdir().unwrap();
        let slices = ["s_001.tif", "s_002.tif", "s_003.tif"].map(|name| folder.path().join(name));
        for (slice, values) in slices.iter().zip(0u16..) {
            let array = Array::new("YX".parse().unwrap(), vec![2, 3], vec![values; 6]).unwrap();
            write_array(slice, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        }
        let (alone, times): (Axes, Axes) = ("YX".parse().unwrap(), "TYX".parse().unwrap());
        for inputs in [vec![folder.path().to_owned()], slices.to_vec()] {
            assert_eq!(expand_inputs(&inputs, None).unwrap(), slices[..1]);
            assert_eq!(expand_inputs(&inputs, Some(&times)).unwrap(), slices[..1]);
            assert_eq!(expand_inputs(&inputs, Some(&alone)).unwrap(), slices);
        }
        let folder = tempfile::tempdir().unwrap();
        let images = ["s_1.png", "s_2.png"].map(|name| folder.path().join(name));
        let array = Array::new("YX".parse().unwrap(), vec![2, 3], vec![5u8; 6]).unwrap();
        for image in &images {
            std::fs::write(image, cytoscope_formats::preview_png(&array, false, image).unwrap()).unwrap();
        }
        let inputs = [folder.path().to_owned()];
        assert_eq!(expand_inputs(&inputs, None).unwrap(), images[..1]);
        assert_eq!(expand_inputs(&inputs, Some(&alone)).unwrap(), images);
    }

    #[cfg(unix)]
    #[test]
    fn broken_links_to_stacks_are_inputs_of_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let [stack, link, text] = ["a.tif", "b.tif", "c.txt"].map(|name| folder.path().join(name));
        std::fs::write(&stack, "no image").unwrap();
        for broken in [&link, &text] {
            std::os::unix::fs::symlink("missing", broken).unwrap();
        }
        assert_eq!(expand_inputs(&[folder.path().to_owned()], None).unwrap(), [stack, link]);
    }
}

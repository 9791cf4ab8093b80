//! Settings that persist between sessions.

use crate::batch::start_folder;
use crate::stored::{copy_changes, from_readable, read_json};
use crate::theme::ThemeChoice;
use cytoscope_engine::{DeviceRequest, Precision};
use cytoscope_pipeline::{Output, OutputTensor, PerformanceRequest, ResultFormat};
use cytoscope_storage::StorageError;
use cytoscope_storage::json::write_json;
use cytoscope_storage::lock::ResultsLock;
use cytoscope_volume::VoxelSize;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

/// Maximum number of recent files.
const MAX_RECENT: usize = 12;

/// Maximum number of folders with remembered axes, and of those with a remembered voxel size.
const MAX_FOLDERS: usize = 200;

/// Maximum number of files with a remembered series.
const MAX_FILES: usize = 500;

/// Maximum size of a settings file that is read.
const MAX_BYTES: u64 = 1 << 20;

/// Settings that are kept between sessions, in one file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    /// Colors of the window: light, dark, or as the system has them.
    pub theme: ThemeChoice,
    /// Recently opened files, newest first.
    pub recent: Vec<PathBuf>,
    /// Axes set by the user, by folder.
    pub axes_of_folder: BTreeMap<PathBuf, String>,
    /// Voxel size in µm set by the user, by folder; unknown along axes where each file's own voxel size is used.
    pub voxel_size_of_folder: BTreeMap<PathBuf, VoxelSize>,
    /// Series other than the first that the user has chosen, by file.
    pub series_of_file: BTreeMap<PathBuf, usize>,
    /// Name of the selected model.
    pub model: String,
    /// Names of the channels that each model's inputs are read from, by the model's name.
    pub channels_of_model: BTreeMap<String, Vec<String>>,
    /// Outputs other than the first that the user has chosen, by the model's name.
    pub output_of_model: BTreeMap<String, OutputTensor>,
    /// Device that jobs of this window run on.
    #[serde(deserialize_with = "parsed")]
    pub device: DeviceRequest,
    /// Selected precision; `None`, stored as `auto`, is the best one of the device.
    #[serde(with = "precision_or_auto")]
    pub precision: Option<Precision>,
    /// Which preset of the machine profile completes the options of a prediction.
    #[serde(deserialize_with = "parsed")]
    pub performance: PerformanceRequest,
    /// Maximum memory of predictions and meshes in MiB; `None` is three quarters of the free memory.
    pub memory_budget_mib: Option<u64>,
    /// Number of threads of predictions; `None` uses all cores.
    pub threads: Option<usize>,
    /// File format of the maps and labels of predictions.
    #[serde(deserialize_with = "parsed")]
    pub result_format: ResultFormat,
    /// Whether the surfaces in meshes are smoothed; otherwise they follow the faces of the voxels.
    pub smooth_meshes: bool,
    /// Results that predictions write; if empty, the default ones of each model.
    #[serde(deserialize_with = "parsed_outputs")]
    pub outputs: BTreeSet<Output>,
    /// Whether the list of stacks is shown.
    pub show_library: bool,
    /// Whether the panel of tasks is shown.
    pub show_tasks: bool,
    /// Whether jobs and profiler are shown.
    pub show_profiler: bool,
    /// Whether the 3-D view is shown.
    pub show_3d: bool,
    /// Whether the crosshair is shown.
    pub show_crosshair: bool,
    /// Whether the scale bar is shown.
    pub show_scale_bar: bool,
    /// Dataset folder for exported training pairs.
    pub dataset_folder: Option<PathBuf>,
    /// Folder that the results of all stacks are written to while it exists; `None` writes those of each stack beside it.
    pub results_folder: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            theme: ThemeChoice::System,
            recent: Vec::new(),
            axes_of_folder: BTreeMap::new(),
            voxel_size_of_folder: BTreeMap::new(),
            series_of_file: BTreeMap::new(),
            model: "nuclei".to_owned(),
            channels_of_model: BTreeMap::new(),
            output_of_model: BTreeMap::new(),
            device: DeviceRequest::Auto,
            precision: None,
            performance: PerformanceRequest::Auto,
            memory_budget_mib: None,
            threads: None,
            result_format: ResultFormat::Auto,
            smooth_meshes: true,
            outputs: BTreeSet::new(),
            show_library: true,
            show_tasks: true,
            show_profiler: false,
            show_3d: true,
            show_crosshair: true,
            show_scale_bar: true,
            dataset_folder: None,
            results_folder: None,
        }
    }
}

/// Deserializes a setting that is stored as text.
fn parsed<'de, D: Deserializer<'de>, T: FromStr<Err: Display>>(deserializer: D) -> Result<T, D::Error> {
    String::deserialize(deserializer)?.parse::<T>().map_err(D::Error::custom)
}

/// Deserializes results, which are stored as text.
fn parsed_outputs<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeSet<Output>, D::Error> {
    let names = Vec::<String>::deserialize(deserializer)?;
    names.iter().map(|name| name.parse::<Output>().map_err(D::Error::custom)).collect()
}

/// The form of a precision in the file: its name, or `auto` for none.
mod precision_or_auto {
    use cytoscope_engine::Precision;
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(precision: &Option<Precision>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(precision.map_or("auto", Precision::name))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Precision>, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "auto" { Ok(None) } else { text.parse::<Precision>().map(Some).map_err(D::Error::custom) }
    }
}

impl Settings {
    /// Reads settings from a file; a missing file gives the defaults, and so does a damaged one, which is logged. A setting
    /// that cannot be read, such as a choice that only a later version knows, has its default, which is logged, too.
    pub fn load(path: &Path) -> Self {
        read_json::<Map<String, Value>>(path, MAX_BYTES).map(|fields| from_readable(&fields)).unwrap_or_default()
    }

    /// Writes the settings to a file. Paths that are not Unicode are left out, because JSON cannot hold them.
    ///
    /// # Errors
    /// [`StorageError`] if the folder cannot be created or the file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), StorageError> {
        if let Some(folder) = path.parent() {
            // A failure shows up when the file is written.
            let _ = std::fs::create_dir_all(folder);
        }
        let text = serde_json::to_vec_pretty(&self.storable())
            .map_err(|e| StorageError::io(path, "writing the file")(e.into()))?;
        cytoscope_storage::write::atomic_write(path, &text)
    }

    /// The settings without paths that are not Unicode.
    fn storable(&self) -> Self {
        let is_unicode = |path: &PathBuf| path.to_str().is_some();
        let mut stored = self.clone();
        stored.recent.retain(is_unicode);
        stored.axes_of_folder.retain(|folder, _| is_unicode(folder));
        stored.voxel_size_of_folder.retain(|folder, _| is_unicode(folder));
        stored.series_of_file.retain(|file, _| is_unicode(file));
        stored.dataset_folder = stored.dataset_folder.filter(is_unicode);
        stored.results_folder = stored.results_folder.filter(is_unicode);
        stored
    }

    /// The settings with the default layout and choices. What was remembered about files, folders and models stays.
    pub fn with_default_choices(&self) -> Self {
        let kept = self.clone();
        Self {
            recent: kept.recent,
            axes_of_folder: kept.axes_of_folder,
            voxel_size_of_folder: kept.voxel_size_of_folder,
            series_of_file: kept.series_of_file,
            channels_of_model: kept.channels_of_model,
            output_of_model: kept.output_of_model,
            dataset_folder: kept.dataset_folder,
            ..Self::default()
        }
    }

    /// Maximum memory of predictions and meshes in bytes, if one is set.
    pub(crate) fn memory_budget_bytes(&self) -> Option<u64> {
        self.memory_budget_mib.map(|mib| mib.saturating_mul(1 << 20))
    }

    /// Moves a file to the top of the recent files.
    pub fn add_recent(&mut self, path: &Path) {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        self.recent.retain(|p| *p != path);
        self.recent.insert(0, path);
        self.recent.truncate(MAX_RECENT);
    }

    /// Remembers the axes of a folder's files; `None` forgets them. If there are too many folders, others are forgotten.
    pub fn remember_axes(&mut self, file: &Path, axes: Option<&str>) {
        let Some(folder) = file.parent() else { return };
        self.axes_of_folder.remove(folder);
        if let Some(axes) = axes {
            while self.axes_of_folder.len() >= MAX_FOLDERS {
                self.axes_of_folder.pop_first();
            }
            self.axes_of_folder.insert(folder.to_owned(), axes.to_owned());
        }
    }

    /// Remembers the voxel size in µm of a folder's files; one that is unknown along all axes is forgotten. If there are
    /// too many folders, others are forgotten.
    pub fn remember_voxel_size(&mut self, file: &Path, voxel_size_um: VoxelSize) {
        let Some(folder) = file.parent() else { return };
        self.voxel_size_of_folder.remove(folder);
        if voxel_size_um != VoxelSize::default() {
            while self.voxel_size_of_folder.len() >= MAX_FOLDERS {
                self.voxel_size_of_folder.pop_first();
            }
            self.voxel_size_of_folder.insert(folder.to_owned(), voxel_size_um);
        }
    }

    /// Remembers the series of a file; the first one need not be remembered. If there are too many files, others are
    /// forgotten.
    pub fn remember_series(&mut self, file: PathBuf, series: usize) {
        self.series_of_file.remove(&file);
        if series > 0 {
            while self.series_of_file.len() >= MAX_FILES {
                self.series_of_file.pop_first();
            }
            self.series_of_file.insert(file, series);
        }
    }

    /// Remembers the output of a model that is predicted; the first one, `None`, need not be remembered.
    pub fn remember_output(&mut self, model: String, output: Option<OutputTensor>) {
        match output {
            Some(output) => _ = self.output_of_model.insert(model, output),
            None => _ = self.output_of_model.remove(&model),
        }
    }

    /// The series remembered for a file, from 0; the first one if there is none.
    pub fn series_for(&self, file: &Path) -> usize {
        self.series_of_file.get(file).copied().unwrap_or(0)
    }

    /// The axes remembered for a file's folder.
    pub fn axes_for(&self, file: &Path) -> Option<&str> {
        self.axes_of_folder.get(file.parent()?).map(String::as_str)
    }

    /// The voxel size in µm remembered for a file's folder; unknown along all axes if there is none.
    pub fn voxel_size_for(&self, file: &Path) -> VoxelSize {
        self.remembered_voxel_size(file.parent())
    }

    /// The voxel size in µm remembered for the files in a folder, or for the folder of a file; unknown along all axes if
    /// there is none.
    pub(crate) fn voxel_size_in(&self, path: &Path) -> VoxelSize {
        self.remembered_voxel_size(start_folder(path))
    }

    fn remembered_voxel_size(&self, folder: Option<&Path>) -> VoxelSize {
        folder.and_then(|folder| self.voxel_size_of_folder.get(folder)).copied().unwrap_or_default()
    }
}

/// The content of a settings file with the changes from `earlier` to `later`. What it holds beside them stays, such as what
/// only another version knows. Only the changed entries of what is remembered about folders, files and models are replaced.
fn with_changes(stored: Map<String, Value>, earlier: &Settings, later: &Settings) -> serde_json::Result<Value> {
    let stored_recent = recent_files(&stored);
    let mut merged = Value::Object(stored);
    let [before, now] = [earlier, later].map(|settings| serde_json::to_value(settings.storable()));
    copy_changes(&mut merged, &before?, &now?, ENTRIES_DEPTH, &[]);
    if earlier.recent != later.recent
        && let Value::Object(fields) = &mut merged
    {
        let mut recent = merged_recent(&stored_recent, &earlier.recent, &later.recent);
        recent.retain(|path| path.to_str().is_some());
        fields.insert("recent".to_owned(), serde_json::to_value(recent)?);
    }
    Ok(merged)
}

/// The recent files in a settings file. What cannot be read is left out; it was logged when the window opened.
fn recent_files(stored: &Map<String, Value>) -> Vec<PathBuf> {
    let entries = stored.get("recent").and_then(Value::as_array).into_iter().flatten();
    entries.filter_map(Value::as_str).map(PathBuf::from).collect()
}

/// The settings file of a window. Other windows may write it, too.
#[derive(Debug)]
pub(crate) struct SettingsFile {
    path: PathBuf,
    /// The settings as this window has last read or written them.
    known: Mutex<Settings>,
}

impl SettingsFile {
    /// Reads the settings from a file, as [`Settings::load`].
    pub(crate) fn read(path: PathBuf) -> (Self, Settings) {
        let settings = Settings::load(&path);
        (Self { path, known: Mutex::new(settings.clone()) }, settings)
    }

    /// Writes those settings that this window has changed. The others stay as another window has written them, also if it
    /// has a later version with other settings.
    ///
    /// # Errors
    /// Same as [`Settings::save`]. The changes are then written with the next ones.
    pub(crate) fn save(&self, settings: &Settings) -> Result<(), StorageError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let _lock = ResultsLock::for_update(&self.path)?;
        match read_json::<Map<String, Value>>(&self.path, MAX_BYTES) {
            Some(stored) => {
                let merged = with_changes(stored, &known, settings);
                let merged = merged.map_err(|e| StorageError::io(&self.path, "merging the settings")(e.into()))?;
                write_json(&self.path, &merged)?;
            }
            None => settings.save(&self.path)?,
        }
        *known = settings.clone();
        Ok(())
    }
}

/// How deep [`copy_changes`] goes into settings: to the entries of maps, which are replaced as a whole.
const ENTRIES_DEPTH: usize = 1;

/// The `stored` recent files below those that were opened between `earlier` and `later`.
fn merged_recent(stored: &[PathBuf], earlier: &[PathBuf], later: &[PathBuf]) -> Vec<PathBuf> {
    // Opened files are at the top of the later list. Below them are the earlier files, in their order.
    let is_top = |count: &usize| {
        let (top, rest) = later.split_at(*count);
        earlier.iter().filter(|path| !top.contains(path)).take(rest.len()).eq(rest)
    };
    let (opened, _) = later.split_at((0..later.len()).find(is_top).unwrap_or(later.len()));
    let others = stored.iter().filter(|path| !opened.contains(path));
    opened.iter().chain(others).take(MAX_RECENT).cloned().collect()
}

#[cfg(test)]
mod tests;

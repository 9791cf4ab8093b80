//! Purposes of file dialogs, and whether the desktop offers one.

use crate::opener::{EXTENSIONS, FileRequest, ProfileFormat, ROI_EXTENSIONS, ZARR_EXTENSIONS, has_extension};
use crate::training::models::TrainedModelFormat;
use cytoscope_pipeline::ExportFormat;
use cytoscope_pipeline::job_record::is_record_name;
use std::path::{Path, PathBuf};

/// Extensions of models that can be opened.
const MODEL_EXTENSIONS: [&str; 7] = ["onnx", "zip", "pt", "pth", "ckpt", "p", "safetensors"];

/// Name of the file that describes an OME-Zarr folder, and stands for the folder that it is in.
const ZARR_METADATA: &str = "zarr.json";

/// Extensions of files that describe packages; such a file stands for the folder that it is in.
const DESCRIPTION_EXTENSIONS: [&str; 2] = ["yaml", "yml"];

/// Maximum size in bytes of a description of a desktop's dialogs.
const MAX_PORTAL_BYTES: u64 = 64 << 10;

/// Kind of path that the user chooses in a file dialog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Choice {
    /// An existing file.
    File,
    /// One or more existing files.
    Files,
    /// An existing folder.
    Folder,
    /// A file to be written.
    NewFile,
}

/// Description of a file dialog.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DialogSpec {
    /// Purpose of the chosen path.
    pub(crate) request: FileRequest,
    /// Title of the dialog.
    pub(crate) title: &'static str,
    /// Kind of path that the user chooses.
    pub(crate) choice: Choice,
    /// Name of the kinds of files, for display.
    pub(crate) kind: &'static str,
    /// Extensions of the files, without their dot; empty for folders.
    pub(crate) extensions: Vec<&'static str>,
    /// Whether stacks are among the files.
    takes_stacks: bool,
    /// Folder to start in.
    pub(crate) folder: Option<PathBuf>,
    /// Suggested name of a new file.
    pub(crate) suggested: String,
}

impl DialogSpec {
    /// The dialog for a request, which starts in `folder`.
    pub(crate) fn new(request: FileRequest, folder: Option<PathBuf>, suggested: String) -> Self {
        let stacks = || [EXTENSIONS.as_slice(), &ZARR_EXTENSIONS].concat();
        let labels = || [EXTENSIONS.as_slice(), &ROI_EXTENSIONS, &ZARR_EXTENSIONS].concat();
        let models = || [MODEL_EXTENSIONS.as_slice(), &DESCRIPTION_EXTENSIONS].concat();
        let (choice, kind, extensions) = match request {
            FileRequest::Stacks => {
                let all = [stacks(), models()].concat();
                (Choice::Files, "Stacks and models", all)
            }
            FileRequest::InputFile(_) | FileRequest::RegionsStack => (Choice::File, "Stacks", stacks()),
            FileRequest::ConvertFiles => (Choice::Files, "Stacks", labels()),
            FileRequest::Labels(_) | FileRequest::Truth(_) => (Choice::File, "Label images", labels()),
            FileRequest::PredictionFile | FileRequest::TruthFile => (Choice::File, "Stacks and labels", labels()),
            FileRequest::ResultsFolder
            | FileRequest::RefusedPrediction { .. }
            | FileRequest::RerunFolder
            | FileRequest::DatasetFolder(_)
            | FileRequest::TrainingFolder
            | FileRequest::ConvertFolder
            | FileRequest::Predictions
            | FileRequest::Truths
            | FileRequest::PairsFolder => (Choice::Folder, "Folders", Vec::new()),
            FileRequest::TrainingTable | FileRequest::PairsTable => (Choice::File, "Tables", vec!["csv"]),
            FileRequest::Run => (Choice::File, "Traces and reports", vec!["json"]),
            FileRequest::StartModel => (Choice::File, "Models", models()),
            FileRequest::SearchRanges | FileRequest::TrainingSettings => (Choice::File, "TOML", vec!["toml"]),
            FileRequest::SavedTrainingSettings => (Choice::NewFile, "TOML", vec!["toml"]),
            FileRequest::ModelFile => (Choice::Files, "Models", models()),
            FileRequest::Model(TrainedModelFormat::Zip) | FileRequest::ModelExport(ExportFormat::Bioimageio, _) => {
                (Choice::NewFile, "bioimage.io package", vec!["zip"])
            }
            FileRequest::Model(TrainedModelFormat::Onnx) | FileRequest::ModelExport(ExportFormat::Onnx, _) => {
                (Choice::NewFile, "ONNX", vec!["onnx"])
            }
            FileRequest::ModelExport(ExportFormat::Safetensors, _) => {
                (Choice::NewFile, "Safetensors", vec!["safetensors", "st"])
            }
            FileRequest::Mesh(_) => (Choice::NewFile, "Meshes (STL, glTF)", vec!["stl", "glb"]),
            FileRequest::PreprocessedCopy(_) => (Choice::NewFile, "Stacks", vec!["ome.tif", "tif", "npy"]),
            FileRequest::Screenshot(..) => (Choice::NewFile, "PNG", vec!["png"]),
            FileRequest::Table(_) => (Choice::NewFile, "Tables (CSV, Parquet)", vec!["csv", "parquet"]),
            FileRequest::AnnData(_)
            | FileRequest::Scores
            | FileRequest::LineProfile(_)
            | FileRequest::Profile(ProfileFormat::Csv(_), _) => (Choice::NewFile, "CSV", vec!["csv"]),
            FileRequest::Profile(ProfileFormat::Trace, _) => (Choice::NewFile, "Chrome trace", vec!["json"]),
        };
        let takes_stacks = EXTENSIONS.iter().all(|extension| extensions.contains(extension));
        Self { request, title: title(request), choice, kind, extensions, takes_stacks, folder, suggested }
    }

    /// Shows the dialog of the desktop and returns the chosen files; none if it was canceled.
    pub(crate) fn ask_desktop(&self) -> Vec<PathBuf> {
        let mut dialog = rfd::FileDialog::new().set_title(self.title);
        if let Some(folder) = self.folder.as_ref().filter(|f| f.is_dir()) {
            dialog = dialog.set_directory(folder);
        }
        if !self.extensions.is_empty() {
            dialog = dialog.add_filter(self.kind, &self.extensions);
        }
        let one = |path: Option<PathBuf>| path.into_iter().collect();
        match self.choice {
            Choice::File => one(dialog.pick_file()),
            Choice::Files => dialog.pick_files().unwrap_or_default(),
            Choice::Folder => one(dialog.pick_folder()),
            Choice::NewFile => one(dialog.set_file_name(self.suggested.as_str()).save_file()),
        }
    }

    /// Whether a file has one of the extensions. Stacks include OME-Zarr folders, and the only JSON files among them are
    /// descriptions of such folders; those to be opened also include provenance records.
    pub(crate) fn fits(&self, name: &str) -> bool {
        let name = name.to_lowercase();
        (self.takes_stacks && name.ends_with(".zarr"))
            || self.extensions.iter().any(|extension| match self.takes_stacks && ZARR_EXTENSIONS.contains(extension) {
                true => {
                    name == ZARR_METADATA || (self.request == FileRequest::Stacks && is_record_name(Path::new(&name)))
                }
                false => has_extension(&name, extension),
            })
    }
}

/// Title of the dialog for a request, which says what is chosen.
fn title(request: FileRequest) -> &'static str {
    match request {
        FileRequest::Stacks => "Open stacks or models",
        FileRequest::Labels(_) => "Add labels",
        FileRequest::Truth(_) => "Choose the ground truth",
        FileRequest::InputFile(_) => "Choose the image of the input",
        FileRequest::ResultsFolder => "Choose the results folder",
        FileRequest::RefusedPrediction { .. } => "Choose another results folder",
        FileRequest::RerunFolder => "Choose the folder for the new results",
        FileRequest::DatasetFolder(_) => "Choose the dataset folder",
        FileRequest::TrainingFolder => "Choose the folder of training data",
        FileRequest::TrainingTable => "Choose the table of training data",
        FileRequest::StartModel => "Choose the start model",
        FileRequest::SearchRanges => "Choose the ranges of the search",
        FileRequest::TrainingSettings => "Load training settings",
        FileRequest::SavedTrainingSettings => "Save the training settings",
        FileRequest::Model(_) | FileRequest::ModelExport(..) => "Export the model",
        FileRequest::Screenshot(..) => "Save the picture",
        FileRequest::LineProfile(_) => "Save the line profile",
        FileRequest::Table(_) => "Save the object table",
        FileRequest::AnnData(_) => "Save the object table for AnnData",
        FileRequest::Profile(ProfileFormat::Trace, _) => "Save the Chrome trace",
        FileRequest::Profile(ProfileFormat::Csv(_), _) => "Save the table of the run",
        FileRequest::Run => "Open a run",
        FileRequest::ModelFile => "Open models",
        FileRequest::ConvertFiles => "Choose the files to convert",
        FileRequest::ConvertFolder => "Choose the folder for converted files",
        FileRequest::RegionsStack => "Choose the stack of the regions",
        FileRequest::Predictions => "Choose the folder of predictions",
        FileRequest::Truths => "Choose the folder of ground truth",
        FileRequest::PredictionFile => "Choose the prediction",
        FileRequest::TruthFile => "Choose the ground truth of the prediction",
        FileRequest::PairsFolder => "Choose the folder of pairs",
        FileRequest::PairsTable => "Choose the table of pairs",
        FileRequest::Scores => "Save the scores",
        FileRequest::Mesh(_) => "Save the meshes",
        FileRequest::PreprocessedCopy(_) => "Save the preprocessed copy",
    }
}

/// Whether the desktop can show file dialogs: on Linux only if a file portal or zenity is installed, elsewhere always.
pub(crate) fn desktop_has_dialogs() -> bool {
    if !cfg!(target_os = "linux") {
        return true;
    }
    let paths = std::env::var_os("PATH").unwrap_or_default();
    if std::env::split_paths(&paths).any(|folder| folder.join("zenity").is_file()) {
        return true;
    }
    // In a sandbox, the host provides the portal.
    Path::new("/.flatpak-info").is_file() || (has_session_bus() && data_folders().iter().any(|f| has_portal(f)))
}

/// Whether there is a session bus, over which portals are called.
fn has_session_bus() -> bool {
    let socket = std::env::var_os("XDG_RUNTIME_DIR").map(|folder| PathBuf::from(folder).join("bus"));
    std::env::var_os("DBUS_SESSION_BUS_ADDRESS").is_some_and(|a| !a.is_empty()) || socket.is_some_and(|s| s.exists())
}

/// The folders in which desktops install the descriptions of their services.
fn data_folders() -> Vec<PathBuf> {
    let folders = std::env::var_os("XDG_DATA_DIRS").filter(|v| !v.is_empty());
    let folders = folders.unwrap_or_else(|| "/usr/local/share:/usr/share".into());
    let own = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share"));
    own.or(home).into_iter().chain(std::env::split_paths(&folders)).collect()
}

/// Whether a folder of services has a portal with a dialog for files.
fn has_portal(folder: &Path) -> bool {
    let portals = std::fs::read_dir(folder.join("xdg-desktop-portal/portals"));
    portals.into_iter().flatten().flatten().any(|entry| {
        let path = entry.path();
        let is_small = path.metadata().is_ok_and(|m| m.is_file() && m.len() <= MAX_PORTAL_BYTES);
        is_small
            && std::fs::read_to_string(&path).is_ok_and(|text| text.contains("org.freedesktop.impl.portal.FileChooser"))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn a_portal_without_a_dialog_for_files_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        assert!(!has_portal(folder.path()));
        let portals = folder.path().join("xdg-desktop-portal/portals");
        std::fs::create_dir_all(&portals).unwrap();
        let with = |interfaces: &str| format!("[portal]\nDBusName=a.b\nInterfaces={interfaces};\n");
        std::fs::write(portals.join("a.portal"), with("org.freedesktop.impl.portal.Settings")).unwrap();
        assert!(!has_portal(folder.path()));
        std::fs::write(portals.join("b.portal"), with("org.freedesktop.impl.portal.FileChooser")).unwrap();
        assert!(has_portal(folder.path()));
    }

    #[test]
    fn extensions_are_compared_in_any_case() {
        let spec = DialogSpec::new(FileRequest::Stacks, None, String::new());
        assert!(spec.fits("A.TIF") && spec.fits("b.nii.gz") && spec.fits("net.onnx") && spec.fits("c.Zarr"));
        assert!(!spec.fits("notes.txt") && !spec.fits("tif"));
        assert!(spec.fits("zarr.json") && spec.fits("cells_provenance.json") && !spec.fits("cells.json"));
        // The description of a package stands for its folder, which is entered.
        assert!(spec.fits("rdf.yaml") && spec.fits("RDF.YML"));
        let spec = DialogSpec::new(FileRequest::ConvertFiles, None, String::new());
        assert!(spec.fits("zarr.json") && !spec.fits("cells_provenance.json"));
        let spec = DialogSpec::new(FileRequest::Run, None, String::new());
        assert!(spec.fits("cells.json"));
        let spec = DialogSpec::new(FileRequest::TrainingSettings, None, String::new());
        assert!(spec.fits("a.toml") && !spec.fits("c.zarr"));
        let spec = DialogSpec::new(FileRequest::StartModel, None, String::new());
        assert!(spec.fits("net.zip") && spec.fits("rdf.yaml") && spec.fits("net.ckpt") && !spec.fits("a.tif"));
    }
}

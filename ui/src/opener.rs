//! Opens, chooses and saves files on worker threads.

use crate::document::{Document, Overlay, Role, file_name};
use crate::measure;
use crate::results::Results;
use crate::runs::RunId;
use crate::screenshots::ScreenshotSubject;
use crate::training::models::Format;
use cytoscope_formats::{FormatError, FormatErrorKind, is_zarr_folder, one_of_each_series, zarr_folder_of};
use cytoscope_storage::target::refuse_input;
use cytoscope_volume::Axes;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Makes the content of a file to be saved; runs on a worker thread.
pub type Content = Box<dyn FnOnce() -> Result<Vec<u8>, String> + Send>;

/// Result of a request.
pub enum OpenerResult {
    /// A stack was opened.
    Document(Box<Document>),
    /// An image was opened over a stack.
    Overlay {
        /// Id of the stack that it is drawn over.
        document: u64,
        /// Labels or a map on the grid of that stack.
        overlay: Box<Overlay>,
    },
    /// An object table was read.
    Table {
        /// Id of the stack whose objects were measured.
        document: u64,
        /// Rows of objects, columns of measurements.
        results: Box<Results>,
        /// Whether its labels were saved after it was written.
        old: bool,
    },
    /// Files chosen by the user.
    Chosen(FileRequest, Vec<PathBuf>),
    /// The request failed.
    Failed {
        /// What was attempted, such as "Opening a.tif".
        what: String,
        /// Message of the error.
        reason: String,
        /// Path of the file, if setting other axes may help.
        axes_of: Option<PathBuf>,
    },
    /// A file was saved.
    Saved(PathBuf),
    /// A file was not saved, because it is the file of an open stack.
    IsOpen(PathBuf),
    /// A folder was handed to the file manager.
    FolderShown,
}

/// What a file dialog asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileRequest {
    /// One or more stacks to open.
    Stacks,
    /// Labels of a stack.
    Labels(u64),
    /// Ground truth of a stack.
    Truth(u64),
    /// Results folder of predictions.
    ResultsFolder,
    /// Dataset folder for exported training pairs.
    DatasetFolder,
    /// Folder of training pairs.
    TrainingFolder,
    /// Table of training pairs.
    TrainingTable,
    /// Start model of a training run.
    StartModel,
    /// Destination of an exported model.
    Model(Format),
    /// Destination of a screenshot.
    Screenshot(ScreenshotSubject),
    /// Destination of a line profile.
    LineProfile,
    /// Destination of an object table.
    Table,
    /// Destination of a run's performance profile.
    Profile(ProfileFormat, RunId),
    /// A stored run.
    Run,
}

/// File format of a performance profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileFormat {
    /// Chrome trace JSON.
    Trace,
    /// A table as CSV.
    Csv(ProfileTable),
}

/// A table of a performance profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileTable {
    /// Evidence, gain and change of each advice.
    Advice,
    /// Stage, name, thread, start and duration of each span.
    Spans,
    /// Totals by operator.
    Operators,
    /// Memory over time.
    Memory,
    /// Times of the training steps.
    Steps,
    /// Times beside those of another run.
    Comparison(RunId),
}

impl ProfileTable {
    /// Suggested file name.
    pub fn file_name(self) -> &'static str {
        match self {
            ProfileTable::Advice => "advice.csv",
            ProfileTable::Spans => "spans.csv",
            ProfileTable::Operators => "operators.csv",
            ProfileTable::Memory => "memory.csv",
            ProfileTable::Steps => "steps.csv",
            ProfileTable::Comparison(_) => "comparison.csv",
        }
    }
}

/// File extensions of stacks.
const EXTENSIONS: [&str; 15] =
    ["tif", "tiff", "btf", "tf8", "tf2", "npy", "ome", "lsm", "stk", "czi", "nii", "nii.gz", "png", "jpg", "jpeg"];
/// Extensions of regions of interest, which are labels of a stack.
const ROI_EXTENSIONS: [&str; 2] = ["zip", "roi"];
/// Extensions of slices among them; slices of a folder are opened only if it contains no other stacks.
const SLICE_EXTENSIONS: [&str; 3] = ["png", "jpg", "jpeg"];

/// Extension of the `zarr.json` in an OME-Zarr folder: dialogs for files cannot choose the folder itself.
const ZARR_EXTENSIONS: [&str; 1] = ["json"];

/// Maximum number of files opened from one folder.
const MAX_FILES_OF_FOLDER: usize = 500;

/// Runs file requests on worker threads and collects their results.
pub struct Opener {
    sender: Sender<OpenerResult>,
    receiver: Receiver<OpenerResult>,
    wake: Arc<dyn Fn() + Send + Sync>,
    /// Number of unanswered requests.
    in_progress: usize,
}

impl Opener {
    /// An opener that calls `wake` whenever a result is available.
    pub fn new(wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        let (sender, receiver) = channel();
        Self { sender, receiver, wake, in_progress: 0 }
    }

    fn spawn(&mut self, work: impl FnOnce() -> OpenerResult + Send + 'static) {
        let (sender, wake) = (self.sender.clone(), Arc::clone(&self.wake));
        self.in_progress += 1;
        let spawned = std::thread::Builder::new().name("opener".to_owned()).spawn(move || {
            // Sending fails only if the window is closed.
            let _ = sender.send(work());
            wake();
        });
        if let Err(error) = spawned {
            let reason = error.to_string();
            let _ = self.sender.send(OpenerResult::Failed { what: "Opening".to_owned(), reason, axes_of: None });
        }
    }

    /// Opens a stack.
    pub fn open(&mut self, path: PathBuf, axes: Option<Axes>) {
        self.spawn(move || match Document::open(&path, axes) {
            Ok(document) => {
                tracing::info!(?path, "stack opened");
                OpenerResult::Document(Box::new(document))
            }
            Err(error) => OpenerResult::Failed {
                what: format!("Opening {}", file_name(&path)),
                reason: error.to_string(),
                axes_of: may_be_axes(&error).then_some(path),
            },
        });
    }

    /// Opens an overlay of a stack.
    pub fn overlay(&mut self, document: &Document, role: Role, path: PathBuf) {
        let (id, zyx, axes) = (document.id, document.extents.zyx, document.axes.clone());
        self.spawn(move || match Document::overlay(&path, role, zyx, axes) {
            Ok(overlay) => {
                tracing::info!(?path, ?role, "overlay opened");
                OpenerResult::Overlay { document: id, overlay: Box::new(overlay) }
            }
            Err(error) => OpenerResult::Failed {
                what: format!("Opening {}", file_name(&path)),
                reason: error.to_string(),
                axes_of: None,
            },
        });
    }

    /// Reads an object table.
    pub fn table(&mut self, document: u64, path: PathBuf) {
        self.spawn(move || match Results::read(&path) {
            Ok(results) => OpenerResult::Table { document, results: Box::new(results), old: measure::is_old(&path) },
            Err(error) => OpenerResult::Failed {
                what: format!("Reading {}", file_name(&path)),
                reason: error.to_string(),
                axes_of: None,
            },
        });
    }

    /// Writes a file with the bytes that `content` returns, unless it is one of the `open` files.
    pub fn save(&mut self, path: PathBuf, open: Vec<PathBuf>, content: Content) {
        self.spawn(move || {
            let open: Vec<&Path> = open.iter().map(PathBuf::as_path).collect();
            if refuse_input(&path, &open).is_err() {
                return OpenerResult::IsOpen(path);
            }
            let written = content()
                .and_then(|bytes| cytoscope_storage::write::atomic_write(&path, &bytes).map_err(|e| e.to_string()));
            match written {
                Ok(()) => OpenerResult::Saved(path),
                Err(reason) => {
                    OpenerResult::Failed { what: format!("Saving {}", file_name(&path)), reason, axes_of: None }
                }
            }
        });
    }

    /// Shows a folder in the system's file manager.
    pub fn show_folder(&mut self, folder: PathBuf) {
        self.spawn(move || match open::that_detached(&folder) {
            Ok(()) => OpenerResult::FolderShown,
            Err(error) => OpenerResult::Failed {
                what: format!("Showing {}", file_name(&folder)),
                reason: format!("no file manager could be started ({error}); the folder is {}", folder.display()),
                axes_of: None,
            },
        });
    }

    /// Shows a file dialog of the system.
    pub fn ask(&mut self, ask: FileRequest, beside: Option<PathBuf>, suggested: String) {
        let choose = move || {
            let mut dialog = rfd::FileDialog::new();
            if let Some(folder) = beside.filter(|f| f.is_dir()) {
                dialog = dialog.set_directory(folder);
            }
            let one = |path: Option<PathBuf>| path.into_iter().collect();
            match ask {
                FileRequest::Stacks => {
                    let all = [EXTENSIONS.as_slice(), &ZARR_EXTENSIONS].concat();
                    dialog.add_filter("Stacks", &all).pick_files().unwrap_or_default()
                }
                FileRequest::Labels(_) | FileRequest::Truth(_) => {
                    let all = [EXTENSIONS.as_slice(), &ROI_EXTENSIONS, &ZARR_EXTENSIONS].concat();
                    one(dialog.add_filter("Label images", &all).pick_file())
                }
                FileRequest::ResultsFolder | FileRequest::DatasetFolder | FileRequest::TrainingFolder => {
                    one(dialog.pick_folder())
                }
                FileRequest::TrainingTable => one(dialog.add_filter("Tables", &["csv"]).pick_file()),
                FileRequest::Run => one(dialog.add_filter("Traces and reports", &["json"]).pick_file()),
                FileRequest::StartModel => one(dialog.add_filter("Models", &["zip", "onnx"]).pick_file()),
                FileRequest::Model(Format::Zip) => {
                    one(dialog.set_file_name(suggested).add_filter("bioimage.io package", &["zip"]).save_file())
                }
                FileRequest::Model(Format::Onnx) => {
                    one(dialog.set_file_name(suggested).add_filter("ONNX", &["onnx"]).save_file())
                }
                FileRequest::Screenshot(_) => {
                    one(dialog.set_file_name(suggested).add_filter("PNG", &["png"]).save_file())
                }
                FileRequest::Table | FileRequest::LineProfile | FileRequest::Profile(ProfileFormat::Csv(_), _) => {
                    one(dialog.set_file_name(suggested).add_filter("CSV", &["csv"]).save_file())
                }
                FileRequest::Profile(ProfileFormat::Trace, _) => {
                    one(dialog.set_file_name(suggested).add_filter("Chrome trace", &["json"]).save_file())
                }
            }
        };
        if cfg!(target_os = "macos") {
            // macOS requires dialogs on the main thread.
            let files = choose();
            self.in_progress += 1;
            let _ = self.sender.send(OpenerResult::Chosen(ask, files));
        } else {
            self.spawn(move || OpenerResult::Chosen(ask, choose()));
        }
    }

    /// Whether a request is unanswered.
    pub fn is_busy(&self) -> bool {
        self.in_progress > 0
    }

    /// Results since the last call.
    pub fn poll(&mut self) -> Vec<OpenerResult> {
        let results: Vec<OpenerResult> = self.receiver.try_iter().collect();
        self.in_progress = self.in_progress.saturating_sub(results.len());
        results
    }
}

/// Whether a file that failed to open may open with other axes.
fn may_be_axes(error: &FormatError) -> bool {
    error.kind() == FormatErrorKind::Misused
}

/// Replaces folders by the stacks in them. An OME-Zarr folder, given by its path or that of its metadata, is a stack.
pub fn expand(paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for path in paths {
        if let Some(folder) = zarr_folder_of(path) {
            files.push(folder);
            continue;
        }
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let mut found: Vec<PathBuf> = std::fs::read_dir(path)
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path())
            .filter(|p| ends_in(p, &EXTENSIONS) || is_visible_zarr(p))
            .collect();
        found.sort();
        if found.iter().any(|p| !ends_in(p, &SLICE_EXTENSIONS)) {
            found.retain(|p| !ends_in(p, &SLICE_EXTENSIONS));
        } else {
            found = one_of_each_series(&found);
        }
        found.truncate(MAX_FILES_OF_FOLDER);
        files.extend(found);
    }
    files
}

/// Whether a path is a visible file with one of the extensions.
fn ends_in(path: &Path, extensions: &[&str]) -> bool {
    let name = path.file_name().map(|n| n.to_string_lossy().to_lowercase()).unwrap_or_default();
    let has_extension = extensions.iter().any(|e| name.ends_with(&format!(".{e}")));
    has_extension && !name.starts_with('.') && path.is_file()
}

/// Whether a path is an OME-Zarr folder that is not hidden.
fn is_visible_zarr(path: &Path) -> bool {
    let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    !is_hidden && is_zarr_folder(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn ome_zarr_folders_are_stacks() {
        let folder = tempfile::tempdir().unwrap();
        let zarr = folder.path().join("b.zarr");
        std::fs::create_dir(&zarr).unwrap();
        for file in [zarr.join("zarr.json"), folder.path().join("a.tif"), folder.path().join("c.json")] {
            std::fs::write(file, "{}").unwrap();
        }
        assert_eq!(expand(&[folder.path().to_owned()]), [folder.path().join("a.tif"), zarr.clone()]);
        assert_eq!(expand(std::slice::from_ref(&zarr)), std::slice::from_ref(&zarr));
        assert_eq!(expand(&[zarr.join("zarr.json")]), [zarr]);
    }
}

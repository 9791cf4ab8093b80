//! Opens, chooses and saves files on worker threads.

use crate::document::{Document, Overlay, Role, file_name};
use crate::measure;
use crate::results::Results;
use crate::screenshots::ScreenshotSubject;
use crate::training::models::Format;
use cytoscope_formats::{FormatError, FormatErrorKind};
use cytoscope_storage::target::refuse_input;
use cytoscope_volume::Axes;
use cytoscope_worker::JobId;
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
        /// Id of the stack's document.
        document: u64,
        /// The image with its role.
        overlay: Box<Overlay>,
    },
    /// An object table was read.
    Table {
        /// Id of the stack's document.
        document: u64,
        /// Rows and columns of the table.
        results: Box<Results>,
        /// Whether its labels were saved after it was written.
        old: bool,
    },
    /// Files chosen by the user.
    Chosen(FileRequest, Vec<PathBuf>),
    /// The request failed.
    Failed {
        /// The attempted action.
        what: String,
        /// What went wrong and what to do, as one message.
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
    /// Destination of a job's performance profile.
    Profile(ProfileFormat, JobId),
}

/// File format of a performance profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileFormat {
    /// Chrome trace JSON.
    Trace,
    /// CSV table of operators.
    Csv,
}

/// File extensions offered in dialogs.
const EXTENSIONS: [&str; 7] = ["tif", "tiff", "btf", "tf8", "tf2", "npy", "ome"];

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
                FileRequest::Stacks => dialog.add_filter("Stacks", &EXTENSIONS).pick_files().unwrap_or_default(),
                FileRequest::Labels(_) | FileRequest::Truth(_) => {
                    one(dialog.add_filter("Label images", &EXTENSIONS).pick_file())
                }
                FileRequest::ResultsFolder | FileRequest::DatasetFolder | FileRequest::TrainingFolder => {
                    one(dialog.pick_folder())
                }
                FileRequest::TrainingTable => one(dialog.add_filter("Tables", &["csv"]).pick_file()),
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
                FileRequest::Table | FileRequest::LineProfile | FileRequest::Profile(ProfileFormat::Csv, _) => {
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

/// Replaces folders by the stacks in them.
pub fn expand(paths: &[PathBuf]) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let mut found: Vec<PathBuf> = std::fs::read_dir(path)
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path())
            .filter(|p| is_stack(p))
            .take(MAX_FILES_OF_FOLDER)
            .collect();
        found.sort();
        files.extend(found);
    }
    files
}

fn is_stack(path: &Path) -> bool {
    let name = path.file_name().map(|n| n.to_string_lossy().to_lowercase()).unwrap_or_default();
    let has_extension = EXTENSIONS.iter().any(|e| name.ends_with(&format!(".{e}")));
    has_extension && !name.starts_with('.') && path.is_file()
}

//! Files opened, asked for and saved off the window's thread.

use crate::document::{Document, Overlay, Role, file_name};
use crate::measured;
use crate::results::Results;
use crate::shots::PictureOf;
use crate::training::models::Format;
use cytoscope_formats::{FormatError, FormatErrorKind};
use cytoscope_volume::Axes;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// What came of a request.
pub enum Opened {
    /// A stack.
    Document(Box<Document>),
    /// Something to be shown over a stack.
    Overlay {
        /// The stack.
        document: u64,
        /// What is shown.
        overlay: Box<Overlay>,
    },
    /// A table of objects.
    Table {
        /// The stack.
        document: u64,
        /// The table.
        results: Box<Results>,
        /// Its labels were saved after it was made.
        old: bool,
    },
    /// Files a person chose.
    Chosen(Ask, Vec<PathBuf>),
    /// It could not be done.
    Failed {
        /// What was tried.
        what: String,
        /// Why not.
        reason: String,
        /// The file, where other axes might help.
        axes_of: Option<PathBuf>,
    },
    /// Something was written.
    Saved(PathBuf),
}

/// What files are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Stacks.
    Stacks,
    /// Labels of a stack.
    Labels(u64),
    /// Truth of a stack.
    Truth(u64),
    /// A folder for the results of predictions.
    ResultsFolder,
    /// A dataset that corrected stacks are added to.
    DatasetFolder,
    /// A folder of pairs to learn from.
    TrainingFolder,
    /// A table of pairs to learn from.
    TrainingTable,
    /// A model to begin a training from.
    StartModel,
    /// Where a model goes that is given away.
    Model(Format),
    /// Where a picture goes.
    Picture(PictureOf),
    /// Where the values along a line go.
    LineProfile,
    /// Where a table goes.
    Table,
    /// Where a profile goes.
    Profile(ProfileFormat),
}

/// How a profile is saved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileFormat {
    /// Chrome's trace.
    Trace,
    /// A table of operators.
    Csv,
}

/// Endings of files that are offered to be opened.
const ENDINGS: [&str; 7] = ["tif", "tiff", "btf", "tf8", "tf2", "npy", "ome"];

/// Most files taken from a folder that is dropped.
const MAX_FILES_OF_FOLDER: usize = 500;

/// Does it.
pub struct Opener {
    sender: Sender<Opened>,
    receiver: Receiver<Opened>,
    wake: Arc<dyn Fn() + Send + Sync>,
    /// Requests not answered yet.
    pub under_way: usize,
}

impl Opener {
    /// An opener that calls `wake` whenever something has come.
    pub fn new(wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        let (sender, receiver) = channel();
        Self { sender, receiver, wake, under_way: 0 }
    }

    fn spawn(&mut self, work: impl FnOnce() -> Opened + Send + 'static) {
        let (sender, wake) = (self.sender.clone(), Arc::clone(&self.wake));
        self.under_way += 1;
        let spawned = std::thread::Builder::new().name("opener".to_owned()).spawn(move || {
            // A receiver that is gone means that the window is gone.
            let _ = sender.send(work());
            wake();
        });
        if let Err(error) = spawned {
            let reason = error.to_string();
            let _ = self.sender.send(Opened::Failed { what: "Opening".to_owned(), reason, axes_of: None });
        }
    }

    /// Opens a stack.
    pub fn open(&mut self, path: PathBuf, axes: Option<Axes>) {
        self.spawn(move || match Document::open(&path, axes) {
            Ok(document) => Opened::Document(Box::new(document)),
            Err(error) => Opened::Failed {
                what: format!("Opening {}", file_name(&path)),
                reason: error.to_string(),
                axes_of: may_be_axes(&error).then_some(path),
            },
        });
    }

    /// Opens something to be shown over a stack.
    pub fn overlay(&mut self, document: &Document, role: Role, path: PathBuf) {
        let (id, zyx, axes) = (document.id, document.extents.zyx, document.axes.clone());
        self.spawn(move || match Document::overlay(&path, role, zyx, axes) {
            Ok(overlay) => Opened::Overlay { document: id, overlay: Box::new(overlay) },
            Err(error) => Opened::Failed {
                what: format!("Opening {}", file_name(&path)),
                reason: error.to_string(),
                axes_of: None,
            },
        });
    }

    /// Reads a table of objects.
    pub fn table(&mut self, document: u64, path: PathBuf) {
        self.spawn(move || match Results::read(&path) {
            Ok(results) => Opened::Table { document, results: Box::new(results), old: measured::is_old(&path) },
            Err(error) => Opened::Failed {
                what: format!("Reading {}", file_name(&path)),
                reason: error.to_string(),
                axes_of: None,
            },
        });
    }

    /// Writes a file made by `content`.
    pub fn save(&mut self, path: PathBuf, content: impl FnOnce() -> Result<Vec<u8>, String> + Send + 'static) {
        self.spawn(move || {
            let written = content()
                .and_then(|bytes| cytoscope_storage::write::atomic_write(&path, &bytes).map_err(|e| e.to_string()));
            match written {
                Ok(()) => Opened::Saved(path),
                Err(reason) => Opened::Failed { what: format!("Saving {}", file_name(&path)), reason, axes_of: None },
            }
        });
    }

    /// Asks a person for files, with the system's own dialog.
    pub fn ask(&mut self, ask: Ask, beside: Option<PathBuf>, suggested: String) {
        let choose = move || {
            let mut dialog = rfd::FileDialog::new();
            if let Some(folder) = beside.filter(|f| f.is_dir()) {
                dialog = dialog.set_directory(folder);
            }
            let one = |path: Option<PathBuf>| path.into_iter().collect();
            match ask {
                Ask::Stacks => dialog.add_filter("Stacks", &ENDINGS).pick_files().unwrap_or_default(),
                Ask::Labels(_) | Ask::Truth(_) => one(dialog.add_filter("Label images", &ENDINGS).pick_file()),
                Ask::ResultsFolder | Ask::DatasetFolder | Ask::TrainingFolder => one(dialog.pick_folder()),
                Ask::TrainingTable => one(dialog.add_filter("Tables", &["csv"]).pick_file()),
                Ask::StartModel => one(dialog.add_filter("Models", &["zip", "onnx"]).pick_file()),
                Ask::Model(Format::Zip) => {
                    one(dialog.set_file_name(suggested).add_filter("bioimage.io package", &["zip"]).save_file())
                }
                Ask::Model(Format::Onnx) => {
                    one(dialog.set_file_name(suggested).add_filter("ONNX", &["onnx"]).save_file())
                }
                Ask::Picture(_) => one(dialog.set_file_name(suggested).add_filter("PNG", &["png"]).save_file()),
                Ask::Table | Ask::LineProfile | Ask::Profile(ProfileFormat::Csv) => {
                    one(dialog.set_file_name(suggested).add_filter("CSV", &["csv"]).save_file())
                }
                Ask::Profile(ProfileFormat::Trace) => {
                    one(dialog.set_file_name(suggested).add_filter("Chrome trace", &["json"]).save_file())
                }
            }
        };
        if cfg!(target_os = "macos") {
            // Dialogs belong to the main thread there.
            let files = choose();
            self.under_way += 1;
            let _ = self.sender.send(Opened::Chosen(ask, files));
        } else {
            self.spawn(move || Opened::Chosen(ask, choose()));
        }
    }

    /// What has come since the last call.
    pub fn poll(&mut self) -> Vec<Opened> {
        let come: Vec<Opened> = self.receiver.try_iter().collect();
        self.under_way = self.under_way.saturating_sub(come.len());
        come
    }
}

/// Whether other axes might open a file that was refused.
fn may_be_axes(error: &FormatError) -> bool {
    error.kind() == FormatErrorKind::Misused
}

/// Files as they are, folders by the stacks in them.
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
    let ending = ENDINGS.iter().any(|e| name.ends_with(&format!(".{e}")));
    ending && !name.starts_with('.') && path.is_file()
}

//! Opens, chooses and saves files on worker threads.

use crate::batch::MAX_CONVERTED;
use crate::document::{Document, GivenMetadata, OpenError, Overlay, Role, file_name};
use crate::engine_notes::failure_in_window;
use crate::file_dialog::{DialogSpec, desktop_has_dialogs};
use crate::measure;
use crate::results::Results;
use crate::runs::RunId;
use crate::screenshots::ScreenshotSubject;
use crate::training::models::TrainedModelFormat;
use cytoscope_formats::{FormatError, FormatErrorKind, containing_zarr_folder, first_file_per_series, is_zarr_folder};
use cytoscope_pipeline::ExportFormat;
use cytoscope_pipeline::predict::SLICE_EXTENSIONS;
use cytoscope_profile::RunTable;
use cytoscope_storage::io_message;
use cytoscope_storage::message::Message;
use cytoscope_storage::target::refuse_input;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// Makes the content of a file to be saved; runs on a worker thread.
pub type Content = Box<dyn FnOnce() -> Result<Vec<u8>, String> + Send>;

/// Result of a request to the opener.
pub enum OpenerResult {
    /// A stack was opened as a document.
    Document {
        /// The stack with what belongs to it, such as its labels.
        document: Box<Document>,
        /// Id of the document that it replaces, if any.
        replaces: Option<u64>,
        /// Index of the series that was shown before, if the file no longer has it; the first one was opened.
        missing_series: Option<usize>,
    },
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
        /// File of the labels that were measured, if it is known.
        labels: Option<PathBuf>,
        /// Whether the labels were saved again after the table was written, so that the table is outdated.
        old: bool,
    },
    /// Files chosen by the user.
    Chosen(FileRequest, Vec<PathBuf>),
    /// The desktop has no file dialog: the window shows its own.
    Browse(Box<DialogSpec>),
    /// The request failed; what was attempted, and why it failed.
    Failed {
        /// The attempted work, such as "Opening a.tif".
        what: String,
        /// Message of the error.
        reason: String,
        /// Path of the file and number of the requested series, if setting other axes may help.
        axes_of: Option<(PathBuf, usize)>,
    },
    /// A file was saved.
    Saved(PathBuf),
    /// A file was not saved, because it is the file of an open stack.
    IsOpen(PathBuf),
    /// A folder was shown in the file manager.
    FolderShown,
}

/// Purpose of a file dialog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileRequest {
    /// One or more stacks to open.
    Stacks,
    /// Labels for the stack of this document.
    Labels(u64),
    /// Ground truth of a stack.
    Truth(u64),
    /// Image of an input of a model, for the prediction of this document.
    InputFile(u64),
    /// Results folder of predictions.
    ResultsFolder,
    /// Folder for the results of a refused prediction.
    RefusedPrediction {
        /// Number of the question about it.
        question: u64,
        /// Whether the folder is for the other refused series of the same prediction, too.
        for_rest: bool,
    },
    /// Folder for the results of a recorded job that is run again.
    RerunFolder,
    /// Dataset folder for exported training pairs, and the document that is to be exported to it, if any.
    DatasetFolder(Option<u64>),
    /// Folder of training pairs.
    TrainingFolder,
    /// Table of training pairs.
    TrainingTable,
    /// Start model of a training run.
    StartModel,
    /// Settings file of a training run to load.
    TrainingSettings,
    /// Destination of the settings of a training run.
    SavedTrainingSettings,
    /// Ranges of a search for training settings.
    SearchRanges,
    /// Destination of an exported model.
    Model(TrainedModelFormat),
    /// Destination of a screenshot, and the document that was active when it was requested.
    Screenshot(ScreenshotSubject, Option<u64>),
    /// Destination of the line profile of a document.
    LineProfile(u64),
    /// Destination of the object table of a document.
    Table(u64),
    /// Destination of a run's performance profile.
    Profile(ProfileFormat, RunId),
    /// A stored run for the profiler.
    Run,
    /// Models to open.
    ModelFile,
    /// Destination of an exported model of the Models page, and the number of the request.
    ModelExport(ExportFormat, usize),
    /// Files to convert.
    ConvertFiles,
    /// Folder for converted files.
    ConvertFolder,
    /// Stack that the regions of converted ROI sets are drawn on.
    RegionsStack,
    /// Folder of predictions to score.
    Predictions,
    /// Folder of the ground truth of predictions.
    Truths,
    /// One prediction to score.
    PredictionFile,
    /// Ground truth of one prediction to score.
    TruthFile,
    /// Folder of the pairs that a model is scored on.
    PairsFolder,
    /// Table of the pairs that a model is scored on.
    PairsTable,
    /// Destination of a table of scores.
    Scores,
    /// Destination of the object table of a document, in the layout that AnnData reads.
    AnnData(u64),
    /// Destination of the meshes of a stack's objects.
    Mesh(u64),
    /// Destination of the preprocessed copy of a stack.
    PreprocessedCopy(u64),
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
    /// Rule, evidence, gain and change of each piece of advice.
    Advice,
    /// Stage, name, thread, start and duration of each span.
    Spans,
    /// Totals by operator.
    Operators,
    /// Operators beside the machine's peak.
    Roofline,
    /// Memory over time.
    Memory,
    /// Times of the training steps.
    Steps,
    /// Times of this run beside the times of another one.
    Comparison(RunId),
}

impl ProfileTable {
    /// Returns the file name that the dialog suggests.
    pub fn file_name(self) -> &'static str {
        match self {
            ProfileTable::Advice => "advice.csv",
            ProfileTable::Spans => "spans.csv",
            ProfileTable::Operators => "operators.csv",
            ProfileTable::Roofline => "roofline.csv",
            ProfileTable::Memory => "memory.csv",
            ProfileTable::Steps => "steps.csv",
            ProfileTable::Comparison(_) => "comparison.csv",
        }
    }

    /// Returns the table of a run that is written.
    pub(crate) fn into_run_table(self) -> RunTable {
        match self {
            ProfileTable::Advice => RunTable::Advice,
            ProfileTable::Spans => RunTable::Spans,
            ProfileTable::Operators => RunTable::Operators,
            ProfileTable::Roofline => RunTable::Roofline,
            ProfileTable::Memory => RunTable::Memory,
            ProfileTable::Steps => RunTable::Steps,
            ProfileTable::Comparison(_) => RunTable::Comparison,
        }
    }
}

/// File extensions of stacks.
pub(crate) const EXTENSIONS: [&str; 33] = [
    "tif", "tiff", "btf", "tf8", "tf2", "npy", "ome", "lsm", "stk", "svs", "ndpi", "czi", "nd2", "lif", "oif", "oib",
    "nii", "nii.gz", "nrrd", "mha", "mhd", "mrc", "map", "rec", "st", "ims", "h5", "hdf5", "png", "jpg", "jpeg", "ozx",
    "zarr.zip",
];
/// Extensions of regions of interest, which are labels of a stack.
pub(crate) const ROI_EXTENSIONS: [&str; 2] = ["zip", "roi"];

/// Extension of the `zarr.json` in an OME-Zarr folder: dialogs for files cannot choose the folder itself.
pub(crate) const ZARR_EXTENSIONS: [&str; 1] = ["json"];

/// Maximum number of files opened from one folder.
pub(crate) const MAX_FILES_OF_FOLDER: usize = 500;

/// Runs file requests on worker threads and collects their results.
pub struct Opener {
    sender: Sender<OpenerResult>,
    receiver: Receiver<OpenerResult>,
    wake: Arc<dyn Fn() + Send + Sync>,
    /// Number of unanswered requests.
    in_progress: usize,
    /// Whether the window's own file dialog is always used.
    own_dialogs: bool,
    /// Threads that write files.
    saving: Vec<JoinHandle<()>>,
}

impl Opener {
    /// An opener that calls `wake` whenever a result is available.
    pub fn new(wake: Arc<dyn Fn() + Send + Sync>) -> Self {
        let (sender, receiver) = channel();
        Self { sender, receiver, wake, in_progress: 0, own_dialogs: false, saving: Vec::new() }
    }

    /// Does work on a thread; `None` if no thread can be started, which is reported.
    fn spawn(&mut self, work: impl FnOnce() -> OpenerResult + Send + 'static) -> Option<JoinHandle<()>> {
        let (sender, wake) = (self.sender.clone(), Arc::clone(&self.wake));
        self.in_progress += 1;
        let spawned = std::thread::Builder::new().name("opener".to_owned()).spawn(move || {
            // Sending fails only if the window is closed.
            let _ = sender.send(work());
            wake();
        });
        if let Err(error) = &spawned {
            let reason = format!("{error}: close other programs and try again");
            // The receiver is in the same struct, so it exists.
            let what = "Starting a file operation".to_owned();
            let _ = self.sender.send(OpenerResult::Failed { what, reason, axes_of: None });
        }
        spawned.ok()
    }

    /// Opens a series of a stack on a thread. `given` replaces what the file states; the opened document takes the
    /// place of the document `replaces`.
    pub fn open(&mut self, path: PathBuf, given: GivenMetadata, series: usize, replaces: Option<u64>) {
        self.spawn(move || match open_series(&path, given, series) {
            Ok((document, missing_series)) => {
                tracing::info!(?path, "stack opened");
                OpenerResult::Document { document: Box::new(document), replaces, missing_series }
            }
            Err(error) => OpenerResult::Failed {
                what: format!("Opening {}", file_name(&path)),
                reason: open_failure_reason(&error),
                axes_of: may_be_axes(&error).then_some((path, series)),
            },
        });
    }

    /// Opens an overlay of a stack; `only_time` is the time point that it belongs to, if it is a single one.
    pub fn overlay(&mut self, document: &Document, role: Role, path: PathBuf, only_time: Option<usize>) {
        let (id, axes) = (document.id, document.axes.clone());
        let grid = (document.extents.zyx, document.extents.times);
        self.spawn(move || match Document::overlay(&path, role, grid, axes) {
            Ok(overlay) => {
                tracing::info!(?path, ?role, "overlay opened");
                let overlay = Box::new(Overlay { only_time, ..overlay });
                OpenerResult::Overlay { document: id, overlay }
            }
            Err(error) => OpenerResult::Failed {
                what: format!("Opening {}", file_name(&path)),
                reason: match &error {
                    OpenError::Format(error) => open_failure_reason(error),
                    OpenError::Grid { .. } => error.to_string(),
                },
                axes_of: None,
            },
        });
    }

    /// Reads the table of measured objects of a document on a thread; `labels` is the file of these objects, if it is known.
    pub fn table(&mut self, document: u64, path: PathBuf, labels: Option<PathBuf>) {
        self.spawn(move || match Results::read(&path) {
            Ok(results) => {
                let (results, old) = (Box::new(results), measure::is_old(&path));
                OpenerResult::Table { document, results, labels, old }
            }
            Err(error) => OpenerResult::Failed {
                what: format!("Reading {}", file_name(&path)),
                reason: error.to_string(),
                axes_of: None,
            },
        });
    }

    /// Writes a file with the bytes that `content` returns, unless it is one of the `open` files.
    pub fn save(&mut self, path: PathBuf, open: Vec<PathBuf>, content: Content) {
        self.saving.retain(|thread| !thread.is_finished());
        let thread = self.spawn(move || {
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
        self.saving.extend(thread);
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

    /// Uses the window's own file dialog, whether or not the desktop has one.
    pub fn use_own_dialogs(&mut self) {
        self.own_dialogs = true;
    }

    /// Shows a file dialog of the desktop; without one, the window is asked to show its own.
    pub fn ask(&mut self, ask: FileRequest, beside: Option<PathBuf>, suggested: String) {
        let spec = DialogSpec::new(ask, beside, suggested);
        let is_own = self.own_dialogs;
        let choose = move || match is_own || !desktop_has_dialogs() {
            true => OpenerResult::Browse(Box::new(spec)),
            false => OpenerResult::Chosen(ask, spec.ask_desktop()),
        };
        // macOS requires dialogs on the main thread. The window's own dialog is open in the next frame, so that it takes what is
        // typed until then.
        if cfg!(target_os = "macos") || is_own {
            let result = choose();
            self.in_progress += 1;
            // The receiver is in the same struct, so it exists.
            let _ = self.sender.send(result);
            (self.wake)();
        } else {
            self.spawn(choose);
        }
    }

    /// Whether a request is unanswered.
    pub fn is_busy(&self) -> bool {
        self.in_progress > 0
    }

    /// Results since the last call.
    pub fn poll(&mut self) -> Vec<OpenerResult> {
        let results: Vec<OpenerResult> = self.receiver.try_iter().collect();
        // The desktop has no dialogs, so the disk is not asked again.
        self.own_dialogs |= results.iter().any(|result| matches!(result, OpenerResult::Browse(_)));
        self.in_progress = self.in_progress.saturating_sub(results.len());
        results
    }
}

impl Drop for Opener {
    /// Waits for the files that are being written: they would be lost with the process.
    fn drop(&mut self) {
        for thread in self.saving.drain(..) {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// Opens a series of a stack, or the first one if the file does not have it: it may have been replaced since the series was
/// chosen. Also returns the index of the series that is missing.
fn open_series(path: &Path, given: GivenMetadata, series: usize) -> Result<(Document, Option<usize>), FormatError> {
    let GivenMetadata { axes, voxel_size_um } = given;
    let (document, missing_series) = match Document::open(path, axes.clone(), series) {
        Err(error) if series > 0 && error.kind() == FormatErrorKind::Misused => {
            (Document::open(path, axes, 0)?, Some(series))
        }
        opened => (opened?, None),
    };
    Ok((document.with_voxel_size(voxel_size_um), missing_series))
}

/// Returns why a file could not be opened, in the words of the window.
fn open_failure_reason(error: &FormatError) -> String {
    failure_in_window(&Message::of(error), Some(error.next_step().as_str()))
}

/// Whether a file that failed to open may open with other axes.
fn may_be_axes(error: &FormatError) -> bool {
    error.kind() == FormatErrorKind::Misused
}

/// Files, and the stacks in folders.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Expanded {
    /// The files, in the order of the paths; files of a folder are sorted.
    pub files: Vec<PathBuf>,
    /// Whether a folder has more stacks than were listed.
    pub truncated: bool,
    /// Whether a folder has no stacks.
    pub has_empty: bool,
    /// Messages about folders that could not be read, or only in part.
    pub unreadable: Vec<String>,
}

/// Replaces folders by the stacks in them. An OME-Zarr folder, given by its path or by the path of its metadata, is a
/// stack. The first file of a numbered series stands for all of them, because it opens the series.
pub fn expand(paths: &[PathBuf]) -> Expanded {
    expand_up_to(paths, MAX_FILES_OF_FOLDER)
}

/// Like [`expand`], for files that are listed and not opened: folders may hold more of them.
pub(crate) fn expand_for_list(paths: &[PathBuf]) -> Expanded {
    expand_up_to(paths, MAX_CONVERTED)
}

fn expand_up_to(paths: &[PathBuf], max_files_of_folder: usize) -> Expanded {
    let (mut files, mut truncated, mut has_empty, mut unreadable) = (Vec::new(), false, false, Vec::new());
    let given: Vec<PathBuf> = paths.iter().filter(|p| !p.is_dir()).cloned().collect();
    let opening: HashSet<PathBuf> = first_file_per_series(&given).into_iter().collect();
    for path in paths {
        if let Some(folder) = containing_zarr_folder(path) {
            files.push(folder);
            continue;
        }
        if !path.is_dir() {
            files.extend(opening.get(path).cloned());
            continue;
        }
        let mut found = match stacks_in(path) {
            Ok(found) => found,
            Err(error) => {
                unreadable.push(io_message(path, &error));
                continue;
            }
        };
        has_empty |= found.is_empty();
        found.sort();
        if found.iter().any(|p| !ends_in(p, &SLICE_EXTENSIONS)) {
            found.retain(|p| !ends_in(p, &SLICE_EXTENSIONS));
        }
        found = first_file_per_series(&found);
        truncated |= found.len() > max_files_of_folder;
        found.truncate(max_files_of_folder);
        files.extend(found);
    }
    Expanded { files, truncated, has_empty, unreadable }
}

/// Returns the stacks in a folder, in any order.
fn stacks_in(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let is_stack = |path: &PathBuf| ends_in(path, &EXTENSIONS) || is_visible_zarr(path);
    let entries: Vec<PathBuf> =
        std::fs::read_dir(folder)?.map(|entry| entry.map(|e| e.path())).collect::<std::io::Result<_>>()?;
    Ok(entries.into_iter().filter(is_stack).collect())
}

/// Whether a name in lower case ends in an extension, which has no dot in front.
pub(crate) fn has_extension(name: &str, extension: &str) -> bool {
    name.strip_suffix(extension).is_some_and(|stem| stem.ends_with('.'))
}

/// Whether a path is a visible file with one of the extensions.
fn ends_in(path: &Path, extensions: &[&str]) -> bool {
    let name = path.file_name().map(|n| n.to_string_lossy().to_lowercase()).unwrap_or_default();
    extensions.iter().any(|extension| has_extension(&name, extension)) && !name.starts_with('.') && path.is_file()
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
    use cytoscope_formats::{Container, STACK_EXTENSIONS, WriteSpec, write_array};
    use cytoscope_volume::Array;

    #[test]
    fn stacks_that_predictions_find_in_folders_are_found_by_the_window() {
        let missing: Vec<&str> = STACK_EXTENSIONS.into_iter().filter(|known| !EXTENSIONS.contains(known)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn a_file_that_is_being_saved_is_written_before_the_window_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("table.csv");
        let mut opener = Opener::new(Arc::new(|| {}));
        let content: Content = Box::new(|| {
            std::thread::sleep(std::time::Duration::from_millis(200));
            Ok(b"label\n".to_vec())
        });
        opener.save(path.clone(), Vec::new(), content);
        drop(opener);
        assert_eq!(std::fs::read(&path).unwrap(), b"label\n");
    }

    #[test]
    fn ome_zarr_folders_are_stacks() {
        let folder = tempfile::tempdir().unwrap();
        let zarr = folder.path().join("b.zarr");
        std::fs::create_dir(&zarr).unwrap();
        for file in [zarr.join("zarr.json"), folder.path().join("a.tif"), folder.path().join("c.json")] {
            std::fs::write(file, "{}").unwrap();
        }
        assert_eq!(expand(&[folder.path().to_owned()]).files, [folder.path().join("a.tif"), zarr.clone()]);
        assert_eq!(expand(std::slice::from_ref(&zarr)).files, std::slice::from_ref(&zarr));
        assert_eq!(expand(&[zarr.join("zarr.json")]).files, [zarr]);
    }

    #[test]
    fn only_a_folder_with_more_files_is_truncated() {
        let folder = tempfile::tempdir().unwrap();
        let stacks = ["a.tif", "b.tif", "c.tif"].map(|name| folder.path().join(name));
        for stack in &stacks {
            std::fs::write(stack, "").unwrap();
        }
        let expand_folder = |max| expand_up_to(&[folder.path().to_owned()], max);
        let expanded =
            |files: &[PathBuf], truncated| Expanded { files: files.to_vec(), truncated, ..Expanded::default() };
        assert_eq!(expand_folder(3), expanded(&stacks, false));
        assert_eq!(expand_folder(2), expanded(&stacks[..2], true));
        assert_eq!(expand_up_to(&stacks, 2), expanded(&stacks, false));
    }

    #[test]
    fn numbered_slices_open_as_one_stack() {
        let folder = tempfile::tempdir().unwrap();
        let slices: Vec<PathBuf> = (1..5).map(|z| folder.path().join(format!("img_Z{z:04}.tif"))).collect();
        for slice in &slices {
            let array = Array::new("YX".parse().unwrap(), vec![2, 3], vec![7u16; 6]).unwrap();
            write_array(slice, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        }
        let other = folder.path().join("other.tif");
        std::fs::write(&other, "").unwrap();
        assert_eq!(expand(&[folder.path().to_owned()]).files, [slices[0].clone(), other.clone()]);
        assert_eq!(expand(&[slices[2].clone(), slices[1].clone(), other.clone()]).files, [slices[2].clone(), other]);
    }
}

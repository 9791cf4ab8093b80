//! Actions on what the window shows.

use super::{Dialog, PanelTask, Part};
use crate::file_browser::BrowserAction;
use crate::file_dialog::DialogSpec;
use crate::screenshots::ScreenshotSubject;
use crate::views::pen::PointerEvent;
use cytoscope_engine::{DeviceRequest, Precision};
use cytoscope_pipeline::{Output, OutputTensor, PerformanceRequest, ResultFormat};
use cytoscope_volume::VoxelSize;
use std::collections::BTreeSet;
use std::path::PathBuf;

/// An action on what the window shows.
pub(crate) enum DisplayAction {
    /// Shows a task; the panel of tasks may stay hidden.
    Task(PanelTask),
    /// Opens the training wizard.
    ShowTraining,
    /// Shows or hides a part of the window.
    Toggle(Part),
    /// Cycles through the system, light and dark theme.
    NextTheme,
    /// Restores the default layout and settings.
    Reset,
    /// Shows the stacks instead of a page on models or files.
    ShowStacks,
    /// Selects a model by its name.
    Model(String),
    /// Remembers the channels that a model's inputs are read from.
    InputChannels {
        /// Name of the model.
        model: String,
        /// Names of the channels, in the order of the model's inputs.
        channels: Vec<String>,
    },
    /// Remembers the output of a model that is predicted.
    OutputOfModel {
        /// Name of the model.
        model: String,
        /// The output; `None` is the first one.
        output: Option<OutputTensor>,
    },
    /// Selects a device.
    Device(DeviceRequest),
    /// Selects a precision; `None` is the best one of the device.
    Precision(Option<Precision>),
    /// Selects a preset of the machine profile for predictions.
    Performance(PerformanceRequest),
    /// Sets the maximum memory of predictions in MiB; `None` is three quarters of the free memory.
    MemoryBudget(Option<u64>),
    /// Sets the number of threads of predictions; `None` uses all cores.
    Threads(Option<usize>),
    /// Selects the file format of the maps and labels of predictions.
    ResultFormat(ResultFormat),
    /// Sets whether the surfaces in meshes are smoothed.
    SmoothMeshes(bool),
    /// Sets the results that predictions write; if empty, the default ones of each model.
    Outputs(BTreeSet<Output>),
    /// Sets the dataset folder for exported training pairs.
    DatasetFolder(PathBuf),
    /// Remembers the results folder of all stacks; `None` forgets it.
    ResultsFolder(Option<PathBuf>),
    /// Moves a file to the top of the recent files.
    AddRecentFile(PathBuf),
    /// Remembers the axes of the files in the folder of `file`; `None` forgets them.
    RememberAxes {
        /// A file of the folder.
        file: PathBuf,
        /// Axis letters such as `TZCYX`.
        axes: Option<String>,
    },
    /// Remembers the voxel size of the files in the folder of `file`; one that is unknown along all axes is forgotten.
    RememberVoxelSize {
        /// A file of the folder.
        file: PathBuf,
        /// The voxel size in µm.
        voxel_size_um: VoxelSize,
    },
    /// Remembers the series of a file that is shown.
    RememberSeries {
        /// Image file that has several series.
        file: PathBuf,
        /// Number of the series, from 0.
        series: usize,
    },
    /// Asks for the axes of a file.
    AskAxes {
        /// File that will be reopened with the axes.
        file: PathBuf,
        /// Number of the series that will be reopened, from 0.
        series: usize,
        /// The text to start with.
        text: String,
    },
    /// The text typed into the axes dialog so far.
    TypeAxes(String),
    /// Closes the axes dialog.
    CloseAxes,
    /// Asks for the voxel size of a document.
    AskVoxelSize {
        /// Id of the document.
        document: u64,
        /// The texts to start with, along Z, Y, X.
        zyx: [String; 3],
    },
    /// The texts typed into the voxel size dialog so far.
    TypeVoxelSize([String; 3]),
    /// Closes the voxel size dialog.
    CloseVoxelSize,
    /// Shows how a result was made.
    OpenRecord(PathBuf),
    /// Asks for the folder that the results of the shown record's job are written to if it is run again.
    AskRerunFolder,
    /// Sets that folder for the record that it was asked for.
    RerunFolder(PathBuf),
    /// Closes the provenance record that is shown.
    CloseRecord,
    /// Closes all provenance records.
    CloseAllRecords,
    /// Shows a dialog over the window.
    Open(Dialog),
    /// Closes a dialog.
    Close(Dialog),
    /// Shows the window's own file dialog.
    Browse(Box<DialogSpec>),
    /// An action on the window's own file dialog.
    Browser(BrowserAction),
    /// Closes the notification with this number.
    CloseNotification(u64),
    /// Sets whether the object table is to scroll to the selected row.
    RevealObject(bool),
    /// Shows or hides the swipe line.
    ToggleSwipe,
    /// Moves the swipe line, as a fraction of the view width.
    Swipe(f32),
    /// Switches the line profile on or off.
    ToggleLineProfile,
    /// Draws the line of the line profile in a document.
    DrawLineProfile {
        /// Id of the document.
        document: u64,
        /// Events of the pointer, in their order.
        events: Vec<PointerEvent>,
    },
    /// Opens the dialog for screenshots.
    OpenScreenshotDialog,
    /// Stores the choices of the dialog for screenshots.
    ScreenshotChoices {
        /// Subject of the screenshot.
        subject: ScreenshotSubject,
        /// Whether to include a scale bar.
        with_bar: bool,
    },
    /// Closes the dialog for screenshots.
    CloseScreenshotDialog,
    /// Takes a screenshot of the window in the next frame.
    TakeScreenshot {
        /// Subject of the screenshot.
        subject: ScreenshotSubject,
        /// File to write (PNG).
        path: PathBuf,
    },
}

//! What can be done with the open stacks: actions, and the results of jobs that are shown.

use super::LiveOutput;
use crate::correct::source::SnapshotSource;
use crate::document::{DocumentChange, GivenMetadata, Role};
use crate::opener::{Content, FileRequest};
use cytoscope_objects::SegmentOptions;
use cytoscope_pipeline::{Artifact, DiameterRequest, ObjectDiameter, SegmentReport};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

/// A change of the active document's view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ViewAction {
    /// Moves the crosshair by slices.
    StepSlice(i64),
    /// Moves by a number of time points.
    StepTime(i64),
    /// Starts or stops playback of the slices.
    Play,
    /// Fits the slices into their views.
    Fit,
    /// Sets the contrast limits from the current slice.
    AutoContrast,
    /// Shows or hides labels.
    ToggleLabels,
    /// Cycles through outline, fill and both.
    NextLabelStyle,
    /// Shows or hides the predicted map.
    ToggleMap,
}

/// Labels of a correction session that are to be shown.
pub(crate) struct CorrectedLabels {
    /// Copy-on-write snapshot of the labels; views read its planes.
    pub(crate) source: SnapshotSource,
    /// File that they are saved to.
    pub(crate) path: PathBuf,
    /// Name of that file, for display.
    pub(crate) name: String,
    /// The time point that is corrected.
    pub(crate) time: usize,
    /// The current label, selected if no labels were shown before.
    pub(crate) label: u32,
}

/// Settings with which a prediction found objects.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Predicted {
    /// The object diameter, if any.
    pub(crate) diameter: Option<ObjectDiameter>,
    /// The segmentation settings, if any.
    pub(crate) segment: Option<SegmentOptions>,
    /// The channels of the map in which objects and their seeds were found, if known.
    pub(crate) channels: Option<[usize; 2]>,
}

/// A result of a job that is to be shown.
pub(crate) enum JobOutput {
    /// Files that a job has written.
    Files(Vec<Artifact>),
    /// Results that earlier jobs have written.
    Found {
        /// Files of the whole stack.
        outputs: Vec<Artifact>,
        /// Labels and tables that were saved for a single time point, by time point.
        by_time: BTreeMap<usize, Vec<Artifact>>,
        /// The time point to which the latest prediction was limited; `None` if it has all.
        only_time: Option<usize>,
        /// Settings with which the latest prediction found objects.
        predicted: Predicted,
    },
    /// A table of measured objects.
    Measured {
        /// Path of the label image.
        labels: PathBuf,
        /// Path of the table.
        table: PathBuf,
    },
    /// The growing output of a prediction.
    Live(LiveOutput),
    /// A segmentation that is not saved, and its time point.
    Preview(usize, Box<SegmentReport>),
    /// Files of a saved segmentation, and its time point.
    Kept(usize, Vec<Artifact>),
    /// Settings with which a prediction found objects.
    Predicted(Predicted),
    /// An estimated object diameter, and the request of the document when the estimate was started.
    Diameter(ObjectDiameter, DiameterRequest),
    /// The prediction has ended, and its growing output was removed.
    NotLive,
}

/// An action on the open stacks.
pub(crate) enum DocumentsAction {
    /// Opens files and the stacks in folders.
    Open(Vec<PathBuf>),
    /// Opens a series of a file; if another document shows it already, that one becomes the active one.
    Reopen {
        /// The file.
        path: PathBuf,
        /// Metadata that replace those of the file.
        given: GivenMetadata,
        /// Number of the series, from 0.
        series: usize,
        /// Id of the document that it replaces; `None` opens a further document.
        replaces: Option<u64>,
    },
    /// Makes a document the active one.
    Activate(u64),
    /// Closes the active document.
    Close,
    /// Changes how a document is shown.
    Change {
        /// Id of the document.
        document: u64,
        /// The change.
        change: DocumentChange,
    },
    /// Changes the view of the active document.
    View(ViewAction),
    /// Opens an overlay of a document.
    OpenOverlay {
        /// Id of the document.
        document: u64,
        /// Kind of the overlay.
        role: Role,
        /// Its file.
        path: PathBuf,
    },
    /// Removes the overlay of a role; its file is kept.
    RemoveOverlay {
        /// Id of the document.
        document: u64,
        /// Kind of the overlay.
        role: Role,
    },
    /// Ignores true objects with fewer voxels in comparisons.
    IgnoreBelow(u64),
    /// Sets the label of voxels of the ground truth that do not count in comparisons, because they are not annotated.
    IgnoreLabel(Option<u32>),
    /// Sets whether compared labels are colored by match.
    ColorByMatch(bool),
    /// Shows a file dialog.
    Ask {
        /// Purpose of the dialog.
        request: FileRequest,
        /// The folder to start in; by default that of the active document.
        folder: Option<PathBuf>,
        /// The suggested name of a new file.
        name: String,
    },
    /// Writes a file that was chosen in a dialog, which has already asked about replacing. The file of an open
    /// document is never replaced.
    Save {
        /// The file.
        path: PathBuf,
        /// Makes its content.
        content: Content,
    },
    /// Shows a folder in the file manager.
    ShowFolder(PathBuf),
    /// Shows a result of a job.
    Show {
        /// Id of the document.
        document: u64,
        /// Files, values or live output to show.
        output: Box<JobOutput>,
    },
    /// Sets the labels on the disk that can be chosen, each with its table, by time point.
    SetLabelChoices {
        /// Id of the document.
        document: u64,
        /// Those of the time points with several; 0 in a stack with a single time point.
        choices: BTreeMap<usize, Vec<Vec<Artifact>>>,
    },
    /// Removes the growing outputs of predictions of all other documents.
    KeepLive(BTreeSet<u64>),
    /// Shows the labels of a correction session.
    ShowCorrected {
        /// Id of the document.
        document: u64,
        /// The session's labels, with the file that they belong to.
        labels: Box<CorrectedLabels>,
    },
    /// Makes the labels of a document visible.
    ShowLabels(u64),
    /// Corrected labels were saved.
    LabelsSaved {
        /// Id of the document.
        document: u64,
        /// File of the labels.
        path: PathBuf,
        /// Time point that they belong to.
        time: usize,
        /// Whether their session is still open, so that they are on screen.
        is_open: bool,
    },
}

//! What can go wrong while labels are corrected: what was met, what was expected, what to do.

use cytoscope_formats::FormatError;
use cytoscope_objects::ObjectsError;
use cytoscope_storage::StorageError;
use std::io;
use std::path::{Path, PathBuf};

impl From<StorageError> for AnnotateError {
    fn from(error: StorageError) -> Self {
        Self::Format(error.into())
    }
}

/// A refused or failed edit, file or journal. After any of them the labels are as they were before the call.
#[derive(Debug, thiserror::Error)]
pub enum AnnotateError {
    /// An image file could not be read or written.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A computation on objects was given what it does not take.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    /// An image that holds no labels: a negative, fractional or too large value, or axes that are not Z, Y, X.
    #[error("{}: {met}; {next}", .file.display())]
    NotLabels {
        /// The file.
        file: PathBuf,
        /// What was met in it.
        met: String,
        /// What would be right.
        next: &'static str,
    },
    /// More than a named limit allows.
    #[error("{what} is {got}, more than the limit {limit_name} = {limit}; {next}")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// Its size.
        got: u64,
        /// The limit's name.
        limit_name: &'static str,
        /// The limit.
        limit: u64,
        /// What to do.
        next: &'static str,
    },
    /// A place outside the volume.
    #[error("{what} {at:?} is outside the volume of Z, Y, X = {shape_zyx:?}; choose a place inside")]
    OutOfBounds {
        /// The place's role.
        what: &'static str,
        /// The place.
        at: Vec<usize>,
        /// The volume's shape.
        shape_zyx: [usize; 3],
    },
    /// A label that is not there.
    #[error("label {label} is not in this {place}; pick a label that is")]
    NoSuchLabel {
        /// The label asked for.
        label: u32,
        /// `volume` or `slice`.
        place: &'static str,
    },
    /// A parameter outside its range.
    #[error("{what} is {got}; expected {expected}")]
    BadParameter {
        /// The parameter.
        what: &'static str,
        /// The value met.
        got: String,
        /// Its range.
        expected: &'static str,
    },
    /// An edit that cannot do what it was asked for on this label.
    #[error("label {label}: {met}; {next}")]
    NotPossible {
        /// The label.
        label: u32,
        /// Why not.
        met: String,
        /// What to do.
        next: &'static str,
    },
    /// Every label that 32 bits can number is in use.
    #[error("all labels up to {} are in use; delete or merge some", u32::MAX)]
    NoFreeLabel,
    /// The operating system failed.
    #[error("{}: {doing} failed: {source}; check the disk or the folder and try again", .file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// A file that is no journal, or one damaged where nothing can be read from it. It is left as it is.
    #[error("{}: {met}; the file was left as it is: move it away or name another journal", .journal.display())]
    BadJournal {
        /// The journal.
        journal: PathBuf,
        /// What was met in it.
        met: String,
    },
    /// A journal of another label image. It is left as it is.
    #[error("{}: {met}; the journal was left as it is: open the labels it belongs to, or name another journal", .journal.display())]
    OtherBase {
        /// The journal.
        journal: PathBuf,
        /// How the labels differ.
        met: String,
    },
    /// A journal that another window or program has open.
    #[error("{}: these annotations are open in another window or program; close them there first", .journal.display())]
    InUse {
        /// The journal.
        journal: PathBuf,
    },
    /// A training dataset that a pair cannot be added to.
    #[error("{}: {met}; {next}", .file.display())]
    Dataset {
        /// The file or folder.
        file: PathBuf,
        /// What was met.
        met: String,
        /// What to do.
        next: &'static str,
    },
    /// The caller stopped a save or a load.
    #[error("stopped on request")]
    Cancelled,
}

impl AnnotateError {
    pub(crate) fn io(file: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self + use<> {
        let file = file.to_owned();
        move |source| AnnotateError::Io { file, doing, source }
    }
}

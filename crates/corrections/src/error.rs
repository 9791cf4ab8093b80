//! Errors of editing labels, their files and journals.

use cytoscope_formats::FormatError;
use cytoscope_objects::ObjectsError;
use cytoscope_storage::{StorageError, io_advice, io_problem};
use std::io;
use std::path::{Path, PathBuf};

/// Why an edit, a file operation or a journal operation failed. The labels are unchanged after any error.
#[derive(Debug, thiserror::Error)]
pub enum CorrectionError {
    /// An image file could not be read or written.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A journal or table could not be replaced, or a file could not be moved aside.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A computation on objects refused its input.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    /// An image is not a label image: a value is negative, fractional or too large, or its axes are not Z, Y, X.
    #[error("{}: {problem}; {next_step}", .file.display())]
    NotLabels {
        /// Path of the file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
        /// What to do next.
        next_step: &'static str,
    },
    /// A limit is exceeded.
    #[error("{what} is {got}, more than the limit {limit_name} = {limit}; {next_step}")]
    TooLarge {
        /// The quantity that is too large.
        what: &'static str,
        /// Value of the quantity.
        got: u64,
        /// Name of the constant or setting that holds the limit.
        limit_name: &'static str,
        /// Maximum allowed value.
        limit: u64,
        /// What to do next.
        next_step: &'static str,
    },
    /// A position is outside the volume.
    #[error("{what} {at:?} is outside the volume of Z, Y, X = {shape_zyx:?}; choose a position inside")]
    OutOfBounds {
        /// Purpose of the position.
        what: &'static str,
        /// The position: Z, Y, X in voxels, or the index of a slice.
        at: Vec<usize>,
        /// Lengths of the volume along Z, Y, X in voxels.
        shape_zyx: [usize; 3],
    },
    /// A label does not exist.
    #[error("label {label} does not occur in this {place}; choose one that does")]
    NoSuchLabel {
        /// The requested label.
        label: u32,
        /// `volume` or `slice`.
        place: &'static str,
    },
    /// A parameter is outside its range.
    #[error("{what} is {got}; expected {expected}")]
    BadParameter {
        /// Name of the parameter.
        what: &'static str,
        /// The value given.
        got: String,
        /// The valid range.
        expected: &'static str,
    },
    /// An edit is not possible on this label.
    #[error("label {label}: {problem}; {next_step}")]
    NotPossible {
        /// Label that the edit was applied to.
        label: u32,
        /// The reason.
        problem: String,
        /// What to do next.
        next_step: &'static str,
    },
    /// All 32-bit labels are in use.
    #[error("all labels up to {} are in use; delete or merge some", u32::MAX)]
    NoFreeLabel,
    /// The operating system reported an error.
    #[error("{}: {doing} failed: {}; {}", .file.display(), io_problem(.source), io_advice(.source))]
    Io {
        /// Path of the file.
        file: PathBuf,
        /// The failed operation, such as "writing the journal".
        doing: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A file is not a journal, or is damaged so that nothing can be read. The file is not changed.
    #[error("{}: {problem}; the file was not changed: move it away or choose another journal", .journal.display())]
    BadJournal {
        /// Path of the journal.
        journal: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A journal belongs to another label image. The journal is not changed.
    #[error(
    "{}: {problem}; the journal was not changed: open the labels it belongs to, or choose another journal",
    .journal.display()
    )]
    OtherBase {
        /// Path of the journal.
        journal: PathBuf,
        /// The difference between the labels.
        problem: String,
    },
    /// A journal is open in another window or program.
    #[error("{}: these corrections are open in another window or program; close them there first", .journal.display())]
    InUse {
        /// Path of the journal.
        journal: PathBuf,
    },
    /// Another program has written to a journal that is open here. Nothing was added to it.
    #[error(
    "{}: another window or program has changed these corrections; close them here and open them again", .journal.display()
    )]
    Changed {
        /// Path of the journal.
        journal: PathBuf,
    },
    /// A pair cannot be added to a training dataset.
    #[error("{}: {problem}; {next_step}", .file.display())]
    Dataset {
        /// Path of the file or folder.
        file: PathBuf,
        /// What is wrong.
        problem: String,
        /// What to do next.
        next_step: &'static str,
    },
    /// The caller canceled a save or a load.
    #[error("canceled")]
    Canceled,
}

impl CorrectionError {
    pub(crate) fn io(file: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self + use<> {
        let file = file.to_owned();
        move |source| CorrectionError::Io { file, doing, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    #[test]
    fn advice_follows_the_kind_of_the_system_error() {
        let path = Path::new("a.journal");
        for (kind, advice) in [
            (io::ErrorKind::PermissionDenied, "check its permissions, or choose another folder"),
            (io::ErrorKind::StorageFull, "free some space, or choose another folder, and try again"),
            (io::ErrorKind::NotFound, "check that the path exists"),
        ] {
            let own = CorrectionError::io(path, "writing")(kind.into());
            let stored = CorrectionError::from(StorageError::io(path, "writing")(kind.into()));
            assert!(matches!(stored, CorrectionError::Storage(StorageError::Io { .. })), "{stored:?}");
            for error in [own, stored] {
                let text = error.to_string();
                assert!(text.starts_with("a.journal: writing failed: ") && text.ends_with(advice), "{text}");
                let source = error.source().and_then(|e| e.downcast_ref::<io::Error>());
                assert_eq!(source.map(io::Error::kind), Some(kind), "the system's error is kept");
            }
        }
    }
}

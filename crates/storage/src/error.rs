//! Why a file or folder was not written, replaced or removed.

use std::io;
use std::path::{Path, PathBuf};

/// A file or folder that was not written, replaced or removed; what was there is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The system refused.
    #[error("{path}: {doing} failed: {source}; {}", io_advice(.source))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried, such as "creating the folder".
        doing: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// A file of that name exists and replacing it was not asked for.
    #[error("{path} already exists; choose another name, or replace it with --force")]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The output path is one of the inputs, or contains one.
    #[error("{path} is an input of this command; write to another path")]
    IsInput {
        /// The file or folder.
        path: PathBuf,
    },
    /// A folder (or archive) of that name exists which this program did not make, or which was changed since.
    #[error("{path} {problem}; choose another path{}", if *.can_force { ", or use --force to move it aside and write here" } else { "" })]
    NotOurs {
        /// The folder or file.
        path: PathBuf,
        /// What is in it that is not ours, as the predicate of a sentence.
        problem: String,
        /// Whether the caller could ask to move it aside.
        can_force: bool,
    },
    /// Another process writes results of the same name.
    #[error("{path}: another run of Cytoscope is writing these results; wait for it, or write to another folder")]
    Busy {
        /// The results.
        path: PathBuf,
    },
}

impl StorageError {
    /// A function that wraps what the system said.
    pub fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), doing, source }
    }
}

/// Whether a disk, quota or memory is exhausted.
pub fn is_exhausted(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::OutOfMemory
            | io::ErrorKind::FileTooLarge
    )
}

/// What a person can do about a failure of the operating system: words to end a sentence with.
pub fn io_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        _ if crate::read::refusal(error).is_some() => "give a file of its own in its place",
        _ if is_exhausted(error) => "free some space, or choose another folder, and try again",
        io::ErrorKind::NotFound => "check that the path exists",
        io::ErrorKind::PermissionDenied => "check that you may access it, or choose another folder",
        io::ErrorKind::ReadOnlyFilesystem => "nothing can be written there: choose another folder",
        io::ErrorKind::NotADirectory => "a file has the name of a folder: choose another folder",
        _ => "check the disk or the network folder, and try again",
    }
}

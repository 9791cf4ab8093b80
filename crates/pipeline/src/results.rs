//! Result files: which of those that exist may be replaced, and how several appear together.
//!
//! The record of a prediction (`NAME_provenance.json`) lists its outputs with their sizes and hashes. A file is *ours* where it is
//! as a record lists it; anything else, a result that somebody edited included, is replaced only when the user asked for it.
//! The record is written before the files get their names, so that a kill at any moment leaves files that the record knows.

use crate::{JobError, provenance};
use cytoscope_storage::folder::move_aside;
use cytoscope_storage::write::FinishedFile;
use cytoscope_storage::{Overwrite, StorageError, sha256_of_file, target};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A file on record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Where it was written.
    pub path: PathBuf,
    /// Its length in bytes.
    pub bytes: u64,
    /// SHA-256 in lower-case hexadecimal.
    pub sha256: String,
}

impl FileRecord {
    /// The record of a file that has not its name yet.
    fn of(file: &FinishedFile) -> Result<Self, JobError> {
        let io = |error| JobError::Io { path: file.target().to_owned(), error };
        let bytes = std::fs::metadata(file.path()).map_err(io)?.len();
        Ok(Self { path: file.target().to_owned(), bytes, sha256: sha256_of_file(file.path()).map_err(io)? })
    }

    /// Whether a file is of the recorded size and content.
    pub fn matches(&self, path: &Path) -> bool {
        let of_size = std::fs::symlink_metadata(path).is_ok_and(|m| m.is_file() && m.len() == self.bytes);
        of_size && sha256_of_file(path).is_ok_and(|sha256| sha256 == self.sha256)
    }

    /// Whether the record is of a file of this name.
    pub(crate) fn is_named(&self, path: &Path) -> bool {
        self.path.file_name().is_some() && self.path.file_name() == path.file_name()
    }
}

/// Files of one result that are written and synced, and get their names together.
#[derive(Debug, Default)]
pub(crate) struct Publication {
    files: Vec<FinishedFile>,
}

impl Publication {
    /// Adds a file.
    pub(crate) fn add(&mut self, file: FinishedFile) {
        self.files.push(file);
    }

    /// The targets, in the order they were added.
    pub(crate) fn targets(&self) -> Vec<PathBuf> {
        self.files.iter().map(|f| f.target().to_owned()).collect()
    }

    /// The records of all files.
    pub(crate) fn records(&self) -> Result<Vec<FileRecord>, JobError> {
        self.files.iter().map(FileRecord::of).collect()
    }

    /// Gives the files their names. What lies there and was checked before the work is replaced; a file that somebody put there
    /// meanwhile is moved aside unless replacing was asked for. Call it when a record lists the new files.
    ///
    /// Gives the new places of what was moved aside.
    pub(crate) fn publish(self, overwrite: Overwrite) -> Result<Vec<PathBuf>, JobError> {
        let mut aside = Vec::new();
        for file in self.files {
            let path = file.target().to_owned();
            let is_foreign = std::fs::symlink_metadata(&path).is_ok() && !provenance::lists(&path);
            if overwrite == Overwrite::Refuse && is_foreign {
                aside.push(move_aside(&path)?);
            }
            file.publish().map_err(StorageError::io(&path, "finishing the file"))?;
        }
        Ok(aside)
    }
}

/// A note of a file that appeared during the work.
pub(crate) fn kept_aside(path: &Path) -> String {
    format!("a file appeared under the name of a result while it was made; it is kept as {}", path.display())
}

/// As [`check`], for something made of a prediction's map: only files of the record that lists the map may be replaced unasked.
///
/// # Errors
/// As [`check`].
pub(crate) fn check_derived(path: &Path, map: &Path, inputs: &[&Path], overwrite: Overwrite) -> Result<(), JobError> {
    let record = |file: &Path| provenance::record_of(&target::resolved(file));
    if provenance::lists(map) && record(map).is_some() && record(map) == record(path) {
        return check(path, inputs, overwrite);
    }
    Ok(target::check_file(path, inputs, overwrite)?)
}

/// Refuses to write over a file that is neither as a prediction's record beside it lists it nor may be replaced by the user's word.
///
/// # Errors
/// [`JobError::Storage`] for an input, a folder, or such a file.
pub(crate) fn check(path: &Path, inputs: &[&Path], overwrite: Overwrite) -> Result<(), JobError> {
    match target::check_file(path, inputs, overwrite) {
        Err(StorageError::Exists { .. }) if provenance::lists(path) => Ok(()),
        other => Ok(other?),
    }
}

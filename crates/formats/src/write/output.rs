//! The output file of a stack: a partial file of the storage crate with the errors of this crate.

use crate::error::FormatError;
use cytoscope_storage::write::{FinishedFile, PartialFile};
use std::{io::Write, path::Path};

/// A file that is being written next to its target; removed when dropped unfinished.
#[derive(Debug)]
pub(crate) struct Output(PartialFile);

impl Output {
    /// Creates the file under a hidden name beside its target.
    pub fn create(target: &Path) -> Result<Self, FormatError> {
        if target.file_name().is_none() {
            return Err(FormatError::misused(target, "the path has no file name", "give the path of a file"));
        }
        PartialFile::create(target).map(Self).map_err(|e| FormatError::io(target, "creating the file", e))
    }

    /// Appends bytes at the end of the file.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), FormatError> {
        let written = self.0.out().and_then(|out| out.write_all(bytes));
        written.map_err(|e| FormatError::io(self.0.target(), "writing", e))
    }

    /// Overwrites bytes that were written before; later appends continue at the end.
    pub fn patch(&mut self, at: u64, bytes: &[u8]) -> Result<(), FormatError> {
        self.0.patch(at, bytes).map_err(|e| FormatError::io(self.0.target(), "writing", e))
    }

    /// Syncs the file; it is renamed to its target when it is published.
    pub fn finish(self) -> Result<FinishedFile, FormatError> {
        let target = self.0.target().to_owned();
        self.0.finish().map_err(|e| FormatError::io(&target, "finishing the file", e))
    }
}

//! The file a stack is written to: storage's partial file with this crate's errors.

use crate::error::FormatError;
use cytoscope_storage::write::{FinishedFile, PartialFile};
use std::{io::Write, path::Path};

/// A file being written beside its target; removed when dropped unfinished.
#[derive(Debug)]
pub(crate) struct Output(PartialFile);

impl Output {
    /// Starts a file.
    pub fn create(target: &Path) -> Result<Self, FormatError> {
        if target.file_name().is_none() {
            return Err(FormatError::misused(target, "this is no name of a file", "name a file to write"));
        }
        PartialFile::create(target).map(Self).map_err(|e| FormatError::io(target, "creating the file", e))
    }

    /// Appends bytes.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), FormatError> {
        let written = self.0.out().and_then(|out| out.write_all(bytes));
        written.map_err(|e| FormatError::io(self.0.target(), "writing", e))
    }

    /// Overwrites bytes written before; later appends go on at the end.
    pub fn patch(&mut self, at: u64, bytes: &[u8]) -> Result<(), FormatError> {
        self.0.patch(at, bytes).map_err(|e| FormatError::io(self.0.target(), "writing", e))
    }

    /// Syncs the file; publishing it gives it its name.
    pub fn finish(self) -> Result<FinishedFile, FormatError> {
        let target = self.0.target().to_owned();
        self.0.finish().map_err(|e| FormatError::io(&target, "finishing the file", e))
    }
}

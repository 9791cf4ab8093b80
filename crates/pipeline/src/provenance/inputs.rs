//! Records of the files that were read, by which later changes are noticed.

use crate::predict::{ChannelRef, InputTensor};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// A file that was read: path, size and time of modification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputRecord {
    /// Path of the file or package.
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// Time of the last modification in seconds since 1970; 0 if the file system does not report it.
    pub modified_unix_secs: u64,
    /// Nanoseconds of that time beyond the full second.
    #[serde(default)]
    pub modified_nanos: u32,
}

impl InputRecord {
    /// Returns the record of a file as it is now.
    ///
    /// # Errors
    /// The system's error if there is no such file, or its size cannot be read.
    pub(crate) fn of(path: &Path) -> std::io::Result<Self> {
        let meta = std::fs::metadata(path)?;
        let modified = meta.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
        Ok(Self {
            path: path.to_owned(),
            bytes: meta.len(),
            modified_unix_secs: modified.map_or(0, |d| d.as_secs()),
            modified_nanos: modified.map_or(0, |d| d.subsec_nanos()),
        })
    }

    /// Returns how a file differs from the record, as the predicate of a sentence; `None` if it does not.
    pub(crate) fn change_on_disk(&self, file: &Path) -> Option<String> {
        match Self::of(file) {
            Ok(now) => self.change(&now),
            Err(error) => Some(format!("can no longer be read ({error})")),
        }
    }

    /// Returns how the file has changed, as the predicate of a sentence; `None` if it has not.
    pub fn change(&self, now: &Self) -> Option<String> {
        if self.bytes != now.bytes {
            return Some(format!("had {} bytes when it was recorded and has {} now", self.bytes, now.bytes));
        }
        // Records of earlier versions and some file systems store whole seconds only.
        let nanos = |r: &Self| if self.modified_nanos == 0 || now.modified_nanos == 0 { 0 } else { r.modified_nanos };
        let time = |r: &Self| (r.modified_unix_secs, nanos(r));
        (time(self) != time(now)).then(|| "was modified since it was recorded".to_owned())
    }
}

/// Source of an input tensor of the model.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InputTensorRecord {
    /// Id of the tensor in the model.
    pub name: String,
    /// The file, with its absolute path.
    pub file: InputRecord,
    /// Numbers of the channels in the file, from 0, in the order of the tensor's channels.
    pub channels: Vec<usize>,
    /// Names of the channels.
    pub channel_names: Vec<String>,
}

impl InputTensorRecord {
    /// Returns a note for the user.
    pub(crate) fn note(&self) -> String {
        let file = self.file.path.file_name().unwrap_or_default().display();
        format!("the model's input {} is read from {file}, {}", self.name, self.channel_names.join(", "))
    }

    /// Returns the tensor as a job names it.
    pub(super) fn as_given(&self) -> InputTensor {
        let channels = self.channels.iter().copied().map(ChannelRef::Index).collect();
        InputTensor { name: self.name.clone(), file: Some(self.file.path.clone()), channels }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn a_recorded_file_that_is_gone_is_not_called_empty() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.tif");
        std::fs::write(&file, "abc").unwrap();
        let record = InputRecord::of(&file).unwrap();
        assert_eq!(record.change_on_disk(&file), None);
        std::fs::remove_file(&file).unwrap();
        let change = record.change_on_disk(&file).unwrap();
        assert!(change.starts_with("can no longer be read ("), "{change}");
    }
}

//! Records of the files that were read, by which later changes are noticed.

use crate::predict::{ChannelRef, InputTensor};
use cytoscope_storage::read::open_regular;
use cytoscope_storage::{hexadecimal, io_problem, sha256_of_file};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Number of blocks that are read from a file to recognize its content.
const SAMPLED_BLOCKS: u64 = 16;
/// Size of such a block in bytes.
const BLOCK_BYTES: u64 = 4096;

/// A file that was read: path, size, time of modification, and possibly a hash of parts of its content.
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
    /// SHA-256 of blocks spread over the file, as hex, or a hash of the names, sizes and times of the files in a folder; absent
    /// for files of which many are read. Earlier versions do not record it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled_sha256: Option<String>,
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
            sampled_sha256: None,
        })
    }

    /// Returns the record of a file as it is now, with the hash of blocks of its content: another file may have the same size
    /// and time. The record of a folder has no hash.
    ///
    /// # Errors
    /// Same as [`InputRecord::of`], and the system's error if the file cannot be read.
    pub(crate) fn sampled(path: &Path) -> std::io::Result<Self> {
        let record = Self::of(path)?;
        let sampled_sha256 = if path.is_dir() { None } else { Some(sampled_sha256(path, record.bytes)?) };
        Ok(Self { sampled_sha256, ..record })
    }

    /// Returns the record without the hash of its content, as earlier versions wrote it.
    pub(crate) fn without_sample(&self) -> Self {
        Self { sampled_sha256: None, ..self.clone() }
    }

    /// Returns what was read as a line of text: path, size and, if it is recorded, the hash of parts of the content.
    pub(crate) fn text(&self) -> String {
        self.text_with_role("")
    }

    /// Like [`InputRecord::text`], with words behind the path that say what the file was read as.
    fn text_with_role(&self, role: &str) -> String {
        let hash = self.sampled_sha256.as_ref();
        let fingerprint = hash.map_or_else(String::new, |sha256| format!(", fingerprint {sha256}"));
        format!("read {}{role}: {} bytes{fingerprint}", self.path.display(), self.bytes)
    }

    /// Returns the record of a file as it is now, with a hash of its content if this record has one.
    ///
    /// # Errors
    /// Same as [`InputRecord::sampled`].
    pub(crate) fn now(&self, file: &Path) -> std::io::Result<Self> {
        if self.sampled_sha256.is_some() { Self::sampled(file) } else { Self::of(file) }
    }

    /// Returns how a file differs from the record, as the predicate of a sentence; `None` if it does not.
    pub(crate) fn change_on_disk(&self, file: &Path) -> Option<String> {
        match self.now(file) {
            Ok(now) => self.change(&now),
            Err(error) => Some(format!("can no longer be read ({})", io_problem(&error))),
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
        if time(self) != time(now) {
            return Some("was modified since it was recorded".to_owned());
        }
        match (&self.sampled_sha256, &now.sampled_sha256) {
            (Some(then), Some(sha256)) if then != sha256 => Some(match now.path.is_dir() {
                true => "has files that were renamed or replaced by others since it was recorded".to_owned(),
                false => "was replaced by another file of the same size and time since it was recorded".to_owned(),
            }),
            _ => None,
        }
    }
}

/// Returns the SHA-256 of blocks spread evenly over a file of `bytes` bytes, from the first to the last, in lower-case
/// hexadecimal. A file that has no more bytes than the blocks is read as a whole.
fn sampled_sha256(path: &Path, bytes: u64) -> std::io::Result<String> {
    if bytes <= SAMPLED_BLOCKS * BLOCK_BYTES {
        return sha256_of_file(path);
    }
    let mut file = open_regular(path)?;
    let mut hasher = Sha256::new();
    let mut block = Vec::new();
    for number in 0..SAMPLED_BLOCKS {
        let start = (bytes - BLOCK_BYTES).saturating_mul(number) / (SAMPLED_BLOCKS - 1);
        file.seek(SeekFrom::Start(start))?;
        block.clear();
        file.by_ref().take(BLOCK_BYTES).read_to_end(&mut block)?;
        hasher.update(&block);
    }
    Ok(hexadecimal(&hasher.finalize()))
}

/// An input of a recorded job, compared with the files as they are now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CheckedInput {
    /// What was read: path, size and, if it is recorded, fingerprint.
    pub(crate) text: String,
    /// How it has changed since, one sentence each; empty if it has not.
    pub(crate) changes: Vec<String>,
}

/// Returns how inputs have changed, one sentence each. Several inputs may be read from one file, whose changes are stated
/// once.
pub(crate) fn changes_of(inputs: &[CheckedInput]) -> Vec<String> {
    let mut known = HashSet::new();
    inputs.iter().flat_map(|input| &input.changes).filter(|change| known.insert(*change)).cloned().collect()
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
    /// Names of these channels, in the same order.
    pub channel_names: Vec<String>,
}

impl InputTensorRecord {
    /// Returns a note for the user.
    pub(crate) fn note(&self) -> String {
        let file = self.file.path.file_name().unwrap_or_default().display();
        format!("the model's input {} is read from {file}, {}", self.name, self.channel_names.join(", "))
    }

    /// Returns the tensor and its file as a line of text.
    pub(crate) fn text(&self) -> String {
        self.file.text_with_role(&format!(" as the input {} ({})", self.name, self.channel_names.join(", ")))
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

    #[test]
    fn another_file_of_the_same_size_and_time_is_noticed_unless_the_record_is_of_an_earlier_version() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.tif");
        let write = |bytes: &[u8]| {
            std::fs::write(&file, bytes).unwrap();
            std::fs::File::options().write(true).open(&file).unwrap().set_modified(UNIX_EPOCH).unwrap();
        };
        for (then, now) in [(vec![1_u8; 3], vec![2; 3]), (vec![1; 200_001], [vec![1; 200_000], vec![2]].concat())] {
            write(&then);
            let record = InputRecord::sampled(&file).unwrap();
            assert_eq!(record.change_on_disk(&file), None);
            write(&now);
            let change = record.change_on_disk(&file).unwrap();
            assert!(change.contains("same size and time"), "{change}");
            assert_eq!(record.without_sample().change_on_disk(&file), None);
        }
        assert_eq!(InputRecord::sampled(folder.path()).unwrap().sampled_sha256, None, "a folder");
    }
}

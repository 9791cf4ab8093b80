//! Records of the files that make up an image together with the input file, such as numbered slices.

use crate::provenance::InputRecord;
use cytoscope_storage::{by_count, counted, hexadecimal};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Maximum number of files that a record lists one by one.
const MAX_LISTED: usize = 1000;
/// Maximum length of their paths together in bytes.
const MAX_PATH_BYTES: usize = 256 << 10;
/// Maximum number of changed files that are named.
const MAX_NAMED: usize = 3;

/// The files of an image besides the input file, as they were before they were read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ImageFiles {
    /// Each of them, with its size and time of modification.
    Listed(Vec<InputRecord>),
    /// Summary of the files, if there are thousands.
    Summed(FileSum),
}

/// Identity of a large number of files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSum {
    /// Number of the files.
    pub files: usize,
    /// Size of all files in bytes.
    pub bytes: u64,
    /// SHA-256 of the names, sizes and times of modification, ordered by path, as hex.
    pub sha256: String,
}

impl FileSum {
    fn of(records: &[InputRecord]) -> Self {
        let mut ordered: Vec<&InputRecord> = records.iter().collect();
        ordered.sort_by(|a, b| a.path.cmp(&b.path));
        let mut digest = Sha256::new();
        for InputRecord { path, bytes, modified_unix_secs, modified_nanos, .. } in ordered {
            // The folder may be moved.
            digest.update(path.file_name().unwrap_or_default().as_encoded_bytes());
            digest.update(format!("\0{bytes} {modified_unix_secs} {modified_nanos}\n"));
        }
        let bytes = records.iter().fold(0, |sum: u64, record| sum.saturating_add(record.bytes));
        let sha256 = hexadecimal(&digest.finalize());
        Self { files: records.len(), bytes, sha256 }
    }
}

impl ImageFiles {
    /// Returns the record of `files`, all files of the image at `input`, as they are now; `None` if there are no others, or
    /// the image is a folder.
    ///
    /// # Errors
    /// The path of a file that cannot be read, with the system's error.
    pub(crate) fn of<'a>(
        input: &Path,
        files: impl Iterator<Item = &'a Path>,
    ) -> Result<Option<Self>, (PathBuf, std::io::Error)> {
        if input.is_dir() {
            return Ok(None);
        }
        let record = |file: PathBuf| InputRecord::of(&file).map_err(|error| (file, error));
        let records = others(input, files).map(record).collect::<Result<Vec<_>, _>>()?;
        if records.is_empty() {
            return Ok(None);
        }
        let path_bytes: usize = records.iter().map(|record| record.path.as_os_str().len()).sum();
        let is_listed = records.len() <= MAX_LISTED && path_bytes <= MAX_PATH_BYTES;
        Ok(Some(if is_listed { Self::Listed(records) } else { Self::Summed(FileSum::of(&records)) }))
    }

    /// Returns the number of the files, and their size in bytes.
    pub fn count_and_bytes(&self) -> (usize, u64) {
        match self {
            Self::Listed(files) => (files.len(), files.iter().fold(0, |sum, file| file.bytes.saturating_add(sum))),
            Self::Summed(sum) => (sum.files, sum.bytes),
        }
    }

    /// Returns the number and size of the files as a line of text, with their fingerprint if there are thousands.
    pub(crate) fn text(&self) -> String {
        let (count, bytes) = self.count_and_bytes();
        let fingerprint = match self {
            Self::Listed(_) => String::new(),
            Self::Summed(sum) => format!(", fingerprint {}", sum.sha256),
        };
        format!("read {} of this image: {bytes} bytes{fingerprint}", counted(count, "other file"))
    }

    /// Returns how the files have changed since they were recorded, one sentence each. `find` returns the files that the
    /// image at `input` consists of now, if it can be opened.
    pub(crate) fn changes(&self, input: &Path, find: impl FnOnce() -> Option<Vec<PathBuf>>) -> Vec<String> {
        let mut notes = Vec::new();
        match self {
            Self::Listed(files) => {
                let changes = files.iter().filter_map(|file| Some((&file.path, file.change_on_disk(&file.path)?)));
                let changed: Vec<(&PathBuf, String)> = changes.collect();
                let named = changed.iter().take(MAX_NAMED);
                notes.extend(named.map(|(path, change)| format!("the input {} {change}", path.display())));
                if changed.len() > MAX_NAMED {
                    let more = changed.len() - MAX_NAMED;
                    let (files, have) = (by_count(more, "file", "files"), by_count(more, "has", "have"));
                    notes.push(format!("{more} more {files} of the input {} {have} changed", input.display()));
                }
            }
            Self::Summed(sum) => {
                let now = find().and_then(|files| other_file_records(input, &files));
                if now.is_none_or(|now| FileSum::of(&now) != *sum) {
                    let one = match sum.files {
                        1 => "the other file".to_owned(),
                        files => format!("at least one of the {files} other files"),
                    };
                    notes.push(format!("{one} of {} has changed", input.display()));
                }
            }
        }
        notes
    }
}

/// Returns the absolute paths of the files of an image besides the input.
fn others<'a>(input: &Path, files: impl Iterator<Item = &'a Path>) -> impl Iterator<Item = PathBuf> {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let own = absolute(input);
    files.map(absolute).filter(move |file| *file != own)
}

/// Returns the records of the files of an image besides the input; `None` if one cannot be read.
fn other_file_records(input: &Path, files: &[PathBuf]) -> Option<Vec<InputRecord>> {
    others(input, files.iter().map(PathBuf::as_path)).map(|file| InputRecord::of(&file).ok()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    fn of(input: &Path, files: &[PathBuf]) -> Result<Option<ImageFiles>, (PathBuf, std::io::Error)> {
        ImageFiles::of(input, files.iter().map(PathBuf::as_path))
    }

    /// Writes numbered files, and returns their paths.
    fn numbered(folder: &Path, count: usize) -> Vec<PathBuf> {
        let files: Vec<PathBuf> = (0..count).map(|n| folder.join(format!("s_{n:04}.tif"))).collect();
        files.iter().for_each(|file| std::fs::write(file, "slice").unwrap());
        files
    }

    #[test]
    fn a_changed_file_of_few_is_named_and_one_of_thousands_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        for count in [3, MAX_LISTED + 2] {
            let files = numbered(folder.path(), count);
            let recorded = of(&files[0], &files).unwrap().unwrap();
            assert_eq!(recorded.count_and_bytes(), (count - 1, 5 * (count as u64 - 1)));
            assert_eq!(matches!(recorded, ImageFiles::Listed(_)), count == 3);
            let text = serde_json::to_string(&recorded).unwrap();
            assert_eq!(serde_json::from_str::<ImageFiles>(&text).unwrap(), recorded);
            let changes = || recorded.changes(&files[0], || Some(files.clone()));
            assert_eq!(changes(), Vec::<String>::new());
            std::fs::write(&files[2], "another slice").unwrap();
            let found = changes().join("; ");
            let expected = if count == 3 { "s_0002.tif had 5 bytes" } else { "one of the 1001 other files" };
            assert!(found.contains(expected), "{found}");
        }
    }

    #[test]
    fn an_image_of_one_file_and_a_folder_have_no_other_files() {
        let folder = tempfile::tempdir().unwrap();
        let files = numbered(folder.path(), 2);
        assert_eq!(of(&files[0], &files[..1]).unwrap(), None);
        assert_eq!(of(folder.path(), &files).unwrap(), None);
        let (missing, _) = of(&files[0], &[folder.path().join("gone.tif")]).unwrap_err();
        assert!(missing.ends_with("gone.tif"));
    }
}

//! JSON files that are kept between runs: settings, caches, profiles.

use crate::io_text::io_problem;
use crate::read::open_regular;
use crate::write::{atomic_write, write_checked};
use crate::{Overwrite, StorageError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Why a JSON file was not read. The messages do not name the file.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// The operating system reported an error, or the path is not a regular file.
    #[error("{}", io_problem(.0))]
    Io(#[from] io::Error),
    /// The file has more bytes than this limit.
    #[error("the file is larger than {0} bytes")]
    TooLarge(u64),
    /// The text is not JSON, or does not hold the expected values.
    #[error(transparent)]
    Content(#[from] serde_json::Error),
    /// The file states another version of its format.
    #[error("it is stored in format {found}, this version reads format {expected}")]
    Format {
        /// The stated version.
        found: u32,
        /// The version that is read.
        expected: u32,
    },
}

/// Reads a JSON file of at most `max_bytes`; `None` if there is no file.
///
/// # Errors
/// [`JsonError`] if the file cannot be read, is too large or does not hold a `T`.
pub fn read_json<T: DeserializeOwned>(path: &Path, max_bytes: u64) -> Result<Option<T>, JsonError> {
    let Some(bytes) = read_bytes(path, max_bytes)? else { return Ok(None) };
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// Reads a JSON file of at most `max_bytes` whose field `format` states the version of its format; `None` if there is no
/// file.
///
/// # Errors
/// Same as [`read_json`]; [`JsonError::Format`] for another version, whatever else the file holds.
pub fn read_json_with_format<T: DeserializeOwned>(
    path: &Path,
    max_bytes: u64,
    format: u32,
) -> Result<Option<T>, JsonError> {
    #[derive(Deserialize)]
    struct Header {
        format: u32,
    }
    let Some(bytes) = read_bytes(path, max_bytes)? else { return Ok(None) };
    let Header { format: found } = serde_json::from_slice(&bytes)?;
    if found != format {
        return Err(JsonError::Format { found, expected: format });
    }
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// Writes a JSON file atomically, and creates its folder.
///
/// # Errors
/// [`StorageError::Io`] if the folder or the file cannot be written, or the value cannot be represented in JSON.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), StorageError> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(StorageError::io(folder, "creating the folder"))?;
    }
    atomic_write(path, &json_text(path, value)?)
}

/// Writes a JSON file atomically at a path that [`crate::target::check_file`] has allowed, see [`write_checked`].
///
/// # Errors
/// [`StorageError::Io`] if the file cannot be written, or the value cannot be represented in JSON.
pub fn write_checked_json(
    path: &Path,
    value: &impl Serialize,
    overwrite: Overwrite,
) -> Result<Option<PathBuf>, StorageError> {
    write_checked(path, &json_text(path, value)?, overwrite)
}

fn json_text(path: &Path, value: &impl Serialize) -> Result<Vec<u8>, StorageError> {
    serde_json::to_vec_pretty(value).map_err(io::Error::from).map_err(StorageError::io(path, "converting to JSON"))
}

fn read_bytes(path: &Path, max_bytes: u64) -> Result<Option<Vec<u8>>, JsonError> {
    let file = match open_regular(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut bytes = Vec::new();
    file.take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(JsonError::TooLarge(max_bytes));
    }
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn a_missing_file_is_no_error_and_a_damaged_one_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/numbers.json");
        assert_eq!(read_json::<Vec<u32>>(&path, 100).unwrap(), None);
        write_json(&path, &[1, 2]).unwrap();
        assert_eq!(read_json::<Vec<u32>>(&path, 100).unwrap(), Some(vec![1, 2]));
        assert!(matches!(read_json::<Vec<u32>>(&path, 5), Err(JsonError::TooLarge(5))));
        std::fs::write(&path, "[1, ").unwrap();
        assert!(matches!(read_json::<Vec<u32>>(&path, 100), Err(JsonError::Content(_))));
        assert!(matches!(read_json::<Vec<u32>>(folder.path(), 100), Err(JsonError::Io(_))));
    }

    #[test]
    fn a_file_of_another_format_is_refused_whatever_it_holds() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Stored {
            numbers: Vec<u32>,
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("numbers.json");
        let read = || read_json_with_format::<Stored>(&path, 100, 1);
        std::fs::write(&path, r#"{"format": 1, "numbers": [3]}"#).unwrap();
        assert_eq!(read().unwrap(), Some(Stored { numbers: vec![3] }));
        std::fs::write(&path, r#"{"format": 9, "letters": "a"}"#).unwrap();
        assert!(matches!(read(), Err(JsonError::Format { found: 9, expected: 1 })));
    }
}

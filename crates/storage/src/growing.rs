//! Files of unfinished results that outlive their process, so that the next one continues where it stopped.
//!
//! The file has a hidden name beside the results. A record beside it says how many of its bytes are valid, with their
//! hash, a fingerprint of the job, and what the job states about them. Bytes that no record lists are never used.

use crate::lock::refuse_links;
use crate::read::{Refusal, open_regular};
use crate::write::atomic_write;
use crate::{StorageError, sha256_of_bytes};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Suffix of the file.
const GROWING: &str = ".cytoscope-growing";
/// Largest record that is read, in bytes.
const MAX_RECORD_BYTES: u64 = 1 << 16;
/// Bytes of a stem that are part of the file's name.
const MAX_STEM_BYTES: usize = 180;
/// Bytes that are hashed at once.
const HASHED_BYTES: usize = 1 << 18;

/// How much of a file is valid.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// Fingerprint of the job that wrote the file.
    fingerprint: String,
    /// Valid bytes from the start of the file.
    bytes: u64,
    /// SHA-256 of these bytes in lower-case hexadecimal.
    sha256: String,
    /// Description of these bytes that the job gave.
    #[serde(default)]
    about: String,
}

/// Record of a growing file about the job that kept it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recorded {
    /// Fingerprint of the job.
    pub fingerprint: String,
    /// Description of the kept bytes that the job gave.
    pub about: String,
}

/// A file that grows while a result is computed. When dropped, it stays if [`GrowingFile::keep`] or [`GrowingFile::state`]
/// was called, also by an earlier process; else it is removed.
pub struct GrowingFile {
    path: PathBuf,
    record_path: PathBuf,
    fingerprint: String,
    /// A handle of its own; its position is the end of the valid bytes.
    reader: File,
    hasher: Sha256,
    kept_bytes: u64,
    /// Whether there is a record, which may list no bytes.
    is_recorded: bool,
}

/// Returns the paths of the file and its record. A long stem is replaced by its hash, because file systems allow 255 bytes
/// for a name.
fn paths(folder: &Path, stem: &str) -> (PathBuf, PathBuf) {
    let name = if stem.len() <= MAX_STEM_BYTES { stem.to_owned() } else { sha256_of_bytes(stem.as_bytes()) };
    (folder.join(format!(".{name}{GROWING}")), folder.join(format!(".{name}{GROWING}.json")))
}

/// Opens a file for reading and writing, and creates it if there is none. Links and special files are refused.
fn open_or_create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true);
    refuse_links(&mut options);
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(Refusal::NotRegular("a special file").into()) }
}

/// Reads a record; `None` if there is no readable one.
fn read_record(path: &Path) -> Option<Record> {
    let mut bytes = Vec::new();
    // Without a readable record, nothing of the file counts as valid, and the run starts from the beginning.
    open_regular(path).ok()?.take(MAX_RECORD_BYTES).read_to_end(&mut bytes).ok()?;
    serde_json::from_slice(&bytes).ok()
}

fn remove_if_present(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl GrowingFile {
    /// Opens the growing file of the results `folder/stem_*`, and a handle to write it. It is emptied unless it begins
    /// with the bytes that a record with the same fingerprint lists. The caller holds the lock of these results.
    ///
    /// # Errors
    /// [`StorageError::Io`] if the file cannot be opened, or is a link or not a regular file.
    pub fn open(folder: &Path, stem: &str, fingerprint: &str) -> Result<(Self, File), StorageError> {
        let (path, record_path) = paths(folder, stem);
        let open = || open_or_create(&path).map_err(StorageError::io(&path, "opening the file"));
        let (reader, writer) = (open()?, open()?);
        let fingerprint = fingerprint.to_owned();
        let (hasher, kept_bytes, is_recorded) = (Sha256::new(), 0, false);
        let mut file = Self { path, record_path, fingerprint, reader, hasher, kept_bytes, is_recorded };
        let record = read_record(&file.record_path).filter(|record| record.fingerprint == file.fingerprint);
        if let Some(record) = record
            && file.hash(record.bytes).is_ok()
            && file.sha256() == record.sha256
        {
            file.is_recorded = true;
            return Ok((file, writer));
        }
        file.empty(&writer).map_err(StorageError::io(&file.path, "emptying the file"))?;
        Ok((file, writer))
    }

    /// Returns what is recorded about the job that kept the growing file of the results `folder/stem_*`; `None` if nothing
    /// is kept.
    pub fn recorded(folder: &Path, stem: &str) -> Option<Recorded> {
        let Record { fingerprint, about, .. } = read_record(&paths(folder, stem).1)?;
        Some(Recorded { fingerprint, about })
    }

    /// Returns the number of valid bytes from the start of the file.
    pub fn kept_bytes(&self) -> u64 {
        self.kept_bytes
    }

    /// Records that the first `bytes` bytes are written and valid, and what the job states `about` them. They must not change
    /// afterwards. Bytes that are recorded already are not recorded again.
    ///
    /// # Errors
    /// [`StorageError::Io`] if they cannot be read or synced, or the record cannot be written.
    pub fn keep(&mut self, bytes: u64, about: &str) -> Result<(), StorageError> {
        if bytes <= self.kept_bytes { Ok(()) } else { self.state(bytes, about) }
    }

    /// As [`GrowingFile::keep`], but what the job states `about` the file is recorded even if no more bytes are valid. It may
    /// describe later bytes, which the job must verify itself.
    ///
    /// # Errors
    /// As [`GrowingFile::keep`].
    pub fn state(&mut self, bytes: u64, about: &str) -> Result<(), StorageError> {
        self.hash(bytes).map_err(StorageError::io(&self.path, "reading"))?;
        self.reader.sync_data().map_err(StorageError::io(&self.path, "syncing"))?;
        let (fingerprint, sha256, about) = (self.fingerprint.clone(), self.sha256(), about.to_owned());
        let record = Record { fingerprint, bytes: self.kept_bytes, sha256, about };
        let text = serde_json::to_vec(&record).map_err(io::Error::from);
        atomic_write(&self.record_path, &text.map_err(StorageError::io(&self.record_path, "converting to JSON"))?)?;
        self.is_recorded = true;
        Ok(())
    }

    /// Removes the growing file of the results `folder/stem_*` and its record, if there are any.
    ///
    /// # Errors
    /// [`StorageError::Io`] if they cannot be removed.
    pub fn remove(folder: &Path, stem: &str) -> Result<(), StorageError> {
        let (path, record_path) = paths(folder, stem);
        for path in [record_path, path] {
            remove_if_present(&path).map_err(StorageError::io(&path, "removing the file"))?;
        }
        Ok(())
    }

    /// Empties the file and forgets its record.
    fn empty(&mut self, writer: &File) -> io::Result<()> {
        remove_if_present(&self.record_path)?;
        writer.set_len(0)?;
        self.reader.seek(SeekFrom::Start(0))?;
        (self.hasher, self.kept_bytes, self.is_recorded) = (Sha256::new(), 0, false);
        Ok(())
    }

    /// Hashes up to `end` bytes of the file.
    fn hash(&mut self, end: u64) -> io::Result<()> {
        let mut buffer = vec![0u8; HASHED_BYTES];
        while self.kept_bytes < end {
            let count = usize::try_from(end - self.kept_bytes).map_or(HASHED_BYTES, |left| left.min(HASHED_BYTES));
            let part = buffer.get_mut(..count).unwrap_or_default();
            self.reader.read_exact(part)?;
            self.hasher.update(&*part);
            self.kept_bytes += count as u64;
        }
        Ok(())
    }

    fn sha256(&self) -> String {
        self.hasher.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Drop for GrowingFile {
    fn drop(&mut self) {
        if !self.is_recorded {
            // Nobody can receive an error here; a leftover file has a hidden name and is replaced by the next run.
            let _ = remove_if_present(&self.record_path);
            let _ = remove_if_present(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use std::io::Write;

    fn kept(folder: &Path, fingerprint: &str) -> u64 {
        GrowingFile::open(folder, "stack", fingerprint).unwrap().0.kept_bytes()
    }

    /// Writes 12 bytes, of which 10 are kept.
    fn write(folder: &Path) {
        let (mut file, mut writer) = GrowingFile::open(folder, "stack", "a job").unwrap();
        writer.write_all(b"0123456789ab").unwrap();
        file.keep(4, "four").unwrap();
        file.keep(10, "ten").unwrap();
    }

    #[test]
    fn only_recorded_bytes_of_the_same_job_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path();
        assert_eq!(GrowingFile::recorded(folder, "stack"), None);
        write(folder);
        let recorded = Recorded { fingerprint: "a job".to_owned(), about: "ten".to_owned() };
        assert_eq!(GrowingFile::recorded(folder, "stack"), Some(recorded));
        assert_eq!(kept(folder, "a job"), 10);
        assert_eq!(kept(folder, "another job"), 0);
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0, "nothing was kept");
        let path = paths(folder, "stack").0;
        for damage in [&b"01234"[..], b"012345678X", b""] {
            write(folder);
            std::fs::write(&path, damage).unwrap();
            assert_eq!(kept(folder, "a job"), 0, "{damage:?}");
        }
        write(folder);
        std::fs::write(&path, b"0123456789 and more").unwrap();
        assert_eq!(kept(folder, "a job"), 10, "what follows does not matter");
        GrowingFile::remove(folder, "stack").unwrap();
        GrowingFile::remove(folder, "stack").unwrap();
        assert!(GrowingFile::open(folder, &"long ".repeat(60), "a job").is_ok(), "a stem of 300 bytes");
        assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);
    }

    #[test]
    fn a_kept_file_grows_after_it_was_opened_again() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path());
        let (mut file, mut writer) = GrowingFile::open(folder.path(), "stack", "a job").unwrap();
        writer.seek(SeekFrom::Start(file.kept_bytes())).unwrap();
        writer.write_all(b"XYZ").unwrap();
        file.keep(13, "").unwrap();
        drop(file);
        assert_eq!(kept(folder.path(), "a job"), 13);
        assert!(GrowingFile::open(folder.path(), "stack", "a job").unwrap().0.keep(14, "").is_err(), "it has 13 bytes");
    }

    #[test]
    fn what_a_job_states_is_recorded_even_if_no_more_bytes_are_valid() {
        let folder = tempfile::tempdir().unwrap();
        let about = || GrowingFile::recorded(folder.path(), "stack").map(|recorded| recorded.about);
        {
            let (mut file, mut writer) = GrowingFile::open(folder.path(), "stack", "a job").unwrap();
            writer.write_all(b"0123").unwrap();
            file.keep(0, "nothing").unwrap();
            assert_eq!(about(), None);
            file.state(0, "parts of slices").unwrap();
            file.state(0, "more parts").unwrap();
        }
        assert_eq!(about().as_deref(), Some("more parts"));
        {
            let (mut file, mut writer) = GrowingFile::open(folder.path(), "stack", "a job").unwrap();
            assert_eq!(file.kept_bytes(), 0);
            let mut bytes = Vec::new();
            writer.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, b"0123", "the bytes that the job describes are still there");
            file.state(4, "four").unwrap();
            // Fewer bytes than are valid change nothing about these.
            file.state(2, "two").unwrap();
        }
        assert_eq!((kept(folder.path(), "a job"), about().as_deref()), (4, Some("two")));
    }

    #[cfg(unix)]
    #[test]
    fn a_link_in_place_of_the_file_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("own");
        std::fs::write(&own, b"user data").unwrap();
        std::os::unix::fs::symlink(&own, paths(folder.path(), "stack").0).unwrap();
        assert!(GrowingFile::open(folder.path(), "stack", "a job").is_err());
        assert_eq!(std::fs::read(&own).unwrap(), b"user data");
    }
}

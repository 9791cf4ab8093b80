//! Files of unfinished results that outlive their process, so that the next one continues where it stopped.
//!
//! The file has a hidden name beside the results. A record beside it says how many of its bytes are valid, with their
//! checksum, a fingerprint of the job, and what the job states about them. Bytes that no record lists are never used.

use crate::lock::refuse_links;
use crate::read::{Refusal, SpecialFile, open_regular};
use crate::write::{atomic_write, register_unfinished, unregister_unfinished};
use crate::{StorageError, sha256_of_bytes};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Suffix of the file.
const GROWING: &str = ".cytoscope-growing";
/// Largest record that is read, in bytes.
const MAX_RECORD_BYTES: u64 = 1 << 16;
/// Bytes of a stem that are part of the file's name.
const MAX_STEM_BYTES: usize = 180;
/// Bytes that are added to the checksum at once.
const BYTES_AT_ONCE: usize = 1 << 18;

/// How much of a file is valid.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// Fingerprint of the job that wrote the file.
    fingerprint: String,
    /// Valid bytes from the start of the file.
    bytes: u64,
    /// CRC-32 of these bytes. It detects what a crash leaves behind; nobody is expected to forge kept slices.
    crc32: u32,
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

/// The valid bytes from the start of a file.
struct Valid {
    /// Handle for reading the file while it grows.
    reader: File,
    checksum: crc32fast::Hasher,
    bytes: u64,
    /// Bytes that the record lists: fewer if it could not be written.
    recorded_bytes: u64,
}

impl Valid {
    /// Adds the bytes of the file up to `end`, unless `is_abandoned` becomes true.
    fn add(&mut self, end: u64, is_abandoned: &AtomicBool) -> io::Result<()> {
        if self.bytes >= end {
            return Ok(());
        }
        // A read that failed has left the position anywhere.
        self.reader.seek(SeekFrom::Start(self.bytes))?;
        let mut buffer = vec![0u8; BYTES_AT_ONCE];
        while self.bytes < end && !is_abandoned.load(Ordering::Relaxed) {
            let count = usize::try_from(end - self.bytes).map_or(BYTES_AT_ONCE, |left| left.min(BYTES_AT_ONCE));
            let part = buffer.get_mut(..count).unwrap_or_default();
            self.reader.read_exact(part)?;
            self.checksum.update(part);
            self.bytes += count as u64;
        }
        Ok(())
    }

    fn crc32(&self) -> u32 {
        self.checksum.clone().finalize()
    }
}

/// What a growing file shares with the thread that records its bytes.
struct Shared {
    path: PathBuf,
    record_path: PathBuf,
    fingerprint: String,
    valid: Mutex<Valid>,
    /// Whether there is a record, which may list no bytes.
    is_recorded: AtomicBool,
    /// Whether nothing more needs to be recorded.
    is_abandoned: AtomicBool,
}

impl Shared {
    /// Returns the valid bytes, once no other thread adds to them. A thread that panicked has added whole parts only.
    fn valid(&self) -> MutexGuard<'_, Valid> {
        self.valid.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Syncs the file, and records `bytes` valid bytes, or those that are valid already.
    fn record(&self, bytes: u64, about: &str) -> Result<(), StorageError> {
        let mut valid = self.valid();
        valid.add(bytes, &self.is_abandoned).map_err(StorageError::io(&self.path, "reading"))?;
        if self.is_abandoned.load(Ordering::Relaxed) {
            return Ok(());
        }
        valid.reader.sync_data().map_err(StorageError::io(&self.path, "syncing"))?;
        let (fingerprint, about) = (self.fingerprint.clone(), about.to_owned());
        let record = Record { fingerprint, bytes: valid.bytes, crc32: valid.crc32(), about };
        let text = serde_json::to_vec(&record).map_err(io::Error::from);
        unregister_unfinished(&self.path);
        atomic_write(&self.record_path, &text.map_err(StorageError::io(&self.record_path, "converting to JSON"))?)?;
        valid.recorded_bytes = valid.bytes;
        self.is_recorded.store(true, Ordering::Relaxed);
        Ok(())
    }
}

/// A file that grows while a result is computed. When dropped, it stays if [`GrowingFile::keep`], [`GrowingFile::state`] or
/// [`GrowingFile::state_soon`] was called, also by an earlier process; else it is removed.
pub struct GrowingFile {
    shared: Arc<Shared>,
    /// The thread that records bytes.
    recording: Option<JoinHandle<Result<(), StorageError>>>,
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
    if file.metadata()?.is_file() { Ok(file) } else { Err(Refusal::NotRegular(SpecialFile::Other).into()) }
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
        let record = read_record(&record_path).filter(|record| record.fingerprint == fingerprint);
        let mut valid = Valid { reader, checksum: crc32fast::Hasher::new(), bytes: 0, recorded_bytes: 0 };
        let is_recorded = record.is_some_and(|record| {
            valid.add(record.bytes, &AtomicBool::new(false)).is_ok() && valid.crc32() == record.crc32
        });
        if !is_recorded {
            let mut empty = || {
                remove_if_present(&record_path)?;
                writer.set_len(0)?;
                (valid.checksum, valid.bytes) = (crc32fast::Hasher::new(), 0);
                Ok(())
            };
            empty().map_err(StorageError::io(&path, "emptying the file"))?;
            // Without a record, it is of no use to the next process.
            register_unfinished(&path);
        }
        valid.recorded_bytes = valid.bytes;
        let shared = Shared {
            path,
            record_path,
            fingerprint: fingerprint.to_owned(),
            valid: Mutex::new(valid),
            is_recorded: AtomicBool::new(is_recorded),
            is_abandoned: AtomicBool::new(false),
        };
        Ok((Self { shared: Arc::new(shared), recording: None }, writer))
    }

    /// Returns what is recorded about the job that kept the growing file of the results `folder/stem_*`; `None` if nothing
    /// is kept.
    pub fn recorded(folder: &Path, stem: &str) -> Option<Recorded> {
        let Record { fingerprint, about, .. } = read_record(&paths(folder, stem).1)?;
        Some(Recorded { fingerprint, about })
    }

    /// Whether there is a record of the growing file of the results `folder/stem_*` that cannot be read.
    pub fn has_damaged_record(folder: &Path, stem: &str) -> bool {
        let path = paths(folder, stem).1;
        path.is_file() && read_record(&path).is_none()
    }

    /// Returns the number of recorded bytes from the start of the file, once those are recorded that are to be.
    pub fn kept_bytes(&self) -> u64 {
        self.shared.valid().recorded_bytes
    }

    /// Records that the first `bytes` bytes are written and valid, and what the job states `about` them. They must not change
    /// afterwards. Bytes that are recorded already are not recorded again.
    ///
    /// # Errors
    /// [`StorageError::Io`] if they cannot be read or synced, or the record cannot be written.
    pub fn keep(&mut self, bytes: u64, about: &str) -> Result<(), StorageError> {
        // What another thread could not record is recorded now.
        let _ = self.wait();
        if bytes <= self.kept_bytes() { Ok(()) } else { self.shared.record(bytes, about) }
    }

    /// Like [`GrowingFile::keep`], but what the job states `about` the file is recorded even if no more bytes are valid. It may
    /// describe later bytes, which the job must verify itself.
    ///
    /// # Errors
    /// Same as [`GrowingFile::keep`].
    pub fn state(&mut self, bytes: u64, about: &str) -> Result<(), StorageError> {
        // What another thread could not record is recorded now.
        let _ = self.wait();
        self.shared.record(bytes, about)
    }

    /// Like [`GrowingFile::state`], but in another thread, because syncing can take seconds. Returns whether it has begun: it
    /// does not while earlier bytes are still being recorded.
    ///
    /// # Errors
    /// Same as [`GrowingFile::keep`], of the bytes before. An error of these bytes is returned by the next call of this
    /// function; the other ones record them again.
    pub fn state_soon(&mut self, bytes: u64, about: String) -> Result<bool, StorageError> {
        if self.recording.as_ref().is_some_and(|recording| !recording.is_finished()) {
            return Ok(false);
        }
        self.wait()?;
        let (shared, for_thread) = (Arc::clone(&self.shared), about.clone());
        let thread = std::thread::Builder::new().name("keep slices".to_owned());
        match thread.spawn(move || shared.record(bytes, &for_thread)) {
            Ok(recording) => self.recording = Some(recording),
            // Without another thread, it is done in this one.
            Err(_) => self.shared.record(bytes, &about)?,
        }
        Ok(true)
    }

    /// Waits for the thread that records bytes, if there is one.
    fn wait(&mut self) -> Result<(), StorageError> {
        let Some(recording) = self.recording.take() else { return Ok(()) };
        let panicked = |_| StorageError::io(&self.shared.path, "recording")(io::Error::other("the thread panicked"));
        recording.join().map_err(panicked)?
    }

    /// Ends the recording of bytes, because the file is removed next.
    pub fn abandon(mut self) {
        self.shared.is_abandoned.store(true, Ordering::Relaxed);
        // Nothing is done with bytes that could not be recorded.
        let _ = self.wait();
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
}

impl Drop for GrowingFile {
    fn drop(&mut self) {
        // Nobody can receive an error here; a leftover file has a hidden name and is replaced by the next run.
        let _ = self.wait();
        if !self.shared.is_recorded.load(Ordering::Relaxed) {
            let _ = remove_if_present(&self.shared.record_path);
            let _ = remove_if_present(&self.shared.path);
        }
        unregister_unfinished(&self.shared.path);
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
    fn a_damaged_record_is_told_from_none() {
        let folder = tempfile::tempdir().unwrap();
        let is_damaged = || GrowingFile::has_damaged_record(folder.path(), "stack");
        assert!(!is_damaged(), "there is none");
        write(folder.path());
        assert!(!is_damaged());
        std::fs::write(paths(folder.path(), "stack").1, "{\"fingerprint\"").unwrap();
        assert!(is_damaged() && GrowingFile::recorded(folder.path(), "stack").is_none());
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

    #[test]
    fn bytes_are_recorded_in_another_thread_or_else_by_the_next_call() {
        let folder = tempfile::tempdir().unwrap();
        {
            let (mut file, mut writer) = GrowingFile::open(folder.path(), "stack", "a job").unwrap();
            writer.write_all(b"0123456789").unwrap();
            assert!(file.state_soon(6, "six".to_owned()).unwrap());
            // The file is dropped once they are recorded.
        }
        assert_eq!(kept(folder.path(), "a job"), 6);
        let (mut file, _writer) = GrowingFile::open(folder.path(), "stack", "a job").unwrap();
        assert!(file.state_soon(8, "eight".to_owned()).unwrap());
        file.keep(9, "nine").unwrap();
        assert_eq!(file.kept_bytes(), 9);
        assert!(file.state_soon(11, "more than there are".to_owned()).unwrap());
        assert!(file.keep(11, "still more").is_err());
        file.keep(10, "ten").unwrap();
        file.abandon();
        assert_eq!(kept(folder.path(), "a job"), 10);
    }

    #[test]
    fn bytes_that_could_not_be_recorded_are_recorded_by_the_next_call() {
        let folder = tempfile::tempdir().unwrap();
        let (mut file, mut writer) = GrowingFile::open(folder.path(), "stack", "a job").unwrap();
        writer.write_all(b"0123").unwrap();
        assert!(file.keep(6, "more than there are").is_err());
        writer.write_all(b"456789").unwrap();
        // A folder takes the place of the record.
        let record = paths(folder.path(), "stack").1;
        std::fs::create_dir(&record).unwrap();
        assert!(file.keep(8, "eight").is_err());
        assert_eq!(file.kept_bytes(), 0);
        std::fs::remove_dir(&record).unwrap();
        file.keep(8, "eight").unwrap();
        assert_eq!(file.kept_bytes(), 8);
        drop(file);
        assert_eq!(kept(folder.path(), "a job"), 8);
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

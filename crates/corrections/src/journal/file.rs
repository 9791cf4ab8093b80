//! The journal file: locked, appended to immediately, and synced by its own thread.

use super::check_sum;
use super::record::Record;
use crate::{CorrectionError, Fingerprint};
use cytoscope_storage::lock::{LockedFile, is_linked_at};
use std::collections::HashSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A journal that is open for writing.
#[derive(Debug)]
pub(crate) struct JournalFile {
    path: PathBuf,
    /// Dropped before the file is unlocked, so that the next session opens a synced journal.
    syncer: Syncer,
    file: LockedFile,
    /// Length of the valid part in bytes; the next record is written there.
    len: u64,
    /// Number of records, which is the position of the next one.
    position: u64,
    /// Approximate length after a compaction, in bytes.
    compact_len: u64,
    /// Fingerprints that the label image may have when it is opened next; the first one is from the start of editing.
    pub bases: Vec<Fingerprint>,
    /// Whether `path` was replaced by a new file that is not open yet.
    replaced: bool,
    /// Whether the file may be longer than its valid part, because a record that could not be written was not cut off.
    has_torn_end: bool,
    /// Minimum time between two syncs.
    sync_interval: Duration,
}

/// Number of times that a journal is opened which another process replaces before it is locked.
const ATTEMPTS: usize = 16;
/// Largest number of fingerprints in a journal: the first and the latest ones.
const MAX_BASES: usize = 64;

/// Returns the fingerprints of a journal that [`JournalFile::add_base`] keeps of these: each at its last place, and of too many
/// the first and the latest ones.
pub(crate) fn without_repeated_bases(all: Vec<Fingerprint>) -> Vec<Fingerprint> {
    let mut seen = HashSet::new();
    let mut bases: Vec<Fingerprint> = all.into_iter().rev().filter(|base| seen.insert(*base)).collect();
    bases.reverse();
    let surplus = bases.len().saturating_sub(MAX_BASES);
    if surplus > 0 {
        bases.drain(1..=surplus);
    }
    bases
}

/// State from which an existing journal is continued.
pub(crate) struct ResumeState {
    /// Length of the valid part in bytes; the rest is cut off.
    pub len: u64,
    /// Number of records that were read and are valid.
    pub position: u64,
    /// Approximate length after a compaction, in bytes.
    pub compact_len: u64,
    /// See [`JournalFile::bases`].
    pub bases: Vec<Fingerprint>,
    /// Minimum time between two syncs.
    pub sync_interval: Duration,
}

impl JournalFile {
    /// Opens a file for reading and writing, creates it if necessary, and locks it.
    pub fn lock(path: &Path) -> Result<LockedFile, CorrectionError> {
        for _ in 0..ATTEMPTS {
            if let Some(file) = Self::lock_opened(path, Self::open_or_create(path)?)? {
                return Ok(file);
            }
        }
        Err(CorrectionError::InUse { journal: path.to_owned() })
    }

    fn open_or_create(path: &Path) -> Result<File, CorrectionError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        options.open(path).map_err(CorrectionError::io(path, "opening the journal"))
    }

    /// Locks an open file; `None` if the path has another file by now, because a session that compacted its journal replaced
    /// it. What is written to the old one would be lost.
    fn lock_opened(path: &Path, file: File) -> Result<Option<LockedFile>, CorrectionError> {
        let file = match file.try_lock() {
            Ok(()) => LockedFile::new(file),
            Err(TryLockError::WouldBlock) => return Err(CorrectionError::InUse { journal: path.to_owned() }),
            // On file systems without locks a second window is detected only by what it writes.
            Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Unsupported => LockedFile::new(file),
            Err(TryLockError::Error(e)) => return Err(CorrectionError::io(path, "locking the journal")(e)),
        };
        Ok(is_linked_at(&file, path).then_some(file))
    }

    /// Continues a locked file after its last valid record; the rest is cut off.
    pub fn resume(path: &Path, file: LockedFile, from: ResumeState) -> Result<Self, CorrectionError> {
        let ResumeState { len, position, compact_len, bases, sync_interval } = from;
        file.set_len(len).map_err(CorrectionError::io(path, "cutting the journal"))?;
        let syncer = Syncer::start(path, &file, sync_interval)?;
        let (path, replaced, has_torn_end) = (path.to_owned(), false, false);
        Ok(Self { path, file, len, position, compact_len, bases, replaced, has_torn_end, syncer, sync_interval })
    }

    /// Length of the journal in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Approximate length after a compaction in bytes, when last computed.
    pub fn compact_len(&self) -> u64 {
        self.compact_len
    }

    /// Adds a fingerprint that the label image may have when it is opened next.
    pub fn add_base(&mut self, fingerprint: Fingerprint) {
        self.bases.retain(|b| *b != fingerprint);
        self.bases.push(fingerprint);
        if self.bases.len() > MAX_BASES {
            self.bases.remove(1);
        }
    }

    /// Path of the journal, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a record and passes it to the operating system. After an error the journal is unchanged.
    pub fn append(&mut self, record: &Record) -> Result<(), CorrectionError> {
        self.append_body(&record.body())
    }

    /// Like [`JournalFile::append`], for the encoded body of a record.
    pub fn append_body(&mut self, body: &[u8]) -> Result<(), CorrectionError> {
        if self.replaced {
            self.take_over()?;
        }
        self.refuse_changed()?;
        let bytes = encode_record(self.position, body);
        let written = self.file.seek(SeekFrom::Start(self.len)).and_then(|_| self.file.write_all(&bytes));
        if let Err(e) = written {
            // The partial record is cut off. If that fails too, it is overwritten by the next record or ignored when
            // read.
            self.has_torn_end = self.file.set_len(self.len).is_err();
            return Err(CorrectionError::io(&self.path, "writing the journal")(e));
        }
        self.len += bytes.len() as u64;
        self.position += 1;
        self.syncer.request_sync();
        Ok(())
    }

    /// Refuses a file that another process has written to. On some network drives, locks are visible to one machine only, or
    /// there are none, and both processes would overwrite the records of the other one.
    fn refuse_changed(&self) -> Result<(), CorrectionError> {
        let metadata = self.file.metadata().map_err(CorrectionError::io(&self.path, "reading the journal"))?;
        if self.has_torn_end || metadata.len() == self.len {
            return Ok(());
        }
        Err(CorrectionError::Changed { journal: self.path.clone() })
    }

    /// Reports a failed sync.
    #[cfg(test)]
    pub fn set_sync_failure(&mut self) {
        *self.syncer.failure.lock().unwrap() = Some("the disk failed".to_owned());
    }

    /// Makes every write fail until the file is opened again.
    #[cfg(test)]
    pub fn forbid_writing(&mut self) {
        self.file = LockedFile::new(File::open(&self.path).unwrap());
    }

    /// The error of the last background sync that failed; `None` if all have succeeded since the file was opened or replaced.
    pub fn sync_failure(&self) -> Option<String> {
        self.syncer.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether the path no longer leads to the file that edits are written to, because the file was removed, renamed or replaced.
    pub fn is_detached(&self) -> bool {
        !self.replaced && !is_linked_at(&self.file, &self.path)
    }

    /// Returns a function that syncs the file; the journal can be written to while it runs.
    pub fn sync_task(&self) -> Result<impl FnOnce() -> Result<(), CorrectionError> + use<>, CorrectionError> {
        let file = self.file.try_clone().map_err(CorrectionError::io(&self.path, "syncing the journal"))?;
        let path = self.path.clone();
        Ok(move || file.sync_data().map_err(CorrectionError::io(&path, "syncing the journal")))
    }

    /// Replaces the whole file atomically by one that `fill` writes (a header and records). After an error the journal
    /// is unchanged.
    pub fn replace(
        &mut self,
        fill: impl FnOnce(&mut RecordWriter<'_>) -> io::Result<()>,
    ) -> Result<(), CorrectionError> {
        if !self.replaced {
            self.refuse_changed()?;
            // This file may have been renamed, and another session have begun a journal at its path.
            if self.path.exists() && !is_linked_at(&self.file, &self.path) {
                return Err(CorrectionError::Changed { journal: self.path.clone() });
            }
        }
        let (mut len, mut position) = (0, 0);
        cytoscope_storage::write::atomic_write_with(&self.path, |out| {
            let mut writer = RecordWriter { out, len: 0, position: 0 };
            fill(&mut writer)?;
            (len, position) = (writer.len, writer.position);
            Ok(())
        })?;
        self.replaced = true;
        (self.len, self.position, self.compact_len) = (len, position, len);
        self.take_over()
    }

    /// Opens the file that [`JournalFile::replace`] wrote and continues with it.
    fn take_over(&mut self) -> Result<(), CorrectionError> {
        let file = Self::lock(&self.path)?;
        let found = file.metadata().map_err(CorrectionError::io(&self.path, "reading the journal"))?.len();
        if found != self.len {
            return Err(CorrectionError::Changed { journal: self.path.clone() });
        }
        self.syncer = Syncer::start(&self.path, &file, self.sync_interval)?;
        self.file = file;
        (self.replaced, self.has_torn_end) = (false, false);
        Ok(())
    }
}

/// Encodes a record: length, checksum and body.
pub(crate) fn encode_record(position: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(body.len() + 8);
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(check_sum(position, body).to_le_bytes());
    bytes.extend(body);
    bytes
}

/// Writes the header and records of a new journal.
pub(crate) struct RecordWriter<'a> {
    out: &'a mut dyn Write,
    len: u64,
    position: u64,
}

impl RecordWriter<'_> {
    /// Writes bytes as they are: the encoded header, before the first record.
    pub fn write_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.len += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    /// Adds the length and checksum to the encoded body of a record, and writes it.
    pub fn write_record(&mut self, body: &[u8]) -> io::Result<()> {
        let bytes = encode_record(self.position, body);
        self.position += 1;
        self.write_raw(&bytes)
    }
}

/// Syncs a file in its own thread: soon after a request, at most once per `sync_interval`, and when dropped.
#[derive(Debug)]
struct Syncer {
    requests: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    failure: Arc<Mutex<Option<String>>>,
}

impl Syncer {
    fn start(path: &Path, file: &File, sync_interval: Duration) -> Result<Self, CorrectionError> {
        let file = file.try_clone().map_err(CorrectionError::io(path, "opening the journal"))?;
        let failure = Arc::new(Mutex::new(None));
        let (requests, received) = channel();
        let shared = Arc::clone(&failure);
        let thread = std::thread::Builder::new()
            .name("journal sync".to_owned())
            .spawn(move || sync_on_request(&file, &received, sync_interval, &shared))
            .map_err(CorrectionError::io(path, "starting to sync the journal"))?;
        Ok(Self { requests: Some(requests), thread: Some(thread), failure })
    }

    fn request_sync(&self) {
        if let Some(requests) = &self.requests {
            // A thread that has ended has stored its failure, which the next write returns.
            let _ = requests.send(());
        }
    }
}

fn sync_on_request(file: &File, received: &Receiver<()>, sync_interval: Duration, failure: &Mutex<Option<String>>) {
    let mut last: Option<Instant> = None;
    while received.recv().is_ok() {
        let mut open = true;
        loop {
            let wait = last.map_or(Duration::ZERO, |l| sync_interval.saturating_sub(l.elapsed()));
            match received.recv_timeout(wait) {
                Ok(()) if wait > Duration::ZERO => {}
                Ok(()) | Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => {
                    open = false;
                    break;
                }
            }
        }
        let outcome = file.sync_data();
        last = Some(Instant::now());
        // It is kept: after an error, a system may report success although it has dropped what it could not write.
        if let Err(error) = outcome {
            *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        }
        if !open {
            return;
        }
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            // The thread stores its failure; nobody can receive it after this.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    fn fingerprint(number: u32) -> Fingerprint {
        Fingerprint::try_from(format!("{number:064x}")).unwrap()
    }

    /// A new journal without a header.
    fn journal(path: &Path) -> JournalFile {
        let (sync_interval, bases) = (Duration::ZERO, Vec::new());
        let from = ResumeState { len: 0, position: 0, compact_len: 0, bases, sync_interval };
        JournalFile::resume(path, JournalFile::lock(path).unwrap(), from).unwrap()
    }

    #[cfg(unix)]
    #[test]
    fn a_journal_that_was_replaced_before_it_was_locked_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.journal");
        let file = JournalFile::open_or_create(&path).unwrap();
        cytoscope_storage::write::atomic_write(&path, b"compacted").unwrap();
        assert!(JournalFile::lock_opened(&path, file).unwrap().is_none());
        assert_eq!(JournalFile::lock(&path).unwrap().metadata().unwrap().len(), 9);
    }

    // Elsewhere, a lock prevents another handle from writing.
    #[cfg(unix)]
    #[test]
    fn nothing_is_written_to_a_journal_that_another_process_has_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.journal");
        let mut journal = journal(&path);
        journal.append(&Record::Undo).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.extend(encode_record(1, &Record::Redo.body()));
        std::fs::write(&path, &bytes).unwrap();
        assert!(matches!(journal.append(&Record::Undo), Err(CorrectionError::Changed { .. })));
        assert!(matches!(journal.replace(|out| out.write_raw(b"new")), Err(CorrectionError::Changed { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }

    #[cfg(unix)]
    #[test]
    fn a_journal_that_another_session_began_at_the_same_path_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.journal");
        let mut journal = journal(&path);
        std::fs::rename(&path, folder.path().join("earlier.journal")).unwrap();
        std::fs::write(&path, "of another session").unwrap();
        assert!(matches!(journal.replace(|out| out.write_raw(b"new")), Err(CorrectionError::Changed { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"of another session");
        // One that was removed is written again.
        std::fs::remove_file(&path).unwrap();
        journal.replace(|out| out.write_raw(b"new")).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn a_failed_sync_is_reported_although_a_later_one_succeeds() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = journal(&folder.path().join("a.journal"));
        journal.set_sync_failure();
        journal.append(&Record::Undo).unwrap();
        let failure = Arc::clone(&journal.syncer.failure);
        // The sync is waited for.
        drop(journal);
        assert!(failure.lock().unwrap().is_some());
    }

    #[test]
    fn fingerprints_of_a_long_journal_are_those_of_adding_one_after_the_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.journal");
        for (given, count) in [(vec![], 0), (vec![7], 1), (vec![3, 1, 3, 2, 1], 3), ((0..100).collect(), 64)] {
            let mut journal = journal(&path);
            let all: Vec<Fingerprint> = given.into_iter().map(fingerprint).collect();
            all.iter().for_each(|base| journal.add_base(*base));
            assert_eq!(journal.bases.len(), count);
            assert_eq!(without_repeated_bases(all), journal.bases);
        }
        // The size is such that work growing with its square would take minutes.
        let many: Vec<Fingerprint> = (0..400_000).map(fingerprint).collect();
        assert_eq!(without_repeated_bases([many.clone(), many].concat()).last(), Some(&fingerprint(399_999)));
    }
}

//! The journal's file: locked, appended to at once, synced by a thread of its own.

use super::check_sum;
use super::record::Record;
use crate::{AnnotateError, Fingerprint};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A journal that is written.
#[derive(Debug)]
pub(crate) struct JournalFile {
    path: PathBuf,
    file: File,
    /// Bytes that are sound; the next record goes there.
    len: u64,
    /// Records so far.
    position: u64,
    /// About the bytes that a compaction would leave.
    compact_len: u64,
    /// Fingerprints that the labels may be found with when they are opened next; the first is that they began with.
    pub bases: Vec<Fingerprint>,
    /// Whether the file under the journal's name is another than `file`.
    replaced: bool,
    syncer: Syncer,
    every: Duration,
}

/// Fingerprints kept in a journal: the first and the latest.
const MAX_BASES: usize = 64;

/// How an opened journal goes on.
pub(crate) struct Resume {
    /// Bytes that are sound; what follows is cut off.
    pub len: u64,
    /// Records in them.
    pub position: u64,
    /// About the bytes that a compaction would leave.
    pub compact_len: u64,
    /// See [`JournalFile::bases`].
    pub bases: Vec<Fingerprint>,
    /// Least time between two syncs.
    pub every: Duration,
}

impl JournalFile {
    /// Opens a file for reading and writing (a new one if there is none), and locks it.
    pub fn lock(path: &Path) -> Result<File, AnnotateError> {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(AnnotateError::io(path, "opening the journal"))?;
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => Err(AnnotateError::InUse { journal: path.to_owned() }),
            // A file system without locks: two windows cannot be kept apart there, but work goes on.
            Err(TryLockError::Error(e)) if e.kind() == io::ErrorKind::Unsupported => Ok(file),
            Err(TryLockError::Error(e)) => Err(AnnotateError::io(path, "locking the journal")(e)),
        }
    }

    /// Goes on with a locked file after its last sound record; what follows is cut off.
    pub fn resume(path: &Path, file: File, from: Resume) -> Result<Self, AnnotateError> {
        let Resume { len, position, compact_len, bases, every } = from;
        file.set_len(len).map_err(AnnotateError::io(path, "cutting the journal"))?;
        let syncer = Syncer::start(path, &file, every)?;
        let path = path.to_owned();
        Ok(Self { path, file, len, position, compact_len, bases, replaced: false, syncer, every })
    }

    /// Bytes of the journal.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// About the bytes that a compaction would leave, when it was last known.
    pub fn compact_len(&self) -> u64 {
        self.compact_len
    }

    /// Adds a fingerprint that the labels may be found with.
    pub fn add_base(&mut self, fingerprint: Fingerprint) {
        self.bases.retain(|b| *b != fingerprint);
        self.bases.push(fingerprint);
        if self.bases.len() > MAX_BASES {
            self.bases.remove(1);
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends a record and hands it to the operating system. After an error the journal is as it was before.
    pub fn append(&mut self, record: &Record) -> Result<(), AnnotateError> {
        self.append_body(&record.body())
    }

    /// As [`JournalFile::append`], for a record's body.
    pub fn append_body(&mut self, body: &[u8]) -> Result<(), AnnotateError> {
        if self.replaced {
            self.take_over()?;
        }
        let bytes = framed(self.position, body);
        let written = self.file.seek(SeekFrom::Start(self.len)).and_then(|_| self.file.write_all(&bytes));
        if let Err(e) = written {
            // What was written of it is cut off; if that fails too, it is overwritten next time, or dropped when read.
            let _ = self.file.set_len(self.len);
            return Err(AnnotateError::io(&self.path, "writing the journal")(e));
        }
        self.len += bytes.len() as u64;
        self.position += 1;
        self.syncer.note();
        Ok(())
    }

    /// Makes every write fail until the file is opened again.
    #[cfg(test)]
    pub fn forbid_writing(&mut self) {
        self.file = File::open(&self.path).unwrap();
    }

    /// What the last sync in the background failed with.
    pub fn sync_failure(&self) -> Option<String> {
        self.syncer.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives what syncs the file, so that others may write meanwhile.
    pub fn to_sync(&self) -> Result<impl FnOnce() -> Result<(), AnnotateError> + use<>, AnnotateError> {
        let file = self.file.try_clone().map_err(AnnotateError::io(&self.path, "syncing the journal"))?;
        let path = self.path.clone();
        Ok(move || file.sync_data().map_err(AnnotateError::io(&path, "syncing the journal")))
    }

    /// Replaces the whole file by one that `fill` writes (a header and framed records), beside, synced and renamed. After an
    /// error the journal is as it was.
    pub fn replace(&mut self, fill: impl FnOnce(&mut RecordWriter<'_>) -> io::Result<()>) -> Result<(), AnnotateError> {
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

    /// Goes on with the file that [`JournalFile::replace`] wrote.
    fn take_over(&mut self) -> Result<(), AnnotateError> {
        let file = Self::lock(&self.path)?;
        let found = file.metadata().map_err(AnnotateError::io(&self.path, "reading the journal"))?.len();
        if found != self.len {
            return Err(AnnotateError::InUse { journal: self.path.clone() });
        }
        self.syncer = Syncer::start(&self.path, &file, self.every)?;
        self.file = file;
        self.replaced = false;
        Ok(())
    }
}

/// A record as it stands in a file.
pub(crate) fn framed(position: u64, body: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(body.len() + 8);
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(check_sum(position, body).to_le_bytes());
    bytes.extend(body);
    bytes
}

/// Writes a header and records of a new journal.
pub(crate) struct RecordWriter<'a> {
    out: &'a mut dyn Write,
    len: u64,
    position: u64,
}

impl RecordWriter<'_> {
    pub fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.len += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    pub fn record(&mut self, body: &[u8]) -> io::Result<()> {
        let bytes = framed(self.position, body);
        self.position += 1;
        self.raw(&bytes)
    }
}

/// Syncs a file in a thread of its own: soon after it is noted, at most once in `every`, and when dropped.
#[derive(Debug)]
struct Syncer {
    notes: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    failure: Arc<Mutex<Option<String>>>,
}

impl Syncer {
    fn start(path: &Path, file: &File, every: Duration) -> Result<Self, AnnotateError> {
        let file = file.try_clone().map_err(AnnotateError::io(path, "opening the journal"))?;
        let failure = Arc::new(Mutex::new(None));
        let (notes, received) = channel();
        let shared = Arc::clone(&failure);
        let thread = std::thread::Builder::new()
            .name("journal sync".to_owned())
            .spawn(move || sync_when_noted(&file, &received, every, &shared))
            .map_err(AnnotateError::io(path, "starting to sync the journal"))?;
        Ok(Self { notes: Some(notes), thread: Some(thread), failure })
    }

    fn note(&self) {
        if let Some(notes) = &self.notes {
            let _ = notes.send(());
        }
    }
}

fn sync_when_noted(file: &File, received: &Receiver<()>, every: Duration, failure: &Mutex<Option<String>>) {
    let mut last: Option<Instant> = None;
    while received.recv().is_ok() {
        let mut open = true;
        loop {
            let wait = last.map_or(Duration::ZERO, |l| every.saturating_sub(l.elapsed()));
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
        *failure.lock().unwrap_or_else(PoisonError::into_inner) = outcome.err().map(|e| e.to_string());
        if !open {
            return;
        }
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.notes = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

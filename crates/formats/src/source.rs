//! Positioned reads of a file or of bytes in memory, with counters.

use crate::error::{Fault, OPENING};
use crate::names::on_disk;
use cytoscope_storage::read::{self, Refusal, SpecialFile};
use std::{
    borrow::Borrow,
    fmt,
    fs::File,
    io,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// Counters of the reads of an image, shared by all its files.
#[derive(Debug, Default)]
pub struct Counters {
    /// Number of bytes read from files; bytes read twice count twice.
    pub bytes_read: AtomicU64,
    /// Time spent decoding in nanoseconds, summed over threads.
    pub decode_nanos: AtomicU64,
    /// Number of bytes that decoders have written.
    pub decoded_bytes: AtomicU64,
}

/// Bytes inside another source, whose reads count there.
pub(crate) trait InnerBytes: fmt::Debug + Send + Sync {
    /// Fills a buffer with the bytes from `offset` on.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Fault>;
}

/// Bytes that several threads can read at any position at the same time.
#[derive(Debug)]
pub(crate) struct Source {
    store: Store,
    /// Offset of the first byte in the store.
    start: u64,
    len: u64,
    /// Bytes read from this source.
    bytes_read: AtomicU64,
    counters: Arc<Counters>,
}

/// Where the bytes are; parts of a source share it.
#[derive(Debug, Clone)]
enum Store {
    File(Arc<File>),
    Memory(Arc<Vec<u8>>),
    Inside(Arc<dyn InnerBytes>),
}

impl Source {
    /// Opens a file whose reads are added to `counters`.
    pub fn open(path: &Path, counters: Arc<Counters>) -> Result<Self, Fault> {
        Self::from_file(read::open_regular(path).map_err(open_fault)?, counters)
    }

    /// Opens a file by its path relative to a folder, as [`Source::open`]; `None` if there is no such file. Links out of
    /// the folder are refused.
    pub fn inside(folder: &Path, relative: &Path, counters: Arc<Counters>) -> Result<Option<Self>, Fault> {
        match read::open_inside(folder, relative) {
            Ok(file) => Self::from_file(file, counters).map(Some),
            Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
            Err(e) => Err(open_fault(e)),
        }
    }

    /// Opens a file that another file names, relative to their folder, as [`Source::inside`]; also if the disk has its name in
    /// another Unicode form.
    pub fn named(folder: &Path, name: &str, counters: Arc<Counters>) -> Result<Option<Self>, Fault> {
        Self::inside(folder, &on_disk(folder, Path::new(name)), counters)
    }

    fn from_file(file: File, counters: Arc<Counters>) -> Result<Self, Fault> {
        let len = file.metadata().map_err(|e| Fault::Io(OPENING, e))?.len();
        Ok(Self { store: Store::File(Arc::new(file)), start: 0, len, bytes_read: AtomicU64::new(0), counters })
    }

    /// Creates a source from bytes in memory.
    pub fn memory(bytes: Vec<u8>) -> Self {
        Self {
            len: bytes.len() as u64,
            start: 0,
            store: Store::Memory(Arc::new(bytes)),
            bytes_read: AtomicU64::new(0),
            counters: Arc::default(),
        }
    }

    /// Creates a source of `len` bytes inside another source; the decoding of its bytes is added to `counters`.
    pub fn within(bytes: Arc<dyn InnerBytes>, len: u64, counters: Arc<Counters>) -> Self {
        Self { store: Store::Inside(bytes), start: 0, len, bytes_read: AtomicU64::new(0), counters }
    }

    /// Returns a part of the source as a separate source with the same counters.
    pub fn part(&self, offset: u64, len: u64) -> Result<Self, Fault> {
        if !self.holds(offset, len) {
            return Err(Fault::malformed(format!(
                "{len} bytes at offset {offset} are past the end of the file ({} bytes)",
                self.len
            )));
        }
        let (store, start, counters) = (self.store.clone(), self.start + offset, Arc::clone(&self.counters));
        Ok(Self { store, start, len, bytes_read: AtomicU64::new(0), counters })
    }

    /// Returns the length of the file or memory in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Number of bytes read so far; bytes read twice count twice.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Whether `offset..offset + count` is inside the source.
    pub fn holds(&self, offset: u64, count: u64) -> bool {
        offset.checked_add(count).is_some_and(|end| end <= self.len)
    }

    /// Adds a decoded strip or tile to the counters.
    pub fn count_decoded(&self, took: Duration, bytes: usize) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.counters.decode_nanos.fetch_add(nanos, Ordering::Relaxed);
        self.counters.decoded_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Fills `into` with the bytes from `offset` on.
    pub fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Fault> {
        if !self.holds(offset, into.len() as u64) {
            return Err(Fault::malformed(format!(
                "{} bytes at offset {offset} are past the end of the file ({} bytes)",
                into.len(),
                self.len
            )));
        }
        self.bytes_read.fetch_add(into.len() as u64, Ordering::Relaxed);
        if !matches!(self.store, Store::Inside(_)) {
            self.counters.bytes_read.fetch_add(into.len() as u64, Ordering::Relaxed);
        }
        let at = self.start + offset;
        match &self.store {
            Store::Inside(bytes) => bytes.read_at(at, into),
            Store::File(file) => read_exact_at(file, at, into).map_err(|e| Fault::Io("reading", e)),
            Store::Memory(bytes) => {
                let start = usize::try_from(at).unwrap_or(usize::MAX);
                match bytes.get(start..).and_then(|b| b.get(..into.len())) {
                    Some(from) => into.copy_from_slice(from),
                    None => return Err(Fault::malformed("a read past the end of the bytes")),
                }
                Ok(())
            }
        }
    }

    /// Reads `count` bytes from `offset` on. The length is checked before memory is allocated.
    pub fn read_vec(&self, offset: u64, count: usize) -> Result<Vec<u8>, Fault> {
        if !self.holds(offset, count as u64) {
            return Err(Fault::malformed(format!(
                "{count} bytes at offset {offset} are past the end of the file ({} bytes)",
                self.len
            )));
        }
        let mut bytes = vec![0; count];
        self.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }
}

/// A position in a source, at which it is read: `S` is the source itself or a reference to it.
#[derive(Debug)]
pub(crate) struct SourceReader<S> {
    source: S,
    /// Offset of the next byte in the source, possibly past its end.
    at: u64,
}

impl Source {
    /// Returns a reader that begins at the first byte.
    pub fn reader(&self) -> SourceReader<&Source> {
        SourceReader { source: self, at: 0 }
    }

    /// Returns a reader that begins at the first byte and owns the source.
    pub fn into_reader(self) -> SourceReader<Source> {
        SourceReader { source: self, at: 0 }
    }
}

impl<S: Borrow<Source>> io::Read for SourceReader<S> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let source: &Source = self.source.borrow();
        let left = source.len.saturating_sub(self.at);
        let count = into.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let Some(into) = into.get_mut(..count).filter(|into| !into.is_empty()) else { return Ok(0) };
        match source.read_at(self.at, into) {
            Ok(()) => {}
            Err(Fault::Io(_, error)) => return Err(error),
            Err(_) => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        self.at += count as u64;
        Ok(count)
    }
}

impl<S: Borrow<Source>> io::Seek for SourceReader<S> {
    fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
        let source: &Source = self.source.borrow();
        let at = match to {
            io::SeekFrom::Start(at) => Some(at),
            io::SeekFrom::End(by) => source.len.checked_add_signed(by),
            io::SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

/// Converts an error of opening a file: it is not a regular file, or the system reported an error.
pub(crate) fn open_fault(error: io::Error) -> Fault {
    match read::refusal(&error) {
        Some(Refusal::NotRegular(kind @ SpecialFile::Folder)) => {
            Fault::unsupported(format!("this is {kind}"), "choose an image file inside it")
        }
        Some(Refusal::Outside(target)) => Fault::unsupported(
            format!("a link points out of the folder, to {target:?}"),
            "copy the file into the folder instead of linking to it",
        ),
        Some(refusal @ Refusal::NotRelative(_)) => {
            Fault::unsupported(refusal.to_string(), "export the folder again, with all its files in it")
        }
        Some(refusal) => Fault::unsupported(refusal.to_string(), "choose an image file"),
        None => Fault::Io(OPENING, error),
    }
}

#[cfg(unix)]
fn read_exact_at(file: &File, offset: u64, into: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, into, offset)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut offset: u64, mut into: &mut [u8]) -> io::Result<()> {
    while !into.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, into, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                into = into.get_mut(n..).unwrap_or_default();
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Seek, SeekFrom};

    #[test]
    fn a_reader_follows_its_position_in_the_source() {
        let mut reader = Source::memory((0..10).collect()).into_reader();
        let mut bytes = [0; 4];
        reader.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, [0, 1, 2, 3]);
        assert_eq!(reader.seek(SeekFrom::Current(-1)).unwrap(), 3);
        assert_eq!(reader.read(&mut bytes).unwrap(), 4);
        assert_eq!(bytes, [3, 4, 5, 6]);
        assert_eq!(reader.seek(SeekFrom::End(-2)).unwrap(), 8);
        assert_eq!(reader.read(&mut bytes).unwrap(), 2);
        assert_eq!(bytes, [8, 9, 5, 6]);
        assert_eq!(reader.read(&mut bytes).unwrap(), 0);
        // A position past the end is one at which nothing is read; one before the beginning is an error.
        assert_eq!(reader.seek(SeekFrom::Start(20)).unwrap(), 20);
        assert_eq!(reader.read(&mut bytes).unwrap(), 0);
        assert!(reader.seek(SeekFrom::End(-11)).is_err());
    }
}

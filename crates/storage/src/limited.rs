//! Readers with a limit on the bytes that are read. Opening an archive, such as a zip, reads its whole directory into memory, and
//! its size is whatever the file claims. A small limit, which is lifted once the archive is open, bounds that memory.

use std::io::{Error, Read, Result, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Message for a zip whose directory is larger than the limit.
pub const DIRECTORY_TOO_LARGE: &str = "the zip directory exceeds its size limit";

/// A reader from which a limited number of bytes can be read; bytes that are read again count again.
#[derive(Debug)]
pub struct LimitedReader<R> {
    inner: R,
    limit: ReadLimit,
    /// Message of the error of a read above the limit.
    problem: &'static str,
}

/// The limit of a [`LimitedReader`], which is usually owned by the archive that reads from it.
#[derive(Debug, Clone)]
pub struct ReadLimit {
    /// Bytes that may still be read.
    left: Arc<AtomicU64>,
}

impl<R> LimitedReader<R> {
    /// Limits a reader to `max_bytes` bytes; a read above the limit fails with the message `problem`. Returns the limit as
    /// well.
    pub fn new(inner: R, max_bytes: u64, problem: &'static str) -> (Self, ReadLimit) {
        let limit = ReadLimit { left: Arc::new(AtomicU64::new(max_bytes)) };
        (Self { inner, limit: limit.clone(), problem }, limit)
    }
}

impl ReadLimit {
    /// Whether no more bytes may be read.
    pub fn is_reached(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }

    /// Lifts the limit.
    pub fn lift(&self) {
        self.left.store(u64::MAX, Ordering::Relaxed);
    }
}

impl<R: Read> Read for LimitedReader<R> {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        let read = self.inner.read(into)?;
        let left = self.limit.left.load(Ordering::Relaxed).checked_sub(read as u64);
        self.limit.left.store(left.unwrap_or(0), Ordering::Relaxed);
        left.map(|_| read).ok_or_else(|| Error::other(self.problem))
    }
}

impl<R: Seek> Seek for LimitedReader<R> {
    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        self.inner.seek(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn reading_fails_beyond_the_limit_until_it_is_lifted() {
        let (mut reader, limit) = LimitedReader::new(Cursor::new([7u8; 10]), 6, "the directory is too large");
        let mut bytes = [0; 4];
        assert_eq!(reader.read(&mut bytes).unwrap(), 4);
        assert!(!limit.is_reached());
        // Bytes that are read again count again.
        reader.rewind().unwrap();
        assert_eq!(reader.read(&mut bytes).unwrap_err().to_string(), "the directory is too large");
        assert!(limit.is_reached());
        limit.lift();
        reader.rewind().unwrap();
        assert_eq!(reader.read_to_end(&mut Vec::new()).unwrap(), 10);
    }
}

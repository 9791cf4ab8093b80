//! Readers with a limit on the bytes that are read. Opening a zip reads its whole directory into memory, and its size is
//! whatever the file claims. A small limit, which is lifted once the zip is open, bounds that memory.

use std::io::{Error, Read, Result, Seek, SeekFrom};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A reader from which a limited number of bytes can be read; bytes that are read again count again.
#[derive(Debug)]
pub struct LimitedReader<R> {
    inner: R,
    limit: ReadLimit,
}

/// The limit of a [`LimitedReader`], which is usually owned by the archive that reads from it.
#[derive(Debug, Clone)]
pub struct ReadLimit {
    /// Bytes that may still be read.
    left: Arc<AtomicU64>,
}

impl<R> LimitedReader<R> {
    /// Limits a reader to `max_bytes` bytes. Returns the limit as well.
    pub fn new(inner: R, max_bytes: u64) -> (Self, ReadLimit) {
        let limit = ReadLimit { left: Arc::new(AtomicU64::new(max_bytes)) };
        (Self { inner, limit: limit.clone() }, limit)
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
        left.map(|_| read).ok_or_else(|| Error::other("the zip directory exceeds its size limit"))
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
        let (mut reader, limit) = LimitedReader::new(Cursor::new([7u8; 10]), 6);
        let mut bytes = [0; 4];
        assert_eq!(reader.read(&mut bytes).unwrap(), 4);
        assert!(!limit.is_reached());
        // Bytes that are read again count again.
        reader.rewind().unwrap();
        assert!(reader.read(&mut bytes).is_err());
        assert!(limit.is_reached());
        limit.lift();
        reader.rewind().unwrap();
        assert_eq!(reader.read_to_end(&mut Vec::new()).unwrap(), 10);
    }
}

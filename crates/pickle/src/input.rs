//! The bytes of a pickle, read forward in windows, so that arrays in a large file are skipped without being read.

use crate::{MAX_NAME_BYTES, MAX_TEXT_BYTES, PickleError};
use std::io;
use std::ops::Range;

/// Number of bytes that are read at once.
const WINDOW_BYTES: u64 = 1 << 16;

/// Bytes that can be read at any position: a file, or a slice in memory.
pub trait ByteSource {
    /// Returns the number of bytes.
    fn len_bytes(&self) -> u64;

    /// Fills `into` with the bytes from position `at` on. It is called only for ranges inside the source.
    ///
    /// # Errors
    /// The error of the operating system.
    fn read_exact_at(&self, at: u64, into: &mut [u8]) -> io::Result<()>;
}

impl ByteSource for &[u8] {
    fn len_bytes(&self) -> u64 {
        self.len() as u64
    }

    fn read_exact_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(at).map_err(io::Error::other)?;
        let from = self.get(start..).and_then(|rest| rest.get(..into.len()));
        into.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// A position in a source that moves forward.
pub(crate) struct Input<'a> {
    source: &'a dyn ByteSource,
    at: u64,
    window: Vec<u8>,
    /// Position of the window in the source.
    window_at: u64,
}

impl<'a> Input<'a> {
    pub(crate) fn new(source: &'a dyn ByteSource, at: u64) -> Self {
        Self { source, at, window: Vec::new(), window_at: 0 }
    }

    /// Returns the position of the next byte.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    /// Returns an error at the current position.
    pub(crate) fn malformed(&self, what: &'static str) -> PickleError {
        PickleError::Malformed { at: self.at, what }
    }

    pub(crate) fn byte(&mut self) -> Result<u8, PickleError> {
        if self.in_window().is_none() {
            let count = self.source.len_bytes().saturating_sub(self.at).min(WINDOW_BYTES);
            if count == 0 {
                return Err(self.malformed("it ends too early"));
            }
            self.window.resize(count as usize, 0);
            self.window_at = self.at;
            self.source.read_exact_at(self.at, &mut self.window)?;
        }
        let byte = self.in_window().ok_or_else(|| self.malformed("it ends too early"))?;
        self.at += 1;
        Ok(byte)
    }

    fn in_window(&self) -> Option<u8> {
        let index = usize::try_from(self.at.checked_sub(self.window_at)?).ok()?;
        self.window.get(index).copied()
    }

    /// Reads a little-endian unsigned integer of `width` bytes, at most 8.
    pub(crate) fn unsigned(&mut self, width: u32) -> Result<u64, PickleError> {
        let mut number = 0;
        for i in 0..width.min(8) {
            number |= u64::from(self.byte()?) << (8 * i);
        }
        Ok(number)
    }

    /// Skips `count` bytes and returns their range in the source.
    pub(crate) fn skip(&mut self, count: u64) -> Result<Range<u64>, PickleError> {
        let end = self.at.checked_add(count).filter(|end| *end <= self.source.len_bytes());
        let end = end.ok_or_else(|| self.malformed("it ends too early"))?;
        let range = self.at..end;
        self.at = end;
        Ok(range)
    }

    /// Reads the length of a byte string, which has `width` bytes, and skips the byte string.
    pub(crate) fn sized(&mut self, width: u32) -> Result<Range<u64>, PickleError> {
        let count = self.unsigned(width)?;
        self.skip(count)
    }

    /// Returns the text at a range of the source; `None` if it is longer than [`MAX_TEXT_BYTES`] or not UTF-8.
    pub(crate) fn text(&self, range: &Range<u64>) -> Result<Option<String>, PickleError> {
        let count = range.end.saturating_sub(range.start);
        if count > MAX_TEXT_BYTES {
            return Ok(None);
        }
        let mut bytes = vec![0; count as usize];
        self.source.read_exact_at(range.start, &mut bytes)?;
        // Text that is not UTF-8 is not an error: Python 2 wrote byte strings as text.
        Ok(String::from_utf8(bytes).ok())
    }

    /// Reads a name that ends with a line feed.
    pub(crate) fn name(&mut self) -> Result<String, PickleError> {
        let mut name = Vec::new();
        loop {
            match self.byte()? {
                b'\n' => break,
                _ if name.len() >= MAX_NAME_BYTES => {
                    return Err(PickleError::OverLimit { what: "bytes in a name", limit: MAX_NAME_BYTES as u64 });
                }
                byte => name.push(byte),
            }
        }
        String::from_utf8(name).map_err(|_| self.malformed("a name is not UTF-8"))
    }
}

//! Reading a journal: the header, then the records up to the end or the first invalid one.

use super::record::{Header, Record};
use super::{MAGIC, VERSION, check_sum};
use crate::chunks::ChunkGrid;
use crate::limits::{MAX_HEADER_BYTES, MAX_RECORD_BYTES};
use std::io::{self, Read};

/// Largest end of a journal that is searched for whole records, in bytes.
const MAX_SEARCHED_BYTES: u64 = 16 << 20;
/// Maximum number of bytes whose checksum is computed in that search.
const MAX_SUMMED_BYTES: usize = 256 << 20;

/// Why no further record can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tail {
    /// The file ends after its last record.
    Clean,
    /// A write was interrupted: the file ends inside a record, or with zeros.
    Torn,
    /// A complete record is invalid, for this reason.
    Damaged(&'static str),
}

/// Why the header of a journal cannot be read.
#[derive(Debug)]
pub(crate) enum HeaderError {
    Io(io::Error),
    NotAJournal(String),
}

impl From<io::Error> for HeaderError {
    fn from(e: io::Error) -> Self {
        HeaderError::Io(e)
    }
}

/// A reader of the header and records of a journal.
pub(crate) struct JournalReader<R> {
    from: R,
    len: u64,
    /// Position of the next record in bytes; everything before it is valid.
    pub at: u64,
    /// Number of valid records read so far.
    pub position: u64,
    /// The labels that the journal belongs to.
    pub header: Header,
    /// Chunks of the shape that the header states, which records are checked against.
    pub grid: ChunkGrid,
    body: Vec<u8>,
}

impl<R: Read> JournalReader<R> {
    /// Reads the header of a journal of `len` bytes.
    pub fn begin(mut from: R, len: u64) -> Result<Self, HeaderError> {
        let no = |problem: &str| HeaderError::NotAJournal(problem.to_owned());
        let mut fixed = [0u8; 20];
        if len < fixed.len() as u64 {
            return Err(no("it is not a journal of corrections: it is too short"));
        }
        from.read_exact(&mut fixed)?;
        let number = |at: usize| fixed.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
        if !fixed.starts_with(MAGIC) {
            return Err(no("it is not a journal of corrections"));
        }
        let version = number(8);
        if version > VERSION {
            let problem = format!(
                "only a later version of Cytoscope can continue it: its format is {version}, but this version reads {VERSION}"
            );
            return Err(HeaderError::NotAJournal(problem));
        }
        if version != VERSION {
            let problem = format!("its format is {version}, but this version reads {VERSION}");
            return Err(HeaderError::NotAJournal(problem));
        }
        let count = u64::from(number(12));
        if count > MAX_HEADER_BYTES || count > len - fixed.len() as u64 {
            return Err(no("the header of the journal is damaged: its length is wrong"));
        }
        let mut text = vec![0; count as usize];
        from.read_exact(&mut text)?;
        if crc32fast::hash(&text) != number(16) {
            return Err(no("the header of the journal is damaged: its checksum is wrong"));
        }
        let header: Header = serde_json::from_slice(&text)
            .map_err(|e| HeaderError::NotAJournal(format!("the header of the journal cannot be read: {e}")))?;
        let grid = ChunkGrid::new(header.shape_zyx).map_err(|e| HeaderError::NotAJournal(e.to_string()))?;
        Ok(Self { from, len, at: fixed.len() as u64 + count, position: 0, header, grid, body: Vec::new() })
    }

    /// Reads the next record; the inner error says why there is none.
    pub fn next(&mut self) -> io::Result<Result<Record, Tail>> {
        let left = self.len - self.at;
        if left == 0 {
            return Ok(Err(Tail::Clean));
        }
        let mut head = [0u8; 8];
        if left < head.len() as u64 {
            return Ok(Err(Tail::Torn));
        }
        self.from.read_exact(&mut head)?;
        let [a, b, c, d, e, f, g, h] = head;
        let (count, sum) = (u64::from(u32::from_le_bytes([a, b, c, d])), u32::from_le_bytes([e, f, g, h]));
        let after = left - head.len() as u64;
        // No write has a larger length: it is damaged, and whole records may follow.
        if count > after && count <= MAX_RECORD_BYTES {
            // A smaller one may be damaged, too.
            let is_damaged = self.has_later_record(after)?;
            return Ok(Err(if is_damaged { Tail::Damaged("its length is wrong") } else { Tail::Torn }));
        }
        if count == 0 || count > MAX_RECORD_BYTES {
            return Ok(Err(if count == 0 && self.only_zeros()? {
                Tail::Torn
            } else {
                Tail::Damaged("its length is wrong")
            }));
        }
        self.body.resize(count as usize, 0);
        self.from.read_exact(&mut self.body)?;
        let last = count + head.len() as u64 == left;
        if check_sum(self.position, &self.body) != sum {
            // After a power failure a file can be longer than what was written, with zeros at its end.
            let torn = last && self.body.last() == Some(&0);
            return Ok(Err(if torn { Tail::Torn } else { Tail::Damaged("its checksum is wrong") }));
        }
        let record = match Record::parse(&self.body, &self.grid) {
            Ok(record) => record,
            Err(why) => return Ok(Err(Tail::Damaged(why))),
        };
        self.at += head.len() as u64 + count;
        self.position += 1;
        Ok(Ok(record))
    }

    /// Returns whether the record after the next one is among the last `count` bytes of the file, so that they are more than
    /// what is left of a single write. Also true if there are too many bytes to search.
    fn has_later_record(&mut self, count: u64) -> io::Result<bool> {
        if count > MAX_SEARCHED_BYTES {
            return Ok(true);
        }
        let mut bytes = Vec::new();
        self.from.by_ref().take(count).read_to_end(&mut bytes)?;
        let mut summed_bytes = 0;
        for start in 0..bytes.len() {
            let Some((head, after)) = bytes.get(start..).and_then(|part| part.split_first_chunk::<8>()) else {
                break;
            };
            let [a, b, c, d, e, f, g, h] = *head;
            let length = u32::from_le_bytes([a, b, c, d]) as usize;
            let Some(body) = after.get(..length).filter(|body| !body.is_empty()) else { continue };
            summed_bytes += length;
            if summed_bytes > MAX_SUMMED_BYTES || check_sum(self.position + 1, body) == u32::from_le_bytes([e, f, g, h])
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn only_zeros(&mut self) -> io::Result<bool> {
        let mut part = [0u8; 4096];
        loop {
            match self.from.read(&mut part)? {
                0 => return Ok(true),
                n if part.iter().take(n).any(|b| *b != 0) => return Ok(false),
                _ => {}
            }
        }
    }
}

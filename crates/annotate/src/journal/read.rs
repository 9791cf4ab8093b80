//! Reading a journal: the header, then record after record until the end or the first that is not sound.

use super::record::{Header, Record};
use super::{MAGIC, VERSION, check_sum};
use crate::chunks::Grid;
use crate::limits::{MAX_HEADER_BYTES, MAX_RECORD_BYTES};
use std::io::{self, Read};

/// Why reading ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Tail {
    /// The file ends after its last record.
    Clean,
    /// A write was cut short: the file ends inside a record, or in zeros.
    Torn,
    /// A whole record that is not sound, and what follows it.
    Damaged(&'static str),
}

/// Why a journal cannot be begun.
#[derive(Debug)]
pub(crate) enum BadStart {
    Io(io::Error),
    NoJournal(String),
}

impl From<io::Error> for BadStart {
    fn from(e: io::Error) -> Self {
        BadStart::Io(e)
    }
}

/// A journal as it is read.
pub(crate) struct Reader<R> {
    from: R,
    len: u64,
    /// Where the next record begins: all before is sound.
    pub at: u64,
    /// Records read.
    pub position: u64,
    pub header: Header,
    pub grid: Grid,
    body: Vec<u8>,
}

impl<R: Read> Reader<R> {
    /// Reads the header of a journal of `len` bytes.
    pub fn begin(mut from: R, len: u64) -> Result<Self, BadStart> {
        let no = |met: &str| BadStart::NoJournal(met.to_owned());
        let mut fixed = [0u8; 20];
        if len < fixed.len() as u64 {
            return Err(no("it is no journal of annotations: it is too short"));
        }
        from.read_exact(&mut fixed)?;
        let number = |at: usize| fixed.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes);
        if !fixed.starts_with(MAGIC) {
            return Err(no("it is no journal of annotations"));
        }
        if number(8) != VERSION {
            let met = format!("it is a journal of version {}, and version {VERSION} is read here", number(8));
            return Err(BadStart::NoJournal(met));
        }
        let count = u64::from(number(12));
        if count > MAX_HEADER_BYTES || count > len - fixed.len() as u64 {
            return Err(no("the header of the journal is damaged: its length is wrong"));
        }
        let mut text = vec![0; count as usize];
        from.read_exact(&mut text)?;
        if crc32fast::hash(&text) != number(16) {
            return Err(no("the header of the journal is damaged: its check sum is wrong"));
        }
        let header: Header = serde_json::from_slice(&text)
            .map_err(|e| BadStart::NoJournal(format!("the header of the journal cannot be read: {e}")))?;
        let grid = Grid::new(header.shape_zyx).map_err(|e| BadStart::NoJournal(e.to_string()))?;
        Ok(Self { from, len, at: fixed.len() as u64 + count, position: 0, header, grid, body: Vec::new() })
    }

    /// The next record, or why there is none.
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
        if count > left - head.len() as u64 {
            return Ok(Err(Tail::Torn));
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
            // A file can be longer than what of it was written before the power went: zeros at its end.
            let torn = last && self.body.last() == Some(&0);
            return Ok(Err(if torn { Tail::Torn } else { Tail::Damaged("its check sum is wrong") }));
        }
        let record = match Record::parse(&self.body, &self.grid) {
            Ok(record) => record,
            Err(why) => return Ok(Err(Tail::Damaged(why))),
        };
        self.at += head.len() as u64 + count;
        self.position += 1;
        Ok(Ok(record))
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

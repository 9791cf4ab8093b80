//! LiteVariant: the binary tree of named values that holds the metadata.
//!
//! An entry is its type (one byte), the number of UTF-16 units of its name with the final zero (one byte), the name, and the
//! value. A level is the number of its entries (`u32`), its length from its own first byte on (`u64`), the entries, and one
//! `u64` for each of them. Entries of lists have no name.

use crate::{error::Fault, fields::Fields};

/// Deepest nesting of levels.
const MAX_DEPTH: usize = 64;
/// Largest number of entries of one tree, which bounds the memory for it.
const MAX_ENTRIES: usize = 1 << 21;

const BOOL: u8 = 1;
const INT32: u8 = 2;
const UINT32: u8 = 3;
const INT64: u8 = 4;
const UINT64: u8 = 5;
const DOUBLE: u8 = 6;
const POINTER: u8 = 7;
const STRING: u8 = 8;
const BYTES: u8 = 9;
const LEVEL: u8 = 11;

/// A value of an entry.
#[derive(Debug)]
enum Value<'a> {
    Number(f64),
    Text(String),
    Bytes(&'a [u8]),
    Level(Level<'a>),
}

/// Named entries in the order of the file.
#[derive(Debug, Default)]
pub(super) struct Level<'a> {
    entries: Vec<(String, Value<'a>)>,
}

impl<'a> Level<'a> {
    /// Parses the tree of a chunk, which is one entry, and returns the level of this entry.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Fault> {
        let mut parser = Parser { fields: Fields::little(bytes), at: 0, left: MAX_ENTRIES };
        let root = parser.level(1, bytes.len(), 0)?;
        match root.entries.into_iter().next() {
            Some((_, Value::Level(level))) => Ok(level),
            _ => Err(Fault::malformed("a metadata chunk of the ND2 file holds no entries")),
        }
    }

    fn get(&self, name: &str) -> Option<&Value<'a>> {
        self.entries.iter().find(|(n, _)| n == name).map(|(_, value)| value)
    }

    /// The number of this name.
    pub fn number(&self, name: &str) -> Option<f64> {
        match self.get(name) {
            Some(Value::Number(value)) => Some(*value),
            _ => None,
        }
    }

    /// The number of this name, if it is an integer from 0 to the largest that a float represents exactly.
    pub fn count(&self, name: &str) -> Option<usize> {
        const MAX_EXACT: f64 = 9_007_199_254_740_992.0;
        let value = self.number(name)?;
        ((0.0..=MAX_EXACT).contains(&value) && value.fract() == 0.0).then_some(value as usize)
    }

    /// The text of this name.
    pub fn text(&self, name: &str) -> Option<&str> {
        match self.get(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    /// The level of this name.
    pub fn level(&self, name: &str) -> Option<&Level<'a>> {
        match self.get(name) {
            Some(Value::Level(level)) => Some(level),
            _ => None,
        }
    }

    /// All levels among the entries, such as the members of a list.
    pub fn levels(&self) -> impl Iterator<Item = &Level<'a>> {
        self.entries.iter().filter_map(|(_, value)| match value {
            Value::Level(level) => Some(level),
            _ => None,
        })
    }

    /// The flags of this name, stored as bytes or as a list of numbers; empty if there are none.
    pub fn flags(&self, name: &str) -> Vec<bool> {
        match self.get(name) {
            Some(Value::Bytes(bytes)) => bytes.iter().map(|b| *b != 0).collect(),
            Some(Value::Level(list)) => {
                list.entries.iter().map(|(_, value)| matches!(value, Value::Number(n) if *n != 0.0)).collect()
            }
            _ => Vec::new(),
        }
    }
}

struct Parser<'a> {
    fields: Fields<'a>,
    at: usize,
    /// Entries that may still follow.
    left: usize,
}

impl<'a> Parser<'a> {
    /// Parses up to `count` entries that end before `end`.
    fn level(&mut self, count: u32, end: usize, depth: usize) -> Result<Level<'a>, Fault> {
        if depth > MAX_DEPTH {
            return Err(Fault::malformed("the metadata of the ND2 file are nested too deeply"));
        }
        let mut entries = Vec::new();
        for _ in 0..count {
            if self.at >= end {
                break;
            }
            let Some(left) = self.left.checked_sub(1) else {
                return Err(Fault::unsupported(
                    format!("the metadata of the ND2 file have more than {MAX_ENTRIES} entries"),
                    "export it as OME-TIFF, with NIS-Elements or Fiji",
                ));
            };
            self.left = left;
            let start = self.at;
            let (kind, units) = (self.fields.u8(start)?, usize::from(self.fields.u8(start + 1)?));
            let (name, _) = text(self.fields.slice(start + 2, units * 2)?);
            self.at = start + 2 + units * 2;
            let value = self.value(kind, start, end, depth)?;
            entries.push((name, value));
        }
        Ok(Level { entries })
    }

    /// Parses the value of the entry that begins at `start`, inside a level that ends at `end`.
    fn value(&mut self, kind: u8, start: usize, end: usize, depth: usize) -> Result<Value<'a>, Fault> {
        let (f, at) = (self.fields, self.at);
        let (value, next) = match kind {
            BOOL => (Value::Number(f64::from(f.u8(at)?)), at + 1),
            INT32 => (Value::Number(f64::from(f.i32(at)?)), at + 4),
            UINT32 => (Value::Number(f64::from(f.u32(at)?)), at + 4),
            INT64 => (Value::Number(f.i64(at)? as f64), at + 8),
            UINT64 | POINTER => (Value::Number(f.u64(at)? as f64), at + 8),
            DOUBLE => (Value::Number(f.f64(at)?), at + 8),
            STRING => {
                let (text, units) = text(f.bytes.get(at..end).unwrap_or_default());
                (Value::Text(text), at + (units + 1) * 2)
            }
            BYTES => {
                let count = usize::try_from(f.u64(at)?).unwrap_or(usize::MAX);
                let bytes = f.slice(at + 8, count)?;
                (Value::Bytes(bytes), at + 8 + bytes.len())
            }
            LEVEL => {
                let (count, length) = (f.u32(at)?, usize::try_from(f.u64(at + 4)?).unwrap_or(usize::MAX));
                let inner_end = start.checked_add(length).filter(|e| *e <= end && *e >= at + 12);
                let inner_end = inner_end
                    .ok_or_else(|| Fault::malformed("a level of the ND2 metadata is longer than the one around it"))?;
                self.at = at + 12;
                let level = self.level(count, inner_end, depth + 1)?;
                (Value::Level(level), inner_end.saturating_add((count as usize).saturating_mul(8)))
            }
            other => {
                return Err(Fault::malformed(format!(
                    "the metadata of the ND2 file have an entry of unknown type {other}"
                )));
            }
        };
        self.at = next;
        Ok(value)
    }
}

/// UTF-16 text up to the first zero or the end, and its number of units.
fn text(bytes: &[u8]) -> (String, usize) {
    let units = bytes.chunks_exact(2).filter_map(|pair| pair.first_chunk::<2>().map(|b| u16::from_le_bytes(*b)));
    let units: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
    (String::from_utf16_lossy(&units), units.len())
}

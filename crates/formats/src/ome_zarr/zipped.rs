//! OME-Zarr in one zip file (`.zarr.zip`, `.ozx`). The directory at the end of the file is read once; each file inside is
//! then read in place, or expanded alone if it is compressed.

use super::METADATA_NAMES;
use super::read::max_shared_bytes;
use crate::{
    error::{Fault, Remedy},
    limits::Limits,
    source::Source,
};
use libdeflater::Decompressor;
use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

/// Signatures of the records of a zip file.
const LOCAL: u64 = 0x0403_4b50;
const ENTRY: u64 = 0x0201_4b50;
const END: u64 = 0x0605_4b50;
const END_64: u64 = 0x0606_4b50;
const LOCATOR_64: u64 = 0x0706_4b50;
/// Fixed sizes of these records in bytes.
const LOCAL_BYTES: usize = 30;
const ENTRY_BYTES: usize = 46;
const END_BYTES: usize = 22;
const END_64_BYTES: usize = 56;
const LOCATOR_64_BYTES: u64 = 20;
/// Longest comment after the last record in bytes.
const MAX_COMMENT_BYTES: usize = 0xFFFF;
/// Values that stand for a number in the records of zip64.
const IN_ZIP64: [u64; 2] = [0xFFFF, 0xFFFF_FFFF];
/// Methods of compression: none, and Deflate.
const STORED: u64 = 0;
const DEFLATED: u64 = 8;
/// Largest number of bytes that one byte of Deflate can expand to, and bytes that are added to the limit, so that tiny files
/// are not refused.
const MAX_RATIO: (u64, u64) = (1032, 1 << 16);

/// The files of a zip file that holds a Zarr.
#[derive(Debug)]
pub(crate) struct ZipFolder {
    source: Source,
    entries: HashMap<String, Entry>,
    /// Path of the Zarr inside the zip, empty or with a slash at its end.
    prefix: String,
    /// Largest size of a compressed file when expanded, in bytes.
    max_expanded_bytes: u64,
    /// Expanded size of the largest compressed file except `zarr.json`, at most the limit, in bytes; 0 without such files.
    largest_expanded_bytes: u64,
    /// The compressed shard that was expanded last, with the offset of its local record.
    shard: Mutex<Option<(u64, Source)>>,
}

/// A file in the zip.
#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Offset of its local record.
    at: u64,
    stored_bytes: u64,
    expanded_bytes: u64,
    method: u64,
    is_encrypted: bool,
}

/// A little-endian number of `size` bytes; `None` past the end.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let part = bytes.get(at..at.checked_add(size)?)?;
    Some(part.iter().rev().fold(0, |value, byte| (value << 8) | u64::from(*byte)))
}

fn damaged(what: &str) -> Fault {
    Fault::malformed(format!("the zip file is damaged: {what}"))
}

impl ZipFolder {
    /// Reads the directory of a zip file; `None` if the zip holds no Zarr, neither at its top nor in its only folder.
    ///
    /// # Errors
    /// [`Fault::Malformed`] for a damaged directory, [`Fault::OverLimit`] for one that is too large.
    pub fn open(source: Source, limits: &Limits) -> Result<Option<Self>, Fault> {
        let (count, directory) = read_directory(&source, limits)?;
        let mut entries = HashMap::new();
        let (mut at, mut stored_bytes) = (0, 0u64);
        for _ in 0..count {
            let Some((name, entry, next)) = parse_entry(&directory, at) else {
                return Err(damaged("its directory has fewer entries than it states"));
            };
            stored_bytes = stored_bytes.saturating_add(entry.stored_bytes);
            if stored_bytes > max_shared_bytes(source.len()) {
                return Err(damaged("its files overlap"));
            }
            // If several files have one name, the last one counts, as in other programs.
            entries.insert(name, entry);
            at = next;
        }
        let Some(prefix) = zarr_prefix(&entries) else { return Ok(None) };
        let max_expanded_bytes = limits.max_chunk_bytes;
        let expanded = entries.iter().filter(|(name, entry)| entry.method == DEFLATED && !name.ends_with("zarr.json"));
        let largest_expanded_bytes =
            expanded.map(|(_, entry)| entry.expanded_bytes.min(max_expanded_bytes)).max().unwrap_or(0);
        let shard = Mutex::new(None);
        Ok(Some(Self { source, entries, prefix, max_expanded_bytes, largest_expanded_bytes, shard }))
    }

    /// Whether a file exists, by its path inside the Zarr.
    pub fn holds(&self, key: &str) -> bool {
        self.entries.contains_key(&format!("{}{key}", self.prefix))
    }

    /// Opens a file by its path inside the Zarr; `None` if it does not exist.
    pub fn file(&self, key: &str) -> Result<Option<Source>, Fault> {
        let Some(entry) = self.entries.get(&format!("{}{key}", self.prefix)) else { return Ok(None) };
        if entry.is_encrypted {
            return Err(Fault::unsupported("the zip file is encrypted", "save it without a password"));
        }
        let local = self.source.read_vec(entry.at, LOCAL_BYTES)?;
        let lengths = number(&local, 26, 2).zip(number(&local, 28, 2));
        let Some((name, extra)) = lengths.filter(|_| number(&local, 0, 4) == Some(LOCAL)) else {
            return Err(damaged("its directory points to no file"));
        };
        let start = entry.at.saturating_add(LOCAL_BYTES as u64 + name + extra);
        match entry.method {
            STORED if entry.stored_bytes == entry.expanded_bytes => {
                self.source.part(start, entry.stored_bytes).map(Some)
            }
            STORED => Err(damaged("a file has two sizes")),
            DEFLATED => self.expanded(entry, start).map(Some),
            other => Err(Fault::unsupported(
                format!("its files are compressed with method {other} of zip"),
                "make the zip again without compression: the chunks are compressed already",
            )),
        }
    }

    /// Opens a shard as [`Self::file`]. A compressed one is kept expanded until another one is opened.
    pub fn shard(&self, key: &str) -> Result<Option<Source>, Fault> {
        let Some(entry) = self.entries.get(&format!("{}{key}", self.prefix)) else { return Ok(None) };
        if entry.method != DEFLATED {
            return self.file(key);
        }
        let mut kept = self.shard.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.as_ref().is_none_or(|(at, _)| *at != entry.at) {
            // The other one is released before this one is expanded.
            *kept = None;
            *kept = self.file(key)?.map(|shard| (entry.at, shard));
        }
        kept.as_ref().map(|(_, shard)| shard.part(0, shard.len())).transpose()
    }

    /// Expanded size of the largest file, except `zarr.json`, that is compressed in the zip; 0 without such files.
    pub fn largest_expanded_bytes(&self) -> u64 {
        self.largest_expanded_bytes
    }

    /// Expands a file that is compressed with Deflate.
    fn expanded(&self, entry: &Entry, start: u64) -> Result<Source, Fault> {
        let limit = self.max_expanded_bytes;
        if entry.expanded_bytes > limit {
            let what = "the size of a compressed file in the zip in bytes";
            return Err(Fault::over(what, entry.expanded_bytes, "max_chunk_bytes", limit, Remedy::Unzip));
        }
        let most = entry.stored_bytes.saturating_mul(MAX_RATIO.0).saturating_add(MAX_RATIO.1);
        let sizes = usize::try_from(entry.stored_bytes).ok().zip(usize::try_from(entry.expanded_bytes).ok());
        let Some((stored, expanded)) = sizes.filter(|_| entry.expanded_bytes <= most) else {
            return Err(damaged("a file states a size that it cannot have"));
        };
        let bytes = self.source.read_vec(start, stored)?;
        let mut out = vec![0; expanded];
        match Decompressor::new().deflate_decompress(&bytes, &mut out) {
            Ok(len) if len == expanded => Ok(Source::memory(out)),
            Ok(_) => Err(damaged("a file is shorter than it states")),
            Err(error) => Err(damaged(&format!("a file cannot be expanded ({error})"))),
        }
    }
}

/// Returns the number of entries of the directory, and its bytes.
fn read_directory(source: &Source, limits: &Limits) -> Result<(u64, Vec<u8>), Fault> {
    let tail_bytes = source.len().min((END_BYTES + MAX_COMMENT_BYTES) as u64);
    let tail_at = source.len() - tail_bytes;
    let tail = source.read_vec(tail_at, tail_bytes as usize)?;
    let is_end = |at: &usize| {
        let comment_bytes = tail.len().saturating_sub(at + END_BYTES) as u64;
        number(&tail, *at, 4) == Some(END) && number(&tail, at + 20, 2) == Some(comment_bytes)
    };
    let Some(end) = (0..(tail.len() + 1).saturating_sub(END_BYTES)).rev().find(is_end) else {
        return Err(damaged("its directory is missing"));
    };
    let field = |at: usize, size: usize| number(&tail, end + at, size).unwrap_or(0);
    let (mut count, mut bytes, mut start) = (field(10, 2), field(12, 4), field(16, 4));
    if (count == IN_ZIP64[0] || bytes == IN_ZIP64[1] || start == IN_ZIP64[1])
        && let Some(wide) = read_zip64(source, tail_at + end as u64)?
    {
        (count, bytes, start) = wide;
    }
    if bytes > limits.max_metadata_bytes {
        let what = "the size of the directory of the zip file in bytes";
        return Err(Fault::over(what, bytes, "max_metadata_bytes", limits.max_metadata_bytes, Remedy::Unzip));
    }
    if count > limits.max_pages {
        return Err(Fault::over("the number of files in the zip", count, "max_pages", limits.max_pages, Remedy::Unzip));
    }
    Ok((count, source.read_vec(start, bytes as usize)?))
}

/// Number of entries, size and offset of the directory according to the records of zip64 before the end record; `None` if
/// there are none.
fn read_zip64(source: &Source, end: u64) -> Result<Option<(u64, u64, u64)>, Fault> {
    let Some(at) = end.checked_sub(LOCATOR_64_BYTES) else { return Ok(None) };
    let locator = source.read_vec(at, LOCATOR_64_BYTES as usize)?;
    let Some(at) = number(&locator, 8, 8).filter(|_| number(&locator, 0, 4) == Some(LOCATOR_64)) else {
        return Ok(None);
    };
    let record = source.read_vec(at, END_64_BYTES)?;
    let fields = (number(&record, 32, 8), number(&record, 40, 8), number(&record, 48, 8));
    match fields {
        (Some(count), Some(bytes), Some(start)) if number(&record, 0, 4) == Some(END_64) => {
            Ok(Some((count, bytes, start)))
        }
        _ => Err(damaged("its zip64 record is missing")),
    }
}

/// Returns the name of the entry at an offset of the directory, the entry, and the offset of the next one.
fn parse_entry(directory: &[u8], at: usize) -> Option<(String, Entry, usize)> {
    let field = |offset: usize, size: usize| number(directory, at.checked_add(offset)?, size);
    if field(0, 4)? != ENTRY {
        return None;
    }
    let length = |offset: usize| field(offset, 2).and_then(|n| usize::try_from(n).ok());
    let name_at = at + ENTRY_BYTES;
    let extra_at = name_at + length(28)?;
    let comment_at = extra_at + length(30)?;
    let next = comment_at + length(32)?;
    let name = String::from_utf8_lossy(directory.get(name_at..extra_at)?).into_owned();
    let extra = directory.get(extra_at..comment_at)?;
    let mut wide = zip64_numbers(extra);
    let mut number_of = |value: u64| if value == IN_ZIP64[1] { wide.next() } else { Some(value) };
    // In this order in the record of zip64.
    let expanded_bytes = number_of(field(24, 4)?)?;
    let stored_bytes = number_of(field(20, 4)?)?;
    let local_at = number_of(field(42, 4)?)?;
    let is_encrypted = field(8, 2)? & 1 == 1;
    let entry = Entry { at: local_at, stored_bytes, expanded_bytes, method: field(10, 2)?, is_encrypted };
    Some((name, entry, next))
}

/// The numbers of 8 bytes in the extra field of zip64.
fn zip64_numbers(extra: &[u8]) -> impl Iterator<Item = u64> {
    let mut rest = extra;
    let mut found: &[u8] = &[];
    while let (Some(id), Some(size)) = (number(rest, 0, 2), number(rest, 2, 2)) {
        let end = 4 + size as usize;
        let Some(body) = rest.get(4..end) else { break };
        if id == 1 {
            found = body;
            break;
        }
        rest = rest.get(end..).unwrap_or_default();
    }
    found.chunks_exact(8).filter_map(|bytes| number(bytes, 0, 8))
}

/// Returns the path of the Zarr in the zip: its top, or its only folder with metadata.
fn zarr_prefix(entries: &HashMap<String, Entry>) -> Option<String> {
    if METADATA_NAMES.iter().any(|name| entries.contains_key(*name)) {
        return Some(String::new());
    }
    let top = |name: &String| {
        let (folder, file) = name.split_once('/')?;
        METADATA_NAMES.contains(&file).then(|| format!("{folder}/"))
    };
    let folders: BTreeSet<String> = entries.keys().filter_map(top).collect();
    if folders.len() == 1 { folders.into_iter().next() } else { None }
}

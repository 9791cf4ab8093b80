//! The journal: a file next to the user's data that records every edit, undo and redo as it happens.
//!
//! The file consists of a header and records. Header: 8 bytes of magic, then, as little-endian `u32`, the format
//! version, the length and the CRC-32 of a JSON text ([`Header`]). Record: the length and the CRC-32 of its body as
//! `u32`, then the body, which is one byte for the kind and the content of [`Record`]. The CRC-32 also covers the index
//! of the record, so that remains of an older record are never mistaken for a new one.
//!
//! Nothing in the file is trusted: lengths are checked against the file and named limits before memory is allocated.
//! Bytes after the last valid record are ignored; the reader reports their length and whether they look like an
//! interrupted write.

mod file;
mod read;
mod record;

#[cfg(test)]
pub(crate) use file::encode_record;
pub(crate) use file::{JournalFile, ResumeState, without_repeated_bases};
pub(crate) use read::{HeaderError, JournalReader, Tail};
pub(crate) use record::{Header, Record, SnapshotPart, put_edit, snapshot_parts};

/// First bytes of a journal.
const MAGIC: &[u8; 8] = b"CYTOJRNL";
/// Version of the format.
const VERSION: u32 = 1;

/// The checksum of a record with index `position`.
fn check_sum(position: u64, body: &[u8]) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    hash.update(&position.to_le_bytes());
    hash.update(body);
    hash.finalize()
}

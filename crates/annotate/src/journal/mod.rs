//! The journal: every edit, undo and redo in a file beside the user's data, as it happens.
//!
//! The file is a header and records. The header: 8 bytes of magic, then, as little-endian `u32`, the format version, the length
//! and the CRC-32 of a JSON text ([`Header`]). A record: the length and the CRC-32 of its body as `u32`, then the body: one byte
//! of kind and what [`Record`] says. The CRC-32 covers the record's position in the file's order too, so that remains of an
//! older record are never taken for a new one.
//!
//! Nothing in the file is trusted: lengths are checked against the file and named limits before memory is taken. What follows
//! the last sound record is dropped; the reader says how much that was and whether it looks like a write cut short.

mod file;
mod read;
mod record;

#[cfg(test)]
pub(crate) use file::framed;
pub(crate) use file::{JournalFile, Resume};
pub(crate) use read::{BadStart, Reader, Tail};
pub(crate) use record::{Header, Record, put_edit, snapshot_parts};

/// First bytes of a journal.
const MAGIC: &[u8; 8] = b"CYTOJRNL";
/// Version of the format.
const VERSION: u32 = 1;

/// The check sum of a record's body at a position.
fn check_sum(position: u64, body: &[u8]) -> u32 {
    let mut hash = crc32fast::Hasher::new();
    hash.update(&position.to_le_bytes());
    hash.update(body);
    hash.finalize()
}

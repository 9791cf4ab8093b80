//! Named limits, checked before memory is taken.

use crate::AnnotateError;

/// Chunks of one volume.
pub const MAX_CHUNKS: u64 = 1 << 22;
/// Voxels of the box around a label that an edit works on at once (splitting, growing, filling holes).
pub const MAX_BOX_VOXELS: u64 = 1 << 27;
/// Bytes of one journal record, and so of one edit's differences.
pub const MAX_RECORD_BYTES: u64 = 256 << 20;
/// Bytes of a journal's header.
pub const MAX_HEADER_BYTES: u64 = 1 << 20;
/// Bytes of a dataset's table.
pub const MAX_TABLE_BYTES: u64 = 64 << 20;

/// What a label image may ask for before it is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Voxels of the volume.
    pub max_voxels: u64,
    /// Bytes that the labels take in memory once loaded (uniform chunks take none).
    pub max_stored_bytes: u64,
    /// Pairs of a label and a chunk it is in.
    pub max_label_pieces: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_voxels: 1 << 36, max_stored_bytes: 16 << 30, max_label_pieces: 1 << 24 }
    }
}

/// Refuses `got` above `limit`.
pub(crate) fn check(
    what: &'static str,
    got: u64,
    limit_name: &'static str,
    limit: u64,
    next: &'static str,
) -> Result<(), AnnotateError> {
    if got <= limit { Ok(()) } else { Err(AnnotateError::TooLarge { what, got, limit_name, limit, next }) }
}

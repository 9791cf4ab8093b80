//! Named limits, which are checked before memory is allocated.

use crate::CorrectionError;

/// Largest number of chunks of one volume.
pub const MAX_CHUNKS: u64 = 1 << 22;
/// Largest bounding box of a label in voxels for edits that process the whole box (splitting, growing, filling holes).
pub const MAX_BOX_VOXELS: u64 = 1 << 27;
/// Largest number of pieces of rows, at most one chunk long, in the box around a part of a brush stroke. A journal record can
/// hold no more of their differences.
pub const MAX_STROKE_PIECES: u64 = 1 << 27;
/// Largest journal record in bytes, which also limits the differences of one edit.
pub const MAX_RECORD_BYTES: u64 = 256 << 20;
/// Largest header of a journal in bytes.
pub const MAX_HEADER_BYTES: u64 = 1 << 20;
/// Largest table of a dataset in bytes.
pub const MAX_TABLE_BYTES: u64 = 64 << 20;

/// Limits on the size of a label image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of voxels of the volume.
    pub max_voxels: u64,
    /// Maximum memory of the loaded labels in bytes; uniform chunks need none.
    pub max_stored_bytes: u64,
    /// Maximum number of label pieces: pairs of a label and a chunk that contains it.
    pub max_label_pieces: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_voxels: 1 << 36, max_stored_bytes: 16 << 30, max_label_pieces: 1 << 24 }
    }
}

/// Returns an error if `got` is above `limit`.
pub(crate) fn check(
    what: &'static str,
    got: u64,
    limit_name: &'static str,
    limit: u64,
    next_step: &'static str,
) -> Result<(), CorrectionError> {
    if got <= limit { Ok(()) } else { Err(CorrectionError::TooLarge { what, got, limit_name, limit, next_step }) }
}

/// Refuses labels with more pairs of label and chunk than [`Limits::max_label_pieces`].
pub(crate) fn check_label_pieces(pieces: u64, limits: &Limits, next_step: &'static str) -> Result<(), CorrectionError> {
    let what = "the number of label pieces, one per label and chunk,";
    check(what, pieces, "max_label_pieces", limits.max_label_pieces, next_step)
}

/// Refuses labels that need more memory in bytes than [`Limits::max_stored_bytes`].
pub(crate) fn check_stored_bytes(bytes: u64, limits: &Limits, next_step: &'static str) -> Result<(), CorrectionError> {
    check("the size of the labels in bytes", bytes, "max_stored_bytes", limits.max_stored_bytes, next_step)
}

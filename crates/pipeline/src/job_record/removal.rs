//! Removal of the record of a result that was removed.

use super::{AnyRecord, read_any, record_path};
use crate::JobError;
use std::path::Path;

/// Removes the record of a result that no longer exists. A file that is not the record of this result is kept.
///
/// # Errors
/// [`JobError::Io`] if the record cannot be removed.
pub fn remove_record(result: &Path) -> Result<(), JobError> {
    let path = record_path(result);
    let is_own = matches!(read_any(&path), Ok(AnyRecord::Job(record)) if record.belongs_to(result));
    if !is_own || std::fs::symlink_metadata(result).is_ok() {
        return Ok(());
    }
    std::fs::remove_file(&path).map_err(|error| JobError::Io { path, error })
}

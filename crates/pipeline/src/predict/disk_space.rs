//! Checks that the results of an input fit on the disk, before they are computed.

use super::Output;
use super::resolve::Resolved;
use crate::{Context, JobError};
use cytoscope_profile::bytes_text;
use cytoscope_storage::space;
use std::io;
use std::path::Path;

/// The output of the network that a job stores on the disk until its results are written.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoredOutput {
    /// Number of time points that are stored at once.
    pub times: usize,
    /// Bytes that are already on the disk.
    pub present_bytes: u64,
}

/// Returns the bytes of values of 32 bits on a grid.
fn bytes(zyx: [usize; 3], values_per_voxel: usize) -> u64 {
    zyx.iter().chain([&values_per_voxel]).fold(size_of::<f32>() as u64, |bytes, n| bytes.saturating_mul(*n as u64))
}

impl StoredOutput {
    /// Returns the bytes that are added to the disk.
    fn added_bytes(self, grid: [usize; 3], channels: usize) -> u64 {
        bytes(grid, channels.saturating_mul(self.times)).saturating_sub(self.present_bytes)
    }
}

/// Returns the minimum number of bytes that are added while the last time point is segmented: those of the maps, unless they
/// are compressed, the labels of all time points, and the output of the network.
fn needed_bytes(resolved: &Resolved<'_>, are_maps_compressed: bool, stored: StoredOutput) -> u64 {
    let (zyx, times, channels) = (resolved.extents.zyx, resolved.times.len(), resolved.model.output_channels);
    let has_maps = resolved.wants(Output::Maps) && !are_maps_compressed;
    let maps = if has_maps { bytes(zyx, channels.saturating_mul(times)) } else { 0 };
    let labels = if resolved.has_objects() { bytes(zyx, times) } else { 0 };
    stored.added_bytes(resolved.grid, channels).saturating_add(maps).saturating_add(labels)
}

/// Checks that the results of an input fit the disk of their `folder`, if its free space is known. If the file system
/// may compress them, a note says that they may not fit. `are_maps_compressed` states whether the maps are compressed,
/// so that their size is unknown. `stored` is the output of the network, which is on the disk besides the results.
///
/// # Errors
/// [`JobError::Io`] with [`io::ErrorKind::StorageFull`].
pub(super) fn check(
    context: &Context,
    folder: &Path,
    resolved: &Resolved<'_>,
    are_maps_compressed: bool,
    stored: StoredOutput,
) -> Result<(), JobError> {
    let needed = needed_bytes(resolved, are_maps_compressed, stored);
    match fits(folder, needed, space::free_bytes(folder), space::may_compress(folder))? {
        None => Ok(()),
        Some(note) => {
            context.note(note);
            Ok(())
        }
    }
}

/// Returns an error if fewer bytes are free than are needed; if the file system `may_compress` the results, a note instead.
fn fits(
    folder: &Path,
    needed_bytes: u64,
    free_bytes: Option<u64>,
    may_compress: bool,
) -> Result<Option<String>, JobError> {
    let Some(free_bytes) = free_bytes.filter(|free| *free < needed_bytes) else { return Ok(None) };
    let (needed, free) = (bytes_text(needed_bytes), bytes_text(free_bytes));
    if may_compress {
        return Ok(Some(format!(
            "{}: the results need at least {needed}, but only {free} are free: the prediction will fail at the end unless \
             the file system compresses them enough",
            folder.display()
        )));
    }
    let problem = format!("the results need at least {needed} of disk space, but {free} are free");
    Err(JobError::Io { path: folder.to_owned(), error: io::Error::new(io::ErrorKind::StorageFull, problem) })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::JobErrorKind;

    #[test]
    fn results_that_do_not_fit_the_disk_are_refused_with_both_sizes() {
        let folder = Path::new("out");
        assert_eq!(fits(folder, 1 << 30, Some(1 << 30), false).unwrap(), None);
        assert_eq!(fits(folder, u64::MAX, None, false).unwrap(), None, "unknown");
        let refused = fits(folder, 3 << 30, Some(1 << 20), false).unwrap_err();
        assert_eq!(refused.kind(), JobErrorKind::OutOfResources);
        let text = refused.to_string();
        let expected = "out: the results need at least 3.00 GiB of disk space, but 1 MiB are free; free some space";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn a_run_that_continues_adds_the_rest_of_the_slices() {
        let added = |times: usize, present_bytes: u64| StoredOutput { times, present_bytes }.added_bytes([4, 5, 6], 2);
        let slice_bytes = 5 * 6 * 2 * 4;
        assert_eq!(added(1, 0), 4 * slice_bytes);
        assert_eq!(added(1, slice_bytes), 3 * slice_bytes, "one of four slices is finished");
        assert_eq!(added(2, 7 * slice_bytes), slice_bytes);
        assert_eq!(added(1, 5 * slice_bytes), 0);
    }

    #[test]
    fn results_that_may_be_compressed_are_written_with_a_note() {
        let note = fits(Path::new("out"), 3 << 30, Some(1 << 20), true).unwrap().unwrap();
        assert!(note.contains("3.00 GiB") && note.contains("1 MiB are free"), "{note}");
        assert_eq!(fits(Path::new("out"), 1 << 20, Some(3 << 30), true).unwrap(), None);
    }
}

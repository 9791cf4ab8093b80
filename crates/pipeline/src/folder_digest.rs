//! Records of files and folders: their sizes, times of modification and hashes.

use crate::JobError;
use crate::job_record::RECORD_SUFFIX;
use crate::provenance::InputRecord;
use crate::results::FileRecord;
use cytoscope_formats::Image;
use cytoscope_storage::target::resolved;
use cytoscope_storage::{MARKER, hexadecimal, io_problem, is_exhausted, sha256_of_file};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Maximum depth of the folders whose files are counted.
const MAX_DEPTH: usize = 32;
/// Maximum number of files and folders that are counted in a folder: a record may name any folder.
const MAX_COUNTED: usize = 1_000_000;

/// Returns the record of an input as it is now: for a file, size, time of modification and a hash of parts of its
/// content; for a folder, the size of all its files, the latest time of modification, and a hash of the names, sizes and times
/// of all. The outputs (resolved paths) and all records of jobs are left out of a folder.
///
/// # Errors
/// The system's error if there is no such file, or a folder cannot be read or has more than a million files.
pub fn input_record(path: &Path, outputs: &[PathBuf]) -> std::io::Result<InputRecord> {
    counted_record(path, outputs, MAX_COUNTED)
}

/// Like [`input_record`], without the content of a file.
pub(crate) fn unsampled_record(path: &Path, outputs: &[PathBuf]) -> std::io::Result<InputRecord> {
    if path.is_dir() { input_record(path, outputs) } else { InputRecord::of(path) }
}

/// Returns the record of an input as it is now, with the same fields as an earlier record of it.
pub(crate) fn record_like(then: &InputRecord, outputs: &[PathBuf]) -> std::io::Result<InputRecord> {
    let record = if then.sampled_sha256.is_some() { input_record } else { unsampled_record };
    record(&then.path, outputs)
}

/// Returns the record of a folder of chunks as it is now.
pub(crate) fn chunks_record(folder: &Path) -> std::io::Result<InputRecord> {
    // Reading the image opens each of them anyway, so their number needs no limit here.
    counted_record(folder, &[], usize::MAX)
}

/// Returns how the chunks in a folder differ from their record, as the predicate of a sentence; `None` if they do not.
pub(crate) fn chunks_change(then: &InputRecord) -> Option<String> {
    match chunks_record(&then.path) {
        Ok(now) => then.change(&now),
        Err(error) => Some(format!("can no longer be read ({})", io_problem(&error))),
    }
}

/// Returns the records of files and folders of chunks as they are now. Those that cannot be read are left out: opening them
/// reports why.
pub fn records_before<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Vec<InputRecord> {
    paths.into_iter().filter_map(|path| chunks_record(path).ok()).collect()
}

/// Returns the records of the files of an image that is made of several, such as numbered files or those of an OME-TIFF set, as
/// they are now. None for the files of a folder, which are recorded with it.
pub(crate) fn further_records(image: &Image) -> Vec<InputRecord> {
    let files = if image.meta().path.is_dir() { Vec::new() } else { image.files() };
    if files.len() > 1 { records_before(&files) } else { Vec::new() }
}

/// Refuses a result if a file or folder of chunks differs from its record.
///
/// # Errors
/// [`JobError::Mismatch`] with the first one that does.
pub fn refuse_changed(records: &[InputRecord]) -> Result<(), JobError> {
    for then in records {
        if let Some(change) = change_since(then, chunks_record(&then.path))? {
            return Err(changed_error(&then.path, &change));
        }
    }
    Ok(())
}

/// Returns how a file or folder has changed since it was recorded, as the predicate of a sentence; `None` if it has not. `now` is
/// its record as it is now.
///
/// # Errors
/// [`JobError::Io`] if it could not be read because too many files are open, or memory is exhausted: it may be unchanged.
pub(crate) fn change_since(then: &InputRecord, now: std::io::Result<InputRecord>) -> Result<Option<String>, JobError> {
    match now {
        Ok(now) => Ok(then.change(&now)),
        Err(error) if is_exhausted(&error) => Err(JobError::Io { path: then.path.clone(), error }),
        Err(error) => Ok(Some(format!("can no longer be read ({})", io_problem(&error)))),
    }
}

/// Returns the error of a result whose input at `path` changed while it was read; `change` is the predicate of a sentence.
pub(crate) fn changed_error(path: &Path, change: &str) -> JobError {
    let what = if path.is_dir() { "folder" } else { "file" };
    JobError::Mismatch {
        path: path.to_owned(),
        problem: format!(
            "the {what} {change}: it changed while it was read, so the result would match neither version"
        )
        .into(),
        next_step: format!("wait until the {what} is complete, then run the command again").into(),
    }
}

/// Like [`input_record`], with a maximum number of files and folders in a folder.
fn counted_record(path: &Path, outputs: &[PathBuf], max_files: usize) -> std::io::Result<InputRecord> {
    if !path.is_dir() {
        return InputRecord::sampled(path);
    }
    let record = InputRecord::of(path)?;
    let mut sum = InputRecord { bytes: 0, modified_unix_secs: 0, modified_nanos: 0, ..record };
    let time = |r: &InputRecord| (r.modified_unix_secs, r.modified_nanos);
    let (folder, mut left, mut listing) = (resolved(path), max_files, 0u128);
    walk(&folder, MAX_DEPTH, &mut left, &mut |file| {
        let is_output =
            outputs.iter().any(|output| file.starts_with(output)) || file.to_string_lossy().ends_with(RECORD_SUFFIX);
        let Ok(one) = InputRecord::of(file) else { return };
        if is_output {
            return;
        }
        sum.bytes = sum.bytes.saturating_add(one.bytes);
        if time(&one) > time(&sum) {
            (sum.modified_unix_secs, sum.modified_nanos) = time(&one);
        }
        // A sum does not depend on the order in which the files are listed.
        listing = listing.wrapping_add(entry_hash(file.strip_prefix(&folder).unwrap_or(file), &one));
    })?;
    sum.sampled_sha256 = Some(format!("{listing:032x}"));
    Ok(sum)
}

/// Returns a hash of the path of a file in its folder, its size, and the second in which it was modified.
fn entry_hash(name: &Path, file: &InputRecord) -> u128 {
    let mut hasher = Sha256::new();
    hasher.update(name.as_os_str().as_encoded_bytes());
    hasher.update([0]);
    hasher.update(file.bytes.to_le_bytes());
    hasher.update(file.modified_unix_secs.to_le_bytes());
    hasher.finalize().iter().take(size_of::<u128>()).fold(0, |hash, byte| (hash << 8) | u128::from(*byte))
}

/// Passes every file below a folder to `visit`, in any order. Links to folders are not followed. Fails after `left`
/// files and folders.
fn walk(folder: &Path, depth: usize, left: &mut usize, visit: &mut dyn FnMut(&Path)) -> std::io::Result<()> {
    let unlisted = |error: std::io::Error| {
        std::io::Error::new(
            error.kind(),
            format!("the folder {} cannot be listed: {}", folder.display(), io_problem(&error)),
        )
    };
    for entry in std::fs::read_dir(folder).map_err(unlisted)? {
        let entry = entry.map_err(unlisted)?;
        *left = left.checked_sub(1).ok_or_else(|| {
            let problem = format!("it has more than {MAX_COUNTED} files, counted up to {}", entry.path().display());
            std::io::Error::other(format!("{problem}; give a smaller folder"))
        })?;
        match entry.file_type().map_err(unlisted)?.is_dir() {
            true if depth > 0 => walk(&entry.path(), depth - 1, left, visit)?,
            true => {}
            false => visit(&entry.path()),
        }
    }
    Ok(())
}

/// Returns the record of a written file or folder.
pub(crate) fn file_record(path: &Path) -> Result<FileRecord, JobError> {
    let io = |error| JobError::Io { path: path.to_owned(), error };
    if !path.is_dir() {
        let bytes = std::fs::metadata(path).map_err(io)?.len();
        return Ok(FileRecord { path: path.to_owned(), bytes, sha256: sha256_of_file(path).map_err(io)? });
    }
    // An output may have any number of files. Its size is that of the files that the marker lists.
    let marker = path.join(MARKER);
    let marker_bytes = std::fs::metadata(&marker).map_or(0, |meta| meta.len());
    let bytes = counted_record(path, &[], usize::MAX).map_err(io)?.bytes.saturating_sub(marker_bytes);
    let sha256 = if marker.is_file() {
        sha256_of_file(&marker).map_err(io)?
    } else if path.join("rdf.yaml").is_file() {
        sha256_of_files(path).map_err(io)?
    } else {
        String::new()
    };
    Ok(FileRecord { path: path.to_owned(), bytes, sha256 })
}

/// Returns the SHA-256 of the names and contents of all files below a folder, in lower-case hexadecimal. Records are left
/// out.
fn sha256_of_files(folder: &Path) -> std::io::Result<String> {
    let folder = resolved(folder);
    let mut files = BTreeSet::new();
    let mut left = MAX_COUNTED;
    walk(&folder, MAX_DEPTH, &mut left, &mut |file| {
        let is_regular = std::fs::metadata(file).is_ok_and(|meta| meta.is_file());
        if is_regular && !file.to_string_lossy().ends_with(RECORD_SUFFIX) {
            files.insert(file.to_owned());
        }
    })?;
    let mut hasher = Sha256::new();
    for file in &files {
        hasher.update(file.strip_prefix(&folder).unwrap_or(file).as_os_str().as_encoded_bytes());
        hasher.update([0]);
        hasher.update(sha256_of_file(file)?);
    }
    Ok(hexadecimal(&hasher.finalize()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::job_record::record_path;

    #[test]
    fn a_folder_changes_with_its_files_but_not_with_results_in_it() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("inner")).unwrap();
        std::fs::write(folder.path().join("inner/a.tif"), "abc").unwrap();
        let output = resolved(&folder.path().join("scores.json"));
        let before = input_record(folder.path(), std::slice::from_ref(&output)).unwrap();
        assert_eq!(before.bytes, 3);
        std::fs::write(&output, "{}").unwrap();
        std::fs::write(record_path(&output), "{}").unwrap();
        assert_eq!(before.change(&input_record(folder.path(), std::slice::from_ref(&output)).unwrap()), None);
        std::fs::write(folder.path().join("inner/b.tif"), "d").unwrap();
        let after = input_record(folder.path(), &[output]).unwrap();
        assert!(before.change(&after).unwrap().contains("and has 4 now"));
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_cannot_be_read_because_too_many_are_open_has_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.tif");
        std::fs::write(&file, "abc").unwrap();
        let then = input_record(&file, &[]).unwrap();
        assert_eq!(change_since(&then, input_record(&file, &[])).unwrap(), None);
        let failed = |number: i32| change_since(&then, Err(std::io::Error::from_raw_os_error(number)));
        let error = failed(24).unwrap_err().to_string();
        assert!(error.contains("a.tif: too many files are open") && !error.contains("changed"), "{error}");
        // It was removed.
        assert!(failed(2).unwrap().is_some_and(|change| change.contains("can no longer be read")));
    }

    #[test]
    fn files_that_exchange_their_names_change_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b, other] = ["a.tif", "b.tif", "c.tif"].map(|name| folder.path().join(name));
        for (file, secs) in [(&a, 1000), (&b, 2000)] {
            std::fs::write(file, "abc").unwrap();
            let modified = std::time::UNIX_EPOCH + std::time::Duration::from_secs(secs);
            std::fs::File::options().write(true).open(file).unwrap().set_modified(modified).unwrap();
        }
        let record = || input_record(folder.path(), &[]).unwrap();
        let before = record();
        assert_eq!(before.change(&record()), None);
        for (from, to) in [(&a, &other), (&b, &a), (&other, &b)] {
            std::fs::rename(from, to).unwrap();
        }
        let after = record();
        assert_eq!((before.bytes, before.modified_unix_secs), (after.bytes, after.modified_unix_secs));
        let change = before.change(&after).unwrap();
        assert!(change.contains("renamed or replaced"), "{change}");
        assert_eq!(before.without_sample().change(&after), None, "a record of an earlier version");
    }

    #[test]
    fn folders_that_cannot_be_recorded_are_named() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.tif", "b.tif"] {
            std::fs::write(folder.path().join(name), "abc").unwrap();
        }
        let error = counted_record(folder.path(), &[], 1).unwrap_err().to_string();
        assert!(error.contains(".tif; give a smaller folder"), "{error}");
        let (missing, mut left) = (folder.path().join("gone"), 1);
        let error = walk(&missing, 1, &mut left, &mut |_| ()).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
        assert!(error.to_string().contains("gone cannot be listed: "), "{error}");
    }

    #[test]
    fn a_package_without_a_marker_changes_with_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let hash = || file_record(folder.path()).unwrap().sha256;
        std::fs::write(folder.path().join("weights.onnx"), "abc").unwrap();
        assert_eq!(hash(), "", "not a package");
        std::fs::write(folder.path().join("rdf.yaml"), "name: a").unwrap();
        let before = hash();
        assert_eq!((before.len(), hash()), (64, before.clone()));
        std::fs::write(folder.path().join("weights.onnx"), "abd").unwrap();
        assert_ne!(hash(), before);
    }
}

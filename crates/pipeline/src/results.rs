//! Result files: which existing files may be overwritten, and how several files are published together.
//!
//! The record of a prediction (`NAME_provenance.json`) lists its outputs with their sizes and hashes. A file that
//! matches its record may be overwritten. Any other file, including a result that was edited, is overwritten only if
//! the user allows it. The record is written before the files are renamed to their final names, so that a process
//! killed at any moment leaves files that the record lists. An OME-Zarr folder has a marker that lists its files; the
//! folder is replaced only if it holds exactly these, unchanged.

use crate::job_record::{is_record_name, record_lists_result};
use crate::predict::zarr::FOLDER_KIND;
use crate::{Context, JobError, provenance};
use cytoscope_formats::{FileFormat, OpenOptions, is_zarr_folder, is_zarr_zip_name, open};
use cytoscope_storage::folder::{Replaced, check_finished_while, finished_content_while, move_aside, move_back};
use cytoscope_storage::partial_folder::FinishedFolder;
use cytoscope_storage::read::open_regular;
use cytoscope_storage::write::FinishedFile;
use cytoscope_storage::{MARKER, Manifest, Overwrite, StorageError, sha256_of_file, sha256_of_file_while, target};
use serde::{Deserialize, Serialize};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Record of a file: path, size and hash. An OME-Zarr folder or a package has the size of all its files and the hash of its marker, which
/// lists the hashes of the files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRecord {
    /// Path that the file was written to.
    pub path: PathBuf,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256 in lower-case hexadecimal.
    pub sha256: String,
}

impl FileRecord {
    /// Returns the record of a file that is written but not yet renamed to its final name.
    fn of(file: &FinishedFile, context: &Context) -> Result<Self, JobError> {
        let io = |error| JobError::Io { path: file.target().to_owned(), error };
        let bytes = std::fs::metadata(file.path()).map_err(io)?.len();
        let sha256 = sha256_of_file_while(file.path(), &mut || context.check().is_ok()).map_err(io)?;
        Ok(Self { path: file.target().to_owned(), bytes, sha256: sha256.ok_or(JobError::Canceled)? })
    }

    /// Returns the record of a folder that is written but not yet renamed to its final name.
    fn from_folder(folder: &FinishedFolder) -> Self {
        Self { path: folder.target().to_owned(), bytes: folder.bytes(), sha256: folder.sha256().to_owned() }
    }

    /// Returns whether a file or folder has the recorded size and content.
    pub fn matches(&self, path: &Path) -> bool {
        self.matches_while(path, &mut || true)
    }

    /// Like [`FileRecord::matches`]. `goes_on` is called before each block of a file is read. If it returns `false`,
    /// nothing more is read and the result is `false`.
    pub(crate) fn matches_while(&self, path: &Path, goes_on: &mut dyn FnMut() -> bool) -> bool {
        if path.is_dir() {
            // The marker, which lists all files, is compared before they are read.
            let is_listed = sha256_of_file(&path.join(MARKER)).is_ok_and(|sha256| sha256 == self.sha256);
            // The hash includes the kind: that of a prediction or of a package.
            let kind = is_listed.then(|| Manifest::from_folder(path)).flatten().map(|manifest| manifest.kind);
            let content = kind.and_then(|kind| finished_content_while(path, &kind, &mut |_, _| goes_on()));
            return content.is_some_and(|(bytes, sha256)| (bytes, &sha256) == (self.bytes, &self.sha256));
        }
        let has_recorded_size = std::fs::symlink_metadata(path).is_ok_and(|m| m.is_file() && m.len() == self.bytes);
        has_recorded_size
            && sha256_of_file_while(path, goes_on).is_ok_and(|sha256| sha256.as_ref() == Some(&self.sha256))
    }

    /// Returns whether the record has the same file name.
    pub(crate) fn is_named(&self, path: &Path) -> bool {
        self.path.file_name().is_some() && self.path.file_name() == path.file_name()
    }
}

/// Files and folders of one result, already written and synced, that are renamed to their final names together.
#[derive(Debug, Default)]
pub(crate) struct Publication {
    files: Vec<FinishedFile>,
    folders: Vec<FinishedFolder>,
}

impl Publication {
    /// Adds a finished file, which stays under its temporary name until [`Self::publish`].
    pub(crate) fn add(&mut self, file: FinishedFile) {
        self.files.push(file);
    }

    /// Adds a finished folder, like [`Self::add`].
    pub(crate) fn add_folder(&mut self, folder: FinishedFolder) {
        self.folders.push(folder);
    }

    /// Returns the records of all files and folders, which are on disk then.
    ///
    /// # Errors
    /// [`JobError::Io`] and [`JobError::Storage`] if a file cannot be read or flushed; [`JobError::Canceled`].
    pub(crate) fn records(&mut self, context: &Context) -> Result<Vec<FileRecord>, JobError> {
        let mut records: Vec<FileRecord> = self.folders.iter().map(FileRecord::from_folder).collect();
        // A file is hashed while it is flushed to disk.
        for file in &mut self.files {
            records.push(FileRecord::of(file, context)?);
            file.sync().map_err(StorageError::io(file.target(), "flushing the file to disk"))?;
        }
        Ok(records)
    }

    /// Reads the folders that will be replaced, so that [`Self::publish`], which cannot be canceled, does not have to. Call this
    /// before a record lists the new files.
    ///
    /// # Errors
    /// [`JobError::Canceled`].
    pub(crate) fn prepare(&mut self, context: &Context) -> Result<(), JobError> {
        for folder in &mut self.folders {
            folder.prepare(&mut || context.check().is_ok());
        }
        context.check()
    }

    /// Renames the files to their final names. Existing files that were checked before are overwritten; a file that
    /// another program created meanwhile is moved aside, unless overwriting is allowed. A folder that is not an unchanged
    /// earlier result is always moved aside, and so is an earlier result in OME-Zarr with images that the new one leaves out.
    /// Call this after a record lists the new files.
    ///
    /// Returns the new paths of files and folders that were moved aside.
    pub(crate) fn publish(self, overwrite: Overwrite) -> Result<Vec<PathBuf>, JobError> {
        self.publish_over(overwrite, &provenance::lists)
    }

    /// Like [`Self::publish`]; an existing file for which `is_own` holds counts as a result of this program.
    pub(crate) fn publish_over(
        self,
        overwrite: Overwrite,
        is_own: &dyn Fn(&Path) -> bool,
    ) -> Result<Vec<PathBuf>, JobError> {
        let mut aside = Vec::new();
        for folder in self.folders {
            let path = folder.target().to_owned();
            let is_kept = leaves_out_images(&path, folder.hidden_path());
            let kept = if is_kept { Some(move_aside(&path)?) } else { None };
            match folder.publish() {
                Ok(Replaced::MovedTo(moved)) => aside.push(moved),
                Ok(_) => {}
                Err(error) => {
                    kept.iter().for_each(|aside| move_back(aside, &path));
                    return Err(error.into());
                }
            }
            aside.extend(kept);
        }
        for file in self.files {
            let path = file.target().to_owned();
            let is_kept = std::fs::symlink_metadata(&path).is_ok()
                && if is_own(&path) {
                    zip_leaves_out_images(&path, file.path())
                } else {
                    overwrite == Overwrite::Refuse
                };
            let moved = if is_kept { Some(move_aside(&path)?) } else { None };
            if let Err(error) = file.publish() {
                moved.iter().for_each(|aside| move_back(aside, &path));
                return Err(StorageError::io(&path, "finishing the file")(error).into());
            }
            aside.extend(moved);
        }
        Ok(aside)
    }
}

/// Maximum size of the metadata of an array in bytes.
const MAX_METADATA_BYTES: u64 = 1 << 20;

/// Returns whether an OME-Zarr folder of earlier results has images that the folder which would replace it leaves out: labels
/// beside the maps, or maps in place of labels, or labels in place of maps.
fn leaves_out_images(old: &Path, new: &Path) -> bool {
    let has_labels = |folder: &Path| folder.join("labels").is_dir();
    let is_float = |folder: &Path| -> Option<bool> {
        let mut text = Vec::new();
        let file = open_regular(&folder.join("0").join("zarr.json")).ok()?;
        file.take(MAX_METADATA_BYTES).read_to_end(&mut text).ok()?;
        let metadata: serde_json::Value = serde_json::from_slice(&text).ok()?;
        Some(metadata.get("data_type")?.as_str()?.starts_with("float"))
    };
    (has_labels(old) && !has_labels(new)) || is_float(old).is_some_and(|was_float| Some(was_float) != is_float(new))
}

/// Like [`leaves_out_images`], for an OME-Zarr in one zip file and the unpublished file that would replace it.
fn zip_leaves_out_images(old: &Path, new: &Path) -> bool {
    if !is_zarr_zip_name(old) {
        return false;
    }
    let read = |path: &Path| -> Option<(usize, bool)> {
        let image = open(path, &OpenOptions::default()).ok()?;
        let meta = image.meta();
        (meta.format == FileFormat::OmeZarr).then(|| (meta.series_count, meta.dtype.is_float()))
    };
    let (Some((images, was_float)), Some((new_images, is_float))) = (read(old), read(new)) else { return false };
    images > new_images || was_float != is_float
}

/// Returns the note about a file or folder that was moved aside.
pub(crate) fn moved_aside_note(path: &Path) -> String {
    let kind = if path.is_dir() { "folder" } else { "file" };
    format!("a {kind} with the name of a result existed; it was moved to {}", path.display())
}

/// Refuses to replace a folder, unless it is an unchanged OME-Zarr folder of an earlier prediction or `overwrite` allows it:
/// then it is moved aside.
///
/// # Errors
/// [`JobError::Storage`] for an input, a folder that contains one, or such a folder; [`JobError::Canceled`].
pub(crate) fn check_folder(
    context: &Context,
    path: &Path,
    inputs: &[&Path],
    overwrite: Overwrite,
) -> Result<(), JobError> {
    let checked = check_finished_while(path, FOLDER_KIND, inputs, overwrite, &mut || context.check().is_ok());
    context.check()?;
    Ok(checked?)
}

/// Like [`check`], for a file derived from a map by a job that writes `labels`: without the user's permission, only
/// files that are listed in the same record as the map, and those of [`is_derived`], may be overwritten. The map must
/// also be an unchanged file of its record (`is_prediction_result`).
///
/// # Errors
/// Same as [`check`].
pub(crate) fn check_derived(
    context: &Context,
    path: &Path,
    (map, is_prediction_result): (&Path, bool),
    labels: &Path,
    inputs: &[&Path],
    overwrite: Overwrite,
) -> Result<(), JobError> {
    let record = |file: &Path| provenance::find_record(&target::resolved(file));
    if is_prediction_result && record(map).is_some() && record(map) == record(path) {
        return check(context, path, inputs, overwrite);
    }
    match check_file(path, inputs, overwrite) {
        Err(StorageError::Exists { .. }) if is_prediction_result && is_derived(path, map, labels) => Ok(()),
        other => Ok(other?),
    }
}

/// Returns whether a file is unchanged since an earlier job made it from the same map together with these labels, or
/// measured these labels.
pub(crate) fn is_derived(path: &Path, map: &Path, labels: &Path) -> bool {
    record_lists_result(labels, path, map) || record_lists_result(path, path, labels)
}

/// Like [`target::check_file`], and refuses a file inside an OME-Zarr folder that is an input.
///
/// # Errors
/// Same as [`target::check_file`]; [`StorageError::NotReplaceable`] inside such a folder.
pub fn check_file(path: &Path, inputs: &[&Path], overwrite: Overwrite) -> Result<(), StorageError> {
    target::refuse_input(path, inputs)?;
    refuse_inside_zarr(path, inputs)?;
    target::check_file(path, inputs, overwrite)
}

/// Like [`check_file`], of a JSON file with results: the name of a provenance record is refused, because the record of other
/// results would be lost.
///
/// # Errors
/// Same as [`check_file`]; [`StorageError::NotReplaceable`] for such a name.
pub fn check_json_file(path: &Path, inputs: &[&Path], overwrite: Overwrite) -> Result<(), StorageError> {
    if is_record_name(path) {
        let problem = "has the name of a provenance record".to_owned();
        return Err(StorageError::NotReplaceable { path: path.to_owned(), problem, can_force: false });
    }
    check_file(path, inputs, overwrite)
}

/// Checks that an output is not inside an OME-Zarr folder that is an input: it would become a part of the image.
///
/// # Errors
/// [`StorageError::NotReplaceable`] with the folder.
pub(crate) fn refuse_inside_zarr(path: &Path, inputs: &[&Path]) -> Result<(), StorageError> {
    let output = target::resolved(path);
    let surrounds = |input: &&&Path| is_zarr_folder(input) && output.starts_with(target::resolved(input));
    match inputs.iter().find(surrounds) {
        None => Ok(()),
        Some(folder) => {
            let problem = format!("is inside the OME-Zarr folder {}, which is an input", folder.display());
            Err(StorageError::NotReplaceable { path: path.to_owned(), problem, can_force: false })
        }
    }
}

/// Refuses to overwrite a file, unless it matches the prediction record beside it or `overwrite` allows it.
///
/// # Errors
/// [`JobError::Storage`] for an input, a path inside an OME-Zarr folder that is an input, a folder, or such a file;
/// [`JobError::Canceled`].
pub(crate) fn check(context: &Context, path: &Path, inputs: &[&Path], overwrite: Overwrite) -> Result<(), JobError> {
    match check_file(path, inputs, overwrite) {
        Err(StorageError::Exists { .. }) if provenance::lists_while(path, &mut || context.check().is_ok()) => Ok(()),
        other => {
            context.check()?;
            Ok(other?)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::folder_digest::file_record;
    use cytoscope_model_package::PACKAGE_KIND;
    use cytoscope_storage::folder::write_finished;
    use cytoscope_storage::write::write_unpublished;

    #[test]
    fn a_package_matches_its_record_until_one_of_its_files_changes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m");
        let files = [("rdf.yaml".to_owned(), b"name: a".to_vec())];
        let replaced = write_finished(&path, PACKAGE_KIND, &files, Overwrite::Refuse).unwrap();
        assert_eq!(replaced, Replaced::Nothing);
        let record = file_record(&path).unwrap();
        assert!(record.matches(&path));
        std::fs::write(path.join("rdf.yaml"), "name: b").unwrap();
        assert!(!record.matches(&path));
    }

    #[test]
    fn a_foreign_file_keeps_its_name_if_the_result_cannot_be_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.csv");
        let file = write_unpublished(&path, b"new").unwrap();
        std::fs::write(&path, "foreign").unwrap();
        // Without it, there is nothing to rename.
        std::fs::remove_file(file.path()).unwrap();
        let mut publication = Publication::default();
        publication.add(file);
        assert!(publication.publish_over(Overwrite::Refuse, &|_| false).is_err());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "foreign");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}

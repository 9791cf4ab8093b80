//! Writing of an OME-Zarr in one zip file: the folder is written first, and its files are then stored in the zip.

use super::folder::join;
use crate::error::FormatError;
use cytoscope_storage::MARKER;
use cytoscope_storage::partial_folder::PartialFolder;
use cytoscope_storage::read::open_regular;
use cytoscope_storage::write::{FinishedFile, PartialFile};
use std::fs::read_dir;
use std::io;
use std::path::Path;

/// Comment of the zip file, by which other programs recognize an OME-Zarr whose metadata are its first files, as in RFC-9 of
/// OME-NGFF.
const COMMENT: &str = r#"{"ome":{"version":"0.5","zipFile":{"centralDirectory":{"jsonFirst":true}}}}"#;

/// Stores the files of a folder that [`crate::ZarrWriter::finish`] returned in one zip file at the folder's target, the
/// metadata first, and removes the folder. Each file is removed as soon as the zip file holds it, so that the disk needs no space
/// for a second copy. Chunks are compressed already, so the zip compresses nothing. `goes_on` is called before each file; if it
/// returns false, no zip file is written.
///
/// # Errors
/// [`FormatError::Io`] if reading the folder or writing the zip file fails.
pub fn pack_zarr(folder: PartialFolder, goes_on: &dyn Fn() -> bool) -> Result<Option<FinishedFile>, FormatError> {
    let target = folder.target().to_owned();
    let failed = |error: io::Error| FormatError::io(&target, "writing the zip file", error);
    let mut names = Vec::new();
    add_names(folder.path(), "", &mut names).map_err(failed)?;
    names.sort_by_cached_key(|name| (!name.ends_with("zarr.json"), name.matches('/').count(), name.clone()));
    let mut file = PartialFile::create(&target).map_err(failed)?;
    if !store(&folder, &names, &mut file, goes_on).map_err(failed)? {
        return Ok(None);
    }
    file.finish().map(Some).map_err(failed)
}

/// Adds the names of the files in a folder, whose own name in the zip is `prefix`.
fn add_names(folder: &Path, prefix: &str, names: &mut Vec<String>) -> io::Result<()> {
    for entry in read_dir(folder)? {
        let entry = entry?;
        let file_name = entry.file_name();
        let name = file_name.to_str().ok_or_else(|| io::Error::other("a file in it has a name that is not Unicode"))?;
        let path = join(prefix, name);
        if entry.file_type()?.is_dir() {
            add_names(&entry.path(), &path, names)?;
        } else if path != MARKER {
            names.push(path);
        }
    }
    Ok(())
}

/// Moves files of a folder into a zip file, and returns whether all were moved.
fn store(
    folder: &PartialFolder,
    names: &[String],
    file: &mut PartialFile,
    goes_on: &dyn Fn() -> bool,
) -> io::Result<bool> {
    let mut zip = zip::ZipWriter::new(file.out()?);
    zip.set_comment(COMMENT)?;
    // RFC-9 recommends entries in the form of zip64, whatever their size.
    let options = zip::write::SimpleFileOptions::default()
        .compression_method(zip::CompressionMethod::Stored)
        .large_file(true)
        .last_modified_time(zip::DateTime::default());
    for name in names {
        if !goes_on() {
            return Ok(false);
        }
        let mut source = open_regular(&folder.path().join(name))?;
        zip.start_file(name.as_str(), options)?;
        io::copy(&mut source, &mut zip)?;
        drop(source);
        // A file that cannot be removed now is removed with the folder.
        let _ = folder.remove(Path::new(name));
    }
    zip.finish()?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::{OpenOptions, ZarrImageSpec, ZarrWriter, open};
    use cytoscope_volume::{DType, Samples};

    fn written(path: &Path) -> PartialFolder {
        let mut writer = ZarrWriter::create(path, ZarrImageSpec::new("a", [1, 1, 3, 20, 30], DType::U16)).unwrap();
        let depth = writer.slab_depth(0);
        for z in (0..3).step_by(depth) {
            let slices = depth.min(3 - z);
            let values = (0..slices * 600).map(|i| (z * 600 + i) as u16).collect();
            writer.write(0, [0, 0, z], &Samples::U16(values)).unwrap();
        }
        writer.finish().unwrap()
    }

    #[test]
    fn a_zip_file_holds_the_files_of_the_folder_with_the_metadata_first() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.ozx");
        pack_zarr(written(&path), &|| true).unwrap().unwrap().publish().unwrap();
        assert_eq!(cytoscope_testkit::file_names(folder.path()), ["a.ozx"], "the folder is removed");
        let read = open(&path, &OpenOptions::default()).unwrap().read_all().unwrap();
        assert_eq!(read.shape(), [3, 20, 30]);
        assert_eq!(read.samples(), &Samples::U16((0..1800).collect()));
        let mut zip = zip::ZipArchive::new(std::fs::File::open(&path).unwrap()).unwrap();
        assert_eq!(zip.comment(), COMMENT.as_bytes());
        assert_eq!(zip.name_for_index(0).unwrap().unwrap(), "zarr.json");
        for i in 0..zip.len() {
            assert_eq!(zip.by_index(i).unwrap().compression(), zip::CompressionMethod::Stored);
        }
        // The sizes in the directory are those of zip64.
        let bytes = std::fs::read(&path).unwrap();
        let entries: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(b"PK\x01\x02")).collect();
        assert_eq!(entries.len(), zip.len());
        assert!(entries.iter().all(|at| bytes[at + 20..at + 28] == [0xFF; 8]));
    }

    #[test]
    fn files_are_removed_from_the_folder_as_soon_as_the_zip_file_holds_them() {
        let folder = tempfile::tempdir().unwrap();
        let partial = written(&folder.path().join("a.ozx"));
        let hidden = partial.path().to_owned();
        let left = std::cell::RefCell::new(Vec::new());
        let count = || {
            let mut names = Vec::new();
            add_names(&hidden, "", &mut names).unwrap();
            left.borrow_mut().push(names.len());
            true
        };
        pack_zarr(partial, &count).unwrap().unwrap().publish().unwrap();
        // Metadata of the image and of its level, and one shard.
        assert_eq!(left.into_inner(), [3, 2, 1]);
    }

    #[test]
    fn a_zip_file_that_is_interrupted_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        assert!(pack_zarr(written(&folder.path().join("a.zarr.zip")), &|| false).unwrap().is_none());
        assert!(cytoscope_testkit::file_names(folder.path()).is_empty());
    }
}

//! File names: extensions, stems, and folder listings.

use super::SearchResults;
use crate::error::TrainingDataError;
use crate::limits::MAX_TABLE_BYTES;
use cytoscope_formats::{STACK_EXTENSIONS, composed, file_stem, is_part_of_split_export, is_zarr_folder};
use cytoscope_storage::io_problem;
use cytoscope_storage::npy;
use cytoscope_storage::read::open_regular;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

/// Extensions of images other than stacks in one file: pictures, which may be slices, and OME-Zarr folders.
const OTHER_EXTENSIONS: [&str; 4] = ["png", "jpeg", "jpg", "zarr"];

/// Extensions of stacks that are not looked for: slides in color.
const SLIDE_EXTENSIONS: [&str; 2] = ["svs", "ndpi"];

/// Extensions of unsupported image files, and a program that converts them to TIFF.
const UNSUPPORTED_EXTENSIONS: [(&str, &str); 1] = [(".oir", "Fiji with Bio-Formats")];

/// Returns the file name as text.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Returns the name without its extension, in the form in which equal texts are equal.
pub(crate) fn stem(path: &Path) -> String {
    composed(&file_stem(path))
}

/// Whether two names of files are the same text, ignoring the case of ASCII letters.
fn is_same_name(a: &str, b: &str) -> bool {
    composed(a).eq_ignore_ascii_case(&composed(b))
}

/// Returns the extension in lower case, without its dot.
pub(crate) fn extension(path: &Path) -> String {
    path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default()
}

/// Returns whether the file has the extension of a supported image and is not the cover picture of a dataset.
pub(crate) fn is_image(path: &Path) -> bool {
    let name = file_name(path);
    // Such as cover.png and nuclei_cover.png, but not discover.png.
    let is_cover = name.strip_suffix("cover.png").is_some_and(|start| !start.ends_with(char::is_alphabetic));
    let lower = name.to_ascii_lowercase();
    let has_extension = |extension: &str| {
        let stem = lower.strip_suffix(extension).and_then(|start| start.strip_suffix('.'));
        stem.is_some_and(|stem| !stem.is_empty())
    };
    let stacks = STACK_EXTENSIONS.into_iter().filter(|extension| !SLIDE_EXTENSIONS.contains(extension));
    !is_cover && stacks.chain(OTHER_EXTENSIONS).any(has_extension)
}

/// Returns a program that converts an image of an unsupported format to TIFF; `None` for other files.
pub(crate) fn converter(path: &Path) -> Option<&'static str> {
    let lower = file_name(path).to_ascii_lowercase();
    UNSUPPORTED_EXTENSIONS.iter().find(|(e, _)| lower.ends_with(e)).map(|(_, program)| *program)
}

/// Returns `name` without `suffix`, ignoring case; `None` if it does not end in `suffix` or consists only of it.
pub(crate) fn strip_suffix_ignoring_case<'a>(name: &'a str, suffix: &str) -> Option<&'a str> {
    let at = name.len().checked_sub(suffix.len())?;
    let tail = name.get(at..)?;
    (at > 0 && tail.eq_ignore_ascii_case(suffix)).then(|| name.get(..at)).flatten()
}

/// Returns `name` without `prefix`, ignoring case; `None` if it does not start with it.
pub(crate) fn strip_prefix_ignoring_case<'a>(name: &'a str, prefix: &str) -> Option<&'a str> {
    name.get(..prefix.len()).filter(|head| head.eq_ignore_ascii_case(prefix)).and_then(|_| name.get(prefix.len()..))
}

/// Files and subfolders of a folder, sorted, without hidden entries.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// Regular files and OME-Zarr folders whose names end in `.zarr`, links to them included, as paths. Parts of a split export
    /// of BigDataViewer are left out: the file that links to them is the image.
    pub files: Vec<PathBuf>,
    /// Other folders, links to folders included, as paths.
    pub folders: Vec<PathBuf>,
}

impl Listing {
    /// Lists a folder.
    pub fn of(folder: &Path, found: &mut SearchResults) -> Result<Self, TrainingDataError> {
        let entries = std::fs::read_dir(folder).map_err(TrainingDataError::io(folder, "listing the folder"))?;
        let mut listing = Self::default();
        for entry in entries {
            let entry = entry.map_err(TrainingDataError::io(folder, "listing the folder"))?;
            found.count_entries(folder, 1)?;
            let path = entry.path();
            if file_name(&path).starts_with('.') || is_part_of_split_export(&path) {
                continue;
            }
            // Links are followed: datasets often consist of them.
            match std::fs::metadata(&path) {
                Ok(about) if about.is_dir() && is_image(&path) && is_zarr_folder(&path) => listing.files.push(path),
                Ok(about) if about.is_dir() => listing.folders.push(path),
                Ok(about) if about.is_file() => listing.files.push(path),
                Ok(_) => {
                    let next_step = "remove it: training data are files and folders";
                    found.problems.push(crate::Problem::warning(
                        &path,
                        "this is a pipe, a socket or a device",
                        next_step,
                    ));
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    let next_step = "restore the file it points to, or remove it";
                    found.problems.push(crate::Problem::warning(&path, "this link is broken", next_step));
                }
                Err(error) => {
                    let next_step = "make it readable, or remove it";
                    let problem = format!("this entry cannot be read: {}", io_problem(&error));
                    found.problems.push(crate::Problem::warning(&path, problem, next_step));
                }
            }
        }
        listing.files.sort();
        listing.folders.sort();
        Ok(listing)
    }

    /// Returns the subfolder of this name, ignoring case.
    pub fn folder(&self, name: &str) -> Option<&PathBuf> {
        self.folders.iter().find(|f| is_same_name(&file_name(f), name))
    }

    /// Returns the file of this name, ignoring case.
    pub fn file(&self, name: &str) -> Option<&PathBuf> {
        self.files.iter().find(|f| is_same_name(&file_name(f), name))
    }
}

/// Reads a small text file, without its byte order mark.
pub(crate) fn read_text(path: &Path) -> Result<Vec<u8>, TrainingDataError> {
    let file = open_regular(path).map_err(TrainingDataError::io(path, "opening the file"))?;
    let mut text = Vec::new();
    file.take(MAX_TABLE_BYTES + 1).read_to_end(&mut text).map_err(TrainingDataError::io(path, "reading the file"))?;
    let (limit, next_step) =
        (("MAX_TABLE_BYTES", MAX_TABLE_BYTES), "split the file, or check that it is the right one");
    crate::error::check_limit(path, "its size in bytes", text.len() as u64, limit, next_step)?;
    if text.starts_with(b"\xef\xbb\xbf") {
        text.drain(..3);
    }
    Ok(text)
}

/// Returns whether a `.npy` file contains Python objects rather than an array, such as Cellpose's `_seg.npy`.
pub(crate) fn holds_objects(path: &Path) -> bool {
    if extension(path) != "npy" {
        return false;
    }
    let mut head = Vec::new();
    let max_bytes = (npy::PREFIX_BYTES + npy::MAX_HEADER_BYTES) as u64;
    let read = open_regular(path).and_then(|file| file.take(max_bytes).read_to_end(&mut head));
    read.is_ok() && npy::holds_objects(&head)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stems_have_no_part_of_the_extension() {
        assert_eq!(stem(Path::new("a/b.c.ome.TIF")), "b.c");
        assert_eq!(stem(Path::new("x_masks.tiff")), "x_masks");
        assert_eq!(["x_masks.ome.zarr", "x_masks.ome.ozx"].map(|name| stem(Path::new(name))), ["x_masks"; 2]);
        assert!(!is_image(Path::new("a/.tif")) && !is_image(Path::new("a.txt")));
        assert!(!is_image(Path::new("a.svs")) && !is_image(Path::new("tif")));
        assert!(["a.ims", "a.h5", "a.hdf5"].iter().all(|name| is_image(Path::new(name))));
        assert!(["a.ome.tf2", "a.tf2", "a.lif", "a.ome.zarr.zip"].iter().all(|name| is_image(Path::new(name))));
        let images = ["a/discover.png", "a/cover.png", "nuclei_cover.png", "day1-cover.png", "cover_1.png"];
        assert_eq!(images.map(|name| is_image(Path::new(name))), [true, false, false, false, true]);
        assert_eq!(strip_suffix_ignoring_case("é_Masks", "_masks"), Some("é"));
        assert_eq!(strip_suffix_ignoring_case("_masks", "_masks"), None);
        assert_eq!(strip_suffix_ignoring_case("aé", "©"), None);
    }
}

//! Names of files: endings, stems, and what lies in a folder.

use super::Found;
use crate::error::SamplesError;
use crate::limits::MAX_TABLE_BYTES;
use cytoscope_storage::npy;
use cytoscope_storage::read::open_regular;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Endings of image files, longest first.
const IMAGES: [&str; 10] =
    [".ome.tiff", ".ome.tif", ".ome.btf", ".ome.tf8", ".ome.tf2", ".tiff", ".tif", ".btf", ".tf8", ".npy"];

/// Endings of images that are not read here, and the program that turns them into TIFF.
const OTHERS: [(&str, &str); 9] = [
    (".nii.gz", "Fiji's NIfTI reader or nibabel"),
    (".nii", "Fiji's NIfTI reader or nibabel"),
    (".czi", "Fiji with Bio-Formats"),
    (".nd2", "Fiji with Bio-Formats"),
    (".lif", "Fiji with Bio-Formats"),
    (".mha", "Fiji or ITK"),
    (".nrrd", "Fiji"),
    (".h5", "Fiji's HDF5 reader"),
    (".png", "Fiji (File > Import > Image Sequence)"),
];

/// The file's name as text.
pub(crate) fn file_name(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The last ending in lower case, without its dot.
pub(crate) fn extension(path: &Path) -> String {
    path.extension().map(|e| e.to_string_lossy().to_lowercase()).unwrap_or_default()
}

/// Length of the ending that makes a name an image's.
fn image_ending(name: &str) -> Option<usize> {
    let lower = name.to_ascii_lowercase();
    IMAGES.iter().find(|e| lower.len() > e.len() && lower.ends_with(*e)).map(|e| e.len())
}

/// Whether a name is that of an image that can be read.
pub(crate) fn is_image(path: &Path) -> bool {
    image_ending(&file_name(path)).is_some()
}

/// The program that makes TIFF of an image of a kind not read here.
pub(crate) fn converter(path: &Path) -> Option<&'static str> {
    let lower = file_name(path).to_ascii_lowercase();
    OTHERS.iter().find(|(e, _)| lower.ends_with(e)).map(|(_, program)| *program)
}

/// The name without the ending of an image.
pub(crate) fn stem(path: &Path) -> String {
    let name = file_name(path);
    match image_ending(&name).and_then(|n| name.get(..name.len() - n)) {
        Some(stem) => stem.to_owned(),
        None => name.rsplit_once('.').map_or(name.clone(), |(stem, _)| stem.to_owned()),
    }
}

/// `name` without `ending`, compared without regard to case; what is left is not empty.
pub(crate) fn strip_ending<'a>(name: &'a str, ending: &str) -> Option<&'a str> {
    let at = name.len().checked_sub(ending.len())?;
    let tail = name.get(at..)?;
    (at > 0 && tail.eq_ignore_ascii_case(ending)).then(|| name.get(..at)).flatten()
}

/// `name` without the word it begins with, compared without regard to case.
pub(crate) fn strip_front<'a>(name: &'a str, front: &str) -> Option<&'a str> {
    name.get(..front.len()).filter(|head| head.eq_ignore_ascii_case(front)).and_then(|_| name.get(front.len()..))
}

/// What lies in a folder, sorted; hidden entries are left out.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub files: Vec<PathBuf>,
    pub folders: Vec<PathBuf>,
}

impl Listing {
    pub fn of(folder: &Path, found: &mut Found) -> Result<Self, SamplesError> {
        let entries = std::fs::read_dir(folder).map_err(SamplesError::io(folder, "listing the folder"))?;
        let mut listing = Self::default();
        for entry in entries {
            let entry = entry.map_err(SamplesError::io(folder, "listing the folder"))?;
            found.look(folder, 1)?;
            let path = entry.path();
            if file_name(&path).starts_with('.') {
                continue;
            }
            // Links are followed: collections are often made of them.
            match std::fs::metadata(&path) {
                Ok(about) if about.is_dir() => listing.folders.push(path),
                Ok(about) if about.is_file() => listing.files.push(path),
                Ok(_) => {
                    let next = "remove it: training data are files and folders";
                    found.problems.push(crate::Problem::warning(&path, "this is a pipe, a socket or a device", next));
                }
                Err(_) => {
                    let next = "restore the file it points at, or remove it";
                    found.problems.push(crate::Problem::warning(&path, "this link points at nothing", next));
                }
            }
        }
        listing.files.sort();
        listing.folders.sort();
        Ok(listing)
    }

    /// The folder of a name, in any case.
    pub fn folder(&self, name: &str) -> Option<&PathBuf> {
        self.folders.iter().find(|f| file_name(f).eq_ignore_ascii_case(name))
    }

    /// The file of a name, in any case.
    pub fn file(&self, name: &str) -> Option<&PathBuf> {
        self.files.iter().find(|f| file_name(f).eq_ignore_ascii_case(name))
    }
}

/// The text of a small file, without a byte order mark.
pub(crate) fn read_text(path: &Path) -> Result<Vec<u8>, SamplesError> {
    let file = open_regular(path).map_err(SamplesError::io(path, "opening it"))?;
    let mut text = Vec::new();
    file.take(MAX_TABLE_BYTES + 1).read_to_end(&mut text).map_err(SamplesError::io(path, "reading it"))?;
    let (limit, next) = (("MAX_TABLE_BYTES", MAX_TABLE_BYTES), "split the file, or check that it is the right one");
    crate::error::check_limit(path, "its size in bytes", text.len() as u64, limit, next)?;
    if text.starts_with(b"\xef\xbb\xbf") {
        text.drain(..3);
    }
    Ok(text)
}

/// Whether a `.npy` holds Python objects, such as Cellpose's `_seg.npy`, rather than an array.
pub(crate) fn holds_objects(path: &Path) -> bool {
    if extension(path) != "npy" {
        return false;
    }
    let mut head = Vec::new();
    let most = (npy::PREFIX_BYTES + npy::MAX_HEADER_BYTES) as u64;
    let read = open_regular(path).and_then(|file| file.take(most).read_to_end(&mut head));
    let (Ok(_), Ok(prefix)) = (read, npy::prefix(&head)) else { return false };
    let text = head.get(prefix.header_at..).and_then(|rest| rest.get(..prefix.header_bytes)).unwrap_or_default();
    npy::parse(prefix.version, text).is_ok_and(|header| header.code == "O")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stems_lose_the_whole_ending() {
        assert_eq!(stem(Path::new("a/b.c.ome.TIF")), "b.c");
        assert_eq!(stem(Path::new("x_masks.tiff")), "x_masks");
        assert!(!is_image(Path::new("a/.tif")) && !is_image(Path::new("a.txt")));
        assert_eq!(strip_ending("é_Masks", "_masks"), Some("é"));
        assert_eq!(strip_ending("_masks", "_masks"), None);
        assert_eq!(strip_ending("aé", "©"), None);
    }
}

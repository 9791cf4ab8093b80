//! Files that another file of a list opens, too: those of an OME-TIFF set, and the parts of a split export of BigDataViewer.

use crate::{
    hdf5,
    opening::{OpenOptions, open},
};
use std::{
    collections::HashSet,
    path::{Path, PathBuf},
};

/// Ends of the names of OME-TIFF files, in lower case.
const OME_ENDINGS: [&str; 5] = [".ome.tif", ".ome.tiff", ".ome.btf", ".ome.tf8", ".ome.tf2"];
/// Fewest digits of the numbers in the names of parts.
const MIN_DIGITS: usize = 2;

/// Whether a file is a part of a split export of BigDataViewer, `NAME-00-00.h5`: `NAME.h5`, which links to its parts, and the XML
/// that describes that file are beside it.
pub fn is_part_of_split_export(path: &Path) -> bool {
    main_file(path).is_some_and(|main| main.is_file() && hdf5::is_described(&main))
}

/// The file with the links to a part, by the name of the part.
fn main_file(path: &Path) -> Option<PathBuf> {
    let is_number = |text: &str| text.len() >= MIN_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    let (rest, setups) = path.file_stem()?.to_str()?.rsplit_once('-')?;
    let (name, times) = rest.rsplit_once('-')?;
    let is_part = path.extension()?.eq_ignore_ascii_case("h5") && is_number(times) && is_number(setups);
    (is_part && !name.is_empty()).then(|| path.with_file_name(format!("{name}.h5")))
}

fn is_ome_tiff(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
    OME_ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// Removes the files whose image is that of an earlier file, and parts whose main file is in the list. Files that cannot be opened
/// stay: opening them reports why.
pub(crate) fn without_parts(mut files: Vec<PathBuf>) -> Vec<PathBuf> {
    let all: HashSet<PathBuf> = files.iter().cloned().collect();
    files.retain(|file| {
        let is_listed = main_file(file).is_some_and(|main| all.contains(&main));
        !is_listed || !is_part_of_split_export(file)
    });
    if files.iter().filter(|file| is_ome_tiff(file)).count() < 2 {
        return files;
    }
    // Files of sets with one image, and the images of other sets.
    let mut opened: HashSet<PathBuf> = HashSet::new();
    let mut images: HashSet<(Vec<PathBuf>, Vec<String>, Vec<usize>)> = HashSet::new();
    files.retain(|file| {
        if !is_ome_tiff(file) {
            return true;
        }
        if opened.contains(file) {
            return false;
        }
        let Ok(image) = open(file, &OpenOptions::default()) else { return true };
        let mut set = image.files();
        if set.len() < 2 {
            return true;
        }
        let meta = image.meta();
        if meta.series_count == 1 {
            opened.extend(set);
            return true;
        }
        // A file opens the first image that has planes in it.
        set.sort();
        images.insert((set, meta.series_names.clone(), meta.shape_full.clone()))
    });
    files
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    const XML: &str = "<?xml version=\"1.0\"?><SpimData version=\"0.2\"><SequenceDescription><ImageLoader format=\"bdv.hdf5\">\
        <hdf5 type=\"relative\">a-b.h5</hdf5></ImageLoader><ViewSetups><ViewSetup><id>0</id></ViewSetup></ViewSetups>\
        </SequenceDescription></SpimData>";

    #[test]
    fn parts_of_a_split_export_are_known_by_the_description_of_the_main_file() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["a-b.h5", "a-b-00-00.h5", "a-b-00-01.h5", "a-b-1-2.h5", "c.h5", "c-00-00.h5", "d-00-00.h5"] {
            std::fs::write(at(name), b"").unwrap();
        }
        std::fs::write(at("a-b.xml"), XML).unwrap();
        for (name, is_part) in [
            ("a-b-00-00.h5", true),
            ("a-b-00-01.h5", true),
            ("a-b-1-2.h5", false),
            ("a-b.h5", false),
            ("c-00-00.h5", false),
            ("d-00-00.h5", false),
        ] {
            assert_eq!(is_part_of_split_export(&at(name)), is_part, "{name}");
        }
        let kept = without_parts(["a-b-00-00.h5", "a-b-00-01.h5", "a-b.h5", "c-00-00.h5", "c.h5"].map(at).to_vec());
        assert_eq!(kept, ["a-b.h5", "c-00-00.h5", "c.h5"].map(at));
        // The main file was not given.
        assert_eq!(without_parts(vec![at("a-b-00-00.h5")]), [at("a-b-00-00.h5")]);
    }
}

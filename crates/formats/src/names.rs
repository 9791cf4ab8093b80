//! Names of stack files without their extension.

use std::path::Path;
use unicode_normalization::UnicodeNormalization;

/// Extensions of several parts that count as one, in lower case. If one of them ends in another, it comes first.
const JOINT_EXTENSIONS: [&str; 10] = [
    ".ome.tiff",
    ".ome.tif",
    ".ome.btf",
    ".ome.tf8",
    ".ome.tf2",
    ".ome.zarr.zip",
    ".zarr.zip",
    ".ome.zarr",
    ".ome.ozx",
    ".nii.gz",
];
/// Extensions of the stacks that are looked for in folders, in lower case and without the dot before them. Single files are
/// recognized by their content.
pub const STACK_EXTENSIONS: [&str; 27] = [
    "tif", "tiff", "btf", "tf8", "tf2", "npy", "lsm", "stk", "svs", "ndpi", "czi", "nd2", "lif", "oif", "oib", "nii",
    "nii.gz", "nrrd", "mha", "mhd", "mrc", "rec", "ims", "h5", "hdf5", "zarr.zip", "ozx",
];
/// End of the names of Cellpose's label files.
pub(crate) const CELLPOSE_ENDING: &str = "_seg.npy";

/// Returns the name of a file or folder without its extension. Extensions such as `.ome.tif`, `.ome.zarr`, `.zarr.zip` and
/// `.nii.gz` count as one.
pub fn file_stem(path: &Path) -> String {
    let name = name_of(path);
    let stem = JOINT_EXTENSIONS.iter().find_map(|extension| without(&name, extension));
    let stem = stem.or_else(|| name.rfind('.').and_then(|at| name.get(..at)).filter(|stem| !stem.is_empty()));
    stem.unwrap_or(&name).to_owned()
}

/// Returns what the names of a stack's results begin with: its [`file_stem`], where `_seg.npy` also counts as one extension.
pub fn stack_stem(path: &Path) -> String {
    let name = name_of(path);
    if name.is_empty() {
        return "stack".to_owned();
    }
    without(&name, CELLPOSE_ENDING).map_or_else(|| file_stem(path), str::to_owned)
}

/// Returns a file name in Unicode's composed form (NFC), in which names of the same text are equal: some programs and systems
/// write "é" as one character, others as a letter and an accent.
pub fn composed(name: &str) -> String {
    name.nfc().collect()
}

/// Returns whether the name of a file or folder is nothing but an extension, such as `.tif`, `.ome.zarr` or `_seg.npy`.
pub(crate) fn is_only_extension(path: &Path) -> bool {
    let name = name_of(path).to_lowercase();
    let is_single = name.strip_prefix('.').is_some_and(|extension| !extension.is_empty() && !extension.contains('.'));
    is_single || name == CELLPOSE_ENDING || JOINT_EXTENSIONS.contains(&name.as_str())
}

/// Returns the name of a file, which is empty if the path has none.
fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Returns `name` without `ending` (in lower case), ignoring case; `None` if it does not end in it or consists only of it.
fn without<'a>(name: &'a str, ending: &str) -> Option<&'a str> {
    let at = name.len().checked_sub(ending.len()).filter(|at| *at > 0)?;
    name.get(at..)?.eq_ignore_ascii_case(ending).then(|| name.get(..at)).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stems_are_names_without_extension() {
        for (file, stem) in [
            ("a/x.ome.tif", "x"),
            ("x.OME.TIFF", "x"),
            ("x.ome.btf", "x"),
            ("x.ome.zarr", "x"),
            ("x.ome.zarr.zip", "x"),
            ("x.zarr", "x"),
            ("x.ome.ozx", "x"),
            ("x.nii.gz", "x"),
            ("x_seg.npy", "x"),
            ("y.z.tif", "y.z"),
            (".hidden", ".hidden"),
            (".ome.tif", ".ome"),
            ("embryo", "embryo"),
            ("é.tif", "é"),
            ("/", "stack"),
        ] {
            assert_eq!(stack_stem(Path::new(file)), stem, "{file}");
        }
        assert_eq!(file_stem(Path::new("x_seg.npy")), "x_seg");
        assert_eq!(file_stem(Path::new("/")), "");
    }

    #[test]
    fn names_of_the_same_text_have_the_same_composed_form() {
        assert_eq!(composed("e\u{301}mb\u{d6}"), "\u{e9}mb\u{d6}");
        assert_eq!(composed("\u{e9}mbO\u{308}"), "\u{e9}mb\u{d6}");
        assert_eq!(composed("plain_1.tif"), "plain_1.tif");
    }

    #[test]
    fn a_name_that_is_only_an_extension_is_recognized() {
        for file in [".tif", "a/.TIF", ".npy", ".zarr", ".ome.tif", ".ome.zarr", ".zarr.zip", ".ozx", "_seg.npy"] {
            assert!(is_only_extension(Path::new(file)), "{file}");
        }
        for file in ["x.tif", ".hidden.tif", "a.zarr", "embryo", "x_seg.npy", ".ome.x.tif", ".", "..", "/"] {
            assert!(!is_only_extension(Path::new(file)), "{file}");
        }
    }
}

//! Names of stack files: without their extension, and in Unicode's composed form.

use std::{
    collections::HashMap,
    ffi::OsString,
    path::{Component, Path, PathBuf},
};
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

/// The names in folders, by which files are found whose names are written in another Unicode form than on the disk: some systems
/// change the form of names when files are copied. Each folder is listed once.
#[derive(Debug, Default)]
pub struct FolderNames(HashMap<PathBuf, HashMap<String, Option<OsString>>>);

impl FolderNames {
    /// Returns the path, as the disk has it, of a file or folder that `written` names relative to `folder`, if that does not exist
    /// itself; `None` if no name, or several, have the same text.
    pub fn find(&mut self, folder: &Path, written: &Path) -> Option<PathBuf> {
        if written.to_str().is_none_or(str::is_ascii) {
            return None;
        }
        let mut found = PathBuf::new();
        for part in written.components() {
            let parent = folder.join(&found);
            let name = match part {
                Component::Normal(name) if !parent.join(name).exists() => name,
                _ => {
                    found.push(part);
                    continue;
                }
            };
            let names = self.0.entry(parent).or_insert_with_key(|parent| names_in(parent));
            found.push(names.get(&composed(&name.to_string_lossy()))?.as_ref()?);
        }
        Some(found)
    }
}

/// Returns the path of a file that another file names, relative to their folder, as the disk has it, see [`FolderNames::find`].
pub(crate) fn on_disk(folder: &Path, written: &Path) -> PathBuf {
    FolderNames::default().find(folder, written).unwrap_or_else(|| written.to_owned())
}

/// The names in a folder by their composed form, `None` for several of the same text; empty if the folder cannot be listed.
fn names_in(folder: &Path) -> HashMap<String, Option<OsString>> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut names: HashMap<String, Option<OsString>> = HashMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        names.entry(composed(&name.to_string_lossy())).and_modify(|own| *own = None).or_insert(Some(name));
    }
    names
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
    #![allow(clippy::unwrap_used, reason = "a test")]
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
    fn files_are_found_by_names_in_another_unicode_form() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("e\u{301}")).unwrap();
        for name in ["e\u{301}/u\u{308}.tif", "plain.tif"] {
            std::fs::write(at(name), b"").unwrap();
        }
        let mut names = FolderNames::default();
        let found = names.find(folder.path(), Path::new("\u{e9}/\u{fc}.tif")).unwrap();
        assert!(folder.path().join(found).is_file());
        let absolute = names.find(Path::new("elsewhere"), &at("\u{e9}/\u{fc}.tif")).unwrap();
        assert!(absolute.is_absolute() && absolute.is_file());
        for other in ["\u{e9}/o\u{308}.tif", "\u{e8}/\u{fc}.tif", "Plain.tif"] {
            assert_eq!(names.find(folder.path(), Path::new(other)), None, "{other}");
        }
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

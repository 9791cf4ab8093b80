//! Checks of output paths: what they may replace.

use crate::StorageError;
use crate::write::PartialFile;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Policy for an output path that exists and was not created by this program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overwrite {
    /// An existing file or folder is an error.
    #[default]
    Refuse,
    /// Replace a file; move a folder aside under a new name.
    Replace,
}

impl Overwrite {
    /// `Replace` if the user passed `--force`, otherwise `Refuse`.
    pub fn from_force(force: bool) -> Self {
        if force { Self::Replace } else { Self::Refuse }
    }
}

/// Checks that an output file may be written: it is not an input, not a folder, and does not exist unless it may be
/// replaced.
///
/// # Errors
/// [`StorageError::IsInput`], [`StorageError::NotReplaceable`] for a folder, [`StorageError::Exists`], and those of
/// [`check_parent`].
pub fn check_file(path: &Path, inputs: &[&Path], overwrite: Overwrite) -> Result<(), StorageError> {
    refuse_input(path, inputs)?;
    check_parent(path)?;
    let ends_in_separator = path.to_string_lossy().ends_with(std::path::is_separator);
    if ends_in_separator && !path.is_dir() {
        let problem = "is the path of a folder, but the output is a file".to_owned();
        return Err(StorageError::NotReplaceable { path: path.to_owned(), problem, can_force: false });
    }
    let meta = match std::fs::symlink_metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(StorageError::io(path, "creating the file")(error)),
    };
    if meta.is_dir() {
        let problem = "is a folder, but the output is a file".to_owned();
        return Err(StorageError::NotReplaceable { path: path.to_owned(), problem, can_force: false });
    }
    // Other programs wait at a pipe, and a device is not restored by anyone; a link stands for its target.
    if std::fs::metadata(path).is_ok_and(|target| !target.is_file() && !target.is_dir()) {
        let problem = "is a pipe, a socket or a device, but the output is a regular file".to_owned();
        return Err(StorageError::NotReplaceable { path: path.to_owned(), problem, can_force: false });
    }
    match overwrite {
        Overwrite::Replace => Ok(()),
        Overwrite::Refuse => Err(StorageError::Exists { path: path.to_owned() }),
    }
}

/// Returns the extension of a file's name, in lower case and without its dot. A version number is not an extension:
/// `net-1.2` and `net.v2` have none.
pub fn extension(path: &Path) -> Option<String> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    let digits = extension.strip_prefix('v').unwrap_or(&extension);
    let is_version = digits.starts_with(|c: char| c.is_ascii_digit());
    (!is_version && !extension.is_empty() && extension.chars().all(|c| c.is_ascii_alphanumeric())).then_some(extension)
}

/// Checks that the extension of an output's name is one of the `known` ones, which are given without their dot; the empty
/// one stands for a folder.
///
/// # Errors
/// [`StorageError::Extension`], which lists the known extensions.
pub fn check_extension(path: &Path, known: &[&str]) -> Result<(), StorageError> {
    let given = extension(path);
    if known.contains(&given.as_deref().unwrap_or_default()) {
        return Ok(());
    }
    let found = given.map_or_else(|| "has no file extension".to_owned(), |extension| format!("ends in .{extension}"));
    let named = known.iter().map(|known| match *known {
        "" => "no file extension (for a folder)".to_owned(),
        extension => format!(".{extension}"),
    });
    let named: Vec<String> = named.collect();
    let expected = match named.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => named.join(", "),
    };
    Err(StorageError::Extension { path: path.to_owned(), found, expected })
}

/// Checks that the folder of an output path exists, before work is done that could not be saved.
///
/// # Errors
/// [`StorageError::NoFolder`] if it does not exist; [`StorageError::NotReplaceable`] if it, or a folder above it, is a file;
/// [`StorageError::Io`] if it cannot be read.
pub fn check_parent(path: &Path) -> Result<(), StorageError> {
    let folder = crate::write::parent_folder(path);
    let below_file = || {
        let problem = "cannot be written, because part of its path is a file, not a folder".to_owned();
        StorageError::NotReplaceable { path: path.to_owned(), problem, can_force: false }
    };
    match std::fs::metadata(folder) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(below_file()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => Err(below_file()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(StorageError::NoFolder { path: path.to_owned(), folder: folder.to_owned() })
        }
        Err(error) => Err(StorageError::io(path, "creating the file")(error)),
    }
}

/// Checks that a file can be created beside an output, before work is done that could not be saved.
///
/// # Errors
/// [`StorageError::Io`] if no file can be created there.
pub fn check_writable(path: &Path) -> Result<(), StorageError> {
    PartialFile::create(path).map(drop).map_err(StorageError::io(path, "creating the file"))
}

/// Checks that the path of a folder ends in its name, which `.` and `..` do not.
///
/// # Errors
/// [`StorageError::NotReplaceable`].
pub(crate) fn check_folder_name(path: &Path) -> Result<(), StorageError> {
    if path.file_name().is_some() {
        return Ok(());
    }
    let problem = "does not end in the name of a folder".to_owned();
    Err(StorageError::NotReplaceable { path: path.to_owned(), problem, can_force: false })
}

/// Checks that an output is neither an input nor a folder that contains one. Links and `..` are resolved first.
///
/// # Errors
/// [`StorageError::IsInput`].
pub fn refuse_input(path: &Path, inputs: &[&Path]) -> Result<(), StorageError> {
    let output = resolved(path);
    match inputs.iter().any(|input| resolved(input).starts_with(&output)) {
        true => Err(StorageError::IsInput { path: path.to_owned() }),
        false => Ok(()),
    }
}

/// Checks that a folder is not, and does not contain, the user's home folder, the current folder, or the folder of temporary
/// files: moved aside, documents, relative paths, or the files of running programs would not be found.
///
/// # Errors
/// [`StorageError::NotReplaceable`].
pub(crate) fn refuse_needed(path: &Path) -> Result<(), StorageError> {
    refuse_containing(path, std::env::home_dir(), "your home folder")?;
    refuse_containing(path, std::env::current_dir().ok(), "the current folder")?;
    refuse_containing(path, Some(std::env::temp_dir()), "the folder of temporary files")
}

/// Refuses a folder that is `needed`, or contains it; `what` describes it in messages.
fn refuse_containing(path: &Path, needed: Option<PathBuf>, what: &str) -> Result<(), StorageError> {
    let needed = needed.filter(|needed| !needed.as_os_str().is_empty());
    match needed.is_some_and(|needed| resolved(&needed).starts_with(resolved(path))) {
        true => {
            let problem = format!("is {what}, or contains it, so it is not replaced");
            Err(StorageError::NotReplaceable { path: path.to_owned(), problem, can_force: false })
        }
        false => Ok(()),
    }
}

/// Whether a path is directly below the root of the file system, where the folders of the system are.
pub(crate) fn is_top_level(path: &Path) -> bool {
    resolved(path).parent().is_some_and(|parent| parent.parent().is_none())
}

/// Returns the absolute path with links resolved in the part that exists; the rest is unchanged.
pub fn resolved(path: &Path) -> PathBuf {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut rest = Vec::new();
    let mut front = absolute.as_path();
    loop {
        if let Ok(found) = std::fs::canonicalize(front) {
            return rest.into_iter().rev().fold(found, |path, name| path.join(name));
        }
        match (front.parent(), front.file_name()) {
            (Some(parent), Some(name)) => {
                rest.push(name.to_owned());
                front = parent;
            }
            _ => return absolute,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn a_folder_in_which_nothing_can_be_created_is_found_and_the_check_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        assert!(check_writable(&folder.path().join("q")).is_ok());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let missing = check_writable(&folder.path().join("missing/q"));
        assert!(matches!(missing, Err(StorageError::Io { .. })), "{missing:?}");
    }

    #[test]
    fn existing_files_are_replaced_only_on_request_and_inputs_never() {
        let folder = tempfile::tempdir().unwrap();
        let (input, other) = (folder.path().join("in.tif"), folder.path().join("out.tif"));
        std::fs::write(&input, "in").unwrap();
        assert!(check_file(&other, &[&input], Overwrite::Refuse).is_ok());
        std::fs::write(&other, "out").unwrap();
        assert!(matches!(check_file(&other, &[&input], Overwrite::Refuse), Err(StorageError::Exists { .. })));
        assert!(check_file(&other, &[&input], Overwrite::Replace).is_ok());
        for spelled in ["in.tif", "./in.tif", "../x/in.tif"] {
            let x = folder.path().join("x");
            let _ = std::fs::create_dir(&x);
            let path =
                if spelled.starts_with("..") { x.join("..").join("in.tif") } else { folder.path().join(spelled) };
            let refused = check_file(&path, &[&input], Overwrite::Replace);
            assert!(matches!(refused, Err(StorageError::IsInput { .. })), "{spelled}");
        }
        let refused = check_file(folder.path(), &[], Overwrite::Replace);
        assert!(matches!(refused, Err(StorageError::NotReplaceable { .. })));
        assert!(
            matches!(refuse_input(folder.path(), &[&input]), Err(StorageError::IsInput { .. })),
            "a folder that contains the input"
        );
    }

    #[cfg(unix)]
    #[test]
    fn pipes_and_devices_are_never_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let [pipe, link] = ["pipe.tif", "link.tif"].map(|name| folder.path().join(name));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        for path in [pipe.as_path(), link.as_path(), Path::new("/dev/null")] {
            let refused = check_file(path, &[], Overwrite::Replace).unwrap_err();
            assert!(refused.to_string().contains("is a pipe, a socket or a device"), "{refused}");
        }
    }

    #[test]
    fn the_home_folder_is_never_replaced() {
        let parent = tempfile::tempdir().unwrap();
        let home = parent.path().join("home/me");
        std::fs::create_dir_all(home.join("out")).unwrap();
        let refuse = |path: &Path, home: Option<PathBuf>| refuse_containing(path, home, "your home folder");
        let is_refused = |path: &Path| refuse(path, Some(home.clone())).is_err();
        assert!(is_refused(&home) && is_refused(&home.join("out/..")) && is_refused(parent.path()));
        assert!(!is_refused(&home.join("out")) && !is_refused(&parent.path().join("home/you")));
        assert!(refuse(&home, None).is_ok() && refuse(&home, Some(PathBuf::new())).is_ok());
        let text = refuse(&home, Some(home.clone())).unwrap_err().to_string();
        assert!(text.contains("home folder") && text.ends_with("choose another path"), "{text}");
    }

    #[test]
    fn the_current_folder_and_that_of_temporary_files_are_never_replaced() {
        let current = std::env::current_dir().unwrap();
        for path in [current.as_path(), current.parent().unwrap()] {
            let text = refuse_needed(path).unwrap_err().to_string();
            assert!(text.contains("current folder") && text.ends_with("choose another path"), "{text}");
        }
        assert!(refuse_needed(&std::env::temp_dir()).is_err());
        let folder = tempfile::tempdir().unwrap();
        assert!(refuse_needed(folder.path()).is_ok() && refuse_needed(&folder.path().join("new")).is_ok());
    }

    #[cfg(unix)]
    #[test]
    fn folders_of_the_system_are_never_moved_aside() {
        assert!(is_top_level(Path::new("/usr")) && !is_top_level(Path::new("/usr/bin")));
        for overwrite in [Overwrite::Refuse, Overwrite::Replace] {
            let refused = crate::folder::check_finished(Path::new("/usr"), "package", &[], overwrite);
            assert!(
                matches!(refused, Err(StorageError::NotReplaceable { can_force: false, .. })),
                "{overwrite:?}: {refused:?}"
            );
        }
        let new = Path::new("/a-folder-that-does-not-exist");
        assert!(crate::folder::check_finished(new, "package", &[], Overwrite::Replace).is_ok());
    }

    #[test]
    fn a_missing_folder_of_an_output_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("no");
        let refused = check_file(&missing.join("a.tif"), &[], Overwrite::Replace).unwrap_err();
        assert!(matches!(&refused, StorageError::NoFolder { folder, .. } if *folder == missing), "{refused}");
        assert!(refused.to_string().ends_with("does not exist; create it, or choose another folder"), "{refused}");
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        for below in ["a.tif", "a/b.tif"] {
            let refused = check_parent(&file.join(below)).unwrap_err();
            assert!(matches!(refused, StorageError::NotReplaceable { can_force: false, .. }), "{below}: {refused}");
            assert!(refused.to_string().contains("part of its path is a file, not a folder"), "{refused}");
        }
    }

    #[test]
    fn a_file_is_not_written_to_the_path_of_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("there.csv"), "a").unwrap();
        for name in ["new.csv/", "there.csv/"] {
            let refused = check_file(&folder.path().join(name), &[], Overwrite::Replace).unwrap_err();
            assert!(refused.to_string().contains("is the path of a folder, but the output is a file"), "{refused}");
        }
        assert!(check_file(&folder.path().join("new.csv"), &[], Overwrite::Refuse).is_ok());
    }

    #[test]
    fn unknown_extensions_are_refused_with_the_known_ones() {
        for folder in ["out", "a/net-1.2", "net.v2", ".hidden", "a.zip/out"] {
            assert_eq!(extension(Path::new(folder)), None, "{folder}");
            assert!(check_extension(Path::new(folder), &["", "zip"]).is_ok(), "{folder}");
        }
        assert!(check_extension(Path::new("net.ZIP"), &["", "zip"]).is_ok());
        let refused = check_extension(Path::new("net.pth"), &["", "zip"]).unwrap_err().to_string();
        assert_eq!(
            refused,
            "net.pth ends in .pth; expected no file extension (for a folder) or .zip: choose another name"
        );
        let refused = check_extension(Path::new("out.tif"), &["", "zarr", "ozx"]).unwrap_err().to_string();
        assert!(refused.contains("expected no file extension (for a folder), .zarr or .ozx: "), "{refused}");
        let refused = check_extension(Path::new("net"), &["onnx"]).unwrap_err().to_string();
        assert_eq!(refused, "net has no file extension; expected .onnx: choose another name");
    }

    #[cfg(unix)]
    #[test]
    fn links_to_inputs_are_inputs_and_dangling_links_exist() {
        let folder = tempfile::tempdir().unwrap();
        let input = folder.path().join("in.tif");
        std::fs::write(&input, "in").unwrap();
        std::os::unix::fs::symlink("in.tif", folder.path().join("link.tif")).unwrap();
        std::os::unix::fs::symlink("nowhere", folder.path().join("dangling.tif")).unwrap();
        let refused = check_file(&folder.path().join("link.tif"), &[&input], Overwrite::Replace);
        assert!(matches!(refused, Err(StorageError::IsInput { .. })));
        let refused = check_file(&folder.path().join("dangling.tif"), &[&input], Overwrite::Refuse);
        assert!(matches!(refused, Err(StorageError::Exists { .. })));
    }
}

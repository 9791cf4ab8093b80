//! What an output path may replace.

use crate::StorageError;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// What happens to a file or folder that lies where an output goes and was not made by this program.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Overwrite {
    /// Nothing is replaced: the command ends with a sentence.
    #[default]
    Refuse,
    /// A file is replaced; a folder is moved aside under a new name.
    Replace,
}

impl Overwrite {
    /// `Replace` if the user asked for it (`--force`).
    pub fn from_force(force: bool) -> Self {
        if force { Self::Replace } else { Self::Refuse }
    }
}

/// Checks that an output file may be written: it is not an input, not a folder, and does not exist unless replacing was asked for.
///
/// # Errors
/// [`StorageError::IsInput`], [`StorageError::NotOurs`] for a folder, [`StorageError::Exists`], [`StorageError::Io`] where its folder
/// does not exist.
pub fn check_file(path: &Path, inputs: &[&Path], overwrite: Overwrite) -> Result<(), StorageError> {
    refuse_input(path, inputs)?;
    check_parent(path)?;
    let Ok(meta) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if meta.is_dir() {
        let problem = "is a folder, where a file is to be written".to_owned();
        return Err(StorageError::NotOurs { path: path.to_owned(), problem, can_force: false });
    }
    match overwrite {
        Overwrite::Replace => Ok(()),
        Overwrite::Refuse => Err(StorageError::Exists { path: path.to_owned() }),
    }
}

/// Refuses a path whose folder does not exist, before the work that would be lost.
///
/// # Errors
/// [`StorageError::Io`].
pub fn check_parent(path: &Path) -> Result<(), StorageError> {
    let folder = crate::write::parent_of(path);
    match std::fs::metadata(folder) {
        Ok(meta) if meta.is_dir() => Ok(()),
        Ok(_) => Err(StorageError::io(path, "creating the file")(std::io::ErrorKind::NotADirectory.into())),
        Err(error) => Err(StorageError::io(path, "creating the file")(error)),
    }
}

/// Refuses an output that is one of the inputs, or a folder around one. Links and `..` are resolved first.
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

/// An absolute path without links as far as the path exists; the rest as it is written.
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
    fn an_existing_file_is_replaced_only_when_asked_and_an_input_never() {
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
        assert!(matches!(refused, Err(StorageError::NotOurs { .. })));
        assert!(
            matches!(refuse_input(folder.path(), &[&input]), Err(StorageError::IsInput { .. })),
            "a folder around it"
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_link_to_an_input_is_the_input_and_a_dangling_link_exists() {
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

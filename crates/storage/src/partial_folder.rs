//! Folders of many files that appear at once: they are written under a hidden name next to their target and renamed.

use crate::folder::{move_aside, remove_marked};
use crate::manifest::{MARKER, Manifest};
use crate::target::{Overwrite, check_parent, refuse_input};
use crate::write::{RANDOM_CHARS, hidden_prefix, parent_of, partial_suffix, sweep_once, sync_folder};
use crate::{StorageError, read};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Component, Path, PathBuf};

/// Kind in the marker of an unfinished folder.
const KIND: &str = "unfinished";

/// Checks that a new folder may be written to a path: the path is not an input, nothing exists there or an empty
/// folder, or what exists may be moved aside.
///
/// # Errors
/// [`StorageError::IsInput`], [`StorageError::NotReplaceable`], or [`StorageError::Io`] if its folder does not exist.
pub fn check_new_folder(path: &Path, inputs: &[&Path], overwrite: Overwrite) -> Result<(), StorageError> {
    refuse_input(path, inputs)?;
    check_parent(path)?;
    if overwrite == Overwrite::Refuse && occupied(path)? {
        let problem = "already exists".to_owned();
        return Err(StorageError::NotReplaceable { path: path.to_owned(), problem, can_force: true });
    }
    Ok(())
}

/// Whether something other than an empty folder exists at a path.
fn occupied(path: &Path) -> Result<bool, StorageError> {
    let io = |error| StorageError::io(path, "reading the folder")(error);
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(io(error)),
        Ok(meta) if meta.is_dir() => Ok(std::fs::read_dir(path).map_err(io)?.next().is_some()),
        Ok(_) => Ok(true),
    }
}

/// A folder that is being written next to its target. It is removed when dropped before [`PartialFolder::publish`]; the
/// folder of a killed process is removed when the next file is written beside it.
#[derive(Debug)]
pub struct PartialFolder {
    partial: PathBuf,
    target: PathBuf,
    /// The marker, locked while the folder is written; `None` after it was published.
    marker: Option<File>,
}

impl PartialFolder {
    /// Creates an empty folder next to `target`.
    ///
    /// # Errors
    /// [`StorageError::Io`].
    pub fn create(target: &Path) -> Result<Self, StorageError> {
        let io = |error| StorageError::io(target, "creating the folder")(error);
        let Some(name) = target.file_name() else {
            return Err(io(io::Error::new(io::ErrorKind::InvalidInput, "the path has no folder name")));
        };
        let folder = parent_of(target);
        sweep_once(folder);
        let mut builder = tempfile::Builder::new();
        let prefix = hidden_prefix(name);
        builder.prefix(&prefix).suffix(partial_suffix()).rand_bytes(RANDOM_CHARS);
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
        let partial = builder.tempdir_in(folder).map_err(io)?.keep();
        let marked = File::create_new(partial.join(MARKER)).and_then(|mut marker| {
            // Where locks are not supported nothing is swept, so an unlocked folder is safe.
            let _ = marker.lock();
            marker.write_all(&Manifest::working(KIND).to_bytes()).map(|()| marker)
        });
        match marked {
            Ok(marker) => Ok(Self { partial, target: target.to_owned(), marker: Some(marker) }),
            Err(error) => {
                let _ = remove_marked(&partial);
                Err(io(error))
            }
        }
    }

    /// The path that the folder will have.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Writes a new file at a path relative to the folder, and the folders on the way to it, and flushes it to disk.
    ///
    /// # Errors
    /// [`StorageError::Io`]; a path that leaves the folder is refused, and so is a file that exists.
    pub fn write(&self, relative: &Path, bytes: &[u8]) -> Result<(), StorageError> {
        let io = |error| StorageError::io(&self.target.join(relative), "writing")(error);
        let plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
        if !plain || relative.file_name().is_none() || relative == Path::new(MARKER) {
            return Err(io(read::Refusal::NotRelative(relative.to_owned()).into()));
        }
        let path = self.partial.join(relative);
        let written = std::fs::create_dir_all(parent_of(&path)).and_then(|()| {
            let mut file = File::create_new(&path)?;
            file.write_all(bytes)?;
            file.sync_all()
        });
        written.map_err(io)
    }

    /// Renames the folder to its target. What exists there is moved aside if `overwrite` allows it; its new path is
    /// returned.
    ///
    /// # Errors
    /// As [`check_new_folder`]; the target is then unchanged, and the new folder is removed.
    pub fn publish(mut self, overwrite: Overwrite) -> Result<Option<PathBuf>, StorageError> {
        let io = |path: &Path, error| StorageError::io(path, "replacing the folder")(error);
        check_new_folder(&self.target, &[], overwrite)?;
        let mut aside = None;
        if occupied(&self.target)? {
            aside = Some(move_aside(&self.target)?);
        } else if self.target.is_dir() {
            std::fs::remove_dir(&self.target).map_err(|e| io(&self.target, e))?;
        }
        if cfg!(not(unix)) {
            // Elsewhere an open file prevents its folder from being renamed.
            self.marker = None;
        }
        if let Err(error) = std::fs::rename(&self.partial, &self.target) {
            if let Some(aside) = &aside {
                let _ = std::fs::rename(aside, &self.target);
            }
            // Dropping the handle removes the folder even if the marker was closed.
            let _ = remove_marked(&self.partial);
            self.marker = None;
            return Err(io(&self.target, error));
        }
        self.marker = None;
        // The folder is complete: the marker of unfinished folders is no longer true.
        let _ = std::fs::remove_file(self.target.join(MARKER));
        sync_folder(&self.target);
        Ok(aside)
    }
}

impl Drop for PartialFolder {
    fn drop(&mut self) {
        if self.marker.take().is_some() {
            let _ = remove_marked(&self.partial);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn folders_appear_with_all_their_files_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a.zarr");
        let partial = PartialFolder::create(&target).unwrap();
        partial.write(Path::new("0/c/0"), b"one").unwrap();
        partial.write(Path::new("zarr.json"), b"{}").unwrap();
        assert!(!target.exists());
        assert_eq!(partial.publish(Overwrite::Refuse).unwrap(), None);
        assert_eq!(std::fs::read(target.join("0/c/0")).unwrap(), b"one");
        assert_eq!(names(&target), ["0", "zarr.json"], "the marker is gone");
        let dropped = PartialFolder::create(&folder.path().join("b.zarr")).unwrap();
        dropped.write(Path::new("zarr.json"), b"{}").unwrap();
        drop(dropped);
        assert_eq!(names(folder.path()), ["a.zarr"]);
    }

    #[test]
    fn existing_folders_are_moved_aside_only_on_request() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a.zarr");
        std::fs::create_dir(&target).unwrap();
        std::fs::write(target.join("mine"), "data").unwrap();
        let write = |overwrite| {
            let partial = PartialFolder::create(&target).unwrap();
            partial.write(Path::new("zarr.json"), b"{}").unwrap();
            partial.publish(overwrite)
        };
        assert!(matches!(write(Overwrite::Refuse), Err(StorageError::NotReplaceable { can_force: true, .. })));
        assert_eq!(names(&target), ["mine"]);
        let aside = write(Overwrite::Replace).unwrap().unwrap();
        assert_eq!(std::fs::read(aside.join("mine")).unwrap(), b"data");
        assert_eq!(names(&target), ["zarr.json"]);
        let inside = target.join("zarr.json");
        let refused = check_new_folder(&target, &[&inside], Overwrite::Replace);
        assert!(matches!(refused, Err(StorageError::IsInput { .. })), "the input lies in the folder");
        assert_eq!(names(folder.path()).len(), 2, "no unfinished folder is left");
    }

    #[test]
    fn files_are_written_inside_the_folder_only() {
        let folder = tempfile::tempdir().unwrap();
        let partial = PartialFolder::create(&folder.path().join("a.zarr")).unwrap();
        for path in ["../b", "/b", "", "x/../../b", MARKER] {
            assert!(partial.write(Path::new(path), b"x").is_err(), "{path}");
        }
        drop(partial);
        assert!(names(folder.path()).is_empty());
    }
}

//! A folder for results that exists only if something is written to it.

use std::io;
use std::path::{Path, PathBuf};

/// A folder for results. When this is dropped, the folders that were created for it are removed if they are still empty, so
/// that a refused job leaves nothing behind.
#[derive(Debug)]
#[must_use = "the folder is removed at once if it is empty"]
pub struct ResultsFolder {
    /// The folders that were created, inner ones first.
    created: Vec<PathBuf>,
}

impl ResultsFolder {
    /// Creates a folder, and those that contain it, unless they exist.
    ///
    /// # Errors
    /// The error of the system; what was created before it is removed again.
    pub fn create(path: &Path) -> io::Result<Self> {
        let is_absent = |folder: &&Path| {
            let found = std::fs::symlink_metadata(folder);
            !folder.as_os_str().is_empty() && found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        // Without `.` at the end, which the system does not remove.
        let absent: Vec<PathBuf> =
            path.ancestors().take_while(is_absent).map(|folder| folder.components().collect()).collect();
        let mut folder = Self { created: Vec::new() };
        for inner in absent.into_iter().rev() {
            match std::fs::create_dir(&inner) {
                Ok(()) => folder.created.insert(0, inner),
                // Another program has created it meanwhile; it is not removed.
                Err(_) if inner.is_dir() => {}
                Err(error) => return Err(error),
            }
        }
        std::fs::create_dir_all(path)?;
        Ok(folder)
    }
}

impl Drop for ResultsFolder {
    fn drop(&mut self) {
        for folder in &self.created {
            match std::fs::remove_dir(folder) {
                // Another program has removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                // It holds results, and so do those around it.
                Err(_) => break,
                Ok(()) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn only_new_folders_in_which_nothing_was_written_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let (old, inner) = (parent.path().join("old"), parent.path().join("old/new/inner"));
        std::fs::create_dir(&old).unwrap();
        drop(ResultsFolder::create(&old).unwrap());
        assert!(old.is_dir(), "it existed before");
        let folder = ResultsFolder::create(&inner).unwrap();
        assert!(inner.is_dir());
        drop(folder);
        assert!(old.is_dir() && !old.join("new").exists());
        let folder = ResultsFolder::create(&inner).unwrap();
        std::fs::write(old.join("new/result"), "").unwrap();
        drop(folder);
        assert!(!inner.exists() && old.join("new/result").is_file());
        // Only `a` and `b` are new.
        let folder = ResultsFolder::create(&old.join("a/../b/.")).unwrap();
        assert!(old.join("b").is_dir());
        drop(folder);
        assert!(!old.join("a").exists() && !old.join("b").exists());
        // A file is in the way.
        let refused = ResultsFolder::create(&old.join("new/result/inner"));
        assert!(refused.is_err() && old.join("new/result").is_file());
    }
}

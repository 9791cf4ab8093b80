//! A name in a folder that one process at a time may write results under.

use crate::StorageError;
use crate::write::{LOCK, forget_unfinished, note_unfinished};
use std::fs::{File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};

/// How often a lock file that vanished between opening and locking is opened again.
const ATTEMPTS: usize = 16;

/// Results of one name, held until dropped. The lock goes with the process, however it ends.
#[derive(Debug)]
pub struct ResultsLock {
    file: File,
    path: PathBuf,
    keep: bool,
}

impl ResultsLock {
    /// Locks the results `folder/stem_*` by a hidden file that is removed when the lock is dropped.
    ///
    /// File systems without locks are taken as unlocked.
    ///
    /// # Errors
    /// [`StorageError::Busy`] if another process (or another job of this one) holds it; [`StorageError::Io`] if the file cannot be
    /// created.
    pub fn acquire(folder: &Path, stem: &str) -> Result<Self, StorageError> {
        Self::locked(folder.join(format!(".{stem}{LOCK}")), &folder.join(stem), false)
    }

    /// Locks a file that stays where it is; `shown` is the path named to the user.
    ///
    /// # Errors
    /// As [`ResultsLock::acquire`].
    pub fn of_file(path: PathBuf, shown: &Path) -> Result<Self, StorageError> {
        Self::locked(path, shown, true)
    }

    fn locked(path: PathBuf, shown: &Path, keep: bool) -> Result<Self, StorageError> {
        let busy = || StorageError::Busy { path: shown.to_owned() };
        for _ in 0..ATTEMPTS {
            let mut options = OpenOptions::new();
            options.create(true).truncate(false).write(true);
            refuse_links(&mut options);
            let file = options.open(&path).map_err(StorageError::io(&path, "creating the lock file"))?;
            match file.try_lock() {
                // A file system without locks, or without a service for them, cannot tell: then nobody else is taken to write.
                Ok(()) | Err(TryLockError::Error(_)) => {}
                Err(TryLockError::WouldBlock) => return Err(busy()),
            }
            // The one who held it before may have removed the file in between: then the lock is of a file without a name.
            if same_file(&file, &path) {
                if !keep {
                    note_unfinished(&path);
                }
                return Ok(Self { file, path, keep });
            }
        }
        Err(busy())
    }
}

impl Drop for ResultsLock {
    fn drop(&mut self) {
        if !self.keep {
            let _ = std::fs::remove_file(&self.path);
            forget_unfinished(&self.path);
        }
        let _ = self.file.unlock();
    }
}

#[cfg(unix)]
fn refuse_links(options: &mut OpenOptions) {
    use rustix::fs::OFlags;
    use std::os::unix::fs::OpenOptionsExt;
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
}

#[cfg(not(unix))]
fn refuse_links(_options: &mut OpenOptions) {}

#[cfg(unix)]
fn same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let (Ok(held), Ok(named)) = (file.metadata(), std::fs::symlink_metadata(path)) else { return false };
    (held.dev(), held.ino()) == (named.dev(), named.ino())
}

/// Elsewhere a file that is open keeps its name.
#[cfg(not(unix))]
fn same_file(_file: &File, path: &Path) -> bool {
    path.exists()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn one_at_a_time_and_nothing_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let held = ResultsLock::acquire(folder.path(), "a").unwrap();
        assert!(matches!(ResultsLock::acquire(folder.path(), "a"), Err(StorageError::Busy { .. })));
        drop(ResultsLock::acquire(folder.path(), "b").unwrap());
        drop(held);
        drop(ResultsLock::acquire(folder.path(), "a").unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        // One that a killed process left is no obstacle.
        std::fs::write(folder.path().join(".a.cytoscope-lock"), "").unwrap();
        ResultsLock::acquire(folder.path(), "a").unwrap();
    }
}

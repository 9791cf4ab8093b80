//! Locking the folder of a training run against other runs.

use super::{KIND, LOCK, RunFolder};
use cytoscope_pipeline::JobError;
use cytoscope_storage::lock::ResultsLock;
use cytoscope_storage::write::is_unfinished_name;
use cytoscope_storage::{Locked, MARKER, StorageError, folder};
use std::time::Duration;

/// Number of times that a folder is looked at while another run writes its marker.
const ATTEMPTS: usize = 50;
/// Time between two of them.
const POLL: Duration = Duration::from_millis(10);

impl RunFolder {
    /// Creates the folder if it does not exist, and locks it against other runs.
    ///
    /// # Errors
    /// [`StorageError::Busy`] if another run uses the folder; other [`StorageError`]s if it cannot be created, or was not
    /// created by a training run.
    pub(crate) fn lock(&self) -> Result<ResultsLock, JobError> {
        for _ in 0..ATTEMPTS {
            match folder::create_working(&self.path, KIND) {
                Err(StorageError::NotReplaceable { .. }) if self.is_being_created() || self.belongs_to_run() => {
                    std::thread::sleep(POLL);
                }
                created => {
                    created?;
                    return Ok(ResultsLock::in_folder(&self.path, LOCK)?);
                }
            }
        }
        Err(self.busy().into())
    }

    /// Waits until another run that is creating the folder has done so.
    ///
    /// # Errors
    /// [`StorageError::Busy`] if that takes too long.
    pub(super) fn wait_until_created(&self) -> Result<(), StorageError> {
        for _ in 0..ATTEMPTS {
            if !self.is_being_created() {
                return Ok(());
            }
            std::thread::sleep(POLL);
        }
        Err(self.busy())
    }

    /// Refuses the folder if another run uses it now.
    ///
    /// # Errors
    /// [`StorageError::Busy`].
    pub(crate) fn refuse_in_use(&self) -> Result<(), JobError> {
        // Locking would create the file.
        if !self.path.join(LOCK).is_file() {
            return Ok(());
        }
        match ResultsLock::in_folder(&self.path, LOCK) {
            Err(error @ StorageError::Busy { .. }) => Err(error.into()),
            // Another problem with the file is reported when the run locks the folder.
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Returns whether another run is writing the marker of the folder: nothing but that is in it.
    fn is_being_created(&self) -> bool {
        let Ok(entries) = std::fs::read_dir(&self.path) else { return false };
        let names: Vec<String> =
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        let is_marker = |name: &String| name.starts_with(&format!(".{MARKER}.")) && is_unfinished_name(name);
        names.iter().any(is_marker) && names.iter().all(|name| is_unfinished_name(name) || name == MARKER)
    }

    /// The error for a folder that another run uses.
    fn busy(&self) -> StorageError {
        StorageError::Busy { path: self.path.clone(), locked: Locked::Folder, holder: None }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use cytoscope_storage::write::PartialFile;

    #[test]
    fn a_folder_that_another_run_creates_or_uses_is_busy() {
        let parent = tempfile::tempdir().unwrap();
        let folder = RunFolder::for_package(&parent.path().join("m"));
        std::fs::create_dir(&folder.path).unwrap();
        let marker = PartialFile::create(&folder.path.join(MARKER)).unwrap();
        for refused in [folder.check(&[]).err(), folder.lock().err()] {
            let text = refused.unwrap().to_string();
            assert!(text.contains("another run") && text.contains("using this folder"), "{text}");
        }
        drop(marker);
        let lock = folder.lock().unwrap();
        let text = folder.refuse_in_use().unwrap_err().to_string();
        assert!(text.contains("another run") && text.contains("using this folder"), "{text}");
        drop(lock);
        folder.refuse_in_use().unwrap();
        folder.check(&[]).unwrap();
        // Folders without a lock, and those of other programs.
        RunFolder::for_package(&parent.path().join("none")).refuse_in_use().unwrap();
        let other = RunFolder::for_package(&parent.path().join("other"));
        std::fs::create_dir(&other.path).unwrap();
        std::fs::write(other.path.join("notes.txt"), "mine").unwrap();
        assert!(other.check(&[]).unwrap_err().to_string().contains("did not make it"));
        assert!(matches!(other.lock().unwrap_err(), JobError::Storage(StorageError::NotReplaceable { .. })));
    }

    #[test]
    fn the_unfinished_marker_of_another_machine_blocks_a_folder_for_ten_minutes() {
        let parent = tempfile::tempdir().unwrap();
        let folder = RunFolder::for_package(&parent.path().join("m"));
        std::fs::create_dir(&folder.path).unwrap();
        let path = folder.path.join(format!(".{MARKER}.abcdefghijkl.another0.cytoscope-partial"));
        let marker = std::fs::File::create(&path).unwrap();
        assert!(matches!(folder.lock().unwrap_err(), JobError::Storage(StorageError::Busy { .. })));
        marker.set_modified(std::time::SystemTime::now() - Duration::from_secs(601)).unwrap();
        folder.check(&[]).unwrap();
        drop(folder.lock().unwrap());
        assert!(folder.belongs_to_run() && !path.exists());
    }
}

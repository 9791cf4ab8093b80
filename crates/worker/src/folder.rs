//! The private folder of a worker, and cleaning up after dead workers.
//!
//! The folder is in the system's temporary folder and accessible to its owner only. It contains a marker file that is
//! locked while the worker lives; the system releases the lock however the process ends. A journal in the folder lists
//! the folders that jobs write results to, so that partly written files of a killed worker can be found.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Prefix of the names of private folders; the process id follows.
const PREFIX: &str = "cytoscope-worker-";
/// File name of the marker.
const MARKER: &str = "marker.json";
/// File name of the journal: one JSON string per line.
const JOURNAL: &str = "writing.jsonl";
/// Maximum number of bytes read from a marker or journal.
const MAX_READ_BYTES: u64 = 4 << 20;

/// Contents of the marker file.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Marker {
    /// Always `cytoscope worker`.
    of: String,
    pid: u32,
}

/// The private folder of this worker; removed when dropped.
#[derive(Debug)]
pub(super) struct PrivateFolder {
    path: PathBuf,
    lock: Mutex<Option<File>>,
    journal: Mutex<BTreeSet<PathBuf>>,
}

impl PrivateFolder {
    /// Creates a folder in `parent` that only its owner can access.
    pub(super) fn create(parent: &Path) -> io::Result<Self> {
        let prefix = format!("{PREFIX}{}-", std::process::id());
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix);
        #[cfg(unix)]
        let owner = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        #[cfg(unix)]
        builder.permissions(owner);
        let folder = builder.tempdir_in(parent)?;
        let mut file = File::create_new(folder.path().join(MARKER))?;
        // The file is locked before anything is written, so a non-empty marker without a lock belongs to a dead worker.
        // On file systems without locks, no worker is known to be dead, and nothing is removed.
        match file.lock() {
            Err(error) if error.kind() != io::ErrorKind::Unsupported => return Err(error),
            _ => {}
        }
        let marker = Marker { of: "cytoscope worker".to_owned(), pid: std::process::id() };
        serde_json::to_writer(&mut file, &marker)?;
        Ok(Self { path: folder.keep(), lock: Mutex::new(Some(file)), journal: Mutex::default() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Records a folder that results are written to.
    pub(super) fn record_output_folder(&self, folder: &Path) {
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        if self.journal.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.clone()) {
            let line = serde_json::to_string(&folder).map_err(io::Error::from);
            let recorded = line.and_then(|line| {
                let mut file = File::options().create(true).append(true).open(self.path.join(JOURNAL))?;
                file.write_all(format!("{line}\n").as_bytes())
            });
            if let Err(error) = recorded {
                eprintln!(
                    "note: partly written files in {} will not be removed after a crash ({error})",
                    folder.display()
                );
            }
        }
    }

    /// Removes this process' partly written results, for a job that does not respond.
    pub(super) fn remove_unfinished(&self) {
        cytoscope_storage::write::remove_unfinished();
    }
}

impl PrivateFolder {
    /// Removes the folder, even if threads still refer to it.
    pub(super) fn remove_now(&self) {
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner).take());
        // The process is ending; the next worker cleans up what is left.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        self.remove_now();
    }
}

/// Reads a small file as text.
fn read_small(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_READ_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Returns the process id of the worker that a folder belongs to, according to its name and marker; `None` if it is not
/// a worker's folder or belongs to another user.
fn owner(folder: &Path, own_folder: &Path) -> Option<u32> {
    let name = folder.file_name()?.to_str()?;
    let pid: u32 = name.strip_prefix(PREFIX)?.split('-').next()?.parse().ok()?;
    let of = std::fs::symlink_metadata(folder).ok()?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        if std::fs::metadata(own_folder).ok()?.uid() != of.uid() {
            return None;
        }
    }
    // Only Unix has owners to compare.
    #[cfg(not(unix))]
    let _ = own_folder;
    let marker: Marker = serde_json::from_str(&read_small(&folder.join(MARKER))?).ok()?;
    (of.is_dir() && marker.pid == pid && marker.of == "cytoscope worker").then_some(pid)
}

/// Removes a dead worker's folder and its partly written files.
fn remove(folder: &Path) {
    // Without a readable list, partly written files keep their hidden names; the folder itself is still removed.
    for line in read_small(&folder.join(JOURNAL)).unwrap_or_default().lines() {
        if let Ok(out) = serde_json::from_str::<PathBuf>(line) {
            cytoscope_storage::write::sweep(&out);
        }
    }
    // The next worker that starts tries again.
    let _ = std::fs::remove_dir_all(folder);
}

/// Returns whether a process with this id exists, if the system reports it; the id may have been reused by another
/// program.
fn may_live(pid: u32) -> bool {
    cfg!(target_os = "linux") && pid != std::process::id() && Path::new("/proc").join(pid.to_string()).exists()
}

/// Removes the folders in `parent` that dead workers left: their process has ended and their marker is not locked.
/// `own_folder` is a folder of the current user, by whose owner the user's folders are recognized.
pub(super) fn sweep(parent: &Path, own_folder: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let folder = entry.path();
        if owner(&folder, own_folder).is_some_and(|pid| !may_live(pid)) {
            remove_if_dead(&folder);
        }
    }
}

/// Removes what the worker `pid` left in `parent`; it must have ended.
pub(super) fn remove_leftovers(parent: &Path, pid: u32) {
    let prefix = format!("{PREFIX}{pid}-");
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let folder = entry.path();
        let named = entry.file_name().to_string_lossy().starts_with(&prefix);
        if named && owner(&folder, &folder) == Some(pid) {
            remove_if_dead(&folder);
        }
    }
}

/// Removes a folder whose marker is not locked.
fn remove_if_dead(folder: &Path) {
    let unlocked = File::open(folder.join(MARKER)).is_ok_and(|marker| marker.try_lock().is_ok());
    if unlocked {
        remove(folder);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;

    /// Creates a folder as a worker with this process id would have left it.
    fn left(parent: &Path, pid: u32, out: &Path) -> PathBuf {
        let folder = parent.join(format!("{PREFIX}{pid}-abc"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join(MARKER), format!("{{\"of\":\"cytoscope worker\",\"pid\":{pid}}}")).unwrap();
        std::fs::write(folder.join(JOURNAL), format!("{}\nno json\n", serde_json::to_string(out).unwrap())).unwrap();
        std::fs::write(folder.join("live.f32"), [0; 64]).unwrap();
        folder
    }

    #[test]
    fn only_folders_of_dead_workers_are_removed() {
        let (parent, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        // Unfinished files with the names used on this machine; the file of a living process is locked.
        let probe = cytoscope_storage::write::PartialFile::create(&out.path().join("a_raw.tif")).unwrap();
        let name = std::fs::read_dir(out.path()).unwrap().next().unwrap().unwrap().file_name();
        drop(probe);
        let name = name.to_str().unwrap().strip_prefix(".a_raw.tif.").unwrap().to_owned();
        let half = |n: u32| out.path().join(format!(".{n}.tif.{name}"));
        [1_000_001, 1_000_002].iter().for_each(|n| std::fs::write(half(*n), "x").unwrap());
        let writing = File::open(half(1_000_002)).unwrap();
        writing.lock().unwrap();
        std::fs::write(out.path().join("b.tif.cytoscope-partial"), "named so by someone").unwrap();
        let dead = left(parent.path(), 1_000_001, out.path());
        // Alive, because its marker is locked.
        let alive = left(parent.path(), 1_000_002, out.path());
        let lock = File::open(alive.join(MARKER)).unwrap();
        lock.lock().unwrap();
        // Not a worker's: no marker, another marker, a marker of another process, a file.
        let others = ["1000003-a", "1000004-b", "1000005-c"].map(|n| parent.path().join(format!("{PREFIX}{n}")));
        others.iter().for_each(|o| std::fs::create_dir(o).unwrap());
        std::fs::write(others[1].join(MARKER), "{}").unwrap();
        std::fs::write(others[2].join(MARKER), "{\"of\":\"cytoscope worker\",\"pid\":1}").unwrap();
        std::fs::write(parent.path().join(format!("{PREFIX}1000006-d")), "a file").unwrap();
        let own_folder = PrivateFolder::create(parent.path()).unwrap();
        sweep(parent.path(), own_folder.path());
        assert!(!dead.exists() && !half(1_000_001).exists());
        assert!(alive.join("live.f32").exists() && half(1_000_002).exists());
        assert!(others.iter().all(|o| o.exists()) && out.path().join("b.tif.cytoscope-partial").exists());
        assert!(own_folder.path().join(MARKER).exists(), "the worker's own folder stays");
        remove_leftovers(parent.path(), 1_000_002);
        assert!(alive.join("live.f32").exists(), "same process id, but alive, such as in another container");
        drop(lock);
        drop(writing);
        remove_leftovers(parent.path(), 1_000_002);
        assert!(!alive.exists() && !half(1_000_002).exists());
    }

    #[test]
    fn the_folder_is_private_and_removed_with_its_worker() {
        let parent = tempfile::tempdir().unwrap();
        let folder = PrivateFolder::create(parent.path()).unwrap();
        let path = folder.path().to_owned();
        #[cfg(unix)]
        {
            let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
            assert_eq!(mode & 0o777, 0o700);
        }
        assert!(path.file_name().unwrap().to_str().unwrap().contains(&std::process::id().to_string()));
        let out = tempfile::tempdir().unwrap();
        let half = cytoscope_storage::write::PartialFile::create(&out.path().join("x")).unwrap();
        folder.record_output_folder(out.path());
        folder.record_output_folder(out.path());
        assert_eq!(std::fs::read_to_string(path.join(JOURNAL)).unwrap().lines().count(), 1);
        folder.remove_unfinished();
        drop(folder);
        assert!(!path.exists() && std::fs::read_dir(out.path()).unwrap().next().is_none());
        drop(half);
    }
}

//! Locks on the name of results in a folder, on a file and on a folder, so that only one process at a time writes there.

use crate::write::{LOCK, machine_id, machine_name, parent_folder, register_unfinished, unregister_unfinished};
use crate::{Holder, Locked, StorageError, sha256_of_bytes};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Write};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Maximum time that [`ResultsLock::for_update`] waits for another process, which reads and writes one small file.
const UPDATE_LIMIT: Duration = Duration::from_secs(10);
/// Time between two attempts of [`ResultsLock::for_update`].
const UPDATE_POLL: Duration = Duration::from_millis(5);
/// Number of times a lock file that was deleted between opening and locking is opened again.
const ATTEMPTS: usize = 16;
/// Largest number of bytes of a name that is part of the name of its lock file; file systems allow 255 in all.
const MAX_NAME_BYTES: usize = 200;
/// Maximum number of bytes that are read from a lock file; the name of a machine has at most 255.
const MAX_HOLDER_BYTES: u64 = 512;

/// A locked file, unlocked when dropped. Closing it does not suffice: a child process that another thread starts inherits the
/// file, and holds the lock until it executes its program.
#[derive(Debug)]
pub struct LockedFile(File);

impl LockedFile {
    /// Takes over a file that was locked, or that is on a file system without locks.
    pub fn new(file: File) -> Self {
        Self(file)
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl DerefMut for LockedFile {
    fn deref_mut(&mut self) -> &mut File {
        &mut self.0
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // On file systems without locks there is nothing to unlock.
        let _ = self.0.unlock();
    }
}

/// A lock on the results with one name, a file or a folder, held until dropped. The system releases it when the process ends.
#[derive(Debug)]
pub struct ResultsLock {
    /// Unlocked after the file is removed.
    file: LockedFile,
    path: PathBuf,
    keep: bool,
}

impl ResultsLock {
    /// Locks the results `folder/stem_*` with a hidden file that is removed when the lock is dropped.
    ///
    /// On file systems that do not support locks, the results count as unlocked.
    ///
    /// # Errors
    /// [`StorageError::Busy`] if another process (or another job of this one) holds the lock; [`StorageError::Io`] if
    /// the file cannot be created.
    pub fn acquire(folder: &Path, stem: &str) -> Result<Self, StorageError> {
        Self::hidden(folder, stem, Locked::Results)
    }

    /// Locks a folder, which need not exist, with a hidden file beside it that is removed when the lock is dropped.
    ///
    /// # Errors
    /// Same as [`ResultsLock::acquire`].
    pub fn beside_folder(folder: &Path) -> Result<Self, StorageError> {
        Self::hidden(folder.parent().unwrap_or(Path::new("")), &name_text(folder), Locked::Folder)
    }

    /// Locks a folder with a file in it that is not removed afterwards.
    ///
    /// # Errors
    /// Same as [`ResultsLock::acquire`].
    pub fn in_folder(folder: &Path, name: &str) -> Result<Self, StorageError> {
        Self::lock_file(folder.join(name), folder, Locked::Folder, true)
    }

    /// Locks a file that is read, changed and written again, so that processes that do so at the same time keep each other's
    /// changes. Creates the folder of the file, and waits while another process holds the lock, for at most 10 s.
    ///
    /// # Errors
    /// Same as [`ResultsLock::acquire`], and [`StorageError::Io`] if the folder cannot be created.
    pub fn for_update(path: &Path) -> Result<Self, StorageError> {
        let folder = path.parent().unwrap_or(Path::new(""));
        std::fs::create_dir_all(folder).map_err(StorageError::io(folder, "creating the folder"))?;
        let (name, start) = (short_name(name_text(path)), Instant::now());
        loop {
            match Self::lock_file(folder.join(format!(".{name}{LOCK}")), path, Locked::File, false) {
                Err(StorageError::Busy { .. }) if start.elapsed() < UPDATE_LIMIT => std::thread::sleep(UPDATE_POLL),
                result => return result,
            }
        }
    }

    /// Locks `folder/stem` with a hidden file that is removed when the lock is dropped.
    fn hidden(folder: &Path, stem: &str, locked: Locked) -> Result<Self, StorageError> {
        Self::lock_file(folder.join(format!(".{stem}{LOCK}")), &folder.join(stem), locked, false)
    }

    /// Locks the file `path`; `shown` is the path for error messages.
    fn lock_file(path: PathBuf, shown: &Path, locked: Locked, keep: bool) -> Result<Self, StorageError> {
        let busy = |lock: &Path| StorageError::Busy { path: shown.to_owned(), locked, holder: lock_holder(lock) };
        for _ in 0..ATTEMPTS {
            let mut options = OpenOptions::new();
            options.create(true).truncate(false).write(true);
            refuse_links(&mut options);
            // The hidden name means nothing to users.
            let file = options.open(&path).map_err(StorageError::io(parent_folder(&path), "creating a file"))?;
            match file.try_lock() {
                // On file systems without lock support, no other process is assumed to write.
                Ok(()) | Err(TryLockError::Error(_)) => {}
                Err(TryLockError::WouldBlock) => return Err(busy(&path)),
            }
            // The previous holder may have removed the file meanwhile; the lock is then on a deleted file.
            if is_at(&file, &path) {
                if !keep {
                    register_unfinished(&path);
                }
                name_holder(&file);
                return Ok(Self { file: LockedFile::new(file), path, keep });
            }
        }
        Err(busy(&path))
    }
}

impl Drop for ResultsLock {
    fn drop(&mut self) {
        if !self.keep {
            // A leftover lock file is not locked, so the next process takes it.
            let _ = std::fs::remove_file(&self.path);
            unregister_unfinished(&self.path);
        } else {
            // The next holder names itself.
            let _ = self.file.set_len(0);
        }
    }
}

/// Writes the id of this process and the machine to a lock file, for the messages of processes that find it locked.
fn name_holder(mut file: &File) {
    let text = format!("{} {} {}", std::process::id(), machine_id(), machine_name());
    // If it fails, for example because the disk is full, these messages name no process.
    let _ = file.set_len(0).and_then(|()| file.write_all(text.as_bytes()));
}

/// Returns the process that holds the lock on a file, as [`name_holder`] has named it; `None` if it is on another machine
/// without a name, or where a locked file cannot be read.
fn lock_holder(path: &Path) -> Option<Holder> {
    let mut text = String::new();
    crate::read::open_regular(path).ok()?.take(MAX_HOLDER_BYTES).read_to_string(&mut text).ok()?;
    let mut words = text.split(' ');
    let pid = words.next()?.parse().ok()?;
    if words.next()? == machine_id() {
        return Some(Holder { pid, is_killed: is_killed(pid), machine: None });
    }
    // The text comes from a file and is shown: it must be a name and nothing else.
    let is_in_names = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let name = words.next().filter(|name| !name.is_empty() && name.chars().all(is_in_names))?;
    words.next().is_none().then(|| Holder { pid, is_killed: false, machine: Some(name.to_owned()) })
}

/// Returns whether a process was killed and has not ended yet.
#[cfg(target_os = "linux")]
fn is_killed(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|status| says_killed(&status))
}

/// Other systems are not asked.
#[cfg(not(target_os = "linux"))]
fn is_killed(_pid: u32) -> bool {
    false
}

/// Returns whether the status of a process in `/proc` says that it is to be killed by signal 9, or that its first thread has
/// ended: a process whose other threads have ended, too, holds no lock.
#[cfg(any(target_os = "linux", test))]
fn says_killed(status: &str) -> bool {
    const KILL: u64 = 1 << 8;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let is_pending = |name: &str| {
        let signals = field(name).and_then(|bits| u64::from_str_radix(bits, 16).ok());
        signals.is_some_and(|signals| signals & KILL != 0)
    };
    field("State:").is_some_and(|state| state.starts_with('Z')) || is_pending("SigPnd:") || is_pending("ShdPnd:")
}

/// The name of a file or folder as text.
fn name_text(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Returns a name, or its hash if a hidden file could not have it as a part of its name.
fn short_name(name: String) -> String {
    if name.len() <= MAX_NAME_BYTES { name } else { sha256_of_bytes(name.as_bytes()) }
}

#[cfg(unix)]
pub(crate) fn refuse_links(options: &mut OpenOptions) {
    use rustix::fs::OFlags;
    use std::os::unix::fs::OpenOptionsExt;
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
}

#[cfg(not(unix))]
pub(crate) fn refuse_links(_options: &mut OpenOptions) {}

/// Whether an open file still has this path: it may have been removed or replaced before it was locked.
#[cfg(unix)]
pub fn is_at(file: &File, path: &Path) -> bool {
    is_same(file, std::fs::symlink_metadata(path))
}

/// Like [`is_at`], for a path that may be a link to the file.
#[cfg(unix)]
pub fn is_linked_at(file: &File, path: &Path) -> bool {
    is_same(file, std::fs::metadata(path))
}

/// Whether an open file is the one that has this metadata.
#[cfg(unix)]
fn is_same(file: &File, named: std::io::Result<std::fs::Metadata>) -> bool {
    use std::os::unix::fs::MetadataExt;
    let (Ok(opened), Ok(named)) = (file.metadata(), named) else { return false };
    (opened.dev(), opened.ino()) == (named.dev(), named.ino())
}

/// Whether an open file still has this path. On other systems an open file cannot be replaced.
#[cfg(not(unix))]
pub fn is_at(_file: &File, path: &Path) -> bool {
    path.exists()
}

/// Like [`is_at`], for a path that may be a link to the file.
#[cfg(not(unix))]
pub fn is_linked_at(_file: &File, path: &Path) -> bool {
    path.exists()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn writers_that_wait_for_each_other_lose_no_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/count");
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let _lock = ResultsLock::for_update(&path).unwrap();
                        let count = std::fs::read_to_string(&path).map_or(0, |text| text.parse::<u32>().unwrap());
                        std::fs::write(&path, (count + 1).to_string()).unwrap();
                    }
                });
            }
        });
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "40");
        assert_eq!(std::fs::read_dir(folder.path().join("new")).unwrap().count(), 1, "no lock remains");
    }

    #[test]
    fn a_file_with_the_longest_name_can_be_locked() {
        let folder = tempfile::tempdir().unwrap();
        let path = |last: &str| folder.path().join("x".repeat(254) + last);
        let _held = [path("a"), path("b")].map(|path| ResultsLock::for_update(&path).unwrap());
        let locks = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(locks.filter(|name| name.to_str().unwrap().ends_with(LOCK)).count(), 2);
    }

    #[test]
    fn a_dropped_lock_is_released_although_another_handle_of_its_file_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let file = File::create(&path).unwrap();
        file.try_lock().unwrap();
        let (held, inherited) = (LockedFile::new(file.try_clone().unwrap()), file);
        let other = File::open(&path).unwrap();
        assert!(matches!(other.try_lock(), Err(TryLockError::WouldBlock)));
        drop(held);
        other.try_lock().unwrap();
        drop(inherited);
    }

    #[test]
    fn one_lock_at_a_time_and_no_file_is_left_behind() {
        let folder = tempfile::tempdir().unwrap();
        let held = ResultsLock::acquire(folder.path(), "a").unwrap();
        assert!(matches!(ResultsLock::acquire(folder.path(), "a"), Err(StorageError::Busy { .. })));
        drop(ResultsLock::acquire(folder.path(), "b").unwrap());
        drop(held);
        drop(ResultsLock::acquire(folder.path(), "a").unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        // A file left by a killed process does not count as locked.
        std::fs::write(folder.path().join(".a.cytoscope-lock"), "").unwrap();
        ResultsLock::acquire(folder.path(), "a").unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn an_open_file_that_was_removed_or_replaced_is_no_longer_at_its_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("queue");
        let file = File::create(&path).unwrap();
        assert!(is_at(&file, &path));
        crate::write::atomic_write(&path, b"replaced").unwrap();
        let replaced = File::open(&path).unwrap();
        assert!(!is_at(&file, &path) && is_at(&replaced, &path));
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(!is_at(&replaced, &link) && is_linked_at(&replaced, &link) && !is_linked_at(&file, &link));
        std::fs::remove_file(&path).unwrap();
        assert!(!is_at(&file, &path));
    }

    #[test]
    fn a_process_that_was_killed_and_waits_for_a_driver_is_recognized() {
        let status = |state: &str, own: &str, shared: &str| {
            format!(
                "Name:\tcytoscope\nState:\t{state}\nPid:\t7\nSigPnd:\t{own}\nShdPnd:\t{shared}\nSigBlk:\t00000000000001ff\n"
            )
        };
        let (none, kill, terminate) = ("0000000000000000", "0000000000000100", "0000000000004000");
        assert!(says_killed(&status("D (disk sleep)", none, kill)));
        assert!(says_killed(&status("D (disk sleep)", kill, none)));
        assert!(says_killed(&status("Z (zombie)", none, none)), "another thread waits");
        for alive in [status("D (disk sleep)", none, none), status("S (sleeping)", none, terminate), String::new()] {
            assert!(!says_killed(&alive), "{alive}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn the_process_that_holds_a_lock_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (lock, own) =
            (folder.path().join("lock"), Holder { pid: std::process::id(), is_killed: false, machine: None });
        let held = ResultsLock::in_folder(folder.path(), "lock").unwrap();
        assert_eq!(lock_holder(&lock), Some(own.clone()));
        let refused = ResultsLock::in_folder(folder.path(), "lock").unwrap_err().to_string();
        assert!(refused.contains(&format!("another run of Cytoscope (process {}) is", own.pid)), "{refused}");
        drop(held);
        assert_eq!(lock_holder(&lock), None, "nobody holds it");
        for other in ["7 another", "7 another ", "7 another gpu server", "7 another \u{1b}[2J", "text", "x 1", ""] {
            std::fs::write(&lock, other).unwrap();
            assert_eq!(lock_holder(&lock), None, "{other}");
        }
        std::fs::write(&lock, "7 another gpu-server.local").unwrap();
        let machine = Some("gpu-server.local".to_owned());
        assert_eq!(lock_holder(&lock), Some(Holder { pid: 7, is_killed: false, machine }));
    }

    #[test]
    fn a_folder_in_which_nothing_can_be_locked_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let missing = folder.path().join("missing");
        let text = ResultsLock::acquire(&missing, "a").unwrap_err().to_string();
        assert!(text.starts_with(&format!("{}: creating a file failed: ", missing.display())), "{text}");
        assert!(!text.contains(LOCK), "{text}");
    }

    #[test]
    fn the_message_of_a_lock_names_what_is_locked() {
        let folder = tempfile::tempdir().unwrap();
        let (results, working) = (folder.path().join("a"), folder.path().join("w"));
        std::fs::create_dir(&working).unwrap();
        let _held = [
            ResultsLock::acquire(folder.path(), "a").unwrap(),
            ResultsLock::beside_folder(&working).unwrap(),
            ResultsLock::in_folder(&working, "lock").unwrap(),
        ];
        let refused = [
            (ResultsLock::acquire(folder.path(), "a"), &results, "writing these results"),
            (ResultsLock::beside_folder(&working), &working, "using this folder"),
            (ResultsLock::in_folder(&working, "lock"), &working, "using this folder"),
        ];
        for (refused, path, what) in refused {
            let message = refused.unwrap_err().to_string();
            assert!(message.starts_with(&format!("{}: ", path.display())) && message.contains(what), "{message}");
        }
        let settings = folder.path().join("machine-profiles.json");
        let _held = ResultsLock::for_update(&settings).unwrap();
        // Waiting for it takes long.
        let busy = ResultsLock::hidden(folder.path(), "machine-profiles.json", Locked::File).unwrap_err().to_string();
        assert!(busy.contains("machine-profiles.json: ") && busy.contains("changing this file"), "{busy}");
        assert!(!busy.contains("results"), "{busy}");
    }
}

//! Files that appear whole or not at all: written beside their target, synced, renamed.
//!
//! An unfinished file has a random hidden name, is created new (so that a planted link or pipe is never written through), and is
//! locked while its process lives. What a killed process left is therefore recognised by its name and its missing lock, and
//! removed when the next file is written to that folder.

use crate::StorageError;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

/// How names of unfinished files and folders end.
pub(crate) const PARTIAL: &str = ".cytoscope-partial";
/// How names of lock files end.
pub(crate) const LOCK: &str = ".cytoscope-lock";
/// Random letters and digits in such a name.
pub(crate) const RANDOM_CHARS: usize = 12;
/// Bytes written at a time.
const BUFFER_BYTES: usize = 1 << 18;
/// Bytes of the target's name kept in that of the unfinished file: file systems end at 255.
const MAX_NAME_BYTES: usize = 180;
/// Letters and digits that stand for a machine.
const MACHINE_CHARS: usize = 8;
/// How often a file that another process swept away between creating and locking is created again.
const ATTEMPTS: usize = 8;

/// Unfinished files of this process.
static UNFINISHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
/// Folders looked through by this process for what killed processes left.
static SWEPT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn unfinished() -> std::sync::MutexGuard<'static, BTreeSet<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes every unfinished file of this process, for a process that ends without waiting for its jobs.
pub fn remove_unfinished() {
    for path in std::mem::take(&mut *unfinished()) {
        let _ = std::fs::remove_file(path);
    }
}

/// Removes unfinished files (and folders) that processes of this machine which have ended left in a folder.
pub fn sweep(folder: &Path) {
    let partial = partial_suffix();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        let is_lock = name.ends_with(LOCK.as_bytes());
        if !name.starts_with(b".") || !(is_lock || name.ends_with(partial.as_bytes())) {
            continue;
        }
        match entry.file_type() {
            Ok(kind) if kind.is_file() => remove_if_unlocked(&entry.path()),
            Ok(kind) if kind.is_dir() => crate::folder::remove_if_abandoned(&entry.path()),
            _ => {}
        }
    }
}

fn remove_if_unlocked(path: &Path) {
    // A file system without locks cannot tell the living from the dead: its files stay.
    let Ok(file) = crate::read::open_regular(path) else { return };
    if file.try_lock().is_ok() {
        // Held while it is removed: who created it a moment ago and waits for the lock finds its name gone, and creates another.
        let _ = std::fs::remove_file(path);
    }
}

/// How names of unfinished files of this machine end. On a network drive locks may be known to one machine alone, so that files of
/// others are left to them.
pub(crate) fn partial_suffix() -> &'static str {
    static SUFFIX: OnceLock<String> = OnceLock::new();
    SUFFIX.get_or_init(|| format!(".{}{PARTIAL}", machine()))
}

/// Letters and digits that stand for this machine.
fn machine() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname().nodename().to_bytes().to_vec();
    #[cfg(not(unix))]
    let name = std::env::var("COMPUTERNAME").unwrap_or_default().into_bytes();
    crate::sha256_of_bytes(&name).chars().take(MACHINE_CHARS).collect()
}

/// Notes a file that goes when this process ends without waiting for its jobs.
pub(crate) fn note_unfinished(path: &Path) {
    unfinished().insert(path.to_owned());
}

/// The opposite of [`note_unfinished`].
pub(crate) fn forget_unfinished(path: &Path) {
    unfinished().remove(path);
}

/// Sweeps a folder the first time this process writes to it.
pub(crate) fn sweep_once(folder: &Path) {
    if SWEPT.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.to_owned()) {
        sweep(folder);
    }
}

/// The folder a path lies in.
pub(crate) fn parent_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The beginning of the hidden name of what is written for a target.
pub(crate) fn hidden_prefix(name: &OsStr) -> OsString {
    let mut prefix = OsString::from(".");
    match name.to_str() {
        Some(text) => {
            let end = (0..=MAX_NAME_BYTES.min(text.len())).rev().find(|i| text.is_char_boundary(*i)).unwrap_or(0);
            prefix.push(text.get(..end).unwrap_or_default());
        }
        None => prefix.push("file"),
    }
    prefix.push(".");
    prefix
}

/// A file being written beside its target; removed when dropped unfinished.
#[derive(Debug)]
pub struct PartialFile {
    out: Option<BufWriter<File>>,
    partial: PathBuf,
    target: PathBuf,
}

impl PartialFile {
    /// Creates an empty file beside `target`.
    ///
    /// # Errors
    /// What the system says; [`io::ErrorKind::InvalidInput`] for a path that names no file.
    pub fn create(target: &Path) -> io::Result<Self> {
        let Some(name) = target.file_name() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"));
        };
        let folder = parent_of(target);
        sweep_once(folder);
        let prefix = hidden_prefix(name);
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(partial_suffix()).rand_bytes(RANDOM_CHARS);
        // As any new file: what the umask leaves.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        for _ in 0..ATTEMPTS {
            let (file, partial) = builder.tempfile_in(folder)?.keep().map_err(|e| e.error)?;
            unfinished().insert(partial.clone());
            // Without locks nothing is swept, so an unlocked file is safe there.
            let _ = file.lock();
            if std::fs::symlink_metadata(&partial).is_ok() {
                let out = Some(BufWriter::with_capacity(BUFFER_BYTES, file));
                return Ok(Self { out, partial, target: target.to_owned() });
            }
            unfinished().remove(&partial);
        }
        Err(io::Error::other("new files vanish from the folder"))
    }

    /// Where the file goes.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The writer.
    ///
    /// # Errors
    /// Never before [`PartialFile::finish`].
    pub fn out(&mut self) -> io::Result<&mut BufWriter<File>> {
        self.out.as_mut().ok_or_else(|| io::Error::other("the file is already finished"))
    }

    /// Overwrites bytes at a position written before; later writes go on at the end.
    ///
    /// # Errors
    /// What the system says.
    pub fn patch(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let out = self.out()?;
        out.seek(SeekFrom::Start(at))?;
        out.write_all(bytes)?;
        out.seek(SeekFrom::End(0)).map(|_| ())
    }

    /// Flushes the file to the disk. It has its target's name only after [`FinishedFile::publish`].
    ///
    /// # Errors
    /// What the system says; the unfinished file is removed.
    pub fn finish(mut self) -> io::Result<FinishedFile> {
        let out = self.out.take().ok_or_else(|| io::Error::other("the file is already finished"))?;
        // From here on dropping `finished` removes the file.
        let (partial, target) = (self.partial.clone(), self.target.clone());
        let file = match out.into_inner() {
            Ok(file) => file,
            Err(error) => {
                let (error, buffered) = error.into_parts();
                drop(buffered.into_parts());
                discard(&partial);
                return Err(error);
            }
        };
        let synced = file.sync_all();
        if cfg!(not(unix)) {
            // There a lock keeps others from reading, this process included.
            let _ = file.unlock();
        }
        let finished = FinishedFile { file: Some(file), partial, target };
        synced.map(|()| finished)
    }

    /// Flushes the file to the disk and gives it its target's name, replacing what is there.
    ///
    /// # Errors
    /// What the system says; the target is then as it was.
    pub fn commit(self) -> io::Result<()> {
        self.finish()?.publish()
    }
}

fn discard(partial: &Path) {
    let _ = std::fs::remove_file(partial);
    unfinished().remove(partial);
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if let Some(out) = self.out.take() {
            // What is still in the buffer is not written.
            let (file, _) = out.into_parts();
            discard(&self.partial);
            drop(file);
        }
    }
}

/// A whole file under its hidden name; removed when dropped before [`FinishedFile::publish`].
#[derive(Debug)]
pub struct FinishedFile {
    file: Option<File>,
    partial: PathBuf,
    target: PathBuf,
}

impl FinishedFile {
    /// Where the file goes.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Where the file is now.
    pub fn path(&self) -> &Path {
        &self.partial
    }

    /// Gives the file its target's name, replacing what is there.
    ///
    /// # Errors
    /// What the system says; the target is then as it was, and the file removed.
    pub fn publish(mut self) -> io::Result<()> {
        std::fs::rename(&self.partial, &self.target)?;
        self.file = None;
        unfinished().remove(&self.partial);
        sync_folder(&self.target);
        Ok(())
    }
}

impl Drop for FinishedFile {
    fn drop(&mut self) {
        if self.file.is_some() {
            discard(&self.partial);
        }
    }
}

/// Makes a rename durable where folders can be synced; where they cannot, the rename is still atomic.
pub(crate) fn sync_folder(target: &Path) {
    if cfg!(unix)
        && let Ok(folder) = File::open(parent_of(target))
    {
        let _ = folder.sync_all();
    }
}

/// Writes a small file whole or not at all, replacing what is there.
///
/// # Errors
/// [`StorageError::Io`]; the target is then as it was.
pub fn atomic_write(path: &Path, bytes: &[u8]) -> Result<(), StorageError> {
    atomic_write_with(path, |out| out.write_all(bytes))
}

/// As [`atomic_write`], with the content written by a closure.
///
/// # Errors
/// As [`atomic_write`]; an error of the closure is returned as [`StorageError::Io`].
pub fn atomic_write_with(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), StorageError> {
    let mut file = PartialFile::create(path).map_err(StorageError::io(path, "creating the file"))?;
    file.out().and_then(|out| fill(out)).map_err(StorageError::io(path, "writing"))?;
    file.commit().map_err(StorageError::io(path, "finishing the file"))
}

/// Writes a small file whole under its hidden name; it has its target's name only after [`FinishedFile::publish`].
///
/// # Errors
/// [`StorageError::Io`].
pub fn write_unpublished(path: &Path, bytes: &[u8]) -> Result<FinishedFile, StorageError> {
    let mut file = PartialFile::create(path).map_err(StorageError::io(path, "creating the file"))?;
    file.out().and_then(|out| out.write_all(bytes)).map_err(StorageError::io(path, "writing"))?;
    file.finish().map_err(StorageError::io(path, "finishing the file"))
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
    fn a_file_appears_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        let mut file = PartialFile::create(&path).unwrap();
        file.out().unwrap().write_all(b"0123").unwrap();
        file.patch(1, b"x").unwrap();
        file.out().unwrap().write_all(b"4").unwrap();
        assert!(!path.exists());
        file.commit().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"0x234");
        let mut dropped = PartialFile::create(&path).unwrap();
        dropped.out().unwrap().write_all(b"other").unwrap();
        drop(dropped);
        drop(PartialFile::create(&path).unwrap().finish().unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"0x234");
        assert_eq!(names(folder.path()), ["a.bin"]);
    }

    #[test]
    fn what_a_killed_process_left_is_swept_and_what_is_being_written_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join(format!(".a.tif.0123456789ab{}", partial_suffix()));
        std::fs::write(&left, "half").unwrap();
        let of_another_machine = folder.path().join(format!(".a.tif.0123456789ab.another1{PARTIAL}"));
        std::fs::write(&of_another_machine, "half").unwrap();
        let foreign = folder.path().join(".a.tif.partial-17-0");
        std::fs::write(&foreign, "named so by someone").unwrap();
        let writing = PartialFile::create(&folder.path().join("b.tif")).unwrap();
        assert!(!left.exists(), "swept by the first file written to the folder");
        sweep(folder.path());
        assert_eq!(names(folder.path()).len(), 3, "{:?}", names(folder.path()));
        writing.commit().unwrap();
        assert!(foreign.exists() && of_another_machine.exists() && folder.path().join("b.tif").exists());
    }

    #[cfg(unix)]
    #[test]
    fn planted_links_and_pipes_are_not_written_through() {
        let folder = tempfile::tempdir().unwrap();
        let victim = folder.path().join("victim");
        std::fs::write(&victim, "mine").unwrap();
        // Whatever is planted, under the names of earlier versions or the target's own, is not followed.
        for n in 0..4 {
            let planted = folder.path().join(format!(".a.partial-{}-{n}", std::process::id()));
            std::os::unix::fs::symlink(&victim, planted).unwrap();
        }
        std::os::unix::fs::symlink(&victim, folder.path().join("a")).unwrap();
        atomic_write(&folder.path().join("a"), b"new").unwrap();
        assert_eq!(std::fs::read(&victim).unwrap(), b"mine");
        assert!(folder.path().join("a").symlink_metadata().unwrap().is_file(), "the link is replaced");
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(folder.path().join("a")).unwrap().permissions());
        std::fs::write(folder.path().join("plain"), "").unwrap();
        let plain = std::fs::metadata(folder.path().join("plain")).unwrap().permissions();
        assert_eq!(mode, std::os::unix::fs::PermissionsExt::mode(&plain), "permissions as of any new file");
    }

    #[test]
    fn a_failed_write_leaves_the_old_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        atomic_write(&path, b"one").unwrap();
        let failed = atomic_write_with(&path, |out| {
            out.write_all(b"half")?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert!(matches!(failed, Err(StorageError::Io { source, .. }) if crate::is_exhausted(&source)));
        assert_eq!(std::fs::read(&path).unwrap(), b"one");
        assert_eq!(names(folder.path()), ["a.json"]);
    }

    #[test]
    fn long_names_fit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ä".repeat(120));
        atomic_write(&path, b"x").unwrap();
        assert_eq!(std::fs::read(path).unwrap(), b"x");
    }
}

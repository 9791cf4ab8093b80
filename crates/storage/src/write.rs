//! Atomic file writes: a file is written next to its target, synced and renamed.
//!
//! An unfinished file has a random hidden name, is always newly created (so that a planted link or pipe is never
//! written through), and is locked while its process runs. Leftovers of killed processes are therefore recognized by
//! their name and the missing lock. They are removed when the next file is written to that folder.

use crate::folder::{move_aside, move_back};
use crate::manifest::MARKER;
use crate::{Overwrite, StorageError};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{File, TryLockError};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Suffix of unfinished files and folders.
pub(crate) const PARTIAL: &str = ".cytoscope-partial";
/// Suffix of lock files.
pub(crate) const LOCK: &str = ".cytoscope-lock";
/// Number of random letters and digits in the name of an unfinished file.
pub(crate) const RANDOM_CHARS: usize = 12;
/// Size of the write buffer in bytes.
const BUFFER_BYTES: usize = 1 << 18;
/// Bytes of the target's name that are part of the name of the unfinished file; file systems allow 255 in all.
const MAX_NAME_BYTES: usize = 180;
/// Number of hexadecimal digits that identify a machine.
const MACHINE_CHARS: usize = 8;
/// Size from which a file is flushed to disk in a separate thread, in bytes. For smaller ones starting a thread costs more
/// than it saves.
const BACKGROUND_BYTES: u64 = 1 << 20;
/// Time after which the unfinished marker of another machine counts as left over; writing one takes less than a second.
const MARKER_LIMIT: Duration = Duration::from_secs(600);
/// Number of attempts to create and lock a file, which another process may remove in between.
const ATTEMPTS: usize = 8;

/// Unfinished files of this process.
static UNFINISHED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
/// Folders that this process has searched for leftovers of killed processes.
static SWEPT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn unfinished() -> std::sync::MutexGuard<'static, BTreeSet<PathBuf>> {
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes all unfinished files of this process. For a process that exits without waiting for its jobs.
pub fn remove_unfinished() {
    for path in std::mem::take(&mut *unfinished()) {
        // The process is exiting; a leftover file has a hidden name, and a later sweep removes it.
        let _ = std::fs::remove_file(path);
    }
}

/// Removes unfinished files and folders in a folder if the processes of this machine that wrote them have ended.
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
    // On file systems without locks a running process cannot be recognized: the files are kept.
    let Ok(file) = crate::read::open_regular(path) else { return };
    if file.try_lock().is_ok() {
        // The lock is held during removal: a process that has just created the file finds it removed and creates
        // another.
        let _ = std::fs::remove_file(path);
    }
}

/// Like [`sweep`], for a folder that cannot be used while its marker is being written. An unfinished marker of another machine,
/// whose processes cannot be asked, is removed 10 minutes after it was written, unless it is locked.
pub fn sweep_marker(folder: &Path) {
    sweep(folder);
    let prefix = hidden_prefix(OsStr::new(MARKER));
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_marker = name.as_encoded_bytes().starts_with(prefix.as_encoded_bytes());
        if !is_marker || !name.to_str().is_some_and(is_unfinished_name) {
            continue;
        }
        let written = entry.metadata().and_then(|meta| meta.modified());
        let is_old = written.is_ok_and(|at| at.elapsed().is_ok_and(|age| age > MARKER_LIMIT));
        let Some(file) = crate::read::open_regular(&entry.path()).ok().filter(|_| is_old) else { continue };
        if !matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            // If its process is still running after all, it cannot rename the file, and fails.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Whether a name is that of an unfinished file or folder, of this or another machine.
pub fn is_unfinished_name(name: &str) -> bool {
    name.starts_with('.') && name.contains(PARTIAL)
}

/// Suffix of unfinished files of this machine. On a network drive locks may be visible to one machine only, so
/// files of other machines are not touched.
pub(crate) fn partial_suffix() -> &'static str {
    static SUFFIX: OnceLock<String> = OnceLock::new();
    SUFFIX.get_or_init(|| format!(".{}{PARTIAL}", machine_id()))
}

/// Hexadecimal digits that identify this machine.
pub(crate) fn machine_id() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname().nodename().to_bytes().to_vec();
    // Windows always sets it. Without it, all such machines count as one.
    #[cfg(not(unix))]
    let name = std::env::var("COMPUTERNAME").unwrap_or_default().into_bytes();
    crate::sha256_of_bytes(&name).chars().take(MACHINE_CHARS).collect()
}

/// Name of this machine, for messages; empty if it is not known.
#[cfg(unix)]
pub(crate) fn machine_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Name of this machine, for messages; empty if it is not known.
#[cfg(not(unix))]
pub(crate) fn machine_name() -> String {
    std::env::var("COMPUTERNAME").unwrap_or_default()
}

/// Registers a file for [`remove_unfinished`].
pub(crate) fn register_unfinished(path: &Path) {
    unfinished().insert(path.to_owned());
}

/// Removes a file from the list of [`remove_unfinished`].
pub(crate) fn unregister_unfinished(path: &Path) {
    unfinished().remove(path);
}

/// Calls [`sweep`] the first time this process writes to a folder.
pub(crate) fn sweep_once(folder: &Path) {
    if SWEPT.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.to_owned()) {
        sweep(folder);
    }
}

/// The parent folder of a path; `.` for a plain file name.
pub fn parent_folder(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Prefix of the hidden name of an unfinished file or folder with the given target name.
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

/// Returns the error of creating a hidden file or folder without its name, which means nothing to users.
pub(crate) fn without_hidden_name(error: io::Error) -> io::Error {
    use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    match error.kind() {
        kind @ (NotADirectory | NotFound | PermissionDenied | QuotaExceeded | ReadOnlyFilesystem | StorageFull) => {
            kind.into()
        }
        _ => error,
    }
}

/// A file that is being written next to its target; removed when dropped unfinished.
#[derive(Debug)]
pub struct PartialFile {
    out: Option<BufWriter<File>>,
    partial: PathBuf,
    target: PathBuf,
}

impl PartialFile {
    /// Creates an empty file next to `target`.
    ///
    /// # Errors
    /// The system's error; [`io::ErrorKind::InvalidInput`] for a path without a file name.
    pub fn create(target: &Path) -> io::Result<Self> {
        let Some(name) = target.file_name() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path has no file name"));
        };
        let folder = parent_folder(target);
        sweep_once(folder);
        let prefix = hidden_prefix(name);
        let mut builder = tempfile::Builder::new();
        builder.prefix(&prefix).suffix(partial_suffix()).rand_bytes(RANDOM_CHARS);
        // The permissions of any new file: the umask applies.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        for _ in 0..ATTEMPTS {
            let file = builder.tempfile_in(folder).map_err(without_hidden_name)?;
            let (file, partial) = file.keep().map_err(|e| e.error)?;
            unfinished().insert(partial.clone());
            // Where locks are not supported nothing is swept, so an unlocked file is safe.
            let _ = file.lock();
            if std::fs::symlink_metadata(&partial).is_ok() {
                let out = Some(BufWriter::with_capacity(BUFFER_BYTES, file));
                return Ok(Self { out, partial, target: target.to_owned() });
            }
            unfinished().remove(&partial);
        }
        Err(io::Error::other("new files disappear from the folder"))
    }

    /// The path that the file will have.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The buffered writer.
    ///
    /// # Errors
    /// None before [`PartialFile::finish`].
    pub fn out(&mut self) -> io::Result<&mut BufWriter<File>> {
        self.out.as_mut().ok_or_else(|| io::Error::other("the file is already finished"))
    }

    /// Overwrites bytes at a position that was written before; later writes continue at the end.
    ///
    /// # Errors
    /// The system's error.
    pub fn patch(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let out = self.out()?;
        out.seek(SeekFrom::Start(at))?;
        out.write_all(bytes)?;
        out.seek(SeekFrom::End(0)).map(|_| ())
    }

    /// Flushes the file to disk. For a large file, this continues in a thread while the caller reads the file, for example to
    /// hash it. It is renamed to its target only by [`FinishedFile::publish`], which waits until it is on disk.
    ///
    /// # Errors
    /// The system's error; the unfinished file is removed.
    pub fn finish(self) -> io::Result<FinishedFile> {
        let mut finished = self.close()?;
        finished.begin_sync()?;
        Ok(finished)
    }

    /// Flushes the file to disk and renames it to its target, replacing an existing file.
    ///
    /// # Errors
    /// The system's error; the target is then unchanged.
    pub fn commit(self) -> io::Result<()> {
        let finished = self.close()?;
        finished.sync_here()?;
        finished.publish()
    }

    /// Writes the rest of the buffer. Dropping the result removes the file.
    fn close(mut self) -> io::Result<FinishedFile> {
        let out = self.out.take().ok_or_else(|| io::Error::other("the file is already finished"))?;
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
        if cfg!(not(unix)) {
            // Elsewhere a lock prevents reading, even by this process.
            let _ = file.unlock();
        }
        Ok(FinishedFile { file: Some(file), syncing: None, has_sync_failed: false, partial, target })
    }
}

fn discard(partial: &Path) {
    // A leftover file has a hidden name, and a later sweep removes it.
    let _ = std::fs::remove_file(partial);
    unfinished().remove(partial);
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if let Some(out) = self.out.take() {
            // The rest of the buffer is discarded.
            let (file, _) = out.into_parts();
            discard(&self.partial);
            drop(file);
        }
    }
}

/// A complete file with a hidden name; removed when dropped before [`FinishedFile::publish`].
#[derive(Debug)]
pub struct FinishedFile {
    file: Option<File>,
    /// Flushes the file to disk.
    syncing: Option<JoinHandle<io::Result<()>>>,
    /// Whether flushing has failed, so that the file must not be published.
    has_sync_failed: bool,
    partial: PathBuf,
    target: PathBuf,
}

impl FinishedFile {
    /// The path that the file will have.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The current path of the file.
    pub fn path(&self) -> &Path {
        &self.partial
    }

    /// Flushes the file to disk, in a thread if it is large. If no thread can be started, or no handle of the file is left for
    /// it, it is flushed in this one.
    fn begin_sync(&mut self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        if file.metadata()?.len() < BACKGROUND_BYTES {
            return file.sync_all();
        }
        let Ok(clone) = file.try_clone() else { return file.sync_all() };
        match std::thread::Builder::new().name("flush".to_owned()).spawn(move || clone.sync_all()) {
            Ok(thread) => {
                self.syncing = Some(thread);
                Ok(())
            }
            Err(_) => file.sync_all(),
        }
    }

    /// Flushes the file to disk in this thread.
    fn sync_here(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), File::sync_all)
    }

    /// Waits until the file is on disk.
    ///
    /// # Errors
    /// The system's error of flushing it. Later calls and [`FinishedFile::publish`] then fail, too.
    pub fn sync(&mut self) -> io::Result<()> {
        if self.has_sync_failed {
            return Err(io::Error::other("flushing the file to disk has failed before"));
        }
        let Some(thread) = self.syncing.take() else { return Ok(()) };
        let synced = thread.join().unwrap_or_else(|_| Err(io::Error::other("flushing the file to disk panicked")));
        self.has_sync_failed = synced.is_err();
        synced
    }

    /// Waits until the file is on disk and renames it to its target, replacing an existing file.
    ///
    /// # Errors
    /// The system's error; the target is then unchanged, and the file is removed.
    pub fn publish(mut self) -> io::Result<()> {
        self.sync()?;
        std::fs::rename(&self.partial, &self.target)?;
        self.file = None;
        unfinished().remove(&self.partial);
        sync_folder(&self.target);
        Ok(())
    }

    /// Like [`FinishedFile::publish`], for a target that [`crate::target::check_file`] has allowed. Unless `overwrite` allows
    /// replacing it, a file that another program has created there meanwhile is moved aside; its new path is returned.
    ///
    /// # Errors
    /// [`StorageError::Io`]; what exists at the target is then unchanged, and the new file is removed.
    pub(crate) fn publish_checked(mut self, overwrite: Overwrite) -> Result<Option<PathBuf>, StorageError> {
        let target = self.target.clone();
        self.sync().map_err(StorageError::io(&target, "finishing the file"))?;
        let has_appeared = overwrite == Overwrite::Refuse && std::fs::symlink_metadata(&target).is_ok();
        let aside = if has_appeared { Some(move_aside(&target)?) } else { None };
        if let Err(error) = self.publish() {
            if let Some(aside) = &aside {
                move_back(aside, &target);
            }
            return Err(StorageError::io(&target, "finishing the file")(error));
        }
        Ok(aside)
    }
}

impl Drop for FinishedFile {
    fn drop(&mut self) {
        if self.file.is_some() {
            // The file is removed, so it does not matter whether it reached the disk.
            let _ = self.sync();
            discard(&self.partial);
        }
    }
}

/// Makes a new name durable on systems where folders can be synced; elsewhere a rename is still atomic.
pub fn sync_folder(target: &Path) {
    if cfg!(unix)
        && let Ok(folder) = File::open(parent_folder(target))
    {
        // Some file systems cannot sync folders: there, a power failure could undo the rename, but not damage the file.
        let _ = folder.sync_all();
    }
}

/// Renames a file or folder to a name that nothing has yet; [`io::ErrorKind::AlreadyExists`] otherwise. Where the system or
/// the file system has no such rename, the name is looked up first.
pub(crate) fn rename_new(from: &Path, to: &Path) -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_vendor = "apple"))]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use rustix::io::Errno;
        match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
            done => return done.map_err(io::Error::from),
        }
    }
    match std::fs::symlink_metadata(to) {
        Ok(_) => Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => std::fs::rename(from, to),
    }
}

/// Writes a small file atomically, replacing an existing one.
///
/// # Errors
/// [`StorageError::Io`]; the target is then unchanged.
pub fn atomic_write(path: &Path, bytes: &[u8]) -> Result<(), StorageError> {
    atomic_write_with(path, |out| out.write_all(bytes))
}

/// Like [`atomic_write`], with the content written by a closure.
///
/// # Errors
/// Same as [`atomic_write`]; an error of the closure is returned as [`StorageError::Io`].
pub fn atomic_write_with(path: &Path, fill: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> Result<(), StorageError> {
    let mut file = PartialFile::create(path).map_err(StorageError::io(path, "creating the file"))?;
    file.out().and_then(|out| fill(out)).map_err(StorageError::io(path, "writing"))?;
    file.commit().map_err(StorageError::io(path, "finishing the file"))
}

/// Writes a small file under a hidden name; it is renamed to its target only by [`FinishedFile::publish`].
///
/// # Errors
/// [`StorageError::Io`].
pub fn write_unpublished(path: &Path, bytes: &[u8]) -> Result<FinishedFile, StorageError> {
    let mut file = PartialFile::create(path).map_err(StorageError::io(path, "creating the file"))?;
    file.out().and_then(|out| out.write_all(bytes)).map_err(StorageError::io(path, "writing"))?;
    file.finish().map_err(StorageError::io(path, "finishing the file"))
}

/// Writes a small file atomically at a path that [`crate::target::check_file`] has allowed. Unless `overwrite` allows
/// replacing it, a file that another program has created there meanwhile is moved aside; its new path is returned.
///
/// # Errors
/// [`StorageError::Io`]; the target is then unchanged.
pub fn write_checked(path: &Path, bytes: &[u8], overwrite: Overwrite) -> Result<Option<PathBuf>, StorageError> {
    write_unpublished(path, bytes)?.publish_checked(overwrite)
}

/// Like [`write_checked`], with the content written by a closure.
///
/// # Errors
/// Same as [`write_checked`]; an error of the closure is returned as [`StorageError::Io`].
pub fn write_checked_with(
    path: &Path,
    overwrite: Overwrite,
    fill: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> Result<Option<PathBuf>, StorageError> {
    let mut file = PartialFile::create(path).map_err(StorageError::io(path, "creating the file"))?;
    file.out().and_then(|out| fill(out)).map_err(StorageError::io(path, "writing"))?;
    file.finish().map_err(StorageError::io(path, "finishing the file"))?.publish_checked(overwrite)
}

#[cfg(test)]
mod tests;

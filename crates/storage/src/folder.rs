//! Folders that this program makes, replaces and removes.
//!
//! Every such folder holds a marker file ([`MARKER`]). A *finished* folder (a model package) lists its files in the marker and is
//! replaced or removed only while it holds just those, unchanged. A *working* folder (an unfinished training, scratch space) is
//! removed with everything in it. A folder without a marker is never removed or emptied.

use crate::manifest::{LITTER, MARKER, Manifest};
use crate::target::{Overwrite, refuse_input};
use crate::write::{RANDOM_CHARS, hidden_prefix, parent_of, partial_suffix, sweep_once, sync_folder};
use crate::{StorageError, read};
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// How names of replaced folders end while they wait for their removal.
const OLD: &str = ".cytoscope-old";
/// Names tried for a folder that is moved aside.
const MAX_ASIDE: usize = 10_000;

/// Makes a working folder of a kind, or takes one that is there already: with the same kind's marker, or empty.
///
/// # Errors
/// [`StorageError::NotOurs`] for a folder that holds something and has no marker of this kind; [`StorageError::Io`].
pub fn create_working(path: &Path, kind: &str) -> Result<(), StorageError> {
    if let Some(found) = Manifest::of_folder(path)
        && found.kind == kind
        && found.files.is_none()
    {
        return Ok(());
    }
    std::fs::create_dir_all(path).map_err(StorageError::io(path, "creating the folder"))?;
    // A kill while the marker was written leaves its unfinished file.
    crate::write::sweep(path);
    let mut entries = std::fs::read_dir(path).map_err(StorageError::io(path, "reading the folder"))?;
    if let Some(Ok(entry)) = entries.next() {
        let problem = format!("is not a folder that this program made (it holds {})", entry.file_name().display());
        return Err(StorageError::NotOurs { path: path.to_owned(), problem, can_force: false });
    }
    crate::write::atomic_write(&path.join(MARKER), &Manifest::working(kind).to_bytes())
}

/// Whether a folder has a working folder's marker of this kind.
pub fn is_working(path: &Path, kind: &str) -> bool {
    let is_folder = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir());
    is_folder && Manifest::of_folder(path).is_some_and(|found| found.kind == kind && found.files.is_none())
}

/// Removes a working folder of a kind with everything in it. One that does not exist is no error.
///
/// # Errors
/// [`StorageError::NotOurs`] for a folder without this kind's marker, or a link to one; [`StorageError::Io`].
pub fn remove_working(path: &Path, kind: &str) -> Result<(), StorageError> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(StorageError::io(path, "reading the folder")(error)),
        Ok(_) => {}
    }
    if !is_working(path, kind) {
        return Err(not_removed(path));
    }
    remove_marked(path).map_err(StorageError::io(path, "removing the folder"))
}

/// Removes what is in a working folder, but for its marker and the files named in `keep`; those named in `first` go before the rest.
///
/// # Errors
/// As [`remove_working`].
pub fn clear_working(path: &Path, kind: &str, first: &[&str], keep: &[&str]) -> Result<(), StorageError> {
    if !is_working(path, kind) {
        return Err(not_removed(path));
    }
    let clear = || {
        for name in first {
            match std::fs::remove_file(path.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        remove_entries(path, keep)
    };
    clear().map_err(StorageError::io(path, "emptying the folder"))
}

fn not_removed(path: &Path) -> StorageError {
    StorageError::NotOurs {
        path: path.to_owned(),
        problem: "is not a folder that this program made, so it is not removed".to_owned(),
        can_force: false,
    }
}

/// Removes a folder whose marker was seen: the marker goes last, so that a removal cut short can be finished.
fn remove_marked(path: &Path) -> io::Result<()> {
    remove_entries(path, &[])?;
    std::fs::remove_file(path.join(MARKER))?;
    std::fs::remove_dir(path)
}

fn remove_entries(path: &Path, keep: &[&str]) -> io::Result<()> {
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == MARKER || keep.iter().any(|k| name == *k) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        } else {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Whether a folder, or nothing, lies where a finished folder goes, such that it may be replaced without asking.
///
/// # Errors
/// [`StorageError::NotOurs`] with what in it is not ours, [`StorageError::IsInput`], [`StorageError::Io`].
pub fn check_finished(path: &Path, kind: &str, inputs: &[&Path], overwrite: Overwrite) -> Result<(), StorageError> {
    refuse_input(path, inputs)?;
    recover(path);
    match difference(path, kind)? {
        Some(problem) if overwrite == Overwrite::Refuse => {
            Err(StorageError::NotOurs { path: path.to_owned(), problem, can_force: true })
        }
        _ => Ok(()),
    }
}

/// What at a path is not a finished folder of ours, as the predicate of a sentence; `None` for ours, an empty one, or nothing.
fn difference(path: &Path, kind: &str) -> Result<Option<String>, StorageError> {
    let meta = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(StorageError::io(path, "reading the folder"))?,
    };
    if !meta.is_dir() {
        return Ok(Some("exists and is not a folder".to_owned()));
    }
    let io = |error| StorageError::io(path, "reading the folder")(error);
    match Manifest::of_folder(path).filter(|m| m.kind == kind && m.files.is_some()) {
        Some(manifest) => manifest.difference(path).map_err(io),
        None => Ok(std::fs::read_dir(path).map_err(io)?.next().map(|entry| {
            let name = entry.map(|e| e.file_name().display().to_string()).unwrap_or_default();
            format!("is a folder that this program did not make (it holds {name})")
        })),
    }
}

/// Removes a finished folder of ours. One that does not exist is no error.
///
/// # Errors
/// [`StorageError::NotOurs`] if it holds anything else, or something in it was changed; [`StorageError::Io`].
pub fn remove_finished(path: &Path, kind: &str) -> Result<(), StorageError> {
    if let Some(problem) = difference(path, kind)? {
        return Err(StorageError::NotOurs { path: path.to_owned(), problem, can_force: false });
    }
    if !path.exists() {
        return Ok(());
    }
    remove_listed(path).map_err(StorageError::io(path, "removing the folder"))
}

/// Removes the files that a folder's marker lists, the marker, and the folder, which is then empty unless something was added.
fn remove_listed(path: &Path) -> io::Result<()> {
    let manifest = Manifest::of_folder(path);
    for file in manifest.iter().flat_map(|m| m.files.iter().flatten()) {
        // Names come from a file: only plain ones are followed.
        if Path::new(&file.name).file_name() != Some(file.name.as_ref()) {
            continue;
        }
        match std::fs::remove_file(path.join(&file.name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    if manifest.is_some() {
        for name in LITTER {
            let _ = std::fs::remove_file(path.join(name));
        }
        std::fs::remove_file(path.join(MARKER))?;
    }
    std::fs::remove_dir(path)
}

/// What became of what lay at the path of a new folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Replaced {
    /// There was nothing, or an empty folder.
    Nothing,
    /// A folder of ours, which is gone.
    Ours,
    /// Something else, which was moved here.
    MovedTo(PathBuf),
}

/// Writes a finished folder whole or not at all: files by plain name and content, and the marker that lists them.
///
/// A folder of ours at that place is replaced; anything else is moved aside where `overwrite` allows it, and refused otherwise.
///
/// # Errors
/// As [`check_finished`]; what was there is then as it was.
pub fn write_finished(
    path: &Path,
    kind: &str,
    files: &[(String, Vec<u8>)],
    overwrite: Overwrite,
) -> Result<Replaced, StorageError> {
    check_finished(path, kind, &[], overwrite)?;
    let folder = parent_of(path);
    sweep_once(folder);
    let Some(name) = path.file_name() else {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "the path names no folder");
        return Err(StorageError::io(path, "creating the folder")(error));
    };
    let mut builder = tempfile::Builder::new();
    let prefix = hidden_prefix(name);
    builder.prefix(&prefix).suffix(partial_suffix()).rand_bytes(RANDOM_CHARS);
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
    let partial = builder.tempdir_in(folder).map_err(StorageError::io(path, "creating the folder"))?.keep();
    let outcome = match fill(&partial, kind, files) {
        // The marker stays locked until the folder has its name.
        Ok(marker) => {
            // Where open files keep their folder from being renamed, it is let go.
            let marker = cfg!(unix).then_some(marker);
            swap(&partial, path, kind).map(|replaced| (replaced, marker))
        }
        Err(error) => {
            let _ = remove_marked(&partial);
            return Err(StorageError::io(path, "writing the folder")(error));
        }
    };
    let (replaced, _marker) = outcome.inspect_err(|_| {
        let _ = remove_listed(&partial);
    })?;
    sync_folder(path);
    Ok(replaced)
}

/// Writes the files; the marker is locked for as long as its handle lives, and complete when everything else is on the disk.
fn fill(folder: &Path, kind: &str, files: &[(String, Vec<u8>)]) -> io::Result<File> {
    let mut marker = File::create_new(folder.join(MARKER))?;
    let _ = marker.lock();
    marker.write_all(&Manifest::working(kind).to_bytes())?;
    for (name, bytes) in files {
        let mut file = File::create_new(folder.join(name))?;
        file.write_all(bytes)?;
        file.sync_all()?;
    }
    let text = Manifest::finished(kind, files).to_bytes();
    marker.set_len(0)?;
    io::Seek::rewind(&mut marker)?;
    marker.write_all(&text)?;
    marker.sync_all()?;
    Ok(marker)
}

/// Puts a new folder where `path` is, and says what became of what was there.
fn swap(new: &Path, path: &Path, kind: &str) -> Result<Replaced, StorageError> {
    let io = |error| StorageError::io(path, "replacing the folder")(error);
    let there = std::fs::symlink_metadata(path).is_ok();
    let is_empty = there && std::fs::read_dir(path).is_ok_and(|mut e| e.next().is_none());
    if is_empty {
        std::fs::remove_dir(path).map_err(io)?;
    }
    if !there || is_empty {
        std::fs::rename(new, path).map_err(io)?;
        return Ok(Replaced::Nothing);
    }
    if difference(path, kind)?.is_some() {
        let aside = move_aside(path)?;
        if let Err(error) = std::fs::rename(new, path) {
            let _ = std::fs::rename(&aside, path);
            return Err(io(error));
        }
        return Ok(Replaced::MovedTo(aside));
    }
    if exchange(new, path) {
        // The old one has the hidden name now; if it cannot be removed it only takes room until it is swept.
        let _ = remove_listed(new);
        return Ok(Replaced::Ours);
    }
    let mut old = new.as_os_str().to_owned();
    old.push(OLD);
    let old = PathBuf::from(old);
    std::fs::rename(path, &old).map_err(io)?;
    if let Err(error) = std::fs::rename(new, path) {
        let _ = std::fs::rename(&old, path);
        return Err(io(error));
    }
    let _ = remove_listed(&old);
    Ok(Replaced::Ours)
}

/// Exchanges two folders in one step, where the system can.
#[cfg(any(target_os = "linux", target_vendor = "apple"))]
fn exchange(a: &Path, b: &Path) -> bool {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).is_ok()
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn exchange(_a: &Path, _b: &Path) -> bool {
    false
}

/// Gives a file or folder a free name beside it.
///
/// # Errors
/// [`StorageError::Io`].
pub fn move_aside(path: &Path) -> Result<PathBuf, StorageError> {
    let io = |error| StorageError::io(path, "moving it aside")(error);
    for n in 1..=MAX_ASIDE {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".before-{n}"));
        let aside = path.with_file_name(name);
        if std::fs::symlink_metadata(&aside).is_err() {
            return std::fs::rename(path, &aside).map(|()| aside).map_err(io);
        }
    }
    Err(io(io::Error::other("there are too many copies already")))
}

/// Brings back a folder whose replacement was killed between two renames; where `path` exists, removes what such a kill left.
pub fn recover(path: &Path) {
    let Some(name) = path.file_name() else { return };
    let prefix = hidden_prefix(name);
    let length = prefix.len() + RANDOM_CHARS + partial_suffix().len() + OLD.len();
    for entry in std::fs::read_dir(parent_of(path)).into_iter().flatten().flatten() {
        let candidate = entry.file_name();
        let bytes = candidate.as_encoded_bytes();
        let is_old = bytes.starts_with(prefix.as_encoded_bytes()) && bytes.ends_with(OLD.as_bytes());
        if !is_old || bytes.len() != length {
            continue;
        }
        let old = entry.path();
        if std::fs::symlink_metadata(path).is_ok() {
            if matches!(Manifest::of_folder(&old), Some(m) if m.files.is_some()) {
                let _ = remove_listed(&old);
            }
            continue;
        }
        // Only a whole one: a removal that had begun is not undone.
        let files = Manifest::of_folder(&old).and_then(|m| m.files);
        let is_whole = files.is_some_and(|files| files.iter().all(|f| old.join(&f.name).is_file()));
        if is_whole && std::fs::rename(&old, path).is_ok() {
            sync_folder(path);
        }
    }
}

/// Removes a folder under a hidden name of ours whose process has ended: its marker is there and nobody holds it locked.
pub(crate) fn remove_if_abandoned(path: &Path) {
    let Some(manifest) = Manifest::of_folder(path) else { return };
    let unlocked = read::open_regular(&path.join(MARKER)).is_ok_and(|marker| marker.try_lock().is_ok());
    if !unlocked {
        return;
    }
    // A leftover only takes room.
    let _ = if manifest.files.is_some() { remove_listed(path) } else { remove_marked(path) };
}

#[cfg(test)]
mod tests;

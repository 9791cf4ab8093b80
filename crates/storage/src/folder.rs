//! Folders that this program creates, replaces and removes.
//!
//! Every such folder holds a marker file ([`MARKER`]). The marker of a *finished* folder (a model package, the OME-Zarr of
//! a prediction) lists its files; the folder is replaced or removed only if it holds exactly these, unchanged. A
//! *working* folder (scratch space) is removed with everything in it, and that of an unfinished training run with what the
//! run wrote ([`remove_own`]). A folder without a marker is never removed or emptied.

use crate::manifest::{MARKER, Manifest, SYSTEM_FILES, folders_on_the_way};
use crate::target::{Overwrite, check_folder_name, is_top_level, refuse_input, refuse_needed};
use crate::write::{
    RANDOM_CHARS, hidden_prefix, is_unfinished_name, parent_folder, partial_suffix, rename_new, sweep_once,
    sync_folder, without_hidden_name,
};
use crate::{StorageError, read};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Suffix of replaced folders that are about to be removed.
const OLD_SUFFIX: &str = ".cytoscope-old";
/// Number of names tried for a folder that is moved aside.
const MAX_ASIDE: usize = 10_000;

/// Creates a working folder of a kind, or uses an existing one that is empty or has a marker of the same kind.
///
/// # Errors
/// [`StorageError::NotReplaceable`] for a folder that is not empty and has no marker of this kind; [`StorageError::Io`].
pub fn create_working(path: &Path, kind: &str) -> Result<(), StorageError> {
    if let Some(found) = Manifest::from_folder(path)
        && found.kind == kind
        && found.files.is_none()
    {
        return Ok(());
    }
    let is_new = std::fs::symlink_metadata(path).is_err();
    std::fs::create_dir_all(path).map_err(StorageError::io(path, "creating the folder"))?;
    // A process killed while it wrote the marker leaves an unfinished file.
    crate::write::sweep_marker(path);
    let mut entries = std::fs::read_dir(path).map_err(StorageError::io(path, "reading the folder"))?;
    if let Some(Ok(entry)) = entries.next() {
        let problem = format!("is not a folder that this program made (it holds {})", entry.file_name().display());
        return Err(StorageError::NotReplaceable { path: path.to_owned(), problem, can_force: false });
    }
    crate::write::atomic_write(&path.join(MARKER), &Manifest::working(kind).to_bytes()).inspect_err(|_| {
        if is_new {
            // The first error is reported; an empty folder that stays does no harm.
            let _ = std::fs::remove_dir(path);
        }
    })
}

/// Creates an empty folder with a random name that begins with `prefix`, and that only its owner can access.
///
/// # Errors
/// [`StorageError::Io`].
pub fn create_private(parent: &Path, prefix: &str) -> Result<PathBuf, StorageError> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix);
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o700));
    let folder = builder.tempdir_in(parent).map_err(StorageError::io(parent, "creating a folder"))?;
    Ok(folder.keep())
}

/// Whether the path is a working folder of this kind.
pub fn is_working(path: &Path, kind: &str) -> bool {
    let is_folder = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir());
    is_folder && Manifest::from_folder(path).is_some_and(|found| found.kind == kind && found.files.is_none())
}

/// Removes a working folder of a kind with everything in it. A folder that does not exist is not an error.
///
/// # Errors
/// [`StorageError::NotReplaceable`] for a folder without a marker of this kind, or a link; [`StorageError::Io`].
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

/// Removes the content of a working folder, except its marker and the files named in `keep`. The files named in `first`
/// are removed before all others.
///
/// # Errors
/// Same as [`remove_working`].
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

/// Removes those entries of a working folder for whose names `is_own` holds, and then the folder, unless others remain.
/// Returns the names of the others, which stay in the folder. A folder that does not exist is not an error.
///
/// # Errors
/// Same as [`remove_working`].
pub fn remove_own(path: &Path, kind: &str, is_own: &dyn Fn(&str) -> bool) -> Result<Vec<String>, StorageError> {
    let is_absent = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    if std::fs::symlink_metadata(path).as_ref().is_err_and(is_absent) {
        return Ok(Vec::new());
    }
    if !is_working(path, kind) {
        return Err(not_removed(path));
    }
    let remove = || -> io::Result<Vec<String>> {
        let others = remove_named(path, is_own)?;
        if others.is_empty() {
            std::fs::remove_file(path.join(MARKER))?;
            std::fs::remove_dir(path)?;
        }
        Ok(others)
    };
    remove().map_err(StorageError::io(path, "removing the folder"))
}

/// Removes those entries of a working folder for whose names `is_own` holds; the file named `first` is removed before all
/// others.
///
/// # Errors
/// Same as [`remove_working`].
pub fn clear_own(path: &Path, kind: &str, first: &str, is_own: &dyn Fn(&str) -> bool) -> Result<(), StorageError> {
    if !is_working(path, kind) {
        return Err(not_removed(path));
    }
    let removed = match std::fs::remove_file(path.join(first)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => remove_named(path, is_own).map(drop),
    };
    removed.map_err(StorageError::io(path, "emptying the folder"))
}

/// Removes the entries of a folder for whose names `is_own` holds, unfinished files and those of operating systems. Returns
/// the names of the others. The marker stays.
fn remove_named(path: &Path, is_own: &dyn Fn(&str) -> bool) -> io::Result<Vec<String>> {
    let is_by_product = |name: &str| SYSTEM_FILES.contains(&name) || is_unfinished_name(name);
    let mut others = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == MARKER {
            continue;
        }
        if !name.to_str().is_some_and(|name| is_own(name) || is_by_product(name)) {
            others.push(name.display().to_string());
        } else if entry.file_type()?.is_dir() {
            std::fs::remove_dir_all(entry.path())?;
        } else {
            std::fs::remove_file(entry.path())?;
        }
    }
    others.sort();
    Ok(others)
}

fn not_removed(path: &Path) -> StorageError {
    StorageError::NotReplaceable {
        path: path.to_owned(),
        problem: "is not a folder that this program made, so it is not removed".to_owned(),
        can_force: false,
    }
}

/// Removes a folder that has a marker. The marker is removed last, so that an interrupted removal can be completed.
pub(crate) fn remove_marked(path: &Path) -> io::Result<()> {
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

/// Checks that a finished folder may be written to this path: nothing exists there, or a folder that may be replaced.
///
/// # Errors
/// [`StorageError::NotReplaceable`] with the reason why it may not be replaced, also if the path does not end in a name,
/// [`StorageError::IsInput`], [`StorageError::Io`].
pub fn check_finished(path: &Path, kind: &str, inputs: &[&Path], overwrite: Overwrite) -> Result<(), StorageError> {
    check_finished_while(path, kind, inputs, overwrite, &mut || true)
}

/// Like [`check_finished`]. `goes_on` is called before each block of a file is read; if it returns `false`, nothing
/// more is read.
///
/// # Errors
/// Same as [`check_finished`]; [`StorageError::Io`] if reading was stopped.
pub fn check_finished_while(
    path: &Path,
    kind: &str,
    inputs: &[&Path],
    overwrite: Overwrite,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<(), StorageError> {
    check_folder_name(path)?;
    refuse_input(path, inputs)?;
    refuse_needed(path)?;
    recover(path);
    let is_top_level = is_top_level(path);
    if overwrite == Overwrite::Replace && !is_top_level {
        // Whatever exists there is replaced or moved aside.
        return Ok(());
    }
    match difference_while(path, kind, goes_on)? {
        Some(problem) => Err(StorageError::NotReplaceable { path: path.to_owned(), problem, can_force: !is_top_level }),
        None => Ok(()),
    }
}

/// Why the path is not an unchanged finished folder of this program, as the predicate of a sentence; `None` if it is
/// one, is an empty folder, or does not exist.
fn difference(path: &Path, kind: &str) -> Result<Option<String>, StorageError> {
    difference_while(path, kind, &mut || true)
}

/// Same as [`difference`]; if `goes_on` returns `false` before a block is read, the result is an error.
fn difference_while(
    path: &Path,
    kind: &str,
    goes_on: &mut dyn FnMut() -> bool,
) -> Result<Option<String>, StorageError> {
    let meta = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        other => other.map_err(StorageError::io(path, "reading the folder"))?,
    };
    if !meta.is_dir() {
        let what = if meta.is_symlink() { "is a link" } else { "exists and is not a folder" };
        return Ok(Some(what.to_owned()));
    }
    let io = |error| StorageError::io(path, "reading the folder")(error);
    match Manifest::from_folder(path).filter(|m| m.kind == kind && m.files.is_some()) {
        Some(manifest) => manifest.difference_while(path, &mut |_| while_going_on(goes_on)).map_err(io),
        None => Ok(std::fs::read_dir(path).map_err(io)?.next().transpose().map_err(io)?.map(|entry| {
            format!("is a folder that this program did not make (it holds {})", entry.file_name().display())
        })),
    }
}

/// Removes a finished folder of this program. A folder that does not exist is not an error.
///
/// # Errors
/// [`StorageError::NotReplaceable`] if it holds other files, or one of its files was changed; [`StorageError::Io`].
pub fn remove_finished(path: &Path, kind: &str) -> Result<(), StorageError> {
    if let Some(problem) = difference(path, kind)? {
        return Err(StorageError::NotReplaceable { path: path.to_owned(), problem, can_force: false });
    }
    if !path.exists() {
        return Ok(());
    }
    remove_listed(path).map_err(StorageError::io(path, "removing the folder"))
}

/// Removes the files listed in a folder's marker, the marker, and then the folder, which fails if other files remain.
fn remove_listed(path: &Path) -> io::Result<()> {
    let manifest = Manifest::from_folder(path);
    let mut folders = BTreeSet::new();
    for file in manifest.iter().flat_map(|m| m.files.iter().flatten()) {
        // The names come from a file: those that leave the folder are skipped.
        let Some(on_the_way) = folders_on_the_way(path, &file.name) else { continue };
        folders.extend(on_the_way);
        match std::fs::remove_file(path.join(&file.name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    // A folder sorts before those in it.
    for folder in folders.iter().rev() {
        remove_system_files(folder);
        std::fs::remove_dir(folder)?;
    }
    if manifest.is_some() {
        remove_system_files(path);
        std::fs::remove_file(path.join(MARKER))?;
    }
    std::fs::remove_dir(path)
}

fn remove_system_files(folder: &Path) {
    for name in SYSTEM_FILES {
        // If it stays, removing the folder fails, which is reported.
        let _ = std::fs::remove_file(folder.join(name));
    }
}

/// Whether the path is a finished folder of this kind, changed or not.
pub fn is_finished(path: &Path, kind: &str) -> bool {
    let is_folder = std::fs::symlink_metadata(path).is_ok_and(|meta| meta.is_dir());
    is_folder && Manifest::from_folder(path).is_some_and(|found| found.kind == kind && found.files.is_some())
}

/// Returns the size of all files of a finished folder in bytes, and the SHA-256 of its marker, which lists their hashes.
/// `None` if the folder is not one of this kind, or one of its files is missing, changed or new.
pub fn finished_content(path: &Path, kind: &str) -> Option<(u64, String)> {
    finished_content_while(path, kind, &mut |_, _| true)
}

/// Like [`finished_content`]. `goes_on` is called before each block of a file is read, with the number of files that were
/// read before and that of all files. If it returns `false`, nothing more is read and the result is `None`.
pub fn finished_content_while(
    path: &Path,
    kind: &str,
    goes_on: &mut dyn FnMut(usize, usize) -> bool,
) -> Option<(u64, String)> {
    if !is_finished(path, kind) {
        return None;
    }
    let manifest = Manifest::from_folder(path)?;
    let files = manifest.files.as_ref()?;
    let is_whole = files.iter().all(|file| path.join(&file.name).is_file());
    let mut before_block = |compared: usize| -> io::Result<()> {
        if goes_on(compared, files.len()) { Ok(()) } else { Err(io::ErrorKind::Interrupted.into()) }
    };
    if !is_whole || manifest.difference_while(path, &mut before_block).ok()?.is_some() {
        return None;
    }
    let sha256 = crate::sha256_of_file(&path.join(MARKER)).ok()?;
    Some((files.iter().map(|file| file.bytes).sum(), sha256))
}

/// State of the path of a new folder before it was written, and what happened to its content.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "tell the user where their folder was moved to"]
pub enum Replaced {
    /// Nothing existed, or an empty folder.
    Nothing,
    /// A folder of this program, which was removed.
    Ours,
    /// Something else, which was moved to this path.
    MovedTo(PathBuf),
}

/// Writes a finished folder atomically: the files, given by name and content, and the marker that lists them.
///
/// A folder of this program at that path is replaced; anything else is moved aside if `overwrite` allows it, and
/// refused otherwise.
///
/// # Errors
/// Same as [`check_finished`]; what exists at the path is then unchanged.
pub fn write_finished(
    path: &Path,
    kind: &str,
    files: &[(String, Vec<u8>)],
    overwrite: Overwrite,
) -> Result<Replaced, StorageError> {
    check_finished(path, kind, &[], overwrite)?;
    let folder = parent_folder(path);
    sweep_once(folder);
    let Some(name) = path.file_name() else {
        let error = io::Error::new(io::ErrorKind::InvalidInput, "the path has no folder name");
        return Err(StorageError::io(path, "creating the folder")(error));
    };
    let mut builder = tempfile::Builder::new();
    let prefix = hidden_prefix(name);
    builder.prefix(&prefix).suffix(partial_suffix()).rand_bytes(RANDOM_CHARS);
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
    let made = builder.tempdir_in(folder).map_err(without_hidden_name);
    let partial = made.map_err(StorageError::io(path, "creating the folder"))?.keep();
    let outcome = match write_files(&partial, kind, files) {
        // The marker stays locked until the folder is renamed.
        Ok(marker) => {
            // On systems other than Unix an open file prevents its folder from being renamed.
            let marker = cfg!(unix).then_some(marker);
            move_into_place(&partial, path, kind, &Found::Unknown).map(|replaced| (replaced, marker))
        }
        Err(error) => {
            // The first error is reported; a leftover folder is hidden and marked, and a later sweep removes it.
            let _ = remove_marked(&partial);
            return Err(StorageError::io(path, "writing the folder")(error));
        }
    };
    let (replaced, _marker) = outcome.inspect_err(|_| {
        // The first error is reported; a leftover folder is hidden, and a later sweep removes it.
        let _ = remove_listed(&partial);
    })?;
    sync_folder(path);
    Ok(replaced)
}

/// Writes the files into a new folder and returns the marker, which is locked until it is dropped. The marker is
/// completed after all files are on disk.
fn write_files(folder: &Path, kind: &str, files: &[(String, Vec<u8>)]) -> io::Result<File> {
    let mut marker = File::create_new(folder.join(MARKER))?;
    // Some network file systems have no locks; the folder is then protected by its random name only.
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

/// Returns an error if `goes_on` returns `false`.
fn while_going_on(goes_on: &mut dyn FnMut() -> bool) -> io::Result<()> {
    if goes_on() { Ok(()) } else { Err(io::ErrorKind::Interrupted.into()) }
}

/// What a folder was found to be before it is replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Found {
    /// Its files were not read.
    Unknown,
    /// An unchanged finished folder, whose marker has this SHA-256.
    Unchanged(String),
    /// A finished folder in which something was changed or added.
    Changed,
}

/// Reads the files of a finished folder. `goes_on` is called before each block; if it returns `false`, nothing more is read.
pub(crate) fn find(path: &Path, kind: &str, goes_on: &mut dyn FnMut() -> bool) -> Found {
    if !is_finished(path, kind) {
        return Found::Unknown;
    }
    // The marker is hashed first: if it is replaced meanwhile, the folder counts as another one.
    let (Ok(sha256), Some(manifest)) = (crate::sha256_of_file(&path.join(MARKER)), Manifest::from_folder(path)) else {
        return Found::Unknown;
    };
    match manifest.difference_while(path, &mut |_| while_going_on(goes_on)) {
        Ok(None) => Found::Unchanged(sha256),
        Ok(Some(_)) => Found::Changed,
        Err(_) => Found::Unknown,
    }
}

/// Whether a folder that was unchanged still has the marker with this hash, and the files that it lists with their sizes.
fn is_still(path: &Path, sha256: &str) -> bool {
    crate::sha256_of_file(&path.join(MARKER)).is_ok_and(|now| now == sha256)
        && Manifest::from_folder(path).is_some_and(|manifest| manifest.lists_all_with_sizes(path))
}

/// Renames a new folder to `path` and returns what happened to the previous content, whose files are not read again if it is
/// `known`.
pub(crate) fn move_into_place(new: &Path, path: &Path, kind: &str, known: &Found) -> Result<Replaced, StorageError> {
    let io = |error| StorageError::io(path, "replacing the folder")(error);
    let found = std::fs::symlink_metadata(path);
    let exists = found.is_ok();
    // A link to an empty folder is moved aside like any other.
    let is_folder = found.is_ok_and(|meta| meta.is_dir());
    let is_empty = is_folder && std::fs::read_dir(path).is_ok_and(|mut e| e.next().is_none());
    if is_empty {
        std::fs::remove_dir(path).map_err(io)?;
    }
    if !exists || is_empty {
        std::fs::rename(new, path).map_err(io)?;
        return Ok(Replaced::Nothing);
    }
    let is_changed = match known {
        Found::Changed => true,
        Found::Unchanged(sha256) if is_still(path, sha256) => false,
        _ => difference(path, kind)?.is_some(),
    };
    if is_changed {
        let aside = move_aside(path)?;
        if let Err(error) = std::fs::rename(new, path) {
            move_back(&aside, path);
            return Err(io(error));
        }
        return Ok(Replaced::MovedTo(aside));
    }
    if exchange(new, path) {
        // The old folder now has the hidden name; if it cannot be removed now, a later sweep removes it.
        let _ = remove_listed(new);
        return Ok(Replaced::Ours);
    }
    let mut old = new.as_os_str().to_owned();
    old.push(OLD_SUFFIX);
    let old = PathBuf::from(old);
    std::fs::rename(path, &old).map_err(io)?;
    if let Err(error) = std::fs::rename(new, path) {
        // The first error is reported; if this one fails, too, a later sweep restores the folder.
        let _ = std::fs::rename(&old, path);
        return Err(io(error));
    }
    // The result is in place; a leftover old folder is hidden, and a later sweep removes it.
    let _ = remove_listed(&old);
    Ok(Replaced::Ours)
}

/// Exchanges two folders atomically; `false` if the system does not support it.
#[cfg(any(target_os = "linux", target_vendor = "apple"))]
fn exchange(a: &Path, b: &Path) -> bool {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, a, CWD, b, RenameFlags::EXCHANGE).is_ok()
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn exchange(_a: &Path, _b: &Path) -> bool {
    false
}

/// Renames a file or folder to a free name in the same folder (`name.before-1`) and returns the new path.
///
/// # Errors
/// [`StorageError::Io`].
pub fn move_aside(path: &Path) -> Result<PathBuf, StorageError> {
    let io = |error| StorageError::io(path, "moving it aside")(error);
    for n in 1..=MAX_ASIDE {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".before-{n}"));
        let aside = path.with_file_name(name);
        match rename_new(path, &aside) {
            // Another process may be moving something aside, too.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            done => return done.map(|()| aside).map_err(io),
        }
    }
    Err(io(io::Error::other("too many copies exist already")))
}

/// Gives what [`move_aside`] moved its name back, because nothing else could be written there. If that fails, it stays beside
/// the path with its content.
pub fn move_back(aside: &Path, path: &Path) {
    // The error of writing is reported.
    let _ = rename_new(aside, path);
}

/// Restores a folder after a process was killed while replacing it. If `path` exists, removes the leftovers instead.
pub fn recover(path: &Path) {
    let Some(name) = path.file_name() else { return };
    let prefix = hidden_prefix(name);
    let length = prefix.len() + RANDOM_CHARS + partial_suffix().len() + OLD_SUFFIX.len();
    for entry in std::fs::read_dir(parent_folder(path)).into_iter().flatten().flatten() {
        let candidate = entry.file_name();
        let bytes = candidate.as_encoded_bytes();
        let is_old = bytes.starts_with(prefix.as_encoded_bytes()) && bytes.ends_with(OLD_SUFFIX.as_bytes());
        if !is_old || bytes.len() != length {
            continue;
        }
        let old = entry.path();
        if std::fs::symlink_metadata(path).is_ok() {
            if matches!(Manifest::from_folder(&old), Some(m) if m.files.is_some()) {
                // A failure is ignored: the leftover only takes disk space, and a later sweep removes it.
                let _ = remove_listed(&old);
            }
            continue;
        }
        // Only a complete folder is restored: a removal that had begun is not undone.
        let files = Manifest::from_folder(&old).and_then(|m| m.files);
        let is_whole = files.is_some_and(|files| files.iter().all(|f| old.join(&f.name).is_file()));
        if is_whole && std::fs::rename(&old, path).is_ok() {
            sync_folder(path);
        }
    }
}

/// Removes a partial folder if the process that wrote it has ended, that is, if its marker exists and is not locked.
pub(crate) fn remove_if_abandoned(path: &Path) {
    let Some(manifest) = Manifest::from_folder(path) else { return };
    let unlocked = read::open_regular(&path.join(MARKER)).is_ok_and(|marker| marker.try_lock().is_ok());
    if !unlocked {
        return;
    }
    // A failure is ignored: the leftover only takes disk space.
    let _ = if manifest.files.is_some() { remove_listed(path) } else { remove_marked(path) };
}

#[cfg(test)]
mod tests;

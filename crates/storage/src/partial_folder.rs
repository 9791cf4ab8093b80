//! Folders of many files that appear at once: they are written under a hidden name next to their target and renamed.
//!
//! A folder created by [`PartialFolder::create_listed`] keeps a marker that lists its files, so that a later run may replace
//! it as long as no one has changed it.

mod unfinished;

use crate::folder::{Found, Replaced, find, move_aside, move_into_place, remove_marked};
use crate::manifest::{MARKER, Manifest, ManifestFile, folders_on_the_way, sha256_of_bytes};
use crate::target::{Overwrite, check_folder_name, check_parent, refuse_input, refuse_needed};
use crate::write::{
    RANDOM_CHARS, hidden_prefix, parent_folder, partial_suffix, sweep_once, sync_folder, without_hidden_name,
};
use crate::{StorageError, read};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use unfinished::Change;
pub use unfinished::remove_unfinished_folders;

/// Kind in the marker of an unfinished folder.
const KIND: &str = crate::folder_kind::UNFINISHED;

/// Checks that a new folder may be written to a path: the path is not an input, and it is free, an empty folder, or may
/// be moved aside.
///
/// # Errors
/// [`StorageError::IsInput`], [`StorageError::NotReplaceable`], or [`StorageError::Io`] if its folder does not exist.
pub fn check_new_folder(path: &Path, inputs: &[&Path], overwrite: Overwrite) -> Result<(), StorageError> {
    check_folder_name(path)?;
    refuse_input(path, inputs)?;
    refuse_needed(path)?;
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
    /// The files written so far, if the marker of the finished folder lists them.
    listed: Option<Mutex<Vec<ManifestFile>>>,
}

impl PartialFolder {
    /// Creates an empty folder next to `target`, whose files are recorded for [`PartialFolder::finish`].
    ///
    /// # Errors
    /// [`StorageError::Io`].
    pub fn create_listed(target: &Path) -> Result<Self, StorageError> {
        let mut folder = Self::create(target)?;
        folder.listed = Some(Mutex::default());
        Ok(folder)
    }

    /// Creates an empty folder next to `target`.
    ///
    /// # Errors
    /// [`StorageError::Io`].
    pub fn create(target: &Path) -> Result<Self, StorageError> {
        let io = |error| StorageError::io(target, "creating the folder")(error);
        let Some(name) = target.file_name() else {
            return Err(io(io::Error::new(io::ErrorKind::InvalidInput, "the path has no folder name")));
        };
        let folder = parent_folder(target);
        sweep_once(folder);
        let _change = Change::begin();
        let mut builder = tempfile::Builder::new();
        let prefix = hidden_prefix(name);
        builder.prefix(&prefix).suffix(partial_suffix()).rand_bytes(RANDOM_CHARS);
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
        let partial = builder.tempdir_in(folder).map_err(without_hidden_name).map_err(io)?.keep();
        let marked = File::create_new(partial.join(MARKER)).and_then(|mut marker| {
            // Where locks are not supported nothing is swept, so an unlocked folder is safe.
            let _ = marker.lock();
            marker.write_all(&Manifest::working(KIND).to_bytes()).map(|()| marker)
        });
        match marked {
            Ok(marker) => {
                unfinished::lock_paths().insert(partial.clone());
                Ok(Self { partial, target: target.to_owned(), marker: Some(marker), listed: None })
            }
            Err(error) => {
                // The first error is reported; a leftover folder is hidden and marked.
                let _ = remove_marked(&partial);
                Err(io(error))
            }
        }
    }

    /// The path that the folder will have.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// The hidden path that the folder has while it is written.
    pub fn path(&self) -> &Path {
        &self.partial
    }

    /// Writes a new file at a path relative to the folder, and the folders on the way to it, and flushes it to disk.
    ///
    /// # Errors
    /// [`StorageError::Io`]; a path that leaves the folder is refused, and so is a file that exists.
    pub fn write(&self, relative: &Path, bytes: &[u8]) -> Result<(), StorageError> {
        let io = |error| StorageError::io(&self.target.join(relative), "writing")(error);
        if !is_file_inside(relative) {
            return Err(io(read::Refusal::NotRelative(relative.to_owned()).into()));
        }
        let _change = Change::begin();
        let path = self.partial.join(relative);
        let written = std::fs::create_dir_all(parent_folder(&path)).and_then(|()| {
            let mut file = File::create_new(&path)?;
            file.write_all(bytes)?;
            file.sync_all()
        });
        written.map_err(io)?;
        if let (Some(listed), Some(name)) = (&self.listed, slashed(relative)) {
            let file = ManifestFile { name, bytes: bytes.len() as u64, sha256: sha256_of_bytes(bytes) };
            listed.lock().unwrap_or_else(PoisonError::into_inner).push(file);
        }
        Ok(())
    }

    /// Adds the files of a finished folder whose paths in it satisfy `is_kept`, with the hashes that its marker lists. They
    /// are linked, or copied if the file system has no links, so that large files take neither time nor space. That the
    /// folder is unchanged is checked before, by [`crate::folder::finished_content`].
    ///
    /// # Errors
    /// [`StorageError::Io`] if the folder has no marker that lists files, or a listed file is missing, or can be neither
    /// linked nor copied.
    pub fn adopt(&self, finished: &Path, is_kept: &dyn Fn(&str) -> bool) -> Result<(), StorageError> {
        let _change = Change::begin();
        let listed = Manifest::from_folder(finished).and_then(|manifest| manifest.files);
        let missing = || io::Error::new(io::ErrorKind::NotFound, "it does not list the files of the folder");
        let files =
            listed.ok_or_else(missing).map_err(StorageError::io(&finished.join(MARKER), "reading the marker"))?;
        for file in files.into_iter().filter(|file| is_kept(&file.name)) {
            let io = |error| StorageError::io(&finished.join(&file.name), "linking the file")(error);
            // The names come from a file: those that leave the folder are refused.
            if folders_on_the_way(finished, &file.name).is_none() {
                return Err(io(read::Refusal::NotRelative(PathBuf::from(&file.name)).into()));
            }
            let (from, to) = (finished.join(&file.name), self.partial.join(&file.name));
            let added = std::fs::create_dir_all(parent_folder(&to)).and_then(|()| link_or_copy(&from, &to));
            added.map_err(io)?;
            if let Some(listed) = &self.listed {
                listed.lock().unwrap_or_else(PoisonError::into_inner).push(file);
            }
        }
        Ok(())
    }

    /// Removes a file that was written before, at a path relative to the folder, so that its content can be stored elsewhere
    /// without taking the space on the disk twice.
    ///
    /// # Errors
    /// [`StorageError::Io`]; a path that leaves the folder is refused.
    pub fn remove(&self, relative: &Path) -> Result<(), StorageError> {
        let io = |error| StorageError::io(&self.target.join(relative), "removing")(error);
        if !is_file_inside(relative) {
            return Err(io(read::Refusal::NotRelative(relative.to_owned()).into()));
        }
        let _change = Change::begin();
        std::fs::remove_file(self.partial.join(relative)).map_err(io)?;
        if let (Some(listed), Some(name)) = (&self.listed, slashed(relative)) {
            listed.lock().unwrap_or_else(PoisonError::into_inner).retain(|file| file.name != name);
        }
        Ok(())
    }

    /// Completes the marker, which lists the files written. The folder gets its name when the returned handle is published.
    ///
    /// # Errors
    /// [`StorageError::Io`]; the folder is then removed. A folder made by [`PartialFolder::create`] lists no files.
    pub fn finish(mut self, kind: &'static str) -> Result<FinishedFolder, StorageError> {
        let listed = self.listed.take().map(|listed| listed.into_inner().unwrap_or_else(PoisonError::into_inner));
        let mut files = listed.unwrap_or_default();
        // Several threads may have written them, in any order.
        files.sort_by(|a, b| a.name.cmp(&b.name));
        let bytes: u64 = files.iter().map(|file| file.bytes).sum();
        let text = Manifest::listing(kind, files).to_bytes();
        if let Some(marker) = &mut self.marker {
            let written = marker.set_len(0).and_then(|()| marker.rewind()).and_then(|()| marker.write_all(&text));
            let synced = written.and_then(|()| marker.sync_all());
            synced.map_err(StorageError::io(&self.target, "finishing the folder"))?;
        }
        Ok(FinishedFolder { kind, bytes, sha256: sha256_of_bytes(&text), found: Found::Unknown, folder: self })
    }

    /// Renames the folder to its target. What exists there is moved aside if `overwrite` allows it; its new path is
    /// returned.
    ///
    /// # Errors
    /// Same as [`check_new_folder`]; the target is then unchanged, and the new folder is removed.
    pub fn publish(mut self, overwrite: Overwrite) -> Result<Option<PathBuf>, StorageError> {
        let _change = Change::begin();
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
                // The first error is reported. If this one fails, too, the old folder is still beside the target.
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

/// Whether a path relative to a folder is that of a file inside it, other than the marker.
fn is_file_inside(relative: &Path) -> bool {
    let plain = relative.components().all(|part| matches!(part, Component::Normal(_)));
    plain && relative.file_name().is_some() && relative != Path::new(MARKER)
}

/// Gives a file a second name, or copies it if the file system has no links.
fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    if std::fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    let mut source = read::open_regular(from)?;
    let mut copy = File::create_new(to)?;
    io::copy(&mut source, &mut copy)?;
    copy.sync_all()
}

/// Returns a relative path with `/` between its parts; `None` if it is not Unicode.
fn slashed(relative: &Path) -> Option<String> {
    let parts: Option<Vec<&str>> = relative.components().map(|part| part.as_os_str().to_str()).collect();
    parts.map(|parts| parts.join("/"))
}

/// A complete folder with a hidden name and a marker that lists its files; removed when dropped before
/// [`FinishedFolder::publish`].
#[derive(Debug)]
pub struct FinishedFolder {
    folder: PartialFolder,
    kind: &'static str,
    bytes: u64,
    sha256: String,
    /// The folder that it replaces.
    found: Found,
}

impl FinishedFolder {
    /// The path that the folder will have.
    pub fn target(&self) -> &Path {
        &self.folder.target
    }

    /// The path that the folder has until it is published.
    pub fn hidden_path(&self) -> &Path {
        &self.folder.partial
    }

    /// Size of all files without the marker, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// SHA-256 of the marker in lower-case hexadecimal; the marker lists the hashes of all files.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Reads the folder that [`FinishedFolder::publish`] replaces, so that it does not have to. `goes_on` is called before each
    /// block of a file; if it returns `false`, nothing more is read.
    pub fn prepare(&mut self, goes_on: &mut dyn FnMut() -> bool) {
        self.found = find(&self.folder.target, self.kind, goes_on);
    }

    /// Renames the folder to its target. An unchanged finished folder of the same kind is replaced, anything else is moved
    /// aside. Whether that is wanted is checked before, by [`crate::folder::check_finished`].
    ///
    /// # Errors
    /// [`StorageError::Io`]; the target is then unchanged, and the new folder is removed.
    pub fn publish(mut self) -> Result<Replaced, StorageError> {
        let _change = Change::begin();
        if cfg!(not(unix)) {
            // Elsewhere an open file prevents its folder from being renamed.
            self.folder.marker = None;
        }
        let outcome = move_into_place(&self.folder.partial, &self.folder.target, self.kind, &self.found);
        if outcome.is_err() {
            // Dropping the handle removes the folder only if the marker is open.
            let _ = remove_marked(&self.folder.partial);
        }
        self.folder.marker = None;
        sync_folder(&self.folder.target);
        outcome
    }
}

impl Drop for PartialFolder {
    fn drop(&mut self) {
        unfinished::lock_paths().remove(&self.partial);
        if self.marker.take().is_some() {
            // Nobody can receive an error here; a leftover folder is hidden and marked, and a later sweep removes it.
            let _ = remove_marked(&self.partial);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::folder::{check_finished, check_finished_while, finished_content, finished_content_while};
    use cytoscope_testkit::file_names;

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
        assert_eq!(file_names(&target), ["0", "zarr.json"], "the marker is gone");
        let dropped = PartialFolder::create(&folder.path().join("b.zarr")).unwrap();
        dropped.write(Path::new("zarr.json"), b"{}").unwrap();
        drop(dropped);
        assert_eq!(file_names(folder.path()), ["a.zarr"]);
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
        assert_eq!(file_names(&target), ["mine"]);
        let aside = write(Overwrite::Replace).unwrap().unwrap();
        assert_eq!(std::fs::read(aside.join("mine")).unwrap(), b"data");
        assert_eq!(file_names(&target), ["zarr.json"]);
        let inside = target.join("zarr.json");
        let refused = check_new_folder(&target, &[&inside], Overwrite::Replace);
        assert!(matches!(refused, Err(StorageError::IsInput { .. })), "the input lies in the folder");
        assert_eq!(file_names(folder.path()).len(), 2, "no unfinished folder is left");
    }

    #[test]
    fn files_of_a_finished_folder_are_taken_into_the_one_that_replaces_it() {
        const KIND: &str = "result";
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a.zarr");
        let first = PartialFolder::create_listed(&target).unwrap();
        for (name, content) in [("0/c/0", "maps"), ("labels/zarr.json", "old"), ("zarr.json", "{}")] {
            first.write(Path::new(name), content.as_bytes()).unwrap();
        }
        assert_eq!(first.finish(KIND).unwrap().publish().unwrap(), Replaced::Nothing);
        let second = PartialFolder::create_listed(&target).unwrap();
        second.adopt(&target, &|name| !name.starts_with("labels/")).unwrap();
        second.write(Path::new("labels/zarr.json"), b"newer").unwrap();
        let finished = second.finish(KIND).unwrap();
        let known = (finished.bytes(), finished.sha256().to_owned());
        assert_eq!(std::fs::read(target.join("labels/zarr.json")).unwrap(), b"old", "until it is published");
        assert_eq!(finished.publish().unwrap(), Replaced::Ours);
        assert_eq!(finished_content(&target, KIND), Some(known));
        let read = |name: &str| std::fs::read_to_string(target.join(name)).unwrap();
        assert_eq!(["0/c/0", "labels/zarr.json", "zarr.json"].map(read), ["maps", "newer", "{}"]);
        assert_eq!(file_names(folder.path()), ["a.zarr"], "the old folder is gone");
        // A folder that was dropped leaves the files of the finished one.
        let dropped = PartialFolder::create_listed(&target).unwrap();
        dropped.adopt(&target, &|_| true).unwrap();
        drop(dropped);
        assert_eq!(["0/c/0", "labels/zarr.json", "zarr.json"].map(read), ["maps", "newer", "{}"]);
        // A listed file that is gone is an error.
        std::fs::remove_file(target.join("0/c/0")).unwrap();
        let broken = PartialFolder::create_listed(&target).unwrap();
        assert!(broken.adopt(&target, &|_| true).unwrap_err().to_string().contains("0/c/0"));
        // So is a marker that is gone: without it, the new folder would lack the files.
        std::fs::remove_file(target.join(MARKER)).unwrap();
        assert!(broken.adopt(&target, &|_| true).unwrap_err().to_string().contains(MARKER));
    }

    #[test]
    fn a_listed_folder_is_replaced_only_while_it_is_unchanged() {
        const KIND: &str = "result";
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a.zarr");
        let write = |content: &[u8]| {
            let partial = PartialFolder::create_listed(&target).unwrap();
            partial.write(Path::new("0/c/0"), content).unwrap();
            partial.write(Path::new("zarr.json"), b"{}").unwrap();
            let finished = partial.finish(KIND).unwrap();
            let known = (finished.bytes(), finished.sha256().to_owned());
            (finished.publish().unwrap(), known)
        };
        let (replaced, known) = write(b"one");
        assert_eq!((replaced, known.0), (Replaced::Nothing, 5));
        assert_eq!(finished_content(&target, KIND), Some(known));
        assert_eq!(finished_content(&target, "other"), None);
        assert_eq!(write(b"two").0, Replaced::Ours);
        assert_eq!(std::fs::read(target.join("0/c/0")).unwrap(), b"two");
        assert_eq!(file_names(folder.path()), ["a.zarr"], "the old folder is gone");
        // A file that the user adds deep inside is not lost.
        std::fs::write(target.join("0/c/mine"), "data").unwrap();
        let refused = check_finished(&target, KIND, &[], Overwrite::Refuse).unwrap_err().to_string();
        assert!(refused.contains("0/c/mine"), "{refused}");
        assert!(check_finished(&target, KIND, &[], Overwrite::Replace).is_ok());
        assert_eq!(finished_content(&target, KIND), None);
        let (replaced, _) = write(b"three");
        let Replaced::MovedTo(aside) = replaced else { unreachable!("{replaced:?}") };
        assert_eq!(std::fs::read(aside.join("0/c/mine")).unwrap(), b"data");
        std::fs::remove_file(target.join("0/c/0")).unwrap();
        assert_eq!(finished_content(&target, KIND), None, "a file is missing");
        drop(PartialFolder::create_listed(&target).unwrap().finish(KIND).unwrap());
        assert_eq!(file_names(folder.path()), ["a.zarr", "a.zarr.before-1"]);
    }

    #[test]
    fn the_reading_of_a_finished_folder_can_be_followed_and_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a.zarr");
        let partial = PartialFolder::create_listed(&target).unwrap();
        for name in ["0/c/0", "0/c/1", "zarr.json"] {
            partial.write(Path::new(name), b"content").unwrap();
        }
        assert_eq!(partial.finish("result").unwrap().publish().unwrap(), Replaced::Nothing);
        let mut seen = Vec::new();
        let mut read_until = |last: usize| {
            seen.clear();
            let content = finished_content_while(&target, "result", &mut |read, all| {
                seen.push((read, all));
                read < last
            });
            seen.dedup();
            (content, seen.clone())
        };
        let (content, whole) = read_until(3);
        assert_eq!((content, whole), (finished_content(&target, "result"), vec![(0, 3), (1, 3), (2, 3)]));
        assert_eq!(read_until(1), (None, vec![(0, 3), (1, 3)]), "the third file is not read");
    }

    #[test]
    fn a_folder_that_was_read_before_is_replaced_without_reading_it_again() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("a.zarr");
        let write = |content: &[u8], goes_on: bool, between: &dyn Fn()| {
            let partial = PartialFolder::create_listed(&target).unwrap();
            partial.write(Path::new("0"), content).unwrap();
            let mut finished = partial.finish("result").unwrap();
            let mut blocks = 0;
            finished.prepare(&mut || {
                blocks += 1;
                goes_on
            });
            between();
            (finished.publish().unwrap(), blocks)
        };
        assert_eq!(write(b"one", true, &|| ()), (Replaced::Nothing, 0));
        let (replaced, blocks) = write(b"two", true, &|| ());
        assert!(replaced == Replaced::Ours && blocks > 0, "{replaced:?} {blocks}");
        // Reading that was stopped counts as none.
        assert_eq!(write(b"three", false, &|| ()), (Replaced::Ours, 1));
        let stopped = check_finished_while(&target, "result", &[], Overwrite::Refuse, &mut || false);
        assert!(matches!(stopped, Err(StorageError::Io { .. })), "{stopped:?}");
        assert!(check_finished_while(&target, "result", &[], Overwrite::Refuse, &mut || true).is_ok());
        // A folder that takes its place meanwhile is not lost.
        let swap = || {
            std::fs::remove_dir_all(&target).unwrap();
            std::fs::create_dir(&target).unwrap();
            std::fs::write(target.join("mine"), "data").unwrap();
        };
        let (replaced, _) = write(b"four", true, &swap);
        let Replaced::MovedTo(aside) = replaced else { unreachable!("{replaced:?}") };
        assert_eq!(std::fs::read(aside.join("mine")).unwrap(), b"data");
        // A file that was added is not lost either.
        std::fs::write(target.join("mine"), "more").unwrap();
        let (replaced, _) = write(b"five", true, &|| ());
        let Replaced::MovedTo(aside) = replaced else { unreachable!("{replaced:?}") };
        assert_eq!(std::fs::read(aside.join("mine")).unwrap(), b"more");
        assert_eq!(std::fs::read(target.join("0")).unwrap(), b"five");
        // Nor is one that is added after the folder was read.
        let (replaced, _) = write(b"six", true, &|| std::fs::write(target.join("mine"), "late").unwrap());
        let Replaced::MovedTo(aside) = replaced else { unreachable!("{replaced:?}") };
        assert_eq!(std::fs::read(aside.join("mine")).unwrap(), b"late");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_inside_a_listed_folder_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (target, other) = (folder.path().join("a.zarr"), folder.path().join("other"));
        let partial = PartialFolder::create_listed(&target).unwrap();
        partial.write(Path::new("0/c"), b"one").unwrap();
        assert_eq!(partial.finish("result").unwrap().publish().unwrap(), Replaced::Nothing);
        std::fs::create_dir(&other).unwrap();
        std::fs::write(other.join("c"), "one").unwrap();
        std::fs::remove_file(target.join("0/c")).unwrap();
        std::fs::remove_dir(target.join("0")).unwrap();
        std::os::unix::fs::symlink(&other, target.join("0")).unwrap();
        assert!(crate::folder::remove_finished(&target, "result").is_err());
        assert_eq!(std::fs::read(other.join("c")).unwrap(), b"one");
    }

    #[test]
    fn files_are_written_inside_the_folder_only() {
        let folder = tempfile::tempdir().unwrap();
        let partial = PartialFolder::create(&folder.path().join("a.zarr")).unwrap();
        for path in ["../b", "/b", "", "x/../../b", MARKER] {
            assert!(partial.write(Path::new(path), b"x").is_err(), "{path}");
            assert!(partial.remove(Path::new(path)).is_err(), "{path}");
        }
        partial.write(Path::new("c/0"), b"x").unwrap();
        partial.remove(Path::new("c/0")).unwrap();
        assert!(!partial.path().join("c/0").exists());
        drop(partial);
        assert!(file_names(folder.path()).is_empty());
    }
}

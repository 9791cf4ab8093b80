//! Files of corrections: the journal, the saved labels and a copy of the original labels.

use cytoscope_corrections::{CorrectionError, LabelSnapshot};
use cytoscope_formats::stack_stem;
use cytoscope_pipeline::ArtifactKind;
use cytoscope_storage::folder::move_back;
use cytoscope_storage::lock::LockedFile;
use cytoscope_storage::read::open_regular;
use cytoscope_storage::write::atomic_write_with;
use std::fs::TryLockError;
use std::io;
use std::path::{Path, PathBuf};

/// Maximum number of earlier corrections of one stack.
const MAX_SET_ASIDE: usize = 1000;
/// Follows the stem of a stack that ends in the number of a time point.
const STACK: &str = "_stack";

/// Paths of the correction files of one stack, in its results folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CorrectionFiles {
    /// Journal of all edits, written as they happen.
    pub journal: PathBuf,
    /// The corrected labels, written on save.
    pub labels: PathBuf,
    /// Copy of the labels that the journal is based on. A later prediction replaces the original file, and without the
    /// copy the journal could not be replayed.
    pub base: PathBuf,
}

/// Earlier corrections that were renamed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SetAside {
    /// New path of the journal.
    pub journal: PathBuf,
    /// Old and new path of the corrected labels, if they had been saved.
    pub labels: Option<(PathBuf, PathBuf)>,
}

impl CorrectionFiles {
    /// Returns the paths for a stack; `time` is given if it has several time points. No two stacks or time points in a folder
    /// have the same.
    pub fn of(folder: &Path, stem: &str, time: Option<usize>) -> Self {
        Self::named(folder, &time.map_or_else(|| stem_of_stack(stem), |t| format!("{stem}_t{t}")))
    }

    /// Returns the paths for a stack with a single time point. If an earlier version has written its corrections to the files
    /// that those of a time point of another stack would have, they stay there.
    pub fn existing(folder: &Path, stem: &str) -> Self {
        let (files, earlier) = (Self::of(folder, stem, None), Self::named(folder, stem));
        if files == earlier || files.exist() || !earlier.exist() || is_time_of_another(folder, stem) {
            return files;
        }
        earlier
    }

    /// Whether one of the files exists.
    fn exist(&self) -> bool {
        [&self.journal, &self.labels, &self.base].into_iter().any(|file| file.exists())
    }

    fn named(folder: &Path, stem: &str) -> Self {
        Self {
            journal: folder.join(format!("{stem}.corrections")),
            labels: folder.join(format!("{stem}_corrected_labels.tif")),
            base: folder.join(format!("{stem}_corrections_base.tif")),
        }
    }

    /// Renames a copy of original labels whose journal is gone, so that a new journal gets a copy of the labels that it is
    /// based on.
    ///
    /// # Errors
    /// [`CorrectionError::Io`] if it cannot be renamed.
    pub fn set_base_aside(&self, labels: &Path) -> Result<(), CorrectionError> {
        if !self.base.exists() || labels == self.base || labels == self.labels {
            return Ok(());
        }
        let renamed =
            free_number(&[self.base.as_path()]).and_then(|n| std::fs::rename(&self.base, earlier(&self.base, n)));
        let doing = "renaming the copy of earlier original labels";
        renamed.map_err(|source| CorrectionError::Io { file: self.base.clone(), doing, source })
    }

    /// Copies the labels that a journal is based on, unless there is a copy. A link would not keep them: programs such as
    /// Fiji and tifffile replace the content of a file in place.
    ///
    /// # Errors
    /// [`CorrectionError::Io`] or [`CorrectionError::Storage`] if they cannot be copied.
    pub fn copy_base(&self, labels: &Path) -> Result<(), CorrectionError> {
        if self.base.exists() || labels == self.base || labels == self.labels {
            return Ok(());
        }
        let mut from = open_regular(labels).map_err(|source| CorrectionError::Io {
            file: labels.to_owned(),
            doing: "opening the original labels",
            source,
        })?;
        Ok(atomic_write_with(&self.base, |to| io::copy(&mut from, to).map(drop))?)
    }

    /// Saves the labels that a journal is based on, unless there is a copy, if they come from a folder, which cannot be copied
    /// as a file.
    ///
    /// # Errors
    /// [`CorrectionError`] if they cannot be written.
    pub fn save_base(&self, labels: &LabelSnapshot) -> Result<(), CorrectionError> {
        if self.base.exists() { Ok(()) } else { labels.save(&self.base) }
    }

    /// Renames the files so that new corrections can start. Returns their new paths.
    ///
    /// # Errors
    /// If they cannot be renamed, or are open in another window.
    pub(crate) fn set_aside(&self) -> io::Result<SetAside> {
        let _unused = lock_unused(&self.journal)?;
        // The labels last: if another file cannot be renamed, they are still where the window shows them.
        let all = [&self.base, &self.journal, &self.labels];
        let n = free_number(&all.map(PathBuf::as_path))?;
        let labels = self.labels.exists().then(|| (self.labels.clone(), earlier(&self.labels, n)));
        let existing: Vec<&Path> = all.into_iter().map(PathBuf::as_path).filter(|path| path.exists()).collect();
        rename_together(&existing, n, rename_file)?;
        Ok(SetAside { journal: earlier(&self.journal, n), labels })
    }
}

/// Returns the series and the number of a time point in a text that ends in one, such as `cells_t3`.
fn time_at_end(text: &str) -> Option<(&str, usize)> {
    let (series, digits) = text.rsplit_once("_t")?;
    let time: usize = digits.parse().ok()?;
    (time.to_string() == digits).then_some((series, time))
}

/// Returns the stem of the correction files of a stack with a single time point. It never ends in the number of a time point,
/// which those of a time series do, and is different for each stack.
fn stem_of_stack(stem: &str) -> String {
    let mut text = stem;
    while let Some(before) = text.strip_suffix(STACK) {
        text = before;
    }
    if time_at_end(text).is_some() { format!("{stem}{STACK}") } else { stem.to_owned() }
}

/// For a stack whose stem ends like the number of a time point: whether the files in a results folder that begin with
/// this stem belong to that time point of a time series instead.
fn is_time_of_another(folder: &Path, stem: &str) -> bool {
    let Some((series, _)) = time_at_end(stem) else { return false };
    let was_predicted = |stem: &str| folder.join(ArtifactKind::Provenance.file_name(stem)).is_file();
    let exists = || {
        let entries = folder.parent().and_then(|parent| std::fs::read_dir(parent).ok()).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).any(|path| path.is_file() && stack_stem(&path) == series)
    };
    !was_predicted(stem) && (was_predicted(series) || exists())
}

/// Locks a journal, if there is one, so that no other window opens it; an error if one has it open.
fn lock_unused(journal: &Path) -> io::Result<Option<LockedFile>> {
    let file = match open_regular(journal) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => {
            Err(io::Error::other("these corrections are open in another window or program"))
        }
        // On file systems without locks another window cannot be detected.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(Some(LockedFile::new(file))),
    }
}

fn rename_file(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::rename(from, to)
}

/// Renames files to those of earlier corrections with the number `n`. If one cannot be renamed, all keep their names, because
/// a journal is of no use without the labels that it is based on.
fn rename_together(files: &[&Path], n: usize, rename: impl Fn(&Path, &Path) -> io::Result<()>) -> io::Result<()> {
    for (at, path) in files.iter().enumerate() {
        if let Err(error) = rename(path, &earlier(path, n)) {
            for renamed in files.iter().take(at) {
                move_back(&earlier(renamed, n), renamed);
            }
            return Err(error);
        }
    }
    Ok(())
}

/// Returns the name under which a file of earlier corrections is kept.
fn earlier(path: &Path, n: usize) -> PathBuf {
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!("_earlier{n}"));
    if let Some(extension) = path.extension() {
        name.push(".");
        name.push(extension);
    }
    path.with_file_name(name)
}

/// Returns the first number whose names for these files are free.
fn free_number(files: &[&Path]) -> io::Result<usize> {
    let is_free = |path: &Path| std::fs::symlink_metadata(path).is_err();
    let free = (1..=MAX_SET_ASIDE).find(|n| files.iter().all(|path| is_free(&earlier(path, *n))));
    free.ok_or_else(|| io::Error::other(format!("{MAX_SET_ASIDE} earlier corrections are already set aside")))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn set_aside_files_are_kept_and_never_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let files = CorrectionFiles::of(folder.path(), "cells", None);
        let labels = folder.path().join("cells_labels.tif");
        for round in ["first", "second"] {
            std::fs::write(&labels, round).unwrap();
            files.copy_base(&labels).unwrap();
            std::fs::write(&files.journal, round).unwrap();
            // A new prediction replaces the file.
            std::fs::remove_file(&labels).unwrap();
            assert_eq!(std::fs::read_to_string(&files.base).unwrap(), round);
            // Corrections are saved in the second round only.
            if round == "second" {
                std::fs::write(&files.labels, "corrected").unwrap();
            }
            let moved = files.set_aside().unwrap();
            assert_eq!(std::fs::read_to_string(moved.journal).unwrap(), round);
            assert!(!files.journal.exists() && !files.base.exists() && !files.labels.exists());
            let labels = moved.labels.map(|(from, to)| (from, std::fs::read_to_string(to).unwrap()));
            assert_eq!(labels, (round == "second").then(|| (files.labels.clone(), "corrected".to_owned())));
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 5);
        assert_ne!(CorrectionFiles::of(folder.path(), "cells", Some(3)), files);
    }

    #[test]
    fn corrections_that_another_window_has_opened_are_not_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let files = CorrectionFiles::of(folder.path(), "cells", None);
        let open = std::fs::File::create(&files.journal).unwrap();
        open.lock().unwrap();
        assert!(files.set_aside().unwrap_err().to_string().contains("another window"));
        assert!(files.journal.is_file());
        drop(open);
        files.set_aside().unwrap();
        assert!(!files.journal.exists());
    }

    #[test]
    fn a_stack_does_not_share_the_files_of_a_time_point_of_another() {
        let home = tempfile::tempdir().unwrap();
        let folder = home.path().join("cytoscope");
        std::fs::create_dir(&folder).unwrap();
        let of = |stem: &str, time| CorrectionFiles::of(&folder, stem, time);
        let all = [
            of("cells", None),
            of("cells", Some(3)),
            of("cells_t3", None),
            of("cells_t3", Some(3)),
            of("cells_t3_stack", None),
            of("cells_t3_stack", Some(3)),
            of("cells_t3_t3", None),
        ];
        for (n, files) in all.iter().enumerate() {
            assert!(!all[..n].contains(files), "{files:?}");
        }
        assert!(of("cells_t", None).journal.ends_with("cells_t.corrections"), "no number of a time point");
        // Files of an earlier version, unless they are those of the other stack.
        let (new, old) = (of("cells_t3", None), of("cells", Some(3)));
        let existing = || CorrectionFiles::existing(&folder, "cells_t3");
        assert_eq!(existing(), new);
        std::fs::write(&old.journal, "").unwrap();
        assert_eq!(existing(), old);
        std::fs::write(home.path().join("cells.tif"), "").unwrap();
        assert_eq!(existing(), new);
        std::fs::write(folder.join("cells_t3_provenance.json"), "").unwrap();
        assert_eq!(existing(), old);
        std::fs::write(&new.journal, "").unwrap();
        assert_eq!(existing(), new);
    }

    #[test]
    fn files_of_corrections_that_cannot_all_be_set_aside_keep_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let files = CorrectionFiles::of(folder.path(), "cells", None);
        for path in [&files.base, &files.journal] {
            std::fs::write(path, "x").unwrap();
        }
        let rename_all_but_journals = |from: &Path, to: &Path| {
            if from == files.journal { Err(io::Error::other("it is open")) } else { std::fs::rename(from, to) }
        };
        let refused = rename_together(&[&files.base, &files.journal], 1, rename_all_but_journals);
        assert!(refused.unwrap_err().to_string().contains("it is open"));
        assert!(files.base.is_file() && files.journal.is_file());
    }

    #[test]
    fn the_copy_of_the_original_labels_is_that_of_its_journal() {
        let folder = tempfile::tempdir().unwrap();
        let files = CorrectionFiles::of(folder.path(), "cells", None);
        let labels = folder.path().join("cells_labels.tif");
        std::fs::write(&labels, "first").unwrap();
        files.copy_base(&labels).unwrap();
        // Another program writes to the same file.
        std::fs::write(&labels, "second").unwrap();
        assert_eq!(std::fs::read_to_string(&files.base).unwrap(), "first");
        files.copy_base(&labels).unwrap();
        assert_eq!(std::fs::read_to_string(&files.base).unwrap(), "first");
        // The journal was removed, and a new one is based on the present labels.
        files.set_base_aside(&labels).unwrap();
        files.copy_base(&labels).unwrap();
        assert_eq!(std::fs::read_to_string(&files.base).unwrap(), "second");
        let kept = folder.path().join("cells_corrections_base_earlier1.tif");
        assert_eq!(std::fs::read_to_string(kept).unwrap(), "first");
        // The copy itself is corrected.
        files.set_base_aside(&files.base).unwrap();
        assert!(files.base.exists());
    }
}

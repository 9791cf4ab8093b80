//! Files of corrections: the journal, the labels saved, and the labels that were there first.

use cytoscope_storage::read::open_regular;
use cytoscope_storage::write::atomic_write_with;
use std::io;
use std::path::{Path, PathBuf};

/// How often corrections of one stack can be set aside.
const MAX_SET_ASIDE: usize = 1000;

/// Where the corrections of one stack are kept: all beside its results.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// Every stroke, as it is made.
    pub journal: PathBuf,
    /// The corrected labels, once they are saved.
    pub labels: PathBuf,
    /// The labels that the journal begins with. A later prediction writes a new file in place of the one that was corrected, and
    /// the journal would have nothing to stand on.
    pub base: PathBuf,
}

impl Places {
    /// Of a stack's results; of one time point where there are several.
    pub fn of(folder: &Path, stem: &str, time: Option<usize>) -> Self {
        let stem = time.map_or_else(|| stem.to_owned(), |t| format!("{stem}_t{t}"));
        Self {
            journal: folder.join(format!("{stem}.corrections")),
            labels: folder.join(format!("{stem}_corrected_labels.tif")),
            base: folder.join(format!("{stem}_corrections_base.tif")),
        }
    }

    /// Keeps the labels that a new journal begins with.
    ///
    /// # Errors
    /// If they can neither be linked nor copied.
    pub fn keep_base(&self, labels: &Path) -> io::Result<()> {
        if self.base.exists() || labels == self.base || labels == self.labels {
            return Ok(());
        }
        // Results are replaced by renaming, so a link keeps the old ones without a copy.
        std::fs::hard_link(labels, &self.base).or_else(|_| {
            let mut from = open_regular(labels)?;
            let copied = atomic_write_with(&self.base, |to| io::copy(&mut from, to).map(drop));
            copied.map_err(io::Error::other)
        })
    }

    /// Gives the files other names, so that new corrections can begin; tells the journal's new name.
    ///
    /// # Errors
    /// If they cannot be renamed.
    pub fn set_aside(&self) -> io::Result<PathBuf> {
        let aside = |path: &Path, n: usize| {
            let mut name = path.file_stem().unwrap_or_default().to_owned();
            name.push(format!("_earlier{n}"));
            if let Some(ending) = path.extension() {
                name.push(".");
                name.push(ending);
            }
            path.with_file_name(name)
        };
        let all = [&self.labels, &self.base, &self.journal];
        let is_free = |path: &Path| std::fs::symlink_metadata(path).is_err();
        let free = (1..=MAX_SET_ASIDE).find(|n| all.iter().all(|p| is_free(&aside(p, *n))));
        let n = free.ok_or_else(|| io::Error::other(format!("{MAX_SET_ASIDE} were set aside already")))?;
        for path in all {
            if path.exists() {
                std::fs::rename(path, aside(path, n))?;
            }
        }
        Ok(aside(&self.journal, n))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_aside_is_kept_and_nothing_is_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let places = Places::of(folder.path(), "cells", None);
        let labels = folder.path().join("cells_labels.tif");
        for round in ["first", "second"] {
            std::fs::write(&labels, round).unwrap();
            places.keep_base(&labels).unwrap();
            std::fs::write(&places.journal, round).unwrap();
            // Another prediction takes the name.
            std::fs::remove_file(&labels).unwrap();
            assert_eq!(std::fs::read_to_string(&places.base).unwrap(), round);
            let journal = places.set_aside().unwrap();
            assert_eq!(std::fs::read_to_string(journal).unwrap(), round);
            assert!(!places.journal.exists() && !places.base.exists());
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 4);
        assert_ne!(Places::of(folder.path(), "cells", Some(3)), places);
    }
}

//! Folders in which the results of a stack are.

use super::may_write;
use crate::correct::files::CorrectionFiles;
use cytoscope_pipeline::user_folder;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Name of the results folder beside a stack.
pub(super) const RESULTS_FOLDER: &str = "cytoscope";

/// Where the results of a stack go, and where earlier ones may be.
#[derive(Clone)]
pub(crate) struct ResultsPlace {
    /// Path of the stack.
    pub(crate) stack: PathBuf,
    /// Stem of the names of its results.
    pub(crate) stem: String,
    /// Number of time points of the stack.
    pub(crate) times: usize,
    /// The folder chosen by the user in this window for all stacks, if any.
    pub(crate) chosen: Option<PathBuf>,
    /// The folder chosen in an earlier window for all stacks, which is used if it exists.
    pub(crate) earlier: Option<PathBuf>,
    /// Folders with results of the stack that this window has written or found, oldest first.
    pub(crate) known: Vec<PathBuf>,
}

impl ResultsPlace {
    /// The folder of new results: the chosen one, or else the one beside the stack, or else, if that is not writable, one of the
    /// user's.
    pub(super) fn folder(&self) -> PathBuf {
        let earlier = self.earlier.as_ref().filter(|folder| folder.is_dir());
        if let Some(chosen) = self.chosen.as_ref().or(earlier) {
            return chosen.clone();
        }
        match self.beside() {
            Some(folder) if may_write(&folder) => folder,
            _ => user_folder().unwrap_or_else(std::env::temp_dir).join("results"),
        }
    }

    /// The results folder beside the stack.
    fn beside(&self) -> Option<PathBuf> {
        self.stack.parent().map(|p| p.join(RESULTS_FOLDER))
    }

    /// The folders other than that of new results in which earlier results may be, the one used last first.
    pub(super) fn other_folders(&self) -> Vec<PathBuf> {
        let mut folders = vec![self.folder()];
        for folder in self.known.iter().rev().cloned().chain(self.beside()) {
            if !folders.contains(&folder) {
                folders.push(folder);
            }
        }
        folders.remove(0);
        folders
    }

    /// Whether files in a folder that have the stem of the stack in their names are known to be its own: another stack with the
    /// same name may have the same chosen folder.
    pub(super) fn is_own(&self, folder: &Path) -> bool {
        self.beside().as_deref() == Some(folder) || self.known.iter().any(|known| known == folder)
    }

    /// The files of the corrections of a time point in a folder.
    pub(super) fn correction_files(&self, folder: &Path, time: usize) -> CorrectionFiles {
        self.correction_files_named(folder, &self.correction_stem(folder).text, time)
    }

    /// Like [`Self::correction_files`], with a known [`Self::correction_stem`].
    pub(super) fn correction_files_named(&self, folder: &Path, stem: &str, time: usize) -> CorrectionFiles {
        match self.times < 2 {
            true => CorrectionFiles::existing(folder, stem),
            false => CorrectionFiles::of(folder, stem, Some(time)),
        }
    }

    /// The folder with the newest journal of corrections of a time point in which they can be continued; `None` if there is none.
    pub(super) fn folder_of_corrections(&self, time: usize) -> Option<PathBuf> {
        let others = self.other_folders().into_iter().filter(|folder| may_write(folder));
        let found = |folder: PathBuf| Some((modified(&self.correction_files(&folder, time).journal)?, folder));
        let journals = std::iter::once(self.folder()).chain(others).filter_map(found);
        journals.reduce(|newest, next| if next.0 > newest.0 { next } else { newest }).map(|(_, folder)| folder)
    }
}

/// When a file was last written; `None` if there is none.
pub(super) fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|meta| meta.modified()).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_folder_chosen_in_an_earlier_window_is_used_while_it_exists() {
        let home = tempfile::tempdir().unwrap();
        let [beside, earlier, chosen] = ["cytoscope", "earlier", "chosen"].map(|name| home.path().join(name));
        std::fs::create_dir(&earlier).unwrap();
        let place = |chosen: Option<&PathBuf>| ResultsPlace {
            stack: home.path().join("cells.tif"),
            stem: "cells".to_owned(),
            times: 1,
            chosen: chosen.cloned(),
            earlier: Some(earlier.clone()),
            known: Vec::new(),
        };
        assert_eq!([place(None).folder(), place(Some(&chosen)).folder()], [earlier.clone(), chosen]);
        assert_eq!(place(None).other_folders(), std::slice::from_ref(&beside));
        std::fs::remove_dir(&earlier).unwrap();
        assert_eq!(place(None).folder(), beside);
    }

    #[test]
    fn corrections_are_continued_where_their_newest_journal_is() {
        let home = tempfile::tempdir().unwrap();
        let [beside, chosen, known] = ["cytoscope", "chosen", "known"].map(|name| home.path().join(name));
        for folder in [&beside, &chosen, &known] {
            std::fs::create_dir(folder).unwrap();
        }
        let stack = home.path().join("cells.tif");
        let known_folders = vec![chosen.clone(), known.clone()];
        let place = ResultsPlace {
            stack,
            stem: "cells".to_owned(),
            times: 4,
            chosen: Some(chosen.clone()),
            earlier: None,
            known: known_folders,
        };
        assert_eq!((place.folder(), place.other_folders()), (chosen.clone(), vec![known.clone(), beside.clone()]));
        assert!(place.folder_of_corrections(2).is_none());
        let write = |folder: &Path, name: &str, age_secs: u64| {
            let file = std::fs::File::create(folder.join(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age_secs)).unwrap();
        };
        write(&known, "cells_t2.corrections", 100);
        write(&beside, "cells_t2.corrections", 50);
        write(&chosen, "cells_t1.corrections", 1);
        assert_eq!(place.folder_of_corrections(2), Some(beside));
        write(&chosen, "cells_t2.corrections", 20);
        assert_eq!((place.folder_of_corrections(2), place.folder_of_corrections(3)), (Some(chosen), None));
    }
}

//! Which stack the corrections in a results folder belong to: stacks with the same file name may have the same results folder.

use super::place::ResultsPlace;
use cytoscope_pipeline::ArtifactKind;
use cytoscope_pipeline::provenance::{self, Provenance};
use cytoscope_storage::json::{JsonError, read_json, write_json};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Maximum number of stacks with the same name that have corrections in a folder.
const MAX_NAMESAKES: usize = 1000;

/// Maximum size of the file that states an owner in bytes.
const MAX_BYTES: u64 = 1 << 16;

/// Ends of the names of correction files.
const ENDS: [&str; 3] = [".corrections", "_corrected_labels.tif", "_corrections_base.tif"];

/// The stack that corrections belong to, in a JSON file beside them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Owner {
    /// Path of the stack, as text because not all paths can be in JSON; relative to the folder of the corrections if the stack is
    /// beside this folder, because both may be moved together.
    stack: String,
    /// Size of the stack in bytes.
    bytes: u64,
    /// Time of its last modification in seconds since 1970; 0 if it is unknown.
    modified_unix_secs: u64,
}

impl Owner {
    /// A stack as the owner of corrections in a folder.
    fn new(stack: &Path, folder: &Path) -> Self {
        let is_beside = stack.parent().is_some() && stack.parent() == folder.parent();
        let beside = stack.file_name().filter(|_| is_beside).map(|name| format!("../{}", name.to_string_lossy()));
        let meta = std::fs::metadata(stack).ok();
        let modified = meta.as_ref().and_then(|meta| meta.modified().ok());
        let since_1970 = modified.and_then(|modified| modified.duration_since(UNIX_EPOCH).ok());
        Self {
            stack: beside.unwrap_or_else(|| stack.to_string_lossy().into_owned()),
            bytes: meta.map_or(0, |meta| meta.len()),
            modified_unix_secs: since_1970.map_or(0, |since| since.as_secs()),
        }
    }

    /// Reads the owner of the corrections of a stem in a folder; `None` if no file states it.
    fn read(folder: &Path, stem: &str) -> Option<Self> {
        let path = Self::path(folder, stem);
        let unread = |error: &JsonError| {
            tracing::warn!("{} does not state whose corrections are there: {error}", path.display())
        };
        read_json(&path, MAX_BYTES).inspect_err(unread).ok().flatten()
    }

    /// The file that states the owner of the corrections of a stem.
    fn path(folder: &Path, stem: &str) -> PathBuf {
        folder.join(format!("{stem}_corrections.json"))
    }

    /// Whether it is this stack, which may have been moved since.
    fn is(&self, stack: &Path, folder: &Path) -> bool {
        let now = Self::new(stack, folder);
        if self.stack == now.stack {
            return true;
        }
        let recorded = folder.join(&self.stack);
        match std::fs::canonicalize(&recorded) {
            Ok(recorded) => std::fs::canonicalize(stack).is_ok_and(|stack| stack == recorded),
            Err(_) => {
                let is_unchanged = (self.bytes, self.modified_unix_secs) == (now.bytes, now.modified_unix_secs);
                let is_moved = is_unchanged && recorded.file_name() == stack.file_name();
                // Such as a stack that was converted to another format in its folder.
                is_moved || [&self.stack, &now.stack].into_iter().all(|path| Path::new(path).is_relative())
            }
        }
    }
}

/// The stem of the correction files of a stack in a folder.
pub(super) struct CorrectionStem {
    /// The stem.
    pub(super) text: String,
    /// Whether a file states that these corrections are those of the stack.
    pub(super) is_claimed: bool,
}

impl ResultsPlace {
    /// The stem of the correction files of the stack in a folder: its own, followed by a number if corrections of another stack
    /// have it.
    pub(super) fn correction_stem(&self, folder: &Path) -> CorrectionStem {
        let mut free: Option<String> = None;
        for n in 1..=MAX_NAMESAKES {
            let text = if n == 1 { self.stem.clone() } else { format!("{}_{n}", self.stem) };
            let is_free = match Owner::read(folder, &text) {
                Some(owner) if owner.is(&self.stack, folder) => return CorrectionStem { text, is_claimed: true },
                Some(_) => false,
                // Those of an earlier version, if there are any.
                None if n == 1 => !self.are_corrections_of_another(folder),
                None => free.is_some() || !has_corrections(folder, &text),
            };
            if is_free {
                free = free.or(Some(text));
                if n > 1 {
                    break;
                }
            }
        }
        CorrectionStem { text: free.unwrap_or_else(|| self.stem.clone()), is_claimed: false }
    }

    /// States in a folder that the correction files of the stack are its own.
    ///
    /// # Errors
    /// A message that names the file, if it cannot be written.
    pub(super) fn claim_corrections(&self, folder: &Path) -> Result<(), String> {
        let (stem, owner) = (self.correction_stem(folder).text, Owner::new(&self.stack, folder));
        if Owner::read(folder, &stem).as_ref() == Some(&owner) {
            return Ok(());
        }
        write_json(&Owner::path(folder, &stem), &owner).map_err(|error| error.to_string())
    }

    /// Whether a prediction has read the stack.
    pub(super) fn is_input_of(&self, record: &Provenance) -> bool {
        // The input's own path may be relative, as it was given on the command line; that of the job is absolute.
        record.job.inputs.iter().chain([&record.input.path]).any(|path| *path == self.stack)
    }

    /// Whether corrections with the stem of the stack, whose owner is not stated, are those of another stack with the same name,
    /// of which the results in the folder are.
    fn are_corrections_of_another(&self, folder: &Path) -> bool {
        if self.is_own(folder) || !has_corrections(folder, &self.stem) {
            return false;
        }
        let record = provenance::read(&folder.join(ArtifactKind::Provenance.file_name(&self.stem)));
        record.is_ok_and(|record| !self.is_input_of(&record))
    }
}

/// Whether a folder has correction files of a stem, or of its time points.
fn has_corrections(folder: &Path, stem: &str) -> bool {
    let is_digit = |c: char| c.is_ascii_digit();
    let is_of_stem = |name: &str| {
        let Some(rest) = name.strip_prefix(stem) else { return false };
        // What `CorrectionFiles` puts between the stem and the end.
        let time = rest.strip_prefix("_t").filter(|rest| rest.starts_with(is_digit));
        let after = [Some(rest), rest.strip_prefix("_stack"), time.map(|rest| rest.trim_start_matches(is_digit))];
        after.into_iter().flatten().any(|rest| ENDS.contains(&rest))
    };
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).any(|name| is_of_stem(&name))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::disk::FoundResults;

    /// Where the results of a stack with the name `cells.tif` go; `chosen` is the folder chosen for all stacks.
    fn place(folder: &Path, times: usize, chosen: Option<&Path>) -> ResultsPlace {
        std::fs::create_dir_all(folder).unwrap();
        let stack = folder.join("cells.tif");
        if !stack.exists() {
            std::fs::write(&stack, "pixels").unwrap();
        }
        let stem = "cells".to_owned();
        ResultsPlace { stack, stem, times, chosen: chosen.map(Path::to_owned), earlier: None, known: Vec::new() }
    }

    #[test]
    fn stacks_with_the_same_name_have_their_own_corrections_in_a_folder_that_both_use() {
        for times in [1, 4] {
            let home = tempfile::tempdir().unwrap();
            let shared = home.path().join("shared");
            let [first, second] = ["a", "b"].map(|name| place(&home.path().join(name), times, Some(&shared)));
            let journals = |place: &ResultsPlace| place.correction_files(&shared, 2).journal;
            first.claim_corrections(&shared).unwrap();
            let own = [&first, &second].map(journals);
            assert_ne!(own[0], own[1]);
            second.claim_corrections(&shared).unwrap();
            assert_eq!([&first, &second].map(journals), own);
            // What was corrected in one is not found for the other.
            let labels = first.correction_files(&shared, 2).labels;
            for path in [&labels, &own[0]] {
                std::fs::write(path, "").unwrap();
            }
            let found = [&first, &second].map(|place| {
                let found = FoundResults::of(place);
                let mut shown = found.outputs.iter().chain(found.by_time.values().flatten());
                let is_shown = shown.any(|artifact| artifact.path == labels);
                (is_shown, found.corrected_times.len(), place.folder_of_corrections(2))
            });
            assert_eq!(found, [(true, 1, Some(shared.clone())), (false, 0, None)]);
        }
    }

    #[test]
    fn corrections_are_those_of_a_stack_that_was_moved() {
        let home = tempfile::tempdir().unwrap();
        let [before, after, shared] = ["before", "after", "shared"].map(|name| home.path().join(name));
        let earlier = place(&before, 1, Some(&shared));
        for folder in [&shared, &before.join("cytoscope")] {
            std::fs::create_dir_all(folder).unwrap();
            earlier.claim_corrections(folder).unwrap();
        }
        std::fs::rename(&before, &after).unwrap();
        let moved = place(&after, 1, Some(&shared));
        for folder in [&shared, &after.join("cytoscope")] {
            let CorrectionStem { text, is_claimed } = moved.correction_stem(folder);
            assert_eq!((text.as_str(), is_claimed), ("cells", true), "{}", folder.display());
            moved.claim_corrections(folder).unwrap();
        }
        // Another stack takes its former place.
        let other = place(&before, 1, Some(&shared));
        assert_eq!(other.correction_stem(&shared).text, "cells_2");
    }

    #[test]
    fn corrections_of_an_earlier_version_are_those_of_the_stack_that_was_predicted_into_their_folder() {
        let home = tempfile::tempdir().unwrap();
        let shared = home.path().join("shared");
        std::fs::create_dir(&shared).unwrap();
        let [first, second] = ["a", "b"].map(|name| place(&home.path().join(name), 1, Some(&shared)));
        std::fs::write(shared.join("cells.corrections"), "").unwrap();
        let stems = || [&first, &second].map(|place| place.correction_stem(&shared).text);
        assert_eq!(stems(), ["cells", "cells"], "nothing says whose they are");
        let record = serde_json::json!({
            "program": "p", "fingerprint": "f", "job": {"inputs": [&first.stack], "model": "m", "out": &shared},
            "model": {"name": "m", "path": "m", "fingerprint": "f"},
            "input": {"path": &first.stack, "bytes": 1, "modified_unix_secs": 1}, "outputs": [],
            "device": {}, "plan": {}, "objects": [], "finished_unix_secs": 5
        });
        std::fs::write(shared.join("cells_provenance.json"), record.to_string()).unwrap();
        assert_eq!(stems(), ["cells", "cells_2"]);
        // Files of a stack that has this name.
        std::fs::write(shared.join("cells_2_t1.corrections"), "").unwrap();
        assert_eq!(stems(), ["cells", "cells_3"]);
    }

    #[test]
    fn correction_files_of_longer_names_are_those_of_other_stacks() {
        let home = tempfile::tempdir().unwrap();
        for name in [
            "a_t12_corrected_labels.tif",
            "b.corrections",
            "c_t3_stack_corrections_base.tif",
            "d_treated.corrections",
            "e_stacked_corrected_labels.tif",
        ] {
            std::fs::write(home.path().join(name), "").unwrap();
        }
        let found = |stems: &[&str]| stems.iter().filter(|stem| has_corrections(home.path(), stem)).count();
        assert_eq!(found(&["a", "a_t12", "b", "c_t3", "d_treated", "e_stacked"]), 6);
        assert_eq!(found(&["a_t1", "c", "d", "e", "f"]), 0);
    }
}

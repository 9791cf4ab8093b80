//! Packages of the best networks in the folder of a training run.

use super::{BEST, RunFolder, TrainState};
use cytoscope_model_package::PACKAGE_KIND;
use cytoscope_storage::{MARKER, folder};
use std::path::PathBuf;

impl RunFolder {
    /// Returns the packages of best networks with their steps.
    fn all_best(&self) -> Vec<(u64, PathBuf)> {
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        let best = entries.filter_map(|entry| {
            let step: u64 = entry.file_name().to_str()?.strip_prefix(BEST)?.parse().ok()?;
            Some((step, entry.path()))
        });
        best.collect()
    }

    /// Removes the best networks of other steps than these. Returns whether there were any.
    pub(super) fn remove_other_best(&self, steps: &[u64]) -> bool {
        let others: Vec<_> = self.all_best().into_iter().filter(|(step, _)| !steps.contains(step)).collect();
        for (_, path) in &others {
            // A leftover package only takes disk space; the checkpoint names the current one.
            let _ = folder::remove_finished(path, PACKAGE_KIND);
        }
        !others.is_empty()
    }

    /// Removes the best networks that neither `state` nor the checkpoint names. Returns whether there were any.
    pub(super) fn remove_unused_best(&self, state: &TrainState) -> bool {
        let saved = if self.has_checkpoint() { self.load_state().map(|saved| saved.best) } else { Ok(None) };
        // What a checkpoint names that cannot be read is not known.
        let Ok(saved) = saved else { return false };
        let steps: Vec<u64> = saved.into_iter().chain(state.best).map(|(_, step)| step).collect();
        self.remove_other_best(&steps)
    }

    /// Returns the package of the best network of a run that has no checkpoint; `None` if there is none.
    pub(crate) fn best_without_checkpoint(&self) -> Option<PathBuf> {
        let best = if self.has_checkpoint() { Vec::new() } else { self.all_best() };
        best.into_iter().max().map(|(_, path)| path).filter(|path| path.join(MARKER).is_file())
    }
}

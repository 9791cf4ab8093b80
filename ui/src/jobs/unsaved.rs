//! Unsaved work: changed segmentation options with their previews, and jobs that end with the window or go on without it.

use super::Jobs;
use crate::document::Document;
use crate::effect::Effects;
use crate::panels::capitalized;
use crate::work::{JobView, Purpose};
use cytoscope_objects::SegmentOptions;

/// What the quit dialog says about tuning that runs.
const TUNING_GOES_ON: &str = "Tuning goes on without the window and saves the settings that it finds. To end it, go back and \
                              cancel it first.";
/// What the quit dialog says about a search that runs.
const SEARCH_GOES_ON: &str = "The search goes on without the window. To end it, go back and cancel it first. Either way, \
                              Continue search later shows its trials, and continues it if it has not ended.";

impl Jobs {
    /// Titles of the jobs whose results are lost if the window closes now; `title` returns that of an open document.
    pub(crate) fn lost_with_window(&self, title: impl Fn(u64) -> Option<String>) -> Vec<String> {
        let lost = |j: &&JobView| !j.state.is_over() && j.purpose.is_lost_with_window();
        let requested = self.work.jobs.iter().filter(lost).map(|j| j.title.clone());
        // Predictions are offered by the next window only once they are queued.
        let prepared = self.preparing.iter().filter_map(|id| Some(format!("{} · predict", title(*id)?)));
        requested.chain(prepared).chain(self.prepared_tuning()).collect()
    }

    /// Title of the tuning or the search that goes on without the window, and what the user should know about it.
    pub(crate) fn continued_without_window(&self) -> Option<(String, &'static str)> {
        let model = self.running_tuning()?;
        let (work, text) = if self.is_searching() { ("search", SEARCH_GOES_ON) } else { ("tune", TUNING_GOES_ON) };
        Some((format!("{model} · {work}"), text))
    }

    /// Number of objects in the unsaved preview of a time point of a document.
    pub(crate) fn preview_objects(&self, document: u64, time: usize) -> Option<u32> {
        self.objects.preview_objects(document, time)
    }

    /// Whether a segmentation of a document is being saved.
    pub(crate) fn is_keeping(&self, document: u64) -> bool {
        self.work.jobs.iter().any(|j| j.purpose == Purpose::Keep { document } && !j.state.is_over())
    }

    /// The segmentation options of a time point of a document that the user has changed and not saved.
    pub(crate) fn refined(&self, document: u64, time: usize) -> Option<&SegmentOptions> {
        self.objects.unsaved(document, time)
    }

    /// The segmentation options with which the objects of the shown time point of a document were saved, unless the document
    /// has another voxel size now.
    pub(crate) fn saved_options(&self, document: &Document) -> Option<&SegmentOptions> {
        let saved = self.objects.saved(document.id, document.time)?;
        (saved.voxel_um == document.given_voxel_um()).then_some(&saved.options)
    }

    /// Whether a document has objects that are a preview and not saved.
    pub(crate) fn has_unsaved_objects(&self, document: u64) -> bool {
        self.objects.has_unsaved(document)
    }

    /// Forgets the segmentation options of a document. A notification says `why`, if some of them are not saved.
    pub(super) fn forget_objects(&mut self, document: u64, why: &str, effects: &mut Effects) {
        self.discard_unsaved(document, why, effects);
        self.objects.forget(document);
    }

    /// Discards the segmentation options of a document that the user has changed and not saved, and their preview. A
    /// notification says `why`.
    pub(super) fn discard_unsaved(&mut self, document: u64, why: &str, effects: &mut Effects) {
        if !self.objects.forget_unsaved(document) {
            return;
        }
        let preview = self.work.jobs.iter().find(|j| j.purpose == Purpose::Preview { document });
        if let Some(running) = preview.filter(|j| !j.state.is_over()) {
            self.work.cancel(running.id);
        }
        let details = match preview {
            Some(preview) => format!("{}: {why}.", preview.title),
            None => format!("{}.", capitalized(why)),
        };
        effects.info("Unsaved objects were discarded", details);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::Wake;
    use std::sync::Arc;

    #[test]
    fn predictions_that_are_not_queued_yet_are_lost_with_the_window() {
        let wake: Wake = Arc::new(|| {});
        let mut jobs = Jobs::new(None, None, None, &wake);
        let title = |id: u64| (id == 1).then(|| "a.tif".to_owned());
        assert!(jobs.lost_with_window(title).is_empty());
        // The second stack was closed.
        jobs.preparing.extend([1, 2]);
        assert_eq!(jobs.lost_with_window(title), ["a.tif · predict"]);
    }
}

//! Unsaved work: changed segmentation options with their previews, and jobs that end with the window.

use super::Jobs;
use crate::work::{JobView, Purpose};
use cytoscope_objects::SegmentOptions;

impl Jobs {
    /// Titles of the jobs whose results are lost if the window closes now.
    pub(crate) fn lost_with_window(&self) -> Vec<&str> {
        let lost = |j: &&JobView| !j.state.is_over() && j.purpose.is_lost_with_window();
        self.work.jobs.iter().filter(lost).map(|j| j.title.as_str()).collect()
    }

    /// Number of objects in the unsaved preview of a document.
    pub(crate) fn preview_objects(&self, document: u64) -> Option<u32> {
        self.preview_objects.get(&document).copied()
    }

    /// Whether a segmentation of a document is being saved.
    pub(crate) fn is_keeping(&self, document: u64) -> bool {
        self.work.jobs.iter().any(|j| j.purpose == Purpose::Keep { document } && !j.state.is_over())
    }

    /// The segmentation options of a document, once the user has changed them.
    pub(crate) fn refined(&self, document: u64) -> Option<&SegmentOptions> {
        self.refined.get(&document)
    }
}

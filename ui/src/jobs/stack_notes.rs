//! Notes of jobs on stacks, of which some are shown once for each stack.

use super::Jobs;
use crate::documents::Documents;
use crate::engine_notes::all_in_window;
use cytoscope_pipeline::Note;
use cytoscope_pipeline::predict::is_on_absent_chunks;
use std::path::PathBuf;

/// The file and the series of an open document.
pub(super) fn stack_of(documents: &Documents, document: u64) -> Option<(PathBuf, usize)> {
    documents.get(document).map(|document| (document.path.clone(), document.series))
}

impl Jobs {
    /// Returns the texts of the notes of a job on a stack for a notification. The one on absent files of chunks is left out if it
    /// was returned for the stack before: if empty background is not stored, each job on the stack has it.
    pub(super) fn notes_on_stack(&mut self, stack: Option<(PathBuf, usize)>, notes: &[Note]) -> Vec<String> {
        let is_noted = notes.iter().any(|note| is_on_absent_chunks(&note.message));
        let is_repeated = is_noted && stack.is_some_and(|stack| !self.absent_chunks_noted.insert(stack));
        let mut shown = notes.to_vec();
        shown.retain(|note| !is_repeated || !is_on_absent_chunks(&note.message));
        all_in_window(&shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::Wake;
    use std::sync::Arc;

    #[test]
    fn absent_chunks_are_noted_once_for_each_stack() {
        let wake: Wake = Arc::new(|| {});
        let mut jobs = Jobs::new(None, None, None, &wake);
        let absent =
            "a part of the image is not stored and is read as one value: 9 of the 10 files of its chunks are absent";
        let notes = ["the file states no voxel size", absent].map(Note::from);
        let mut shown = |series: usize| {
            let stack = Some((PathBuf::from("/data/masked.zarr"), series));
            jobs.notes_on_stack(stack, &notes).len()
        };
        assert_eq!([shown(0), shown(0), shown(1), shown(1)], [2, 1, 2, 1]);
        assert_eq!(jobs.notes_on_stack(None, &notes).len(), 2);
    }
}

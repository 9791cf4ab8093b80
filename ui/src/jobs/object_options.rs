//! Segmentation options of each time point of each document: those that the user has changed, and those of saved objects.

use cytoscope_objects::SegmentOptions;
use std::collections::{BTreeMap, BTreeSet};

/// Segmentation options with which objects were saved.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct SavedOptions {
    /// Threshold, seeds and filters.
    pub(crate) options: SegmentOptions,
    /// Voxel size Z, Y, X in µm that replaced the one of the file, if any: the unit of lengths depends on it.
    pub(crate) voxel_um: Option<[f64; 3]>,
}

/// Segmentation options that the user has changed and not saved.
struct UnsavedOptions {
    options: SegmentOptions,
    /// Number of objects in their latest preview, once there is one.
    objects: Option<u32>,
}

/// Segmentation options by document and time point. Those that were saved are shown again by the controls, so that they can
/// be changed further or undone.
#[derive(Default)]
pub(super) struct ObjectOptions {
    unsaved: BTreeMap<(u64, usize), UnsavedOptions>,
    saved: BTreeMap<(u64, usize), SavedOptions>,
    /// Time point of the latest preview of each document.
    preview_times: BTreeMap<u64, usize>,
    /// Time point and options that the latest saved segmentation of each document was requested with.
    saving: BTreeMap<u64, (usize, SavedOptions)>,
}

impl ObjectOptions {
    /// The options of a time point that the user has changed and not saved.
    pub(super) fn unsaved(&self, document: u64, time: usize) -> Option<&SegmentOptions> {
        self.unsaved.get(&(document, time)).map(|unsaved| &unsaved.options)
    }

    /// Number of objects in the unsaved preview of a time point.
    pub(super) fn preview_objects(&self, document: u64, time: usize) -> Option<u32> {
        self.unsaved.get(&(document, time))?.objects
    }

    /// The options with which the objects of a time point were saved.
    pub(super) fn saved(&self, document: u64, time: usize) -> Option<&SavedOptions> {
        self.saved.get(&(document, time))
    }

    /// Documents with options that the user has changed and not saved.
    pub(super) fn unsaved_documents(&self) -> BTreeSet<u64> {
        self.unsaved.keys().map(|(document, _)| *document).collect()
    }

    /// Whether a document has options that the user has changed and not saved.
    pub(super) fn has_unsaved(&self, document: u64) -> bool {
        self.unsaved.range((document, 0)..=(document, usize::MAX)).next().is_some()
    }

    /// Stores changed options of a time point, whose preview is requested.
    pub(super) fn change(&mut self, document: u64, time: usize, options: SegmentOptions) {
        let objects = self.preview_objects(document, time);
        self.unsaved.insert((document, time), UnsavedOptions { options, objects });
        self.preview_times.insert(document, time);
    }

    /// Stores the number of objects in the latest preview of a document. Returns its time point; `None` if its options were
    /// discarded or saved meanwhile.
    pub(super) fn previewed(&mut self, document: u64, objects: u32) -> Option<usize> {
        let time = *self.preview_times.get(&document)?;
        self.unsaved.get_mut(&(document, time))?.objects = Some(objects);
        Some(time)
    }

    /// Stores the options with which the objects of a time point are being saved. Until they are saved, the changed options are
    /// kept, so that a failed job can be repeated.
    pub(super) fn save(&mut self, document: u64, time: usize, saved: SavedOptions) {
        self.saving.insert(document, (time, saved));
    }

    /// Notes that the objects of a document were saved; returns their time point. Options that were changed meanwhile are not
    /// saved yet.
    pub(super) fn were_saved(&mut self, document: u64) -> Option<usize> {
        let (time, saved) = self.saving.remove(&document)?;
        if self.unsaved(document, time) == Some(&saved.options) {
            self.unsaved.remove(&(document, time));
        }
        self.saved.insert((document, time), saved);
        Some(time)
    }

    /// Replaces the options with which objects of a document were saved, by time point.
    pub(super) fn set_saved(&mut self, document: u64, saved: BTreeMap<usize, SavedOptions>) {
        self.saved.retain(|(of, _), _| *of != document);
        self.saved.extend(saved.into_iter().map(|(time, options)| ((document, time), options)));
    }

    /// Discards the options of a document that the user has changed and not saved; returns whether there were any.
    pub(super) fn forget_unsaved(&mut self, document: u64) -> bool {
        let before = self.unsaved.len();
        self.unsaved.retain(|(of, _), _| *of != document);
        self.unsaved.len() < before
    }

    /// Forgets a document.
    pub(super) fn forget(&mut self, document: u64) {
        self.forget_unsaved(document);
        self.set_saved(document, BTreeMap::new());
        self.preview_times.remove(&document);
        self.saving.remove(&document);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(min_volume_um3: f64) -> SegmentOptions {
        SegmentOptions { min_volume_um3, ..SegmentOptions::default() }
    }

    fn saved(min_volume_um3: f64) -> SavedOptions {
        SavedOptions { options: options(min_volume_um3), voxel_um: None }
    }

    #[test]
    fn each_time_point_has_options_of_its_own_that_stay_until_they_are_saved() {
        let mut all = ObjectOptions::default();
        all.change(7, 1, options(1.0));
        assert_eq!(all.previewed(7, 11), Some(1));
        all.change(7, 0, options(2.0));
        assert_eq!((all.preview_objects(7, 1), all.preview_objects(7, 0)), (Some(11), None));
        all.save(7, 1, saved(1.0));
        assert_eq!(all.unsaved(7, 1), Some(&options(1.0)), "saving them may fail");
        assert_eq!(all.were_saved(7), Some(1));
        assert_eq!((all.unsaved(7, 1), all.unsaved(7, 0)), (None, Some(&options(2.0))));
        assert_eq!((all.saved(7, 1), all.saved(7, 0)), (Some(&saved(1.0)), None));
        // Options that are changed while others are saved are not saved.
        all.save(7, 0, saved(2.0));
        all.change(7, 0, options(3.0));
        assert_eq!(all.were_saved(7), Some(0));
        assert_eq!((all.unsaved(7, 0), all.saved(7, 0)), (Some(&options(3.0)), Some(&saved(2.0))));
        assert_eq!(all.unsaved_documents(), BTreeSet::from([7]));
        assert!(all.has_unsaved(7) && !all.has_unsaved(6) && !all.has_unsaved(8));
    }

    #[test]
    fn discarded_options_have_no_preview_and_leave_saved_ones_alone() {
        let mut all = ObjectOptions::default();
        all.set_saved(7, BTreeMap::from([(0, saved(1.0))]));
        for document in [7, 8] {
            all.change(document, 0, options(2.0));
        }
        assert!(all.forget_unsaved(7) && !all.forget_unsaved(7));
        assert_eq!((all.previewed(7, 5), all.previewed(8, 6)), (None, Some(0)));
        assert_eq!(all.saved(7, 0), Some(&saved(1.0)));
        all.forget(7);
        assert_eq!((all.saved(7, 0), all.preview_objects(8, 0)), (None, Some(6)));
    }
}

//! Results that are shown while their job runs: growing predictions and segmentation previews.

use super::Documents;
use crate::data::live::{LiveSource, PreviewSource};
use crate::disk::DocumentEffect;
use crate::document::{Overlay, Role, fresh_id};
use crate::effect::Effects;
use cytoscope_pipeline::SegmentReport;
use cytoscope_worker::{LabelArray, LiveArray};
use std::path::PathBuf;
use std::sync::Arc;

/// The growing output of a prediction.
#[derive(Clone)]
pub(crate) struct LiveOutput {
    /// Its file.
    pub(crate) path: PathBuf,
    /// Number of channels.
    pub(crate) channels: usize,
    /// Number of voxels along Z, Y, X.
    pub(crate) shape_zyx: [usize; 3],
    /// Time point that is being predicted.
    pub(crate) time: usize,
}

impl Documents {
    /// Shows a growing output: opens its array when it is first reported, and reloads its planes after that.
    pub(super) fn show_live(&mut self, id: u64, output: LiveOutput, effects: &mut Effects) {
        let Some(document) = self.get(id) else { return };
        if document.overlays.iter().any(|o| o.role == Role::Live && o.path == output.path) {
            self.updated_live.insert(id);
        } else if self.opening_live.get(&id) != Some(&output.path) {
            self.opening_live.insert(id, output.path.clone());
            effects.disk_for(id, DocumentEffect::OpenLive(output));
        }
    }

    /// Shows a growing output that was opened, unless its prediction has ended in the meantime.
    pub(crate) fn live_opened(&mut self, id: u64, output: LiveOutput, array: Result<LiveArray, String>) {
        let LiveOutput { path, channels, time, .. } = output;
        if self.opening_live.get(&id) != Some(&path) {
            return;
        }
        self.opening_live.remove(&id);
        let Some(document) = self.get_mut(id) else { return };
        // The file is missing if the job has just ended.
        let Ok(array) = array else { return };
        let zyx = document.extents.zyx;
        let only_time = (document.extents.times > 1).then_some(time);
        document.overlays.iter_mut().filter(|o| o.role == Role::Map).for_each(|o| o.visible = false);
        let source = Arc::new(LiveSource::new(array, zyx));
        let overlay = Overlay::from_source(Role::Live, "Prediction in progress".to_owned(), path, source);
        document.put(Overlay { channels, only_time, ..overlay });
    }

    /// Removes the growing output of a document, even if it is still being opened.
    pub(super) fn remove_live(&mut self, id: u64) {
        self.opening_live.remove(&id);
        self.remove_overlay(id, Role::Live);
    }

    /// Reloads the planes of growing predictions once the previous ones are on screen: updates come more often than
    /// slow slices can be read.
    pub(crate) fn refresh_live(&mut self) {
        if self.updated_live.is_empty() || self.loader.is_busy() {
            return;
        }
        for id in std::mem::take(&mut self.updated_live) {
            let Some(live) = self.get_mut(id).and_then(|d| d.overlay_with_role_mut(Role::Live)) else { continue };
            let before = std::mem::replace(&mut live.source_id, fresh_id());
            self.loader.forget(before);
        }
    }

    /// Opens the labels of a segmentation preview, whose time point is `time`; only the preview that was requested last
    /// is shown.
    pub(super) fn open_preview(&mut self, id: u64, time: usize, report: Box<SegmentReport>, effects: &mut Effects) {
        self.opening_preview.insert(id, (report.labels.clone(), time));
        self.keep_shown_labels(id);
        effects.disk_for(id, DocumentEffect::OpenPreview(report));
    }

    /// Shows the labels of a preview that were opened, unless other labels were requested in the meantime.
    pub(crate) fn preview_opened(&mut self, id: u64, report: &SegmentReport, array: Result<LabelArray, String>) {
        if self.opening_preview.get(&id).is_none_or(|(labels, _)| *labels != report.labels) {
            return;
        }
        let time = self.opening_preview.remove(&id).map_or(0, |(_, time)| time);
        let Some(document) = self.get_mut(id) else { return };
        // The file is missing if a newer preview has replaced it.
        let Ok(array) = array else { return };
        if report.shape_zyx != document.extents.zyx {
            return;
        }
        let only_time = (document.extents.times > 1).then_some(time);
        let (name, source) = ("Preview, not saved yet".to_owned(), Arc::new(PreviewSource::new(array)));
        let overlay = Overlay::from_source(Role::Labels, name, report.labels.clone(), source);
        let mut preview = Overlay { is_preview: true, only_time, ..overlay };
        if let Some(before) = document.overlay_with_role(Role::Labels) {
            (preview.visible, preview.labels) = (before.visible, before.labels.clone());
        }
        document.put(preview);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::data::loader::{LoadState, Slot, SlotLayer};
    use crate::data::plane::{Orientation, Plane, PlaneAt, Values};
    use crate::data::source::{Cancel, PlaneSource, SourceError};
    use crate::document::Document;
    use crate::documents::{DocumentsAction, JobOutput};
    use crate::effect::Wake;
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_pipeline::{DiameterRequest, DiameterUnit, ObjectDiameter};
    use cytoscope_volume::Array;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    /// Planes whose reading blocks until `open` is set.
    #[derive(Default)]
    struct Slow {
        open: AtomicBool,
    }

    impl PlaneSource for Slow {
        fn plane(&self, at: &PlaneAt, cancel: &Cancel) -> Result<Plane, SourceError> {
            while !self.open.load(Ordering::SeqCst) {
                cancel.check()?;
                std::thread::sleep(Duration::from_millis(1));
            }
            let size = at.size();
            Ok(Plane { at: at.clone(), size, values: Values::F32(vec![0.5; size[0] * size[1]]) })
        }
    }

    #[test]
    fn an_estimate_does_not_replace_a_diameter_that_was_set_meanwhile() {
        let folder = tempfile::tempdir().unwrap();
        let stack = folder.path().join("stack.tif");
        let array = Array::new("ZYX".parse().unwrap(), vec![2, 3, 4], vec![1u16; 24]).unwrap();
        write_array(&stack, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        let wake: Wake = Arc::new(|| {});
        let mut documents = Documents::new(&wake, None);
        let mut document = Document::open(&stack, None, 0).unwrap();
        let id = document.id;
        document.object_size.request = DiameterRequest::Given(5.0);
        documents.all.push(document);
        let found =
            ObjectDiameter { diameter: 8.0, unit: DiameterUnit::Um, voxel: [1.0; 3], nominal_um: 7.0, estimate: None };
        let requested = |documents: &Documents| documents.get(id).unwrap().object_size.request;
        let show = |documents: &mut Documents, before| {
            let output = JobOutput::Diameter(found, before);
            let _ = documents.apply(DocumentsAction::Show { document: id, output: Box::new(output) });
        };
        // The estimate was started with another diameter.
        show(&mut documents, DiameterRequest::Given(4.0));
        assert_eq!(requested(&documents), DiameterRequest::Given(5.0));
        show(&mut documents, DiameterRequest::Auto);
        assert_eq!(requested(&documents), DiameterRequest::Given(5.0));
        show(&mut documents, DiameterRequest::Given(5.0));
        assert_eq!(requested(&documents), DiameterRequest::Given(8.0));
    }

    #[test]
    fn reading_a_live_prediction_is_not_restarted_by_updates() {
        let folder = tempfile::tempdir().unwrap();
        let stack = folder.path().join("stack.tif");
        let array = Array::new("ZYX".parse().unwrap(), vec![2, 3, 4], vec![1u16; 24]).unwrap();
        write_array(&stack, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        let wake: Wake = Arc::new(|| {});
        let mut documents = Documents::new(&wake, None);
        let mut document = Document::open(&stack, None, 0).unwrap();
        let (id, path) = (document.id, folder.path().join("live"));
        let slow = Arc::new(Slow::default());
        let source: Arc<dyn PlaneSource> = slow.clone();
        let mut overlay = Document::overlay(&stack, Role::Live, ([2, 3, 4], 1), None).unwrap();
        overlay.path.clone_from(&path);
        overlay.source = Arc::clone(&source);
        let first = overlay.source_id;
        document.put(overlay);
        documents.all.push(document);
        let now = |d: &Documents| d.get(id).unwrap().overlay_with_role(Role::Live).unwrap().source_id;
        let at = PlaneAt::whole(Orientation::Xz, 1, [2, 3, 4]);
        let slot = Slot { document: id, orientation: Orientation::Xz, layer: SlotLayer::Overlay(0) };
        assert!(matches!(documents.loader.get(slot, first, &source, &at), LoadState::Waiting));
        // Updates while the slice is being read do not restart the reading.
        for _ in 0..20 {
            let output = LiveOutput { path: path.clone(), channels: 1, shape_zyx: [2, 3, 4], time: 0 };
            let mut effects = Effects::default();
            documents.show_live(id, output, &mut effects);
            assert_eq!(effects.into_iter().count(), 0);
            documents.refresh_live();
        }
        assert_eq!(now(&documents), first);
        slow.open.store(true, Ordering::SeqCst);
        let end = Instant::now() + Duration::from_secs(60);
        while documents.loader.is_busy() {
            assert!(Instant::now() < end, "the slice was not read in time");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(matches!(documents.loader.get(slot, first, &source, &at), LoadState::Ready(_)));
        // Afterwards one reload brings everything up to date.
        documents.refresh_live();
        let second = now(&documents);
        assert_ne!(second, first);
        documents.refresh_live();
        assert_eq!(now(&documents), second);
    }
}

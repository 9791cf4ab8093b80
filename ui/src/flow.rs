//! Handles opened files and finished jobs, and starts predictions and segmentations.

use crate::app::Workbench;
use crate::correct::places::CorrectionFiles;
use crate::data::composite::LabelDisplay;
use crate::data::live::{LiveSource, PreviewSource};
use crate::document::{Document, Overlay, Role, file_name, fresh_id};
use crate::measure::table_name;
use crate::opener::{FileRequest, OpenerResult, ProfileFormat};
use crate::work::Outcome;
use cytoscope_objects::SegmentOptions;
use cytoscope_pipeline::cards::ModelCard;
use cytoscope_pipeline::predict::TileRequest;
use cytoscope_pipeline::{Artifact, ArtifactKind, PredictJob, PredictOutcome, SegmentJob, SegmentReport, user_folder};
use cytoscope_worker::{LabelArray, LiveArray};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the results folder beside a stack.
pub const RESULTS_FOLDER: &str = "cytoscope";

/// Name of the label overlay of a segmentation preview.
pub(crate) const PREVIEW_NAME: &str = "Preview, not saved yet";

/// A file with at least this many channels and a single slice probably declares its slices or time points as channels.
const MANY_CHANNELS: usize = 8;

impl Workbench {
    pub(crate) fn handle_opened(&mut self, opened: OpenerResult) {
        match opened {
            OpenerResult::Document(document) => {
                self.settings.opened(&document.path);
                let flat_channels = document.extents.channels >= MANY_CHANNELS && document.extents.zyx[0] == 1;
                if flat_channels && document.axes.is_none() {
                    self.notifications.info(
                        "Are these channels slices?",
                        format!(
                            "{} declares {} channels. If they are slices, set its axes in the list of stacks.",
                            document.name, document.extents.channels
                        ),
                    );
                }
                // A stack reopened with other axes replaces the previous document.
                if let Some(at) = self.documents.iter().position(|d| d.path == document.path) {
                    self.loader.forget(self.documents[at].id);
                    let old = self.documents[at].id;
                    self.close_corrections(old, "Corrections are kept");
                    self.active = Some(document.id);
                    self.documents[at] = *document;
                } else {
                    self.active = Some(document.id);
                    self.documents.push(*document);
                }
                self.find_results();
                if let Some((id, path)) = self.document().map(|d| (d.id, d.path.clone())) {
                    self.continue_prediction(id, &path);
                }
            }
            OpenerResult::Overlay { document, overlay } => {
                if overlay.role == Role::Labels {
                    self.close_corrections(document, "Other labels are shown now");
                }
                if let Some(document) = self.documents.iter_mut().find(|d| d.id == document) {
                    if let Some(old) = document.of_role(overlay.role) {
                        self.loader.forget(old.source_id);
                    }
                    document.put(*overlay);
                    let selected = document.selected;
                    document.select(selected);
                }
            }
            OpenerResult::Table { document, results, old } => {
                if let Some(document) = self.find(document) {
                    document.results = Some(*results);
                    document.table_old = old;
                }
            }
            OpenerResult::Chosen(ask, files) => self.handle_chosen(ask, files),
            OpenerResult::Failed { what, reason, axes_of } => {
                if axes_of.is_some() {
                    self.panels.dialogs.axes = axes_of.clone().map(|path| (path, String::new()));
                }
                self.notifications.error(format!("{what} failed"), reason);
            }
            OpenerResult::FolderShown => {}
            OpenerResult::Saved(path) => {
                self.notifications.success(format!("Saved {}", file_name(&path)), path.display().to_string());
            }
        }
    }

    fn handle_chosen(&mut self, ask: FileRequest, files: Vec<PathBuf>) {
        let Some(first) = files.first().cloned() else { return };
        match ask {
            FileRequest::Stacks => self.open_paths(&files),
            FileRequest::Labels(id) | FileRequest::Truth(id) => {
                let role = if matches!(ask, FileRequest::Labels(_)) { Role::Labels } else { Role::Truth };
                if let Some(document) = self.documents.iter().find(|d| d.id == id) {
                    self.opener.overlay(document, role, first);
                }
            }
            FileRequest::DatasetFolder => {
                self.settings.dataset_folder = Some(first.clone());
                if std::mem::take(&mut self.corrections.export_when_chosen) {
                    self.export_pair(first);
                }
            }
            FileRequest::TrainingFolder | FileRequest::TrainingTable => self.train_on(first),
            FileRequest::StartModel => self.start_from_file(first),
            FileRequest::Model(format) => self.export_model(format, first),
            FileRequest::ResultsFolder => self.panels.predict.out = Some(first),
            FileRequest::Picture(of) => self.take_picture(of, first),
            FileRequest::LineProfile => {
                if let Some(text) = self.line_profile_csv() {
                    self.save_file(first, move || Ok(text.into_bytes()));
                }
            }
            FileRequest::Table => {
                if let Some(path) = self.document().and_then(|d| d.results.as_ref()).map(|r| r.path.clone()) {
                    self.save_file(first, move || std::fs::read(path).map_err(|e| e.to_string()));
                }
            }
            FileRequest::Profile(format) => {
                if let Some(job) = self.panels.profiler.job(&self.work).cloned() {
                    self.save_file(first, move || match format {
                        ProfileFormat::Trace => {
                            let trace = cytoscope_profile::chrome_trace(&job.spans, &job.marks, job.dropped);
                            serde_json::to_vec(&trace).map_err(|e| e.to_string())
                        }
                        ProfileFormat::Csv => Ok(crate::panels::profiler::csv(&job).into_bytes()),
                    });
                }
            }
        }
    }

    /// Shows the results of an earlier prediction of the active document.
    fn find_results(&mut self) {
        let Some(document) = self.document() else { return };
        let folder = self.results_folder(document);
        let Some(stem) = document.path.file_stem().map(|s| s.to_string_lossy().into_owned()) else { return };
        let existing = Artifact::existing(&folder, &stem);
        // If several versions wrote maps, the newest is used.
        let map = existing.iter().find(|a| a.kind.is_maps());
        let others = existing.iter().filter(|a| matches!(a.kind, ArtifactKind::Labels | ArtifactKind::Table));
        let files: Vec<Artifact> = map.into_iter().chain(others).cloned().collect();
        let provenance = folder.join(ArtifactKind::Provenance.file_name(&stem));
        let of_this = provenance.is_file()
            && cytoscope_pipeline::provenance::read(&provenance).is_ok_and(|p| p.input.path == document.path);
        // Corrected labels take precedence over predicted ones.
        let corrected = CorrectionFiles::of(&folder, &stem, None).labels;
        let beside = document.path.parent().is_some_and(|p| p.join(RESULTS_FOLDER) == folder);
        if corrected.is_file() && (of_this || beside) {
            // Their own table takes precedence over that of the prediction.
            let table = corrected.with_file_name(table_name(&corrected));
            let measured = table.is_file();
            let is_replaced =
                |kind: ArtifactKind| kind == ArtifactKind::Labels || (measured && kind == ArtifactKind::Table);
            let others = files.into_iter().filter(|a| of_this && !is_replaced(a.kind));
            let table = measured.then(|| Artifact::new(ArtifactKind::Table, table));
            let corrected = Artifact::new(ArtifactKind::Labels, corrected);
            let files: Vec<Artifact> = others.chain(table).chain([corrected]).collect();
            self.show_results(document.id, &files);
            return;
        }
        if of_this && !files.is_empty() {
            self.show_results(document.id, &files);
        }
    }

    fn show_results(&mut self, id: u64, outputs: &[Artifact]) {
        let Some(document) = self.documents.iter().find(|d| d.id == id) else { return };
        for Artifact { kind, path } in outputs {
            match kind {
                ArtifactKind::Probability | ArtifactKind::Prediction => {
                    self.opener.overlay(document, Role::Map, path.clone());
                }
                ArtifactKind::Labels => self.opener.overlay(document, Role::Labels, path.clone()),
                ArtifactKind::Table => self.opener.table(id, path.clone()),
                ArtifactKind::Preview | ArtifactKind::Provenance => {}
            }
        }
    }

    /// The results folder of a document.
    pub(crate) fn results_folder(&self, document: &Document) -> PathBuf {
        if let Some(out) = &self.panels.predict.out {
            return out.clone();
        }
        let beside = document.path.parent().map(|p| p.join(RESULTS_FOLDER));
        match beside {
            Some(folder) if may_write(&folder) => folder,
            _ => user_folder().unwrap_or_else(std::env::temp_dir).join("results"),
        }
    }

    /// The selected model, or the first usable one.
    pub(crate) fn model(&self) -> Option<&ModelCard> {
        let name = &self.settings.model;
        let usable = || self.work.models.iter().filter(|m| m.problem.is_none());
        usable().find(|m| m.name == *name || m.aliases.contains(name)).or_else(|| usable().next())
    }

    pub(crate) fn start_prediction(&mut self, id: u64) {
        let Some(model) = self.model().map(|m| (m.name.clone(), m.title.clone())) else {
            self.notifications.error("No model is installed", "Import one: cytoscope import FILE --out PACKAGE");
            return;
        };
        let Some(document) = self.documents.iter().find(|d| d.id == id) else { return };
        if self.work.of_document(id).is_some() {
            return;
        }
        let out = self.results_folder(document);
        if let Err(error) = std::fs::create_dir_all(&out) {
            self.notifications
                .error("Results cannot be written", format!("{}: {error}. Choose another folder.", out.display()));
            return;
        }
        let Some(job) = self.prediction_job(id) else { return };
        let title = format!("{} · {}", document.name, model.1);
        self.predict_queued(id, title, job);
    }

    /// The prediction job of a document with the settings of the panel.
    pub(crate) fn prediction_job(&self, id: u64) -> Option<PredictJob> {
        let document = self.documents.iter().find(|d| d.id == id)?;
        let channel = self.panels.predict.channel.min(document.extents.channels.saturating_sub(1));
        Some(PredictJob {
            inputs: vec![document.path.clone()],
            model: self.model()?.name.clone(),
            out: self.results_folder(document),
            device: self.settings.device,
            precision: self.settings.precision,
            tiles: TileRequest::default(),
            outputs: Default::default(),
            channel: (document.extents.channels > 1).then_some(channel),
            time: None,
            series: 0,
            axes: document.axes.clone(),
            voxel_um: None,
            diameter: document.object_size.request,
            memory_budget_bytes: None,
            resume: false,
            threads: 0,
            overwrite: Default::default(),
        })
    }

    /// Segments the shown map again; `keep` saves the result, otherwise it is a preview.
    pub(crate) fn start_segmentation(&mut self, id: u64, options: SegmentOptions, keep: bool) {
        let Some(card) = self.model().cloned() else { return };
        let Some(document) = self.documents.iter().find(|d| d.id == id) else { return };
        let Some(map) = document.of_role(Role::Map).map(|o| o.path.clone()) else { return };
        let name = file_name(&map);
        let stem = match ArtifactKind::of_name(&name) {
            Some((kind, stem)) if kind.is_maps() => stem,
            _ => name.as_str(),
        };
        let folder = map.parent().map(Path::to_owned).unwrap_or_default();
        let job = SegmentJob {
            map,
            labels: keep.then(|| folder.join(ArtifactKind::Labels.file_name(stem))),
            table: keep.then(|| folder.join(ArtifactKind::Table.file_name(stem))),
            channel: card.segment_channel,
            seed_channel: Some(card.seed_channel),
            time: document.time,
            voxel_um: None,
            intensities: keep.then(|| document.path.clone()),
            options,
            overwrite: Default::default(),
        };
        let title = format!("{} · objects", document.name);
        self.work.segment(id, title, job, keep);
    }

    pub(crate) fn handle_outcome(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Models => {}
            Outcome::Live { document, path, channels, shape_zyx, .. } => {
                self.show_live(document, &path, channels, shape_zyx);
            }
            Outcome::Predicted { document, outcome } => self.handle_prediction(document, &outcome),
            Outcome::Segmented { document, kept, report } => self.handle_segmentation(document, kept, &report),
            Outcome::Measured { document, report } => {
                if let Some(record) = report.record {
                    self.tables.insert(report.table.clone(), record);
                }
                self.opener.table(document, report.table);
            }
            Outcome::TrainingEvent { id, event } => self.handle_training_event(id, event),
            Outcome::Trained { id, report } => self.handle_training_report(id, report),
            Outcome::TrainChecked { id, report } => self.handle_check(id, report),
            Outcome::TrainEstimated { id, estimate } => self.handle_cost(id, estimate),
            Outcome::DiameterEstimated { document, found } => self.handle_diameter(document, found),
            Outcome::Failed { title, reason } => {
                self.remove_idle_live();
                self.notifications.error(format!("{title} failed"), reason);
            }
            Outcome::WouldOverwrite { title, reason, again } => {
                self.remove_idle_live();
                self.ask_overwrite(title, reason, *again);
            }
            Outcome::Cancelled { document } => self.remove_live(document),
            Outcome::EngineDied { reason, lost, again } => {
                let ids: Vec<u64> = self.documents.iter().map(|d| d.id).collect();
                ids.into_iter().for_each(|id| self.remove_live(id));
                let lost = match lost.as_slice() {
                    [] => "No job was lost.".to_owned(),
                    lost => format!("Lost jobs: {}. Nothing else is affected.", lost.join(", ")),
                };
                let title = if again { "The engine was restarted" } else { "The engine cannot be started" };
                self.notifications.error(title, format!("It ended unexpectedly ({reason}). {lost}"));
            }
        }
    }

    /// Removes live overlays of documents without a running prediction.
    fn remove_idle_live(&mut self) {
        let idle = |id: &u64| self.work.of_document(*id).is_none();
        let ids: Vec<u64> = self.documents.iter().map(|d| d.id).filter(idle).collect();
        ids.into_iter().for_each(|id| self.remove_live(id));
    }

    fn remove_live(&mut self, id: u64) {
        let Some(document) = self.documents.iter_mut().find(|d| d.id == id) else { return };
        if let Some(live) = document.of_role(Role::Live) {
            self.loader.forget(live.source_id);
        }
        document.overlays.retain(|o| o.role != Role::Live);
    }

    fn show_live(&mut self, id: u64, path: &Path, channels: usize, shape_zyx: [usize; 3]) {
        let Some(document) = self.documents.iter_mut().find(|d| d.id == id) else { return };
        let zyx = document.extents.zyx;
        if document.overlays.iter().any(|o| o.role == Role::Live && o.path == *path) {
            self.updated_live.insert(id);
            return;
        }
        // The file is missing if the job has just ended.
        let Ok(array) = LiveArray::open(path, channels, shape_zyx) else { return };
        document.overlays.iter_mut().filter(|o| o.role == Role::Map).for_each(|o| o.visible = false);
        document.put(Overlay {
            role: Role::Live,
            name: "Prediction in progress".to_owned(),
            path: path.to_owned(),
            visible: true,
            source: Arc::new(LiveSource::new(array, zyx)),
            source_id: fresh_id(),
            labels: LabelDisplay::default(),
            display: Overlay::map_display(),
            channels,
            times: 1,
        });
    }

    /// Reloads the planes of growing predictions once the previous ones are on screen: updates come more often than
    /// slow slices can be read.
    pub(crate) fn refresh_live(&mut self) {
        if self.updated_live.is_empty() || self.loader.is_busy() {
            return;
        }
        for id in std::mem::take(&mut self.updated_live) {
            let Some(live) = self.find(id).and_then(|d| d.of_role_mut(Role::Live)) else { continue };
            let before = std::mem::replace(&mut live.source_id, fresh_id());
            self.loader.forget(before);
        }
    }

    /// Shows one notification for a batch when its last prediction has ended.
    pub(crate) fn notify_batch(&mut self) {
        if self.batch_done.is_empty() || self.waiting_predictions() > 0 {
            return;
        }
        let done = std::mem::take(&mut self.batch_done);
        let title =
            if done.len() == 1 { "1 stack predicted".to_owned() } else { format!("{} stacks predicted", done.len()) };
        self.notifications.success(title, done.join("\n"));
    }

    fn handle_prediction(&mut self, id: u64, outcome: &PredictOutcome) {
        self.remove_live(id);
        for report in &outcome.done {
            let objects: u32 = report.objects.iter().sum();
            let what = if report.objects.is_empty() { "Predicted".to_owned() } else { format!("{objects} objects") };
            let mut details = format!("{} {}", report.device.name, report.device.why);
            for note in &report.notes {
                details.push_str(". ");
                details.push_str(note);
            }
            let mut title = format!("{what} in {:.1} s", report.seconds);
            if self.batch_done.is_empty() && self.waiting_predictions() == 0 {
                self.notifications.success(title, details);
            } else {
                // A batch gets a single notification at its end.
                title.push_str(&format!(": {}", file_name(&report.input)));
                self.batch_done.push(title);
            }
            if let Some(document) = self.documents.iter_mut().find(|d| d.id == id) {
                document.object_size.found = report.diameter.or(document.object_size.found);
                document.segment = report.segment.clone().or(document.segment.take());
            }
            self.show_results(id, &report.outputs);
        }
        for failed in &outcome.failed {
            self.notifications.error("Prediction failed", failed.sentence.clone());
        }
    }

    fn handle_segmentation(&mut self, id: u64, kept: bool, report: &SegmentReport) {
        self.panels.predict.preview_objects = (!kept).then_some(report.objects);
        self.close_corrections(id, "Other labels are shown now");
        let Some(document) = self.documents.iter_mut().find(|d| d.id == id) else { return };
        if kept {
            self.notifications
                .success(format!("{} objects saved", report.objects), report.labels.display().to_string());
            self.show_results(id, &report.artifacts());
            return;
        }
        // The file is missing if a newer preview has replaced it.
        let Ok(array) = LabelArray::open(&report.labels, report.shape_zyx) else { return };
        if report.shape_zyx != document.extents.zyx {
            return;
        }
        let before = document.of_role(Role::Labels);
        let (visible, labels) =
            before.map_or_else(|| (true, LabelDisplay::default()), |o| (o.visible, o.labels.clone()));
        document.put(Overlay {
            role: Role::Labels,
            name: PREVIEW_NAME.to_owned(),
            path: report.labels.clone(),
            visible,
            source: Arc::new(PreviewSource::new(array)),
            source_id: fresh_id(),
            labels,
            display: Overlay::map_display(),
            channels: 1,
            times: 1,
        });
    }
}

/// Whether a folder exists and is writable, or can be created.
fn may_write(folder: &Path) -> bool {
    let is_writable = |p: &Path| {
        std::fs::metadata(p).is_ok_and(|m| m.is_dir())
            && tempfile::Builder::new().prefix(".cytoscope-").tempfile_in(p).is_ok()
    };
    if folder.exists() { is_writable(folder) } else { folder.parent().is_some_and(is_writable) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::WorkbenchOptions;
    use crate::data::loader::{LoadState, Slot, SlotLayer};
    use crate::data::plane::{Orientation, Plane, PlaneAt, Values};
    use crate::data::source::{Cancel, PlaneSource, SourceError};
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_volume::Array;
    use eframe::egui;
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
    fn reading_a_live_prediction_is_not_restarted_by_updates() {
        let folder = tempfile::tempdir().unwrap();
        let stack = folder.path().join("stack.tif");
        let array = Array::new("ZYX".parse().unwrap(), vec![2, 3, 4], vec![1u16; 24]).unwrap();
        write_array(&stack, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        let mut workbench = Workbench::new(&egui::Context::default(), WorkbenchOptions::default());
        let mut document = Document::open(&stack, None).unwrap();
        let (id, path) = (document.id, folder.path().join("live"));
        let slow = Arc::new(Slow::default());
        let source: Arc<dyn PlaneSource> = slow.clone();
        let mut overlay = Document::overlay(&stack, Role::Live, [2, 3, 4], None).unwrap();
        overlay.path.clone_from(&path);
        overlay.source = Arc::clone(&source);
        let first = overlay.source_id;
        document.put(overlay);
        workbench.documents.push(document);
        let now = |w: &mut Workbench| w.find(id).unwrap().of_role(Role::Live).unwrap().source_id;
        let at =
            PlaneAt { orientation: Orientation::Xz, index: 1, channel: 0, time: 0, rows: 0..2, columns: 0..4, step: 1 };
        let slot = Slot { document: id, orientation: Orientation::Xz, layer: SlotLayer::Overlay(0) };
        assert!(matches!(workbench.loader.get(slot, first, &source, &at), LoadState::Waiting));
        // Updates while the slice is being read do not restart the reading.
        for _ in 0..20 {
            workbench.show_live(id, &path, 1, [2, 3, 4]);
            workbench.refresh_live();
        }
        assert_eq!(now(&mut workbench), first);
        slow.open.store(true, Ordering::SeqCst);
        let end = Instant::now() + Duration::from_secs(20);
        while workbench.loader.is_busy() {
            assert!(Instant::now() < end, "the cut did not come");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(matches!(workbench.loader.get(slot, first, &source, &at), LoadState::Ready(_)));
        // Afterwards one reload brings everything up to date.
        workbench.refresh_live();
        let second = now(&mut workbench);
        assert_ne!(second, first);
        workbench.refresh_live();
        assert_eq!(now(&mut workbench), second);
    }
}

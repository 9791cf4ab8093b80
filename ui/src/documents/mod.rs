//! Open stacks: which one is active, their files and planes, and how they are shown.

mod action;
mod live;
mod names;
mod opened;
mod saved;

pub(crate) use action::{CorrectedLabels, DocumentsAction, JobOutput, Predicted, ViewAction};
pub(crate) use live::LiveOutput;
pub(crate) use names::{distinct_name, namesakes};

use crate::compare::LabelComparisons;
use crate::correct::CorrectionsAction;
use crate::data::loader::{CACHE_BYTES, PlaneLoader, SourceId};
use crate::disk::DiskEffect;
use crate::document::{Document, DocumentChange, Overlay, Role, fresh_id};
use crate::effect::{Effects, ViewsEffect, Wake};
use crate::jobs::JobsAction;
use crate::opener::Opener;
use cytoscope_pipeline::{Artifact, ArtifactKind, DiameterRequest};
use eframe::egui;
use saved::SavedResults;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Slices per second during playback.
const PLAY_RATE: f64 = 12.0;

/// The open stacks.
pub(crate) struct Documents {
    all: Vec<Document>,
    active: Option<u64>,
    opener: Opener,
    loader: PlaneLoader,
    compare: LabelComparisons,
    /// Bundled sample stack.
    sample: Option<PathBuf>,
    /// Number of unanswered requests to look into folders.
    listing: usize,
    /// Number of the latest request to open files.
    request: usize,
    /// Files that were requested, each with the number of its latest request, in the order in which they are listed.
    requested: Vec<(usize, PathBuf)>,
    /// Documents whose live prediction has new tiles since its planes were read.
    updated_live: BTreeSet<u64>,
    /// Growing outputs that are being opened, by document.
    opening_live: BTreeMap<u64, PathBuf>,
    /// Labels of segmentation previews that are being opened, with their time points, by document.
    opening_preview: BTreeMap<u64, (PathBuf, usize)>,
    /// Results on disk of documents with several time points.
    saved: BTreeMap<u64, SavedResults>,
    /// Labels on disk that can be chosen, each with its table, by document and time point.
    label_choices: BTreeMap<u64, BTreeMap<usize, Vec<Vec<Artifact>>>>,
    /// Files of labels that the user has added to documents. Other labels may have replaced them on screen since.
    added_labels: BTreeMap<u64, PathBuf>,
    /// Files of added labels that stay on screen when the results of documents that were opened again are found.
    kept_labels: BTreeMap<u64, PathBuf>,
    /// When the slice changed last during playback.
    playing: Option<Instant>,
}

impl Documents {
    /// No stacks; `sample` is the bundled one.
    pub(crate) fn new(wake: &Wake, sample: Option<PathBuf>) -> Self {
        let (for_loader, for_compare) = (Arc::clone(wake), Arc::clone(wake));
        Self {
            all: Vec::new(),
            active: None,
            opener: Opener::new(Arc::clone(wake)),
            loader: PlaneLoader::new(CACHE_BYTES, move || for_loader()),
            compare: LabelComparisons::new(move || for_compare()),
            sample,
            listing: 0,
            request: 0,
            requested: Vec::new(),
            updated_live: BTreeSet::new(),
            opening_live: BTreeMap::new(),
            opening_preview: BTreeMap::new(),
            saved: BTreeMap::new(),
            label_choices: BTreeMap::new(),
            added_labels: BTreeMap::new(),
            kept_labels: BTreeMap::new(),
            playing: None,
        }
    }

    /// All open stacks.
    pub(crate) fn all(&self) -> &[Document] {
        &self.all
    }

    /// Id of the active document.
    pub(crate) fn active_id(&self) -> Option<u64> {
        self.active
    }

    /// The document that views and panels show; `None` if none is open.
    pub(crate) fn active(&self) -> Option<&Document> {
        self.all.iter().find(|d| Some(d.id) == self.active)
    }

    /// Like [`Documents::active`], for changes.
    pub(crate) fn active_mut(&mut self) -> Option<&mut Document> {
        self.all.iter_mut().find(|d| Some(d.id) == self.active)
    }

    /// The document with this id; `None` if it was closed.
    pub(crate) fn get(&self, id: u64) -> Option<&Document> {
        self.all.iter().find(|d| d.id == id)
    }

    fn get_mut(&mut self, id: u64) -> Option<&mut Document> {
        self.all.iter_mut().find(|d| d.id == id)
    }

    /// Paths of the open stacks.
    pub(crate) fn paths(&self) -> Vec<&Path> {
        self.all.iter().map(|d| d.path.as_path()).collect()
    }

    /// Names of channels and series that the files of the open stacks state.
    pub(crate) fn names_in_files(&self) -> impl Iterator<Item = &str> {
        let channels = self.all.iter().flat_map(|d| &d.channels).map(|channel| channel.name.as_str());
        channels.chain(self.all.iter().flat_map(|d| &d.image.meta().series_names).map(String::as_str))
    }

    /// The bundled sample stack.
    pub(crate) fn sample(&self) -> Option<&Path> {
        self.sample.as_deref()
    }

    /// Reader of planes.
    pub(crate) fn loader(&self) -> &PlaneLoader {
        &self.loader
    }

    /// Comparison of labels with ground truth.
    pub(crate) fn compare(&self) -> &LabelComparisons {
        &self.compare
    }

    /// Whether files are being opened, chosen or saved.
    pub(crate) fn is_opening(&self) -> bool {
        self.listing > 0 || self.opener.is_busy()
    }

    /// Uses the window's own file dialog, whether or not the desktop has one.
    pub(crate) fn use_own_dialogs(&mut self) {
        self.opener.use_own_dialogs();
    }

    /// Whether playback is running.
    pub(crate) fn is_playing(&self) -> bool {
        self.playing.is_some()
    }

    /// Applies an action. Returns what other states and the disk have to do for it.
    pub(crate) fn apply(&mut self, action: DocumentsAction) -> Effects {
        let mut effects = Effects::default();
        match action {
            DocumentsAction::Open(paths) if paths.is_empty() => {}
            DocumentsAction::Open(paths) => {
                self.listing += 1;
                effects.disk(DiskEffect::List { paths });
            }
            DocumentsAction::Reopen { path, given, series, replaces } => {
                let is_shown = |d: &&Document| d.path == path && d.series == series && Some(d.id) != replaces;
                let shown = self.all.iter().find(is_shown).map(|d| d.id);
                match shown {
                    Some(id) => self.active = Some(id),
                    None => self.opener.open(path, given, series, replaces),
                }
            }
            DocumentsAction::Activate(id) => self.active = Some(id),
            DocumentsAction::Close => self.close(&mut effects),
            DocumentsAction::Change { document, change } => self.change(document, change, &mut effects),
            DocumentsAction::View(action) => self.change_view(action, &mut effects),
            DocumentsAction::OpenOverlay { document, role, path } => {
                self.add_overlay(document, role, path, &mut effects);
            }
            DocumentsAction::RemoveOverlay { document, role } => {
                if role == Role::Labels {
                    self.keep_shown_labels(document);
                }
                self.remove_overlay(document, role);
            }
            DocumentsAction::IgnoreBelow(voxels) => self.compare.ignore_below_voxels = voxels,
            DocumentsAction::IgnoreLabel(label) => self.compare.ignore_label = label,
            DocumentsAction::ColorByMatch(colored) => self.compare.colored = colored,
            DocumentsAction::Ask { request, folder, name } => {
                let stack_folder = || Some(self.active()?.path.parent()?.to_owned());
                let folder = folder.or_else(stack_folder);
                self.opener.ask(request, folder, name);
            }
            DocumentsAction::Save { path, content } => {
                let open = self.all.iter().map(|d| d.path.clone()).collect();
                self.opener.save(path, open, content);
            }
            DocumentsAction::ShowFolder(folder) => self.opener.show_folder(folder),
            DocumentsAction::Show { document, output } => self.show_output(document, *output, &mut effects),
            DocumentsAction::KeepLive(predicted) => {
                let ended: Vec<u64> = self.all.iter().map(|d| d.id).filter(|id| !predicted.contains(id)).collect();
                ended.into_iter().for_each(|id| self.remove_live(id));
            }
            DocumentsAction::ShowCorrected { document, labels } => self.show_corrected(document, *labels),
            DocumentsAction::ShowLabels(document) => {
                if let Some(labels) = self.get_mut(document).and_then(|d| d.overlay_with_role_mut(Role::Labels)) {
                    labels.visible = true;
                }
            }
            DocumentsAction::SetLabelChoices { document, choices } => {
                self.label_choices.insert(document, choices);
            }
            DocumentsAction::LabelsSaved { document, path, time, is_open } => {
                self.labels_saved(document, path, time, is_open);
            }
        }
        effects
    }

    /// Changes how a document is shown.
    fn change(&mut self, id: u64, change: DocumentChange, effects: &mut Effects) {
        let Some(document) = self.get_mut(id) else { return };
        let before = document.time;
        if let Some(gone) = changed_preview(document, change) {
            self.forget_sources(vec![gone], effects);
        }
        self.follow_time(id, before, effects);
    }

    fn close(&mut self, effects: &mut Effects) {
        let Some(at) = self.all.iter().position(|d| Some(d.id) == self.active) else { return };
        let gone = self.all.remove(at);
        effects.act(CorrectionsAction::Close { document: gone.id, notification_title: "Corrections are kept" });
        effects.act(JobsAction::Closed(gone.id));
        self.forget_sources(source_ids(&gone).into_iter().collect(), effects);
        self.opening_live.remove(&gone.id);
        self.opening_preview.remove(&gone.id);
        self.saved.remove(&gone.id);
        self.label_choices.remove(&gone.id);
        self.added_labels.remove(&gone.id);
        self.kept_labels.remove(&gone.id);
        self.active = self.all.get(at.min(self.all.len().saturating_sub(1))).map(|d| d.id);
        self.playing = None;
    }

    /// Drops what was read from sources that are no longer shown.
    fn forget_sources(&self, sources: Vec<SourceId>, effects: &mut Effects) {
        sources.iter().for_each(|source| self.loader.forget(*source));
        effects.views(ViewsEffect::Forget(sources));
    }

    fn change_view(&mut self, action: ViewAction, effects: &mut Effects) {
        if action == ViewAction::Play {
            self.playing = if self.playing.is_some() { None } else { Some(Instant::now()) };
            return;
        }
        let Some(document) = self.active_mut() else { return };
        let (id, before) = (document.id, document.time);
        match action {
            ViewAction::StepSlice(by) => document.step(0, by),
            ViewAction::StepTime(by) => document.step_time(by),
            ViewAction::Play => {}
            ViewAction::Fit => {
                document.cameras = [None; 3];
                effects.views(ViewsEffect::ResetVolume);
            }
            ViewAction::AutoContrast => {
                for channel in &mut document.channels {
                    if let Some(histogram) = &channel.histogram {
                        (channel.display.low, channel.display.high) = histogram.limits();
                    }
                }
            }
            ViewAction::ToggleLabels => {
                let shown = document.overlays.iter().any(|o| o.is_labels() && o.visible);
                document.overlays.iter_mut().filter(|o| o.is_labels()).for_each(|o| o.visible = !shown);
            }
            ViewAction::NextLabelStyle => {
                use crate::data::composite::LabelStyle::{Both, Fill, Outline};
                for overlay in document.overlays.iter_mut().filter(|o| o.is_labels()) {
                    overlay.labels.style = match overlay.labels.style {
                        Outline => Fill,
                        Fill => Both,
                        Both => Outline,
                    };
                }
            }
            ViewAction::ToggleMap => {
                if let Some(map) = document.overlay_with_role_mut(Role::Map) {
                    map.visible = !map.visible;
                }
            }
        }
        self.follow_time(id, before, effects);
    }

    /// Opens an overlay that the user has chosen.
    fn add_overlay(&mut self, id: u64, role: Role, path: PathBuf, effects: &mut Effects) {
        if self.get(id).is_none() {
            // It was closed while the file was chosen.
            let details = "Their stack was closed: open it again, then add the labels again.";
            return effects.error("The labels were not added", details);
        }
        if role == Role::Labels {
            self.keep_shown_labels(id);
            self.added_labels.insert(id, path.clone());
        }
        self.open_overlay(id, role, path, None);
    }

    /// Opens an overlay; `only_time` is the time point that it belongs to, if it is a single one.
    fn open_overlay(&mut self, id: u64, role: Role, path: PathBuf, only_time: Option<usize>) {
        if role == Role::Labels {
            self.opening_preview.remove(&id);
        }
        if let Some(document) = self.all.iter().find(|d| d.id == id) {
            self.opener.overlay(document, role, path, only_time);
        }
    }

    fn remove_overlay(&mut self, id: u64, role: Role) {
        let Some(document) = self.all.iter_mut().find(|d| d.id == id) else { return };
        if let Some(overlay) = document.overlay_with_role(role) {
            self.loader.forget(overlay.source_id);
        }
        document.overlays.retain(|o| o.role != role);
    }

    fn show_output(&mut self, id: u64, output: JobOutput, effects: &mut Effects) {
        match output {
            JobOutput::Files(outputs) => {
                // The map of an earlier prediction does not belong to the new labels.
                if !outputs.iter().any(|a| a.kind.is_maps()) {
                    self.remove_overlay(id, Role::Map);
                }
                self.kept_labels.remove(&id);
                self.show_results(id, outputs, BTreeMap::new(), None);
            }
            JobOutput::Found { outputs, by_time, only_time, predicted } => {
                if let Some(document) = self.get_mut(id) {
                    document.take_over(predicted);
                }
                // They may belong to a prediction that was requested before the stack was opened again.
                let has = |is: fn(ArtifactKind) -> bool| outputs.iter().any(|a| is(a.kind));
                let has_labels = has(|kind| kind == ArtifactKind::Labels) || only_time.is_some();
                if has_labels && !has(ArtifactKind::is_maps) {
                    self.remove_overlay(id, Role::Map);
                }
                self.show_results(id, outputs, by_time, only_time);
            }
            JobOutput::Measured { labels, table } => self.show_measured(id, &labels, table),
            JobOutput::Live(output) => self.show_live(id, output, effects),
            JobOutput::Preview(time, report) => self.open_preview(id, time, report, effects),
            JobOutput::Kept(time, outputs) => {
                self.add_label_choice(id, time, &outputs);
                self.show_kept(id, time, outputs);
            }
            JobOutput::Predicted(predicted) => {
                if let Some(document) = self.get_mut(id) {
                    document.object_size.found = predicted.diameter.or(document.object_size.found);
                    // A prediction that was skipped because its results exist reports no settings.
                    if predicted.segment.is_some() {
                        document.set_predicted(predicted);
                    }
                }
            }
            JobOutput::Diameter(found, before) => {
                if let Some(document) = self.get_mut(id) {
                    let size = &mut document.object_size;
                    size.found = Some(found);
                    // A diameter that was set during the estimate stays.
                    if size.request == before && before != DiameterRequest::Auto {
                        size.request = DiameterRequest::Given(found.diameter);
                    }
                }
            }
            JobOutput::NotLive => self.remove_live(id),
        }
    }

    fn show_files(&mut self, id: u64, outputs: Vec<Artifact>, only_time: Option<usize>) {
        let labels = outputs.iter().find(|a| a.kind == ArtifactKind::Labels).map(|a| a.path.clone());
        for Artifact { kind, path } in outputs {
            match kind {
                ArtifactKind::Probability | ArtifactKind::Prediction => {
                    self.open_overlay(id, Role::Map, path, only_time);
                }
                ArtifactKind::Labels => self.open_overlay(id, Role::Labels, path, only_time),
                ArtifactKind::Table if self.get(id).is_some() => {
                    self.opener.table(id, path, labels.clone());
                }
                ArtifactKind::Table | ArtifactKind::Preview | ArtifactKind::Provenance | ArtifactKind::Preprocessed => {
                }
            }
        }
    }

    fn show_corrected(&mut self, id: u64, labels: CorrectedLabels) {
        self.opening_preview.remove(&id);
        self.keep_shown_labels(id);
        let Some(document) = self.all.iter_mut().find(|d| d.id == id) else { return };
        let source = Arc::new(labels.source);
        let only_time = (document.extents.times > 1).then_some(labels.time);
        let is_other_time = document.overlay_with_role(Role::Labels).is_some_and(|o| !o.is_at(labels.time));
        if is_other_time {
            // The file belongs to the labels of the other time point.
            document.saved_labels = None;
        }
        match document.overlay_with_role_mut(Role::Labels) {
            Some(overlay) => {
                self.loader.forget(overlay.source_id);
                overlay.source_id = fresh_id();
                overlay.source = source;
                overlay.channels = 1;
                overlay.only_time = only_time;
                if is_other_time && overlay.times == 1 {
                    (overlay.path, overlay.name) = (labels.path, labels.name);
                    (overlay.has_record, overlay.is_preview) = (false, false);
                }
            }
            None => {
                let overlay = Overlay::from_source(Role::Labels, labels.name, labels.path, source);
                document.put(Overlay { only_time, ..overlay });
                document.select(Some(labels.label));
            }
        }
    }

    /// Updates the label colors of the active document, and compares its labels with ground truth if they are new.
    pub(crate) fn update_comparison(&mut self) {
        if let Some(document) = self.all.iter_mut().find(|d| Some(d.id) == self.active) {
            self.compare.update(document);
        }
    }

    /// Shows the next slice during playback, once the previous one is on screen.
    pub(crate) fn play(&mut self, ctx: &egui::Context) {
        let Some(last) = self.playing else { return };
        let pause = Duration::from_secs_f64(1.0 / PLAY_RATE);
        if last.elapsed() >= pause && !self.loader.is_busy() {
            self.playing = Some(Instant::now());
            if let Some(document) = self.active_mut() {
                let n = document.extents.zyx[0].max(1);
                document.cursor[0] = (document.cursor[0] + 1) % n;
            }
        }
        ctx.request_repaint_after(pause);
    }
}

/// Ids of the sources that a document shows: those of the stack, its overlays and its preprocessed stack.
fn source_ids(document: &Document) -> BTreeSet<SourceId> {
    let overlays = document.overlays.iter().map(|overlay| overlay.source_id);
    let preview = document.preview.as_ref().map(|preview| preview.source_id);
    std::iter::once(document.id).chain(overlays).chain(preview).collect()
}

/// Applies a change to a document; returns the source of a preview that it ended.
fn changed_preview(document: &mut Document, change: DocumentChange) -> Option<u64> {
    let before = document.preview.as_ref().map(|preview| preview.source_id);
    document.apply(change);
    let after = document.preview.as_ref().map(|preview| preview.source_id);
    before.filter(|_| after != before)
}

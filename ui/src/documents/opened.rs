//! Handles files that were listed, opened, chosen or saved.

use super::{Documents, source_ids};
use crate::action::Action;
use crate::correct::CorrectionsAction;
use crate::display::DisplayAction;
use crate::document::{Document, DocumentChange, GivenMetadata, Overlay, Role, file_name};
use crate::effect::Effects;
use crate::jobs::JobsAction;
use crate::opener::{Expanded, MAX_FILES_OF_FOLDER, OpenerResult};
use crate::preprocess::Preprocessing;
use crate::settings::Settings;
use cytoscope_pipeline::ArtifactKind;
use cytoscope_volume::{Axes, VoxelSize};
use std::path::{Path, PathBuf};

/// A file with at least this many channels and a single slice probably declares its slices or time points as channels.
const MANY_CHANNELS: usize = 8;

/// Returns axes and voxel size that the user has set for the files of a folder. Invalid ones are logged and not used.
fn given_metadata(settings: &Settings, file: &Path) -> GivenMetadata {
    let axes = settings.axes_for(file).and_then(|text| {
        let parsed = text.parse::<Axes>();
        parsed.inspect_err(|error| tracing::warn!("the axes {text:?} of the settings are not used: {error}")).ok()
    });
    let voxel_size_um = settings.voxel_size_for(file);
    let checked = voxel_size_um.check();
    let checked = checked.inspect_err(|error| tracing::warn!("the voxel size of the settings is not used: {error}"));
    GivenMetadata { axes, voxel_size_um: if checked.is_ok() { voxel_size_um } else { VoxelSize::default() } }
}

/// Whether a document shows the same voxels as the one that it replaces, for example with another voxel size.
fn has_same_voxels(document: &Document, old: &Document) -> bool {
    let is_same_file = document.path == old.path && document.series == old.series && document.axes == old.axes;
    is_same_file && document.extents == old.extents
}

/// The file of the labels that a document shows, unless they are a preview, or were corrected and saved to another file.
fn shown_file(document: &Document) -> Option<PathBuf> {
    let labels = document.overlay_with_role(Role::Labels).filter(|labels| !labels.is_preview)?;
    document.saved_labels.is_none().then(|| labels.path.clone())
}

/// Takes over how a stack was shown and preprocessed before it was opened again.
fn take_over_view(document: &mut Document, mut old: Document) {
    if !has_same_voxels(document, &old) {
        return;
    }
    (document.cursor, document.time) = (old.cursor, old.time);
    let preprocessing = old.preprocessing.clone();
    // Without the preview, the channels have the contrast limits of the stack again.
    old.apply(DocumentChange::Preprocessing(Preprocessing { preview: false, ..preprocessing.clone() }));
    document.channels = old.channels;
    if document.voxel_known == old.voxel_known {
        // Otherwise the diameter has another unit now.
        document.object_size.request = old.object_size.request;
    }
    document.apply(DocumentChange::Preprocessing(preprocessing));
    document.copy_steps = old.copy_steps;
    old.overlays.into_iter().filter(|overlay| overlay.role == Role::Truth).for_each(|truth| document.put(truth));
}

impl Documents {
    /// Opens files; one that is already open becomes the active document.
    pub(crate) fn listed(&mut self, listed: Expanded, settings: &Settings) -> Effects {
        let mut effects = Effects::default();
        self.listing = self.listing.saturating_sub(1);
        let Expanded { files, truncated, has_empty, unreadable } = listed;
        if !unreadable.is_empty() {
            effects.error("Folder not opened", unreadable.join("\n"));
        } else if has_empty && files.is_empty() {
            let details = "The folder contains no stacks. Stacks in folders inside it are not opened.";
            effects.info("No files were opened", details);
        }
        if truncated {
            let details = format!(
                "A folder has more than {MAX_FILES_OF_FOLDER} stacks; the others are not opened. Drop single files to \
                 open them; Convert files… takes more of them at once."
            );
            effects.info(format!("{} stacks are opened", files.len()), details);
        }
        self.request += 1;
        for path in files {
            let absolute = std::path::absolute(&path).unwrap_or(path);
            if let Some(open) = self.all.iter().find(|d| d.path == absolute) {
                self.active = Some(open.id);
                effects.act(DisplayAction::ShowStacks);
                continue;
            }
            let given = given_metadata(settings, &absolute);
            let series = settings.series_for(&absolute);
            self.requested.retain(|(_, known)| *known != absolute);
            self.requested.push((self.request, absolute.clone()));
            self.opener.open(absolute, given, series, None);
        }
        effects
    }

    /// Index of a file among the requested ones, and the number of its request.
    fn request_for(&self, path: &Path) -> Option<(usize, usize)> {
        let at = self.requested.iter().position(|(_, known)| known == path)?;
        self.requested.get(at).map(|(request, _)| (at, *request))
    }

    /// Whether a new document becomes the active one. Files that are opened together arrive in any order; the first one
    /// is shown.
    fn becomes_active(&self, path: &Path) -> bool {
        let active = self.active().and_then(|active| self.request_for(&active.path));
        match (active, self.request_for(path)) {
            (Some((active, active_request)), Some((at, request))) => active_request != request || at < active,
            _ => true,
        }
    }

    /// Index of a new document in the list: before those that were requested later.
    fn insertion_index(&self, path: &Path) -> usize {
        let own = self.request_for(path);
        let is_later = |document: &Document| own.is_some() && self.request_for(&document.path) > own;
        self.all.iter().position(is_later).unwrap_or(self.all.len())
    }

    /// Handles the results of the opener since the last call.
    pub(crate) fn poll(&mut self) -> Effects {
        let mut effects = Effects::default();
        for opened in self.opener.poll() {
            match opened {
                OpenerResult::Document { document, replaces, missing_series } => {
                    if let Some(series) = missing_series {
                        let missing = document.image.meta().series_name(series);
                        let details = format!("{}: {missing} cannot be opened.", document.path.display());
                        effects.info("The first series is shown", details);
                    }
                    self.handle_document(*document, replaces, &mut effects);
                }
                OpenerResult::Overlay { document, overlay } => self.handle_overlay(document, *overlay, &mut effects),
                OpenerResult::Table { document, results, .. }
                    if self.is_outdated(document, ArtifactKind::Table, &results.path) => {}
                OpenerResult::Table { document, results, labels, old } => {
                    if let Some(document) = self.get_mut(document) {
                        document.results = Some(*results);
                        document.table_labels = labels;
                        document.table_old = old;
                    }
                }
                OpenerResult::Chosen(request, files) => effects.act(Action::Chosen(request, files)),
                OpenerResult::Browse(spec) => effects.act(DisplayAction::Browse(spec)),
                OpenerResult::Failed { what, reason, axes_of } => {
                    if let Some((file, series)) = axes_of {
                        effects.act(DisplayAction::AskAxes { file, series, text: String::new() });
                    }
                    effects.error(format!("{what} failed"), reason);
                }
                OpenerResult::FolderShown => {}
                OpenerResult::Saved(path) => {
                    effects.success(format!("Saved {}", file_name(&path)), path.display().to_string());
                }
                OpenerResult::IsOpen(path) => {
                    let details = format!("{} is open here. Choose another name.", path.display());
                    effects.error("The file was not saved", details);
                }
            }
        }
        effects
    }

    /// Adds an opened document. It takes the place of the document that it replaces, or of one that shows the same series.
    fn handle_document(&mut self, document: Document, replaces: Option<u64>, effects: &mut Effects) {
        effects.act(DisplayAction::AddRecentFile(document.path.clone()));
        // A series is remembered once it is open, so that one that cannot be opened does not lock the file.
        let (path, series) = (document.path.clone(), document.series);
        effects.act(DisplayAction::RememberSeries { file: path.clone(), series });
        let flat_channels = document.extents.channels >= MANY_CHANNELS && document.extents.zyx[0] == 1;
        if flat_channels && document.axes.is_none() {
            effects.info(
                "Are these channels slices?",
                format!(
                    "{} declares {} channels. If they are slices, set its axes in the list of stacks.",
                    document.name, document.extents.channels
                ),
            );
        }
        let id = document.id;
        if replaces.is_some() || self.becomes_active(&path) {
            self.active = Some(id);
        }
        effects.act(DisplayAction::ShowStacks);
        // Series of one file may arrive at the same time: each has its own document.
        let replaced = replaces.and_then(|id| self.all.iter().position(|d| d.id == id));
        let is_same = |d: &Document| d.path == document.path && d.series == document.series;
        let at = replaced.or_else(|| self.all.iter().position(is_same));
        match at {
            Some(at) => {
                let old = std::mem::replace(&mut self.all[at], document);
                if self.active == Some(old.id) {
                    self.active = Some(id);
                }
                self.saved.remove(&old.id);
                self.label_choices.remove(&old.id);
                effects.act(CorrectionsAction::Close { document: old.id, notification_title: "Corrections are kept" });
                let is_same_grid = has_same_voxels(&self.all[at], &old);
                effects.act(JobsAction::Replaced { from: old.id, to: is_same_grid.then_some(id) });
                if is_same_grid {
                    effects.act(CorrectionsAction::CarryOver { from: old.id, to: id });
                } else {
                    self.kept_labels.remove(&old.id);
                }
                let shown = shown_file(&old).filter(|_| is_same_grid);
                self.keep_added_labels(id, old.id, shown.as_deref());
                let sources = source_ids(&old);
                take_over_view(&mut self.all[at], old);
                // The ground truth was taken over.
                let gone = sources.difference(&source_ids(&self.all[at])).copied().collect();
                self.forget_sources(gone, effects);
            }
            None => {
                let place = self.insertion_index(&path);
                self.all.insert(place, document);
            }
        }
        effects.act(JobsAction::Opened { document: id, path, series });
    }

    fn handle_overlay(&mut self, id: u64, overlay: Overlay, effects: &mut Effects) {
        if overlay.role == Role::Labels && self.is_outdated(id, ArtifactKind::Labels, &overlay.path) {
            return self.loader.forget(overlay.source_id);
        }
        if overlay.role == Role::Labels {
            effects.act(CorrectionsAction::Close { document: id, notification_title: "Other labels are shown now" });
        }
        let Some(document) = self.all.iter_mut().find(|d| d.id == id) else { return };
        if let Some(old) = document.overlay_with_role(overlay.role) {
            self.loader.forget(old.source_id);
        }
        let (times, all_times) = (overlay.times, document.extents.times);
        if overlay.only_time.is_none() && (2..all_times).contains(&times) {
            let title = format!("{} has fewer time points than the stack", overlay.name);
            let details = format!("It has {times} of {all_times} time points, and is not shown at the later ones.");
            effects.info(title, details);
        }
        document.put(overlay);
        let selected = document.selected;
        document.select(selected);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::documents::{DocumentsAction, JobOutput, Predicted};
    use crate::effect::{Effect, Wake};
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_pipeline::{Artifact, DiameterRequest};
    use cytoscope_preprocess::PreprocessStep;
    use cytoscope_volume::Array;
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::time::{Duration, Instant};

    #[test]
    fn channels_are_shown_as_before_although_a_preview_was_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tif");
        let array = Array::new(Axes::zyx(), vec![2, 8, 8], vec![7u16; 128]).unwrap();
        write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        let mut old = Document::open(&path, None, 0).unwrap();
        let channel = &mut old.channels[0];
        (channel.visible, channel.wants_limits) = (false, false);
        (channel.display.low, channel.display.high, channel.display.gamma) = (3.0, 9.0, 2.0);
        let previewed = Preprocessing { steps: vec!["median:radius=1".parse().unwrap()], preview: true };
        old.apply(DocumentChange::Preprocessing(previewed.clone()));
        assert!(old.preview.is_some());
        let mut document = Document::open(&path, None, 0).unwrap();
        take_over_view(&mut document, old);
        assert!(document.preview.is_some() && !document.channels[0].visible);
        document.apply(DocumentChange::Preprocessing(Preprocessing { preview: false, ..previewed }));
        let display = &document.channels[0].display;
        assert_eq!((display.low, display.high, display.gamma), (3.0, 9.0, 2.0));
        assert!(!document.channels[0].wants_limits);
    }

    #[test]
    fn a_stack_with_another_voxel_size_is_shown_and_preprocessed_as_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tif");
        let array = Array::new(Axes::zyx(), vec![2, 8, 8], vec![7u16; 128]).unwrap();
        write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        let open = |size: VoxelSize| Document::open(&path, None, 0).unwrap().with_voxel_size(size);
        let mut old = open(VoxelSize::new_um(2.0, 1.0, 1.0));
        old.cursor = [1, 3, 5];
        old.object_size.request = DiameterRequest::Given(4.0);
        let steps: Vec<PreprocessStep> = vec!["median:radius=1".parse().unwrap()];
        old.apply(DocumentChange::Preprocessing(Preprocessing { steps: steps.clone(), preview: false }));
        let copy_steps: Vec<PreprocessStep> = vec!["crop:z=0-1".parse().unwrap()];
        old.apply(DocumentChange::CopySteps(copy_steps.clone()));
        old.put(Document::overlay(&path, Role::Truth, ([2, 8, 8], 1), None).unwrap());
        let mut document = open(VoxelSize::new_um(3.0, 1.0, 1.0));
        take_over_view(&mut document, old);
        assert_eq!((document.cursor, &document.preprocessing.steps), ([1, 3, 5], &steps));
        assert_eq!(document.copy_steps, copy_steps);
        assert_eq!(document.object_size.request, DiameterRequest::Given(4.0));
        assert!(document.overlay_with_role(Role::Truth).is_some());
        // A diameter in µm is not one in voxels.
        let mut plain = open(VoxelSize::default());
        take_over_view(&mut plain, document);
        assert_eq!((plain.cursor, plain.object_size.request), ([1, 3, 5], DiameterRequest::Auto));
    }

    #[test]
    fn a_series_that_a_file_no_longer_has_is_named_as_in_the_list_of_series() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tif");
        let array = Array::new(Axes::zyx(), vec![2, 8, 8], vec![7u16; 128]).unwrap();
        write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        let wake: Wake = Arc::new(|| {});
        let mut documents = Documents::new(&wake, None);
        let mut settings = Settings::default();
        settings.remember_series(path.clone(), 3);
        let _ = documents.listed(Expanded { files: vec![path], ..Expanded::default() }, &settings);
        let end = Instant::now() + Duration::from_secs(60);
        let mut notes: Vec<String> = Vec::new();
        while documents.all().is_empty() {
            assert!(Instant::now() < end, "the stack was not opened in time");
            let details = |effect: Effect| match effect {
                Effect::Notify { details, .. } => Some(details),
                _ => None,
            };
            notes.extend(documents.poll().into_iter().filter_map(details));
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(matches!(notes.as_slice(), [note] if note.ends_with("a.tif: Series 3 cannot be opened.")), "{notes:?}");
    }

    #[test]
    fn files_that_are_opened_together_are_listed_in_their_order_and_the_first_is_shown() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["a.tif", "b.tif", "c.tif", "later.tif"].map(|name| folder.path().join(name));
        let array = Array::new(Axes::zyx(), vec![2, 8, 8], vec![7u16; 128]).unwrap();
        for path in &paths {
            write_array(path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        }
        let wake: Wake = Arc::new(|| {});
        let mut documents = Documents::new(&wake, None);
        let [a, b, c, later] = &paths;
        let ask = |documents: &mut Documents, files: &[&PathBuf]| {
            let files = files.iter().map(|path| (*path).clone()).collect();
            let _ = documents.listed(Expanded { files, ..Expanded::default() }, &Settings::default());
        };
        let arrive = |documents: &mut Documents, path: &Path| {
            let document = Document::open(path, None, 0).unwrap();
            documents.handle_document(document, None, &mut Effects::default());
            documents.active().unwrap().path.clone()
        };
        ask(&mut documents, &[a, b, c]);
        let shown = [c, a, b].map(|path| arrive(&mut documents, path));
        assert_eq!([&shown[0], &shown[1], &shown[2]], [c, a, a]);
        ask(&mut documents, &[later]);
        assert_eq!(arrive(&mut documents, later), *later);
        // It was requested twice before it was open.
        assert_eq!(arrive(&mut documents, later), *later);
        assert_eq!(documents.paths(), [a, b, c, later]);
    }

    #[test]
    fn labels_without_a_map_are_not_shown_with_that_of_an_earlier_prediction() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tif");
        let array = Array::new(Axes::zyx(), vec![2, 8, 8], vec![7u16; 128]).unwrap();
        write_array(&path, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        let mut document = Document::open(&path, None, 0).unwrap();
        document.put(Document::overlay(&path, Role::Map, ([2, 8, 8], 1), None).unwrap());
        let id = document.id;
        let wake: Wake = Arc::new(|| {});
        let mut documents = Documents::new(&wake, None);
        documents.all.push(document);
        let mut has_map_after = |kind: ArtifactKind| {
            let outputs = vec![Artifact::new(kind, folder.path().join(kind.file_name("a")))];
            documents.show_output(id, JobOutput::Files(outputs), &mut Effects::default());
            documents.get(id).unwrap().overlay_with_role(Role::Map).is_some()
        };
        assert!(has_map_after(ArtifactKind::Probability));
        assert!(!has_map_after(ArtifactKind::Labels));
    }

    #[test]
    fn a_table_belongs_to_the_labels_that_it_is_shown_with() {
        let folder = tempfile::tempdir().unwrap();
        let [path, labels, moved, table] =
            ["a.tif", "a_labels.tif", "b_labels.tif", "a_objects.csv"].map(|name| folder.path().join(name));
        let array = Array::new(Axes::zyx(), vec![2, 8, 8], vec![7u16; 128]).unwrap();
        for image in [&path, &labels] {
            write_array(image, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        }
        std::fs::write(&table, "label,voxels\n7,128\n").unwrap();
        let document = Document::open(&path, None, 0).unwrap();
        let id = document.id;
        let wake: Wake = Arc::new(|| {});
        let mut documents = Documents::new(&wake, None);
        documents.all.push(document);
        let outputs = vec![Artifact::new(ArtifactKind::Table, &table), Artifact::new(ArtifactKind::Labels, &labels)];
        documents.show_output(id, JobOutput::Files(outputs), &mut Effects::default());
        let end = Instant::now() + Duration::from_secs(60);
        while documents.get(id).unwrap().results.is_none() {
            assert!(Instant::now() < end, "the table was not read in time");
            let _ = documents.poll();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(documents.get(id).unwrap().table_labels.as_ref(), Some(&labels));
        documents.labels_moved(id, &labels, &moved);
        assert_eq!(documents.get(id).unwrap().table_labels.as_ref(), Some(&moved));
    }

    #[test]
    fn labels_with_fewer_time_points_than_the_stack_are_not_shown_at_the_later_ones() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, times: usize| {
            let path = folder.path().join(name);
            let array = Array::new("TZYX".parse().unwrap(), vec![times, 2, 8, 8], vec![7u16; times * 128]).unwrap();
            write_array(&path, &array, &WriteSpec::of(&array, Container::OmeTiff)).unwrap();
            path
        };
        let document = Document::open(&write("a.ome.tif", 5), None, 0).unwrap();
        let id = document.id;
        let wake: Wake = Arc::new(|| {});
        let mut documents = Documents::new(&wake, None);
        documents.all.push(document);
        for (times, at_last, notifications) in [(1, true, 0), (3, false, 1), (5, true, 0)] {
            let labels = write(&format!("{times}.ome.tif"), times);
            let overlay = Document::overlay(&labels, Role::Labels, ([2, 8, 8], 5), None).unwrap();
            assert_eq!((overlay.times, overlay.is_at(0), overlay.is_at(4)), (times, true, at_last));
            let mut effects = Effects::default();
            documents.handle_overlay(id, overlay, &mut effects);
            let notified = effects.into_iter().filter(|effect| matches!(effect, Effect::Notify { .. }));
            assert_eq!(notified.count(), notifications, "{times} time points");
            documents.get_mut(id).unwrap().time = 4;
            assert_eq!(documents.labels_to_correct(id).is_some(), at_last);
        }
        let mut saved =
            Document::overlay(&folder.path().join("1.ome.tif"), Role::Labels, ([2, 8, 8], 5), None).unwrap();
        saved.only_time = Some(3);
        assert_eq!([0, 3].map(|time| saved.is_at(time)), [false, true]);
    }

    /// Waits until the labels of a document are those of a file.
    fn wait_for_labels(documents: &mut Documents, id: u64, file: &Path) {
        let end = Instant::now() + Duration::from_secs(60);
        let is_other = |documents: &Documents| {
            documents.get(id).unwrap().overlay_with_role(Role::Labels).is_none_or(|labels| labels.path != file)
        };
        while is_other(documents) || documents.opener.is_busy() {
            assert!(Instant::now() < end, "the labels were not opened in time");
            let _ = documents.poll();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn labels_that_are_chosen_after_their_stack_was_closed_are_refused() {
        let wake: Wake = Arc::new(|| {});
        let mut documents = Documents::new(&wake, None);
        let action = DocumentsAction::OpenOverlay { document: 7, role: Role::Labels, path: "labels.tif".into() };
        let effects = documents.apply(action).into_iter();
        let titles: Vec<String> =
            effects.filter_map(|e| if let Effect::Notify { title, .. } = e { Some(title) } else { None }).collect();
        assert_eq!(titles, ["The labels were not added"]);
        assert!(documents.added_labels.is_empty() && !documents.opener.is_busy());
    }

    #[test]
    fn labels_of_another_program_stay_when_the_voxel_size_is_changed() {
        let folder = tempfile::tempdir().unwrap();
        let [path, labels, predicted] = ["a.tif", "other.tif", "a_labels.tif"].map(|name| folder.path().join(name));
        let array = Array::new(Axes::zyx(), vec![2, 8, 8], vec![7u16; 128]).unwrap();
        for file in [&path, &labels, &predicted] {
            write_array(file, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        }
        let wake: Wake = Arc::new(|| {});
        let mut documents = Documents::new(&wake, None);
        let open = |z: f64| Document::open(&path, None, 0).unwrap().with_voxel_size(VoxelSize::new_um(z, 1.0, 1.0));
        let add = |documents: &mut Documents, document: Document, replaces: Option<u64>| {
            let id = document.id;
            documents.handle_document(document, replaces, &mut Effects::default());
            id
        };
        let first = add(&mut documents, open(1.0), None);
        let action = DocumentsAction::OpenOverlay { document: first, role: Role::Labels, path: labels.clone() };
        let _ = documents.apply(action);
        wait_for_labels(&mut documents, first, &labels);
        // The first change is followed by another one before its labels are opened.
        let between = add(&mut documents, open(1.5), Some(first));
        let second = add(&mut documents, open(2.0), Some(between));
        wait_for_labels(&mut documents, second, &labels);
        // Results that are found for the stack that was opened again do not take their place; new ones do.
        let outputs = vec![Artifact::new(ArtifactKind::Labels, &predicted)];
        let found = JobOutput::Found {
            outputs: outputs.clone(),
            by_time: BTreeMap::new(),
            only_time: None,
            predicted: Predicted::default(),
        };
        assert_eq!(documents.kept_labels.get(&second), Some(&labels));
        documents.show_output(second, found, &mut Effects::default());
        assert!(documents.kept_labels.is_empty() && !documents.opener.is_busy());
        documents.show_output(second, JobOutput::Files(outputs), &mut Effects::default());
        wait_for_labels(&mut documents, second, &predicted);
        // Labels that are not on screen are not added again.
        let third = add(&mut documents, open(3.0), Some(second));
        assert!(
            documents.kept_labels.is_empty() && documents.get(third).unwrap().overlay_with_role(Role::Labels).is_none()
        );
    }
}

//! Results on disk of stacks with several time points. Labels that were saved for a single time point are shown at it;
//! labels of all time points are shown at the others.

use super::Documents;
use crate::document::{Document, Overlay, Role, file_name};
use crate::effect::Effects;
use crate::jobs::JobsAction;
use cytoscope_pipeline::{Artifact, ArtifactKind};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Labels and tables of a stack with several time points.
#[derive(Default)]
pub(super) struct SavedResults {
    /// Those of all time points.
    all: Vec<Artifact>,
    /// Those that were saved for a single time point.
    by_time: BTreeMap<usize, Vec<Artifact>>,
    /// Whether the labels on screen are among these and change with the time point. Previews, corrections and labels that
    /// the user has opened do not change.
    is_shown: bool,
}

impl SavedResults {
    /// The labels of a time point, and whether they belong to it alone.
    fn labels_at(&self, time: usize) -> Option<(&Path, bool)> {
        let own = self.by_time.get(&time).and_then(|found| first_path(found, ArtifactKind::Labels));
        own.map(|path| (path, true)).or_else(|| Some((first_path(&self.all, ArtifactKind::Labels)?, false)))
    }

    /// The table of the labels of a time point.
    fn table_at(&self, time: usize) -> Option<&Path> {
        first_path(self.by_time.get(&time).unwrap_or(&self.all), ArtifactKind::Table)
    }

    /// Whether a file contains labels that are among the results.
    fn has_labels(&self, path: &Path) -> bool {
        self.by_time.values().chain([&self.all]).any(|found| first_path(found, ArtifactKind::Labels) == Some(path))
    }

    /// Adds the table of labels that are among the results.
    fn add_table(&mut self, labels: &Path, table: &Path) {
        let all = std::iter::once(&mut self.all).chain(self.by_time.values_mut());
        for results in all.filter(|found| first_path(found, ArtifactKind::Labels) == Some(labels)) {
            results.retain(|a| a.kind != ArtifactKind::Table);
            results.push(Artifact::new(ArtifactKind::Table, table));
        }
    }

    /// Replaces the path of labels that were renamed.
    fn labels_moved(&mut self, from: &Path, to: &Path) {
        let all = self.by_time.values_mut().chain([&mut self.all]).flatten();
        all.filter(|a| a.kind == ArtifactKind::Labels && a.path == from).for_each(|a| a.path = to.to_owned());
    }
}

/// The path of the first result of a kind.
fn first_path(results: &[Artifact], kind: ArtifactKind) -> Option<&Path> {
    results.iter().find(|a| a.kind == kind).map(|a| a.path.as_path())
}

impl Documents {
    /// Shows the results of all time points, and the results that were saved for single time points. The maps belong to
    /// `only_time`, if the prediction was limited to it. Labels that the user had added before the document was opened again
    /// stay.
    pub(super) fn show_results(
        &mut self,
        id: u64,
        outputs: Vec<Artifact>,
        by_time: BTreeMap<usize, Vec<Artifact>>,
        only_time: Option<usize>,
    ) {
        let kept = self.kept_labels.remove(&id);
        let is_shown = kept.is_none_or(|kept| first_path(&outputs, ArtifactKind::Labels) == Some(kept.as_path()));
        if is_shown && !self.is_series(id) {
            return self.show_files(id, outputs, None);
        }
        let is_of_objects = |a: &Artifact| matches!(a.kind, ArtifactKind::Labels | ArtifactKind::Table);
        let (all, others): (Vec<_>, Vec<_>) = outputs.into_iter().partition(is_of_objects);
        // Labels of all time points whose file has those of a single one by now.
        let is_replaced = |labels: &Overlay| {
            labels.only_time.is_none() && by_time.values().flatten().any(|artifact| artifact.path == labels.path)
        };
        let shown = self.get(id).and_then(|document| document.overlay_with_role(Role::Labels));
        if is_shown && only_time.is_some() && shown.is_some_and(is_replaced) {
            self.remove_overlay(id, Role::Labels);
        }
        self.show_files(id, others, only_time);
        if self.is_series(id) {
            self.saved.insert(id, SavedResults { all, by_time, is_shown });
        }
        if is_shown {
            self.show_saved(id);
        }
    }

    /// Shows a saved segmentation: in a stack with several time points, it belongs to one of them.
    pub(super) fn show_kept(&mut self, id: u64, time: usize, outputs: Vec<Artifact>) {
        if !self.is_series(id) {
            return self.show_files(id, outputs, None);
        }
        let saved = self.saved.entry(id).or_default();
        saved.by_time.insert(time, outputs);
        saved.is_shown = true;
        self.show_saved(id);
    }

    /// Keeps the labels on screen when the time point changes.
    pub(super) fn keep_shown_labels(&mut self, id: u64) {
        if let Some(saved) = self.saved.get_mut(&id) {
            saved.is_shown = false;
        }
    }

    /// Opens the labels that the user had added to a document, if they were on screen or about to be, in the document that took
    /// its place.
    pub(super) fn keep_added_labels(&mut self, id: u64, old: u64, shown: Option<&Path>) {
        let pending = self.kept_labels.remove(&old);
        let stays = |added: &PathBuf| shown == Some(added.as_path()) || pending.as_ref() == Some(added);
        let Some(added) = self.added_labels.remove(&old).filter(stays) else { return };
        self.added_labels.insert(id, added.clone());
        self.kept_labels.insert(id, added.clone());
        self.open_overlay(id, Role::Labels, added, None);
    }

    /// Shows the saved labels of a document's current time point, if other saved labels or a preview were shown at time point
    /// `before`. A preview is shown again once its time point is.
    pub(super) fn follow_time(&mut self, id: u64, before: usize, effects: &mut Effects) {
        let Some(document) = self.get(id).filter(|document| document.time != before) else { return };
        let time = document.time;
        let shown = document.overlay_with_role(Role::Labels);
        let is_preview = shown.is_some_and(|labels| labels.is_preview && !labels.is_at(time));
        let had_preview = is_preview || self.opening_preview.get(&id).is_some_and(|(_, of)| *of != time);
        if let Some(saved) = self.saved.get_mut(&id) {
            saved.is_shown |= had_preview;
            if had_preview || (saved.is_shown && saved.labels_at(before) != saved.labels_at(time)) {
                self.show_saved(id);
            }
        }
        effects.act(JobsAction::ShowUnsaved(id));
    }

    /// Opens the saved labels of the time point that a document shows, and their table.
    fn show_saved(&mut self, id: u64) {
        let (Some(document), Some(saved)) = (self.get(id), self.saved.get(&id)) else { return };
        let time = document.time;
        let labels = saved.labels_at(time).map(|(path, is_own)| (path.to_owned(), is_own.then_some(time)));
        let table = saved.table_at(time).map(Path::to_owned);
        if let Some(table) = table {
            self.opener.table(id, table, labels.as_ref().map(|(path, _)| path.clone()));
        } else if let Some(document) = self.get_mut(id).filter(|_| labels.is_some()) {
            // The table of another time point.
            document.results = None;
        }
        if let Some((path, only_time)) = labels {
            self.open_overlay(id, Role::Labels, path, only_time);
        }
    }

    /// The file whose labels corrections of a document's current time point start from. These are the labels on screen,
    /// unless they are a preview or belong to another time point, for example because that one is being corrected.
    pub(crate) fn labels_to_correct(&self, id: u64) -> Option<&Path> {
        let document = self.get(id)?;
        let (shown, saved) = (document.overlay_with_role(Role::Labels)?, self.saved.get(&id));
        let is_at = shown.is_at(document.time);
        let is_saved = saved.is_some_and(|saved| saved.has_labels(&shown.path));
        let has_time = shown.times > 1 && document.time < shown.times;
        if (is_at && !shown.is_preview) || (has_time && !is_saved) {
            return Some(&shown.path);
        }
        let saved = saved.and_then(|saved| saved.labels_at(document.time));
        saved.map(|(path, _)| path).or_else(|| is_at.then_some(shown.path.as_path()))
    }

    /// Whether opened labels or a table belong to a time point that is no longer shown, or to one whose preview is shown by now.
    /// When the user moves quickly through time points, their files are opened in any order.
    pub(super) fn is_outdated(&self, id: u64, kind: ArtifactKind, path: &Path) -> bool {
        let Some(saved) = self.saved.get(&id) else { return false };
        if !saved.is_shown {
            let is_added = self.added_labels.get(&id).is_some_and(|added| added == path);
            return kind == ArtifactKind::Labels && !is_added && saved.has_labels(path) && self.has_preview(id);
        }
        let Some(time) = self.get(id).map(|document| document.time) else { return false };
        let wanted = match kind {
            ArtifactKind::Labels => saved.labels_at(time).map(|(path, _)| path),
            _ => saved.table_at(time),
        };
        let mut known = saved.by_time.values().chain([&saved.all]).filter_map(|found| first_path(found, kind));
        wanted != Some(path) && known.any(|known| known == path)
    }

    /// Whether a preview of the shown time point of a document is on screen or being opened.
    fn has_preview(&self, id: u64) -> bool {
        let is_shown = |document: &Document| {
            let labels = document.overlay_with_role(Role::Labels);
            labels.is_some_and(|labels| labels.is_preview && labels.is_at(document.time))
        };
        self.opening_preview.contains_key(&id) || self.get(id).is_some_and(is_shown)
    }

    /// Shows the table of labels that were measured, if these are the labels on screen.
    pub(super) fn show_measured(&mut self, id: u64, labels: &Path, table: PathBuf) {
        if let Some(saved) = self.saved.get_mut(&id) {
            saved.add_table(labels, &table);
        }
        let choices = self.label_choices.get_mut(&id).into_iter().flat_map(BTreeMap::values_mut).flatten();
        for set in choices.filter(|set| first_path(set, ArtifactKind::Labels) == Some(labels)) {
            set.retain(|a| a.kind != ArtifactKind::Table);
            set.push(Artifact::new(ArtifactKind::Table, &table));
        }
        if self.get(id).and_then(Document::labels_path) == Some(labels) {
            self.opener.table(id, table, Some(labels.to_owned()));
        }
    }

    /// The labels on disk of the shown time point of a document that are not on screen, each with its table if it was measured.
    pub(crate) fn other_labels(&self, id: u64) -> impl Iterator<Item = (&Path, &[Artifact])> {
        let document = self.get(id);
        let choices = document.and_then(|document| self.label_choices.get(&id)?.get(&document.time));
        let labels = choices.into_iter().flatten();
        let labels = labels.filter_map(|set| Some((first_path(set, ArtifactKind::Labels)?, set.as_slice())));
        let shown = document.and_then(Document::labels_path);
        labels.filter(move |(path, _)| Some(*path) != shown)
    }

    /// Adds labels on disk to those of a time point that can be chosen. `results` may have a table of them.
    pub(super) fn add_label_choice(&mut self, id: u64, time: usize, results: &[Artifact]) {
        // They may be saved after their document was closed.
        let labels = first_path(results, ArtifactKind::Labels).filter(|_| self.get(id).is_some());
        let Some(labels) = labels else { return };
        let choices = self.label_choices.entry(id).or_default().entry(time).or_default();
        match choices.iter_mut().find(|set| first_path(set, ArtifactKind::Labels) == Some(labels)) {
            Some(known) if known.len() > results.len() => {}
            Some(known) => *known = results.to_vec(),
            None => choices.push(results.to_vec()),
        }
    }

    /// Notes where corrected labels of a time point were saved. Those of a session that is still open are on screen.
    pub(super) fn labels_saved(&mut self, id: u64, path: PathBuf, time: usize, is_open: bool) {
        let labels = vec![Artifact::new(ArtifactKind::Labels, &path)];
        self.add_label_choice(id, time, &labels);
        if self.is_series(id) {
            self.saved.entry(id).or_default().by_time.insert(time, labels);
        }
        if let Some(document) = self.get_mut(id).filter(|_| is_open) {
            document.table_old = true;
            document.saved_labels = Some(path);
        }
    }

    /// Notes that labels of a document were renamed.
    pub(crate) fn labels_moved(&mut self, id: u64, from: &Path, to: &Path) {
        if let Some(saved) = self.saved.get_mut(&id) {
            saved.labels_moved(from, to);
        }
        let choices = self.label_choices.get_mut(&id).into_iter().flat_map(BTreeMap::values_mut).flatten().flatten();
        choices.filter(|a| a.path == from).for_each(|a| a.path = to.to_owned());
        let Some(document) = self.get_mut(id) else { return };
        for path in [&mut document.saved_labels, &mut document.table_labels].into_iter().flatten() {
            if path.as_path() == from {
                *path = to.to_owned();
            }
        }
        if let Some(shown) = document.overlay_with_role_mut(Role::Labels).filter(|shown| shown.path == from) {
            shown.path = to.to_owned();
            shown.name = file_name(to);
        }
    }

    /// Whether a document has several time points.
    fn is_series(&self, id: u64) -> bool {
        self.get(id).is_some_and(|document| document.extents.times > 1)
    }
}

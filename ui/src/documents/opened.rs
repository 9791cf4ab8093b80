//! Handles files that were listed, opened, chosen or saved.

use super::Documents;
use crate::action::Action;
use crate::correct::CorrectionsAction;
use crate::display::DisplayAction;
use crate::document::{Document, Overlay, Role, file_name};
use crate::effect::Effects;
use crate::jobs::JobsAction;
use crate::opener::{Expanded, MAX_FILES_OF_FOLDER, OpenerResult};
use crate::settings::Settings;
use cytoscope_pipeline::ArtifactKind;
use cytoscope_volume::Axes;

/// A file with at least this many channels and a single slice probably declares its slices or time points as channels.
const MANY_CHANNELS: usize = 8;

impl Documents {
    /// Opens files; one that is already open becomes the active document.
    pub(crate) fn listed(&mut self, files: Result<Expanded, String>, settings: &Settings) -> Effects {
        let mut effects = Effects::default();
        self.listing = self.listing.saturating_sub(1);
        let Expanded { files, truncated } = match files {
            Ok(expanded) => expanded,
            Err(reason) => {
                effects.error("Opening failed", reason);
                return effects;
            }
        };
        if truncated {
            let details = format!(
                "A folder has more than {MAX_FILES_OF_FOLDER} stacks; the others are not opened. The page for converting \
                 files lists more of them."
            );
            effects.info(format!("{} stacks are opened", files.len()), details);
        }
        for path in files {
            let absolute = std::path::absolute(&path).unwrap_or(path);
            if let Some(open) = self.all.iter().find(|d| d.path == absolute) {
                self.active = Some(open.id);
                effects.act(DisplayAction::ShowStacks);
                continue;
            }
            let axes = settings.axes_of(&absolute).and_then(|text| {
                let parsed = text.parse::<Axes>();
                parsed
                    .inspect_err(|error| tracing::warn!("the axes {text:?} of the settings are not used: {error}"))
                    .ok()
            });
            let series = settings.series_of(&absolute);
            self.opener.open(absolute, axes, series, None);
        }
        effects
    }

    /// Handles the results of the opener since the last call.
    pub(crate) fn poll(&mut self) -> Effects {
        let mut effects = Effects::default();
        for opened in self.opener.poll() {
            match opened {
                OpenerResult::Document { document, replaces } => {
                    self.handle_document(*document, replaces, &mut effects);
                }
                OpenerResult::Overlay { document, overlay } => self.handle_overlay(document, *overlay, &mut effects),
                OpenerResult::Table { document, results, .. }
                    if self.is_outdated(document, ArtifactKind::Table, &results.path) => {}
                OpenerResult::Table { document, results, old } => {
                    if let Some(document) = self.get_mut(document) {
                        document.results = Some(*results);
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

    /// Adds an opened document, or puts it in the place of the one that it replaces, or that shows the same series.
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
        self.active = Some(id);
        effects.act(DisplayAction::ShowStacks);
        // Series of one file may arrive at the same time: each has a document of its own.
        let replaced = replaces.and_then(|id| self.all.iter().position(|d| d.id == id));
        let is_same = |d: &Document| d.path == document.path && d.series == document.series;
        let at = replaced.or_else(|| self.all.iter().position(is_same));
        match at {
            Some(at) => {
                let old = std::mem::replace(&mut self.all[at], document);
                self.loader.forget(old.id);
                self.saved.remove(&old.id);
                if let Some(preview) = &old.preview {
                    self.loader.forget(preview.source_id);
                }
                effects.act(CorrectionsAction::Close { document: old.id, notification_title: "Corrections are kept" });
            }
            None => self.all.push(document),
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
        if let Some(old) = document.of_role(overlay.role) {
            self.loader.forget(old.source_id);
        }
        document.put(overlay);
        let selected = document.selected;
        document.select(selected);
    }
}

//! Tracks whether the object table matches the shown labels, and measures them again.

use crate::app::Workbench;
use crate::command::Command;
use crate::correct::tools::EditAction;
use crate::document::{Document, Role, file_name};
use crate::flow::{PREVIEW_NAME, RESULTS_FOLDER};
use crate::panels::{PanelTask, weak};
use crate::theme;
use cytoscope_pipeline::{ArtifactKind, MeasureJob};
use cytoscope_storage::Overwrite;
use eframe::egui::{self, RichText, Ui};
use egui_phosphor::regular as icon;
use std::path::{Path, PathBuf};

/// State of the object table relative to the shown labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableState {
    /// There are labels but no table.
    Missing,
    /// The table matches the labels, or there are no labels.
    Current,
    /// The labels have changed since they were measured.
    Old,
    /// The labels are being measured.
    Measuring,
}

/// File name of the table of a label image.
pub(crate) fn table_name(labels: &Path) -> String {
    let name = file_name(labels);
    let stem = match ArtifactKind::of_name(&name) {
        Some((ArtifactKind::Labels, stem)) => stem,
        _ => name.rsplit_once('.').map_or(name.as_str(), |(stem, _)| stem),
    };
    ArtifactKind::Table.file_name(stem)
}

/// Whether the labels of a table were written after the table.
pub(crate) fn is_old(table: &Path) -> bool {
    let name = file_name(table);
    let Some((ArtifactKind::Table, stem)) = ArtifactKind::of_name(&name) else { return false };
    let written = |path: &Path| std::fs::metadata(path).and_then(|m| m.modified()).ok();
    let labels = ArtifactKind::Labels.file_names(stem).filter_map(|name| written(&table.with_file_name(name))).max();
    labels.zip(written(table)).is_some_and(|(labels, table)| table < labels)
}

impl Workbench {
    /// State of the object table of a document.
    pub fn table_state(&self, document: &Document) -> TableState {
        if self.work.measuring(document.id).is_some() {
            return TableState::Measuring;
        }
        match (document.labels_path(), &document.results) {
            (None, _) => TableState::Current,
            (Some(_), None) => TableState::Missing,
            (Some(labels), Some(results)) => {
                let modified = self.corrections.of(document.id).is_some_and(|c| c.is_modified());
                let is_other_table = file_name(&results.path) != table_name(labels);
                if modified || is_other_table || document.table_old { TableState::Old } else { TableState::Current }
            }
        }
    }

    /// Whether the shown labels can be measured now.
    pub(crate) fn can_measure(&self) -> bool {
        let Some(document) = self.document() else { return false };
        let labels = document.of_role(Role::Labels).is_some_and(|o| o.name != PREVIEW_NAME);
        let saving = self.corrections.of(document.id).is_some_and(|c| c.saving);
        labels && !saving && self.options.program.is_some() && self.work.measuring(document.id).is_none()
    }

    /// Measures the shown labels. Unsaved corrections are saved instead, which also measures them.
    pub(crate) fn measure_labels(&mut self) {
        let Some(id) = self.active else { return };
        if self.correction().is_some_and(|c| c.is_modified()) {
            self.run_action(EditAction::Save);
            return;
        }
        let labels = self.document().and_then(Document::labels_path).map(Path::to_owned);
        match labels.filter(|p| p.is_file()) {
            Some(labels) => self.measure(id, labels),
            // Corrections started from empty labels have no file yet.
            None => self.run_action(EditAction::Save),
        }
    }

    /// Measures corrected labels after they were saved.
    pub(crate) fn labels_saved(&mut self, id: u64, path: PathBuf) {
        let Some(document) = self.find(id) else { return };
        document.table_old = true;
        document.saved_labels = Some(path.clone());
        // The engine process ends with the window.
        if self.options.program.is_some() && !self.is_quitting() {
            self.measure(id, path);
        }
    }

    fn measure(&mut self, id: u64, labels: PathBuf) {
        let Some(document) = self.documents.iter().find(|d| d.id == id) else { return };
        // The table goes beside labels in a results folder; nothing is written beside labels from elsewhere.
        let beside =
            labels.parent().filter(|p| p.ends_with(RESULTS_FOLDER) || self.panels.predict.out.as_deref() == Some(p));
        let folder = beside.map_or_else(|| self.results_folder(document), Path::to_owned);
        // Unknown voxel sizes are taken from the model, as in prediction.
        let size = document.image.meta().voxel_size_um;
        let of_model = self.model().and_then(|m| m.voxel_um).filter(|_| !document.voxel_known);
        let stated = [size.z, size.y, size.x].map(|v| v.filter(|v| v.is_finite() && *v > 0.0));
        let voxel_um = of_model.map(|m| [0, 1, 2].map(|a| stated[a].unwrap_or(m[a])));
        let of_corrections = self.corrections.of(id).map(|c| c.time);
        let table = folder.join(table_name(&labels));
        // A table written by this window and unchanged since is replaced without asking.
        let is_own = self.tables.get(&table).is_some_and(|record| record.matches(&table));
        let job = MeasureJob {
            table,
            labels,
            intensities: document.path.clone(),
            axes: document.axes.clone(),
            time: of_corrections.unwrap_or(document.time),
            voxel_um,
            overwrite: Overwrite::from_force(is_own),
        };
        if let Err(error) = std::fs::create_dir_all(&folder) {
            self.notifications.error("Objects cannot be measured", format!("{}: {error}", folder.display()));
            return;
        }
        let title = format!("{} · measuring", document.name);
        self.work.measure(id, title, job);
    }

    /// Shows a hint and a button if the table does not match the shown labels.
    pub(crate) fn table_hint(&mut self, ui: &mut Ui) {
        let Some(state) = self.document().map(|d| self.table_state(d)) else { return };
        let text = match state {
            TableState::Current => return,
            TableState::Measuring => {
                ui.horizontal(|ui| {
                    ui.spinner();
                    ui.label("Measuring objects…");
                });
                return;
            }
            TableState::Missing if self.panels.task != PanelTask::Objects => return,
            TableState::Missing => "These labels are not measured yet.",
            TableState::Old => "Labels have changed since the objects were measured.",
        };
        ui.add_space(theme::GAP);
        let warning = format!("{}  {text}", icon::WARNING);
        ui.add(egui::Label::new(RichText::new(warning).size(12.0)).wrap());
        let enabled = self.is_enabled(Command::Measure);
        let button = ui.add_enabled(enabled, egui::Button::new(format!("{}  Measure", icon::RULER)));
        button.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, enabled, Command::Measure.title()));
        if button.on_hover_text("Saves corrected labels first").clicked() {
            self.commands.push(Command::Measure);
        }
        if state == TableState::Old {
            weak(ui, "Corrected labels are measured when they are saved.");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn tables_match_labels_by_name_and_are_old_if_labels_are_newer() {
        for (labels, table) in [
            ("a_labels.tif", "a_objects.csv"),
            ("a_corrected_labels.tif", "a_corrected_objects.csv"),
            ("a_labels.ome.tif", "a_objects.csv"),
            ("drawn.tif", "drawn_objects.csv"),
            ("drawn", "drawn_objects.csv"),
        ] {
            assert_eq!(table_name(Path::new(labels)), table);
        }
        let folder = tempfile::tempdir().unwrap();
        let (labels, table) = (folder.path().join("a_labels.tif"), folder.path().join("a_objects.csv"));
        let put = |path: &Path, secs: u64| {
            let file = std::fs::File::create(path).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(secs)).unwrap();
        };
        put(&table, 100);
        assert!(!is_old(&table), "no labels beside it");
        put(&labels, 90);
        assert!(!is_old(&table));
        put(&labels, 110);
        assert!(is_old(&table));
    }
}

//! Whether the object table matches the shown labels, and the hint to measure them again.

use crate::action::Actions;
use crate::command::Command;
use crate::display::PanelTask;
use crate::document::{Document, file_name};
use crate::panels::weak;
use crate::results::Results;
use crate::state::State;
use crate::theme;
use cytoscope_formats::stack_stem;
use cytoscope_pipeline::predict::containing_maps;
use cytoscope_pipeline::{Artifact, ArtifactKind};
use eframe::egui::{self, RichText, Ui};
use egui_phosphor::regular as icon;
use std::path::Path;

/// State of the object table relative to the shown labels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TableState {
    /// There are labels but no table.
    Missing,
    /// The table matches the labels, or there are no labels.
    Current,
    /// The labels have changed since they were measured.
    Old,
    /// The labels were measured with another voxel size.
    OtherVoxelSize,
    /// The labels are being measured.
    Measuring,
}

/// File name of the table of a label image.
pub(crate) fn table_name(labels: &Path) -> String {
    let result = containing_maps(labels);
    let name = file_name(result);
    let stem = match ArtifactKind::from_name(&name) {
        Some((ArtifactKind::Labels, stem)) => stem,
        Some((kind, stem)) if kind.is_maps() && result != labels => stem,
        _ => return ArtifactKind::Table.file_name(&stack_stem(result)),
    };
    ArtifactKind::Table.file_name(stem)
}

/// Whether a table lists the objects of labels other than the shown ones: those of another name, or the labels of the same name
/// in another folder. `measured` is the file of its labels, if it is known.
pub(crate) fn is_of_other_labels(table: &Path, measured: Option<&Path>, shown: &Path) -> bool {
    file_name(table) != table_name(shown) || measured.is_some_and(|measured| measured != shown)
}

/// Whether the labels of a table were written after the table.
pub(crate) fn is_old(table: &Path) -> bool {
    let name = file_name(table);
    let Some((ArtifactKind::Table, stem)) = ArtifactKind::from_name(&name) else { return false };
    let written = |path: &Path| std::fs::metadata(path).and_then(|m| m.modified()).ok();
    let existing = table.parent().map(|folder| Artifact::existing(folder, stem)).unwrap_or_default();
    let labels = existing.iter().filter(|a| a.kind == ArtifactKind::Labels).filter_map(|a| written(&a.path)).max();
    labels.zip(written(table)).is_some_and(|(labels, table)| table < labels)
}

/// Whether the objects of a table were measured with another voxel size than a document has.
pub(crate) fn has_other_voxel_size(results: &Results, document: &Document) -> bool {
    let um3: f64 = document.voxel_um.iter().product();
    let measured = results.voxel_um3().filter(|_| document.voxel_known);
    // Tables have six digits.
    measured.is_some_and(|measured| (measured / um3 - 1.0).abs() > 1e-3)
}

/// Shows a hint and a button if the table does not match the shown labels.
pub(crate) fn table_hint(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let Some(table) = state.document().map(|d| state.table_state(d)) else { return };
    let text = match table {
        TableState::Current => return,
        TableState::Measuring => {
            ui.horizontal(|ui| {
                ui.spinner();
                ui.label("Measuring objects…");
            });
            return;
        }
        TableState::Missing if state.display.task() != PanelTask::Objects => return,
        TableState::Missing => "These labels are not measured yet.",
        TableState::Old => "Labels have changed since the objects were measured.",
        TableState::OtherVoxelSize => "The objects were measured with another voxel size.",
    };
    ui.add_space(theme::GAP);
    let warning = format!("{}  {text}", icon::WARNING);
    ui.add(egui::Label::new(RichText::new(warning).size(12.0)).wrap());
    let reason = state.reason_against_measuring();
    let enabled = reason.is_none();
    let button = ui.add_enabled(enabled, egui::Button::new(format!("{}  Measure", icon::RULER)));
    button.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, enabled, Command::Measure.title()));
    let button = button.on_hover_text("Corrected labels are saved first");
    if button.on_disabled_hover_text(reason.unwrap_or_default()).clicked() {
        actions.command(Command::Measure);
    }
    if table == TableState::Old {
        weak(
            ui,
            match state.document().is_some_and(Document::has_label_preview) {
                true => "Objects are measured when they are saved (Save objects in Predict).",
                false => "Corrected labels are measured when they are saved.",
            },
        );
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_volume::{Array, VoxelSize};
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_table_that_was_measured_with_another_voxel_size_is_recognized() {
        let folder = tempfile::tempdir().unwrap();
        let (stack, table) = (folder.path().join("a.tif"), folder.path().join("a_objects.csv"));
        let array = Array::new("ZYX".parse().unwrap(), vec![2, 3, 4], vec![1u16; 24]).unwrap();
        write_array(&stack, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        // Voxels of 0.5 µm³.
        std::fs::write(&table, "label,voxels,volume_um3\n7,4,2\n").unwrap();
        let results = Results::read(&table).unwrap();
        let is_other = |size: VoxelSize| {
            has_other_voxel_size(&results, &Document::open(&stack, None, 0).unwrap().with_voxel_size(size))
        };
        assert!(!is_other(VoxelSize::new_um(2.0, 0.5, 0.5)) && is_other(VoxelSize::new_um(1.0, 0.5, 0.5)));
        assert!(!is_other(VoxelSize::default()), "the voxel size is unknown");
    }

    #[test]
    fn a_table_of_labels_of_the_same_name_in_another_folder_is_of_other_labels() {
        let is_other = |measured: Option<&str>, shown: &str| {
            is_of_other_labels(Path::new("o/a_objects.csv"), measured.map(Path::new), Path::new(shown))
        };
        assert!(!is_other(Some("o/a_labels.tif"), "o/a_labels.tif"));
        assert!(is_other(Some("o/a_labels.tif"), "elsewhere/a_labels.tif"));
        assert!(is_other(Some("o/a_labels.tif"), "o/a_labels.ome.tif"));
        // The table of labels from elsewhere is in the folder of the results.
        assert!(!is_other(Some("elsewhere/a_labels.tif"), "elsewhere/a_labels.tif"));
        assert!(!is_other(None, "elsewhere/a_labels.tif") && is_other(None, "o/a_corrected_labels.tif"));
        // Corrected labels that are shown with the table of the prediction.
        assert!(is_other(Some("o/a_corrected_labels.tif"), "o/a_corrected_labels.tif"));
    }

    #[test]
    fn tables_match_labels_by_name_and_are_old_if_labels_are_newer() {
        for (labels, table) in [
            ("a_labels.tif", "a_objects.csv"),
            ("a_corrected_labels.tif", "a_corrected_objects.csv"),
            ("a_labels.ome.tif", "a_objects.csv"),
            ("a_labels.zarr", "a_objects.csv"),
            ("o/a_probability.zarr/labels/objects", "a_objects.csv"),
            ("drawn.tif", "drawn_objects.csv"),
            ("drawn.ome.tif", "drawn_objects.csv"),
            ("drawn.ome.zarr", "drawn_objects.csv"),
            ("drawn.nii.gz", "drawn_objects.csv"),
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

//! The Objects panel: table and plots of measurements, linked to the image.

use super::axis_marks::{count_marks, x_marks, y_marks};
use super::{labeled_choice, named_button, weak, x_axis, y_axis};
use crate::action::Actions;
use crate::command::Command;
use crate::correct::CorrectionsAction;
use crate::display::DisplayAction;
use crate::document::{Document, DocumentChange, Role};
use crate::documents::DocumentsAction;
use crate::measure::{TableState, has_other_voxel_size, table_hint};
use crate::number_text::{column_decimals, counted, measurement};
use crate::panels::predict::unknown_voxel_size;
use crate::results::{ColumnSummary, Results};
use crate::state::State;
use crate::theme;
use cytoscope_objects::{ObjectColumn, TableAxis};
use eframe::egui::{self, RichText, Ui};
use egui_extras::{Column, TableBuilder};
use egui_phosphor::regular as icon;
use egui_plot::{Bar, BarChart, Plot, PlotPoints, Points};

/// Number of histogram bars.
const BARS: usize = 30;

/// Width in points of the columns of labels and time points.
const SHORT_WIDTH: f32 = 56.0;

/// Width in points of other columns: two fit beside the labels without being cut off.
const MEASUREMENT_WIDTH: f32 = 104.0;

/// Columns shown first, followed by all others.
const FIRST: [ObjectColumn; 5] = [
    ObjectColumn::Time,
    ObjectColumn::Label,
    ObjectColumn::VolumeUm3,
    ObjectColumn::EquivalentDiameterUm,
    ObjectColumn::Sphericity,
];

/// Views of the measured objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum ObjectsView {
    /// Table of all measurements.
    #[default]
    Table,
    /// Histogram of one measurement.
    Histogram,
    /// One measurement against another.
    Scatter,
}

/// State that the panel keeps between frames.
#[derive(Debug, Default)]
pub(crate) struct ObjectsPanel {
    view: ObjectsView,
    /// Measurement on the X axis of plots; `None` uses the default.
    x: Option<String>,
    /// Measurement on the Y axis of plots; `None` uses the default.
    y: Option<String>,
}

/// Title of a column for display. The names of channels, which may look like units, are in columns of intensities only.
fn title(column: &str) -> String {
    match ObjectColumn::from_name(column) {
        Some(ObjectColumn::BoxStart(axis)) => format!("First {}", axis.letter()),
        Some(ObjectColumn::BoxEnd(axis)) => format!("Last {}", axis.letter()),
        Some(_) => super::capitalized(&column.replace("_um3", " (µm³)").replace("_um", " (µm)").replace('_', " ")),
        None => super::capitalized(&column.replace('_', " ")),
    }
}

/// Returns the title of a column as its heading, where the unit would be cut off after a long title. The tooltip has the whole
/// title.
fn short_title(column: &str) -> String {
    match ObjectColumn::from_name(column) {
        Some(ObjectColumn::EquivalentDiameterUm) => "Diameter (µm)".to_owned(),
        _ => title(column),
    }
}

/// Returns the tooltip of a column.
fn column_hint(column: &str) -> String {
    let Some(known) = ObjectColumn::from_name(column) else { return intensity_hint(column) };
    let meaning = match known {
        ObjectColumn::Label => "number of the object in the label image",
        ObjectColumn::Voxels => "number of voxels",
        ObjectColumn::VolumeUm3 => "number of voxels times the volume of a voxel",
        ObjectColumn::CentroidUm(_) => "mean position of the voxels, from the center of the first voxel of the stack",
        ObjectColumn::EquivalentDiameterUm => {
            "of the sphere with the same volume; in a single slice, of the circle with the same area"
        }
        ObjectColumn::FirstAxisUm | ObjectColumn::SecondAxisUm | ObjectColumn::ThirdAxisUm => {
            "length of an axis of the ellipsoid that is as large and as elongated as the object. Axis 1 is the longest; \
             the axes have no relation to X, Y and Z."
        }
        ObjectColumn::Sphericity => {
            "1 for spheres, less for elongated and rough objects. Objects of a few voxels have 1, too, because their \
             surface cannot be estimated."
        }
        ObjectColumn::Time | ObjectColumn::BoxStart(_) | ObjectColumn::BoxEnd(_) => {
            return format!("{}, counted from 1; saved tables count from 0", title(column));
        }
    };
    format!("{}: {meaning}", title(column))
}

/// Returns the tooltip of a column of intensities, whose name contains that of the channel, or of another program.
fn intensity_hint(column: &str) -> String {
    let meaning = |statistic: &str| match statistic {
        "mean" => Some("Mean intensity"),
        "max" => Some("Highest intensity"),
        "sum" => Some("Sum of the intensities"),
        _ => None,
    };
    let parts = column.split_once('_').and_then(|(statistic, channel)| Some((meaning(statistic)?, channel)));
    parts
        .map_or_else(|| title(column), |(meaning, channel)| format!("{meaning} of the object in the channel {channel}"))
}

/// What the window adds to the values of a column: positions count from 0 in saved tables and from 1 in the window. This does
/// not apply to the ends of bounding boxes: the voxel after the last one, counted from 0, is the last one, counted from 1.
fn added(results: &Results, column: usize) -> f64 {
    match results.columns.get(column).and_then(|name| ObjectColumn::from_name(name)) {
        Some(ObjectColumn::Time | ObjectColumn::BoxStart(_)) => 1.0,
        _ => 0.0,
    }
}

/// The values of a column as the window shows them, in the order of the rows.
fn shown_values(results: &Results, column: usize) -> Vec<f64> {
    let added = added(results, column);
    (0..results.rows.len()).map(|row| results.value(row, column) + added).collect()
}

/// The text of a table cell. Labels are names, not counts: they have no commas.
fn cell(results: &Results, row: usize, column: usize) -> String {
    match column == results.label_column {
        true => results.label(row).to_string(),
        false => {
            let decimals = results.decimals.get(column).copied().unwrap_or(0);
            measurement(results.value(row, column) + added(results, column), decimals)
        }
    }
}

/// Column indices in display order.
fn shown_columns(results: &Results) -> Vec<usize> {
    let first: Vec<usize> = FIRST.iter().filter_map(|column| results.column_index(*column)).collect();
    let others = (0..results.columns.len()).filter(|column| !first.contains(column));
    first.iter().copied().chain(others).collect()
}

/// Draws the panel.
pub(super) fn objects_panel(ui: &mut Ui, state: State<'_>, panel: &mut ObjectsPanel, actions: &mut Actions) {
    let can_save = state.is_enabled(Command::SaveTable);
    table_hint(ui, state, actions);
    let Some(document) = state.document() else { return };
    if document.overlay_with_role(Role::Labels).is_some() {
        meshes(ui, state, actions);
    }
    let Some(results) = &document.results else {
        // Labels that are not measured have their own hint.
        if state.table_state(document) == TableState::Current {
            weak(ui, "No objects yet: predict the stack, or add labels.");
        }
        return;
    };
    if !document.voxel_known {
        unknown_voxel_size(ui, document, "Voxel size unknown: lengths and volumes may not be in µm.", actions);
    }
    ui.horizontal(|ui| {
        ui.label(RichText::new(counted(results.rows.len() as u64, "object")).strong());
        ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
            let button = named_button(ui, can_save, icon::DOWNLOAD_SIMPLE, "Save table…");
            let button = button.on_hover_text("As CSV or Parquet, depending on the file extension");
            let reason = state.reason_against_command(Command::SaveTable).unwrap_or_default();
            if button.on_disabled_hover_text(reason).clicked() {
                actions.command(Command::SaveTable);
            }
        });
    });
    ui.horizontal(|ui| {
        for (view, name) in
            [(ObjectsView::Table, "Table"), (ObjectsView::Histogram, "Histogram"), (ObjectsView::Scatter, "Scatter")]
        {
            if ui.selectable_label(panel.view == view, name).clicked() {
                panel.view = view;
            }
        }
    });
    let selected = document.selected.and_then(|label| results.row_index(label, document.time));
    // In low windows, plots are scrolled.
    let scroll = egui::ScrollArea::vertical().id_salt("plot of objects").auto_shrink([false; 2]);
    match panel.view {
        ObjectsView::Table => table(ui, document, selected, state.display.reveals_object(), actions),
        ObjectsView::Histogram => _ = scroll.show(ui, |ui| histogram(ui, results, selected, panel)),
        ObjectsView::Scatter => _ = scroll.show(ui, |ui| scatter(ui, document, selected, panel, actions)),
    }
}

/// Draws the button that saves the surfaces of the objects, and whether they are smoothed.
fn meshes(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    ui.horizontal_wrapped(|ui| {
        let reason = state.reason_against_command(Command::SaveMesh);
        let button = named_button(ui, reason.is_none(), icon::POLYGON, "Save meshes…");
        let button = button.on_hover_text("The surface of the selected object, or of all, as STL or glTF in µm");
        if button.on_disabled_hover_text(reason.unwrap_or_default()).clicked() {
            actions.command(Command::SaveMesh);
        }
        let mut smooth = state.settings().smooth_meshes;
        let hint = "If off, surfaces follow the faces of the voxels";
        if theme::checkbox(ui, &mut smooth, "Smooth meshes").on_hover_text(hint).changed() {
            actions.send(DisplayAction::SmoothMeshes(smooth));
        }
    });
}

/// Shows the time point of a row's object, moves the crosshair to the object and selects it.
fn show_object(document: &Document, results: &Results, row: usize, actions: &mut Actions) {
    let mut cursor = document.cursor;
    for (axis, at) in cursor.iter_mut().enumerate() {
        if let Some(voxel) = position(document, results, row, axis) {
            *at = (voxel.round().max(0.0) as usize).min(document.extents.zyx[axis].saturating_sub(1));
        }
    }
    let time = results.time(row).filter(|time| *time < document.extents.times && *time != document.time);
    let select = [DocumentChange::Cursor(cursor), DocumentChange::Select(Some(results.label(row)))];
    for change in time.map(DocumentChange::Time).into_iter().chain(select) {
        actions.send(DocumentsAction::Change { document: document.id, change });
    }
    // Corrections change the object that is highlighted.
    actions.send(CorrectionsAction::Label(results.label(row)));
}

/// The position of a row's object along an axis in voxels: its centroid, or the middle of its bounding box if the voxel size
/// that it was measured with is not the document's, for example because the file states none.
fn position(document: &Document, results: &Results, row: usize, axis: usize) -> Option<f64> {
    let value =
        |column: ObjectColumn| results.column_index(column).map(|c| results.value(row, c)).filter(|v| v.is_finite());
    let along = *TableAxis::ALL.get(axis)?;
    let is_same = document.voxel_known && !has_other_voxel_size(results, document);
    let middle = value(ObjectColumn::BoxStart(along)).zip(value(ObjectColumn::BoxEnd(along)));
    let middle = middle.filter(|_| !is_same).map(|(from, to)| (from + to - 1.0) / 2.0);
    middle.or_else(|| Some(value(ObjectColumn::CentroidUm(along))? / document.voxel_um[axis]))
}

/// Draws the table; `selected` is the row of the selected object.
fn table(ui: &mut Ui, document: &Document, selected: Option<usize>, reveal: bool, actions: &mut Actions) {
    let Some(results) = &document.results else { return };
    let columns = shown_columns(results);
    let time_column = results.column_index(ObjectColumn::Time);
    egui::ScrollArea::horizontal().auto_shrink([false; 2]).show(ui, |ui| {
        // The fill of a checkbox under the pointer is too close to the color of text to be behind it.
        let hovered = &mut ui.visuals_mut().widgets.hovered;
        hovered.bg_fill = hovered.weak_bg_fill;
        let mut table = TableBuilder::new(ui)
            .striped(true)
            // Otherwise the table would be drawn over the panel below it in low windows.
            .min_scrolled_height(0.0)
            .sense(egui::Sense::click())
            .cell_layout(egui::Layout::right_to_left(egui::Align::Center));
        for column in &columns {
            let is_short = *column == results.label_column || Some(*column) == time_column;
            let width = if is_short { SHORT_WIDTH } else { MEASUREMENT_WIDTH };
            table = table.column(Column::initial(width).at_least(48.0).clip(true).resizable(true));
        }
        if reveal {
            if let Some(at) = selected.and_then(|row| results.order.iter().position(|r| *r == row)) {
                table = table.scroll_to_row(at, Some(egui::Align::Center));
            }
            actions.send(DisplayAction::RevealObject(false));
        }
        table
            .header(theme::BUTTON_HEIGHT, |mut header| {
                for column in &columns {
                    header.col(|ui| {
                        let arrow = match results.sorted {
                            Some((c, true)) if c == *column => icon::CARET_DOWN,
                            Some((c, false)) if c == *column => icon::CARET_UP,
                            _ => "",
                        };
                        let name = title(&results.columns[*column]);
                        let shown = short_title(&results.columns[*column]);
                        let text = RichText::new(format!("{arrow} {shown}")).strong().size(12.0);
                        let response = ui.add(egui::Button::new(text).frame(false).truncate());
                        response.widget_info(|| {
                            egui::WidgetInfo::labeled(egui::WidgetType::Button, true, format!("Sort by {name}"))
                        });
                        if response.on_hover_text(column_hint(&results.columns[*column])).clicked() {
                            let change = DocumentChange::SortTable(*column);
                            actions.send(DocumentsAction::Change { document: document.id, change });
                        }
                    });
                }
            })
            .body(|body| {
                body.rows(21.0, results.order.len(), |mut line| {
                    let row = results.order[line.index()];
                    line.set_selected(selected == Some(row));
                    for column in &columns {
                        line.col(|ui| {
                            ui.label(RichText::new(cell(results, row, *column)).size(12.5));
                        });
                    }
                    if line.response().clicked() {
                        show_object(document, results, row, actions);
                    }
                });
            });
    });
}

/// The name of the measurement of an axis: the chosen one, or else `usual`, or else the first one that the table has.
fn plotted(results: &Results, chosen: Option<&String>, usual: ObjectColumn) -> String {
    let has = |name: &str| results.column(name).is_some();
    let is_measured =
        |name: &str| !matches!(ObjectColumn::from_name(name), Some(ObjectColumn::Label | ObjectColumn::Time));
    if let Some(chosen) = chosen.filter(|chosen| has(chosen)) {
        return chosen.clone();
    }
    let first = results.columns.iter().find(|name| is_measured(name)).filter(|_| !has(usual.name()));
    first.cloned().unwrap_or_else(|| usual.name().to_owned())
}

/// Choice of the measurement of an axis, by default `usual`. Returns its column; `None` if the table has no measurement.
fn measurement_choice(
    ui: &mut Ui,
    results: &Results,
    name: &str,
    chosen: &mut Option<String>,
    usual: ObjectColumn,
) -> Option<usize> {
    let current = plotted(results, chosen.as_ref(), usual);
    labeled_choice(ui, name, name, &title(&current), |ui| {
        for column in &results.columns {
            if ui.selectable_label(*column == current, title(column)).clicked() {
                *chosen = Some(column.clone());
            }
        }
    });
    results.column(&current)
}

/// Start and width of the range of a histogram of values from `low` to `high`. Values that are the same are in its middle.
fn histogram_range(low: f64, high: f64) -> (f64, f64) {
    let span = high - low;
    if span > low.abs().max(high.abs()) * 1e-9 {
        return (low, span);
    }
    let around = if low == 0.0 { 1.0 } else { low.abs() * 0.2 };
    (low - around / 2.0, around)
}

fn histogram(ui: &mut Ui, results: &Results, selected: Option<usize>, panel: &mut ObjectsPanel) {
    let Some(column) = measurement_choice(ui, results, "Measurement", &mut panel.x, ObjectColumn::VolumeUm3) else {
        return;
    };
    let Some(summary) = results.summaries.get(column).copied().flatten() else {
        weak(ui, "No object has a value to plot.");
        return;
    };
    let added = added(results, column);
    let (from, span) = histogram_range(summary.low + added, summary.high + added);
    let width = span / BARS as f64;
    let bar_of = |row: usize| {
        let value = Some(results.value(row, column) + added).filter(|v| v.is_finite())?;
        Some((((value - from) / width) as usize).min(BARS - 1))
    };
    let mut counts = [0u32; BARS];
    (0..results.rows.len()).filter_map(bar_of).for_each(|bar| counts[bar] += 1);
    let selected_bar = selected.and_then(bar_of);
    let bars = counts.iter().enumerate().map(|(i, n)| {
        let at = from + (i as f64 + 0.5) * width;
        let color = if selected_bar == Some(i) { theme::BEST } else { theme::ACCENT };
        Bar::new(at, f64::from(*n)).width(width * 0.94).fill(color)
    });
    let bars: Vec<Bar> = bars.collect();
    Plot::new("histogram")
        .height(260.0)
        .allow_scroll(false)
        .custom_x_axes(x_axis(title(&results.columns[column])))
        .custom_y_axes(y_axis("Objects"))
        .x_grid_spacer(x_marks)
        .y_grid_spacer(count_marks)
        .show(ui, |plot| plot.bar_chart(BarChart::new("objects", bars)));
    weak(ui, summary_text(results, column, summary));
}

/// Mean, median and range of a column in one line. Numbers that are compared have the same number of decimals.
fn summary_text(results: &Results, column: usize, summary: ColumnSummary) -> String {
    let added = added(results, column);
    let ColumnSummary { mean, median, low, high } = summary;
    let centers = [mean, median].map(|value| value + added);
    let decimals = results.decimals.get(column).copied().unwrap_or(0);
    let [mean, median] = centers.map(|value| measurement(value, column_decimals(centers.into_iter())));
    let [low, high] = [low, high].map(|value| measurement(value + added, decimals));
    format!("Mean {mean}, median {median}, {low} to {high}")
}

fn scatter(ui: &mut Ui, document: &Document, selected: Option<usize>, panel: &mut ObjectsPanel, actions: &mut Actions) {
    let Some(results) = &document.results else { return };
    let x = measurement_choice(ui, results, "X axis", &mut panel.x, ObjectColumn::VolumeUm3);
    let y = measurement_choice(ui, results, "Y axis", &mut panel.y, ObjectColumn::Sphericity);
    let (Some(x), Some(y)) = (x, y) else { return };
    let values = shown_values(results, x).into_iter().zip(shown_values(results, y));
    let points: Vec<[f64; 2]> = values.map(|(x, y)| [x, y]).collect();
    let response = Plot::new("scatter")
        .height(300.0)
        .allow_scroll(false)
        .custom_x_axes(x_axis(title(&results.columns[x])))
        .custom_y_axes(y_axis(title(&results.columns[y])))
        .x_grid_spacer(x_marks)
        .y_grid_spacer(y_marks)
        .show(ui, |plot| {
            let finite: Vec<[f64; 2]> = points.iter().copied().filter(|p| p.iter().all(|v| v.is_finite())).collect();
            plot.points(Points::new("objects", PlotPoints::from(finite)).radius(2.5).color(theme::ACCENT));
            if let Some(at) = selected.and_then(|row| points.get(row)) {
                plot.points(Points::new("selected", PlotPoints::from(vec![*at])).radius(6.0).color(theme::BEST));
            }
        });
    weak(ui, "Click a point to show its object.");
    if response.response.clicked()
        && let Some(at) = response.response.interact_pointer_pos()
    {
        let nearest = (0..points.len())
            .filter(|r| points[*r].iter().all(|v| v.is_finite()))
            .map(|r| {
                let on_screen = response.transform.position_from_point(&egui_plot::PlotPoint::from(points[r]));
                (r, on_screen.distance(at))
            })
            .min_by(|a, b| a.1.total_cmp(&b.1));
        if let Some((row, distance)) = nearest
            && distance < 20.0
        {
            show_object(document, results, row, actions);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::action::Action;
    use cytoscope_formats::{Container, WriteSpec, write_array};
    use cytoscope_volume::{Array, VoxelSize};
    use egui_kittest::Harness;
    use std::path::Path;

    #[test]
    fn positions_count_from_one_and_large_numbers_have_commas() {
        let rows = "2,1234,33500,4,7,12345.67\n2,1235,7,4,5,250\n";
        let text = format!("time,label,voxels,bbox_z0,bbox_z1,volume_um3\n{rows}");
        let results = Results::parse(Path::new("x.csv"), &text).unwrap();
        let cells: Vec<String> = (0..6).map(|column| cell(&results, 0, column)).collect();
        // Slices 4 to 6 counted from 0 are slices 5 to 7.
        assert_eq!(cells, ["3", "1234", "33,500", "5", "7", "12,345.7"]);
        assert_eq!(cell(&results, 1, 5), "250.0");
        let titles: Vec<String> = results.columns.iter().map(|column| title(column)).collect();
        assert_eq!(titles, ["Time", "Label", "Voxels", "First z", "Last z", "Volume (µm³)"]);
        assert_eq!(title("mean_my_umbrella"), "Mean my umbrella", "the name of a channel has no unit");
    }

    #[test]
    fn the_bar_of_the_selected_object_has_the_color_of_its_point_and_others_that_of_points() {
        let results = Results::parse(Path::new("x.csv"), "label,volume_um3\n1,10\n2,20\n3,20\n").unwrap();
        let mut panel = ObjectsPanel::default();
        let mut window = Harness::builder().with_size([400.0, 500.0]).build_ui(|ui| {
            theme::install(ui.ctx());
            histogram(ui, &results, Some(0), &mut panel);
        });
        window.run_steps(3);
        let fills = window.output().shapes.iter().filter_map(|clipped| match &clipped.shape {
            egui::Shape::Rect(rect) => Some(rect.fill),
            _ => None,
        });
        let fills: Vec<egui::Color32> = fills.collect();
        let count = |color: egui::Color32| fills.iter().filter(|fill| **fill == color).count();
        assert_eq!((count(theme::BEST), count(theme::ACCENT)), (1, BARS - 1));
    }

    #[test]
    fn a_row_shows_its_object_at_its_time_point_whatever_voxel_size_it_was_measured_with() {
        let folder = tempfile::tempdir().unwrap();
        let (stack, table) = (folder.path().join("a.tif"), folder.path().join("a_objects.csv"));
        let array = Array::new("TZYX".parse().unwrap(), vec![3, 8, 16, 16], vec![1u16; 3 * 8 * 256]).unwrap();
        write_array(&stack, &array, &WriteSpec::of(&array, Container::ImageJ)).unwrap();
        // Measured with 2 x 1 x 1 µm: slices 4 to 6, rows 3 to 7, columns 9 to 11.
        let columns = "time,label,voxels,volume_um3,centroid_z_um,centroid_y_um,centroid_x_um";
        let bbox = "bbox_z0,bbox_y0,bbox_x0,bbox_z1,bbox_y1,bbox_x1";
        std::fs::write(&table, format!("{columns},{bbox}\n2,7,20,40,10,4,10,4,3,9,7,8,12\n")).unwrap();
        let results = Results::read(&table).unwrap();
        let shown = |size: VoxelSize| {
            let mut document = Document::open(&stack, None, 0).unwrap().with_voxel_size(size);
            let mut actions = Actions::default();
            show_object(&document, &results, 0, &mut actions);
            let mut corrected = None;
            for action in actions.take().0 {
                match action {
                    Action::Documents(DocumentsAction::Change { change, .. }) => document.apply(change),
                    Action::Corrections(CorrectionsAction::Label(label)) => corrected = Some(label),
                    _ => {}
                }
            }
            assert_eq!(corrected, document.selected, "the highlighted object is the one that is corrected");
            (document.time, document.cursor, document.selected)
        };
        // The centroid, if the voxel size is the same.
        assert_eq!(shown(VoxelSize::new_um(2.0, 1.0, 1.0)), (2, [5, 4, 10], Some(7)));
        let middle = (2, [5, 5, 10], Some(7));
        assert_eq!([VoxelSize::default(), VoxelSize::new_um(0.5, 0.25, 0.25)].map(shown), [middle; 2]);
    }

    #[test]
    fn headings_of_the_first_columns_fit_into_them() {
        let ctx = egui::Context::default();
        theme::install(&ctx);
        let _ = ctx.run_ui(egui::RawInput::default(), |ui| {
            for column in FIRST {
                let text = egui::WidgetText::from(RichText::new(short_title(column.name())).strong().size(12.0));
                let font = egui::TextStyle::Button;
                let width = text.into_galley(ui, Some(egui::TextWrapMode::Extend), f32::INFINITY, font).size().x;
                // Beside the arrow of a sorted column.
                assert!(width < MEASUREMENT_WIDTH - 20.0, "{}: {width}", short_title(column.name()));
            }
        });
        let hint = column_hint(ObjectColumn::EquivalentDiameterUm.name());
        assert!(hint.starts_with("Equivalent diameter (µm): of the sphere with the same volume"), "{hint}");
    }

    #[test]
    fn tooltips_of_columns_state_what_was_measured() {
        let hints = ["mean_my_dna", "sum_a", "time", "area_of_another_program"].map(column_hint);
        let expected = [
            "Mean intensity of the object in the channel my_dna",
            "Sum of the intensities of the object in the channel a",
            "Time, counted from 1; saved tables count from 0",
            "Area of another program",
        ];
        assert_eq!(hints, expected);
        assert!(column_hint("axis_2_um").starts_with("Axis 2 (µm): length of an axis of the ellipsoid"));
    }

    #[test]
    fn the_median_of_an_even_number_of_objects_is_between_both_middle_ones() {
        let shown = |column: &str, values: &[&str]| {
            let rows: String = values.iter().map(|value| format!("1,{value}\n")).collect();
            let results = Results::parse(Path::new("x.csv"), &format!("label,{column}\n{rows}")).unwrap();
            results.summaries[1].map(|summary| summary_text(&results, 1, summary))
        };
        let expected = |text: &str| Some(text.to_owned());
        assert_eq!(shown("voxels", &["40", "10", "", "20", "30"]), expected("Mean 25, median 25, 10 to 40"));
        assert_eq!(shown("area", &["7.5"]), expected("Mean 7.500, median 7.500, 7.500 to 7.500"));
        // Whole numbers have no decimals, but their mean may have some. Positions count from 1.
        assert_eq!(shown("voxels", &["1", "2"]), expected("Mean 1.500, median 1.500, 1 to 2"));
        assert_eq!(shown("bbox_z0", &["1", "2"]), expected("Mean 2.500, median 2.500, 2 to 3"));
        let areas = ["74.78", "624.25", "1905.5"];
        assert_eq!(shown("area", &areas), expected("Mean 868.2, median 624.2, 74.8 to 1,905.5"));
        assert_eq!(shown("area", &["", "inf"]), None);
    }

    #[test]
    fn a_table_without_the_usual_measurement_shows_its_first_one() {
        let parse = |text: &str| Results::parse(Path::new("x.csv"), text).unwrap();
        let named =
            |results: &Results, chosen: &str| plotted(results, Some(&chosen.to_owned()), ObjectColumn::VolumeUm3);
        let other = parse("time,label,area,roundness\n0,1,5,1\n");
        assert_eq!([named(&other, "gone"), named(&other, "roundness")], ["area", "roundness"]);
        let usual = parse("label,voxels,volume_um3\n1,5,2.5\n");
        assert_eq!([named(&usual, "gone"), named(&parse("label\n1\n"), "gone")], ["volume_um3"; 2]);
    }

    #[test]
    fn a_histogram_of_equal_values_has_a_range_around_them() {
        assert_eq!(histogram_range(2.0, 4.0), (2.0, 2.0));
        assert_eq!(histogram_range(0.0, 0.0), (-0.5, 1.0));
        let (from, span) = histogram_range(80.0, 80.0);
        assert!(from < 79.0 && from + span > 81.0, "{from} {span}");
    }

    #[test]
    fn time_points_are_counted_from_1_as_on_the_slider() {
        let folder = tempfile::tempdir().unwrap();
        let table = folder.path().join("a_objects.csv");
        std::fs::write(&table, "time,label,voxels\n0,7,20\n2,7,21\n").unwrap();
        let results = Results::read(&table).unwrap();
        let shown = [0, 1, 2].map(|column| shown_values(&results, column));
        assert_eq!(shown, [[1.0, 3.0], [7.0, 7.0], [20.0, 21.0]]);
        assert_eq!(results.time(1), Some(2));
    }
}

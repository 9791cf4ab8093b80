//! Comparison of labels with ground truth: scores, kinds of errors and their sizes.

use super::legends::outline_entry;
use super::{OptionalNumber, SettingRow, heading, named_button, weak, x_axis, y_axis};
use crate::action::Actions;
use crate::command::Command;
use crate::compare::Agreement;
use crate::document::{Document, Overlay, Role};
use crate::documents::DocumentsAction;
use crate::state::State;
use crate::theme;
use cytoscope_objects::segmentation_errors::{ErrorSummary, Outcome, SizeUnit};
use cytoscope_profile::count_text;
use eframe::egui::{self, Color32, Ui};
use egui_plot::{Bar, BarChart, Plot};

/// Label that is ignored when the user begins to set one.
const FIRST_UNKNOWN_LABEL: u64 = 255;

/// Outcomes in the order in which bars are stacked, from the bottom.
const STACKED: [(Outcome, &str, [u8; 3]); 6] = [
    (Outcome::Found, "found", theme::MATCHED),
    (Outcome::Inexact, "inexact outline", theme::INEXACT),
    (Outcome::Merged, "merged", theme::MERGED),
    (Outcome::Split, "split", theme::SPLIT),
    (Outcome::Missed, "missed", theme::MISSED),
    (Outcome::False, "false", theme::FALSE_OBJECT),
];

/// Draws the comparison of the active document's labels with ground truth, if it has ground truth.
pub(super) fn comparison(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let Some(document) = state.document() else { return };
    let is_shown = |role| document.overlay_with_role(role).is_some_and(|o| o.is_at(document.time));
    if !is_shown(Role::Truth) {
        return;
    }
    if !is_shown(Role::Labels) {
        return without_labels(ui, document, actions);
    }
    let compare = state.documents.compare();
    heading(ui, "Comparison");
    match compare.of(document).map(|c| &c.result) {
        None => _ = weak(ui, "Comparing…"),
        Some(Err(why)) => _ = weak(ui, why),
        Some(Ok(agreement)) => scores(ui, agreement),
    }
    for overlay in [Role::Labels, Role::Truth].into_iter().filter_map(|role| document.overlay_with_role(role)) {
        if overlay.channels > 1 {
            let (name, count) = (&overlay.name, overlay.channels);
            weak(ui, format!("{name}: only the first of its {count} channels is compared"));
        }
    }
    ui.horizontal_wrapped(|ui| {
        ui.label("Ignore true objects below");
        let mut limit = compare.ignore_below_voxels;
        let voxels = egui::DragValue::new(&mut limit).speed(1.0).suffix(" voxels");
        let response = ui
            .add(voxels)
            .on_hover_text("Smaller true objects, and predicted objects that mostly overlap them, are not counted.");
        response.widget_info(|| {
            egui::WidgetInfo::labeled(egui::WidgetType::DragValue, true, "Ignore true objects below voxels")
        });
        if limit != compare.ignore_below_voxels {
            actions.send(DocumentsAction::IgnoreBelow(limit));
        }
    });
    let unknown = OptionalNumber {
        name: "Ignore label",
        unit: "",
        hint: "Voxels of the ground truth with this label are not annotated and do not count",
        unset: "none",
        first: FIRST_UNKNOWN_LABEL,
        range: 1..=u64::from(u32::MAX),
    };
    if let Some(label) = unknown.show(ui, SettingRow::Line, compare.ignore_label.map(u64::from)) {
        actions.send(DocumentsAction::IgnoreLabel(label.and_then(|label| u32::try_from(label).ok())));
    }
    let mut colored = compare.colored;
    if theme::checkbox(ui, &mut colored, "Color by match").changed() {
        actions.send(DocumentsAction::ColorByMatch(colored));
    }
}

/// Says what is compared with the ground truth of a document that has no labels.
fn without_labels(ui: &mut Ui, document: &Document, actions: &mut Actions) {
    heading(ui, "Comparison");
    if !document.overlay_with_role(Role::Map).is_some_and(Overlay::is_stain) {
        weak(ui, "Predict, or add labels, to compare objects with the ground truth.");
        return;
    }
    weak(ui, "Objects are compared here. A predicted stain is scored on another page:");
    if named_button(ui, true, Command::Evaluate.icon(), Command::Evaluate.title()).clicked() {
        actions.command(Command::Evaluate);
    }
}

/// A legend entry for objects of a color.
fn object_entry(ui: &mut Ui, [r, g, b]: [u8; 3], text: &str) -> egui::Response {
    outline_entry(ui, Color32::from_rgb(r, g, b), text)
}

fn scores(ui: &mut Ui, agreement: &Agreement) {
    let m = &agreement.matching;
    ui.label(format!("F1 {:.3} at IoU {}", m.f1, m.threshold));
    ui.horizontal_wrapped(|ui| {
        // The kinds of errors below count only some of the unmatched objects as missed or false.
        object_entry(ui, theme::MATCHED, &format!("{} matched", count_text(m.tp))).on_hover_text(format!(
            "True objects matched by a predicted object with an IoU of at least {}",
            m.threshold
        ));
        object_entry(ui, theme::MISSED, &format!("{} true not matched", count_text(m.r#fn)));
        object_entry(ui, theme::FALSE_OBJECT, &format!("{} predicted not matched", count_text(m.fp)));
        if agreement.ignored_true > 0 {
            let counts = [agreement.ignored_true, agreement.ignored_predictions].map(|count| count_text(count as u64));
            let text = format!("{} ignored", counts.join(" + "));
            object_entry(ui, theme::IGNORED, &text)
                .on_hover_text("True objects below the limit, and predicted objects that mostly overlap them");
        }
    });
    if let Some(label) = agreement.absent_label {
        weak(ui, format!("No voxel of the ground truth has the label {label}, so none is left out"));
    }
    if m.n_true == 0 {
        let why = match agreement.ignored_true {
            0 => "The ground truth contains no objects, so F1 is 0 whatever the labels are",
            _ => "Every true object is ignored, so the scores say nothing about the labels",
        };
        weak(ui, why);
    }
    error_counts(ui, &agreement.errors);
    if !agreement.errors.sizes.is_empty() {
        size_histogram(ui, &agreement.errors);
    }
}

fn error_counts(ui: &mut Ui, errors: &ErrorSummary) {
    let meanings = [
        (theme::MERGED, "Predicted objects that cover most of two or more true objects"),
        (theme::SPLIT, "True objects that contain most of two or more predicted objects"),
        (
            theme::MISSED,
            "True objects that were not found: no predicted object covers most of them or lies mostly inside them",
        ),
        (theme::INEXACT, "True objects with one predicted object at an IoU below 0.5"),
        (theme::FALSE_OBJECT, "Predicted objects that neither match nor cover a true object, nor mostly lie in one"),
    ];
    ui.horizontal_wrapped(|ui| {
        for (count, (color, meaning)) in errors.counts().iter().zip(meanings) {
            object_entry(ui, color, count).on_hover_text(meaning);
        }
    });
}

/// Histogram by object size: true objects by outcome, with false objects on top.
fn size_histogram(ui: &mut Ui, errors: &ErrorSummary) {
    let mut charts: Vec<BarChart> = Vec::with_capacity(STACKED.len());
    for (outcome, name, color) in STACKED {
        let color = theme::bar_color(color, ui.visuals());
        let bars = errors.sizes.iter().enumerate().map(|(i, bin)| {
            let text = format!("{} to {}: {} {name}", bin.from, bin.to, bin.count(outcome));
            Bar::new(i as f64 + 0.5, bin.count(outcome) as f64).width(0.9).fill(color).name(text)
        });
        let chart = BarChart::new(name, bars.collect()).color(color);
        let below: Vec<&BarChart> = charts.iter().collect();
        charts.push(chart.stack_on(&below));
    }
    let edges: Vec<f64> = errors.sizes.iter().map(|bin| bin.from).chain(errors.sizes.last().map(|b| b.to)).collect();
    let unit = match errors.size_unit {
        SizeUnit::Um => "µm",
        SizeUnit::Voxel => "voxels",
    };
    let edge_at = move |mark: f64| {
        let is_integer = mark >= 0.0 && mark.fract() == 0.0;
        edges.get(mark as usize).filter(|_| is_integer).map_or_else(String::new, |edge| edge.to_string())
    };
    Plot::new("errors by size")
        .height(110.0)
        .allow_scroll(false)
        .allow_drag(false)
        .allow_zoom(false)
        .custom_x_axes(x_axis(format!("Diameter in {unit}")))
        .custom_y_axes(y_axis(""))
        .x_axis_formatter(move |mark, _| edge_at(mark.value))
        .show(ui, |plot| charts.into_iter().for_each(|chart| plot.bar_chart(chart)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_objects::segmentation_errors::SizeBin;
    use eframe::egui::Visuals;
    use egui_kittest::Harness;

    #[test]
    fn bars_have_the_colors_of_objects_darker_in_the_light_theme() {
        let bin =
            SizeBin { from: 8.0, to: 10.0, found: 5, merged: 0, split: 0, inexact: 0, missed: 3, false_objects: 0 };
        let (size_unit, sizes) = (SizeUnit::Um, vec![bin]);
        let errors = ErrorSummary { merges: 0, splits: 0, inexact: 0, misses: 3, false_objects: 0, size_unit, sizes };
        for (mode, visuals) in [(egui::Theme::Dark, Visuals::dark()), (egui::Theme::Light, Visuals::light())] {
            let mut window = Harness::builder().with_size([400.0, 200.0]).build_ui(|ui| {
                theme::install(ui.ctx());
                ui.ctx().set_theme(mode);
                size_histogram(ui, &errors);
            });
            window.run_steps(4);
            let colors = STACKED.map(|(_, _, color)| theme::bar_color(color, &visuals));
            let fills = window.output().shapes.iter().filter_map(|clipped| match &clipped.shape {
                egui::Shape::Rect(rect) if colors.contains(&rect.fill) => Some(rect.fill),
                _ => None,
            });
            assert_eq!(fills.collect::<Vec<_>>(), colors, "{mode:?}");
        }
    }
}

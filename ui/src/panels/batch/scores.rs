//! The scores of predictions or of a model, as the page shows them.

use crate::action::Actions;
use crate::batch::BatchAction;
use crate::document::file_name;
use crate::engine_notes::scoring_note_in_window;
use crate::number_text::{counted, round_decimals};
use crate::panels::{heading, named_button, weak};
use cytoscope_objects::regression::Regression;
use cytoscope_objects::segmentation_errors::{ErrorSummary, Outcome, SizeUnit};
use cytoscope_pipeline::EvaluateReport;
use eframe::egui::{self, RichText, Ui};
use egui_phosphor::regular as icon;

/// Maximum number of scored pairs that are listed; the saved table has all of them.
const LISTED_PAIRS: usize = 200;
/// Maximum number of notes that are listed; the others are in the log.
const LISTED_NOTES: usize = 20;

/// Headings of the scores of objects, and what they mean.
const HEADINGS: [(&str, &str); 8] = [
    ("IoU", "A predicted and a true object match if their intersection over union is at least this"),
    ("F1", "Harmonic mean of precision and recall"),
    ("Precision", "Share of the predicted objects that match a true one"),
    ("Recall", "Share of the true objects that are matched"),
    ("AP", "Matched objects, divided by all matched, missed and false objects"),
    ("PQ", "Panoptic quality: F1 times the mean IoU of the matched objects"),
    ("Matched IoU", "Mean IoU of the matched objects"),
    ("Found", "Number of true objects that are matched"),
];

/// What scores of intensities mean.
const INTENSITY_HINT: &str =
    "Pearson's correlation, peak signal-to-noise ratio, structural similarity, and mean squared error";

/// Intensity scores in one line.
fn regression_text(scores: &Regression) -> String {
    let [pearson, psnr, ssim, mse] = scores.texts();
    format!("Pearson {pearson} · PSNR {psnr} · SSIM {ssim} · MSE {mse}")
}

/// Draws the scores of predictions, or of the model with a title.
pub(super) fn scores(ui: &mut Ui, report: &EvaluateReport, model: Option<&str>, actions: &mut Actions) {
    heading(ui, "Scores");
    let n = report.pairs.len();
    let pairs = counted(n as u64, "pair");
    let by = model.map_or_else(String::new, |model| format!(" · predicted by {model}"));
    let on = match (&report.device, report.precision) {
        (Some(device), Some(precision)) => format!(" on {} in {precision}", device.id),
        _ => String::new(),
    };
    weak(ui, format!("{pairs}{by}{on}"));
    for note in report.notes.iter().take(LISTED_NOTES) {
        weak(ui, scoring_note_in_window(note).to_string());
    }
    if report.notes.len() > LISTED_NOTES {
        weak(ui, counted((report.notes.len() - LISTED_NOTES) as u64, "further note"));
    }
    if !report.instances.is_empty() {
        egui::Grid::new("pooled scores").num_columns(8).spacing([24.0, 6.0]).striped(true).show(ui, |ui| {
            for (name, meaning) in HEADINGS {
                ui.label(RichText::new(name).weak()).on_hover_text(meaning);
            }
            ui.end_row();
            for m in &report.instances {
                ui.label(format!("{:.2}", m.threshold));
                for value in [m.f1, m.precision, m.recall, m.accuracy, m.panoptic_quality, m.mean_matched_score] {
                    ui.label(format!("{value:.4}"));
                }
                ui.label(format!("{} of {}", m.tp, m.n_true));
                ui.end_row();
            }
        });
    }
    if let Some(ignored) = report.ignored.as_ref().filter(|ignored| ignored.below_voxels > 0) {
        let (objects, below, overlapping) = (ignored.true_objects, ignored.below_voxels, ignored.predictions);
        weak(
            ui,
            format!(
                "Ignored: true objects below {below} voxels: {objects}; predicted objects mostly on them: {overlapping}"
            ),
        );
    }
    if let Some(r) = &report.regression {
        let mean = if report.channels.is_empty() { "" } else { "Mean of the channels: " };
        ui.label(format!("{mean}{}", regression_text(r))).on_hover_text(INTENSITY_HINT);
    }
    for channel in &report.channels {
        let text = format!("{}: {}", channel.name, regression_text(&channel.regression));
        ui.label(text).on_hover_text(INTENSITY_HINT);
    }
    if let Some(errors) = &report.errors {
        error_table(ui, errors);
    }
    pair_table(ui, report);
    for path in report.unpaired.iter().take(LISTED_PAIRS) {
        weak(ui, format!("No matching file: {}", path.display()));
    }
    if named_button(ui, true, icon::TABLE, "Save scores…").clicked() {
        actions.send(BatchAction::AskSave);
    }
}

/// Draws the kinds of segmentation errors, for objects of each size.
fn error_table(ui: &mut Ui, errors: &ErrorSummary) {
    ui.label(errors.counts().join(", "));
    if errors.sizes.is_empty() {
        return;
    }
    let unit = match errors.size_unit {
        SizeUnit::Um => "µm",
        SizeUnit::Voxel => "voxels",
    };
    let columns = [
        ("Found", Outcome::Found),
        ("Merged", Outcome::Merged),
        ("Split", Outcome::Split),
        ("Inexact", Outcome::Inexact),
        ("Missed", Outcome::Missed),
        ("False", Outcome::False),
    ];
    egui::Grid::new("errors by size").num_columns(7).spacing([24.0, 6.0]).striped(true).show(ui, |ui| {
        ui.label(RichText::new(format!("Diameter in {unit}")).weak());
        columns.iter().for_each(|(name, _)| _ = ui.label(RichText::new(*name).weak()));
        ui.end_row();
        let rows = errors.size_rows();
        let decimals = round_decimals(rows.iter().flat_map(|bin| [bin.from, bin.to]));
        for bin in &rows {
            ui.label(format!("{:.decimals$} to {:.decimals$}", bin.from, bin.to));
            columns.iter().for_each(|(_, kind)| _ = ui.label(bin.count(*kind).to_string()));
            ui.end_row();
        }
    });
}

/// Lists the score of each pair: F1 at the lowest IoU threshold, or Pearson.
fn pair_table(ui: &mut Ui, report: &EvaluateReport) {
    egui::Grid::new("scored pairs").num_columns(3).spacing([24.0, 6.0]).striped(true).show(ui, |ui| {
        for pair in report.pairs.iter().take(LISTED_PAIRS) {
            let f1 = pair.instances.first().map(|m| (format!("F1 at IoU {:.2}", m.threshold), m.f1));
            let pearson = pair.regression.as_ref().and_then(|r| r.pearson).map(|v| ("Pearson".to_owned(), v));
            let (name, value) = f1.or(pearson).map_or_else(Default::default, |(name, v)| (name, format!("{v:.4}")));
            ui.label(RichText::new(name).weak());
            ui.label(value);
            // Only the last column has the width that is left.
            let paths = format!("{}\n{}", pair.prediction.display(), pair.truth.display());
            ui.add(egui::Label::new(file_name(&pair.prediction)).truncate()).on_hover_text(paths);
            ui.end_row();
        }
    });
}

//! The Results page: scores before and after training, for all pairs and each pair.

use super::curves::curves;
use super::progress::note_label;
use super::{TrainPanel, page_header, title};
use crate::engine_notes::note_in_window;
use crate::number_text::counted;
use crate::panels::{capitalized, seconds, weak};
use crate::state::State;
use crate::theme;
use crate::training::full_precision::FullPrecision;
use crate::training::{Wizard, summary_text};
use cytoscope_profile::count_text;
use cytoscope_storage::by_count;
use cytoscope_train::{ChosenNetwork, PairDifference, ScoreName, TrainReport};
use cytoscope_training_data::TrainingTask;
use eframe::egui::{self, RichText, Ui, vec2};
use egui_phosphor::regular as icon;

/// Maximum width of the name of an image, in points.
const NAME_WIDTH: f32 = 360.0;
/// Smallest change of a score that shows in its three decimals.
const MIN_CHANGE: f64 = 0.0005;

/// The main score of a report.
pub(super) fn short(report: &TrainReport) -> String {
    let main = [ScoreName::f1(0.5), ScoreName::Pearson(None), ScoreName::Dice];
    let first = main.iter().find_map(|name| Some((name, report.after.get(name)?)));
    first.map_or_else(String::new, |(name, score)| format!("{}: {score:.3}", score_name(name)))
}

/// Name of a score for display.
pub(super) fn score_name(name: &ScoreName) -> String {
    let iou = |percent: &u8| f64::from(*percent) / 100.0;
    match name {
        ScoreName::Pearson(None) => "Pearson correlation".to_owned(),
        ScoreName::PsnrDb => "PSNR (dB)".to_owned(),
        ScoreName::Ssim => "SSIM".to_owned(),
        ScoreName::Dice => "Dice".to_owned(),
        ScoreName::F1 { iou_percent } => format!("F1 at IoU {}", iou(iou_percent)),
        ScoreName::PanopticQuality { iou_percent } => format!("Panoptic quality at IoU {}", iou(iou_percent)),
        ScoreName::Pearson(Some(_)) | ScoreName::Other(_) => name.to_string(),
    }
}

fn number(v: Option<&f64>) -> String {
    v.map_or_else(|| "–".to_owned(), |v| format!("{v:.3}"))
}

/// Scores of one pair.
struct Row<'a> {
    name: &'a str,
    before: Option<f64>,
    after: f64,
}

/// How the score of a pair has changed; empty if it has none before training.
fn change_text(row: &Row<'_>) -> String {
    match row.before.map(|before| row.after - before) {
        Some(change) if change.abs() >= MIN_CHANGE => format!("{change:+.3}"),
        Some(_) => "unchanged".to_owned(),
        None => String::new(),
    }
}

/// Pairs, best first.
fn rows(report: &TrainReport) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = report
        .pairs_after
        .iter()
        .map(|after| {
            let before = report.pairs_before.iter().find(|b| b.name == after.name).map(|b| b.score);
            Row { name: &after.name, before, after: after.score }
        })
        .collect();
    rows.sort_by(|a, b| b.after.total_cmp(&a.after));
    rows
}

/// Draws the page.
pub(super) fn results_page(ui: &mut Ui, state: State<'_>, panel: &mut TrainPanel) {
    let wizard = state.wizard();
    let Some(report) = &wizard.report else { return };
    page_header(ui, &format!("Results of {}", wizard.plan.name), "");
    let trained = report.verdict == ChosenNetwork::Trained;
    ui.horizontal_wrapped(|ui| {
        let (sign, color) = if trained {
            (icon::CHECK_CIRCLE, theme::good(ui.visuals()))
        } else {
            (icon::INFO, theme::warn(ui.visuals()))
        };
        ui.label(RichText::new(sign).size(20.0).color(color));
        let summary = summary_text(report, &wizard.plan.from);
        ui.add(egui::Label::new(RichText::new(summary).size(15.0)).wrap());
    });
    if !trained && !report.only_segmentation_improved() {
        weak(ui, "More pairs, more time, or training from scratch may help.");
    }
    scores(ui, report);
    if let Some(text) = full_precision_text(&wizard.full_precision) {
        weak(ui, text);
    }
    pairs(ui, report);
    examples(ui, wizard, report.before.is_empty());
    let facts = format!(
        "{} in {} on {}; {} and {}; {} trainable parameters.",
        steps_text(report.steps, report.batch, report.patch_zyx),
        seconds(report.seconds),
        report.device,
        counted(report.train_pairs as u64, "training pair"),
        counted(report.validation_pairs as u64, "validation pair"),
        count_text(report.parameters as u64)
    );
    ui.add_space(theme::GAP);
    weak(ui, facts);
    for note in &report.history.notes {
        note_label(ui, &note_in_window(note));
    }
    curves(ui, wizard, panel, false);
}

/// The number of steps, and how many patches of which size each of them had.
fn steps_text(steps: u64, batch: usize, [z, y, x]: [usize; 3]) -> String {
    let patches = by_count(batch, "patch", "patches");
    format!("{} with batches of {batch} {patches} ({z} × {y} × {x} voxels)", counted(steps, "step"))
}

/// How the scores differ from those of the same training in 32-bit floats; `None` if they were not to be compared.
fn full_precision_text(state: &FullPrecision) -> Option<String> {
    let compared = match state {
        FullPrecision::None => return None,
        FullPrecision::Running(..) => {
            return Some("The same training in 32 bits is running or waits, to compare the scores.".to_owned());
        }
        FullPrecision::Failed(reason) => {
            let reason = reason.trim_end_matches('.');
            return Some(format!("The scores were not compared with 32 bits: {reason}."));
        }
        FullPrecision::Compared(compared) => compared,
    };
    let score_text = |(name, difference): (&ScoreName, &f64)| {
        let score = number(compared.scores.get(name));
        format!("{} {score}, from which 16 bits differ by {difference:+.3}", score_name(name))
    };
    let mut parts: Vec<String> = compared.differences.iter().map(score_text).collect();
    if let Some(PairDifference { count, mean, standard_error }) = compared.pairs {
        let error = standard_error.map_or_else(String::new, |error| format!(" ± {error:.3} (standard error)"));
        let pairs = counted(count as u64, "validation pair");
        parts.push(format!("mean difference of {pairs} {mean:+.3}{error}"));
    }
    Some(format!("The same training in 32 bits: {}.", parts.join("; ")))
}

/// Draws example outputs on validation images. `new` is set for models trained from scratch.
fn examples(ui: &mut Ui, wizard: &Wizard, new: bool) {
    if wizard.examples.is_empty() {
        return;
    }
    title(ui, "Validation examples");
    weak(
        ui,
        match (wizard.plan.task, new) {
            (TrainingTask::Segmentation, true) => "True objects in yellow, predicted objects in blue.",
            (TrainingTask::Segmentation, false) => {
                "True objects in yellow; predictions before and after training in blue."
            }
            (TrainingTask::LabelFree, true) => "Image, true stain, predicted stain.",
            (TrainingTask::LabelFree, false) => "Image, true stain, predictions before and after training.",
        },
    );
    for shown in &wizard.examples {
        ui.add_space(theme::GAP);
        if !shown.caption.is_empty() {
            ui.label(RichText::new(&shown.caption).weak().size(12.0));
        }
        let [width, height] = shown.size().map(|n| n as f32);
        let scale = (ui.available_width() / width).min(1.0);
        let texture = shown.texture(ui.ctx());
        let picture = egui::Image::new((texture.id(), vec2(width, height) * scale));
        let response = ui.add(picture.corner_radius(egui::CornerRadius::same(4)));
        let name = format!("Model output on a validation image: {}", shown.caption);
        response.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Image, true, &name));
    }
}

/// Draws the scores over the whole validation set.
pub(super) fn scores(ui: &mut Ui, report: &TrainReport) {
    if report.after.is_empty() {
        return;
    }
    title(ui, "Scores");
    let has_before = !report.before.is_empty();
    let has_int8 = !report.after_int8.is_empty();
    egui::Grid::new("scores").num_columns(4).spacing([28.0, 6.0]).striped(true).show(ui, |ui| {
        ui.label("");
        if has_before {
            ui.label(RichText::new(if report.before_is_int8 { "Before (int8)" } else { "Before" }).weak());
        }
        // A network that was trained from scratch has no scores before training.
        let (float, int8) = match (has_before, has_int8) {
            (true, true) => ("After (float)", "After (int8)"),
            (true, false) => ("After", ""),
            (false, true) => ("Float", "int8"),
            (false, false) => ("Score", ""),
        };
        ui.label(RichText::new(float).weak());
        if has_int8 {
            ui.label(RichText::new(int8).weak());
        }
        ui.end_row();
        for (name, after) in &report.after {
            ui.label(score_name(name));
            if has_before {
                ui.label(number(report.before.get(name)));
            }
            ui.label(RichText::new(number(Some(after))).strong());
            if has_int8 {
                ui.label(number(report.after_int8.get(name)));
            }
            ui.end_row();
        }
    });
    weak(ui, format!("Selection metric: {}.", report.metric));
}

fn pairs(ui: &mut Ui, report: &TrainReport) {
    let rows = rows(report);
    if rows.is_empty() {
        return;
    }
    title(ui, &format!("{} by image", capitalized(&report.metric.to_string())));
    let has_before = rows.iter().any(|r| r.before.is_some());
    let (good, bad) = (theme::good(ui.visuals()), theme::bad(ui.visuals()));
    let several = rows.len() > 1;
    egui::Grid::new("pairs").num_columns(4).spacing([28.0, 6.0]).striped(true).show(ui, |ui| {
        for (i, row) in rows.iter().enumerate() {
            ui.scope(|ui| {
                // Long names leave room for the scores.
                ui.set_max_width(NAME_WIDTH);
                ui.add(egui::Label::new(row.name).truncate());
            });
            if has_before {
                let before = row.before;
                ui.label(format!("{} {} {:.3}", number(before.as_ref()), icon::ARROW_RIGHT, row.after));
                let text = RichText::new(change_text(row));
                ui.label(match before.map(|b| row.after - b) {
                    Some(c) if c.abs() >= MIN_CHANGE => text.color(if c > 0.0 { good } else { bad }),
                    _ => text.weak(),
                });
            } else {
                ui.label(format!("{:.3}", row.after));
            }
            let mark = match i {
                0 if several => "best",
                i if several && i + 1 == rows.len() => "worst",
                _ => "",
            };
            ui.label(RichText::new(mark).weak());
            ui.end_row();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_train::PrecisionComparison;
    use std::collections::BTreeMap;

    #[test]
    fn a_pair_without_a_score_before_training_has_no_change() {
        let text = |before: Option<f64>| change_text(&Row { name: "a", before, after: 0.75 });
        assert_eq!([text(Some(0.5)), text(Some(0.7501)), text(None)], ["+0.250", "unchanged", ""]);
    }

    #[test]
    fn steps_and_patches_are_singular_or_plural() {
        let shown = [(1, 1), (1200, 2)].map(|(steps, batch)| steps_text(steps, batch, [16, 32, 32]));
        let expected = [
            "1 step with batches of 1 patch (16 × 32 × 32 voxels)",
            "1,200 steps with batches of 2 patches (16 × 32 × 32 voxels)",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_comparison_with_32_bits_states_scores_and_differences() {
        let compared = PrecisionComparison {
            steps: 7,
            step_secs: 0.5,
            scores: BTreeMap::from([(ScoreName::Dice, 0.8)]),
            differences: BTreeMap::from([(ScoreName::Dice, 0.01)]),
            pairs: Some(PairDifference { count: 2, mean: -0.02, standard_error: Some(0.005) }),
        };
        let text = full_precision_text(&FullPrecision::Compared(Box::new(compared)));
        let expected = "The same training in 32 bits: Dice 0.800, from which 16 bits differ by +0.010; mean difference of 2 \
                        validation pairs -0.020 ± 0.005 (standard error).";
        assert_eq!(text.as_deref(), Some(expected));
        let failed = full_precision_text(&FullPrecision::Failed("it was canceled".to_owned()));
        assert!(failed.is_some_and(|text| text.ends_with("32 bits: it was canceled.")));
        assert_eq!(full_precision_text(&FullPrecision::None), None);
    }
}

//! The last page: saving, using and exporting the model.

use super::{icon_text_button, name_field, page_header, primary_button, results, title};
use crate::action::Actions;
use crate::number_text::TimeUnit;
use crate::panels::weak;
use crate::state::State;
use crate::theme;
use crate::training::TrainingAction;
use crate::training::models::{Saving, TrainedModelFormat};
use crate::training::plan::clean_name;
use cytoscope_profile::bytes_text;
use cytoscope_train::{FloatOnly, Quantized, TrainReport};
use eframe::egui::{self, RichText, Ui};
use egui_phosphor::regular as icon;
use std::path::Path;

/// Why the model cannot be saved, exported or replaced now.
pub(super) const WAIT_FOR_SAVING: &str = "Wait until the model is saved or exported.";

/// Draws the page.
pub(super) fn use_page(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let wizard = state.wizard();
    page_header(ui, "Save and use the model", "");
    let saved = &wizard.plan.saved;
    let (place, taken) = state.training.model_destination(state.jobs);
    let idle = wizard.saving == Saving::No;
    let is_unnamed = clean_name(&wizard.plan.name).is_empty();
    ui.label("Model name");
    ui.horizontal(|ui| {
        // Centers the field beside the higher button.
        ui.set_min_height(theme::MAIN_BUTTON_HEIGHT);
        name_field(ui, &wizard.plan.name, saved.is_none(), actions);
        if saved.is_none() {
            let may = !is_unnamed && !taken && idle;
            let reason = match (is_unnamed, taken) {
                (true, _) => "Enter a name first.",
                (false, true) => "Choose another name first: a model with this name already exists.",
                (false, false) => WAIT_FOR_SAVING,
            };
            let save = primary_button(ui, may, icon::FLOPPY_DISK, "Save to my models");
            if save.on_disabled_hover_text(reason).clicked() {
                actions.send(TrainingAction::Save);
            }
        }
        if wizard.saving != Saving::No {
            ui.spinner();
        }
    });
    match saved {
        Some(path) => saved_model(ui, path, state, actions),
        None if taken => {
            let color = theme::bad(ui.visuals());
            super::colored(ui, color, "A model with this name already exists: choose another name.");
        }
        None if is_unnamed => _ = weak(ui, "Enter a name to save the model."),
        None => {
            weak(ui, format!("Will be saved to {}", place.display()));
        }
    }
    title(ui, "Export");
    ui.horizontal_wrapped(|ui| export_buttons(ui, idle, actions));
    if let Some(report) = &wizard.report {
        results::scores(ui, report);
        weak(ui, networks_text(report));
        if let Some(quantized) = &report.quantized {
            costs(ui, quantized);
        }
    }
}

/// Shows where the model was saved, and the button to predict with it.
fn saved_model(ui: &mut Ui, path: &Path, state: State<'_>, actions: &mut Actions) {
    ui.horizontal_wrapped(|ui| {
        let color = theme::good(ui.visuals());
        ui.label(RichText::new(icon::CHECK_CIRCLE).size(17.0).color(color));
        ui.label("Saved to your models.");
    });
    weak(ui, path.display().to_string());
    ui.add_space(theme::GAP);
    let listed = state.jobs.models().iter().any(|m| m.path == *path);
    let predict = primary_button(ui, listed, icon::SPARKLE, "Predict with this model");
    if predict.on_disabled_hover_text("The model is not in the list of models yet, or was removed.").clicked() {
        actions.send(TrainingAction::UseModel);
    }
}

/// Shows the buttons that export the model; they are disabled unless `is_idle`.
fn export_buttons(ui: &mut Ui, is_idle: bool, actions: &mut Actions) {
    if icon_text_button(ui, is_idle, icon::PACKAGE, "Export as bioimage.io package…")
        .on_hover_text("A zip file that other bioimage.io tools can read")
        .on_disabled_hover_text(WAIT_FOR_SAVING)
        .clicked()
    {
        actions.send(TrainingAction::AskExport(TrainedModelFormat::Zip));
    }
    let onnx = icon_text_button(ui, is_idle, icon::GRAPH, "Export as ONNX…").on_hover_text("Only the network");
    if onnx.on_disabled_hover_text(WAIT_FOR_SAVING).clicked() {
        actions.send(TrainingAction::AskExport(TrainedModelFormat::Onnx));
    }
}

/// Returns which networks the package holds, and why if there is only one.
fn networks_text(report: &TrainReport) -> &'static str {
    match report.float_only {
        Some(FloatOnly::NotRequested) => "The package holds the float network only, as chosen for this training run.",
        Some(FloatOnly::LessAccurate) => {
            "The package holds the float network only: the int8 network was less accurate."
        }
        Some(FloatOnly::NoTime) => {
            "The package holds the float network only: no time was left to make an int8 network."
        }
        Some(FloatOnly::Failed) => {
            "The package holds the float network only: the int8 network could not be made, as a note of the training run \
             says."
        }
        None if report.after_int8.is_empty() && report.quantized.is_none() => {
            "The package holds the float network only."
        }
        None => "The package holds both networks: CPUs use int8, other devices use float.",
    }
}

/// How many times as small, or else as large, the second of two numbers is, in these words.
fn ratio_text(first: f64, second: f64, [less, more]: [&str; 2]) -> String {
    let ratio = |larger: f64, smaller: f64| larger / smaller.max(1e-6);
    match second > first {
        true => format!("{:.1} × {more}", ratio(second, first)),
        false => format!("{:.1} × {less}", ratio(first, second)),
    }
}

/// Draws size and speed of the float and int8 networks, as measured on this machine.
fn costs(ui: &mut Ui, quantized: &Quantized) {
    title(ui, "Size and speed on this machine");
    let mut rows = vec![(
        "Size".to_owned(),
        bytes_text(quantized.float_bytes),
        bytes_text(quantized.int8_bytes),
        ratio_text(quantized.float_bytes as f64, quantized.int8_bytes as f64, ["smaller", "larger"]),
    )];
    let spatial: Vec<String> = quantized.tile_shape.iter().skip(2).map(usize::to_string).collect();
    for time in &quantized.tile_times {
        let threads = if time.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", time.threads) };
        let secs = [time.f32_wall_ms, time.int8_wall_ms].map(|ms| ms / 1e3);
        let unit = TimeUnit::for_longest(secs.into_iter().fold(0.0, f64::max));
        let [float, int8] = secs.map(|secs| unit.text(secs));
        let ratio = ratio_text(time.f32_wall_ms, time.int8_wall_ms, ["faster", "slower"]);
        rows.push((format!("Tile of {}, {threads}", spatial.join(" × ")), float, int8, ratio));
    }
    egui::Grid::new("costs").num_columns(4).spacing([28.0, 6.0]).striped(true).show(ui, |ui| {
        ui.label("");
        for name in ["Float", "int8", ""] {
            ui.label(RichText::new(name).weak());
        }
        ui.end_row();
        for (what, floats, int8, ratio) in rows {
            ui.label(what);
            ui.label(floats);
            ui.label(RichText::new(int8).strong());
            ui.label(RichText::new(ratio).weak());
            ui.end_row();
        }
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn an_int8_network_that_is_slower_is_not_called_faster() {
        let words = ["faster", "slower"];
        let shown = [(30.0, 10.0), (10.0, 25.0), (8.0, 8.0)].map(|(float, int8)| ratio_text(float, int8, words));
        assert_eq!(shown, ["3.0 × faster", "2.5 × slower", "1.0 × faster"]);
    }

    #[test]
    fn a_package_without_an_int8_network_says_why() {
        let text = |changed: serde_json::Value| {
            let mut report = serde_json::json!({
                "out": "m", "verdict": "trained", "metric": "Dice", "before": {}, "after": {"dice": 0.8},
                "after_int8": {}, "pairs_before": [], "pairs_after": [], "steps": 1, "epoch_steps": 1, "batch": 1,
                "patch_zyx": [1, 1, 1], "parameters": 1, "train_pairs": 1, "validation_pairs": 1, "seconds": 1.0,
                "step_secs": 1.0, "stalled_secs": 0.0, "peak_rss_bytes": null, "device": "",
                "history": cytoscope_train::History::default(),
            });
            report.as_object_mut().unwrap().extend(changed.as_object().unwrap().clone());
            networks_text(&serde_json::from_value(report).unwrap())
        };
        for (reason, words) in [
            ("not_requested", "as chosen"),
            ("less_accurate", "was less accurate"),
            ("no_time", "no time was left"),
            ("failed", "could not be made"),
        ] {
            let shown = text(serde_json::json!({"float_only": reason}));
            assert!(shown.contains("float network only") && shown.contains(words), "{shown}");
        }
        // Reports of earlier versions.
        assert!(text(serde_json::json!({})).ends_with("float network only."));
        assert!(text(serde_json::json!({"after_int8": {"dice": 0.8}})).contains("both networks"));
    }
}

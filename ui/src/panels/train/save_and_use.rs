//! The last page: saving, using and exporting the model.

use super::{icon_text_button, name_field, page_header, primary_button, results, title};
use crate::action::Actions;
use crate::panels::weak;
use crate::state::State;
use crate::theme;
use crate::training::TrainingAction;
use crate::training::models::{Saving, TrainedModelFormat};
use crate::training::plan::clean_name;
use cytoscope_profile::bytes_text;
use cytoscope_train::Quantized;
use eframe::egui::{self, RichText, Ui};
use egui_phosphor::regular as icon;

/// Draws the page.
pub(super) fn use_page(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let wizard = state.wizard();
    page_header(ui, "Save and use the model", "");
    let saved = &wizard.plan.saved;
    let (place, taken) = state.training.model_destination(state.jobs);
    let idle = wizard.saving == Saving::No;
    ui.label("Model name");
    ui.horizontal(|ui| {
        // Centers the field beside the higher button.
        ui.set_min_height(theme::MAIN_BUTTON_HEIGHT);
        name_field(ui, &wizard.plan.name, saved.is_none(), egui::vec2(8.0, 6.0), actions);
        if saved.is_none() {
            let may = !clean_name(&wizard.plan.name).is_empty() && !taken && idle;
            if primary_button(ui, may, icon::FLOPPY_DISK, "Save to my models").clicked() {
                actions.send(TrainingAction::Save);
            }
        }
        if wizard.saving != Saving::No {
            ui.spinner();
        }
    });
    match saved {
        Some(path) => {
            ui.horizontal_wrapped(|ui| {
                let color = theme::good(ui.visuals());
                ui.label(RichText::new(icon::CHECK_CIRCLE).size(17.0).color(color));
                ui.label("Saved to your models.");
            });
            weak(ui, path.display().to_string());
            ui.add_space(theme::GAP);
            let listed = state.jobs.models().iter().any(|m| m.path == *path);
            if primary_button(ui, listed, icon::SPARKLE, "Predict with this model").clicked() {
                actions.send(TrainingAction::UseModel);
            }
        }
        None if taken => {
            let color = theme::bad(ui.visuals());
            super::colored(ui, color, "A model with this name already exists: choose another name.");
        }
        None => {
            weak(ui, format!("Will be saved to {}", place.display()));
        }
    }
    title(ui, "Export");
    ui.horizontal_wrapped(|ui| {
        if icon_text_button(ui, idle, icon::PACKAGE, "Export as bioimage.io package…")
            .on_hover_text("A zip file that other bioimage.io tools can read")
            .clicked()
        {
            actions.send(TrainingAction::AskExport(TrainedModelFormat::Zip));
        }
        if icon_text_button(ui, idle, icon::GRAPH, "Export as ONNX…").on_hover_text("Only the network").clicked() {
            actions.send(TrainingAction::AskExport(TrainedModelFormat::Onnx));
        }
    });
    if let Some(report) = &wizard.report {
        results::scores(ui, report);
        if report.after_int8.is_empty() {
            weak(ui, "The package holds the float network only: int8 lost accuracy or was not tried.");
        } else {
            weak(ui, "The package holds both networks: CPUs use int8, other devices use float.");
        }
        if let Some(quantized) = &report.quantized {
            costs(ui, quantized);
        }
    }
}

/// Draws size and speed of the float and int8 networks, as measured on this machine.
fn costs(ui: &mut Ui, quantized: &Quantized) {
    title(ui, "Size and speed on this machine");
    let mut rows = vec![(
        "Size".to_owned(),
        bytes_text(quantized.float_bytes),
        bytes_text(quantized.int8_bytes),
        quantized.float_bytes as f64 / quantized.int8_bytes.max(1) as f64,
        "smaller",
    )];
    let spatial: Vec<String> = quantized.tile_shape.iter().skip(2).map(usize::to_string).collect();
    for time in &quantized.tile_times {
        let threads = if time.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", time.threads) };
        rows.push((
            format!("Tile of {}, {threads}", spatial.join(" × ")),
            format!("{:.1} ms", time.f32_wall_ms),
            format!("{:.1} ms", time.int8_wall_ms),
            time.f32_wall_ms / time.int8_wall_ms.max(1e-6),
            "faster",
        ));
    }
    egui::Grid::new("costs").num_columns(4).spacing([28.0, 6.0]).striped(true).show(ui, |ui| {
        ui.label("");
        for name in ["Float", "int8", ""] {
            ui.label(RichText::new(name).weak());
        }
        ui.end_row();
        for (what, floats, int8, ratio, word) in rows {
            ui.label(what);
            ui.label(floats);
            ui.label(RichText::new(int8).strong());
            ui.label(RichText::new(format!("{ratio:.1} × {word}")).weak());
            ui.end_row();
        }
    });
}

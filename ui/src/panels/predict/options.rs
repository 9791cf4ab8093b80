//! Limits of predictions, and the results that they write.

use crate::action::Actions;
use crate::display::DisplayAction;
use crate::document::Document;
use crate::documents::DocumentsAction;
use crate::jobs::JobsAction;
use crate::opener::FileRequest;
use crate::panels::{OptionalNumber, SettingRow, labeled_choice};
use crate::state::State;
use crate::theme;
use cytoscope_pipeline::predict::{Blend, TileRequest};
use cytoscope_pipeline::{Output, ResultFormat};
use eframe::egui::{self, Checkbox, RichText, Ui};
use egui_phosphor::regular as icon;
use std::collections::BTreeSet;
use std::path::Path;

/// The results that can be chosen: their names, and what they are.
const OUTPUTS: [(Output, &str, &str); 5] = [
    (Output::Maps, "Maps", "The outputs of the network"),
    (Output::Labels, "Labels", "The label image; models that predict a stain have none"),
    (Output::Table, "Table", "The measurements of the objects; models that predict a stain have none"),
    (Output::Preview, "Preview picture", "A PNG of the middle slice"),
    (Output::Preprocessed, "Preprocessed stack", "The stack after the preprocessing steps, if there are any"),
];

/// Maximum memory and number of threads of predictions.
pub(super) fn limits(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let hint = "Maximum memory of predictions and meshes; automatic is three quarters of the free memory";
    let memory = OptionalNumber::memory("Memory budget", hint);
    if let Some(mib) = memory.show(ui, SettingRow::Line, state.settings().memory_budget_mib) {
        actions.send(DisplayAction::MemoryBudget(mib));
    }
    let hint = "Number of threads of predictions; automatic uses all cores, or as many as were tuned";
    let threads = OptionalNumber::threads(hint);
    if let Some(number) = threads.show(ui, SettingRow::Line, state.settings().threads.map(|n| n as u64)) {
        actions.send(DisplayAction::Threads(number.map(|n| n as usize)));
    }
}

/// Choice of how tiles are joined, and how much they overlap.
pub(super) fn blending(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let name = |blend: Option<Blend>| match blend {
        None => "Auto (without tiles if possible)",
        Some(Blend::Crop) => "Crop",
        Some(Blend::Gaussian) => "Gaussian",
    };
    let before = state.jobs.blend();
    let mut blend = before;
    let response = labeled_choice(ui, "blending", "Blending", name(before), |ui| {
        for one in [None, Some(Blend::Crop), Some(Blend::Gaussian)] {
            ui.selectable_value(&mut blend, one, name(one));
        }
    });
    response.on_hover_text(
        "How tiles are joined. Crop: they overlap by the receptive field of the network, and their margins are discarded. \
         Gaussian: the weighted mean of overlapping tiles, for networks that normalize over the tile",
    );
    if blend != before {
        actions.send(JobsAction::Blend(blend));
    }
    if before == Some(Blend::Gaussian) {
        let overlap = OptionalNumber {
            name: "Overlap",
            unit: "%",
            hint: "Fraction of a tile that overlaps its neighbor",
            unset: "25 %",
            first: 25,
            range: 0..=(100.0 * TileRequest::MAX_OVERLAP).round() as u64,
        };
        if let Some(percent) = overlap.show(ui, SettingRow::Line, state.jobs.overlap_percent()) {
            actions.send(JobsAction::Overlap(percent));
        }
    }
}

/// Choice of the file format of maps and labels.
pub(super) fn format_choice(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let name = |format: ResultFormat| match format {
        ResultFormat::Auto => "Auto (as the stack)",
        ResultFormat::Tiff => "TIFF",
        ResultFormat::OmeZarr => "OME-Zarr",
    };
    let before = state.settings().result_format;
    let mut format = before;
    let response = labeled_choice(ui, "result format", "Result format", name(before), |ui| {
        for one in [ResultFormat::Auto, ResultFormat::Tiff, ResultFormat::OmeZarr] {
            ui.selectable_value(&mut format, one, name(one));
        }
    });
    response
        .on_hover_text("Auto: OME-Zarr for OME-Zarr stacks, TIFF for all others. OME-Zarr suits stacks of any size");
    if format != before {
        actions.send(DisplayAction::ResultFormat(format));
    }
}

/// Choice of the folder that results are written to.
pub(super) fn results_folder(ui: &mut Ui, state: State<'_>, document: &Document, actions: &mut Actions) {
    let folder = state.jobs.folder(document.id).unwrap_or(Path::new(""));
    ui.horizontal(|ui| {
        let button = ui.button(format!("{}  Results", icon::FOLDER));
        button.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, true, "Results folder"));
        if button.on_hover_text("Choose one folder for the results of all stacks").clicked() {
            let (request, folder) = (FileRequest::ResultsFolder, folder.parent().map(Into::into));
            actions.send(DocumentsAction::Ask { request, folder, name: String::new() });
        }
        if state.settings().results_folder.is_some() {
            let button = ui.button(icon::ARROW_COUNTER_CLOCKWISE);
            button.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, true, "Default results folder"));
            if button.on_hover_text("Write the results of each stack beside it again").clicked() {
                actions.send(JobsAction::ResultsFolder(None));
            }
        }
        let text = RichText::new(folder.display().to_string()).weak().size(12.0);
        // If it is cut off, its tooltip is the whole path.
        ui.add(egui::Label::new(text).truncate());
    });
}

/// Choice of the results that are written.
pub(super) fn outputs_choice(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let before = &state.settings().outputs;
    let mut outputs = before.clone();
    let mut is_chosen = !outputs.is_empty();
    let hint =
        "If off, everything that the model provides is written except the preview picture and the preprocessed stack";
    if theme::checkbox(ui, &mut is_chosen, "Choose results").on_hover_text(hint).changed() {
        outputs = match is_chosen {
            true => [Output::Maps, Output::Labels, Output::Table].into(),
            false => BTreeSet::new(),
        };
    }
    if is_chosen {
        ui.horizontal_wrapped(|ui| {
            for (output, name, hint) in OUTPUTS {
                let mut is_written = outputs.contains(&output);
                // Without any result, the default ones would be written.
                let is_last = is_written && outputs.len() == 1;
                let checkbox = Checkbox::new(&mut is_written, name);
                let response = theme::outlined(ui, |ui| ui.add_enabled(!is_last, checkbox)).on_hover_text(hint);
                if response.on_disabled_hover_text("At least one result is written").changed() {
                    match is_written {
                        true => outputs.insert(output),
                        false => outputs.remove(&output),
                    };
                }
            }
        });
    }
    if outputs != *before {
        actions.send(DisplayAction::Outputs(outputs));
    }
}

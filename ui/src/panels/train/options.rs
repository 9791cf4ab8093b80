//! The settings of the Settings page that are rarely changed: limits beside the time budget, the object diameter, the seed, the
//! license, and those without their own controls.

use super::further::further_settings;
use crate::action::Actions;
use crate::diameter::{DiameterChoice, FIRST_DIAMETER_UM};
use crate::panels::{OptionalNumber, SettingRow, number_field};
use crate::theme;
use crate::training::options::RunOptions;
use crate::training::{TrainingAction, Wizard};
use cytoscope_pipeline::DiameterUnit;
use eframe::egui::{self, RichText, Ui};

/// Highest number of steps or epochs that can be set.
const MAX_STEPS: u64 = 10_000_000;
/// Highest seed that can be set.
const MAX_SEED: f64 = u32::MAX as f64;

/// Draws the section, which is closed at first unless something is set.
pub(super) fn options_section(ui: &mut Ui, wizard: &Wizard, actions: &mut Actions) {
    let before = &wizard.plan.options;
    let mut options = before.clone();
    let is_set = *before != RunOptions::default() || !wizard.plan.further.used.is_empty();
    egui::CollapsingHeader::new("More settings").default_open(is_set).show(ui, |ui| {
        egui::Grid::new("more training settings").num_columns(2).spacing([20.0, 6.0]).show(ui, |ui| {
            let hint =
                "End after this number of passes over the training patches, unless the time budget runs out first";
            most(ui, "Max. epochs", "epochs", hint, 30, &mut options.epochs);
            let hint = "End after this number of optimizer updates, unless the time budget runs out first";
            most(ui, "Max. steps", "steps", hint, 1000, &mut options.steps);
            if wizard.finds_objects() {
                object_diameter(ui, &mut options.diameter);
            }
            seed(ui, &mut options.seed);
            license(ui, &mut options.license);
        });
        if let Some(problem) = before.license_problem() {
            ui.add(egui::Label::new(RichText::new(problem).color(theme::warn(ui.visuals()))).wrap());
        }
        further_settings(ui, wizard, actions);
    });
    if options != *before {
        actions.send(TrainingAction::Options(Box::new(options)));
    }
}

/// Draws a limit beside the time budget, which is `first` once it is set.
fn most(ui: &mut Ui, name: &str, unit: &str, hint: &str, first: u64, value: &mut Option<usize>) {
    let number = OptionalNumber { name, unit, hint, unset: "as the time allows", first, range: 1..=MAX_STEPS };
    if let Some(chosen) = number.show(ui, SettingRow::Grid, value.map(|n| n as u64)) {
        *value = chosen.map(|n| n as usize);
    }
}

/// Draws the object diameter, which is measured on the labels unless it is set.
fn object_diameter(ui: &mut Ui, value: &mut Option<f64>) {
    let choice = DiameterChoice {
        unset: ["Measured", "Measured on the labels of each pair"],
        hint: "Median diameter of the objects of all pairs, to which images are rescaled; in voxels where the voxel size is \
               unknown",
        first: FIRST_DIAMETER_UM,
        unit: DiameterUnit::Um,
        reason: None,
    };
    let label = |ui: &mut Ui| _ = ui.label("Object diameter");
    SettingRow::Grid.show(ui, label, |ui| choice.show(ui, value));
}

fn seed(ui: &mut Ui, value: &mut u64) {
    let label = |ui: &mut Ui| {
        let hint = "The same seed gives the same validation set and the same training patches";
        ui.label("Seed").on_hover_text(hint);
    };
    let mut shown = *value as f64;
    if SettingRow::Grid.show(ui, label, |ui| number_field(ui, &mut shown, 0.0..=MAX_SEED, 1.0, "Seed number")) {
        *value = shown as u64;
    }
}

fn license(ui: &mut Ui, value: &mut String) {
    let label = |ui: &mut Ui| {
        let hint = "License of the model, an identifier of https://spdx.org/licenses such as CC-BY-4.0";
        ui.label("License").on_hover_text(hint);
    };
    let field = |ui: &mut Ui| {
        let edit = egui::TextEdit::singleline(value).hint_text("of the start model, or none").desired_width(200.0);
        let edit = theme::text_field(ui, true, edit);
        edit.widget_info(|| {
            let mut info = egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, "License identifier");
            info.current_text_value = Some(value.clone());
            info
        });
    };
    SettingRow::Grid.show(ui, label, field);
}

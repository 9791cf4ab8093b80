//! The settings without their own controls on the Settings page, and the settings files of the command line.

use super::{button_row, icon_text_button};
use crate::action::Actions;
use crate::opener::FileRequest;
use crate::panels::weak;
use crate::theme;
use crate::training::further::FurtherAction;
use crate::training::{TrainingAction, Wizard};
use eframe::egui::{self, Key, RichText, Ui};
use egui_phosphor::regular as icon;

/// Maximum height of the list of settings in points, from which it scrolls.
const LIST_HEIGHT: f32 = 220.0;

/// Width of the field for a setting in points.
const FIELD_WIDTH: f32 = 260.0;

fn send(actions: &mut Actions, action: FurtherAction) {
    actions.send(TrainingAction::Further(action));
}

/// Draws the settings without controls, and the buttons that load and save all settings.
pub(super) fn further_settings(ui: &mut Ui, wizard: &Wizard, actions: &mut Actions) {
    ui.add_space(theme::GAP);
    button_row(ui, "buttons of the settings file", |ui| {
        let load = icon_text_button(ui, true, icon::FOLDER_OPEN, "Load settings…");
        let hint = "A TOML file of training settings, as cytoscope train --config reads it. It replaces the settings of this \
                    page and of the page Data, except for the data, the start model, the device, the threads and the seed.";
        if load.on_hover_text(hint).clicked() {
            actions.send(TrainingAction::Ask(FileRequest::TrainingSettings));
        }
        let save = icon_text_button(ui, true, icon::FLOPPY_DISK, "Save settings…");
        if save.on_hover_text("All settings as a TOML file, for cytoscope train --config").clicked() {
            send(actions, FurtherAction::AskSave);
        }
    });
    single_setting(ui, &wizard.plan.further.typed, actions);
    list(ui, wizard, actions);
}

/// Draws the field in which a single setting is typed.
fn single_setting(ui: &mut Ui, typed: &str, actions: &mut Actions) {
    ui.horizontal_wrapped(|ui| {
        ui.label("Setting");
        let mut text = typed.to_owned();
        let edit = egui::TextEdit::singleline(&mut text).hint_text("schedule.rate=0.001").desired_width(FIELD_WIDTH);
        let edit = theme::text_field(ui, true, edit)
            .on_hover_text("KEY=VALUE, with the keys of the settings file, which the guide lists");
        edit.widget_info(|| {
            let mut info = egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, "Single setting");
            info.current_text_value = Some(text.clone());
            info
        });
        let is_entered = edit.lost_focus() && ui.input(|input| input.key_pressed(Key::Enter));
        let may_set = !text.trim().is_empty();
        let set = icon_text_button(ui, may_set, icon::PLUS, "Set");
        let is_clicked = set.on_disabled_hover_text("Type a setting first, such as schedule.rate=0.001.").clicked();
        if text != typed {
            send(actions, FurtherAction::Type(text));
        }
        if may_set && (is_entered || is_clicked) {
            send(actions, FurtherAction::Set);
        }
    });
}

/// Lists the settings without controls that differ from the defaults.
fn list(ui: &mut Ui, wizard: &Wizard, actions: &mut Actions) {
    let used = &wizard.plan.further.used;
    if let Some(problem) = wizard.further_settings_problem() {
        ui.add(egui::Label::new(RichText::new(problem).color(theme::warn(ui.visuals()))).wrap());
    }
    if used.len() > 1 {
        ui.horizontal(|ui| {
            weak(ui, format!("{} settings", used.len()));
            if icon_text_button(ui, true, icon::X, "Remove all settings").clicked() {
                send(actions, FurtherAction::RemoveAll);
            }
        });
    }
    let area = egui::ScrollArea::vertical().id_salt("further settings").auto_shrink([false, true]);
    area.max_height(LIST_HEIGHT).show(ui, |ui| {
        for setting in used {
            ui.horizontal(|ui| {
                let remove = ui.add(egui::Button::new(icon::X).frame(false));
                let key = setting.split_once('=').map_or(setting.as_str(), |(key, _)| key);
                let name = format!("Remove the setting {key}");
                remove.widget_info(|| egui::WidgetInfo::labeled(egui::WidgetType::Button, true, &name));
                if remove.on_hover_text("Return to the default").clicked() {
                    send(actions, FurtherAction::Remove(setting.clone()));
                }
                ui.add(egui::Label::new(setting.as_str()).truncate());
            });
        }
    });
}

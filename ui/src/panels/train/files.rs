//! The settings of the Data page: channels, time point, axes, voxel size and labels of the files.

use crate::action::Actions;
use crate::panels::{number_field, weak};
use crate::state::State;
use crate::training::TrainingAction;
use cytoscope_training_data::SpacingOrder;
use eframe::egui::{self, Ui};
use std::time::Duration;

/// Time after which a waiting check is looked at again.
const RECHECK: Duration = Duration::from_millis(200);

/// Draws the settings of the files; changes are checked shortly after the last one.
pub(super) fn file_settings(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let before = &state.wizard().plan.files;
    let mut files = before.clone();
    egui::CollapsingHeader::new("Channels and metadata of the files").show(ui, |ui| {
        egui::Grid::new("file settings").num_columns(2).spacing([20.0, 6.0]).show(ui, |ui| {
            index(ui, &mut files.image_channel, "Image channel", "Channel of the images, from 0, if they have several");
            index(ui, &mut files.target_channel, "Target channel", "Channel of labels or stain, from 0");
            ui.label("One file");
            ui.checkbox(&mut files.same_file, "Image and target in one file")
                .on_hover_text("They are two channels of each file: set both channels above");
            ui.end_row();
            index(ui, &mut files.time, "Time point", "Time point of images and targets, from 0");
            axes(ui, &mut files.axes);
            voxel_size(ui, &mut files.voxel_um);
            ignore_label(ui, &mut files.ignore_label);
            column(ui, &mut files.split_column);
            spacing_order(ui, &mut files.spacing_order);
        });
        if files.same_file && (files.image_channel.is_none() || files.target_channel == files.image_channel) {
            weak(ui, "Set two different channels for image and target.");
        }
    });
    if files != *before {
        actions.send(TrainingAction::Files(Box::new(files)));
    }
    if state.training.awaits_check() {
        ui.ctx().request_repaint_after(RECHECK);
    }
}

/// Draws a checkbox that switches a setting on, with its value at first.
fn switch<T>(ui: &mut Ui, value: &mut Option<T>, first: T, name: &str, hint: &str) {
    let mut on = value.is_some();
    if ui.checkbox(&mut on, name).on_hover_text(hint).changed() {
        *value = on.then_some(first);
    }
}

fn index(ui: &mut Ui, value: &mut Option<usize>, name: &str, hint: &str) {
    switch(ui, value, 0, name, hint);
    match value {
        Some(number) => {
            let response = ui.add(egui::DragValue::new(number).range(0..=10_000).speed(0.1));
            let shown = *number as f64;
            response.widget_info(|| egui::WidgetInfo {
                value: Some(shown),
                ..egui::WidgetInfo::labeled(egui::WidgetType::DragValue, true, format!("{name} number"))
            });
        }
        None => _ = weak(ui, "of the file"),
    }
    ui.end_row();
}

fn axes(ui: &mut Ui, value: &mut Option<cytoscope_volume::Axes>) {
    ui.label("Axes");
    ui.horizontal_wrapped(|ui| {
        if ui.selectable_label(value.is_none(), "Of the file").clicked() {
            *value = None;
        }
        let shown = value.as_ref().map(ToString::to_string);
        for name in ["ZYX", "TYX", "CYX", "TZYX", "ZCYX", "CZYX", "TZCYX"] {
            if ui.selectable_label(shown.as_deref() == Some(name), name).clicked() {
                *value = name.parse().ok();
            }
        }
    });
    ui.end_row();
}

fn voxel_size(ui: &mut Ui, value: &mut Option<[f64; 3]>) {
    switch(ui, value, [1.0; 3], "Voxel size", "If the files lack their voxel size or state a wrong one");
    match value {
        Some(sizes) => {
            ui.horizontal(|ui| {
                for (axis, size) in ["Z", "Y", "X"].into_iter().zip(sizes) {
                    ui.label(axis);
                    let name = format!("Voxel size {axis}");
                    number_field(ui, size, 1e-3..=1e4, 0.01, &name);
                }
                ui.label("µm");
            });
        }
        None => _ = weak(ui, "of the file"),
    }
    ui.end_row();
}

fn ignore_label(ui: &mut Ui, value: &mut Option<i64>) {
    switch(ui, value, -1, "Ignore label", "Voxels with this label count neither in the loss nor in scores");
    match value {
        Some(label) => {
            let response = ui.add(egui::DragValue::new(label).speed(0.1));
            let shown = *label as f64;
            response.widget_info(|| egui::WidgetInfo {
                value: Some(shown),
                ..egui::WidgetInfo::labeled(egui::WidgetType::DragValue, true, "Ignore label number")
            });
        }
        None => _ = weak(ui, "none"),
    }
    ui.end_row();
}

fn column(ui: &mut Ui, value: &mut Option<String>) {
    let hint = "Column of a table that assigns rows to train, valid or test";
    switch(ui, value, "split".to_owned(), "Split column", hint);
    match value {
        Some(name) => {
            let edit = ui.add(egui::TextEdit::singleline(name).desired_width(160.0));
            edit.widget_info(|| {
                let mut info = egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, "Name of the split column");
                info.current_text_value = Some(name.clone());
                info
            });
        }
        None => _ = weak(ui, "none"),
    }
    ui.end_row();
}

fn spacing_order(ui: &mut Ui, value: &mut Option<SpacingOrder>) {
    ui.label("Spacing of nnU-Net");
    ui.horizontal_wrapped(|ui| {
        for (order, name) in
            [(None, "Automatic"), (Some(SpacingOrder::Zyx), "Z, Y, X"), (Some(SpacingOrder::Xyz), "X, Y, Z")]
        {
            if ui.selectable_label(*value == order, name).clicked() {
                *value = order;
            }
        }
    });
    ui.end_row();
}

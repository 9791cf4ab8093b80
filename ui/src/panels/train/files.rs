//! The settings of the Data page: channels, time point, axes, voxel size and labels of the files.

use crate::action::Actions;
use crate::channels::parse_channels;
use crate::engine_notes::FILE_SETTINGS;
use crate::panels::series::{is_typing_series, series_field};
use crate::panels::{number_field, weak};
use crate::state::State;
use crate::theme;
use crate::training::{Check, TrainingAction};
use cytoscope_formats::{ChannelRef, SeriesChoice};
use cytoscope_train::DataConfig;
use cytoscope_training_data::{SpacingOrder, TrainingTask};
use eframe::egui::{self, Ui};
use std::time::Duration;

/// Name of the field for one series.
const ONE_SERIES: &str = "Number or name of the series";
/// Interval at which a waiting check is looked at.
const RECHECK: Duration = Duration::from_millis(200);

/// Draws the settings of the files; changes are checked shortly after the last one.
pub(super) fn file_settings(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let wizard = state.wizard();
    let before = &wizard.plan.files;
    let mut files = before.clone();
    let label_channels = match &wizard.check {
        Check::Done(report) => report.report.label_channels(),
        _ => Vec::new(),
    };
    let has_labels = wizard.plan.task == TrainingTask::Segmentation;
    egui::CollapsingHeader::new(FILE_SETTINGS).show(ui, |ui| {
        egui::Grid::new("file settings").num_columns(2).spacing([20.0, 6.0]).show(ui, |ui| {
            let hint = "Channel of the images, from 0, if they have several";
            index(ui, &mut files.image_channel, 0, "Image channel", hint);
            index(ui, &mut files.target_channel, 0, "Target channel", "Channel of labels or stain, from 0");
            let hint = "Channels that are the inputs of the network, by name or number (from 0), separated by commas";
            channel_list(ui, &mut files.channels, "Input channels", hint);
            let hint = "Stains to predict, by name or number (from 0), separated by commas";
            channel_list(ui, &mut files.targets, "Stains", hint);
            if has_labels || files.labels_channel.is_some() {
                labels_channel(ui, &mut files.labels_channel, &label_channels);
            }
            ui.label("One file");
            theme::checkbox(ui, &mut files.same_file, "Image and target in one file")
                .on_hover_text("Image and target are channels of the same file: set both channels above");
            ui.end_row();
            series(ui, &mut files.series);
            time_point(ui, &mut files.time);
            axes(ui, &mut files.axes);
            voxel_size(ui, &mut files.voxel_um);
            ignore_label(ui, &mut files.ignore_label);
            column(ui, &mut files.split_column);
            spacing_order(ui, &mut files.spacing_order);
        });
        if files.same_file && !has_both(&files) {
            weak(ui, "Set two different channels for image and target.");
        }
    });
    keep_one_choice(&mut files, before);
    if files != *before {
        actions.send(TrainingAction::Files(Box::new(files)));
    }
    if state.training.awaits_check() {
        ui.ctx().request_repaint_after(RECHECK);
    }
}

/// Returns whether channels are set for image and target, and differ.
fn has_both(files: &DataConfig) -> bool {
    let chosen = |listed: &[ChannelRef], number: Option<usize>| match listed {
        [] => number.map(ChannelRef::Index).into_iter().collect::<Vec<_>>(),
        _ => listed.to_vec(),
    };
    let images = chosen(&files.channels, files.image_channel);
    let targets = match &files.labels_channel {
        Some(channel) => vec![channel.clone()],
        None => chosen(&files.targets, files.target_channel),
    };
    !images.is_empty() && !targets.is_empty() && images.iter().all(|channel| !targets.contains(channel))
}

/// A list of channels and a single channel cannot be used together: the one that was set last is kept.
fn keep_one_choice(files: &mut DataConfig, before: &DataConfig) {
    let settle = |listed: &mut Vec<ChannelRef>, number: &mut Option<usize>, old: Option<usize>| {
        if number.is_some() && *number != old {
            listed.clear();
        } else if !listed.is_empty() {
            *number = None;
        }
    };
    settle(&mut files.channels, &mut files.image_channel, before.image_channel);
    settle(&mut files.targets, &mut files.target_channel, before.target_channel);
    if files.labels_channel.is_some() && files.labels_channel != before.labels_channel {
        files.targets.clear();
        files.target_channel = None;
    } else if !files.targets.is_empty() || files.target_channel.is_some() {
        files.labels_channel = None;
    }
}

fn channel_list(ui: &mut Ui, value: &mut Vec<ChannelRef>, name: &str, hint: &str) {
    let mut list = (!value.is_empty()).then(|| std::mem::take(value));
    switch(ui, &mut list, vec![ChannelRef::Index(0), ChannelRef::Index(1)], name, hint);
    match list {
        Some(mut channels) => {
            // The text is kept as typed, so that a comma can be followed by another channel.
            let id = egui::Id::new(("list of channels", name));
            let is_current = |text: &String| {
                let typed = parse_channels(text);
                typed.is_empty() || typed == channels
            };
            let kept = ui.data(|data| data.get_temp::<String>(id)).filter(is_current);
            let shown = || channels.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            let mut text = kept.unwrap_or_else(shown);
            let edit = theme::text_field(ui, true, egui::TextEdit::singleline(&mut text).desired_width(160.0));
            edit.widget_info(|| {
                let mut info = egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, format!("{name} list"));
                info.current_text_value = Some(text.clone());
                info
            });
            let typed = parse_channels(&text);
            if edit.changed() && !typed.is_empty() {
                channels = typed;
            }
            if edit.has_focus() {
                ui.data_mut(|data| data.insert_temp(id, text));
            } else {
                ui.data_mut(|data| data.remove::<String>(id));
            }
            *value = channels;
        }
        None => _ = weak(ui, "from file"),
    }
    ui.end_row();
}

/// Draws the choice of the label image: of the channels that the check found in the label files, or by name or number.
fn labels_channel(ui: &mut Ui, value: &mut Option<ChannelRef>, found: &[&str]) {
    let hint = "Which labels to train on if label files have several channels or images have several label files, by name \
                or number (from 0)";
    let name = "Label image";
    let first = found.first().map_or(ChannelRef::Index(0), |name| ChannelRef::Name((*name).to_owned()));
    switch(ui, value, first, name, hint);
    ui.horizontal_wrapped(|ui| {
        let Some(channel) = value else {
            let text = match found {
                [] => "of the file".to_owned(),
                _ => format!("choose one of {}", found.join(", ")),
            };
            _ = weak(ui, text);
            return;
        };
        for name in found {
            let is_chosen =
                matches!(channel, ChannelRef::Name(chosen) if chosen.trim().eq_ignore_ascii_case(name.trim()));
            if ui.selectable_label(is_chosen, *name).clicked() {
                *channel = ChannelRef::Name((*name).to_owned());
            }
        }
        let mut text = channel.to_string();
        let edit = theme::text_field(ui, true, egui::TextEdit::singleline(&mut text).desired_width(120.0));
        edit.widget_info(|| {
            let mut info = egui::WidgetInfo::labeled(egui::WidgetType::TextEdit, true, "Name of the label image");
            info.current_text_value = Some(text.clone());
            info
        });
        if edit.changed() {
            // Spaces are kept as typed, so that a word can follow.
            *channel = match text.parse::<ChannelRef>() {
                Ok(number @ ChannelRef::Index(_)) => number,
                _ => ChannelRef::Name(text),
            };
        }
    });
    ui.end_row();
}

/// Draws a checkbox that switches a setting on, with its value at first.
fn switch<T>(ui: &mut Ui, value: &mut Option<T>, first: T, name: &str, hint: &str) {
    let mut on = value.is_some();
    if theme::checkbox(ui, &mut on, name).on_hover_text(hint).changed() {
        *value = on.then_some(first);
    }
}

/// Draws the choice of the time point, which counts from 1 in the window and from 0 in the configuration.
fn time_point(ui: &mut Ui, time: &mut Option<usize>) {
    let mut number = time.map(|time| time.saturating_add(1));
    index(ui, &mut number, 1, "Time point", "Time point of images and targets, from 1");
    *time = number.map(|number| number.saturating_sub(1));
}

/// Draws the choice of a number that counts from `first`.
fn index(ui: &mut Ui, value: &mut Option<usize>, first: usize, name: &str, hint: &str) {
    switch(ui, value, first, name, hint);
    match value {
        Some(number) => {
            let response = ui.add(egui::DragValue::new(number).range(first..=10_000).speed(0.1));
            let shown = *number as f64;
            response.widget_info(|| egui::WidgetInfo {
                value: Some(shown),
                ..egui::WidgetInfo::labeled(egui::WidgetType::DragValue, true, format!("{name} number"))
            });
        }
        None => _ = weak(ui, "from file"),
    }
    ui.end_row();
}

/// Draws the choice of the first series, all series, or one by number or name.
fn series(ui: &mut Ui, value: &mut SeriesChoice) {
    ui.label("Series");
    ui.horizontal_wrapped(|ui| {
        for (choice, name) in [(SeriesChoice::Index(0), "First series"), (SeriesChoice::All, "All series")] {
            let response = ui.selectable_label(*value == choice, name);
            if response.on_hover_text("Positions, scenes or wells of multi-series files: each is a pair").clicked() {
                *value = choice;
            }
        }
        let is_one = !value.is_first() && *value != SeriesChoice::All;
        let response = ui.selectable_label(is_one, "One series");
        if response.on_hover_text("One position, scene or well of each file, by number or name").clicked() && !is_one {
            *value = SeriesChoice::Index(1);
        }
        // While it is typed, a number may begin with that of the first series.
        if (is_one || is_typing_series(ui, ONE_SERIES))
            && let Some(choice) = series_field(ui, ONE_SERIES, value)
        {
            *value = choice;
        }
    });
    ui.end_row();
}

fn axes(ui: &mut Ui, value: &mut Option<cytoscope_volume::Axes>) {
    ui.label("Axes");
    ui.horizontal_wrapped(|ui| {
        if ui.selectable_label(value.is_none(), "From file").clicked() {
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
        None => _ = weak(ui, "from file"),
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
            let edit = theme::text_field(ui, true, egui::TextEdit::singleline(name).desired_width(160.0));
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
    ui.label("nnU-Net spacing");
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn a_list_and_a_single_channel_exclude_each_other() {
        let before = DataConfig { image_channel: Some(1), ..DataConfig::default() };
        let mut files = DataConfig { channels: parse_channels("0,1"), ..before.clone() };
        keep_one_choice(&mut files, &before);
        assert_eq!((files.image_channel, files.channels.len()), (None, 2));
        let before = files.clone();
        files.image_channel = Some(0);
        keep_one_choice(&mut files, &before);
        assert_eq!((files.image_channel, files.channels.len()), (Some(0), 0));
        let before = DataConfig { target_channel: Some(1), ..DataConfig::default() };
        let mut labels = DataConfig { labels_channel: Some(ChannelRef::Index(1)), ..before.clone() };
        keep_one_choice(&mut labels, &before);
        assert_eq!((labels.labels_channel.clone(), labels.target_channel), (Some(ChannelRef::Index(1)), None));
        let before = labels.clone();
        labels.target_channel = Some(0);
        keep_one_choice(&mut labels, &before);
        assert_eq!((labels.labels_channel, labels.target_channel), (None, Some(0)));
        files = DataConfig { targets: parse_channels("a,b"), same_file: true, ..files };
        assert!(has_both(&files));
        files.targets = parse_channels("0");
        assert!(!has_both(&files));
    }
}

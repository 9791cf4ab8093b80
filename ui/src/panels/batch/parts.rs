//! Which series, channel and time point are converted, and what is read or written with them.

use super::ask;
use crate::action::Actions;
use crate::batch::{Batch, BatchAction};
use crate::opener::FileRequest;
use crate::panels::{OptionalNumber, SettingRow, named_button, weak};
use crate::theme;
use eframe::egui::Ui;
use egui_phosphor::regular as icon;

/// Draws the choices.
pub(super) fn parts(ui: &mut Ui, batch: &Batch, actions: &mut Actions) {
    let mut all_series = batch.all_series;
    let hint = "Each series of a file becomes a separate file. The names of all but the first end in the number of the \
                series, such as NAME_s1.ome.tif.";
    if theme::checkbox(ui, &mut all_series, "All series").on_hover_text(hint).changed() {
        actions.send(BatchAction::AllSeries(all_series));
    }
    let part = |name, hint| OptionalNumber { name, unit: "", hint, unset: "all", first: 0, range: 0..=1_000_000 };
    let channel = part("One channel", "The only channel to convert, counted from 0");
    if let Some(channel) = channel.show(ui, SettingRow::Line, batch.channel.map(|n| n as u64)) {
        actions.send(BatchAction::ConvertChannel(channel.map(|n| n as usize)));
    }
    let hint = "The only time point to convert, counted from 1; in the name of the new file, it is counted from 0";
    let time = OptionalNumber { first: 1, range: 1..=1_000_001, ..part("One time point", hint) };
    if let Some(time) = time.show(ui, SettingRow::Line, batch.time.map(|n| n as u64 + 1)) {
        actions.send(BatchAction::ConvertTime(time.map(|n| n.saturating_sub(1) as usize)));
    }
    if batch.format.holds_labels() {
        with_labels(ui, batch, actions);
    }
    if batch.has_regions() {
        regions(ui, batch, actions);
    }
}

/// Draws whether the labels of open stacks are stored with them.
fn with_labels(ui: &mut Ui, batch: &Batch, actions: &mut Actions) {
    let mut with_labels = batch.with_labels && !batch.all_series;
    let checkbox = |ui: &mut Ui| theme::checkbox(ui, &mut with_labels, "With labels of open stacks");
    let response = ui.add_enabled_ui(!batch.all_series, checkbox).inner;
    let hint = "Labels that an open stack shows become a label image in its OME-Zarr; save them first";
    let response = response.on_hover_text(hint).on_disabled_hover_text("They belong to one series of the file");
    if response.changed() {
        actions.send(BatchAction::WithLabels(with_labels));
    }
}

/// Draws the stack that the regions of ROI sets are drawn on.
fn regions(ui: &mut Ui, batch: &Batch, actions: &mut Actions) {
    ui.horizontal_wrapped(|ui| {
        let hint = "Labels made from an ImageJ ROI set get the shape and the time points of this stack; a set made from \
                    labels gets positions that Fiji shows in a stack of several channels";
        if named_button(ui, true, icon::STACK, "Stack of the regions…").on_hover_text(hint).clicked() {
            let folder = batch.like.as_deref().or(batch.files.first().map(|file| file.as_path()));
            ask(FileRequest::RegionsStack, folder.and_then(|path| path.parent()), actions);
        }
        match &batch.like {
            Some(stack) => {
                weak(ui, stack.display().to_string());
                if named_button(ui, true, icon::X, "No stack").clicked() {
                    actions.send(BatchAction::Like(None));
                }
            }
            None => _ = weak(ui, "None: labels just contain the regions, and sets are for one channel"),
        }
    });
}

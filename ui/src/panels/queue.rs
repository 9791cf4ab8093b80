//! The bar that offers to continue the predictions of an earlier window.

use crate::action::Actions;
use crate::document::file_name;
use crate::jobs::JobsAction;
use crate::panels::named_primary_button;
use crate::state::State;
use crate::theme;
use eframe::egui::{self, RichText, Ui};
use egui_phosphor::regular as icon;

/// Draws the bar, if there are unfinished predictions.
pub(super) fn queue_bar(ui: &mut Ui, state: State<'_>, actions: &mut Actions) {
    let names: Vec<String> = state.jobs.abandoned().map(file_name).collect();
    if names.is_empty() {
        return;
    }
    let frame = egui::Frame::new().fill(ui.visuals().faint_bg_color).inner_margin(egui::Margin::symmetric(10, 6));
    egui::Panel::top("unfinished").frame(frame).show(ui, |ui| {
        ui.horizontal(|ui| {
            ui.label(RichText::new(icon::QUEUE).size(16.0).color(theme::ACCENT));
            let text = match names.as_slice() {
                [one] => format!("The prediction of {one} was not finished."),
                all => format!("{} predictions were not finished.", all.len()),
            };
            ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
                if ui.button("Discard").on_hover_text("The stacks and their existing results are kept").clicked() {
                    actions.send(JobsAction::DiscardQueue);
                }
                if named_primary_button(ui, true, icon::PLAY, "Continue").clicked() {
                    actions.send(JobsAction::ContinueQueue);
                }
                // The buttons keep their place beside a long name.
                ui.with_layout(egui::Layout::left_to_right(egui::Align::Center), |ui| {
                    ui.add(egui::Label::new(text).truncate()).on_hover_text(names.join("\n"));
                });
            });
        });
    });
}

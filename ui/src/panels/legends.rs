//! Legends outside of plots, where they cover no curve.

use eframe::egui::{self, Color32, Ui};
use egui_phosphor::regular as icon;

/// Draws the names of the curves of a plot beside each other, with their colors.
pub(crate) fn legend<'a>(ui: &mut Ui, curves: impl IntoIterator<Item = (Color32, &'a str)>) {
    ui.horizontal_wrapped(|ui| {
        for (color, name) in curves {
            legend_entry(ui, color, name);
        }
    });
}

/// A legend entry: a colored square and its text.
pub(super) fn legend_entry(ui: &mut Ui, color: Color32, text: &str) -> egui::Response {
    let font = egui::TextStyle::Body.resolve(ui.style());
    let format = |color| egui::TextFormat::simple(font.clone(), color);
    let mut job = egui::text::LayoutJob::default();
    job.append(icon::SQUARE, 0.0, format(color));
    job.append(text, 4.0, format(ui.visuals().text_color()));
    ui.add(egui::Label::new(job).extend())
}

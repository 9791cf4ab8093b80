//! Legends outside of plots, where they cover no curve.

use crate::theme;
use eframe::egui::{self, Color32, Ui};
use egui_phosphor::regular as icon;

/// Draws the names of the curves of a plot beside each other, with their colors.
pub(crate) fn legend<'a>(ui: &mut Ui, curves: impl IntoIterator<Item = (Color32, &'a str)>) {
    ui.horizontal_wrapped(|ui| {
        for (color, name) in curves {
            legend_entry(ui, color, Color32::TRANSPARENT, name);
        }
    });
}

/// A legend entry for outlines on images: the colored square has the background of images, so that bright colors are seen in the
/// light theme.
pub(super) fn outline_entry(ui: &mut Ui, color: Color32, text: &str) -> egui::Response {
    legend_entry(ui, color, theme::IMAGE_BACKGROUND, text)
}

/// A legend entry: a colored square on a background, and its text.
fn legend_entry(ui: &mut Ui, color: Color32, background: Color32, text: &str) -> egui::Response {
    let font = egui::TextStyle::Body.resolve(ui.style());
    let format = |color| egui::TextFormat::simple(font.clone(), color);
    let mut job = egui::text::LayoutJob::default();
    job.append(icon::SQUARE, 0.0, egui::TextFormat { background, ..format(color) });
    job.append(text, 4.0, format(ui.visuals().text_color()));
    ui.add(egui::Label::new(job).extend())
}

#[cfg(test)]
mod tests {
    use super::*;
    use egui_kittest::Harness;

    #[test]
    fn outlines_in_a_legend_have_the_background_of_images() {
        let mut window = Harness::builder().with_size([400.0, 200.0]).build_ui(|ui| {
            theme::install(ui.ctx());
            legend(ui, [(theme::ACCENT, "raw")]);
            outline_entry(ui, theme::TRUE_OUTLINE, "missed");
        });
        window.run_steps(2);
        let backgrounds = |text: &egui::epaint::TextShape| -> Vec<Color32> {
            text.galley.job.sections.iter().map(|section| section.format.background).collect()
        };
        let drawn: Vec<Vec<Color32>> = window
            .output()
            .shapes
            .iter()
            .filter_map(|clipped| match &clipped.shape {
                egui::Shape::Text(text) => Some(backgrounds(text)),
                _ => None,
            })
            .collect();
        let plain = Color32::TRANSPARENT;
        assert_eq!(drawn, [vec![plain, plain], vec![theme::IMAGE_BACKGROUND, plain]]);
    }
}

//! Sliders with labels.

use eframe::egui::{self, Ui};

/// Width of the number beside a slider in points: up to five characters fit, so that the labels of sliders are below each other.
const SLIDER_NUMBER: f32 = 56.0;

/// Least width of a slider in points.
const MIN_SLIDER: f32 = 40.0;

/// Width of a slider in points that leaves space for its number and its label: a row that is wider than its panel would widen
/// the panel.
fn slider_width(ui: &Ui, name: &str) -> f32 {
    let text = egui::WidgetText::from(name).into_galley(
        ui,
        Some(egui::TextWrapMode::Extend),
        f32::INFINITY,
        egui::TextStyle::Body,
    );
    let (usual, gaps) = (ui.spacing().slider_width, 2.0 * ui.spacing().item_spacing.x);
    let available = ui.available_width() - text.size().x - SLIDER_NUMBER - gaps;
    available.min(usual).max(MIN_SLIDER)
}

/// Draws sliders of these names, and other widgets, with `add`. The sliders are equally wide, so that their numbers are below
/// each other.
pub(crate) fn with_aligned_sliders<R>(ui: &mut Ui, names: &[&str], add: impl FnOnce(&mut Ui) -> R) -> R {
    let usual = ui.spacing().slider_width;
    ui.spacing_mut().slider_width = names.iter().map(|name| slider_width(ui, name)).fold(usual, f32::min);
    let added = add(ui);
    ui.spacing_mut().slider_width = usual;
    added
}

/// A slider with a label; returns whether the value changed.
pub(crate) fn named_slider(
    ui: &mut Ui,
    value: &mut f32,
    range: std::ops::RangeInclusive<f32>,
    name: &str,
    logarithmic: bool,
) -> bool {
    labeled_slider(ui, value, range, name, logarithmic).changed()
}

/// A slider with a label; returns its response, for a tooltip.
pub(crate) fn labeled_slider(
    ui: &mut Ui,
    value: &mut f32,
    range: std::ops::RangeInclusive<f32>,
    name: &str,
    logarithmic: bool,
) -> egui::Response {
    // `max_decimals` would round the value itself, and with it settings that a model has chosen.
    let shown = |value: f64, decimals: std::ops::RangeInclusive<usize>| {
        egui::emath::format_with_decimals_in_range(value, (*decimals.start()).min(2)..=(*decimals.end()).min(2))
    };
    let usual = (ui.spacing().slider_width, ui.spacing().interact_size.x);
    ui.spacing_mut().slider_width = slider_width(ui, name);
    ui.spacing_mut().interact_size.x = SLIDER_NUMBER;
    let slider = egui::Slider::new(value, range).logarithmic(logarithmic).custom_formatter(shown).text(name);
    // A value outside of the range, such as one that was set on the command line, is shown, and stays until the slider is moved.
    let response = ui.add(slider.clamping(egui::SliderClamping::Edits));
    (ui.spacing_mut().slider_width, ui.spacing_mut().interact_size.x) = usual;
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::theme;
    use egui_kittest::Harness;
    use egui_kittest::kittest::Queryable;

    #[test]
    fn labels_of_sliders_are_below_each_other_whatever_their_numbers() {
        let mut window = Harness::builder().with_size([400.0, 200.0]).build_ui(|ui| {
            theme::install(ui.ctx());
            labeled_slider(ui, &mut 0.5, 0.0..=1.0, "Threshold", false);
            labeled_slider(ui, &mut 27.9, 0.0..=2000.0, "Min. volume", true);
        });
        window.run_steps(4);
        // The label follows the slider and its number.
        let left = |name: &str| {
            let lefts = window.query_all_by_label(name).map(|node| node.rect().left());
            lefts.fold(f32::NEG_INFINITY, f32::max)
        };
        let lefts = ["Threshold", "Min. volume"].map(left);
        assert!(lefts[0] > 100.0 && (lefts[0] - lefts[1]).abs() < 1.0, "{lefts:?}");
    }
}

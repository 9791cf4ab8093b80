//! The contrast limits of a channel or layer: a histogram with draggable limits, and their numbers.

use crate::data::composite::Intensity;
use crate::data::histogram::Histogram;
use crate::theme;
use eframe::egui::{self, Color32, Key, Sense, Stroke, StrokeKind, Ui, pos2, vec2};

/// Draws a histogram with draggable contrast limits, and fields for their numbers; `name` is that of the channel or layer.
pub(super) fn contrast(ui: &mut Ui, histogram: &Histogram, display: &mut Intensity, name: &str) {
    let width = ui.available_width();
    let (rect, response) = ui.allocate_exact_size(vec2(width, 54.0), Sense::click_and_drag());
    response.widget_info(|| {
        egui::WidgetInfo::labeled(
            egui::WidgetType::Slider,
            true,
            format!("Contrast of {name}, {} to {}", display.low, display.high),
        )
    });
    let painter = ui.painter_at(rect);
    painter.rect_filled(rect, 4.0, ui.visuals().extreme_bg_color);
    // The plot spans the limits with a margin, but not more than the data and the limits.
    let (auto_low, auto_high) = histogram.limits();
    let margin = (auto_high - auto_low).max(f32::MIN_POSITIVE) * 0.5;
    let from = display.low.min(auto_low - margin).max(histogram.low.min(display.low));
    let to = display.high.max(auto_high + margin).min(histogram.high.max(display.high));
    let span = (to - from).max(f32::MIN_POSITIVE);
    let x = |v: f32| rect.left() + rect.width() * ((v - from) / span);
    draw_bars(&painter, rect, histogram, x, ui.visuals().weak_text_color());
    for v in [display.low, display.high] {
        painter.line_segment([pos2(x(v), rect.top()), pos2(x(v), rect.bottom())], Stroke::new(2.0, theme::ACCENT));
    }
    if let (true, Some(at)) = (response.dragged() || response.clicked(), response.interact_pointer_pos()) {
        let value = from + ((at.x - rect.left()) / rect.width()).clamp(0.0, 1.0) * span;
        drag_limit(ui, &response, value, span * 1e-4, display);
    }
    if response.has_focus() {
        painter.rect_stroke(rect, 4.0, Stroke::new(1.5, theme::ACCENT), StrokeKind::Inside);
        contrast_keys(ui, response.id, span, display);
    }
    response.on_hover_text(
        "Drag the limits. The left and right arrow keys move the lower limit, down and up the upper one; with Shift in \
         larger steps",
    );
    limit_fields(ui, histogram, display, name, span);
}

/// Draws the bars of a histogram; `x` is the position of a value.
fn draw_bars(painter: &egui::Painter, rect: egui::Rect, histogram: &Histogram, x: impl Fn(f32) -> f32, color: Color32) {
    let max = histogram.counts.iter().copied().max().unwrap_or(1).max(1) as f32;
    let bin = (histogram.high - histogram.low) / histogram.counts.len().max(1) as f32;
    for (i, count) in histogram.counts.iter().enumerate().filter(|(_, c)| **c > 0) {
        let left = x(histogram.low + i as f32 * bin);
        let right = x(histogram.low + (i + 1) as f32 * bin).max(left + 1.0);
        let height = ((*count as f32).ln_1p() / max.ln_1p()) * (rect.height() - 6.0);
        let bar = egui::Rect::from_min_max(pos2(left, rect.bottom() - height), pos2(right, rect.bottom()));
        painter.rect_filled(bar, 0.0, color);
    }
}

/// Moves the limit that was nearer at the start of the drag to a value, at least `min_gap` from the other one.
fn drag_limit(ui: &Ui, response: &egui::Response, value: f32, min_gap: f32, display: &mut Intensity) {
    let id = response.id.with("which");
    if response.drag_started() || response.clicked() {
        // The arrow keys move the limits from now on.
        response.request_focus();
        let low = (value - display.low).abs() < (value - display.high).abs();
        ui.data_mut(|d| d.insert_temp(id, low));
    }
    if ui.data(|d| d.get_temp(id)).unwrap_or(true) {
        display.low = value.min(display.high - min_gap);
    } else {
        display.high = value.max(display.low + min_gap);
    }
}

/// Moves the other limit along if the lower or the upper one was set beyond it: the image would be black.
fn keep_apart(display: &mut Intensity, is_lower: bool, min_gap: f32) {
    // The gap may be less than what a float can add to a large number.
    let above = |value: f32| (value + min_gap).max(value.next_up());
    match is_lower {
        true => display.high = display.high.max(above(display.low)),
        false => display.low = display.low.min(-above(-display.high)),
    }
}

/// A field for a contrast limit. It changes the limit once the number is complete, whose first digits may be those of one beyond
/// the other limit.
fn limit_field(limit: &mut f32, speed: f64, digits: usize) -> egui::DragValue<'_> {
    egui::DragValue::new(limit).speed(speed).max_decimals(digits).update_while_editing(false)
}

/// Draws the numbers of both contrast limits, and the button that sets them from the slice; `span` is the range of the plot.
fn limit_fields(ui: &mut Ui, histogram: &Histogram, display: &mut Intensity, name: &str, span: f32) {
    ui.horizontal(|ui| {
        let speed = f64::from(span) / 400.0;
        let digits = match span {
            span if span > 20.0 => 0,
            span if span > 0.2 => 3,
            _ => 6,
        };
        let min_gap = span * 1e-4;
        let low = ui.add(limit_field(&mut display.low, speed, digits));
        if low.changed() {
            keep_apart(display, true, min_gap);
        }
        low.widget_info(|| {
            egui::WidgetInfo::labeled(egui::WidgetType::DragValue, true, format!("Lower limit of {name}"))
        });
        ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
            let high = ui.add(limit_field(&mut display.high, speed, digits));
            if high.changed() {
                keep_apart(display, false, min_gap);
            }
            high.widget_info(|| {
                egui::WidgetInfo::labeled(egui::WidgetType::DragValue, true, format!("Upper limit of {name}"))
            });
            if ui.small_button("Auto").on_hover_text("Set the limits from this slice").clicked() {
                (display.low, display.high) = histogram.limits();
            }
        });
    });
}

/// Moves the contrast limits with the arrow keys by a hundredth of `span`, the range of the focused histogram, or a tenth
/// with Shift.
fn contrast_keys(ui: &Ui, histogram: egui::Id, span: f32, display: &mut Intensity) {
    crate::views::keep_arrow_keys(ui, histogram);
    let step = if ui.input(|i| i.modifiers.shift) { span / 10.0 } else { span / 100.0 };
    let steps = |back: Key, forth: Key| ui.input(|i| i.num_presses(forth) as f32 - i.num_presses(back) as f32);
    let (low, high) = (steps(Key::ArrowLeft, Key::ArrowRight) * step, steps(Key::ArrowDown, Key::ArrowUp) * step);
    let min_gap = span * 1e-4;
    if low != 0.0 {
        display.low = (display.low + low).min(display.high - min_gap);
    }
    if high != 0.0 {
        display.high = (display.high + high).max(display.low + min_gap);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Overlay;

    #[test]
    fn a_contrast_limit_that_passes_the_other_one_moves_it_along() {
        let mut display = Overlay::map_display();
        for (low, high) in [(0.0, 1.0), (5.0, 1.0), (60_000.0, 60_000.0)] {
            (display.low, display.high) = (low, high);
            keep_apart(&mut display, true, 1e-4);
            assert!(display.low.to_bits() == low.to_bits() && display.high > low, "{low} {high}");
            (display.low, display.high) = (low, high);
            keep_apart(&mut display, false, 1e-4);
            assert!(display.high.to_bits() == high.to_bits() && display.low < high, "{low} {high}");
        }
        assert!(display.low < 60_000.0);
    }
}

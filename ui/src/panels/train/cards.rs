//! Cards to choose from: tasks, start models and times.

use crate::theme;
use cytoscope_formats::label_color;
use cytoscope_training_data::TrainingTask;
use eframe::egui::{
    self, Align2, Color32, FontId, Painter, Pos2, Rect, Response, Sense, Stroke, StrokeKind, Ui, Vec2, pos2, vec2,
};
use egui_phosphor::regular as icon;

/// Height of a task picture in points.
const PICTURE: f32 = 132.0;

/// Cells in the pictures: center x and y and radius, as fractions of the picture.
const CELLS: [(f32, f32, f32); 8] = [
    (0.22, 0.25, 0.15),
    (0.55, 0.19, 0.11),
    (0.86, 0.30, 0.15),
    (0.16, 0.66, 0.12),
    (0.44, 0.55, 0.15),
    (0.74, 0.62, 0.12),
    (0.33, 0.86, 0.10),
    (0.92, 0.84, 0.12),
];

/// Stroke and fill of a card.
fn stroke(ui: &Ui, response: &Response, selected: bool) -> (Stroke, Color32) {
    let visuals = ui.visuals();
    let stroke = if selected {
        Stroke::new(2.0, theme::ACCENT)
    } else if response.has_focus() || response.hovered() {
        Stroke::new(1.5, visuals.widgets.hovered.bg_stroke.color)
    } else {
        visuals.widgets.noninteractive.bg_stroke
    };
    let fill = if selected { theme::ACCENT.gamma_multiply(0.14) } else { visuals.faint_bg_color };
    (stroke, fill)
}

/// Draws a ring around the focused card.
fn focus_ring(ui: &Ui, response: &Response, rect: Rect) {
    if response.has_focus() {
        let ring = Stroke::new(2.0, ui.visuals().hyperlink_color);
        ui.painter().rect_stroke(rect.expand(3.0), 12.0, ring, StrokeKind::Outside);
    }
}

fn radio_info(response: &Response, enabled: bool, selected: bool, name: &str) {
    response.widget_info(|| egui::WidgetInfo::selected(egui::WidgetType::RadioButton, enabled, selected, name));
}

/// A card with a picture of a task, its name and a description.
pub(super) fn task_card(
    ui: &mut Ui,
    width: f32,
    selected: bool,
    task: TrainingTask,
    name: &str,
    description: &str,
) -> Response {
    let text = ui.painter().layout(
        description.to_owned(),
        FontId::proportional(13.0),
        ui.visuals().widgets.noninteractive.fg_stroke.color,
        width - 32.0,
    );
    let size = vec2(width, PICTURE + 32.0 + 34.0 + text.size().y + 12.0);
    let (rect, response) = ui.allocate_exact_size(size, Sense::click());
    radio_info(&response, true, selected, name);
    let (stroke, fill) = stroke(ui, &response, selected);
    let painter = ui.painter();
    painter.rect(rect, 10.0, fill, stroke, StrokeKind::Inside);
    let picture = Rect::from_min_size(rect.min + vec2(16.0, 16.0), vec2(width - 32.0, PICTURE));
    draw_task(painter, picture, task);
    let at = pos2(rect.left() + 16.0, picture.bottom() + 14.0);
    painter.text(at, Align2::LEFT_TOP, name, FontId::proportional(17.0), ui.visuals().strong_text_color());
    painter.galley(at + vec2(0.0, 28.0), text, ui.visuals().text_color());
    if selected {
        let at = pos2(rect.right() - 16.0, at.y);
        painter.text(at, Align2::RIGHT_TOP, icon::CHECK_CIRCLE, FontId::proportional(19.0), theme::ACCENT);
    }
    focus_ring(ui, &response, rect);
    response
}

fn draw_task(painter: &Painter, rect: Rect, task: TrainingTask) {
    let painter = painter.with_clip_rect(rect);
    let gap = 34.0;
    let half = vec2((rect.width() - gap) / 2.0, rect.height());
    let left = Rect::from_min_size(rect.min, half);
    let right = Rect::from_min_size(pos2(rect.right() - half.x, rect.top()), half);
    let bright_field = task == TrainingTask::LabelFree;
    let ground = if bright_field { theme::BRIGHT_FIELD } else { theme::IMAGE_BACKGROUND };
    painter.rect_filled(left, 6.0, ground);
    painter.rect_filled(right, 6.0, theme::IMAGE_BACKGROUND);
    let place = |r: Rect, (x, y, s): (f32, f32, f32)| -> (Pos2, f32) {
        (r.min + Vec2::new(x * r.width(), y * r.height()), s * r.height().min(r.width()))
    };
    for (i, cell) in CELLS.into_iter().enumerate() {
        let (at, radius) = place(left, cell);
        let inside = painter.with_clip_rect(left);
        if bright_field {
            inside.circle(
                at,
                radius * 1.25,
                theme::BRIGHT_FIELD.gamma_multiply(0.9),
                Stroke::new(2.0, theme::BRIGHT_RIM),
            );
            inside.circle_stroke(at, radius * 1.25 + 2.0, Stroke::new(1.0, theme::BRIGHT_EDGE));
            inside.circle_filled(at, radius * 0.2, theme::BRIGHT_EDGE);
        } else {
            for part in [1.0, 0.8, 0.6] {
                inside.circle_filled(at, radius * part, theme::ON_IMAGE.gamma_multiply(0.16 + 0.2 * (1.0 - part)));
            }
        }
        let (at, radius) = place(right, cell);
        let inside = painter.with_clip_rect(right);
        if bright_field {
            for part in [1.0, 0.8, 0.6] {
                inside.circle_filled(at, radius * part, theme::STAIN.gamma_multiply(0.22 + 0.3 * (1.0 - part)));
            }
        } else {
            let [r, g, b] = label_color(i as u64 + 1);
            let color = Color32::from_rgb(r, g, b);
            inside.circle(at, radius, color.gamma_multiply(0.55), Stroke::new(1.5, color));
        }
    }
    let middle = rect.center();
    painter.text(middle, Align2::CENTER_CENTER, icon::ARROW_RIGHT, FontId::proportional(20.0), theme::ACCENT);
}

/// A selectable row: a name, a note on its origin, and a description.
pub(super) fn row(ui: &mut Ui, selected: bool, name: &str, mark: &str, description: &str) -> Response {
    let width = ui.available_width();
    let weak = ui.visuals().weak_text_color();
    let text = ui.painter().layout(description.to_owned(), FontId::proportional(12.5), weak, width - 56.0);
    let (rect, response) = ui.allocate_exact_size(vec2(width, 36.0 + text.size().y), Sense::click());
    radio_info(&response, true, selected, name);
    let (stroke, fill) = stroke(ui, &response, selected);
    let painter = ui.painter();
    painter.rect(rect, 8.0, fill, stroke, StrokeKind::Inside);
    let center = rect.min + vec2(21.0, 19.0);
    let ink = ui.visuals().strong_text_color();
    painter.circle_stroke(center, 7.0, Stroke::new(1.5, if selected { theme::ACCENT } else { weak }));
    if selected {
        painter.circle_filled(center, 4.0, theme::ACCENT);
    }
    let at = rect.min + vec2(40.0, 10.0);
    let galley = painter.layout_no_wrap(name.to_owned(), FontId::proportional(14.5), ink);
    let end = galley.size().x;
    painter.with_clip_rect(rect.shrink(8.0)).galley(at, galley, ink);
    let beside = at + vec2(end + 10.0, 2.5);
    painter.with_clip_rect(rect.shrink(8.0)).text(beside, Align2::LEFT_TOP, mark, FontId::proportional(12.0), weak);
    painter.galley(at + vec2(0.0, 20.0), text, weak);
    focus_ring(ui, &response, rect.shrink(2.0));
    response
}

/// A card for a time budget.
pub(super) fn time(ui: &mut Ui, width: f32, selected: bool, name: &str, minutes: f64) -> Response {
    let (rect, response) = ui.allocate_exact_size(vec2(width, 58.0), Sense::click());
    radio_info(&response, true, selected, name);
    let (stroke, fill) = stroke(ui, &response, selected);
    let painter = ui.painter();
    painter.rect(rect, 8.0, fill, stroke, StrokeKind::Inside);
    let at = rect.center_top() + vec2(0.0, 11.0);
    painter.text(at, Align2::CENTER_TOP, name, FontId::proportional(14.5), ui.visuals().strong_text_color());
    let text = format!("{minutes:.0} minutes");
    let at = at + vec2(0.0, 20.0);
    painter.text(at, Align2::CENTER_TOP, text, FontId::proportional(12.0), ui.visuals().weak_text_color());
    focus_ring(ui, &response, rect.shrink(2.0));
    response
}

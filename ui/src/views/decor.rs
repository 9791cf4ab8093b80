//! Crosshair, ring, outline of a crop, scale bar and captions on the views.

use super::scale_bar;
use crate::data::plane::Orientation;
use crate::theme;
use eframe::egui::{self, Align2, FontId, Pos2, Rect, Stroke, StrokeKind, pos2, vec2};

/// Draws the crosshair at a voxel Z, Y, X.
pub(super) fn draw_crosshair(
    painter: &egui::Painter,
    rect: Rect,
    to_screen: impl Fn(f64, f64) -> Pos2,
    crosshair: [usize; 3],
    orientation: Orientation,
) {
    let [_, row_axis, column_axis] = orientation.axes();
    let at = to_screen(crosshair[row_axis] as f64 + 0.5, crosshair[column_axis] as f64 + 0.5);
    let stroke = Stroke::new(1.0, theme::CROSSHAIR);
    let gap = 9.0;
    for (a, b) in [
        (pos2(rect.left(), at.y), pos2(at.x - gap, at.y)),
        (pos2(at.x + gap, at.y), pos2(rect.right(), at.y)),
        (pos2(at.x, rect.top()), pos2(at.x, at.y - gap)),
        (pos2(at.x, at.y + gap), pos2(at.x, rect.bottom())),
    ] {
        painter.line_segment([a, b], stroke);
    }
}

/// Draws a ring around the crosshair; `diameter` is in points.
pub(super) fn draw_ring(
    painter: &egui::Painter,
    rect: Rect,
    to_screen: impl Fn(f64, f64) -> Pos2,
    crosshair: [usize; 3],
    orientation: Orientation,
    diameter: f64,
) {
    let [_, row_axis, column_axis] = orientation.axes();
    let at = to_screen(crosshair[row_axis] as f64 + 0.5, crosshair[column_axis] as f64 + 0.5);
    if !rect.contains(at) || diameter < 2.0 {
        return;
    }
    let radius = (0.5 * diameter) as f32;
    painter.circle_stroke(at, radius, Stroke::new(3.0, theme::IMAGE_SHADE));
    painter.circle_stroke(at, radius, Stroke::new(1.5, theme::ACCENT));
}

/// Draws the outline of a crop, from the first voxel along Z, Y, X to before the last; it is dim in slices outside of the crop.
pub(super) fn draw_crop(
    painter: &egui::Painter,
    to_screen: impl Fn(f64, f64) -> Pos2,
    crop: [[usize; 2]; 3],
    crosshair: [usize; 3],
    orientation: Orientation,
) {
    let [normal_axis, row_axis, column_axis] = orientation.axes();
    let corner = |end: usize| to_screen(crop[row_axis][end] as f64, crop[column_axis][end] as f64);
    let rect = Rect::from_min_max(corner(0), corner(1));
    let [start, end] = crop[normal_axis];
    let share = if (start..end).contains(&crosshair[normal_axis]) { 1.0 } else { 0.4 };
    for (width, color) in [(3.0f32, theme::IMAGE_SHADE), (1.5, theme::ACCENT)] {
        painter.rect_stroke(rect, 0.0, Stroke::new(width, color.gamma_multiply(share)), StrokeKind::Middle);
    }
}

/// Draws the scale bar in the lower left corner.
pub(super) fn draw_scale_bar(painter: &egui::Painter, rect: Rect, points_per_um: f64) {
    let Some(um) = scale_bar::length_um(points_per_um, f64::from(rect.width() * 0.25).clamp(30.0, 160.0)) else {
        return;
    };
    let length = (um * points_per_um) as f32;
    let left = rect.left_bottom() + vec2(12.0, -14.0);
    let bar = Rect::from_min_size(left - vec2(0.0, 3.0), vec2(length, 3.0));
    painter.rect_filled(bar.expand(1.0), 1.0, theme::IMAGE_SHADE);
    painter.rect_filled(bar, 0.0, theme::ON_IMAGE);
    draw_caption(painter, bar.left_top() - vec2(0.0, 4.0), Align2::LEFT_BOTTOM, &scale_bar::text(um));
}

/// Draws a text of several lines on a dark background in the middle of a view.
pub(super) fn draw_message(painter: &egui::Painter, rect: Rect, text: String) {
    let width = (rect.width() - 40.0).max(60.0);
    let galley = painter.layout(text, FontId::proportional(13.0), theme::ON_IMAGE, width);
    let place = Align2::CENTER_CENTER.anchor_size(rect.center(), galley.size());
    painter.rect_filled(place.expand2(vec2(6.0, 4.0)), 3.0, theme::IMAGE_SHADE);
    painter.galley(place.min, galley, theme::ON_IMAGE);
}

/// Draws a text on a dark background.
pub(super) fn draw_caption(painter: &egui::Painter, at: Pos2, anchor: Align2, text: &str) {
    let font = FontId::proportional(12.0);
    let galley = painter.layout_no_wrap(text.to_owned(), font, theme::ON_IMAGE);
    let rect = anchor.anchor_size(at, galley.size());
    painter.rect_filled(rect.expand2(vec2(4.0, 2.0)), 3.0, theme::IMAGE_SHADE);
    painter.galley(rect.min, galley, theme::ON_IMAGE);
}

//! Drawing in a view: pointer events, and the marks and brush cursor that are drawn.

use super::decor::draw_caption;
use crate::data::plane::Orientation;
use crate::document::Document;
use crate::theme;
use eframe::egui::{self, Align2, Color32, Painter, PointerButton, Pos2, Response, Stroke, Ui, vec2};

/// Phases of a pointer gesture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PointerPhase {
    /// The button was pressed.
    Down,
    /// The pointer moved with the button pressed.
    Move,
    /// The button was released.
    Up,
}

/// A pointer event in a view.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PointerEvent {
    /// Whether the gesture begins, continues or ends.
    pub phase: PointerPhase,
    /// Position in voxel coordinates Z, Y, X; integers are voxel centers.
    pub zyx: [f64; 3],
    /// Orientation of the slice that the pointer is over.
    pub view: Orientation,
}

/// The drawing tool whose cursor the views show.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pen {
    /// Brush radius in µm, if the tool has a brush.
    pub radius_um: Option<f64>,
    /// Whether the brush is a ball across slices.
    pub ball: bool,
    /// Color of the cursor.
    pub color: Color32,
    /// The voxel under the pointer in the last frame, in any view.
    pub at: Option<[usize; 3]>,
}

/// Points and lines drawn in the views.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Marks {
    /// Selected points in voxel coordinates Z, Y, X.
    pub points: Vec<[f64; 3]>,
    /// Points of the line being drawn.
    pub line: Vec<[f64; 3]>,
    /// View in which the line is drawn.
    pub line_view: Option<Orientation>,
    /// Line along which the line profile shows intensities.
    pub profile_line: Option<crate::line_profile::ProfileLine>,
}

/// Points are drawn in slices up to this many voxels away.
const NEAR_SLICES: f64 = 0.75;

/// Where egui keeps whether a menu or a list was open when the frame began.
fn open_popup() -> egui::Id {
    egui::Id::new("popup that is open as the frame begins")
}

/// Keeps whether a menu or a list is open: the click that closes it draws nothing. Called before any of them is drawn, since it
/// may be closed in this frame.
pub(crate) fn note_open_popup(ctx: &egui::Context) {
    let is_open = egui::Popup::is_any_open(ctx);
    ctx.data_mut(|data| data.insert_temp(open_popup(), is_open));
}

/// Pointer events with the primary button pressed. While the space bar is held, dragging pans instead.
pub(super) fn pointer_events(
    ui: &Ui,
    response: &Response,
    drawing: &mut bool,
    view: Orientation,
    at: impl Fn(Pos2) -> [f64; 3],
) -> Vec<PointerEvent> {
    let closes_popup = ui.ctx().data(|data| data.get_temp(open_popup())).unwrap_or(false);
    let over = response.contains_pointer() && !closes_popup;
    let mut events = Vec::new();
    let mut put = |phase, pos| events.push(PointerEvent { phase, zyx: at(pos), view });
    ui.input(|i| {
        for event in &i.events {
            match event {
                egui::Event::PointerButton { pos, button: PointerButton::Primary, pressed: true, .. }
                    if over && response.rect.contains(*pos) && !i.key_down(egui::Key::Space) =>
                {
                    *drawing = true;
                    put(PointerPhase::Down, *pos);
                }
                egui::Event::PointerMoved(pos) if *drawing => put(PointerPhase::Move, *pos),
                egui::Event::PointerButton { pos, button: PointerButton::Primary, pressed: false, .. } if *drawing => {
                    *drawing = false;
                    put(PointerPhase::Up, *pos);
                }
                _ => {}
            }
        }
        // The release happened outside the window.
        if *drawing && !i.pointer.primary_down() {
            *drawing = false;
            put(PointerPhase::Up, i.pointer.latest_pos().unwrap_or(response.rect.center()));
        }
    });
    events
}

/// Draws the brush at the pointer, or the intersection of its ball with this view.
pub(super) fn cursor(
    painter: &Painter,
    pen: &Pen,
    pointer: Option<Pos2>,
    document: &Document,
    view: Orientation,
    (points_per_um, to_screen): (f64, &dyn Fn(f64, f64) -> Pos2),
) {
    let Some(radius) = pen.radius_um else { return };
    let ring = |center: Pos2, radius_um: f64, share: f32| {
        let points = ((radius_um * points_per_um) as f32).max(1.5);
        painter.circle_stroke(center, points + 1.0, Stroke::new(1.0, theme::IMAGE_SHADE));
        painter.circle_stroke(center, points, Stroke::new(1.5, pen.color.gamma_multiply(share)));
    };
    if let Some(pointer) = pointer {
        ring(pointer, radius, 1.0);
        return;
    }
    let (Some(at), true) = (pen.at, pen.ball) else { return };
    let [normal_axis, rows, columns] = view.axes();
    let off_um = (at[normal_axis] as f64 - document.cursor[normal_axis] as f64) * document.voxel_um[normal_axis];
    if off_um.abs() < radius {
        let center = to_screen(at[rows] as f64 + 0.5, at[columns] as f64 + 0.5);
        ring(center, (radius * radius - off_um * off_um).sqrt(), 0.7);
    }
}

/// Draws the selected points and lines; `crosshair` is its voxel Z, Y, X.
pub(super) fn marks(
    painter: &Painter,
    marks: &Marks,
    crosshair: [usize; 3],
    view: Orientation,
    to_screen: &dyn Fn(f64, f64) -> Pos2,
) {
    let [normal_axis, rows, columns] = view.axes();
    let place = |p: &[f64; 3]| to_screen(p[rows] + 0.5, p[columns] + 0.5);
    for (i, point) in marks.points.iter().enumerate() {
        if (point[normal_axis] - crosshair[normal_axis] as f64).abs() > NEAR_SLICES {
            continue;
        }
        let at = place(point);
        painter.circle(at, 4.0, theme::ON_IMAGE, Stroke::new(1.5, theme::ACCENT));
        // On its shade, because bright objects have the color of the text.
        draw_caption(painter, at + vec2(10.0, -6.0), Align2::LEFT_BOTTOM, &(i + 1).to_string());
    }
    if let Some(line) = marks.profile_line.filter(|r| r.view == view) {
        let [a, b] = line.ends.map(|p| place(&p));
        painter.line_segment([a, b], Stroke::new(3.5, theme::IMAGE_SHADE));
        painter.line_segment([a, b], Stroke::new(1.5, theme::ON_IMAGE));
        for end in [a, b] {
            painter.circle(end, 3.5, theme::ACCENT, Stroke::new(1.5, theme::ON_IMAGE));
        }
    }
    if marks.line_view == Some(view) && marks.line.len() > 1 {
        let line: Vec<Pos2> = marks.line.iter().map(place).collect();
        painter.line(line, Stroke::new(2.0, theme::ON_IMAGE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use eframe::egui::{RawInput, Shape, pos2};

    #[test]
    fn numbers_of_selected_points_are_drawn_on_a_shade() {
        let ctx = egui::Context::default();
        let points = Marks { points: vec![[0.0; 3]], ..Marks::default() };
        let output = ctx.run_ui(RawInput::default(), |ui| {
            let to_screen = |row: f64, column: f64| pos2(column as f32 + 50.0, row as f32 + 50.0);
            marks(ui.painter(), &points, [0; 3], Orientation::Xy, &to_screen);
        });
        let is_shade = |shape: &Shape| matches!(shape, Shape::Rect(rect) if rect.fill == theme::IMAGE_SHADE);
        assert!(output.shapes.iter().any(|clipped| is_shade(&clipped.shape)));
    }
}

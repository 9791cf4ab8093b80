//! Drawing in a view: where the pointer went, and what is shown at it.

use crate::data::plane::Orientation;
use crate::document::Document;
use crate::theme;
use eframe::egui::{self, Align2, Color32, FontId, Painter, PointerButton, Pos2, Response, Stroke, Ui, vec2};

/// What the pointer did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The button went down.
    Down,
    /// It moved with the button down.
    Move,
    /// The button went up.
    Up,
}

/// A step of the pointer in a view.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Touch {
    /// What it did.
    pub step: Step,
    /// Where: voxel coordinates Z, Y, X, whole numbers at the centres of voxels.
    pub zyx: [f64; 3],
    /// The view.
    pub view: Orientation,
}

/// What is in hand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pen {
    /// Radius of its brush, if it has one.
    pub radius_um: Option<f64>,
    /// Whether it reaches across slices.
    pub ball: bool,
    /// Its colour.
    pub color: Color32,
    /// The voxel under the pointer a moment ago, in whichever view.
    pub at: Option<[usize; 3]>,
}

/// What a task marks in all views.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Marks {
    /// Points: voxel coordinates Z, Y, X.
    pub points: Vec<[f64; 3]>,
    /// A line being drawn, and the view it is drawn in.
    pub line: Vec<[f64; 3]>,
    /// The view it is drawn in.
    pub line_view: Option<Orientation>,
    /// The line that a profile is taken along.
    pub ruler: Option<crate::ruler::Ruler>,
}

/// Voxels from its slice up to which a point is drawn.
const NEAR_SLICES: f64 = 0.75;

/// How the pointer moved with the primary button down, unless the space bar is held: that moves the picture.
pub(super) fn touches(
    ui: &Ui,
    response: &Response,
    drawing: &mut bool,
    view: Orientation,
    at: impl Fn(Pos2) -> [f64; 3],
) -> Vec<Touch> {
    let over = response.contains_pointer();
    let mut touches = Vec::new();
    let mut put = |step, pos| touches.push(Touch { step, zyx: at(pos), view });
    ui.input(|i| {
        for event in &i.events {
            match event {
                egui::Event::PointerButton { pos, button: PointerButton::Primary, pressed: true, .. }
                    if over && response.rect.contains(*pos) && !i.key_down(egui::Key::Space) =>
                {
                    *drawing = true;
                    put(Step::Down, *pos);
                }
                egui::Event::PointerMoved(pos) if *drawing => put(Step::Move, *pos),
                egui::Event::PointerButton { pos, button: PointerButton::Primary, pressed: false, .. } if *drawing => {
                    *drawing = false;
                    put(Step::Up, *pos);
                }
                _ => {}
            }
        }
        // The button went up where nobody told of it.
        if *drawing && !i.pointer.primary_down() {
            *drawing = false;
            put(Step::Up, i.pointer.latest_pos().unwrap_or(response.rect.center()));
        }
    });
    touches
}

/// Draws the brush at the pointer, or where its ball cuts this view.
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
    let [stands, rows, columns] = view.axes();
    let off_um = (at[stands] as f64 - document.cursor[stands] as f64) * document.voxel_um[stands];
    if off_um.abs() < radius {
        let center = to_screen(at[rows] as f64 + 0.5, at[columns] as f64 + 0.5);
        ring(center, (radius * radius - off_um * off_um).sqrt(), 0.7);
    }
}

/// Draws what a task marks.
pub(super) fn marks(painter: &Painter, document: &Document, view: Orientation, to_screen: &dyn Fn(f64, f64) -> Pos2) {
    let [stands, rows, columns] = view.axes();
    let place = |p: &[f64; 3]| to_screen(p[rows] + 0.5, p[columns] + 0.5);
    for (i, point) in document.marks.points.iter().enumerate() {
        if (point[stands] - document.cursor[stands] as f64).abs() > NEAR_SLICES {
            continue;
        }
        let at = place(point);
        painter.circle(at, 4.0, theme::ON_IMAGE, Stroke::new(1.5, theme::ACCENT));
        painter.text(
            at + vec2(7.0, -7.0),
            Align2::LEFT_BOTTOM,
            (i + 1).to_string(),
            FontId::proportional(12.0),
            theme::ON_IMAGE,
        );
    }
    if let Some(ruler) = document.marks.ruler.filter(|r| r.view == view) {
        let [a, b] = ruler.ends.map(|p| place(&p));
        painter.line_segment([a, b], Stroke::new(3.5, theme::IMAGE_SHADE));
        painter.line_segment([a, b], Stroke::new(1.5, theme::ON_IMAGE));
        for end in [a, b] {
            painter.circle(end, 3.5, theme::ACCENT, Stroke::new(1.5, theme::ON_IMAGE));
        }
    }
    if document.marks.line_view == Some(view) && document.marks.line.len() > 1 {
        let line: Vec<Pos2> = document.marks.line.iter().map(place).collect();
        painter.line(line, Stroke::new(2.0, theme::ON_IMAGE));
    }
}

//! Lines around the volume: bounding box, axes, and the crosshair's slices.

use super::camera::{Projection, Xyz, corners};
use crate::document::Document;
use crate::theme;
use eframe::egui::{Align2, FontId, Painter, Pos2, Stroke};

/// Distance of axis letters from the end of their edge in points.
const LETTER_GAP: f32 = 9.0;

/// Edges shorter than this many points have no letter.
const MIN_EDGE: f32 = 14.0;

/// Edges as pairs of corners, and the axis each runs along.
fn edges() -> impl Iterator<Item = (usize, usize, usize)> {
    (0..3).flat_map(|axis| (0..8).filter(move |i| i >> axis & 1 == 0).map(move |i| (i, i | 1 << axis, axis)))
}

fn farthest(depths: &[f64; 8]) -> usize {
    (0..8).fold(0, |best, i| if depths[i] > depths[best] + 1e-9 { i } else { best })
}

/// Draws the edges that meet in the corner farthest from the camera (`behind`), or the others.
fn draw(painter: &Painter, projection: &Projection, size_um: Xyz, behind: bool) {
    let seen = corners(size_um).map(|c| projection.to_screen(c));
    let hidden = farthest(&seen.map(|(_, depth)| depth));
    for (from, to, axis) in edges().filter(|(from, to, _)| (*from == hidden || *to == hidden) == behind) {
        let color = if from == 0 { theme::AXIS_COLORS[axis] } else { theme::BOX };
        painter.line_segment([seen[from].0, seen[to].0], Stroke::new(1.0, color));
    }
}

/// Draws the edges behind the volume; call before drawing the volume.
pub fn draw_behind(painter: &Painter, projection: &Projection, size_um: Xyz) {
    draw(painter, projection, size_um, true);
}

/// Draws the edges in front of the volume and the axis letters.
pub fn draw_front(painter: &Painter, projection: &Projection, size_um: Xyz) {
    draw(painter, projection, size_um, false);
    let origin = projection.to_screen([0.0; 3]).0;
    for (axis, letter) in ["X", "Y", "Z"].into_iter().enumerate() {
        let mut end = [0.0; 3];
        end[axis] = size_um[axis];
        let end = projection.to_screen(end).0;
        let along = end - origin;
        if along.length() >= MIN_EDGE {
            let at = end + along.normalized() * LETTER_GAP;
            painter.text(at, Align2::CENTER_CENTER, letter, FontId::proportional(12.0), theme::AXIS_COLORS[axis]);
        }
    }
}

/// Draws the outlines of the three slices through the crosshair.
pub fn cursor(painter: &Painter, projection: &Projection, size_um: Xyz, document: &Document) {
    for axis in 0..3 {
        let at = (document.cursor[2 - axis] as f64 + 0.5) * document.voxel_um[2 - axis];
        let [a, b] = [(axis + 1) % 3, (axis + 2) % 3];
        let corner = |far_a: bool, far_b: bool| -> Pos2 {
            let mut um = [0.0; 3];
            um[axis] = at;
            um[a] = if far_a { size_um[a] } else { 0.0 };
            um[b] = if far_b { size_um[b] } else { 0.0 };
            projection.to_screen(um).0
        };
        let around = [corner(false, false), corner(true, false), corner(true, true), corner(false, true)];
        for i in 0..4 {
            painter.line_segment([around[i], around[(i + 1) % 4]], Stroke::new(1.0, theme::CURSOR_SLICE));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_box_has_twelve_edges_and_three_of_them_meet_in_the_farthest_corner() {
        let all: Vec<_> = edges().collect();
        assert_eq!(all.len(), 12);
        assert!(all.iter().all(|(from, to, axis)| to - from == 1 << axis));
        assert_eq!(all.iter().filter(|(from, ..)| *from == 0).count(), 3, "three axes begin at the origin");
        let depths: [f64; 8] = std::array::from_fn(|i| if i == 5 { 9.0 } else { i as f64 });
        assert_eq!(farthest(&depths), 5);
        assert_eq!(all.iter().filter(|(from, to, _)| *from == 5 || *to == 5).count(), 3);
    }
}

//! Where slices lie on screen, and which part of them is loaded.

use crate::data::plane::{Orientation, PlaneAt};
use crate::document::{Document, SliceCamera};
use eframe::egui::{Pos2, Rect, Vec2, vec2};

/// Slices up to this many pixels are loaded whole; of larger ones only the visible region is loaded, reduced to screen
/// resolution.
const MAX_WHOLE_PIXELS: usize = 4 << 20;

/// Visible regions are aligned to multiples of this, so that small pans need no new image.
const ALIGN: usize = 256;

/// Maximum zoom in points per full-resolution pixel.
const MAX_POINTS_PER_PIXEL: f64 = 64.0;

/// Where a slice lies on screen.
#[derive(Clone, Copy)]
pub(super) struct Placement {
    /// Area of the view.
    pub(super) rect: Rect,
    /// Camera of the view.
    pub(super) camera: SliceCamera,
    /// Height and width of a voxel in µm.
    pub(super) pixel_um: [f64; 2],
}

impl Placement {
    /// Screen position of a row and column of the slice, in voxels.
    pub(super) fn screen_position(&self, row: f64, column: f64) -> Pos2 {
        let down = (row * self.pixel_um[0] - self.camera.center_um[0]) * self.camera.points_per_um;
        let right = (column * self.pixel_um[1] - self.camera.center_um[1]) * self.camera.points_per_um;
        self.rect.center() + vec2(right as f32, down as f32)
    }

    /// Row and column of the slice, in voxels, at a screen position.
    pub(super) fn slice_at(&self, at: Pos2) -> [f64; 2] {
        let off = at - self.rect.center();
        [
            (f64::from(off.y) / self.camera.points_per_um + self.camera.center_um[0]) / self.pixel_um[0],
            (f64::from(off.x) / self.camera.points_per_um + self.camera.center_um[1]) / self.pixel_um[1],
        ]
    }
}

/// Crosshair and camera after the gestures of this frame.
#[derive(Clone, Copy)]
pub(super) struct Moved {
    /// Voxel Z, Y, X of the crosshair.
    pub(super) cursor: [usize; 3],
    /// Camera of the view.
    pub(super) camera: SliceCamera,
}

impl Moved {
    /// Moves the crosshair along an axis, clamped to the stack.
    pub(super) fn step(&mut self, document: &Document, axis: usize, by: i64) {
        self.cursor[axis] = document.stepped(self.cursor[axis], axis, by);
    }
}

/// The plane to load: the whole slice if it is small, otherwise the visible region at about screen resolution.
pub(super) fn plane_to_load(
    orientation: Orientation,
    document: &Document,
    cursor: [usize; 3],
    [from, to]: [[f64; 2]; 2],
    pixels_per_point: f64,
    size: Vec2,
) -> PlaneAt {
    let [rows, columns] = orientation.slice_shape(document.extents.zyx);
    let mut at = PlaneAt {
        orientation,
        index: cursor[orientation.axes()[0]],
        channel: 0,
        time: document.time,
        rows: 0..rows,
        columns: 0..columns,
        step: 1,
    };
    if rows.saturating_mul(columns) <= MAX_WHOLE_PIXELS {
        return at;
    }
    let seen = |a: f64, b: f64, n: usize| {
        let start = (a.max(0.0) as usize).min(n.saturating_sub(1));
        let end = (b.max(0.0).ceil() as usize).clamp(start + 1, n);
        start..end
    };
    let (r, c) = (seen(from[0], to[0], rows), seen(from[1], to[1], columns));
    let across = f64::from(size.x) * pixels_per_point;
    let down = f64::from(size.y) * pixels_per_point;
    let per_pixel = (c.len() as f64 / across.max(1.0)).min(r.len() as f64 / down.max(1.0)).max(1.0);
    at.step = (per_pixel as usize).next_power_of_two();
    if at.step as f64 > per_pixel * 1.5 {
        at.step = (at.step / 2).max(1);
    }
    let grid = ALIGN * at.step;
    at.rows = r.start / grid * grid..r.end.next_multiple_of(grid).min(rows);
    at.columns = c.start / grid * grid..c.end.next_multiple_of(grid).min(columns);
    at
}

/// The camera that fits a slice of this size in µm into a view.
pub(super) fn fit([height_um, width_um]: [f64; 2], size: Vec2) -> SliceCamera {
    let margin = 12.0;
    let space = [f64::from((size.y - margin).max(4.0)), f64::from((size.x - margin).max(4.0))];
    let scale = (space[0] / height_um.max(1e-9)).min(space[1] / width_um.max(1e-9));
    SliceCamera { center_um: [height_um / 2.0, width_um / 2.0], points_per_um: scale }
}

/// Zooms about a point of the view, given from its center.
pub(super) fn zoom_about(camera: &mut SliceCamera, factor: f64, at: Vec2, fitted: SliceCamera, document: &Document) {
    let finest = document.voxel_um.iter().copied().fold(f64::INFINITY, f64::min);
    let max = (MAX_POINTS_PER_PIXEL / finest).max(fitted.points_per_um);
    let scale = (camera.points_per_um * factor).clamp(fitted.points_per_um / 4.0, max);
    let off = [f64::from(at.y), f64::from(at.x)];
    for (center, off) in camera.center_um.iter_mut().zip(off) {
        *center += off / camera.points_per_um - off / scale;
    }
    camera.points_per_um = scale;
}

//! Where slices lie on screen, and which part of them is loaded.

use crate::data::plane::{Orientation, PlaneAt};
use crate::document::{Document, SliceCamera};
use eframe::egui::{Pos2, Rect, Vec2, vec2};
use std::ops::Range;

/// Slices up to this many pixels are loaded whole; of larger ones only the visible region is loaded, reduced to screen
/// resolution.
const MAX_WHOLE_PIXELS: usize = 4 << 20;

/// Like [`MAX_WHOLE_PIXELS`], for XZ and YZ slices of images with levels.
const MAX_WHOLE_PIXELS_ACROSS: usize = 1 << 18;

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

    /// Rows and columns in sight, at least in part, of a slice with this number of rows and columns; `None` if there are none.
    pub(super) fn visible(&self, [rows, columns]: [usize; 2]) -> Option<[Range<usize>; 2]> {
        let (from, to) = (self.slice_at(self.rect.min), self.slice_at(self.rect.max));
        Some([touched([from[0], to[0]], rows)?, touched([from[1], to[1]], columns)?])
    }
}

/// Returns which of `count` voxels in a row lie at least partly between two positions; `None` if there are none.
fn touched([from, to]: [f64; 2], count: usize) -> Option<Range<usize>> {
    let range = from.max(0.0) as usize..(to.max(0.0).ceil() as usize).min(count);
    (!range.is_empty()).then_some(range)
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

/// The plane to load: the whole slice if it is small, otherwise the region that is visible at `place`, at about screen
/// resolution.
pub(super) fn plane_to_load(
    orientation: Orientation,
    document: &Document,
    cursor: [usize; 3],
    place: Placement,
    pixels_per_point: f64,
) -> PlaneAt {
    let [rows, columns] = orientation.slice_shape(document.extents.zyx);
    let at = PlaneAt {
        orientation,
        index: cursor[orientation.axes()[0]],
        channel: 0,
        time: document.time,
        rows: 0..rows,
        columns: 0..columns,
        steps: [1; 3],
    };
    if rows.saturating_mul(columns) <= max_whole_pixels(orientation, document.image.meta().levels.len()) {
        return at;
    }
    let pixel_um = 1.0 / (place.camera.points_per_um * pixels_per_point);
    let (from, to) = (place.slice_at(place.rect.min), place.slice_at(place.rect.max));
    let (row_step, rows) = seen([from[0], to[0]], rows, pixel_um / place.pixel_um[0]);
    let (column_step, columns) = seen([from[1], to[1]], columns, pixel_um / place.pixel_um[1]);
    PlaneAt { rows, columns, steps: [1, row_step, column_step], ..at }
}

/// Slices up to this many pixels are loaded whole. Across the slices of an image with levels, a pixel may cost a chunk, and
/// larger views are read from the levels.
fn max_whole_pixels(orientation: Orientation, levels: usize) -> usize {
    match orientation {
        Orientation::Xy => MAX_WHOLE_PIXELS,
        Orientation::Xz | Orientation::Zy if levels > 1 => MAX_WHOLE_PIXELS_ACROSS,
        Orientation::Xz | Orientation::Zy => MAX_WHOLE_PIXELS,
    }
}

/// The voxels per loaded pixel along an axis of a slice, a power of two of about the screen resolution, and the range of voxels
/// to load, of `count`. The view shows the voxels `from` to `to`, `per_pixel` of them on a pixel of the screen.
fn seen([from, to]: [f64; 2], count: usize, per_pixel: f64) -> (usize, Range<usize>) {
    let per_pixel = per_pixel.max(1.0);
    let mut step = (per_pixel as usize).min(count).next_power_of_two();
    if step as f64 > per_pixel * 1.5 {
        step = (step / 2).max(1);
    }
    let start = (from.max(0.0) as usize).min(count.saturating_sub(1));
    let end = (to.max(0.0).ceil() as usize).clamp(start + 1, count.max(start + 1));
    let grid = ALIGN * step;
    (step, start / grid * grid..end.next_multiple_of(grid).min(count))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_axis_is_reduced_to_about_the_pixels_of_the_screen() {
        // 60 000 columns, and 400 slices of four times the distance, on 1000 pixels.
        assert_eq!(seen([0.0, 60_000.0], 60_000, 60.0), (64, 0..60_000));
        assert_eq!(seen([-7000.0, 8000.0], 400, 15.0), (16, 0..400));
        // Enlarged, each voxel is shown.
        assert_eq!(seen([20_100.0, 20_300.0], 60_000, 0.2), (1, 19_968..20_480));
        // A view beyond the end still shows something.
        assert_eq!(seen([70_000.0, 71_000.0], 60_000, 1.0), (1, 59_904..60_000));
        let views = [(0.0, 1.0, 0.1), (-1e9, 1e9, 1e6), (5.0, 9000.0, 11.0), (f64::NAN, f64::NAN, f64::NAN)];
        for (from, to, per_pixel) in views {
            for count in [1, 7, 500, 100_000] {
                let (step, range) = seen([from, to], count, per_pixel);
                assert!(step.is_power_of_two() && range.start < range.end && range.end <= count, "{from} {count}");
                assert!(range.start.is_multiple_of(step), "{range:?} begins with a pixel of {step}");
            }
        }
    }

    #[test]
    fn voxels_in_sight_are_those_that_the_view_covers_in_part() {
        let rect = Rect::from_min_size(Pos2::new(100.0, 50.0), vec2(200.0, 100.0));
        let visible = |center_um: [f64; 2], points_per_um: f64| {
            Placement { rect, camera: SliceCamera { center_um, points_per_um }, pixel_um: [2.0, 1.0] }.visible([30, 80])
        };
        // 10 µm high and 20 µm wide around the center: 5 rows of 2 µm and 20 columns of 1 µm.
        assert_eq!(visible([31.0, 40.5], 10.0), Some([13..18, 30..51]));
        assert_eq!(visible([1.0, 79.0], 10.0), Some([0..3, 69..80]));
        assert_eq!(visible([30.0, 40.0], 1.0), Some([0..30, 0..80]));
        assert_eq!(visible([31.0, 100.0], 10.0), None);
        assert_eq!(visible([-50.0, 40.0], 10.0), None);
    }

    #[test]
    fn only_slices_across_levels_are_loaded_in_parts_early() {
        for orientation in Orientation::ALL {
            assert_eq!(max_whole_pixels(orientation, 1), MAX_WHOLE_PIXELS);
        }
        assert_eq!(max_whole_pixels(Orientation::Xy, 4), MAX_WHOLE_PIXELS);
        assert!(max_whole_pixels(Orientation::Xz, 4) < MAX_WHOLE_PIXELS);
    }
}

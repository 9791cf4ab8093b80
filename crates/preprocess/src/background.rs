//! Background subtraction in slices: white top-hat and rolling ball. Voxels outside the slice are ignored.

use crate::block::{Block, count, dilated, lengths};
use cytoscope_volume::BoxZyx;
use rayon::prelude::*;

/// Half an ellipse in the plane: for each distance along Y from 0 on, the reach along X.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ellipse {
    /// Radii along Y and X in voxels.
    radii: [f64; 2],
    half_widths: Vec<usize>,
}

/// Tolerance of radii that rounding left just below a voxel.
const ROUNDING: f64 = 1e-6;

impl Ellipse {
    /// The ellipse of radii Y and X in voxels.
    pub(crate) fn new(radii: [f64; 2]) -> Self {
        let [ry, rx] = radii;
        let half_width =
            |dy: usize| (rx * (1.0 - (dy as f64 / ry.max(ROUNDING)).powi(2)).max(0.0).sqrt() + ROUNDING) as usize;
        Self { radii, half_widths: (0..=(ry + ROUNDING) as usize).map(half_width).collect() }
    }

    /// Reach along Y and X in voxels.
    pub(crate) fn reach(&self) -> [usize; 2] {
        [self.half_widths.len().saturating_sub(1), self.half_widths.first().copied().unwrap_or(0)]
    }

    /// The rows at distance up to the reach of `y` inside a slice of `extent` rows, with their half widths.
    fn rows(&self, y: usize, extent: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
        let reach = self.reach()[0];
        let inside = y.saturating_sub(reach)..(y + reach + 1).min(extent);
        inside.map(move |row| (row, self.half_widths.get(row.abs_diff(y)).copied().unwrap_or(0)))
    }
}

/// The image minus its opening. `input` holds every voxel within twice the ellipse's reach of `bounds`.
pub(crate) fn white_tophat(input: &Block, bounds: &BoxZyx, shape: [usize; 3], ellipse: &Ellipse) -> Vec<f32> {
    let [reach_y, reach_x] = ellipse.reach();
    let between = dilated(bounds, [0, reach_y, reach_x], shape);
    // A dilation is an erosion of the negated image.
    let negated = eroded(input, &between, shape, ellipse, |v| -v);
    let opened = eroded(&Block { bounds: between, values: negated }, bounds, shape, ellipse, |v| -v);
    let [_, ny, nx] = lengths(bounds);
    let mut out = opened;
    if out.is_empty() {
        return out;
    }
    let first_x = bounds[2].start - input.bounds[2].start;
    out.par_chunks_mut(nx).enumerate().for_each(|(row, target)| {
        let source = input.row(bounds[0].start + row / ny, bounds[1].start + row % ny);
        target.iter_mut().zip(&source[first_x..]).for_each(|(t, s)| *t = s - *t);
    });
    out
}

/// Smallest value in the ellipse around each voxel of `bounds`, mapped by `finish`.
fn eroded(
    input: &Block,
    bounds: &BoxZyx,
    shape: [usize; 3],
    ellipse: &Ellipse,
    finish: impl Fn(f32) -> f32 + Sync,
) -> Vec<f32> {
    let [_, ny, nx] = lengths(bounds);
    let mut out = vec![f32::INFINITY; count(bounds)];
    if out.is_empty() {
        return out;
    }
    let reach_x = ellipse.reach()[1];
    out.par_chunks_mut(nx).enumerate().for_each(|(row, target)| {
        let (z, y) = (bounds[0].start + row / ny, bounds[1].start + row % ny);
        let mut padded = Vec::new();
        for (y, half_width) in ellipse.rows(y, shape[1]) {
            pad_row(&mut padded, input.row(z, y), &bounds[2], input.bounds[2].start, reach_x);
            running_minimum(&mut padded, 2 * half_width + 1);
            let from = &padded[reach_x - half_width..];
            target.iter_mut().zip(from).for_each(|(t, v)| *t = t.min(*v));
        }
        target.iter_mut().for_each(|v| *v = finish(*v));
    });
    out
}

/// Copies the columns within `reach` of a range into `padded`; those outside the row are infinite.
fn pad_row(padded: &mut Vec<f32>, row: &[f32], columns: &std::ops::Range<usize>, first: usize, reach: usize) {
    padded.clear();
    padded.resize(columns.len() + 2 * reach, f32::INFINITY);
    // Column c of the slice is at c + reach - columns.start in `padded`, and at c - first in `row`.
    let (to, from) = match (first + reach).checked_sub(columns.start) {
        Some(to) => (to, 0),
        None => (0, columns.start - first - reach),
    };
    let source = row.get(from..).unwrap_or_default();
    padded.iter_mut().skip(to).zip(source).for_each(|(p, v)| *p = *v);
}

/// Replaces each value by the minimum of the `window` values that begin with it; values near the end see fewer.
fn running_minimum(values: &mut [f32], window: usize) {
    let mut covered = 1;
    while covered < window {
        // Two windows of `covered` values that may overlap make one of `covered + step`.
        let step = covered.min(window - covered);
        for i in 0..values.len().saturating_sub(step) {
            values[i] = values[i].min(values[i + step]);
        }
        covered += step;
    }
}

/// A ball in the plane of a slice and along the intensities.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ball {
    ellipse: Ellipse,
    height: f64,
}

impl Ball {
    /// A ball of radii Y and X in voxels, and a radius along the intensities.
    pub(crate) fn new(radii: [f64; 2], height: f64) -> Self {
        Self { ellipse: Ellipse::new(radii), height }
    }

    /// Reach along Y and X in voxels.
    pub(crate) fn reach(&self) -> [usize; 2] {
        self.ellipse.reach()
    }

    /// How far the surface of the ball lies below its top at a distance from its center.
    fn drop_at(&self, dy: usize, dx: usize) -> f32 {
        let [ry, rx] = self.ellipse.radii;
        let square = |d: usize, r: f64| if d == 0 { 0.0 } else { (d as f64 / r).powi(2) };
        (self.height - self.height * (1.0 - square(dy, ry) - square(dx, rx)).max(0.0).sqrt()) as f32
    }
}

/// The image minus the background that the ball reaches. `input` holds every voxel within the ball's reach of `bounds`.
pub(crate) fn rolling_ball(input: &Block, bounds: &BoxZyx, shape: [usize; 3], ball: &Ball) -> Vec<f32> {
    let [_, ny, nx] = lengths(bounds);
    let mut out = vec![0.0f32; count(bounds)];
    if out.is_empty() {
        return out;
    }
    let reach_x = ball.reach()[1];
    let drops: Vec<Vec<f32>> = (0..ball.ellipse.half_widths.len())
        .map(|dy| {
            let half_width = ball.ellipse.half_widths.get(dy).copied().unwrap_or(0);
            (0..=half_width).map(|dx| ball.drop_at(dy, dx)).collect()
        })
        .collect();
    out.par_chunks_mut(nx).enumerate().for_each(|(row, target)| {
        let (z, y) = (bounds[0].start + row / ny, bounds[1].start + row % ny);
        let mut background = vec![f32::INFINITY; nx];
        let mut padded = Vec::new();
        for (other, _) in ball.ellipse.rows(y, shape[1]) {
            pad_row(&mut padded, input.row(z, other), &bounds[2], input.bounds[2].start, reach_x);
            let Some(drops) = drops.get(other.abs_diff(y)) else { continue };
            for (dx, drop) in drops.iter().enumerate() {
                for from in [reach_x - dx, reach_x + dx] {
                    let values = &padded[from..from + nx];
                    background.iter_mut().zip(values).for_each(|(b, v)| *b = b.min(v + drop));
                }
            }
        }
        let first_x = bounds[2].start - input.bounds[2].start;
        let source = &input.row(z, y)[first_x..];
        target.iter_mut().zip(source.iter().zip(&background)).for_each(|(t, (s, b))| *t = s - b);
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_minima_match_their_definition() {
        let values: Vec<f32> = (0..40).map(|i: i32| ((i * 7919) % 31) as f32).collect();
        for window in 1..12 {
            let mut found = values.clone();
            running_minimum(&mut found, window);
            for (i, v) in found.iter().enumerate() {
                let expected = values[i..(i + window).min(40)].iter().copied().fold(f32::INFINITY, f32::min);
                assert_eq!(*v, expected, "window {window} at {i}");
            }
        }
    }

    #[test]
    fn a_disk_has_the_voxels_within_its_radius() {
        let disk = Ellipse::new([5.0, 5.0]);
        assert_eq!(disk.half_widths, [5, 4, 4, 4, 3, 0]);
    }
}

//! Results under way: a prediction that grows tile by tile, objects made anew with every move of a slider.

use super::plane::{Orientation, Plane, PlaneAt, Values};
use super::source::{Cancel, PlaneSource, SourceError};
use cytoscope_pipeline::JobError;
use cytoscope_pipeline::worker::{LabelArray, LiveArray};
use cytoscope_volume::Axis;

fn across(orientation: Orientation) -> Axis {
    [Axis::Z, Axis::Y, Axis::X][orientation.axes()[0]]
}

fn io(error: JobError) -> SourceError {
    SourceError::Io(std::io::Error::other(error.to_string()))
}

/// Nearest of `to` places for each of `from`.
fn place(i: usize, from: usize, to: usize) -> usize {
    ((2 * i + 1) * to / (2 * from.max(1))).min(to.saturating_sub(1))
}

/// Rows and columns of a cut as they are wanted, from a whole one of another grid.
fn taken<T: Copy + Default>(whole: &[T], size: [usize; 2], full: [usize; 2], at: &PlaneAt) -> Vec<T> {
    let step = at.step.max(1);
    let mut out = Vec::with_capacity(at.size().iter().product());
    for r in at.rows.clone().step_by(step) {
        let row = place(r, full[0], size[0]) * size[1];
        for c in at.columns.clone().step_by(step) {
            out.push(whole.get(row + place(c, full[1], size[1])).copied().unwrap_or_default());
        }
    }
    out
}

/// One cut of an array with axes Z, Y, X: as rows and columns of the view.
fn turned<T: Copy + Default>(slice: Vec<T>, orientation: Orientation, zyx: [usize; 3]) -> (Vec<T>, [usize; 2]) {
    let [_, rows, columns] = orientation.axes();
    let size = [zyx[rows], zyx[columns]];
    if orientation != Orientation::Zy {
        return (slice, size);
    }
    // It comes as rows of Z; the view has rows of Y.
    let (nz, ny) = (zyx[0], zyx[1]);
    let turned = (0..ny)
        .flat_map(|y| (0..nz).map(move |z| z * ny + y))
        .map(|i| slice.get(i).copied().unwrap_or_default())
        .collect();
    (turned, size)
}

/// A growing prediction on the model's grid, shown on the stack's.
pub struct LiveSource {
    array: LiveArray,
    /// Extents of the stack.
    zyx: [usize; 3],
}

impl LiveSource {
    /// Shows `array` on a stack of these extents.
    pub fn new(array: LiveArray, zyx: [usize; 3]) -> Self {
        Self { array, zyx }
    }
}

impl PlaneSource for LiveSource {
    fn plane(&self, at: &PlaneAt, cancel: &Cancel) -> Result<Plane, SourceError> {
        cancel.check()?;
        let [stands, rows, columns] = at.orientation.axes();
        let grid = self.array.shape_zyx();
        let index = place(at.index, self.zyx[stands], grid[stands]);
        let slice = self.array.slice(across(at.orientation), index, at.channel).map_err(io)?;
        let (slice, size) = turned(slice, at.orientation, grid);
        let values = taken(&slice, size, [self.zyx[rows], self.zyx[columns]], at);
        Ok(Plane { at: at.clone(), size: at.size(), values: Values::F32(values) })
    }
}

/// Labels of a preview.
pub struct PreviewSource {
    array: LabelArray,
}

impl PreviewSource {
    /// Shows `array`, which has the stack's grid.
    pub fn new(array: LabelArray) -> Self {
        Self { array }
    }
}

impl PlaneSource for PreviewSource {
    fn plane(&self, at: &PlaneAt, cancel: &Cancel) -> Result<Plane, SourceError> {
        cancel.check()?;
        let [_, rows, columns] = at.orientation.axes();
        let zyx = self.array.shape_zyx();
        let slice = self.array.slice(across(at.orientation), at.index).map_err(io)?;
        let (slice, size) = turned(slice, at.orientation, zyx);
        let values = taken(&slice, size, [zyx[rows], zyx[columns]], at);
        Ok(Plane { at: at.clone(), size: at.size(), values: Values::Labels(values) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coarser_grid_covers_the_same_field() {
        assert_eq!((0..6).map(|i| place(i, 6, 3)).collect::<Vec<_>>(), [0, 0, 1, 1, 2, 2]);
        assert_eq!((0..3).map(|i| place(i, 3, 6)).collect::<Vec<_>>(), [1, 3, 5]);
        assert_eq!((0..4).map(|i| place(i, 4, 4)).collect::<Vec<_>>(), [0, 1, 2, 3]);
    }

    #[test]
    fn cuts_across_x_are_turned() {
        // Z × Y × X of 2 × 3 × 1: the slice across X comes as rows of Z.
        let (turned, size) = turned(vec![0, 1, 2, 10, 11, 12], Orientation::Zy, [2, 3, 1]);
        assert_eq!((turned, size), (vec![0, 10, 1, 11, 2, 12], [3, 2]));
    }
}

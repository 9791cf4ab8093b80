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

/// Rows and columns of a cut as they are wanted, from a whole slice of another grid over the same field of view.
fn taken<T: Copy + Default>(slice: &[T], grid: [usize; 3], zyx: [usize; 3], at: &PlaneAt) -> Vec<T> {
    let step = at.step.max(1);
    let (size, full) = (at.orientation.cut(grid), at.orientation.cut(zyx));
    let mut out = Vec::with_capacity(at.size().iter().product());
    for r in at.rows.clone().step_by(step) {
        let row = place(r, full[0], size[0]);
        for c in at.columns.clone().step_by(step) {
            let i = at.orientation.place_in_slice(grid, row, place(c, full[1], size[1]));
            out.push(slice.get(i).copied().unwrap_or_default());
        }
    }
    out
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
        let [stands, ..] = at.orientation.axes();
        let grid = self.array.shape_zyx();
        let index = place(at.index, self.zyx[stands], grid[stands]);
        let slice = self.array.slice(across(at.orientation), index, at.channel).map_err(io)?;
        let values = taken(&slice, grid, self.zyx, at);
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
        let zyx = self.array.shape_zyx();
        let slice = self.array.slice(across(at.orientation), at.index).map_err(io)?;
        let values = taken(&slice, zyx, zyx, at);
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
        let at =
            PlaneAt { orientation: Orientation::Zy, index: 0, channel: 0, time: 0, rows: 0..3, columns: 0..2, step: 1 };
        assert_eq!(taken(&[0, 1, 2, 10, 11, 12], [2, 3, 1], [2, 3, 1], &at), [0, 10, 1, 11, 2, 12]);
        // On a stack twice as deep.
        let deeper = PlaneAt { columns: 0..4, rows: 1..2, ..at };
        assert_eq!(taken(&[0, 1, 2, 10, 11, 12], [2, 3, 1], [4, 3, 1], &deeper), [1, 1, 11, 11]);
    }
}

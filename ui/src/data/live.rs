//! Plane sources for partial results: a prediction that grows tile by tile, and the preview of a segmentation.

use super::plane::{Orientation, Plane, PlaneAt, Values};
use super::source::{Cancel, PlaneSource, SourceError};
use cytoscope_pipeline::JobError;
use cytoscope_volume::Axis;
use cytoscope_worker::{LabelArray, LiveArray};

fn perpendicular_axis(orientation: Orientation) -> Axis {
    [Axis::Z, Axis::Y, Axis::X][orientation.axes()[0]]
}

fn io(error: JobError) -> SourceError {
    SourceError::Io(std::io::Error::other(error.to_string()))
}

/// Maps index `i` of `from` positions to the nearest of `to` positions over the same extent.
fn nearest_index(i: usize, from: usize, to: usize) -> usize {
    ((2 * i + 1) * to / (2 * from.max(1))).min(to.saturating_sub(1))
}

/// Samples the requested rows and columns from a whole slice on another grid covering the same field of view.
fn sample_region<T: Copy + Default>(slice: &[T], grid: [usize; 3], zyx: [usize; 3], at: &PlaneAt) -> Vec<T> {
    let [row_step, column_step] = at.pixel_size();
    let (size, full) = (at.orientation.slice_shape(grid), at.orientation.slice_shape(zyx));
    let mut out = Vec::with_capacity(at.size().iter().product());
    for r in at.rows.clone().step_by(row_step) {
        let row = nearest_index(r, full[0], size[0]);
        for c in at.columns.clone().step_by(column_step) {
            let i = at.orientation.index_in_slice(grid, row, nearest_index(c, full[1], size[1]));
            out.push(slice.get(i).copied().unwrap_or_default());
        }
    }
    out
}

/// A growing prediction on the model's grid, resampled to the stack's grid by nearest neighbor.
pub struct LiveSource {
    array: LiveArray,
    /// Number of voxels of the stack along Z, Y, X.
    zyx: [usize; 3],
}

impl LiveSource {
    /// A source that shows `array` on a stack of this shape.
    pub fn new(array: LiveArray, zyx: [usize; 3]) -> Self {
        Self { array, zyx }
    }
}

impl PlaneSource for LiveSource {
    fn plane(&self, at: &PlaneAt, cancel: &Cancel) -> Result<Plane, SourceError> {
        cancel.check()?;
        let [normal_axis, ..] = at.orientation.axes();
        let grid = self.array.shape_zyx();
        let index = nearest_index(at.index, self.zyx[normal_axis], grid[normal_axis]);
        let slice = self.array.slice(perpendicular_axis(at.orientation), index, at.channel).map_err(io)?;
        let values = sample_region(&slice, grid, self.zyx, at);
        Ok(Plane { at: at.clone(), size: at.size(), values: Values::F32(values) })
    }
}

/// Labels of a segmentation preview.
pub struct PreviewSource {
    array: LabelArray,
}

impl PreviewSource {
    /// A source that shows `array`, which must be on the stack's grid.
    pub fn new(array: LabelArray) -> Self {
        Self { array }
    }
}

impl PlaneSource for PreviewSource {
    fn plane(&self, at: &PlaneAt, cancel: &Cancel) -> Result<Plane, SourceError> {
        cancel.check()?;
        let zyx = self.array.shape_zyx();
        let slice = self.array.slice(perpendicular_axis(at.orientation), at.index).map_err(io)?;
        let values = sample_region(&slice, zyx, zyx, at);
        Ok(Plane { at: at.clone(), size: at.size(), values: Values::Labels(values) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_coarser_grid_covers_the_same_field_of_view() {
        assert_eq!((0..6).map(|i| nearest_index(i, 6, 3)).collect::<Vec<_>>(), [0, 0, 1, 1, 2, 2]);
        assert_eq!((0..3).map(|i| nearest_index(i, 3, 6)).collect::<Vec<_>>(), [1, 3, 5]);
        assert_eq!((0..4).map(|i| nearest_index(i, 4, 4)).collect::<Vec<_>>(), [0, 1, 2, 3]);
    }

    #[test]
    fn yz_slices_are_transposed() {
        // Z × Y × X of 2 × 3 × 1: the YZ slice is stored with rows along Z.
        let at = PlaneAt::whole(Orientation::Zy, 0, [2, 3, 1]);
        assert_eq!(sample_region(&[0, 1, 2, 10, 11, 12], [2, 3, 1], [2, 3, 1], &at), [0, 10, 1, 11, 2, 12]);
        // The same on a stack twice as deep.
        let deeper = PlaneAt { columns: 0..4, rows: 1..2, ..at };
        assert_eq!(sample_region(&[0, 1, 2, 10, 11, 12], [2, 3, 1], [4, 3, 1], &deeper), [1, 1, 11, 11]);
    }
}

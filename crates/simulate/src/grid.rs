//! The voxel grid of a stack, and voxel positions in µm.

use crate::SimulateError;
use cytoscope_volume::{Array, Axes, Samples};
use std::ops::Range;

/// Shape and voxel size along Z, Y, X. The origin is the corner of the first voxel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    pub(crate) shape: [usize; 3],
    pub(crate) voxel_um: [f64; 3],
}

impl Grid {
    /// Number of voxels (the shape was checked against the limit).
    pub(crate) fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Number of voxels of a slice.
    pub(crate) fn plane(&self) -> usize {
        self.shape[1] * self.shape[2]
    }

    /// Size of the field along Z, Y, X in µm.
    pub(crate) fn extent_um(&self) -> [f64; 3] {
        [0, 1, 2].map(|a| self.shape[a] as f64 * self.voxel_um[a])
    }

    /// Center of the `i`-th voxel along an axis, in µm.
    pub(crate) fn position_um(&self, axis: usize, i: usize) -> f64 {
        (i as f64 + 0.5) * self.voxel_um[axis]
    }

    /// Indices along an axis of the voxels whose centers lie between two positions in µm.
    pub(crate) fn range(&self, axis: usize, from_um: f64, to_um: f64) -> Range<usize> {
        let index = |position: f64| position / self.voxel_um[axis] - 0.5;
        // A cast from float saturates: positions before the field become 0.
        let start = (index(from_um).ceil().max(0.0) as usize).min(self.shape[axis]);
        let end = ((index(to_um).floor() + 1.0).max(0.0) as usize).min(self.shape[axis]);
        start..end.max(start)
    }

    /// Creates an array with axes Z, Y, X and the shape of this grid.
    pub(crate) fn array(&self, samples: impl Into<Samples>) -> Result<Array, SimulateError> {
        Ok(Array::new(Axes::zyx(), self.shape.to_vec(), samples)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_contains_the_centers_between_its_ends() {
        let grid = Grid { shape: [10, 1, 1], voxel_um: [2.0, 1.0, 1.0] };
        assert_eq!(grid.range(0, 3.0, 7.0), 1..4);
        assert_eq!(grid.range(0, 3.1, 6.9), 2..3);
        assert_eq!(grid.range(0, -9.0, 1.0), 0..1);
        assert!(grid.range(0, -9.0, -3.0).is_empty() && grid.range(0, 40.0, 50.0).is_empty());
    }
}

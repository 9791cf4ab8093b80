//! Boxes and slices of a volume with axes Z, Y, X.

use crate::CorrectionError;
use cytoscope_volume::Region;
use serde::{Deserialize, Serialize};

/// The axis perpendicular to a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum SliceAxis {
    /// Slices show Y (rows) and X (columns).
    Z,
    /// Slices show Z (rows) and X (columns).
    Y,
    /// Slices show Z (rows) and Y (columns).
    X,
}

impl SliceAxis {
    /// All axes in the order Z, Y, X.
    pub const ALL: [SliceAxis; 3] = [SliceAxis::Z, SliceAxis::Y, SliceAxis::X];

    /// Index of the axis in Z, Y, X.
    pub fn index(self) -> usize {
        match self {
            SliceAxis::Z => 0,
            SliceAxis::Y => 1,
            SliceAxis::X => 2,
        }
    }

    /// Indices in Z, Y, X of the axes of a slice's rows and columns.
    pub(crate) fn rows_columns(self) -> [usize; 2] {
        match self {
            SliceAxis::Z => [1, 2],
            SliceAxis::Y => [0, 2],
            SliceAxis::X => [0, 1],
        }
    }
}

/// One slice of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Plane {
    /// The axis perpendicular to the slice.
    pub axis: SliceAxis,
    /// Position of the slice along its axis, counted from 0.
    pub index: usize,
}

impl Plane {
    /// Creates the slice at a position along an axis, counted from 0.
    pub fn new(axis: SliceAxis, index: usize) -> Self {
        Self { axis, index }
    }

    /// The box of the volume's voxels that are in the slice.
    ///
    /// # Errors
    /// [`CorrectionError::OutOfBounds`] if the slice does not exist.
    pub fn bounds(self, shape_zyx: [usize; 3]) -> Result<BoundsZyx, CorrectionError> {
        let axis = self.axis.index();
        if self.index >= shape_zyx[axis] {
            return Err(CorrectionError::OutOfBounds { what: "slice", at: vec![self.index], shape_zyx });
        }
        let mut bounds = BoundsZyx::whole(shape_zyx);
        bounds.start[axis] = self.index;
        bounds.end[axis] = self.index + 1;
        Ok(bounds)
    }
}

/// The part of the volume that an edit applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Scope {
    /// The voxels of one slice only.
    Slice(Plane),
    /// All voxels of the volume.
    Volume,
}

impl Scope {
    pub(crate) fn bounds(self, shape_zyx: [usize; 3]) -> Result<BoundsZyx, CorrectionError> {
        match self {
            Scope::Slice(plane) => plane.bounds(shape_zyx),
            Scope::Volume => Ok(BoundsZyx::whole(shape_zyx)),
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Scope::Slice(_) => "slice",
            Scope::Volume => "volume",
        }
    }
}

/// A box of voxels: first index, and index after the last, along Z, Y, X. [`Region`] is a box in an
/// array with any axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BoundsZyx {
    /// First index along Z, Y, X.
    pub start: [usize; 3],
    /// Index after the last along Z, Y, X.
    pub end: [usize; 3],
}

impl BoundsZyx {
    /// The bounds of a whole volume.
    pub fn whole(shape_zyx: [usize; 3]) -> Self {
        Self { start: [0; 3], end: shape_zyx }
    }

    /// Number of voxels along Z, Y, X.
    pub fn size(&self) -> [usize; 3] {
        [0, 1, 2].map(|a| self.end[a].saturating_sub(self.start[a]))
    }

    /// Number of voxels in the box (saturating).
    pub fn voxels(&self) -> u64 {
        self.size().iter().fold(1u64, |n, s| n.saturating_mul(*s as u64))
    }

    /// Whether a voxel is in the box.
    pub fn contains(&self, zyx: [usize; 3]) -> bool {
        (0..3).all(|a| (self.start[a]..self.end[a]).contains(&zyx[a]))
    }

    /// The smallest box around both boxes.
    pub fn union(&self, other: &BoundsZyx) -> BoundsZyx {
        BoundsZyx {
            start: [0, 1, 2].map(|a| self.start[a].min(other.start[a])),
            end: [0, 1, 2].map(|a| self.end[a].max(other.end[a])),
        }
    }

    /// The intersection of both boxes; `None` if it is empty.
    pub fn intersection(&self, other: &BoundsZyx) -> Option<BoundsZyx> {
        let start = [0, 1, 2].map(|a| self.start[a].max(other.start[a]));
        let end = [0, 1, 2].map(|a| self.end[a].min(other.end[a]));
        (0..3).all(|a| start[a] < end[a]).then_some(BoundsZyx { start, end })
    }

    /// The box as a region of an array with axes Z, Y, X.
    pub fn region(&self) -> Region {
        Region { start: self.start.to_vec(), size: self.size().to_vec() }
    }

    /// The box extended by a margin along each axis, clipped to `within`.
    pub(crate) fn padded(&self, margin: [usize; 3], within: &BoundsZyx) -> BoundsZyx {
        BoundsZyx {
            start: [0, 1, 2].map(|a| self.start[a].saturating_sub(margin[a]).max(within.start[a])),
            end: [0, 1, 2].map(|a| self.end[a].saturating_add(margin[a]).min(within.end[a])),
        }
    }

    /// Iterates over the rows along X, as (z, y), in C order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (ys, ye) = (self.start[1], self.end[1]);
        (self.start[0]..self.end[0]).flat_map(move |z| (ys..ye).map(move |y| (z, y)))
    }
}

/// Extends `bounds` to include `other`.
pub(crate) fn extend_bounds(bounds: &mut Option<BoundsZyx>, other: BoundsZyx) {
    *bounds = Some(bounds.map_or(other, |b| b.union(&other)));
}

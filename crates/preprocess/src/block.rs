//! Boxes of voxels along Z, Y, X, and the float values in them.

use cytoscope_volume::BoxZyx;

/// Number of voxels along Z, Y, X.
pub(crate) fn lengths(bounds: &BoxZyx) -> [usize; 3] {
    std::array::from_fn(|a| bounds[a].len())
}

/// Number of voxels in a box.
pub(crate) fn count(bounds: &BoxZyx) -> usize {
    lengths(bounds).iter().product()
}

/// The box extended on each side by `reach` voxels, inside a volume of this shape.
pub(crate) fn dilated(bounds: &BoxZyx, reach: [usize; 3], shape: [usize; 3]) -> BoxZyx {
    std::array::from_fn(|a| {
        bounds[a].start.saturating_sub(reach[a])..bounds[a].end.saturating_add(reach[a]).min(shape[a])
    })
}

/// The two halves of a box along Z or, of one slice, along Y: the values of the second follow those of the first. `None`
/// for a box of one row.
pub(crate) fn halves(bounds: &BoxZyx) -> Option<[BoxZyx; 2]> {
    let axis = (0..2).find(|axis| bounds[*axis].len() > 1)?;
    let middle = bounds[axis].start + bounds[axis].len() / 2;
    let mut parts = [bounds.clone(), bounds.clone()];
    parts[0][axis].end = middle;
    parts[1][axis].start = middle;
    Some(parts)
}

/// The values of a box, axes Z, Y, X.
#[derive(Debug, Clone)]
pub(crate) struct Block {
    /// Where the box is in the volume, in voxels along Z, Y, X.
    pub bounds: BoxZyx,
    /// One value for each voxel of the box, X fastest.
    pub values: Vec<f32>,
}

impl Block {
    /// Row `y` of slice `z`, from the box's first column on; both indices count from the start of the volume and must lie
    /// in the box.
    pub(crate) fn row(&self, z: usize, y: usize) -> &[f32] {
        let [_, ny, nx] = lengths(&self.bounds);
        let at = ((z - self.bounds[0].start) * ny + (y - self.bounds[1].start)) * nx;
        &self.values[at..at + nx]
    }

    /// Slice `z`, which counts from the start of the volume and must lie in the box.
    pub(crate) fn slice(&self, z: usize) -> &[f32] {
        let [_, ny, nx] = lengths(&self.bounds);
        let at = (z - self.bounds[0].start) * ny * nx;
        &self.values[at..at + ny * nx]
    }
}

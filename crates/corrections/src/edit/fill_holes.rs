//! Filling the holes of a label: the voxels that it encloses in a slice or in the volume.

use super::DrawOver;
use crate::CorrectionError;
use crate::geometry::{BoundsZyx, Scope};
use crate::volume::LabelWriter;
use cytoscope_objects::components::{self, Connectivity};
use cytoscope_objects::filter;

/// Fills the holes of a label with the label. In a slice, a hole is a region that the label encloses within the slice; in the
/// volume, one that it encloses in 3-D. `over` decides which labels are overwritten.
pub(super) fn fill_holes(
    writer: &mut LabelWriter,
    label: u32,
    scope: Scope,
    over: DrawOver,
) -> Result<(), CorrectionError> {
    let bounds = writer.volume().checked_bounds(label, scope)?;
    let mask = writer.volume().label_mask(label, &bounds);
    // The label ends at its bounding box, so a region that reaches a face of the box is not enclosed.
    let filled = match scope {
        Scope::Slice(plane) => {
            let [rows, columns] = plane.axis.rows_columns();
            let mut slice = mask.clone();
            filter::fill_holes(&mut slice, [1, bounds.size()[rows], bounds.size()[columns]]);
            slice
        }
        Scope::Volume => with_holes_filled(&mask, &bounds)?,
    };
    writer.fill_box(&bounds, |i| (filled[i] && !mask[i]).then_some(label), |old| over.allows(old));
    Ok(())
}

/// Returns the mask with its enclosed 3-D holes filled.
fn with_holes_filled(mask: &[bool], bounds: &BoundsZyx) -> Result<Vec<bool>, CorrectionError> {
    let size = bounds.size();
    let mut regions = vec![0u32; mask.len()];
    let count = components::label(mask, size, Connectivity::Faces, |inside: bool| !inside, &mut regions)?;
    let boxes = components::boxes(&regions, size, count);
    let closed: Vec<bool> = boxes
        .into_iter()
        .map(|b| b.is_some_and(|(low, high)| (0..3).all(|a| low[a] > 0 && high[a] + 1 < size[a])))
        .collect();
    Ok(regions.iter().map(|r| *r == 0 || closed.get(*r as usize - 1).copied().unwrap_or(false)).collect())
}

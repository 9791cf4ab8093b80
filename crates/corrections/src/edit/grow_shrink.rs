//! Growing and shrinking a label by a Euclidean distance in µm.

use super::DrawOver;
use crate::CorrectionError;
use crate::geometry::{BoundsZyx, Scope};
use crate::volume::{LabelWriter, check_box};
use cytoscope_objects::distance::distance_um;

/// Relative tolerance of a distance computed in `f32`.
const TOLERANCE: f64 = 1e-5;

fn check(by_um: f64) -> Result<(), CorrectionError> {
    if by_um.is_finite() && by_um > 0.0 {
        return Ok(());
    }
    let got = format!("{by_um} µm");
    Err(CorrectionError::BadParameter { what: "the distance to grow or shrink by", got, expected: "more than 0 µm" })
}

fn within_distance(distance_um: f32, by_um: f64) -> bool {
    f64::from(distance_um) <= by_um * (1.0 + TOLERANCE)
}

/// The bounding box of a label, extended by the distance.
fn extended_box(writer: &LabelWriter, label: u32, by_um: f64, scope: Scope) -> Result<BoundsZyx, CorrectionError> {
    let bounds = writer.volume().checked_bounds(label, scope)?;
    let voxel_um = writer.volume().voxel_size_um().zyx_um_or_one();
    let margin = voxel_um.map(|v| (by_um / v).ceil() as usize);
    let bounds = bounds.padded(margin.map(|m| m.max(1)), &scope.bounds(writer.volume().shape_zyx())?);
    check_box(&bounds)?;
    Ok(bounds)
}

/// Adds the voxels within a distance of a label to it; `over` decides which labels are overwritten.
pub(super) fn grow(
    writer: &mut LabelWriter,
    label: u32,
    by_um: f64,
    scope: Scope,
    over: DrawOver,
) -> Result<(), CorrectionError> {
    check(by_um)?;
    let bounds = extended_box(writer, label, by_um, scope)?;
    let mut outside = writer.volume().label_mask(label, &bounds);
    outside.iter_mut().for_each(|m| *m = !*m);
    let distance = distance_um(&outside, bounds.size(), writer.volume().voxel_size_um().zyx_um_or_one())?;
    let added = |i: usize| (outside[i] && within_distance(distance[i], by_um)).then_some(label);
    writer.fill_box(&bounds, added, |old| over.allows(old));
    Ok(())
}

/// Removes the voxels of a label within a distance of other labels and of background.
pub(super) fn shrink(writer: &mut LabelWriter, label: u32, by_um: f64, scope: Scope) -> Result<(), CorrectionError> {
    check(by_um)?;
    // One voxel around the label suffices, because the nearest outside voxel is always adjacent to the label.
    let bounds = writer.volume().checked_bounds(label, scope)?;
    let bounds = bounds.padded([1; 3], &scope.bounds(writer.volume().shape_zyx())?);
    let mask = writer.volume().label_mask(label, &bounds);
    let distance = distance_um(&mask, bounds.size(), writer.volume().voxel_size_um().zyx_um_or_one())?;
    let removed = |i: usize| (mask[i] && within_distance(distance[i], by_um)).then_some(0);
    writer.fill_box(&bounds, removed, |old| old == label);
    Ok(())
}

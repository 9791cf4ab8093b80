//! Growing and shrinking a label by a true distance in µm.

use super::Over;
use crate::AnnotateError;
use crate::geometry::{Bounds, Scope};
use crate::volume::{Pen, check_box};
use cytoscope_objects::distance::distance_um;

/// What a distance in `f32` may be off, relative to the distance asked for.
const SLACK: f64 = 1e-5;

fn check(by_um: f64) -> Result<(), AnnotateError> {
    if by_um.is_finite() && by_um > 0.0 {
        return Ok(());
    }
    let got = format!("{by_um} µm");
    Err(AnnotateError::BadParameter { what: "the distance to grow or shrink by", got, expected: "more than 0 µm" })
}

fn within_distance(distance_um: f32, by_um: f64) -> bool {
    f64::from(distance_um) <= by_um * (1.0 + SLACK)
}

/// The label's box with as many voxels around it as a distance can reach.
fn reach(pen: &Pen, label: u32, by_um: f64, scope: Scope) -> Result<Bounds, AnnotateError> {
    let bounds = pen.volume().box_of(label, scope)?;
    let voxel_um = pen.volume().voxel_size_um().zyx_or_unit();
    let margin = voxel_um.map(|v| (by_um / v).ceil() as usize);
    let bounds = bounds.padded(margin.map(|m| m.max(1)), &scope.bounds(pen.volume().shape_zyx())?);
    check_box(&bounds)?;
    Ok(bounds)
}

pub(super) fn grow(pen: &mut Pen, label: u32, by_um: f64, scope: Scope, over: Over) -> Result<(), AnnotateError> {
    check(by_um)?;
    let bounds = reach(pen, label, by_um, scope)?;
    let mut outside = pen.volume().mask_of(label, &bounds);
    outside.iter_mut().for_each(|m| *m = !*m);
    let distance = distance_um(&outside, bounds.size(), pen.volume().voxel_size_um().zyx_or_unit())?;
    let added = |i: usize| (outside[i] && within_distance(distance[i], by_um)).then_some(label);
    pen.fill_box(&bounds, added, |old| over.allows(old));
    Ok(())
}

pub(super) fn shrink(pen: &mut Pen, label: u32, by_um: f64, scope: Scope) -> Result<(), AnnotateError> {
    check(by_um)?;
    // One voxel around the label is outside enough: nothing farther is nearer.
    let bounds = pen.volume().box_of(label, scope)?;
    let bounds = bounds.padded([1; 3], &scope.bounds(pen.volume().shape_zyx())?);
    let mask = pen.volume().mask_of(label, &bounds);
    let distance = distance_um(&mask, bounds.size(), pen.volume().voxel_size_um().zyx_or_unit())?;
    let removed = |i: usize| (mask[i] && within_distance(distance[i], by_um)).then_some(0);
    pen.fill_box(&bounds, removed, |old| old == label);
    Ok(())
}

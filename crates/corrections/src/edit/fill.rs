//! Filling connected regions and holes.

use super::DrawOver;
use crate::CorrectionError;
use crate::geometry::{Bounds, Scope, SliceAxis};
use crate::volume::LabelWriter;
use cytoscope_objects::components::{self, Connectivity};
use cytoscope_objects::filter;

/// Flood fill: gives the connected region of one value around a voxel a new value.
pub(super) fn fill(
    writer: &mut LabelWriter,
    seed: [usize; 3],
    value: u32,
    scope: Scope,
) -> Result<(), CorrectionError> {
    let shape_zyx = writer.volume().shape_zyx();
    let within = scope.bounds(shape_zyx)?;
    if !within.contains(seed) {
        return Err(CorrectionError::OutOfBounds { what: "the voxel to fill from", at: seed.to_vec(), shape_zyx });
    }
    let old = writer.volume().labels().at(seed);
    if old == value {
        return Ok(());
    }
    // Runs extend along X, except in slices across X, where they extend along Y.
    let along = if matches!(scope, Scope::Slice(plane) if plane.axis == SliceAxis::X) { 1 } else { 2 };
    let across: Vec<usize> = (0..along).filter(|a| within.size()[*a] > 1).collect();
    let mut stack = vec![seed];
    while let Some(at) = stack.pop() {
        let labels = writer.volume().labels();
        if labels.at(at) != old {
            continue;
        }
        let with = |i: usize, from: [usize; 3]| {
            let mut to = from;
            to[along] = i;
            to
        };
        let run = if along == 2 {
            labels.run_around(at[0], at[1], at[2], &(within.start[2]..within.end[2]))
        } else {
            let (mut start, mut end) = (at[1], at[1] + 1);
            while start > within.start[1] && labels.at(with(start - 1, at)) == old {
                start -= 1;
            }
            while end < within.end[1] && labels.at(with(end, at)) == old {
                end += 1;
            }
            start..end
        };
        for axis in &across {
            for up in [false, true] {
                let mut beside = at;
                beside[*axis] = match up {
                    true if at[*axis] + 1 < within.end[*axis] => at[*axis] + 1,
                    false if at[*axis] > within.start[*axis] => at[*axis] - 1,
                    _ => continue,
                };
                if along == 2 {
                    labels.each_run(beside[0], beside[1], run.clone(), |xs, label| {
                        if label == old {
                            stack.push(with(xs.start, beside));
                        }
                    });
                    continue;
                }
                let mut inside = false;
                for i in run.clone() {
                    let same = labels.at(with(i, beside)) == old;
                    if same && !inside {
                        stack.push(with(i, beside));
                    }
                    inside = same;
                }
            }
        }
        if along == 2 {
            writer.row(at[0], at[1], run, value, |v| v == old);
        } else {
            run.for_each(|y| writer.row(at[0], y, at[2]..at[2] + 1, value, |v| v == old));
        }
    }
    Ok(())
}

/// Fills the holes of a label.
pub(super) fn holes(writer: &mut LabelWriter, label: u32, scope: Scope, over: DrawOver) -> Result<(), CorrectionError> {
    let bounds = writer.volume().box_of(label, scope)?;
    let mask = writer.volume().mask_of(label, &bounds);
    // The label ends at its bounding box, so a region that reaches a face of the box is not enclosed.
    let inside = match scope {
        Scope::Slice(plane) => {
            let [rows, columns] = plane.axis.rows_columns();
            let mut filled = mask.clone();
            filter::fill_holes(&mut filled, [1, bounds.size()[rows], bounds.size()[columns]]);
            filled
        }
        Scope::Volume => enclosed(&mask, &bounds)?,
    };
    writer.fill_box(&bounds, |i| (inside[i] && !mask[i]).then_some(label), |old| over.allows(old));
    Ok(())
}

/// Returns the mask with its enclosed 3-D holes filled.
fn enclosed(mask: &[bool], bounds: &Bounds) -> Result<Vec<bool>, CorrectionError> {
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

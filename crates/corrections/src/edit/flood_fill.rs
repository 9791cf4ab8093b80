//! Flood fill: changes the value of a voxel, and of all voxels with the same value that are connected to it.
//!
//! The region is filled in runs of voxels along one axis: a run is found and written at once.

use crate::CorrectionError;
use crate::geometry::{Scope, SliceAxis};
use crate::volume::LabelWriter;

/// Sets the connected region around `seed` that has the same label to `value`.
///
/// # Errors
/// [`CorrectionError::OutOfBounds`] if the seed is outside `scope`.
pub(super) fn flood_fill(
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

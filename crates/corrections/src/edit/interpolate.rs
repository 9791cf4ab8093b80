//! Interpolation of a label between slices that contain it.
//!
//! The signed distances to the label's outline in the two slices are interpolated linearly; the label is where the
//! result is positive. Outlines that do not overlap are first aligned at their centers, so that oblique objects stay
//! connected.

use super::DrawOver;
use crate::geometry::{BoundsZyx, Plane, SliceAxis};
use crate::volume::{LabelWriter, check_box};
use crate::{CorrectionError, LabelVolume};
use cytoscope_objects::distance::distance_um;

/// Fills gaps of a label between slices across `axis`: the gap around slice `at`, or all gaps if it is `None`.
///
/// # Errors
/// [`CorrectionError::NoSuchLabel`] or, without a gap, [`CorrectionError::NotPossible`].
pub(super) fn interpolate(
    writer: &mut LabelWriter,
    label: u32,
    axis: SliceAxis,
    at: Option<usize>,
    over: DrawOver,
) -> Result<(), CorrectionError> {
    let volume = writer.volume();
    if label == 0 || volume.voxel_count(label) == 0 {
        return Err(CorrectionError::NoSuchLabel { label, place: "volume" });
    }
    let has_label = volume.slices_with(label, axis);
    let labeled: Vec<usize> = (0..has_label.len()).filter(|i| has_label[*i]).collect();
    let is_gap = |pair: &[usize]| pair[1] > pair[0] + 1 && at.is_none_or(|at| pair[0] < at && at < pair[1]);
    let gaps: Vec<(usize, usize)> = labeled.windows(2).filter(|p| is_gap(p)).map(|p| (p[0], p[1])).collect();
    if gaps.is_empty() {
        return Err(CorrectionError::NotPossible {
            label,
            problem: match at {
                Some(at) => format!("slice {at} does not lie in a gap between two slices that contain the label"),
                None => "there is no gap between slices that contain the label".to_owned(),
            },
            next_step: "draw the label in two slices with empty slices between them",
        });
    }
    for (below, above) in gaps {
        let interpolator = SliceInterpolator::new(writer.volume(), label, axis, below, above)?;
        for index in below + 1..above {
            let inside = interpolator.mask_at(index);
            let mut bounds = interpolator.bounds;
            (bounds.start[axis.index()], bounds.end[axis.index()]) = (index, index + 1);
            writer.fill_box(&bounds, |i| inside[i].then_some(label), |old| over.allows(old));
        }
    }
    Ok(())
}

/// Two slices that contain the label, with the signed distances in µm (positive inside) in the box around both.
struct SliceInterpolator {
    bounds: BoundsZyx,
    /// Number of rows and columns of the box.
    size: [usize; 2],
    below: usize,
    above: usize,
    signed: [Vec<f32>; 2],
    /// Displacement of the shape from the lower to the upper slice, in rows and columns.
    shift: [f64; 2],
}

impl SliceInterpolator {
    fn new(
        volume: &LabelVolume,
        label: u32,
        axis: SliceAxis,
        below: usize,
        above: usize,
    ) -> Result<Self, CorrectionError> {
        let shape = volume.shape_zyx();
        let planes = [Plane::new(axis, below).bounds(shape)?, Plane::new(axis, above).bounds(shape)?];
        let missing = || CorrectionError::NoSuchLabel { label, place: "slice" };
        let boxes = [
            volume.bounds_within(label, &planes[0]).ok_or_else(missing)?,
            volume.bounds_within(label, &planes[1]).ok_or_else(missing)?,
        ];
        let bounds = boxes[0].union(&boxes[1]).padded([1; 3], &BoundsZyx::whole(shape));
        let in_slice = |index: usize| {
            let mut b = bounds;
            (b.start[axis.index()], b.end[axis.index()]) = (index, index + 1);
            b
        };
        check_box(&in_slice(below))?;
        let [rows, columns] = axis.rows_columns();
        let size = [bounds.size()[rows], bounds.size()[columns]];
        let voxel_um = volume.voxel_size_um().zyx_um_or_one();
        let voxel_um = [1.0, voxel_um[rows], voxel_um[columns]];
        let masks = [below, above].map(|index| volume.label_mask(label, &in_slice(index)));
        let signed = |mask: &[bool]| -> Result<Vec<f32>, CorrectionError> {
            let shape = [1, size[0], size[1]];
            let outside: Vec<bool> = mask.iter().map(|m| !m).collect();
            let inner = distance_um(mask, shape, voxel_um)?;
            let outer = distance_um(&outside, shape, voxel_um)?;
            Ok(inner.iter().zip(outer).zip(mask).map(|((i, o), m)| if *m { *i } else { -o }).collect())
        };
        let overlap = masks[0].iter().zip(&masks[1]).any(|(a, b)| *a && *b);
        let shift = if overlap {
            [0.0; 2]
        } else {
            let (a, b) = (center(&masks[0], size[1]), center(&masks[1], size[1]));
            [b[0] - a[0], b[1] - a[1]]
        };
        Ok(Self { bounds, size, below, above, signed: [signed(&masks[0])?, signed(&masks[1])?], shift })
    }

    /// Mask of the interpolated shape in a slice of the box; rows and columns of the box.
    fn mask_at(&self, index: usize) -> Vec<bool> {
        let t = (index - self.below) as f64 / (self.above - self.below) as f64;
        let moved = |by: f64| self.shift.map(|s| (s * by).round() as isize);
        let (from_below, from_above) = (moved(t), moved(t - 1.0));
        let sample = |values: &[f32], row: usize, column: usize, by: [isize; 2]| {
            let r = row.checked_add_signed(-by[0]).filter(|r| *r < self.size[0]);
            let c = column.checked_add_signed(-by[1]).filter(|c| *c < self.size[1]);
            r.zip(c).map_or(f32::NEG_INFINITY, |(r, c)| values[r * self.size[1] + c])
        };
        let mut inside = Vec::with_capacity(self.size[0] * self.size[1]);
        for row in 0..self.size[0] {
            for column in 0..self.size[1] {
                let a = f64::from(sample(&self.signed[0], row, column, from_below));
                let b = f64::from(sample(&self.signed[1], row, column, from_above));
                inside.push((1.0 - t) * a + t * b > 0.0);
            }
        }
        inside
    }
}

/// Centroid (row, column) of a mask that is not empty.
fn center(mask: &[bool], columns: usize) -> [f64; 2] {
    let (mut sum, mut count) = ([0.0f64; 2], 0.0f64);
    for i in (0..mask.len()).filter(|i| mask[*i]) {
        sum = [sum[0] + (i / columns) as f64, sum[1] + (i % columns) as f64];
        count += 1.0;
    }
    sum.map(|s| s / count.max(1.0))
}

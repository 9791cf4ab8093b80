//! Computation of target channels from labels.

use super::TargetKind;
use crate::error::TrainingDataError;
use crate::objects::IGNORED;
use cytoscope_objects::distance::{distance_um, known_distance_um};
use std::collections::HashMap;

/// A part of a volume: its first voxel and its size along Z, Y, X.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inner {
    /// First voxel along Z, Y, X, counted in the volume.
    pub start: [usize; 3],
    /// Number of voxels along Z, Y, X.
    pub size: [usize; 3],
}

/// Target channels of the `inner` part of a label volume.
#[derive(Debug, PartialEq)]
pub(crate) struct Target {
    /// Values, `[channel][Z][Y][X]`.
    pub values: Vec<f32>,
    /// Whether the values of the channels after the first are known, `[Z][Y][X]`; empty if all are. They are not where an
    /// object may end or continue in voxels with the ignore label.
    pub known: Vec<bool>,
}

fn is_object(label: u32) -> bool {
    label != 0 && label != IGNORED
}

/// Computes the channels of a label volume with margin, for the `inner` part.
///
/// # Errors
/// [`TrainingDataError::Objects`] if the labels do not match the shape or a voxel size is not positive.
pub(crate) fn target_channels(
    kind: &TargetKind,
    labels: &[u32],
    shape: [usize; 3],
    inner: Inner,
    voxel_um: [f64; 3],
) -> Result<Target, TrainingDataError> {
    let len: usize = inner.size.iter().product();
    let mut values = vec![0.0f32; kind.channels() * len];
    let (foreground, rest) = values.split_at_mut(len);
    each_row(shape, inner, |from, to| {
        let labels = &labels[from..from + inner.size[2]];
        foreground[to..to + inner.size[2]]
            .iter_mut()
            .zip(labels)
            .for_each(|(o, l)| *o = f32::from(u8::from(is_object(*l))));
    });
    let known = match kind {
        TargetKind::Semantic | TargetKind::Regression => Vec::new(),
        TargetKind::Instances => {
            let distances = Distances::of(labels, shape, voxel_um)?;
            heights(labels, &distances.boundary, shape, inner, rest);
            known_part(labels, shape, inner, |at| distances.is_exact(at))
        }
        TargetKind::Distance { scale_um } => {
            let distances = Distances::of(labels, shape, voxel_um)?;
            let scale = 1.0 / *scale_um as f32;
            each_row(shape, inner, |from, to| {
                let values = &distances.boundary[from..from + inner.size[2]];
                rest[to..to + inner.size[2]].iter_mut().zip(values).for_each(|(o, d)| *o = (d * scale).tanh());
            });
            known_part(labels, shape, inner, |at| distances.is_exact(at))
        }
        TargetKind::Boundary { width_um } => {
            let distances = Distances::of(labels, shape, voxel_um)?;
            let width = *width_um as f32;
            let beside = beside(labels, shape, |a, b| a != b && a != IGNORED && b != IGNORED);
            let is_boundary = |at: usize| beside[at] || distances.boundary[at] <= width;
            each_row(shape, inner, |from, to| {
                for (x, o) in rest[to..to + inner.size[2]].iter_mut().enumerate() {
                    *o = f32::from(u8::from(is_object(labels[from + x]) && is_boundary(from + x)));
                }
            });
            let near = beside_ignored(labels, shape);
            known_part(labels, shape, inner, |at| is_boundary(at) || !(near[at] || distances.to_ignored(at) <= width))
        }
        TargetKind::Flow => {
            let ids = Ids::of(labels);
            flow(&ids, shape, inner, voxel_um, rest);
            let mut is_partial = vec![false; ids.count];
            for (id, near) in ids.voxel_ids.iter().zip(beside_ignored(labels, shape)) {
                if let Some(partial) = is_partial.get_mut(*id as usize) {
                    *partial |= near;
                }
            }
            let is_whole = |at: usize| !is_partial.get(ids.voxel_ids[at] as usize).is_some_and(|partial| *partial);
            known_part(labels, shape, inner, is_whole)
        }
    };
    Ok(Target { values, known })
}

/// Distances of the voxels of objects in µm, in a volume in which the labels of some voxels may be unknown.
struct Distances {
    /// To the nearest known voxel of another label; too large where an ignored voxel is closer.
    boundary: Vec<f32>,
    /// To the nearest voxel with the ignore label; empty if there is none.
    ignored: Vec<f32>,
}

/// Relative rounding error up to which two distances are equal.
const ROUNDING: f32 = 1e-4;

impl Distances {
    fn of(labels: &[u32], shape: [usize; 3], voxel_um: [f64; 3]) -> Result<Self, TrainingDataError> {
        let boundary = known_distance_um(labels, shape, voxel_um, is_object, |l| l != IGNORED)?;
        let mut ignored = Vec::new();
        if labels.contains(&IGNORED) {
            let mask: Vec<bool> = labels.iter().map(|l| *l != IGNORED).collect();
            ignored = distance_um(&mask, shape, voxel_um)?;
        }
        Ok(Self { boundary, ignored })
    }

    /// Returns the distance of a voxel to the nearest one with the ignore label; infinite if there is none.
    fn to_ignored(&self, at: usize) -> f32 {
        self.ignored.get(at).copied().unwrap_or(f32::INFINITY)
    }

    /// Returns whether no voxel with the ignore label is closer than the boundary, so that the distance to it is exact.
    fn is_exact(&self, at: usize) -> bool {
        self.boundary[at] <= self.to_ignored(at) * (1.0 + ROUNDING)
    }
}

/// Returns for which voxels of the inner part the channels after the first are known; empty for all of them if no label is
/// the ignore label.
fn known_part(labels: &[u32], shape: [usize; 3], inner: Inner, is_known: impl Fn(usize) -> bool) -> Vec<bool> {
    if !labels.contains(&IGNORED) {
        return Vec::new();
    }
    let mut known = Vec::with_capacity(inner.size.iter().product());
    each_row(shape, inner, |from, _| known.extend((from..from + inner.size[2]).map(&is_known)));
    known
}

/// Computes the heights of the inner part: distances to the boundary, divided by the largest one of each object. If an object
/// continues in voxels with the ignore label, the known part may be only its end, where all distances are small. Such an object
/// is divided by the median of all objects if that is larger.
fn heights(labels: &[u32], distance: &[f32], shape: [usize; 3], inner: Inner, out: &mut [f32]) {
    let ids = Ids::of(labels);
    let mut max = vec![0.0f32; ids.count];
    for (id, d) in ids.voxel_ids.iter().zip(distance).filter(|(_, d)| d.is_finite()) {
        if let Some(m) = max.get_mut(*id as usize) {
            *m = m.max(*d);
        }
    }
    if labels.contains(&IGNORED) {
        let mut sorted: Vec<f32> = max.iter().copied().filter(|m| *m > 0.0).collect();
        sorted.sort_by(f32::total_cmp);
        let median = sorted.get(sorted.len() / 2).copied().unwrap_or(0.0);
        for (id, _) in ids.voxel_ids.iter().zip(beside_ignored(labels, shape)).filter(|(_, is_beside)| *is_beside) {
            if let Some(m) = max.get_mut(*id as usize) {
                *m = m.max(median);
            }
        }
    }
    let scale: Vec<f32> = max.iter().map(|m| if *m > 0.0 { 1.0 / m } else { 0.0 }).collect();
    each_row(shape, inner, |from, to| {
        let range = from..from + inner.size[2];
        let values = ids.voxel_ids[range.clone()].iter().zip(&distance[range]);
        for (o, (id, d)) in out[to..to + inner.size[2]].iter_mut().zip(values) {
            if let Some(s) = scale.get(*id as usize) {
                // An object that fills the volume has no boundary: its height is 1 everywhere.
                *o = if d.is_finite() { d * s } else { 1.0 };
            }
        }
    });
}

/// Calls `f` for each row of the inner part, with the index of its first voxel in the volume and in the part.
pub(crate) fn each_row(shape: [usize; 3], inner: Inner, mut f: impl FnMut(usize, usize)) {
    for z in 0..inner.size[0] {
        for y in 0..inner.size[1] {
            let from = ((z + inner.start[0]) * shape[1] + y + inner.start[1]) * shape[2] + inner.start[2];
            f(from, (z * inner.size[1] + y) * inner.size[2]);
        }
    }
}

/// Labels renumbered without gaps, from 0.
struct Ids {
    /// Number of each voxel's object; `u32::MAX` outside objects.
    voxel_ids: Vec<u32>,
    count: usize,
}

impl Ids {
    fn of(labels: &[u32]) -> Self {
        let mut voxel_ids = vec![u32::MAX; labels.len()];
        let mut known: HashMap<u32, u32> = HashMap::new();
        let mut at = 0;
        for run in labels.chunk_by(|a, b| a == b) {
            if let Some(label) = run.first().filter(|l| **l != 0 && **l != IGNORED) {
                let next = known.len() as u32;
                voxel_ids[at..at + run.len()].fill(*known.entry(*label).or_insert(next));
            }
            at += run.len();
        }
        Self { voxel_ids, count: known.len() }
    }
}

/// Returns which voxels share a face with another voxel for which `differs`, called with both labels in either order, returns
/// true.
fn beside(labels: &[u32], [nz, ny, nx]: [usize; 3], differs: impl Fn(u32, u32) -> bool) -> Vec<bool> {
    let mut out = vec![false; labels.len()];
    for (axis, stride) in [(nz, ny * nx), (ny, nx), (nx, 1)] {
        for i in 0..labels.len().saturating_sub(stride) {
            if i / stride % axis + 1 < axis && differs(labels[i], labels[i + stride]) {
                out[i] = true;
                out[i + stride] = true;
            }
        }
    }
    out
}

/// Returns which voxels share a face with a voxel with the ignore label, or have it and share a face with another label.
fn beside_ignored(labels: &[u32], shape: [usize; 3]) -> Vec<bool> {
    beside(labels, shape, |a, b| (a == IGNORED) != (b == IGNORED))
}

/// Computes the unit vectors to the voxel of each object that is closest to its centroid.
fn flow(ids: &Ids, shape: [usize; 3], inner: Inner, voxel_um: [f64; 3], out: &mut [f32]) {
    let [_, ny, nx] = shape;
    let place = |i: usize| [i / (ny * nx), i / nx % ny, i % nx].map(|v| v as f64);
    let mut sums = vec![[0.0f64; 4]; ids.count];
    for (i, id) in ids.voxel_ids.iter().enumerate() {
        if let Some(sum) = sums.get_mut(*id as usize) {
            let at = place(i);
            (0..3).for_each(|a| sum[a] += at[a]);
            sum[3] += 1.0;
        }
    }
    let mut center = vec![(f64::INFINITY, [0.0f64; 3]); ids.count];
    for (i, id) in ids.voxel_ids.iter().enumerate() {
        if let (Some(sum), Some(best)) = (sums.get(*id as usize), center.get_mut(*id as usize)) {
            let at = place(i);
            let away = (0..3).map(|a| ((at[a] - sum[a] / sum[3]) * voxel_um[a]).powi(2)).sum::<f64>();
            if away < best.0 {
                *best = (away, at);
            }
        }
    }
    let len: usize = inner.size.iter().product();
    each_row(shape, inner, |from, to| {
        for x in 0..inner.size[2] {
            let Some((_, center)) = center.get(ids.voxel_ids[from + x] as usize) else { continue };
            let at = place(from + x);
            let step: [f64; 3] = std::array::from_fn(|a| (center[a] - at[a]) * voxel_um[a]);
            let length = step.iter().map(|v| v * v).sum::<f64>().sqrt();
            if length > 0.0 {
                (0..3).for_each(|a| out[a * len + to + x] = (step[a] / length) as f32);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: Inner = Inner { start: [0; 3], size: [1, 3, 8] };

    fn two_touching() -> Vec<u32> {
        let row = [0, 7, 7, 7, 9, 9, 0, 0];
        [row, row, row].concat()
    }

    #[test]
    fn height_is_low_where_objects_touch_and_one_in_their_center() {
        let out = target_channels(&TargetKind::Instances, &two_touching(), [1, 3, 8], WHOLE, [1.0; 3]).unwrap().values;
        assert_eq!(out[8..16], [0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]);
        assert_eq!(out[24 + 8..24 + 16], [0.0, 0.5, 1.0, 0.5, 1.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn a_part_equals_that_of_the_whole() {
        let labels = two_touching();
        for kind in [
            TargetKind::Instances,
            TargetKind::Flow,
            TargetKind::Semantic,
            TargetKind::Boundary { width_um: 1.0 },
            TargetKind::Distance { scale_um: 2.0 },
        ] {
            let whole = target_channels(&kind, &labels, [1, 3, 8], WHOLE, [1.0, 0.5, 2.0]).unwrap().values;
            let inner = Inner { start: [0, 1, 2], size: [1, 2, 4] };
            let cut = target_channels(&kind, &labels, [1, 3, 8], inner, [1.0, 0.5, 2.0]).unwrap().values;
            for c in 0..kind.channels() {
                for y in 0..2 {
                    let (a, b) = (c * 8 + y * 4, c * 24 + (y + 1) * 8 + 2);
                    assert_eq!(cut[a..a + 4], whole[b..b + 4], "{kind:?}");
                }
            }
        }
    }

    #[test]
    fn the_boundary_is_at_least_one_voxel_wide() {
        let kind = TargetKind::Boundary { width_um: 0.01 };
        let out = target_channels(&kind, &two_touching(), [1, 3, 8], WHOLE, [1.0; 3]).unwrap().values;
        assert_eq!(out[24 + 8..24 + 16], [0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn flow_points_to_the_center() {
        let out = target_channels(&TargetKind::Flow, &two_touching(), [1, 3, 8], WHOLE, [1.0; 3]).unwrap().values;
        let at = |c: usize, y: usize, x: usize| out[c * 24 + y * 8 + x];
        assert_eq!([at(1, 1, 1), at(2, 1, 1), at(3, 1, 1)], [0.0, 0.0, 1.0]);
        assert_eq!([at(1, 1, 2), at(2, 1, 2), at(3, 1, 2)], [0.0, 0.0, 0.0]);
        assert_eq!([at(1, 0, 2), at(2, 0, 2), at(3, 0, 2)], [0.0, 1.0, 0.0]);
        assert_eq!([at(1, 0, 6), at(2, 0, 6), at(3, 0, 6)], [0.0, 0.0, 0.0]);
    }

    /// Two touching columns along Z with a cross-section of 3 × 3 voxels in the middle of five slices, of which only slice 2
    /// is known if `is_part`.
    fn columns(is_part: bool) -> Vec<u32> {
        let row = [0, 7, 7, 7, 9, 9, 9, 0];
        let slice = [[0; 8], row, row, row, [0; 8]].concat();
        let known = |z: usize| if is_part && z != 2 { vec![IGNORED; 40] } else { slice.clone() };
        (0..5).flat_map(known).collect()
    }

    #[test]
    fn ignored_voxels_are_no_boundary_of_objects() {
        let (shape, um) = ([5, 5, 8], [1.5, 1.0, 1.0]);
        let inner = Inner { start: [2, 0, 0], size: [1, 5, 8] };
        let of = |kind: TargetKind, is_part: bool| target_channels(&kind, &columns(is_part), shape, inner, um).unwrap();
        let whole = of(TargetKind::Instances, false);
        let part = of(TargetKind::Instances, true);
        assert!(whole.known.is_empty());
        // The columns touch neither end of the volume, and their middles are 2 µm from their sides: the heights are those
        // of whole objects, and not limited to the distance of the slices.
        assert_eq!(part.values, whole.values);
        let middle = 40 + 2 * 8;
        assert_eq!(part.values[middle..middle + 8], [0.0, 0.5, 1.0, 0.5, 0.5, 1.0, 0.5, 0.0]);
        // The next slice is closer than the boundary of the two middles only.
        let unknown: Vec<usize> = (0..40).filter(|i| !part.known[*i]).collect();
        assert_eq!(unknown, [2 * 8 + 2, 2 * 8 + 5]);
        // At a distance of 2 µm, it is not closer.
        let far = target_channels(&TargetKind::Instances, &columns(true), shape, inner, [2.0, 1.0, 1.0]).unwrap();
        assert!(far.known.iter().all(|known| *known));
        let distance = TargetKind::Distance { scale_um: 2.0 };
        assert_eq!(of(distance, true).values, of(distance, false).values);
        assert_eq!(of(distance, true).known, part.known);
    }

    #[test]
    fn heights_in_small_sections_are_those_of_objects_of_the_median_size() {
        // Sections of 7, 7 and 3 voxels in the only known row: the last one is near the end of its object.
        let row: Vec<u32> =
            [0].into_iter().chain([1; 7]).chain([0]).chain([2; 7]).chain([0]).chain([3; 3]).chain([0]).collect();
        let columns = row.len();
        let labels = |is_part: bool| [vec![if is_part { IGNORED } else { 0 }; columns], row.clone()].concat();
        let inner = Inner { start: [0, 1, 0], size: [1, 1, columns] };
        let heights = |is_part: bool| {
            let voxel_um = [1.0, 10.0, 1.0];
            let target =
                target_channels(&TargetKind::Instances, &labels(is_part), [1, 2, columns], inner, voxel_um).unwrap();
            target.values[columns..].to_vec()
        };
        assert_eq!(heights(true)[4..6], [1.0, 0.75]);
        assert_eq!(heights(true)[17..20], [0.25, 0.5, 0.25]);
        assert_eq!(heights(false)[17..20], [0.5, 1.0, 0.5], "a whole object has its own size");
    }

    #[test]
    fn boundaries_and_flows_are_unknown_where_ignored_voxels_could_change_them() {
        let (shape, um) = ([5, 5, 8], [1.5, 1.0, 1.0]);
        let inner = Inner { start: [2, 0, 0], size: [1, 5, 8] };
        let part = |kind: TargetKind| target_channels(&kind, &columns(true), shape, inner, um).unwrap();
        let thin = part(TargetKind::Boundary { width_um: 1.0 });
        assert_eq!(thin.values[40 + 16..40 + 24], [0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0]);
        // Every voxel shares a face with an unknown one, so only voxels of the boundary are known, and the background.
        let known = |target: &Target| (0..8).map(|x| target.known[16 + x]).collect::<Vec<_>>();
        assert_eq!(known(&thin), [true, true, false, true, true, false, true, true]);
        // The centers of the objects are unknown.
        assert_eq!(known(&part(TargetKind::Flow)), [true, false, false, false, false, false, false, true]);
        let semantic = part(TargetKind::Semantic);
        assert!(semantic.known.is_empty());
    }
}

//! Computation of target channels from labels.

use super::TargetKind;
use crate::error::TrainingDataError;
use crate::objects::IGNORED;
use cytoscope_objects::distance::own_distance_um;
use std::collections::HashMap;

/// A part of a volume: its first voxel and its size along Z, Y, X.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Inner {
    pub start: [usize; 3],
    pub size: [usize; 3],
}

/// Computes the channels of a label volume with margin, and returns them for the `inner` part: `[channel][Z][Y][X]`.
///
/// # Errors
/// [`TrainingDataError::Objects`] if the labels do not match the shape or a voxel size is not positive.
pub(crate) fn target_channels(
    kind: &TargetKind,
    labels: &[u32],
    shape: [usize; 3],
    inner: Inner,
    voxel_um: [f64; 3],
) -> Result<Vec<f32>, TrainingDataError> {
    let len: usize = inner.size.iter().product();
    let mut out = vec![0.0f32; kind.channels() * len];
    let is_object = |l: u32| l != 0 && l != IGNORED;
    let (foreground, rest) = out.split_at_mut(len);
    each_row(shape, inner, |from, to| {
        let labels = &labels[from..from + inner.size[2]];
        foreground[to..to + inner.size[2]]
            .iter_mut()
            .zip(labels)
            .for_each(|(o, l)| *o = f32::from(u8::from(is_object(*l))));
    });
    match kind {
        TargetKind::Semantic | TargetKind::Regression => {}
        TargetKind::Instances => {
            let distance = own_distance_um(labels, shape, voxel_um, is_object)?;
            let ids = Ids::of(labels);
            let mut max = vec![0.0f32; ids.count];
            for (id, d) in ids.of_voxel.iter().zip(&distance) {
                if let Some(m) = max.get_mut(*id as usize) {
                    *m = m.max(*d);
                }
            }
            // An object that fills the volume has no boundary: its height is 1 everywhere.
            let scale: Vec<f32> = max.iter().map(|m| if m.is_finite() && *m > 0.0 { 1.0 / m } else { 0.0 }).collect();
            each_row(shape, inner, |from, to| {
                let range = from..from + inner.size[2];
                let values = ids.of_voxel[range.clone()].iter().zip(&distance[range]);
                for (o, (id, d)) in rest[to..to + inner.size[2]].iter_mut().zip(values) {
                    if let Some(s) = scale.get(*id as usize) {
                        *o = if d.is_finite() { d * s } else { 1.0 };
                    }
                }
            });
        }
        TargetKind::Distance { scale_um } => {
            let distance = own_distance_um(labels, shape, voxel_um, is_object)?;
            let scale = 1.0 / *scale_um as f32;
            each_row(shape, inner, |from, to| {
                let values = &distance[from..from + inner.size[2]];
                rest[to..to + inner.size[2]].iter_mut().zip(values).for_each(|(o, d)| *o = (d * scale).tanh());
            });
        }
        TargetKind::Boundary { width_um } => {
            let distance = own_distance_um(labels, shape, voxel_um, is_object)?;
            let width = *width_um as f32;
            let beside = beside_another(labels, shape);
            each_row(shape, inner, |from, to| {
                let range = from..from + inner.size[2];
                let values = labels[range.clone()].iter().zip(&distance[range.clone()]).zip(&beside[range]);
                for (o, ((l, d), b)) in rest[to..to + inner.size[2]].iter_mut().zip(values) {
                    *o = f32::from(u8::from(is_object(*l) && (*b || *d <= width)));
                }
            });
        }
        TargetKind::Flow => flow(labels, shape, inner, voxel_um, rest),
    }
    Ok(out)
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
    of_voxel: Vec<u32>,
    count: usize,
}

impl Ids {
    fn of(labels: &[u32]) -> Self {
        let mut of_voxel = vec![u32::MAX; labels.len()];
        let mut known: HashMap<u32, u32> = HashMap::new();
        let mut at = 0;
        for run in labels.chunk_by(|a, b| a == b) {
            if let Some(label) = run.first().filter(|l| **l != 0 && **l != IGNORED) {
                let next = known.len() as u32;
                of_voxel[at..at + run.len()].fill(*known.entry(*label).or_insert(next));
            }
            at += run.len();
        }
        Self { of_voxel, count: known.len() }
    }
}

/// Returns which voxels share a face with a voxel of another label.
fn beside_another(labels: &[u32], [nz, ny, nx]: [usize; 3]) -> Vec<bool> {
    let mut out = vec![false; labels.len()];
    for (axis, stride) in [(nz, ny * nx), (ny, nx), (nx, 1)] {
        for i in 0..labels.len().saturating_sub(stride) {
            if i / stride % axis + 1 < axis && labels[i] != labels[i + stride] {
                out[i] = true;
                out[i + stride] = true;
            }
        }
    }
    out
}

/// Computes the unit vectors to the voxel of each object that is closest to its centroid.
fn flow(labels: &[u32], shape: [usize; 3], inner: Inner, voxel_um: [f64; 3], out: &mut [f32]) {
    let [_, ny, nx] = shape;
    let ids = Ids::of(labels);
    let place = |i: usize| [i / (ny * nx), i / nx % ny, i % nx].map(|v| v as f64);
    let mut sums = vec![[0.0f64; 4]; ids.count];
    for (i, id) in ids.of_voxel.iter().enumerate() {
        if let Some(sum) = sums.get_mut(*id as usize) {
            let at = place(i);
            (0..3).for_each(|a| sum[a] += at[a]);
            sum[3] += 1.0;
        }
    }
    let mut center = vec![(f64::INFINITY, [0.0f64; 3]); ids.count];
    for (i, id) in ids.of_voxel.iter().enumerate() {
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
            let Some((_, center)) = center.get(ids.of_voxel[from + x] as usize) else { continue };
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
        let out = target_channels(&TargetKind::Instances, &two_touching(), [1, 3, 8], WHOLE, [1.0; 3]).unwrap();
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
            let whole = target_channels(&kind, &labels, [1, 3, 8], WHOLE, [1.0, 0.5, 2.0]).unwrap();
            let inner = Inner { start: [0, 1, 2], size: [1, 2, 4] };
            let cut = target_channels(&kind, &labels, [1, 3, 8], inner, [1.0, 0.5, 2.0]).unwrap();
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
        let out = target_channels(&kind, &two_touching(), [1, 3, 8], WHOLE, [1.0; 3]).unwrap();
        assert_eq!(out[24 + 8..24 + 16], [0.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn flow_points_to_the_center() {
        let out = target_channels(&TargetKind::Flow, &two_touching(), [1, 3, 8], WHOLE, [1.0; 3]).unwrap();
        let at = |c: usize, y: usize, x: usize| out[c * 24 + y * 8 + x];
        assert_eq!([at(1, 1, 1), at(2, 1, 1), at(3, 1, 1)], [0.0, 0.0, 1.0]);
        assert_eq!([at(1, 1, 2), at(2, 1, 2), at(3, 1, 2)], [0.0, 0.0, 0.0]);
        assert_eq!([at(1, 0, 2), at(2, 0, 2), at(3, 0, 2)], [0.0, 1.0, 0.0]);
        assert_eq!([at(1, 0, 6), at(2, 0, 6), at(3, 0, 6)], [0.0, 0.0, 0.0]);
    }
}

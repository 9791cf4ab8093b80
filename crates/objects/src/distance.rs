//! The exact Euclidean distance transform for anisotropic voxels: of a mask, or of every object of a label image to the
//! nearest voxel outside it, including voxels of touching objects.
//!
//! Squared distances are computed axis by axis within runs of one label: along X from the ends of the run, along Y and
//! Z by the lower envelope of parabolas (Felzenszwalb and Huttenlocher, Theory of Computing 8, 2012), with a parabola
//! of height 0 just outside each end.

use crate::ObjectsError;
use crate::error::check_len;

/// Returns the distance in µm of each mask voxel to the center of the nearest background voxel (0 in the background;
/// the border of the volume is not background). Infinite in a volume without background.
///
/// # Errors
/// [`ObjectsError`] if the mask does not match the shape or a voxel size is not positive.
pub fn distance_um(mask: &[bool], shape_zyx: [usize; 3], voxel_um: [f64; 3]) -> Result<Vec<f32>, ObjectsError> {
    check_len("mask", mask.len(), shape_zyx)?;
    own_distance_um(mask, shape_zyx, voxel_um, |inside| inside)
}

/// Returns the distance in µm of each voxel of an object to the center of the nearest voxel of another label (0 where
/// `is_object` is false). The border of the volume is not a boundary; the distance is infinite if the volume contains no
/// other label.
///
/// # Errors
/// [`ObjectsError`] if the labels do not match the shape or a voxel size is not positive.
pub fn own_distance_um<T: Copy + PartialEq>(
    labels: &[T],
    shape_zyx: [usize; 3],
    voxel_um: [f64; 3],
    is_object: impl Fn(T) -> bool,
) -> Result<Vec<f32>, ObjectsError> {
    known_distance_um(labels, shape_zyx, voxel_um, is_object, |_| true)
}

/// Like [`own_distance_um`], but voxels for which `is_known` is false do not count as boundary. Where no such voxel is
/// closer than the nearest known voxel of another label, the result is the distance to that known voxel. Elsewhere, it is
/// that distance or a larger one.
///
/// # Errors
/// Same as [`own_distance_um`].
pub fn known_distance_um<T: Copy + PartialEq>(
    labels: &[T],
    shape_zyx: [usize; 3],
    voxel_um: [f64; 3],
    is_object: impl Fn(T) -> bool,
    is_known: impl Fn(T) -> bool,
) -> Result<Vec<f32>, ObjectsError> {
    check_len("labels", labels.len(), shape_zyx)?;
    if voxel_um.iter().any(|v| !v.is_finite() || *v <= 0.0) {
        return Err(ObjectsError::Parameter {
            what: "voxel size",
            expected: "positive µm",
            got: format!("{voxel_um:?}"),
        });
    }
    let [nz, ny, nx] = shape_zyx;
    let [uz, uy, ux] = voxel_um.map(|v| v as f32);
    let mut squared = vec![0.0f32; labels.len()];
    if labels.is_empty() {
        return Ok(squared);
    }
    for (row, out) in labels.chunks_exact(nx).zip(squared.chunks_exact_mut(nx)) {
        along_x(row, out, ux, &is_object, &is_known);
    }
    let mut envelope = Envelope::new(ny.max(nz));
    if ny > 1 {
        for (plane, out) in labels.chunks_exact(ny * nx).zip(squared.chunks_exact_mut(ny * nx)) {
            for x in 0..nx {
                let line = Line { first: x, stride: nx, count: ny, step_um: uy };
                envelope.line(plane, out, line, &is_object, &is_known);
            }
        }
    }
    if nz > 1 {
        for at in 0..ny * nx {
            let line = Line { first: at, stride: ny * nx, count: nz, step_um: uz };
            envelope.line(labels, &mut squared, line, &is_object, &is_known);
        }
    }
    squared.iter_mut().for_each(|d| *d = d.sqrt());
    Ok(squared)
}

/// Computes squared distances along one row, from the ends of each run that a known voxel follows.
fn along_x<T: Copy + PartialEq>(
    row: &[T],
    out: &mut [f32],
    step_um: f32,
    is_object: impl Fn(T) -> bool,
    is_known: impl Fn(T) -> bool,
) {
    let mut start = 0;
    for run in row.chunk_by(|a, b| a == b) {
        let end = start + run.len();
        if run.first().is_some_and(|label| is_object(*label)) {
            let is_bounded_before = start > 0 && is_known(row[start - 1]);
            let is_bounded_after = end < row.len() && is_known(row[end]);
            for (i, o) in out[start..end].iter_mut().enumerate() {
                let before = if is_bounded_before { (i + 1) as f32 } else { f32::INFINITY };
                let after = if is_bounded_after { (run.len() - i) as f32 } else { f32::INFINITY };
                let d = before.min(after) * step_um;
                *o = d * d;
            }
        }
        start = end;
    }
}

/// A line of voxels, or a run of it: the index of its first voxel, and the distance of its voxels in the array and in µm.
#[derive(Clone, Copy)]
struct Line {
    first: usize,
    stride: usize,
    count: usize,
    step_um: f32,
}

/// Buffers for the lower envelope.
struct Envelope {
    heights: Vec<f32>,
    /// Positions and heights of the parabolas on the envelope.
    vertex: Vec<(f32, f32)>,
    /// Position from which each parabola is the lowest.
    from: Vec<f32>,
}

impl Envelope {
    fn new(longest: usize) -> Self {
        Self { heights: vec![0.0; longest], vertex: vec![(0.0, 0.0); longest + 3], from: vec![0.0; longest + 3] }
    }

    /// Processes one line.
    fn line<T: Copy + PartialEq>(
        &mut self,
        labels: &[T],
        out: &mut [f32],
        line: Line,
        is_object: impl Fn(T) -> bool,
        is_known: impl Fn(T) -> bool,
    ) {
        let Line { first, stride, count, .. } = line;
        let mut start = 0;
        while start < count {
            let label = labels[first + start * stride];
            let mut end = start + 1;
            while end < count && labels[first + end * stride] == label {
                end += 1;
            }
            if is_object(label) {
                let run = Line { first: first + start * stride, count: end - start, ..line };
                let is_bounded_before = start > 0 && is_known(labels[first + (start - 1) * stride]);
                let is_bounded_after = end < count && is_known(labels[first + end * stride]);
                self.run(out, run, is_bounded_before, is_bounded_after);
            }
            start = end;
        }
    }

    /// Processes one run of a line; `before` and `after` state whether a known voxel of another label precedes or follows
    /// it.
    fn run(&mut self, out: &mut [f32], run: Line, before: bool, after: bool) {
        let Line { first, stride, count: len, step_um } = run;
        let weight = step_um * step_um;
        // Short runs are frequent and need no envelope.
        if len == 1 {
            if before || after {
                out[first] = out[first].min(weight);
            }
            return;
        }
        let mut max = 0.0f32;
        for (i, h) in self.heights[..len].iter_mut().enumerate() {
            *h = out[first + i * stride];
            max = max.max(*h);
        }
        if max <= weight {
            return;
        }
        let mut top = 0usize;
        let mut any = false;
        if before {
            self.vertex[0] = (-1.0, 0.0);
            self.from[0] = f32::NEG_INFINITY;
            any = true;
        }
        for q in 0..=len {
            let h = if q < len { self.heights[q] } else { 0.0 };
            if h == f32::INFINITY || (q == len && !after) {
                continue;
            }
            let at = q as f32;
            loop {
                if !any {
                    self.vertex[0] = (at, h);
                    self.from[0] = f32::NEG_INFINITY;
                    (top, any) = (0, true);
                    break;
                }
                // Position where the new parabola falls below the last one.
                let (v, height) = self.vertex[top];
                let cross = ((h - height) / weight + at * at - v * v) / (2.0 * (at - v));
                if cross <= self.from[top] {
                    if top == 0 {
                        any = false;
                    } else {
                        top -= 1;
                    }
                    continue;
                }
                top += 1;
                self.vertex[top] = (at, h);
                self.from[top] = cross;
                break;
            }
        }
        if !any {
            return;
        }
        let mut k = 0;
        for i in 0..len {
            let at = i as f32;
            while k < top && self.from[k + 1] < at {
                k += 1;
            }
            let (v, height) = self.vertex[k];
            out[first + i * stride] = height + weight * (at - v) * (at - v);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Label of voxels that belong to no object, beside 0.
    const UNKNOWN: u32 = u32::MAX;

    fn is_object(label: u32) -> bool {
        label != 0 && label != UNKNOWN
    }

    /// The same by comparing each voxel with all others.
    fn brute_force(labels: &[u32], [_, ny, nx]: [usize; 3], voxel: [f64; 3]) -> Vec<f64> {
        let at = |i: usize| [i / (ny * nx), i / nx % ny, i % nx];
        (0..labels.len())
            .map(|i| {
                if !is_object(labels[i]) {
                    return 0.0;
                }
                let away = |j: usize| {
                    (0..3).map(|a| ((at(i)[a] as f64 - at(j)[a] as f64) * voxel[a]).powi(2)).sum::<f64>().sqrt()
                };
                (0..labels.len()).filter(|j| labels[*j] != labels[i]).map(away).fold(f64::INFINITY, f64::min)
            })
            .collect()
    }

    fn is_equal(got: f32, want: f64) -> bool {
        let got = f64::from(got);
        (got.is_infinite() && want.is_infinite()) || (got - want).abs() < 1e-4
    }

    proptest! {
        #[test]
        fn distances_in_a_mask_equal_brute_force_search(bits in prop::collection::vec(prop::bool::weighted(0.8), 4 * 5 * 7), vz in 0.3f64..3.0, vy in 0.3f64..3.0) {
            let (shape, voxel) = ([4, 5, 7], [vz, vy, 0.7]);
            let got = distance_um(&bits, shape, voxel).unwrap();
            let labels: Vec<u32> = bits.iter().map(|inside| u32::from(*inside)).collect();
            for (g, w) in got.iter().zip(brute_force(&labels, shape, voxel)) {
                prop_assert!(is_equal(*g, w), "{} {}", g, w);
            }
        }

        #[test]
        fn distances_in_labels_equal_brute_force_search(coarse in prop::collection::vec(0u32..4, 3 * 3 * 4), vz in 0.3f64..3.0, vy in 0.3f64..3.0, unknown in any::<bool>()) {
            // Blocks of 2 x 2 x 2 voxels, so that objects have interiors and touch.
            let (shape, voxel) = ([6, 6, 8], [vz, vy, 0.7]);
            let labels: Vec<u32> = (0..6 * 6 * 8)
                .map(|i| coarse[(i / 48 / 2 * 3 + i / 8 % 6 / 2) * 4 + i % 8 / 2])
                .map(|l| if unknown && l == 3 { UNKNOWN } else { l })
                .collect();
            let got = own_distance_um(&labels, shape, voxel, is_object).unwrap();
            for (g, w) in got.iter().zip(brute_force(&labels, shape, voxel)) {
                prop_assert!(is_equal(*g, w), "{} {}", g, w);
            }
        }
    }

    proptest! {
        #[test]
        fn unknown_voxels_are_no_boundary(coarse in prop::collection::vec(0u32..4, 3 * 3 * 4), vz in 0.3f64..3.0, vy in 0.3f64..3.0) {
            let (shape, voxel) = ([6, 6, 8], [vz, vy, 0.7]);
            let labels: Vec<u32> = (0..6 * 6 * 8)
                .map(|i| coarse[(i / 48 / 2 * 3 + i / 8 % 6 / 2) * 4 + i % 8 / 2])
                .map(|l| if l == 3 { UNKNOWN } else { l })
                .collect();
            let got = known_distance_um(&labels, shape, voxel, is_object, |l| l != UNKNOWN).unwrap();
            // The nearest voxel of another label, known or not, and the nearest known one.
            let nearest = brute_force(&labels, shape, voxel);
            let at = |i: usize| [i / 48, i / 8 % 6, i % 8].map(|v| v as f64);
            for i in (0..labels.len()).filter(|i| is_object(labels[*i])) {
                let away = |j: usize| (0..3).map(|a| ((at(i)[a] - at(j)[a]) * voxel[a]).powi(2)).sum::<f64>().sqrt();
                let others = (0..labels.len()).filter(|j| labels[*j] != labels[i] && labels[*j] != UNKNOWN);
                let known = others.map(away).fold(f64::INFINITY, f64::min);
                if known <= nearest[i] {
                    prop_assert!(is_equal(got[i], known), "{} {}", got[i], known);
                } else {
                    prop_assert!(f64::from(got[i]) >= known - 1e-4, "{} {}", got[i], known);
                }
            }
        }
    }

    #[test]
    fn the_distance_is_infinite_without_another_label() {
        let got = own_distance_um(&[5; 60], [3, 4, 5], [1.0; 3], is_object).unwrap();
        assert!(got.iter().all(|d| d.is_infinite()));
    }
}

//! Exact Euclidean distance of every voxel of an object to the nearest voxel outside it, including voxels of touching
//! objects.
//!
//! Squared distances are computed axis by axis within runs of one label: along X from the ends of the run, along Y and
//! Z by the lower envelope of parabolas (Felzenszwalb and Huttenlocher, Theory of Computing 8, 2012), with a parabola
//! of height 0 just outside each end.

use crate::objects::IGNORED;

/// Returns the distance in µm to the center of the nearest voxel of another label (0 for background and the ignore
/// label). The border of the volume is not a boundary; the distance is infinite if the volume contains no other label.
pub(crate) fn own_distance_um(labels: &[u32], [nz, ny, nx]: [usize; 3], voxel_um: [f64; 3]) -> Vec<f32> {
    let mut out = vec![0.0f32; labels.len()];
    if labels.is_empty() || labels.len() != nz * ny * nx {
        return out;
    }
    let [uz, uy, ux] = voxel_um.map(|v| v as f32);
    for (row, out) in labels.chunks_exact(nx).zip(out.chunks_exact_mut(nx)) {
        along_x(row, out, ux);
    }
    let mut scratch = Scratch::new(ny.max(nz));
    if ny > 1 {
        for (plane, out) in labels.chunks_exact(ny * nx).zip(out.chunks_exact_mut(ny * nx)) {
            for x in 0..nx {
                scratch.line(plane, out, x, nx, ny, uy);
            }
        }
    }
    if nz > 1 {
        for at in 0..ny * nx {
            scratch.line(labels, &mut out, at, ny * nx, nz, uz);
        }
    }
    out.iter_mut().for_each(|d| *d = d.sqrt());
    out
}

/// Computes squared distances along one row, from the ends of each run.
fn along_x(row: &[u32], out: &mut [f32], step: f32) {
    let mut start = 0;
    for run in row.chunk_by(|a, b| a == b) {
        let end = start + run.len();
        if run.first().is_some_and(|l| *l != 0 && *l != IGNORED) {
            for (i, o) in out[start..end].iter_mut().enumerate() {
                let before = if start > 0 { (i + 1) as f32 } else { f32::INFINITY };
                let after = if end < row.len() { (run.len() - i) as f32 } else { f32::INFINITY };
                let d = before.min(after) * step;
                *o = d * d;
            }
        }
        start = end;
    }
}

/// Buffers for the lower envelope.
struct Scratch {
    heights: Vec<f32>,
    /// Positions and heights of the parabolas on the envelope.
    vertex: Vec<(f32, f32)>,
    /// Position from which each parabola is the lowest.
    from: Vec<f32>,
}

impl Scratch {
    fn new(longest: usize) -> Self {
        Self { heights: vec![0.0; longest], vertex: vec![(0.0, 0.0); longest + 3], from: vec![0.0; longest + 3] }
    }

    /// Processes one line of `count` voxels at distance `stride`.
    fn line(&mut self, labels: &[u32], out: &mut [f32], first: usize, stride: usize, count: usize, step: f32) {
        let mut start = 0;
        while start < count {
            let label = labels[first + start * stride];
            let mut end = start + 1;
            while end < count && labels[first + end * stride] == label {
                end += 1;
            }
            if label != 0 && label != IGNORED {
                self.run(out, first + start * stride, stride, end - start, step, start > 0, end < count);
            }
            start = end;
        }
    }

    /// Processes one run of a line; `before` and `after` tell whether another label precedes or follows it.
    #[expect(clippy::too_many_arguments, reason = "operands of an inner loop")]
    fn run(&mut self, out: &mut [f32], first: usize, stride: usize, len: usize, step: f32, before: bool, after: bool) {
        let weight = step * step;
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

    fn brute_force(labels: &[u32], [_, ny, nx]: [usize; 3], voxel: [f64; 3]) -> Vec<f64> {
        let at = |i: usize| [i / (ny * nx), i / nx % ny, i % nx];
        (0..labels.len())
            .map(|i| {
                if labels[i] == 0 || labels[i] == IGNORED {
                    return 0.0;
                }
                let away = |j: usize| {
                    (0..3).map(|a| ((at(i)[a] as f64 - at(j)[a] as f64) * voxel[a]).powi(2)).sum::<f64>().sqrt()
                };
                (0..labels.len()).filter(|j| labels[*j] != labels[i]).map(away).fold(f64::INFINITY, f64::min)
            })
            .collect()
    }

    proptest! {
        #[test]
        fn equals_brute_force_search(coarse in prop::collection::vec(0u32..4, 3 * 3 * 4), vz in 0.3f64..3.0, vy in 0.3f64..3.0, ignore in any::<bool>()) {
            // Blocks of 2 x 2 x 2 voxels, so that objects have interiors and touch.
            let shape = [6, 6, 8];
            let labels: Vec<u32> = (0..6 * 6 * 8)
                .map(|i| coarse[(i / 48 / 2 * 3 + i / 8 % 6 / 2) * 4 + i % 8 / 2])
                .map(|l| if ignore && l == 3 { IGNORED } else { l })
                .collect();
            let voxel = [vz, vy, 0.7];
            let got = own_distance_um(&labels, shape, voxel);
            for (g, w) in got.iter().zip(brute_force(&labels, shape, voxel)) {
                let g = f64::from(*g);
                prop_assert!((g.is_infinite() && w.is_infinite()) || (g - w).abs() < 1e-4, "{} {}", g, w);
            }
        }
    }

    #[test]
    fn the_distance_is_infinite_without_another_label() {
        assert!(own_distance_um(&[5; 60], [3, 4, 5], [1.0; 3]).iter().all(|d| d.is_infinite()));
    }
}

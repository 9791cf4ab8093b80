//! The exact Euclidean distance transform for anisotropic voxels.
//!
//! Squared distances are computed axis by axis: along X by scanning, along Y and Z by the lower envelope of parabolas
//! (Felzenszwalb and Huttenlocher, Theory of Computing 8, 2012).

use crate::ObjectsError;
use crate::error::check_len;

/// Returns the distance in µm of each mask voxel to the center of the nearest background voxel (0 in the background;
/// the border of the volume is not background). Infinite in a volume without background.
///
/// # Errors
/// [`ObjectsError`] if the mask does not match the shape or a voxel size is not positive.
pub fn distance_um(mask: &[bool], shape_zyx: [usize; 3], voxel_um: [f64; 3]) -> Result<Vec<f32>, ObjectsError> {
    check_len("mask", mask.len(), shape_zyx)?;
    if voxel_um.iter().any(|v| !v.is_finite() || *v <= 0.0) {
        return Err(ObjectsError::Parameter {
            what: "voxel size",
            expected: "positive µm",
            got: format!("{voxel_um:?}"),
        });
    }
    let [nz, ny, nx] = shape_zyx;
    let mut squared = vec![f32::INFINITY; mask.len()];
    if mask.is_empty() {
        return Ok(squared);
    }
    for (line, out) in mask.chunks_exact(nx).zip(squared.chunks_exact_mut(nx)) {
        scan(line, out, voxel_um[2] as f32);
    }
    let mut scratch = Envelope::new(ny.max(nz));
    for plane in squared.chunks_exact_mut(ny * nx) {
        for x in 0..nx {
            scratch.run(plane, x, nx, ny, voxel_um[1] as f32);
        }
    }
    if nz > 1 {
        for at in 0..ny * nx {
            scratch.run(&mut squared, at, ny * nx, nz, voxel_um[0] as f32);
        }
    }
    squared.iter_mut().for_each(|d| *d = d.sqrt());
    Ok(squared)
}

/// Squared distance to the nearest background voxel along one line.
fn scan(mask: &[bool], out: &mut [f32], step: f32) {
    let mut away = f32::INFINITY;
    for (m, o) in mask.iter().zip(out.iter_mut()) {
        away = if *m { away + step } else { 0.0 };
        *o = away;
    }
    away = f32::INFINITY;
    for o in out.iter_mut().rev() {
        away = if *o == 0.0 { 0.0 } else { away + step };
        let d = o.min(away);
        *o = d * d;
    }
}

/// Buffers of the lower envelope.
struct Envelope {
    heights: Vec<f32>,
    /// Positions of the parabolas on the envelope, and the start of the interval in which each is lowest.
    vertex: Vec<usize>,
    from: Vec<f32>,
}

impl Envelope {
    fn new(longest: usize) -> Self {
        Self { heights: vec![0.0; longest], vertex: vec![0; longest], from: vec![0.0; longest + 1] }
    }

    /// Computes `out[i] = min_j in[j] + (step · (i − j))²` along `count` values `stride` apart from `start`.
    fn run(&mut self, volume: &mut [f32], start: usize, stride: usize, count: usize, step: f32) {
        let mut any_inside = false;
        for i in 0..count {
            self.heights[i] = volume[start + i * stride];
            any_inside |= self.heights[i] > 0.0;
        }
        if !any_inside {
            return;
        }
        let weight = step * step;
        let mut top: Option<usize> = None;
        for q in 0..count {
            let h = self.heights[q];
            if h == f32::INFINITY {
                continue;
            }
            loop {
                let Some(k) = top else {
                    self.vertex[0] = q;
                    self.from[0] = f32::NEG_INFINITY;
                    top = Some(0);
                    break;
                };
                let v = self.vertex[k];
                // The position where the parabola of q falls below that of v.
                let (qf, vf) = (q as f32, v as f32);
                let cross = ((h - self.heights[v]) / weight + qf * qf - vf * vf) / (2.0 * (qf - vf));
                if cross <= self.from[k] {
                    top = k.checked_sub(1);
                    continue;
                }
                self.vertex[k + 1] = q;
                self.from[k + 1] = cross;
                top = Some(k + 1);
                break;
            }
        }
        let Some(last) = top else { return };
        let mut k = 0;
        for i in 0..count {
            while k < last && self.from[k + 1] < i as f32 {
                k += 1;
            }
            let v = self.vertex[k];
            let away = (i as f32 - v as f32) * step;
            volume[start + i * stride] = self.heights[v] + away * away;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equals_searching_all_voxels(bits in prop::collection::vec(prop::bool::weighted(0.8), 4 * 5 * 7), vz in 0.3f64..3.0, vy in 0.3f64..3.0) {
            let voxel = [vz, vy, 0.7];
            let got = distance_um(&bits, [4, 5, 7], voxel).unwrap();
            let at = |i: usize| [i / 35, i / 7 % 5, i % 7];
            for i in 0..bits.len() {
                let want = (0..bits.len()).filter(|j| !bits[*j]).map(|j| {
                    (0..3).map(|a| ((at(i)[a] as f64 - at(j)[a] as f64) * voxel[a]).powi(2)).sum::<f64>().sqrt()
                }).fold(f64::INFINITY, f64::min);
                let g = f64::from(got[i]);
                prop_assert!((g.is_infinite() && want.is_infinite()) || (g - want).abs() < 1e-4, "{} {}", g, want);
            }
        }
    }
}

//! Higher loss weights in thin gaps between objects.

use crate::error::{TrainingDataError, check_range};
use crate::objects::IGNORED;
use serde::{Deserialize, Serialize};

/// Higher loss weights where two objects nearly touch.
///
/// Background voxels between two different objects along Z, Y or X, at most `max_gap_um` apart, have the weight `1 +
/// strength · exp(−2 · (length / max_gap_um)²)` of the shortest such gap. Where two objects touch, the voxels on both
/// sides have the weight `1 + strength`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct GapWeight {
    /// Maximum length of a gap in µm.
    pub max_gap_um: f64,
    /// Maximum weight that is added to a voxel in a gap.
    pub strength: f64,
}

impl Default for GapWeight {
    fn default() -> Self {
        Self { max_gap_um: 4.0, strength: 4.0 }
    }
}

impl GapWeight {
    pub(crate) fn check(&self) -> Result<(), TrainingDataError> {
        check_range("the longest gap", self.max_gap_um, 1e-9..=1e6, "a length above 0 and up to 1 000 000 µm")?;
        check_range("the weight of gaps", self.strength, 0.0..=1000.0, "0 to 1000")
    }

    /// Returns the weight of every voxel of a label volume; 1 outside gaps.
    pub(crate) fn factors(&self, labels: &[u32], [nz, ny, nx]: [usize; 3], voxel_um: [f64; 3]) -> Vec<f32> {
        let mut out = vec![1.0f32; labels.len()];
        let plane = ny * nx;
        let mut line = |first, stride, count, step| self.line(labels, &mut out, first, stride, count, step);
        (0..plane).for_each(|first| line(first, plane, nz, voxel_um[0]));
        (0..nz).for_each(|z| (0..nx).for_each(|x| line(z * plane + x, nx, ny, voxel_um[1])));
        (0..nz * ny).for_each(|row| line(row * nx, 1, nx, voxel_um[2]));
        out
    }

    fn line(&self, labels: &[u32], out: &mut [f32], first: usize, stride: usize, count: usize, step: f64) {
        // The last object and the voxel after it.
        let mut last: Option<(u32, usize)> = None;
        for i in 0..count {
            let label = labels[first + i * stride];
            if label == IGNORED {
                last = None;
                continue;
            }
            if label == 0 {
                continue;
            }
            if let Some((_, from)) = last.filter(|(other, _)| *other != label) {
                let length = (i - from) as f64 * step;
                if length <= self.max_gap_um {
                    let share = (-(length / self.max_gap_um).powi(2) * 2.0).exp();
                    let weight = (1.0 + self.strength * share) as f32;
                    let stretch = if from == i { i - 1..i + 1 } else { from..i };
                    for j in stretch {
                        let o = &mut out[first + j * stride];
                        *o = o.max(weight);
                    }
                }
            }
            last = Some((label, i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinner_gaps_have_higher_weights() {
        let gap = GapWeight { max_gap_um: 2.0, strength: 3.0 };
        let row = [1, 1, 0, 2, 0, 0, 3, 0, 0, 0, 4, 5, 0, 5];
        let got = gap.factors(&row, [1, 1, 14], [1.0; 3]);
        assert!(got[2] > got[4] && got[4] == got[5] && got[4] > 1.0);
        assert_eq!(got[7..10], [1.0; 3]);
        assert_eq!(got[10..12], [4.0; 2]);
        assert_eq!(got[12], 1.0);
        assert_eq!(gap.factors(&row, [14, 1, 1], [1.0; 3]), got);
        assert_eq!(gap.factors(&row, [1, 14, 1], [1.0; 3]), got);
    }
}

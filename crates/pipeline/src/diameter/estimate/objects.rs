//! The objects of a short prediction: their diameters and elongation, and the estimate that follows from them.

use super::{Coarsening, ShortPrediction};
use crate::diameter::{Certainty, DiameterEstimate};
use cytoscope_objects::diameter::{circle_diameter, sphere_diameter, whole};

/// Share of objects in a tile above which the intensity between them says nothing about the background: in tissue, the light of
/// objects is blurred into the gaps between them.
const MAX_FILL: f64 = 1.0 / 3.0;

/// Objects of a short prediction.
#[derive(Default)]
pub(super) struct Measured {
    /// Diameters, sorted.
    pub(super) diameters: Vec<f64>,
    /// Median ratio of object lengths along Z to those in the plane.
    pub(super) elongation: Option<f64>,
    /// Whether the tile covered the whole stack.
    pub(super) is_complete: bool,
    pub(super) appearance: Appearance,
}

/// How the objects of a short prediction look in the heights that the network finds, and in the image.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Appearance {
    /// Mean of the objects' largest heights: the higher, the clearer the network sees them.
    pub(super) peak: f64,
    /// Correlation of heights and intensities inside the objects: positive for those that are brightest in the middle, negative
    /// for those with bright outlines. `None` without objects, or if they are uniform.
    pub(super) brightness: Option<f64>,
    /// Median of the objects' mean intensities in the model's input. `None` without objects.
    pub(super) intensity: Option<f64>,
    /// Median intensity between the objects in the model's input. `None` without objects, or if they fill more than
    /// [`MAX_FILL`] of the tile.
    pub(super) background: Option<f64>,
}

impl Measured {
    /// Returns the diameter at a quantile from 0 to 1, of the larger one of two objects; `None` without objects.
    pub(super) fn at(&self, share: f64) -> Option<f64> {
        let last = self.diameters.len().checked_sub(1)?;
        self.diameters.get((share * last as f64).round() as usize).copied()
    }

    /// Returns the estimate of `diameter`, where `change` is the logarithm of its last change, on a grid with this coarsening.
    pub(super) fn estimate(&self, diameter: f64, change: f64, coarsening: Coarsening) -> DiameterEstimate {
        let objects = self.diameters.len();
        let certainty = match objects {
            8.. if change < coarsening.certain_ratio.ln() => Certainty::High,
            3.. if change < 1.25f64.ln() => Certainty::Medium,
            _ => Certainty::Low,
        };
        let range = [0.1, 0.9].map(|share| self.at(share).unwrap_or(diameter));
        DiameterEstimate { diameter, range, objects, certainty, intensity_factor: 1.0, intensity_background: 0.0 }
    }
}

/// Number of voxels, and first and second moments of the voxel positions, of an object.
#[derive(Clone, Default)]
struct Moments {
    voxels: f64,
    /// Slice of the last voxel, and the number of voxels there.
    slice: (usize, f64),
    /// Largest number of voxels in a slice.
    section: f64,
    sum: [f64; 3],
    squares: [f64; 3],
    is_cut: bool,
}

impl Moments {
    /// Returns the standard deviation of the positions along an axis in voxels, including the variance of a single
    /// voxel.
    fn deviation(&self, axis: usize) -> f64 {
        let mean = self.sum[axis] / self.voxels;
        (self.squares[axis] / self.voxels - mean * mean + 1.0 / 12.0).max(0.0).sqrt()
    }
}

/// Measures the objects that are not cut by the border of the volume, or all of them if those are fewer than three. In the
/// slices of a flat stack ([`FLAT_SLICES`](cytoscope_objects::diameter::FLAT_SLICES)), their sections are measured.
pub(super) fn measured(
    labels: &[u32],
    count: u32,
    [nz, ny, nx]: [usize; 3],
    voxel: [f64; 3],
    at: &ShortPrediction,
) -> Measured {
    let mut objects = vec![Moments::default(); count as usize + 1];
    for (row, line) in labels.chunks_exact(nx.max(1)).enumerate() {
        let (z, y) = (row / ny, row % ny);
        let edge_row = y == 0 || y + 1 == ny || (nz > 4 && (z == 0 || z + 1 == nz));
        for (x, label) in line.iter().enumerate().filter(|(_, l)| **l > 0) {
            let object = &mut objects[*label as usize];
            object.voxels += 1.0;
            object.slice = (z, if object.slice.0 == z { object.slice.1 + 1.0 } else { 1.0 });
            object.section = object.section.max(object.slice.1);
            object.is_cut |= edge_row || x == 0 || x + 1 == nx;
            for (a, at) in [z, y, x].into_iter().enumerate() {
                object.sum[a] += at as f64;
                object.squares[a] += (at * at) as f64;
            }
        }
    }
    let unit: f64 = voxel.iter().product();
    let diameter = |o: &Moments| {
        let grown = if at.is_flat {
            circle_diameter(o.section * voxel[1] * voxel[2])
        } else {
            sphere_diameter(o.voxels * unit)
        };
        grown / at.coarsening.growth
    };
    // Fragments below a fifth of the expected diameter are ignored.
    let is_object = |o: &&Moments| o.voxels > 0.0 && diameter(o) > 0.2 * at.diameter;
    let chosen = whole(objects.iter().filter(is_object).collect(), |o: &&Moments| o.is_cut);
    let mut diameters: Vec<f64> = chosen.iter().map(|o| diameter(o)).collect();
    diameters.sort_by(f64::total_cmp);
    let ratio = |o: &&Moments| {
        let plane = (o.deviation(1) * voxel[1] * o.deviation(2) * voxel[2]).sqrt();
        o.deviation(0) * voxel[0] / plane
    };
    let mut ratios: Vec<f64> = chosen.iter().map(ratio).filter(|r| r.is_finite()).collect();
    ratios.sort_by(f64::total_cmp);
    let elongation = ratios.get(ratios.len() / 2).copied().filter(|_| !at.is_flat);
    Measured { diameters, elongation, is_complete: false, appearance: Appearance::default() }
}

/// Returns how `count` objects look.
pub(super) fn appearance(labels: &[u32], count: u32, heights: &[f32], intensities: &[f32]) -> Appearance {
    let mut peaks = vec![0.0f32; count as usize];
    // Number of voxels and sum of intensities of each object.
    let mut totals = vec![(0.0f64, 0.0f64); count as usize];
    // Sum of heights, and sums of squares and products of heights and intensities.
    let (mut height_sum, mut squares, mut product) = (0.0f64, [0.0f64; 2], 0.0f64);
    for ((label, height), intensity) in labels.iter().zip(heights).zip(intensities) {
        let Some(index) = label.checked_sub(1).map(|i| i as usize) else { continue };
        let (Some(peak), Some(total)) = (peaks.get_mut(index), totals.get_mut(index)) else { continue };
        let values = [f64::from(*height), f64::from(*intensity)];
        *peak = peak.max(*height);
        *total = (total.0 + 1.0, total.1 + values[1]);
        height_sum += values[0];
        product += values[0] * values[1];
        for a in 0..2 {
            squares[a] += values[a] * values[a];
        }
    }
    let (n, intensity_sum) = totals.iter().fold((0.0, 0.0), |sums, total| (sums.0 + total.0, sums.1 + total.1));
    let covariance = product - height_sum * intensity_sum / n;
    let deviations =
        ((squares[0] - height_sum * height_sum / n) * (squares[1] - intensity_sum * intensity_sum / n)).sqrt();
    let mut means: Vec<f64> = totals.iter().filter(|t| t.0 > 0.0).map(|(voxels, sum)| sum / voxels).collect();
    means.sort_by(f64::total_cmp);
    Appearance {
        intensity: means.get(means.len() / 2).copied(),
        background: (n > 0.0 && n <= MAX_FILL * labels.len() as f64)
            .then(|| median_between(labels, intensities))
            .flatten(),
        peak: peaks.iter().copied().map(f64::from).sum::<f64>() / peaks.len().max(1) as f64,
        brightness: (deviations > 0.0).then(|| covariance / deviations),
    }
}

/// Returns the median intensity of the voxels that are in no object; `None` without such voxels.
fn median_between(labels: &[u32], intensities: &[f32]) -> Option<f64> {
    let between = labels.iter().zip(intensities).filter(|(label, intensity)| **label == 0 && intensity.is_finite());
    let mut values: Vec<f32> = between.map(|(_, intensity)| *intensity).collect();
    let middle = values.len() / 2;
    (!values.is_empty()).then(|| f64::from(*values.select_nth_unstable_by(middle, f32::total_cmp).1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_background_is_the_median_between_the_objects() {
        let background = |labels: &[u32], count, intensities: &[f32]| {
            appearance(labels, count, &vec![0.5; labels.len()], intensities).background
        };
        assert_eq!(background(&[0, 1, 0, 0], 1, &[0.5, 9.0, 0.25, 4.0]), Some(0.5));
        assert_eq!(background(&[0, 1, 0, 0], 1, &[0.5, 9.0, f32::NAN, 0.5]), Some(0.5));
        assert_eq!(background(&[0, 1, 1, 0], 1, &[0.5, 9.0, 9.0, 0.5]), None, "objects fill half of the tile");
        assert_eq!(background(&[0, 0], 0, &[0.5, 9.0]), None, "no objects");
    }

    #[test]
    fn outlines_that_are_brighter_than_the_middle_are_told_from_darker_ones() {
        // Two objects with heights of 0.2, 0.8 and 0.2, and 0.2, 0.4 and 0.2, between background of any values.
        let labels = [0, 1, 1, 1, 0, 2, 2, 2];
        let heights = [0.9, 0.2, 0.8, 0.2, 0.9, 0.2, 0.4, 0.2];
        let of = |intensities: [f32; 8]| appearance(&labels, 2, &heights, &intensities);
        let nuclei = of([0.0, 1.0, 5.0, 1.0, 9.0, 1.0, 3.0, 1.0]);
        let membranes = of([9.0, 5.0, 1.0, 5.0, 0.0, 5.0, 2.0, 5.0]);
        assert!((nuclei.peak - 0.6).abs() < 1e-6, "{}", nuclei.peak);
        assert!(nuclei.brightness.is_some_and(|b| b > 0.8), "{:?}", nuclei.brightness);
        assert!(membranes.brightness.is_some_and(|b| b < -0.8), "{:?}", membranes.brightness);
        assert_eq!(of([7.0; 8]).brightness, None, "uniform");
        assert_eq!(appearance(&[0; 8], 0, &heights, &[1.0; 8]).brightness, None, "no objects");
    }
}

//! Estimation from short predictions at many scales, for objects that are darker than their outlines, as cells in an image of
//! membranes.
//!
//! The blobs of such an image are the membranes and their junctions, and a network that gets this texture at its
//! nominal size finds "objects" in it, too. Two things identify the right scale: the heights that the network finds are
//! largest there, and neighboring scales give objects of the same size, whereas the size of texture grows with the
//! scale at which it is looked for.

use super::objects::Measured;
use super::{Coarsening, Estimator, MIN_VOXELS, ShortPrediction, SizeEstimate, TILE, TileSession};
use crate::JobError;
use crate::diameter::{Certainty, DiameterEstimate};
use crate::stack::Stack;

/// Grid of the short predictions. Membranes keep objects from growing on a coarse grid, and the clearest objects are not merged,
/// so that seeds have the model's height.
const GRID: Coarsening =
    Coarsening { factor: 2.0, growth: 1.0, seed_height_factor: 1.0, close_ratio: 1.25, certain_ratio: 1.125 };
/// Ratio of neighboring scales.
const STEP: f64 = std::f64::consts::SQRT_2;
/// Largest scale relative to the shorter side of a slice.
const MAX_FIELD_SHARE: f64 = 0.55;
/// Correlation of heights and intensities inside objects below which their outlines count as brighter. In short predictions of
/// 74 stacks of nuclei at their true diameter, it was never below 0; of cells in 68 images of membranes, it was above -0.2 in
/// one of twenty.
const MAX_DARK: f64 = -0.1;
/// Correlation from which on the first objects that are found say enough. Of hollow nuclei, it was -0.21 at half their true
/// diameter, and positive at the true one.
const CLEARLY_DARK: f64 = -0.3;
/// Minimum number of objects at a scale.
const MIN_OBJECTS: usize = 3;
/// How much a change of the diameter (its logarithm) from one scale to the next counts compared to a difference of the heights.
/// Values from 0.2 to 0.6 choose nearly the same scales.
const CHANGE_WEIGHT: f64 = 0.43;
/// Ratio of the diameters from which on two pairs of scales see different objects.
const RIVAL_RATIO: f64 = 1.4;
/// Difference of the scores of the best pair of scales and of a rival from which on the choice is certain; below half of it, it
/// is a guess.
const CLEAR_GAP: f64 = 0.06;

/// Returns whether objects of this brightness, as in [`SizeEstimate`], are darker than their outlines.
pub(super) fn is_dark(brightness: f64) -> bool {
    brightness < MAX_DARK
}

/// Returns whether objects of this brightness are so much darker than their outlines that they are not measured again.
pub(super) fn is_clearly_dark(brightness: f64) -> bool {
    brightness < CLEARLY_DARK
}

/// What short predictions at many scales say.
pub(super) enum OverScales {
    /// The diameter of objects that are darker than their outlines.
    Dark(SizeEstimate),
    /// There is not a single object at every second scale, which the others lie between.
    Empty,
    /// Nothing: the objects at the best scales are not darker than their outlines, they are too few, or the model finds no heights.
    Unclear,
}

impl Estimator<'_> {
    /// Estimates the diameter from short predictions at all scales from the smallest diameter to half the image.
    pub(super) fn estimate_over_scales(
        &self,
        stack: &Stack,
        voxel: [f64; 3],
        center: Option<[f64; 3]>,
        nominal_um: f64,
    ) -> Result<OverScales, JobError> {
        if self.model.seed_channel == self.model.segment_channel || self.model.spatial_axes != 3 {
            return Ok(OverScales::Unclear);
        }
        let [_, height, width]: [f64; 3] = std::array::from_fn(|a| stack.extents.zyx[a] as f64 * voxel[a]);
        let mut session: TileSession = None;
        let largest = MAX_FIELD_SHARE * height.min(width);
        let smallest = MIN_VOXELS * voxel[2];
        let diameters: Vec<f64> = std::iter::successors(Some(smallest), |d| Some(d * STEP))
            .take_while(|diameter| *diameter < largest)
            .collect();
        let scales = measured_scales(&diameters, |diameter| {
            self.context.check()?;
            let at = ShortPrediction {
                voxel,
                diameter,
                nominal_um,
                center,
                tile: TILE,
                budget_bytes: None,
                coarsening: GRID,
                is_flat: false,
                stops_if_dark: false,
            };
            self.predict_part(stack, &at, &mut session)
        })?;
        // A single scale is not measured.
        if scales.len() > 1 && scales.iter().all(|scale| scale.diameters.is_empty()) {
            return Ok(OverScales::Empty);
        }
        let best = best_neighbors(&scales).filter(|(_, brightness)| is_dark(*brightness));
        Ok(best.map_or(OverScales::Unclear, |(estimate, brightness)| {
            OverScales::Dark(SizeEstimate {
                estimate,
                voxel,
                peak: None,
                brightness: Some(brightness),
                intensity: None,
                background: None,
            })
        }))
    }
}

/// Measures the objects at these scales. Every second scale is measured first, and the others only if a neighbor has enough
/// objects, because [`best_neighbors`] compares two: in a stack without objects, half the scales are enough. Scales that are not
/// measured have no objects.
///
/// # Errors
/// That of the first scale that cannot be measured.
fn measured_scales(
    diameters: &[f64],
    mut measure: impl FnMut(f64) -> Result<Measured, JobError>,
) -> Result<Vec<Measured>, JobError> {
    let mut scales: Vec<Measured> = diameters.iter().map(|_| Measured::default()).collect();
    // Of any two neighbors, one has an odd index.
    for (scale, diameter) in scales.iter_mut().zip(diameters).skip(1).step_by(2) {
        *scale = measure(*diameter)?;
    }
    let has_enough: Vec<bool> = scales.iter().map(|scale| scale.diameters.len() >= MIN_OBJECTS).collect();
    for (index, (scale, diameter)) in scales.iter_mut().zip(diameters).enumerate().step_by(2) {
        let mut neighbors = [index.checked_sub(1), Some(index + 1)].into_iter().flatten();
        if neighbors.any(|neighbor| has_enough.get(neighbor) == Some(&true)) {
            *scale = measure(*diameter)?;
        }
    }
    Ok(scales)
}

/// What two neighboring scales say.
struct Pair {
    /// The higher, the clearer the objects are, and the better the scales agree.
    score: f64,
    /// Logarithm of the change of the diameter.
    change: f64,
    /// The geometric mean of both diameters.
    diameter: f64,
    /// 10th and 90th percentile of the diameters at the larger scale.
    range: [f64; 2],
    /// The smaller one of both numbers of objects.
    objects: usize,
    /// Mean of both correlations of heights and intensities.
    brightness: f64,
}

impl Pair {
    /// Returns what two scales say; `None` if one of them has too few objects.
    fn of(smaller: &Measured, larger: &Measured) -> Option<Self> {
        let objects = smaller.diameters.len().min(larger.diameters.len());
        if objects < MIN_OBJECTS {
            return None;
        }
        let (first, second) = (smaller.at(0.5)?, larger.at(0.5)?);
        let change = (second / first).ln().abs();
        let [below, above] = [smaller.appearance, larger.appearance];
        Some(Self {
            score: f64::midpoint(below.peak, above.peak) - CHANGE_WEIGHT * change,
            change,
            diameter: (first * second).sqrt(),
            range: [larger.at(0.1)?, larger.at(0.9)?],
            objects,
            brightness: f64::midpoint(below.brightness?, above.brightness?),
        })
    }

    /// Returns how far the diameter can be relied on, where `gap` is the difference of the scores of this pair and of the best
    /// one with objects of another size.
    fn certainty(&self, gap: f64) -> Certainty {
        let from_objects = match self.objects {
            8.. if self.change < GRID.certain_ratio.ln() => Certainty::High,
            _ if self.change < GRID.close_ratio.ln() => Certainty::Medium,
            _ => Certainty::Low,
        };
        let from_gap = match gap {
            clear if clear >= CLEAR_GAP => Certainty::High,
            close if close >= CLEAR_GAP / 2.0 => Certainty::Medium,
            _ => Certainty::Low,
        };
        from_objects.min(from_gap)
    }
}

/// Returns the estimate of the best pair of neighboring scales, and the brightness of its objects.
fn best_neighbors(scales: &[Measured]) -> Option<(DiameterEstimate, f64)> {
    let neighbors = scales.iter().zip(scales.iter().skip(1));
    let pairs: Vec<Pair> = neighbors.filter_map(|(smaller, larger)| Pair::of(smaller, larger)).collect();
    let best = pairs.iter().max_by(|a, b| a.score.total_cmp(&b.score))?;
    let is_rival = |other: &&Pair| (other.diameter / best.diameter).ln().abs() > RIVAL_RATIO.ln();
    let rival = pairs.iter().filter(is_rival).map(|pair| pair.score).fold(f64::NEG_INFINITY, f64::max);
    let Pair { diameter, range, objects, .. } = *best;
    let certainty = best.certainty(best.score - rival);
    Some((
        DiameterEstimate { diameter, range, objects, certainty, intensity_factor: 1.0, intensity_background: 0.0 },
        best.brightness,
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::super::objects::Appearance;
    use super::*;

    /// Returns scales with these numbers of objects of one diameter, and these heights; outlines are bright.
    fn scales(of: &[(usize, f64, f64)]) -> Vec<Measured> {
        let scale = |(objects, diameter, peak): &(usize, f64, f64)| Measured {
            diameters: vec![*diameter; *objects],
            appearance: Appearance { peak: *peak, brightness: Some(-0.5), intensity: None, background: None },
            ..Measured::default()
        };
        of.iter().map(scale).collect()
    }

    #[test]
    fn objects_of_the_same_size_at_two_scales_are_preferred_to_texture() {
        // The texture grows with the scale, and is as clear as the cells, which are 20 wide.
        let all =
            [(90, 3.0, 0.66), (80, 4.4, 0.68), (60, 6.4, 0.62), (12, 19.5, 0.66), (10, 20.0, 0.67), (5, 31.0, 0.5)];
        let (found, brightness) = best_neighbors(&scales(&all)).unwrap();
        assert!((19.0..21.0).contains(&found.diameter), "{found:?}");
        assert_eq!((found.objects, found.certainty), (10, Certainty::High));
        assert!(is_dark(brightness), "{brightness}");
    }

    #[test]
    fn clearer_objects_are_preferred_to_others_of_the_same_size() {
        let all = [(40, 8.0, 0.5), (38, 8.1, 0.51), (20, 13.0, 0.6), (12, 19.0, 0.8), (10, 20.0, 0.8)];
        let (found, _) = best_neighbors(&scales(&all)).unwrap();
        assert!((19.0..21.0).contains(&found.diameter), "{found:?}");
    }

    #[test]
    fn a_choice_between_two_sizes_and_few_objects_are_not_certain() {
        let certainty = |all: &[(usize, f64, f64)]| best_neighbors(&scales(all)).unwrap().0.certainty;
        let with_texture = |peak: f64| certainty(&[(40, 8.0, 0.7), (38, 8.0, 0.7), (10, 20.0, peak), (10, 20.0, peak)]);
        assert_eq!(with_texture(0.8), Certainty::High);
        assert_eq!(with_texture(0.74), Certainty::Medium);
        assert_eq!(with_texture(0.71), Certainty::Low);
        assert_eq!(certainty(&[(10, 20.0, 0.8), (10, 20.0, 0.8)]), Certainty::High);
        assert_eq!(certainty(&[(5, 20.0, 0.8), (5, 20.0, 0.8)]), Certainty::Medium);
        assert_eq!(certainty(&[(9, 20.0, 0.8), (9, 26.0, 0.8)]), Certainty::Low);
    }

    #[test]
    fn scales_that_cannot_change_the_estimate_are_not_measured() {
        // The number of objects at each scale, and how many of the scales are measured.
        let all: [(&[usize], usize); 6] = [
            (&[0, 0, 0, 0, 0, 0, 0], 3),
            (&[9, 2, 9, 2, 9, 2, 9], 3),
            (&[9, 9, 9, 9, 9, 9, 9], 7),
            (&[0, 0, 9, 9, 0, 0, 0], 5),
            (&[9], 0),
            (&[], 0),
        ];
        for (counts, measured) in all {
            let diameters: Vec<f64> = (0..counts.len()).map(|index| 4.0 + index as f64).collect();
            let at: Vec<(usize, f64, f64)> =
                counts.iter().zip(&diameters).map(|(n, d)| (*n, *d, 0.6 + d / 100.0)).collect();
            let mut calls = 0;
            let found = measured_scales(&diameters, |diameter| {
                calls += 1;
                Ok(scales(&at[diameter as usize - 4..][..1]).remove(0))
            });
            assert_eq!(calls, measured, "{counts:?}");
            assert_eq!(best_neighbors(&found.unwrap()), best_neighbors(&scales(&at)), "{counts:?}");
        }
    }

    #[test]
    fn scales_with_one_or_two_objects_say_nothing() {
        assert!(best_neighbors(&[]).is_none());
        assert!(best_neighbors(&scales(&[(9, 20.0, 0.8)])).is_none());
        assert!(best_neighbors(&scales(&[(9, 20.0, 0.8), (2, 20.0, 0.9)])).is_none());
    }
}

//! Stacks that are blurred along Z, as those of widefield microscopes.
//!
//! The larger the voxels of a short prediction, the wider the outlines of blurred objects: on a coarse grid, their diameters come
//! out up to twice as large. They are measured on the grid of the full prediction, in a larger tile.

use super::objects::Measured;
use super::{Coarsening, Estimator, LARGE_TILE, MAX_CORRECTION, MAX_PREDICTIONS, MIN_VOXELS};
use super::{SEED_HEIGHT_FACTOR, ShortPrediction, TileSession};
use crate::JobError;
use crate::stack::Stack;
use cytoscope_engine::EngineError;

/// The grid of the full prediction.
const GRID: Coarsening = Coarsening {
    factor: 1.0,
    growth: 1.06,
    seed_height_factor: SEED_HEIGHT_FACTOR,
    close_ratio: 1.06,
    certain_ratio: 1.125,
};
/// Elongation along Z (median of the objects of a coarse grid) from which on a stack counts as blurred. In 36 of 39 simulated
/// stacks of confocal and light-sheet microscopes, it was at most 1.27 where at least eight objects were found.
const MIN_ELONGATION: f64 = 1.25;
/// Minimum number of objects in a tile.
const MIN_OBJECTS: usize = 3;
/// Number of objects from which on the diameter is corrected further. Fewer ones are mainly the small ones, because the border of
/// the tile cuts the others.
const ENOUGH_OBJECTS: usize = 6;
/// Factor of the change of the diameter (its logarithm) if objects are smaller than expected: the diameters found follow the
/// expected one, and their logarithms change by 0.5 to 0.7 of its change.
const STEP: f64 = 2.0;
/// Ratio of the elongations at a smaller diameter and at the one before from which on objects are long themselves. In 25
/// widefield stacks, it was at most 0.89, because outlines along Z shrink most; in a late embryo in a confocal microscope, 1.08.
const LONG_RATIO: f64 = 0.95;

impl Measured {
    /// Returns whether the objects are so long along Z that the stack is blurred along it.
    pub(super) fn is_blurred(&self) -> bool {
        self.elongation.is_some_and(|elongation| elongation >= MIN_ELONGATION)
    }
}

impl Estimator<'_> {
    /// Measures the objects of a part of a stack that is blurred along Z, beginning at the diameter of `at`. Returns the objects
    /// with the logarithm of the last change of the diameter, and the short prediction with the diameter found; `None` if there are
    /// too few objects, if they are long themselves, or if there is too little memory.
    pub(super) fn measure_blurred(
        &self,
        stack: &Stack,
        at: ShortPrediction,
    ) -> Result<Option<(Measured, f64, ShortPrediction)>, JobError> {
        let budget_bytes = Some(self.budget_bytes);
        let mut at = ShortPrediction { coarsening: GRID, tile: LARGE_TILE, budget_bytes, ..at };
        let mut session: TileSession = None;
        let mut last = None;
        // The diameter and the elongation of the short prediction before.
        let mut before: Option<(f64, Option<f64>)> = None;
        for round in 1..=MAX_PREDICTIONS {
            self.context.check()?;
            let measured = match self.predict_part(stack, &at, &mut session) {
                Err(JobError::Engine(EngineError::OutOfMemory { .. }) | JobError::Budget { .. }) => break,
                measured => measured?,
            };
            let Some(found) = measured.at(0.5).filter(|_| measured.diameters.len() >= MIN_OBJECTS) else { break };
            if before.is_some_and(|(larger, long)| at.diameter < larger && are_long(long, measured.elongation)) {
                return Ok(None);
            }
            before = Some((at.diameter, measured.elongation));
            let change = (found / at.diameter).ln();
            let is_close = change.abs() < GRID.close_ratio.ln() || measured.diameters.len() < ENOUGH_OBJECTS;
            let (kept, next) = kept_and_next(at.diameter, change, is_close, round == MAX_PREDICTIONS);
            if next < MIN_VOXELS * at.voxel[2] {
                break;
            }
            last = Some((measured, change.abs(), ShortPrediction { diameter: kept, ..at }));
            at.diameter = next;
            if is_close {
                break;
            }
        }
        Ok(last)
    }
}

/// Returns whether objects are as long at a diameter as at a larger one, and not just because they are short at both.
fn are_long(at_larger: Option<f64>, now: Option<f64>) -> bool {
    at_larger.zip(now).is_some_and(|(at_larger, now)| now >= MIN_ELONGATION && now > LONG_RATIO * at_larger)
}

/// Returns the diameter that is kept after a short prediction if no later one finds enough objects, and that of the next one. If
/// there is no next one (`is_last`), its diameter is kept; otherwise the one that was found, which is that of objects.
fn kept_and_next(diameter: f64, change: f64, is_close: bool, is_last: bool) -> (f64, f64) {
    let (found, stepped) = (next_diameter(diameter, change, 1.0), next_diameter(diameter, change, STEP));
    let next = if is_close { found } else { stepped };
    (if is_last { next } else { found }, next)
}

/// Returns the diameter that follows from that of a short prediction and its change (a logarithm), which counts `step` times if the
/// objects are smaller than expected.
fn next_diameter(diameter: f64, change: f64, step: f64) -> f64 {
    let factor = if change < 0.0 { step * change } else { change }.exp();
    diameter * factor.clamp(1.0 / MAX_CORRECTION, MAX_CORRECTION)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A third of the way to the true diameter is left after each short prediction, as in blurred stacks; without the factor, two
    /// thirds are.
    #[test]
    fn a_diameter_that_follows_the_expected_one_is_found_within_the_number_of_predictions() {
        for start in [0.7, 1.0, 1.5, 2.2] {
            let mut diameter: f64 = start;
            for _ in 0..MAX_PREDICTIONS {
                let found = diameter.powf(2.0 / 3.0);
                diameter = next_diameter(diameter, (found / diameter).ln(), STEP);
            }
            assert!((0.9..1.1).contains(&diameter), "{start}: {diameter}");
        }
        assert!((next_diameter(10.0, -3.0, STEP) - 4.0).abs() < 1e-9);
    }

    #[test]
    fn a_diameter_at_which_no_objects_may_be_found_is_not_kept() {
        let close = |found: (f64, f64), expected: [f64; 2]| {
            (found.0 - expected[0]).abs() < 1e-9 && (found.1 - expected[1]).abs() < 1e-9
        };
        let change = 0.8f64.ln();
        assert!(close(kept_and_next(10.0, change, false, false), [8.0, 6.4]));
        assert!(close(kept_and_next(10.0, change, false, true), [6.4, 6.4]));
        for is_last in [false, true] {
            assert!(close(kept_and_next(10.0, change, true, is_last), [8.0, 8.0]));
        }
    }

    /// The elongations of a widefield stack, and of an embryo in a confocal microscope.
    #[test]
    fn objects_that_stay_long_are_not_blurred() {
        assert!(!are_long(None, Some(2.0)) && !are_long(Some(1.49), Some(0.86)) && !are_long(Some(1.5), None));
        assert!(!are_long(Some(2.08), Some(1.85)) && !are_long(Some(0.94), Some(0.92)));
        assert!(are_long(Some(2.43), Some(2.63)));
    }

    #[test]
    fn stacks_of_long_objects_are_blurred() {
        let is_blurred = |elongation| Measured { elongation, ..Measured::default() }.is_blurred();
        assert_eq!([None, Some(1.2), Some(1.3), Some(2.0)].map(is_blurred), [false, false, true, true]);
    }
}

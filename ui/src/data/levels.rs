//! Levels of an image file, and which of them a plane is read from.

use super::plane::{Orientation, PlaneAt};
use cytoscope_formats::ImageMeta;
use cytoscope_volume::Axis;
use std::cmp::Reverse;

/// Largest number of pixels of an XY plane that are read to show a single slice where a level that is reduced along Z, which
/// shows several slices at once, has fewer.
const MAX_SINGLE_SLICE_PIXELS: usize = 1 << 24;

/// A level whose voxels are blocks of voxels of the full resolution; blocks at the end may be incomplete or missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReducedLevel {
    /// Index of the level in the file; 0 is the full resolution.
    pub index: usize,
    /// Extents of a block along Z, Y, X: powers of two.
    pub factors_zyx: [usize; 3],
}

impl ReducedLevel {
    /// The full resolution.
    pub const FULL: Self = Self { index: 0, factors_zyx: [1; 3] };
}

/// Returns the levels of an image, the full resolution first. Levels that are not reduced by powers of two are left out.
pub fn levels_of(meta: &ImageMeta) -> Vec<ReducedLevel> {
    let axes = [Axis::Z, Axis::Y, Axis::X].map(|axis| meta.axes_full.position(axis));
    let reduced = meta.levels.iter().enumerate().skip(1).filter_map(|(index, level)| {
        let mut factors_zyx = [1; 3];
        for (factor, axis) in factors_zyx.iter_mut().zip(axes) {
            let Some(axis) = axis else { continue };
            *factor = factor_between(*meta.shape_full.get(axis)?, *level.shape_full.get(axis)?)?;
        }
        Some(ReducedLevel { index, factors_zyx })
    });
    std::iter::once(ReducedLevel::FULL).chain(reduced).collect()
}

/// The power of two that reduces one extent to another, rounded in any way; `None` if there is none, or several.
fn factor_between(full: usize, reduced: usize) -> Option<usize> {
    /// From this extent on, an extent may be off by one, as in levels of odd extents that are rounded repeatedly.
    const MANY: usize = 8;
    if reduced == full {
        return Some(1);
    }
    if reduced <= 1 {
        // One voxel stands for all, whatever the factor.
        return full.checked_next_power_of_two();
    }
    let fits = |factor: &usize| {
        let (low, high) = (full / factor, full.div_ceil(*factor));
        (low..=high).contains(&reduced) || (reduced >= MANY && high.abs_diff(reduced) <= 1)
    };
    let mut factors = (1..usize::BITS).map(|bit| 1usize << bit).filter(fits);
    factors.next().filter(|_| factors.next().is_none())
}

/// A level that a plane can be read from.
struct Candidate {
    level: ReducedLevel,
    /// Number of pixels to read.
    pixels: usize,
    /// Extent of a block perpendicular to the plane.
    thickness: usize,
    /// Whether its blocks lie within the slices that the plane stands for.
    is_single: bool,
}

/// Returns the level to read a plane from: the one with the fewest pixels whose blocks divide the pixels of the plane.
/// Perpendicular to the plane, blocks may be as thick as a pixel of the plane is wide. XY planes of moderate size are read
/// from levels whose blocks lie within the slice.
pub fn level_for(levels: &[ReducedLevel], at: &PlaneAt) -> ReducedLevel {
    let [slices, row_step, column_step] = at.steps.map(|step| step.max(1));
    let candidate = |level: &ReducedLevel| {
        let [thickness, rows, columns] = at.orientation.axes().map(|axis| level.factors_zyx[axis]);
        let divides =
            |factor: usize, step: usize, start: usize| step.is_multiple_of(factor) && start.is_multiple_of(factor);
        let is_single = slices.is_multiple_of(thickness);
        let fits = divides(rows, row_step, at.rows.start)
            && divides(columns, column_step, at.columns.start)
            && (is_single || thickness <= row_step.max(column_step));
        let pixels = at.rows.len().div_ceil(rows).saturating_mul(at.columns.len().div_ceil(columns));
        fits.then_some(Candidate { level: *level, pixels, thickness, is_single })
    };
    let candidates: Vec<Candidate> = levels.iter().filter_map(candidate).collect();
    let single = candidates.iter().filter(|c| c.is_single).min_by_key(|c| (c.pixels, Reverse(c.thickness)));
    let any = candidates.iter().min_by_key(|c| (c.pixels, c.thickness));
    let chosen = match at.orientation {
        Orientation::Xy => single.filter(|c| c.pixels <= MAX_SINGLE_SLICE_PIXELS).or(any),
        Orientation::Xz | Orientation::Zy => any,
    };
    chosen.map_or(ReducedLevel::FULL, |c| c.level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_follow_from_extents_that_are_rounded_in_any_way() {
        for full in 1..2000usize {
            for factor in [1usize, 2, 4, 8, 16, 32] {
                // Extents that are halved repeatedly, and rounded down, up, or to the nearest.
                let repeated = |half: &dyn Fn(usize) -> usize| (0..factor.ilog2()).fold(full, |n, _| half(n));
                let rounded =
                    [full / factor, full.div_ceil(factor), repeated(&|n| n / 2), repeated(&|n| n.div_ceil(2))];
                for reduced in rounded.into_iter().filter(|n| *n >= 3 && *n < full) {
                    assert_eq!(factor_between(full, reduced), Some(factor), "{full} to {reduced}");
                }
            }
        }
        assert_eq!(factor_between(6, 2), Some(4), "6, 3, 2");
        assert_eq!(factor_between(23, 2), None, "a factor of 8, rounded down, or of 16, rounded up");
        assert_eq!((factor_between(300, 100), factor_between(10, 20), factor_between(1, 1)), (None, None, Some(1)));
        assert!(factor_between(23, 1).is_some_and(|factor| (0..23).all(|z| z / factor == 0)));
    }

    fn at(orientation: Orientation, steps: [usize; 3], rows: usize, columns: usize) -> PlaneAt {
        PlaneAt { orientation, index: 0, channel: 0, time: 0, rows: 0..rows, columns: 0..columns, steps }
    }

    #[test]
    fn the_fitting_level_with_the_fewest_pixels_is_read() {
        let level = |index, factors_zyx| ReducedLevel { index, factors_zyx };
        let levels =
            [ReducedLevel::FULL, level(1, [1, 2, 2]), level(2, [2, 4, 4]), level(3, [4, 8, 8]), level(4, [8, 16, 16])];
        let chosen = |at: PlaneAt| level_for(&levels, &at).index;
        // A single slice of moderate size is not mixed with its neighbors.
        assert_eq!([1, 2, 8].map(|step| chosen(at(Orientation::Xy, [1, step, step], 4096, 4096))), [0, 1, 1]);
        // Huge slices are read from levels that are reduced along Z, but no more than the pixels.
        assert_eq!(
            [1, 2, 8, 32].map(|step| chosen(at(Orientation::Xy, [1, step, step], 60_000, 60_000))),
            [0, 1, 3, 4]
        );
        // Slices of a volume stand for several.
        assert_eq!(chosen(at(Orientation::Xy, [4, 16, 16], 4096, 4096)), 3);
        assert_eq!(chosen(at(Orientation::Xy, [6, 16, 16], 4096, 4096)), 2);
        // Rows of XZ are slices: they are not joined unless the view does.
        assert_eq!(chosen(at(Orientation::Xz, [1, 1, 8], 500, 20_000)), 1);
        assert_eq!(chosen(at(Orientation::Xz, [1, 4, 16], 500, 20_000)), 3);
        assert_eq!(chosen(at(Orientation::Zy, [1, 16, 2], 20_000, 500)), 2);
        assert_eq!(chosen(at(Orientation::Zy, [1, 1, 1], 20_000, 500)), 0);
        // A region must begin with a block.
        let inside = PlaneAt { rows: 6..4096, ..at(Orientation::Xy, [1, 8, 8], 4096, 4096) };
        assert_eq!(chosen(inside), 1);
        let odd = PlaneAt { columns: 3..4096, ..at(Orientation::Xy, [1, 8, 8], 4096, 4096) };
        assert_eq!(chosen(odd), 0);
    }
}

//! Segmentation errors by kind and object size: merges, splits, misses and false objects.
//!
//! They follow from two relations between a predicted and a true object. The prediction *covers* the true object if it
//! contains more than half of the true object's voxels. The prediction lies *inside* the true object if more than half
//! of its own voxels belong to the true object. A true object is covered by at most one prediction, and a prediction
//! lies inside at most one true object.

use crate::matching::Overlaps;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::f64::consts::PI;

/// Minimum IoU of an object that counts as found.
pub const FOUND_IOU: f64 = 0.5;

/// Outcome of one object. A true object has the first outcome that applies, in the order of this list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// A true object that is matched one to one by a prediction with an IoU of at least [`FOUND_IOU`].
    Found,
    /// A true object covered by a prediction that also covers other true objects.
    Merged,
    /// A true object that contains two or more predictions.
    Split,
    /// A true object covered by one prediction, or with one prediction inside it, that overlaps too little for a match.
    Inexact,
    /// A true object that no prediction covers or lies inside.
    Missed,
    /// A predicted object that matches, covers and lies inside no true object.
    False,
}

/// Size and outcome of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectOutcome {
    /// Number of voxels of the object.
    pub voxels: u64,
    /// Whether the object was found, or the kind of error.
    pub outcome: Outcome,
}

/// The errors of one or several label images.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Errors {
    /// Number of predictions that cover two or more true objects.
    pub merges: u64,
    /// Number of true objects that contain two or more predictions, found or not.
    pub splits: u64,
    /// All true objects and all false objects.
    pub objects: Vec<ObjectOutcome>,
}

impl Errors {
    /// Returns the errors among objects that are not ignored; see [`Overlaps::ignoring_below`].
    pub fn of(overlaps: &Overlaps) -> Self {
        let matched = overlaps.matched(FOUND_IOU);
        let found: BTreeSet<u32> = matched.iter().map(|m| m.0).collect();
        let used: BTreeSet<u32> = matched.iter().map(|m| m.1).collect();
        let mut covered_by: BTreeMap<u32, u32> = BTreeMap::new();
        let mut covers: BTreeMap<u32, u64> = BTreeMap::new();
        let mut holds: BTreeMap<u32, u64> = BTreeMap::new();
        let mut inside_one = BTreeSet::new();
        for (t, p, n) in overlaps.shared() {
            let most_of = |sizes: &BTreeMap<u32, u64>, id: u32| sizes.get(&id).is_some_and(|all| 2 * n > *all);
            if most_of(overlaps.truth(), t) {
                covered_by.insert(t, p);
                *covers.entry(p).or_default() += 1;
            }
            if most_of(overlaps.prediction(), p) {
                *holds.entry(t).or_default() += 1;
                inside_one.insert(p);
            }
        }
        let outcome = |t: &u32| {
            let cover = covered_by.get(t);
            let inside = holds.get(t).copied().unwrap_or(0);
            if found.contains(t) {
                Outcome::Found
            } else if cover.and_then(|p| covers.get(p)).is_some_and(|n| *n > 1) {
                Outcome::Merged
            } else if inside > 1 {
                Outcome::Split
            } else if cover.is_some() || inside == 1 {
                Outcome::Inexact
            } else {
                Outcome::Missed
            }
        };
        let truth = overlaps.truth().iter().map(|(t, n)| ObjectOutcome { voxels: *n, outcome: outcome(t) });
        let is_false = |p: &u32| !used.contains(p) && !covers.contains_key(p) && !inside_one.contains(p);
        let wrong = overlaps.prediction().iter().filter(|(p, _)| is_false(p));
        let wrong = wrong.map(|(_, n)| ObjectOutcome { voxels: *n, outcome: Outcome::False });
        Self {
            merges: covers.values().filter(|n| **n > 1).count() as u64,
            splits: holds.values().filter(|n| **n > 1).count() as u64,
            objects: truth.chain(wrong).collect(),
        }
    }

    /// Returns the number of objects with an outcome.
    pub fn count(&self, outcome: Outcome) -> u64 {
        self.objects.iter().filter(|o| o.outcome == outcome).count() as u64
    }

    /// Returns counts and size distribution for a report.
    pub fn summary(&self, grid: Grid) -> ErrorSummary {
        ErrorSummary::pooled(std::slice::from_ref(&(self.clone(), grid)))
    }
}

/// Voxel size and dimensionality of an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Grid {
    /// Voxel size in µm along Z, Y, X; `None` if unknown. For a flat image, Z is not used.
    pub voxel_um: Option<[f64; 3]>,
    /// Whether the image has a single slice.
    pub flat: bool,
}

impl Grid {
    /// Returns the diameter of a sphere with this many voxels; of a circle if the image is flat.
    pub fn diameter(&self, voxels: u64, unit: SizeUnit) -> f64 {
        let [z, y, x] = self.voxel_um.filter(|_| unit == SizeUnit::Um).unwrap_or([1.0; 3]);
        let area = voxels as f64 * y * x;
        if self.flat { 2.0 * (area / PI).sqrt() } else { (6.0 * area * z / PI).cbrt() }
    }
}

/// Unit of the diameters in a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SizeUnit {
    /// Micrometers, if the voxel size is known.
    #[serde(rename = "µm")]
    Um,
    /// Voxels, if the voxel size is unknown.
    #[serde(rename = "voxel")]
    Voxel,
}

/// Objects of one size range, by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct SizeBin {
    /// Lower limit of the equivalent diameter: of a sphere with the object's volume, or of a circle with its area in a
    /// flat image.
    pub from: f64,
    /// Upper limit of the diameter, exclusive.
    pub to: f64,
    /// True objects: [`Outcome::Found`].
    pub found: u64,
    /// True objects: [`Outcome::Merged`].
    pub merged: u64,
    /// True objects: [`Outcome::Split`].
    pub split: u64,
    /// True objects: [`Outcome::Inexact`].
    pub inexact: u64,
    /// True objects: [`Outcome::Missed`].
    pub missed: u64,
    /// Predicted objects: [`Outcome::False`].
    pub false_objects: u64,
}

impl SizeBin {
    /// Returns the number of objects with an outcome.
    pub fn count(&self, outcome: Outcome) -> u64 {
        match outcome {
            Outcome::Found => self.found,
            Outcome::Merged => self.merged,
            Outcome::Split => self.split,
            Outcome::Inexact => self.inexact,
            Outcome::Missed => self.missed,
            Outcome::False => self.false_objects,
        }
    }

    fn is_empty(&self) -> bool {
        *self == Self { from: self.from, to: self.to, ..Self::default() }
    }

    fn add(&mut self, outcome: Outcome) {
        *match outcome {
            Outcome::Found => &mut self.found,
            Outcome::Merged => &mut self.merged,
            Outcome::Split => &mut self.split,
            Outcome::Inexact => &mut self.inexact,
            Outcome::Missed => &mut self.missed,
            Outcome::False => &mut self.false_objects,
        } += 1;
    }
}

/// Summary of segmentation errors for reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ErrorSummary {
    /// Number of predictions that cover two or more true objects.
    pub merges: u64,
    /// Number of true objects that contain two or more predictions, found or not.
    pub splits: u64,
    /// Number of true objects with too little overlap for a match: [`Outcome::Inexact`].
    pub inexact: u64,
    /// Number of true objects without a prediction: [`Outcome::Missed`].
    pub misses: u64,
    /// Number of predicted objects without a true object: [`Outcome::False`].
    pub false_objects: u64,
    /// Unit of the bins' diameters.
    pub size_unit: SizeUnit,
    /// All true and all false objects by diameter, from the smallest to the largest occurring one. Bin edges are the
    /// preferred numbers of series R10 (1, 1.25, 1.6, 2, 2.5, 3.15, 4, 5, 6.3, 8, 10, …), so that the volume doubles
    /// from bin to bin.
    pub sizes: Vec<SizeBin>,
}

/// Preferred numbers of series R10 (ISO 3).
const R10: [f64; 10] = [1.0, 1.25, 1.6, 2.0, 2.5, 3.15, 4.0, 5.0, 6.3, 8.0];

/// Decades of diameters on either side of 1: 10⁻⁹ to 10⁹ of the unit.
const DECADES: i32 = 9;

/// Returns the lower edge of a bin.
fn edge(bin: i32) -> f64 {
    let series = R10.len() as i32;
    let factor = R10.get(bin.rem_euclid(series) as usize).copied().unwrap_or(1.0);
    let decade = bin.div_euclid(series);
    // Dividing gives the exact decimal number, multiplying by a negative power does not.
    if decade < 0 { factor / 10f64.powi(-decade) } else { factor * 10f64.powi(decade) }
}

/// Returns the bin of a diameter above 0.
fn diameter_bin(diameter: f64) -> i32 {
    let limit = DECADES * R10.len() as i32;
    let near = ((diameter.log10() * R10.len() as f64).floor()).clamp(f64::from(-limit), f64::from(limit)) as i32;
    // Preferred numbers are rounded, so the bin is this one or a neighbor.
    (near - 1..=near + 1).rev().find(|bin| edge(*bin) <= diameter).unwrap_or(near - 1)
}

impl ErrorSummary {
    /// The numbers of merges, splits, misses, inexact outlines and false objects, with the names of what they count.
    pub fn counts(&self) -> [String; 5] {
        [
            (self.merges, "merge", "merges"),
            (self.splits, "split", "splits"),
            (self.misses, "miss", "misses"),
            (self.inexact, "inexact outline", "inexact outlines"),
            (self.false_objects, "false object", "false objects"),
        ]
        .map(|(count, one, several)| format!("{count} {}", if count == 1 { one } else { several }))
    }

    /// The bins as the rows of a table: successive bins without objects are one row, so that a single much larger or
    /// smaller object does not fill the table with empty rows.
    pub fn size_rows(&self) -> Vec<SizeBin> {
        let mut rows: Vec<SizeBin> = Vec::new();
        for bin in &self.sizes {
            match rows.last_mut() {
                Some(last) if last.is_empty() && bin.is_empty() => last.to = bin.to,
                _ => rows.push(*bin),
            }
        }
        rows
    }

    fn new(merges: u64, splits: u64, size_unit: SizeUnit, objects: &[(f64, Outcome)]) -> Self {
        let numbers = objects.iter().map(|(diameter, _)| diameter_bin(*diameter));
        let (first, last) = numbers.fold((i32::MAX, i32::MIN), |(low, high), bin| (low.min(bin), high.max(bin)));
        let mut sizes: Vec<SizeBin> =
            (first..=last).map(|bin| SizeBin { from: edge(bin), to: edge(bin + 1), ..SizeBin::default() }).collect();
        for (diameter, outcome) in objects {
            if let Some(bin) = sizes.get_mut((diameter_bin(*diameter) - first) as usize) {
                bin.add(*outcome);
            }
        }
        let sum = |outcome: Outcome| sizes.iter().map(|bin| bin.count(outcome)).sum();
        Self {
            merges,
            splits,
            inexact: sum(Outcome::Inexact),
            misses: sum(Outcome::Missed),
            false_objects: sum(Outcome::False),
            size_unit,
            sizes,
        }
    }

    /// Summarizes several images. Diameters are in voxels if any image's voxel size is unknown.
    pub fn pooled(parts: &[(Errors, Grid)]) -> Self {
        let known = parts.iter().all(|(_, grid)| grid.voxel_um.is_some());
        let unit = if known { SizeUnit::Um } else { SizeUnit::Voxel };
        let sized = parts
            .iter()
            .flat_map(|(errors, grid)| errors.objects.iter().map(move |o| (grid.diameter(o.voxels, unit), o.outcome)));
        let sum = |f: fn(&Errors) -> u64| parts.iter().map(|(errors, _)| f(errors)).sum();
        Self::new(sum(|e| e.merges), sum(|e| e.splits), unit, &sized.collect::<Vec<_>>())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;

    fn overlaps(truth: &[u32], prediction: &[u32]) -> Overlaps {
        let mut overlaps = Overlaps::new();
        overlaps.add(truth, prediction).unwrap();
        overlaps
    }

    /// Builds a volume from consecutive runs of (length, true label, predicted label).
    fn volume(runs: &[(usize, u32, u32)]) -> Overlaps {
        let part = |f: fn(&(usize, u32, u32)) -> u32| -> Vec<u32> {
            runs.iter().flat_map(|run| std::iter::repeat_n(f(run), run.0)).collect()
        };
        overlaps(&part(|r| r.1), &part(|r| r.2))
    }

    fn grid(voxel_um3: f64) -> Grid {
        Grid { voxel_um: Some([voxel_um3, 2.0, 0.5]), flat: false }
    }

    fn outcomes(errors: &Errors) -> Vec<(u64, Outcome)> {
        errors.objects.iter().map(|o| (o.voxels, o.outcome)).collect()
    }

    #[test]
    fn counts_are_named_in_the_singular_or_the_plural() {
        let (size_unit, sizes) = (SizeUnit::Voxel, Vec::new());
        let errors = ErrorSummary { merges: 1, splits: 0, inexact: 1, misses: 2, false_objects: 1, size_unit, sizes };
        assert_eq!(errors.counts(), ["1 merge", "0 splits", "2 misses", "1 inexact outline", "1 false object"]);
    }

    #[test]
    fn one_object_of_each_kind() {
        let scene = volume(&[
            // True 1 (10 voxels) is found by 11: IoU 9 / 11.
            (9, 1, 11),
            (1, 1, 0),
            (1, 0, 11),
            // True 2 and 3 (8 and 7 voxels) lie under one prediction: IoU 8 / 20 and 7 / 20.
            (8, 2, 12),
            (7, 3, 12),
            (5, 0, 12),
            // True 4 (12 voxels) is cut in three: IoU 5 / 12 at best.
            (5, 4, 13),
            (4, 4, 14),
            (3, 4, 15),
            // True 5 (6 voxels) lies under a prediction of 20: IoU 0.3.
            (6, 5, 16),
            (14, 0, 16),
            // True 6 (9 voxels) has one prediction of 4 inside: IoU 4 / 9.
            (4, 6, 17),
            (5, 6, 0),
            // True 7 (5 voxels) is touched by a prediction of 7 that lies elsewhere: 2 of 5, 2 of 7.
            (2, 7, 18),
            (3, 7, 0),
            (5, 0, 18),
            // True 8 (4 voxels) overlaps nothing, and 19 (3 voxels) overlaps nothing.
            (4, 8, 0),
            (3, 0, 19),
        ]);
        let errors = Errors::of(&scene);
        assert_eq!((errors.merges, errors.splits), (1, 1));
        assert_eq!(
            outcomes(&errors),
            [
                (10, Outcome::Found),
                (8, Outcome::Merged),
                (7, Outcome::Merged),
                (12, Outcome::Split),
                (6, Outcome::Inexact),
                (9, Outcome::Inexact),
                (5, Outcome::Missed),
                (4, Outcome::Missed),
                (7, Outcome::False),
                (3, Outcome::False),
            ]
        );
    }

    #[test]
    fn exactly_half_is_not_a_majority() {
        // A prediction with exactly half of each of two true objects covers neither; exactly half of it lies in each:
        // it is false.
        let errors = Errors::of(&volume(&[(4, 1, 0), (4, 1, 9), (4, 2, 9), (4, 2, 0)]));
        assert_eq!((errors.merges, errors.splits), (0, 0));
        assert_eq!(outcomes(&errors), [(8, Outcome::Missed), (8, Outcome::Missed), (8, Outcome::False)]);
        // With one voxel more of each, it merges them.
        let errors = Errors::of(&volume(&[(3, 1, 0), (5, 1, 9), (5, 2, 9), (3, 2, 0)]));
        assert_eq!(outcomes(&errors), [(8, Outcome::Merged), (8, Outcome::Merged)]);
    }

    #[test]
    fn an_object_may_be_found_and_still_be_merged_or_split() {
        // 10 voxels of 1 and 2 voxels of 2 in one prediction: IoU 10 / 12 and 2 / 12.
        let merged = Errors::of(&volume(&[(10, 1, 5), (2, 2, 5)]));
        assert_eq!(merged.merges, 1);
        assert_eq!(outcomes(&merged), [(10, Outcome::Found), (2, Outcome::Merged)]);
        // 8 of 10 voxels in one prediction, 2 in a fragment, which belongs to the split and is not false.
        let split = Errors::of(&volume(&[(8, 1, 5), (2, 1, 6)]));
        assert_eq!(split.splits, 1);
        assert_eq!(outcomes(&split), [(10, Outcome::Found)]);
    }

    /// Returns labels of 12 × 32 × 64 voxels: rows of boxes in cells of 6 × 8 × `widths`, whose positions, sizes and
    /// omissions come from an integer hash, so that numpy can create the same ones.
    fn boxes(seed: u32, widths: [u32; 8], left_out: u32) -> Vec<u32> {
        let mut labels = vec![0u32; 12 * 32 * 64];
        let mut index = 0;
        for (gz, gy) in (0..2).flat_map(|z| (0..4).map(move |y| (z * 6, y * 8))) {
            let mut gx = 0;
            for width in widths {
                index += 1;
                let hash = |k: u32| {
                    let h = seed.wrapping_mul(2_654_435_761).wrapping_add(index * 40_503 + k * 97);
                    let h = (h ^ (h >> 15)).wrapping_mul(2_246_822_519);
                    let h = (h ^ (h >> 13)).wrapping_mul(3_266_489_917);
                    h ^ (h >> 16)
                };
                let start = [gz + hash(4) % 2, gy + hash(5) % 2, gx + hash(6) % 2];
                let end = [start[0] + 5 - hash(1) % 3, start[1] + 7 - hash(2) % 4, start[2] + width - hash(3) % 4];
                gx += width;
                if hash(0) % 100 < left_out {
                    continue;
                }
                for z in start[0]..end[0].min(12) {
                    for y in start[1]..end[1].min(32) {
                        let row = (z * 32 + y) * 64;
                        labels[(row + start[2]) as usize..(row + end[2].min(64)) as usize].fill(index);
                    }
                }
            }
        }
        labels
    }

    /// `ignore_below`; counted true objects, predictions and matches at IoU 0.3; merges and splits; objects by outcome.
    type Expected = (u64, [u64; 3], [u64; 2], [u64; 6]);

    /// Computed with numpy: `both[t, p]` is the table of shared voxels, `small` the true labels with fewer voxels than
    /// `ignore_below`, `2 * both[small].sum(0) > n_p` the ignored predictions; matches are from
    /// `scipy.optimize.linear_sum_assignment`, merges `(2 * both > n_t).sum(0) > 1` and splits
    /// `(2 * both > n_p).sum(1) > 1` over the rest.
    const NUMPY: [Expected; 4] = [
        (0, [60, 56, 31], [4, 4], [6, 8, 3, 25, 18, 14]),
        (60, [56, 56, 31], [3, 4], [6, 6, 3, 26, 15, 14]),
        (100, [47, 54, 26], [0, 4], [5, 0, 3, 25, 14, 17]),
        (1000, [0, 23, 0], [0, 0], [0, 0, 0, 0, 0, 23]),
    ];

    #[test]
    fn counts_equal_those_of_numpy() {
        let truth = boxes(1, [8, 8, 5, 11, 8, 8, 8, 8], 10);
        let overlaps = overlaps(&truth, &boxes(7, [8, 8, 16, 8, 4, 4, 8, 8], 15));
        for (ignore_below, counts, events, outcomes) in NUMPY {
            let counted = overlaps.ignoring_below(ignore_below);
            let matching = &counted.matching(&[0.3])[0];
            assert_eq!([matching.n_true, matching.n_pred, matching.tp], counts, "{ignore_below}");
            let errors = Errors::of(&counted);
            assert_eq!([errors.merges, errors.splits], events, "{ignore_below}");
            let order =
                [Outcome::Found, Outcome::Merged, Outcome::Split, Outcome::Inexact, Outcome::Missed, Outcome::False];
            assert_eq!(order.map(|kind| errors.count(kind)), outcomes, "{ignore_below}");
        }
    }

    #[test]
    fn bin_edges_are_preferred_numbers() {
        for (diameter, from, to) in [
            (1.0, 1.0, 1.25),
            (1.2499, 1.0, 1.25),
            (3.15, 3.15, 4.0),
            (9.99, 8.0, 10.0),
            (10.0, 10.0, 12.5),
            (0.63, 0.63, 0.8),
        ] {
            let bin = diameter_bin(diameter);
            assert_eq!((edge(bin), edge(bin + 1)), (from, to), "{diameter}");
        }
        // (6 V / π)^(1/3) of 5 voxels, and of 65 voxels of 0.5 µm³.
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a}, expected {b}");
        close(grid(0.5).diameter(5, SizeUnit::Voxel), 2.121_568_835_894_110_3);
        close(grid(0.5).diameter(65, SizeUnit::Um), 3.959_389_674_965_274);
        // 2 √(A / π) of 50 pixels of 0.5 × 0.25 µm.
        close(
            Grid { voxel_um: Some([7.0, 0.5, 0.25]), flat: true }.diameter(50, SizeUnit::Um),
            2.820_947_917_738_781_5,
        );
    }

    #[test]
    fn images_with_and_without_a_voxel_size_are_pooled_in_voxels() {
        // 1.68 µm or 2.12 voxels across; 3.96 µm or 4.99 voxels; 2.67 µm or 3.37 voxels.
        let one = Errors::of(&volume(&[(5, 1, 1)]));
        let other = Errors::of(&volume(&[(65, 1, 0), (20, 0, 3)]));
        let both = ErrorSummary::pooled(&[(one.clone(), grid(0.5)), (other.clone(), grid(0.5))]);
        assert_eq!((both.size_unit, both.misses, both.false_objects), (SizeUnit::Um, 1, 1));
        let bins: Vec<(f64, [u64; 3])> =
            both.sizes.iter().map(|b| (b.from, [b.found, b.missed, b.false_objects])).collect();
        assert_eq!(bins, [(1.6, [1, 0, 0]), (2.0, [0, 0, 0]), (2.5, [0, 0, 1]), (3.15, [0, 1, 0])]);
        let unknown = ErrorSummary::pooled(&[(one, grid(0.5)), (other, Grid { voxel_um: None, flat: false })]);
        assert_eq!((unknown.size_unit, unknown.sizes.first().unwrap().from), (SizeUnit::Voxel, 2.0));
        assert_eq!(unknown.sizes.last().unwrap().missed, 1);
        assert_eq!(ErrorSummary::pooled(&[]).sizes, []);
    }

    #[test]
    fn sizes_without_objects_are_one_row_of_a_table() {
        let objects = [(1.7, Outcome::Found), (2.7, Outcome::Missed), (9.0, Outcome::False)];
        let errors = ErrorSummary::new(0, 0, SizeUnit::Um, &objects);
        let rows: Vec<(f64, f64, [u64; 3])> =
            errors.size_rows().iter().map(|b| (b.from, b.to, [b.found, b.missed, b.false_objects])).collect();
        let expected = [
            (1.6, 2.0, [1, 0, 0]),
            (2.0, 2.5, [0, 0, 0]),
            (2.5, 3.15, [0, 1, 0]),
            (3.15, 8.0, [0, 0, 0]),
            (8.0, 10.0, [0, 0, 1]),
        ];
        assert_eq!((rows.as_slice(), errors.sizes.len()), (expected.as_slice(), 8));
        assert_eq!(ErrorSummary::new(0, 0, SizeUnit::Um, &[]).size_rows(), []);
    }
}

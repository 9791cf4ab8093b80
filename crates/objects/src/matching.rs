//! Object matching scores, as in StarDist's `matching` and Cellpose's `average_precision`.
//!
//! Objects are assigned one to one so that first the number of pairs at or above the threshold and then their summed
//! IoU is maximal, which is equivalent to the linear sum assignment of both packages. The problem is solved separately
//! for each connected component of the overlap graph.

use crate::ObjectsError;
use crate::assignment::maximize;
use crate::components::UnionFind;
use rayon::prelude::*;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};

/// Threshold from which on an object has several pairs only if their IoU is exactly this.
const HALF: f64 = 0.5;

/// IoU thresholds at which objects are matched by default.
pub const THRESHOLDS: [f64; 4] = [0.5, 0.7, 0.75, 0.9];

/// Returns the Dice coefficient of two masks with `shared` common voxels and together `sum` voxels. It is 1 if both are empty, as
/// in MONAI's `DiceMetric` with `ignore_empty=False`: a prediction of nothing is right where nothing is.
pub fn dice(shared: u64, sum: u64) -> f64 {
    if sum == 0 { 1.0 } else { 2.0 * shared as f64 / sum as f64 }
}

/// Counts and scores at one IoU threshold, with StarDist's names.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Matching {
    /// Minimum IoU of a match.
    pub threshold: f64,
    /// True positives: number of matched pairs of objects.
    pub tp: u64,
    /// Number of predicted objects without a match.
    pub fp: u64,
    /// Number of true objects without a match.
    pub r#fn: u64,
    /// Share of the predicted objects that match: tp / (tp + fp).
    pub precision: f64,
    /// Share of the true objects that match: tp / (tp + fn).
    pub recall: f64,
    /// tp / (tp + fp + fn): StarDist's accuracy, Cellpose's average precision.
    pub accuracy: f64,
    /// 2 tp / (2 tp + fp + fn).
    pub f1: f64,
    /// Number of objects in the ground truth.
    pub n_true: u64,
    /// Number of objects in the prediction.
    pub n_pred: u64,
    /// Summed IoU of matches divided by the number of true objects.
    pub mean_true_score: f64,
    /// Mean IoU of the matched pairs of objects.
    pub mean_matched_score: f64,
    /// Summed IoU of matches / (tp + fp/2 + fn/2).
    pub panoptic_quality: f64,
}

impl Matching {
    fn new(threshold: f64, tp: u64, n_true: u64, n_pred: u64, score: f64) -> Self {
        let (fp, fnn) = (n_pred - tp, n_true - tp);
        // The sum of no IoU is -0.
        let score = score + 0.0;
        let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { 0.0 };
        let (t, p, n) = (tp as f64, fp as f64, fnn as f64);
        Self {
            threshold,
            tp,
            fp,
            r#fn: fnn,
            precision: ratio(t, t + p),
            recall: ratio(t, t + n),
            accuracy: ratio(t, t + p + n),
            f1: ratio(2.0 * t, 2.0 * t + p + n),
            n_true,
            n_pred,
            mean_true_score: ratio(score, n_true as f64),
            mean_matched_score: ratio(score, t),
            panoptic_quality: ratio(score, t + p / 2.0 + n / 2.0),
        }
    }

    /// Pools the counts of several images (StarDist's `matching_dataset` with `by_image=False`).
    pub fn pooled(parts: &[Matching]) -> Option<Matching> {
        let threshold = parts.first()?.threshold;
        let sum = |f: fn(&Matching) -> u64| parts.iter().map(f).sum::<u64>();
        let score = parts.iter().map(|m| m.mean_matched_score * m.tp as f64).sum();
        Some(Self::new(threshold, sum(|m| m.tp), sum(|m| m.n_true), sum(|m| m.n_pred), score))
    }
}

/// Overlaps of two label images, accumulated piece by piece.
#[derive(Debug, Clone, Default)]
pub struct Overlaps {
    pairs: HashMap<(u32, u32), u64>,
    truth: BTreeMap<u32, u64>,
    prediction: BTreeMap<u32, u64>,
}

impl Overlaps {
    /// Creates a table without overlaps.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds corresponding voxels of both images.
    ///
    /// # Errors
    /// [`ObjectsError::Shapes`] if the pieces have different lengths.
    pub fn add(&mut self, truth: &[u32], prediction: &[u32]) -> Result<(), ObjectsError> {
        if truth.len() != prediction.len() {
            return Err(ObjectsError::Shapes { a: vec![truth.len()], b: vec![prediction.len()] });
        }
        let mut i = 0;
        while i < truth.len() {
            let pair = (truth[i], prediction[i]);
            let start = i;
            while i < truth.len() && (truth[i], prediction[i]) == pair {
                i += 1;
            }
            let n = (i - start) as u64;
            if pair.0 > 0 {
                *self.truth.entry(pair.0).or_default() += n;
            }
            if pair.1 > 0 {
                *self.prediction.entry(pair.1).or_default() += n;
            }
            if pair.0 > 0 && pair.1 > 0 {
                *self.pairs.entry(pair).or_default() += n;
            }
        }
        Ok(())
    }

    /// Returns the IoU of every pair of overlapping objects: (truth, prediction, IoU), sorted.
    pub fn ious(&self) -> Vec<(u32, u32, f64)> {
        let mut all: Vec<(u32, u32, f64)> = self
            .pairs
            .iter()
            .map(|((t, p), n)| {
                let union = self.truth.get(t).copied().unwrap_or(0) + self.prediction.get(p).copied().unwrap_or(0) - n;
                (*t, *p, *n as f64 / union as f64)
            })
            .collect();
        all.sort_by_key(|(t, p, _)| (*t, *p));
        all
    }

    /// Returns the scores at each threshold.
    pub fn matching(&self, thresholds: &[f64]) -> Vec<Matching> {
        let ious = self.ious();
        thresholds
            .par_iter()
            .map(|threshold| {
                let matched = self.matched_in(&ious, *threshold);
                let score = matched.iter().map(|(_, _, iou)| iou).sum();
                let (n_true, n_pred) = (self.truth.len() as u64, self.prediction.len() as u64);
                Matching::new(*threshold, matched.len() as u64, n_true, n_pred, score)
            })
            .collect()
    }

    /// Returns the one-to-one matches at a threshold: (truth, prediction, IoU).
    pub fn matched(&self, threshold: f64) -> Vec<(u32, u32, f64)> {
        self.matched_in(&self.ious(), threshold)
    }

    /// Returns the one-to-one matches at a threshold of overlapping objects: (truth, prediction, IoU).
    fn matched_in(&self, ious: &[(u32, u32, f64)], threshold: f64) -> Vec<(u32, u32, f64)> {
        let matched_at_most = self.truth.len().min(self.prediction.len());
        // Two pairs that share an object reach a threshold of one half only if the IoU of both is one half. So the pairs below it
        // do not change the scores, and without them, nearly all groups are single pairs. With them, all cells of a tissue
        // without gaps would be one group.
        let is_relevant = |pair: &&(u32, u32, f64)| threshold < HALF || pair.2 >= threshold;
        let relevant: Vec<(u32, u32, f64)> = ious.iter().filter(is_relevant).copied().collect();
        groups(&relevant)
            .iter()
            .filter(|group| group.iter().any(|(_, _, iou)| *iou >= threshold))
            .flat_map(|group| assign(group, threshold, matched_at_most))
            .filter(|(_, _, iou)| *iou >= threshold)
            .collect()
    }

    /// Returns the number of voxels of each true object.
    pub fn truth(&self) -> &BTreeMap<u32, u64> {
        &self.truth
    }

    /// Returns the number of voxels of each predicted object.
    pub fn prediction(&self) -> &BTreeMap<u32, u64> {
        &self.prediction
    }

    /// Returns the voxels shared by true and predicted objects: (truth, prediction, voxels), in no particular order.
    pub fn shared(&self) -> impl Iterator<Item = (u32, u32, u64)> {
        self.pairs.iter().map(|((t, p), n)| (*t, *p, *n))
    }

    /// Removes predicted objects, given by their labels: their voxels become background.
    pub fn remove_predictions(&mut self, labels: &HashSet<u32>) {
        self.pairs.retain(|(_, p), _| !labels.contains(p));
        self.prediction.retain(|p, _| !labels.contains(p));
    }

    /// Returns the overlaps without small true objects: true objects below a size are removed, and predicted objects
    /// with more than half of their voxels on them. The IoU of the other objects does not change.
    pub fn ignoring_below(&self, voxels: u64) -> Overlaps {
        let small = |t: &u32| self.truth.get(t).is_some_and(|n| *n < voxels);
        let mut on_small: BTreeMap<u32, u64> = BTreeMap::new();
        for (t, p, n) in self.shared() {
            if small(&t) {
                *on_small.entry(p).or_default() += n;
            }
        }
        let ignored = |p: &u32| {
            let on = on_small.get(p).copied().unwrap_or(0);
            self.prediction.get(p).is_some_and(|all| 2 * on > *all)
        };
        let kept = |(id, n): (&u32, &u64)| (*id, *n);
        Overlaps {
            pairs: self.pairs.iter().filter(|((t, p), _)| !small(t) && !ignored(p)).map(|(k, n)| (*k, *n)).collect(),
            truth: self.truth.iter().filter(|(t, _)| !small(t)).map(kept).collect(),
            prediction: self.prediction.iter().filter(|(p, _)| !ignored(p)).map(kept).collect(),
        }
    }
}

/// Groups pairs that are connected through shared objects.
fn groups(ious: &[(u32, u32, f64)]) -> Vec<Vec<(u32, u32, f64)>> {
    let mut sets = UnionFind::default();
    let (mut truth_sets, mut prediction_sets) = (BTreeMap::new(), BTreeMap::new());
    for (t, p, _) in ious {
        let a = *truth_sets.entry(*t).or_insert_with(|| sets.push());
        let b = *prediction_sets.entry(*p).or_insert_with(|| sets.push());
        sets.join(a, b);
    }
    let mut groups: BTreeMap<u32, Vec<(u32, u32, f64)>> = BTreeMap::new();
    for pair in ious {
        let root = truth_sets.get(&pair.0).map(|a| sets.find(*a)).unwrap_or(0);
        groups.entry(root).or_default().push(*pair);
    }
    groups.into_values().collect()
}

/// Returns the best one-to-one assignment within a group: (truth, prediction, IoU).
fn assign(group: &[(u32, u32, f64)], threshold: f64, matched_at_most: usize) -> Vec<(u32, u32, f64)> {
    if let [pair] = group {
        return vec![*pair];
    }
    let index = |f: fn(&(u32, u32, f64)) -> u32| {
        let mut ids: Vec<u32> = group.iter().map(f).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let (truths, predictions) = (index(|g| g.0), index(|g| g.1));
    let swap = truths.len() > predictions.len();
    let (rows, columns) = if swap { (&predictions, &truths) } else { (&truths, &predictions) };
    let mut iou_of = vec![vec![0.0; columns.len()]; rows.len()];
    for (t, p, iou) in group {
        let (row, column) = if swap { (p, t) } else { (t, p) };
        if let (Ok(r), Ok(c)) = (rows.binary_search(row), columns.binary_search(column)) {
            iou_of[r][c] = *iou;
        }
    }
    let tie = 2.0 * matched_at_most.max(1) as f64;
    let benefit: Vec<Vec<f64>> = iou_of
        .iter()
        .map(|row| row.iter().map(|iou| f64::from(u8::from(*iou >= threshold)) + iou / tie).collect())
        .collect();
    let pair = |(r, c): (usize, usize)| {
        let (t, p) = if swap { (columns[c], rows[r]) } else { (rows[r], columns[c]) };
        (t, p, iou_of[r][c])
    };
    maximize(&benefit).into_iter().enumerate().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pairs_below_a_threshold_of_one_half_do_not_change_the_scores(
            voxels in prop::collection::vec((0u32..5, 0u32..5), 1..40),
        ) {
            let (truth, prediction): (Vec<u32>, Vec<u32>) = voxels.into_iter().unzip();
            let mut overlaps = Overlaps::new();
            overlaps.add(&truth, &prediction).unwrap();
            let ious = overlaps.ious();
            let at_most = overlaps.truth().len().min(overlaps.prediction().len());
            for threshold in THRESHOLDS {
                let of_all: Vec<f64> = groups(&ious)
                    .iter()
                    .flat_map(|group| assign(group, threshold, at_most))
                    .filter_map(|(_, _, iou)| (iou >= threshold).then_some(iou))
                    .collect();
                let found: Vec<f64> = overlaps.matched(threshold).into_iter().map(|(_, _, iou)| iou).collect();
                prop_assert_eq!(found.len(), of_all.len());
                prop_assert!((found.iter().sum::<f64>() - of_all.iter().sum::<f64>()).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn all_cells_of_a_large_tissue_without_gaps_are_matched() {
        // Cells of ten voxels side by side, with predictions shifted by two voxels: each overlaps the next one.
        let cells = 100_000;
        let truth: Vec<u32> = (0..10 * cells).map(|i| 1 + i / 10).collect();
        let prediction: Vec<u32> = (0..10 * cells).map(|i| 1 + (i + 2) / 10).collect();
        let mut overlaps = Overlaps::new();
        overlaps.add(&truth, &prediction).unwrap();
        let found = overlaps.matching(&[0.5, 0.7]);
        // The first prediction has eight voxels, all in the first cell; the others share eight of twelve.
        assert_eq!((found[0].tp, found[0].n_pred, found[1].tp), (u64::from(cells), u64::from(cells) + 1, 1));
        let mean = (0.8 + f64::from(cells - 1) * 8.0 / 12.0) / f64::from(cells);
        assert!((found[0].mean_matched_score - mean).abs() < 1e-9, "{}", found[0].mean_matched_score);
    }

    #[test]
    fn two_objects_one_split_and_one_missed() {
        let truth = [1, 1, 1, 1, 0, 2, 2, 2, 0, 0];
        let prediction = [5, 5, 5, 6, 0, 0, 0, 0, 7, 7];
        let mut overlaps = Overlaps::new();
        overlaps.add(&truth[..3], &prediction[..3]).unwrap();
        overlaps.add(&truth[3..], &prediction[3..]).unwrap();
        let m = &overlaps.matching(&[0.5, 0.8])[..];
        assert_eq!((m[0].tp, m[0].fp, m[0].r#fn), (1, 2, 1));
        assert!((m[0].f1 - 0.4).abs() < 1e-12 && (m[0].mean_matched_score - 0.75).abs() < 1e-12);
        assert_eq!(m[1].tp, 0);
        let pooled = Matching::pooled(&m[1..]).unwrap();
        for unmatched in [&m[1], &pooled] {
            let scores = [unmatched.mean_true_score, unmatched.mean_matched_score, unmatched.panoptic_quality];
            assert!(scores.iter().all(|score| score.is_sign_positive()), "{unmatched:?}");
        }
        assert!(overlaps.add(&[1], &[]).is_err());
    }

    #[test]
    fn dice_is_1_for_equal_masks_also_if_they_are_empty() {
        assert_eq!([dice(3, 8), dice(4, 8), dice(0, 5), dice(0, 0)], [0.75, 1.0, 0.0, 1.0]);
    }

    #[test]
    fn removed_predictions_are_background() {
        let overlaps = |prediction: &[u32]| {
            let mut overlaps = Overlaps::new();
            overlaps.add(&[1, 1, 1, 0, 2, 2, 0, 3], prediction).unwrap();
            overlaps
        };
        let mut removed = overlaps(&[4, 4, 5, 5, 6, 6, 7, 0]);
        removed.remove_predictions(&HashSet::from([5, 7, 99]));
        let expected = overlaps(&[4, 4, 0, 0, 6, 6, 0, 0]);
        assert_eq!((removed.ious(), removed.prediction()), (expected.ious(), expected.prediction()));
        assert_eq!((removed.truth(), removed.matching(&[0.5])), (expected.truth(), expected.matching(&[0.5])));
        assert_eq!(removed.prediction().keys().copied().collect::<Vec<_>>(), [4, 6]);
    }
}

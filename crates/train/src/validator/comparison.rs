//! Comparison of the scores of two networks on the same images, and how much of their difference may be chance.

use cytoscope_objects::matching::{Overlaps, THRESHOLDS};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Minimum number of pairs, objects or blocks from which a standard error is estimated.
const MIN_SAMPLES: usize = 3;
/// Number of blocks along Y and X that an image without objects is divided into.
const BLOCKS: usize = 4;

/// A score compared with an earlier one on the same images.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The earlier score: that of the start model.
    pub before: f64,
    /// The score that is compared with it.
    pub after: f64,
    /// Standard error of the difference; `None` if there is too little to estimate it from.
    pub standard_error: Option<f64>,
    /// Number of pairs that the standard error is estimated from; of objects (for foreground and stains, of blocks of the
    /// images) if there are fewer than three pairs.
    pub samples: usize,
}

impl Comparison {
    /// Returns whether the score is higher by more than chance may cause: by more than one standard error (the rule of
    /// Breiman et al., Classification and Regression Trees, 1984).
    pub(crate) fn is_clear_gain(&self) -> bool {
        self.standard_error.is_some_and(|error| self.after - self.before > error)
    }

    /// Returns why the score is not clearly higher, as the end of a sentence.
    pub fn reason(&self) -> String {
        let Self { before, after, standard_error, samples } = *self;
        match (standard_error, samples) {
            (None, 0) => "the validation images contain nothing to compare the networks on".to_owned(),
            (None, _) => format!(
                "the validation images show only {samples} object{}, too few to tell a gain from chance (label more \
                 objects or stacks)",
                if samples == 1 { "" } else { "s" }
            ),
            (Some(error), _) if after > before => format!(
                "the gain of {:.4}, from {before:.4} to {after:.4}, is within its uncertainty of {error:.4}",
                after - before
            ),
            _ => format!("the score of the best trained network is {after:.4}, that of the start model {before:.4}"),
        }
    }
}

/// A part of an image that adds to its score.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ScoredPart {
    /// The true object with this label.
    Object(u32),
    /// A predicted object without a match, counted from 0.
    FalseObject(usize),
    /// A block of the image, counted from 0.
    Block(usize),
}

/// Contribution of a part of an image to the two sums whose ratio is the score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Share {
    /// Matches the shares of two networks.
    pub part: ScoredPart,
    /// Added to the numerator.
    pub score: f64,
    /// Added to the denominator.
    pub weight: f64,
}

/// Returns what objects add to panoptic quality. Its numerator is the sum of the IoUs of matches; its denominator is
/// the number of matches plus half of the number of missed and false objects.
pub(super) fn object_shares(overlaps: &Overlaps) -> Vec<Share> {
    let matched: BTreeMap<u32, f64> =
        overlaps.matched(THRESHOLDS[0]).into_iter().map(|(truth, _, iou)| (truth, iou)).collect();
    let true_objects = overlaps.truth().keys().map(|label| {
        let iou = matched.get(label).copied();
        Share {
            part: ScoredPart::Object(*label),
            score: iou.unwrap_or(0.0),
            weight: if iou.is_some() { 1.0 } else { 0.5 },
        }
    });
    let false_objects = overlaps.prediction().len().saturating_sub(matched.len());
    let false_object = |number| Share { part: ScoredPart::FalseObject(number), score: 0.0, weight: 0.5 };
    true_objects.chain((0..false_objects).map(false_object)).collect()
}

/// Returns the block of each voxel of a volume: a cell of a grid along Y and X.
fn blocks([_, ny, nx]: [usize; 3]) -> impl Fn(usize) -> usize {
    let (ny, nx) = (ny.max(1), nx.max(1));
    move |voxel| (voxel / nx % ny * BLOCKS / ny) * BLOCKS + voxel % nx * BLOCKS / nx
}

/// Returns what blocks add to the Dice score of two masks: twice the intersection, divided by the sum of both.
pub(super) fn mask_shares(truth: &[f32], found: &[f32], shape: [usize; 3]) -> Vec<Share> {
    let block = blocks(shape);
    let mut sums = [[0.0f64; 2]; BLOCKS * BLOCKS];
    for (voxel, (t, f)) in truth.iter().zip(found).enumerate() {
        let (t, f) = (u8::from(*t > 0.0), u8::from(*f > 0.0));
        if let Some([both, all]) = sums.get_mut(block(voxel)) {
            *both += f64::from(2 * t * f);
            *all += f64::from(t + f);
        }
    }
    let share = |(block, [score, weight]): (usize, [f64; 2])| Share { part: ScoredPart::Block(block), score, weight };
    sums.into_iter().enumerate().map(share).filter(|share| share.weight > 0.0).collect()
}

/// Returns what blocks add to the correlation of a stain, which is taken as the mean of the blocks' correlations.
/// Blocks in which the true stain is constant are left out. `stain` is the number of the stain.
pub(super) fn stain_shares(stain: usize, truth: &[f32], found: &[f32], shape: [usize; 3]) -> Vec<Share> {
    let block = blocks(shape);
    // Per block: the number of voxels and the sums of both images, then the sums of products of deviations.
    let mut sums = [[0.0f64; 3]; BLOCKS * BLOCKS];
    let mut products = [[0.0f64; 3]; BLOCKS * BLOCKS];
    let voxels = || truth.iter().zip(found).map(|(t, f)| (f64::from(*t), f64::from(*f))).enumerate();
    for (voxel, (t, f)) in voxels() {
        if let Some(sums) = sums.get_mut(block(voxel)) {
            *sums = [sums[0] + 1.0, sums[1] + t, sums[2] + f];
        }
    }
    for (voxel, (t, f)) in voxels() {
        let at = block(voxel);
        if let (Some([count, all_t, all_f]), Some(products)) = (sums.get(at), products.get_mut(at)) {
            let (t, f) = (t - all_t / count, f - all_f / count);
            *products = [products[0] + t * t, products[1] + f * f, products[2] + t * f];
        }
    }
    let share = |(block, [tt, ff, tf]): (usize, [f64; 3])| {
        let correlation = Some(tf / (tt * ff).sqrt()).filter(|r| r.is_finite()).unwrap_or(0.0);
        let part = ScoredPart::Block(stain * BLOCKS * BLOCKS + block);
        (tt > 0.0).then_some(Share { part, score: correlation, weight: 1.0 })
    };
    products.into_iter().enumerate().filter_map(share).collect()
}

/// Returns the standard error of the mean of differences between pairs.
pub(super) fn standard_error_of_pairs(gains: &[f64]) -> Option<f64> {
    let n = gains.len() as f64;
    if gains.len() < MIN_SAMPLES {
        return None;
    }
    let mean = gains.iter().sum::<f64>() / n;
    let variance = gains.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / (n - 1.0);
    Some((variance / n).sqrt())
}

/// Returns the standard error of the difference of two scores, each the ratio of two sums over the same parts of images, and
/// the number of these parts; parts are given with the number of their image.
///
/// The ratios are linearized (Cochran, Sampling Techniques, 1977, chapter 6), which gives about the result of a
/// bootstrap over the parts: each part changes a ratio R of sums S / D by about (s − R·d) / D, and the difference of
/// two scores by the difference of both. Parts that only one network has, such as an additional false object, change
/// only the score of that network; false objects of the two networks with equal numbers are taken as the same part.
/// Objects of one image are not independent samples of all images: if at least three images have parts, the changes of
/// each image are summed and the images are the samples; otherwise, the uncertainty for other images is larger.
pub(super) fn standard_error_of_parts(before: &[(usize, Share)], after: &[(usize, Share)]) -> (Option<f64>, usize) {
    let mut joint: BTreeMap<(usize, ScoredPart), [[f64; 2]; 2]> = BTreeMap::new();
    for (side, shares) in [before, after].into_iter().enumerate() {
        for (image, share) in shares {
            joint.entry((*image, share.part)).or_default()[side] = [share.score, share.weight];
        }
    }
    let count = joint.len();
    let total = |side: usize, which: usize| joint.values().map(|sums| sums[side][which]).sum::<f64>();
    let [old, new] = [0, 1].map(|side| (total(side, 0), total(side, 1)));
    if count < MIN_SAMPLES || old.1 <= 0.0 || new.1 <= 0.0 {
        return (None, count);
    }
    let change = |[s, d]: [f64; 2], (score, weight): (f64, f64)| (s - score / weight * d) / weight;
    let images: BTreeSet<usize> = joint.keys().map(|(image, _)| *image).collect();
    let are_images = images.len() >= MIN_SAMPLES;
    let mut changes: BTreeMap<(usize, Option<ScoredPart>), f64> = BTreeMap::new();
    for ((image, part), [a, b]) in &joint {
        let sample = (*image, (!are_images).then_some(*part));
        *changes.entry(sample).or_default() += change(*b, new) - change(*a, old);
    }
    let n = changes.len() as f64;
    let squares: f64 = changes.values().map(|change| change.powi(2)).sum();
    (Some((squares * n / (n - 1.0)).sqrt()), changes.len())
}

/// Returns whether a score is the ratio of the sums of these parts, as panoptic quality and Dice are.
pub(super) fn is_ratio_of_sums(score: f64, shares: &[(usize, Share)]) -> bool {
    let total = |of: fn(&Share) -> f64| shares.iter().map(|(_, share)| of(share)).sum::<f64>();
    (total(|share| share.score) / total(|share| share.weight) - score).abs() < 1e-9
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    /// Returns the shares of true objects with these IoUs (0 for missed ones), and of false objects.
    fn shares(ious: &[f64], false_objects: usize) -> Vec<(usize, Share)> {
        let object = |(label, iou): (usize, &f64)| Share {
            part: ScoredPart::Object(label as u32 + 1),
            score: *iou,
            weight: if *iou > 0.0 { 1.0 } else { 0.5 },
        };
        let false_object = |number| Share { part: ScoredPart::FalseObject(number), score: 0.0, weight: 0.5 };
        let all = ious.iter().enumerate().map(object).chain((0..false_objects).map(false_object));
        all.map(|share| (0, share)).collect()
    }

    fn quality(shares: &[(usize, Share)]) -> f64 {
        shares.iter().map(|(_, s)| s.score).sum::<f64>() / shares.iter().map(|(_, s)| s.weight).sum::<f64>()
    }

    fn compared(before: &[(usize, Share)], after: &[(usize, Share)]) -> Comparison {
        let (standard_error, samples) = standard_error_of_parts(before, after);
        Comparison { before: quality(before), after: quality(after), standard_error, samples }
    }

    #[test]
    fn one_more_object_of_ten_may_be_chance_and_two_are_not() {
        let all = shares(&[0.8; 10], 0);
        let without = |missed: usize| {
            let ious: Vec<f64> = (0..10).map(|i| if i < missed { 0.0 } else { 0.8 }).collect();
            compared(&shares(&ious, 0), &all)
        };
        // Panoptic qualities of 7.2 / 9.5 and 6.4 / 9 against 0.8.
        let (one, two) = (without(1), without(2));
        assert!((one.after - one.before - 0.042_105).abs() < 1e-6 && (two.after - two.before - 0.088_889).abs() < 1e-6);
        // Nine objects change the difference by (0.8 − 0.757895) / 9.5 each, the tenth by 0.757895 / 2 / 9.5.
        assert!((one.standard_error.unwrap() - 0.044_321).abs() < 1e-6, "{one:?}");
        assert!((two.standard_error.unwrap() - 0.065_844).abs() < 1e-6, "{two:?}");
        assert!(!one.is_clear_gain() && two.is_clear_gain());
        assert!(one.reason().contains("0.0421") && one.reason().contains("uncertainty of 0.0443"), "{}", one.reason());
    }

    #[test]
    fn a_small_gain_of_every_object_is_clear_and_one_lucky_object_is_not() {
        let start = shares(&[0.7, 0.8, 0.6, 0.75], 3);
        assert!(compared(&start, &shares(&[0.71, 0.81, 0.61, 0.76], 3)).is_clear_gain());
        assert!(!compared(&start, &shares(&[0.7, 0.75, 0.9, 0.7], 3)).is_clear_gain());
        assert!(!compared(&start, &start).is_clear_gain());
        assert!(compared(&start, &start).reason().contains("the score of the best trained network is"));
        // A false object less, of three, may be chance.
        assert!(!compared(&start, &shares(&[0.7, 0.8, 0.6, 0.75], 2)).is_clear_gain());
    }

    #[test]
    fn too_few_objects_say_nothing() {
        let two = compared(&shares(&[0.5, 0.5], 0), &shares(&[0.9, 0.9], 0));
        assert_eq!((two.standard_error, two.samples, two.is_clear_gain()), (None, 2, false));
        assert!(two.reason().contains("only 2 objects"), "{}", two.reason());
        let none = Comparison { before: 0.0, after: 0.0, standard_error: None, samples: 0 };
        assert!(!none.is_clear_gain() && none.reason().contains("nothing"), "{}", none.reason());
    }

    #[test]
    fn blocks_add_up_to_the_score_of_the_image() {
        let shape = [2, 8, 12];
        let truth: Vec<f32> = (0..192).map(|i| f32::from(u8::from(i % 12 < 6))).collect();
        let found: Vec<f32> = (0..192).map(|i| f32::from(u8::from(i % 12 < 5 && i / 12 % 8 > 0))).collect();
        let made: Vec<(usize, Share)> =
            mask_shares(&truth, &found, shape).into_iter().map(|share| (0, share)).collect();
        // The blocks of the right half have no foreground.
        assert_eq!(made.len(), 8);
        let (both, all) = (2.0 * 5.0 * 14.0, 6.0 * 16.0 + 5.0 * 14.0);
        assert!((quality(&made) - both / all).abs() < 1e-12);
        // Stains: a copy of the truth, and one that is reversed in the lower half.
        let stain: Vec<f32> = (0..192).map(|i| ((i * 37) % 50) as f32).collect();
        let reversed: Vec<f32> = stain.iter().enumerate().map(|(i, v)| if i / 12 % 8 < 4 { *v } else { -v }).collect();
        let mean = |found: &[f32]| {
            let all = stain_shares(1, &stain, found, shape);
            assert!(all.iter().all(|s| matches!(s.part, ScoredPart::Block(16..32))));
            (all.iter().map(|s| s.score).sum::<f64>() / all.len() as f64, all.len())
        };
        let (same, half) = (mean(&stain), mean(&reversed));
        assert!((same.0 - 1.0).abs() < 1e-9 && half.0.abs() < 1e-9 && same.1 == 16, "{same:?} {half:?}");
    }
}

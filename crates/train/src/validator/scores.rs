//! Scores of predictions.

use super::comparison::{
    Comparison, Share, is_ratio_of_sums, mask_shares, object_shares, stain_shares, standard_error_of_pairs,
    standard_error_of_parts,
};
use crate::score_name::ScoreName;
use cytoscope_objects::ObjectsError;
use cytoscope_objects::matching::{Matching, Overlaps, THRESHOLDS, dice};
use cytoscope_objects::regression::{Regression, regression};
use cytoscope_pipeline::JobError;
use cytoscope_training_data::TargetKind;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Scores of one validation pair.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PairScore {
    /// Name of the pair.
    pub name: String,
    /// The score that networks are compared by; higher is better.
    pub score: f64,
    /// All scores by name.
    pub scores: BTreeMap<ScoreName, f64>,
}

/// Version of the definition of [`Scores::score`], for checkpoints: 0 was the mean of F1 at IoU 0.5 and 0.7; in 1, parts of
/// images were normalized by their own statistics, objects of which only the rim is annotated counted, and different parts of
/// large stacks were scored; in 2, the end of a single stack was scored as a whole, however large it is.
pub(crate) const SCORE_VERSION: u32 = 3;

/// Scores of a network on the validation pairs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scores {
    /// The score that networks are compared by, over all pairs; higher is better: panoptic quality at IoU 0.5 for objects
    /// (Kirillov et al., 2019), Dice for foreground, Pearson's correlation for a stain (the mean over several stains).
    /// Unlike F1, panoptic quality still tells networks apart that find all of a few objects: it sums up the IoU of
    /// matches.
    pub score: f64,
    /// All scores over all pairs, by name.
    pub scores: BTreeMap<ScoreName, f64>,
    /// Scores of each validation pair.
    pub pairs: Vec<PairScore>,
    /// Contribution of each object or block of the images to the score, with the number of its validation pair.
    #[serde(skip)]
    pub(crate) shares: Vec<(usize, Share)>,
}

impl Scores {
    /// Compares these scores with earlier ones on the same images. The standard error of the difference is estimated
    /// from the pairs or, with fewer than three pairs, from their objects (blocks for foreground and stains). For a
    /// score that is summed over all objects, it is the standard error of this sum, to which pairs with few objects add
    /// little; for other scores, it is the standard error of the mean difference of the pairs.
    pub(crate) fn compared_with(&self, before: &Scores) -> Comparison {
        let same = self.pairs.iter().zip(&before.pairs).filter(|(a, b)| a.name == b.name);
        let gains: Vec<f64> = same.map(|(a, b)| a.score - b.score).filter(|d| d.is_finite()).collect();
        let from_parts = standard_error_of_parts(&before.shares, &self.shares);
        let are_ratios = [before, self].into_iter().all(|scores| is_ratio_of_sums(scores.score, &scores.shares));
        let (standard_error, samples) = match standard_error_of_pairs(&gains) {
            Some(error) if !are_ratios || from_parts.0.is_none() => (Some(error), gains.len()),
            _ => from_parts,
        };
        Comparison { before: before.score, after: self.score, standard_error, samples }
    }

    /// Compares these scores with those of the start model on the same images; `None` if they are not lower, or the images
    /// differ.
    pub(crate) fn if_lower_than(&self, start: &Scores) -> Option<Comparison> {
        let are_same = self.pairs.iter().map(|pair| &pair.name).eq(start.pairs.iter().map(|pair| &pair.name));
        (are_same && self.score < start.score).then(|| self.compared_with(start))
    }
}

/// Size under which true objects are specks that do not count, as a fraction of the median volume of a pair's true
/// objects.
const SPECK: f64 = 0.05;

/// Returns the overlaps of labels with true labels. Both are integers stored as floats; values below 1 are background. Specks
/// of the ground truth ([`SPECK`]), and predictions mostly on them, are left out.
fn overlaps(truth: &[f32], found: &[f32]) -> Result<Overlaps, JobError> {
    let labels = |v: &[f32]| -> Vec<u32> { v.iter().map(|l| if *l >= 1.0 { *l as u32 } else { 0 }).collect() };
    let mut overlaps = Overlaps::new();
    overlaps.add(&labels(truth), &labels(found))?;
    let mut sizes: Vec<u64> = overlaps.truth().values().copied().collect();
    sizes.sort_unstable();
    let median = sizes.get(sizes.len() / 2).copied().unwrap_or(0);
    Ok(overlaps.ignoring_below((median as f64 * SPECK) as u64))
}

/// Sums from which the scores are computed.
#[derive(Default)]
pub(super) struct Tally {
    matchings: Vec<Vec<Matching>>,
    /// The comparison of each stain of each pair, with the number of the stain.
    regressions: Vec<(usize, Regression)>,
    /// Number of voxels in the intersection, and sum of the voxels of both masks.
    voxels: [u64; 2],
    /// Contributions of the parts of the last pair to the score.
    pub(super) shares: Vec<Share>,
}

impl Tally {
    /// Compares a prediction with the ground truth, both in order C, Z, Y, X, with this shape Z, Y, X.
    ///
    /// # Errors
    /// [`JobError`] if their numbers of voxels differ.
    pub(super) fn of(target: TargetKind, truth: &[f32], found: &[f32], shape: [usize; 3]) -> Result<Self, JobError> {
        if truth.len() != found.len() {
            return Err(ObjectsError::Shapes { a: vec![truth.len()], b: vec![found.len()] }.into());
        }
        let mut tally = Self::default();
        match target {
            TargetKind::Regression => {
                let voxels = shape.iter().product::<usize>().max(1);
                for (stain, (truth, found)) in truth.chunks(voxels).zip(found.chunks(voxels)).enumerate() {
                    tally.regressions.push((stain, regression(truth, found, 1, shape)?));
                    tally.shares.extend(stain_shares(stain, truth, found, shape));
                }
            }
            TargetKind::Semantic => {
                for (t, f) in truth.iter().zip(found) {
                    let (t, f) = (*t > 0.0, *f > 0.0);
                    tally.voxels[0] += u64::from(t && f);
                    tally.voxels[1] += u64::from(t) + u64::from(f);
                }
                tally.shares = mask_shares(truth, found, shape);
            }
            TargetKind::Instances | TargetKind::Boundary { .. } | TargetKind::Distance { .. } | TargetKind::Flow => {
                let overlaps = overlaps(truth, found)?;
                tally.shares = object_shares(&overlaps);
                tally.matchings.push(overlaps.matching(&THRESHOLDS));
            }
        }
        Ok(tally)
    }

    /// Adds the sums of another pair.
    pub(super) fn add(&mut self, other: Tally) {
        self.matchings.extend(other.matchings);
        self.regressions.extend(other.regressions);
        self.voxels = [0, 1].map(|i| self.voxels[i] + other.voxels[i]);
    }

    /// Returns the score that networks are compared by, and all scores by name; `stains` are the names of the outputs for
    /// regression.
    pub(super) fn scores(&self, target: TargetKind, stains: &[String]) -> (f64, BTreeMap<ScoreName, f64>) {
        match target {
            TargetKind::Regression => {
                // Over all stains, or one of them.
                let mean = |stain: Option<usize>, f: fn(&Regression) -> Option<f64>| {
                    let stain_regressions =
                        self.regressions.iter().filter(|(s, _)| stain.is_none_or(|stain| stain == *s));
                    let all: Vec<f64> = stain_regressions.filter_map(|(_, r)| f(r)).filter(|v| v.is_finite()).collect();
                    if all.is_empty() { 0.0 } else { all.iter().sum::<f64>() / all.len() as f64 }
                };
                let pearson = mean(None, |r| r.pearson);
                let mut scores = BTreeMap::from([(ScoreName::Pearson(None), pearson)]);
                scores.insert(ScoreName::PsnrDb, mean(None, |r| r.psnr_db));
                scores.insert(ScoreName::Ssim, mean(None, |r| r.ssim));
                for (stain, name) in stains.iter().enumerate().filter(|_| stains.len() > 1) {
                    scores.insert(ScoreName::Pearson(Some(name.clone())), mean(Some(stain), |r| r.pearson));
                }
                (pearson, scores)
            }
            TargetKind::Semantic => {
                let dice = dice(self.voxels[0], self.voxels[1]);
                (dice, BTreeMap::from([(ScoreName::Dice, dice)]))
            }
            TargetKind::Instances | TargetKind::Boundary { .. } | TargetKind::Distance { .. } | TargetKind::Flow => {
                let mut scores = BTreeMap::new();
                let mut quality = 0.0;
                for (i, threshold) in THRESHOLDS.iter().enumerate() {
                    let parts: Vec<Matching> = self.matchings.iter().filter_map(|m| m.get(i).cloned()).collect();
                    let pooled = Matching::pooled(&parts);
                    scores.insert(ScoreName::f1(*threshold), pooled.as_ref().map_or(0.0, |m| m.f1));
                    // The score at the lowest threshold, an IoU of 0.5, decides.
                    if *threshold == THRESHOLDS[0] {
                        quality = pooled.map_or(0.0, |m| m.panoptic_quality);
                        scores.insert(ScoreName::panoptic_quality(*threshold), quality);
                    }
                }
                (quality, scores)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use crate::validator::comparison::ScoredPart;

    fn scores(score: f64, pairs: &[f64]) -> Scores {
        let pair =
            |(i, score): (usize, &f64)| PairScore { name: i.to_string(), score: *score, scores: BTreeMap::new() };
        let pairs = pairs.iter().enumerate().map(pair).collect();
        Scores { score, scores: BTreeMap::new(), pairs, shares: Vec::new() }
    }

    #[test]
    fn specks_of_the_truth_do_not_count() {
        // Three objects of 100 voxels, two of which are found, and a speck of 4 voxels that is not.
        let truth: Vec<f32> = (0..400).map(|i| if i < 300 { (i / 100 + 1) as f32 } else { 0.0 }).collect();
        let found: Vec<f32> = truth.iter().map(|label| if *label < 3.0 { *label } else { 0.0 }).collect();
        let with_speck: Vec<f32> = truth.iter().enumerate().map(|(i, l)| if i >= 396 { 4.0 } else { *l }).collect();
        let counts = |truth: &[f32]| {
            let found = overlaps(truth, &found).unwrap().matching(&THRESHOLDS);
            found.into_iter().map(|m| (m.tp, m.n_true, m.n_pred))
        };
        assert!(counts(&with_speck).all(|counts| counts == (2, 3, 2)));
        // An object of 10 voxels counts.
        let small: Vec<f32> = truth.iter().enumerate().map(|(i, l)| if i >= 390 { 4.0 } else { *l }).collect();
        assert!(counts(&small).all(|counts| counts == (2, 4, 2)));
    }

    #[test]
    fn predictions_of_another_size_are_not_scored() {
        for target in [TargetKind::Regression, TargetKind::Semantic, TargetKind::Instances] {
            for found in [7, 9, 16] {
                let scored = Tally::of(target, &[1.0; 8], &vec![1.0; found], [2, 2, 2]);
                assert!(scored.is_err(), "{target:?} {found}");
            }
            assert!(Tally::of(target, &[1.0; 8], &[1.0; 8], [2, 2, 2]).is_ok());
        }
    }

    #[test]
    fn a_pair_without_foreground_in_which_none_is_found_has_the_best_dice() {
        let score = |found: [f32; 8]| {
            let tally = Tally::of(TargetKind::Semantic, &[0.0; 8], &found, [2, 2, 2]).unwrap();
            tally.scores(TargetKind::Semantic, &[]).1[&ScoreName::Dice]
        };
        assert_eq!(score([0.0; 8]), 1.0);
        assert_eq!(score([0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]), 0.0);
    }

    #[test]
    fn networks_that_find_every_object_are_told_apart_by_their_outlines() {
        // Two objects of 100 voxels; the second prediction misses 10 voxels of each.
        let truth: Vec<f32> = (0..300).map(|i| if i < 200 { (i / 100 + 1) as f32 } else { 0.0 }).collect();
        let tight: Vec<f32> = truth.iter().enumerate().map(|(i, l)| if i % 100 < 10 { 0.0 } else { *l }).collect();
        let score = |found: &[f32]| {
            Tally::of(TargetKind::Instances, &truth, found, [1, 1, 300]).unwrap().scores(TargetKind::Instances, &[])
        };
        let ((all, all_scores), (less, less_scores)) = (score(&truth), score(&tight));
        let [at_70, at_75] = [0.7, 0.75].map(ScoreName::f1);
        assert_eq!((all_scores[&at_70], less_scores[&at_70], less_scores[&at_75]), (1.0, 1.0, 1.0));
        assert_eq!(all, 1.0);
        assert!((less - 0.9).abs() < 1e-9, "the mean IoU of two matches, {less}");
    }

    #[test]
    fn a_gain_within_one_standard_error_of_the_pairs_is_no_clear_gain() {
        let start = scores(0.6648, &[1.0, 1.0, 0.8947, 0.8393, 0.4318]);
        let is_clear = |scores: Scores| scores.compared_with(&start).is_clear_gain();
        assert!(!is_clear(start.clone()));
        // One pair has gained by chance: differences of 0, 0, 0.1053, 0 and -0.0132, standard error 0.022.
        assert!(!is_clear(scores(0.6667, &[1.0, 1.0, 1.0, 0.8393, 0.4186])));
        assert!(is_clear(scores(0.6948, &[1.0, 1.0, 1.0, 0.8393, 0.4186])));
        // A small gain in every pair is clear.
        assert!(is_clear(scores(0.6748, &[1.01, 1.01, 0.9047, 0.8493, 0.4418])));
        assert!(!is_clear(scores(0.66, &[1.1; 5])), "the score over all objects fell");
        // Two pairs without objects say nothing about chance.
        assert!(!scores(0.7, &[0.9, 0.5]).compared_with(&scores(0.69, &[0.3, 0.9])).is_clear_gain());
    }

    #[test]
    fn a_network_that_ends_below_the_start_model_is_recognized_on_the_same_images_only() {
        let start = scores(0.8, &[0.7, 0.8, 0.9]);
        let lower = scores(0.75, &[0.7, 0.75, 0.8]).if_lower_than(&start).unwrap();
        assert_eq!((lower.before, lower.after, lower.is_clear_gain()), (0.8, 0.75, false));
        assert!(lower.reason().contains("the score of the best trained network is 0.7500"), "{}", lower.reason());
        assert!(scores(0.8, &[0.7, 0.8, 0.9]).if_lower_than(&start).is_none());
        assert!(scores(0.7, &[0.7]).if_lower_than(&start).is_none(), "scores on other images");
    }

    #[test]
    fn a_pair_with_a_single_object_counts_as_that_object() {
        // A pair with one object, which is lost, and two with 20 objects each, whose IoU rises from 0.7.
        let of = |single: f64, others: f64| {
            let object = |pair: usize, label: u32, score: f64| {
                let weight = if score > 0.0 { 1.0 } else { 0.5 };
                (pair, Share { part: ScoredPart::Object(label), score, weight })
            };
            let twenty = |pair: usize| (0..20).map(move |label| object(pair, label, others));
            let shares: Vec<(usize, Share)> =
                std::iter::once(object(0, 0, single)).chain(twenty(1)).chain(twenty(2)).collect();
            let sum = |of: fn(&Share) -> f64| shares.iter().map(|(_, share)| of(share)).sum::<f64>();
            let score = sum(|share| share.score) / sum(|share| share.weight);
            Scores { shares: shares.clone(), ..scores(score, &[single, others, others]) }
        };
        let gain = of(0.0, 0.74).compared_with(&of(0.7, 0.7));
        // The changes of the pairs are -0.009023, 0.004512 and 0.004512.
        assert!((gain.standard_error.unwrap() - 0.013_535).abs() < 1e-5 && gain.samples == 3, "{gain:?}");
        assert!(gain.is_clear_gain(), "the mean over the pairs falls, but 40 objects of 41 are better");
        assert!(!of(0.0, 0.72).compared_with(&of(0.7, 0.7)).is_clear_gain());
    }

    #[test]
    fn the_objects_of_a_pair_add_up_to_its_panoptic_quality() {
        // Four objects of 100 voxels: one is found, one is too small, one is missed, one is split in two halves.
        let truth: Vec<f32> = (0..600).map(|i| if i < 400 { (i / 100 + 1) as f32 } else { 0.0 }).collect();
        let found: Vec<f32> = (0..600)
            .map(|i| match i {
                0..100 => 9.0,
                110..200 => 3.0,
                300..350 => 4.0,
                350..400 => 5.0,
                // A false object.
                500..520 => 7.0,
                _ => 0.0,
            })
            .collect();
        let tally = Tally::of(TargetKind::Instances, &truth, &found, [1, 1, 600]).unwrap();
        let (quality, _) = tally.scores(TargetKind::Instances, &[]);
        let sum = |of: fn(&Share) -> f64| tally.shares.iter().map(of).sum::<f64>();
        assert!((quality - sum(|s| s.score) / sum(|s| s.weight)).abs() < 1e-12, "{:?}", tally.shares);
        // Half of the split object has an IoU of 0.5, which matches.
        assert!((quality - (1.0 + 0.9 + 0.5) / ((4.0 + 5.0) / 2.0)).abs() < 1e-12, "{quality}");
    }
}

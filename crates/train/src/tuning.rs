//! Segmentation settings: defaults, and tuning by the score on the validation pairs.

use crate::candidate::Candidate;
use crate::validator::{Scores, Validator};
use cytoscope_objects::components::Connectivity;
use cytoscope_objects::{Height, SegmentOptions, Threshold, TissueOptions, segment_in_place};
use cytoscope_pipeline::{CancelToken, JobError, VolumeOutputs};
use cytoscope_training_data::TargetKind;
use std::time::Instant;

/// Returns the initial segmentation settings for a target; `small_object_um3` is the minimum object volume in µm³.
pub(crate) fn defaults(target: TargetKind, small_object_um3: Option<f64>) -> SegmentOptions {
    let height = match target {
        TargetKind::Instances | TargetKind::Distance { .. } => Some(Height::Seeds),
        TargetKind::Boundary { .. } => Some(Height::Distance),
        _ => None,
    };
    SegmentOptions {
        smooth_um: 0.0,
        threshold: Threshold::Fixed(0.5),
        fill_holes: true,
        height,
        height_smooth_um: if target == TargetKind::Semantic { 0.0 } else { 0.8 },
        seed_height: 0.1,
        connectivity: Connectivity::Faces,
        min_volume_um3: small_object_um3.unwrap_or(0.0),
        min_peak: 0.0,
        drop_border: false,
        tissue: None,
        isolated: None,
        oversized: None,
    }
}

/// Returns the model's own settings with the minimum object volume lowered, if necessary, so that no typical object is
/// dropped. `small_object_um3` is a tenth of the typical volume.
pub(crate) fn fit_to_objects(options: &SegmentOptions, small_object_um3: Option<f64>) -> SegmentOptions {
    let max = small_object_um3.map_or(f64::INFINITY, |small| 3.0 * small);
    SegmentOptions { min_volume_um3: options.min_volume_um3.min(max), ..options.clone() }
}

/// The maps that a network predicts for a validation pair.
pub(crate) struct Maps {
    foreground: Vec<f32>,
    seeds: Vec<f32>,
    shape: [usize; 3],
    voxel_um: [f64; 3],
    /// Object diameter relative to the model's nominal diameter.
    scale: f64,
    case: usize,
}

impl Maps {
    /// Returns the labels that the segmentation settings give.
    pub(crate) fn labels(&self, options: &SegmentOptions) -> Result<Vec<f32>, JobError> {
        let mut foreground = self.foreground.clone();
        let options = options.scaled(self.scale);
        let (labels, _) = segment_in_place(&mut foreground, Some(&self.seeds), self.shape, self.voxel_um, &options)?;
        Ok(labels.into_iter().map(|l| l as f32).collect())
    }

    /// Returns the index of the validation pair.
    pub(crate) fn case(&self) -> usize {
        self.case
    }
}

/// How many settings are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TuneEffort {
    /// One pass over the most important settings, to compare networks during training.
    Quick,
    /// Two passes over all settings.
    Thorough,
}

/// Predicts the maps of the validation pairs; after `until`, no further pair is started. `seed_channel` is the channel
/// that separates touching objects.
pub(crate) fn predict_maps(
    cancel: &CancelToken,
    validator: &Validator,
    candidate: &Candidate,
    seed_channel: usize,
    until: Option<Instant>,
) -> Result<Vec<Maps>, JobError> {
    let mut all = Vec::new();
    for case in 0..validator.cases.len() {
        if !all.is_empty() && until.is_some_and(|at| Instant::now() >= at) {
            break;
        }
        let predicted = validator.predict(cancel, candidate, case, VolumeOutputs::Maps)?;
        // Maps were requested; without them, the error below says so.
        let values = predicted.maps.unwrap_or_default();
        let Some((_, shape)) = validator.truth(case) else { continue };
        let voxels: usize = shape.iter().product();
        let channels = values.len() / voxels.max(1);
        let channel = |c: usize| {
            let missing = || JobError::Internal(format!("tuning: maps of {} values have no channel {c}", values.len()));
            values.get(c * voxels..(c + 1) * voxels).map(<[f32]>::to_vec).ok_or_else(missing)
        };
        let seeds = channel(seed_channel.min(channels.saturating_sub(1)))?;
        let (voxel_um, scale) = (validator.voxel_um(case), validator.scale(case));
        all.push(Maps { foreground: channel(0)?, seeds, shape, voxel_um, scale, case });
    }
    Ok(all)
}

/// Segmentation settings that suit the validation set best, with their scores.
pub(crate) struct TuneResult {
    /// Settings with the best score if that is better than the score of the initial ones by more than chance, or else the
    /// initial ones.
    pub options: SegmentOptions,
    /// Scores of the initial settings.
    pub given: Scores,
    /// Scores of [`TuneResult::options`].
    pub best: Scores,
    /// Fraction of the candidates that were tried; 1 if there was time for all.
    pub share: f64,
}

/// Tunes the settings on the validation pairs, one setting at a time (coordinate search) starting from `initial`. After
/// `until`, no further candidates are tried. Settings that are better by chance only are not taken
/// ([`Scores::compared_with`]), nor are single ones among them that add nothing beyond chance ([`simplified`]).
pub(crate) fn tune(
    cancel: &CancelToken,
    validator: &Validator,
    maps: &[Maps],
    initial: &SegmentOptions,
    effort: TuneEffort,
    until: Option<Instant>,
) -> Result<TuneResult, JobError> {
    let (mut tried, mut left_out) = (1, 0);
    let mut best = initial.clone();
    let given = score_settings(validator, maps, &best)?;
    let mut scores = given.clone();
    for round in 0..2 {
        let before = scores.score;
        for at in 0..candidates(initial, &best, effort).len() {
            // Candidates change one setting of the best settings so far.
            for candidate in candidates(initial, &best, effort).swap_remove(at) {
                if cancel.is_canceled() {
                    return Err(JobError::Canceled);
                }
                if candidate == best {
                    continue;
                }
                if until.is_some_and(|at| Instant::now() >= at) {
                    left_out += 1;
                    continue;
                }
                tried += 1;
                let found = score_settings(validator, maps, &candidate)?;
                if found.score > scores.score + 1e-9 {
                    (best, scores) = (candidate, found);
                }
            }
        }
        if effort == TuneEffort::Quick || (round == 0 && scores.score <= before) {
            break;
        }
    }
    let share = f64::from(tried) / f64::from(tried + left_out);
    // The best of many candidates is above the initial settings by chance alone.
    let (options, best) = match scores.compared_with(&given).is_clear_gain() {
        true if effort == TuneEffort::Thorough => simplified(initial, (best, scores), |options| {
            if cancel.is_canceled() {
                return Err(JobError::Canceled);
            }
            if until.is_some_and(|at| Instant::now() >= at) {
                return Ok(None);
            }
            score_settings(validator, maps, options).map(Some)
        })?,
        true => (best, scores),
        false => (initial.clone(), given.clone()),
    };
    Ok(TuneResult { options, given, best, share })
}

/// Resets settings to their initial values one by one, unless the best score is clearly higher than the score without
/// the change. Otherwise, a clear gain from one change, such as another threshold, would also keep other changes that
/// fit a few images by chance. `score` returns the scores that settings give; `None` if there is no time left.
fn simplified(
    initial: &SegmentOptions,
    (best, best_scores): (SegmentOptions, Scores),
    mut score: impl FnMut(&SegmentOptions) -> Result<Option<Scores>, JobError>,
) -> Result<(SegmentOptions, Scores), JobError> {
    const RESETS: [fn(&mut SegmentOptions, &SegmentOptions); 7] = [
        |now, initial| now.seed_height = initial.seed_height,
        |now, initial| now.height_smooth_um = initial.height_smooth_um,
        |now, initial| now.min_volume_um3 = initial.min_volume_um3,
        |now, initial| now.min_peak = initial.min_peak,
        |now, initial| now.tissue = initial.tissue,
        |now, initial| now.oversized = initial.oversized,
        |now, initial| now.threshold = initial.threshold,
    ];
    let (mut options, mut scores) = (best, best_scores.clone());
    for reset in RESETS {
        let mut simpler = options.clone();
        reset(&mut simpler, initial);
        if simpler == options {
            continue;
        }
        let Some(found) = score(&simpler)? else { break };
        if !best_scores.compared_with(&found).is_clear_gain() {
            (options, scores) = (simpler, found);
        }
    }
    Ok((options, scores))
}

/// Returns, for each setting, the settings with its candidate values.
fn candidates(initial: &SegmentOptions, now: &SegmentOptions, effort: TuneEffort) -> Vec<Vec<SegmentOptions>> {
    let with = |change: &dyn Fn(&mut SegmentOptions)| {
        let mut made = now.clone();
        change(&mut made);
        made
    };
    let mut all = Vec::new();
    // The initial ones if they were turned off: every call must return the same settings, which are tried one by one.
    if let Some(tissue) = now.tissue.or(initial.tissue) {
        let seeds = |seed_height| with(&|o| o.tissue = Some(TissueOptions { seed_height, ..tissue }));
        all.push(vec![with(&|o| o.tissue = None), seeds(0.05), seeds(0.1), seeds(0.2)]);
        if effort == TuneEffort::Thorough {
            let outlines = [None, Some(0.6), Some(0.7), Some(0.8)];
            all.push(outlines.map(|outline| with(&|o| o.tissue = Some(TissueOptions { outline, ..tissue }))).to_vec());
        }
    }
    // Objects of very different sizes are better not split again.
    if let Some(oversized) = now.oversized.or(initial.oversized) {
        all.push([None, Some(oversized)].map(|rule| with(&|o| o.oversized = rule)).to_vec());
    }
    if effort == TuneEffort::Quick {
        if matches!(now.threshold, Threshold::Fixed(_)) {
            all.push([0.4, 0.5, 0.6].map(|t| with(&|o| o.threshold = Threshold::Fixed(t))).to_vec());
        }
        if now.height == Some(Height::Seeds) {
            all.push([0.05, 0.1, 0.2].map(|h| with(&|o| o.seed_height = h)).to_vec());
        }
        all.push([0.0, 0.8, 0.9].map(|p| with(&|o| o.min_peak = p)).to_vec());
        return all;
    }
    if matches!(now.threshold, Threshold::Fixed(_)) {
        all.push([0.3, 0.4, 0.5, 0.6, 0.7].map(|t| with(&|o| o.threshold = Threshold::Fixed(t))).to_vec());
    }
    if now.height == Some(Height::Seeds) {
        all.push([0.03, 0.06, 0.1, 0.15, 0.2, 0.3].map(|h| with(&|o| o.seed_height = h)).to_vec());
        all.push([0.0, 0.5, 0.8, 1.2, 1.8].map(|s| with(&|o| o.height_smooth_um = s)).to_vec());
    } else if now.height.is_some() {
        all.push([0.25, 0.5, 1.0, 1.5].map(|h| with(&|o| o.seed_height = h)).to_vec());
        all.push([0.5, 1.0, 2.0].map(|s| with(&|o| o.height_smooth_um = s)).to_vec());
    }
    all.push([0.0, 0.7, 0.8, 0.9].map(|p| with(&|o| o.min_peak = p)).to_vec());
    let min_volume = initial.min_volume_um3;
    all.push([0.0, 0.5, 1.0, 2.0, 3.0].map(|f| with(&|o| o.min_volume_um3 = f * min_volume)).to_vec());
    all
}

/// Scores the labels that the settings give on all validation pairs.
fn score_settings(validator: &Validator, maps: &[Maps], options: &SegmentOptions) -> Result<Scores, JobError> {
    let labels = maps.iter().map(|map| Ok((map.case, map.labels(options)?)));
    validator.score_labels(labels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validator::PairScore;
    use cytoscope_objects::OversizedOptions;
    use std::collections::BTreeMap;

    #[test]
    fn changes_that_add_nothing_beyond_chance_are_reset() {
        let initial = SegmentOptions { threshold: Threshold::Fixed(0.5), ..SegmentOptions::default() };
        let best = SegmentOptions { threshold: Threshold::Fixed(0.4), seed_height: 0.03, ..initial.clone() };
        // The threshold adds 0.1 in each of four images. The seed height adds something in one of them, but not in another.
        let score_settings = |options: &SegmentOptions| {
            let chance = if options.seed_height == best.seed_height { [-0.05, 0.0, 0.1, 0.0] } else { [0.0; 4] };
            let gain = if options.threshold == best.threshold { 0.1 } else { 0.0 };
            let pair = |(image, own): (usize, f64)| PairScore {
                name: image.to_string(),
                score: own + gain + chance[image],
                scores: BTreeMap::new(),
            };
            let pairs: Vec<PairScore> = [0.5, 0.6, 0.4, 0.7].into_iter().enumerate().map(pair).collect();
            let score = pairs.iter().map(|pair| pair.score).sum::<f64>() / 4.0;
            Scores { score, scores: BTreeMap::new(), pairs, shares: Vec::new() }
        };
        let found = (best.clone(), score_settings(&best));
        let (kept, scores) = simplified(&initial, found.clone(), |options| Ok(Some(score_settings(options)))).unwrap();
        assert_eq!(kept, SegmentOptions { threshold: Threshold::Fixed(0.4), ..initial.clone() });
        assert!((scores.score - 0.65).abs() < 1e-9, "{}", scores.score);
        let (kept, _) = simplified(&initial, found, |_| Ok(None)).unwrap();
        assert_eq!(kept, best, "without time, nothing is reset");
    }

    #[test]
    fn the_minimum_volume_is_lowered_for_data_with_small_objects() {
        let own = SegmentOptions { min_volume_um3: 300.0, ..SegmentOptions::default() };
        let min_volume = |small| fit_to_objects(&own, small).min_volume_um3;
        assert_eq!((min_volume(None), min_volume(Some(150.0)), min_volume(Some(20.0))), (300.0, 300.0, 60.0));
    }

    #[test]
    fn all_settings_are_still_tuned_after_those_for_tissue_and_large_objects_were_turned_off() {
        let tissue =
            TissueOptions { min_fill: 0.5, window_um: 30.0, height_smooth_um: 0.5, seed_height: 0.1, outline: None };
        let oversized =
            OversizedOptions { min_volume_um3: 900.0, part_share: 0.3, seed_share: 0.6, max_neck: Some(0.75) };
        let (tissue, oversized) = (Some(tissue), Some(oversized));
        let initial = SegmentOptions { tissue, oversized, ..SegmentOptions::default() };
        for effort in [TuneEffort::Quick, TuneEffort::Thorough] {
            let with = candidates(&initial, &initial, effort);
            for off in [
                SegmentOptions { tissue: None, ..initial.clone() },
                SegmentOptions { oversized: None, ..initial.clone() },
            ] {
                assert!(with.iter().any(|values| values.contains(&off)), "{effort:?}: they can be turned off");
                let without = candidates(&initial, &off, effort);
                assert_eq!(with.len(), without.len(), "{effort:?}");
                assert!(without.iter().any(|values| values.contains(&initial)), "{effort:?}: and on again");
            }
        }
    }
}

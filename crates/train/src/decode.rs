//! How objects are made of a network's maps: chosen by the score on known objects.

use crate::validate::{Scores, Validator};
use cytoscope_objects::components::Connectivity;
use cytoscope_objects::{Height, SegmentOptions, Threshold, segment_in_place};
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::{CancelToken, JobError, Output};
use cytoscope_samples::TargetKind;
use std::path::Path;
use std::time::Instant;

/// Settings to begin with.
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
    }
}

/// A model's own settings for data whose small objects (a tenth of a usual one) have a known volume: none of usual size is
/// dropped as too small.
pub(crate) fn fitting(own: &SegmentOptions, small_object_um3: Option<f64>) -> SegmentOptions {
    let most = small_object_um3.map_or(f64::INFINITY, |small| 3.0 * small);
    SegmentOptions { min_volume_um3: own.min_volume_um3.min(most), ..own.clone() }
}

/// What a network made of a validation pair.
pub(crate) struct Maps {
    foreground: Vec<f32>,
    seeds: Vec<f32>,
    shape: [usize; 3],
    voxel_um: [f64; 3],
    /// How much larger its objects are than the model's nominal ones.
    scale: f64,
    case: usize,
}

impl Maps {
    /// The objects that some settings make of it.
    pub(crate) fn labels(&self, options: &SegmentOptions) -> Result<Vec<f32>, JobError> {
        let mut foreground = self.foreground.clone();
        let options = options.scaled(self.scale);
        let (labels, _) = segment_in_place(&mut foreground, Some(&self.seeds), self.shape, self.voxel_um, &options)?;
        Ok(labels.into_iter().map(|l| l as f32).collect())
    }

    /// The pair it was made of.
    pub(crate) fn case(&self) -> usize {
        self.case
    }
}

/// How thoroughly settings are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Care {
    /// Once through those that matter most: to compare networks while they are taught.
    Quick,
    /// Twice through all of them.
    Thorough,
}

/// What a network makes of the validator's pairs; after `until` no further one is begun. `seed_channel` is the channel that tells
/// objects apart.
pub(crate) fn maps(
    cancel: &CancelToken,
    devices: &Devices,
    validator: &Validator,
    model: &Path,
    seed_channel: usize,
    until: Option<Instant>,
) -> Result<Vec<Maps>, JobError> {
    let mut maps = Vec::new();
    for case in 0..validator.cases.len() {
        if !maps.is_empty() && until.is_some_and(|at| Instant::now() >= at) {
            break;
        }
        let (values, shape) = validator.predict(cancel, devices, model, case, Output::Maps, None)?;
        let Some((_, shape_zyx)) = validator.truth(case) else { continue };
        let voxels: usize = shape_zyx.iter().product();
        let channels =
            if shape.len() == 4 { shape.first().copied().unwrap_or(1) } else { values.len() / voxels.max(1) };
        let channel = |c: usize| values.get(c * voxels..(c + 1) * voxels).map(<[f32]>::to_vec).unwrap_or_default();
        let seeds = channel(seed_channel.min(channels.saturating_sub(1)));
        let (voxel_um, scale) = (validator.voxel_um(case), validator.scale(case));
        maps.push(Maps { foreground: channel(0), seeds, shape: shape_zyx, voxel_um, scale, case });
    }
    Ok(maps)
}

/// Settings that were looked for.
pub(crate) struct Tuned {
    /// Those with the best score.
    pub options: SegmentOptions,
    /// Scores of the settings to begin with.
    pub given: Scores,
    /// Scores of [`Tuned::options`].
    pub best: Scores,
    /// The share of those to be tried that were; 1 where there was time for all.
    pub share: f64,
}

/// The settings with the best score on the validator's pairs, found one after the other from those given. After `until` no further ones
/// are tried.
pub(crate) fn tune(
    cancel: &CancelToken,
    validator: &Validator,
    maps: &[Maps],
    begin: &SegmentOptions,
    care: Care,
    until: Option<Instant>,
) -> Result<Tuned, JobError> {
    let (mut tried, mut left_out) = (1, 0);
    let mut best = begin.clone();
    let given = scores_of(validator, maps, &best)?;
    let mut scores = given.clone();
    for round in 0..2 {
        let before = scores.score;
        for at in 0..neighbours(begin, &best, care).len() {
            // Each with the others as they are by now.
            for candidate in neighbours(begin, &best, care).swap_remove(at) {
                if cancel.is_cancelled() {
                    return Err(JobError::Cancelled);
                }
                if candidate == best {
                    continue;
                }
                if until.is_some_and(|at| Instant::now() >= at) {
                    left_out += 1;
                    continue;
                }
                tried += 1;
                let found = scores_of(validator, maps, &candidate)?;
                if found.score > scores.score + 1e-9 {
                    (best, scores) = (candidate, found);
                }
            }
        }
        if care == Care::Quick || (round == 0 && scores.score <= before) {
            break;
        }
    }
    Ok(Tuned { options: best, given, best: scores, share: f64::from(tried) / f64::from(tried + left_out) })
}

/// For each setting, what else it could be.
fn neighbours(begin: &SegmentOptions, now: &SegmentOptions, care: Care) -> Vec<Vec<SegmentOptions>> {
    let with = |change: &dyn Fn(&mut SegmentOptions)| {
        let mut made = now.clone();
        change(&mut made);
        made
    };
    let mut all = Vec::new();
    if care == Care::Quick {
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
    let least = begin.min_volume_um3;
    all.push([0.0, 0.5, 1.0, 2.0, 3.0].map(|f| with(&|o| o.min_volume_um3 = f * least)).to_vec());
    all
}

/// Scores with some settings.
fn scores_of(validator: &Validator, maps: &[Maps], options: &SegmentOptions) -> Result<Scores, JobError> {
    let labels = maps.iter().map(|map| Ok((map.case, map.labels(options)?)));
    validator.score_labels(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_for_large_objects_keeps_small_ones_when_those_are_taught() {
        let own = SegmentOptions { min_volume_um3: 300.0, ..SegmentOptions::default() };
        let least = |small| fitting(&own, small).min_volume_um3;
        assert_eq!((least(None), least(Some(150.0)), least(Some(20.0))), (300.0, 300.0, 60.0));
    }
}

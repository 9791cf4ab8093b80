//! Whether mixed precision costs accuracy: a training run compared with the same one in 32-bit floats.

use crate::config::TrainPrecision;
use crate::job::{TrainJob, TrainReport};
use crate::score_name::ScoreName;
use cytoscope_engine::{Device, DeviceId, DeviceRequest};
use cytoscope_pipeline::PerformanceRequest;
use cytoscope_storage::Overwrite;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A mixed-precision training run compared with one in 32-bit floats on the same data, with the same seed and number of
/// steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PrecisionComparison {
    /// Steps of the training run in 32-bit floats.
    pub steps: u64,
    /// Mean duration of its last steps in seconds.
    pub step_secs: f64,
    /// Validation scores of its float network, by name.
    pub scores: BTreeMap<ScoreName, f64>,
    /// Scores of the mixed-precision run minus these.
    pub differences: BTreeMap<ScoreName, f64>,
    /// The same for the validation score of each pair; `None` without pairs that both scored.
    pub pairs: Option<PairDifference>,
}

/// Differences of the scores of validation pairs: mixed precision minus 32-bit floats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PairDifference {
    /// Number of pairs.
    pub count: usize,
    /// Mean of the differences.
    pub mean: f64,
    /// Standard error of the mean; `None` for a single pair.
    pub standard_error: Option<f64>,
}

impl TrainJob {
    /// Returns whether the settings request 16-bit floats, so that the run can be compared with one in 32-bit floats.
    pub fn is_mixed_precision(&self) -> bool {
        self.config.precision.half().is_some()
    }

    /// Returns the job that trains in 32-bit floats on the same device and for as many steps as this one, whose report is
    /// `mixed`. Its package is written to `out`.
    #[must_use]
    pub fn in_full_precision(&self, mixed: &TrainReport, devices: &[Device], out: PathBuf) -> Self {
        let mut full = self.clone();
        full.config.precision = TrainPrecision::F32;
        // The times are compared, too: `auto` might choose another device for this precision.
        let is_usable = |id: &DeviceId| devices.iter().any(|device| device.usable && device.id == *id);
        if self.device == DeviceRequest::Auto
            && let Some(id) = mixed.device_id.filter(is_usable)
        {
            full.device = DeviceRequest::Device(id);
        }
        // A machine profile may have completed the settings of the other run; the one of 32-bit floats might differ.
        full.config.performance = PerformanceRequest::Off;
        full.config.batch = Some((mixed.batch / self.config.accumulate.max(1)).max(1));
        full.config.budget.epochs = None;
        full.config.budget.minutes = None;
        full.config.budget.patience = 0;
        full.config.budget.steps = usize::try_from(mixed.steps).ok();
        full.out = out;
        (full.resume, full.restart, full.without_int8, full.overwrite) = (false, false, true, Overwrite::Refuse);
        full
    }
}

impl PrecisionComparison {
    /// Compares the reports of the two runs.
    pub fn new(mixed: &TrainReport, full: &TrainReport) -> Self {
        let differences = full.after.iter().filter_map(|(name, score)| {
            let own = mixed.after.get(name)?;
            Some((name.clone(), own - score))
        });
        let pairs = full.pairs_after.iter().filter_map(|pair| {
            let own = mixed.pairs_after.iter().find(|own| own.name == pair.name)?;
            Some(own.score - pair.score)
        });
        Self {
            steps: full.steps,
            step_secs: full.step_secs,
            scores: full.after.clone(),
            differences: differences.collect(),
            pairs: PairDifference::of(&pairs.collect::<Vec<f64>>()),
        }
    }
}

impl PairDifference {
    fn of(differences: &[f64]) -> Option<Self> {
        let count = differences.len();
        if count == 0 {
            return None;
        }
        let mean = differences.iter().sum::<f64>() / count as f64;
        let squares: f64 = differences.iter().map(|d| (d - mean) * (d - mean)).sum();
        let standard_error = (count > 1).then(|| (squares / (count - 1) as f64 / count as f64).sqrt());
        Some(Self { count, mean, standard_error })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::history::History;
    use cytoscope_engine::Precision;
    use serde_json::json;

    fn report(score: f64) -> TrainReport {
        serde_json::from_value(json!({
            "out": "m", "verdict": "trained", "metric": "Dice", "before": {}, "after": {"dice": score}, "after_int8": {},
            "pairs_before": [], "pairs_after": [], "steps": 7, "epoch_steps": 1, "batch": 6, "patch_zyx": [1, 1, 1],
            "parameters": 1, "train_pairs": 1, "validation_pairs": 1, "seconds": 1.0, "step_secs": 1.0,
            "stalled_secs": 0.0, "peak_rss_bytes": null, "device": "", "history": History::default(),
        }))
        .unwrap()
    }

    #[test]
    fn the_run_in_32_bits_has_as_many_steps_and_no_other_budget() {
        let mixed: TrainJob = serde_json::from_value(json!({
            "task": "segmentation", "data": "pairs", "from": "scratch", "out": "m", "resume": true, "seed": 5,
            "config": {"precision": "f16", "accumulate": 2, "budget": {"minutes": 3.0}},
        }))
        .unwrap();
        let full = mixed.in_full_precision(&report(0.5), &[], PathBuf::from("f"));
        assert!(mixed.is_mixed_precision() && !full.is_mixed_precision());
        assert_eq!((full.config.budget.steps, full.config.budget.minutes), (Some(7), None));
        assert_eq!((full.config.batch, full.config.performance), (Some(3), PerformanceRequest::Off));
        assert_eq!((full.seed, full.resume, full.without_int8), (5, false, true));
        assert_eq!((full.data, full.out), (mixed.data, PathBuf::from("f")));
    }

    #[test]
    fn the_run_in_32_bits_uses_the_same_one_of_two_equal_gpus() {
        let mixed: TrainJob = serde_json::from_value(json!({
            "task": "segmentation", "data": "pairs", "from": "scratch", "out": "m", "config": {"precision": "f16"},
        }))
        .unwrap();
        let gpus = [0, 1].map(|index| Device::named(DeviceId::Cuda(index), "a GPU", &[Precision::F32]));
        let second = TrainReport { device: "a GPU".to_owned(), device_id: Some(gpus[1].id), ..report(0.5) };
        let full = mixed.in_full_precision(&second, &gpus, PathBuf::from("f"));
        assert_eq!(full.device, DeviceRequest::Device(DeviceId::Cuda(1)));
        let unusable = gpus.map(|gpu| Device { usable: false, ..gpu });
        let full = mixed.in_full_precision(&second, &unusable, PathBuf::from("f"));
        assert_eq!(full.device, DeviceRequest::Auto);
    }

    #[test]
    fn scores_of_32_bits_are_subtracted_from_those_of_mixed_precision() {
        let compared = PrecisionComparison::new(&report(0.75), &report(0.5));
        assert_eq!(compared.differences.into_values().collect::<Vec<f64>>(), [0.25]);
        assert_eq!((compared.steps, compared.pairs), (7, None));
    }

    #[test]
    fn the_difference_has_a_standard_error() {
        let pairs = PairDifference::of(&[0.01, 0.03]).unwrap();
        assert_eq!(pairs.count, 2);
        assert!((pairs.mean - 0.02).abs() < 1e-12 && (pairs.standard_error.unwrap() - 0.01).abs() < 1e-12, "{pairs:?}");
        assert_eq!(PairDifference::of(&[0.5]).unwrap().standard_error, None);
        assert_eq!(PairDifference::of(&[]), None);
    }
}

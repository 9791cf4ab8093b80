//! `train --compare-precision`: whether mixed precision costs accuracy.

use super::search::beside;
use crate::cli::child::Scratch;
use crate::cli::failure::Failure;
use crate::cli::print;
use cytoscope_engine::{Device, DeviceRequest};
use cytoscope_pipeline::Context;
use cytoscope_pipeline::devices::Devices;
use cytoscope_profile::Recorder;
use cytoscope_storage::Overwrite;
use cytoscope_train::{ScoreName, TrainConfig, TrainJob, TrainPrecision, TrainReport, TrainSink};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Kind of the working folder, as stored in its marker file.
const FOLDER_KIND: &str = "compare-precision";

/// A mixed-precision training run compared with one in 32-bit floats on the same data, with the same seed and number of
/// steps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct PrecisionComparison {
    /// Steps of the training run in 32-bit floats.
    steps: u64,
    /// Mean duration of its last steps in seconds.
    step_secs: f64,
    /// Validation scores of its float network, by name.
    scores: BTreeMap<ScoreName, f64>,
    /// Scores of the mixed-precision run minus these.
    differences: BTreeMap<ScoreName, f64>,
    /// The same for the validation score of each pair; `None` without pairs that both scored.
    pairs: Option<PairDifference>,
}

/// Differences of the scores of validation pairs: mixed precision minus 32-bit floats.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct PairDifference {
    /// Number of pairs.
    count: usize,
    mean: f64,
    /// Standard error of the mean; `None` for a single pair.
    standard_error: Option<f64>,
}

/// Refuses a comparison for a training run that does not compute in 16-bit floats.
///
/// # Errors
/// Wrong use, with the option that is missing.
pub(super) fn check(config: &TrainConfig) -> Result<(), Failure> {
    match config.precision {
        TrainPrecision::F16 | TrainPrecision::Bf16 => Ok(()),
        TrainPrecision::Auto | TrainPrecision::F32 | TrainPrecision::Tf32 => Err(Failure::wrong_use(
            "--compare-precision compares mixed precision with 32-bit floats, but this training run computes in 32-bit \
             floats; add --precision f16 or bf16, which need a GPU",
        )),
    }
}

/// Trains again in 32-bit floats, on the same device and for as many steps, in a folder that is removed afterwards.
///
/// # Errors
/// The failure of that training.
pub(super) fn compare(
    job: &TrainJob,
    mixed: &TrainReport,
    context: &Context,
    devices: &Devices,
    on_event: &TrainSink<'_>,
) -> Result<PrecisionComparison, Failure> {
    let scratch = Scratch::create(beside(&job.out, "f32"), FOLDER_KIND)?;
    // A comparison that was killed left its checkpoint.
    scratch.clear(&[])?;
    let mut full = job.clone();
    full.config.precision = TrainPrecision::F32;
    // The times are compared, too: `auto` might choose another device for this precision.
    let is_used = |device: &&Device| device.usable && device.name == mixed.device;
    if job.device == DeviceRequest::Auto
        && let Some(device) = devices.list().iter().find(is_used)
    {
        full.device = DeviceRequest::Device(device.id);
    }
    full.config.budget.epochs = None;
    full.config.budget.minutes = None;
    full.config.budget.patience = 0;
    full.config.budget.steps = usize::try_from(mixed.steps).ok();
    full.out = scratch.path().join("model");
    (full.resume, full.restart, full.without_int8, full.overwrite) = (false, false, true, Overwrite::Refuse);
    context.note("training again in 32-bit floats, to compare the scores");
    // The shares of time in its status refer to this run.
    let context = Context { recorder: Recorder::totals_only(), ..context.clone() };
    let report = full.run(&context, devices, on_event)?;
    Ok(PrecisionComparison::new(mixed, &report))
}

impl PrecisionComparison {
    fn new(mixed: &TrainReport, full: &TrainReport) -> Self {
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

    /// Prints the comparison.
    pub(super) fn print(&self, mixed: &TrainReport) {
        let speed_up = self.step_secs / mixed.step_secs.max(f64::MIN_POSITIVE);
        print(&format!(
            "  the same training in f32: {} steps of {:.3} s ({speed_up:.2}× the time of mixed precision)",
            self.steps, self.step_secs
        ));
        for (name, difference) in &self.differences {
            let full = self.scores.get(name).copied().unwrap_or(f64::NAN);
            print(&format!("    {name}: {full:.4} in f32, mixed precision differs by {difference:+.4}"));
        }
        if let Some(pairs) = &self.pairs {
            let (mean, count) = (pairs.mean, pairs.count);
            let error = pairs.standard_error.map_or_else(String::new, |e| format!(" ± {e:.4} (standard error)"));
            print(&format!("    mean over {count} validation pairs: {mean:+.4}{error}"));
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
    use super::*;

    #[test]
    fn only_mixed_precision_is_compared() {
        let config = |precision| TrainConfig { precision, ..TrainConfig::default() };
        for precision in [TrainPrecision::Auto, TrainPrecision::F32, TrainPrecision::Tf32] {
            assert!(check(&config(precision)).unwrap_err().to_string().contains("--precision f16"));
        }
        assert!(check(&config(TrainPrecision::F16)).is_ok() && check(&config(TrainPrecision::Bf16)).is_ok());
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

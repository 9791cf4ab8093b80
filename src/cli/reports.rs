//! The reports that `predict` and `train` print with `--json`: the commands write them, and `bench`, `tune` and `train
//! --search` read the reports of the runs that they start.

use cytoscope_pipeline::{AppliedProfile, Artifact, InputReport};
use cytoscope_profile::{Advice, RunRecord};
use cytoscope_train::{PrecisionComparison, TrainReport};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::PathBuf;

/// Report of `predict --json`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PredictCommandReport {
    pub(crate) inputs: Vec<PrintedInput>,
    pub(crate) failed: Vec<FailedInput>,
    pub(crate) run: RunRecord,
    pub(crate) advice: Vec<Advice>,
}

/// The report of an input, whose `outputs` are printed as the paths of the files.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(into = "Value", try_from = "Value")]
pub(crate) struct PrintedInput(pub(crate) InputReport);

impl From<PrintedInput> for Value {
    fn from(PrintedInput(report): PrintedInput) -> Self {
        let paths: Self = report.outputs.iter().map(|artifact| serde_json::json!(artifact.path)).collect();
        let mut value = serde_json::json!(report);
        if let Some(outputs) = value.get_mut("outputs") {
            *outputs = paths;
        }
        value
    }
}

impl TryFrom<Value> for PrintedInput {
    type Error = serde_json::Error;

    fn try_from(mut value: Value) -> Result<Self, Self::Error> {
        if let Some(outputs) = value.get_mut("outputs") {
            let paths: Vec<PathBuf> = serde_json::from_value(outputs.take())?;
            let artifacts: Vec<Artifact> = paths.into_iter().filter_map(Artifact::from_file).collect();
            *outputs = serde_json::to_value(artifacts)?;
        }
        Ok(Self(serde_json::from_value(value)?))
    }
}

/// An input that could not be predicted.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct FailedInput {
    pub(crate) input: PathBuf,
    pub(crate) error: String,
    pub(crate) exit_code: i32,
}

/// Report of `train --json`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TrainCommandReport {
    #[serde(flatten)]
    pub(crate) report: TrainReport,
    /// The comparison that `--compare-precision` requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) full_precision: Option<PrecisionComparison>,
    /// The provenance record of the package.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) provenance: Vec<PathBuf>,
    pub(crate) run: RunRecord,
    pub(crate) advice: Vec<Advice>,
    /// The settings that came from the machine profile.
    #[serde(default)]
    pub(crate) profile: Option<AppliedProfile>,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use cytoscope_profile::RunFacts;
    use cytoscope_train::ScoreName;
    use serde_json::json;

    /// Returns the report of `train` after 4 steps, 2 of which are an epoch.
    fn train_json(after: Value) -> Value {
        json!({
            "out": "m", "verdict": "trained", "metric": "panoptic quality at IoU 0.5", "before": {}, "after": after, "after_int8": {},
            "pairs_before": [], "pairs_after": [], "steps": 4, "epoch_steps": 2, "batch": 1, "patch_zyx": [8, 32, 32],
            "parameters": 9, "train_pairs": 1, "validation_pairs": 1, "seconds": 9.0, "step_secs": 0.5,
            "stalled_secs": 0.0, "peak_rss_bytes": null, "device": "cpu",
            "history": {"steps": [], "validations": [], "notes": []},
            "run": {"format": 1, "program": "p", "command": "train", "stages": [], "facts": RunFacts::default()},
            "advice": [], "profile": null
        })
    }

    /// A report of a training run with these scores.
    pub(crate) fn train_report(after: Value) -> TrainCommandReport {
        serde_json::from_value(train_json(after)).unwrap()
    }

    #[test]
    fn the_report_of_a_training_run_is_read_as_it_is_written() {
        let read = train_report(json!({"f1@0.5": 1}));
        assert_eq!((read.report.patch_zyx, read.report.after.get(&ScoreName::f1(0.5))), ([8, 32, 32], Some(&1.0)));
        let again: TrainCommandReport = serde_json::from_value(json!(read)).unwrap();
        assert_eq!((again.report, again.run), (read.report, read.run));
        let mut incomplete = train_json(json!({}));
        incomplete.as_object_mut().unwrap().remove("step_secs");
        let error = serde_json::from_value::<TrainCommandReport>(incomplete).unwrap_err();
        assert!(error.to_string().contains("step_secs"), "{error}");
    }
}

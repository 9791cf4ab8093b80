//! Progress of the stages of a job.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A stage of a job, as its progress events name it; serialized as its [name](ProgressStage::name).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgressStage {
    /// Quantization settings are tried and their errors measured.
    Calibrate,
    /// Training pairs, the files of an earlier prediction, or the results of a network are checked.
    Check,
    /// Kernels of a device are compiled, during the first run of a network.
    Compiling,
    /// An image is written in another format.
    Convert,
    /// Predictions are scored against ground truth.
    Evaluate,
    /// Objects of a label image are searched for.
    Find,
    /// Layers that must stay in float are searched for.
    Layers,
    /// Objects are measured, or the speed of a network or of a training step.
    Measure,
    /// Surfaces of objects are computed.
    Mesh,
    /// Maps are segmented into objects.
    Objects,
    /// The network runs on the tiles or slices of a stack.
    Predict,
    /// Preprocessing steps are computed.
    Preprocess,
    /// Quantization-aware training.
    Qat,
    /// Stacks for calibration are read.
    Read,
    /// Simulated stacks are computed.
    Simulate,
    /// The run times of a float and an int8 network are measured.
    Time,
    /// Training steps.
    Train,
    /// A device is tuned for a tile shape, before its first run.
    Tuning,
    /// Results are written.
    Write,
}

impl ProgressStage {
    /// Returns the name of the stage, as events and progress bars show it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Calibrate => "calibrate",
            Self::Check => "check",
            Self::Compiling => "compiling",
            Self::Convert => "convert",
            Self::Evaluate => "evaluate",
            Self::Find => "find",
            Self::Layers => "layers",
            Self::Measure => "measure",
            Self::Mesh => "mesh",
            Self::Objects => "objects",
            Self::Predict => "predict",
            Self::Preprocess => "preprocess",
            Self::Qat => "qat",
            Self::Read => "read",
            Self::Simulate => "simulate",
            Self::Time => "time",
            Self::Train => "train",
            Self::Tuning => "tuning",
            Self::Write => "write",
        }
    }
}

impl fmt::Display for ProgressStage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Unit in which the progress of a stage is counted; serialized as its [name](ProgressUnit::name).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProgressUnit {
    /// Files that are scored, or compared with their list.
    Files,
    /// Labeled objects.
    Objects,
    /// Training pairs.
    Pairs,
    /// Planes of an image.
    Planes,
    /// Runs of a network.
    Runs,
    /// Seconds so far; the total is unknown, hence 0.
    #[serde(rename = "s")]
    Seconds,
    /// Slices of a stack.
    Slices,
    /// Stacks that are read.
    Stacks,
    /// Steps of a training run, or of writing a package.
    Steps,
    /// Voxels of a stack.
    Voxels,
}

impl ProgressUnit {
    /// Returns the name of the unit, in the plural.
    pub fn name(self) -> &'static str {
        match self {
            Self::Files => "files",
            Self::Objects => "objects",
            Self::Pairs => "pairs",
            Self::Planes => "planes",
            Self::Runs => "runs",
            Self::Seconds => "s",
            Self::Slices => "slices",
            Self::Stacks => "stacks",
            Self::Steps => "steps",
            Self::Voxels => "voxels",
        }
    }
}

impl fmt::Display for ProgressUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Progress of a stage of a job.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StageProgress {
    /// Stage whose units are counted.
    pub stage: ProgressStage,
    /// Number of units done so far.
    pub done: u64,
    /// Number of units of the whole stage.
    pub total: u64,
    /// Unit of the counts.
    pub unit: ProgressUnit,
    /// Units per second so far.
    pub rate: f64,
    /// Remaining seconds at that rate.
    pub eta_secs: f64,
}

impl StageProgress {
    /// Returns the part of the stage that is done, from 0 to 1.
    pub fn share(&self) -> f32 {
        if self.total == 0 { 0.0 } else { (self.done as f64 / self.total as f64) as f32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{from_value, json};

    #[test]
    fn events_name_stages_and_units_as_progress_bars_do() {
        let stages = "calibrate check compiling convert evaluate find layers measure mesh objects predict preprocess qat read \
                      simulate time train tuning write";
        for name in stages.split_whitespace() {
            assert_eq!(from_value::<ProgressStage>(json!(name)).unwrap().to_string(), name);
        }
        for name in "files objects pairs planes runs s slices stacks steps voxels".split_whitespace() {
            assert_eq!(from_value::<ProgressUnit>(json!(name)).unwrap().to_string(), name);
        }
        let event = json!({"stage": "tuning", "done": 3, "total": 0, "unit": "s", "rate": 1.0, "eta_secs": 0.0});
        let progress: StageProgress = from_value(event.clone()).unwrap();
        assert_eq!((progress.stage, progress.unit), (ProgressStage::Tuning, ProgressUnit::Seconds));
        assert_eq!(serde_json::to_value(progress).unwrap(), event);
    }
}

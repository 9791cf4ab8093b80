//! Kinds of work, and their totals.

use crate::SpanRecord;
use serde::{Deserialize, Serialize};

/// Kind of work of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Reading from a file.
    Read,
    /// Decoding a file's bytes to samples; part of the time of [`Stage::Read`], summed over threads.
    Decode,
    /// Checking training data.
    Check,
    /// Reading a model package.
    Load,
    /// Preprocessing, and computing the statistics that it needs.
    #[serde(alias = "normalise")]
    Normalize,
    /// Resampling to another voxel size.
    Resample,
    /// Preparing a training patch: reading, augmentation and targets. Data workers do this beside the training steps.
    Augment,
    /// Compiling a model.
    Compile,
    /// Running a network to estimate the object diameter.
    Estimate,
    /// Time in which a training step waits for patches.
    DataWait,
    /// Time in which the network of a pass over a stack waits for slices to be read, or for finished ones to be written.
    Stall,
    /// Copying data to a device.
    Upload,
    /// Running a network on a tile, or forward and backward pass of a training step on a device that does not separate
    /// them.
    Compute,
    /// Forward pass of a training step, with the loss.
    Forward,
    /// Backward pass of a training step, with what it recomputes.
    Backward,
    /// Optimizer step, with gradient clipping and moving averages.
    Optimizer,
    /// One operator inside a network.
    Op,
    /// Joining tiles.
    Blend,
    /// Copying data from a device.
    Download,
    /// Freeing a network and the memory that it holds on a device.
    Release,
    /// Segmenting and measuring objects.
    Objects,
    /// Predicting and scoring the validation set, and scoring predictions against ground truth.
    Validate,
    /// Reading calibration data, searching for quantization settings and timing the result.
    Quantize,
    /// Finding and comparing devices, and checking a network against the reference executor.
    Verify,
    /// Saving the state of a training run.
    Checkpoint,
    /// Computing a simulated stack with its ground truth.
    Simulate,
    /// A run of this program in a separate process, which is compared with others.
    Run,
    /// Encoding and writing results.
    Write,
}

impl Stage {
    /// All stages, in the order of tables.
    pub const ALL: [Stage; 28] = [
        Stage::Read,
        Stage::Decode,
        Stage::Check,
        Stage::Load,
        Stage::Normalize,
        Stage::Resample,
        Stage::Augment,
        Stage::Compile,
        Stage::Estimate,
        Stage::DataWait,
        Stage::Stall,
        Stage::Upload,
        Stage::Compute,
        Stage::Forward,
        Stage::Backward,
        Stage::Optimizer,
        Stage::Op,
        Stage::Blend,
        Stage::Download,
        Stage::Release,
        Stage::Objects,
        Stage::Validate,
        Stage::Quantize,
        Stage::Verify,
        Stage::Checkpoint,
        Stage::Simulate,
        Stage::Run,
        Stage::Write,
    ];

    /// Returns the name used in tables and traces.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Read => "read",
            Stage::Decode => "decode",
            Stage::Check => "check",
            Stage::Load => "load",
            Stage::Normalize => "normalize",
            Stage::Resample => "resample",
            Stage::Augment => "augment",
            Stage::Compile => "compile",
            Stage::Estimate => "estimate",
            Stage::DataWait => "data wait",
            Stage::Stall => "stall",
            Stage::Upload => "upload",
            Stage::Compute => "compute",
            Stage::Forward => "forward",
            Stage::Backward => "backward",
            Stage::Optimizer => "optimizer",
            Stage::Op => "op",
            Stage::Blend => "blend",
            Stage::Download => "download",
            Stage::Release => "release",
            Stage::Objects => "objects",
            Stage::Validate => "validate",
            Stage::Quantize => "quantize",
            Stage::Verify => "verify",
            Stage::Checkpoint => "checkpoint",
            Stage::Simulate => "simulate",
            Stage::Run => "run",
            Stage::Write => "write",
        }
    }

    /// Returns the stage with this name in tables and traces.
    pub fn from_name(name: &str) -> Option<Stage> {
        // Earlier versions spelled this stage in British English.
        let name = if name == "normalise" { "normalize" } else { name };
        Self::ALL.into_iter().find(|stage| stage.name() == name)
    }

    /// Returns whether spans of this stage in a trace measure by how much the memory of the process changed. Reading it takes
    /// some ten microseconds on Linux, so it is not done for the stages that occur for each tile or operator. On other
    /// systems it takes milliseconds, so that spans that follow each other within 100 ms share a reading.
    pub fn measures_memory(self) -> bool {
        use Stage::{Check, Checkpoint, Compile, Load, Objects, Quantize, Validate, Verify};
        matches!(self, Check | Load | Compile | Objects | Validate | Quantize | Verify | Checkpoint)
    }

    /// Returns whether the device of a run computes in this stage: a network, a training step or an optimizer step.
    fn is_computing(self) -> bool {
        matches!(self, Stage::Compute | Stage::Forward | Stage::Backward | Stage::Optimizer)
    }

    /// Returns whether spans of this stage copy between host and device.
    pub(crate) fn is_copy(self) -> bool {
        matches!(self, Stage::Upload | Stage::Download)
    }

    /// Returns whether spans of this stage may hold copies, whose time is not part of the stage's total.
    pub(crate) fn may_hold_copies(self) -> bool {
        self.is_computing() || self.is_copy()
    }

    /// Returns whether the time of this stage is part of another stage's, or passes in threads beside the job's own. Only
    /// the times of the other stages add up to shares of the job's duration.
    pub fn is_nested(self) -> bool {
        matches!(self, Stage::Decode | Stage::Augment | Stage::Op)
    }
}

/// The sum of a stage's spans.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StageTotal {
    /// Stage whose spans are summed.
    pub stage: Stage,
    /// Number of spans of the stage.
    pub count: u64,
    /// Wall time in seconds, summed over threads; of a network, without the copies between host and device inside its runs.
    pub seconds: f64,
    /// Bytes read, written or copied.
    pub bytes: u64,
    /// Number of voxels processed.
    pub voxels: u64,
    /// Number of multiply-accumulates performed.
    pub macs: u64,
}

impl StageTotal {
    /// Returns the total of no spans.
    pub(crate) fn none(stage: Stage) -> Self {
        Self { stage, count: 0, seconds: 0.0, bytes: 0, voxels: 0, macs: 0 }
    }

    /// Adds a span.
    pub(crate) fn add(&mut self, span: &SpanRecord) {
        self.count += 1;
        self.seconds += span.duration_us / 1e6;
        self.bytes = self.bytes.saturating_add(span.bytes);
        self.voxels = self.voxels.saturating_add(span.voxels);
        self.macs = self.macs.saturating_add(span.macs);
    }
}

/// Returns the share of a run in which its device computed, 0 to 1, from its totals and its wall time in seconds; `None` if
/// no such time was recorded.
pub fn computing_share(totals: &[StageTotal], wall_secs: f64) -> Option<f64> {
    let computing: f64 = totals.iter().filter(|total| total.stage.is_computing()).map(|total| total.seconds).sum();
    (wall_secs > 0.0 && computing > 0.0).then(|| (computing / wall_secs).min(1.0))
}

/// Returns the difference between a stage table and an earlier one.
pub fn since(now: &[StageTotal], earlier: &[StageTotal]) -> Vec<StageTotal> {
    let rest = now.iter().map(|total| {
        let mut total = total.clone();
        if let Some(before) = earlier.iter().find(|e| e.stage == total.stage) {
            total.count -= before.count.min(total.count);
            total.seconds = (total.seconds - before.seconds).max(0.0);
            total.bytes -= before.bytes.min(total.bytes);
            total.voxels -= before.voxels.min(total.voxels);
            total.macs -= before.macs.min(total.macs);
        }
        total
    });
    rest.filter(|total| total.count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_computes_in_passes_and_optimizer_steps() {
        let total = |stage, seconds| StageTotal { seconds, ..StageTotal::none(stage) };
        let totals = [
            total(Stage::Forward, 2.0),
            total(Stage::Backward, 3.0),
            total(Stage::Optimizer, 1.0),
            total(Stage::Validate, 4.0),
            total(Stage::Op, 5.0),
        ];
        assert_eq!(computing_share(&totals, 12.0), Some(0.5));
        assert_eq!(computing_share(&totals, 3.0), Some(1.0), "threads that compute at the same time");
        assert_eq!((computing_share(&totals, 0.0), computing_share(&totals[3..], 12.0)), (None, None));
    }

    #[test]
    fn every_stage_is_found_by_its_name() {
        for stage in Stage::ALL {
            assert_eq!(Stage::from_name(stage.name()), Some(stage));
        }
        assert_eq!(Stage::from_name("lunch"), None);
        // The spelling of earlier versions.
        assert_eq!(Stage::from_name("normalise"), Some(Stage::Normalize));
        assert_eq!(serde_json::from_str::<Stage>("\"normalise\"").ok(), Some(Stage::Normalize));
    }
}

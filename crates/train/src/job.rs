//! A training that is asked for, and what came of it.

use crate::checkpoint::{Folder, Kept};
use crate::config::TrainConfig;
use crate::history::History;
use crate::train;
use crate::validate::PairScore;
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::quantize::TileTime;
use cytoscope_pipeline::{Context, JobError};
use cytoscope_samples::Task;
use cytoscope_storage::Overwrite;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A training: everything that decides its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainJob {
    /// What is to be learnt.
    pub task: Task,
    /// A folder or a table of pairs.
    pub data: PathBuf,
    /// What to start from: a package by path or name, or `scratch`.
    pub from: String,
    /// The package to write: a folder, or a path that ends in `.zip`.
    pub out: PathBuf,
    /// Settings.
    #[serde(default)]
    pub config: TrainConfig,
    /// Goes on with what an earlier run of the same job left.
    #[serde(default)]
    pub resume: bool,
    /// Throws away what an earlier run left; without, and without `resume`, that is an error.
    #[serde(default)]
    pub anew: bool,
    /// Seed of all that is drawn.
    #[serde(default)]
    pub seed: u64,
    /// Threads; 0: all. On the processor the same number gives the same result bit by bit.
    #[serde(default)]
    pub threads: usize,
    /// Leave the quantized network out.
    #[serde(default)]
    pub without_int8: bool,
    /// Where steps are computed: a device, or `auto` for the processor. Everything else is the processor's.
    #[serde(default = "auto")]
    pub device: String,
    /// What happens to something else than a package of ours at the path of the new one.
    #[serde(default)]
    pub overwrite: Overwrite,
}

pub(crate) fn auto() -> String {
    "auto".to_owned()
}

/// What is in the package in the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The network that was taught.
    Taught,
    /// The one that training started from: nothing learnt scored better.
    Start,
}

/// The network in floats against the quantized one, as measured on this machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Quantized {
    /// Bytes of the network in floats.
    pub float_bytes: u64,
    /// Bytes of the quantized one.
    pub int8_bytes: u64,
    /// Lengths of the tile that was timed, in the network's order.
    pub tile_shape: Vec<usize>,
    /// Times of it with one thread and with all.
    pub tile_times: Vec<TileTime>,
}

/// What came of a training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainReport {
    /// The package written.
    pub out: PathBuf,
    /// What is in it.
    pub verdict: Verdict,
    /// What the deciding score is.
    pub metric: String,
    /// Scores of what training started from, by name; empty where it had none.
    pub before: BTreeMap<String, f64>,
    /// Scores of the package, by name.
    pub after: BTreeMap<String, f64>,
    /// Scores of its quantized network, by name; empty where there is none.
    pub after_int8: BTreeMap<String, f64>,
    /// What quantizing brought; `None` where the network stays in floats.
    #[serde(default)]
    pub quantized: Option<Quantized>,
    /// Each validation pair before; empty where there was no score.
    pub pairs_before: Vec<PairScore>,
    /// Each validation pair after.
    pub pairs_after: Vec<PairScore>,
    /// Steps taken.
    pub steps: u64,
    /// Steps of an epoch.
    pub epoch_steps: u64,
    /// Patches of a step and their extents Z, Y, X.
    pub batch: usize,
    /// See `batch`.
    pub patch_zyx: [usize; 3],
    /// Values taught.
    pub parameters: usize,
    /// Pairs learnt from.
    pub train_pairs: usize,
    /// Pairs validated on.
    pub validation_pairs: usize,
    /// Seconds, pauses left out.
    pub seconds: f64,
    /// Seconds of a step, and of that waiting for patches.
    pub step_secs: f64,
    /// See `step_secs`.
    pub stalled_secs: f64,
    /// Peak memory of the process in bytes, where it is known.
    pub peak_rss_bytes: Option<u64>,
    /// Where it ran.
    pub device: String,
    /// The curves.
    pub history: History,
}

impl TrainReport {
    /// Whether the network is the one that training started from, but how objects are made of its maps suits the data better now.
    pub fn only_objects_are_better(&self) -> bool {
        let sum = |scores: &BTreeMap<String, f64>| scores.values().sum::<f64>();
        self.verdict == Verdict::Start && !self.before.is_empty() && sum(&self.after) > sum(&self.before) + 1e-9
    }
}

impl TrainJob {
    /// What it is called among the worker's jobs.
    pub const KIND: &'static str = "train";

    /// The folder that holds it while it lasts, and after it was cancelled.
    pub fn folder(&self) -> PathBuf {
        Folder::beside(&self.out).path
    }

    /// What an earlier run left to go on with; `None` where there is nothing that can be read.
    pub fn kept(&self) -> Option<Kept> {
        Kept::read(&Folder::beside(&self.out))
    }

    /// A picture (PNG) of what the network made of an image kept back, when it was tried last; `None` where there is none.
    pub fn shown(&self) -> Option<PathBuf> {
        Some(Folder::beside(&self.out).shown()).filter(|path| path.is_file())
    }

    /// Asks the run that is under way to end with the best network so far, or the one that resumes what an earlier run left: it takes
    /// no further step. [`cytoscope_pipeline::CancelToken::finish`] asks the same of a run in this process.
    ///
    /// # Errors
    /// [`JobError::Io`] if there is no training, or nothing can be written to its folder.
    pub fn finish_early(&self) -> Result<(), JobError> {
        Folder::beside(&self.out).ask_to_finish()
    }

    /// Removes what an earlier run left.
    ///
    /// # Errors
    /// [`JobError::Storage`] if the folder cannot be removed, or was not made for a training.
    pub fn discard(&self) -> Result<(), JobError> {
        Folder::beside(&self.out).remove()
    }

    /// Runs the job. Cancelling it keeps what was learnt for [`TrainJob::resume`]; asked to finish, it ends as ever, only sooner.
    ///
    /// # Errors
    /// [`JobError`]: data or model at fault, memory or disk full, cancelled; the package is written whole or not at all.
    pub fn run(&self, context: &Context, devices: &Devices) -> Result<TrainReport, JobError> {
        train::run(self, context, devices)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use serde_json::json;

    #[test]
    fn better_objects_of_the_same_network_are_told_apart() {
        let report = |verdict: &str, before: serde_json::Value, after: serde_json::Value| -> TrainReport {
            serde_json::from_value(json!({
                "out": "m", "verdict": verdict, "metric": "", "before": before, "after": after, "after_int8": {},
                "pairs_before": [], "pairs_after": [], "steps": 1, "epoch_steps": 1, "batch": 1, "patch_zyx": [1, 1, 1],
                "parameters": 1, "train_pairs": 1, "validation_pairs": 1, "seconds": 1.0, "step_secs": 1.0,
                "stalled_secs": 0.0, "peak_rss_bytes": null, "device": "", "history": History::default(),
            }))
            .unwrap()
        };
        let (low, high) = (json!({"f1@0.5": 0.5, "f1@0.7": 0.4}), json!({"f1@0.5": 0.9, "f1@0.7": 0.8}));
        assert!(report("start", low.clone(), high.clone()).only_objects_are_better());
        assert!(!report("start", high.clone(), high.clone()).only_objects_are_better());
        assert!(!report("taught", low, high.clone()).only_objects_are_better());
        assert!(!report("start", json!({}), high).only_objects_are_better(), "there is nothing to compare with");
    }
}

//! Looking a training set through before anything is taught.

use crate::config::TrainConfig;
use crate::data::look;
use crate::error::data;
use cytoscope_pipeline::{Context, JobError};
use cytoscope_samples::{Dataset, Report, Split, SplitOptions, Task, find_pairs, split};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A training set that is to be looked through, as a training with these settings would.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckJob {
    /// What is to be learnt.
    pub task: Task,
    /// A folder or a table of pairs.
    pub data: PathBuf,
    /// Settings.
    #[serde(default)]
    pub config: TrainConfig,
    /// Seed of the split.
    #[serde(default)]
    pub seed: u64,
}

/// What a training set holds, and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckReport {
    /// The pairs.
    pub dataset: Dataset,
    /// What they hold, and every problem.
    pub report: Report,
    /// Which are learnt from and which are watched; `None` if nothing can be learnt from.
    pub split: Option<Split>,
    /// Why there is no split, where there are pairs.
    pub no_split: Option<String>,
}

impl CheckJob {
    /// What it is called among the worker's jobs.
    pub const KIND: &'static str = "train-check";

    /// Runs the job. Pairs that cannot be used, or none at all, are no failure: the report says so.
    ///
    /// # Errors
    /// [`JobError`]: there is no such folder or table, or it cannot be read; cancelled.
    pub fn run(&self, context: &Context) -> Result<CheckReport, JobError> {
        let dataset = find_pairs(&self.data, self.task).map_err(data)?;
        let report = look(context, &dataset, &self.config)?;
        let usable = report.usable(&dataset);
        let (mut found, mut no_split) = (None, None);
        if !usable.is_empty() {
            let fraction = self.config.validation.fraction;
            match split(&usable, &SplitOptions { fraction, seed: self.seed, ..SplitOptions::default() }) {
                Ok(split) => found = Some(split),
                Err(error) => no_split = Some(error.to_string()),
            }
        }
        Ok(CheckReport { dataset, report, split: found, no_split })
    }
}

//! Looking a training set through before anything is taught.

use crate::config::TrainConfig;
use crate::data::{divide, find, look, usual_voxel_um};
use crate::details;
use crate::error::data;
use cytoscope_pipeline::{Context, JobError};
use cytoscope_samples::{Dataset, Report, SamplesError, Split, Task};
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
    /// The file that lists every problem where there are many; by default one in the user's folder.
    #[serde(default)]
    pub details: Option<PathBuf>,
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
    /// The file that lists every problem, where there are many.
    #[serde(default)]
    pub details: Option<PathBuf>,
}

impl CheckReport {
    /// The voxel size in µm that most files have, along Z, Y, X.
    pub fn voxel_um(&self) -> Option<[f64; 3]> {
        usual_voxel_um(&self.report)
    }
}

impl CheckJob {
    /// What it is called among the worker's jobs.
    pub const KIND: &'static str = "train-check";

    /// Runs the job. Pairs that cannot be used, or files of which none pair up, are no failure: the report says so.
    ///
    /// # Errors
    /// [`JobError`]: there is no such folder or table, or it cannot be read; settings of the data that fit no files; cancelled.
    pub fn run(&self, context: &Context) -> Result<CheckReport, JobError> {
        let dataset = match find(&self.data, self.task, &self.config)? {
            Ok(dataset) => dataset,
            Err(SamplesError::NoPairs { dataset, .. }) => *dataset,
            Err(error) => return Err(data(error)),
        };
        let report = look(context, &dataset, &self.config, None)?;
        let usable = report.usable(&dataset);
        let (mut found, mut no_split) = (None, None);
        if !usable.is_empty() {
            match divide(&usable, &report, &self.config, self.seed, None) {
                Ok(split) => found = Some(split),
                Err(error) => no_split = Some(error.to_string()),
            }
        }
        // Without a place for it the report still holds everything.
        let details = details::list(&self.data, &report.problems, self.details.as_deref()).and_then(Result::ok);
        Ok(CheckReport { dataset, report, split: found, no_split, details })
    }
}

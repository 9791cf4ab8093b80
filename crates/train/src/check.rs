//! The job that checks a training set before training.

use crate::config::TrainConfig;
use crate::data::{DataRequest, check_pairs, find, load, split_pairs, typical_voxel_um, with_thickness};
use crate::error::data_error;
use crate::problems;
use crate::stained_channel::with_stained_channel;
use crate::start::TrainStart;
use crate::trained_images::TrainedImages;
use cytoscope_pipeline::{Context, JobError};
use cytoscope_storage::StorageError;
use cytoscope_training_data::{Dataset, Report, Split, TrainingDataError, TrainingTask};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A job that checks a training set as a training run with these settings would.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckJob {
    /// The task: segmentation or label-free prediction.
    pub task: TrainingTask,
    /// Folder or table (`.csv`) of the training pairs.
    pub data: PathBuf,
    /// Training settings to check together with the data.
    #[serde(default)]
    pub config: TrainConfig,
    /// Seed of the split into training and validation set.
    #[serde(default)]
    pub seed: u64,
    /// Start model, which changes the split: images that it was trained on are validated on last. `None` stands for a new
    /// network, too.
    #[serde(default)]
    pub from: Option<TrainStart>,
    /// File that lists every problem if there are many; by default in the user's data folder.
    #[serde(default)]
    pub details: Option<PathBuf>,
}

/// Contents and problems of a training set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckReport {
    /// The pairs that were found.
    pub dataset: Dataset,
    /// Summary of each pair, and every problem.
    pub report: Report,
    /// Split into training and validation set; `None` if no pair is usable.
    pub split: Option<Split>,
    /// Reason why the usable pairs could not be split.
    pub no_split: Option<String>,
    /// File that lists every problem, if there are many.
    #[serde(default)]
    pub details: Option<PathBuf>,
}

impl CheckReport {
    /// Returns the typical voxel size along Z, Y, X in µm: the one with the median volume; `None` if no file states
    /// one.
    pub fn voxel_um(&self) -> Option<[f64; 3]> {
        typical_voxel_um(&self.report)
    }

    /// Returns the settings with which a training run with `config` starts on these data: settings that it leaves open are
    /// set for images of a single plane.
    pub fn start_config(&self, config: TrainConfig) -> TrainConfig {
        with_thickness(&self.report, config)
    }
}

impl CheckJob {
    /// Runs the job. Unusable pairs, or files that form no pair, are not errors: the report lists them as problems.
    ///
    /// # Errors
    /// [`JobError`] if the folder or table does not exist or cannot be read, the data settings are invalid, or the job
    /// was canceled.
    pub fn run(&self, context: &Context) -> Result<CheckReport, JobError> {
        let (config, _) = with_stained_channel(self.from.as_ref(), &self.data, self.task, &self.config);
        let dataset = match find(&self.data, self.task, &config)? {
            Ok(dataset) => dataset,
            Err(TrainingDataError::NoPairs { dataset, .. }) => *dataset,
            Err(error) => return Err(data_error(error)),
        };
        let report = check_pairs(context, &dataset, &config, None)?;
        let usable = report.usable(&dataset);
        // The data can be checked without the start model; its problems are reported when training starts.
        let log = |error: &JobError| tracing::warn!("the images of the start model are not known: {error}");
        let start_images = |from| TrainedImages::from_start(from).inspect_err(log).ok();
        let known = self.from.as_ref().and_then(start_images).unwrap_or_default();
        let (mut found, mut no_split) = (None, None);
        if !usable.is_empty() {
            let known = [&known, &TrainedImages::default()];
            match split_pairs(&usable, &report, &config, self.seed, None, known) {
                Ok(split) => found = Some(split),
                Err(error) => no_split = Some(error.to_string()),
            }
        }
        // If the list cannot be written, the report still contains every problem.
        let unwritten = |error: &StorageError| tracing::warn!("the list of problems cannot be written: {error}");
        let details = problems::list(&self.data, &report.problems, self.details.as_deref());
        let details = details.and_then(|written| written.inspect_err(unwritten).ok());
        Ok(CheckReport { dataset, report, split: found, no_split, details })
    }

    /// Checks the settings and the data as the start of a training run does, and reports problems as notes. The file of
    /// [`Self::details`] is not used.
    ///
    /// # Errors
    /// The [`JobError`] with which a training run on these data would fail: the start model cannot be read, no pair is usable,
    /// or the settings are invalid.
    pub fn require_usable(&self, context: &Context) -> Result<(), JobError> {
        self.config.check()?;
        self.config.loss.map_or(Ok(()), |loss| loss.check_task(self.task))?;
        let known = match &self.from {
            Some(from) => TrainedImages::from_start(from)?,
            None => TrainedImages::default(),
        };
        let (config, _) = with_stained_channel(self.from.as_ref(), &self.data, self.task, &self.config);
        let wanted = DataRequest {
            path: &self.data,
            task: self.task,
            config: &config,
            seed: self.seed,
            keep: None,
            trained: "",
        };
        load(context, wanted, known, None)?;
        Ok(())
    }
}

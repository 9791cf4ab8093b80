//! Settings of the next training run that are rarely changed: limits beside the time budget, the object diameter, the seed, and
//! the license.

use super::{Check, Training, Wizard};
use crate::effect::Effects;
use crate::jobs::JobsAction;
use cytoscope_model_package::{LicenseProblem, license_problem};
use cytoscope_pipeline::DiameterRequest;
use cytoscope_train::TrainConfig;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Settings of the next training run that are rarely changed.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct RunOptions {
    /// Maximum number of epochs; `None` leaves it to the training settings.
    pub epochs: Option<usize>,
    /// Maximum number of optimizer steps; `None` leaves it to the training settings.
    pub steps: Option<usize>,
    /// Median object diameter of all pairs in µm, or in voxels where the voxel size is unknown; `None` leaves it to the training
    /// settings, which measure it on the labels of each pair by default.
    pub diameter: Option<f64>,
    /// Random seed of the split of the data and of the patches.
    pub seed: u64,
    /// Identifier of the license of the model in the SPDX list, as typed; empty leaves it to the training settings.
    pub license: String,
}

impl RunOptions {
    /// Returns training settings with the maximum numbers of epochs and steps.
    pub(super) fn limited(&self, mut config: TrainConfig) -> TrainConfig {
        config.budget.epochs = self.epochs.or(config.budget.epochs);
        config.budget.steps = self.steps.or(config.budget.steps);
        config
    }

    /// Returns training settings with the object diameter, for networks that find objects.
    pub(super) fn sized(&self, config: TrainConfig) -> TrainConfig {
        let diameter = self.diameter.map_or(config.diameter, DiameterRequest::Given);
        TrainConfig { diameter, ..config }
    }

    /// Returns training settings with the license.
    pub(super) fn licensed(&self, config: TrainConfig) -> TrainConfig {
        let license = self.given_license().map(str::to_owned).or(config.license);
        TrainConfig { license, ..config }
    }

    fn given_license(&self) -> Option<&str> {
        Some(self.license.trim()).filter(|license| !license.is_empty())
    }

    /// What is wrong with the license, and what to do; `None` if it can be used or none is given.
    pub(crate) fn license_problem(&self) -> Option<String> {
        let LicenseProblem { problem, next_step } = license_problem(self.given_license()?)?;
        Some(format!("The license {problem}: {next_step}."))
    }
}

impl Wizard {
    /// Why no run can start with the chosen settings; `None` if one can.
    pub(crate) fn settings_problem(&self) -> Option<String> {
        let license = self.plan.options.license_problem();
        license.or_else(|| self.further_settings_problem()).or_else(|| self.found_settings_problem())
    }
}

impl Training {
    /// Sets the settings that are rarely changed. Another seed splits the data differently, so that they are checked again.
    pub(super) fn set_options(&mut self, options: RunOptions, effects: &mut Effects) {
        let has_other_split = options.seed != self.wizard.plan.options.seed;
        self.wizard.plan.options = options;
        if has_other_split {
            self.check_soon(effects);
        }
    }

    /// Discards the check of the data; the next one starts shortly after the last change of the settings.
    pub(super) fn check_soon(&mut self, effects: &mut Effects) {
        if let Check::Running(id) = self.wizard.check {
            effects.act(JobsAction::Cancel(id));
        }
        self.wizard.check = Check::None;
        self.files_changed = Some(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_training_data::TrainingTask;
    use std::sync::Arc;

    #[test]
    fn the_settings_reach_the_job_and_leave_others_to_the_training_settings() {
        let wake: Arc<dyn Fn() + Send + Sync> = Arc::new(|| ());
        let mut config = TrainConfig { license: Some("CC0-1.0".to_owned()), ..TrainConfig::default() };
        config.budget.steps = Some(500);
        let mut wizard = Wizard::new(None, config, &wake);
        wizard.plan.data = Some("/data/pairs".into());
        let reached = |wizard: &Wizard| {
            let job = wizard.job("/out".into()).unwrap();
            let budget = job.config.budget;
            (budget.epochs, budget.steps, budget.minutes, job.seed, job.config.license)
        };
        let minutes = Some(wizard.plan.minutes);
        assert_eq!(reached(&wizard), (None, Some(500), minutes, 0, Some("CC0-1.0".to_owned())));
        let license = " MIT ".to_owned();
        wizard.plan.options = RunOptions { epochs: Some(3), steps: Some(40), diameter: Some(9.5), seed: 7, license };
        assert_eq!(reached(&wizard), (Some(3), Some(40), minutes, 7, Some("MIT".to_owned())));
        let diameter = |wizard: &Wizard| wizard.job("/out".into()).unwrap().config.diameter;
        assert_eq!(diameter(&wizard), DiameterRequest::Given(9.5));
        // Only objects have a diameter.
        wizard.plan.foreground_only = true;
        assert_eq!(diameter(&wizard), DiameterRequest::Auto);
        (wizard.plan.foreground_only, wizard.plan.task) = (false, TrainingTask::LabelFree);
        assert_eq!(diameter(&wizard), DiameterRequest::Auto);
    }

    #[test]
    fn a_license_that_is_not_in_the_list_is_named_with_the_one_to_write() {
        let problem =
            |license: &str| RunOptions { license: license.to_owned(), ..RunOptions::default() }.license_problem();
        assert_eq!([problem(""), problem(" "), problem("CC-BY-4.0")], [None, None, None]);
        let close = problem("mit").unwrap();
        assert!(close.contains("\"mit\"") && close.contains("write MIT"), "{close}");
        assert!(problem("my own").unwrap().contains("https://spdx.org/licenses"));
    }
}

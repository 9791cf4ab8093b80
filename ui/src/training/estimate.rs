//! Estimate of the training cost on this machine, measured while the user chooses settings.

use super::plan::WizardStep;
use super::{Check, Training, Wizard};
use crate::effect::Effects;
use crate::jobs::{JobFailure, Jobs, JobsAction};
use crate::number_text::counted;
use crate::work::Purpose;
use cytoscope_profile::{bytes_text, count_text, rough_time_text, time_text};
use cytoscope_train::{Estimate, EstimateJob};
use cytoscope_worker::{Job, JobId};
use std::path::PathBuf;

/// State of the estimate.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) enum Cost {
    /// No estimate was requested yet.
    #[default]
    Unknown,
    /// Steps are being timed.
    Measuring(JobId),
    /// Measured seconds and memory of a step.
    Known(Estimate),
    /// Why the steps could not be timed.
    Failed(String),
}

/// The estimate and the job it belongs to.
#[derive(Debug, Default)]
pub(crate) struct Costing {
    of: Option<EstimateJob>,
    cost: Cost,
}

impl Wizard {
    /// The estimate job for the current choices; `None` while there is no checked data.
    fn estimate_job(&self) -> Option<EstimateJob> {
        let Check::Done(report) = &self.check else { return None };
        Some(EstimateJob {
            task: self.plan.task,
            from: self.plan.from.clone(),
            config: report.start_config(self.chosen_config()),
            voxel_um: report.voxel_um(),
            threads: self.plan.threads.unwrap_or(0),
            device: self.plan.device,
        })
    }

    /// Why the time budget is too small for training; `None` if it may suffice, or while the time of a step is not known.
    pub(crate) fn budget_problem(&self) -> Option<String> {
        let Cost::Known(cost) = &self.costing.cost else { return None };
        let job = self.job(PathBuf::new())?;
        let least = cost.minutes_needed(&job.config.budget, !job.without_int8)?;
        Some(budget_problem(self.plan.minutes, least, cost.step_secs))
    }

    /// The estimate as a sentence, or its state while it is not known.
    pub(crate) fn cost_text(&self) -> String {
        let minutes = self.plan.minutes;
        match &self.costing.cost {
            Cost::Unknown => String::new(),
            Cost::Measuring(_) => "Timing a few training steps on this machine…".to_owned(),
            Cost::Known(cost) => format!(
                "On this machine a step takes {} and {} of memory: {}, with validation in between. Training can be paused at \
                 any time.",
                time_text(cost.step_secs),
                bytes_text(cost.bytes()),
                steps_text(cost.steps_in(minutes), self.plan.options.steps, minutes)
            ),
            Cost::Failed(reason) => format!("The time per step could not be measured: {reason}"),
        }
    }
}

/// Why a time budget is too small, if `least` minutes are needed because of the time of a step.
fn budget_problem(minutes: f64, least: f64, step_secs: f64) -> String {
    let [given, least] = [minutes, least].map(minutes_text);
    let step = rough_time_text(step_secs);
    format!("{given} is too short for training, because a step takes {step}. Set at least {least}.")
}

/// The number of steps that fit a time budget, or the maximum number that is set, if it is smaller.
fn steps_text(in_budget: u64, max_steps: Option<usize>, minutes: f64) -> String {
    let minutes = minutes_text(minutes);
    match max_steps.map(|steps| steps as u64).filter(|steps| *steps < in_budget) {
        Some(steps) => format!("{} of about {} possible steps in {minutes}", count_text(steps), count_text(in_budget)),
        None => format!("about {} in {minutes}", counted(in_budget, "step")),
    }
}

/// A time budget with at most one decimal, as its field shows it: budgets may be shorter than a minute.
fn minutes_text(minutes: f64) -> String {
    let rounded = (minutes * 10.0).round() / 10.0;
    let unit = if (rounded - 1.0).abs() < 0.05 { "minute" } else { "minutes" };
    format!("{rounded} {unit}")
}

impl Training {
    /// Requests an estimate if the Settings page is open and the choices have changed, and cancels it if the page was left;
    /// `is_shown` is whether the wizard is on screen.
    pub(super) fn poll_cost(&mut self, jobs: &Jobs, is_shown: bool, effects: &mut Effects) {
        let wizard = &self.wizard;
        let is_open = is_shown && wizard.plan.step == WizardStep::Start;
        let is_free = !self.starting && jobs.tuning().is_none();
        if !is_open && matches!(wizard.costing.cost, Cost::Measuring(_)) {
            // Nobody sees it, and other jobs would wait for it. It is requested again when the page is opened.
            return self.forget_cost(effects);
        }
        if is_open && is_free && wizard.plan.job.is_none() {
            let wanted = wizard.estimate_job();
            if let Some(job) = wanted.clone().filter(|_| wanted != wizard.costing.of) {
                self.forget_cost(effects);
                let title = "Timing training steps".to_owned();
                let id = jobs.request(title, Purpose::Check, Job::TrainEstimate(job), effects);
                self.wizard.costing = Costing { of: wanted, cost: Cost::Measuring(id) };
            }
        }
        if let Cost::Measuring(id) = self.wizard.costing.cost {
            self.wizard.costing.cost = match jobs.failure(id) {
                Some(JobFailure::Failed(reason)) => Cost::Failed(reason),
                Some(JobFailure::Canceled) => Cost::Unknown,
                None => return,
            };
        }
    }

    /// Cancels the estimate.
    pub(super) fn forget_cost(&mut self, effects: &mut Effects) {
        if let Cost::Measuring(id) = self.wizard.costing.cost {
            effects.act(JobsAction::Cancel(id));
        }
        self.wizard.costing = Costing::default();
    }

    /// Stores the estimate, unless it belongs to earlier choices.
    pub(super) fn handle_cost(&mut self, id: JobId, estimate: Estimate) {
        if self.wizard.costing.cost == Cost::Measuring(id) {
            self.wizard.costing.cost = Cost::Known(estimate);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use crate::action::Action;
    use crate::effect::{Effect, Wake};
    use cytoscope_train::TrainConfig;
    use std::sync::Arc;

    #[test]
    fn an_estimate_is_canceled_when_its_page_is_left() {
        let wake: Wake = Arc::new(|| {});
        let jobs = Jobs::new(None, None, None, &wake);
        for (is_shown, step) in [(false, WizardStep::Start), (true, WizardStep::Data)] {
            let mut training = Training::new(None, TrainConfig::default(), &wake);
            training.wizard.plan.data = Some("/nothere/pairs".into());
            training.wizard.plan.step = WizardStep::Start;
            let job = Job::Train(training.wizard.job("/nothere/out".into()).unwrap());
            let id = jobs.request("Timing".to_owned(), Purpose::Check, job, &mut Effects::default());
            training.wizard.costing.cost = Cost::Measuring(id);
            let cancels = |training: &mut Training, is_shown: bool| {
                let mut effects = Effects::default();
                training.poll_cost(&jobs, is_shown, &mut effects);
                let is_cancel =
                    |e: Effect| matches!(e, Effect::Act(Action::Jobs(JobsAction::Cancel(job))) if job == id);
                effects.into_iter().any(is_cancel)
            };
            assert!(!cancels(&mut training, true), "its page is open");
            training.wizard.plan.step = step;
            assert!(cancels(&mut training, is_shown));
            assert_eq!(training.wizard.costing.cost, Cost::Unknown);
        }
    }

    #[test]
    fn a_maximum_number_of_steps_below_those_that_the_time_allows_is_stated() {
        assert_eq!(steps_text(1, None, 1.0), "about 1 step in 1 minute");
        assert_eq!(steps_text(1200, None, 5.0), "about 1,200 steps in 5 minutes");
        assert_eq!(steps_text(1200, Some(2000), 5.0), "about 1,200 steps in 5 minutes");
        assert_eq!(steps_text(1200, Some(100), 5.0), "100 of about 1,200 possible steps in 5 minutes");
    }

    #[test]
    fn a_time_budget_that_is_too_short_for_the_measured_steps_is_refused_before_training() {
        let wake: Wake = Arc::new(|| {});
        let mut wizard = Wizard::new(None, TrainConfig::default(), &wake);
        wizard.plan.data = Some("/nothere/pairs".into());
        wizard.plan.minutes = 2.0;
        assert_eq!(wizard.budget_problem(), None, "nothing is measured");
        wizard.costing.cost =
            Cost::Known(Estimate { step_secs: 12.0, parameters: 1, activation_bytes: 0, state_bytes: 0 });
        let problem = wizard.budget_problem().unwrap();
        assert!(problem.starts_with("2 minutes is too short for training, because a step takes 12"), "{problem}");
        assert!(problem.contains("Set at least 6."), "{problem}");
        wizard.plan.minutes = 10.0;
        assert_eq!(wizard.budget_problem(), None);
        // A few steps fit.
        (wizard.plan.minutes, wizard.plan.options.steps) = (2.0, Some(5));
        assert_eq!(wizard.budget_problem(), None);
    }

    #[test]
    fn a_budget_below_a_minute_is_not_rounded_to_none() {
        assert_eq!([0.5, 1.0, 5.0, 12.34].map(minutes_text), ["0.5 minutes", "1 minute", "5 minutes", "12.3 minutes"]);
    }
}

//! Estimate of the training cost on this machine, measured while the user chooses settings.

use super::plan::WizardStep;
use super::{Check, Wizard};
use crate::app::Workbench;
use crate::panels::PanelTask;
use crate::work::{JobState, Purpose};
use cytoscope_engine::DeviceRequest;
use cytoscope_profile::bytes_text;
use cytoscope_train::{Estimate, EstimateJob};
use cytoscope_worker::{Job, JobId};

/// State of the estimate.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) enum Cost {
    /// Not requested.
    #[default]
    Unknown,
    /// Steps are being timed.
    Measuring(JobId),
    /// The estimate is known.
    Known(Estimate),
    /// Measuring failed; the reason.
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
    fn to_be_measured(&self) -> Option<EstimateJob> {
        let Check::Done(report) = &self.check else { return None };
        Some(EstimateJob {
            task: self.plan.task,
            from: self.plan.from.clone(),
            config: self.chosen_config(),
            voxel_um: report.voxel_um(),
            threads: 0,
            device: DeviceRequest::Auto,
        })
    }

    /// The estimate as a sentence, or its state while it is not known.
    pub(crate) fn cost_sentence(&self) -> String {
        let minutes = self.plan.minutes;
        match &self.costing.cost {
            Cost::Unknown => String::new(),
            Cost::Measuring(_) => "Timing a few training steps on this machine…".to_owned(),
            Cost::Known(cost) => format!(
                "On this machine a step takes {:.2} s and {} of memory: about {} steps in {minutes:.0} minutes, with \
                 validation in between. Training can be paused at any time.",
                cost.step_secs,
                bytes_text(cost.bytes()),
                cost.steps_in(minutes)
            ),
            Cost::Failed(reason) => format!("The time per step could not be measured: {reason}"),
        }
    }
}

impl Workbench {
    /// Starts an estimate if the Settings page is open and the choices have changed.
    pub(super) fn poll_cost(&mut self) {
        let wizard = &self.wizard;
        let chosen = self.panels.task == PanelTask::Train && wizard.plan.step == WizardStep::Start;
        if chosen && wizard.plan.job.is_none() {
            let wanted = wizard.to_be_measured();
            if let Some(job) = wanted.clone().filter(|_| wanted != wizard.costing.of) {
                self.forget_cost();
                let title = "Timing training steps".to_owned();
                let id = self.work.run(title, Purpose::Check, Job::TrainEstimate(job));
                self.wizard.costing = Costing { of: wanted, cost: Cost::Measuring(id) };
            }
        }
        if let Cost::Measuring(id) = self.wizard.costing.cost {
            let state = self.work.jobs.iter().find(|j| j.id == id).map(|j| &j.state);
            self.wizard.costing.cost = match state {
                Some(JobState::Failed(reason)) => Cost::Failed(reason.clone()),
                Some(JobState::Cancelled) => Cost::Unknown,
                Some(_) => return,
                None => Cost::Failed("the engine is not running".to_owned()),
            };
        }
    }

    /// Cancels the estimate.
    pub(super) fn forget_cost(&mut self) {
        if let Cost::Measuring(id) = self.wizard.costing.cost {
            self.work.cancel(id);
        }
        self.wizard.costing = Costing::default();
    }

    /// Stores the estimate, unless it belongs to earlier choices.
    pub(crate) fn handle_cost(&mut self, id: JobId, estimate: Estimate) {
        if self.wizard.costing.cost == Cost::Measuring(id) {
            self.wizard.costing.cost = Cost::Known(estimate);
        }
    }
}

//! The comparison of a mixed-precision training run with the same run in 32-bit floats, which follows it on request.

use super::{TRAININGS, Training, file_name, models};
use crate::effect::Effects;
use crate::jobs::{JobFailure, Jobs, JobsAction};
use crate::work::Purpose;
use cytoscope_train::{PrecisionComparison, TrainJob, TrainReport};
use cytoscope_worker::{Job, JobId};

/// State of the comparison of the last training run with one in 32-bit floats.
#[derive(Debug, Default)]
pub enum FullPrecision {
    /// The run is not compared.
    #[default]
    None,
    /// The run in 32-bit floats is active or queued.
    Running(JobId, Box<TrainJob>),
    /// How the scores differ.
    Compared(Box<PrecisionComparison>),
    /// Why the run was not compared.
    Failed(String),
}

impl Training {
    /// Requests the run in 32-bit floats that follows a training run in 16-bit floats, if the user asked for it.
    pub(super) fn compare_with_full_precision(&mut self, job: &TrainJob, jobs: &Jobs, effects: &mut Effects) {
        let wizard = &mut self.wizard;
        wizard.full_precision = FullPrecision::None;
        let Some(mixed) = wizard.report.as_deref() else { return };
        if !wizard.plan.compare_precision || !job.is_mixed_precision() {
            return;
        }
        if job.resume {
            wizard.full_precision = FullPrecision::Failed("the training run was paused and continued".to_owned());
            return;
        }
        let out = wizard.folder.join(TRAININGS).join(format!("{} in 32 bits", file_name(&mixed.out)));
        let full = job.in_full_precision(mixed, jobs.devices(), out);
        // A window that was closed during a comparison has left the checkpoint.
        let full = TrainJob { restart: true, ..full };
        let title = format!("Training of {} in 32 bits", wizard.plan.name);
        let id = jobs.request(title, Purpose::PrecisionComparison, Job::Train(full.clone()), effects);
        wizard.full_precision = FullPrecision::Running(id, Box::new(full));
    }

    /// Whether a job is the run in 32-bit floats.
    pub(super) fn is_full_precision_run(&self, id: JobId) -> bool {
        matches!(self.wizard.full_precision, FullPrecision::Running(of, _) if of == id)
    }

    /// Compares the scores with those of the run in 32-bit floats, which has ended.
    pub(super) fn compare_precisions(&mut self, full: &TrainReport) {
        let compared = self.wizard.report.as_deref().map(|mixed| Box::new(PrecisionComparison::new(mixed, full)));
        self.end_full_precision(compared.map_or(FullPrecision::None, FullPrecision::Compared));
    }

    /// Cancels the run in 32-bit floats, if it is active.
    pub(super) fn cancel_full_precision(&self, effects: &mut Effects) {
        if let FullPrecision::Running(id, _) = &self.wizard.full_precision {
            effects.act(JobsAction::Cancel(*id));
        }
    }

    /// Handles a run in 32-bit floats that failed or was canceled.
    pub(super) fn poll_full_precision(&mut self, jobs: &Jobs) {
        let FullPrecision::Running(id, _) = &self.wizard.full_precision else { return };
        let reason = match jobs.failure(*id) {
            Some(JobFailure::Failed(reason)) => reason,
            Some(JobFailure::Canceled) => "it was canceled".to_owned(),
            None => return,
        };
        self.end_full_precision(FullPrecision::Failed(reason));
    }

    /// Sets the outcome, and removes the files of the run in 32-bit floats.
    fn end_full_precision(&mut self, outcome: FullPrecision) {
        if let FullPrecision::Running(_, job) = std::mem::replace(&mut self.wizard.full_precision, outcome) {
            let spawned = std::thread::Builder::new().name("training".to_owned()).spawn(move || remove(&job));
            if let Err(error) = spawned {
                tracing::warn!("the run in 32-bit floats was not removed: {error}");
            }
        }
    }
}

/// Removes the checkpoint and the package of a run in 32-bit floats.
fn remove(job: &TrainJob) {
    // What cannot be removed only takes disk space.
    if let Err(error) = job.discard_unused() {
        tracing::warn!("the checkpoint of the run in 32-bit floats was not removed: {error}");
    }
    if job.out.exists() {
        models::remove(&job.out);
    }
}

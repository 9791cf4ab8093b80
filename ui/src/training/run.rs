//! A training run: its state and curves.

use super::validation_picture::ValidationPicture;
use cytoscope_pipeline::Note;
use cytoscope_train::{CheckpointSummary, History, StepPoint, TrainEvent, TrainingPlan};
use cytoscope_worker::JobId;

/// State of a training run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum RunState {
    /// No training run has been started.
    #[default]
    Idle,
    /// The run is active or queued.
    Running(JobId),
    /// The run is saving a checkpoint before it stops.
    Pausing(JobId),
    /// The run is ending with the best network.
    Finishing(JobId),
    /// The run is being canceled and will be discarded.
    Stopping(JobId),
    /// The run is stopped and can be resumed from its checkpoint.
    Paused,
    /// The run failed; its last checkpoint is kept.
    Failed(String),
}

/// A training run with its curves and log.
#[derive(Debug, Default)]
pub struct TrainingRun {
    /// Idle, running, paused, or how it ended.
    pub state: RunState,
    /// Training loss and validation scores so far.
    pub history: History,
    /// Planned number of steps; 0 until it is known.
    pub steps: u64,
    /// The latest plan that the run reported, with the number of steps that it has now.
    pub plan: Option<TrainingPlan>,
    /// Output on a validation image.
    pub picture: Option<ValidationPicture>,
    /// Notes of the job, oldest first.
    pub notes: Vec<Note>,
    /// Number of the job's notes that were copied to `notes`.
    pub(super) notes_taken: usize,
    /// Whether the user is asked to confirm discarding the run.
    pub confirm_discard: bool,
}

impl TrainingRun {
    /// The job of an active run.
    pub fn job(&self) -> Option<JobId> {
        match self.state {
            RunState::Running(id) | RunState::Pausing(id) | RunState::Finishing(id) | RunState::Stopping(id) => {
                Some(id)
            }
            _ => None,
        }
    }

    /// Returns the number of completed optimizer steps.
    pub fn step(&self) -> u64 {
        self.history.steps.last().map_or(0, |p| p.step)
    }

    /// Stores a validation picture unless a later one is present.
    pub(super) fn set_picture(&mut self, picture: ValidationPicture) {
        if self.picture.as_ref().is_none_or(|now| picture.step >= now.step) {
            self.picture = Some(picture);
        }
    }

    pub(super) fn handle_event(&mut self, event: TrainEvent) {
        match event {
            TrainEvent::Planned(plan) => self.plan = Some(plan),
            TrainEvent::TrainingSteps { step, steps, loss, rate, step_secs, stalled_secs } => {
                self.steps = steps;
                if let Some(plan) = self.plan.as_mut().filter(|plan| plan.steps != steps && plan.steps > 0) {
                    // The number of steps that fit into the time budget is estimated again during the run.
                    plan.epochs *= steps as f64 / plan.steps as f64;
                    (plan.steps, plan.step_secs) = (steps, step_secs);
                }
                // After a rollback to an earlier step the curve continues from there.
                self.history.steps.retain(|p| p.step < step);
                self.history.steps.push(StepPoint { step, loss, rate, step_secs, stalled_secs });
            }
            TrainEvent::Validated(point) => {
                self.history.validations.retain(|p| p.step < point.step);
                self.history.validations.push(point);
            }
            // The status is kept with the job.
            TrainEvent::Status(_) | TrainEvent::ValidationPreview { .. } => {}
        }
    }

    /// Prepends the curves of a checkpoint to those received since.
    pub(super) fn prepend(&mut self, kept: CheckpointSummary) {
        let new = std::mem::replace(&mut self.history, kept.history);
        self.steps = self.steps.max(kept.steps);
        self.history.steps.extend(new.steps.into_iter().filter(|p| p.step > kept.step));
        let last = self.history.validations.last().map(|v| v.step);
        self.history.validations.extend(new.validations.into_iter().filter(|v| last.is_none_or(|l| v.step > l)));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

    use super::*;
    use cytoscope_train::ValidationPoint;
    use std::collections::BTreeMap;

    fn trained(step: u64) -> TrainEvent {
        TrainEvent::TrainingSteps {
            step,
            steps: 50,
            loss: 1.0 / step as f64,
            rate: 0.1,
            step_secs: 1.0,
            stalled_secs: 0.0,
        }
    }

    #[test]
    fn the_plan_has_the_number_of_steps_that_are_planned_now() {
        let planned = TrainingPlan {
            parameters: 1000,
            step_secs: 2.0,
            validation_secs: 1.0,
            steps: 100,
            epochs: 8.0,
            minutes: 5.0,
            activation_bytes: 1 << 20,
        };
        let mut run = TrainingRun::default();
        run.handle_event(TrainEvent::Planned(planned));
        run.handle_event(trained(10));
        assert_eq!(run.plan, Some(TrainingPlan { steps: 50, epochs: 4.0, step_secs: 1.0, ..planned }));
    }

    #[test]
    fn curves_continue_from_the_checkpoint() {
        let mut run = TrainingRun::default();
        let point = |step| StepPoint { step, loss: 1.0, rate: 0.1, step_secs: 1.0, stalled_secs: 0.0 };
        let tried = |step| ValidationPoint { step, score: 0.5, scores: BTreeMap::new(), best: true };
        run.handle_event(trained(21));
        run.handle_event(TrainEvent::Validated(ValidationPoint { score: 0.6, ..tried(25) }));
        let history =
            History { steps: vec![point(10), point(20)], validations: vec![tried(0), tried(20)], notes: Vec::new() };
        run.prepend(CheckpointSummary { step: 20, steps: 60, history });
        let steps: Vec<u64> = run.history.steps.iter().map(|p| p.step).collect();
        let validations: Vec<u64> = run.history.validations.iter().map(|p| p.step).collect();
        assert_eq!((steps, validations, run.steps), (vec![10, 20, 21], vec![0, 20, 25], 60));
        // After a rollback the curve continues from an earlier step.
        run.handle_event(trained(15));
        assert_eq!((run.step(), run.history.steps.len(), run.steps), (15, 2, 50));
    }
}

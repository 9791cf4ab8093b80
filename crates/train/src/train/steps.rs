//! The steps of the training loop: gradients, losses and their curve, and the return to the last good state.

use super::Training;
use super::run_loop::{LoopState, RollbackPoint};
use crate::checkpoint::TrainState;
use crate::event::TrainEvent;
use crate::history::StepPoint;
use crate::step::{StepOutput, Stepper};
use cytoscope_pipeline::{JobError, JobErrorKind};
use std::time::Instant;

/// Maximum number of rollbacks; then training fails.
const MAX_ROLLBACKS: u32 = 5;

/// Losses and times since the last point of the loss curve.
#[derive(Default)]
pub(super) struct LossWindow {
    pub(super) loss: f64,
    pub(super) steps: u64,
    /// Steps of this run; the others were made before it was resumed.
    pub(super) timed: u64,
    pub(super) started: Option<Instant>,
    pub(super) stalled: f64,
}

/// Returns whether training continues after a validation that has failed with `error`: resources such as space on the disk
/// were missing, which may be there for the next one. A run that ends with this validation would only repeat it.
pub(super) fn has_next_validation(error: &JobError, has_steps_left: bool, is_finishing: bool) -> bool {
    error.kind() == JobErrorKind::OutOfResources && has_steps_left && !is_finishing
}

/// Environment variable with the number of steps of a point of the loss curve, for tests that make a few steps only. It is
/// ignored if it is not a positive number.
const STEPS_PER_POINT: &str = "CYTOSCOPE_STEPS_PER_POINT";

/// Returns the number of steps of a point of the loss curve.
fn steps_per_point(state: &TrainState) -> u64 {
    let overridden: Option<u64> = std::env::var(STEPS_PER_POINT).ok().and_then(|text| text.parse().ok());
    overridden.unwrap_or(state.steps / 400).max(1)
}

impl Training<'_> {
    /// Computes the gradients of the next batches and updates the parameters at a learning rate of `rate`, reduced after
    /// rollbacks. Returns false if steps were skipped because of an overflow, or if the run went back to its last good state.
    pub(super) fn take_step(&self, run: &mut LoopState, rate: f64) -> Result<bool, JobError> {
        run.window.started.get_or_insert_with(Instant::now);
        let loss = match self.accumulate(run)? {
            StepOutput::Loss(loss) => loss,
            StepOutput::NotFinite => {
                self.roll_back(&mut run.state, &mut run.stepper, &run.last_good)?;
                run.window = LossWindow::default();
                return Ok(false);
            }
        };
        if run.stepper.is_scaled() {
            return self.take_scaled_step(run, rate);
        }
        if !self.is_read(run)? {
            return Ok(false);
        }
        let rate = rate * run.state.rate_factor;
        run.stepper.optimizer_step(rate, self.config.clip_norm, self.config.accumulate)?;
        run.state.step += 1;
        self.record_step(run, loss, rate);
        Ok(true)
    }

    /// Updates the parameters with gradients of a scaled loss. The device skips the update if they overflow, and only when the
    /// losses are read, the host knows how often: then these steps are no longer counted. Returns false if there were any, or if
    /// the run went back to its last good state.
    fn take_scaled_step(&self, run: &mut LoopState, rate: f64) -> Result<bool, JobError> {
        let rate = rate * run.state.rate_factor;
        run.stepper.optimizer_step(rate, self.config.clip_norm, self.config.accumulate)?;
        run.state.step += 1;
        run.window.steps += 1;
        run.window.timed += 1;
        let counted = run.state.step;
        if run.window.steps < steps_per_point(&run.state) && counted < run.state.steps {
            return Ok(true);
        }
        if !self.read_losses(run)? {
            return Ok(false);
        }
        self.add_point(run, rate);
        Ok(run.state.step == counted)
    }

    /// Computes and accumulates the gradients of the batches of one step. Returns the mean loss.
    fn accumulate(&self, run: &mut LoopState) -> Result<StepOutput, JobError> {
        let mut output = StepOutput::Loss(0.0);
        for _ in 0..self.config.accumulate {
            let before = run.loader.stalled_secs();
            let batch = self.batch(&mut run.loader)?;
            run.window.stalled += run.loader.stalled_secs() - before;
            run.state.next_patch += self.batch as u64;
            output = match (output, run.stepper.forward_backward_later(batch)?) {
                (StepOutput::Loss(sum), StepOutput::Loss(loss)) => {
                    StepOutput::Loss(sum + loss / self.config.accumulate as f64)
                }
                (_, other) => other,
            };
            if !matches!(output, StepOutput::Loss(_)) {
                break;
            }
        }
        Ok(output)
    }

    /// Reads the losses that are still on the device, if this step is the last one of a point of the loss curve or of the
    /// run, which would otherwise end before its last step. Returns false if they are not finite; the run then went back
    /// to its last good state.
    fn is_read(&self, run: &mut LoopState) -> Result<bool, JobError> {
        let is_point_due = run.window.steps + 1 >= steps_per_point(&run.state);
        let is_last = run.state.step + 1 >= run.state.steps;
        if is_point_due || is_last { self.read_losses(run) } else { Ok(true) }
    }

    /// Reads the losses that are still on the device. Steps that it has skipped are no longer counted. Returns false if the
    /// losses are not finite; the run then went back to its last good state.
    pub(super) fn read_losses(&self, run: &mut LoopState) -> Result<bool, JobError> {
        let read = run.stepper.unread_loss()?;
        let skipped = run.stepper.take_skipped_steps();
        for count in [&mut run.state.step, &mut run.window.steps, &mut run.window.timed] {
            *count = count.saturating_sub(skipped);
        }
        if let Some(loss) = read {
            run.window.loss += loss / self.config.accumulate as f64;
            return Ok(true);
        }
        self.roll_back(&mut run.state, &mut run.stepper, &run.last_good)?;
        run.state.validation_due = false;
        run.window = LossWindow::default();
        Ok(false)
    }

    /// Adds a step to the loss curve, and reports it when the curve gets a point.
    fn record_step(&self, run: &mut LoopState, loss: f64, rate: f64) {
        run.window.loss += loss;
        run.window.steps += 1;
        run.window.timed += 1;
        self.add_point(run, rate);
    }

    /// Adds a point to the loss curve and reports it, if there are enough steps since the last one.
    fn add_point(&self, run: &mut LoopState, rate: f64) {
        let (state, window) = (&mut run.state, &run.window);
        if window.steps < steps_per_point(state) {
            return;
        }
        let secs = window.started.map_or(0.0, |b| b.elapsed().as_secs_f64());
        let n = window.timed.max(1) as f64;
        let point = StepPoint {
            step: state.step,
            loss: window.loss / window.steps as f64,
            rate,
            step_secs: secs / n,
            stalled_secs: window.stalled / n,
        };
        state.history.push(point);
        self.emit(&TrainEvent::TrainingSteps {
            step: point.step,
            steps: state.steps,
            loss: point.loss,
            rate,
            step_secs: point.step_secs,
            stalled_secs: point.stalled_secs,
        });
        let is_last_step = point.step >= state.steps;
        self.report_status(&mut run.last_status, &point, is_last_step, &run.stepper);
        run.window = LossWindow::default();
    }

    /// Returns to the last good state and halves the learning rate.
    fn roll_back(
        &self,
        state: &mut TrainState,
        stepper: &mut Stepper,
        last_good: &RollbackPoint,
    ) -> Result<(), JobError> {
        state.rollbacks += 1;
        if state.rollbacks > MAX_ROLLBACKS {
            return Err(JobError::Mismatch {
                path: self.job.data.clone(),
                problem: format!("the loss was not finite {} times, at decreasing learning rates", state.rollbacks)
                    .into(),
                next_step: "check the data for values that are not finite, or lower schedule.rate".into(),
            });
        }
        stepper.set_state(last_good.model.clone())?;
        state.rate_factor /= 2.0;
        let message = format!(
            "the loss was not finite at step {}: rolled back to step {}, with the learning rate multiplied by {}",
            state.step, last_good.step, state.rate_factor
        );
        state.step = last_good.step;
        state.history.truncate_after(last_good.step);
        self.context.note(message.clone());
        state.history.notes.push(message.into());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Error, ErrorKind};

    #[test]
    fn a_full_disk_ends_a_run_that_was_asked_to_finish_and_no_other() {
        let failed = |kind: ErrorKind| JobError::Io { path: "best-3".into(), error: Error::from(kind) };
        let full = failed(ErrorKind::StorageFull);
        assert!(has_next_validation(&full, true, false));
        assert!(!has_next_validation(&full, true, true), "the validation would be repeated without end");
        assert!(!has_next_validation(&full, false, false), "it was the last one");
        assert!(!has_next_validation(&failed(ErrorKind::PermissionDenied), true, false));
    }
}

//! Steps in f16, whose loss is scaled: the device changes the scale and skips updates whose gradients overflow, so that the host
//! reads nothing in a step.

use super::Stepper;
use crate::error::engine_error;
use crate::step_graphs::{SCALE_STATE, STEP_LOSS};
use cytoscope_graph::{ScaleState, StepNumbers, Tensor};
use cytoscope_pipeline::JobError;

impl Stepper {
    /// Returns whether the device decides about the loss scale. Whether the updates of steps were skipped is known only when
    /// the losses are read.
    pub(crate) fn is_scaled(&self) -> bool {
        self.is_scaled
    }

    /// Returns how many steps were skipped because of an overflow, of those whose losses were read since the last call.
    pub(crate) fn take_skipped_steps(&mut self) -> u64 {
        std::mem::take(&mut self.skipped_steps)
    }

    /// Returns the loss scale and the numbers of steps after the last step.
    pub(super) fn scale_state(&self) -> Result<ScaleState, JobError> {
        if !self.is_scaled {
            let host = &self.host;
            return Ok(ScaleState::new(host.loss_scale, host.steady_steps, host.optimizer_steps));
        }
        let values = self.buffers.read(SCALE_STATE).map_err(engine_error)?.to_f64_vec();
        let wrong = || JobError::Internal(format!("training step: a loss scale with {} numbers", values.len()));
        ScaleState::from_slice(&values).ok_or_else(wrong)
    }

    /// Reads the losses of the steps since the last reading, and of the batches after them, and how many steps were skipped.
    /// Returns `None` if a loss is not finite, or gradients were not at a loss scale of 1.
    pub(super) fn unread_scaled_loss(&mut self) -> Result<Option<f64>, JobError> {
        let state = self.scale_state()?;
        let mut loss = f64::from(state.loss);
        if self.has_sum {
            let read = self.buffers.read(STEP_LOSS).map_err(engine_error)?;
            loss += read.to_f64_vec().first().copied().unwrap_or(f64::NAN);
            self.buffers.bind(STEP_LOSS, Tensor::scalar(0.0f32));
        }
        let ScaleState { scale, steady_steps, steps, skipped_steps, failed_steps, .. } = state;
        // The next reading starts at 0, so that a total in 32 bits does not become large.
        self.buffers.bind(SCALE_STATE, Tensor::vector(ScaleState::new(scale, steady_steps, steps).to_vec()));
        self.skipped_steps += u64::from(skipped_steps);
        self.unread = 0;
        let host = &mut self.host;
        (host.loss_scale, host.steady_steps, host.optimizer_steps) = (scale, steady_steps, steps);
        Ok((failed_steps == 0 && loss.is_finite()).then_some(loss))
    }

    /// Makes an optimizer step, or skips it, as the device decides.
    pub(super) fn scaled_step(&mut self, rate: f64, limit: f32, batches: usize) -> Result<(), JobError> {
        let share = 1.0 / batches.max(1) as f32;
        let given = StepNumbers { rate: rate as f32, share, limit, decay: self.ema as f32 };
        let given = vec![Tensor::vector(given.to_vec())];
        self.buffers.step(&mut self.update, given).map(drop).map_err(engine_error)?;
        // Whether it was skipped was not read yet.
        self.unread += 1;
        self.discard_sums();
        self.average_on_device(batches)
    }
}

#[cfg(test)]
#[path = "scaled_tests.rs"]
mod tests;

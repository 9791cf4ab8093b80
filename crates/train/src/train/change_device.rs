//! Continuing a training run on another device after one has failed.

use super::run_loop::{LoopState, RollbackPoint};
use super::{Checkpoint, LoopOutcome, Training};
use crate::config::TrainPrecision;
use crate::device_choice::{StepDevice, choose_except, finding, has_failed, step_precision};
use crate::job::TrainJob;
use crate::less_memory::{MAX_HALVINGS, halve_activations};
use crate::setup::stepper_options;
use crate::step::StepperOptions;
use cytoscope_engine::{DeviceId, EngineError};
use cytoscope_pipeline::JobError;
use cytoscope_pipeline::job_record::PendingRecord;
use cytoscope_storage::message;
use cytoscope_storage::setting::{ON_CPU, ON_CPU_IN_F32, RESUME_ON_CPU, RESUME_ON_CPU_IN_F32};
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Training<'_> {
    /// Runs the training loop. If the device fails, the next one continues from the last good state, unless the user has
    /// chosen the device. If it runs out of memory, more activations are recomputed first.
    pub(super) fn run_on_devices(
        &mut self,
        mut checkpoint: Option<Checkpoint>,
        record: &mut PendingRecord<TrainJob>,
    ) -> Result<LoopOutcome, JobError> {
        let (mut failed, mut halvings) = (Vec::new(), 0);
        loop {
            let device = self.engine.device();
            record.ran_on(device, step_precision(self.config.precision, device));
            let error = match self.run_loop(checkpoint.take()) {
                Err(error) if self.has_device_failed(&error) => error,
                other => return other,
            };
            self.context.report_lost(&error);
            if halvings < MAX_HALVINGS && self.recompute_more(&error) {
                halvings += 1;
                checkpoint = self.last_checkpoint()?;
                continue;
            }
            if !self.job.another_device_may_continue() {
                return Err(self.with_next_step(error));
            }
            failed.push(self.engine.device().id);
            self.change_device(&failed, &error)?;
            halvings = 0;
            checkpoint = self.last_checkpoint()?;
        }
    }

    /// Halves the memory limit of activations after the GPU has run out of memory, so that more of them are recomputed, with
    /// the same results. Returns false if it has failed otherwise, or if its memory is not known and no step was compiled.
    fn recompute_more(&mut self, error: &JobError) -> bool {
        let held_bytes = self.activation_bytes.load(Ordering::Relaxed);
        let halved = halve_activations(error, &mut self.options, self.engine.device(), held_bytes);
        let Some(message) = halved else { return false };
        self.context.note(message.clone());
        self.device_notes.push(message);
        true
    }

    /// Returns the names of the devices that have computed the steps, in order.
    pub(crate) fn device_names(&self) -> String {
        let last = self.engine.device().name.clone();
        self.failed_devices.iter().cloned().chain([last]).collect::<Vec<String>>().join(", then ")
    }

    /// Returns whether an error says that the GPU that computes the steps has failed.
    pub(super) fn has_device_failed(&self, error: &JobError) -> bool {
        has_failed(self.engine.device().id, error)
    }

    /// Saves the last good state of a run whose device has failed. If that is not possible, the checkpoint before it is
    /// continued.
    pub(super) fn save_last_good(&self, run: LoopState) {
        let LoopState { mut state, stepper, last_good: RollbackPoint { model, step }, .. } = run;
        let device = self.engine.device().id;
        state.history.truncate_after(step);
        let message = format!("{device} failed at step {}: training goes back to step {step}", state.step);
        state.history.notes.push(message.into());
        state.validation_due &= state.step == step;
        state.step = step;
        state.since_point = (0.0, 0);
        state.seconds = self.seconds(&state);
        if let Err(error) = self.folder.save(&mut state, &stepper.names(), &model) {
            self.context.note(message!("the last good state could not be saved ({error})"));
        }
    }

    /// Reads the checkpoint that was saved last; `None` if the device failed before there was one, so that the run starts
    /// again.
    fn last_checkpoint(&self) -> Result<Option<Checkpoint>, JobError> {
        if !self.folder.has_checkpoint() {
            self.folder.clear()?;
            return Ok(None);
        }
        let (mut state, tensors) = self.folder.load()?;
        // The checkpoint states the seconds until now, to which those since `started` will be added.
        state.seconds -= self.started.elapsed().as_secs_f64();
        Ok(Some((state, tensors)))
    }

    /// Opens the next device after one has failed with `error`, and trains there from now on, in f32 if it lacks the precision
    /// of the settings.
    fn change_device(&mut self, failed: &[DeviceId], error: &JobError) -> Result<(), JobError> {
        let (context, threads) = (self.context, self.job.threads);
        let next = choose_except(context, self.devices, failed, &self.start, &self.config, threads)?;
        let StepDevice { engine, precision, memory_budget_bytes, failures } = next;
        let in_precision = if precision == self.config.precision { "" } else { " in f32" };
        let id = engine.device().id;
        let message = if self.folder.has_checkpoint() {
            message!("{}; continuing on {id}{in_precision} from the last good state", finding(error))
        } else {
            message!("{}; starting again on {id}{in_precision}", finding(error))
        };
        context.note(message.clone());
        self.device_notes.extend(failures.into_iter().chain([message]));
        let name = self.engine.device().name.clone();
        self.failed_devices.push(name);
        self.on_device_since = (Instant::now(), context.recorder.totals());
        self.config.precision = precision;
        let further_weights = self.options.further_weights;
        let options = stepper_options(&self.config, &self.start, engine.as_ref(), threads, &context.recorder)?;
        let memory_budget_bytes = memory_budget_bytes.or(options.memory_budget_bytes);
        self.options = StepperOptions { tuning: context.tuning(), further_weights, memory_budget_bytes, ..options };
        self.engine = engine;
        self.activation_bytes.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Adds to the error of a device that the user has chosen how the run can be continued.
    fn with_next_step(&self, error: JobError) -> JobError {
        let (resumed, started) = match self.config.precision {
            TrainPrecision::Auto | TrainPrecision::F32 => (RESUME_ON_CPU, ON_CPU),
            TrainPrecision::Tf32 | TrainPrecision::F16 | TrainPrecision::Bf16 => (RESUME_ON_CPU_IN_F32, ON_CPU_IN_F32),
        };
        let next_step = if self.folder.has_checkpoint() {
            message!("the last good state is kept: continue on another device with {resumed}")
        } else {
            message!("no step was completed: choose another device, such as {started}")
        };
        match error {
            JobError::Engine(EngineError::Device { device, reason }) => {
                EngineError::Device { device, reason: message!("{reason}; {next_step}") }.into()
            }
            other => {
                self.context.note(next_step);
                other
            }
        }
    }
}

#[cfg(test)]
#[path = "change_device_tests.rs"]
mod tests;

//! Estimate of time and memory of a training run on this machine, from a few steps on synthetic patches.

use crate::budget::{Budget, Costs, Progress};
use crate::config::{BudgetConfig, TrainConfig, ValidationConfig};
use crate::device_choice::{self, StepDevice, choose_except, finding, has_failed, synthetic_batch};
use crate::less_memory::with_less_memory;
use crate::network::{self, StartModel};
use crate::planning::TRIAL_STEPS;
use crate::setup::stepper_options;
use crate::start::TrainStart;
use crate::step::{Stepper, StepperOptions};
use cytoscope_engine::DeviceRequest;
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::{Context, JobError};
use cytoscope_profile::Stage;
use cytoscope_storage::message;
use cytoscope_training_data::TrainingTask;
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// Number of measured steps; the first is discarded as warm-up.
const STEPS: usize = 4;
/// Maximum fraction of the time budget spent on steps; the rest is validation and finalizing.
const STEPS_SHARE: f64 = 0.75;
/// Duration of a validation in steps, if the time budget allows that. It depends on the data, which an estimate does not know.
const VALIDATION_STEPS: f64 = 10.0;

/// A job that estimates the cost of a training run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EstimateJob {
    /// The task: segmentation or label-free prediction.
    pub task: TrainingTask,
    /// Starting point of the training run.
    pub from: TrainStart,
    /// Training settings to estimate.
    #[serde(default)]
    pub config: TrainConfig,
    /// Voxel size of the data in µm, along Z, Y, X.
    #[serde(default)]
    pub voxel_um: Option<[f64; 3]>,
    /// Number of threads; 0 uses all cores.
    #[serde(default)]
    pub threads: usize,
    /// Device that computes training steps, or `auto` for the one with the fastest step.
    #[serde(default)]
    pub device: DeviceRequest,
}

/// Estimated cost of a training run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Measured duration of a step in seconds.
    pub step_secs: f64,
    /// Number of trainable parameters.
    pub parameters: usize,
    /// Peak memory of a step's activations in bytes.
    pub activation_bytes: u64,
    /// Memory of parameters, gradients and optimizer state in bytes.
    pub state_bytes: u64,
}

impl Estimate {
    /// Returns the approximate number of steps that fit into a budget of `minutes`, as a run plans them once it has timed
    /// a few steps and scored the network that it starts from.
    pub fn steps_in(&self, minutes: f64) -> u64 {
        let config = BudgetConfig { minutes: Some(minutes), ..BudgetConfig::default() };
        let validations = ValidationConfig::default().times;
        let budget = Budget { config: &config, epoch_steps: 1, validations, int8: true };
        let longest = budget.max_validation_secs().unwrap_or(0.0);
        let validation_secs = (VALIDATION_STEPS * self.step_secs).min(longest);
        let spent_secs = TRIAL_STEPS as f64 * self.step_secs + validation_secs;
        let now = Progress { spent_secs, validating_secs: validation_secs, ..Progress::default() };
        let planned = budget.plan(Costs { step_secs: self.step_secs, validation_secs }, now).steps;
        planned.min((minutes * 60.0 * STEPS_SHARE / self.step_secs.max(1e-4)) as u64)
    }

    /// Returns the minimum useful time budget in minutes of a run with these limits, if theirs is smaller, as a run determines it
    /// once it has timed a few steps. The times of checking the data and of validation are not known here and not included, so
    /// that a run may need more.
    pub fn minutes_needed(&self, limits: &BudgetConfig, int8: bool) -> Option<f64> {
        // The number of steps per epoch depends on the data: the smallest one requests the least time.
        let budget = Budget { config: limits, epoch_steps: 1, validations: ValidationConfig::default().times, int8 };
        let costs = Costs { step_secs: self.step_secs, validation_secs: 0.0 };
        budget.minutes_needed(costs, TRIAL_STEPS as f64 * self.step_secs, 1)
    }

    /// Returns the memory of a step in bytes, without the program and the data.
    pub fn bytes(&self) -> u64 {
        self.activation_bytes.saturating_add(self.state_bytes)
    }
}

impl EstimateJob {
    /// Runs the job.
    ///
    /// # Errors
    /// [`JobError`] as [`crate::TrainJob::run`] for an invalid start model, setting or device, or if the job was
    /// canceled.
    pub fn run(&self, context: &Context, devices: &Devices) -> Result<Estimate, JobError> {
        self.config.check()?;
        let loading = context.recorder.span(Stage::Load, "start model");
        let start = network::load_start_model(&self.from, self.task, &self.config, self.voxel_um, 0)?;
        loading.finish();
        let may_change = self.device == DeviceRequest::Auto;
        let request = (self.device, may_change);
        let mut chosen = device_choice::choose(context, devices, request, &start, &self.config, self.threads)?;
        let mut failed = Vec::new();
        loop {
            let config = TrainConfig { precision: chosen.precision, ..self.config.clone() };
            let device = chosen.engine.device().id;
            match self.measure(context, &start, &config, &chosen) {
                Err(error) if may_change && has_failed(device, &error) => {
                    context.report_lost(&error);
                    failed.push(device);
                    chosen = choose_except(context, devices, &failed, &start, &config, self.threads)?;
                    context.note(message!("{}; measuring on {}", finding(&error), chosen.engine.device().id));
                }
                other => return other,
            }
        }
    }

    /// Measures a few steps on a device. If a GPU has too little memory, more activations are recomputed, as in training.
    fn measure(
        &self,
        context: &Context,
        start: &StartModel,
        config: &TrainConfig,
        device: &StepDevice,
    ) -> Result<Estimate, JobError> {
        let engine = device.engine.as_ref();
        let options = stepper_options(config, start, engine, self.threads, &context.recorder)?;
        let memory_budget_bytes = device.memory_budget_bytes.or(options.memory_budget_bytes);
        let options = StepperOptions { tuning: context.tuning(), memory_budget_bytes, ..options };
        let (estimate, _) = with_less_memory(context, engine.device(), options, |options, held_bytes| {
            let mut stepper = Stepper::new(start.graph.clone(), engine, options)?;
            *held_bytes = stepper.arena_bytes();
            measure_steps(context, start, config, options, &mut stepper)
        })?;
        Ok(estimate)
    }
}

/// Measures a few steps.
fn measure_steps(
    context: &Context,
    start: &StartModel,
    config: &TrainConfig,
    options: &StepperOptions,
    stepper: &mut Stepper,
) -> Result<Estimate, JobError> {
    let ema = options.ema > 0.0;
    let batch = synthetic_batch(&options.shape, start.outputs.len())?;
    let mut secs = Vec::with_capacity(STEPS);
    for _ in 0..STEPS {
        context.check()?;
        let started = Instant::now();
        for _ in 0..config.accumulate {
            // A long run reads its losses every few steps only. On a GPU, too, a step has ended when the calls return.
            stepper.forward_backward_later(batch.to_vec())?;
        }
        stepper.optimizer_step(1e-9, config.clip_norm, config.accumulate)?;
        secs.push(started.elapsed().as_secs_f64());
    }
    let mut counted = secs.split_off(1);
    counted.sort_by(f64::total_cmp);
    let parameters = stepper.parameter_count();
    // Parameters, gradients, two optimizer moments, and optionally the EMA and accumulated gradients.
    let copies = 4 + u64::from(ema) + u64::from(config.accumulate > 1);
    Ok(Estimate {
        step_secs: counted.get(counted.len() / 2).copied().unwrap_or(0.0),
        parameters,
        activation_bytes: stepper.arena_bytes(),
        state_bytes: copies.saturating_mul(4 * parameters as u64),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validation_and_finalizing_leave_a_short_run_a_smaller_part_of_its_time_for_steps() {
        let estimate = Estimate { step_secs: 0.5, parameters: 1, activation_bytes: 0, state_bytes: 0 };
        let share = |minutes: f64| estimate.steps_in(minutes) as f64 * estimate.step_secs / (60.0 * minutes);
        assert!((share(60.0) - STEPS_SHARE).abs() < 0.01, "{}", share(60.0));
        assert!((0.3..0.6).contains(&share(0.5)), "{}", share(0.5));
        // Not even the start.
        assert!(estimate.steps_in(0.01) <= 1);
    }

    #[test]
    fn a_budget_that_is_too_small_without_any_validation_needs_more_minutes() {
        let estimate = Estimate { step_secs: 12.0, parameters: 1, activation_bytes: 0, state_bytes: 0 };
        let needed = |minutes: Option<f64>, steps: Option<usize>| {
            let limits = BudgetConfig { minutes, steps, ..BudgetConfig::default() };
            estimate.minutes_needed(&limits, true)
        };
        // 3 timed steps and 20 others take 276 s, and a tenth of the time is for finalizing: 5.1 minutes, and a margin.
        assert!(
            needed(Some(2.0), None).is_some_and(|least| (6.0..7.0).contains(&least)),
            "{:?}",
            needed(Some(2.0), None)
        );
        assert_eq!([needed(Some(6.0), None), needed(None, None)], [None, None]);
        // A few steps were requested, for which the time suffices; then not even for timing them.
        assert_eq!(needed(Some(2.0), Some(5)), None);
        assert!(needed(Some(0.5), Some(5)).is_some());
    }
}

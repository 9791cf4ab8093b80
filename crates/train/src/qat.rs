//! Quantization-aware training (QAT) of a network towards the outputs of its float version.

use crate::config::minutes_problem;
use crate::error::{engine_error, model_error};
use crate::step::{StepOutput, Stepper, StepperOptions};
use cytoscope_autodiff::{Decay, FakeQuantized, Schedule, fake_quantized};
use cytoscope_engine::{CompileOptions, DeviceId, Engine, TuningListener};
use cytoscope_graph::{Graph, Loss, LossKind, LossTerm, Optimizer, Tensor, gcd};
use cytoscope_graph_passes::{input_channels, join_inputs};
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::{Context, JobError, ProgressStage, ProgressUnit};
use cytoscope_profile::Recorder;
use cytoscope_quantize::{QatOutcome, QatTask, QuantizationAwareTraining, QuantizeMode};
use std::time::{Duration, Instant};
use thiserror::Error;

/// Quantization-aware training towards the float network's outputs on tiles, so that no labels are needed. The weights of
/// int8 convolutions, in units of quantization steps and with a straight-through estimator for rounding, and their biases
/// are trained; scales stay as calibrated.
#[derive(Debug, Clone, PartialEq)]
pub struct QatTrainer {
    /// Maximum number of steps, with one tile each.
    pub steps: u64,
    /// Maximum duration in minutes.
    pub minutes: Option<f64>,
    /// Maximum learning rate, in quantization steps.
    pub rate: f64,
    /// Number of threads; 0 uses all cores.
    pub threads: usize,
}

impl Default for QatTrainer {
    fn default() -> Self {
        Self { steps: 240, minutes: None, rate: 0.004, threads: 0 }
    }
}

/// Limits of quantization-aware training that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum QatLimitError {
    /// These minutes are not above 0, or more than [`crate::MAX_MINUTES`].
    #[error("minutes {}", minutes_problem(*.0).unwrap_or_default())]
    InvalidMinutes(f64),
    /// Limits were given for a mode that does not train.
    #[error("minutes and steps apply to mode qat only: the other modes do not train")]
    NoTraining,
}

impl From<QatLimitError> for JobError {
    fn from(error: QatLimitError) -> Self {
        Self::wrong_use(error.to_string())
    }
}

/// Number of evaluations on the held-out tiles.
const EVALUATIONS: u64 = 4;
/// Decay of the EMA of the weights.
const EMA: f64 = 0.95;
/// Maximum gradient norm.
const CLIP_NORM: f32 = 1.0;

/// Returns the mean squared error divided by the mean square of the target: the square of the relative L2 error.
fn loss(channels: usize, mean_square: f64) -> Loss {
    let factor = (1.0 / mean_square.max(1e-12)) as f32;
    Loss {
        terms: vec![LossTerm {
            kind: LossKind::MeanSquared,
            channels: 0..channels,
            factor,
            sigmoid: false,
            within: None,
        }],
    }
}

impl QatTrainer {
    /// Returns a trainer for a quantization of this mode, with at most this many minutes and steps (at least one); by
    /// default, the steps of [`QatTrainer::default`] and no limit in minutes.
    ///
    /// # Errors
    /// [`QatLimitError`] if a limit is invalid, or is given for a mode that does not train.
    pub fn limited(mode: QuantizeMode, minutes: Option<f64>, steps: Option<u64>) -> Result<Self, QatLimitError> {
        if let Some(minutes) = minutes.filter(|minutes| minutes_problem(*minutes).is_some()) {
            return Err(QatLimitError::InvalidMinutes(minutes));
        }
        if (minutes.is_some() || steps.is_some()) && mode != QuantizeMode::Qat {
            return Err(QatLimitError::NoTraining);
        }
        let default = Self::default();
        Ok(Self { steps: steps.unwrap_or(default.steps).max(1), minutes, ..default })
    }

    fn stepper(
        &self,
        graph: Graph,
        on: &dyn Engine,
        loss: Loss,
        shape: Vec<usize>,
        only: Vec<String>,
    ) -> Result<Stepper, JobError> {
        let options = StepperOptions {
            loss,
            optimizer: Optimizer::Adam { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 },
            shape,
            batch_statistics: false,
            further_weights: false,
            only,
            ema: EMA,
            threads: self.threads,
            memory_budget_bytes: None,
            half: None,
            exact: true,
            recorder: Recorder::totals_only(),
            tuning: TuningListener::default(),
        };
        Stepper::new(graph, on, &options)
    }

    /// Returns the quantized network with the trained weights.
    fn quantized_graph(&self, fake: &FakeQuantized, stepper: &Stepper, quantized: &Graph) -> Result<Graph, JobError> {
        let mut made = quantized.clone();
        fake.write_back(&stepper.network()?, &mut made).map_err(model_error("the quantized network"))?;
        Ok(made)
    }
}

impl QuantizationAwareTraining for QatTrainer {
    fn train(&self, context: &Context, task: &QatTask<'_>) -> Result<QatOutcome, JobError> {
        let started = Instant::now();
        let bad = model_error("the quantized network");
        let fake = fake_quantized(task.quantized, task.float).map_err(&bad)?;
        let engine = Devices::cpu_only().engine(DeviceId::Cpu).map_err(engine_error)?;
        let on = engine.as_ref();
        let first = task.tiles.first().ok_or_else(|| crate::error::wrong_use("there are no tiles to train on"))?;
        let shape = first.shape().to_vec();
        // All steps use one compiled graph, hence one tile shape; few tiles differ from it.
        let tiles: Vec<&Tensor> = task.tiles.iter().filter(|t| t.shape() == shape).collect();
        let options =
            CompileOptions { threads: self.threads, recorder: Recorder::totals_only(), ..CompileOptions::default() };
        // Tiles have the channels of all inputs.
        let mut float = task.float.clone();
        join_inputs(&mut float, &input_channels(task.float)).map_err(&bad)?;
        let mut float_session = on.compile(&float, std::slice::from_ref(&shape), &options).map_err(engine_error)?;
        let mut output = |tile: &Tensor| -> Result<Tensor, JobError> {
            let made = float_session.run(std::slice::from_ref(tile)).map_err(engine_error)?.into_iter().next();
            made.ok_or_else(|| crate::error::wrong_use("the float network has no outputs"))
        };
        let expected: Vec<Tensor> = tiles.iter().map(|t| output(t)).collect::<Result<_, _>>()?;
        drop(float_session);
        let floats = expected.iter().map(Tensor::as_f32).collect::<Option<Vec<&[f32]>>>();
        let floats =
            floats.ok_or_else(|| crate::error::wrong_use("the float network's outputs are not 32-bit floats"))?;
        let squares: f64 = floats.into_iter().flatten().map(|v| f64::from(*v) * f64::from(*v)).sum();
        let count: usize = expected.iter().map(Tensor::len).sum();
        let channels = expected.first().and_then(|t| t.shape().get(1)).copied().unwrap_or(1);
        let loss = loss(channels, squares / count.max(1) as f64);
        let mut stepper = self.stepper(fake.graph.clone(), on, loss, shape.clone(), fake.steps())?;
        let mut one = expected.first().map(|t| t.shape().to_vec()).unwrap_or_default();
        if let Some(c) = one.get_mut(1) {
            *c = 1;
        }
        let weight = Tensor::new(one.clone(), vec![1.0f32; one.iter().product()]).map_err(&bad)?;
        let schedule = Schedule { peak: self.rate, warm_up: 0.05, decay: Decay::Cosine { end: 0.02 } };
        // More minutes than a duration can express mean no limit.
        let limit = self.minutes.and_then(|m| Duration::try_from_secs_f64((m * 60.0).max(1.0)).ok());
        let mut best = QatOutcome { graph: task.quantized.clone(), error: task.before, steps: 0 };
        let mut meter = context.meter(ProgressStage::Qat, self.steps, ProgressUnit::Steps);
        let mut taken = 0;
        while taken < self.steps {
            context.check()?;
            // Each epoch visits all tiles, in a different order.
            let count = tiles.len().max(1) as u64;
            let (epoch, place) = (taken / count, taken % count);
            let at = ((place + epoch) * stride(count) % count) as usize;
            let (Some(tile), Some(target)) = (tiles.get(at), expected.get(at)) else { break };
            let output = stepper.forward_backward(vec![(*tile).clone(), target.clone(), weight.clone()])?;
            if !matches!(output, StepOutput::Loss(_)) {
                context.note("quantization-aware training was stopped: the loss was not finite");
                break;
            }
            let elapsed = limit.map_or(0.0, |l| started.elapsed().as_secs_f64() / l.as_secs_f64());
            let progress = (taken as f64 / self.steps as f64).max(elapsed).min(1.0);
            stepper.optimizer_step(schedule.rate(progress), CLIP_NORM, 1)?;
            taken += 1;
            meter.add(1)?;
            let done = elapsed >= 1.0 || taken == self.steps;
            if done || taken * EVALUATIONS / self.steps > (taken - 1) * EVALUATIONS / self.steps {
                let graph = self.quantized_graph(&fake, &stepper, task.quantized)?;
                let error = (task.error)(&graph)?;
                if error < best.error {
                    best = QatOutcome { graph, error, steps: taken };
                }
            }
            if done {
                break;
            }
        }
        best.steps = taken;
        Ok(best)
    }
}

/// Returns a stride that visits all of `count` places, modulo `count`.
fn stride(count: u64) -> u64 {
    (count * 5 / 8..count).find(|s| *s > 0 && gcd(*s as usize, count as usize) == 1).unwrap_or(1)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn an_epoch_visits_all_tiles() {
        for count in 1..60 {
            let visited: BTreeSet<u64> = (0..count).map(|place| place * stride(count) % count).collect();
            assert_eq!(visited.len() as u64, count);
        }
    }

    #[test]
    fn limits_apply_to_quantization_aware_training_only() {
        let trainer = QatTrainer::limited(QuantizeMode::Qat, Some(2.0), Some(0)).unwrap();
        assert_eq!((trainer.minutes, trainer.steps), (Some(2.0), 1));
        assert_eq!(QatTrainer::limited(QuantizeMode::Static, None, None), Ok(QatTrainer::default()));
        for minutes in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let refused = QatTrainer::limited(QuantizeMode::Qat, Some(minutes), None);
            assert!(matches!(refused, Err(QatLimitError::InvalidMinutes(_))), "{minutes}");
        }
        for (minutes, steps) in [(Some(1.0), None), (None, Some(9))] {
            let refused = QatTrainer::limited(QuantizeMode::Static, minutes, steps);
            assert_eq!(refused, Err(QatLimitError::NoTraining));
        }
    }
}

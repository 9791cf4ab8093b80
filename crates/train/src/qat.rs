//! Quantization-aware training (QAT) of a network toward the outputs of its float version.

use crate::config::minutes_problem;
use crate::error::{engine_error, model_error};
use crate::step::{StepOutput, Stepper, StepperOptions};
use cytoscope_autodiff::{Decay, FakeQuantized, Schedule, fake_quantized};
use cytoscope_engine::{CompileOptions, DeviceId, Engine, TuningListener};
use cytoscope_graph::{Graph, Loss, LossKind, LossTerm, Op, Optimizer, Tensor, ValueId, gcd};
use cytoscope_graph_passes::{input_channels, join_inputs};
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::{Context, JobError, ProgressStage, ProgressUnit, join_tensors};
use cytoscope_profile::Recorder;
use cytoscope_quantize::{QatOutcome, QatTask, QuantizationAwareTraining, QuantizeMode};
use std::ops::Range;
use std::time::{Duration, Instant};
use thiserror::Error;

/// Quantization-aware training toward the float network's outputs on tiles, so that no labels are needed. The weights of
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

/// Returns the mean squared error of an output with these channels, divided by the mean square of its target: the square of the
/// relative L2 error.
fn term(channels: Range<usize>, mean_square: f64) -> LossTerm {
    let factor = (1.0 / mean_square.max(1e-12)) as f32;
    LossTerm { kind: LossKind::MeanSquared, channels, factor, sigmoid: false, within: None }
}

/// What a quantized network is trained towards.
struct Targets {
    /// Indices of the outputs that are trained: the first one, and others of the same lengths.
    outputs: Vec<usize>,
    /// These outputs of the float network for each tile, as one tensor with the channels of all.
    tensors: Vec<Tensor>,
    /// Compares these outputs; each counts alike.
    loss: Loss,
}

impl Targets {
    /// Returns the targets for the outputs of the float network on each tile.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] if there are no outputs, or they are not 32-bit floats.
    fn of(tiles: Vec<Vec<Tensor>>) -> Result<Self, JobError> {
        let first = tiles.first().and_then(|outputs| outputs.first());
        let first = first.ok_or_else(|| crate::error::wrong_use("the float network has no outputs"))?;
        let not_floats = || crate::error::wrong_use("the float network's outputs are not 32-bit floats");
        let all = tiles.first().into_iter().flatten().enumerate();
        let outputs: Vec<usize> =
            all.filter(|(index, output)| *index == 0 || are_joinable(first, output)).map(|(index, _)| index).collect();
        let (mut terms, mut channels) = (Vec::new(), 0);
        for index in &outputs {
            let (mut squares, mut count, mut own) = (0.0, 0, 1);
            for tensor in tiles.iter().filter_map(|outputs| outputs.get(*index)) {
                let values = tensor.as_f32().ok_or_else(not_floats)?;
                squares += values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>();
                count += values.len();
                own = tensor.shape().get(1).copied().unwrap_or(1);
            }
            terms.push(term(channels..channels + own, squares / count.max(1) as f64));
            channels += own;
        }
        let is_trained = |(index, _): &(usize, Tensor)| outputs.contains(index);
        let joined = |tile: Vec<Tensor>| {
            let trained = tile.into_iter().enumerate().filter(is_trained).map(|(_, tensor)| tensor);
            join_tensors(trained.collect()).ok_or_else(not_floats)
        };
        let tensors = tiles.into_iter().map(joined).collect::<Result<_, _>>()?;
        Ok(Self { outputs, tensors, loss: Loss { terms } })
    }

    /// Returns the network with the outputs that are trained as its only one.
    fn joined_outputs(&self, network: &Graph) -> Graph {
        let mut graph = network.clone();
        let trained = self.outputs.iter().filter_map(|index| network.outputs.get(*index).copied());
        let ids: Vec<ValueId> = trained.collect();
        graph.outputs = match ids.as_slice() {
            [_, _, ..] => {
                let inputs: Vec<Option<ValueId>> = ids.iter().copied().map(Some).collect();
                vec![graph.push("outputs", Op::concat(1), &inputs)]
            }
            _ => ids,
        };
        graph
    }
}

/// Returns whether two outputs are 32-bit floats that differ only in their number of channels.
fn are_joinable(a: &Tensor, b: &Tensor) -> bool {
    match (a.shape(), b.shape()) {
        ([batch, _, space @ ..], [other_batch, _, other_space @ ..]) => {
            batch == other_batch && space == other_space && a.as_f32().is_some() && b.as_f32().is_some()
        }
        _ => false,
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
        let run = |tile: &&Tensor| float_session.run(std::slice::from_ref(*tile)).map_err(engine_error);
        let targets = Targets::of(tiles.iter().map(run).collect::<Result<_, _>>()?)?;
        drop(float_session);
        let network = targets.joined_outputs(&fake.graph);
        let mut stepper = self.stepper(network, on, targets.loss.clone(), shape.clone(), fake.steps())?;
        let mut one = targets.tensors.first().map(|t| t.shape().to_vec()).unwrap_or_default();
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
            let (Some(tile), Some(target)) = (tiles.get(at), targets.tensors.get(at)) else { break };
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
    use cytoscope_graph::{Activation, ConvAttrs, Dim, ElementType};
    use cytoscope_graph_passes::quantize::{Activations, Group, QuantRange, prepare, quantize};
    use std::collections::BTreeSet;

    const SHAPE: [usize; 5] = [1, 1, 4, 8, 12];

    /// Returns pseudo-random numbers in −1..1.
    fn noise(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i + 31 * seed) * 7919 % 1000) as f32 / 500.0 - 1.0).collect()
    }

    /// Adds a convolution with its own weights from `inputs` to `outputs` channels.
    fn add_conv(graph: &mut Graph, name: &str, from: ValueId, [inputs, outputs]: [usize; 2], seed: usize) -> ValueId {
        let weight: Vec<f32> = noise(27 * inputs * outputs, seed).iter().map(|v| 0.3 * v).collect();
        let weight = Tensor::new([outputs, inputs, 3, 3, 3], weight).unwrap();
        let weight = graph.add_initializer(format!("{name}.weight"), weight);
        let bias = graph.add_initializer(format!("{name}.bias"), Tensor::vector(noise(outputs, seed + 1)));
        graph.push(name, Op::Conv(ConvAttrs::same(&[3; 3])), &[Some(from), Some(weight), Some(bias)])
    }

    /// Returns a network with two outputs, the second one of which has this many channels, and its int8 form.
    fn two_outputs(channels: usize) -> [Graph; 2] {
        let mut graph = Graph::new("two outputs");
        let x = graph.add_input("x", ElementType::F32, SHAPE.map(Dim::Fixed).to_vec());
        let hidden = add_conv(&mut graph, "hidden", x, [1, 4], 3);
        let hidden = graph.push("relu", Op::Activation(Activation::Relu), &[Some(hidden)]);
        for (name, count, seed) in [("mask", 1, 11), ("flow", channels, 23)] {
            let output = add_conv(&mut graph, name, hidden, [4, count], seed);
            graph.outputs.push(output);
        }
        let float = prepare(&graph).unwrap();
        let range = |_: &Group| QuantRange::of(-1.0, 3.0);
        let int8 = quantize(&float, &Activations::Static(&range), &BTreeSet::new()).unwrap();
        [float, int8]
    }

    /// Returns the relative L2 error of an output of the int8 network.
    fn relative_error([float, int8]: [&Graph; 2], tile: &Tensor, output: usize) -> f64 {
        let outputs = |graph: &Graph| cytoscope_reference::run(graph, &[("x".to_owned(), tile.clone())]).unwrap();
        let [expected, found] = [float, int8].map(|graph| outputs(graph)[output].to_f64_vec());
        let sum = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
        let squares = sum(&mut expected.iter().zip(&found).map(|(a, b)| a - b));
        (squares / sum(&mut expected.iter().copied())).sqrt()
    }

    #[test]
    fn each_output_is_trained_towards_that_of_the_float_network() {
        let tile = Tensor::new(SHAPE, noise(SHAPE.iter().product(), 1)).unwrap();
        for channels in [1, 3] {
            let [float, int8] = two_outputs(channels);
            for output in [0, 1] {
                let error =
                    |graph: &Graph| -> Result<f64, JobError> { Ok(relative_error([&float, graph], &tile, output)) };
                let before = relative_error([&float, &int8], &tile, output);
                let tiles = std::slice::from_ref(&tile);
                let task = QatTask { float: &float, quantized: &int8, tiles, error: &error, before, budget: 0.0 };
                let trainer = QatTrainer { steps: 60, ..QatTrainer::default() };
                let trained = trainer.train(&Context::default(), &task).unwrap();
                assert!(
                    trained.error < 0.97 * before,
                    "output {output} of {channels} channels: {} of {before}",
                    trained.error
                );
            }
        }
    }

    #[test]
    fn outputs_of_other_lengths_are_not_trained() {
        let tensor = |shape: &[usize], value: f32| Tensor::new(shape, vec![value; shape.iter().product()]).unwrap();
        let tile = |value: f32| {
            vec![tensor(&[1, 2, 4, 4], value), tensor(&[1, 1, 2, 2], 9.0), tensor(&[1, 1, 4, 4], 2.0 * value)]
        };
        let targets = Targets::of(vec![tile(1.0), tile(3.0)]).unwrap();
        assert_eq!(targets.outputs, [0, 2]);
        assert_eq!(targets.tensors[1].shape(), [1, 3, 4, 4]);
        assert_eq!(targets.tensors[1].as_f32().unwrap()[31..33], [3.0, 6.0]);
        // The means of the squares are 5 and 20.
        let terms: Vec<(Range<usize>, f32)> =
            targets.loss.terms.iter().map(|term| (term.channels.clone(), term.factor)).collect();
        assert_eq!(terms, [(0..2, 0.2), (2..3, 0.05)]);
        assert!(Targets::of(Vec::new()).is_err() && Targets::of(vec![Vec::new()]).is_err());
    }

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

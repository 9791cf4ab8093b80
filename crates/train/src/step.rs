//! Training steps on an engine: forward and backward pass, optimizer step, EMA and batch norm statistics.

mod build;
mod scaled;

use crate::error::{engine_error, model_error};
use crate::joined::Joined;
use crate::step_graphs::{
    BATCH_SHARE, HYPER, LOSS_SCALE, NORM_MOMENTUM, ParameterBuffer, SCALE_STATE, STEP_LOSS, TOTALS, batch_buffer,
    batch_sum_buffer, running_buffer,
};
use cytoscope_autodiff::{GradientGraph, Parameter, set_constant};
use cytoscope_engine::{BoundSession, Buffers, TuningListener};
use cytoscope_graph::{ElementType, Graph, Hyper, Loss, Optimizer, ScaleState, Tensor};
use cytoscope_graph_passes::{MixedPrecisionStats, RecomputeStats};
use cytoscope_pipeline::JobError;
use cytoscope_profile::{DeviceTraffic, Recorder, Stage};
use std::collections::BTreeMap;

pub(crate) use build::{activation_budget, input_parts};

/// Everything that a training step changes, as checkpoints store it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ModelState {
    /// Trainable parameters, in the order of the gradient graph.
    pub values: Vec<Tensor>,
    /// First moments of the optimizer.
    pub first_moment: Vec<Tensor>,
    /// Second moments; empty if the optimizer has none.
    pub second_moment: Vec<Tensor>,
    /// Exponential moving average (EMA) of the parameters; empty if disabled.
    pub average: Vec<Tensor>,
    /// Running statistics of batch norms, by name.
    pub running_stats: BTreeMap<String, Tensor>,
    /// Optimizer steps since initialization, for the bias correction.
    pub optimizer_steps: u32,
    /// Loss scale of mixed precision; 1 otherwise.
    pub loss_scale: f32,
    /// Steps since the loss scale changed.
    pub steady_steps: u32,
}

/// The part of [`ModelState`] that is not in buffers.
struct HostState {
    /// Whether the parameters have an EMA.
    has_average: bool,
    /// Names of the running statistics.
    running_stats: Vec<String>,
    /// The rest is in a buffer, too, if a device decides about the loss scale; this is then what was read last.
    optimizer_steps: u32,
    loss_scale: f32,
    steady_steps: u32,
}

/// Result of the forward and backward pass of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum StepOutput {
    /// The loss; the gradients were accumulated.
    Loss(f64),
    /// The loss or a gradient is not finite.
    NotFinite,
}

/// Options of a [`Stepper`].
#[derive(Clone)]
pub(crate) struct StepperOptions {
    /// Compares the network's output with a batch's targets; voxels without weight do not count.
    pub loss: Loss,
    /// Update rule of the parameters with its constants; the learning rate is passed with each step.
    pub optimizer: Optimizer,
    /// Shape of the network's input for a batch of patches; of several inputs, with the channels of all.
    pub shape: Vec<usize>,
    /// Whether batch norms use batch statistics and update their running statistics.
    pub batch_statistics: bool,
    /// Whether a batch has its own weights for the channels after the first.
    pub further_weights: bool,
    /// Train only parameters whose names contain one of these strings; if empty, all.
    pub only: Vec<String>,
    /// Decay of the EMA of the parameters; 0 disables it.
    pub ema: f64,
    /// Number of threads on the CPU; 0 uses all cores.
    pub threads: usize,
    /// Memory limit for activations in bytes; by default half of the device's free memory.
    pub memory_budget_bytes: Option<u64>,
    /// 16-bit element type of convolutions and matrix products in mixed precision; `None` for 32-bit training.
    pub half: Option<ElementType>,
    /// Whether 32-bit convolutions may not round their factors to TF32.
    pub exact: bool,
    /// Collects the spans of compiling and of each step.
    pub recorder: Recorder,
    /// Notified while the device is tuned for the first step.
    pub tuning: TuningListener,
}

/// A network in training.
pub(crate) struct Stepper {
    /// The network with its initial parameters.
    model: Graph,
    graph: GradientGraph,
    /// The tensors of parameters that buffers hold.
    joined: Joined,
    /// Parameters, gradients, optimizer state, EMA and batch norm statistics, which stay in the engine. They are dropped before
    /// the sessions, which then return the free memory to the device.
    buffers: Buffers,
    gradients: BoundSession,
    update: BoundSession,
    /// On devices, adds gradients and batch statistics to accumulated ones. The CPU adds them in its buffers.
    sum: Option<BoundSession>,
    /// On devices, updates EMA and running statistics, if there are any.
    averages: Option<BoundSession>,
    /// Whether the optimizer has second moments.
    has_second_moment: bool,
    ema: f64,
    host: HostState,
    /// Whether gradients were accumulated since the last optimizer step.
    has_sum: bool,
    /// Number of batches whose share is in the buffer [`BATCH_SHARE`]; 0 before the first step.
    share_batches: usize,
    /// Number of batches since the host last read loss and norm from the device.
    unread: usize,
    /// The total of losses that the host read last.
    read_loss: f64,
    /// Increase of the total of losses between the last two readings, without its sign; infinite at first.
    last_added: f64,
    /// How often the host read the totals since they were 0.
    readings: usize,
    /// Whether the device decides about the loss scale and skips updates with gradients that are not finite.
    is_scaled: bool,
    /// Steps whose update was skipped because of an overflow, of those that were read.
    skipped_steps: u64,
    recorder: Recorder,
    /// Whether the engine computes on a device other than the CPU. The CPU records forward and backward pass separately.
    on_device: bool,
}

/// Number of readings after which totals start at 0 again: a loss is the difference of two totals of 32 bits, which must not
/// become so large that it loses accuracy.
const MAX_READINGS: usize = 64;

/// Computes `to = keep · to + share · from` for 32-bit floats of the same number.
fn blend(to: &mut Tensor, from: &Tensor, keep: f32, share: f32) -> Result<(), JobError> {
    let (Some(a), Some(b)) = (to.as_f32(), from.as_f32().filter(|b| b.len() == to.len())) else {
        let (to, from) = ((to.dtype(), to.shape()), (from.dtype(), from.shape()));
        return Err(JobError::Internal(format!("training step: {from:?} does not update {to:?}")));
    };
    let values: Vec<f32> = a.iter().zip(b).map(|(a, b)| keep * a + share * b).collect();
    *to = Tensor::new(to.shape(), values).map_err(model_error("the network"))?;
    Ok(())
}

/// Puts the parameters, moments and loss scale of a state into buffers, and sets the totals to 0; returns the rest.
///
/// # Errors
/// If a tensor and its parameter differ in their number of elements.
fn split_state(joined: &Joined, state: ModelState, buffers: &mut Buffers) -> Result<HostState, JobError> {
    let has_average = !state.average.is_empty();
    let running_stats = state.running_stats.keys().cloned().collect();
    state.running_stats.into_iter().for_each(|(name, tensor)| buffers.bind(running_buffer(&name), tensor));
    let parts = [
        (ParameterBuffer::Value, state.values),
        (ParameterBuffer::FirstMoment, state.first_moment),
        (ParameterBuffer::SecondMoment, state.second_moment),
        (ParameterBuffer::Average, state.average),
    ];
    for (buffer, tensors) in parts {
        let tensors = joined.join(tensors)?;
        joined.tensors.iter().zip(tensors).for_each(|(p, tensor)| buffers.bind(buffer.name(&p.name), tensor));
    }
    buffers.bind(LOSS_SCALE, Tensor::scalar(state.loss_scale));
    let scale_state = ScaleState::new(state.loss_scale, state.steady_steps, state.optimizer_steps);
    buffers.bind(SCALE_STATE, Tensor::vector(scale_state.to_vec()));
    buffers.bind(STEP_LOSS, Tensor::scalar(0.0f32));
    TOTALS.iter().for_each(|total| buffers.bind(*total, Tensor::scalar(0.0f32)));
    Ok(HostState {
        has_average,
        running_stats,
        optimizer_steps: state.optimizer_steps,
        loss_scale: state.loss_scale,
        steady_steps: state.steady_steps,
    })
}

impl Stepper {
    /// Returns a copy of everything that a training step changes.
    pub(crate) fn state(&self) -> Result<ModelState, JobError> {
        let second_moment = if self.has_second_moment { self.read(ParameterBuffer::SecondMoment)? } else { Vec::new() };
        let average = if self.host.has_average { self.read(ParameterBuffer::Average)? } else { Vec::new() };
        let scale = self.scale_state()?;
        Ok(ModelState {
            values: self.read(ParameterBuffer::Value)?,
            first_moment: self.read(ParameterBuffer::FirstMoment)?,
            second_moment,
            average,
            running_stats: self.running_stats()?,
            optimizer_steps: scale.steps,
            loss_scale: scale.scale,
            steady_steps: scale.steady_steps,
        })
    }

    /// Continues from another state of the same network, without the gradients that were accumulated.
    ///
    /// # Errors
    /// If the state is of another network.
    pub(crate) fn set_state(&mut self, state: ModelState) -> Result<(), JobError> {
        self.zero_grad();
        self.host = split_state(&self.joined, state, &mut self.buffers)?;
        (self.unread, self.read_loss, self.readings, self.skipped_steps) = (0, 0.0, 0, 0);
        Ok(())
    }

    /// Returns copies of the buffers of all parameters.
    fn read(&self, which: ParameterBuffer) -> Result<Vec<Tensor>, JobError> {
        let of = |p: &Parameter| self.buffers.read(&which.name(&p.name)).map_err(engine_error);
        let held = self.joined.tensors.iter().map(of).collect::<Result<Vec<Tensor>, JobError>>()?;
        self.joined.split(&self.graph.parameters, held)
    }

    /// Returns copies of the running statistics by name.
    fn running_stats(&self) -> Result<BTreeMap<String, Tensor>, JobError> {
        let of = |name: &String| -> Result<(String, Tensor), JobError> {
            Ok((name.clone(), self.buffers.read(&running_buffer(name)).map_err(engine_error)?))
        };
        self.host.running_stats.iter().map(of).collect()
    }

    /// Computes the loss and gradients of a batch and accumulates the gradients since the last
    /// [`Stepper::optimizer_step`]. The batch is image, target, weight and, if there are any, the weights of the channels
    /// after the first. The returned loss includes those that were not read yet.
    pub(crate) fn forward_backward(&mut self, batch: Vec<Tensor>) -> Result<StepOutput, JobError> {
        let output = self.forward_backward_later(batch)?;
        if !self.has_unread() {
            return Ok(output);
        }
        Ok(self.unread_loss()?.map_or(StepOutput::NotFinite, StepOutput::Loss))
    }

    /// Returns whether there are batches whose loss was not read yet, or steps that may have been skipped: the loss may not be
    /// finite.
    pub(crate) fn has_unread(&self) -> bool {
        self.unread > 0
    }

    /// Returns the sum of the losses that were not read yet; `None` if one of them or of their gradients is not finite. With a
    /// loss scale, those of steps that were skipped because of an overflow are left out.
    pub(crate) fn unread_loss(&mut self) -> Result<Option<f64>, JobError> {
        if !self.has_unread() {
            return Ok(Some(0.0));
        }
        if self.is_scaled {
            return self.unread_scaled_loss();
        }
        let [loss, norm] = self.read_totals()?;
        Ok((loss.is_finite() && norm.is_finite()).then_some(loss))
    }

    /// Copies two totals from the device. Returns by how much the total of the losses has grown, and the total of the
    /// gradient norms.
    fn read_totals(&mut self) -> Result<[f64; 2], JobError> {
        let [loss, norm] = TOTALS.map(|name| -> Result<f64, JobError> {
            let read = self.buffers.read(name).map_err(engine_error)?;
            Ok(read.to_f64_vec().first().copied().unwrap_or(f64::NAN))
        });
        let (loss, norm) = (loss?, norm?);
        let added = loss - self.read_loss;
        // A total in 32 bits loses what is added if it is much larger, as after a spike.
        let is_large = loss.abs() > MAX_READINGS as f64 * added.abs().min(self.last_added);
        (self.unread, self.read_loss, self.readings, self.last_added) = (0, loss, self.readings + 1, added.abs());
        if is_large || self.readings >= MAX_READINGS || !loss.is_finite() || !norm.is_finite() {
            self.clear_totals();
        }
        Ok([added, norm])
    }

    /// Sets the totals of loss and gradient norm to 0, which takes an upload.
    fn clear_totals(&mut self) {
        TOTALS.iter().for_each(|total| self.buffers.bind(*total, Tensor::scalar(0.0f32)));
        (self.unread, self.read_loss, self.readings) = (0, 0.0, 0);
    }

    /// Like [`Stepper::forward_backward`], but on a device, the loss is left there for [`Stepper::unread_loss`], and 0 is
    /// returned in its place. On the CPU, nothing is accumulated if the loss or a gradient is not finite.
    pub(crate) fn forward_backward_later(&mut self, batch: Vec<Tensor>) -> Result<StepOutput, JobError> {
        let step = self.on_device.then(|| self.recorder.span(Stage::Compute, "forward and backward"));
        let returned = self.buffers.step(&mut self.gradients, batch).map_err(engine_error)?;
        drop(step);
        if self.on_device {
            self.unread += 1;
            self.add_gradients()?;
            return Ok(StepOutput::Loss(0.0));
        }
        let loss = returned.first().and_then(|t| t.to_f64_vec().first().copied()).unwrap_or(f64::NAN);
        if !(loss.is_finite() && self.are_gradients_finite()?) {
            return Ok(StepOutput::NotFinite);
        }
        self.add_gradients()?;
        Ok(StepOutput::Loss(loss))
    }

    /// Returns whether all gradients of the last batch are finite, on the CPU.
    fn are_gradients_finite(&mut self) -> Result<bool, JobError> {
        for p in &self.graph.parameters {
            let gradient = self.buffers.host_mut(&ParameterBuffer::Gradient.name(&p.name)).map_err(engine_error)?;
            if !gradient.as_f32().is_some_and(|v| v.iter().all(|x| x.is_finite())) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Adds the gradients and the batch statistics of the last batch to the accumulated ones.
    fn add_gradients(&mut self) -> Result<(), JobError> {
        if let (true, Some(sum)) = (self.has_sum, &mut self.sum) {
            return self.buffers.step(sum, Vec::new()).map(drop).map_err(engine_error);
        }
        let of_parameter =
            |p: &Parameter| (ParameterBuffer::Gradient.name(&p.name), ParameterBuffer::Sum.name(&p.name));
        let statistics = (0..2 * self.graph.norms.len()).map(|index| (batch_buffer(index), batch_sum_buffer(index)));
        for (found, sum) in self.joined.tensors.iter().map(of_parameter).chain(statistics) {
            if self.has_sum {
                let found = self.buffers.take(&found).map_err(engine_error)?;
                blend(self.buffers.host_mut(&sum).map_err(engine_error)?, &found, 1.0, 1.0)?;
            } else {
                self.buffers.rename(&found, sum).map_err(engine_error)?;
            }
        }
        self.has_sum = true;
        Ok(())
    }

    /// Updates the parameters with the gradients accumulated over `batches` batches, at learning rate `rate` and with
    /// the gradient norm clipped to `limit`. With a loss scale, the device skips the update if they are not finite.
    pub(crate) fn optimizer_step(&mut self, rate: f64, limit: f32, batches: usize) -> Result<(), JobError> {
        if !self.has_sum {
            return Ok(());
        }
        let recorder = self.recorder.clone();
        let _span = recorder.span(Stage::Optimizer, "optimizer step");
        if self.is_scaled {
            return self.scaled_step(rate, limit, batches);
        }
        let state = &mut self.host;
        state.optimizer_steps += 1;
        let scale = 1.0 / (batches.max(1) as f32 * state.loss_scale);
        let hyper = Hyper { rate: rate as f32, step: state.optimizer_steps, scale, limit };
        // The EMA starts with a smaller decay, so that the initial parameters are forgotten faster.
        let steps = f64::from(state.optimizer_steps);
        let keep = self.ema.min((1.0 + steps) / (10.0 + steps)) as f32;
        let mut numbers = hyper.to_vec();
        if self.on_device {
            numbers.extend([keep, 1.0 - keep]);
        }
        self.buffers.bind(HYPER, Tensor::vector(numbers));
        self.buffers.step(&mut self.update, Vec::new()).map_err(engine_error)?;
        state.steady_steps += 1;
        self.zero_grad();
        if self.averages.is_some() { self.average_on_device(batches) } else { self.average_on_host(keep, batches) }
    }

    /// Updates EMA and running statistics in the buffers of a device, after a step of `batches` batches.
    fn average_on_device(&mut self, batches: usize) -> Result<(), JobError> {
        let Some(averages) = &mut self.averages else { return Ok(()) };
        // The buffer stays on the device: each upload takes time.
        if self.share_batches != batches {
            self.buffers.bind(BATCH_SHARE, Tensor::vector(vec![1.0 / batches.max(1) as f32]));
            self.share_batches = batches;
        }
        self.buffers.step(averages, Vec::new()).map(drop).map_err(engine_error)
    }

    /// Updates EMA and running statistics in the buffers of the CPU, after a step of `batches` batches.
    fn average_on_host(&mut self, keep: f32, batches: usize) -> Result<(), JobError> {
        let averaged = if self.host.has_average { self.graph.parameters.as_slice() } else { &[] };
        for p in averaged {
            let name = ParameterBuffer::Average.name(&p.name);
            let mut average = self.buffers.take(&name).map_err(engine_error)?;
            let value = self.buffers.host_mut(&ParameterBuffer::Value.name(&p.name)).map_err(engine_error)?;
            blend(&mut average, value, keep, 1.0 - keep)?;
            self.buffers.bind(name, average);
        }
        for (index, norm) in self.graph.norms.iter().enumerate() {
            for (place, (name, factor)) in
                [(&norm.mean, 1.0), (&norm.variance, norm.unbiased())].into_iter().enumerate()
            {
                if !self.host.running_stats.contains(name) {
                    continue;
                }
                let sum = self.buffers.take(&batch_sum_buffer(2 * index + place)).map_err(engine_error)?;
                let running = self.buffers.host_mut(&running_buffer(name)).map_err(engine_error)?;
                let share = 1.0 / batches.max(1) as f32;
                blend(running, &sum, 1.0 - NORM_MOMENTUM, NORM_MOMENTUM * factor * share)?;
            }
        }
        Ok(())
    }

    /// Discards the accumulated gradients.
    pub(crate) fn zero_grad(&mut self) {
        if self.is_scaled {
            self.buffers.bind(STEP_LOSS, Tensor::scalar(0.0f32));
        }
        self.discard_sums();
    }

    /// Removes the sums of the gradients.
    fn discard_sums(&mut self) {
        self.has_sum = false;
        self.joined.tensors.iter().for_each(|p| self.buffers.discard(&ParameterBuffer::Sum.name(&p.name)));
    }

    /// Returns the network that is validated and saved: with the EMA of the parameters, if enabled.
    pub(crate) fn network(&self) -> Result<Graph, JobError> {
        let mut graph = self.model.clone();
        let bad = model_error("the network");
        let which = if self.host.has_average { ParameterBuffer::Average } else { ParameterBuffer::Value };
        self.graph.set_parameters(&mut graph, &self.read(which)?).map_err(&bad)?;
        for (name, tensor) in self.running_stats()? {
            set_constant(&mut graph, &name, tensor).map_err(&bad)?;
        }
        Ok(graph)
    }

    /// Returns the network with batch norms folded into the convolutions.
    pub(crate) fn folded(&self) -> Result<Graph, JobError> {
        let mut graph = self.network()?;
        cytoscope_graph_passes::fold_batch_norm(&mut graph).map_err(model_error("the network"))?;
        cytoscope_graph_passes::eliminate_dead(&mut graph);
        Ok(graph)
    }

    /// Returns whether there are batch norms that are not folded.
    pub(crate) fn has_norms(&self) -> bool {
        !self.graph.norms.is_empty()
    }

    /// Returns the names of the trainable parameters.
    pub(crate) fn names(&self) -> Vec<String> {
        self.graph.parameters.iter().map(|p| p.name.clone()).collect()
    }

    /// Returns the number of trainable parameters.
    pub(crate) fn parameter_count(&self) -> usize {
        self.graph.parameters.iter().map(|p| p.shape.iter().product::<usize>()).sum()
    }

    /// Returns what its sessions and the reading of buffers have copied between the host and the device; `None` on the CPU.
    pub(crate) fn traffic(&self) -> Option<DeviceTraffic> {
        let sessions = [Some(&self.gradients), Some(&self.update), self.sum.as_ref(), self.averages.as_ref()];
        let counted = sessions.into_iter().flatten().filter_map(BoundSession::traffic).reduce(DeviceTraffic::plus)?;
        Some(counted.plus(self.buffers.downloads()))
    }

    /// Returns the memory of a step's activations in bytes.
    pub(crate) fn arena_bytes(&self) -> u64 {
        self.gradients.report().arena_bytes
    }

    /// Returns what is recomputed to stay within the memory limit, if anything.
    pub(crate) fn recompute(&self) -> Option<RecomputeStats> {
        self.graph.recomputed
    }

    /// Returns what is computed in 16 bits, if anything.
    pub(crate) fn mixed_precision(&self) -> Option<MixedPrecisionStats> {
        self.graph.halved
    }

    /// Returns the operators that have no kernel for training on this engine, except cheap ones.
    pub(crate) fn slow_fallbacks(&self) -> Vec<String> {
        self.gradients.report().fallbacks.iter().filter(|f| !f.is_cheap).map(|f| f.op.clone()).collect()
    }
}

#[cfg(test)]
mod tests;

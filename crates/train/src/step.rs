//! Training steps on an engine: forward and backward pass, optimizer step, EMA and batch norm statistics.

use crate::error::{engine_error, model_error};
use cytoscope_autodiff::{
    GradientGraph, Parameter, StepOptions, UpdateGraph, gradient_graph, set_constant, update_graph,
};
use cytoscope_engine::{BoundSession, Buffers, CompileOptions, DeviceId, Engine, Precision, Session, TuningListener};
use cytoscope_graph::{ElementType, Graph, Hyper, Loss, Optimizer, Tensor};
use cytoscope_graph_passes::{MixedPrecisionStats, RecomputeStats};
use cytoscope_pipeline::JobError;
use cytoscope_profile::{Recorder, Stage};
use std::collections::BTreeMap;

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

/// The part of [`ModelState`] that is computed outside the engine.
struct HostState {
    average: Vec<Tensor>,
    running_stats: BTreeMap<String, Tensor>,
    optimizer_steps: u32,
    loss_scale: f32,
    steady_steps: u32,
}

/// The buffers of the parameters: their values and the moments of the optimizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Value,
    FirstMoment,
    SecondMoment,
}

impl Part {
    /// Returns the name of a parameter's buffer.
    fn buffer(self, parameter: &str) -> String {
        match self {
            Part::Value => format!("value/{parameter}"),
            Part::FirstMoment => format!("first/{parameter}"),
            Part::SecondMoment => format!("second/{parameter}"),
        }
    }

    /// Returns the names of the buffers of all parameters.
    fn buffers(self, of: &[Parameter]) -> impl Iterator<Item = Option<String>> {
        of.iter().map(move |p| Some(self.buffer(&p.name)))
    }
}

/// Result of the forward and backward pass of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum StepOutput {
    /// The loss; the gradients were accumulated.
    Loss(f64),
    /// A gradient overflowed in 16 bits: the loss scale was reduced, and the accumulated gradients were discarded.
    Overflow,
    /// The loss or a gradient is not finite.
    NotFinite,
}

/// Options of a [`Stepper`].
#[derive(Clone)]
pub(crate) struct StepperOptions {
    pub loss: Loss,
    pub optimizer: Optimizer,
    /// Shape of the network's input for a batch of patches.
    pub shape: Vec<usize>,
    /// Whether batch norms use batch statistics and update their running statistics.
    pub batch_statistics: bool,
    /// Train only parameters whose names contain one of these strings; if empty, all.
    pub only: Vec<String>,
    /// Decay of the EMA of the parameters; 0 disables it.
    pub ema: f64,
    pub threads: usize,
    /// Memory limit for activations in bytes; by default half of the free memory.
    pub memory_budget_bytes: Option<u64>,
    /// 16-bit element type of convolutions and matrix products in mixed precision; `None` for 32-bit training.
    pub half: Option<ElementType>,
    /// Whether 32-bit convolutions may not round their factors to TF32.
    pub exact: bool,
    pub recorder: Recorder,
    /// Is told while the device is tuned for the first step.
    pub tuning: TuningListener,
}

/// A network in training.
pub(crate) struct Stepper {
    /// The network with its initial parameters.
    model: Graph,
    graph: GradientGraph,
    gradients: BoundSession,
    update: BoundSession,
    /// Parameters and optimizer state, which stay in the engine.
    buffers: Buffers,
    /// Whether the optimizer has second moments.
    has_second: bool,
    ema: f64,
    host: HostState,
    grad_sum: Option<Vec<Tensor>>,
    statistics: Vec<Tensor>,
    half: Option<ElementType>,
    recorder: Recorder,
    /// Whether the engine records forward and backward pass separately.
    separates_passes: bool,
}

/// Initial loss scale for [`ElementType::F16`].
const INITIAL_LOSS_SCALE: f32 = 32_768.0;
/// Maximum loss scale.
const MAX_LOSS_SCALE: f32 = 16_777_216.0;
/// Steps without overflow after which the loss scale is doubled.
const STEADY_STEPS: u32 = 200;

/// Momentum of the running statistics: the weight of the current batch.
const NORM_MOMENTUM: f32 = 0.1;

/// Returns the memory limit for activations in bytes: the requested one, or half of the free memory. There is no limit
/// if the system does not tell how much is free.
fn activation_budget(requested: Option<u64>) -> u64 {
    requested.or_else(|| cytoscope_profile::available_bytes().map(|b| b / 2)).unwrap_or(u64::MAX)
}

fn zeros(like: &[Tensor]) -> Result<Vec<Tensor>, JobError> {
    let made: Result<Vec<Tensor>, _> = like.iter().map(|t| Tensor::new(t.shape(), vec![0.0f32; t.len()])).collect();
    made.map_err(model_error("the network"))
}

/// Computes `to = keep · to + share · from` for 32-bit floats of the same number.
fn blend(to: &mut Tensor, from: &Tensor, keep: f32, share: f32) -> Result<(), JobError> {
    let (Some(a), Some(b)) = (to.as_f32(), from.as_f32().filter(|b| b.len() == to.len())) else {
        let (to, from) = ((to.dtype(), to.shape()), (from.dtype(), from.shape()));
        return Err(JobError::Panicked(format!("training step: {from:?} does not update {to:?}")));
    };
    let values: Vec<f32> = a.iter().zip(b).map(|(a, b)| keep * a + share * b).collect();
    *to = Tensor::new(to.shape(), values).map_err(model_error("the network"))?;
    Ok(())
}

/// Returns the running statistics of the batch norms that a model holds, by name.
fn running_stats(graph: &GradientGraph, model: &Graph) -> BTreeMap<String, Tensor> {
    let mut running = BTreeMap::new();
    for norm in &graph.norms {
        for name in [&norm.mean, &norm.variance] {
            if let Some(t) = model.find(name).and_then(|id| model.constant(id)) {
                running.insert(name.clone(), t.as_ref().clone());
            }
        }
    }
    running
}

/// Binds the parameters, which are the last inputs of a gradient graph.
fn bind_gradients(graph: &GradientGraph, session: Box<dyn Session>) -> BoundSession {
    let given = graph.graph.inputs.len().saturating_sub(graph.parameters.len());
    let inputs = std::iter::repeat_n(None, given).chain(Part::Value.buffers(&graph.parameters)).collect();
    BoundSession::new(session, inputs, vec![None; graph.graph.outputs.len()])
}

/// Binds parameters and moments; hyper-parameters and gradients are passed, and the norm of the gradients is returned.
fn bind_update(parameters: &[Parameter], graph: &UpdateGraph, session: Box<dyn Session>) -> BoundSession {
    let second = if graph.has_second { parameters } else { &[] };
    let mut inputs: Vec<Option<String>> = vec![None];
    let mut outputs: Vec<Option<String>> = vec![None];
    inputs.extend(Part::Value.buffers(parameters));
    inputs.extend(parameters.iter().map(|_| None));
    inputs.extend(Part::FirstMoment.buffers(parameters));
    inputs.extend(Part::SecondMoment.buffers(second));
    outputs.extend(Part::Value.buffers(parameters));
    outputs.extend(Part::FirstMoment.buffers(parameters));
    outputs.extend(Part::SecondMoment.buffers(second));
    BoundSession::new(session, inputs, outputs)
}

/// Puts the parameters and moments of a state into buffers; returns the rest.
fn split_state(parameters: &[Parameter], state: ModelState, buffers: &mut Buffers) -> HostState {
    let parts = [
        (Part::Value, state.values),
        (Part::FirstMoment, state.first_moment),
        (Part::SecondMoment, state.second_moment),
    ];
    for (part, tensors) in parts {
        parameters.iter().zip(tensors).for_each(|(p, tensor)| buffers.bind(part.buffer(&p.name), tensor));
    }
    HostState {
        average: state.average,
        running_stats: state.running_stats,
        optimizer_steps: state.optimizer_steps,
        loss_scale: state.loss_scale,
        steady_steps: state.steady_steps,
    }
}

impl Stepper {
    pub(crate) fn new(model_graph: Graph, engine_: &dyn Engine, options: &StepperOptions) -> Result<Self, JobError> {
        let step = StepOptions {
            batch_statistics: options.batch_statistics,
            only: options.only.clone(),
            memory_budget_bytes: Some(activation_budget(options.memory_budget_bytes)),
            half: options.half,
            // Deep supervision: each further output counts half as much as the one before.
            outputs: (0..model_graph.outputs.len() as i32).map(|i| 0.5f32.powi(i)).collect(),
            ..StepOptions::new(options.loss.clone())
        };
        let bad = model_error("the network");
        let graph = gradient_graph(&model_graph, std::slice::from_ref(&options.shape), &step).map_err(&bad)?;
        let values = graph.values(&model_graph).map_err(&bad)?;
        let update = update_graph(&graph.parameters, options.optimizer);
        let compile = CompileOptions {
            precision: if options.exact { Precision::F32 } else { engine_.device().fast_precision() },
            threads: options.threads,
            recorder: options.recorder.clone(),
            tuning: options.tuning.clone(),
            ..CompileOptions::default()
        };
        let shapes = |of: &Graph| -> Result<Vec<Vec<usize>>, JobError> {
            let shape = |id| {
                let value = of.value(id);
                let missing = || JobError::Panicked(format!("training step: \"{}\" has no fixed shape", value.name));
                value.fixed_shape().ok_or_else(missing)
            };
            of.inputs.iter().map(|id| shape(*id)).collect()
        };
        let compiling = options.recorder.span(Stage::Compile, "training step");
        let gradients = engine_.compile(&graph.graph, &shapes(&graph.graph)?, &compile).map_err(engine_error)?;
        let updates = engine_.compile(&update.graph, &shapes(&update.graph)?, &compile).map_err(engine_error)?;
        compiling.finish();
        let state = ModelState {
            first_moment: zeros(&values)?,
            second_moment: if update.has_second { zeros(&values)? } else { Vec::new() },
            average: if options.ema > 0.0 { values.clone() } else { Vec::new() },
            running_stats: running_stats(&graph, &model_graph),
            optimizer_steps: 0,
            loss_scale: if options.half == Some(ElementType::F16) { INITIAL_LOSS_SCALE } else { 1.0 },
            steady_steps: 0,
            values,
        };
        let (gradients, update) = (bind_gradients(&graph, gradients), bind_update(&graph.parameters, &update, updates));
        let has_second = !state.second_moment.is_empty();
        let mut buffers = Buffers::default();
        let host = split_state(&graph.parameters, state, &mut buffers);
        Ok(Self {
            model: model_graph,
            graph,
            gradients,
            update,
            buffers,
            has_second,
            ema: options.ema,
            host,
            grad_sum: None,
            statistics: Vec::new(),
            half: options.half,
            recorder: options.recorder.clone(),
            separates_passes: engine_.device().id == DeviceId::Cpu,
        })
    }

    /// Returns a copy of everything that a training step changes.
    pub(crate) fn state(&self) -> Result<ModelState, JobError> {
        let second_moment = if self.has_second { self.read(Part::SecondMoment)? } else { Vec::new() };
        Ok(ModelState {
            values: self.read(Part::Value)?,
            first_moment: self.read(Part::FirstMoment)?,
            second_moment,
            average: self.host.average.clone(),
            running_stats: self.host.running_stats.clone(),
            optimizer_steps: self.host.optimizer_steps,
            loss_scale: self.host.loss_scale,
            steady_steps: self.host.steady_steps,
        })
    }

    /// Continues from another state of the same network.
    pub(crate) fn set_state(&mut self, state: ModelState) {
        self.host = split_state(&self.graph.parameters, state, &mut self.buffers);
    }

    /// Returns copies of the buffers of all parameters.
    fn read(&self, part: Part) -> Result<Vec<Tensor>, JobError> {
        let of = |p: &Parameter| self.buffers.read(&part.buffer(&p.name)).cloned().map_err(engine_error);
        self.graph.parameters.iter().map(of).collect()
    }

    /// Computes the loss and gradients of a batch and accumulates the gradients since the last
    /// [`Stepper::optimizer_step`]. Nothing is accumulated if the loss or a gradient is not finite.
    pub(crate) fn forward_backward(
        &mut self,
        image: Tensor,
        target: Tensor,
        weight: Tensor,
    ) -> Result<StepOutput, JobError> {
        let mut given = vec![image, target, weight];
        if self.half.is_some() {
            given.push(Tensor::new(Vec::new(), vec![self.host.loss_scale]).map_err(model_error("the loss"))?);
        }
        let step = (!self.separates_passes).then(|| self.recorder.span(Stage::Compute, "forward and backward"));
        let mut made = self.buffers.step(&mut self.gradients, given).map_err(engine_error)?.into_iter();
        drop(step);
        let loss = made.next().and_then(|t| t.to_f64_vec().first().copied()).unwrap_or(f64::NAN);
        let found: Vec<Tensor> = made.by_ref().take(self.graph.parameters.len()).collect();
        let finite = |t: &Tensor| t.as_f32().is_some_and(|v| v.iter().all(|x| x.is_finite()));
        if !loss.is_finite() {
            return Ok(StepOutput::NotFinite);
        }
        if !found.iter().all(finite) {
            if self.host.loss_scale <= 1.0 {
                return Ok(StepOutput::NotFinite);
            }
            self.host.loss_scale = (self.host.loss_scale / 2.0).max(1.0);
            self.host.steady_steps = 0;
            self.zero_grad();
            return Ok(StepOutput::Overflow);
        }
        self.statistics = made.collect();
        match &mut self.grad_sum {
            None => self.grad_sum = Some(found),
            Some(sum) => sum.iter_mut().zip(&found).try_for_each(|(s, g)| blend(s, g, 1.0, 1.0))?,
        }
        Ok(StepOutput::Loss(loss))
    }

    /// Updates the parameters with the gradients accumulated over `batches` batches, at learning rate `rate` and with
    /// the gradient norm clipped to `limit`.
    pub(crate) fn optimizer_step(&mut self, rate: f64, limit: f32, batches: usize) -> Result<(), JobError> {
        let Some(sum) = self.grad_sum.take() else { return Ok(()) };
        let _span = self.recorder.span(Stage::Optimizer, "optimizer step");
        let state = &mut self.host;
        state.optimizer_steps += 1;
        let scale = 1.0 / (batches.max(1) as f32 * state.loss_scale);
        let hyper = Hyper { rate: rate as f32, step: state.optimizer_steps, scale, limit };
        let mut given = vec![Tensor::vector(hyper.to_vec())];
        given.extend(sum);
        self.buffers.step(&mut self.update, given).map_err(engine_error)?;
        state.steady_steps += 1;
        if self.half == Some(ElementType::F16) && state.steady_steps >= STEADY_STEPS {
            state.loss_scale = (state.loss_scale * 2.0).min(MAX_LOSS_SCALE);
            state.steady_steps = 0;
        }
        // The EMA starts with a smaller decay, so that the initial parameters are forgotten faster.
        let steps = f64::from(state.optimizer_steps);
        let keep = self.ema.min((1.0 + steps) / (10.0 + steps)) as f32;
        for (average, parameter) in state.average.iter_mut().zip(&self.graph.parameters) {
            let value = self.buffers.read(&Part::Value.buffer(&parameter.name)).map_err(engine_error)?;
            blend(average, value, keep, 1.0 - keep)?;
        }
        let statistics = std::mem::take(&mut self.statistics);
        for (norm, found) in self.graph.norms.iter().zip(statistics.chunks(2)) {
            let n = norm.count as f32;
            for (name, t, factor) in
                [(&norm.mean, found.first(), 1.0), (&norm.variance, found.get(1), n / (n - 1.0).max(1.0))]
            {
                if let (Some(running), Some(t)) = (state.running_stats.get_mut(name), t) {
                    blend(running, t, 1.0 - NORM_MOMENTUM, NORM_MOMENTUM * factor)?;
                }
            }
        }
        Ok(())
    }

    /// Discards the accumulated gradients.
    pub(crate) fn zero_grad(&mut self) {
        self.grad_sum = None;
    }

    /// Returns the network that is validated and saved: with the EMA of the parameters, if enabled.
    pub(crate) fn network(&self) -> Result<Graph, JobError> {
        let mut graph = self.model.clone();
        let bad = model_error("the network");
        if self.host.average.is_empty() {
            self.graph.set_parameters(&mut graph, &self.read(Part::Value)?).map_err(&bad)?;
        } else {
            self.graph.set_parameters(&mut graph, &self.host.average).map_err(&bad)?;
        }
        for (name, tensor) in &self.host.running_stats {
            set_constant(&mut graph, name, tensor.clone()).map_err(&bad)?;
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

    /// Returns the operators that have no kernel for training on this engine.
    pub(crate) fn fallbacks(&self) -> Vec<String> {
        self.gradients.report().fallbacks.iter().map(|f| f.op.clone()).collect()
    }
}

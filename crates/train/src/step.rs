//! One step after another: parameters, optimizer state, averages, on an engine.

use crate::error::{engine, model};
use cytoscope_engine::{CompileOptions, Engine, Session};
use cytoscope_graph::passes::{Halved, Recomputed};
use cytoscope_graph::training::{
    GradientGraph, Hyper, Loss, Optimizer, StepOptions, gradient_graph, set_constant, update_graph,
};
use cytoscope_graph::{ElementType, Graph, Tensor, passes};
use cytoscope_pipeline::JobError;
use cytoscope_profile::Recorder;
use std::collections::BTreeMap;

/// Everything that a step changes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct State {
    /// Parameters, in the order of the gradient graph.
    pub values: Vec<Tensor>,
    /// First state of the optimizer.
    pub first: Vec<Tensor>,
    /// Second state, where the optimizer has one.
    pub second: Vec<Tensor>,
    /// Average of the parameters; empty without one.
    pub average: Vec<Tensor>,
    /// Statistics of batch norms by name.
    pub running: BTreeMap<String, Tensor>,
    /// Optimizer steps since the state began: for its bias correction.
    pub optimizer_steps: u32,
    /// What the loss is multiplied by in mixed precision; 1 without.
    pub loss_scale: f32,
    /// Steps since the loss scale changed.
    pub steady_steps: u32,
}

/// What came of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Learnt {
    /// Its loss; the gradients are gathered.
    Loss(f64),
    /// A gradient left the range of 16 bits: the loss is scaled less from now on, and what was gathered is thrown away.
    Overflow,
    /// The loss or a gradient is no number.
    NotFinite,
}

/// How a stepper is made.
#[derive(Clone)]
pub(crate) struct StepperOptions {
    pub loss: Loss,
    pub optimizer: Optimizer,
    /// Shape of a batch of patches, as the network takes it.
    pub shape: Vec<usize>,
    /// Batch norms gather statistics; else there are none.
    pub batch_statistics: bool,
    pub only: Vec<String>,
    pub ema: f64,
    pub threads: usize,
    /// Bytes of activations to be held at once; half of the free memory if nothing is said.
    pub memory_budget_bytes: Option<u64>,
    /// Mixed precision: 16-bit floats that products are computed in.
    pub half: Option<ElementType>,
    pub recorder: Recorder,
}

/// A network being taught.
pub(crate) struct Stepper {
    /// The network, with the parameters it began with.
    model: Graph,
    graph: GradientGraph,
    gradients: Box<dyn Session>,
    update: Box<dyn Session>,
    ema: f64,
    pub state: State,
    sum: Option<Vec<Tensor>>,
    statistics: Vec<Tensor>,
    half: Option<ElementType>,
}

/// What the loss is multiplied by at first where gradients have the range of [`ElementType::F16`].
const FIRST_LOSS_SCALE: f32 = 32_768.0;
/// Greatest factor of the loss.
const MOST_LOSS_SCALE: f32 = 16_777_216.0;
/// Steps without overflow after which the factor is doubled.
const STEADY_STEPS: u32 = 200;

/// Share of a batch's statistics in the running ones.
const STATISTICS_SHARE: f32 = 0.1;

/// Bytes of activations that may be held at once: what was asked for, or half of the memory that is free.
fn held_bytes(asked: Option<u64>) -> u64 {
    asked.or_else(|| cytoscope_profile::available_bytes().map(|b| b / 2)).unwrap_or(u64::MAX)
}

fn zeros(like: &[Tensor]) -> Vec<Tensor> {
    like.iter().map(|t| Tensor::new(t.shape(), vec![0.0f32; t.len()])).filter_map(Result::ok).collect()
}

/// `to = keep · to + share · from`
fn blend(to: &mut Tensor, from: &Tensor, keep: f32, share: f32) {
    let (Some(a), Some(b)) = (to.as_f32(), from.as_f32()) else { return };
    let values: Vec<f32> = a.iter().zip(b).map(|(a, b)| keep * a + share * b).collect();
    if let Ok(made) = Tensor::new(to.shape(), values) {
        *to = made;
    }
}

impl Stepper {
    pub(crate) fn new(model_graph: Graph, engine_: &dyn Engine, options: &StepperOptions) -> Result<Self, JobError> {
        let step = StepOptions {
            batch_statistics: options.batch_statistics,
            only: options.only.clone(),
            memory_budget_bytes: Some(held_bytes(options.memory_budget_bytes)),
            half: options.half,
            // Deep supervision: each further output counts half as much as the one before.
            outputs: (0..model_graph.outputs.len() as i32).map(|i| 0.5f32.powi(i)).collect(),
            ..StepOptions::new(options.loss.clone())
        };
        let bad = model("the network");
        let graph = gradient_graph(&model_graph, std::slice::from_ref(&options.shape), &step).map_err(&bad)?;
        let values = graph.values(&model_graph).map_err(&bad)?;
        let update = update_graph(&graph.parameters, options.optimizer);
        let compile = CompileOptions {
            threads: options.threads,
            recorder: options.recorder.clone(),
            ..CompileOptions::default()
        };
        let shapes = |of: &Graph| -> Vec<Vec<usize>> {
            of.inputs.iter().map(|id| of.value(*id).fixed_shape().unwrap_or_default()).collect()
        };
        let gradients = engine_.compile(&graph.graph, &shapes(&graph.graph), &compile).map_err(engine)?;
        let updates = engine_.compile(&update.graph, &shapes(&update.graph), &compile).map_err(engine)?;
        let mut running = BTreeMap::new();
        for norm in &graph.norms {
            for name in [&norm.mean, &norm.variance] {
                if let Some(t) = model_graph.find(name).and_then(|id| model_graph.constant(id)) {
                    running.insert(name.clone(), t.as_ref().clone());
                }
            }
        }
        let second = if update.has_second { zeros(&values) } else { Vec::new() };
        let average = if options.ema > 0.0 { values.clone() } else { Vec::new() };
        let state = State {
            first: zeros(&values),
            second,
            average,
            running,
            optimizer_steps: 0,
            loss_scale: if options.half == Some(ElementType::F16) { FIRST_LOSS_SCALE } else { 1.0 },
            steady_steps: 0,
            values,
        };
        Ok(Self {
            model: model_graph,
            graph,
            gradients,
            update: updates,
            ema: options.ema,
            state,
            sum: None,
            statistics: Vec::new(),
            half: options.half,
        })
    }

    /// Loss and gradients of a batch, added to those since the last [`Stepper::advance`]. Nothing is added where the loss or a
    /// gradient is not finite.
    pub(crate) fn learn(&mut self, image: Tensor, target: Tensor, weight: Tensor) -> Result<Learnt, JobError> {
        let mut inputs = vec![image, target, weight];
        if self.half.is_some() {
            inputs.push(Tensor::new(Vec::new(), vec![self.state.loss_scale]).map_err(model("the loss"))?);
        }
        inputs.extend(self.state.values.iter().cloned());
        let mut made = self.gradients.run(&inputs).map_err(engine)?.into_iter();
        let loss = made.next().and_then(|t| t.to_f64_vec().first().copied()).unwrap_or(f64::NAN);
        let found: Vec<Tensor> = made.by_ref().take(self.state.values.len()).collect();
        let finite = |t: &Tensor| t.as_f32().is_some_and(|v| v.iter().all(|x| x.is_finite()));
        if !loss.is_finite() {
            return Ok(Learnt::NotFinite);
        }
        if !found.iter().all(finite) {
            if self.state.loss_scale <= 1.0 {
                return Ok(Learnt::NotFinite);
            }
            self.state.loss_scale = (self.state.loss_scale / 2.0).max(1.0);
            self.state.steady_steps = 0;
            self.forget();
            return Ok(Learnt::Overflow);
        }
        self.statistics = made.collect();
        match &mut self.sum {
            None => self.sum = Some(found),
            Some(sum) => sum.iter_mut().zip(&found).for_each(|(s, g)| blend(s, g, 1.0, 1.0)),
        }
        Ok(Learnt::Loss(loss))
    }

    /// Moves the parameters along what was gathered from `batches` batches.
    pub(crate) fn advance(&mut self, rate: f64, limit: f32, batches: usize) -> Result<(), JobError> {
        let Some(sum) = self.sum.take() else { return Ok(()) };
        self.state.optimizer_steps += 1;
        let state = &mut self.state;
        let scale = 1.0 / (batches.max(1) as f32 * state.loss_scale);
        let hyper = Hyper { rate: rate as f32, step: state.optimizer_steps, scale, limit };
        let mut inputs = vec![Tensor::vector(hyper.to_vec())];
        for part in [&state.values, &sum, &state.first, &state.second] {
            inputs.extend(part.iter().cloned());
        }
        let count = state.values.len();
        let mut made = self.update.run(&inputs).map_err(engine)?.into_iter().skip(1);
        state.values = made.by_ref().take(count).collect();
        state.first = made.by_ref().take(count).collect();
        if !state.second.is_empty() {
            state.second = made.collect();
        }
        state.steady_steps += 1;
        if self.half == Some(ElementType::F16) && state.steady_steps >= STEADY_STEPS {
            state.loss_scale = (state.loss_scale * 2.0).min(MOST_LOSS_SCALE);
            state.steady_steps = 0;
        }
        // The average forgets its beginning sooner.
        let steps = f64::from(state.optimizer_steps);
        let keep = self.ema.min((1.0 + steps) / (10.0 + steps)) as f32;
        state.average.iter_mut().zip(&state.values).for_each(|(a, v)| blend(a, v, keep, 1.0 - keep));
        let statistics = std::mem::take(&mut self.statistics);
        for (norm, found) in self.graph.norms.iter().zip(statistics.chunks(2)) {
            let n = norm.count as f32;
            for (name, t, factor) in
                [(&norm.mean, found.first(), 1.0), (&norm.variance, found.get(1), n / (n - 1.0).max(1.0))]
            {
                if let (Some(running), Some(t)) = (state.running.get_mut(name), t) {
                    blend(running, t, 1.0 - STATISTICS_SHARE, STATISTICS_SHARE * factor);
                }
            }
        }
        Ok(())
    }

    /// Throws away what was gathered.
    pub(crate) fn forget(&mut self) {
        self.sum = None;
    }

    /// The network as it is validated and kept: with the average of the parameters, where there is one.
    pub(crate) fn network(&self) -> Result<Graph, JobError> {
        let values = if self.state.average.is_empty() { &self.state.values } else { &self.state.average };
        let mut graph = self.model.clone();
        let bad = model("the network");
        self.graph.put(&mut graph, values).map_err(&bad)?;
        for (name, tensor) in &self.state.running {
            set_constant(&mut graph, name, tensor.clone()).map_err(&bad)?;
        }
        Ok(graph)
    }

    /// The network with its batch norms folded away.
    pub(crate) fn folded(&self) -> Result<Graph, JobError> {
        let mut graph = self.network()?;
        passes::fold_batch_norm(&mut graph).map_err(model("the network"))?;
        passes::eliminate_dead(&mut graph);
        Ok(graph)
    }

    /// Whether there are batch norms that gather statistics.
    pub(crate) fn has_norms(&self) -> bool {
        !self.graph.norms.is_empty()
    }

    /// Names of the parameters.
    pub(crate) fn names(&self) -> Vec<String> {
        self.graph.parameters.iter().map(|p| p.name.clone()).collect()
    }

    /// Number of values taught.
    pub(crate) fn parameter_count(&self) -> usize {
        self.state.values.iter().map(Tensor::len).sum()
    }

    /// Bytes held while stepping.
    pub(crate) fn arena_bytes(&self) -> u64 {
        self.gradients.report().arena_bytes
    }

    /// What is computed again to keep the memory budget.
    pub(crate) fn recomputed(&self) -> Option<Recomputed> {
        self.graph.recomputed
    }

    /// What computes in 16 bits.
    pub(crate) fn halved(&self) -> Option<Halved> {
        self.graph.halved
    }

    /// Operators that have no kernel for training on this engine.
    pub(crate) fn fallbacks(&self) -> Vec<String> {
        self.gradients.report().fallbacks.iter().map(|f| f.op.clone()).collect()
    }
}

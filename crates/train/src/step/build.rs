//! Builds the graphs of a training step and compiles them.

use super::{ModelState, Stepper, StepperOptions, split_state};
use crate::error::{engine_error, model_error};
use crate::joined::Joined;
use crate::step_graphs::{
    BufferGraph, HYPER, LOSS_SCALE, ParameterBuffer, SCALE_STATE, STEP_LOSS, TOTALS, add_loss_scale, add_step_loss,
    add_totals, average_graph, batch_buffer, extend_hyper, sum_graph,
};
use cytoscope_autodiff::{GradientGraph, Parameter, StepOptions, UpdateGraph, gradient_graph, update_graph};
use cytoscope_engine::{BoundSession, Buffers, CompileOptions, Device, DeviceId, Engine, Precision, Session};
use cytoscope_graph::{ElementType, Graph, LossScale, Tensor};
use cytoscope_graph_passes::{input_channels, join_first_inputs};
use cytoscope_pipeline::JobError;
use cytoscope_profile::Stage;
use std::collections::BTreeMap;

/// Initial loss scale for [`ElementType::F16`].
const INITIAL_LOSS_SCALE: f32 = 32_768.0;

/// Returns the memory limit for activations in bytes: the requested one, or half of what is free on the device. There is
/// no limit if neither system nor driver reports the free memory.
pub(crate) fn activation_budget(requested: Option<u64>, device: &Device) -> u64 {
    let free = || match device.id {
        DeviceId::Cpu => cytoscope_profile::available_bytes(),
        DeviceId::Cuda(_) | DeviceId::Wgpu(_) => device.available_bytes(),
    };
    requested.or_else(|| free().map(|bytes| bytes / 2)).unwrap_or(u64::MAX)
}

fn zeros(like: &[Tensor]) -> Result<Vec<Tensor>, JobError> {
    let made: Result<Vec<Tensor>, _> = like.iter().map(|t| Tensor::new(t.shape(), vec![0.0f32; t.len()])).collect();
    made.map_err(model_error("the network"))
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

/// Returns the state before the first step, with moments of 0. The parameters have an average if the decay `ema` of that is
/// above 0.
fn initial_state(
    values: Vec<Tensor>,
    running_stats: BTreeMap<String, Tensor>,
    update: &UpdateGraph,
    ema: f64,
    is_scaled: bool,
) -> Result<ModelState, JobError> {
    Ok(ModelState {
        first_moment: zeros(&values)?,
        second_moment: if update.has_second_moment { zeros(&values)? } else { Vec::new() },
        average: if ema > 0.0 { values.clone() } else { Vec::new() },
        running_stats,
        optimizer_steps: 0,
        loss_scale: if is_scaled { INITIAL_LOSS_SCALE } else { 1.0 },
        steady_steps: 0,
        values,
    })
}

/// Binds the loss scale (in mixed precision), the parameters (the last inputs of a gradient graph, followed only by
/// `totals`), their gradients, and the batch statistics. Without totals, the session returns the loss.
fn bind_gradients(
    graph: &GradientGraph,
    parameters: &[Parameter],
    session: Box<dyn Session>,
    totals: &[&str],
) -> BoundSession {
    let totals: Vec<Option<String>> = totals.iter().map(|t| Some((*t).to_owned())).collect();
    let scale = graph.halved.map(|_| Some(LOSS_SCALE.to_owned()));
    let bound = parameters.len() + totals.len() + usize::from(scale.is_some());
    let mut inputs: Vec<Option<String>> = vec![None; graph.graph.inputs.len().saturating_sub(bound)];
    inputs.extend(scale);
    inputs.extend(ParameterBuffer::Value.names(parameters));
    inputs.extend(totals.iter().cloned());
    let mut outputs = vec![(!totals.is_empty()).then(|| "loss".to_owned())];
    outputs.extend(ParameterBuffer::Gradient.names(parameters));
    outputs.extend((0..2 * graph.norms.len()).map(|index| Some(batch_buffer(index))));
    outputs.extend(totals);
    BoundSession::new(session, inputs, outputs)
}

/// Binds hyper-parameters, parameters, accumulated gradients and moments, and what [`add_loss_scale`] adds if `is_scaled`.
fn bind_update(
    parameters: &[Parameter],
    graph: &UpdateGraph,
    session: Box<dyn Session>,
    is_scaled: bool,
) -> BoundSession {
    let second = if graph.has_second_moment { parameters } else { &[] };
    let mut inputs: Vec<Option<String>> = vec![(!is_scaled).then(|| HYPER.to_owned())];
    let mut outputs: Vec<Option<String>> = vec![Some("norm".to_owned())];
    inputs.extend(ParameterBuffer::Value.names(parameters));
    inputs.extend(ParameterBuffer::Sum.names(parameters));
    inputs.extend(ParameterBuffer::FirstMoment.names(parameters));
    inputs.extend(ParameterBuffer::SecondMoment.names(second));
    outputs.extend(ParameterBuffer::Value.names(parameters));
    outputs.extend(ParameterBuffer::FirstMoment.names(parameters));
    outputs.extend(ParameterBuffer::SecondMoment.names(second));
    if is_scaled {
        inputs.extend([STEP_LOSS, SCALE_STATE].map(|name| Some(name.to_owned())));
        outputs.extend([HYPER, SCALE_STATE, LOSS_SCALE, STEP_LOSS].map(|name| Some(name.to_owned())));
    }
    BoundSession::new(session, inputs, outputs)
}

/// Adds what a device computes so that the host need not read it in each step; `parameters` is the number of tensors of
/// parameters. Returns the buffers to which the gradient graph adds.
fn add_device_parts(
    graph: &mut GradientGraph,
    update: &mut UpdateGraph,
    parameters: usize,
    is_scaled: bool,
) -> &'static [&'static str] {
    if is_scaled {
        add_step_loss(&mut graph.graph);
        add_loss_scale(&mut update.graph, LossScale::default());
        return &[STEP_LOSS];
    }
    add_totals(&mut graph.graph, parameters);
    extend_hyper(&mut update.graph);
    &TOTALS
}

/// Returns the shapes of a graph's inputs.
fn input_shapes(graph: &Graph) -> Result<Vec<Vec<usize>>, JobError> {
    let shape = |id| {
        let value = graph.value(id);
        let missing = || JobError::Internal(format!("training step: \"{}\" has no fixed shape", value.name));
        value.fixed_shape().ok_or_else(missing)
    };
    graph.inputs.iter().map(|id| shape(*id)).collect()
}

/// Returns the shape of each input of a network for a batch of the shape `all`, which has the channels of all inputs.
pub(crate) fn input_parts(all: &[usize], channels: &[usize]) -> Vec<Vec<usize>> {
    let part = |count: &usize| {
        let mut shape = all.to_vec();
        shape.iter_mut().skip(1).take(1).for_each(|length| *length = *count);
        shape
    };
    if channels.len() < 2 { vec![all.to_vec()] } else { channels.iter().map(part).collect() }
}

/// Returns the options of the gradients of a network.
fn step_options(model_graph: &Graph, engine: &dyn Engine, options: &StepperOptions) -> StepOptions {
    StepOptions {
        batch_statistics: options.batch_statistics,
        further_weights: options.further_weights,
        only: options.only.clone(),
        memory_budget_bytes: Some(activation_budget(options.memory_budget_bytes, engine.device())),
        half: options.half,
        // Deep supervision: each further output counts half as much as the one before.
        outputs: (0..model_graph.outputs.len() as i32).map(|i| 0.5f32.powi(i)).collect(),
        ..StepOptions::new(options.loss.clone())
    }
}

impl Stepper {
    pub(crate) fn new(model_graph: Graph, engine: &dyn Engine, options: &StepperOptions) -> Result<Self, JobError> {
        let step = step_options(&model_graph, engine, options);
        let bad = model_error("the network");
        let on_device = engine.device().id != DeviceId::Cpu;
        let channels = input_channels(&model_graph);
        let mut graph = gradient_graph(&model_graph, &input_parts(&options.shape, &channels), &step).map_err(&bad)?;
        // Batches have the channels of all inputs in one tensor. What joins them comes after differentiation, so it is not
        // trained.
        join_first_inputs(&mut graph.graph, &channels).map_err(&bad)?;
        let values = graph.values(&model_graph).map_err(&bad)?;
        let joined = if on_device { Joined::new(&graph.parameters) } else { Joined::separate(&graph.parameters) };
        joined.rewrite(&mut graph);
        let mut update = update_graph(&joined.tensors, options.optimizer);
        // Only f16 has too small a range for gradients.
        let is_scaled = on_device && options.half == Some(ElementType::F16);
        let totals: &[&str] =
            if on_device { add_device_parts(&mut graph, &mut update, joined.tensors.len(), is_scaled) } else { &[] };
        let compile = CompileOptions {
            precision: if options.exact { Precision::F32 } else { engine.device().fast_precision() },
            threads: options.threads,
            recorder: options.recorder.clone(),
            tuning: options.tuning.clone(),
            ..CompileOptions::default()
        };
        let compiled = |of: &Graph| -> Result<Box<dyn Session>, JobError> {
            engine.compile(of, &input_shapes(of)?, &compile).map_err(engine_error)
        };
        let bound = |of: BufferGraph| -> Result<BoundSession, JobError> {
            Ok(BoundSession::new(compiled(&of.graph)?, of.inputs, of.outputs))
        };
        let compiling = options.recorder.span(Stage::Compile, "training step");
        let (gradients, updates) = (compiled(&graph.graph)?, compiled(&update.graph)?);
        let state = initial_state(values, running_stats(&graph, &model_graph), &update, options.ema, is_scaled)?;
        let gradients = bind_gradients(&graph, &joined.tensors, gradients, totals);
        let update = bind_update(&joined.tensors, &update, updates, is_scaled);
        let (mut sum, mut averages) = (None, None);
        if on_device {
            let averaged = if options.ema > 0.0 { joined.tensors.as_slice() } else { &[] };
            sum = Some(bound(sum_graph(&joined.tensors, &graph.norms, &state.running_stats))?);
            let averaging = average_graph(averaged, &graph.norms, &state.running_stats, is_scaled);
            averages = averaging.map(bound).transpose()?;
        }
        compiling.finish();
        let has_second_moment = !state.second_moment.is_empty();
        let mut buffers = Buffers::default();
        let host = split_state(&joined, state, &mut buffers)?;
        Ok(Self {
            model: model_graph,
            graph,
            joined,
            gradients,
            update,
            sum,
            averages,
            buffers,
            has_second_moment,
            ema: options.ema,
            host,
            has_sum: false,
            share_batches: 0,
            unread: 0,
            read_loss: 0.0,
            last_added: f64::INFINITY,
            readings: 0,
            is_scaled,
            skipped_steps: 0,
            recorder: options.recorder.clone(),
            on_device,
        })
    }
}

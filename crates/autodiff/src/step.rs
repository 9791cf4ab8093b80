//! The gradient graph and the update graph of a training step.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::differentiate;
use crate::quantized::dequantize_activations;
use cytoscope_graph::{
    Activation, BinaryOp, Dim, ElementType, Graph, GraphError, Loss, Node, Op, Optimizer, Padding, PoolAttrs, Result,
    Tensor, ValueId,
};
use cytoscope_graph_passes::infer_shapes;

/// A tensor that a training step updates.
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// Name of the constant in the model, and of the input in the step's graphs.
    pub name: String,
    /// Lengths of its axes, outermost first.
    pub shape: Vec<usize>,
    /// Whether weight decay applies: true for weights, false for norm scales and biases.
    pub decays: bool,
}

/// A batch norm whose running statistics are updated during training.
#[derive(Debug, Clone, PartialEq)]
pub struct RunningNorm {
    /// Name of the running mean's constant in the model.
    pub mean: String,
    /// Name of the running variance's constant in the model.
    pub variance: String,
    /// Values per channel in one batch: the unbiased variance is the batch variance times n / (n − 1).
    pub count: usize,
}

impl RunningNorm {
    /// Returns the ratio of the unbiased variance to the batch variance.
    pub fn unbiased(&self) -> f32 {
        let n = self.count as f32;
        n / (n - 1.0).max(1.0)
    }
}

/// Shapes and loss of a training step, for [`gradient_graph`].
#[derive(Debug, Clone, PartialEq)]
pub struct StepOptions {
    /// Training loss, applied to every output with a weight above 0.
    pub loss: Loss,
    /// Loss weight of each output of the model; if empty, only the first output counts. Smaller outputs (deep
    /// supervision) are compared with means of the target, in which voxels count by their weights.
    pub outputs: Vec<f32>,
    /// Whether batch norms use the batch's statistics; otherwise their stored ones (frozen).
    pub batch_statistics: bool,
    /// Whether the graph has an input of voxel weights.
    pub weighted: bool,
    /// Whether the terms of the loss that do not compare the first channel have their own voxel weights, in another input.
    pub further_weights: bool,
    /// Train only parameters whose name contains one of these; all if empty.
    pub only: Vec<String>,
    /// Maximum bytes of tensors held at once: above it, some are recomputed ([`cytoscope_graph_passes::recompute()`]).
    pub memory_budget_bytes: Option<u64>,
    /// 16-bit float type of mixed precision ([`cytoscope_graph_passes::to_mixed_precision`]). The graph then also has an
    /// input for the loss scale.
    pub half: Option<ElementType>,
}

impl StepOptions {
    /// Returns options for training all parameters on the first output, with voxel weights and batch statistics.
    pub fn new(loss: Loss) -> Self {
        Self {
            loss,
            outputs: Vec::new(),
            batch_statistics: true,
            weighted: true,
            further_weights: false,
            only: Vec::new(),
            memory_budget_bytes: None,
            half: None,
        }
    }
}

/// The forward pass, the loss and the backward pass.
///
/// Inputs: the model's, the target, voxel weights (if requested), those of further channels (if requested), the loss scale (a
/// scalar, in mixed precision), every parameter. Outputs: the loss, every parameter's gradient (times the loss scale), then
/// mean and variance of every running norm.
#[derive(Debug, Clone)]
pub struct GradientGraph {
    /// Forward and backward pass with fixed shapes.
    pub graph: Graph,
    /// Trainable parameters, in the order of the graph's inputs.
    pub parameters: Vec<Parameter>,
    /// Batch norms with running statistics.
    pub norms: Vec<RunningNorm>,
    /// Tensors that are recomputed to stay within a memory budget; `None` without a budget or if it was met without
    /// recomputation.
    pub recomputed: Option<cytoscope_graph_passes::RecomputeStats>,
    /// How much of the graph computes in 16 bits, if mixed precision was requested.
    pub halved: Option<cytoscope_graph_passes::MixedPrecisionStats>,
}

/// The optimizer step for all parameters.
///
/// Inputs: hyper-parameters ([`cytoscope_graph::Hyper::to_vec`]), parameters, gradients, first moments, second moments
/// (if any). Outputs: the global gradient norm, parameters, first moments, second moments.
#[derive(Debug, Clone)]
pub struct UpdateGraph {
    /// The optimizer's arithmetic with fixed shapes.
    pub graph: Graph,
    /// Whether the optimizer has second moments.
    pub has_second_moment: bool,
}

/// Returns a copy of a model in the form that is trained and exported: batch norms are not folded, quantized weights and
/// activations and 16-bit floats become 32-bit floats, decomposed activations are recognized. A `PRelu` with a single slope
/// becomes a `LeakyRelu`, whose slope is not trained.
///
/// # Errors
/// If constants cannot be folded.
pub fn prepare(model: &Graph) -> Result<Graph> {
    let mut graph = model.clone();
    cytoscope_graph_passes::to_single_precision(&mut graph)?;
    cytoscope_graph_passes::fold_constants(&mut graph)?;
    cytoscope_graph_passes::fold_dequantized(&mut graph)?;
    dequantize_activations(&mut graph);
    cytoscope_graph_passes::simplify_activations(&mut graph);
    cytoscope_graph_passes::eliminate_identity(&mut graph);
    cytoscope_graph_passes::eliminate_dead(&mut graph);
    infer_shapes::<ValueId>(&mut graph, &[])?;
    Ok(graph)
}

/// Returns the trainable constants of a prepared model, with whether weight decay applies.
fn trainable(graph: &Graph) -> Vec<(ValueId, bool)> {
    // Weights that are rounded and scaled in the forward pass, and scaled biases, mapped to their trainable floats.
    let mut rounded: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    for node in &graph.nodes {
        let (Some(from), Some(to)) = (node.input(0), node.output(0)) else { continue };
        match node.op {
            Op::FakeQuantize { .. } if graph.constant(from).is_some() => {
                rounded.insert(to, from);
            }
            Op::Binary(BinaryOp::Mul) => {
                let scaled = || node.inputs.iter().flatten().all(|id| graph.constant(*id).is_some()).then_some(from);
                if let Some(first) = rounded.get(&from).copied().or_else(scaled) {
                    rounded.insert(to, first);
                }
            }
            _ => {}
        }
    }
    let mut moving: BTreeSet<ValueId> = graph.inputs.iter().copied().collect();
    let mut found: Vec<(ValueId, bool)> = Vec::new();
    for node in &graph.nodes {
        if !node.inputs.iter().flatten().any(|id| moving.contains(id)) {
            continue;
        }
        moving.extend(node.outputs.iter().flatten());
        let places: &[(usize, bool)] = match &node.op {
            Op::Conv(_) | Op::ConvTranspose(_) | Op::Gemm { .. } => &[(1, true), (2, false)],
            Op::MatMul => &[(0, true), (1, true)],
            Op::BatchNormalization { .. }
            | Op::InstanceNormalization { .. }
            | Op::GroupNormalization { .. }
            | Op::LayerNormalization { .. } => &[(1, false), (2, false)],
            Op::PRelu => &[(1, false)],
            Op::Binary(BinaryOp::Add | BinaryOp::Mul) => &[(0, false), (1, false)],
            _ => &[],
        };
        for (place, decays) in places {
            let Some(id) = node.input(*place) else { continue };
            let id = rounded.get(&id).copied().unwrap_or(id);
            // A scalar that everything is multiplied by or added to belongs to the architecture and is not trained.
            let lone = matches!(node.op, Op::Binary(_));
            let fits = graph
                .constant(id)
                .is_some_and(|t| t.dtype() == ElementType::F32 && (t.len() > 1 || (t.rank() > 0 && !lone)));
            if fits && !found.iter().any(|(known, _)| *known == id) {
                found.push((id, *decays));
            }
        }
    }
    found
}

/// Returns the gradient graph of a prepared model ([`prepare`]) for inputs of these shapes.
///
/// # Errors
/// If an operator between a parameter and the loss has no derivative, the loss does not fit the output, or there is
/// nothing to train.
pub fn gradient_graph(model: &Graph, input_shapes: &[Vec<usize>], options: &StepOptions) -> Result<GradientGraph> {
    let mut graph = model.clone();
    let shapes: Vec<(ValueId, Vec<usize>)> = graph.inputs.iter().copied().zip(input_shapes.iter().cloned()).collect();
    if shapes.len() != graph.inputs.len() || shapes.len() != input_shapes.len() {
        let got = input_shapes.len().to_string();
        return Err(GraphError::misused("number of input shapes", got, graph.inputs.len().to_string()));
    }
    infer_shapes(&mut graph, &shapes)?;
    // Before norms are rewritten: constants that this adds are not the model's.
    let chosen: Vec<(ValueId, bool)> = trainable(&graph)
        .into_iter()
        .filter(|(id, _)| {
            let name = &graph.value(*id).name;
            options.only.is_empty() || options.only.iter().any(|part| name.contains(part.as_str()))
        })
        .collect();
    cytoscope_graph_passes::recognize_trainable_group_norms(&mut graph);
    let norms = if options.batch_statistics { use_batch_statistics(&mut graph)? } else { Vec::new() };
    infer_shapes(&mut graph, &shapes)?;
    let outputs = std::mem::take(&mut graph.outputs);
    let loss = losses(&mut graph, &outputs, options)?;
    infer_shapes(&mut graph, &shapes)?;
    let ids: Vec<ValueId> = chosen.iter().map(|(id, _)| *id).collect();
    // Small gradients would underflow in 16 bits, so the loss is scaled up.
    let scale = options.half.map(|_| graph.add_input("loss_scale", ElementType::F32, Vec::new()));
    let gradients = differentiate(&mut graph, loss, &ids, scale)?;
    graph.outputs.push(loss);
    let mut parameters = Vec::new();
    for ((id, decays), gradient) in chosen.into_iter().zip(gradients) {
        let Some(gradient) = gradient else { continue };
        let Some(tensor) = graph.initializers.remove(&id) else { continue };
        graph.inputs.push(id);
        graph.outputs.push(gradient);
        parameters.push(Parameter { name: graph.value(id).name.clone(), shape: tensor.shape().to_vec(), decays });
    }
    if parameters.is_empty() {
        return Err(GraphError::misused("model", "no weight that its output depends on", "trainable weights"));
    }
    let mut running = Vec::new();
    for norm in norms {
        graph.outputs.extend([norm.0, norm.1]);
        running.push(norm.2);
    }
    cytoscope_graph_passes::eliminate_dead(&mut graph);
    infer_shapes(&mut graph, &shapes)?;
    let halved = options.half.map(|half| cytoscope_graph_passes::to_mixed_precision(&mut graph, half));
    if halved.is_some() {
        infer_shapes(&mut graph, &shapes)?;
    }
    graph.validate()?;
    let recomputed = match options.memory_budget_bytes {
        Some(budget) => Some(cytoscope_graph_passes::recompute(&mut graph, budget)?).filter(|r| r.nodes > 0),
        None => None,
    };
    Ok(GradientGraph { graph, parameters, norms: running, recomputed, halved })
}

/// Switches batch norms to batch statistics; returns the values of their mean and variance.
///
/// # Errors
/// [`GraphError::Misused`] if the shape of a batch norm's input is not known: the variance depends on its size.
fn use_batch_statistics(graph: &mut Graph) -> Result<Vec<(ValueId, ValueId, RunningNorm)>> {
    let mut found = Vec::new();
    for index in 0..graph.nodes.len() {
        let Some(node) = graph.nodes.get(index).cloned() else { break };
        let (Op::BatchNormalization { epsilon }, Some(x), Some(mean), Some(variance)) =
            (&node.op, node.input(0), node.input(3), node.input(4))
        else {
            continue;
        };
        let shape = graph.value(x).fixed_shape().ok_or_else(|| {
            GraphError::misused(format!("shape of \"{}\"", graph.value(x).name), "unknown", "known lengths")
        })?;
        let channels = shape.get(1).copied().unwrap_or(1).max(1);
        let count = shape.iter().product::<usize>() / channels;
        let norm =
            RunningNorm { mean: graph.value(mean).name.clone(), variance: graph.value(variance).name.clone(), count };
        let batch_mean = graph.add_value(format!("{}.batch", norm.mean), None, None);
        let batch_variance = graph.add_value(format!("{}.batch", norm.variance), None, None);
        if let Some(slot) = graph.nodes.get_mut(index) {
            *slot = Node {
                name: node.name.clone(),
                op: Op::BatchNormalizationTraining { epsilon: *epsilon },
                inputs: vec![Some(x), node.input(1), node.input(2)],
                outputs: vec![node.output(0), Some(batch_mean), Some(batch_variance)],
            };
        }
        found.push((batch_mean, batch_variance, norm));
    }
    Ok(found)
}

/// Adds inputs for target and weight and the losses of all outputs with a weight above 0; returns their sum.
fn losses(graph: &mut Graph, outputs: &[ValueId], options: &StepOptions) -> Result<ValueId> {
    let factors = if options.outputs.is_empty() { vec![1.0] } else { options.outputs.clone() };
    let first = outputs.first().copied().ok_or_else(|| GraphError::misused("outputs", "none", "one"))?;
    let shape_of = |graph: &Graph, id: ValueId| {
        let value = graph.value(id);
        let wrong = || GraphError::misused(format!("shape of output \"{}\"", value.name), "unknown", "known lengths");
        value.fixed_shape().ok_or_else(wrong)
    };
    let shape = shape_of(graph, first)?;
    let dims = |shape: &[usize]| shape.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>();
    let dtype = ElementType::F32;
    let target = graph.add_input("target", dtype, dims(&shape));
    let weight = options.weighted.then(|| add_weight(graph, "weight", &shape));
    let further = options.further_weights.then(|| add_weight(graph, "weight.further", &shape));
    let parts = weighted_losses(&options.loss, weight, further);
    let mut total: Option<ValueId> = None;
    for (output, factor) in outputs.iter().zip(&factors).filter(|(_, f)| **f > 0.0) {
        let own = shape_of(graph, *output)?;
        let prediction = logits(graph, *output, &options.loss);
        for (loss, weight) in &parts {
            let (target, weight) = match weight {
                _ if own == shape => (target, *weight),
                None => (mean_pool(graph, target, &shape, &own)?, None),
                Some(weight) => {
                    let (target, weight) = mean_pool_weighted(graph, [target, *weight], &shape, &own)?;
                    (target, Some(weight))
                }
            };
            let mut loss = loss.clone();
            loss.terms.iter_mut().for_each(|t| t.factor *= factor);
            let part = graph.push("loss", Op::Loss(loss), &[Some(prediction), Some(target), weight]);
            total = Some(match total {
                None => part,
                Some(sum) => graph.push("loss.sum", Op::Binary(BinaryOp::Add), &[Some(sum), Some(part)]),
            });
        }
    }
    let total = total.ok_or_else(|| GraphError::misused("outputs", "none with a weight above 0", "one"))?;
    Ok(total)
}

/// Adds an input of voxel weights for outputs of this shape.
fn add_weight(graph: &mut Graph, name: &str, shape: &[usize]) -> ValueId {
    let length = |(axis, n): (usize, &usize)| Dim::Fixed(if axis == 1 { 1 } else { *n });
    let dims = shape.iter().enumerate().map(length).collect();
    graph.add_input(name, ElementType::F32, dims)
}

/// Returns the loss with its weights or, if terms that do not compare the first channel have their own weights, the two
/// parts of the loss with theirs.
fn weighted_losses(loss: &Loss, weight: Option<ValueId>, further: Option<ValueId>) -> Vec<(Loss, Option<ValueId>)> {
    if further.is_none() {
        return vec![(loss.clone(), weight)];
    }
    let (first, others) = loss.terms.iter().cloned().partition(|t| t.channels.contains(&0));
    let parts = [(Loss { terms: first }, weight), (Loss { terms: others }, further)];
    parts.into_iter().filter(|(loss, _)| !loss.terms.is_empty()).collect()
}

/// Returns the input of a final σ if the loss applies σ itself, otherwise the output.
fn logits(graph: &Graph, output: ValueId, loss: &Loss) -> ValueId {
    let sigmoid = loss.terms.iter().all(|t| t.sigmoid);
    let producer = graph.nodes.iter().find(|n| n.output(0) == Some(output));
    match producer {
        Some(Node { op: Op::Activation(Activation::Sigmoid), inputs, .. }) if sigmoid => {
            inputs.first().copied().flatten().unwrap_or(output)
        }
        _ => output,
    }
}

/// Lower bound of a mean weight that a target is divided by.
const LEAST_WEIGHT: f32 = 1e-12;

/// Returns a target and its weights at the size of a smaller output: weighted means of the target, and means of the weights. So
/// voxels without weight, such as those with the ignore label, do not count as background beside others.
fn mean_pool_weighted(
    graph: &mut Graph,
    [target, weight]: [ValueId; 2],
    from: &[usize],
    to: &[usize],
) -> Result<(ValueId, ValueId)> {
    let weighted = graph.push("target.weighted", Op::Binary(BinaryOp::Mul), &[Some(target), Some(weight)]);
    let (weighted, weight) = (mean_pool(graph, weighted, from, to)?, mean_pool(graph, weight, from, to)?);
    let least = graph.add_initializer("weight.least", Tensor::scalar(LEAST_WEIGHT));
    let divisor = graph.push("weight.divisor", Op::Binary(BinaryOp::Max), &[Some(weight), Some(least)]);
    let mean = graph.push("target.mean", Op::Binary(BinaryOp::Div), &[Some(weighted), Some(divisor)]);
    Ok((mean, weight))
}

/// Mean-pools values to the size of a smaller output.
fn mean_pool(graph: &mut Graph, value: ValueId, from: &[usize], to: &[usize]) -> Result<ValueId> {
    let (from, to) = (from.get(2..).unwrap_or_default(), to.get(2..).unwrap_or_default());
    let factors: Vec<usize> = from.iter().zip(to).map(|(f, t)| f / (*t).max(1)).collect();
    if from.len() != to.len() || from.iter().zip(to).zip(&factors).any(|((f, t), k)| t * k != *f) {
        let expected = format!("an integer fraction of {from:?}");
        return Err(GraphError::misused("lengths of an output with a loss", format!("{to:?}"), expected));
    }
    let pool = PoolAttrs {
        kernel: factors.clone(),
        strides: factors.clone(),
        dilations: vec![1; factors.len()],
        padding: Padding::none(factors.len()),
        ceil_mode: false,
        count_include_pad: false,
        column_major_indices: false,
    };
    let pooled = graph.push("smaller", Op::AveragePool(pool), &[Some(value)]);
    Ok(pooled)
}

/// Returns the optimizer step for all parameters; parameters without weight decay use the rule without it.
pub fn update_graph(parameters: &[Parameter], optimizer: Optimizer) -> UpdateGraph {
    let mut graph = Graph::new("update");
    let hyper = graph.add_input("hyper", ElementType::F32, vec![Dim::Fixed(4)]);
    let dims = |p: &Parameter| p.shape.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>();
    let has_second_moment = optimizer.has_second_moment();
    let inputs = |graph: &mut Graph, suffix: &str| -> Vec<ValueId> {
        parameters.iter().map(|p| graph.add_input(format!("{}{suffix}", p.name), ElementType::F32, dims(p))).collect()
    };
    let values = inputs(&mut graph, "");
    let gradients = inputs(&mut graph, ".gradient");
    let first = inputs(&mut graph, ".first");
    let second = if has_second_moment { inputs(&mut graph, ".second") } else { Vec::new() };
    let list: Vec<Option<ValueId>> = gradients.iter().map(|g| Some(*g)).collect();
    let norm = graph.push("norm", Op::GlobalNorm, &list);
    let mut updated: [Vec<ValueId>; 3] = Default::default();
    for (i, p) in parameters.iter().enumerate() {
        let rule = if p.decays { optimizer } else { optimizer.without_decay() };
        let mut inputs = vec![Some(hyper), Some(norm)];
        inputs.extend([&values, &gradients, &first, &second].map(|list| list.get(i).copied()));
        let wanted = if has_second_moment { 3 } else { 2 };
        inputs.truncate(wanted + 3);
        let outputs: Vec<ValueId> = ["", ".first", ".second"]
            .iter()
            .take(wanted)
            .map(|s| graph.add_value(format!("{}{s}.next", p.name), Some(ElementType::F32), Some(dims(p))))
            .collect();
        for (list, id) in updated.iter_mut().zip(&outputs) {
            list.push(*id);
        }
        let outputs = outputs.into_iter().map(Some).collect();
        graph.nodes.push(Node { name: format!("{}.update", p.name), op: Op::Update(rule), inputs, outputs });
    }
    graph.outputs.push(norm);
    graph.outputs.extend(updated.into_iter().flatten());
    UpdateGraph { graph, has_second_moment }
}

impl GradientGraph {
    /// Returns the current values of the parameters in a prepared model.
    ///
    /// # Errors
    /// [`GraphError::Misused`], naming a missing parameter.
    pub fn values(&self, model: &Graph) -> Result<Vec<Tensor>> {
        self.parameters.iter().map(|p| constant(model, &p.name).map(|t| t.as_ref().clone())).collect()
    }

    /// Writes the parameters' values into a prepared model.
    ///
    /// # Errors
    /// [`GraphError::Misused`] if a parameter is missing or has a different shape, or there is not one value for each.
    pub fn set_parameters(&self, model: &mut Graph, values: &[Tensor]) -> Result<()> {
        if values.len() != self.parameters.len() {
            let (got, expected) = (values.len().to_string(), self.parameters.len().to_string());
            return Err(GraphError::misused("number of parameters", got, expected));
        }
        for (parameter, value) in self.parameters.iter().zip(values) {
            set_constant(model, &parameter.name, value.clone())?;
        }
        Ok(())
    }
}

/// Returns a model's constant by name.
fn constant<'g>(model: &'g Graph, name: &str) -> Result<&'g Arc<Tensor>> {
    let missing = || GraphError::misused("weights", "none", format!("\"{name}\""));
    model.find(name).and_then(|id| model.constant(id)).ok_or_else(missing)
}

/// Replaces a model's constant by one with the same shape.
///
/// # Errors
/// [`GraphError::Misused`] if there is no constant with this name or its shape differs.
pub fn set_constant(model: &mut Graph, name: &str, value: Tensor) -> Result<()> {
    let known = constant(model, name)?;
    if known.shape() != value.shape() || known.dtype() != value.dtype() {
        let (got, want) = (format!("{:?}", value.shape()), format!("{:?}", known.shape()));
        return Err(GraphError::misused(format!("weight \"{name}\""), got, want));
    }
    if let Some(id) = model.find(name) {
        model.initializers.insert(id, Arc::new(value));
    }
    Ok(())
}

//! Constant folding: values that do not depend on the inputs are computed once.

use std::sync::Arc;

use super::Readers;
use cytoscope_graph::infer::{Info, fixed, node_infos};
use cytoscope_graph::{
    Budget, Dim, Graph, GraphLimits, Interrupt, Node, Op, Result, Tensor, ValueId, ValueNames, check_limit, op_name,
};

/// Computes nodes whose inputs are all constant, and `Shape` and `Size` of values with a known shape. Quantize and
/// dequantize nodes stay, so that engines can use the integers. Returns the number of folded nodes.
///
/// # Errors
/// If an operator refuses its constants, or would expand them to more than [`GraphLimits::folded_elements`].
pub fn fold_constants(graph: &mut Graph) -> Result<usize> {
    let budget = Budget::new(graph, Interrupt::default());
    fold_constants_within(graph, &budget)
}

/// [`fold_constants`] within a budget: nodes that would exceed it are not folded.
///
/// # Errors
/// Same as [`fold_constants`], and [`cytoscope_graph::GraphError::Interrupted`].
pub fn fold_constants_within(graph: &mut Graph, budget: &Budget) -> Result<usize> {
    fold(graph, &GraphLimits::default(), budget, |op| {
        !matches!(op, Op::QuantizeLinear { .. } | Op::DequantizeLinear { .. } | Op::DynamicQuantizeLinear)
    })
}

/// Like [`fold_constants`], but also converts stored integers to floats where they are only dequantized, for engines
/// that compute in float.
///
/// # Errors
/// Same as [`fold_constants`].
pub fn fold_dequantized(graph: &mut Graph) -> Result<usize> {
    let budget = Budget::new(graph, Interrupt::default());
    fold_dequantized_within(graph, &budget)
}

/// [`fold_dequantized`] within a budget: nodes that would exceed it are not folded.
///
/// # Errors
/// Same as [`fold_constants`], and [`cytoscope_graph::GraphError::Interrupted`].
pub fn fold_dequantized_within(graph: &mut Graph, budget: &Budget) -> Result<usize> {
    fold(graph, &GraphLimits::default(), budget, |_| true)
}

fn fold(graph: &mut Graph, limits: &GraphLimits, budget: &Budget, wanted: impl Fn(&Op) -> bool) -> Result<usize> {
    let mut nodes: std::collections::VecDeque<Node> = std::mem::take(&mut graph.nodes).into();
    let before = nodes.len();
    let mut remaining = Vec::with_capacity(before);
    while let Some(node) = nodes.pop_front() {
        let values = if wanted(&node.op) {
            values_of(graph, &node, limits, budget).map_err(|e| e.at(&node.name, op_name(&node.op)))
        } else {
            Ok(None)
        };
        let values = match values {
            Ok(values) => values,
            Err(e) => {
                // On an error, the remaining nodes are put back, so that the graph stays complete.
                remaining.push(node);
                remaining.extend(nodes);
                graph.nodes = remaining;
                return Err(e);
            }
        };
        let Some(values) = values else {
            remaining.push(node);
            continue;
        };
        for (id, value) in node.outputs.iter().zip(values) {
            let Some(id) = id else { continue };
            if let Some(v) = graph.values.get_mut(id.index()) {
                v.dtype = Some(value.dtype());
                v.shape = Some(fixed(value.shape()));
            }
            graph.initializers.insert(*id, Arc::new(value));
        }
    }
    graph.nodes = remaining;
    Ok(before - graph.nodes.len())
}

fn values_of(graph: &Graph, node: &Node, limits: &GraphLimits, budget: &Budget) -> Result<Option<Vec<Tensor>>> {
    budget.check()?;
    if matches!(node.op, Op::Shape { .. } | Op::Size) {
        let shape = node.input(0).and_then(|id| graph.value(id).fixed_shape());
        return Ok(shape.and_then(|s| cytoscope_reference::shape_values(&node.op, &s)).map(|t| vec![t]));
    }
    let constants: Option<Vec<Option<&Arc<Tensor>>>> =
        node.inputs.iter().map(|id| id.map_or(Some(None), |id| graph.constant(id).map(Some))).collect();
    let Some(constants) = constants else { return Ok(None) };
    let infos: Vec<Option<Info>> = constants.iter().map(|t| t.map(Info::of)).collect();
    let refs: Vec<Option<&Info>> = infos.iter().map(Option::as_ref).collect();
    let outputs = node_infos(&node.op, &refs, node.outputs.len(), limits)?;
    let given: usize = constants.iter().flatten().map(|t| t.len()).sum();
    for info in &outputs {
        let Some(shape) = info.fixed_shape() else { return Ok(None) };
        let elements = shape.iter().fold(1u128, |t, &n| t.saturating_mul(n as u128));
        check_limit("folded_elements", "a constant", elements, limits.folded_elements.max(given) as u128)?;
    }
    if !budget.try_spend(&node.op, &refs, &outputs) {
        return Ok(None);
    }
    let tensors: Vec<Option<&Tensor>> = constants.iter().map(|t| t.map(AsRef::as_ref)).collect();
    cytoscope_reference::eval(&node.op, &tensors, node.outputs.len()).map(Some)
}

/// Folds inference-form batch norms into the preceding convolution (plain or transposed) if that has no other reader
/// and all parameters are f32 constants: w′ = w·s/√(v + ε), b′ = (b − m)·s/√(v + ε) + bias. Returns the number of
/// folded nodes.
///
/// # Errors
/// None in a valid graph.
pub fn fold_batch_norm(graph: &mut Graph) -> Result<usize> {
    let mut readers = Readers::of(graph);
    let mut names = ValueNames::of(graph);
    let mut gone = vec![false; graph.nodes.len()];
    for index in 0..graph.nodes.len() {
        if fold_one(graph, &mut readers, &mut names, index)?.is_some() {
            gone[index] = true;
        }
    }
    Ok(super::remove_marked(graph, &gone))
}

/// Folds node `index` into the preceding convolution; the caller removes the node.
fn fold_one(graph: &mut Graph, readers: &mut Readers, names: &mut ValueNames, index: usize) -> Result<Option<()>> {
    let Some(norm) = graph.nodes.get(index) else { return Ok(None) };
    let (Op::BatchNormalization { epsilon }, Some(x), Some(y)) = (&norm.op, norm.input(0), norm.output(0)) else {
        return Ok(None);
    };
    if readers.sole_reader(x) != Some(index) {
        return Ok(None);
    }
    let Some(producer) = readers.producer(x) else { return Ok(None) };
    let Some(conv) = graph.nodes.get(producer) else { return Ok(None) };
    let constant =
        |id: Option<ValueId>| id.and_then(|id| graph.constant(id)).and_then(|t| t.as_f32()).map(<[f32]>::to_vec);
    let (Some(scale), Some(bias), Some(mean), Some(variance)) =
        (constant(norm.input(1)), constant(norm.input(2)), constant(norm.input(3)), constant(norm.input(4)))
    else {
        return Ok(None);
    };
    // The output channel that an element of the weight belongs to.
    let Some(weight) = conv.input(1).and_then(|id| graph.constant(id)) else { return Ok(None) };
    let shape = weight.shape().to_vec();
    let [first, second, taps @ ..] = shape.as_slice() else { return Ok(None) };
    let taps: usize = taps.iter().product();
    let group = match &conv.op {
        Op::Conv(_) => None,
        Op::ConvTranspose(a) => Some(first / a.group.max(1)),
        _ => return Ok(None),
    };
    let channel = |i: usize| match group {
        None => i / (second * taps).max(1),
        Some(in_group) => i / (second * taps).max(1) / in_group.max(1) * second + i / taps.max(1) % second,
    };
    let Some(values) = weight.as_f32() else { return Ok(None) };
    let old_bias = match conv.input(2) {
        None => vec![0.0; scale.len()],
        id => match constant(id) {
            Some(b) => b,
            None => return Ok(None),
        },
    };
    let factor: Vec<f64> = scale
        .iter()
        .zip(&variance)
        .map(|(&s, &v)| f64::from(s) / (f64::from(v) + f64::from(*epsilon)).sqrt())
        .collect();
    let Some(new_weight) = values
        .iter()
        .enumerate()
        .map(|(i, &w)| factor.get(channel(i)).map(|f| (f64::from(w) * f) as f32))
        .collect::<Option<Vec<f32>>>()
    else {
        return Ok(None);
    };
    let new_bias: Vec<f32> = old_bias
        .iter()
        .zip(&mean)
        .zip(&factor)
        .zip(&bias)
        .map(|(((&b, &m), f), &shift)| ((f64::from(b) - f64::from(m)) * f + f64::from(shift)) as f32)
        .collect();
    let base = conv.name.clone();
    let w = names.add_initializer(graph, &format!("{base}_folded_weight"), Tensor::new(shape, new_weight)?);
    let b = names.add_initializer(graph, &format!("{base}_folded_bias"), Tensor::vector(new_bias));
    if let Some(conv) = graph.nodes.get_mut(producer) {
        conv.inputs = vec![conv.input(0), Some(w), Some(b)];
        conv.outputs = vec![Some(y)];
    }
    readers.set_producer(y, producer);
    Ok(Some(()))
}

/// Whether two values have the same known shape.
pub(super) fn same_shape(graph: &Graph, a: ValueId, b: ValueId) -> bool {
    let shape = |id: ValueId| graph.value(id).shape.clone().filter(|s: &Vec<Dim>| !s.is_empty());
    shape(a).is_some_and(|s| Some(s) == shape(b))
}

//! Shape inference of a whole graph: the types and shapes of all values, and the contents of those that are constant.
//!
//! The rule of each operator is applied in order; values that follow from shapes and small constants are computed by
//! the reference executor, because later shapes may depend on them.

use std::collections::BTreeMap;
use std::sync::Arc;

use cytoscope_graph::infer::{Info, elements, fits, fixed, node_infos};
use cytoscope_graph::{
    Budget, Dim, Graph, GraphError, GraphLimits, Interrupt, Node, Op, Result, Tensor, ValueId, checked_elements,
    op_name,
};

/// Maximum number of elements of values computed during inference: enough for any shape arithmetic.
const MAX_VALUE_ELEMENTS: usize = 4096;

/// Returns the values of an operator's outputs if they follow from shapes and small integers.
fn known_values(op: &Op, inputs: &[Option<&Info>], infos: &[Info], budget: &Budget) -> Option<Vec<Tensor>> {
    match op {
        Op::Shape { .. } | Op::Size => {
            let shape = inputs.first().copied().flatten()?.fixed_shape()?;
            return cytoscope_reference::shape_values(op, &shape).map(|t| vec![t]);
        }
        _ => {}
    }
    let small = |i: &Info| i.fixed_shape().is_some_and(|s| elements(&s) <= MAX_VALUE_ELEMENTS);
    if !infos.iter().all(small) || !inputs.iter().flatten().all(|i| i.value.is_some() && small(i)) {
        return None;
    }
    if matches!(op, Op::Conv(_) | Op::ConvTranspose(_) | Op::FusedConv { .. }) || op.is_training_only() {
        return None;
    }
    if !budget.try_spend(op, inputs, infos) {
        return None;
    }
    let values: Vec<Option<&Tensor>> = inputs.iter().map(|i| i.and_then(|i| i.value.as_deref())).collect();
    cytoscope_reference::eval(op, &values, infos.len()).ok()
}

/// Applies one node's rule, and computes its values where possible. Inputs that `infos` lacks count as absent.
///
/// # Errors
/// If the inputs do not fit the operator or a tensor would be too large, with the node's name;
/// [`GraphError::Interrupted`].
pub fn infer_node(
    node: &Node,
    infos: &BTreeMap<ValueId, Info>,
    limits: &GraphLimits,
    budget: &Budget,
) -> Result<Vec<Info>> {
    budget.check()?;
    let inputs: Vec<Option<&Info>> = node.inputs.iter().map(|id| id.and_then(|id| infos.get(&id))).collect();
    let wanted = node.outputs.len();
    let name = op_name(&node.op);
    let mut outputs = node_infos(&node.op, &inputs, wanted, limits).map_err(|e| e.at(&node.name, name))?;
    if let Some(values) = known_values(&node.op, &inputs, &outputs, budget) {
        for (info, value) in outputs.iter_mut().zip(values) {
            *info = Info::of(&Arc::new(value));
        }
    }
    Ok(outputs)
}

/// Returns everything known about every value of `graph`, given the types and shapes of its inputs.
///
/// # Errors
/// Same as [`infer_node`].
pub fn all_infos(graph: &Graph, limits: &GraphLimits, budget: &Budget) -> Result<BTreeMap<ValueId, Info>> {
    let mut infos = BTreeMap::new();
    for &id in &graph.inputs {
        let value = graph.value(id);
        if let Some(shape) = value.fixed_shape() {
            checked_elements(&shape, "tensor_elements", "an input", limits.tensor_elements)?;
        }
        infos.insert(id, Info::new(value.dtype, value.shape.clone()));
    }
    infos.extend(graph.initializers.iter().map(|(&id, t)| (id, Info::of(t))));
    for node in &graph.nodes {
        let found = infer_node(node, &infos, limits, budget)?;
        for (id, mut info) in node.outputs.iter().zip(found) {
            if let Some(id) = id {
                let declared = graph.value(*id);
                info.dtype = info.dtype.or(declared.dtype);
                info.shape = merged_shape(info.shape, declared.shape.as_deref());
                infos.insert(*id, info);
            }
        }
    }
    Ok(infos)
}

/// Returns the inferred shape, completed by the declared one where inference is incomplete.
pub fn merged_shape(found: Option<Vec<Dim>>, declared: Option<&[Dim]>) -> Option<Vec<Dim>> {
    match (found, declared) {
        (Some(found), Some(declared)) if found.len() == declared.len() => Some(
            found
                .into_iter()
                .zip(declared)
                .map(|(f, d)| if matches!((&f, d), (Dim::Free(_), Dim::Fixed(_))) { d.clone() } else { f })
                .collect(),
        ),
        (Some(found), _) => Some(found),
        (None, declared) => declared.map(<[Dim]>::to_vec),
    }
}

/// A graph input, by the id or the name of its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputKey {
    /// By the id of its value.
    Id(ValueId),
    /// By the name of its value.
    Name(String),
}

impl From<ValueId> for InputKey {
    fn from(id: ValueId) -> Self {
        Self::Id(id)
    }
}

impl From<&str> for InputKey {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

/// Sets the shapes of inputs and infers type and shape of every value of the graph, computing values that follow from
/// shapes. If all inputs have concrete lengths, every value gets a concrete shape, unless a shape depends on the data
/// itself. Shapes inferred earlier are replaced.
///
/// # Errors
/// [`GraphError::Misused`] if a name is not an input, lengths contradict fixed ones, or an operator does not accept its
/// inputs; over a limit if a tensor would be too large.
pub fn infer_shapes<K: Clone + Into<InputKey>>(graph: &mut Graph, input_shapes: &[(K, Vec<usize>)]) -> Result<()> {
    let budget = Budget::new(graph, Interrupt::default());
    infer_shapes_within(graph, input_shapes, &budget)
}

/// [`infer_shapes`] within a budget for computing values: beyond it, dependent shapes stay unknown.
///
/// # Errors
/// Same as [`infer_shapes`], and [`GraphError::Interrupted`].
pub fn infer_shapes_within<K: Clone + Into<InputKey>>(
    graph: &mut Graph,
    input_shapes: &[(K, Vec<usize>)],
    budget: &Budget,
) -> Result<()> {
    infer_shapes_limited(graph, input_shapes, &GraphLimits::default(), budget)
}

/// [`infer_shapes_within`] with limits other than the default ones, for example for tensors that are never in memory as a
/// whole.
///
/// # Errors
/// Same as [`infer_shapes_within`].
pub fn infer_shapes_limited<K: Clone + Into<InputKey>>(
    graph: &mut Graph,
    input_shapes: &[(K, Vec<usize>)],
    limits: &GraphLimits,
    budget: &Budget,
) -> Result<()> {
    for (key, shape) in input_shapes {
        let (id, got) = match key.clone().into() {
            InputKey::Id(id) => (Some(id), format!("value {}", id.index())),
            InputKey::Name(name) => (graph.find(&name), format!("\"{name}\"")),
        };
        let id = id.filter(|id| graph.inputs.contains(id)).ok_or_else(|| {
            let names: Vec<_> = graph.inputs.iter().map(|&i| graph.value(i).name.as_str()).collect();
            GraphError::misused("input", got, format!("one of {names:?}"))
        })?;
        fits(graph, id, shape)?;
        if let Some(value) = graph.values.get_mut(id.index()) {
            value.shape = Some(fixed(shape));
        }
    }
    for index in 0..graph.nodes.len() {
        let Some(outputs) = graph.nodes.get(index).map(|n| n.outputs.clone()) else { continue };
        for id in outputs.into_iter().flatten() {
            if let Some(value) = graph.values.get_mut(id.index()) {
                value.shape = None;
            }
        }
    }
    let infos = all_infos(graph, limits, budget)?;
    for (id, info) in infos {
        if let Some(value) = graph.values.get_mut(id.index()) {
            value.dtype = info.dtype;
            value.shape = info.shape;
        }
    }
    Ok(())
}

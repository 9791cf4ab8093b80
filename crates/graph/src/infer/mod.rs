//! Type and shape inference.
//!
//! Each operator has one rule, which checks the inputs and determines type and shape of the outputs. The reference
//! executor applies the same rules to concrete shapes before it computes, so its kernels may rely on these checks.

mod data;
mod elementwise;
mod shape_ops;
mod training;
mod window;

/// Rules that the reference executor and the analyses also apply.
pub(crate) mod rules {
    pub(crate) use super::data::reduced_axes;
    pub(crate) use super::elementwise::broadcast;
    pub(crate) use super::shape_ops::{cut, pad_plan, permutation, range_length, shape_range, slice_plan};
    pub(crate) use super::window::resize_geometry;
}

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::budget::{Budget, Interrupt};
use crate::error::{GraphError, Result};
use crate::graph::{Dim, Graph, Node, ValueId};
use crate::limits::{GraphLimits, checked_elements};
use crate::op::Op;
use crate::tensor::{ElementType, Tensor};

/// What is known about a value.
#[derive(Debug, Clone, Default)]
pub(crate) struct Info {
    pub dtype: Option<ElementType>,
    pub shape: Option<Vec<Dim>>,
    /// The value itself, if it follows from shapes and constants.
    pub value: Option<Arc<Tensor>>,
}

impl Info {
    pub(crate) fn of(tensor: &Arc<Tensor>) -> Self {
        Self { dtype: Some(tensor.dtype()), shape: Some(fixed(tensor.shape())), value: Some(Arc::clone(tensor)) }
    }

    pub(crate) fn new(dtype: Option<ElementType>, shape: Option<Vec<Dim>>) -> Self {
        Self { dtype, shape, value: None }
    }

    pub(crate) fn rank(&self) -> Option<usize> {
        self.shape.as_ref().map(Vec::len)
    }

    pub(crate) fn fixed_shape(&self) -> Option<Vec<usize>> {
        self.shape.as_ref()?.iter().map(Dim::fixed).collect()
    }

    /// Returns the value as integers, if it is known.
    pub(crate) fn ints(&self) -> Option<Vec<i64>> {
        self.value.as_ref()?.to_i64_vec()
    }
}

/// Returns the product of the lengths, saturating at `usize::MAX`.
pub(crate) fn elements(shape: &[usize]) -> usize {
    shape.iter().fold(1usize, |total, n| total.saturating_mul(*n))
}

/// Converts lengths to fixed dimensions.
pub(crate) fn fixed(shape: &[usize]) -> Vec<Dim> {
    shape.iter().map(|&n| Dim::Fixed(n)).collect()
}

/// The inputs of one operator, with checks that all rules share.
pub(crate) struct OpInputs<'a> {
    pub inputs: &'a [Option<&'a Info>],
    pub outputs: usize,
    pub limits: &'a GraphLimits,
}

impl<'a> OpInputs<'a> {
    /// Returns input `index`, which must be present.
    pub(crate) fn need(&self, index: usize) -> Result<&'a Info> {
        self.get(index).ok_or_else(|| GraphError::misused("inputs", format!("none at {index}"), "one"))
    }

    /// Returns input `index`, if present.
    pub(crate) fn get(&self, index: usize) -> Option<&'a Info> {
        self.inputs.get(index).copied().flatten()
    }

    /// Checks that input `index` has one of these types, if its type is known.
    pub(crate) fn types(&self, index: usize, allowed: &[ElementType]) -> Result<()> {
        match self.get(index).and_then(|i| i.dtype) {
            Some(t) if !allowed.contains(&t) => {
                let names: Vec<_> = allowed.iter().map(|t| t.name()).collect();
                Err(GraphError::misused(format!("element type of input {index}"), t.name(), names.join(" or ")))
            }
            _ => Ok(()),
        }
    }

    /// Checks that these inputs have the same type, as far as known, and returns it.
    pub(crate) fn same_type(&self, indices: impl IntoIterator<Item = usize>) -> Result<Option<ElementType>> {
        let mut found: Option<ElementType> = None;
        for index in indices {
            match (found, self.get(index).and_then(|i| i.dtype)) {
                (Some(a), Some(b)) if a != b => {
                    return Err(GraphError::misused(format!("element type of input {index}"), b.name(), a.name()));
                }
                (None, Some(b)) => found = Some(b),
                _ => {}
            }
        }
        Ok(found)
    }

    /// Checks the size of an output that does not follow from the size of the inputs.
    pub(crate) fn check_output_size(&self, shape: &[usize], what: &str) -> Result<()> {
        checked_elements(shape, "tensor_elements", what, self.limits.tensor_elements).map(|_| ())
    }
}

/// The floating-point types.
pub(crate) const FLOATS: [ElementType; 4] = [ElementType::F32, ElementType::F64, ElementType::F16, ElementType::BF16];

/// Resolves an axis that may be negative, counting from the end of `rank` axes.
pub(crate) fn resolve_axis(axis: i64, rank: usize) -> Result<usize> {
    let positive = if axis < 0 { axis.checked_add(rank as i64).unwrap_or(-1) } else { axis };
    usize::try_from(positive)
        .ok()
        .filter(|&a| a < rank)
        .ok_or_else(|| GraphError::misused("axis", axis.to_string(), format!("one of {rank} axes")))
}

/// Maximum length of a derived name of a free dimension: names that record how a length was computed double with each
/// concatenation of a value with itself.
const MAX_NAME: usize = 96;

/// Returns a free dimension with this name, or with a hash of the name if it is too long.
pub(crate) fn free(name: String) -> Dim {
    if name.len() <= MAX_NAME {
        return Dim::Free(name);
    }
    // FNV-1a (Fowler, Noll & Vo).
    let hash = name.bytes().fold(0xCBF2_9CE4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3));
    Dim::Free(format!("length_{hash:016x}"))
}

/// Applies a length rule to a dimension. A free dimension keeps its name if the rule keeps the length, and gets a name
/// with the factor (`d/2`, `d*2`) if it scales.
pub(crate) fn map_dim(dim: &Dim, rule: impl Fn(usize) -> Result<usize>) -> Result<Dim> {
    let name = match dim {
        Dim::Fixed(n) => return rule(*n).map(Dim::Fixed),
        Dim::Free(name) => name,
    };
    const PROBES: [usize; 2] = [3 << 12, 5 << 12];
    let results = PROBES.map(|p| rule(p).ok());
    let [Some(a), Some(b)] = results else { return Ok(free(format!("{name}'"))) };
    if [a, b] == PROBES {
        return Ok(dim.clone());
    }
    let factor = |big: [usize; 2], small: [usize; 2]| {
        let f = big[0].checked_div(small[0])?;
        (small[0] * f == big[0] && small[1] * f == big[1]).then_some(f)
    };
    Ok(free(if let Some(f) = factor(PROBES, [a, b]) {
        rescaled(name, f, '/', '*')
    } else if let Some(f) = factor([a, b], PROBES) {
        rescaled(name, f, '*', '/')
    } else {
        format!("{name}'")
    }))
}

/// Appends a scale factor to `name`, or cancels it against an opposite factor at its end.
fn rescaled(name: &str, factor: usize, symbol: char, inverse: char) -> String {
    if let Some((base, number)) = name.rsplit_once(['*', '/']) {
        let sign = name.as_bytes().get(base.len()).copied().map(char::from);
        if let Ok(old) = number.parse::<usize>() {
            if sign == Some(inverse) && old == factor {
                return base.to_owned();
            }
            if sign == Some(inverse) && factor > 0 && old % factor == 0 {
                return format!("{base}{inverse}{}", old / factor);
            }
            if sign == Some(symbol) {
                return format!("{base}{symbol}{}", old.saturating_mul(factor));
            }
        }
    }
    format!("{name}{symbol}{factor}")
}

/// Returns types and shapes of an operator's outputs, one entry per requested output.
///
/// # Errors
/// If the inputs do not fit the operator.
pub(crate) fn node_infos(op: &Op, inputs: &[Option<&Info>], outputs: usize, limits: &GraphLimits) -> Result<Vec<Info>> {
    let args = OpInputs { inputs, outputs, limits };
    let mut infos = match window::infer(op, &args)? {
        Some(infos) => infos,
        None => match shape_ops::infer(op, &args)? {
            Some(infos) => infos,
            None => match data::infer(op, &args)? {
                Some(infos) => infos,
                None => match training::infer(op, &args)? {
                    Some(infos) => infos,
                    None => elementwise::infer(op, &args)?,
                },
            },
        },
    };
    for info in &infos {
        if let Some(shape) = info.fixed_shape() {
            checked_elements(&shape, "tensor_elements", "an output", limits.tensor_elements)?;
        }
    }
    infos.resize(outputs, Info::default());
    Ok(infos)
}

/// Maximum number of elements of values computed during inference: enough for any shape arithmetic.
const MAX_VALUE_ELEMENTS: usize = 4096;

/// Returns the values of an operator's outputs if they follow from shapes and small integers.
fn known_values(op: &Op, inputs: &[Option<&Info>], infos: &[Info], budget: &Budget) -> Option<Vec<Tensor>> {
    match op {
        Op::Shape { .. } | Op::Size => {
            let shape = inputs.first().copied().flatten()?.fixed_shape()?;
            return crate::reference::shape_values(op, &shape).map(|t| vec![t]);
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
    crate::reference::eval(op, &values, infos.len()).ok()
}

/// Applies one node's rule, and computes its values where possible.
pub(crate) fn step(
    node: &Node,
    infos: &BTreeMap<ValueId, Info>,
    limits: &GraphLimits,
    budget: &Budget,
) -> Result<Vec<Info>> {
    budget.check()?;
    let inputs: Vec<Option<&Info>> = node.inputs.iter().map(|id| id.and_then(|id| infos.get(&id))).collect();
    let wanted = node.outputs.len();
    let name = crate::opname::op_name(&node.op);
    let mut outputs = node_infos(&node.op, &inputs, wanted, limits).map_err(|e| e.at(&node.name, name))?;
    if let Some(values) = known_values(&node.op, &inputs, &outputs, budget) {
        for (info, value) in outputs.iter_mut().zip(values) {
            *info = Info::of(&Arc::new(value));
        }
    }
    Ok(outputs)
}

/// Returns everything known about every value of `graph`, given the types and shapes of its inputs.
pub(crate) fn all_infos(graph: &Graph, limits: &GraphLimits, budget: &Budget) -> Result<BTreeMap<ValueId, Info>> {
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
        let found = step(node, &infos, limits, budget)?;
        for (id, mut info) in node.outputs.iter().zip(found) {
            if let Some(id) = id {
                let declared = graph.value(*id);
                info.dtype = info.dtype.or(declared.dtype);
                info.shape = merged(info.shape, declared.shape.as_deref());
                infos.insert(*id, info);
            }
        }
    }
    Ok(infos)
}

/// Returns the inferred shape, completed by the declared one where inference is incomplete.
pub(crate) fn merged(found: Option<Vec<Dim>>, declared: Option<&[Dim]>) -> Option<Vec<Dim>> {
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

/// Identifies a graph input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputKey {
    /// By value.
    Id(ValueId),
    /// By name.
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
/// As [`infer_shapes`], and [`GraphError::Interrupted`].
pub fn infer_shapes_within<K: Clone + Into<InputKey>>(
    graph: &mut Graph,
    input_shapes: &[(K, Vec<usize>)],
    budget: &Budget,
) -> Result<()> {
    for (key, shape) in input_shapes {
        let id = match key.clone().into() {
            InputKey::Id(id) => Some(id),
            InputKey::Name(name) => graph.find(&name),
        };
        let id = id.filter(|id| graph.inputs.contains(id)).ok_or_else(|| {
            let names: Vec<_> = graph.inputs.iter().map(|&i| graph.value(i).name.as_str()).collect();
            GraphError::misused("input", format!("{:?}", key.clone().into()), format!("one of {names:?}"))
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
    let infos = all_infos(graph, &GraphLimits::default(), budget)?;
    for (id, info) in infos {
        if let Some(value) = graph.values.get_mut(id.index()) {
            value.dtype = info.dtype;
            value.shape = info.shape;
        }
    }
    Ok(())
}

/// Checks that `shape` fits the input `id`.
pub(crate) fn fits(graph: &Graph, id: ValueId, shape: &[usize]) -> Result<()> {
    let value = graph.value(id);
    let Some(declared) = &value.shape else { return Ok(()) };
    let same =
        declared.len() == shape.len() && declared.iter().zip(shape).all(|(d, n)| d.fixed().is_none_or(|d| d == *n));
    if same {
        return Ok(());
    }
    let text: Vec<_> = declared.iter().map(ToString::to_string).collect();
    Err(GraphError::misused(
        format!("shape of input \"{}\"", value.name),
        format!("{shape:?}"),
        format!("[{}]", text.join(", ")),
    ))
}

//! The values of a graph as tensors on the device.

use super::{Constant, PlanResult, Planner, Source, unsupported};
use crate::form::{Form, form, place};
use cytoscope_graph::{BinaryOp, ElementType, Node, Op, Tensor, ValueId};

/// Number of axes of a form.
const AXES: usize = 5;
/// The largest integer up to which a float stores every integer.
pub(super) const MAX_INTEGER: usize = 1 << 24;

/// Returns whether the steps of an operator are right for integers that are stored as floats: it moves, compares or
/// converts them.
fn takes_integers(op: &Op) -> bool {
    use BinaryOp::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual};
    match op {
        Op::Binary(op) => matches!(op, Equal | Greater | GreaterOrEqual | Less | LessOrEqual),
        Op::ArgReduce { .. } | Op::Cast { .. } | Op::Where | Op::Gather { .. } | Op::Tile | Op::Expand => true,
        Op::Transpose { .. } | Op::Split { .. } | Op::Slice => true,
        other => keeps_order(other) || other.joined_axis().is_some(),
    }
}

/// Returns whether the steps of an operator do not depend on the axes of the form.
fn takes_any_axes(op: &Op) -> bool {
    match op {
        Op::Transpose { .. } | Op::Cast { .. } | Op::Activation(_) | Op::Unary(_) => true,
        Op::MatMul | Op::Einsum { .. } => true,
        other => keeps_order(other),
    }
}

/// Returns whether an operator changes only the shape.
fn keeps_order(op: &Op) -> bool {
    matches!(op, Op::Identity | Op::Reshape { .. } | Op::Squeeze | Op::Unsqueeze | Op::Flatten { .. })
}

/// Returns integers or bools as floats, and refuses those that a float does not store.
fn whole_numbers(tensor: &Tensor) -> PlanResult<Vec<f32>> {
    let Some(values) = tensor.to_i64_vec() else { return unsupported(format!("on {} elements", tensor.dtype())) };
    if values.iter().any(|v| v.unsigned_abs() > MAX_INTEGER as u64) {
        return unsupported(format!("with a constant above {MAX_INTEGER}"));
    }
    Ok(values.into_iter().map(|v| v as f32).collect())
}

impl Planner<'_> {
    /// Checks that a graph input or output is f32.
    pub(super) fn floats(&self, value: ValueId) -> PlanResult {
        match self.graph.value(value).dtype {
            Some(ElementType::F32) | None => Ok(()),
            Some(other) => unsupported(format!("on {other} elements")),
        }
    }

    /// Refuses the tensors of a node that its steps would not compute as they are stored: integers are stored as floats, and
    /// tensors with more than five axes without their axes. Other inputs are parameters, or like the first.
    pub(super) fn check_values(&self, node: &Node) -> PlanResult {
        for value in [node.input(0), node.output(0)].into_iter().flatten() {
            let of = self.graph.value(value);
            if let Some(dtype) = of.dtype.filter(|dtype| *dtype != ElementType::Bool && !dtype.is_float())
                && !takes_integers(&node.op)
            {
                return unsupported(format!("on {dtype} elements"));
            }
            if let Some(shape) = of.shape.as_ref().filter(|shape| shape.len() > AXES)
                && !takes_any_axes(&node.op)
            {
                return unsupported(format!("on a tensor with {} axes", shape.len()));
            }
        }
        Ok(())
    }

    /// Returns the form of a value, which must not be empty. A tensor with more than five axes has a form with a single axis.
    /// All elements are stored as floats: bools as 0 and 1, integers as floats without fraction.
    pub(super) fn form(&self, value: ValueId) -> PlanResult<Form> {
        let shape = self.shape(value)?;
        if self.graph.value(value).dtype == Some(ElementType::F64) {
            return unsupported(format!("on {} elements", ElementType::F64));
        }
        if shape.contains(&0) {
            return unsupported("on an empty tensor");
        }
        let found = if shape.len() > AXES {
            let elements = shape.iter().try_fold(1usize, |all, length| all.checked_mul(*length));
            elements.and_then(|elements| form(&[elements]))
        } else {
            form(&shape)
        };
        found.map_or_else(|| unsupported(format!("on a tensor of shape {shape:?}")), Ok)
    }

    /// Returns whether a value has 16-bit elements.
    pub(super) fn is_half(&self, value: ValueId) -> bool {
        self.graph.value(value).dtype.is_some_and(ElementType::is_half)
    }

    pub(super) fn shape(&self, value: ValueId) -> PlanResult<Vec<usize>> {
        self.graph
            .value(value)
            .fixed_shape()
            .map_or_else(|| unsupported("with a shape that is known only at run time"), Ok)
    }

    pub(super) fn input(&self, node: &Node, index: usize) -> PlanResult<ValueId> {
        node.input(index).map_or_else(|| unsupported(format!("without input {index}")), Ok)
    }

    /// Returns the node's only output.
    pub(super) fn output(&self, node: &Node) -> PlanResult<ValueId> {
        if node.outputs.iter().skip(1).any(Option::is_some) {
            return unsupported("with a second output");
        }
        node.output(0).map_or_else(|| unsupported("without an output"), Ok)
    }

    /// Returns a value as a source; a constant is uploaded.
    pub(super) fn source(&mut self, value: ValueId) -> PlanResult<Source> {
        let form = self.form(value)?;
        let Some(tensor) = self.graph.constant(value) else { return Ok(Source::Value(value)) };
        if let Some(&index) = self.uploaded.get(&(value, form)) {
            return Ok(Source::Constant(index));
        }
        let half = Some(tensor.dtype()).filter(|dtype| dtype.is_half());
        let values = match (tensor.as_f32(), half) {
            (Some(values), _) => values.to_vec(),
            (None, Some(_)) => tensor.to_f64_vec().into_iter().map(|v| v as f32).collect(),
            (None, None) => whole_numbers(tensor)?,
        };
        let index = self.constant(form, values);
        if let Some(constant) = self.constants.get_mut(index) {
            constant.half = half;
        }
        self.uploaded.insert((value, form), index);
        Ok(Source::Constant(index))
    }

    pub(super) fn constant(&mut self, form: Form, values: Vec<f32>) -> usize {
        self.constants.push(Constant { form, values, half: None });
        self.constants.len() - 1
    }

    /// Returns a constant input, or `None` if it is absent. An input that is computed at run time is an error.
    pub(super) fn known(&self, node: &Node, index: usize, what: &str) -> PlanResult<Option<&Tensor>> {
        match node.input(index) {
            None => Ok(None),
            Some(id) => match self.graph.constant(id) {
                Some(tensor) => Ok(Some(tensor.as_ref())),
                None => unsupported(format!("with {what} computed at run time")),
            },
        }
    }

    /// Returns the integers of a constant input, or `None` if it is absent or empty.
    pub(super) fn integers(&self, node: &Node, index: usize, what: &str) -> PlanResult<Option<Vec<i64>>> {
        let Some(tensor) = self.known(node, index, what)?.filter(|t| !t.is_empty()) else { return Ok(None) };
        tensor.to_i64_vec().map_or_else(|| unsupported(format!("with {what} that are not integers")), |v| Ok(Some(v)))
    }

    /// Resolves an axis of a tensor with `rank` axes: its index, and its position in the form.
    pub(super) fn axis(&self, axis: i64, rank: usize) -> PlanResult<(usize, usize)> {
        let from_front = if axis < 0 { axis + rank as i64 } else { axis };
        match usize::try_from(from_front).ok().filter(|a| *a < rank) {
            Some(axis) => Ok((axis, place(rank, axis))),
            None => unsupported(format!("over axis {axis} of {rank}")),
        }
    }
}

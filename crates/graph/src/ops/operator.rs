//! The properties that passes and engines query of operators that have their own files.

use crate::error::Result;
use crate::graph::{Graph, Node, ValueId};
use crate::infer::{Info, OpInputs};

/// Lengths of one axis of an operator's first input and output.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AxisLengths {
    /// Index of the axis in the first input.
    pub axis: usize,
    /// Number of axes of the first input.
    pub rank: usize,
    /// Length in the first input; `None` if it has no such axis.
    pub input: Option<usize>,
    /// Length in the first output; `None` if it has no such axis.
    pub output: Option<usize>,
    /// See [`crate::Op::factor_along`].
    pub factor: Option<f64>,
}

/// Which positions of its inputs an output position depends on, along one axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AxisEffect {
    /// On all positions.
    All,
    /// On the same position of the first input.
    Same,
    /// On the same position of all inputs.
    SameOfAll,
    /// Output position o on positions o·step + `first` to o·step + `last` of the first input.
    Window {
        /// Input positions per output position, as numerator and denominator.
        step: (usize, usize),
        /// Offset of the first position.
        first: f64,
        /// Offset of the last position.
        last: f64,
    },
}

/// Queries that every operator answers; the default answers suit most operators.
pub(crate) trait Operator {
    /// Checks the inputs and returns types and shapes of the outputs.
    fn infer(&self, args: &OpInputs<'_>) -> Result<Vec<Info>>;

    /// See [`crate::Op::axis_effect`].
    fn axis_effect(&self, lengths: &AxisLengths) -> Result<AxisEffect>;

    /// Minimum bytes that the operator holds while it computes, and its elementary operations besides reading and
    /// writing, for shapes of the first input and output; `None` if that depends on a shape that is not known.
    fn cost(&self, _from: Option<&[usize]>, _to: Option<&[usize]>) -> Option<(u128, u128)> {
        Some((0, 0))
    }

    /// Name of its vector-Jacobian product.
    fn gradient_name(&self) -> &'static str {
        "Gradient"
    }

    /// See [`crate::Op::has_vjp`].
    fn has_vjp(&self) -> bool {
        false
    }

    /// See [`crate::Op::moves_only`].
    fn moves_only(&self) -> bool {
        false
    }

    /// See [`crate::Op::joined_axis`].
    fn joined_axis(&self) -> Option<i64> {
        None
    }

    /// See [`crate::Op::resamples_linearly`].
    fn resamples_linearly(&self) -> bool {
        false
    }

    /// See [`Node::moved_inputs`].
    fn moved_inputs(&self, _node: &Node, _output_rank: Option<usize>) -> Option<Vec<ValueId>> {
        None
    }

    /// See [`Node::over_slices`].
    fn over_slices(&self, _node: &Node, _graph: &mut Graph) -> Option<Node> {
        None
    }
}

/// Returns the index that an axis of an image (batch, channel, Y, X) has in a stack (batch, channel, Z, Y, X); a negative axis
/// counts from the end. `None` for the batch.
pub fn axis_over_slices(axis: i64) -> Option<i64> {
    match axis {
        1 | -3 => Some(1),
        2 | -2 => Some(3),
        3 | -1 => Some(4),
        _ => None,
    }
}

//! Operators with their own file: their results and gradients.

mod grid_sample;
mod resize;

use super::Call;
use cytoscope_graph::{Op, Result, Tensor};

/// Runs an operator; `None` if it has no file of its own.
pub(super) fn eval(op: &Op, call: &Call<'_>) -> Option<Result<Vec<Tensor>>> {
    let result = resize::eval(op, call).or_else(|| grid_sample::eval(op, call))?;
    Some(result.map(|y| vec![y]))
}

/// Returns the gradient of x of an operator with these arguments, given that of its output; `None` if it has no file of its own,
/// or no gradient.
pub(super) fn gradient(op: &Op, x: &Tensor, arguments: &[Option<&Tensor>], dy: &[f64]) -> Option<Result<Vec<f64>>> {
    resize::gradient(op, x, arguments, dy)
}

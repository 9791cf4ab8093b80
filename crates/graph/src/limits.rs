//! Limits on the memory and work that a model may request.

use crate::error::{GraphError, Result};

/// Limits on what a model file may make its reader allocate or visit. All are checked before the allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphLimits {
    /// Bytes of the model file, of each external data file, and of all tensors in external data. Default 4 GiB.
    pub model_bytes: u64,
    /// Nodes in the graph, after import. Default 100 000.
    pub nodes: usize,
    /// Elements of one tensor, stored or created by constant folding. Default 2³¹.
    pub tensor_elements: usize,
    /// Elements of one constant that folding expands from fewer elements (`ConstantOfShape`, `Expand`, `Tile`,
    /// `Range`), and elements of a pooling window. Default 2²⁴.
    pub folded_elements: usize,
    /// Elements of an input that lists lengths, axes or positions along axes; a split may list as many as it has outputs.
    /// Valid lists have a few for each axis. Default 4096.
    pub listed_elements: usize,
    /// Axes of one tensor. Default 16.
    pub rank: usize,
}

impl Default for GraphLimits {
    fn default() -> Self {
        Self {
            model_bytes: 4 << 30,
            nodes: 100_000,
            tensor_elements: 1 << 31,
            folded_elements: 1 << 24,
            listed_elements: 4096,
            rank: 16,
        }
    }
}

/// Checks that `what` requests no more than `allowed` of the limit with this name.
///
/// # Errors
/// [`GraphError::OverLimit`].
pub fn check_limit(limit: &'static str, what: impl Into<String>, requested: u128, allowed: u128) -> Result<()> {
    if requested <= allowed {
        Ok(())
    } else {
        Err(GraphError::OverLimit { limit, what: what.into(), requested, allowed })
    }
}

/// Returns the product of the lengths.
///
/// # Errors
/// [`GraphError::OverLimit`] if it overflows or exceeds `allowed`.
pub fn checked_elements(shape: &[usize], limit: &'static str, what: &str, allowed: usize) -> Result<usize> {
    let product = shape.iter().try_fold(1u128, |total, &n| total.checked_mul(n as u128)).unwrap_or(u128::MAX);
    check_limit(limit, what, product, allowed as u128)?;
    Ok(product as usize)
}

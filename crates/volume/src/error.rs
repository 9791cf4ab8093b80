//! Errors of array operations: what was given and what was expected.

use crate::{Axes, DType};

/// Why an array operation was refused.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum VolumeError {
    /// A text is not a list of axes.
    #[error("'{text}' is not a list of axes: expected distinct letters out of T, Z, C, Y, X, S")]
    BadAxes {
        /// Text that was given as axes.
        text: String,
    },
    /// A text is not the name of a sample type.
    #[error("'{text}' is not a sample type: expected one such as uint8, uint16, float32")]
    BadDType {
        /// Text that was given as the sample type.
        text: String,
    },
    /// The number of samples does not match the shape.
    #[error("{got} samples cannot fill shape {shape:?} (axes {axes}), which takes {expected}")]
    LengthMismatch {
        /// Axes of the array.
        axes: Axes,
        /// Lengths along these axes.
        shape: Vec<usize>,
        /// Number of samples that the shape needs.
        expected: usize,
        /// Number of samples given.
        got: usize,
    },
    /// Two shapes, or a list of axes and a shape, do not match.
    #[error("{what}: expected shape {expected:?}, got {got:?}")]
    ShapeMismatch {
        /// Name of the operation.
        what: &'static str,
        /// Expected length along each axis.
        expected: Vec<usize>,
        /// Given length along each axis.
        got: Vec<usize>,
    },
    /// A region is not inside its array.
    #[error("region {start:?}+{size:?} is not inside an array of shape {shape:?}")]
    OutOfBounds {
        /// First index along each axis.
        start: Vec<usize>,
        /// Number of samples along each axis.
        size: Vec<usize>,
        /// Length of the array along each axis.
        shape: Vec<usize>,
    },
    /// The number of elements of a shape does not fit `usize`.
    #[error("shape {shape:?} has more elements than can be addressed")]
    TooLarge {
        /// Number of elements along each axis.
        shape: Vec<usize>,
    },
    /// An operation does not support the sample type.
    #[error("{what}: expected {expected} samples, got {got}")]
    WrongDType {
        /// Name of the operation.
        what: &'static str,
        /// Sample types the operation supports.
        expected: &'static str,
        /// Sample type given.
        got: DType,
    },
    /// A parameter is outside its range.
    #[error("{what}: {got} is outside {expected}")]
    BadParameter {
        /// Name of the parameter.
        what: &'static str,
        /// The valid range.
        expected: &'static str,
        /// The value given.
        got: String,
    },
}

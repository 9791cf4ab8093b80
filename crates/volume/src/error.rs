//! What can go wrong with arrays: always what was met and what was expected.

use crate::{Axes, DType};

/// An operation on arrays that does not fit its arguments.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum VolumeError {
    /// A text that is no list of axes.
    #[error("'{text}' is not a list of axes: expected distinct letters out of T, Z, C, Y, X, S")]
    BadAxes {
        /// The text met.
        text: String,
    },
    /// A text that names no sample type.
    #[error("'{text}' is not a sample type: expected one such as uint8, uint16, float32")]
    BadDType {
        /// The text met.
        text: String,
    },
    /// The number of samples does not match the shape.
    #[error("{got} samples cannot fill shape {shape:?} (axes {axes}), which takes {expected}")]
    LengthMismatch {
        /// Axes of the array.
        axes: Axes,
        /// Shape of the array.
        shape: Vec<usize>,
        /// Samples the shape takes.
        expected: usize,
        /// Samples met.
        got: usize,
    },
    /// Two shapes (or an axes list and a shape) that should agree do not.
    #[error("{what}: expected shape {expected:?}, got {got:?}")]
    ShapeMismatch {
        /// What was being done.
        what: &'static str,
        /// Shape needed.
        expected: Vec<usize>,
        /// Shape met.
        got: Vec<usize>,
    },
    /// A region that leaves its array.
    #[error("region {start:?}+{size:?} leaves an array of shape {shape:?}")]
    OutOfBounds {
        /// First index along each axis.
        start: Vec<usize>,
        /// Extent along each axis.
        size: Vec<usize>,
        /// Shape of the array.
        shape: Vec<usize>,
    },
    /// The product of a shape does not fit the address space.
    #[error("shape {shape:?} has more elements than can be addressed")]
    TooLarge {
        /// Shape met.
        shape: Vec<usize>,
    },
    /// A sample type the operation does not take.
    #[error("{what} takes {expected} samples, got {got}")]
    WrongDType {
        /// What was being done.
        what: &'static str,
        /// Types it takes.
        expected: &'static str,
        /// Type met.
        got: DType,
    },
    /// A parameter outside its range.
    #[error("{what}: {got} is outside {expected}")]
    BadParameter {
        /// The parameter.
        what: &'static str,
        /// The range it takes.
        expected: &'static str,
        /// The value met.
        got: String,
    },
}

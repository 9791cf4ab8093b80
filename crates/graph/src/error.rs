//! Errors of models, and the kinds that callers treat differently.

use cytoscope_storage::io_problem;
use std::path::PathBuf;

/// The kind of a [`GraphError`], from which a program derives its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraphErrorKind {
    /// The file or graph violates its own rules or the ONNX format.
    Malformed,
    /// The graph is valid but uses something that is not supported.
    Unsupported,
    /// The graph exceeds a limit of [`crate::GraphLimits`].
    OverLimit,
    /// The caller passed inputs or arguments that do not fit the graph.
    Misused,
    /// A file could not be read or written.
    Io,
    /// The caller requested a stop.
    Interrupted,
}

/// Error of reading, writing, analyzing or running a graph.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// The file or graph contradicts itself or the ONNX format.
    #[error("malformed model: {what}")]
    Malformed {
        /// Description of the fault and its location.
        what: String,
    },
    /// An operator, or a variant of it, that is not supported.
    #[error("unsupported operator {op} (node \"{node}\", opset {opset}): {why}")]
    UnsupportedOp {
        /// Operator type, with its domain if that is not the default one.
        op: String,
        /// Name of the node, or of its first output if it has no name.
        node: String,
        /// Opset version of the operator's domain.
        opset: i64,
        /// The unsupported feature.
        why: String,
    },
    /// Another unsupported feature of the model.
    #[error("unsupported model: {what}")]
    Unsupported {
        /// The unsupported feature.
        what: String,
    },
    /// Quantizing would not change the graph.
    #[error("there is nothing to quantize: {why}")]
    NothingToQuantize {
        /// The reason.
        why: String,
    },
    /// A named limit was exceeded.
    #[error("{what} needs {limit} = {requested}, more than the limit of {allowed}")]
    OverLimit {
        /// Name of the field of [`crate::GraphLimits`].
        limit: &'static str,
        /// The part of the model that exceeds the limit.
        what: String,
        /// Requested amount.
        requested: u128,
        /// Allowed amount.
        allowed: u128,
    },
    /// A caller's argument does not fit.
    #[error("{what}: got {got}, expected {expected}")]
    Misused {
        /// The argument.
        what: String,
        /// The value that was passed.
        got: String,
        /// Values that are accepted.
        expected: String,
    },
    /// An error of one node.
    #[error("node \"{node}\" ({op}): {source}")]
    Node {
        /// Name of the node.
        node: String,
        /// Name of the node's operator.
        op: String,
        /// The underlying error.
        source: Box<GraphError>,
    },
    /// Preparing or running the graph was stopped by [`crate::Interrupt`].
    #[error("interrupted while the model was prepared or run")]
    Interrupted,
    /// A file could not be read or written.
    #[error("{path}: {}", io_problem(.source))]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
}

impl GraphError {
    /// Returns the kind of the error.
    pub fn kind(&self) -> GraphErrorKind {
        match self {
            Self::Malformed { .. } => GraphErrorKind::Malformed,
            Self::UnsupportedOp { .. } | Self::Unsupported { .. } | Self::NothingToQuantize { .. } => {
                GraphErrorKind::Unsupported
            }
            Self::OverLimit { .. } => GraphErrorKind::OverLimit,
            Self::Misused { .. } => GraphErrorKind::Misused,
            Self::Node { source, .. } => source.kind(),
            Self::Io { .. } => GraphErrorKind::Io,
            Self::Interrupted => GraphErrorKind::Interrupted,
        }
    }

    /// Returns [`GraphError::Malformed`].
    pub fn malformed(what: impl Into<String>) -> Self {
        Self::Malformed { what: what.into() }
    }

    /// Returns [`GraphError::Misused`].
    pub fn misused(what: impl Into<String>, got: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::Misused { what: what.into(), got: got.into(), expected: expected.into() }
    }

    /// Returns [`GraphError::Unsupported`].
    pub fn unsupported(what: impl Into<String>) -> Self {
        Self::Unsupported { what: what.into() }
    }

    /// Adds the node to an error; an error that already names a node is unchanged.
    pub fn at(self, node: &str, op: &str) -> Self {
        match self {
            Self::Node { .. } | Self::UnsupportedOp { .. } | Self::Interrupted => self,
            other => Self::Node { node: node.to_owned(), op: op.to_owned(), source: Box::new(other) },
        }
    }
}

/// Result of this crate's fallible functions.
pub type Result<T, E = GraphError> = std::result::Result<T, E>;

//! What can go wrong with a model, in the four kinds a caller treats differently.

use std::path::PathBuf;

/// The four answers a model can be refused with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GraphErrorKind {
    /// The file or graph breaks its own rules.
    Malformed,
    /// The graph is well formed but uses something this crate does not run.
    Unsupported,
    /// The graph asks for more than a [`crate::GraphLimits`] entry allows.
    OverLimit,
    /// The caller gave inputs or arguments that do not fit the graph.
    Misused,
    /// The operating system refused a file.
    Io,
    /// The caller asked to stop.
    Interrupted,
}

/// Why a graph could not be read, written, shaped or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// The file or graph contradicts itself or the ONNX format.
    #[error("malformed model: {what}")]
    Malformed {
        /// What is wrong, and where.
        what: String,
    },
    /// An operator, or a form of it, that is not implemented.
    #[error("unsupported operator {op} (node \"{node}\", opset {opset}): {why}")]
    UnsupportedOp {
        /// Operator type, with its domain when it is not the default one.
        op: String,
        /// Name of the node, or of its first output when it has no name.
        node: String,
        /// Opset version of the operator's domain.
        opset: i64,
        /// What exactly is missing.
        why: String,
    },
    /// Something else in the model that is not implemented.
    #[error("unsupported model: {what}")]
    Unsupported {
        /// What is missing.
        what: String,
    },
    /// A graph in which quantizing would change nothing.
    #[error("there is nothing to quantize: {why}")]
    NothingToQuantize {
        /// Why not.
        why: String,
    },
    /// A named limit was exceeded.
    #[error("{limit} is limited to {allowed}, but {what} asks for {asked}")]
    OverLimit {
        /// Name of the field of [`crate::GraphLimits`].
        limit: &'static str,
        /// What asked.
        what: String,
        /// How much was asked for.
        asked: u128,
        /// How much is allowed.
        allowed: u128,
    },
    /// A caller's argument does not fit.
    #[error("{what}: got {got}, expected {expected}")]
    Misused {
        /// Which argument.
        what: String,
        /// What was given.
        got: String,
        /// What would have been right.
        expected: String,
    },
    /// A node's inputs do not fit its operator.
    #[error("node \"{node}\" ({op}): {source}")]
    Node {
        /// Name of the node.
        node: String,
        /// Its operator.
        op: String,
        /// What went wrong in it.
        source: Box<GraphError>,
    },
    /// Preparing the graph was stopped by [`crate::Interrupt`].
    #[error("stopped while the model was being prepared")]
    Interrupted,
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: std::io::Error,
    },
}

impl GraphError {
    /// Which of the kinds of answer this is.
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

    pub(crate) fn malformed(what: impl Into<String>) -> Self {
        Self::Malformed { what: what.into() }
    }

    pub(crate) fn misused(what: impl Into<String>, got: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::Misused { what: what.into(), got: got.into(), expected: expected.into() }
    }

    pub(crate) fn unsupported(what: impl Into<String>) -> Self {
        Self::Unsupported { what: what.into() }
    }

    /// Says in which node it happened; an error that already names a node stays as it is.
    pub(crate) fn at(self, node: &str, op: &str) -> Self {
        match self {
            Self::Node { .. } | Self::UnsupportedOp { .. } | Self::Interrupted => self,
            other => Self::Node { node: node.to_owned(), op: op.to_owned(), source: Box::new(other) },
        }
    }
}

/// Result of everything in this crate that can fail.
pub type Result<T, E = GraphError> = std::result::Result<T, E>;

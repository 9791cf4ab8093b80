//! Errors of importing weights.

use cytoscope_graph::GraphError;
use cytoscope_pickle::PickleError;
use cytoscope_storage::setting::ARCHITECTURE;

/// Why a checkpoint does not become a network.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The file is not a checkpoint, or damaged.
    #[error("malformed checkpoint: {0}")]
    Malformed(String),
    /// The pickle inside the checkpoint is not accepted.
    #[error(
        "{0}; in Python, save the weights alone with torch.save: model.state_dict(), or the checkpoint's entry \"state_dict\""
    )]
    Pickle(#[from] PickleError),
    /// A format that is not read.
    #[error("{found}; {next_step}")]
    Format {
        /// What was found, as a sentence.
        found: String,
        /// What to do instead.
        next_step: &'static str,
    },
    /// A part of the checkpoint exceeds a limit.
    #[error("the checkpoint has {what}, more than the limit of {limit}")]
    OverLimit {
        /// The part, with its size.
        what: String,
        /// Largest allowed number, in the unit of `what`.
        limit: u64,
    },
    /// No known architecture has tensors of these names.
    #[error(
        "the architecture is not recognized from the tensors ({tensors}); state it with {option}, if it is one of {known}, \
         or export the model with torch.onnx.export and import the ONNX file",
        option = ARCHITECTURE
    )]
    Unrecognized {
        /// Names of the first tensors, separated by commas.
        tensors: String,
        /// Names of all known architectures, separated by commas.
        known: String,
    },
    /// A tensor that the architecture needs is missing or does not fit.
    #[error(
        "tensor \"{tensor}\" {problem}; the tensors do not fit the architecture {architecture}: export the model with \
         torch.onnx.export and import the ONNX file"
    )]
    Tensor {
        /// Name of the tensor.
        tensor: String,
        /// What is wrong, as a predicate.
        problem: String,
        /// Name of the architecture that was tried, as on the command line.
        architecture: &'static str,
    },
    /// A tensor with values that are NaN or infinite.
    #[error(
        "tensor \"{tensor}\" contains values that are NaN or infinite ({not_finite} of {values}), with which no network can be \
         computed; import a checkpoint from before they appeared, usually because training diverged"
    )]
    NotFinite {
        /// Name of the tensor.
        tensor: String,
        /// Number of these values.
        not_finite: usize,
        /// Number of all values.
        values: usize,
    },
    /// Tensors that the architecture does not have.
    #[error(
        "the architecture {architecture} has no tensors {tensors}, so the checkpoint is of another network; export the model \
         with torch.onnx.export and import the ONNX file"
    )]
    Unused {
        /// Names of the first of these tensors, separated by commas.
        tensors: String,
        /// Name of the architecture that was tried, as on the command line.
        architecture: &'static str,
    },
    /// No known architecture has this name.
    #[error("unknown architecture \"{name}\": expected one of {known}")]
    UnknownArchitecture {
        /// The name that was given.
        name: String,
        /// Names of all known architectures, separated by commas.
        known: String,
    },
    /// An argument of the network's constructor has a value that cannot be imported.
    #[error(
        "the network was built with {argument} = {value}, which is not supported (supported: {supported}); export the model \
         with torch.onnx.export"
    )]
    UnsupportedArgument {
        /// Name of the argument.
        argument: String,
        /// The value that it has.
        value: String,
        /// Values that can be imported, separated by commas.
        supported: String,
    },
    /// An argument of the network's constructor has a value that no network can have.
    #[error("the network was built with {argument} = {value}: expected {expected}")]
    InvalidArgument {
        /// Name of the argument.
        argument: String,
        /// The value that it has.
        value: String,
        /// Values that were expected.
        expected: &'static str,
    },
    /// nnU-Net's plans lack a configuration, or prepare its images in a way that is not supported.
    #[error("nnU-Net's plans: {problem}")]
    Plans {
        /// What is wrong, with what was expected.
        problem: String,
    },
    /// The network that the tensors describe is invalid: shapes of consecutive layers do not fit.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

impl ImportError {
    pub(crate) fn malformed(what: impl Into<String>) -> Self {
        Self::Malformed(what.into())
    }
}

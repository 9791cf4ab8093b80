//! What an engine answers when it cannot.

use crate::DeviceId;
use cytoscope_graph::GraphError;

/// A model that could not be compiled or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// An operator this engine does not run: the model goes to another engine.
    #[error("the {engine} engine does not run {op} (node \"{node}\"): take another device for this model")]
    UnsupportedOp {
        /// The engine.
        engine: &'static str,
        /// The operator and what about it is not supported.
        op: String,
        /// The node's name.
        node: String,
    },
    /// A precision this engine does not compute in.
    #[error("the {engine} engine does not compute in {precision}: it has {has}")]
    UnsupportedPrecision {
        /// The engine.
        engine: &'static str,
        /// Precision asked for.
        precision: String,
        /// Precisions it has.
        has: String,
    },
    /// Integers asked of a model that has none.
    #[error(
        "int8 was asked for, but the model is not quantized for the {engine} engine: it has no convolution between \
         QuantizeLinear and DequantizeLinear nodes; make a quantized model with `cytoscope quantize`, or take f32"
    )]
    NotQuantized {
        /// The engine.
        engine: &'static str,
    },
    /// The model itself is at fault, or does not fit its inputs.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// An input the session was not compiled for.
    #[error("input \"{name}\": expected {expected}, got {got}")]
    Input {
        /// Name of the input.
        name: String,
        /// What it takes.
        expected: String,
        /// What it got.
        got: String,
    },
    /// More memory than there is.
    #[error(
        "{device} has too little memory: this needs {needed_bytes} bytes, {available_bytes} can be had; take smaller tiles"
    )]
    OutOfMemory {
        /// The device.
        device: DeviceId,
        /// Bytes needed.
        needed_bytes: u64,
        /// Bytes to be had.
        available_bytes: u64,
    },
    /// The device or its driver failed.
    #[error("{device} failed: {reason}")]
    Device {
        /// The device.
        device: DeviceId,
        /// What it or its driver said.
        reason: String,
    },
    /// A device that is not there, or that models cannot run on.
    #[error("{device} cannot be used: {reason}")]
    Unavailable {
        /// The device asked for.
        device: DeviceId,
        /// Why not, and what there is.
        reason: String,
    },
    /// A text that names no device.
    #[error("\"{text}\" names no device: expected auto, cpu, cuda[:i] or wgpu[:i]")]
    BadDevice {
        /// The text.
        text: String,
    },
    /// A text that names no precision.
    #[error("\"{text}\" is no precision: expected auto, f32, tf32, f16, bf16 or int8")]
    BadPrecision {
        /// The text.
        text: String,
    },
    /// Kernels refused their buffers: a fault of ours.
    #[error("internal fault in {place}: {reason}; please report it")]
    Internal {
        /// Where.
        place: String,
        /// What did not fit.
        reason: String,
    },
}

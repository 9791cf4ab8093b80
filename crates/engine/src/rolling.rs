//! One pass over a stack, slab by slab along Z, instead of overlapping tiles.

use crate::EngineError;
use cytoscope_graph::Tensor;
use cytoscope_profile::bytes_text;
use std::ops::Range;

/// Rows of a stack that pass through a network together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Band {
    /// Rows that are passed: those that are kept, and those in their receptive field.
    pub fed: Range<usize>,
    /// Rows whose results are kept. The kept rows of all bands together are the rows of the stack.
    pub kept: Range<usize>,
}

/// Complete planes of an output.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputPlanes {
    /// Index of the output in the graph.
    pub output: usize,
    /// Name of the network output.
    pub name: String,
    /// Position of the first plane along Z.
    pub first_z: usize,
    /// Position of the first row along Y.
    pub first_y: usize,
    /// Values N, C, Z, Y, X: some planes of all channels, and the rows that the band keeps.
    pub planes: Tensor,
}

/// Why a network is not run in one pass. Predict in tiles instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotRolling {
    /// The engine cannot run a network in one pass.
    #[error("the {engine} engine cannot run a network in one pass along Z: predict in tiles")]
    Device {
        /// Name of the engine.
        engine: &'static str,
    },
    /// An operator depends on more than a few neighboring planes along Z, or has no kernel.
    #[error("{op} (node \"{node}\") cannot be computed plane by plane along Z: predict in tiles")]
    Operator {
        /// ONNX name of the operator.
        op: String,
        /// Name of the node in the model.
        node: String,
    },
    /// The network has several inputs, or a value that is not a volume.
    #[error("one pass along Z needs one input, and tensors with the axes N, C, Z, Y, X; got {found}: predict in tiles")]
    Interface {
        /// What was found.
        found: String,
    },
    /// The memory budget is too small even if narrow bands pass plane by plane.
    #[error(
        "one pass along Z needs {}, the budget is {}: predict in tiles",
        bytes_text(*.needed_bytes), bytes_text(*.budget_bytes)
    )]
    Budget {
        /// Bytes of the smallest plan that was found.
        needed_bytes: u64,
        /// The memory budget in bytes.
        budget_bytes: u64,
    },
    /// The network cannot be compiled at all.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// How a stack is passed through a network.
pub trait RollingPlan: Send {
    /// Returns the number of planes of a slab; the last slab of a stack may have fewer.
    fn slab_planes(&self) -> usize;

    /// Returns the bands of the stack along Y; each is passed on its own, from the first plane to the last.
    fn bands(&self) -> &[Band];

    /// Returns the bytes of all buffers and packed weights.
    fn memory_bytes(&self) -> u64;

    /// Returns the bytes that are moved within buffers during the passes over all bands.
    fn moved_bytes(&self) -> u64;

    /// Returns the multiply-accumulate operations of the passes over all bands.
    fn macs(&self) -> u64;

    /// Returns the multiply-accumulate operations of the whole stack as one tensor.
    fn untiled_macs(&self) -> u64;

    /// Returns a lower bound of the bytes that a session for the whole stack as one tensor needs.
    fn untiled_bytes(&self) -> u64;

    /// Allocates the buffers and starts a pass over the first band.
    ///
    /// # Errors
    /// [`EngineError::OutOfMemory`] if the buffers cannot be allocated; [`EngineError::Device`] if threads cannot be
    /// started.
    fn start(self: Box<Self>) -> Result<Box<dyn RollingSession>, EngineError>;
}

/// A network through which a stack is passed once, slab by slab along Z.
pub trait RollingSession: Send {
    /// Starts a pass over a band of the stack, or of another stack of the same shape.
    ///
    /// # Errors
    /// [`EngineError::Input`] if there is no such band.
    fn begin(&mut self, band: usize) -> Result<(), EngineError>;

    /// Passes the next planes of the band's rows, of shape N, C, planes, rows, X, and returns the planes of outputs that
    /// became complete, in order along Z for each output. Every slab except the last one must have the number of planes
    /// in the plan.
    ///
    /// # Errors
    /// [`EngineError::Input`] if the planes do not fit, or with int8 contain NaN or infinity;
    /// [`cytoscope_graph::GraphError::Interrupted`] if the interrupt of the plan's options is set. Then only a new pass
    /// can be started.
    fn push(&mut self, planes: Tensor) -> Result<Vec<OutputPlanes>, EngineError>;

    /// Returns further planes of the outputs after the last input planes were passed, at most as many as for one slab;
    /// `None` once all have been returned.
    ///
    /// # Errors
    /// [`EngineError::Input`] if planes are missing; [`cytoscope_graph::GraphError::Interrupted`] as for
    /// [`RollingSession::push`].
    fn finish(&mut self) -> Result<Option<Vec<OutputPlanes>>, EngineError>;
}

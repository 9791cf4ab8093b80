//! The purpose that a graph is compiled for, and the rules that follow from it.

use crate::Optimizations;
use crate::lower::sharing::Sharing;
use cytoscope_engine::{EngineError, Precision};
use cytoscope_graph::Graph;

/// Purpose that a graph is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Computing outputs. Weights are constants, so they are packed, folded and quantized at compile time.
    Inference {
        /// Whether quantized convolutions run on bytes.
        integers: bool,
        optimizations: Optimizations,
    },
    /// A step of training: forward pass, loss, backward pass and optimizer update. Weights are inputs, so they are packed at
    /// every run; tensors that the backward pass reads are kept until then.
    Training,
}

impl Purpose {
    /// Returns the purpose of a graph: training if it contains operators of training.
    ///
    /// # Errors
    /// [`EngineError::UnsupportedPrecision`] if the engine lacks the precision; [`EngineError::NotQuantized`] for training
    /// steps in int8.
    pub(crate) fn of(graph: &Graph, precision: Precision, optimizations: Optimizations) -> Result<Self, EngineError> {
        let inference = Self::inference(precision, optimizations)?;
        if !is_training_step(graph) {
            return Ok(inference);
        }
        if inference.integers() { Err(EngineError::NotQuantized { engine: "cpu" }) } else { Ok(Self::Training) }
    }

    /// Returns inference in a precision.
    ///
    /// # Errors
    /// [`EngineError::UnsupportedPrecision`] if the engine lacks the precision.
    pub(crate) fn inference(precision: Precision, optimizations: Optimizations) -> Result<Self, EngineError> {
        let integers = match precision {
            Precision::F32 => false,
            Precision::Int8 => true,
            other => {
                return Err(EngineError::UnsupportedPrecision {
                    engine: "cpu",
                    precision: other,
                    has: "f32 and int8".into(),
                });
            }
        };
        Ok(Self::Inference { integers, optimizations })
    }

    /// Returns whether quantized convolutions run on bytes.
    pub(crate) fn integers(self) -> bool {
        matches!(self, Self::Inference { integers: true, .. })
    }

    /// Returns whether activations are computed inside the step before them.
    pub(crate) fn fuses(self) -> bool {
        match self {
            Self::Inference { integers, optimizations } => integers || optimizations.fusion,
            Self::Training => true,
        }
    }

    /// Returns which values of a whole tensor's session share buffers.
    pub(crate) fn sharing(self) -> Sharing {
        match self {
            Self::Inference { optimizations: Optimizations { shared_buffers: false, .. }, .. } => Sharing::None,
            Self::Inference { .. } => Sharing::All,
            Self::Training => Sharing::KeepForBackward,
        }
    }
}

/// Returns whether a graph contains operators of training.
pub(crate) fn is_training_step(graph: &Graph) -> bool {
    graph.nodes.iter().any(|n| n.op.is_training_only())
}

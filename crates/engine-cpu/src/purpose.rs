//! The purpose that a graph is compiled for, and the rules that follow from it.

use crate::Optimizations;
use crate::lower::sharing::Sharing;
use cytoscope_engine::{EngineError, Precision};
use cytoscope_graph::Graph;
use cytoscope_kernels::Isa;

/// Purpose that a graph is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Computing outputs. Weights are constants, so they are packed, folded and quantized at compile time.
    Inference {
        /// Whether quantized convolutions run on bytes.
        integers: bool,
        /// Whether convolutions of floats round their factors to bf16, where the CPU has instructions for it.
        bf16: bool,
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
    pub(crate) fn of(
        isa: Isa,
        graph: &Graph,
        precision: Precision,
        optimizations: Optimizations,
    ) -> Result<Self, EngineError> {
        let inference = Self::inference(isa, precision, optimizations)?;
        if !is_training_step(graph) {
            return Ok(inference);
        }
        match precision {
            Precision::F32 => Ok(Self::Training),
            Precision::Int8 => Err(EngineError::NotQuantized { engine: "cpu" }),
            _ => Err(EngineError::UnsupportedPrecision { engine: "cpu", precision, has: "f32 for training".into() }),
        }
    }

    /// Returns inference in a precision.
    ///
    /// # Errors
    /// [`EngineError::UnsupportedPrecision`] if the engine lacks the precision.
    pub(crate) fn inference(isa: Isa, precision: Precision, optimizations: Optimizations) -> Result<Self, EngineError> {
        let (integers, bf16) = match precision {
            Precision::F32 => (false, false),
            Precision::Bf16 if isa.multiplies_bf16() => (false, true),
            // Quantization changes the results more than bf16 does, so that the layers that are left in floats need no more.
            Precision::Int8 => (true, true),
            other => {
                return Err(EngineError::UnsupportedPrecision {
                    engine: "cpu",
                    precision: other,
                    has: if isa.multiplies_bf16() { "f32, bf16 and int8" } else { "f32 and int8" }.into(),
                });
            }
        };
        Ok(Self::Inference { integers, bf16, optimizations })
    }

    /// Returns whether convolutions of floats round their factors to bf16, where the CPU has instructions for it.
    pub(crate) fn multiplies_bf16(self) -> bool {
        matches!(self, Self::Inference { bf16: true, .. })
    }

    /// Returns whether quantized convolutions run on bytes.
    pub(crate) fn integers(self) -> bool {
        matches!(self, Self::Inference { integers: true, .. })
    }

    /// Returns whether activations are computed inside the step before them.
    pub(crate) fn fuses(self) -> bool {
        match self {
            Self::Inference { integers, optimizations, .. } => integers || optimizations.fusion,
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

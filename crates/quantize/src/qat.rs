//! Interface for quantization-aware training; the caller provides the trainer, which lives in a higher crate.

use crate::measure::error_value;
use cytoscope_graph::{Graph, Tensor};
use cytoscope_pipeline::{Context, JobError};
use serde::{Deserialize, Serialize};

/// Input of quantization-aware training.
pub struct QatTask<'a> {
    /// The float network that the int8 network is compared with.
    pub float: &'a Graph,
    /// The quantized network, with its calibrated ranges.
    pub quantized: &'a Graph,
    /// Training tiles: input tensors of the networks.
    pub tiles: &'a [Tensor],
    /// Computes the relative L2 error of the worst output on the held-out tiles.
    pub error: &'a dyn Fn(&Graph) -> Result<f64, JobError>,
    /// That error before training.
    pub before: f64,
    /// Training may stop when the error is at most this.
    pub budget: f64,
}

/// Result of quantization-aware training.
pub struct QatOutcome {
    /// The quantized network with the weights that had the smallest error on the held-out tiles.
    pub graph: Graph,
    /// Error of this network, as [`QatTask::error`] computes it.
    pub error: f64,
    /// Number of training steps.
    pub steps: u64,
}

/// Trains a quantized network, with rounding in the forward pass.
pub trait QuantizationAwareTraining {
    /// Trains the network; the result is never worse than the given network.
    ///
    /// # Errors
    /// [`JobError`] if the network cannot be trained, or the job is canceled.
    fn train(&self, context: &Context, task: &QatTask<'_>) -> Result<QatOutcome, JobError>;
}

/// Report of quantization-aware training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct QatReport {
    /// Number of training steps.
    pub steps: u64,
    /// Relative L2 error of the worst output before training, with no further layer in float.
    #[serde(deserialize_with = "error_value")]
    pub before: f64,
    /// Relative L2 error of the worst output after training, with no further layer in float.
    #[serde(deserialize_with = "error_value")]
    pub after: f64,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Whether training reduced the error; otherwise, the weights are those of before.
    pub kept: bool,
}

//! Quantization of a model to 8-bit integers: from a package with a float network to a package with both networks.
//!
//! The crate owns [`QuantizeJob`] and [`QuantizeReport`]; the histograms and methods that turn the values of tensors into
//! ranges; the search for the settings that meet an accuracy budget; bias correction; and [`QuantizationAwareTraining`],
//! the interface that a crate with a trainer implements. Calibration tiles come from [`cytoscope_pipeline::calibration_tiles`],
//! and `cytoscope_graph_passes::quantize` inserts the nodes.
//!
//! Jobs fail with [`cytoscope_pipeline::JobError`]: wrong options, a model that cannot be quantized, calibration data
//! that is missing, does not fit or is not finite, a destination that may not be overwritten, or cancellation. A failed
//! job leaves no partly written package. A missed accuracy budget is not a failure: the report says so.
#![forbid(unsafe_code)]

mod bias;
mod data;
mod histogram;
mod inputs;
mod job;
mod measure;
mod observe;
mod qat;
mod report;
mod search;
mod speed;
mod variant;
mod write;

pub use data::{MAX_QAT_TILES, MAX_TILES};
pub use histogram::Method;
pub use job::{ACCURACY_BUDGET, QuantizeJob, QuantizeMode};
pub use measure::OutputError;
pub use qat::{QatOutcome, QatReport, QatTask, QuantizationAwareTraining};
pub use report::{AgreementMetric, OutputReport, QuantizeReport};
pub use search::{Candidate, FloatLayer};
pub use speed::TileTime;
pub use variant::TensorMethod;

//! Teaching networks: from a folder of images and labels to a model package that is tried, described and quantized.
//!
//! This room owns the training job ([`TrainJob`]) and its settings ([`TrainConfig`]), the loop with its budget, checkpoints and
//! rescues, validation by the real pipeline (tiles, objects, scores), and the package that comes out. Pairs, patches and targets are
//! [`cytoscope_samples`]'; gradients are graphs ([`cytoscope_graph::training`]) that an engine runs.
//!
//! A training lies in a folder beside its package while it lasts: it can be stopped or killed at any moment and resumed to the same
//! curve. It fails with [`cytoscope_pipeline::JobError`]; what was learnt stays in the folder.
#![forbid(unsafe_code)]

mod budget;
mod check;
mod checkpoint;
mod config;
mod crop;
mod curves;
mod data;
mod decode;
mod details;
mod ending;
mod error;
mod estimate;
mod history;
mod job;
mod network;
mod package;
mod pictures;
mod planning;
mod qat;
mod setup;
mod step;
mod train;
mod trial;
mod validate;

pub use check::{CheckJob, CheckReport};
pub use checkpoint::{Kept, check_checkpoint};
pub use config::{
    BudgetConfig, DataConfig, LossConfig, NetworkConfig, OptimizerConfig, ScheduleConfig, TrainConfig, TrainPrecision,
    ValidationConfig,
};
pub use estimate::{Estimate, EstimateJob};
pub use history::{History, StepPoint, ValidationPoint};
pub use job::{Quantized, TrainJob, TrainReport, Verdict};
pub use qat::QuantizedTeacher;
pub use validate::{PairScore, Scores};

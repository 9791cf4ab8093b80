//! Training of networks: from a folder of images and labels to a model package that is validated, documented and
//! quantized.
//!
//! This crate owns the training job ([`TrainJob`]) and its settings ([`TrainConfig`]), the training loop with its
//! budget, checkpoints and rollbacks, validation through the prediction pipeline (tiles, objects, scores), and the
//! package that is written. Pairs, patches and targets come from [`cytoscope_training_data`]; gradients are graphs
//! ([`cytoscope_autodiff`]) that an engine runs.
//!
//! While a training run is in progress, its state is in a folder beside the package. A run can be stopped or killed at
//! any time; resumed, it continues with the same loss curve. Failures are [`cytoscope_pipeline::JobError`]; the last
//! checkpoint stays in the folder.
#![forbid(unsafe_code)]

mod assign;
mod budget;
mod candidate;
mod check;
mod checkpoint;
mod config;
mod crop;
mod curves;
mod data;
mod data_config;
mod data_fingerprint;
mod device_choice;
mod error;
mod estimate;
mod evaluate_model;
mod event;
mod finalize;
mod history;
mod job;
mod joined;
mod lengths;
mod less_memory;
mod machine_profile;
mod monitor;
mod network;
mod object_intensity;
mod origin;
mod package;
mod planning;
mod precision_comparison;
mod predicted_targets;
mod previews;
mod problems;
mod qat;
mod quantization;
mod record;
mod relay;
mod score_name;
mod scoring;
mod search;
mod setup;
mod stacks;
mod stained_channel;
mod start;
mod step;
mod step_graphs;
mod toml_problem;
mod toml_text;
mod train;
mod trained_images;
mod tuning;
mod validator;
mod workers;

pub use assign::SettingAssignment;
pub use check::{CheckJob, CheckReport};
pub use checkpoint::{CheckpointSummary, check_checkpoint, check_checkpoint_tensors};
pub use config::{
    BudgetConfig, LossConfig, MAX_ACCUMULATE, MAX_BATCH, MAX_MINUTES, NetworkConfig, OptimizerConfig, ScheduleConfig,
    TrainConfig, TrainPrecision, ValidationConfig, minutes_problem,
};
pub use data_config::DataConfig;
pub use data_fingerprint::data_fingerprint;
pub use estimate::{Estimate, EstimateJob};
pub use evaluate_model::EvaluateModelJob;
pub use event::{TrainEvent, TrainSink, TrainingPlan};
pub use history::{History, StepPoint, ValidationPoint};
pub use job::{ChosenNetwork, FloatOnly, Quantized, TrainJob, TrainReport};
pub use machine_profile::OpenSettings;
pub use monitor::{BatchAdvice, TrainStatus};
pub use precision_comparison::{PairDifference, PrecisionComparison};
pub use problems::{LINES as PROBLEM_LINES, list_failed_inputs};
pub use qat::{QatLimitError, QatTrainer};
pub use quantization::LimitedQuantization;
pub use score_name::{ScoreName, SelectionMetric};
pub use search::{MAX_TRIALS, SearchRung, SearchSpace, search_rungs};
pub use start::TrainStart;
pub use validator::{Comparison, PairScore, Scores};

//! Conversion of errors that occur in training into [`JobError`].

use cytoscope_engine::{DeviceId, EngineError};
use cytoscope_graph::GraphError;
use cytoscope_pipeline::JobError;
use cytoscope_training_data::TrainingDataError;
use std::path::Path;

/// Returns the error for settings or arguments that cannot be used.
pub(crate) fn wrong_use(message: impl Into<String>) -> JobError {
    JobError::WrongUse(message.into())
}

/// Converts an error in the training data.
pub(crate) fn data_error(error: TrainingDataError) -> JobError {
    match error {
        TrainingDataError::Format(e) => JobError::Format(e),
        TrainingDataError::Data { file, problem, next_step } => JobError::Mismatch { path: file, problem, next_step },
        TrainingDataError::NoPairs { dataset, problem, next_step } => {
            JobError::Mismatch { path: dataset.root, problem, next_step }
        }
        TrainingDataError::Io { file, source, .. } => JobError::unreadable(&file, source),
        TrainingDataError::Parameter { .. } => JobError::WrongUse(error.to_string()),
        TrainingDataError::OverLimit { ref file, next_step, .. } => {
            JobError::Mismatch { path: file.clone(), problem: error.to_string(), next_step: next_step.to_owned() }
        }
        TrainingDataError::Thread { .. } => {
            JobError::Engine(EngineError::Device { device: DeviceId::Cpu, reason: error.to_string() })
        }
        TrainingDataError::Volume(e) => JobError::Volume(e),
        TrainingDataError::Objects(e) => JobError::Objects(e),
        other => JobError::Internal(other.to_string()),
    }
}

/// Returns a converter for graph errors of the model `name`.
pub(crate) fn model_error(name: &str) -> impl Fn(GraphError) -> JobError + '_ {
    move |e| JobError::model(name, e)
}

/// Converts an engine error.
pub(crate) fn engine_error(error: EngineError) -> JobError {
    JobError::from(error)
}

/// Returns a converter for I/O errors of the file at `path`.
pub(crate) fn io_error(path: &Path) -> impl Fn(std::io::Error) -> JobError + '_ {
    move |error| JobError::Io { path: path.to_owned(), error }
}

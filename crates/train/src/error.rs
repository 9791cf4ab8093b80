//! Failures of training as failures of jobs.

use cytoscope_engine::EngineError;
use cytoscope_graph::GraphError;
use cytoscope_pipeline::JobError;
use cytoscope_samples::SamplesError;
use std::path::Path;

/// What was asked for cannot be.
pub(crate) fn wrong(sentence: impl Into<String>) -> JobError {
    JobError::WrongUse(sentence.into())
}

/// Training data at fault.
pub(crate) fn data(error: SamplesError) -> JobError {
    match error {
        SamplesError::Format(e) => JobError::Format(e),
        SamplesError::Data { file, met, next } => JobError::Mismatch { path: file, problem: met, next_step: next },
        SamplesError::NoPairs { dataset, met, next } => {
            JobError::Mismatch { path: dataset.root, problem: met, next_step: next }
        }
        SamplesError::Io { file, source, .. } => JobError::Io { path: file, error: source },
        SamplesError::Parameter { .. } => JobError::WrongUse(error.to_string()),
        SamplesError::OverLimit { ref file, next, .. } => {
            JobError::Mismatch { path: file.clone(), problem: error.to_string(), next_step: next.to_owned() }
        }
        SamplesError::Volume(e) => JobError::Volume(e),
        SamplesError::Objects(e) => JobError::Objects(e),
        other => JobError::Panicked(other.to_string()),
    }
}

/// A network that cannot be taught.
pub(crate) fn model(name: &str) -> impl Fn(GraphError) -> JobError + '_ {
    move |e| JobError::model(name, e)
}

/// An engine that fails.
pub(crate) fn engine(error: EngineError) -> JobError {
    JobError::from(error)
}

/// A file that cannot be read or written.
pub(crate) fn io(path: &Path) -> impl Fn(std::io::Error) -> JobError + '_ {
    move |error| JobError::Io { path: path.to_owned(), error }
}

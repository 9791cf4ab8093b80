//! Why a job ended without its result.

use cytoscope_engine::EngineError;
use cytoscope_formats::{FormatError, FormatErrorKind};
use cytoscope_graph::GraphError;
use cytoscope_objects::ObjectsError;
use cytoscope_volume::VolumeError;
use std::path::PathBuf;

/// What kind of end it was; each has its exit code on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobErrorKind {
    /// The job was asked for wrongly (2).
    WrongUse,
    /// A file is at fault (3).
    BadInput,
    /// Memory or disk ran out (4).
    OutOfResources,
    /// Cancelled (5).
    Cancelled,
    /// Anything else (1).
    Other,
}

impl JobErrorKind {
    /// The exit code of the command line.
    pub fn exit_code(self) -> i32 {
        match self {
            Self::Other => 1,
            Self::WrongUse => 2,
            Self::BadInput => 3,
            Self::OutOfResources => 4,
            Self::Cancelled => 5,
        }
    }
}

/// A job that failed.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// A file that cannot be read or written.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A model that cannot be used.
    #[error("{path}: {error}")]
    Model {
        /// The model.
        path: String,
        /// What is wrong with it.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A model and a stack that do not go together.
    #[error("{path}: {problem}; {next_step}")]
    Mismatch {
        /// The stack.
        path: PathBuf,
        /// What does not fit.
        problem: String,
        /// What would.
        next_step: String,
    },
    /// An engine that gave up.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Objects that could not be made.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    /// Arrays that do not fit.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The job needs more memory than its budget.
    #[error("this needs about {needed_bytes} bytes of memory, the budget is {budget_bytes}; {next_step}")]
    Budget {
        /// Bytes needed at least.
        needed_bytes: u64,
        /// Bytes allowed.
        budget_bytes: u64,
        /// What would help.
        next_step: String,
    },
    /// Trouble with a temporary or small file.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// Asked for wrongly.
    #[error("{0}")]
    WrongUse(String),
    /// Cancelled by the user.
    #[error("cancelled; nothing half-written was left")]
    Cancelled,
    /// A panic inside the job.
    #[error("the job failed inside ({0}); please report it")]
    Panicked(String),
}

impl JobError {
    /// A model at fault.
    pub fn model(path: impl Into<String>, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Model { path: path.into(), error: error.into() }
    }

    /// What kind of end it was.
    pub fn kind(&self) -> JobErrorKind {
        match self {
            Self::Format(e) => match e.kind() {
                FormatErrorKind::Malformed | FormatErrorKind::Unsupported | FormatErrorKind::OverLimit => {
                    JobErrorKind::BadInput
                }
                FormatErrorKind::Misused => JobErrorKind::WrongUse,
                FormatErrorKind::OutOfResources => JobErrorKind::OutOfResources,
                FormatErrorKind::Io => JobErrorKind::Other,
            },
            Self::Model { error, .. } => match error.downcast_ref::<EngineError>() {
                Some(EngineError::OutOfMemory { .. }) => JobErrorKind::OutOfResources,
                _ => JobErrorKind::BadInput,
            },
            Self::Mismatch { .. } => JobErrorKind::BadInput,
            Self::Engine(EngineError::OutOfMemory { .. }) | Self::Budget { .. } => JobErrorKind::OutOfResources,
            Self::Engine(
                EngineError::BadDevice { .. }
                | EngineError::BadPrecision { .. }
                | EngineError::UnsupportedPrecision { .. },
            ) => JobErrorKind::WrongUse,
            Self::Engine(EngineError::Graph(_) | EngineError::Input { .. } | EngineError::UnsupportedOp { .. }) => {
                JobErrorKind::BadInput
            }
            Self::Objects(ObjectsError::TooManyObjects { .. }) => JobErrorKind::OutOfResources,
            Self::Io { error, .. } if error.kind() == std::io::ErrorKind::StorageFull => JobErrorKind::OutOfResources,
            Self::WrongUse(_) => JobErrorKind::WrongUse,
            Self::Cancelled => JobErrorKind::Cancelled,
            _ => JobErrorKind::Other,
        }
    }
}

impl From<GraphError> for JobError {
    fn from(error: GraphError) -> Self {
        Self::Engine(EngineError::Graph(error))
    }
}

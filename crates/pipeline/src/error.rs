//! Why a job ended without its result.

use cytoscope_engine::EngineError;
use cytoscope_formats::{FormatError, FormatErrorKind, io_advice};
use cytoscope_graph::GraphError;
use cytoscope_graph::package::PackageError;
use cytoscope_objects::ObjectsError;
use cytoscope_storage::read::refusal;
use cytoscope_storage::{StorageError, is_exhausted};
use cytoscope_volume::VolumeError;
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// What kind of end it was; each has its exit code on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobErrorKind {
    /// The job was asked for wrongly (2).
    WrongUse,
    /// Something that the program did not write lies where a result goes; it may be replaced if the user says so (2).
    WouldOverwrite,
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
            Self::WrongUse | Self::WouldOverwrite => 2,
            Self::BadInput => 3,
            Self::OutOfResources => 4,
            Self::Cancelled => 5,
        }
    }
}

/// A sentence that names a file or model once, whether or not it did before.
pub fn naming(name: &str, sentence: &str) -> String {
    if sentence.contains(name) { sentence.to_owned() } else { format!("{name}: {sentence}") }
}

/// Bytes in MiB, rounded up.
fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// A job that failed.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// A file that cannot be read or written.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A model that cannot be used.
    #[error("{}", naming(.path, &model_sentence(.error.as_ref())))]
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
    #[error("this needs about {} MiB of memory, the budget is {} MiB; {next_step}", mib(*.needed_bytes), .budget_bytes >> 20)]
    Budget {
        /// Bytes needed at least.
        needed_bytes: u64,
        /// Bytes allowed.
        budget_bytes: u64,
        /// What would help.
        next_step: String,
    },
    /// Trouble with a temporary or small file.
    #[error("{path}: {error}; {}", io_advice(.error))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// An output that may not be written where it was asked for, or could not be.
    #[error(transparent)]
    Storage(#[from] StorageError),
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

    /// A file that was to be read and is not there, or cannot be.
    pub(crate) fn unreadable(path: &Path, error: std::io::Error) -> Self {
        if error.kind() != std::io::ErrorKind::NotFound {
            return Self::Io { path: path.to_owned(), error };
        }
        Self::Mismatch {
            path: path.to_owned(),
            problem: "there is no such file or folder".to_owned(),
            next_step: "check the path".to_owned(),
        }
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
                FormatErrorKind::Io => match e {
                    FormatError::Io { source, .. } if refusal(source).is_some() => JobErrorKind::BadInput,
                    FormatError::Io { doing: "opening", source, .. } if source.kind() == ErrorKind::NotFound => {
                        JobErrorKind::BadInput
                    }
                    _ => JobErrorKind::Other,
                },
            },
            Self::Model { error, .. } => model_kind(error.as_ref()),
            Self::Mismatch { .. } => JobErrorKind::BadInput,
            Self::Engine(EngineError::OutOfMemory { .. }) | Self::Budget { .. } => JobErrorKind::OutOfResources,
            Self::Engine(
                EngineError::BadDevice { .. }
                | EngineError::Unavailable { .. }
                | EngineError::BadPrecision { .. }
                | EngineError::UnsupportedPrecision { .. },
            ) => JobErrorKind::WrongUse,
            Self::Engine(EngineError::Graph(GraphError::Interrupted)) => JobErrorKind::Cancelled,
            Self::Engine(
                EngineError::Graph(_)
                | EngineError::NotQuantized { .. }
                | EngineError::Input { .. }
                | EngineError::UnsupportedOp { .. },
            ) => JobErrorKind::BadInput,
            Self::Objects(ObjectsError::TooManyObjects { .. }) => JobErrorKind::OutOfResources,
            Self::Objects(ObjectsError::Option { .. } | ObjectsError::Parameter { .. }) => JobErrorKind::WrongUse,
            Self::Io { error, .. } if refusal(error).is_some() => JobErrorKind::BadInput,
            Self::Io { error, .. } if error.kind() == ErrorKind::StorageFull => JobErrorKind::OutOfResources,
            Self::Storage(StorageError::Io { source, .. }) if is_exhausted(source) => JobErrorKind::OutOfResources,
            Self::Storage(StorageError::Io { .. }) => JobErrorKind::Other,
            Self::Storage(StorageError::Exists { .. } | StorageError::NotOurs { can_force: true, .. }) => {
                JobErrorKind::WouldOverwrite
            }
            Self::Storage(_) | Self::WrongUse(_) => JobErrorKind::WrongUse,
            Self::Cancelled => JobErrorKind::Cancelled,
            _ => JobErrorKind::Other,
        }
    }
}

/// What the system said, where that is what is wrong with a model.
fn model_io<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a std::io::Error> {
    match (error.downcast_ref(), error.downcast_ref()) {
        (
            Some(
                PackageError::Io { error, .. }
                | PackageError::Graph { error: GraphError::Io { source: error, .. }, .. },
            ),
            _,
        )
        | (_, Some(GraphError::Io { source: error, .. })) => Some(error),
        _ => None,
    }
}

/// What is wrong with a model, and what a person can do where the system failed.
pub fn model_sentence(error: &(dyn std::error::Error + 'static)) -> String {
    match model_io(error) {
        Some(io) => format!("{error}; {}", io_advice(io)),
        None => error.to_string(),
    }
}

/// The kind of what is wrong with a model: a fault of the model, or of the system that reads or writes it.
fn model_kind(error: &(dyn std::error::Error + 'static)) -> JobErrorKind {
    if let Some(EngineError::OutOfMemory { .. }) = error.downcast_ref() {
        return JobErrorKind::OutOfResources;
    }
    let Some(io) = model_io(error) else { return JobErrorKind::BadInput };
    match io.kind() {
        _ if refusal(io).is_some() => JobErrorKind::BadInput,
        ErrorKind::StorageFull => JobErrorKind::OutOfResources,
        ErrorKind::NotFound | ErrorKind::UnexpectedEof => JobErrorKind::BadInput,
        _ => JobErrorKind::Other,
    }
}

impl From<GraphError> for JobError {
    fn from(error: GraphError) -> Self {
        Self::Engine(EngineError::Graph(error))
    }
}

//! The error of a job, and its kind, which determines the exit code of the command line.

mod model;

pub use model::model_error_message;

use crate::misuse::Misuse;
use cytoscope_engine::EngineError;
use cytoscope_formats::{FormatError, FormatErrorKind, OPENING};
use cytoscope_graph::GraphError;
use cytoscope_model_package::PackageError;
use cytoscope_objects::ObjectsError;
use cytoscope_profile::bytes_text;
use cytoscope_storage::json::JsonError;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::read::refusal;
use cytoscope_storage::{StorageError, io_advice, io_problem, is_exhausted};
use cytoscope_volume::VolumeError;
use model::{model_io, model_kind, model_message};
use serde::{Deserialize, Serialize};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The kind of a [`JobError`]; each has its own exit code on the command line, given in parentheses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobErrorKind {
    /// The job's options are invalid (2).
    WrongUse,
    /// A file that the program did not write exists at the path of a result; the user may allow overwriting it (2).
    WouldOverwrite,
    /// An input file is missing, malformed or unsupported (3).
    BadInput,
    /// Memory or disk space ran out (4).
    OutOfResources,
    /// The job was canceled (5).
    #[serde(rename = "cancelled")]
    Canceled,
    /// Any other error (1).
    Other,
}

impl JobErrorKind {
    /// Returns the exit code of the command line.
    pub fn exit_code(self) -> i32 {
        match self {
            Self::Other => 1,
            Self::WrongUse | Self::WouldOverwrite => 2,
            Self::BadInput => 3,
            Self::OutOfResources => 4,
            Self::Canceled => 5,
        }
    }
}

/// A file or folder at the path of a result, which a job replaces only if the user allows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExistingOutput {
    /// The file or folder.
    pub path: PathBuf,
    /// Why it is not replaced, as the predicate of a sentence.
    pub problem: String,
}

/// Whether a path is a file or folder, or inside it.
fn is_within(path: &Path, other: &Path) -> bool {
    let absolute = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    absolute(path).starts_with(absolute(other))
}

/// Converts bytes to MiB, rounded up.
fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

/// Returns a budget in MiB, rounded down; a smaller one in its own unit.
fn budget_text(bytes: u64) -> String {
    if bytes < 1 << 20 { bytes_text(bytes) } else { format!("{} MiB", bytes >> 20) }
}

/// Why a job failed: errors of the lower crates, and wrong use of the job itself.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// An image file that cannot be read or written.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A model that cannot be loaded or run.
    #[error("{}", model_message(.path, .error.as_ref()))]
    Model {
        /// Path or name of the model.
        path: String,
        /// The cause.
        error: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An input that does not match the model, another input or the options.
    #[error("{path}: {problem}; {next_step}")]
    Mismatch {
        /// The input file.
        path: PathBuf,
        /// The mismatch.
        problem: Message,
        /// Advice on how to fix it.
        next_step: Message,
    },
    /// An error in the work on an input, which is not the input's fault; it keeps its kind.
    #[error("{}", .error.message_about(.path))]
    Input {
        /// The input file.
        path: PathBuf,
        /// The cause.
        error: Box<JobError>,
    },
    /// An error of the engine that runs the network.
    #[error(transparent)]
    Engine(EngineError),
    /// An error of segmentation or measurement.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    /// An error of array shapes or axes.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The job needs more memory than its budget.
    #[error("the job needs about {} MiB of memory, but the budget is {}; {next_step}", mib(*.needed_bytes), budget_text(*.budget_bytes))]
    Budget {
        /// Minimum number of bytes that the job needs.
        needed_bytes: u64,
        /// The memory budget in bytes.
        budget_bytes: u64,
        /// Advice on how to fix it.
        next_step: Message,
    },
    /// An I/O error of a temporary or small file.
    #[error("{path}: {}; {}", io_problem(.error), io_advice(.error))]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// An output that cannot be written, or may not be written to the requested path.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// Invalid options.
    #[error("{0}")]
    WrongUse(Misuse),
    /// The user canceled the job.
    #[error("canceled; no partly written results were left")]
    Canceled,
    /// A panic inside the job, with its message.
    #[error("internal error ({0}); please report it")]
    Panicked(String),
    /// A state that the program rules out, found by a check, with its description.
    #[error("internal error ({0}); please report it")]
    Internal(String),
}

impl JobError {
    /// Returns the error for invalid options, with a message that states what was expected.
    pub fn wrong_use(problem: impl Into<Message>) -> Self {
        Self::WrongUse(Misuse::new(problem))
    }

    /// Returns the error for invalid options, with what to do next.
    pub fn wrong_use_with(problem: impl Into<Message>, next_step: impl Into<Message>) -> Self {
        Self::WrongUse(Misuse::with_next_step(problem, next_step))
    }

    /// Returns an error of the model `path`.
    pub fn model(path: impl Into<String>, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Model { path: path.into(), error: error.into() }
    }

    /// Returns the error for a network that cannot be written to the file `path`.
    pub fn unwritable(path: &Path, error: GraphError) -> Self {
        match error {
            GraphError::Io { path, source } => Self::Io { path, error: source },
            error => Self::model(path.display().to_string(), error),
        }
    }

    /// Returns the error for an input file or folder that is missing or cannot be read.
    pub fn unreadable(path: &Path, error: std::io::Error) -> Self {
        let path = path.to_owned();
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                Self::Mismatch { path, problem: io_problem(&error).into(), next_step: "check the path".into() }
            }
            _ => Self::Io { path, error },
        }
    }

    /// Returns a function that converts the error of creating a folder for results, for `map_err`.
    pub fn results_folder(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |error| match error.kind() {
            ErrorKind::AlreadyExists => StorageError::NotReplaceable {
                path: path.to_owned(),
                problem: "is not a folder, but results are written to a folder".to_owned(),
                can_force: false,
            }
            .into(),
            _ => StorageError::io(path, "creating the folder")(error).into(),
        }
    }

    /// Returns a function that converts the error of reading a file that should hold `what`, for `map_err`.
    pub(crate) fn stored(path: &Path, what: &str, next_step: impl Into<Message>) -> impl FnOnce(JsonError) -> Self {
        move |error| match error {
            JsonError::Io(error) => Self::Io { path: path.to_owned(), error },
            error => Self::Mismatch {
                path: path.to_owned(),
                problem: format!("the file holds no {what} that can be read: {error}").into(),
                next_step: next_step.into(),
            },
        }
    }

    /// Returns the file, folder or model that the message names first; `None` if it names none.
    pub fn subject(&self) -> Option<&Path> {
        match self {
            Self::Format(error) => Some(error.file()),
            Self::Model { path, .. } => Some(Path::new(path)),
            Self::Mismatch { path, .. } | Self::Input { path, .. } | Self::Io { path, .. } => Some(path),
            Self::Storage(error) => Some(error.path()),
            Self::Engine(EngineError::Graph(GraphError::Io { path, .. })) => Some(path),
            Self::Engine(_)
            | Self::Objects(_)
            | Self::Volume(_)
            | Self::Budget { .. }
            | Self::WrongUse(_)
            | Self::Canceled
            | Self::Panicked(_)
            | Self::Internal(_) => None,
        }
    }

    /// Whether the message names the file or folder `path`, or a file inside it.
    pub fn names(&self, path: &Path) -> bool {
        self.subject().is_some_and(|subject| is_within(subject, path))
    }

    /// Returns the message with the settings that it names.
    pub fn message(&self) -> Message {
        Message::of(self)
    }

    /// Returns the message, prefixed with the file or folder that it is about unless the message names it.
    pub(crate) fn message_about(&self, path: &Path) -> Message {
        let message = self.message();
        if self.names(path) { message } else { message!("{}: {message}", path.display()) }
    }

    /// Returns what to do next, which is the end of the message. `None` if the message does not end with it.
    pub fn next_step(&self) -> Option<Message> {
        match self {
            Self::Mismatch { next_step, .. } | Self::Budget { next_step, .. } => Some(next_step.clone()),
            Self::Input { error, .. } => error.next_step(),
            Self::Format(error) => Some(error.next_step()),
            Self::Storage(error) => Some(error.next_step()),
            Self::Io { error, .. } => Some(io_advice(error).into()),
            Self::Model { error, .. } => match error.downcast_ref::<PackageError>() {
                Some(PackageError::Storage(error)) => Some(error.next_step()),
                _ => model_io(error.as_ref()).map(|error| io_advice(error).into()),
            },
            Self::WrongUse(misuse) => misuse.next_step().cloned(),
            Self::Engine(_)
            | Self::Objects(_)
            | Self::Volume(_)
            | Self::Canceled
            | Self::Panicked(_)
            | Self::Internal(_) => None,
        }
    }

    /// Returns the file or folder that the job would replace if the user allowed it; `None` for errors of kinds other than
    /// [`JobErrorKind::WouldOverwrite`].
    pub fn existing_output(&self) -> Option<ExistingOutput> {
        match self {
            Self::Input { error, .. } => error.existing_output(),
            Self::Storage(error) | Self::Format(FormatError::Storage(error)) => existing_target(error),
            Self::Model { error, .. } => match error.downcast_ref::<PackageError>() {
                Some(PackageError::Storage(error)) => existing_target(error),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the kind of the error.
    pub fn kind(&self) -> JobErrorKind {
        match self {
            Self::Storage(error) | Self::Format(FormatError::Storage(error)) => storage_kind(error),
            Self::Format(e) => match e.kind() {
                FormatErrorKind::Malformed | FormatErrorKind::Unsupported | FormatErrorKind::OverLimit => {
                    JobErrorKind::BadInput
                }
                FormatErrorKind::Misused => JobErrorKind::WrongUse,
                FormatErrorKind::OutOfResources => JobErrorKind::OutOfResources,
                FormatErrorKind::Io => match e {
                    FormatError::Io { source, .. } if refusal(source).is_some() => JobErrorKind::BadInput,
                    // A file that was truncated, possibly after it was opened.
                    FormatError::Io { source, .. } if source.kind() == ErrorKind::UnexpectedEof => {
                        JobErrorKind::BadInput
                    }
                    FormatError::Io { doing: OPENING, source, .. }
                        if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) =>
                    {
                        JobErrorKind::BadInput
                    }
                    _ => JobErrorKind::Other,
                },
            },
            Self::Model { error, .. } => model_kind(error.as_ref()),
            Self::Mismatch { .. } => JobErrorKind::BadInput,
            Self::Input { error, .. } => error.kind(),
            Self::Engine(EngineError::OutOfMemory { .. }) | Self::Budget { .. } => JobErrorKind::OutOfResources,
            Self::Engine(
                EngineError::BadDevice { .. }
                | EngineError::Unavailable { .. }
                | EngineError::BadPrecision { .. }
                | EngineError::UnsupportedPrecision { .. }
                | EngineError::NoPrecision { .. },
            ) => JobErrorKind::WrongUse,
            Self::Engine(EngineError::Graph(GraphError::Interrupted)) => JobErrorKind::Canceled,
            Self::Engine(EngineError::Graph(error)) => model_kind(error),
            Self::Engine(
                EngineError::NotQuantized { .. } | EngineError::Input { .. } | EngineError::UnsupportedOp { .. },
            ) => JobErrorKind::BadInput,
            Self::Objects(ObjectsError::TooManyObjects { .. }) => JobErrorKind::OutOfResources,
            Self::Objects(ObjectsError::Option { .. } | ObjectsError::Parameter { .. }) => JobErrorKind::WrongUse,
            Self::Io { error, .. } if refusal(error).is_some() => JobErrorKind::BadInput,
            Self::Io { error, .. } if is_exhausted(error) => JobErrorKind::OutOfResources,
            Self::WrongUse(_) => JobErrorKind::WrongUse,
            Self::Canceled => JobErrorKind::Canceled,
            _ => JobErrorKind::Other,
        }
    }
}

/// Returns the file or folder that writing would replace if the user allowed it.
fn existing_target(error: &StorageError) -> Option<ExistingOutput> {
    match error {
        StorageError::Exists { path } => {
            Some(ExistingOutput { path: path.clone(), problem: "already exists".to_owned() })
        }
        StorageError::NotReplaceable { path, problem, can_force: true } => {
            Some(ExistingOutput { path: path.clone(), problem: problem.clone() })
        }
        _ => None,
    }
}

/// Returns the kind of an error of writing, replacing or removing a file or folder.
fn storage_kind(error: &StorageError) -> JobErrorKind {
    match error {
        StorageError::Io { source, .. } if is_exhausted(source) => JobErrorKind::OutOfResources,
        StorageError::Io { .. } => JobErrorKind::Other,
        StorageError::Exists { .. } | StorageError::NotReplaceable { can_force: true, .. } => {
            JobErrorKind::WouldOverwrite
        }
        StorageError::NoFolder { .. }
        | StorageError::IsInput { .. }
        | StorageError::NotReplaceable { can_force: false, .. }
        | StorageError::Extension { .. }
        | StorageError::Busy { .. } => JobErrorKind::WrongUse,
    }
}

impl From<GraphError> for JobError {
    fn from(error: GraphError) -> Self {
        Self::from(EngineError::Graph(error))
    }
}

impl From<EngineError> for JobError {
    fn from(error: EngineError) -> Self {
        match error {
            // Networks are interrupted by canceling their job.
            EngineError::Graph(GraphError::Interrupted) => Self::Canceled,
            other => Self::Engine(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_storage::setting::{FORCE, ON_CPU, TIME};

    #[test]
    fn a_job_whose_network_is_interrupted_is_canceled() {
        let interrupted = EngineError::Graph(GraphError::Interrupted);
        for error in [JobError::from(interrupted), JobError::from(GraphError::Interrupted)] {
            assert!(matches!(error, JobError::Canceled), "{error}");
        }
        assert!(matches!(JobError::from(GraphError::unsupported("x")), JobError::Engine(_)));
    }

    #[test]
    fn a_file_is_named_once_whatever_else_the_message_contains() {
        let input = Path::new("a.tif");
        let named = JobError::unreadable(input, ErrorKind::NotFound.into());
        assert_eq!(named.message_about(input).as_str(), "a.tif: no such file or folder; check the path");
        // The name of the input is part of another name.
        let other_file = JobError::unreadable(Path::new("data.tif"), ErrorKind::NotFound.into());
        assert_eq!(other_file.message_about(input).as_str(), "a.tif: data.tif: no such file or folder; check the path");
        let unnamed = JobError::Internal("a.tif".to_owned());
        assert_eq!(unnamed.subject(), None);
        assert_eq!(unnamed.message_about(input).as_str(), "a.tif: internal error (a.tif); please report it");
        let chunk_error = JobError::unreadable(Path::new("a.zarr/0/c/0"), ErrorKind::NotFound.into());
        assert!(chunk_error.names(Path::new("a.zarr")) && !chunk_error.names(Path::new("a.zarr/0/c/0/1")));
    }

    #[test]
    fn messages_end_with_the_next_step_that_they_state() {
        let path = || PathBuf::from("a.tif");
        let mismatch =
            || JobError::Mismatch { path: path(), problem: "it is flat".into(), next_step: "give a stack".into() };
        let full = || std::io::Error::from(ErrorKind::StorageFull);
        let errors = [
            mismatch(),
            JobError::Input { path: PathBuf::from("b.tif"), error: Box::new(mismatch()) },
            JobError::Budget { needed_bytes: 2 << 20, budget_bytes: 1 << 20, next_step: "close programs".into() },
            JobError::Io { path: path(), error: full() },
            StorageError::Exists { path: path() }.into(),
            FormatError::from(StorageError::io(&path(), "writing")(full())).into(),
            JobError::model("m", PackageError::Io { path: "m/a".into(), error: full() }),
            JobError::model("m", PackageError::Storage(StorageError::IsInput { path: path() })),
            JobError::wrong_use_with("it has no size", message!("leave out {TIME}")),
        ];
        for error in errors {
            let (message, next_step) = (error.message(), error.next_step());
            assert_eq!(message.as_str(), error.to_string());
            let step = next_step.unwrap_or_else(|| panic!("{message}"));
            assert!(
                message.strip_suffix(step.as_str()).is_some_and(|problem| problem.ends_with("; ")),
                "{message}: {step}"
            );
        }
        assert_eq!(mismatch().next_step().as_deref(), Some("give a stack"));
        assert_eq!(JobError::wrong_use("invalid; it is too large").next_step(), None);
        assert_eq!(JobError::model("m", "no network").next_step(), None);
    }

    #[test]
    fn the_kind_of_a_canceled_job_has_its_name_of_the_worker_protocol() {
        assert_eq!(serde_json::json!(JobErrorKind::Canceled), "cancelled");
    }

    #[test]
    fn messages_keep_the_settings_that_they_name() {
        let mismatch = || JobError::Mismatch {
            path: PathBuf::from("--tile.tif"),
            problem: "it has no time points".into(),
            next_step: message!("leave out {TIME}"),
        };
        let other_input = JobError::Input { path: PathBuf::from("b.tif"), error: Box::new(mismatch()) };
        let unnamed = JobError::wrong_use(message!("invalid {TIME} 3"));
        let unnamed_input = JobError::Input { path: PathBuf::from("b.tif"), error: Box::new(unnamed) };
        let quoting =
            JobError::Mismatch { path: "a.tif".into(), problem: message!("give {TIME}"), next_step: "x".into() };
        for error in [mismatch(), other_input, unnamed_input, quoting] {
            let message = error.message();
            assert_eq!(message.as_str(), error.to_string());
            assert_eq!(message.settings().map(|(_, setting)| setting).collect::<Vec<_>>(), [TIME], "{error}");
        }
        let exists = JobError::from(StorageError::Exists { path: "a.tif".into() });
        let model_error = JobError::model("m", message!("a --tile.onnx exists: use {FORCE}"));
        for message in [
            exists.message(),
            exists.next_step().unwrap_or_default(),
            JobError::model("m", exists).message(),
            model_error.message(),
        ] {
            assert_eq!(message.settings().map(|(_, setting)| setting).collect::<Vec<_>>(), [FORCE], "{message}");
        }
        let device = cytoscope_engine::DeviceId::Cpu;
        let engine_error = EngineError::Device { device, reason: message!("it hung: use {ON_CPU}") };
        let message = JobError::model("m", engine_error).message();
        assert_eq!(message.settings().map(|(_, setting)| setting).collect::<Vec<_>>(), [ON_CPU], "{message}");
    }

    #[test]
    fn an_error_with_an_input_keeps_its_kind() {
        let path = PathBuf::from("a.tif");
        let of = |error: JobError| JobError::Input { path: path.clone(), error: Box::new(error) };
        let full = of(JobError::Budget { needed_bytes: 2 << 20, budget_bytes: 1 << 20, next_step: "x".into() });
        assert_eq!((full.kind(), full.subject()), (JobErrorKind::OutOfResources, Some(path.as_path())));
        assert!(full.to_string().starts_with("a.tif: the job needs about 2 MiB"), "{full}");
        let existing = of(StorageError::Exists { path: PathBuf::from("b.tif") }.into());
        assert_eq!(existing.kind(), JobErrorKind::WouldOverwrite);
        assert!(existing.existing_output().is_some_and(|output| output.path == Path::new("b.tif")));
    }

    #[test]
    fn a_file_in_place_of_a_folder_is_wrong_use_for_results_and_a_bad_input_otherwise() {
        let path = Path::new("a.tif/b");
        let taken = JobError::results_folder(path)(ErrorKind::AlreadyExists.into());
        assert_eq!(taken.kind(), JobErrorKind::WrongUse, "{taken}");
        assert!(taken.next_step().is_some() && taken.existing_output().is_none(), "{taken}");
        assert_eq!(JobError::results_folder(path)(ErrorKind::NotADirectory.into()).kind(), JobErrorKind::Other);
        let input = JobError::unreadable(path, ErrorKind::NotADirectory.into());
        assert_eq!((input.kind(), input.next_step().is_some()), (JobErrorKind::BadInput, true), "{input}");
    }

    #[test]
    fn an_exhausted_quota_is_no_fault_of_the_model() {
        let kind =
            |kind: ErrorKind| JobError::model("m", PackageError::Io { path: "m/a".into(), error: kind.into() }).kind();
        assert_eq!(kind(ErrorKind::StorageFull), JobErrorKind::OutOfResources);
        assert_eq!(kind(ErrorKind::QuotaExceeded), JobErrorKind::OutOfResources);
        assert_eq!(kind(ErrorKind::NotFound), JobErrorKind::BadInput);
        assert_eq!(kind(ErrorKind::PermissionDenied), JobErrorKind::Other);
        let engine = |kind: ErrorKind| JobError::from(GraphError::Io { path: "a".into(), source: kind.into() }).kind();
        assert_eq!(engine(ErrorKind::StorageFull), JobErrorKind::OutOfResources);
        assert_eq!(JobError::from(GraphError::malformed("x")).kind(), JobErrorKind::BadInput);
    }

    #[test]
    fn a_model_is_named_once() {
        let missing = |path: &str| PackageError::Missing { path: path.into(), name: "w.onnx".to_owned() };
        let message = |error: PackageError| JobError::model("models/n", error).to_string();
        for path in ["models/n", "models/n/rdf.yaml"] {
            assert_eq!(message(missing(path)), missing(path).to_string());
        }
        assert_eq!(message(missing("models/nuclei")), format!("models/n: {}", missing("models/nuclei")));
        let text = JobError::model("n", "no network").to_string();
        assert_eq!(text, "n: no network", "a text names no path");
    }

    #[test]
    fn only_errors_that_the_user_can_allow_name_what_would_be_overwritten() {
        let path = PathBuf::from("o/a.tif");
        let refused =
            |can_force| StorageError::NotReplaceable { path: path.clone(), problem: "is other".to_owned(), can_force };
        let check = |error: JobError, expected: Option<&str>| {
            let existing = error.existing_output();
            assert_eq!(existing.as_ref().map(|existing| existing.problem.as_str()), expected, "{error}");
            assert!(existing.is_none_or(|existing| existing.path == path), "{error}");
            let kind = if expected.is_some() { JobErrorKind::WouldOverwrite } else { JobErrorKind::WrongUse };
            assert_eq!(error.kind(), kind, "{error}");
        };
        for (error, expected) in [
            (StorageError::Exists { path: path.clone() }, Some("already exists")),
            (refused(true), Some("is other")),
            (refused(false), None),
            (StorageError::IsInput { path: path.clone() }, None),
        ] {
            check(JobError::from(error), expected);
        }
        // The same, from writing a stack or a package.
        let exists = || StorageError::Exists { path: path.clone() };
        check(FormatError::from(exists()).into(), Some("already exists"));
        check(JobError::model("m", PackageError::from(exists())), Some("already exists"));
        check(FormatError::from(refused(false)).into(), None);
    }
}

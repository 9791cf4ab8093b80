//! Errors of training data.

use crate::dataset::{Dataset, Problem};
use crate::summary;
use cytoscope_formats::FormatError;
use cytoscope_objects::ObjectsError;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::{io_advice, io_problem};
use cytoscope_volume::{VolumeError, printable};
use std::io;
use std::path::{Path, PathBuf};

/// Returns a path as it is shown in messages.
fn shown(path: &Path) -> String {
    printable(&path.display().to_string()).into_owned()
}

/// Message for data without a pair.
pub(crate) const NO_PAIR: &str = "no pair of an image and its target was found";

/// Returns the most common kind of problem, with an example and the number of files.
pub(crate) fn most_common_problem(problems: &[Problem]) -> Message {
    let kinds = summary::kinds(problems);
    let Some(first) = kinds.first() else { return "it contains no image".into() };
    let others: usize = kinds.iter().skip(1).map(|kind| kind.members.len()).sum();
    let more = match others {
        0 => String::new(),
        1 => ", and 1 problem of another kind".to_owned(),
        _ => format!(", and {others} problems of other kinds"),
    };
    let (file, message) = (shown(&first.example.file), first.example.message.map_text(printable));
    match first.members.len() {
        1 => message!("{file}: {message}{more}"),
        _ => message!("{}, such as {file}: {message}{more}", first.count()),
    }
}

/// An error of training data: the file, the problem and the next step.
#[derive(Debug, thiserror::Error)]
pub enum TrainingDataError {
    /// An image cannot be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A folder, table or pair of files cannot be used.
    #[error("{}: {}; {}", shown(.file), .problem.map_text(printable), .next_step.map_text(printable))]
    Data {
        /// Path of the file or folder.
        file: PathBuf,
        /// What is wrong.
        problem: Message,
        /// What was expected, or what to do next.
        next_step: Message,
    },
    /// A folder or table contains no pair, but files that could be part of one.
    #[error("{}: {}; {}", shown(&.dataset.root), .problem.map_text(printable), .next_step.map_text(printable))]
    NoPairs {
        /// The dataset without pairs, with the problem of each file.
        dataset: Box<Dataset>,
        /// What is wrong, with the most common problem of the files.
        problem: Message,
        /// What to do next.
        next_step: Message,
    },
    /// A quantity exceeds a limit of [`crate::limits`].
    #[error("{}: {what} is {got}, more than the limit {limit_name} = {limit}; {next_step}", shown(.file))]
    OverLimit {
        /// Path of the file or folder.
        file: PathBuf,
        /// The quantity.
        what: &'static str,
        /// Value of the quantity.
        got: u64,
        /// Name of the limit in [`crate::limits`].
        limit_name: &'static str,
        /// Maximum allowed value.
        limit: u64,
        /// What to do next.
        next_step: &'static str,
    },
    /// An option is outside its range.
    #[error("{what} is {}, expected {expected}", printable(.got))]
    Parameter {
        /// The option.
        what: &'static str,
        /// The given value.
        got: String,
        /// Range of the option, as text.
        expected: &'static str,
    },
    /// The operating system reported an error.
    #[error("{}: {doing} failed: {}; {}", shown(.file), io_problem(.source), io_advice(.source))]
    Io {
        /// Path of the file.
        file: PathBuf,
        /// The operation.
        doing: &'static str,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// Shapes or voxel sizes are inconsistent.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// Objects cannot be measured.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    /// A thread that prepares patches could not be started.
    #[error("cannot start a thread that prepares patches: {source}; use fewer data workers")]
    Thread {
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// A worker thread of the loader panicked.
    #[error("preparing patch {index} failed: {problem}; this is a bug: please report it with the seed")]
    Worker {
        /// Index of the patch.
        index: u64,
        /// The message of the panic.
        problem: String,
    },
}

impl TrainingDataError {
    pub(crate) fn data(file: &Path, problem: impl Into<Message>, next_step: impl Into<Message>) -> Self {
        Self::Data { file: file.to_owned(), problem: problem.into(), next_step: next_step.into() }
    }

    pub(crate) fn io(file: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        let file = file.to_owned();
        move |source| Self::Io { file, doing, source }
    }
}

/// Checks a quantity against a limit.
pub(crate) fn check_limit(
    file: &Path,
    what: &'static str,
    got: u64,
    (limit_name, limit): (&'static str, u64),
    next_step: &'static str,
) -> Result<(), TrainingDataError> {
    if got > limit {
        return Err(TrainingDataError::OverLimit { file: file.to_owned(), what, got, limit_name, limit, next_step });
    }
    Ok(())
}

/// Checks an option against its range.
pub(crate) fn check_range(
    what: &'static str,
    got: f64,
    range: std::ops::RangeInclusive<f64>,
    expected: &'static str,
) -> Result<(), TrainingDataError> {
    if range.contains(&got) {
        return Ok(());
    }
    Err(TrainingDataError::Parameter { what, got: got.to_string(), expected })
}

//! What can go wrong with training data.

use crate::dataset::{Dataset, Problem};
use crate::summary;
use cytoscope_formats::{FormatError, io_advice};
use cytoscope_objects::ObjectsError;
use cytoscope_volume::{VolumeError, printable};
use std::io;
use std::path::{Path, PathBuf};

/// A path as messages show it.
fn shown(path: &Path) -> String {
    printable(&path.display().to_string()).into_owned()
}

/// What is said of data without a pair.
pub(crate) const NO_PAIR: &str = "no pair of an image and its target was found";

/// What most files have in common, and how many they are.
pub(crate) fn met_most(problems: &[Problem]) -> String {
    let kinds = summary::kinds(problems);
    let Some(first) = kinds.first() else { return "there is no image".to_owned() };
    let others: usize = kinds.iter().skip(1).map(|kind| kind.members.len()).sum();
    let more = if others > 0 { format!(", and {others} problems of other kinds") } else { String::new() };
    let (file, sentence) = (shown(&first.example.file), printable(&first.example.sentence));
    match first.members.len() {
        1 => format!("{file}: {sentence}{more}"),
        _ => format!("{}, such as {file}: {sentence}{more}", first.count()),
    }
}

/// A failure with training data: the file, what was met, and what to do next.
#[derive(Debug, thiserror::Error)]
pub enum SamplesError {
    /// An image cannot be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A folder, a table or a pair of files does not fit its use.
    #[error("{}: {}; {}", shown(.file), printable(.met), printable(.next))]
    Data {
        /// The file or folder.
        file: PathBuf,
        /// What was met.
        met: String,
        /// What was expected, or what to do next.
        next: String,
    },
    /// A folder or a table without any pair, but with files that could have been of one.
    #[error("{}: {}; {}", shown(&.dataset.root), printable(.met), printable(.next))]
    NoPairs {
        /// What was searched, with what is wrong with each file.
        dataset: Box<Dataset>,
        /// What was met, with what most files have in common.
        met: String,
        /// What to do next.
        next: String,
    },
    /// More is asked for than a limit of [`crate::limits`] allows.
    #[error("{}: {what} is {got}, more than the limit {limit_name} = {limit}; {next}", shown(.file))]
    OverLimit {
        /// The file or folder.
        file: PathBuf,
        /// The quantity.
        what: &'static str,
        /// Its value.
        got: u64,
        /// The limit's name.
        limit_name: &'static str,
        /// The limit.
        limit: u64,
        /// What to do next.
        next: &'static str,
    },
    /// An option outside its range.
    #[error("{what} is {}, expected {expected}", printable(.got))]
    Parameter {
        /// The option.
        what: &'static str,
        /// The value met.
        got: String,
        /// Its range.
        expected: &'static str,
    },
    /// The operating system failed.
    #[error("{}: {doing} failed: {source}; {}", shown(.file), io_advice(.source))]
    Io {
        /// The file.
        file: PathBuf,
        /// What was being done.
        doing: &'static str,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// Sizes that do not fit each other.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// Objects that cannot be measured.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    /// A thread that makes patches broke down.
    #[error("making patch {index} broke down: {met}; this is a fault of the program: please report it with its seed")]
    Worker {
        /// Number of the patch.
        index: u64,
        /// What the thread said.
        met: String,
    },
}

impl SamplesError {
    pub(crate) fn data(file: &Path, met: impl Into<String>, next: impl Into<String>) -> Self {
        Self::Data { file: file.to_owned(), met: met.into(), next: next.into() }
    }

    pub(crate) fn io(file: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        let file = file.to_owned();
        move |source| Self::Io { file, doing, source }
    }
}

/// Refuses what is over a limit.
pub(crate) fn check_limit(
    file: &Path,
    what: &'static str,
    got: u64,
    (limit_name, limit): (&'static str, u64),
    next: &'static str,
) -> Result<(), SamplesError> {
    if got > limit {
        return Err(SamplesError::OverLimit { file: file.to_owned(), what, got, limit_name, limit, next });
    }
    Ok(())
}

/// Refuses an option outside its range.
pub(crate) fn check_range(
    what: &'static str,
    got: f64,
    range: std::ops::RangeInclusive<f64>,
    expected: &'static str,
) -> Result<(), SamplesError> {
    if range.contains(&got) {
        return Ok(());
    }
    Err(SamplesError::Parameter { what, got: got.to_string(), expected })
}

//! Errors of reading and writing. Malformed, unsupported, over a limit and misused are four different kinds.

use cytoscope_storage::message::Message;
use cytoscope_storage::{StorageError, io_advice, io_problem, is_exhausted};
use cytoscope_volume::printable;
use std::{
    borrow::Cow,
    io,
    path::{Path, PathBuf},
};

/// A path as text for messages.
fn path_text(path: &Path) -> String {
    printable(&path.display().to_string()).into_owned()
}

/// The kind of a [`FormatError`], from which a program derives its exit code or advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FormatErrorKind {
    /// The file violates its format.
    Malformed,
    /// The file is valid, but uses a feature that is not supported.
    Unsupported,
    /// The file exceeds a limit in [`crate::Limits`].
    OverLimit,
    /// The call does not match the file (a region outside it, a series that does not exist, a wrong extension), or the
    /// file may not be written there.
    Misused,
    /// The disk, a quota or the memory is exhausted.
    OutOfResources,
    /// Any other error of the operating system.
    Io,
}

/// The operation of [`FormatError::Io`] that opens a file.
pub const OPENING: &str = "opening";

/// A failed read or write, with the file, the problem and the next step.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The file violates its format.
    #[error("{}: {}; {}", path_text(.file), printable(.problem), .next_step.map_text(printable))]
    Malformed {
        /// Path of the malformed file.
        file: PathBuf,
        /// What is wrong.
        problem: String,
        /// What was expected, or what to do next.
        next_step: Message,
    },
    /// The file is valid, but uses a feature that is not supported.
    #[error("{}: {}; {}", path_text(.file), printable(.problem), .next_step.map_text(printable))]
    Unsupported {
        /// Path of the file that uses the feature.
        file: PathBuf,
        /// What is wrong.
        problem: String,
        /// What was expected, or what to do next.
        next_step: Message,
    },
    /// The file exceeds a limit.
    #[error("{}: {}; {}", path_text(.file), printable(.problem), .next_step.map_text(printable))]
    OverLimit {
        /// Path of the file that exceeds the limit.
        file: PathBuf,
        /// What is wrong.
        problem: String,
        /// What was expected, or what to do next.
        next_step: Message,
    },
    /// The call does not match the file.
    #[error("{}: {}; {}", path_text(.file), printable(.problem), .next_step.map_text(printable))]
    Misused {
        /// Path of the file that the call refers to.
        file: PathBuf,
        /// What was requested.
        problem: String,
        /// What was expected, or what to do next.
        next_step: Message,
    },
    /// The operating system reported an error.
    #[error("{}: {}; {}", path_text(.file), failed_operation(.doing, .source), io_advice(.source))]
    Io {
        /// Path of the file or folder that the operation failed on.
        file: PathBuf,
        /// The failed operation, such as "reading".
        doing: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A file or folder may not be written where it was requested.
    #[error(transparent)]
    Storage(StorageError),
}

impl FormatError {
    /// The kind of the error.
    pub fn kind(&self) -> FormatErrorKind {
        match self {
            FormatError::Malformed { .. } => FormatErrorKind::Malformed,
            FormatError::Unsupported { .. } => FormatErrorKind::Unsupported,
            FormatError::OverLimit { .. } => FormatErrorKind::OverLimit,
            FormatError::Misused { .. } => FormatErrorKind::Misused,
            FormatError::Io { source, .. } if is_exhausted(source) => FormatErrorKind::OutOfResources,
            FormatError::Io { .. } => FormatErrorKind::Io,
            FormatError::Storage(StorageError::Io { source, .. }) if is_exhausted(source) => {
                FormatErrorKind::OutOfResources
            }
            FormatError::Storage(StorageError::Io { .. }) => FormatErrorKind::Io,
            FormatError::Storage(_) => FormatErrorKind::Misused,
        }
    }

    /// The file that the error refers to.
    pub fn file(&self) -> &Path {
        match self {
            FormatError::Malformed { file, .. }
            | FormatError::Unsupported { file, .. }
            | FormatError::OverLimit { file, .. }
            | FormatError::Misused { file, .. }
            | FormatError::Io { file, .. } => file,
            FormatError::Storage(error) => error.path(),
        }
    }

    /// What was expected, or what to do next: the end of the message.
    pub fn next_step(&self) -> Message {
        match self {
            FormatError::Malformed { next_step, .. }
            | FormatError::Unsupported { next_step, .. }
            | FormatError::OverLimit { next_step, .. }
            | FormatError::Misused { next_step, .. } => next_step.map_text(printable),
            FormatError::Io { source, .. } => io_advice(source).into(),
            FormatError::Storage(error) => error.next_step(),
        }
    }

    pub(crate) fn io(file: &Path, doing: &'static str, source: io::Error) -> Self {
        FormatError::Io { file: file.to_owned(), doing, source }
    }

    pub(crate) fn misused(file: &Path, problem: impl Into<String>, next_step: impl Into<Message>) -> Self {
        FormatError::Misused { file: file.to_owned(), problem: problem.into(), next_step: next_step.into() }
    }

    pub(crate) fn unsupported(file: &Path, problem: impl Into<String>, next_step: impl Into<Message>) -> Self {
        FormatError::Unsupported { file: file.to_owned(), problem: problem.into(), next_step: next_step.into() }
    }
}

impl From<StorageError> for FormatError {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::Io { path, doing, source } => FormatError::Io { file: path, doing, source },
            other => FormatError::Storage(other),
        }
    }
}

/// Returns which operation failed, and why.
fn failed_operation(doing: &str, source: &io::Error) -> String {
    let problem = io_problem(source);
    match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory if doing == OPENING => problem.into_owned(),
        _ => format!("{doing} failed: {problem}"),
    }
}

/// An error inside a decoder or parser, before the path of the file is attached with [`Fault::at`].
#[derive(Debug)]
pub(crate) enum Fault {
    Malformed(Cow<'static, str>, Message),
    Unsupported(Cow<'static, str>, Message),
    OverLimit(Cow<'static, str>, Message),
    Misused(Cow<'static, str>, Message),
    Io(&'static str, io::Error),
}

pub(crate) const DAMAGED: &str = "the file is damaged or incomplete: export or copy it again";
pub(crate) const RESAVE: &str =
    "save it uncompressed or with LZW, Deflate, Zstd, PackBits or JPEG compression, for example with Fiji";

/// The advice for an index that does not exist, where `count` ones do.
pub(crate) fn choose_index(count: usize) -> String {
    match count {
        0 | 1 => "choose 0".to_owned(),
        _ => format!("choose one of 0 to {}", count - 1),
    }
}

/// How a user can get at an image whose file exceeds a limit. No option or setting raises a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Remedy {
    /// Files of microscopes are far below the limit.
    CopyAgain,
    /// The image has too many pages, planes or files.
    Split,
    /// A series has too many files beside each other.
    MoveFiles,
    /// A part of the file that is decoded at once is too large.
    SmallerChunks,
    /// The file consists of too many parts.
    LargerChunks,
    /// One read would return, or fill with zeros, too many bytes.
    Crop,
    /// A compressed file is held in memory.
    Expand,
    /// A compressed image is held in memory.
    SaveUncompressed,
    /// The regions of interest are too many or too detailed.
    FewerRegions,
    /// The folder has too many images or too large metadata.
    OpenPart,
    /// The zip file is too large to be read without unpacking it.
    Unzip,
}

impl Remedy {
    /// The next step for the user.
    pub(crate) fn next_step(self) -> &'static str {
        match self {
            Self::CopyAgain => {
                "valid files are far below this limit: the file is probably damaged; export or copy it again"
            }
            Self::Split => "save the image as several files, for example one for each position, time point or channel",
            Self::MoveFiles => "move some of these files to another folder",
            Self::SmallerChunks => {
                "save it again as OME-TIFF or OME-Zarr with smaller tiles or chunks, for example of 1 MB"
            }
            Self::LargerChunks => "write it again with larger chunks, for example of 1 MB, or fewer of them in a shard",
            Self::Crop => "crop the image with another program, or save it as several smaller ones",
            Self::Expand => "expand it, for example with gunzip, and open the .nii file, which is read in parts",
            Self::SaveUncompressed => "save it without compression, so that it can be read in parts",
            Self::FewerRegions => "save fewer or simpler regions in one file, or save the objects as a label image",
            Self::OpenPart => "open the folder of one of its images instead; if it is in a zip file, unpack that first",
            Self::Unzip => "unpack the zip file, and open the folder",
        }
    }
}

impl Fault {
    /// A malformed file; the advice is to export or copy the file again.
    pub fn malformed(problem: impl Into<Cow<'static, str>>) -> Self {
        Fault::Malformed(problem.into(), DAMAGED.into())
    }

    /// A valid file with a feature that cannot be read; `next_step` says how to get around it.
    pub fn unsupported(problem: impl Into<Cow<'static, str>>, next_step: impl Into<Message>) -> Self {
        Fault::Unsupported(problem.into(), next_step.into())
    }

    /// A file that exceeds a limit; `limit_name` is the field of [`crate::Limits`] or the name of the constant.
    pub fn over(what: &str, got: u64, limit_name: &str, limit: u64, remedy: Remedy) -> Self {
        Fault::OverLimit(
            format!("{what} is {got}, more than the limit {limit_name} = {limit}").into(),
            remedy.next_step().into(),
        )
    }

    /// Attaches the path of the file.
    pub fn at(self, file: &Path) -> FormatError {
        let file = file.to_owned();
        match self {
            Fault::Malformed(problem, next_step) => {
                FormatError::Malformed { file, problem: problem.into_owned(), next_step }
            }
            Fault::Unsupported(problem, next_step) => {
                FormatError::Unsupported { file, problem: problem.into_owned(), next_step }
            }
            Fault::OverLimit(problem, next_step) => {
                FormatError::OverLimit { file, problem: problem.into_owned(), next_step }
            }
            Fault::Misused(problem, next_step) => {
                FormatError::Misused { file, problem: problem.into_owned(), next_step }
            }
            Fault::Io(doing, source) => FormatError::Io { file, doing, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_storage::message;
    use cytoscope_storage::setting::AXES;

    #[test]
    fn a_full_disk_is_distinguished_from_other_io_errors() {
        let kind = |k: io::ErrorKind| FormatError::io(Path::new("a.tif"), "writing", k.into()).kind();
        assert_eq!(kind(io::ErrorKind::StorageFull), FormatErrorKind::OutOfResources);
        assert_eq!(kind(io::ErrorKind::QuotaExceeded), FormatErrorKind::OutOfResources);
        assert_eq!(kind(io::ErrorKind::PermissionDenied), FormatErrorKind::Io);
        let text = FormatError::io(Path::new("a.tif"), "writing", io::ErrorKind::StorageFull.into()).to_string();
        assert!(text.starts_with("a.tif: writing failed") && text.ends_with("try again"), "{text}");
    }

    #[test]
    fn text_from_a_file_is_escaped_in_messages() {
        let error = Fault::malformed("its name is \u{1b}[2J").at(Path::new("a\u{202e}\n.tif")).to_string();
        assert!(error.starts_with("a\\u{202e}\\u{a}.tif: its name is \\u{1b}[2J; "), "{error}");
    }

    #[test]
    fn the_next_step_keeps_the_settings_that_it_names() {
        let error =
            FormatError::misused(Path::new("--axes.tif"), "its axes are\n odd", message!("give\n them ({AXES})"));
        assert_eq!(error.to_string(), "--axes.tif: its axes are\\u{a} odd; give\\u{a} them (--axes)");
        for message in [Message::of(&error), error.next_step()] {
            assert!(message.ends_with("give\\u{a} them (--axes)"), "{message}");
            assert_eq!(message.settings().map(|(_, setting)| setting).collect::<Vec<_>>(), [AXES], "{message}");
        }
    }

    #[test]
    fn a_file_that_would_be_replaced_is_reported_as_such() {
        let error = FormatError::from(StorageError::Exists { path: "a.tif".into() });
        assert!(matches!(error, FormatError::Storage(StorageError::Exists { .. })), "{error:?}");
        assert_eq!((error.kind(), error.file()), (FormatErrorKind::Misused, Path::new("a.tif")));
        assert!(error.to_string().ends_with("or replace it with --force"), "{error}");
        let full = StorageError::io(Path::new("a.tif"), "writing")(io::ErrorKind::StorageFull.into());
        assert_eq!(FormatError::from(full).kind(), FormatErrorKind::OutOfResources);
    }

    #[test]
    fn a_single_choice_is_no_range() {
        assert_eq!([1, 3].map(choose_index), ["choose 0", "choose one of 0 to 2"]);
    }

    #[test]
    fn a_limit_that_nothing_raises_is_not_said_to_be_raised() {
        use Remedy::{
            CopyAgain, Crop, Expand, FewerRegions, LargerChunks, MoveFiles, OpenPart, SaveUncompressed, SmallerChunks,
            Split, Unzip,
        };
        let all = [
            CopyAgain,
            Split,
            MoveFiles,
            SmallerChunks,
            LargerChunks,
            Crop,
            Expand,
            SaveUncompressed,
            FewerRegions,
            OpenPart,
            Unzip,
        ];
        for remedy in all {
            let error = Fault::over("the size", 2, "max", 1, remedy).at(Path::new("a.tif")).to_string();
            assert!(error.starts_with("a.tif: the size is 2, more than the limit max = 1; "), "{error}");
            assert!(error.ends_with(remedy.next_step()) && !error.contains("raise"), "{error}");
        }
    }

    #[test]
    fn the_four_kinds_are_distinguished() {
        let at = |f: Fault| f.at(Path::new("a.tif")).kind();
        assert_eq!(at(Fault::malformed("x")), FormatErrorKind::Malformed);
        assert_eq!(at(Fault::unsupported("x", "y")), FormatErrorKind::Unsupported);
        assert_eq!(at(Fault::over("x", 2, "max", 1, Remedy::Split)), FormatErrorKind::OverLimit);
        assert_eq!(at(Fault::Misused("x".into(), "y".into())), FormatErrorKind::Misused);
    }
}

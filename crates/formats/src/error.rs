//! What can go wrong with files: malformed, unsupported, over a limit and misused are four different answers.

use cytoscope_storage::{StorageError, io_advice, is_exhausted};
use cytoscope_volume::printable;
use std::{
    borrow::Cow,
    io,
    path::{Path, PathBuf},
};

/// A path as messages show it.
fn shown(path: &Path) -> String {
    printable(&path.display().to_string()).into_owned()
}

/// The class of a [`FormatError`], from which a program picks its exit code or its advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FormatErrorKind {
    /// The file breaks its own format.
    Malformed,
    /// The file is sound, but uses something that is not read or written here.
    Unsupported,
    /// The file asks for more than a limit in [`crate::Limits`] allows.
    OverLimit,
    /// The call does not fit the file (a region outside it, a series it does not have, a wrong extension).
    Misused,
    /// A disk, quota or memory is exhausted.
    OutOfResources,
    /// Any other failure of the operating system.
    Io,
}

/// A failed read or write: always the file, what was met, and what would be right.
#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    /// The file breaks its own format.
    #[error("{}: {}; {}", shown(.file), printable(.met), printable(.next))]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What was met in it.
        met: String,
        /// What would be right, or what to do next.
        next: String,
    },
    /// The file is sound, but uses something that is not read or written here.
    #[error("{}: {}; {}", shown(.file), printable(.met), printable(.next))]
    Unsupported {
        /// The file.
        file: PathBuf,
        /// What was met in it.
        met: String,
        /// What would be right, or what to do next.
        next: String,
    },
    /// The file asks for more than a limit allows.
    #[error("{}: {}; {}", shown(.file), printable(.met), printable(.next))]
    OverLimit {
        /// The file.
        file: PathBuf,
        /// What was met in it.
        met: String,
        /// What would be right, or what to do next.
        next: String,
    },
    /// The call does not fit the file.
    #[error("{}: {}; {}", shown(.file), printable(.met), printable(.next))]
    Misused {
        /// The file.
        file: PathBuf,
        /// What was asked.
        met: String,
        /// What would be right, or what to do next.
        next: String,
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
}

impl FormatError {
    /// The class of the error.
    pub fn kind(&self) -> FormatErrorKind {
        match self {
            FormatError::Malformed { .. } => FormatErrorKind::Malformed,
            FormatError::Unsupported { .. } => FormatErrorKind::Unsupported,
            FormatError::OverLimit { .. } => FormatErrorKind::OverLimit,
            FormatError::Misused { .. } => FormatErrorKind::Misused,
            FormatError::Io { source, .. } if is_exhausted(source) => FormatErrorKind::OutOfResources,
            FormatError::Io { .. } => FormatErrorKind::Io,
        }
    }

    /// The file the error is about.
    pub fn file(&self) -> &Path {
        match self {
            FormatError::Malformed { file, .. }
            | FormatError::Unsupported { file, .. }
            | FormatError::OverLimit { file, .. }
            | FormatError::Misused { file, .. }
            | FormatError::Io { file, .. } => file,
        }
    }

    pub(crate) fn io(file: &Path, doing: &'static str, source: io::Error) -> Self {
        FormatError::Io { file: file.to_owned(), doing, source }
    }

    pub(crate) fn misused(file: &Path, met: impl Into<String>, next: impl Into<String>) -> Self {
        FormatError::Misused { file: file.to_owned(), met: met.into(), next: next.into() }
    }

    pub(crate) fn unsupported(file: &Path, met: impl Into<String>, next: impl Into<String>) -> Self {
        FormatError::Unsupported { file: file.to_owned(), met: met.into(), next: next.into() }
    }
}

impl From<StorageError> for FormatError {
    fn from(error: StorageError) -> Self {
        match error {
            StorageError::Io { path, doing, source } => FormatError::Io { file: path, doing, source },
            StorageError::Exists { path } | StorageError::IsInput { path } | StorageError::Busy { path } => {
                FormatError::misused(&path, "the file exists or is in use", "write to another path")
            }
            StorageError::NotOurs { path, problem, .. } => {
                FormatError::misused(&path, problem, "write to another path")
            }
        }
    }
}

/// A failure inside a decoder or parser, before the file's name is attached with [`Fault::at`].
#[derive(Debug)]
pub(crate) enum Fault {
    Malformed(Cow<'static, str>, Cow<'static, str>),
    Unsupported(Cow<'static, str>, Cow<'static, str>),
    OverLimit(Cow<'static, str>, Cow<'static, str>),
    Misused(Cow<'static, str>, Cow<'static, str>),
    Io(&'static str, io::Error),
}

pub(crate) const DAMAGED: &str = "the file is damaged or incomplete: export or copy it again";
pub(crate) const RESAVE: &str =
    "save it uncompressed or with LZW, Deflate, Zstd, PackBits or JPEG compression, for example with Fiji";

impl Fault {
    /// A broken file; the advice is to get the file again.
    pub fn malformed(met: impl Into<Cow<'static, str>>) -> Self {
        Fault::Malformed(met.into(), DAMAGED.into())
    }

    pub fn unsupported(met: impl Into<Cow<'static, str>>, next: impl Into<Cow<'static, str>>) -> Self {
        Fault::Unsupported(met.into(), next.into())
    }

    /// More than a limit allows.
    pub fn over(what: &str, got: u64, limit_name: &str, limit: u64) -> Self {
        Fault::OverLimit(
            format!("{what} is {got}, more than the limit {limit_name} = {limit}").into(),
            "if the file is trusted, raise that limit, else take it for damaged".into(),
        )
    }

    /// The error, with the name of its file.
    pub fn at(self, file: &Path) -> FormatError {
        let file = file.to_owned();
        match self {
            Fault::Malformed(met, next) => {
                FormatError::Malformed { file, met: met.into_owned(), next: next.into_owned() }
            }
            Fault::Unsupported(met, next) => {
                FormatError::Unsupported { file, met: met.into_owned(), next: next.into_owned() }
            }
            Fault::OverLimit(met, next) => {
                FormatError::OverLimit { file, met: met.into_owned(), next: next.into_owned() }
            }
            Fault::Misused(met, next) => FormatError::Misused { file, met: met.into_owned(), next: next.into_owned() },
            Fault::Io(doing, source) => FormatError::Io { file, doing, source },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_told_from_other_trouble() {
        let kind = |k: io::ErrorKind| FormatError::io(Path::new("a.tif"), "writing", k.into()).kind();
        assert_eq!(kind(io::ErrorKind::StorageFull), FormatErrorKind::OutOfResources);
        assert_eq!(kind(io::ErrorKind::QuotaExceeded), FormatErrorKind::OutOfResources);
        assert_eq!(kind(io::ErrorKind::PermissionDenied), FormatErrorKind::Io);
        let text = FormatError::io(Path::new("a.tif"), "writing", io::ErrorKind::StorageFull.into()).to_string();
        assert!(text.starts_with("a.tif: writing failed") && text.ends_with("try again"), "{text}");
    }

    #[test]
    fn what_is_quoted_from_a_file_does_not_steer_a_terminal() {
        let error = Fault::malformed("its name is \u{1b}[2J").at(Path::new("a\u{202e}\n.tif")).to_string();
        assert!(error.starts_with("a\\u{202e}\\u{a}.tif: its name is \\u{1b}[2J; "), "{error}");
    }

    #[test]
    fn the_four_answers_differ() {
        let at = |f: Fault| f.at(Path::new("a.tif")).kind();
        assert_eq!(at(Fault::malformed("x")), FormatErrorKind::Malformed);
        assert_eq!(at(Fault::unsupported("x", "y")), FormatErrorKind::Unsupported);
        assert_eq!(at(Fault::over("x", 2, "max", 1)), FormatErrorKind::OverLimit);
        assert_eq!(at(Fault::Misused("x".into(), "y".into())), FormatErrorKind::Misused);
    }
}

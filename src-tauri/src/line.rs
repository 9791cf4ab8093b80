//! The lines between shell and window.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Files that people want to see.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Opening {
    /// Absolute paths.
    pub open: Vec<PathBuf>,
    /// Names that cannot be written as text, as they would be shown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_text: Vec<String>,
}

impl Opening {
    /// The files among a program's arguments, without its own name; relative ones are meant from `folder`.
    pub fn of_arguments(arguments: impl IntoIterator<Item = OsString>, folder: &Path) -> Self {
        // Options are for the program, which has none; launchers add some of their own.
        let files = arguments.into_iter().filter(|a| !a.as_encoded_bytes().starts_with(b"-")).map(PathBuf::from);
        Self::of_paths(files.map(|f| folder.join(f)))
    }

    /// These files.
    pub fn of_paths(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let (open, others): (Vec<_>, Vec<_>) = paths.into_iter().partition(|p| p.to_str().is_some());
        Self { open, not_text: others.iter().map(|p| p.to_string_lossy().into_owned()).collect() }
    }
}

/// What a window that takes another's place is told first.
#[derive(Debug, Serialize)]
pub(crate) struct Recovery<'a> {
    pub open: &'a [PathBuf],
    pub recovered: &'a str,
    pub left_closed: &'a [PathBuf],
}

/// What the window tells; fields of later versions are left alone.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct FromWindow {
    pub files: Option<Vec<PathBuf>>,
}

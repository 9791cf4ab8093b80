//! Messages between supervisor and window: one JSON object per line.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Files to open in the window.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct OpenRequest {
    /// Absolute paths.
    pub open: Vec<PathBuf>,
    /// Names that are not valid UTF-8, in lossy form for display.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_text: Vec<String>,
}

impl OpenRequest {
    /// Takes the files from the command-line arguments (without the program name). Relative paths are resolved against
    /// `folder`.
    pub fn from_arguments(arguments: impl IntoIterator<Item = OsString>, folder: &Path) -> Self {
        // The program has no options; launchers add some of their own.
        let files = arguments.into_iter().filter(|a| !a.as_encoded_bytes().starts_with(b"-")).map(PathBuf::from);
        Self::from_paths(files.map(|f| folder.join(f)))
    }

    /// Splits paths into those that are UTF-8 and the lossy names of the others.
    pub fn from_paths(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let (open, others): (Vec<_>, Vec<_>) = paths.into_iter().partition(|p| p.to_str().is_some());
        Self { open, not_text: others.iter().map(|p| p.to_string_lossy().into_owned()).collect() }
    }
}

/// First message to a window that is started after a crash.
#[derive(Debug, Serialize)]
pub(crate) struct Recovery<'a> {
    /// Absolute paths of the files to open again; empty if they are left closed.
    pub open: &'a [PathBuf],
    /// Why the previous window ended, such as `signal 11`.
    pub recovered: &'a str,
    /// Absolute paths that are not opened again, because the window crashed twice with them.
    pub left_closed: &'a [PathBuf],
}

/// A message from the window. Unknown fields of later versions are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct WindowMessage {
    /// Absolute paths of all open stacks; `None` in messages about something else.
    pub files: Option<Vec<PathBuf>>,
}

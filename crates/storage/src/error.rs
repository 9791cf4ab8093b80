//! Errors of writing, replacing and removing files and folders.

use crate::io_text::{io_advice, io_problem};
use crate::message;
use crate::message::Message;
use crate::setting::FORCE;
use std::io;
use std::path::{Path, PathBuf};

/// What to do if the folder of an output is missing.
const CREATE_FOLDER: &str = "create it, or choose another folder";
/// What to do if an output is an input.
const OTHER_PATH: &str = "write to another path";

/// Why a file or folder was not written, replaced or removed. Existing files and folders are unchanged.
#[derive(Debug, thiserror::Error)]
pub enum StorageError {
    /// The operating system reported an error.
    #[error("{path}: {doing} failed: {}; {}", io_problem(.source), io_advice(.source))]
    Io {
        /// Path of the file or folder.
        path: PathBuf,
        /// The failed operation, such as "creating the folder".
        doing: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The folder of an output does not exist.
    #[error("{path}: the folder {folder} does not exist; {next_step}", next_step = CREATE_FOLDER)]
    NoFolder {
        /// Path of the output.
        path: PathBuf,
        /// The missing folder.
        folder: PathBuf,
    },
    /// The output file exists already and replacing it was not requested.
    #[error("{path} already exists; {}", exists_advice())]
    Exists {
        /// Path of the file.
        path: PathBuf,
    },
    /// The output path is an input, or a folder that contains one.
    #[error("{path} is also an input; {next_step}", next_step = OTHER_PATH)]
    IsInput {
        /// Path of the file or folder.
        path: PathBuf,
    },
    /// A folder (or archive) with this name exists that this program did not create, or that was changed afterwards.
    #[error("{path} {problem}; {}", replace_advice(*.can_force))]
    NotReplaceable {
        /// The folder or file.
        path: PathBuf,
        /// Why it is not replaced, as the predicate of a sentence.
        problem: String,
        /// Whether the user can request that it is moved aside.
        can_force: bool,
    },
    /// The extension of an output's name is not one of those that can be written.
    #[error("{path} {found}; {}", extension_advice(.expected))]
    Extension {
        /// The output path.
        path: PathBuf,
        /// What is wrong with its extension, as a predicate.
        found: String,
        /// The extensions that can be written, as text.
        expected: String,
    },
    /// Another process holds the lock.
    #[error(
        "{path}: another run of Cytoscope{process} is {locked}; {next_step}",
        process = process_text(.holder.as_ref()),
        next_step = .locked.next_step(.holder.as_ref())
    )]
    Busy {
        /// Path of what is locked.
        path: PathBuf,
        /// What is locked.
        locked: Locked,
        /// The process that holds the lock, if it is known.
        holder: Option<Holder>,
    },
}

/// What a lock protects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locked {
    /// Results that begin with the same name.
    Results,
    /// A file that is read, changed and written again, such as one of settings.
    File,
    /// A folder of a single run, such as that of a training run.
    Folder,
}

impl std::fmt::Display for Locked {
    /// Writes what the other run does.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Results => "writing these results",
            Self::File => "changing this file",
            Self::Folder => "using this folder",
        })
    }
}

impl Locked {
    /// Returns what to do next. A process that was killed and waits for a driver may never end.
    fn next_step(self, holder: Option<&Holder>) -> String {
        let killed = holder.filter(|holder| holder.is_killed);
        let first = killed.map_or_else(
            || "wait for it".to_owned(),
            |Holder { pid, .. }| format!("restart the computer if process {pid} does not end"),
        );
        match self {
            Self::Results => format!("{first}, or write to another folder"),
            Self::File if killed.is_none() => "wait until it has ended, then try again".to_owned(),
            Self::File => format!("{first}, then try again"),
            Self::Folder => format!("{first}, or choose another folder"),
        }
    }
}

/// The process that holds a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its id in the operating system.
    pub pid: u32,
    /// Whether it was killed and has not ended yet, as one that waits for a driver.
    pub is_killed: bool,
    /// Name of the machine that it runs on, if that is another one.
    pub machine: Option<String>,
}

/// Returns the process that holds a lock, in parentheses; nothing if it is not known.
fn process_text(holder: Option<&Holder>) -> String {
    holder.map_or_else(String::new, |Holder { pid, is_killed, machine }| {
        let place = machine.as_ref().map_or_else(String::new, |name| format!(" on {name}"));
        let killed = if *is_killed { ", which was killed but has not ended" } else { "" };
        format!(" (process {pid}{place}{killed})")
    })
}

impl StorageError {
    /// Returns a function that converts an [`io::Error`], for `map_err`.
    pub fn io(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), doing, source }
    }

    /// Returns what to do next, which is the end of the message.
    pub fn next_step(&self) -> Message {
        match self {
            Self::Io { source, .. } => io_advice(source).into(),
            Self::NoFolder { .. } => CREATE_FOLDER.into(),
            Self::Exists { .. } => exists_advice(),
            Self::IsInput { .. } => OTHER_PATH.into(),
            Self::NotReplaceable { can_force, .. } => replace_advice(*can_force),
            Self::Extension { expected, .. } => extension_advice(expected).into(),
            Self::Busy { locked, holder, .. } => locked.next_step(holder.as_ref()).into(),
        }
    }

    /// Returns the file or folder that the message names.
    pub fn path(&self) -> &Path {
        match self {
            Self::Io { path, .. }
            | Self::NoFolder { path, .. }
            | Self::Exists { path }
            | Self::IsInput { path }
            | Self::NotReplaceable { path, .. }
            | Self::Extension { path, .. }
            | Self::Busy { path, .. } => path,
        }
    }
}

/// Returns what to do if a file exists.
fn exists_advice() -> Message {
    message!("choose another name or folder, or replace it with {FORCE}")
}

/// Returns what to do if a file or folder is not replaced.
fn replace_advice(can_force: bool) -> Message {
    match can_force {
        true => message!("choose another path, or use {FORCE} to move it aside and write here"),
        false => "choose another path".into(),
    }
}

/// Returns what to do if the extension of a name is not one of the `expected` ones.
fn extension_advice(expected: &str) -> String {
    format!("expected {expected}: choose another name")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_that_is_an_input_is_refused_in_words_of_commands_and_of_the_window() {
        let message = StorageError::IsInput { path: PathBuf::from("o/a.tif") }.to_string();
        assert!(message.starts_with("o/a.tif is also an input; "), "{message}");
    }

    #[test]
    fn every_message_ends_with_the_next_step() {
        let path = || PathBuf::from("o/a.tif");
        let busy = |locked, is_killed: Option<bool>| StorageError::Busy {
            path: path(),
            locked,
            holder: is_killed.map(|is_killed| Holder { pid: 4711, is_killed, machine: None }),
        };
        let not_replaceable =
            |can_force| StorageError::NotReplaceable { path: path(), problem: "is other".to_owned(), can_force };
        let errors = [
            StorageError::Io { path: path(), doing: "writing", source: io::ErrorKind::StorageFull.into() },
            StorageError::NoFolder { path: path(), folder: "o".into() },
            StorageError::Exists { path: path() },
            StorageError::IsInput { path: path() },
            not_replaceable(false),
            not_replaceable(true),
            StorageError::Extension { path: path(), found: "ends in .x".to_owned(), expected: ".tif".to_owned() },
            busy(Locked::Results, None),
            busy(Locked::Results, Some(false)),
            busy(Locked::Results, Some(true)),
            busy(Locked::File, Some(true)),
            busy(Locked::Folder, Some(true)),
        ];
        for error in errors {
            let (message, next_step) = (error.to_string(), error.next_step());
            let problem = message.strip_suffix(next_step.as_str()).and_then(|rest| rest.strip_suffix("; "));
            assert!(problem.is_some_and(|problem| problem.starts_with("o/a.tif")), "{message}");
            let names = |message: &Message| message.settings().map(|(_, setting)| setting).collect::<Vec<_>>();
            assert_eq!(names(&Message::of(&error)), names(&next_step), "{message}");
            assert_eq!(names(&next_step).contains(&FORCE), message.contains("--force"), "{message}");
        }
        assert!(not_replaceable(true).to_string().ends_with("or use --force to move it aside and write here"));
        assert_eq!(
            busy(Locked::Results, Some(false)).to_string(),
            "o/a.tif: another run of Cytoscope (process 4711) is writing these results; wait for it, or write to another folder"
        );
        assert_eq!(
            busy(Locked::Folder, Some(true)).to_string(),
            "o/a.tif: another run of Cytoscope (process 4711, which was killed but has not ended) is using this folder; restart \
             the computer if process 4711 does not end, or choose another folder"
        );
        let holder = Some(Holder { pid: 4711, is_killed: false, machine: Some("gpu-server".to_owned()) });
        assert_eq!(
            StorageError::Busy { path: path(), locked: Locked::Folder, holder }.to_string(),
            "o/a.tif: another run of Cytoscope (process 4711 on gpu-server) is using this folder; wait for it, or choose \
             another folder"
        );
    }
}

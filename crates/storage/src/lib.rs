//! Opening, replacing and removing files and folders without losing user data.
//!
//! The crate owns what the other crates need for that:
//!
//! - [`read`] opens regular files only, so that a pipe or a device can neither block the program nor send it endless
//!   data, and opens files of a folder without following links out of it.
//! - [`limited`] limits the bytes that are read from an archive, such as a zip file, while it is opened, since the size of its
//!   directory is what the file claims.
//! - [`write`] writes a file under a random name next to its target, syncs it and renames it.
//! - [`folder`] creates, replaces and removes folders. Only folders with this program's marker file are ever removed; a
//!   folder with a manifest is removed only if it holds exactly the files of its manifest.
//! - [`folder_kind`] lists the kinds of these folders.
//! - [`ResultsFolder`] creates a folder for results, and removes it again if it is still empty at the end.
//! - [`partial_folder`] writes a folder of many files under a hidden name and renames it.
//! - [`target`] decides what an output path may replace: never an input, and a file or folder that the program did not
//!   create only if the user asked for it.
//! - [`names`] gives enum variants the names that are used in files and on the command line.
//! - [`npy`] parses the header of NumPy files, for images and for tensors.
//! - [`json`] reads and writes the JSON files that are kept between runs: settings, caches, profiles.
//! - [`setting`] lists the options and commands that notes and errors name.
//! - [`message`](mod@message) is a text for the user with the options that it names.
//! - [`counted`] and [`by_count`] choose singular or plural for a number; [`rounded`](fn@rounded) rounds numbers for messages.
//! - [`panic_text`] returns the message of a panic that was caught.
//! - [`growing`] keeps the file of an unfinished result, with a record of what is valid, for the next process.
//! - [`space`] returns the free space of a disk.
//! - [`lock`] prevents two processes from writing results under the same name.
//!
//! This crate depends on no other crate of the project. [`read`] and the handles of [`write`] return
//! [`std::io::Error`], and the readers of [`json`] a [`json::JsonError`]; everything else returns [`StorageError`], whose
//! message includes a next step.
//!
//! ```
//! use cytoscope_storage::{Overwrite, target::check_file, write::atomic_write};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("table.csv");
//! atomic_write(&path, b"label,volume_um3\n")?;
//! // A second command does not replace it unless asked to.
//! assert!(check_file(&path, &[], Overwrite::Refuse).is_err());
//! assert!(check_file(&path, &[], Overwrite::Replace).is_ok());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod count;
mod error;
pub mod folder;
pub mod folder_kind;
pub mod growing;
mod io_text;
pub mod json;
pub mod limited;
mod listed_names;
pub mod lock;
mod manifest;
pub mod message;
pub mod names;
pub mod npy;
mod panics;
pub mod partial_folder;
pub mod read;
mod results_folder;
mod rounded;
pub mod setting;
pub mod space;
pub mod target;
pub mod write;

pub use count::{by_count, counted};
pub use error::{Holder, Locked, StorageError};
pub use io_text::{io_advice, io_message, io_problem, is_exhausted};
pub use manifest::{
    MARKER, Manifest, ManifestFile, hexadecimal, sha256_of_bytes, sha256_of_file, sha256_of_file_while,
};
pub use panics::panic_text;
pub use results_folder::ResultsFolder;
pub use rounded::rounded;
pub use target::Overwrite;

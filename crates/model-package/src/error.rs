//! Errors of reading and writing packages.

use cytoscope_graph::GraphError;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::IMPORT;
use cytoscope_storage::{StorageError, io_problem};
use cytoscope_volume::printable;
use std::path::{Path, PathBuf};

/// Formats a path for messages.
fn shown(path: &Path) -> String {
    printable(&path.display().to_string()).into_owned()
}

/// Error of reading or writing a package.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackageError {
    /// Not a folder with a description, a zip or an ONNX file.
    #[error("{} is not a model package: expected a bioimage.io folder or zip with rdf.yaml, or an .onnx file; {} converts PyTorch checkpoints (.pt, .pth, .ckpt, .p, .safetensors), and the Python package tf2onnx converts models of TensorFlow and Keras to ONNX", shown(.path), IMPORT)]
    NotAPackage {
        /// Path that was opened as a package.
        path: PathBuf,
    },
    /// A folder with an ONNX file, but without a description.
    #[error("{} is not a model package, because it lacks rdf.yaml: give the ONNX file in it, {}", shown(.path), printable(.name))]
    NoDescription {
        /// Path of the folder.
        path: PathBuf,
        /// Name of the ONNX file.
        name: String,
    },
    /// A file that the description names is missing.
    #[error("{} lacks the file \"{}\": download the package again", shown(.path), printable(.name))]
    Missing {
        /// Path of the package.
        path: PathBuf,
        /// Name of the file, as the description gives it.
        name: String,
    },
    /// A part of the package violates the specification.
    #[error("{}: \"{}\" {}", shown(.path), printable(.part), printable(.problem))]
    Bad {
        /// Path of the package.
        path: PathBuf,
        /// Part of the description.
        part: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The package has no weights that can be run.
    #[error("{} has only {} weights, but Cytoscope needs ONNX weights: {advice}", shown(.path), printable(.has))]
    NoOnnxWeights {
        /// Path of the package.
        path: PathBuf,
        /// Weight formats that the package has.
        has: String,
        /// How to get ONNX weights.
        advice: Message,
    },
    /// The content of a file differs from its checksum.
    #[error("{}: \"{}\" has checksum {got}, expected {}: download the package again", shown(.path), printable(.name), printable(.expected))]
    Checksum {
        /// Path of the package.
        path: PathBuf,
        /// Name of the file, as the description gives it.
        name: String,
        /// SHA-256 in the description.
        expected: String,
        /// SHA-256 of the file.
        got: String,
    },
    /// A file exceeds a size limit.
    #[error("{}: \"{}\" has {bytes} bytes, more than the limit of {limit}", shown(.path), printable(.name))]
    TooLarge {
        /// Path of the package.
        path: PathBuf,
        /// Name of the file in the package.
        name: String,
        /// Size of the file in bytes.
        bytes: u64,
        /// Maximum size in bytes.
        limit: u64,
    },
    /// A network or tensor is invalid.
    #[error("{}: {}", shown(.path), printable(&error.to_string()))]
    Graph {
        /// Path of the package or file.
        path: PathBuf,
        /// What is wrong.
        error: GraphError,
    },
    /// The destination may not be overwritten, or writing failed.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A file could not be read or written.
    #[error("{}: {}", shown(.path), printable(&io_problem(.error)))]
    Io {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
}

impl PackageError {
    /// Returns the file or folder that the message names.
    pub fn path(&self) -> &Path {
        match self {
            Self::NotAPackage { path }
            | Self::NoDescription { path, .. }
            | Self::Missing { path, .. }
            | Self::Bad { path, .. }
            | Self::NoOnnxWeights { path, .. }
            | Self::Checksum { path, .. }
            | Self::TooLarge { path, .. }
            | Self::Graph { path, .. }
            | Self::Io { path, .. } => path,
            Self::Storage(error) => error.path(),
        }
    }

    pub(crate) fn bad(path: &Path, part: &str, problem: impl Into<String>) -> Self {
        Self::Bad { path: path.to_owned(), part: part.to_owned(), problem: problem.into() }
    }

    pub(crate) fn io(path: &Path, error: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), error }
    }
}

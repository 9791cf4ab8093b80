//! What is wrong with a package.

use crate::GraphError;
use cytoscope_storage::StorageError;
use cytoscope_volume::printable;
use std::path::{Path, PathBuf};

/// A path as messages show it.
fn shown(path: &Path) -> String {
    printable(&path.display().to_string()).into_owned()
}

/// A package that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PackageError {
    /// Neither a folder nor a zip nor an ONNX file.
    #[error("{} is no model package: expected a bioimage.io folder or zip with rdf.yaml, or an .onnx file", shown(.path))]
    NotAPackage {
        /// The path.
        path: PathBuf,
    },
    /// A file the description names but the package lacks.
    #[error("{} lacks its file \"{}\": fetch the whole package again", shown(.path), printable(.name))]
    Missing {
        /// The package.
        path: PathBuf,
        /// The file.
        name: String,
    },
    /// A part that breaks the specification.
    #[error("{}: \"{}\" {}", shown(.path), printable(.part), printable(.problem))]
    Bad {
        /// The package.
        path: PathBuf,
        /// Part of the description.
        part: String,
        /// What is wrong with it.
        problem: String,
    },
    /// No weights that can run.
    #[error(
        "{} has {} weights only; Cytoscope runs ONNX weights: export the model to ONNX (torch.onnx.export) and add them to the package",
        shown(.path), printable(.has)
    )]
    NoOnnxWeights {
        /// The package.
        path: PathBuf,
        /// Weights it has.
        has: String,
    },
    /// A file that is not the one described.
    #[error("{}: \"{}\" has checksum {got}, its description says {}: fetch the package again", shown(.path), printable(.name), printable(.expected))]
    Checksum {
        /// The package.
        path: PathBuf,
        /// The file.
        name: String,
        /// SHA-256 in the description.
        expected: String,
        /// SHA-256 of the file.
        got: String,
    },
    /// A file over a limit.
    #[error("{}: \"{}\" has {bytes} bytes, more than the limit of {limit}", shown(.path), printable(.name))]
    TooLarge {
        /// The package.
        path: PathBuf,
        /// The file.
        name: String,
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A network or tensor at fault.
    #[error("{}: {}", shown(.path), printable(&error.to_string()))]
    Graph {
        /// The package or file.
        path: PathBuf,
        /// What is wrong.
        error: GraphError,
    },
    /// A package that may not be written where it was asked for, or could not be.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A file that could not be read or written.
    #[error("{}: {}", shown(.path), printable(&error.to_string()))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
}

impl PackageError {
    pub(crate) fn bad(path: &Path, part: &str, problem: impl Into<String>) -> Self {
        Self::Bad { path: path.to_owned(), part: part.to_owned(), problem: problem.into() }
    }

    pub(crate) fn io(path: &Path, error: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), error }
    }
}

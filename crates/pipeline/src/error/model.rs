//! Errors of models: what their messages name, and their kinds.

use super::{JobErrorKind, is_within, storage_kind};
use cytoscope_engine::EngineError;
use cytoscope_graph::GraphError;
use cytoscope_model_package::PackageError;
use cytoscope_storage::message::Message;
use cytoscope_storage::read::refusal;
use cytoscope_storage::{io_advice, is_exhausted, message};
use std::io::ErrorKind;
use std::path::Path;

/// Prefixes the message of a model error with the model's path or name, unless the message names it or a file inside it.
pub(super) fn model_message(model: &str, error: &(dyn std::error::Error + 'static)) -> Message {
    let message = model_error_message(error);
    match model_error_path(error) {
        // The model's path is text, in which bytes that are not Unicode are replaced.
        Some(path) if is_within(Path::new(&*path.to_string_lossy()), Path::new(model)) => message,
        _ => message!("{model}: {message}"),
    }
}

/// Returns the I/O error that caused a model error, if one did.
pub(super) fn model_io<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a std::io::Error> {
    match (error.downcast_ref(), error.downcast_ref()) {
        (
            Some(
                PackageError::Io { error, .. }
                | PackageError::Graph { error: GraphError::Io { source: error, .. }, .. },
            ),
            _,
        )
        | (_, Some(GraphError::Io { source: error, .. })) => Some(error),
        _ => None,
    }
}

/// Returns the path that the message of a model error names, if it names one.
fn model_error_path<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Path> {
    if let Some(error) = error.downcast_ref::<PackageError>() {
        return Some(error.path());
    }
    match error.downcast_ref::<GraphError>() {
        Some(GraphError::Io { path, .. }) => Some(path),
        _ => None,
    }
}

/// Returns the message of a model error with the settings that it names; if an I/O error caused it, advice is appended.
pub fn model_error_message(error: &(dyn std::error::Error + 'static)) -> Message {
    match model_io(error) {
        Some(io) => message!("{error}; {}", io_advice(io)),
        None => message!("{error}"),
    }
}

/// Returns the kind of a model error: a malformed model, or an I/O error while reading or writing it.
pub(super) fn model_kind(error: &(dyn std::error::Error + 'static)) -> JobErrorKind {
    if let Some(EngineError::OutOfMemory { .. }) = error.downcast_ref() {
        return JobErrorKind::OutOfResources;
    }
    if let Some(PackageError::Storage(error)) = error.downcast_ref::<PackageError>() {
        return storage_kind(error);
    }
    let Some(io) = model_io(error) else { return JobErrorKind::BadInput };
    match io.kind() {
        _ if refusal(io).is_some() => JobErrorKind::BadInput,
        _ if is_exhausted(io) => JobErrorKind::OutOfResources,
        ErrorKind::NotFound | ErrorKind::UnexpectedEof => JobErrorKind::BadInput,
        _ => JobErrorKind::Other,
    }
}

//! The error of a failed command, with its exit code.

use cytoscope_engine::EngineError;
use cytoscope_formats::FormatError;
use cytoscope_graph::GraphError;
use cytoscope_model_package::PackageError;
use cytoscope_pipeline::{JobError, JobErrorKind, ProcessEvent, model_error_message};
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::read::refusal;
use cytoscope_storage::{StorageError, is_exhausted};

/// Result of a command.
pub(crate) type Outcome = Result<(), Failure>;

/// An error message and the kind of error, which decides the exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    kind: JobErrorKind,
    message: Message,
    /// What to do next, as the end of the message; `None` if that is unknown.
    next_step: Option<String>,
}

impl Failure {
    /// Returns a failure with a message, which keeps the settings that it names if [`message!`] made it.
    pub(crate) fn new(kind: JobErrorKind, message: impl Into<Message>) -> Self {
        Self { kind, message: message.into(), next_step: None }
    }

    /// Returns the failure with what to do next, if it is known and the message ends with it.
    pub(crate) fn with_next_step(self, next_step: Option<String>) -> Self {
        let next_step = next_step.filter(|step| self.message.ends_with(step.as_str()));
        Self { next_step, ..self }
    }

    /// Returns the failure with what to do next at the end of its message.
    pub(crate) fn and_next(self, next_step: impl Into<Message>) -> Self {
        let next_step: Message = next_step.into();
        let message = message!("{}; {next_step}", self.message);
        Self { kind: self.kind, message, next_step: Some(next_step.into()) }
    }

    /// Returns a failure of this kind with another message, and with the next step if that message ends with it, too.
    pub(crate) fn with_message(self, message: impl Into<Message>) -> Self {
        Self::new(self.kind, message).with_next_step(self.next_step)
    }

    pub(crate) fn other(message: impl Into<Message>) -> Self {
        Self::new(JobErrorKind::Other, message)
    }

    pub(crate) fn wrong_use(message: impl Into<Message>) -> Self {
        JobError::wrong_use(message).into()
    }

    pub(crate) fn bad_input(message: impl Into<Message>) -> Self {
        Self::new(JobErrorKind::BadInput, message)
    }

    /// Returns the message, with the settings that it names.
    pub(crate) fn message(&self) -> &Message {
        &self.message
    }

    /// Returns what to do next, if the message ends with it.
    pub(crate) fn next_step(&self) -> Option<&str> {
        self.next_step.as_deref()
    }

    pub(crate) fn kind(&self) -> JobErrorKind {
        self.kind
    }

    /// The event that reports the failure to the process that started this one.
    pub(crate) fn event(&self) -> ProcessEvent {
        ProcessEvent::Error {
            kind: self.kind,
            message: self.message.to_string(),
            next_step: self.next_step.clone(),
            settings: self.message.named_settings(),
        }
    }

    /// Exit code of the program, from 1.
    pub(crate) fn exit_code(&self) -> u8 {
        self.kind.exit_code() as u8
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(&self.message, f)
    }
}

impl From<JobError> for Failure {
    fn from(error: JobError) -> Self {
        Self::new(error.kind(), error.message()).with_next_step(error.next_step().map(String::from))
    }
}

impl From<StorageError> for Failure {
    fn from(error: StorageError) -> Self {
        JobError::from(error).into()
    }
}

impl From<FormatError> for Failure {
    fn from(error: FormatError) -> Self {
        JobError::from(error).into()
    }
}

impl From<EngineError> for Failure {
    fn from(error: EngineError) -> Self {
        JobError::from(error).into()
    }
}

impl From<cytoscope_volume::VolumeError> for Failure {
    fn from(error: cytoscope_volume::VolumeError) -> Self {
        Self::bad_input(error.to_string())
    }
}

impl From<cytoscope_objects::ObjectsError> for Failure {
    fn from(error: cytoscope_objects::ObjectsError) -> Self {
        let error = JobError::from(error);
        let kind = match error.kind() {
            // Images of shapes that do not fit each other.
            JobErrorKind::Other => JobErrorKind::BadInput,
            kind => kind,
        };
        Self::new(kind, error.message())
    }
}

impl From<GraphError> for Failure {
    fn from(error: GraphError) -> Self {
        let kind = match &error {
            GraphError::Io { source, .. } if is_exhausted(source) => JobErrorKind::OutOfResources,
            GraphError::Io { source, .. } if refusal(source).is_none() => JobErrorKind::Other,
            _ => JobErrorKind::BadInput,
        };
        Self::new(kind, model_error_message(&error))
    }
}

impl From<PackageError> for Failure {
    fn from(error: PackageError) -> Self {
        if let PackageError::Storage(error) = error {
            return error.into();
        }
        let message = model_error_message(&error);
        Self::new(JobError::model("", error).kind(), message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_storage::setting::{CHANNEL, RESTART};

    #[test]
    fn a_failure_keeps_the_settings_of_its_message_and_finds_none_in_texts() {
        let failure = Failure::bad_input("--axes.tif: it is flat").and_next(message!("use {RESTART}"));
        let settings = |failure: &Failure| failure.message().settings().map(|(_, setting)| setting).collect::<Vec<_>>();
        assert_eq!(settings(&failure), [RESTART]);
        assert_eq!(failure.next_step(), Some("use --restart"));
        // A failure in another one.
        let cause = Failure::wrong_use(message!("{CHANNEL} is 3"));
        let outer = failure.with_message(message!("all failed; the last error was: {cause}"));
        assert_eq!(settings(&outer), [CHANNEL]);
        assert_eq!(outer.next_step(), None, "the message does not end with it");
    }
}

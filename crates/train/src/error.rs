//! Conversion of errors that occur in training into [`JobError`].

use crate::toml_problem::toml_problem;
use cytoscope_engine::{DeviceId, EngineError};
use cytoscope_formats::FormatError;
use cytoscope_graph::GraphError;
use cytoscope_pipeline::{JobError, Misuse};
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_training_data::TrainingDataError;
use std::path::Path;

/// Returns the error for settings or arguments that cannot be used.
pub(crate) fn wrong_use(message: impl Into<Message>) -> JobError {
    JobError::wrong_use(message)
}

/// Returns the error for settings or arguments that cannot be used, with what to do next.
pub(crate) fn wrong_use_with(problem: impl Into<Message>, next_step: impl Into<Message>) -> JobError {
    JobError::wrong_use_with(problem, next_step)
}

/// Returns why settings in TOML cannot be used; `text` is what was parsed.
pub(crate) fn invalid_toml(text: &str, error: &toml::de::Error) -> Misuse {
    Misuse::with_next_step(toml_problem(text, error), "correct the settings")
}

/// Converts an error in the training data.
pub(crate) fn data_error(error: TrainingDataError) -> JobError {
    match error {
        TrainingDataError::Format(e) => JobError::Format(e),
        TrainingDataError::Data { file, problem, next_step } => JobError::Mismatch { path: file, problem, next_step },
        TrainingDataError::NoPairs { dataset, problem, next_step } => {
            JobError::Mismatch { path: dataset.root, problem, next_step }
        }
        TrainingDataError::Io { file, source, .. } => JobError::unreadable(&file, source),
        TrainingDataError::Parameter { .. } => JobError::wrong_use(error.to_string()),
        TrainingDataError::OverLimit { file, what, got, limit_name, limit, next_step } => JobError::Mismatch {
            path: file,
            problem: format!("{what} is {got}, more than the limit {limit_name} = {limit}").into(),
            next_step: next_step.into(),
        },
        TrainingDataError::Thread { .. } => {
            JobError::Engine(EngineError::Device { device: DeviceId::Cpu, reason: error.to_string().into() })
        }
        TrainingDataError::Volume(e) => JobError::Volume(e),
        TrainingDataError::Objects(e) => JobError::Objects(e),
        other => JobError::Internal(other.to_string()),
    }
}

/// Returns what an error says about `file`, without the name of this file.
pub(crate) fn problem_without_file(error: JobError, file: &Path) -> Message {
    match error {
        JobError::Mismatch { path, problem, next_step } if path == file => message!("{problem}; {next_step}"),
        JobError::Format(
            FormatError::Malformed { file: path, problem, next_step }
            | FormatError::Unsupported { file: path, problem, next_step }
            | FormatError::OverLimit { file: path, problem, next_step }
            | FormatError::Misused { file: path, problem, next_step },
        ) if path == file => message!("{problem}; {next_step}"),
        other => other.message(),
    }
}

/// Returns a converter for graph errors of the model `name`.
pub(crate) fn model_error(name: &str) -> impl Fn(GraphError) -> JobError + '_ {
    move |e| JobError::model(name, e)
}

/// Converts an engine error.
pub(crate) fn engine_error(error: EngineError) -> JobError {
    JobError::from(error)
}

/// Returns a converter for I/O errors of the file at `path`.
pub(crate) fn io_error(path: &Path) -> impl Fn(std::io::Error) -> JobError + '_ {
    move |error| JobError::Io { path: path.to_owned(), error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_toml_is_described_in_one_line_with_its_place() {
        for (text, line) in
            [("ema = 0.5\nhello\n", "line 2 (\"hello\"): "), ("a = 1\n\n b = = 2", "line 3 (\"b = = 2\"): ")]
        {
            let misuse = invalid_toml(text, &text.parse::<toml::Table>().unwrap_err());
            let message = misuse.to_string();
            assert!(message.starts_with(line) && message.ends_with("; correct the settings"), "{message}");
            assert!(!message.contains('\n'), "{message}");
            assert_eq!(misuse.next_step().map(|step| step.as_str()), Some("correct the settings"));
        }
    }

    #[test]
    fn errors_name_their_file_and_next_step_once() {
        let file = Path::new("a.tif");
        let over_limit = TrainingDataError::OverLimit {
            file: file.to_owned(),
            what: "the number of its labels",
            got: 12,
            limit_name: "MAX_OBJECTS",
            limit: 10,
            next_step: "check the labels",
        };
        let said = "the number of its labels is 12, more than the limit MAX_OBJECTS = 10; check the labels";
        let error = data_error(over_limit);
        assert_eq!(error.to_string(), format!("a.tif: {said}"));
        assert_eq!(problem_without_file(error, file).as_str(), said);
        let (problem, next_step) = ("it is damaged".to_owned(), "copy it again".into());
        let malformed = JobError::Format(FormatError::Malformed { file: file.to_owned(), problem, next_step });
        assert_eq!(problem_without_file(malformed, file).as_str(), "it is damaged; copy it again");
        assert!(
            problem_without_file(JobError::unreadable(Path::new("b.tif"), std::io::ErrorKind::NotFound.into()), file)
                .contains("b.tif")
        );
    }
}

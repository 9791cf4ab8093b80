//! Why a worker refuses a line of its input.

use super::{JobId, MAX_REQUEST_BYTES, PROTOCOL_VERSION, Reply, Request};
use cytoscope_pipeline::JobErrorKind;
use serde_json::Value;
use thiserror::Error;

/// Number of characters of an invalid line that are quoted.
const QUOTED_CHARS: usize = 80;

/// A line that a worker refuses, or a request that it refuses at once. The worker continues with the next line.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// The line is longer than [`MAX_REQUEST_BYTES`].
    #[error("a line longer than {limit} bytes was skipped: send several smaller jobs", limit = MAX_REQUEST_BYTES)]
    TooLong,
    /// The line is not UTF-8 text.
    #[error("a line that is not UTF-8 text was skipped: send JSON")]
    NotText,
    /// The line is not a request.
    #[error("invalid request for protocol version {supported} ({reason}): {line}", supported = PROTOCOL_VERSION)]
    InvalidRequest {
        /// Number of the job or query that the line would have started, if it can be read.
        id: Option<JobId>,
        /// What was found and what was expected.
        reason: String,
        /// The start of the line.
        line: String,
    },
    /// The client uses another version of the protocol.
    #[error(
        "protocol version {requested} was requested, but this worker uses {supported}: use a window and a worker of \
         the same version of the program; if the program was updated while the window was open, open the window again",
        supported = PROTOCOL_VERSION
    )]
    OtherVersion {
        /// The version of the client.
        requested: u32,
    },
    /// A request came before [`Request::Hello`].
    #[error("the first request must be hello, with the protocol version")]
    NoHello,
    /// The number of a job is in use.
    #[error("job {0} already exists: give each job its own number")]
    DuplicateId(JobId),
}

impl ProtocolError {
    /// Returns the number of the job or query that cannot start because of the error. `None` if the number belongs to
    /// an accepted job.
    pub(crate) fn id(&self) -> Option<JobId> {
        match self {
            Self::InvalidRequest { id, .. } => *id,
            _ => None,
        }
    }

    /// Returns the reply for the client. A job or query that cannot start fails, so that the client does not wait for it.
    pub(crate) fn reply(&self) -> Reply {
        let message = self.to_string();
        match self.id() {
            Some(id) => Reply::failed(id, JobErrorKind::WrongUse, message),
            None => Reply::Fault { message },
        }
    }
}

/// Parses a line of a worker's input.
///
/// # Errors
/// [`ProtocolError::InvalidRequest`] if it is not a request of this version of the protocol.
pub fn parse_request(line: &str) -> Result<Request, ProtocolError> {
    serde_json::from_str(line).map_err(|error| {
        // A line that is not JSON has no fields.
        let value: Value = serde_json::from_str(line).unwrap_or_default();
        let starts = matches!(value.get("request").and_then(Value::as_str), Some("run" | "devices" | "models"));
        let id = value.get("id").and_then(Value::as_u64).filter(|_| starts).map(JobId);
        let line = line.chars().take(QUOTED_CHARS).collect();
        ProtocolError::InvalidRequest { id, reason: error.to_string(), line }
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_job_fails_and_other_invalid_lines_are_faults() {
        for line in [
            r#"{"request":"run","id":7}"#,
            r#"{"request":"run","id":7,"job":{"paint":{}}}"#,
            r#"{"request":"run","id":7,"job":{"train_check":{"task":"nothing"}}}"#,
            r#"{"request":"run","id":7,"job":["convert"]}"#,
        ] {
            match parse_request(line).unwrap_err().reply() {
                Reply::Failed { id: JobId(7), kind: JobErrorKind::WrongUse, message, .. } => {
                    assert!(message.contains("protocol version"), "{message}");
                }
                other => panic!("{other:?}"),
            }
        }
        for line in [
            "what?",
            "",
            "{}",
            "[1,2]",
            r#"{"request":"dance","id":1}"#,
            r#"{"request":"cancel","id":-4}"#,
            r#"{"request":"run","id":-4,"job":{}}"#,
            r#"{"request":"run","job":{"convert":{}}}"#,
        ] {
            let error = parse_request(line).unwrap_err();
            assert!(matches!(error.reply(), Reply::Fault { .. }), "{line}");
        }
        let text = parse_request(r#"{"request":"run","id":1,"job":{"paint":{}}}"#).unwrap_err().to_string();
        assert!(text.contains("`paint`") && text.contains("`train_check`"), "{text}");
        let long = parse_request(&"é".repeat(1000)).unwrap_err().to_string();
        assert!(long.len() < 400, "only its start is quoted: {long}");
    }

    #[test]
    fn a_cancel_request_of_a_known_job_is_parsed() {
        assert_eq!(parse_request(r#"{"request":"cancel","id":3}"#), Ok(Request::Cancel { id: JobId(3) }));
    }
}

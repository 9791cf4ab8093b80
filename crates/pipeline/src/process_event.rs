//! Lines that a process of this program writes to standard error, as JSON, for the process that started it.

use crate::JobErrorKind;
use serde::{Deserialize, Serialize};

/// How the run of a candidate of `tune` ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum CandidateOutcome {
    /// It was measured.
    Measured {
        /// The time that candidates are compared by, in seconds.
        secs: f64,
    },
    /// It was ended, because it took many times as long as the fastest candidate.
    TooSlow,
    /// It failed.
    Failed {
        /// The error message.
        error: String,
    },
}

/// A line of `tune --json-progress`, or the error with which a process ends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum ProcessEvent {
    /// What is done before the candidates are run begins.
    Preparing {
        /// What is done, in words.
        what: String,
    },
    /// A round of successive halving begins.
    Round {
        /// Number of the round, from 1.
        round: usize,
        /// Number of candidates that are run.
        candidates: usize,
    },
    /// A candidate was run.
    Candidate {
        /// Place of the candidate in the round, from 1.
        place: usize,
        /// Number of candidates in the round.
        candidates: usize,
        /// The settings of the candidate, in words.
        settings: String,
        /// How the run ended.
        #[serde(flatten)]
        outcome: CandidateOutcome,
        /// Seconds that the search is expected to take from now on.
        eta_secs: f64,
    },
    /// The process ends with an error.
    Error {
        /// The kind of the error, which decides the exit code.
        kind: JobErrorKind,
        /// The error message.
        message: String,
    },
}

impl ProcessEvent {
    /// Returns the event that a line holds; `None` for other lines.
    pub fn parse(line: &str) -> Option<Self> {
        serde_json::from_str(line.trim()).ok()
    }

    /// Returns progress as text; `None` for an error. The text begins with the number of the round or candidate.
    pub fn progress_text(&self) -> Option<String> {
        let (number, text) = self.numbered_progress()?;
        Some(match number {
            Some(number) => format!("{number}: {text}"),
            None => text,
        })
    }

    /// Returns the number of the round or candidate, as text, and the rest of its progress; `None` for an error.
    pub fn numbered_progress(&self) -> Option<(Option<String>, String)> {
        match self {
            Self::Preparing { what } => Some((None, what.clone())),
            Self::Round { round, candidates } => {
                Some((Some(format!("round {round}")), format!("{candidates} candidates")))
            }
            Self::Candidate { place, candidates, settings, outcome, .. } => {
                let outcome = match outcome {
                    CandidateOutcome::Measured { secs } => format!("{secs:.3} s"),
                    CandidateOutcome::TooSlow => "ended, too slow".to_owned(),
                    CandidateOutcome::Failed { error } => format!("failed: {error}"),
                };
                Some((Some(format!("{place} of {candidates}")), format!("{settings}: {outcome}")))
            }
            Self::Error { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn events_are_read_back_from_lines_and_other_lines_are_none() {
        let candidate = |outcome| {
            let settings = "cpu int8, tile auto".to_owned();
            ProcessEvent::Candidate { place: 2, candidates: 12, settings, outcome, eta_secs: 3.5 }
        };
        let measured = candidate(CandidateOutcome::Measured { secs: 0.5321 });
        let failed = candidate(CandidateOutcome::Failed { error: "no memory".to_owned() });
        let error = ProcessEvent::Error { kind: JobErrorKind::BadInput, message: "a.tif: not a TIFF".to_owned() };
        for (event, text) in [
            (ProcessEvent::Preparing { what: "checking".to_owned() }, Some("checking")),
            (ProcessEvent::Round { round: 1, candidates: 2 }, Some("round 1: 2 candidates")),
            (measured, Some("2 of 12: cpu int8, tile auto: 0.532 s")),
            (candidate(CandidateOutcome::TooSlow), Some("2 of 12: cpu int8, tile auto: ended, too slow")),
            (failed, Some("2 of 12: cpu int8, tile auto: failed: no memory")),
            (error, None),
        ] {
            let line = serde_json::to_string(&event).unwrap();
            assert_eq!(ProcessEvent::parse(&format!("{line}\n")), Some(event.clone()), "{line}");
            assert_eq!(event.progress_text().as_deref(), text);
        }
        for other in ["error: no memory", "{}", "[1 of 2] x", r#"{"event":"failed","input":"a","reason":"b"}"#] {
            assert_eq!(ProcessEvent::parse(other), None, "{other}");
        }
    }
}

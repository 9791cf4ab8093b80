//! Lines that a process of this program writes to standard error, as JSON, for the process that started it.

use crate::JobErrorKind;
use cytoscope_storage::counted;
use cytoscope_storage::message::NamedSetting;
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
    /// It ended with an error.
    Failed {
        /// The error message.
        error: String,
    },
}

/// A run of a trial of `train --search`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SearchTrial {
    /// Number of the trial, from 0.
    pub number: usize,
    /// Rung of successive halving, from 1.
    pub rung: usize,
    /// Number of optimizer steps.
    pub steps: usize,
    /// Validation score; `None` if the run failed.
    pub score: Option<f64>,
    /// Duration in seconds.
    pub seconds: f64,
    /// Why the run failed; empty if it did not.
    pub error: String,
    /// Settings of the trial, each as `KEY=VALUE` with the value in TOML.
    pub settings: Vec<String>,
}

impl SearchTrial {
    /// Returns the values of the settings, in TOML.
    pub fn values(&self) -> impl Iterator<Item = &str> {
        self.settings.iter().filter_map(|setting| setting.split_once('=').map(|(_, value)| value))
    }

    /// Returns how the run ended, in words.
    pub fn result_text(&self) -> String {
        match self.score {
            Some(score) => format!("score {score:.4}"),
            None => format!("failed: {}", self.error),
        }
    }
}

/// A line of `tune --json-progress` or `train --search --json-progress`, or the error with which a process ends.
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
    /// A trial of a search was run, or is known from an earlier run of the search.
    Trial {
        /// The run of the trial.
        trial: SearchTrial,
        /// Number of rungs of the search.
        rungs: usize,
        /// Seconds that the search is expected to take from now on; `None` if it is unknown.
        eta_secs: Option<f64>,
    },
    /// The process ends with an error.
    Error {
        /// The kind of the error, which decides the exit code.
        kind: JobErrorKind,
        /// The error message.
        message: String,
        /// What to do next, which is the end of the message after `; `; `None` if the message does not end with it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        next_step: Option<String>,
        /// The settings that the message names.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        settings: Vec<NamedSetting>,
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
                Some((Some(format!("round {round}")), counted(*candidates, "candidate")))
            }
            Self::Candidate { place, candidates, settings, outcome, .. } => {
                let outcome = match outcome {
                    CandidateOutcome::Measured { secs } => format!("{secs:.3} s"),
                    CandidateOutcome::TooSlow => "ended, too slow".to_owned(),
                    CandidateOutcome::Failed { error } => format!("failed: {error}"),
                };
                Some((Some(format!("{place} of {candidates}")), format!("{settings}: {outcome}")))
            }
            Self::Trial { trial, rungs, .. } => {
                let SearchTrial { number, rung, steps, .. } = trial;
                let text = format!("trial {number}, {}: {}", counted(steps, "step"), trial.result_text());
                Some((Some(format!("rung {rung} of {rungs}")), text))
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
        let error = |next_step: Option<&str>| {
            let (kind, message) = (JobErrorKind::BadInput, "a.tif: not a TIFF; convert it".to_owned());
            let settings = Vec::new();
            ProcessEvent::Error { kind, message, next_step: next_step.map(str::to_owned), settings }
        };
        let trial = |score, error: &str| {
            let settings = vec!["network.filters=[4, 8]".to_owned()];
            let trial =
                SearchTrial { number: 3, rung: 1, steps: 20, score, seconds: 1.5, error: error.to_owned(), settings };
            ProcessEvent::Trial { trial, rungs: 4, eta_secs: None }
        };
        for (event, text) in [
            (ProcessEvent::Preparing { what: "checking".to_owned() }, Some("checking")),
            (ProcessEvent::Round { round: 1, candidates: 2 }, Some("round 1: 2 candidates")),
            (measured, Some("2 of 12: cpu int8, tile auto: 0.532 s")),
            (candidate(CandidateOutcome::TooSlow), Some("2 of 12: cpu int8, tile auto: ended, too slow")),
            (failed, Some("2 of 12: cpu int8, tile auto: failed: no memory")),
            (trial(Some(0.5), ""), Some("rung 1 of 4: trial 3, 20 steps: score 0.5000")),
            (trial(None, "no memory"), Some("rung 1 of 4: trial 3, 20 steps: failed: no memory")),
            (error(None), None),
            (error(Some("convert it")), None),
        ] {
            let line = serde_json::to_string(&event).unwrap();
            assert_eq!(ProcessEvent::parse(&format!("{line}\n")), Some(event.clone()), "{line}");
            assert_eq!(event.progress_text().as_deref(), text);
        }
        // As builds without the field report it.
        let earlier = r#"{"event":"error","kind":"bad_input","message":"a.tif: not a TIFF; convert it"}"#;
        assert_eq!(ProcessEvent::parse(earlier), Some(error(None)));
        for other in ["error: no memory", "{}", "[1 of 2] x", r#"{"event":"failed","input":"a","reason":"b"}"#] {
            assert_eq!(ProcessEvent::parse(other), None, "{other}");
        }
    }
}

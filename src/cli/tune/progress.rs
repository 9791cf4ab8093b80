//! How the progress of `tune` is shown.

use crate::cli::{eprint_json, eprint_line, note_line};
use cytoscope_pipeline::{Event, Note, ProcessEvent};
use indicatif::HumanDuration;
use std::time::Duration;

/// How the progress of `tune` is written to standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TuneProgress {
    /// A line of text for each event.
    Lines,
    /// A JSON object for each event, on a line of its own.
    JsonLines,
}

impl TuneProgress {
    /// Writes an event.
    pub(super) fn show(self, event: &ProcessEvent) {
        match self {
            Self::JsonLines => eprint_json(event),
            Self::Lines => event_line(event).iter().for_each(|line| eprint_line(line)),
        }
    }

    /// Writes a note.
    pub(super) fn note(self, note: Note) {
        match self {
            Self::JsonLines => eprint_json(&Event::Note(note)),
            Self::Lines => eprint_line(&note_line(&note)),
        }
    }

    /// Writes what is done before the candidates are run.
    pub(super) fn preparing(self, what: impl Into<String>) {
        self.show(&ProcessEvent::Preparing { what: what.into() });
    }
}

/// Returns the event as a line of text; `None` if the error of the command is printed later.
fn event_line(event: &ProcessEvent) -> Option<String> {
    let (number, text) = event.numbered_progress()?;
    Some(match (event, number) {
        (ProcessEvent::Candidate { eta_secs, .. }, Some(number)) => {
            format!("  [{number}] {text}{}", left_text(*eta_secs))
        }
        (_, Some(number)) => format!("[{number}] {text}"),
        (_, None) => text,
    })
}

/// Returns the time that is left, with a comma before it; empty if it is unknown or less than a second.
fn left_text(eta_secs: f64) -> String {
    let left = Duration::try_from_secs_f64(eta_secs).ok().filter(|left| left.as_secs() > 0);
    left.map_or_else(String::new, |left| format!(", about {:#} left", HumanDuration(left)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_pipeline::{CandidateOutcome, JobErrorKind};

    #[test]
    fn lines_show_the_number_the_time_and_what_is_left() {
        let candidate = |eta_secs| {
            let outcome = CandidateOutcome::Measured { secs: 0.5321 };
            ProcessEvent::Candidate { place: 2, candidates: 12, settings: "cpu int8".to_owned(), outcome, eta_secs }
        };
        assert_eq!(event_line(&candidate(180.0)).unwrap(), "  [2 of 12] cpu int8: 0.532 s, about 3m left");
        for unknown in [0.4, -1.0, f64::NAN, f64::INFINITY] {
            assert_eq!(event_line(&candidate(unknown)).unwrap(), "  [2 of 12] cpu int8: 0.532 s", "{unknown}");
        }
        let round = |candidates| event_line(&ProcessEvent::Round { round: 1, candidates }).unwrap();
        assert_eq!([1, 4].map(round), ["[round 1] 1 candidate", "[round 1] 4 candidates"]);
        assert_eq!(event_line(&ProcessEvent::Preparing { what: "a: b".to_owned() }).unwrap(), "a: b");
        assert_eq!(
            event_line(&ProcessEvent::Error {
                kind: JobErrorKind::Other,
                message: String::new(),
                next_step: None,
                settings: Vec::new()
            }),
            None
        );
    }
}

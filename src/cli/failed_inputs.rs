//! Reports of many inputs that failed: the first ones as they fail, and in the end a line for each kind of problem.

use super::eprint_line;
use cytoscope_pipeline::{Event, Note};
use cytoscope_storage::counted;
use cytoscope_storage::message::Message;
use cytoscope_train::{PROBLEM_LINES, list_failed_inputs};
use cytoscope_training_data::{Problem, Severity, summary};
use std::path::Path;

/// Number of failures that are shown as they occur, if there are more inputs than are reported one by one.
const SHOWN_FAILURES: usize = 3;

/// Decides which events of a job's inputs are shown. If there are many inputs, the start of one is shown with its next event,
/// unless it fails at once, and only the first failures are.
#[derive(Default)]
pub(super) struct InputEvents {
    /// Number of inputs.
    count: usize,
    /// Number of inputs that have failed.
    failures: usize,
    /// The start of an input that has not been shown yet.
    started: Option<Event>,
}

impl InputEvents {
    /// Returns the event to show before `event`, if there is one, and whether to show `event`.
    pub(super) fn shown_events(&mut self, event: &Event) -> (Option<Event>, bool) {
        match event {
            Event::Started { count, .. } => {
                self.count = *count;
                if *count <= PROBLEM_LINES {
                    return (self.started.take(), true);
                }
                (self.started.replace(event.clone()), false)
            }
            Event::Failed { .. } => {
                // The line of a failure names the input.
                self.started = None;
                self.failures += 1;
                // The failure of the only input is the error of the command.
                let is_shown = self.count != 1 && is_shown_at_once(self.count, self.failures);
                let is_first_left_out = self.count > PROBLEM_LINES && self.failures == SHOWN_FAILURES + 1;
                let note = || Event::Note(Note::info("further failures are reported at the end"));
                (is_first_left_out.then(note), is_shown)
            }
            _ => (self.started.take(), true),
        }
    }
}

/// Returns the error message of a command of which these of `count` inputs failed.
pub(super) fn failed_text<'a>(failed: impl ExactSizeIterator<Item = &'a Path>, count: usize) -> String {
    let failures = failed.len();
    let names: Vec<String> = failed.take(SHOWN_FAILURES).map(|input| input.display().to_string()).collect();
    let others = match failures.saturating_sub(SHOWN_FAILURES) {
        0 => String::new(),
        others => format!(" and {}", counted(others, "other")),
    };
    format!("{failures} of {count} inputs failed ({}{others})", names.join(", "))
}

/// Returns whether failure number `number` (from 1) of `count` inputs is shown when it occurs.
pub(super) fn is_shown_at_once(count: usize, number: usize) -> bool {
    count <= PROBLEM_LINES || number <= SHOWN_FAILURES
}

/// Returns the problem of an input that failed with this message, which may begin with the input and end with the next step.
pub(super) fn problem(input: &Path, message: Message, next_step: Option<&str>) -> Problem {
    let name = format!("{}: ", input.display());
    let after_name = if message.starts_with(name.as_str()) { message.split_at(name.len()) } else { None };
    let message = after_name.map_or(message, |(_, after)| after);
    let parts = next_step.and_then(|step| {
        let text = message.strip_suffix(step)?.strip_suffix("; ")?;
        let (text, rest) = message.split_at(text.len())?;
        let (_, next_step) = rest.split_at("; ".len())?;
        Some((text, next_step))
    });
    let (message, next_step) = parts.unwrap_or_else(|| (message, Message::default()));
    Problem { file: input.to_owned(), pair: None, severity: Severity::Error, message, next_step }
}

/// Prints the problems of inputs by kind, unless there are so few that all were shown, and lists them in a file. `first` is the
/// first input of the command, a file or a folder; `count` is the number of inputs.
pub(super) fn report(first: &Path, count: usize, problems: &[Problem]) {
    if count <= PROBLEM_LINES || problems.len() <= SHOWN_FAILURES {
        return;
    }
    for line in summary::summary(problems, SHOWN_FAILURES) {
        let word = if line.severity.is_some() { "failed: " } else { "" };
        eprint_line(&format!("{word}{}", line.text));
    }
    let failures = problems.len();
    match list_failed_inputs(first, problems) {
        Some(Ok(path)) => eprint_line(&format!("note: all {failures} failures are listed in {}", path.display())),
        Some(Err(error)) => eprint_line(&format!("note: the list of {failures} failures was not written: {error}")),
        None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cytoscope_storage::message;
    use cytoscope_storage::setting::AXES;
    use std::path::PathBuf;

    fn started(index: usize, count: usize) -> Event {
        Event::Started { input: PathBuf::from("a.tif"), index, count }
    }

    fn failed() -> Event {
        Event::Failed { input: PathBuf::from("a.tif"), reason: "it is no image".to_owned(), names_input: false }
    }

    #[test]
    fn the_error_of_several_inputs_names_the_first_ones_that_failed() {
        let text = |failed: &[&str]| failed_text(failed.iter().map(Path::new), 13);
        assert_eq!(text(&["a.tif"]), "1 of 13 inputs failed (a.tif)");
        assert_eq!(text(&["a.tif", "b.tif", "c.tif"]), "3 of 13 inputs failed (a.tif, b.tif, c.tif)");
        assert_eq!(text(&["a", "b", "c", "d", "e"]), "5 of 13 inputs failed (a, b, c and 2 others)");
    }

    #[test]
    fn each_of_a_few_inputs_is_shown() {
        let mut events = InputEvents::default();
        for index in 0..8 {
            assert_eq!(events.shown_events(&started(index, 8)), (None, true));
            assert_eq!(events.shown_events(&failed()), (None, true));
        }
        let mut events = InputEvents::default();
        assert_eq!(events.shown_events(&started(0, 1)), (None, true));
        assert_eq!(events.shown_events(&failed()), (None, false), "it is the error of the command");
    }

    #[test]
    fn of_many_inputs_that_fail_the_first_ones_are_shown() {
        let mut events = InputEvents::default();
        let mut shown = Vec::new();
        for index in 0..300 {
            assert_eq!(events.shown_events(&started(index, 300)), (None, false));
            shown.push(events.shown_events(&failed()));
        }
        assert_eq!(shown.iter().filter(|(_, is_shown)| *is_shown).count(), SHOWN_FAILURES);
        let notes: Vec<usize> = (0..300).filter(|index| shown[*index].0.is_some()).collect();
        assert_eq!(notes, [SHOWN_FAILURES]);
        // An input that does not fail at once is shown.
        assert_eq!(events.shown_events(&started(7, 300)), (None, false));
        let note = Event::Note(Note::info("it is dark"));
        assert_eq!(events.shown_events(&note), (Some(started(7, 300)), true));
        assert_eq!(events.shown_events(&note), (None, true));
        assert_eq!(events.shown_events(&started(8, 300)), (None, false));
        assert_eq!(events.shown_events(&started(9, 300)), (Some(started(8, 300)), false), "it ended without an event");
    }

    #[test]
    fn the_problem_of_an_input_is_found_in_its_message() {
        let of = |message: &str, next_step: Option<&str>| {
            let found = problem(Path::new("a.tif"), message.into(), next_step);
            (found.message.to_string(), found.next_step.to_string())
        };
        let both = ("it is no image".to_owned(), "save it as TIFF".to_owned());
        assert_eq!(of("a.tif: it is no image; save it as TIFF", Some("save it as TIFF")), both);
        let alone = ("it is no image".to_owned(), String::new());
        assert_eq!(of("a.tif: it is no image", None), alone);
        assert_eq!(of("it is no image", Some("save it as TIFF")), alone, "its end is not the next step");
        let message = message!("--axes.tif: it is flat; give {AXES}");
        let found = problem(Path::new("--axes.tif"), message, Some("give --axes"));
        assert_eq!((found.message, found.next_step), (Message::from("it is flat"), message!("give {AXES}")));
    }
}

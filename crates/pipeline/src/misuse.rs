//! Invalid options, and what to do about them.

use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use std::fmt;

/// Options that cannot be used: what was found and expected, and what to do next where that is more than giving what was
/// expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misuse {
    message: Message,
    /// The end of the message.
    next_step: Option<Message>,
}

impl Misuse {
    /// Returns a misuse whose message states what was expected, and needs no next step.
    pub fn new(problem: impl Into<Message>) -> Self {
        Self { message: problem.into(), next_step: None }
    }

    /// Returns a misuse with what to do next, which follows the problem in the message.
    pub fn with_next_step(problem: impl Into<Message>, next_step: impl Into<Message>) -> Self {
        let (problem, next_step): (Message, Message) = (problem.into(), next_step.into());
        Self { message: message!("{problem}; {next_step}"), next_step: Some(next_step) }
    }

    /// Returns a misuse that another error explains, whose text ends with `next_step` if it has one.
    pub fn explained(message: impl Into<Message>, next_step: Option<&str>) -> Self {
        let message: Message = message.into();
        let next_step = next_step.filter(|step| message.ends_with(*step)).map(Message::from);
        Self { message, next_step }
    }

    /// Returns the misuse with the name of what it is about, such as a file of settings, before its message.
    pub fn about(self, subject: impl fmt::Display) -> Self {
        Self { message: message!("{subject}: {}", self.message), next_step: self.next_step }
    }

    /// Returns what to do next, which is the end of the message; `None` if the message states only what was expected.
    pub fn next_step(&self) -> Option<&Message> {
        self.next_step.as_ref()
    }
}

impl fmt::Display for Misuse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.message, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JobError;
    use cytoscope_storage::setting::{AXES, TIME};

    #[test]
    fn the_next_step_is_what_was_given_as_such_whatever_the_problem_reads_like() {
        let plain = JobError::wrong_use("the image has no axes: use ZYX; give one");
        assert_eq!((plain.to_string().as_str(), plain.next_step()), ("the image has no axes: use ZYX; give one", None));
        let error = JobError::wrong_use_with(message!("{AXES} is flat"), message!("convert it, or leave out {TIME}"));
        let step = message!("convert it, or leave out {TIME}");
        assert_eq!(error.message(), message!("{AXES} is flat; {step}"));
        assert_eq!(error.next_step(), Some(step));
    }

    #[test]
    fn the_next_step_of_an_explanation_is_the_end_of_its_text() {
        let explained = |step| Misuse::explained("invalid size 0; give it in µm", step);
        assert_eq!(explained(Some("give it in µm")).next_step().map(|step| step.as_str()), Some("give it in µm"));
        for other in [None, Some("give it in nm")] {
            assert_eq!(explained(other).next_step(), None);
        }
    }

    #[test]
    fn a_subject_leaves_the_next_step_as_it_is() {
        let misuse = Misuse::with_next_step("a: both are set", message!("leave out {TIME}")).about("s.toml");
        assert_eq!(JobError::WrongUse(misuse).message(), message!("s.toml: a: both are set; leave out {TIME}"));
        let misuse = Misuse::with_next_step("a: both are set", "remove one").about("s.toml");
        assert_eq!(misuse.next_step(), Some(&Message::from("remove one")));
    }
}

//! Notes of jobs to the user.

use cytoscope_storage::message::Message;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a warning begins with in a list of texts.
const WARNING: &str = "warning: ";

/// How important a [`Note`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoteLevel {
    /// What the job does, or what it has found.
    #[default]
    Info,
    /// What may make results worse than they seem.
    Warning,
}

impl NoteLevel {
    fn is_info(&self) -> bool {
        *self == Self::Info
    }
}

/// A note of a job to the user. Displayed, a warning says that it is one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// How important the note is; absent in JSON if it is [`NoteLevel::Info`].
    #[serde(default, skip_serializing_if = "NoteLevel::is_info")]
    pub level: NoteLevel,
    /// The text, in lower case without a full stop, with the settings that it names.
    #[serde(flatten)]
    pub message: Message,
}

impl Note {
    /// Returns a note about what the job does or has found.
    pub fn info(message: impl Into<Message>) -> Self {
        Self { level: NoteLevel::Info, message: message.into() }
    }

    /// Returns a note about what may make results worse than they seem.
    pub fn warning(message: impl Into<Message>) -> Self {
        Self { level: NoteLevel::Warning, message: message.into() }
    }

    /// Parses a note of a list of texts.
    fn from_text(text: String) -> Self {
        match text.strip_prefix(WARNING) {
            Some(message) => Self::warning(Message::parse(message)),
            None => Self::info(Message::parse(text)),
        }
    }
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.level {
            NoteLevel::Info => {}
            NoteLevel::Warning => f.write_str(WARNING)?,
        }
        fmt::Display::fmt(&self.message, f)
    }
}

impl From<Message> for Note {
    fn from(message: Message) -> Self {
        Self::info(message)
    }
}

impl From<String> for Note {
    /// Returns a note with a text, in which its settings are found.
    fn from(text: String) -> Self {
        Self::info(Message::parse(text))
    }
}

impl From<&str> for Note {
    /// Returns a note with a text, in which its settings are found.
    fn from(text: &str) -> Self {
        Self::info(Message::parse(text))
    }
}

/// Notes as a list of texts, for `#[serde(with = "...")]`: the form that reports and records have. A warning begins with
/// `warning: `.
pub mod texts {
    use super::Note;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes the texts.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(notes: &[Note], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(notes.iter().map(ToString::to_string))
    }

    /// Reads the texts.
    ///
    /// # Errors
    /// Those of the deserializer, if there is no list of texts.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Note>, D::Error> {
        Ok(Vec::<String>::deserialize(deserializer)?.into_iter().map(Note::from_text).collect())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use cytoscope_storage::message;
    use cytoscope_storage::setting::AXES;
    use serde_json::json;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Record {
        #[serde(with = "texts")]
        notes: Vec<Note>,
    }

    #[test]
    fn notes_of_records_are_texts_and_a_prefix_marks_warnings() {
        let texts = json!({"notes": ["it is flat", "warning: it is dark", "a warning: none"]});
        let record: Record = serde_json::from_value(texts.clone()).unwrap();
        let notes = vec![Note::info("it is flat"), Note::warning("it is dark"), Note::info("a warning: none")];
        assert_eq!(record, Record { notes });
        assert_eq!(json!(record), texts);
        assert!(serde_json::from_value::<Record>(json!({"notes": [1]})).is_err());
    }

    #[test]
    fn a_note_states_its_level_unless_it_is_only_information() {
        for (note, value) in [
            (Note::from("it is flat"), json!({"message": "it is flat"})),
            (Note::warning("it is dark"), json!({"level": "warning", "message": "it is dark"})),
            (
                Note::from(message!("it is flat (see {AXES})")),
                json!({"message": "it is flat (see --axes)", "settings": [{"start": 16, "name": "--axes"}]}),
            ),
        ] {
            assert_eq!(json!(note), value);
            assert_eq!(serde_json::from_value::<Note>(value).unwrap(), note);
        }
        assert_eq!(Note::warning("it is dark").to_string(), "warning: it is dark");
        let note = Note::warning(message!("use {AXES}"));
        assert_eq!(Message::of(&note), message!("warning: use {AXES}"));
        assert_eq!(Note::from_text(note.to_string()), note, "the settings of a text are found in it");
    }
}

//! Notes of jobs to the user.

use cytoscope_storage::message::{Message, NamedSetting};
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

    /// Returns a note of a list of texts, whose text names these settings and time points.
    fn from_text(text: String, stated: &[NamedSetting]) -> Self {
        let message = Message::new(text, stated);
        let of_warning = if message.starts_with(WARNING) { message.split_at(WARNING.len()) } else { None };
        match of_warning {
            Some((_, message)) => Self::warning(message),
            None => Self::info(message),
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
    /// Returns a note with a text that names no settings.
    fn from(text: String) -> Self {
        Self::info(text)
    }
}

impl From<&str> for Note {
    /// Returns a note with a text that names no settings.
    fn from(text: &str) -> Self {
        Self::info(text)
    }
}

/// The settings and time points that a note of a list of texts names, in JSON beside the list.
#[derive(Serialize, Deserialize)]
struct NoteSettings {
    /// Index of the note.
    note: usize,
    /// What its text names.
    settings: Vec<NamedSetting>,
}

/// The fields of a list of notes in JSON.
#[derive(Serialize, Deserialize)]
struct Fields {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    notes: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    note_settings: Vec<NoteSettings>,
}

impl Fields {
    /// Returns the texts of notes, and what those name that name any setting or time point.
    fn of(notes: &[Note]) -> Self {
        let messages: Vec<Message> = notes.iter().map(Message::of).collect();
        let settings = |(note, message): (usize, &Message)| NoteSettings { note, settings: message.named_settings() };
        let named = messages.iter().enumerate().map(settings).filter(|stated| !stated.settings.is_empty()).collect();
        Self { notes: Some(messages.into_iter().map(String::from).collect()), note_settings: named }
    }

    /// Returns the notes with what they name; none without a list of texts.
    fn into_notes(self) -> Vec<Note> {
        let Self { notes, note_settings } = self;
        let note = |(at, text): (usize, String)| {
            let stated = note_settings.iter().find(|stated| stated.note == at);
            Note::from_text(text, stated.map_or(&[][..], |stated| stated.settings.as_slice()))
        };
        notes.into_iter().flatten().enumerate().map(note).collect()
    }
}

/// Notes as a field `notes` with a list of texts, for `#[serde(flatten, with = "...")]`: the form that reports and records
/// have. A warning begins with `warning: `. A field `note_settings` states what the notes name, if any names something;
/// reports of earlier versions lack it.
pub mod texts {
    use super::{Fields, Note};
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Writes the texts and what they name.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(notes: &[Note], serializer: S) -> Result<S::Ok, S::Error> {
        Fields::of(notes).serialize(serializer)
    }

    /// Reads the texts and what they name.
    ///
    /// # Errors
    /// Those of the deserializer, if there is no list of texts.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Note>, D::Error> {
        let fields = Fields::deserialize(deserializer)?;
        if fields.notes.is_none() {
            return Err(D::Error::missing_field("notes"));
        }
        Ok(fields.into_notes())
    }
}

/// Notes as [`texts`], but the field `notes` is absent if there are none.
pub mod texts_if_any {
    use super::{Fields, Note};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Writes the texts and what they name, if there are any notes.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(notes: &[Note], serializer: S) -> Result<S::Ok, S::Error> {
        let Fields { notes, note_settings } = Fields::of(notes);
        Fields { notes: notes.filter(|texts| !texts.is_empty()), note_settings }.serialize(serializer)
    }

    /// Reads the texts and what they name; no notes without a list of texts.
    ///
    /// # Errors
    /// Those of the deserializer, if `notes` is not a list of texts.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Note>, D::Error> {
        Fields::deserialize(deserializer).map(Fields::into_notes)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use cytoscope_storage::message;
    use cytoscope_storage::message::TimePoint;
    use cytoscope_storage::setting::{AXES, TIME};
    use serde_json::json;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Record {
        #[serde(flatten, with = "texts")]
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
    }

    #[test]
    fn notes_of_records_keep_the_settings_and_time_points_that_they_name() {
        let named = Note::warning(message!("time point {} is dark (choose another with {TIME})", TimePoint(4)));
        let record = Record { notes: vec![Note::info("it is flat, see --axes"), named] };
        let mut value = json!({
            "notes": ["it is flat, see --axes", "warning: time point 4 is dark (choose another with --time)"],
            "note_settings": [{"note": 1, "settings": [
                {"start": 20, "name": "4", "is_time_point": true}, {"start": 51, "name": "--time"}
            ]}],
        });
        assert_eq!(json!(record), value);
        assert_eq!(serde_json::from_value::<Record>(value.clone()).unwrap(), record);
        // Reports of earlier versions.
        value.as_object_mut().unwrap().remove("note_settings");
        let earlier: Record = serde_json::from_value(value).unwrap();
        let texts: Vec<String> = earlier.notes.iter().map(ToString::to_string).collect();
        assert_eq!(texts, record.notes.iter().map(ToString::to_string).collect::<Vec<_>>());
        assert!(earlier.notes.iter().all(|note| note.message.named_settings().is_empty()));
    }

    #[test]
    fn a_record_without_notes_may_lack_them() {
        #[derive(Debug, PartialEq, Serialize, Deserialize)]
        struct Report {
            #[serde(flatten, with = "texts_if_any")]
            notes: Vec<Note>,
        }
        let none = Report { notes: Vec::new() };
        assert_eq!(json!(none), json!({}));
        assert_eq!(serde_json::from_value::<Report>(json!({})).unwrap(), none);
        let one = Report { notes: vec![Note::warning("it is dark")] };
        assert_eq!(json!(one), json!({"notes": ["warning: it is dark"]}));
        assert_eq!(serde_json::from_value::<Report>(json!(one)).unwrap(), one);
        assert!(serde_json::from_value::<Record>(json!({})).is_err());
    }
}

//! Messages to the user that keep the settings they name as data beside the text. Each interface renders a message with its
//! own names for the settings: the command line shows the text, the window the names of its controls.

use crate::setting::Setting;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::ops::{Deref, Range};

thread_local! {
    /// The name that [`write_name`] is writing, so that a [`Recorder`] can tell it from text that reads the same.
    static NAME: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Writes the name of an option, command or setting. A [`Message`] that is being made records it if it is a [`Setting`].
///
/// # Errors
/// [`fmt::Error`] of the formatter.
pub fn write_name(f: &mut fmt::Formatter<'_>, name: &'static str) -> fmt::Result {
    NAME.set(Some(name));
    let written = f.write_str(name);
    NAME.set(None);
    written
}

/// A setting that a text names, as messages between processes state it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedSetting {
    /// Where its name starts in the text, in bytes of UTF-8.
    pub start: usize,
    /// Its name in the text, such as `--force`.
    pub name: String,
}

/// A text for the user with the settings that it names. It is made by [`message!`](crate::message!), and displays as its text;
/// a message that is formatted into another one keeps its settings.
///
/// In JSON, a message has the fields `message` and, if it names settings, `settings`.
///
/// ```
/// use cytoscope_storage::message;
/// use cytoscope_storage::setting::FORCE;
///
/// let advice = message!("choose another name, or replace it with {FORCE}");
/// assert_eq!(advice.to_string(), "choose another name, or replace it with --force");
/// assert_eq!(advice.settings().collect::<Vec<_>>(), [(40..47, FORCE)]);
/// let error = message!("{} already exists; {advice}", "a --force.tif");
/// assert_eq!(error.settings().count(), 1);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(from = "MessageFields", into = "MessageFields")]
pub struct Message {
    text: String,
    /// Where the name of each setting starts in the text, in order. The name at that place is that of the setting.
    settings: Vec<(usize, Setting)>,
}

/// The fields of a [`Message`] in JSON.
#[derive(Serialize, Deserialize)]
struct MessageFields {
    message: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    settings: Vec<NamedSetting>,
}

impl Message {
    /// Returns a value's text with the settings that it names.
    pub fn of(value: &impl fmt::Display) -> Self {
        Self::format(format_args!("{value}"))
    }

    /// Returns a formatted text with the settings that its arguments name; [`message!`](crate::message!) calls it.
    pub fn format(arguments: fmt::Arguments<'_>) -> Self {
        let mut recorder = Recorder(Self::default());
        // Only an argument can fail; the text then ends before it.
        let _ = fmt::write(&mut recorder, arguments);
        recorder.0
    }

    /// Returns a text with the settings that were stated beside it. Those that are unknown, as from a newer version, or that the
    /// text does not name at their place are left out.
    pub fn new(text: impl Into<String>, named: &[NamedSetting]) -> Self {
        let text = text.into();
        let mut settings = Vec::new();
        let mut end = 0;
        for NamedSetting { start, name } in named {
            let is_there = *start >= end && text.get(*start..).is_some_and(|rest| rest.starts_with(name.as_str()));
            if let Some(setting) = Setting::from_text(name).filter(|_| is_there) {
                settings.push((*start, setting));
                end = start + name.len();
            }
        }
        Self { text, settings }
    }

    /// Returns a text that came without its settings, such as one of a report, with those that are found in it.
    pub fn parse(text: impl Into<String>) -> Self {
        let text = text.into();
        let settings = Setting::named_in(&text).into_iter().map(|(range, setting)| (range.start, setting)).collect();
        Self { text, settings }
    }

    /// Returns the text, with the names of settings that the command line has.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the settings that the text names, with the places of their names in it, in order.
    pub fn settings(&self) -> impl DoubleEndedIterator<Item = (Range<usize>, Setting)> + '_ {
        self.settings.iter().map(|(start, setting)| (*start..start + setting.text().len(), *setting))
    }

    /// Returns the settings as messages between processes state them.
    pub fn named_settings(&self) -> Vec<NamedSetting> {
        self.settings.iter().map(|(start, setting)| NamedSetting { start: *start, name: setting.to_string() }).collect()
    }

    /// Returns the message with the text around the names of settings as `change` returns it.
    pub fn map_text(&self, change: impl Fn(&str) -> Cow<'_, str>) -> Self {
        let mut mapped = Self::default();
        let (mut rest, mut end) = (self.text.as_str(), 0);
        for (range, setting) in self.settings() {
            let (before, named) = rest.split_at(range.start - end);
            mapped.text.push_str(&change(before));
            mapped.settings.push((mapped.text.len(), setting));
            mapped.text.push_str(setting.text());
            rest = named.split_at(range.len()).1;
            end = range.end;
        }
        mapped.text.push_str(&change(rest));
        mapped
    }

    /// Returns the message in two parts: up to the byte `at` of the text, and from there on. `None` if a character or the name
    /// of a setting spans that place, or the text is shorter.
    pub fn split_at(&self, at: usize) -> Option<(Self, Self)> {
        let (head, tail) = self.text.split_at_checked(at)?;
        let (before, after): (Vec<_>, Vec<_>) = self.settings.iter().copied().partition(|(start, _)| *start < at);
        if before.last().is_some_and(|(start, setting)| start + setting.text().len() > at) {
            return None;
        }
        let after = after.into_iter().map(|(start, setting)| (start - at, setting)).collect();
        Some((Self { text: head.to_owned(), settings: before }, Self { text: tail.to_owned(), settings: after }))
    }
}

impl Deref for Message {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.text.as_str();
        let mut end = 0;
        for (range, setting) in self.settings() {
            let (before, named) = rest.split_at(range.start - end);
            f.write_str(before)?;
            write_name(f, setting.text())?;
            rest = named.split_at(range.len()).1;
            end = range.end;
        }
        f.write_str(rest)
    }
}

impl std::error::Error for Message {}

impl From<&str> for Message {
    /// Returns a text that names no settings.
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

impl From<String> for Message {
    /// Returns a text that names no settings.
    fn from(text: String) -> Self {
        Self { text, settings: Vec::new() }
    }
}

impl From<Cow<'_, str>> for Message {
    /// Returns a text that names no settings.
    fn from(text: Cow<'_, str>) -> Self {
        Self::from(text.into_owned())
    }
}

impl From<Message> for String {
    fn from(message: Message) -> Self {
        message.text
    }
}

impl From<MessageFields> for Message {
    fn from(fields: MessageFields) -> Self {
        Self::new(fields.message, &fields.settings)
    }
}

impl From<Message> for MessageFields {
    fn from(message: Message) -> Self {
        Self { settings: message.named_settings(), message: message.text }
    }
}

/// Writes a message, and records the settings that [`write_name`] writes.
struct Recorder(Message);

impl fmt::Write for Recorder {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // A writer in between may have changed the name.
        if let Some(setting) = NAME.take().filter(|name| *name == text).and_then(Setting::from_text) {
            self.0.settings.push((self.0.text.len(), setting));
        }
        self.0.text.push_str(text);
        Ok(())
    }
}

/// Returns a [`Message`]: the arguments are those of [`format!`], and the settings among them are recorded.
#[macro_export]
macro_rules! message {
    ($($arguments:tt)+) => {
        $crate::message::Message::format(::std::format_args!($($arguments)+))
    };
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::setting::{DEVICE, FORCE, ON_CPU, TILE};
    use serde_json::json;

    #[test]
    fn a_message_records_the_settings_of_its_arguments_and_no_others() {
        let path = "µ --tile.tif";
        let inner = message!("use {ON_CPU} (or {TILE} {:?})", [8, 8, 8]);
        let message = message!("{path}: {}; {inner}, or {DEVICE}", "it is --tile");
        assert_eq!(message.as_str(), "µ --tile.tif: it is --tile; use --device cpu (or --tile [8, 8, 8]), or --device");
        let named: Vec<(&str, Setting)> =
            message.settings().map(|(range, setting)| (message.get(range).unwrap(), setting)).collect();
        assert_eq!(named, [("--device cpu", ON_CPU), ("--tile", TILE), ("--device", DEVICE)]);
        assert_eq!(message.to_string(), message.as_str());
        assert_eq!(Message::of(&message), message);
        // A text that was formatted before has lost them.
        assert_eq!(message!("{}", format!("use {FORCE}")).settings().count(), 0);
    }

    #[test]
    fn settings_go_through_json_and_unknown_ones_leave_the_text_readable() {
        let message = message!("µ: replace it with {FORCE}");
        let value = json!({"message": "µ: replace it with --force", "settings": [{"start": 20, "name": "--force"}]});
        assert_eq!(json!(message), value);
        assert_eq!(serde_json::from_value::<Message>(value).unwrap(), message);
        let plain = json!({"message": "it is flat"});
        assert_eq!(json!(Message::from("it is flat")), plain);
        assert_eq!(serde_json::from_value::<Message>(plain).unwrap(), Message::from("it is flat"));
        let named = |start: usize, name: &str| NamedSetting { start, name: name.to_owned() };
        let text = message.as_str();
        for wrong in [named(1, "--force"), named(19, "--force"), named(999, "--force"), named(20, "--forced")] {
            assert_eq!(Message::new(text, &[wrong]), Message::from(text));
        }
        assert_eq!(Message::new(text, &[named(20, "--force"), named(20, "--force")]), message);
    }

    #[test]
    fn changed_text_moves_the_settings_with_it() {
        let message = message!("\n: use {FORCE}\n, or {TILE}");
        let mapped = message.map_text(|text| Cow::Owned(text.replace('\n', "\\n")));
        assert_eq!(mapped, message!("\\n: use {FORCE}\\n, or {TILE}"));
    }

    #[test]
    fn a_message_is_split_between_its_settings() {
        let message = message!("use {FORCE}; set {TILE}");
        let (problem, next_step) = message.split_at("use --force; ".len()).unwrap();
        assert_eq!((problem, next_step), (message!("use {FORCE}; "), message!("set {TILE}")));
        for inside in [5, 999] {
            assert!(message.split_at(inside).is_none());
        }
        assert_eq!(Message::parse("use --force; set --tile"), message);
    }
}

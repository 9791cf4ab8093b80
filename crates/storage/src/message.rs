//! Messages to the user that keep the settings and time points they name as data beside the text. Each interface renders a
//! message in its own way: the command line shows the text, the window the names of its controls, and time points counted
//! from 1.

use crate::setting::Setting;
use crate::setting::data::DataSetting;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::cell::Cell;
use std::fmt;
use std::ops::{Deref, Range};

thread_local! {
    /// The name that [`write_name`] is writing, so that a [`Recorder`] can tell it from text that reads the same.
    static NAME: Cell<Option<&'static str>> = const { Cell::new(None) };
    /// The number that a [`TimePoint`] is writing.
    static TIME: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Writes the name of an option, command or setting. A [`Message`] that is being made records it if it is a [`Setting`] or a
/// [`DataSetting`].
///
/// # Errors
/// [`fmt::Error`] of the formatter.
pub fn write_name(f: &mut fmt::Formatter<'_>, name: &'static str) -> fmt::Result {
    NAME.set(Some(name));
    let written = f.write_str(name);
    NAME.set(None);
    written
}

/// The number of a time point, counted from 0, as messages state it. A [`Message`] that is being made records it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimePoint(pub usize);

impl fmt::Display for TimePoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.0.to_string();
        TIME.set(Some(self.0));
        let written = f.write_str(&number);
        TIME.set(None);
        written
    }
}

/// A setting or the number of a time point that a text names, as messages between processes state it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedSetting {
    /// Where its name starts in the text, in bytes of UTF-8.
    pub start: usize,
    /// Its name in the text, such as `--force`; the number of a time point.
    pub name: String,
    /// Whether it is the number of a time point, counted from 0; absent in JSON if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_time_point: bool,
}

/// What a text names at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Named {
    Setting(Setting),
    Data(DataSetting),
    Time(usize),
}

impl Named {
    /// Returns what has this name.
    fn from_name(name: &str) -> Option<Self> {
        let of_data = || DataSetting::from_text(name).map(Self::Data);
        Setting::from_text(name).map(Self::Setting).or_else(of_data)
    }

    /// Returns the text at the place.
    fn text(self) -> Cow<'static, str> {
        match self {
            Self::Setting(setting) => Cow::Borrowed(setting.text()),
            Self::Data(setting) => Cow::Borrowed(setting.text()),
            Self::Time(time) => Cow::Owned(time.to_string()),
        }
    }

    /// Writes the text so that a message that is being made records it.
    fn write(self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting(setting) => write_name(f, setting.text()),
            Self::Data(setting) => write_name(f, setting.text()),
            Self::Time(time) => fmt::Display::fmt(&TimePoint(time), f),
        }
    }
}

/// A text for the user with the settings and time points that it names. It is made by [`message!`](crate::message!), and
/// displays as its text; a message that is formatted into another one keeps them.
///
/// In JSON, a message has the fields `message` and, if it names settings or time points, `settings`.
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
    /// Where each setting and time point is named in the text, in order. The text at that place is its name. A slice, because
    /// errors contain several messages.
    named: Box<[(usize, Named)]>,
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
        let mut recorder = Recorder::default();
        // Only an argument can fail; the text then ends before it.
        let _ = fmt::write(&mut recorder, arguments);
        recorder.message()
    }

    /// Returns messages one after the other, with a separator between them.
    pub fn joined(messages: &[Self], separator: &str) -> Self {
        let join = |all: Self, next: &Self| Self::format(format_args!("{all}{separator}{next}"));
        match messages {
            [] => Self::default(),
            [first, others @ ..] => others.iter().fold(first.clone(), join),
        }
    }

    /// Returns a text with the settings and time points that were stated beside it. Those that are unknown, as from a newer
    /// version, or that the text does not name at their place are left out.
    pub fn new(text: impl Into<String>, stated: &[NamedSetting]) -> Self {
        let text = text.into();
        let mut named = Vec::new();
        let mut end = 0;
        for NamedSetting { start, name, is_time_point } in stated {
            let is_there = *start >= end && text.get(*start..).is_some_and(|rest| rest.starts_with(name.as_str()));
            let known = match is_time_point {
                true => name.parse().ok().map(Named::Time).filter(|time| time.text() == name.as_str()),
                false => Named::from_name(name),
            };
            if let Some(known) = known.filter(|_| is_there) {
                named.push((*start, known));
                end = start + name.len();
            }
        }
        Self { text, named: named.into() }
    }

    /// Returns a text that came without its settings, such as one of a report, with those that are found in it.
    pub fn parse(text: impl Into<String>) -> Self {
        let text = text.into();
        let settings = Setting::named_in(&text).into_iter();
        let named = settings.map(|(range, setting)| (range.start, Named::Setting(setting))).collect();
        Self { text, named }
    }

    /// Returns the text, with the names of settings that the command line has.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the options and commands that the text names, with the places of their names in it, in order.
    pub fn settings(&self) -> impl DoubleEndedIterator<Item = (Range<usize>, Setting)> + '_ {
        self.named.iter().filter_map(|(start, named)| match named {
            Named::Setting(setting) => Some((*start..start + setting.text().len(), *setting)),
            Named::Data(_) | Named::Time(_) => None,
        })
    }

    /// Returns the settings of training data that the text names, with the places of their names in it, in order.
    pub fn data_settings(&self) -> impl DoubleEndedIterator<Item = (Range<usize>, DataSetting)> + '_ {
        self.named.iter().filter_map(|(start, named)| match named {
            Named::Data(setting) => Some((*start..start + setting.text().len(), *setting)),
            Named::Setting(_) | Named::Time(_) => None,
        })
    }

    /// Returns the time points that the text names, counted from 0, with the places of their numbers in it, in order.
    pub fn time_points(&self) -> impl DoubleEndedIterator<Item = (Range<usize>, usize)> + '_ {
        self.named.iter().filter_map(|(start, named)| match named {
            Named::Setting(_) | Named::Data(_) => None,
            Named::Time(time) => Some((*start..start + named.text().len(), *time)),
        })
    }

    /// Returns the settings and time points as messages between processes state them.
    pub fn named_settings(&self) -> Vec<NamedSetting> {
        let stated = |(start, named): &(usize, Named)| NamedSetting {
            start: *start,
            name: named.text().into_owned(),
            is_time_point: matches!(named, Named::Time(_)),
        };
        self.named.iter().map(stated).collect()
    }

    /// Returns the message with the text around the names of settings and time points as `change` returns it.
    pub fn map_text(&self, change: impl Fn(&str) -> Cow<'_, str>) -> Self {
        let mut mapped = Recorder::default();
        let (mut rest, mut end) = (self.text.as_str(), 0);
        for (start, named) in self.named.iter() {
            let name = named.text();
            let (before, after) = rest.split_at(start - end);
            mapped.text.push_str(&change(before));
            mapped.named.push((mapped.text.len(), *named));
            mapped.text.push_str(&name);
            rest = after.split_at(name.len()).1;
            end = start + name.len();
        }
        mapped.text.push_str(&change(rest));
        mapped.message()
    }

    /// Returns the message in two parts: up to the byte `at` of the text, and from there on. `None` if a character or the name
    /// of a setting or time point spans that place, or the text is shorter.
    pub fn split_at(&self, at: usize) -> Option<(Self, Self)> {
        let (head, tail) = self.text.split_at_checked(at)?;
        let (before, after): (Vec<_>, Vec<_>) = self.named.iter().copied().partition(|(start, _)| *start < at);
        if before.last().is_some_and(|(start, named)| start + named.text().len() > at) {
            return None;
        }
        let after = after.into_iter().map(|(start, named)| (start - at, named)).collect();
        Some((Self { text: head.to_owned(), named: before.into() }, Self { text: tail.to_owned(), named: after }))
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
        for (start, named) in self.named.iter() {
            let length = named.text().len();
            let (before, after) = rest.split_at(start - end);
            f.write_str(before)?;
            named.write(f)?;
            rest = after.split_at(length).1;
            end = start + length;
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
        Self { text, named: Box::default() }
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

/// Writes a message, and records the settings that [`write_name`] writes and the time points that [`TimePoint`] writes.
#[derive(Default)]
struct Recorder {
    text: String,
    named: Vec<(usize, Named)>,
}

impl Recorder {
    fn message(self) -> Message {
        Message { text: self.text, named: self.named.into() }
    }
}

impl fmt::Write for Recorder {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // A writer in between may have changed the name.
        let name = NAME.take().filter(|name| *name == text).and_then(Named::from_name);
        let time = TIME.take().map(Named::Time).filter(|time| time.text() == text);
        if let Some(named) = name.or(time) {
            self.named.push((self.text.len(), named));
        }
        self.text.push_str(text);
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
    use crate::setting::data::{self, IN_SETTINGS};
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
        let joined = Message::joined(&[inner, "it is flat".into(), message!("{DEVICE}")], "; ");
        assert_eq!(joined, message!("use {ON_CPU} (or {TILE} {:?}); it is flat; {DEVICE}", [8, 8, 8]));
        assert_eq!(Message::joined(&[], "; "), Message::default());
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
        let named = |start: usize, name: &str| NamedSetting { start, name: name.to_owned(), ..NamedSetting::default() };
        let text = message.as_str();
        for wrong in [named(1, "--force"), named(19, "--force"), named(999, "--force"), named(20, "--forced")] {
            assert_eq!(Message::new(text, &[wrong]), Message::from(text));
        }
        assert_eq!(Message::new(text, &[named(20, "--force"), named(20, "--force")]), message);
    }

    #[test]
    fn a_message_records_the_settings_of_training_data() {
        let message = message!("data.axes.tif: set {} {IN_SETTINGS} (or {FORCE})", data::AXES);
        assert_eq!(message.as_str(), "data.axes.tif: set data.axes in the settings (or --force)");
        let named: Vec<_> = message.data_settings().map(|(range, setting)| (range.start, setting)).collect();
        assert_eq!(named, [(19, data::AXES), (29, IN_SETTINGS)]);
        assert_eq!(message.settings().map(|(_, setting)| setting).collect::<Vec<_>>(), [FORCE]);
        let value = json!(message);
        assert_eq!(value["settings"][0], json!({"start": 19, "name": "data.axes"}));
        assert_eq!(serde_json::from_value::<Message>(value).unwrap(), message);
    }

    #[test]
    fn a_message_records_its_time_points_and_no_other_numbers() {
        let inner = message!("time point {} of 12 (see {FORCE})", TimePoint(12));
        let message = message!("µ time point 12: {inner}");
        assert_eq!(message.as_str(), "µ time point 12: time point 12 of 12 (see --force)");
        let times: Vec<_> = message.time_points().collect();
        assert_eq!(times, [(29..31, 12)]);
        assert_eq!(message.settings().count(), 1);
        let value = json!({"message": message.as_str(), "settings": [
            {"start": 29, "name": "12", "is_time_point": true}, {"start": 43, "name": "--force"}
        ]});
        assert_eq!(json!(message), value);
        assert_eq!(serde_json::from_value::<Message>(value).unwrap(), message);
        let (head, tail) = message.split_at(29).unwrap();
        assert_eq!((head.time_points().count(), tail.time_points().next()), (0, Some((0..2, 12))));
        assert!(message.split_at(30).is_none());
        let wrong = |name: &str| NamedSetting { start: 0, name: name.to_owned(), is_time_point: true };
        for name in ["012", "x", ""] {
            assert_eq!(Message::new(name, &[wrong(name)]), Message::from(name));
        }
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

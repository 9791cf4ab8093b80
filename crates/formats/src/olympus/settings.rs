//! The settings files of Olympus FluoView: sections with keys and values, in UTF-16 or UTF-8.

use crate::{
    error::{Fault, Remedy},
    source::Source,
};
use std::collections::HashMap;

/// Largest settings file in bytes.
const MAX_SETTINGS_BYTES: u64 = 16 << 20;
/// First bytes of UTF-16, least significant byte first, and of UTF-8.
const UTF_16: &[u8] = b"\xff\xfe";
const UTF_8: &[u8] = b"\xef\xbb\xbf";

/// Whether the first bytes of a file are those of a settings file: a section, in UTF-16, or in UTF-8 if `is_named_so`.
pub(super) fn looks_like_settings(head: &[u8], is_named_so: bool) -> bool {
    match head.strip_prefix(UTF_16) {
        Some(text) => text.starts_with(b"[\0"),
        None => is_named_so && head.strip_prefix(UTF_8).unwrap_or(head).starts_with(b"["),
    }
}

/// The values by section and key.
#[derive(Debug, Default)]
pub(super) struct Settings(HashMap<String, HashMap<String, String>>);

impl Settings {
    /// Reads a settings file.
    pub fn read(source: &Source) -> Result<Self, Fault> {
        let length = source.len();
        if length > MAX_SETTINGS_BYTES {
            let (what, limit) = ("the size of the settings in bytes", MAX_SETTINGS_BYTES);
            return Err(Fault::over(what, length, "MAX_SETTINGS_BYTES", limit, Remedy::CopyAgain));
        }
        let bytes = source.read_vec(0, length as usize)?;
        let text = match bytes.strip_prefix(UTF_16) {
            Some(units) => {
                let units: Vec<u16> = units.as_chunks::<2>().0.iter().map(|unit| u16::from_le_bytes(*unit)).collect();
                String::from_utf16_lossy(&units)
            }
            None => String::from_utf8_lossy(bytes.strip_prefix(UTF_8).unwrap_or(&bytes)).into_owned(),
        };
        Ok(Self::parse(&text))
    }

    fn parse(text: &str) -> Self {
        let mut settings = Self::default();
        let mut section = String::new();
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                name.clone_into(&mut section);
            } else if let Some((key, value)) = line.split_once('=') {
                let values = settings.0.entry(section.clone()).or_default();
                values.insert(key.trim().to_owned(), unquoted(value.trim()).to_owned());
            }
        }
        settings
    }

    /// Whether there is a section.
    pub fn has(&self, section: &str) -> bool {
        self.0.contains_key(section)
    }

    /// The value of a key, without quotes; `None` if it is absent or empty.
    pub fn text(&self, section: &str, key: &str) -> Option<&str> {
        self.0.get(section)?.get(key).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// The number of a key, whose decimal separator may be a comma.
    pub fn number(&self, section: &str, key: &str) -> Option<f64> {
        let text = self.text(section, key)?;
        text.parse().or_else(|_| text.replace(',', ".").parse()).ok()
    }

    /// The keys and values of a section, in any order.
    pub fn values(&self, section: &str) -> impl Iterator<Item = (&str, &str)> {
        self.0.get(section).into_iter().flatten().map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

/// Returns a value without the quotes around it.
fn unquoted(value: &str) -> &str {
    let inner = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
    inner('"').or_else(|| inner('\'')).unwrap_or(value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn settings_are_read_in_both_encodings() {
        let text = "[A b]\r\nName=\"x=y\"\r\nSize = 0,25\r\n\r\n[C]\r\nEmpty=\r\nNumber='2.5'\r\nno value\r\n";
        let utf_16: Vec<u8> = UTF_16.iter().copied().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect();
        for bytes in [text.as_bytes().to_vec(), [UTF_8, text.as_bytes()].concat(), utf_16] {
            let is_utf_16 = bytes.starts_with(UTF_16);
            assert_eq!([true, false].map(|named| looks_like_settings(&bytes, named)), [true, is_utf_16]);
            let settings = Settings::read(&Source::memory(bytes)).unwrap();
            assert_eq!((settings.text("A b", "Name"), settings.number("A b", "Size")), (Some("x=y"), Some(0.25)));
            assert_eq!((settings.text("C", "Empty"), settings.number("C", "Number")), (None, Some(2.5)));
            assert_eq!((settings.has("C"), settings.has("D"), settings.values("A b").count()), (true, false, 2));
        }
    }
}

//! The choice of channels of an image, by number or name.

use crate::ImageMeta;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// A channel of an image, by number or name. As text, digits are a number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a channel must be its number, from 0, or its name")]
pub enum ChannelRef {
    /// Index of the channel, from 0.
    Index(usize),
    /// Name of the channel; upper and lower case count as equal.
    Name(String),
}

impl FromStr for ChannelRef {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        let text = text.trim();
        Ok(text.parse().map_or_else(|_| Self::Name(text.to_owned()), Self::Index))
    }
}

impl fmt::Display for ChannelRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Index(index) => index.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl ImageMeta {
    /// Returns the name of a channel, counted from 0, or one made of its number if the image states none.
    pub fn channel_name(&self, channel: usize) -> String {
        match self.channels.get(channel).map(|c| c.name.trim()) {
            Some(name) if !name.is_empty() => name.to_owned(),
            _ => generic_name(channel),
        }
    }
}

/// Returns the name of a channel, counted from 0, whose image states none.
pub(crate) fn generic_name(channel: usize) -> String {
    format!("channel{channel}")
}

/// Returns the numbers of the chosen channels among those with these names.
///
/// # Errors
/// The problem, and what to give instead, if a channel does not exist or a name is that of several.
pub fn find_channels(chosen: &[ChannelRef], names: &[String]) -> Result<Vec<usize>, (String, String)> {
    chosen.iter().map(|channel| find_channel(channel, names)).collect()
}

fn find_channel(channel: &ChannelRef, names: &[String]) -> Result<usize, (String, String)> {
    let numbered: Vec<String> = names.iter().enumerate().map(|(i, name)| format!("{i} ({name})")).collect();
    let advice = || format!("its channels are {}", numbered.join(", "));
    match channel {
        ChannelRef::Index(index) if *index < names.len() => Ok(*index),
        ChannelRef::Index(index) => Err((format!("channel {index} does not exist"), advice())),
        ChannelRef::Name(wanted) => {
            let wanted_lower = wanted.trim().to_lowercase();
            let has_name = |i: &usize| names.get(*i).is_some_and(|name| name.trim().to_lowercase() == wanted_lower);
            let found: Vec<usize> = (0..names.len()).filter(has_name).collect();
            match found.as_slice() {
                [one] => Ok(*one),
                [] => Err((format!("it has no channel \"{wanted}\""), advice())),
                several => {
                    let problem = format!("{} of its channels are named \"{wanted}\"", several.len());
                    Err((problem, "give the number of the channel".to_owned()))
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    fn find(chosen: &[&str], names: &[&str]) -> Result<Vec<usize>, (String, String)> {
        let chosen: Vec<ChannelRef> = chosen.iter().map(|text| text.parse().unwrap()).collect();
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        find_channels(&chosen, &names)
    }

    #[test]
    fn channels_are_found_by_name_in_any_case_and_by_number() {
        let names = ["Nuclei", "membrane", "membrane ", "bright field"];
        assert_eq!(find(&["bright FIELD", "nuclei"], &names).unwrap(), [3, 0]);
        assert_eq!(find(&["1", "0"], &names).unwrap(), [1, 0]);
        assert!(find(&["membrane"], &names).unwrap_err().0.contains("2 of its channels"));
        assert!(find(&["4"], &names).unwrap_err().1.contains("3 (bright field)"));
        assert!(find(&["actin"], &names).unwrap_err().1.contains("0 (Nuclei)"));
    }

    #[test]
    fn channels_are_numbers_or_names_in_json() {
        let channels: Vec<ChannelRef> = serde_json::from_str(r#"[2, "nuclei"]"#).unwrap();
        assert_eq!(channels, [ChannelRef::Index(2), ChannelRef::Name("nuclei".to_owned())]);
        assert_eq!(serde_json::to_string(&channels).unwrap(), r#"[2,"nuclei"]"#);
    }
}

//! The choice of channels of an image, by number or name.

use crate::ImageMeta;
use serde::{Deserialize, Serialize};
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

/// A channel of an image, by number or name. As text, digits are a number. A number from 100 that is beyond the last channel is
/// looked up as a name, such as the wavelength 488.
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

/// Smallest number that may be the name of a channel: many programs name channels by their wavelength in nm. Smaller ones are
/// numbers of channels, which some programs count from 1.
const MIN_WAVELENGTH: usize = 100;

/// Returns the numbers of the chosen channels among those with these names.
///
/// # Errors
/// The problem, and what to give instead, if a channel does not exist or a name is that of several.
pub fn find_channels(chosen: &[ChannelRef], names: &[String]) -> Result<Vec<usize>, (String, String)> {
    chosen.iter().map(|channel| find_channel(channel, names)).collect()
}

fn find_channel(channel: &ChannelRef, names: &[String]) -> Result<usize, (String, String)> {
    let numbered: Vec<String> = names.iter().enumerate().map(|(i, name)| format!("{i} ({name})")).collect();
    let is_unnamed = names.iter().enumerate().all(|(i, name)| *name == generic_name(i));
    let advice = || match names.len() {
        1 if is_unnamed => "its only channel, 0, has no name".to_owned(),
        count if is_unnamed && count > 1 => format!("its {count} channels have numbers from 0, but no names"),
        _ => format!("its channels are {}", numbered.join(", ")),
    };
    let with_name = |wanted: &str| -> Vec<usize> {
        let wanted_lower = wanted.trim().to_lowercase();
        let has_name = |i: &usize| names.get(*i).is_some_and(|name| name.trim().to_lowercase() == wanted_lower);
        (0..names.len()).filter(has_name).collect()
    };
    match channel {
        ChannelRef::Index(index) if *index < names.len() => Ok(*index),
        ChannelRef::Index(index) => match with_name(&index.to_string()).as_slice() {
            [one] if *index >= MIN_WAVELENGTH => Ok(*one),
            _ => Err((format!("channel {index} does not exist"), advice())),
        },
        ChannelRef::Name(wanted) => match with_name(wanted).as_slice() {
            [one] => Ok(*one),
            [] => Err((format!("it has no channel \"{wanted}\""), advice())),
            several => {
                let problem = format!("{} of its channels are named \"{wanted}\"", several.len());
                Err((problem, "give the number of the channel".to_owned()))
            }
        },
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
        assert_eq!(find(&["actin"], &["channel0"]).unwrap_err().1, "its only channel, 0, has no name");
        let unnamed = find(&["actin"], &["channel0", "channel1"]).unwrap_err().1;
        assert_eq!(unnamed, "its 2 channels have numbers from 0, but no names");
    }

    #[test]
    fn channels_are_found_by_their_wavelength_but_not_by_names_that_could_be_numbers() {
        let names = ["488", "7", "561"];
        assert_eq!(find(&["561", "488"], &names).unwrap(), [2, 0]);
        assert!(find(&["7"], &names).is_err(), "there is no eighth channel");
        assert_eq!(find(&["0"], &["1", "0"]).unwrap(), [0], "the number of a channel comes first");
        assert!(find(&["405"], &names).unwrap_err().0.contains("channel 405 does not exist"));
        assert!(find(&["488"], &["488", "488"]).is_err());
    }

    #[test]
    fn channels_are_numbers_or_names_in_json() {
        let channels: Vec<ChannelRef> = serde_json::from_str(r#"[2, "nuclei"]"#).unwrap();
        assert_eq!(channels, [ChannelRef::Index(2), ChannelRef::Name("nuclei".to_owned())]);
        assert_eq!(serde_json::to_string(&channels).unwrap(), r#"[2,"nuclei"]"#);
    }
}

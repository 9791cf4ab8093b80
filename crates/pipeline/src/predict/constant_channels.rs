//! Checks that the channels of a stack are not constant: a network finds nothing in a constant channel.

use crate::Note;
use crate::stack::Extents;

/// Number of channels and time points that a note names.
const NAMED: usize = 4;
/// What follows from equal values, and what to check.
const ADVICE: &str = "without differences between values, the prediction is meaningless; check that this is the right file, \
                      channel and time point";

/// Whether the values of a channel that were read so far differ. NaN and infinite values do not count.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) enum Contrast {
    /// There is no finite value.
    #[default]
    None,
    /// All finite values are this one.
    Flat(f32),
    /// Values differ.
    Varies,
}

impl Contrast {
    /// Adds values.
    pub(crate) fn add(&mut self, values: &[f32]) {
        for value in values.iter().copied().filter(|value| value.is_finite()) {
            match *self {
                Self::Varies => return,
                Self::None => *self = Self::Flat(value),
                Self::Flat(first) if first != value => *self = Self::Varies,
                Self::Flat(_) => {}
            }
        }
    }

    /// Adds the values of another part of the same channel.
    pub(crate) fn merge(&mut self, part: Self) {
        match part {
            Self::None => {}
            Self::Flat(value) => self.add(&[value]),
            Self::Varies => *self = Self::Varies,
        }
    }
}

/// A channel without contrast, at a time point.
#[derive(Debug, Clone, Copy, PartialEq)]
struct FlatChannel {
    time: usize,
    channel: usize,
    contrast: Contrast,
}

/// The channels without contrast of all time points, for a note.
#[derive(Debug, Default)]
pub(super) struct FlatChannels(Vec<FlatChannel>);

impl FlatChannels {
    /// Adds the channels of a time point that was read completely; `contrasts` are theirs, in the same order.
    pub(super) fn add(&mut self, time: usize, channels: &[usize], contrasts: &[Contrast]) {
        for (channel, contrast) in channels.iter().zip(contrasts).filter(|(_, c)| **c != Contrast::Varies) {
            let found = FlatChannel { time, channel: *channel, contrast: *contrast };
            // Several inputs of a network may read one channel.
            if !self.0.iter().any(|known| (known.time, known.channel) == (time, *channel)) {
                self.0.push(found);
            }
        }
    }

    /// Returns the warning about a stack of these extents; `None` if all channels have contrast.
    pub(super) fn note(&self, extents: Extents) -> Option<Note> {
        let place = |flat: &FlatChannel| {
            let channel = (extents.channels > 1).then(|| format!("channel {}", flat.channel));
            let time = (extents.times > 1).then(|| format!("time point {}", flat.time));
            channel.into_iter().chain(time).collect::<Vec<_>>().join(" at ")
        };
        let of_place = |flat: &FlatChannel| match place(flat) {
            place if place.is_empty() => String::new(),
            place => format!(" of {place}"),
        };
        let found = match self.0.as_slice() {
            [] => return None,
            [flat] => match flat.contrast {
                Contrast::Flat(value) => format!("all input values{} are {value}", of_place(flat)),
                Contrast::None | Contrast::Varies => {
                    format!("all input values{} are NaN or infinite", of_place(flat))
                }
            },
            several => {
                let named: Vec<String> = several.iter().take(NAMED).map(place).collect();
                let more = match several.len().saturating_sub(NAMED) {
                    0 => String::new(),
                    count => format!(", and {count} more"),
                };
                format!("all input values are equal, or none is finite, in {}{more}", named.join(", "))
            }
        };
        Some(Note::warning(format!("{found}: {ADVICE}")))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    fn contrast(values: &[f32]) -> Contrast {
        let mut contrast = Contrast::default();
        contrast.add(values);
        contrast
    }

    #[test]
    fn values_that_are_not_finite_do_not_count() {
        assert_eq!(contrast(&[f32::NAN, f32::INFINITY]), Contrast::None);
        assert_eq!(contrast(&[f32::NAN, 5.0, 5.0]), Contrast::Flat(5.0));
        assert_eq!(contrast(&[5.0, f32::NAN, 6.0, 5.0]), Contrast::Varies);
        let mut whole = contrast(&[5.0]);
        whole.merge(contrast(&[f32::NAN]));
        whole.merge(contrast(&[5.0]));
        assert_eq!(whole, Contrast::Flat(5.0));
        whole.merge(contrast(&[4.0]));
        assert_eq!(whole, Contrast::Varies);
    }

    #[test]
    fn a_note_names_the_channels_and_time_points_without_contrast() {
        let note = |times: usize, channels: usize, found: &[(usize, usize, f32)]| {
            let mut flat = FlatChannels::default();
            for (time, channel, value) in found {
                flat.add(*time, &[*channel, *channel], &[contrast(&[*value]), contrast(&[*value])]);
            }
            flat.add(0, &[channels], &[Contrast::Varies]);
            flat.note(Extents { times, zyx: [1; 3], channels, samples: 1 })
        };
        assert_eq!(note(2, 2, &[]), None);
        let begins = |note: Option<Note>, text: &str| {
            let note = note.unwrap();
            assert!(note.message.starts_with(text), "{note}");
        };
        begins(note(1, 1, &[(0, 0, 0.0)]), "all input values are 0: without");
        begins(note(1, 1, &[(0, 0, f32::NAN)]), "all input values are NaN or infinite: without");
        begins(note(3, 2, &[(2, 1, 7.5)]), "all input values of channel 1 at time point 2 are 7.5: without");
        let times: Vec<(usize, usize, f32)> = (0..6).map(|time| (time, 0, 0.0)).collect();
        begins(
            note(6, 1, &times),
            "all input values are equal, or none is finite, in time point 0, time point 1, time point 2, time point 3, \
             and 2 more: without",
        );
    }
}

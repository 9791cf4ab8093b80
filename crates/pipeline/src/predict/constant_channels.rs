//! Checks that the channels of a stack are not constant, or nearly: a network finds nothing in such a channel.

use crate::Note;
use crate::ops::Elementwise;
use crate::slice_statistics::Chains;
use crate::stack::Extents;
use cytoscope_model_package::Processing;
use cytoscope_storage::message;
use cytoscope_storage::message::{Message, TimePoint};
use cytoscope_storage::setting::CROP;

/// Number of channels and time points that a note names.
const NAMED: usize = 4;
/// What follows from equal values, and what to check.
const ADVICE: &str = "without differences between values, the prediction is meaningless; check that this is the right file, \
                      channel and time point";

/// Share of the contrast whose loss is noted.
const NOTED_LOSS: f64 = 0.05;

/// From this share on, the values that the preprocessing scales by are equal, though others differ.
const NO_RANGE: f64 = 1.0 - 1e-12;

/// Returns the share of a stack's contrast that the preprocessing `steps` of a model remove, because they add a small number,
/// `eps`, to the range or the standard deviation that they divide by. `chains` are the resolved steps of all channels; if they
/// differ among slices, the share is not computed.
pub(super) fn lost_contrast<'a>(steps: impl Iterator<Item = &'a Processing>, chains: &Chains) -> f64 {
    let eps = steps.map(|step| match step {
        Processing::ScaleRange { eps, .. } | Processing::ZeroMeanUnitVariance { eps, .. } => *eps,
        _ => 0.0,
    });
    let eps = eps.fold(0.0, f64::max);
    let Chains::Stack(chains) = chains else { return 0.0 };
    let gain = |step: &Elementwise| match step {
        Elementwise::Affine { gain, .. } => *gain,
        _ => 0.0,
    };
    (eps * chains.iter().flatten().map(gain).fold(0.0, f64::max)).min(1.0)
}

/// Returns the warning that preprocessing removes this share of a stack's contrast; `None` for a small one. If only a few values
/// differ from the others, their contrast is much too high instead, unless it is multiplied by `intensity_factor` because of
/// that.
pub(super) fn lost_contrast_note(share: f64, intensity_factor: f64) -> Option<Note> {
    if share >= NO_RANGE {
        return (intensity_factor == 1.0).then(|| {
            Note::warning(message!(
                "so few values of the stack differ from the others that the model's preprocessing finds no range to scale them \
                 by: objects may be too large or missed; crop the stack to the part with objects ({CROP})"
            ))
        });
    }
    (share > NOTED_LOSS).then(|| {
        Note::warning(format!(
            "the values of the stack differ so little that the model's preprocessing removes {:.0} % of their contrast: objects \
             may be missed; multiply the values by a large number, such as 1e6, and predict again",
            share * 100.0
        ))
    })
}

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
            let channel = (extents.channels > 1).then(|| message!("channel {}", flat.channel));
            let time = (extents.times > 1).then(|| message!("time point {}", TimePoint(flat.time)));
            channel.into_iter().chain(time).reduce(|channel, time| message!("{channel} at {time}"))
        };
        let place_suffix =
            |flat: &FlatChannel| place(flat).map_or_else(Message::default, |place| message!(" of {place}"));
        let found = match self.0.as_slice() {
            [] => return None,
            [flat] => match flat.contrast {
                Contrast::Flat(value) => message!("all input values{} are {value}", place_suffix(flat)),
                Contrast::None | Contrast::Varies => {
                    message!("all input values{} are NaN, infinite or too large for 32-bit floats", place_suffix(flat))
                }
            },
            several => {
                let places = several.iter().take(NAMED).filter_map(place);
                let named = places.reduce(|all, next| message!("{all}, {next}")).unwrap_or_default();
                let more = match several.len().saturating_sub(NAMED) {
                    0 => String::new(),
                    count => format!(", and {count} more"),
                };
                message!("all input values are equal, or none is finite, in {named}{more}")
            }
        };
        Some(Note::warning(message!("{found}: {ADVICE}")))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_model_package::StatisticsAxes;

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
    fn values_that_differ_by_less_than_a_step_adds_to_their_range_have_a_note() {
        let range = |eps| Processing::ScaleRange {
            min_percentile: 0.0,
            max_percentile: 100.0,
            eps,
            axes: StatisticsAxes::default(),
            reference_tensor: None,
        };
        let share = |eps: f64, range_of_values: f64| {
            let gain = 1.0 / (range_of_values + eps);
            let chains = Chains::Stack(vec![vec![Elementwise::Affine { gain, offset: 0.0 }]]);
            lost_contrast([range(eps)].iter(), &chains)
        };
        assert!((share(1e-6, 3e-6) - 0.25).abs() < 1e-12, "{}", share(1e-6, 3e-6));
        let note = lost_contrast_note(share(1e-6, 3e-6), 1.0).unwrap();
        assert!(note.message.contains("25 % of their contrast"), "{note}");
        assert_eq!(lost_contrast_note(share(1e-6, 1e-3), 1.0), None);
        assert_eq!(lost_contrast_note(share(0.0, 1e-9), 1.0), None);
        // Percentiles that are equal although a few values differ.
        let note = lost_contrast_note(share(1e-6, 0.0), 1.0).unwrap();
        assert!(note.message.contains("so few values") && !note.message.contains("% of their contrast"), "{note}");
        assert_eq!(lost_contrast_note(share(1e-6, 0.0), 1e-9), None, "the factor corrects it");
        // A fixed step may have any gain.
        let fixed = Chains::Stack(vec![vec![Elementwise::Affine { gain: 1e9, offset: 0.0 }]]);
        assert_eq!(lost_contrast([Processing::Sigmoid].iter(), &fixed), 0.0);
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
            note.message.time_points().map(|(_, time)| time).collect::<Vec<_>>()
        };
        assert!(begins(note(1, 1, &[(0, 0, 0.0)]), "all input values are 0: without").is_empty());
        let none = "all input values are NaN, infinite or too large for 32-bit floats: without";
        assert!(begins(note(1, 1, &[(0, 0, f32::NAN)]), none).is_empty());
        let one = "all input values of channel 1 at time point 2 are 7.5: without";
        assert_eq!(begins(note(3, 2, &[(2, 1, 7.5)]), one), [2]);
        let times: Vec<(usize, usize, f32)> = (0..6).map(|time| (time, 0, 0.0)).collect();
        let several = "all input values are equal, or none is finite, in time point 0, time point 1, time point 2, time \
                       point 3, and 2 more: without";
        assert_eq!(begins(note(6, 1, &times), several), [0, 1, 2, 3]);
    }
}

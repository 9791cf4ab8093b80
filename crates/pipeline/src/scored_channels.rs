//! The channels of predictions and ground truth that are scored.

use crate::job_record::absolute;
use crate::stack::Extents;
use crate::{JobError, Note};
use cytoscope_formats::{ChannelRef, ImageMeta, find_channels};
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::Setting;
use std::collections::BTreeSet;
use std::path::Path;

/// A channel of a prediction and the channel of the ground truth that it is scored against.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChannelPair {
    /// Number of the channel of the prediction, from 0.
    pub prediction: usize,
    /// Number of the channel of the ground truth, from 0.
    pub truth: usize,
    /// Name of the scores, which no other pair of the same files has.
    pub name: String,
}

/// An image of a pair.
#[derive(Clone, Copy)]
pub(crate) struct Side<'a> {
    /// Path of the image, for messages.
    pub path: &'a Path,
    /// Axes and channel names of the image.
    pub meta: &'a ImageMeta,
    /// The channel that the job names, if any.
    pub chosen: Option<&'a ChannelRef>,
    /// The option that chooses a channel.
    pub option: Setting,
}

impl Side<'_> {
    fn count(&self) -> usize {
        Extents::of(self.meta).channels
    }

    /// Returns the names of all channels; those without a name in the file have one made of their number.
    fn names(&self) -> Vec<String> {
        (0..self.count()).map(|channel| self.meta.channel_name(channel)).collect()
    }

    /// Returns the name that the file states for a channel.
    fn stated_name(&self, channel: usize) -> Option<&str> {
        self.meta.channels.get(channel).map(|c| c.name.trim()).filter(|name| !name.is_empty())
    }

    /// Returns the number of the chosen channel; `None` if none is chosen.
    fn chosen_index(&self) -> Result<Option<usize>, JobError> {
        let Some(chosen) = self.chosen else { return Ok(None) };
        let found = find_channels(std::slice::from_ref(chosen), &self.names());
        let mismatch = |(problem, next_step): (String, String)| JobError::Mismatch {
            path: self.path.to_owned(),
            problem: problem.into(),
            next_step: next_step.into(),
        };
        Ok(found.map_err(mismatch)?.first().copied())
    }

    /// Returns the channel with the name of the other image's chosen channel; the first one if that has no name, or if there
    /// is only one.
    ///
    /// # Errors
    /// [`JobError::Mismatch`] if there are several, of which none, or more than one, has the name: the first may show
    /// something else.
    fn like(&self, name: Option<&str>) -> Result<usize, JobError> {
        let Some(name) = name.filter(|_| self.count() > 1) else { return Ok(0) };
        let found = find_channels(&[ChannelRef::Name(name.to_owned())], &self.names());
        let mismatch = |(problem, advice): (String, String)| JobError::Mismatch {
            path: self.path.to_owned(),
            problem: format!("{problem}, which is the name of the channel chosen in the other image").into(),
            next_step: message!("choose one with {}: {advice}", self.option),
        };
        Ok(found.map_err(mismatch)?.first().copied().unwrap_or(0))
    }

    /// Returns the note that only the `used` channels are scored, if the file has others and none was chosen.
    fn note(&self, used: &BTreeSet<usize>) -> Option<Message> {
        let count = self.count();
        if self.chosen.is_some() || used.len() >= count {
            return None;
        }
        let listed: Vec<String> = used.iter().map(|c| format!("{c} ({})", self.meta.channel_name(*c))).collect();
        let (plural, verb) = if listed.len() == 1 { ("", "is") } else { ("s", "are") };
        Some(message!(
            "{}: only channel{plural} {} of its {count} channels {verb} compared (choose another with {})",
            absolute(self.path).display(),
            listed.join(", "),
            self.option
        ))
    }
}

/// Returns the pairs of channels to score; at least one. If none is chosen, the channels of stains are paired by name, or
/// else in their order if both files have equally many. Otherwise one pair is scored: of a file whose channel is not chosen,
/// the one with the name of the other file's chosen channel, or the first if that has no name. Notes say which channels are
/// left out.
///
/// # Errors
/// [`JobError::Mismatch`] if a chosen channel does not exist, or if of the channels of the other file, none or more than one
/// has its name.
pub(crate) fn channel_pairs(
    prediction: Side<'_>,
    truth: Side<'_>,
    are_labels: bool,
    notes: &mut Vec<Note>,
) -> Result<Vec<ChannelPair>, JobError> {
    let (p, t) = (prediction.chosen_index()?, truth.chosen_index()?);
    let is_free = p.is_none() && t.is_none() && !are_labels;
    let free_pairs = if is_free {
        pairs_by_name(prediction, truth).or_else(|| pairs_in_order(prediction, truth, notes))
    } else {
        None
    };
    let pairs = match free_pairs {
        Some(pairs) => pairs,
        None => {
            let name_in = |side: &Side<'_>, channel: Option<usize>| {
                channel.and_then(|channel| side.stated_name(channel)).map(str::to_owned)
            };
            let like_truth = name_in(&truth, t);
            let like_prediction = name_in(&prediction, p);
            let p = p.map_or_else(|| prediction.like(like_truth.as_deref()), Ok)?;
            let t = t.map_or_else(|| truth.like(like_prediction.as_deref()), Ok)?;
            vec![[p, t]]
        }
    };
    notes.extend(prediction.note(&pairs.iter().map(|pair| pair[0]).collect()).map(Note::from));
    notes.extend(truth.note(&pairs.iter().map(|pair| pair[1]).collect()).map(Note::from));
    Ok(named(prediction, truth, &pairs))
}

/// Returns pairs of channels of the same names, if the ground truth has one of the name of each channel of the prediction.
fn pairs_by_name(prediction: Side<'_>, truth: Side<'_>) -> Option<Vec<[usize; 2]>> {
    let names = truth.names();
    let mut seen = BTreeSet::new();
    let mut pairs = Vec::with_capacity(prediction.count());
    for channel in 0..prediction.count() {
        let name = prediction.stated_name(channel)?;
        let found = find_channels(&[ChannelRef::Name(name.to_owned())], &names).ok()?.first().copied()?;
        if !seen.insert(found) {
            return None;
        }
        pairs.push([channel, found]);
    }
    (!pairs.is_empty()).then_some(pairs)
}

/// Returns the pairs of channels of the same number, if both files have equally many.
fn pairs_in_order(prediction: Side<'_>, truth: Side<'_>, notes: &mut Vec<Note>) -> Option<Vec<[usize; 2]>> {
    let count = prediction.count();
    if count != truth.count() {
        return None;
    }
    let differ = |channel: usize| {
        let names = prediction.stated_name(channel).zip(truth.stated_name(channel));
        names.is_some_and(|(a, b)| a.to_lowercase() != b.to_lowercase())
    };
    if count > 1 && (0..count).any(differ) {
        let message = format!(
            "{}: its channels ({}) are compared with those of {} ({}) in their order",
            absolute(prediction.path).display(),
            prediction.names().join(", "),
            absolute(truth.path).display(),
            truth.names().join(", ")
        );
        notes.push(message.into());
    }
    Some((0..count).map(|channel| [channel, channel]).collect())
}

/// Names pairs by the channels of the prediction, or else of the ground truth.
fn named(prediction: Side<'_>, truth: Side<'_>, pairs: &[[usize; 2]]) -> Vec<ChannelPair> {
    let stated = |[p, t]: [usize; 2]| {
        let name = prediction.stated_name(p).or_else(|| truth.stated_name(t));
        name.map_or_else(|| prediction.meta.channel_name(p), str::to_owned)
    };
    let names: Vec<String> = pairs.iter().copied().map(stated).collect();
    let is_repeated = |name: &String| names.iter().filter(|other| *other == name).count() > 1;
    let pair = |([prediction, truth], name): (&[usize; 2], &String)| ChannelPair {
        prediction: *prediction,
        truth: *truth,
        name: if is_repeated(name) { format!("{name} {prediction}") } else { name.clone() },
    };
    pairs.iter().zip(&names).map(pair).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_formats::{Image, image_in_memory};
    use cytoscope_storage::setting::{PRED_CHANNEL, TRUTH_CHANNEL};
    use cytoscope_volume::{Array, VoxelSize};

    /// An image of channels with these names; an empty name is none.
    fn image(names: &[&str]) -> ImageMeta {
        let array = Array::new("CYX".parse().unwrap(), vec![names.len(), 2, 2], vec![0.0f32; names.len() * 4]).unwrap();
        let image: Image = image_in_memory(Path::new("an image"), array, VoxelSize::default()).unwrap();
        let mut meta = image.meta().clone();
        let channel = |name: &&str| cytoscope_formats::Channel { name: (*name).to_owned(), color_rgb: None };
        meta.channels = names.iter().map(channel).collect();
        meta
    }

    type Found = Result<(Vec<(usize, usize, String)>, String), String>;

    fn pairs(prediction: &[&str], truth: &[&str], chosen: [Option<&str>; 2], are_labels: bool) -> Found {
        let (p, t) = (image(prediction), image(truth));
        let chosen: [Option<ChannelRef>; 2] = chosen.map(|text| text.map(|text| text.parse().unwrap()));
        let [prediction_channel, truth_channel] = &chosen;
        let (a, b) = (Path::new("p.tif"), Path::new("t.tif"));
        let p = Side { path: a, meta: &p, chosen: prediction_channel.as_ref(), option: PRED_CHANNEL };
        let t = Side { path: b, meta: &t, chosen: truth_channel.as_ref(), option: TRUTH_CHANNEL };
        let mut notes = Vec::new();
        let found = channel_pairs(p, t, are_labels, &mut notes).map_err(|error| error.to_string())?;
        let found = found.into_iter().map(|pair| (pair.prediction, pair.truth, pair.name)).collect();
        Ok((found, notes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")))
    }

    fn pair(prediction: usize, truth: usize, name: &str) -> (usize, usize, String) {
        (prediction, truth, name.to_owned())
    }

    #[test]
    fn stains_are_paired_by_name_or_in_their_order() {
        let free = [None, None];
        let (found, notes) = pairs(&["dna", "actin"], &["Actin", "light", "DNA"], free, false).unwrap();
        assert_eq!(found, [pair(0, 2, "dna"), pair(1, 0, "actin")]);
        let expected = "t.tif: only channels 0 (Actin), 2 (DNA) of its 3 channels are compared (choose another with \
                        --truth-channel)";
        assert!(notes.ends_with(expected), "{notes}");
        let (found, notes) = pairs(&["", ""], &["", ""], free, false).unwrap();
        assert_eq!((found, notes.as_str()), (vec![pair(0, 0, "channel0"), pair(1, 1, "channel1")], ""));
        let (found, notes) = pairs(&["dna", "actin"], &["a", "b"], free, false).unwrap();
        assert_eq!(found, [pair(0, 0, "dna"), pair(1, 1, "actin")]);
        assert!(notes.contains("(dna, actin)") && notes.contains("(a, b) in their order"), "{notes}");
        let (found, notes) = pairs(&["x"], &["y"], free, false).unwrap();
        assert_eq!((found, notes.as_str()), (vec![pair(0, 0, "x")], ""), "there is nothing to choose");
    }

    #[test]
    fn otherwise_the_first_channels_are_scored_which_a_note_says() {
        let (found, notes) = pairs(&["a", "b"], &["t"], [None, None], false).unwrap();
        assert_eq!(found, [pair(0, 0, "a")]);
        let expected = "p.tif: only channel 0 (a) of its 2 channels is compared (choose another with --pred-channel)";
        assert!(notes.ends_with(expected), "{notes}");
        let (found, notes) = pairs(&["", ""], &["", ""], [None, None], true).unwrap();
        assert_eq!(found.len(), 1, "label images are not compared channel by channel");
        assert!(notes.contains("p.tif: only channel 0") && notes.contains("t.tif: only channel 0"), "{notes}");
    }

    #[test]
    fn chosen_channels_are_found_by_name_or_number_and_the_other_file_follows() {
        let (found, notes) = pairs(&["a", "b"], &["t"], [Some("b"), None], false).unwrap();
        assert_eq!((found, notes.as_str()), (vec![pair(1, 0, "b")], ""));
        let (found, _) = pairs(&["a", "b"], &["x", "y"], [Some("1"), Some("0")], true).unwrap();
        assert_eq!(found, [pair(1, 0, "b")]);
        let (found, notes) = pairs(&["a", "b"], &["b", "a"], [Some("b"), None], false).unwrap();
        assert_eq!(found, [pair(1, 0, "b")]);
        assert!(notes.contains("t.tif: only channel 0 (b)"), "{notes}");
        let (found, notes) = pairs(&["", ""], &["x", "y"], [Some("1"), None], false).unwrap();
        assert_eq!(found, [pair(1, 0, "x")], "the chosen channel has no name");
        assert!(notes.contains("t.tif: only channel 0 (x)"), "{notes}");
        let unknown = pairs(&["a", "b"], &["t"], [Some("c"), None], false).unwrap_err();
        assert!(unknown.contains("no channel \"c\"") && unknown.contains("1 (b)"), "{unknown}");
    }

    #[test]
    fn the_channel_of_the_other_file_is_not_guessed() {
        for are_labels in [false, true] {
            let refused = pairs(&["a", "b"], &["x", "y"], [Some("b"), None], are_labels).unwrap_err();
            let expected = "t.tif: it has no channel \"b\", which is the name of the channel chosen in the other image; choose \
                            one with --truth-channel: its channels are 0 (x), 1 (y)";
            assert_eq!(refused, expected);
            let refused = pairs(&["b", "B"], &["a", "b"], [None, Some("b")], are_labels).unwrap_err();
            assert!(refused.starts_with("p.tif: 2 of its channels are named \"b\""), "{refused}");
            assert!(refused.contains("with --pred-channel"), "{refused}");
        }
        let (found, _) = pairs(&["a", "b"], &["x", "y"], [Some("b"), Some("y")], false).unwrap();
        assert_eq!(found, [pair(1, 1, "b")]);
    }
}

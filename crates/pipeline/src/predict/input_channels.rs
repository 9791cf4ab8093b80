//! The channels of an image that a model's inputs are read from.

use super::file_notes::listed_channels;
use super::resolve::channel_name;
use super::{ChannelRef, PredictJob, PredictOptions, colors};
use crate::stack::{Extents, Stack, channels_text};
use crate::stain::stained_channel;
use crate::{Context, JobError, Model};
use cytoscope_formats::{ImageMeta, find_channels};
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::{AXES, CHANNEL, CHANNELS, INPUT};
use std::path::Path;

/// If a single-slice image has more channels than this, they are probably slices that a program saved as channels.
const MAX_LIKELY_CHANNELS: usize = 4;

/// Returns the channels whose names are those of a model's several inputs, unless a channel is requested.
fn model_channels(requested: Option<usize>, model: &Model, meta: &ImageMeta, available: usize) -> Option<Vec<usize>> {
    let wanted = &model.input_channel_names;
    if requested.is_some() || model.input_channels < 2 || wanted.len() != model.input_channels {
        return None;
    }
    let wanted: Vec<ChannelRef> = wanted.iter().map(|name| ChannelRef::Name(name.clone())).collect();
    let names: Vec<String> = (0..available).map(|c| channel_name(meta, c)).collect();
    find_channels(&wanted, &names).ok()
}

/// Returns notes that the model reads the first channels of a file that has more, or channels with other names.
fn first_channels_notes(model: &Model, meta: &ImageMeta, extents: Extents) -> Vec<Message> {
    let (needed, available) = (model.input_channels, extents.channels);
    if model.inputs.len() > 1 && available >= needed {
        let names: Vec<String> = (0..needed).map(|c| channel_name(meta, c)).collect();
        return vec![message!(
            "no channels have the names of the model's inputs ({}): {} are used in this order (choose others with {INPUT} or \
             {CHANNELS})",
            model.input_channel_names.join(", "),
            names.join(", ")
        )];
    }
    let mut notes = Vec::new();
    if available > needed {
        notes.push(message!(
            "the file has {available} channels{}; {} is used (choose another with {CHANNEL})",
            listed_channels(&meta.channels),
            channel_name(meta, 0)
        ));
        if extents.zyx[0] == 1 && available > MAX_LIKELY_CHANNELS {
            notes.push(message!("if these channels are the slices of a stack, use {AXES} ZYX"));
        }
    }
    notes
}

/// Returns whether a recorded job has read the first channel of its stack although the model would read another one because of
/// its name: newer records name that one, and earlier versions always read the first one.
pub(crate) fn has_read_first_channel(job: &PredictJob, model: &Model) -> bool {
    if job.channel.is_some() || !job.channels.is_empty() || !job.input_tensors.is_empty() {
        return false;
    }
    // That it cannot be opened is reported when the job runs.
    let Some(image) = job.inputs.first().and_then(|input| job.open(input).ok()) else { return false };
    let (meta, extents) = (image.meta(), Extents::of(image.meta()));
    !colors::is_rgb(meta, &extents) && stained_channel(model, meta).is_some_and(|channel| channel < extents.channels)
}

/// Returns the channel with a number, or the one whose name is that number, such as the wavelength 488, if the image has fewer
/// channels; otherwise the number.
fn numbered_channel(number: usize, meta: &ImageMeta, available: usize) -> usize {
    let names: Vec<String> = (0..available).map(|c| channel_name(meta, c)).collect();
    let found = find_channels(&[ChannelRef::Index(number)], &names).unwrap_or_default();
    found.first().copied().unwrap_or(number)
}

/// Returns the channel, from 1, that a model reads because of its name of an image with several, although the options choose
/// none; `None` if it reads others.
pub fn channel_by_name(model: &Model, meta: &ImageMeta, options: &PredictOptions) -> Option<usize> {
    let is_chosen = options.channel.is_some() || !options.channels.is_empty();
    let extents = Extents::of(meta);
    let is_open = !is_chosen && !colors::is_rgb(meta, &extents);
    stained_channel(model, meta).filter(|channel| is_open && *channel < extents.channels)
}

/// Returns the channels to use as the model's inputs: the chosen ones, or consecutive ones from the `requested` one on. Of
/// an RGB image, a model with one channel gets the only color that shows something; of other images, the channel with the
/// stain that the model was made for, if the names of the channels say which one that is.
///
/// # Errors
/// [`JobError::Mismatch`] if the stack does not have them; [`JobError`] if it cannot be read.
pub(crate) fn channels(
    context: &Context,
    (requested, chosen): (Option<usize>, &[ChannelRef]),
    model: &Model,
    meta: &ImageMeta,
    stack: &Stack,
    input: &Path,
    notes: &mut Vec<Message>,
) -> Result<Vec<usize>, JobError> {
    let available = stack.extents.channels;
    let needed = model.input_channels;
    let mismatch = |problem: String, next_step: Message| JobError::Mismatch {
        path: input.to_owned(),
        problem: problem.into(),
        next_step,
    };
    if !chosen.is_empty() {
        let names: Vec<String> = (0..available).map(|c| channel_name(meta, c)).collect();
        let found =
            find_channels(chosen, &names).map_err(|(problem, next_step)| mismatch(problem, next_step.into()))?;
        if found.len() != needed {
            let problem = format!("the model requires {}, not {}", channels_text(needed), found.len());
            let next_step = message!("give {needed} with {CHANNELS}, in the order of the model's inputs");
            return Err(mismatch(problem, next_step));
        }
        return Ok(found);
    }
    if let Some(found) = model_channels(requested, model, meta, available) {
        let names: Vec<String> = found.iter().map(|c| channel_name(meta, *c)).collect();
        notes.push(message!(
            "the model's inputs are read from the channels of their names: {} (choose others with {CHANNELS})",
            names.join(", ")
        ));
        return Ok(found);
    }
    let first = match requested {
        Some(number) => numbered_channel(number, meta, available),
        None if needed == 1 && colors::is_rgb(meta, &stack.extents) => {
            let (channel, note) = colors::only_channel(context, stack, input)?;
            notes.push(note);
            channel
        }
        None => match stained_channel(model, meta).filter(|channel| *channel < available) {
            Some(channel) => {
                notes.push(message!(
                    "the file has {available} channels{}; {} is used because of its name (choose another with {CHANNEL})",
                    listed_channels(&meta.channels),
                    channel_name(meta, channel)
                ));
                channel
            }
            None => {
                notes.extend(first_channels_notes(model, meta, stack.extents));
                0
            }
        },
    };
    if first.checked_add(needed).is_none_or(|end| end > available) {
        return Err(mismatch(
            match needed {
                1 => format!("channel {first} does not exist: the file has {available}"),
                _ => format!("the model requires {needed} channels from {first} on, but the file has {available}"),
            },
            match available.checked_sub(needed) {
                Some(0) if needed == 1 => message!("leave out {CHANNEL}"),
                Some(0) => message!("leave out {CHANNEL}, or give the channels by name with {CHANNELS}"),
                Some(last) if needed == 1 => message!("give a {CHANNEL} from 0 to {last}, or its name"),
                Some(last) => message!("give a {CHANNEL} from 0 to {last}, or the channels by name with {CHANNELS}"),
                None if model.inputs.len() > 1 => {
                    let first = Message::from("give a file for each of the model's inputs:");
                    model.inputs.iter().fold(first, |advice, input| message!("{advice} {INPUT} {}=FILE", input.id))
                }
                None => "use a file with all channels of the model".into(),
            },
        ));
    }
    Ok((first..first + needed).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_formats::image_in_memory;
    use cytoscope_volume::{Array, VoxelSize};

    #[test]
    fn a_single_channel_is_chosen_by_its_wavelength() {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/nuclei-dog");
        let model = Model::load(model.to_str().unwrap()).unwrap();
        let array = Array::new("CZYX".parse().unwrap(), vec![2, 1, 1, 1], vec![0u8; 2]).unwrap();
        let image = image_in_memory(Path::new("stack"), array, VoxelSize::default()).unwrap();
        let mut meta = image.meta().clone();
        for (channel, name) in meta.channels.iter_mut().zip(["561", "488"]) {
            channel.name = name.to_owned();
        }
        let stack = Stack::new(&image, 0);
        let chosen = |number: usize| {
            let given: (Option<usize>, &[ChannelRef]) = (Some(number), &[]);
            channels(&Context::default(), given, &model, &meta, &stack, Path::new("stack"), &mut Vec::new())
        };
        for (number, channel) in [(0, 0), (1, 1), (488, 1), (561, 0)] {
            assert_eq!(chosen(number).unwrap(), [channel], "{number}");
        }
        for missing in [2, 405] {
            let error = chosen(missing).unwrap_err().to_string();
            let problem = format!("channel {missing} does not exist: the file has 2; ");
            assert!(error.contains(&problem), "{error}");
            assert!(error.ends_with("give a --channel from 0 to 1, or its name"), "{error}");
        }
    }
}

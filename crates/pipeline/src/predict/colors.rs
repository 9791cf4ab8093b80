//! Chooses the channel of a color image that a model with one input channel reads.

use crate::stack::{Extents, Stack};
use crate::{Context, JobError};
use cytoscope_formats::ImageMeta;
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::{CHANNEL, PREPROCESS};
use std::ops::Range;
use std::path::Path;

/// Names of the channels of an RGB image, in their order.
const NAMES: [&str; 3] = ["red", "green", "blue"];
/// Rows and columns in the middle of the image that are compared.
const COMPARED: usize = 2048;
/// Colors whose difference deviates by less than this share of the highest deviation of a color are the same. JPEG changes
/// them a little.
const SAME: f64 = 0.05;
/// A color that deviates by less than this share of the highest deviation is dark. JPEG leaves some of the others in it.
const DARK: f64 = 0.1;

/// Which colors of an image show something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Colors {
    /// All show the same: a gray image that was saved in color.
    Gray,
    /// One alone, from 0.
    One(usize),
    /// Several, which differ.
    Several,
}

/// Whether an image is an RGB image, with or without an alpha channel.
pub(super) fn is_rgb(meta: &ImageMeta, extents: &Extents) -> bool {
    let named = || NAMES.iter().enumerate().all(|(c, name)| meta.channel_name(c) == *name);
    extents.is_rgb() || (meta.is_picture() && extents.channels >= NAMES.len() && named())
}

/// Returns the only channel of an RGB image that shows something, or the first one of a gray image that was saved in color, with
/// a note. Compares the colors in the middle of the stack.
///
/// # Errors
/// [`JobError::Mismatch`] if several colors show something; [`JobError`] if the image cannot be read.
pub(super) fn only_channel(context: &Context, stack: &Stack, input: &Path) -> Result<(usize, Message), JobError> {
    let Extents { channels, samples, .. } = stack.extents;
    if samples == 2 || samples > 4 {
        return Err(JobError::Mismatch {
            path: input.to_owned(),
            problem: format!("each of its pixels has {samples} samples (axis S), but the model requires one channel")
                .into(),
            next_step: message!(
                "choose one with {CHANNEL} 0 to {}; if they are slices, save each of them as a page",
                channels.saturating_sub(1)
            ),
        });
    }
    let colors = if (3..=4).contains(&channels) { compared(context, stack)? } else { Colors::Several };
    let (channel, why) = match colors {
        Colors::Gray => (0, "this RGB image is gray".to_owned()),
        Colors::One(channel) => (channel, "the other colors of this RGB image are empty".to_owned()),
        Colors::Several => {
            return Err(JobError::Mismatch {
                path: input.to_owned(),
                problem: "this is an RGB image, but the model requires one channel".into(),
                next_step: message!(
                    "choose one with {CHANNEL} 0 (red), 1 (green) or 2 (blue); models for fluorescence find dark objects on \
                     a bright background, such as nuclei in H&E, only with the step invert in {PREPROCESS}"
                ),
            });
        }
    };
    let name = NAMES.get(channel).copied().unwrap_or_default();
    Ok((channel, message!("{why}: {name} is used (choose another with {CHANNEL})")))
}

/// Compares the colors in the middle of a stack.
fn compared(context: &Context, stack: &Stack) -> Result<Colors, JobError> {
    let [depth, ny, nx] = stack.extents.zyx;
    let middle = |extent: usize, most: usize| -> Range<usize> {
        let length = extent.min(most);
        let start = (extent - length) / 2;
        start..start + length
    };
    let part = stack.windowed(&[middle(depth, 1), middle(ny, COMPARED), middle(nx, COMPARED)]);
    let read = |channel: usize| -> Result<Vec<f32>, JobError> {
        Ok(part.read(context, channel, 0..part.extents.zyx[0])?.to_f32())
    };
    Ok(colors(&[read(0)?, read(1)?, read(2)?]))
}

/// Compares the red, green and blue values of an image.
fn colors([red, green, blue]: &[Vec<f32>; 3]) -> Colors {
    let value_deviation = |values: &[f32]| deviation(values.iter().map(|v| f64::from(*v)));
    let difference_deviation =
        |a: &[f32], b: &[f32]| deviation(a.iter().zip(b).map(|(a, b)| f64::from(*a) - f64::from(*b)));
    let each = [value_deviation(red), value_deviation(green), value_deviation(blue)];
    let highest = each.into_iter().fold(0.0, f64::max);
    if difference_deviation(red, green).max(difference_deviation(green, blue)) <= SAME * highest {
        return Colors::Gray;
    }
    let mut shown = each.iter().enumerate().filter(|(_, deviation)| **deviation > DARK * highest);
    match (shown.next(), shown.next()) {
        (Some((only, _)), None) => Colors::One(only),
        _ => Colors::Several,
    }
}

/// Returns the standard deviation of values.
fn deviation(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let count = values.clone().count().max(1) as f64;
    let mean = values.clone().sum::<f64>() / count;
    (values.map(|v| (v - mean).powi(2)).sum::<f64>() / count).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gray_images_and_single_stains_are_told_from_others() {
        let spots = |strength: f32, at: usize| -> Vec<f32> {
            (0..100).map(|i| 20.0 + if i % 10 == at { strength } else { 0.0 }).collect()
        };
        let dark = spots(0.0, 0);
        assert_eq!(colors(&[spots(90.0, 3), spots(91.0, 3), spots(89.0, 3)]), Colors::Gray, "as JPEG changes it");
        assert_eq!(colors(&[dark.clone(), spots(90.0, 3), dark.clone()]), Colors::One(1));
        assert_eq!(colors(&[spots(4.0, 3), spots(2.0, 5), spots(90.0, 3)]), Colors::One(2), "as JPEG changes it");
        assert_eq!(colors(&[dark.clone(), spots(90.0, 3), spots(40.0, 6)]), Colors::Several, "two stains");
        assert_eq!(colors(&[spots(-40.0, 3), spots(-90.0, 3), spots(-20.0, 3)]), Colors::Several, "H&E");
        assert_eq!(colors(&[dark.clone(), dark.clone(), dark]), Colors::Gray);
        assert_eq!(colors(&[Vec::new(), Vec::new(), Vec::new()]), Colors::Gray);
    }
}

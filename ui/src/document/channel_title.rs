//! Names of channels for display.

use crate::panels::capitalized;
use cytoscope_formats::{Channel, FileFormat, ImageMeta};
use cytoscope_pipeline::Extents;
use cytoscope_volume::Axis;

/// Whether the samples of an image's pixels are colors.
pub(super) fn is_rgb(meta: &ImageMeta, extents: Extents) -> bool {
    extents.samples >= 3 && meta.axes_full.contains(Axis::S)
}

/// Whether the channels of an image are the colors of a picture, as in PNG and JPEG files.
pub(super) fn is_color_picture(meta: &ImageMeta, extents: Extents) -> bool {
    use FileFormat::{Jpeg, JpegSeries, Png, PngSeries};
    extents.channels >= 3 && matches!(meta.format, Png | PngSeries | Jpeg | JpegSeries)
}

/// The channel that a file describes, of a channel that may be a sample of its pixels.
pub(super) fn file_channel(meta: &ImageMeta, extents: Extents, channel: usize) -> Option<&Channel> {
    meta.channels.get(channel / extents.samples.max(1))
}

/// Name of a channel for display: a color, the name that the file states, or else one made of its number, from 0.
pub(crate) fn channel_title(meta: &ImageMeta, extents: Extents, channel: usize) -> String {
    match file_channel(meta, extents, channel).map(|stated| stated.name.trim()) {
        _ if is_rgb(meta, extents) => ["Red", "Green", "Blue", "Alpha"]
            .get(channel % extents.samples)
            .map_or_else(|| format!("Sample {channel}"), |name| (*name).to_owned()),
        // Readers name the colors of pictures in lower case.
        Some(name) if !name.is_empty() && is_color_picture(meta, extents) => capitalized(name),
        Some(name) if !name.is_empty() => name.to_owned(),
        _ => format!("Channel {channel}"),
    }
}

//! ImageJ TIFF: big-endian, contiguous planes after the first directory, metadata in ImageJ's private tags.

use super::{
    ifd::{Value, fraction},
    range::Ranges,
    spec::{Compression, WriteSpec},
};
use crate::{error::FormatError, meta::positive, tiff::ifd::tag};
use cytoscope_volume::{Axis, DType};
use std::path::Path;

/// Bytes reserved in the description for `min=` and `max=`, whose values are known only at the end.
const RANGE_BYTES: usize = 64;

/// Refuses stacks that ImageJ cannot open.
pub(crate) fn check(spec: &WriteSpec, path: &Path) -> Result<(), FormatError> {
    if spec.compression != Compression::None {
        return Err(FormatError::unsupported(
            path,
            "ImageJ TIFF stacks are always uncompressed",
            "write it uncompressed, or as .ome.tif, which supports Deflate and Zstd",
        ));
    }
    if matches!(spec.dtype, DType::U64 | DType::I64 | DType::F16 | DType::I8) {
        return Err(FormatError::unsupported(
            path,
            format!("ImageJ does not support {} images", spec.dtype),
            "write it as .npy, or convert it to uint8, uint16, float32 or another type that ImageJ supports",
        ));
    }
    let leading = spec.leading();
    if !leading.iter().map(|d| d.0).is_sorted() {
        return Err(FormatError::misused(
            path,
            format!("ImageJ stores planes in the order T, Z, C, but the axes are {}", spec.axes),
            "transpose the stack before writing it",
        ));
    }
    if !matches!(spec.size(Axis::S), 1 | 3 | 4) {
        return Err(FormatError::unsupported(
            path,
            format!("ImageJ does not support {} samples per pixel", spec.size(Axis::S)),
            "write it as .ome.tif",
        ));
    }
    if spec.plane_bytes() > u64::from(u32::MAX) {
        return Err(FormatError::unsupported(
            path,
            "a plane is larger than 4 GB, ImageJ's limit",
            "write it as .ome.tif",
        ));
    }
    Ok(())
}

/// The description without the display range.
pub(crate) fn description(spec: &WriteSpec) -> String {
    let (t, z, c) = (spec.size(Axis::T), spec.size(Axis::Z), spec.size(Axis::C));
    let mut lines = vec!["ImageJ=1.54f".to_owned()];
    let planes = t * z * c;
    if planes > 1 {
        lines.push(format!("images={planes}"));
        for (key, n) in [("channels", c), ("slices", z), ("frames", t)] {
            if n > 1 {
                lines.push(format!("{key}={n}"));
            }
        }
        if c > 1 || (t > 1 && z > 1) {
            lines.push("hyperstack=true".into());
        }
        lines.push(format!("mode={}", if c > 1 { "composite" } else { "grayscale" }));
        lines.push("loop=false".into());
    }
    let v = spec.voxel_size_um;
    if [v.x, v.y, v.z].into_iter().flatten().any(|s| positive(s).is_some()) {
        lines.push("unit=micron".into());
    }
    if let Some(z) = v.z.and_then(positive) {
        lines.push(format!("spacing={z:?}"));
    }
    if let Some(secs) = spec.time_interval_secs.and_then(positive) {
        lines.push(format!("finterval={secs:?}"));
        lines.push("tunit=sec".into());
    }
    lines.join("\n") + "\n"
}

/// The text of the display range, padded to exactly [`RANGE_BYTES`].
pub(crate) fn range_text(spec: &WriteSpec, ranges: &Ranges) -> String {
    let mut text = String::new();
    if spec.size(Axis::S) == 1 {
        let (low, high) = ranges.for_channel(0);
        text = format!("min={low:?}\nmax={high:?}\n");
        if text.len() > RANGE_BYTES {
            text = format!("min={low:e}\nmax={high:e}\n");
        }
    }
    text.extend(std::iter::repeat_n('\n', RANGE_BYTES.saturating_sub(text.len())));
    text
}

/// Values of tags 50838 and 50839, and the position of the channels' display ranges in the latter.
pub(crate) struct Private {
    /// Lengths in bytes for tag 50838: that of the header, then that of each value.
    pub counts: Vec<u32>,
    /// Header and values for tag 50839, big-endian.
    pub data: Vec<u8>,
    /// Position of the display ranges in `data`; `None` for an image of one channel.
    pub ranges_at: Option<usize>,
}

/// Maximum number of slices that are written with slice labels.
const MAX_LABELS: usize = 1 << 16;

/// Channel names as slice labels, display ranges and colors; `None` if there are none of these.
pub(crate) fn private(spec: &WriteSpec) -> Option<Private> {
    let channels = spec.size(Axis::C);
    let planes = spec.planes();
    let named = spec.channels.iter().any(|c| !c.name.is_empty());
    let colored = spec.channels.iter().take(channels).any(|c| c.color_rgb.is_some());
    let mut kinds: Vec<(&[u8; 4], u32)> = Vec::new();
    let mut counts = Vec::new();
    let mut body = Vec::new();
    let utf16 = |text: &str| -> Vec<u8> { text.encode_utf16().flat_map(u16::to_be_bytes).collect() };
    if let Some(info) = spec.description.as_deref().filter(|d| !d.is_empty()) {
        let bytes = utf16(info);
        kinds.push((b"info", 1));
        counts.push(bytes.len() as u32);
        body.extend(bytes);
    }
    if named {
        let labeled = if planes <= MAX_LABELS { planes } else { channels };
        kinds.push((b"labl", labeled as u32));
        for plane in 0..labeled {
            let bytes = utf16(spec.channel_name(spec.channel_index(plane)));
            counts.push(bytes.len() as u32);
            body.extend(bytes);
        }
    }
    let mut ranges_at = None;
    if channels > 1 {
        kinds.push((b"rang", 1));
        counts.push(channels as u32 * 16);
        ranges_at = Some(body.len());
        body.extend(std::iter::repeat_n(0, channels * 16));
    }
    if colored {
        kinds.push((b"luts", channels as u32));
        for c in 0..channels {
            counts.push(768);
            let color = spec.channels.get(c).and_then(|c| c.color_rgb).unwrap_or([255; 3]);
            for top in color {
                body.extend((0..256u32).map(|i| (i * u32::from(top) / 255) as u8));
            }
        }
    }
    if kinds.is_empty() {
        return None;
    }
    let mut data = b"IJIJ".to_vec();
    for (kind, count) in kinds {
        data.extend(kind);
        data.extend(count.to_be_bytes());
    }
    counts.insert(0, data.len() as u32);
    let ranges_at = ranges_at.map(|at| at + data.len());
    data.extend(body);
    Some(Private { counts, data, ranges_at })
}

/// The channels' display ranges, encoded for tag 50839.
pub(crate) fn channel_ranges(spec: &WriteSpec, ranges: &Ranges) -> Vec<u8> {
    (0..spec.size(Axis::C))
        .flat_map(|c| {
            let (low, high) = ranges.for_channel(c);
            [low.to_be_bytes(), high.to_be_bytes()].concat()
        })
        .collect()
}

/// Tags of every page, without the position of its pixels.
pub(crate) fn page_tags(spec: &WriteSpec) -> Vec<(u16, Value)> {
    let mut tags = super::ome::plane_tags(spec);
    let v = spec.voxel_size_um;
    tags.push((tag::RESOLUTION_UNIT, Value::Short(vec![1])));
    for (tag, size) in [(tag::X_RESOLUTION, v.x), (tag::Y_RESOLUTION, v.y)] {
        if let Some(size) = size.and_then(positive) {
            let (n, d) = fraction(1.0 / size);
            tags.push((tag, Value::Rational(n, d)));
        }
    }
    tags
}

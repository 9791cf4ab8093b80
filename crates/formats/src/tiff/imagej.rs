//! ImageJ's metadata: the `key=value` description and the private tags 50838 and 50839.

use super::ifd::{Container, Ifd, tag};
use crate::meta::{
    ByteOrder, INCH_UM, PRINTED_UM, ignore_entry, micrometers_per, positive, seconds_per, visible_color,
    without_unit_note,
};
use cytoscope_volume::{Axis, VoxelSize};
use std::collections::HashMap;

/// Content of an ImageJ description.
#[derive(Debug, Default)]
pub(crate) struct ImageJ {
    /// Total number of planes; 1 if the description does not state it, as for the other counts.
    pub images: usize,
    /// Number of time points.
    pub frames: usize,
    /// Number of slices.
    pub slices: usize,
    /// Number of channels.
    pub channels: usize,
    /// Distance between voxel centers along Z, Y, X in µm.
    pub voxel_size_um: VoxelSize,
    /// Time between time points in seconds.
    pub time_interval_secs: Option<f64>,
    /// Values shown as black and white.
    pub display_range: Option<(f64, f64)>,
    /// Sentence saying that ImageJ shows values other than the stored ones; `None` if it shows these.
    pub calibration: Option<String>,
    /// Whether a unit of the pixel size is stated, a length or not.
    pub states_unit: bool,
    /// Sentence that names the sizes of a voxel that are not used because they have no unit of length.
    pub unit_note: Option<String>,
}

/// Whether a description was written by ImageJ.
pub(crate) fn is_imagej(description: &str) -> bool {
    description.starts_with("ImageJ=")
}

/// Parses a description; the resolution is read from the first directory.
pub(crate) fn parse(description: &str, file: &Container, ifd: &Ifd) -> ImageJ {
    let pairs: HashMap<&str, &str> =
        description.lines().filter_map(|l| l.split_once('=')).map(|(k, v)| (k.trim(), v.trim())).collect();
    let count = |key: &str| {
        let text = pairs.get(key)?;
        let count = text.parse::<usize>().ok().filter(|n| *n > 0);
        count.or_else(|| ignore_entry(key, text, "a whole number above 0"))
    };
    let number = |key: &str| {
        let text = pairs.get(key)?;
        let number = text.parse::<f64>().ok().filter(|n| n.is_finite());
        number.or_else(|| ignore_entry(key, text, "a number"))
    };
    // Some scripts write Python tuples such as ('cm',).
    let unit = |key: &str| {
        let text = pairs.get(key)?;
        micrometers_per(text.trim_matches(|c| "()',\" ".contains(c)))
    };
    let base = unit("unit");
    // An axis may have a unit of its own that is no length, such as the seconds of a kymograph.
    let unit_of = |key: &str| pairs.get(key).filter(|text| !text.is_empty()).map_or(base, |_| unit(key));
    // ImageJ keeps the print resolution of an image, such as 300 pixels per inch, as its scale.
    let um = |units: f64, samples: f64, key: &str| {
        let unit_um = unit_of(key)?;
        positive(units * unit_um / samples).filter(|size| unit_um != INCH_UM || *size < PRINTED_UM)
    };
    let per_unit = |res: u16| positive(file.number(ifd, res)?);
    let size = |res: u16, key: &str| um(1.0, per_unit(res)?, key);
    let spacing = number("spacing").map(f64::abs).and_then(positive);
    let z = spacing.and_then(|spacing| um(spacing, 1.0, "zunit"));
    // A resolution per inch or centimeter that the description does not mention may be a print setting.
    let has_no_unit = file.integer_or(ifd, tag::RESOLUTION_UNIT, 2).is_ok_and(|value| value == 1);
    let pixel = |res: u16| per_unit(res).filter(|_| has_no_unit).and_then(|n| positive(1.0 / n));
    let stated = [
        (Axis::Z, spacing, "zunit"),
        (Axis::Y, pixel(tag::Y_RESOLUTION), "yunit"),
        (Axis::X, pixel(tag::X_RESOLUTION), "xunit"),
    ];
    let without_unit = stated.into_iter().filter(|(_, _, key)| unit_of(key).is_none());
    let without_unit: Vec<(Axis, f64)> = without_unit.filter_map(|(axis, size, _)| Some((axis, size?))).collect();
    let seconds = pairs.get("tunit").map_or(Some(1.0), |u| seconds_per(u));
    let channels = count("channels").unwrap_or(1);
    let slices = count("slices").unwrap_or(1);
    let frames = count("frames").unwrap_or(1);
    let display_range = match (number("min"), number("max")) {
        (Some(lo), Some(hi)) if lo < hi => Some((lo, hi)),
        _ => None,
    };
    ImageJ {
        images: count("images").unwrap_or(1),
        frames,
        slices,
        channels,
        voxel_size_um: VoxelSize { z, y: size(tag::Y_RESOLUTION, "yunit"), x: size(tag::X_RESOLUTION, "xunit") },
        // The entry "fps" is the speed at which ImageJ plays the stack, and no time between time points.
        time_interval_secs: number("finterval").and_then(positive).and_then(|v| Some(v * seconds?)),
        display_range,
        calibration: calibration(&pairs),
        states_unit: ["unit", "xunit", "yunit"]
            .into_iter()
            .any(|key| pairs.get(key).is_some_and(|text| !text.is_empty())),
        unit_note: without_unit_note("spacing", &without_unit),
    }
}

/// The function of ImageJ with two coefficients: a straight line.
const STRAIGHT_LINE: &str = "0";
/// The number that ImageJ writes for no function.
const NO_FUNCTION: &str = "20";

/// Returns a sentence on the function that ImageJ applies to the values of an image; `None` if it shows the stored values. The
/// values of signed 16-bit images, for example, are stored with an offset of 32768.
fn calibration(pairs: &HashMap<&str, &str>) -> Option<String> {
    let function = *pairs.get("cf")?;
    if function == NO_FUNCTION {
        return None;
    }
    let coefficient = |key: &str| pairs.get(key)?.parse::<f64>().ok().filter(|value| value.is_finite());
    let added = |offset: f64| match offset < 0.0 {
        true => format!("minus {}", -offset),
        false => format!("plus {offset}"),
    };
    let shown = match (function, coefficient("c0"), coefficient("c1")) {
        (STRAIGHT_LINE, Some(0.0), Some(1.0)) => return None,
        (STRAIGHT_LINE, Some(offset), Some(1.0)) => format!("the stored values {}", added(offset)),
        (STRAIGHT_LINE, Some(offset), Some(factor)) => format!("the stored values times {factor}, {}", added(offset)),
        _ => "other values, computed by the calibration function of the file".to_owned(),
    };
    Some(format!("ImageJ shows {shown}: here, the stored values are used"))
}

/// Content of tags 50838 and 50839: slice labels and color tables.
#[derive(Debug, Default)]
pub(crate) struct Extras {
    /// Labels of the planes in storage order.
    pub labels: Vec<String>,
    /// The last color of each channel's table; `None` if it is black, as that of an inverted table.
    pub colors: Vec<Option<[u8; 3]>>,
}

/// Parses the private tags. Invalid parts are ignored, because the pixels do not depend on them.
pub(crate) fn extras(file: &Container, ifd: &Ifd) -> Extras {
    let mut extras = Extras::default();
    let (Some(counts), Some(data)) = (ifd.get(tag::IJ_METADATA_COUNTS), ifd.get(tag::IJ_METADATA)) else {
        return extras;
    };
    let (Ok(counts), Ok(data)) = (file.integers(counts, 0, counts.count), file.bytes(data)) else { return extras };
    let mut counts = counts.into_iter();
    let head_len = counts.next().unwrap_or(0) as usize;
    let Some((head, mut rest)) = data.split_at_checked(head_len) else { return extras };
    let word = |b: &[u8; 4]| file.order.u32(*b);
    let (words, _) = head.as_chunks::<4>();
    if words.first().map(word) != Some(0x494a_494a) {
        return extras;
    }
    let (pairs, _) = words.get(1..).unwrap_or_default().as_chunks::<2>();
    for [kind, how_many] in pairs {
        for _ in 0..word(how_many) {
            let Some(len) = counts.next() else { return extras };
            let Some((value, after)) = rest.split_at_checked(len as usize) else { return extras };
            rest = after;
            match &word(kind).to_be_bytes() {
                b"labl" => extras.labels.push(utf16(value, file.order)),
                b"luts" => {
                    let last = [0, 1, 2].map(|c: usize| value.get(c * 256 + 255).copied().unwrap_or(255));
                    extras.colors.push(visible_color(last));
                }
                _ => {}
            }
        }
    }
    extras
}

fn utf16(bytes: &[u8], order: ByteOrder) -> String {
    let units: Vec<u16> = bytes.as_chunks::<2>().0.iter().map(|b| order.u16(*b)).collect();
    String::from_utf16_lossy(&units)
}

/// Channel names, if the slice labels are the names of the channels, as this crate writes them (page order T, Z, C).
pub(crate) fn channel_names(labels: &[String], channels: usize) -> Vec<String> {
    let (Some(first), true) = (labels.get(..channels), channels > 0) else { return Vec::new() };
    let repeats = labels.chunks(channels).all(|c| c.iter().zip(first).all(|(a, b)| a == b));
    // A single label could be anything, such as the file name of a slice; only labels that repeat are channel names.
    if repeats { first.to_vec() } else { Vec::new() }
}

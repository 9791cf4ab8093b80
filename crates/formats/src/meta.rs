//! Metadata of an image.

use crate::file_format::{FileFormat, StoredCompression};
use cytoscope_storage::rounded;
use cytoscope_volume::{Axes, Axis, DType, VoxelSize};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Byte order of the samples in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ByteOrder {
    /// Little-endian: the least significant byte comes first.
    Little,
    /// Big-endian: the most significant byte comes first.
    Big,
}

impl ByteOrder {
    /// The byte order of this machine.
    pub const NATIVE: ByteOrder = if cfg!(target_endian = "big") { ByteOrder::Big } else { ByteOrder::Little };

    pub(crate) fn u16(self, b: [u8; 2]) -> u16 {
        if self == ByteOrder::Little { u16::from_le_bytes(b) } else { u16::from_be_bytes(b) }
    }

    pub(crate) fn u32(self, b: [u8; 4]) -> u32 {
        if self == ByteOrder::Little { u32::from_le_bytes(b) } else { u32::from_be_bytes(b) }
    }

    pub(crate) fn u64(self, b: [u8; 8]) -> u64 {
        if self == ByteOrder::Little { u64::from_le_bytes(b) } else { u64::from_be_bytes(b) }
    }
}

/// One channel (stain) of an image.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Channel {
    /// Name, such as `DAPI`; empty if the file does not state it.
    pub name: String,
    /// Display color as red, green, blue, if the file states one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub color_rgb: Option<[u8; 3]>,
}

/// One resolution level of an image; level 0 is the full resolution.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    /// The index of the level as text.
    pub name: String,
    /// Number of samples along T, Z, C, Y, X, S.
    pub shape_full: Vec<usize>,
}

/// Metadata of an open image. As JSON it is the output of `cytoscope info`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ImageMeta {
    /// Path of the opened file.
    pub path: PathBuf,
    /// Format of the file.
    pub format: FileFormat,
    /// Axes of the array from [`crate::Image::read_all`]: T, Z, C, Y, X, S without those of length 1.
    pub axes: Axes,
    /// Number of samples along `axes`.
    pub shape: Vec<usize>,
    /// Always T, Z, C, Y, X, S: the axes of [`crate::Image::read`] and of its regions.
    pub axes_full: Axes,
    /// Number of samples along `axes_full`.
    pub shape_full: Vec<usize>,
    /// Sample type of the arrays that are read.
    pub dtype: DType,
    /// Distance between voxel centers along Z, Y, X in µm; unknown along axes for which the file states none.
    pub voxel_size_um: VoxelSize,
    /// Position of the center of the first voxel along Z, Y, X in µm; 0 where the file states none.
    #[serde(skip_serializing_if = "is_at_zero")]
    pub origin_um: [f64; 3],
    /// Time between time points in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_interval_secs: Option<f64>,
    /// Channels, one for each index of the C axis.
    pub channels: Vec<Channel>,
    /// Compression of the pixels; of an OME-Zarr, that of the chunks of its full resolution.
    pub compression: StoredCompression,
    /// Byte order of the file.
    pub byte_order: ByteOrder,
    /// Resolution levels, full resolution first.
    pub levels: Vec<Level>,
    /// Index of the opened series.
    pub series: usize,
    /// Number of series (images of different shapes) in the file.
    pub series_count: usize,
    /// Names of all series, such as positions or wells; empty texts, or no list, where the file states none.
    #[serde(skip_serializing_if = "are_unnamed")]
    pub series_names: Vec<String>,
    /// Stored bits per sample (12 for 12-bit data in `uint16`).
    pub bits_per_sample: u32,
    /// Values shown as black and white, if the file states them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_range: Option<(f64, f64)>,
    /// Number of planes that the metadata declare but no file contains; they read as zeros.
    #[serde(skip_serializing_if = "is_zero")]
    pub missing_planes: usize,
    /// Number of pages of the file that are not supported (such as a fax mask) or show no plane (such as flyback frames),
    /// and belong to no series.
    #[serde(skip_serializing_if = "is_zero")]
    pub unread_pages: usize,
    /// Why all pages are read as slices, as a sentence, if the file states axes that do not fit them, or none where others are
    /// likely.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_as_slices: Option<String>,
    /// What the file states about its pixels or pages that is not applied when they are read, as sentences: a function of the
    /// values, an orientation, pages beside those of its images.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_applied: Vec<String>,
    /// Names of regions of interest that are not drawn, because they lie outside of the stack that gives their extents.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub regions_outside: Vec<String>,
}

impl ImageMeta {
    /// Whether the file stores its pixels compressed.
    pub fn is_compressed(&self) -> bool {
        self.compression != StoredCompression::None
    }

    /// Whether the image was read from a PNG or JPEG file, or from a numbered series of them.
    pub fn is_picture(&self) -> bool {
        matches!(self.format, FileFormat::Png | FileFormat::PngSeries | FileFormat::Jpeg | FileFormat::JpegSeries)
    }
}

fn is_at_zero(position: &[f64; 3]) -> bool {
    *position == [0.0; 3]
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

fn are_unnamed(names: &[String]) -> bool {
    names.iter().all(String::is_empty)
}

/// Micrometers per inch.
pub(crate) const INCH_UM: f64 = 25_400.0;
/// A pixel size in inches is a print setting, and not that of the sample, from this number of micrometers on.
pub(crate) const PRINTED_UM: f64 = 10.0;

/// Micrometers per unit of length, for the unit names of OME-XML and ImageJ; `None` for pixels and unknown units.
pub(crate) fn micrometers_per(unit: &str) -> Option<f64> {
    let unit = unit.trim();
    // ImageJ escapes the micro sign in its text; OME allows both micro signs of Unicode.
    let unit = unit.replace("\\u00B5", "µ").replace("\\u00b5", "µ").replace('\u{3bc}', "µ");
    in_any_case(&unit, known_length_um)
}

/// Length in letters from which a unit is a word, whose meaning does not depend on upper and lower case.
const MIN_WORD_CHARS: usize = 4;

/// Looks up a unit as it is written, and a word also in lower case, such as "Micron".
fn in_any_case(unit: &str, look_up: impl Fn(&str) -> Option<f64>) -> Option<f64> {
    let is_word = unit.chars().count() >= MIN_WORD_CHARS;
    look_up(unit).or_else(|| look_up(&unit.to_lowercase()).filter(|_| is_word))
}

fn known_length_um(unit: &str) -> Option<f64> {
    Some(match unit {
        "µm" | "um" | "micron" | "microns" | "micrometer" | "micrometers" | "micrometre" | "micrometres" | "µ" => 1.0,
        "fm" => 1e-9,
        "pm" => 1e-6,
        "Å" | "\u{212b}" | "angstrom" => 1e-4,
        "nm" | "nanometer" | "nanometers" | "nanometre" | "nanometres" => 1e-3,
        "mm" | "millimeter" | "millimeters" | "millimetre" | "millimetres" => 1e3,
        "cm" | "centimeter" | "centimeters" | "centimetre" | "centimetres" => 1e4,
        "dm" => 1e5,
        "m" | "meter" | "meters" | "metre" | "metres" => 1e6,
        "dam" => 1e7,
        "hm" => 1e8,
        "km" => 1e9,
        "thou" => INCH_UM / 1000.0,
        "pt" => INCH_UM / 72.0,
        "li" => INCH_UM / 12.0,
        "ft" => 12.0 * INCH_UM,
        "yd" => 36.0 * INCH_UM,
        "mi" => 63_360.0 * INCH_UM,
        "inch" | "in" | "\"" | "inches" => INCH_UM,
        _ => return None,
    })
}

/// Returns the sentence that lengths of a voxel, which the format calls `name`, are not used, because the file states no unit of
/// length for them; `None` if there are none but 1, which programs write if they do not know the voxel size.
pub(crate) fn without_unit_note(name: &str, lengths: &[(Axis, f64)]) -> Option<String> {
    if lengths.iter().all(|(_, length)| *length == 1.0) {
        return None;
    }
    let along = |(axis, length): &(Axis, f64)| format!("{} along {}", rounded(*length), axis.letter());
    let lengths = lengths.iter().map(along).collect::<Vec<String>>().join(", ");
    Some(format!(
        "the {name} {lengths} is not used as the voxel size, because the file states no unit of length for it"
    ))
}

/// Largest difference of a direction from an axis of the space, as a share of its length.
pub(crate) const DIRECTION_TOLERANCE: f64 = 1e-6;

/// Returns the sentence that the directions of the axes, which a field of the header states, are not applied.
pub(crate) fn directions_note(field: &str) -> String {
    format!("the directions of the axes ({field}) are not applied: voxels are read in the order of the file")
}

/// Seconds per unit of time; `None` for unknown units.
pub(crate) fn seconds_per(unit: &str) -> Option<f64> {
    let unit = unit.trim().replace("\\u00B5", "µ").replace("\\u00b5", "µ").replace('\u{3bc}', "µ");
    in_any_case(&unit, known_time_secs)
}

fn known_time_secs(unit: &str) -> Option<f64> {
    Some(match unit {
        "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
        "ms" | "msec" | "msecs" | "millisecond" | "milliseconds" => 1e-3,
        "µs" | "us" | "µsec" | "usec" | "microsecond" | "microseconds" => 1e-6,
        "ns" | "nsec" | "nanosecond" | "nanoseconds" => 1e-9,
        "min" | "mins" | "minute" | "minutes" => 60.0,
        "h" | "hr" | "hrs" | "hour" | "hours" => 3600.0,
        "d" | "day" | "days" => 86_400.0,
        _ => return None,
    })
}

/// The color of a channel; `None` for black, in which a channel would not be seen.
pub(crate) fn visible_color(rgb: [u8; 3]) -> Option<[u8; 3]> {
    (rgb != [0; 3]).then_some(rgb)
}

/// Returns the value if it is finite and positive.
pub(crate) fn positive(value: f64) -> Option<f64> {
    (value.is_finite() && value > 0.0).then_some(value)
}

/// Logs that an entry of a file's metadata cannot be used, and returns `None`: the pixels can be read without it.
pub(crate) fn ignore_entry<T>(key: &str, text: &str, expected: &str) -> Option<T> {
    const SHOWN_CHARS: usize = 60;
    let shown: String = text.chars().take(SHOWN_CHARS).collect();
    tracing::warn!("the metadata entry {key} is {shown:?}, expected {expected}: it is ignored");
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_length_of_ome_are_known() {
        let close = |unit: &str, um: f64| micrometers_per(unit).is_some_and(|found| (found / um - 1.0).abs() < 1e-12);
        for (unit, um) in [
            ("fm", 1e-9),
            ("Å", 1e-4),
            ("nm", 1e-3),
            ("\u{3bc}m", 1.0),
            ("mm", 1e3),
            ("dam", 1e7),
            ("hm", 1e8),
            ("thou", 25.4),
            ("pt", 25_400.0 / 72.0),
            ("li", 25_400.0 / 12.0),
            ("in", 25_400.0),
            ("ft", 304_800.0),
            ("yd", 914_400.0),
            ("mi", 1.609_344e9),
        ] {
            assert!(close(unit, um), "{unit}: {:?}", micrometers_per(unit));
        }
        for unit in ["pixel", "reference frame", ""] {
            assert_eq!(micrometers_per(unit), None, "{unit}");
        }
    }

    #[test]
    fn words_of_units_are_known_in_any_case_but_symbols_are_not() {
        for (unit, um) in [("Micron", 1.0), ("MICRONS", 1.0), ("Inch", 25_400.0), ("Nanometers", 1e-3)] {
            assert_eq!(micrometers_per(unit), Some(um), "{unit}");
        }
        for (unit, secs) in
            [("Milliseconds", 1e-3), ("microsecond", 1e-6), ("nanosecond", 1e-9), ("usec", 1e-6), ("mins", 60.0)]
        {
            assert_eq!(seconds_per(unit), Some(secs), "{unit}");
        }
        // A megameter and a megasecond.
        assert_eq!((micrometers_per("Mm"), seconds_per("Ms")), (None, None));
    }
}

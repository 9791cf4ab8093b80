//! What is known of an image before its pixels are read.

use cytoscope_volume::{Axes, DType, VoxelSize};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Order of the bytes of a sample in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ByteOrder {
    /// Least significant byte first.
    Little,
    /// Most significant byte first.
    Big,
}

impl ByteOrder {
    /// This machine's order.
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
    /// Name, such as `DAPI`; empty where the file does not say.
    pub name: String,
    /// Display colour as red, green, blue, where the file says one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub color_rgb: Option<[u8; 3]>,
}

/// One resolution of an image; level 0 is the full one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    /// The level's number as text.
    pub name: String,
    /// Extents along T, Z, C, Y, X, S.
    pub shape_full: Vec<usize>,
}

/// All that is known of an image before its pixels are read; as JSON, the answer of `cytoscope info`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ImageMeta {
    /// The file opened.
    pub path: PathBuf,
    /// `tiff`, `bigtiff`, `imagej`, `ome-tiff` or `npy`.
    pub format: String,
    /// Axes of [`crate::Image::read_all`]: T, Z, C, Y, X, S without those of length 1.
    pub axes: Axes,
    /// Extents along `axes`.
    pub shape: Vec<usize>,
    /// Always T, Z, C, Y, X, S: the axes of [`crate::Image::read`] and of its regions.
    pub axes_full: Axes,
    /// Extents along `axes_full`.
    pub shape_full: Vec<usize>,
    /// Type the samples are read as.
    pub dtype: DType,
    /// Size of a voxel in µm.
    pub voxel_size_um: VoxelSize,
    /// Seconds from one time point to the next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_interval_secs: Option<f64>,
    /// Channels; as many as the C axis is long.
    pub channels: Vec<Channel>,
    /// `none`, `lzw`, `deflate`, `zstd`, `packbits` or `jpeg`.
    pub compression: String,
    /// Byte order of the file.
    pub byte_order: ByteOrder,
    /// Resolutions, the full one first.
    pub levels: Vec<Level>,
    /// The series opened.
    pub series: usize,
    /// Number of series (images of different shapes) in the file.
    pub series_count: usize,
    /// Bits of a sample as stored (12 for 12-bit data in `uint16`).
    pub bits_per_sample: u32,
    /// Range of values to show black to white, where the file says one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub display_range: Option<(f64, f64)>,
    /// Planes that the metadata announce and no file holds; they read as zeros.
    #[serde(skip_serializing_if = "is_zero")]
    pub missing_planes: usize,
    /// Pages of the file that are of a kind not read (such as a fax mask) and belong to no series.
    #[serde(skip_serializing_if = "is_zero")]
    pub unread_pages: usize,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// Micrometres in one unit of length, for the names that OME-XML and ImageJ use; `None` for pixels and the unknown.
pub(crate) fn micrometres_per(unit: &str) -> Option<f64> {
    let unit = unit.trim();
    // ImageJ escapes the micro sign in its text; OME allows both micro signs of Unicode.
    let unit = unit.replace("\\u00B5", "µ").replace("\\u00b5", "µ").replace('\u{3bc}', "µ");
    Some(match unit.as_str() {
        "µm" | "um" | "micron" | "microns" | "micrometer" | "micrometers" | "micrometre" | "µ" => 1.0,
        "pm" => 1e-6,
        "Å" | "\u{212b}" | "angstrom" => 1e-4,
        "nm" | "nanometer" | "nanometers" => 1e-3,
        "mm" | "millimeter" => 1e3,
        "cm" | "centimeter" => 1e4,
        "dm" => 1e5,
        "m" | "meter" => 1e6,
        "km" => 1e9,
        "inch" | "in" | "\"" | "inches" => 25_400.0,
        _ => return None,
    })
}

/// Seconds in one unit of time; `None` for the unknown.
pub(crate) fn seconds_per(unit: &str) -> Option<f64> {
    let unit = unit.trim().replace("\\u00B5", "µ").replace('\u{3bc}', "µ");
    Some(match unit.as_str() {
        "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
        "ms" | "msec" | "millisecond" => 1e-3,
        "µs" | "us" => 1e-6,
        "ns" => 1e-9,
        "min" | "minute" | "minutes" => 60.0,
        "h" | "hr" | "hour" | "hours" => 3600.0,
        "d" | "day" | "days" => 86_400.0,
        _ => return None,
    })
}

/// A length or time that can be one: finite and above zero.
pub(crate) fn positive(value: f64) -> Option<f64> {
    (value.is_finite() && value > 0.0).then_some(value)
}

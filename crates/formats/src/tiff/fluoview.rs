//! Olympus FluoView: TIFF pages whose axes, sizes and units are in the private tag MM_Header.
//!
//! The tag is laid out as in tifffile's `MM_HEADER`: ten dimensions at a fixed position, the fastest one first.

use super::{
    file::TiffFile,
    series::{PlaneRef, Series},
};
use crate::{
    error::Fault,
    fields::Fields,
    file_format::FileFormat,
    meta::{micrometers_per, positive, seconds_per},
};
use cytoscope_volume::{Axis, VoxelSize};

/// The description of the image.
const MM_HEADER: u16 = 34361;
/// A number for each page; only FluoView writes it.
const MM_STAMP: u16 = 34362;
/// Position of the dimensions in the description, their number, and bytes of each: name, size, origin, resolution, unit.
const DIMENSIONS_AT: usize = 284;
const DIMENSIONS: usize = 10;
const DIMENSION_BYTES: usize = 100;
/// Longest name and unit in bytes.
const NAME_BYTES: usize = 16;
const UNIT_BYTES: usize = 64;

/// An axis of the image.
struct Dimension {
    /// Name in upper case.
    name: String,
    size: usize,
    /// Distance between samples, in `unit`.
    resolution: f64,
    unit: String,
}

/// Whether a file was written by FluoView.
pub(crate) fn is_fluoview(file: &TiffFile) -> bool {
    file.first.get(MM_HEADER).is_some() && file.first.get(MM_STAMP).is_some()
}

/// The image of a FluoView file. If the description does not match the pages, they are slices.
///
/// # Errors
/// [`Fault::Unsupported`] for dimensions other than X, Y, Z, time and channels.
pub(crate) fn series(file: &TiffFile, pages: &[u32]) -> Result<Series, Fault> {
    let planes = pages.iter().map(|page| Some(PlaneRef { file: 0, page: *page, slice: 0 })).collect();
    let Some(dimensions) = dimensions(file) else {
        let why = "the description of the FluoView file is incomplete: its pages are read as slices".to_owned();
        let dims = vec![(Axis::Z, pages.len())];
        let (format, read_as_slices) = (FileFormat::FluoView, Some(why));
        return Ok(Series { format, dims, planes, read_as_slices, ..Series::default() });
    };
    let (mut dims, mut read_as_slices) = (Vec::<(Axis, usize)>::new(), None);
    for dimension in dimensions.iter().rev().filter(|d| d.size > 1) {
        let axis = match dimension.name.as_str() {
            "X" | "Y" => continue,
            "Z" => Axis::Z,
            "T" | "TIME" => Axis::T,
            "CH" | "WAVELENGTH" => Axis::C,
            other => {
                return Err(Fault::unsupported(
                    format!("the FluoView file has {} steps of the dimension {other}", dimension.size),
                    "export each of them as OME-TIFF, for example with Fiji",
                ));
            }
        };
        if dims.iter().any(|(known, _)| *known == axis) {
            return Err(Fault::malformed(format!(
                "the FluoView file has two dimensions for the axis {}",
                axis.letter()
            )));
        }
        dims.push((axis, dimension.size));
    }
    if dims.iter().try_fold(1usize, |n, (_, size)| n.checked_mul(*size)) != Some(pages.len()) {
        let count = pages.len();
        let declared: Vec<String> = dims.iter().map(|(axis, n)| format!("{} {n}", axis.letter())).collect();
        let declared = if declared.is_empty() { "one plane".to_owned() } else { declared.join(", ") };
        let why = format!("the FluoView file declares {declared}, but has {count} pages: they are read as slices");
        read_as_slices = Some(why);
        dims = vec![(Axis::Z, count)];
    }
    let of = |names: &[&str]| dimensions.iter().find(|d| names.contains(&d.name.as_str()));
    let um = |name| of(&[name]).and_then(|d| positive(d.resolution.abs() * micrometers_per(&d.unit)?));
    let interval = of(&["T", "TIME"]).and_then(|d| positive(d.resolution * seconds_per(&d.unit)?));
    let has_times = dims.iter().any(|(axis, n)| *axis == Axis::T && *n > 1);
    Ok(Series {
        format: FileFormat::FluoView,
        planes,
        voxel_size_um: VoxelSize { z: um("Z"), y: um("Y"), x: um("X") },
        time_interval_secs: interval.filter(|_| has_times),
        dims,
        read_as_slices,
        ..Series::default()
    })
}

/// The dimensions that the description states, fastest first; `None` if it is too short.
fn dimensions(file: &TiffFile) -> Option<Vec<Dimension>> {
    let bytes = file.container.bytes(file.first.get(MM_HEADER)?).ok()?;
    let f = Fields { bytes: &bytes, order: file.container.order };
    let text = |at: usize, len: usize| {
        let bytes = f.slice(at, len).ok()?;
        let text: String = bytes.iter().take_while(|b| **b != 0).map(|b| char::from(*b)).collect();
        Some(text.trim().to_owned())
    };
    let dimension = |i: usize| {
        let at = DIMENSIONS_AT + i * DIMENSION_BYTES;
        Some(Dimension {
            name: text(at, NAME_BYTES)?.to_uppercase(),
            size: usize::try_from(f.i32(at + 16).ok()?).unwrap_or(0),
            resolution: f.f64(at + 28).ok()?,
            unit: text(at + 36, UNIT_BYTES)?,
        })
    };
    (0..DIMENSIONS).map(dimension).collect()
}

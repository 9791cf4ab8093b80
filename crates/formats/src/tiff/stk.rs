//! MetaMorph STK: a TIFF page that is followed by the other planes of the stack, counted by the private tag UIC2.

use super::{
    file::TiffFile,
    ifd::Entry,
    page::Layout,
    series::{PlaneRef, Series, contiguous_images},
};
use crate::{
    codec::Codec,
    error::Fault,
    fields::Fields,
    file_format::FileFormat,
    meta::{micrometers_per, positive},
};
use cytoscope_volume::{Axis, VoxelSize};

/// Pairs of an identifier and a value or its position, declared as half as many 32-bit integers. MetaMorph before 2.5
/// stored fractions here.
const UIC1: u16 = 33628;
/// Six numbers for each plane: distance along Z as a fraction, and dates and times of creation and change.
const UIC2: u16 = 33629;
/// Identifiers in UIC1.
const X_CALIBRATION: u32 = 4;
const Y_CALIBRATION: u32 = 5;
const CALIBRATION_UNITS: u32 = 6;
/// Bytes of one plane in UIC2.
const PLANE_BYTES: usize = 24;
/// Milliseconds of a day: planes state their day and the time since midnight.
const DAY_MS: f64 = 86_400_000.0;
/// Longest name of a unit in bytes.
const MAX_UNIT_BYTES: u32 = 64;

/// Whether a file is a MetaMorph stack.
pub(crate) fn is_stk(file: &TiffFile) -> bool {
    file.first.get(UIC2).is_some_and(|entry| file.container.rational_at(entry).is_some())
}

/// The stack: slices if the planes have distances along Z, or else time points.
pub(crate) fn series(file: &TiffFile, layout: &Layout, page: u32) -> Result<Series, Fault> {
    let missing = || Fault::malformed("the distances and times of the planes of the STK (tag UIC2) are missing");
    let entry = file.first.get(UIC2).ok_or_else(missing)?;
    let count = usize::try_from(entry.count).unwrap_or(usize::MAX);
    if count > 1 && (layout.codec != Codec::Raw || layout.tiled) {
        return Err(Fault::unsupported("the planes of the STK are compressed", "save it uncompressed"));
    }
    let images = contiguous_images(file, layout, count)?;
    let at = file.container.rational_at(entry).ok_or_else(missing)?;
    let bytes = file.container.source.read_vec(at, count.saturating_mul(PLANE_BYTES))?;
    let f = Fields { bytes: &bytes, order: file.container.order };
    let (mut distances, mut times) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for plane in 0..count {
        let at = plane * PLANE_BYTES;
        distances.push(f64::from(f.i32(at)?) / f64::from(f.i32(at + 4)?));
        times.push(f64::from(f.u32(at + 8)?) * DAY_MS + f64::from(f.u32(at + 12)?));
    }
    let is_z = distances.iter().skip(1).any(|d| positive(d.abs()).is_some());
    let calibration = calibration(file).unwrap_or_else(|| {
        if file.first.get(UIC1).is_some() {
            tracing::warn!("the STK states no pixel size in a known unit (tag UIC1), so the pixel size is unknown");
        }
        VoxelSize::default()
    });
    let step = distances.get(1).and_then(|d| positive(d.abs()));
    let interval = match (times.first(), times.last()) {
        (Some(first), Some(last)) if count > 1 => positive((last - first) / 1000.0 / (count - 1) as f64),
        _ => None,
    };
    Ok(Series {
        format: FileFormat::MetaMorph,
        dims: vec![(if is_z { Axis::Z } else { Axis::T }, count)],
        planes: (0..images).map(|slice| Some(PlaneRef { file: 0, page, slice })).collect(),
        // Distances along Z are in µm.
        voxel_size_um: VoxelSize { z: step.filter(|_| is_z), ..calibration },
        time_interval_secs: interval.filter(|_| !is_z),
        ..Series::default()
    })
}

/// Pixel size from UIC1; `None` if it is not stated in a known unit.
fn calibration(file: &TiffFile) -> Option<VoxelSize> {
    let container = &file.container;
    let entry: &Entry = file.first.get(UIC1)?;
    let at = container.longs_at(entry)?;
    let count = usize::try_from(entry.count).ok().filter(|n| *n <= 1024)?;
    let bytes = container.source.read_vec(at, count * 8).ok()?;
    let f = Fields { bytes: &bytes, order: container.order };
    let value =
        |wanted: u32| (0..count).find(|i| f.u32(8 * i).ok() == Some(wanted)).and_then(|i| f.u32(8 * i + 4).ok());
    let fraction = |wanted: u32| {
        let bytes = container.source.read_vec(u64::from(value(wanted)?), 8).ok()?;
        let f = Fields { bytes: &bytes, order: container.order };
        positive(f64::from(f.u32(0).ok()?) / f64::from(f.u32(4).ok()?))
    };
    let unit_at = u64::from(value(CALIBRATION_UNITS)?);
    let length = container.source.read_vec(unit_at, 4).ok()?;
    let length = Fields { bytes: &length, order: container.order }.u32(0).ok().filter(|n| *n <= MAX_UNIT_BYTES)?;
    let unit = container.source.read_vec(unit_at + 4, length as usize).ok()?;
    let unit: String = unit.iter().take_while(|b| **b != 0).map(|b| char::from(*b)).collect();
    let um = micrometers_per(&unit)?;
    let size = |wanted: u32| fraction(wanted).and_then(|v| positive(v * um));
    Some(VoxelSize { z: None, y: size(Y_CALIBRATION), x: size(X_CALIBRATION) })
}

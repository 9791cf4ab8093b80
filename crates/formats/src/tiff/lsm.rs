//! Zeiss LSM: TIFF files with the private tag 34412, in which the samples of a pixel are channels.
//!
//! The tag is laid out as in Zeiss' description of the format: sizes and counts at fixed positions, in meters.

use super::{
    file::{TiffFile, check_metadata_reads},
    ifd::{Container, Ifd},
    page::Page,
    series::{PlaneRef, Series},
};
use crate::{
    codec::Codec,
    error::Fault,
    fields::Fields,
    file_format::FileFormat,
    meta::{Channel, positive},
};
use cytoscope_storage::counted;
use cytoscope_volume::{Axis, VoxelSize};

/// The tag with Zeiss' description of the image.
const CZ_LSMINFO: u16 = 34412;
/// First number of the description, in its two versions (Zeiss writes them with nine digits: `0x00300494C`).
const MAGIC: [u32; 2] = [0x0300_494C, 0x0400_494C];
/// Largest block of channel names in bytes.
const MAX_NAMES_BYTES: u32 = 1 << 16;

/// Whether a file is an LSM file.
pub(crate) fn is_lsm(file: &TiffFile) -> bool {
    file.first.get(CZ_LSMINFO).is_some()
}

/// The image of an LSM file from its pages of full size; thumbnails are left out.
pub(crate) fn series(file: &TiffFile, pages: &[u32]) -> Result<Series, Fault> {
    let entry = file.first.get(CZ_LSMINFO).ok_or_else(|| Fault::malformed("the description of the LSM is missing"))?;
    let bytes = file.container.bytes(entry)?;
    let f = Fields { bytes: &bytes, order: file.container.order };
    if !MAGIC.contains(&f.u32(0)?) {
        return Err(Fault::malformed("the description of the LSM does not begin with its number"));
    }
    if file.container.source.len() > u64::from(u32::MAX) {
        return Err(Fault::unsupported(
            "LSM files above 4 GB do not state where their planes are",
            "export it as CZI or OME-TIFF, for example with Fiji",
        ));
    }
    let count = |at: usize| f.i32(at).map(|n| usize::try_from(n).unwrap_or(0).max(1));
    let (slices, times) = (count(16)?, count(24)?);
    let scan = f.u16(88)?;
    // Stacks, time series of planes, and time series of stacks. The others are lines or planes along Z.
    if !matches!(scan, 0 | 3 | 6) {
        return Err(Fault::unsupported(
            format!("the LSM is a line, point or x-z scan (type {scan})"),
            "export it as OME-TIFF, for example with Fiji",
        ));
    }
    if slices.checked_mul(times) != Some(pages.len()) {
        return Err(Fault::unsupported(
            format!(
                "the LSM declares {} of {}, but it has {}",
                counted(times, "time point"),
                counted(slices, "slice"),
                counted(pages.len(), "plane")
            ),
            "export each position as OME-TIFF, for example with Fiji",
        ));
    }
    // Sizes in meters.
    let um = |at: usize| f.f64(at).map(|v| positive(v * 1e6));
    let interval = f.f64(112).ok().and_then(positive);
    Ok(Series {
        format: FileFormat::Lsm,
        dims: vec![(Axis::T, times), (Axis::Z, slices)],
        planes: pages.iter().map(|page| Some(PlaneRef { file: 0, page: *page, slice: 0 })).collect(),
        voxel_size_um: VoxelSize { z: um(56)?, y: um(48)?, x: um(40)? },
        time_interval_secs: interval.filter(|_| times > 1),
        // Names and colors are optional: channels without readable ones have none.
        channels: f.u32(108).ok().and_then(|at| channels(file, at)).unwrap_or_default(),
        samples_axis: Some(Axis::C),
        ..Series::default()
    })
}

/// Names and colors of the channels; `None` if the block is missing or damaged, because the pixels do not depend on it.
fn channels(file: &TiffFile, at: u32) -> Option<Vec<Channel>> {
    let (source, order) = (&file.container.source, file.container.order);
    let head = source.read_vec(u64::from(at), 20).ok().filter(|_| at > 0)?;
    let size = Fields { bytes: &head, order }.u32(0).ok().filter(|n| *n <= MAX_NAMES_BYTES)?;
    let block = source.read_vec(u64::from(at), size as usize).ok()?;
    let f = Fields { bytes: &block, order };
    let (count, colors_at, names_at) = (f.u32(4).ok()?, f.u32(12).ok()? as usize, f.u32(16).ok()? as usize);
    let mut channels = Vec::new();
    let mut name_at = names_at;
    for i in 0..count.min(MAX_NAMES_BYTES) as usize {
        let color = f.slice(colors_at.checked_add(4 * i)?, 3).ok()?;
        let length = f.u32(name_at).ok()? as usize;
        let name = f.slice(name_at.checked_add(4)?, length).ok()?;
        let name = name.split(|b| *b == 0).next().unwrap_or_default();
        let name = name.iter().map(|b| char::from(*b)).collect();
        channels.push(Channel { name, color_rgb: color.first_chunk::<3>().copied() });
        name_at = name_at.checked_add(4)?.checked_add(length)?;
    }
    Some(channels)
}

/// Maximum number of strips of an LZW-compressed LSM, whose offsets are kept: 128 MiB of numbers. Zeiss' software writes a few
/// strips per slice.
const MAX_STRIPS: usize = 1 << 24;

/// Returns where the strips of all pages begin, in ascending order, if the file is an LSM compressed with LZW: such files
/// state the decoded size of each strip as its stored size. For other files the list is empty.
///
/// # Errors
/// [`Fault::Malformed`] if the offsets of strips cannot be read, overlap in the file, or are more than [`MAX_STRIPS`].
pub(crate) fn strip_starts(container: &Container, first: &Ifd, pages: &[Option<Page>]) -> Result<Vec<u64>, Fault> {
    let is_lzw = pages.iter().flatten().next().is_some_and(|page| page.layout.codec == Codec::Lzw);
    if !is_lzw || first.get(CZ_LSMINFO).is_none() {
        return Ok(Vec::new());
    }
    let mut starts = Vec::new();
    for page in pages.iter().flatten() {
        // Further numbers in the tag are not offsets of strips.
        let (across, down, planes) = page.layout.grid();
        let strips = (across as u64).saturating_mul(down as u64).saturating_mul(planes as u64);
        starts.extend(container.integers(&page.offsets, 0, page.offsets.count.min(strips))?);
        check_metadata_reads(container)?;
        if starts.len() > MAX_STRIPS {
            return Err(Fault::malformed(format!("it states more than {MAX_STRIPS} strips")));
        }
    }
    starts.sort_unstable();
    starts.dedup();
    starts.shrink_to_fit();
    Ok(starts)
}

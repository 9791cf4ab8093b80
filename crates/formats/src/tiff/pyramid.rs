//! Pages that are lower resolution levels of the first page, in whole-slide images (Aperio SVS, Hamamatsu NDPI) and in
//! tiled files that mark such pages as reduced.

use super::{
    file::TiffFile,
    ifd::{Container, Ifd},
    page::Layout,
    series::Group,
};
use crate::{error::Fault, meta::positive};
use std::{cmp::Reverse, ffi::OsStr, path::Path};

/// Smallest ratio of the full image to a level.
const MIN_RATIO: f64 = 1.5;
/// Largest difference in pixels of a level's height from that of the full image divided by the ratio of their widths.
const MAX_ROUNDING: f64 = 2.0;

/// Tag that every page of an NDPI file has.
const NDPI: u16 = 65420;
/// Advice for slides that cannot be read.
const EXPORT_SLIDE: &str = "convert the slide to a tiled pyramidal TIFF with JPEG compression, for example with \
                            QuPath (File > Export images > OME TIFF) or vips tiffsave";

/// Whether a file is a slide of Hamamatsu.
pub(super) fn is_ndpi(file: &TiffFile) -> bool {
    file.first.get(NDPI).is_some()
}

/// Refuses an NDPI file above 4 GB, given by its name or its first directory: the positions in it have 64 bits, though it
/// begins like a TIFF of 32 bits.
pub(super) fn check_ndpi_size(path: &Path, file: &Container, first: Option<&Ifd>) -> Result<(), Fault> {
    let is_named_so = path.extension().and_then(OsStr::to_str).is_some_and(|e| e.eq_ignore_ascii_case("ndpi"));
    let is_ndpi = first.map_or(is_named_so, |first| first.get(NDPI).is_some());
    if is_ndpi && !file.big && file.source.len() > u64::from(u32::MAX) {
        return Err(Fault::unsupported("NDPI files above 4 GB are not supported", EXPORT_SLIDE));
    }
    Ok(())
}

/// Returns the indices in `groups` of the lower levels of an NDPI file, largest first. Its overview has other proportions.
pub(super) fn ndpi_levels(groups: &[Group]) -> Vec<usize> {
    let Some((full, pages)) = groups.first() else { return Vec::new() };
    let is_level =
        |i: &usize| groups.get(*i).is_some_and(|(layout, pages)| pages.len() == 1 && has_same_view(layout, full));
    let width = |i: &usize| groups.get(*i).map_or(0, |(layout, _)| layout.width);
    let mut found: Vec<usize> =
        if pages.len() == 1 { (1..groups.len()).filter(is_level).collect() } else { Vec::new() };
    found.sort_by_key(|i| Reverse(width(i)));
    found.dedup_by_key(|i| width(&*i));
    found
}

/// Whether a description is that of an Aperio slide.
pub(super) fn is_aperio(description: &str) -> bool {
    description.starts_with("Aperio ")
}

/// The pixel size in µm in the description of an Aperio slide.
pub(super) fn aperio_pixel_um(description: &str) -> Option<f64> {
    let field = description.split('|').find_map(|field| field.trim().strip_prefix("MPP"))?;
    positive(field.trim().strip_prefix('=')?.trim().parse().ok()?)
}

/// Returns the indices in `groups` of the lower levels of the first group, largest first. Pages of a slide need not be marked
/// as reduced; its thumbnail, label and overview are not tiled.
pub(super) fn levels(groups: &[Group], is_slide: bool) -> Vec<usize> {
    let Some((full, pages)) = groups.first() else { return Vec::new() };
    if !full.tiled || full.reduced || pages.len() != 1 {
        return Vec::new();
    }
    let width = |i: &usize| groups.get(*i).map_or(0, |(layout, _)| layout.width);
    let is_level = |i: &usize| {
        groups.get(*i).is_some_and(|(layout, pages)| {
            pages.len() == 1 && layout.tiled && (layout.reduced || is_slide) && has_same_view(layout, full)
        })
    };
    let mut found: Vec<usize> = (1..groups.len()).filter(is_level).collect();
    found.sort_by_key(|i| Reverse(width(i)));
    found.dedup_by_key(|i| width(&*i));
    found
}

/// Whether a page has the samples of the full image and the same proportions.
fn has_same_view(level: &Layout, full: &Layout) -> bool {
    let same =
        (level.dtype, level.samples, level.bits, level.planar) == (full.dtype, full.samples, full.bits, full.planar);
    let ratio = full.width as f64 / level.width as f64;
    same && ratio >= MIN_RATIO && (full.height as f64 / ratio - level.height as f64).abs() <= MAX_ROUNDING
}

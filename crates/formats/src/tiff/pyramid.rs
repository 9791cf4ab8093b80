//! Pages that are lower resolutions of the first page: of whole-slide images (Aperio SVS), and of tiled files that mark
//! them as reduced.

use super::{page::Layout, series::Group};
use crate::meta::positive;
use std::cmp::Reverse;

/// Smallest ratio of the full image to a level.
const MIN_RATIO: f64 = 1.5;
/// Largest difference in pixels of a level's height from that of the full image divided by the ratio of their widths.
const MAX_ROUNDING: f64 = 2.0;

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
            pages.len() == 1 && layout.tiled && (layout.reduced || is_slide) && has_the_view_of(layout, full)
        })
    };
    let mut found: Vec<usize> = (1..groups.len()).filter(is_level).collect();
    found.sort_by_key(|i| Reverse(width(i)));
    found.dedup_by_key(|i| width(&*i));
    found
}

/// Whether a page has the samples of the full image and the same proportions.
fn has_the_view_of(level: &Layout, full: &Layout) -> bool {
    let same =
        (level.dtype, level.samples, level.bits, level.planar) == (full.dtype, full.samples, full.bits, full.planar);
    let ratio = full.width as f64 / level.width as f64;
    same && ratio >= MIN_RATIO && (full.height as f64 / ratio - level.height as f64).abs() <= MAX_ROUNDING
}

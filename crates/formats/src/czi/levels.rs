//! Lower resolution levels of a scene: which subblocks belong to which level, and where they are in it.
//!
//! A subblock of a level states the extents that it covers at full resolution and those that it stores. Their ratio is a
//! power of 2, in some files of 3, up to rounding.

use super::directory::Subblock;
use super::{Grid, Layer};
use std::collections::BTreeMap;

/// Largest exponent of a level's ratio.
const MAX_EXPONENT: f64 = 24.0;

/// Returns the lower levels of a scene, largest first. Levels without all planes and the whole field of view of `full` are
/// left out; none is returned if a subblock fits no level.
pub(super) fn lower_levels(pyramid: Vec<Subblock>, full: &Layer) -> Vec<Layer> {
    let count = pyramid.len();
    let mut by_exponent: BTreeMap<u32, Vec<Subblock>> = BTreeMap::new();
    let base = pyramid_base(&pyramid);
    for subblock in pyramid {
        let Some((exponent, placed)) = placed(subblock, base, &full.grid) else {
            tracing::debug!(
                "not all of the {count} subblocks of lower levels fit a level: only full resolution is used"
            );
            return Vec::new();
        };
        by_exponent.entry(exponent).or_default().push(placed);
    }
    let level = |(exponent, subblocks): (u32, Vec<Subblock>)| {
        let factor = usize::try_from(base.checked_pow(exponent)?).ok()?;
        let Grid { first, extents, width, height, .. } = full.grid;
        let grid =
            Grid { first, extents, left: 0, top: 0, width: width.div_ceil(factor), height: height.div_ceil(factor) };
        let layer = Layer::new(subblocks, grid);
        (is_complete(&layer, full, factor) && !layer.overlaps_too_often()).then_some(layer)
    };
    by_exponent.into_iter().filter_map(level).collect()
}

/// Returns 2 or 3: the base whose power is closest to the ratio of the largest subblock.
fn pyramid_base(pyramid: &[Subblock]) -> u64 {
    let largest = pyramid.iter().max_by_key(|s| s.stored_width.saturating_mul(s.stored_height));
    let ratio = largest.map_or(2.0, ratio);
    let distance = |base: f64| {
        let exponent = ratio.ln() / base.ln();
        (exponent - exponent.round()).abs()
    };
    if distance(3.0) < distance(2.0) { 3 } else { 2 }
}

/// The ratio of a subblock along its longer side, which is rounded least.
fn ratio(subblock: &Subblock) -> f64 {
    let (extent, stored) = if subblock.stored_width >= subblock.stored_height {
        (subblock.width, subblock.stored_width)
    } else {
        (subblock.height, subblock.stored_height)
    };
    extent as f64 / stored.max(1) as f64
}

/// Returns the exponent of a subblock's level, and the subblock with position and extents in the level. `None` if it fits
/// no level, or lies outside the image.
fn placed(mut subblock: Subblock, base: u64, grid: &Grid) -> Option<(u32, Subblock)> {
    let exponent = (ratio(&subblock).ln() / (base as f64).ln()).round();
    if !(1.0..=MAX_EXPONENT).contains(&exponent) {
        return None;
    }
    let exponent = exponent as u32;
    let factor = base.checked_pow(exponent)?;
    let fits = |extent: usize, stored: usize| {
        stored > 0 && (extent as u64).abs_diff((stored as u64).saturating_mul(factor)) <= factor
    };
    if !fits(subblock.width, subblock.stored_width) || !fits(subblock.height, subblock.stored_height) {
        return None;
    }
    let [t, z, c] = grid.first;
    let is_before = subblock.t < t || subblock.z < z || subblock.c < c;
    let factor = i64::try_from(factor).ok()?;
    let place = |at: i64, first: i64| (at - first + factor / 2).div_euclid(factor);
    let (x, y) = (place(subblock.x, grid.left), place(subblock.y, grid.top));
    if is_before || x < 0 || y < 0 {
        return None;
    }
    (subblock.x, subblock.y) = (x, y);
    (subblock.width, subblock.height) = (subblock.stored_width, subblock.stored_height);
    Some((exponent, subblock))
}

/// Edges of the subblocks of a plane, relative to the image: left, top, right, bottom. `None` if there are none.
fn edges(layer: &Layer, plane: &[usize; 3]) -> Option<[f64; 4]> {
    let subblocks = layer.by_plane.get(plane)?.iter().filter_map(|index| layer.subblocks.get(*index));
    let edges = subblocks.map(|s| {
        let (x, y) = ((s.x - layer.grid.left) as f64, (s.y - layer.grid.top) as f64);
        [x, y, x + s.width as f64, y + s.height as f64]
    });
    edges.reduce(|a, b| [a[0].min(b[0]), a[1].min(b[1]), a[2].max(b[2]), a[3].max(b[3])])
}

/// Returns whether a level has all planes, and covers about what the full resolution does.
fn is_complete(layer: &Layer, full: &Layer, factor: usize) -> bool {
    let factor = factor as f64;
    let is_covered = |plane: &[usize; 3]| match (edges(layer, plane), edges(full, plane)) {
        // Edges are rounded by less than a pixel.
        (Some(level_edges), Some(full_edges)) => {
            level_edges.iter().zip(full_edges).all(|(found, wanted)| (found - wanted / factor).abs() <= 1.0)
        }
        _ => false,
    };
    let area = |layer: &Layer| layer.subblocks.iter().map(|s| s.width as f64 * s.height as f64).sum::<f64>();
    // Tiles of the full resolution overlap more than those of a level.
    full.by_plane.keys().all(is_covered) && area(layer) * factor.powi(2) >= 0.75 * area(full)
}

//! Contrast: equalization and normalization of slices, stretch of a stack.

use crate::block::{Block, count, lengths};
use cytoscope_volume::BoxZyx;
use rayon::prelude::*;

/// Levels that a slice is quantized to before equalization, as in scikit-image.
const LEVELS: usize = 1 << 14;

/// Bins of a tile's histogram, and levels in each; the last bins stay empty, as in scikit-image.
const BINS: usize = 256;
const LEVELS_PER_BIN: usize = 1 + LEVELS / BINS;

/// Rounds of spreading what was clipped off a histogram.
const SPREADING_ROUNDS: usize = 16;

/// Applies a function of whole slices to the slices of `bounds`, and cuts out its rows and columns. `input` holds whole
/// slices.
pub(crate) fn each_slice(
    input: &Block,
    bounds: &BoxZyx,
    f: impl Fn(&[f32], [usize; 2]) -> Vec<f32> + Sync,
) -> Vec<f32> {
    let [_, in_y, in_x] = lengths(&input.bounds);
    let [_, ny, nx] = lengths(bounds);
    let mut out = vec![0.0f32; count(bounds)];
    if out.is_empty() {
        return out;
    }
    out.par_chunks_mut(ny * nx).enumerate().for_each(|(i, target)| {
        let whole = f(input.slice(bounds[0].start + i), [in_y, in_x]);
        for (j, row) in target.chunks_exact_mut(nx).enumerate() {
            let at = (bounds[1].start + j) * in_x + bounds[2].start;
            if let Some(source) = whole.get(at..at + nx) {
                row.copy_from_slice(source);
            }
        }
    });
    out
}

/// Maps `low` to 0 and `high` to 1; all finite values to 0 if they are equal. Values that are not finite stay so: a prediction
/// replaces them, and warns.
pub(crate) fn rescaled(value: f32, range: Option<[f64; 2]>) -> f32 {
    match range {
        Some([low, high]) if high > low => ((f64::from(value) - low) / (high - low)) as f32,
        _ if value.is_finite() => 0.0,
        _ => value,
    }
}

/// Like [`rescaled`], clipped to 0 to 1.
pub(crate) fn stretched(value: f32, range: Option<[f64; 2]>) -> f32 {
    rescaled(value, range).clamp(0.0, 1.0)
}

/// The distance below the largest value of a stack; the value itself if no value of the stack is finite.
pub(crate) fn inverted(value: f32, range: Option<[f64; 2]>) -> f32 {
    range.map_or(value, |[_, largest]| (largest - f64::from(value)) as f32)
}

/// Two percentiles of the finite values, interpolated linearly between samples; `None` without finite values.
fn percentiles(values: &[f32], wanted: [f64; 2]) -> Option<[f64; 2]> {
    let mut sorted: Vec<f32> = values.iter().copied().filter(|v| v.is_finite()).collect();
    sorted.sort_unstable_by(f32::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    let at = |percent: f64| {
        let position = percent / 100.0 * last as f64;
        let low = f64::from(*sorted.get(position.floor() as usize)?);
        let high = f64::from(*sorted.get((position.ceil() as usize).min(last))?);
        Some(low + (high - low) * position.fract())
    };
    Some([at(wanted[0])?, at(wanted[1])?])
}

/// Normalizes a slice by two of its percentiles.
pub(crate) fn normalized(slice: &[f32], wanted: [f64; 2]) -> Vec<f32> {
    let range = percentiles(slice, wanted);
    slice.iter().map(|v| rescaled(*v, range)).collect()
}

/// Smallest and largest finite value; `None` if there is none.
fn finite_range(values: &[f32]) -> Option<[f64; 2]> {
    let finite = values.iter().filter(|v| v.is_finite());
    let range = finite.fold(None, |range: Option<[f32; 2]>, v| match range {
        None => Some([*v; 2]),
        Some([low, high]) => Some([low.min(*v), high.max(*v)]),
    });
    range.map(|r| r.map(f64::from))
}

/// Contrast-limited adaptive histogram equalization of a slice with `tiles` tiles along both axes, to the range 0 to 1
/// (Zuiderveld, Graphics Gems IV, 1994). Values that are not finite stay as they are.
pub(crate) fn equalized(slice: &[f32], shape_yx: [usize; 2], tiles: usize, clip: f64) -> Vec<f32> {
    let range = finite_range(slice);
    let bins: Vec<u8> = slice
        .iter()
        .map(|v| {
            let level = f64::from(stretched(*v, range)) * (LEVELS - 1) as f64;
            (level.round() as usize / LEVELS_PER_BIN).min(BINS - 1) as u8
        })
        .collect();
    let edge = shape_yx.map(|n| (n / tiles.max(1)).max(1));
    let grid: [usize; 2] = std::array::from_fn(|a| shape_yx[a].div_ceil(edge[a]));
    let mappings = mappings(&bins, shape_yx, edge, grid, clip);
    let neighbors = [0, 1].map(|a| neighbors(shape_yx[a], edge[a], grid[a]));
    let mapping = |j: usize, i: usize, bin: u8| {
        mappings.get((j * grid[1] + i) * BINS + usize::from(bin)).copied().unwrap_or_default()
    };
    let mut out = Vec::with_capacity(slice.len());
    for (row, (above, below, down)) in bins.chunks(shape_yx[1].max(1)).zip(&neighbors[0]) {
        for (bin, (left, right, across)) in row.iter().zip(&neighbors[1]) {
            let upper = mapping(*above, *left, *bin) * (1.0 - across) + mapping(*above, *right, *bin) * across;
            let lower = mapping(*below, *left, *bin) * (1.0 - across) + mapping(*below, *right, *bin) * across;
            out.push(upper * (1.0 - down) + lower * down);
        }
    }
    out.iter_mut().zip(slice).filter(|(_, source)| !source.is_finite()).for_each(|(v, source)| *v = *source);
    let range = finite_range(&out);
    out.iter_mut().for_each(|v| *v = rescaled(*v, range));
    out
}

/// For each position on an axis, the tiles whose centers are before and after it, and the weight of the latter.
fn neighbors(extent: usize, edge: usize, tiles: usize) -> Vec<(usize, usize, f32)> {
    let last = tiles.saturating_sub(1);
    let of = |at: usize| {
        let from_center = at + edge / 2;
        let (after, within) = (from_center / edge, from_center % edge);
        (after.saturating_sub(1).min(last), after.min(last), within as f32 / edge as f32)
    };
    (0..extent).map(of).collect()
}

/// The mapping of the bins of each tile to 0 to 1: the cumulative sum of its clipped histogram. Tiles that reach beyond
/// the slice see it mirrored.
fn mappings(bins: &[u8], shape_yx: [usize; 2], edge: [usize; 2], grid: [usize; 2], clip: f64) -> Vec<f32> {
    let mirrored = |at: usize, extent: usize| if at < extent { at } else { (2 * (extent - 1)).saturating_sub(at) };
    let voxels = (edge[0] * edge[1]) as f64;
    let limit = (clip * voxels).floor().max(1.0);
    let mut mappings = Vec::with_capacity(grid[0] * grid[1] * BINS);
    for j in 0..grid[0] {
        for i in 0..grid[1] {
            let mut histogram = [0.0f64; BINS];
            for y in j * edge[0]..(j + 1) * edge[0] {
                let start = mirrored(y, shape_yx[0]) * shape_yx[1];
                for x in i * edge[1]..(i + 1) * edge[1] {
                    if let Some(bin) = bins.get(start + mirrored(x, shape_yx[1])) {
                        histogram[usize::from(*bin)] += 1.0;
                    }
                }
            }
            clip_histogram(&mut histogram, limit);
            let mut sum = 0.0f64;
            mappings.extend(histogram.iter().map(|n| {
                sum += n;
                (sum / voxels).min(1.0) as f32
            }));
        }
    }
    mappings
}

/// Clips a histogram and spreads the excess equally over the bins below the limit.
fn clip_histogram(histogram: &mut [f64; BINS], limit: f64) {
    let mut excess: f64 = histogram.iter().map(|n| (n - limit).max(0.0)).sum();
    histogram.iter_mut().for_each(|n| *n = n.min(limit));
    for _ in 0..SPREADING_ROUNDS {
        let below = histogram.iter().filter(|n| **n < limit).count();
        if below == 0 || excess <= 0.0 {
            return;
        }
        let share = excess / below as f64;
        for n in histogram.iter_mut().filter(|n| **n < limit) {
            let added = share.min(limit - *n);
            *n += added;
            excess -= added;
        }
    }
}

//! Gaussian and median filters; edge values are extended.

use crate::block::{Block, count, lengths};
use cytoscope_volume::BoxZyx;
use rayon::prelude::*;

/// Standard deviations after which a Gaussian is cut off, as SciPy does.
const TRUNCATE: f64 = 4.0;

/// Weights of a Gaussian from its center outwards, so that all weights of both sides sum to 1; only the center for
/// sigma 0.
pub(crate) fn gaussian_weights(sigma: f64) -> Vec<f32> {
    if sigma <= 0.0 {
        return vec![1.0];
    }
    let radius = (TRUNCATE * sigma + 0.5) as usize;
    let raw: Vec<f64> = (0..=radius).map(|d| (-0.5 * (d as f64 / sigma).powi(2)).exp()).collect();
    let sum = 2.0 * raw.iter().sum::<f64>() - 1.0;
    raw.iter().map(|w| (w / sum) as f32).collect()
}

/// Smooths along Z, Y, X. `weights` come from [`gaussian_weights`]; `input` holds every voxel of the volume (of this
/// shape) within their reach of `bounds`.
pub(crate) fn gaussian(input: &Block, bounds: &BoxZyx, shape: [usize; 3], weights: &[Vec<f32>; 3]) -> Vec<f32> {
    let [_, in_y, in_x] = lengths(&input.bounds);
    let [oz, oy, ox] = lengths(bounds);
    let mut out = vec![0.0f32; oz * oy * ox];
    if out.is_empty() {
        return out;
    }
    let (first_y, first_x) = (input.bounds[1].start, input.bounds[2].start);
    out.par_chunks_mut(oy * ox).enumerate().for_each(|(i, target)| {
        let mut along_z = vec![0.0f32; in_y * in_x];
        for_each_tap(bounds[0].start + i, shape[0], &weights[0], |z, weight| {
            add_scaled(&mut along_z, input.slice(z), weight);
        });
        let mut along_y = vec![0.0f32; in_x];
        for (j, row) in target.chunks_exact_mut(ox).enumerate() {
            along_y.fill(0.0);
            for_each_tap(bounds[1].start + j, shape[1], &weights[1], |y, weight| {
                let at = (y - first_y) * in_x;
                add_scaled(&mut along_y, &along_z[at..at + in_x], weight);
            });
            for (k, value) in row.iter_mut().enumerate() {
                for_each_tap(bounds[2].start + k, shape[2], &weights[2], |x, weight| {
                    *value += weight * along_y[x - first_x];
                });
            }
        }
    });
    out
}

fn add_scaled(sums: &mut [f32], values: &[f32], weight: f32) {
    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
}

/// Calls `f` with the positions around `at` on an axis, and their weights, always in the same order.
fn for_each_tap(at: usize, extent: usize, weights: &[f32], mut f: impl FnMut(usize, f32)) {
    for (d, weight) in weights.iter().enumerate() {
        if d > 0 {
            f(at.saturating_sub(d), *weight);
        }
        f((at + d).min(extent.saturating_sub(1)), *weight);
    }
}

/// Median of the box of `radius` voxels around each voxel.
pub(crate) fn median(input: &Block, bounds: &BoxZyx, shape: [usize; 3], radius: [usize; 3]) -> Vec<f32> {
    let [_, oy, ox] = lengths(bounds);
    let mut out = vec![0.0f32; count(bounds)];
    if out.is_empty() {
        return out;
    }
    let first_x = input.bounds[2].start;
    let window = radius.iter().map(|r| 2 * r + 1).product::<usize>();
    let around = |at: usize, axis: usize| {
        let (r, last) = (radius[axis], shape[axis].saturating_sub(1));
        // Positions below 0 become 0 and those above the end the last one.
        (0..=2 * r).map(move |d| (at + d).saturating_sub(r).min(last))
    };
    out.par_chunks_mut(ox).enumerate().for_each(|(row, target)| {
        let (z, y) = (bounds[0].start + row / oy, bounds[1].start + row % oy);
        let rows: Vec<&[f32]> =
            around(z, 0).flat_map(|z| around(y, 1).map(move |y| (z, y))).map(|(z, y)| input.row(z, y)).collect();
        let mut values = Vec::with_capacity(window);
        for (k, value) in target.iter_mut().enumerate() {
            values.clear();
            for x in around(bounds[2].start + k, 2) {
                values.extend(rows.iter().map(|row| row[x - first_x]));
            }
            let (_, middle, _) = values.select_nth_unstable_by(window / 2, f32::total_cmp);
            *value = *middle;
        }
    });
    out
}

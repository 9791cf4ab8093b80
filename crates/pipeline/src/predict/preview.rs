//! Preview image of a result: the middle slice with outlined objects, or with the predicted stain beside it.

use crate::JobError;
use cytoscope_formats::{label_color, preview_png};
use cytoscope_volume::Array;
use std::path::Path;

/// Minimum fraction of the pixels that are shown black.
const DARK_SHARE: f64 = 0.005;
/// Minimum fraction of the pixels that are shown white.
const BRIGHT_SHARE: f64 = 0.002;

/// Returns the slice of a stack that a preview shows.
pub(super) fn middle(depth: usize) -> usize {
    depth / 2
}

/// Returns a PNG of the slice in gray, with each object outlined in its color.
pub(super) fn outlined(path: &Path, [ny, nx]: [usize; 2], raw: &[f32], labels: &[u32]) -> Result<Vec<u8>, JobError> {
    let mut rgb: Vec<u8> = gray(raw).into_iter().flat_map(|v| [v; 3]).collect();
    for (i, label) in labels.iter().enumerate().filter(|(_, l)| **l > 0) {
        let (y, x) = (i / nx.max(1), i % nx.max(1));
        let differs = |at: usize| labels.get(at).is_some_and(|other| other != label);
        let edge = (y > 0 && differs(i - nx))
            || (y + 1 < ny && differs(i + nx))
            || (x > 0 && differs(i - 1))
            || (x + 1 < nx && differs(i + 1));
        if edge && let Some(pixel) = rgb.get_mut(3 * i..3 * i + 3) {
            pixel.copy_from_slice(&label_color(u64::from(*label)));
        }
    }
    Ok(preview_png(&Array::new("YXS".parse()?, vec![ny, nx, 3], rgb)?, false, path)?)
}

/// Returns a PNG of the slice and its prediction side by side, each with its own contrast.
pub(super) fn beside(path: &Path, [ny, nx]: [usize; 2], raw: &[f32], predicted: &[f32]) -> Result<Vec<u8>, JobError> {
    let (left, right) = (gray(raw), gray(predicted));
    let rgb: Vec<u8> = left
        .chunks(nx.max(1))
        .zip(right.chunks(nx.max(1)))
        .flat_map(|(l, r)| l.iter().chain(r))
        .flat_map(|v| [*v; 3])
        .collect();
    Ok(preview_png(&Array::new("YXS".parse()?, vec![ny, 2 * nx, 3], rgb)?, false, path)?)
}

/// Converts values to gray, from black for the darkest to white for the brightest except a few outliers; NaN is black.
fn gray(values: &[f32]) -> Vec<u8> {
    let mut sorted: Vec<f32> = values.iter().copied().filter(|v| v.is_finite()).collect();
    sorted.sort_unstable_by(f32::total_cmp);
    let at = |share: f64| sorted.get((share * sorted.len().saturating_sub(1) as f64) as usize).copied().unwrap_or(0.0);
    let (low, high) = (at(DARK_SHARE), at(1.0 - BRIGHT_SHARE));
    let scale = if high > low { 255.0 / (high - low) } else { 0.0 };
    values.iter().map(|v| ((v - low) * scale).round().clamp(0.0, 255.0) as u8).collect()
}

//! PNG previews of slices, colors and label images.

use crate::error::FormatError;
use cytoscope_volume::{Array, Axis, Element, with_samples};
use image::{ExtendedColorType, ImageEncoder, codecs::png::PngEncoder};
use std::path::Path;

/// Encodes a 2-D array (YX), or a color image (YXS with 3 or 4 samples), as PNG; `path` is used in errors.
///
/// Intensities are scaled from their smallest to their largest value; 8-bit colors are not changed. Each label has its
/// own color, the same in every image, and background is black.
///
/// # Errors
/// [`FormatError::Misused`] for an array with other axes.
pub fn preview_png(array: &Array, labels: bool, path: &Path) -> Result<Vec<u8>, FormatError> {
    let letters: String = array.axes().to_string();
    let (height, width, samples) = match (letters.as_str(), array.shape()) {
        ("YX", [h, w]) => (*h, *w, 1),
        ("YXS", [h, w, s @ (3 | 4)]) => (*h, *w, *s),
        _ => {
            return Err(FormatError::misused(
                path,
                format!("a preview cannot have the axes {letters} and the shape {:?}", array.shape()),
                "give one plane (YX) or one RGB plane (YXS)",
            ));
        }
    };
    let (Ok(w), Ok(h)) = (u32::try_from(width), u32::try_from(height)) else {
        return Err(FormatError::misused(path, "the preview is too large", "give a smaller plane"));
    };
    let (pixels, color) = if labels && samples == 1 {
        let colors = with_samples!(array.samples(), v => v.iter().flat_map(|l| label_color(l.to_f64() as u64)).collect::<Vec<u8>>());
        (colors, ExtendedColorType::Rgb8)
    } else {
        let color = match samples {
            1 => ExtendedColorType::L8,
            3 => ExtendedColorType::Rgb8,
            _ => ExtendedColorType::Rgba8,
        };
        let keep_values = array.dtype().size_bytes() == 1 && array.axes().contains(Axis::S);
        let gray = if keep_values {
            array.samples().as_bytes().to_vec()
        } else {
            with_samples!(array.samples(), v => scale_to_u8(v))
        };
        (gray, color)
    };
    let mut png = Vec::new();
    PngEncoder::new(&mut png).write_image(&pixels, w, h, color).map_err(|e| {
        FormatError::misused(
            path,
            format!("the preview cannot be encoded ({e})"),
            "give a plane with at least one pixel",
        )
    })?;
    Ok(png)
}

fn scale_to_u8<E: Element>(values: &[E]) -> Vec<u8> {
    let finite = || values.iter().map(|v| v.to_f64()).filter(|v| v.is_finite());
    let low = finite().fold(f64::INFINITY, f64::min);
    let high = finite().fold(f64::NEG_INFINITY, f64::max);
    let scale = if high > low { 255.0 / (high - low) } else { 0.0 };
    values.iter().map(|v| ((v.to_f64() - low) * scale).round().clamp(0.0, 255.0) as u8).collect()
}

/// The display color (RGB) of a label: bright, and the same in every image. Background (0) is black.
pub fn label_color(label: u64) -> [u8; 3] {
    if label == 0 {
        return [0, 0, 0];
    }
    // Steps of the golden ratio give consecutive labels very different hues; a hash of the label varies the brightness.
    let bits = label.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let hue = (label as f64 * 0.618_033_988_749_895).rem_euclid(1.0) * 6.0;
    let value = [255.0, 215.0, 180.0, 235.0][(bits >> 62) as usize & 3];
    let channel = |shift: f64| {
        let k = (shift + hue).rem_euclid(6.0);
        let saturation = 0.75;
        (value * (1.0 - saturation * k.min(4.0 - k).clamp(0.0, 1.0))).round() as u8
    };
    [channel(5.0), channel(3.0), channel(1.0)]
}

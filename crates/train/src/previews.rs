//! Preview images of validation pairs: a slice of the image with the outlines of true and predicted objects, or the
//! true and the predicted stain side by side.
//!
//! One slice of each pair is chosen once and stored reduced in size ([`Thumbnail`]), so that memory does not grow with
//! the stacks.

use crate::validator::{PairScore, Validator};
use cytoscope_pipeline::JobError;
use cytoscope_training_data::{StackWindow, TargetKind};
use image::ImageEncoder;
use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use std::borrow::Cow;

/// Maximum side length of a panel in pixels.
const PANEL: usize = 320;
/// Gap between two panels in pixels.
const GAP: usize = 6;
/// Maximum magnification of small slices.
const MAX_MAGNIFICATION: usize = 8;
/// Fraction of pixels that may be clipped at the dark and at the bright end.
const CLIPPED: f64 = 0.003;
/// Color of the outlines of true objects.
pub(crate) const TRUE_COLOR: [u8; 3] = [255, 190, 60];
/// Color of the outlines of predicted objects.
pub(crate) const FOUND_COLOR: [u8; 3] = [70, 200, 255];
/// Color of a stain at maximum intensity.
const STAIN_COLOR: [u8; 3] = [60, 220, 130];
/// Color between panels, distinguishable from images on bright and on dark pages.
const BACKGROUND: [u8; 3] = [122, 128, 134];

/// A slice reduced in size, in order Y, X.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Thumbnail {
    height: usize,
    width: usize,
    values: Vec<f32>,
}

impl Thumbnail {
    /// Reduces a plane to at most [`PANEL`] values per side: labels are sampled, intensities averaged. `None` if the
    /// plane is empty or its length does not match.
    fn of(plane: &[f32], height: usize, width: usize, labels: bool) -> Option<Self> {
        if height == 0 || width == 0 || plane.len() != height * width {
            return None;
        }
        let step = (height.max(width) as f64 / PANEL as f64).max(1.0);
        let small = |n: usize| ((n as f64 / step) as usize).max(1);
        let (rows, columns) = (small(height), small(width));
        // Range of the source pixels of a reduced pixel.
        let part = |i: usize, n: usize, of: usize| (i * n / of, ((i + 1) * n / of).max(i * n / of + 1).min(n));
        let mut values = Vec::with_capacity(rows * columns);
        for i in 0..rows {
            let (top, bottom) = part(i, height, rows);
            for j in 0..columns {
                let (left, right) = part(j, width, columns);
                values.push(if labels {
                    plane.get((top + bottom) / 2 * width + (left + right) / 2).copied().unwrap_or(0.0)
                } else {
                    let all = (top..bottom).flat_map(|y| plane.get(y * width + left..y * width + right).unwrap_or(&[]));
                    all.sum::<f32>() / ((bottom - top) * (right - left)) as f32
                });
            }
        }
        Some(Self { height: rows, width: columns, values })
    }

    fn label(&self, y: usize, x: usize) -> u64 {
        if y >= self.height || x >= self.width {
            return 0;
        }
        self.values.get(y * self.width + x).map_or(0, |v| if *v >= 1.0 { *v as u64 } else { 0 })
    }

    /// Returns the values that are drawn as black and as maximum brightness.
    fn limits(&self) -> (f32, f32) {
        let mut sorted: Vec<f32> = self.values.iter().copied().filter(|v| v.is_finite()).collect();
        sorted.sort_by(f32::total_cmp);
        let rank = |share: f64| sorted.get((sorted.len().saturating_sub(1) as f64 * share) as usize).copied();
        (rank(CLIPPED).unwrap_or(0.0), rank(1.0 - CLIPPED).unwrap_or(1.0))
    }
}

/// Image and ground truth of a validation pair in one slice.
struct Preview {
    name: String,
    z: usize,
    shape: [usize; 3],
    image: Thumbnail,
    truth: Thumbnail,
}

/// Previews of the validation pairs, one slice each.
pub(crate) struct Previews {
    labels: bool,
    previews: Vec<Option<Preview>>,
}

/// Returns the slice with the most object voxels; for a stain, or without objects, the middle slice.
fn fullest_slice(truth: &[f32], [nz, ny, nx]: [usize; 3], labels: bool) -> usize {
    let plane = (ny * nx).max(1);
    let count = |slice: &[f32]| slice.iter().filter(|v| **v >= 1.0).count();
    let max = if labels { truth.chunks(plane).map(count).max().unwrap_or(0) } else { 0 };
    if max == 0 {
        return nz / 2;
    }
    truth.chunks(plane).position(|slice| count(slice) == max).unwrap_or(nz / 2)
}

/// Returns labels with background in place of the ignore label, which does not number an object.
fn without_ignored(truth: &[f32], ignored: Option<f32>) -> Cow<'_, [f32]> {
    match ignored.filter(|label| truth.contains(label)) {
        None => Cow::Borrowed(truth),
        Some(label) => Cow::Owned(truth.iter().map(|own| if *own == label { 0.0 } else { *own }).collect()),
    }
}

/// Returns slice `z` of values in order Z, Y, X.
fn slice(values: &[f32], [_, ny, nx]: [usize; 3], z: usize) -> Option<&[f32]> {
    values.get(z * ny * nx..(z + 1) * ny * nx)
}

impl Previews {
    /// Reads a slice of each pair. A pair that cannot be read has no preview; this is not an error.
    pub(crate) fn of(validator: &Validator, target: TargetKind) -> Self {
        let labels = target.is_from_labels();
        let previews = validator.cases.iter().enumerate().map(|(i, case)| {
            let (truth, shape) = validator.truth(i)?;
            let truth = without_ignored(truth, validator.ignored_label());
            let z = fullest_slice(&truth, shape, labels);
            let [_, ny, nx] = shape;
            let window = StackWindow { start_zyx: [z, 0, 0], size_zyx: [1, ny, nx] };
            let unread = |error: &JobError| tracing::warn!("a validation pair has no preview: {error}");
            let (image, read) = case.read(window).inspect_err(unread).ok()?;
            let image = Thumbnail::of(&image, read[1], read[2], false)?;
            let truth = Thumbnail::of(slice(&truth, shape, z)?, ny, nx, labels)?;
            let fits = (image.height, image.width) == (truth.height, truth.width);
            fits.then(|| Preview { name: case.name.clone(), z, shape, image, truth })
        });
        Self { labels, previews: previews.collect() }
    }

    fn get(&self, case: usize) -> Option<&Preview> {
        self.previews.get(case)?.as_ref()
    }

    /// Returns the thumbnail of a prediction (labels or stain in order Z, Y, X) in the slice of the preview.
    pub(crate) fn thumbnail(&self, case: usize, values: &[f32]) -> Option<Thumbnail> {
        let Preview { z, shape, .. } = self.get(case)?;
        Thumbnail::of(slice(values, *shape, *z)?, shape[1], shape[2], self.labels)
    }

    /// Returns the index of the pair that is shown during training.
    pub(crate) fn live_case(&self) -> Option<usize> {
        self.previews.iter().position(Option::is_some)
    }

    /// Returns the caption: name of the pair and number of the slice.
    pub(crate) fn caption(&self, case: usize) -> Option<String> {
        let preview = self.get(case)?;
        Some(format!("{}, slice {} of {}", preview.name, preview.z + 1, preview.shape[0]))
    }

    /// Returns the legend of the panels of [`Previews::example_png`].
    pub(crate) fn legend(&self, before: bool) -> String {
        match (self.labels, before) {
            (true, true) => {
                "From left to right: true objects (yellow), objects predicted before and after training (blue)."
            }
            (true, false) => "Left: true objects (yellow). Right: predicted objects (blue).",
            (false, true) => "From left to right: image, true stain, stain predicted before and after training.",
            (false, false) => "From left to right: image, true stain, predicted stain.",
        }
        .to_owned()
    }

    /// Returns panels side by side as PNG: ground truth and the predictions before (if any) and after training; for a
    /// stain, after a panel of the image.
    pub(crate) fn example_png(&self, case: usize, before: Option<&Thumbnail>, after: &Thumbnail) -> Option<Vec<u8>> {
        let preview = self.get(case)?;
        let mut panels = Vec::new();
        if self.labels {
            panels.push(Panel::gray(&preview.image).outlined(&preview.truth, TRUE_COLOR));
            panels.extend(before.map(|b| Panel::gray(&preview.image).outlined(b, FOUND_COLOR)));
            panels.push(Panel::gray(&preview.image).outlined(after, FOUND_COLOR));
        } else {
            let limits = preview.truth.limits();
            panels.push(Panel::gray(&preview.image));
            panels.push(Panel::tinted(&preview.truth, limits, STAIN_COLOR));
            panels.extend(before.map(|b| Panel::tinted(b, limits, STAIN_COLOR)));
            panels.push(Panel::tinted(after, limits, STAIN_COLOR));
        }
        png(&panels)
    }

    /// Returns the preview that is shown during training, as PNG: true and predicted outlines on one image, or the true
    /// and the predicted stain.
    pub(crate) fn live_png(&self, case: usize, found: &Thumbnail) -> Option<Vec<u8>> {
        let preview = self.get(case)?;
        if self.labels {
            return png(&[Panel::gray(&preview.image)
                .outlined(&preview.truth, TRUE_COLOR)
                .outlined(found, FOUND_COLOR)]);
        }
        let limits = preview.truth.limits();
        png(&[Panel::tinted(&preview.truth, limits, STAIN_COLOR), Panel::tinted(found, limits, STAIN_COLOR)])
    }
}

/// Returns example pairs with their names: those with the best, the median and the worst score.
pub(crate) fn examples(scores: &[PairScore]) -> Vec<(usize, &'static str)> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    let score = |i: usize| scores.get(i).map_or(f64::NEG_INFINITY, |s| s.score);
    order.sort_by(|a, b| score(*b).total_cmp(&score(*a)));
    let (best, middle, worst) = (order.first(), order.get(order.len() / 2), order.last());
    let named = match order.len() {
        0 => vec![],
        1 => vec![(best, "The validation image")],
        2 => vec![(best, "Better score"), (worst, "Worse score")],
        _ => vec![(best, "Best score"), (middle, "Median score"), (worst, "Worst score")],
    };
    named.into_iter().filter_map(|(i, name)| Some((*i?, name))).collect()
}

/// An RGB image.
struct Panel {
    height: usize,
    width: usize,
    /// Magnification of its thumbnail.
    factor: usize,
    rgb: Vec<u8>,
}

impl Panel {
    /// Colors every pixel of a thumbnail with `paint`, and magnifies small ones.
    fn painted(thumbnail: &Thumbnail, paint: impl Fn(f32) -> [u8; 3]) -> Self {
        let longer = thumbnail.height.max(thumbnail.width).max(1);
        let factor = (PANEL / longer).clamp(1, MAX_MAGNIFICATION);
        let (height, width) = (thumbnail.height * factor, thumbnail.width * factor);
        let mut rgb = Vec::with_capacity(height * width * 3);
        for row in thumbnail.values.chunks(thumbnail.width.max(1)) {
            let line: Vec<u8> = row.iter().flat_map(|v| std::iter::repeat_n(paint(*v), factor).flatten()).collect();
            (0..factor).for_each(|_| rgb.extend_from_slice(&line));
        }
        Self { height, width, factor, rgb }
    }

    fn gray(thumbnail: &Thumbnail) -> Self {
        Self::tinted(thumbnail, thumbnail.limits(), [255; 3])
    }

    fn tinted(thumbnail: &Thumbnail, (low, high): (f32, f32), color: [u8; 3]) -> Self {
        let scale = 1.0 / (high - low).max(f32::MIN_POSITIVE);
        Self::painted(thumbnail, |v| {
            // NaN is drawn black.
            let share = ((v - low) * scale).clamp(0.0, 1.0);
            color.map(|c| (f32::from(c) * share) as u8)
        })
    }

    /// Draws the inner outlines of objects.
    fn outlined(mut self, labels: &Thumbnail, color: [u8; 3]) -> Self {
        if (labels.height * self.factor, labels.width * self.factor) != (self.height, self.width) {
            return self;
        }
        let thickness = if self.factor > 1 { 2 } else { 1 };
        let at = |y: usize, x: usize| labels.label(y / self.factor, x / self.factor);
        let mut marked = Vec::new();
        for y in 0..self.height {
            for x in 0..self.width {
                let own = at(y, x);
                if own == 0 {
                    continue;
                }
                let edge = (1..=thickness).any(|t| {
                    // The border of the image is not an outline.
                    let above = y >= t && at(y - t, x) != own;
                    let left = x >= t && at(y, x - t) != own;
                    let below = y + t < self.height && at(y + t, x) != own;
                    let right = x + t < self.width && at(y, x + t) != own;
                    above || left || below || right
                });
                if edge {
                    marked.push((y * self.width + x) * 3);
                }
            }
        }
        for start in marked {
            if let Some(pixel) = self.rgb.get_mut(start..start + 3) {
                pixel.copy_from_slice(&color);
            }
        }
        self
    }
}

/// Returns panels side by side as PNG.
fn png(panels: &[Panel]) -> Option<Vec<u8>> {
    let height = panels.iter().map(|p| p.height).max()?;
    let width = panels.iter().map(|p| p.width).sum::<usize>() + GAP * panels.len().saturating_sub(1);
    let mut rgb = Vec::with_capacity(height * width * 3);
    for y in 0..height {
        for (i, panel) in panels.iter().enumerate() {
            if i > 0 {
                rgb.extend(std::iter::repeat_n(BACKGROUND, GAP).flatten());
            }
            let row = y * panel.width * 3;
            match panel.rgb.get(row..row + panel.width * 3) {
                Some(line) => rgb.extend_from_slice(line),
                None => rgb.extend(std::iter::repeat_n(BACKGROUND, panel.width).flatten()),
            }
        }
    }
    let size = |n: usize| u32::try_from(n).ok();
    let mut bytes = Vec::new();
    let encoder = PngEncoder::new_with_quality(&mut bytes, CompressionType::Default, FilterType::Adaptive);
    encoder.write_image(&rgb, size(width)?, size(height)?, image::ExtendedColorType::Rgb8).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, reason = "a test")]

    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn large_slices_are_reduced_and_keep_their_aspect_ratio() {
        let plane: Vec<f32> = (0..700 * 1000).map(|i| if i % 1000 < 500 { 3.0 } else { 8.0 }).collect();
        for labels in [true, false] {
            let small = Thumbnail::of(&plane, 700, 1000, labels).unwrap();
            assert_eq!((small.height, small.width), (224, 320));
            assert_eq!((small.label(0, 0), small.label(100, 159), small.label(223, 160)), (3, 3, 8));
        }
        // Sampling creates no new labels.
        let labels = Thumbnail::of(&plane, 700, 1000, true).unwrap();
        assert!(labels.values.iter().all(|v| *v == 3.0 || *v == 8.0));
        assert!(Thumbnail::of(&plane, 700, 999, true).is_none() && Thumbnail::of(&[], 0, 0, true).is_none());
        let thin = Thumbnail::of(&[1.0; 5000], 1, 5000, false).unwrap();
        assert_eq!((thin.height, thin.width), (1, 320));
    }

    #[test]
    fn outlines_are_drawn_on_object_borders_only() {
        // A square of 6 × 6 and one beside it, in 40 × 40 voxels.
        let mut plane = vec![0.0; 1600];
        for y in 10..16 {
            for x in 10..16 {
                plane[y * 40 + x] = 1.0;
                plane[y * 40 + x + 6] = 2.0;
            }
        }
        let labels = Thumbnail::of(&plane, 40, 40, true).unwrap();
        let image = Thumbnail::of(&[0.5; 1600], 40, 40, false).unwrap();
        let panel = Panel::gray(&image).outlined(&labels, TRUE_COLOR);
        assert_eq!((panel.height, panel.width, panel.factor), (320, 320, 8));
        let colored = |y: usize, x: usize| panel.rgb[(y * 320 + x) * 3..][..3] == TRUE_COLOR;
        // Outlines are two pixels thick, inside the objects, even where objects touch.
        for (y, x, is) in
            [(80, 100, true), (81, 100, true), (82, 100, false), (79, 100, false), (100, 127, true), (100, 128, true)]
        {
            assert_eq!(colored(y, x), is, "{y}, {x}");
        }
        let count = (0..320 * 320).filter(|i| colored(i / 320, i % 320)).count();
        assert_eq!(count, 2 * (48 * 48 - 44 * 44));
    }

    #[test]
    fn non_finite_values_and_images_without_contrast_are_drawn() {
        for value in [f32::NAN, f32::INFINITY, 0.0] {
            let thumbnail = Thumbnail { height: 2, width: 2, values: vec![value; 4] };
            assert!(png(&[Panel::gray(&thumbnail)]).is_some());
        }
        assert!(png(&[]).is_none());
    }

    #[test]
    fn examples_have_the_best_median_and_worst_score() {
        let chosen = |scores: &[f64]| {
            let all: Vec<PairScore> = scores
                .iter()
                .map(|score| PairScore { name: String::new(), score: *score, scores: BTreeMap::new() })
                .collect();
            examples(&all).into_iter().map(|(i, _)| i).collect::<Vec<_>>()
        };
        assert_eq!(chosen(&[]), Vec::<usize>::new());
        assert_eq!(chosen(&[0.5]), [0]);
        assert_eq!(chosen(&[0.5, 0.7]), [1, 0]);
        assert_eq!(chosen(&[0.5, 0.7, 0.1, 0.6, 0.2]), [1, 0, 2]);
        assert_eq!(chosen(&[f64::NAN, 0.7, 0.1]).len(), 3);
    }

    #[test]
    fn the_slice_with_the_most_object_voxels_is_chosen() {
        let mut truth = vec![0.0; 3 * 4];
        assert_eq!(fullest_slice(&truth, [3, 2, 2], true), 1);
        truth[8] = 5.0;
        assert_eq!(fullest_slice(&truth, [3, 2, 2], true), 2);
        assert_eq!(fullest_slice(&truth, [3, 2, 2], false), 1);
        // Slices without annotations hold no objects.
        truth[..8].fill(255.0);
        assert_eq!(fullest_slice(&without_ignored(&truth, Some(255.0)), [3, 2, 2], true), 2);
        assert_eq!(*without_ignored(&truth, Some(255.0)), [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0, 0.0]);
        assert_eq!(*without_ignored(&truth, None), *truth);
    }
}

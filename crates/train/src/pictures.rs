//! Pictures of validation pairs: a slice of the image with the outlines of what is true and of what was found, or stains beside one
//! another.
//!
//! A slice is chosen once for each pair and kept small ([`Section`]), so that pictures cost no memory that grows with the stacks.

use crate::validate::{PairScore, Validator, read_zyx};
use cytoscope_samples::{ImageRef, TargetKind, Window};
use image::ImageEncoder;
use image::codecs::png::{CompressionType, FilterType, PngEncoder};

/// Most pixels along a side of a panel.
const PANEL: usize = 320;
/// Pixels between two panels.
const GAP: usize = 6;
/// Largest factor by which small slices are magnified.
const MAX_MAGNIFICATION: usize = 8;
/// Share of pixels that may be drawn as dark, and as bright, as can be.
const CLIPPED: f64 = 0.003;
/// Outlines of what is true.
pub(crate) const TRUE: [u8; 3] = [255, 190, 60];
/// Outlines of what was found.
pub(crate) const FOUND: [u8; 3] = [70, 200, 255];
/// A stain at its brightest.
const STAIN: [u8; 3] = [60, 220, 130];
/// Between panels: to be told from images on bright and on dark pages.
const GROUND: [u8; 3] = [122, 128, 134];

/// A slice, made small.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Section {
    height: usize,
    width: usize,
    values: Vec<f32>,
}

impl Section {
    /// A plane with at most [`PANEL`] values a side: labels are picked, intensities averaged.
    fn of(plane: &[f32], height: usize, width: usize, labels: bool) -> Option<Self> {
        if height == 0 || width == 0 || plane.len() != height * width {
            return None;
        }
        let step = (height.max(width) as f64 / PANEL as f64).max(1.0);
        let small = |n: usize| ((n as f64 / step) as usize).max(1);
        let (rows, columns) = (small(height), small(width));
        // What a small pixel is made of: from, to.
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

    /// Values that are drawn black and bright.
    fn limits(&self) -> (f32, f32) {
        let mut sorted: Vec<f32> = self.values.iter().copied().filter(|v| v.is_finite()).collect();
        sorted.sort_by(f32::total_cmp);
        let rank = |share: f64| sorted.get((sorted.len().saturating_sub(1) as f64 * share) as usize).copied();
        (rank(CLIPPED).unwrap_or(0.0), rank(1.0 - CLIPPED).unwrap_or(1.0))
    }
}

/// What is shown of a validation pair.
struct View {
    name: String,
    z: usize,
    shape: [usize; 3],
    image: Section,
    truth: Section,
}

/// What is shown of the validation pairs: a slice of each.
pub(crate) struct Views {
    labels: bool,
    views: Vec<Option<View>>,
}

/// The slice with most voxels of objects; of a stain, or without objects, the middle one.
fn chosen_slice(truth: &[f32], [nz, ny, nx]: [usize; 3], labels: bool) -> usize {
    let plane = (ny * nx).max(1);
    let count = |slice: &[f32]| slice.iter().filter(|v| **v >= 1.0).count();
    let most = if labels { truth.chunks(plane).map(count).max().unwrap_or(0) } else { 0 };
    if most == 0 {
        return nz / 2;
    }
    truth.chunks(plane).position(|slice| count(slice) == most).unwrap_or(nz / 2)
}

/// A slice of values in order Z, Y, X.
fn slice(values: &[f32], [_, ny, nx]: [usize; 3], z: usize) -> Option<&[f32]> {
    values.get(z * ny * nx..(z + 1) * ny * nx)
}

impl Views {
    /// Reads a slice of each pair. One that cannot be read is not shown, and nothing else.
    pub(crate) fn of(validator: &Validator, target: TargetKind) -> Self {
        let labels = target.of_labels();
        let views = validator.cases.iter().enumerate().map(|(i, case)| {
            let (truth, shape) = validator.truth(i)?;
            let z = chosen_slice(truth, shape, labels);
            let [_, ny, nx] = shape;
            let window = Window { start_zyx: [z, 0, 0], size_zyx: [1, ny, nx] };
            let (image, read) = read_zyx(&ImageRef::of(&case.image), Some(window)).ok()?;
            let image = Section::of(&image, read[1], read[2], false)?;
            let truth = Section::of(slice(truth, shape, z)?, ny, nx, labels)?;
            let fits = (image.height, image.width) == (truth.height, truth.width);
            fits.then(|| View { name: case.name.clone(), z, shape, image, truth })
        });
        Self { labels, views: views.collect() }
    }

    fn get(&self, case: usize) -> Option<&View> {
        self.views.get(case)?.as_ref()
    }

    /// The slice that is shown, of what was made of a pair: labels or a stain, Z, Y, X.
    pub(crate) fn section(&self, case: usize, values: &[f32]) -> Option<Section> {
        let View { z, shape, .. } = self.get(case)?;
        Section::of(slice(values, *shape, *z)?, shape[1], shape[2], self.labels)
    }

    /// The pair that is shown while a network is taught.
    pub(crate) fn live(&self) -> Option<usize> {
        self.views.iter().position(Option::is_some)
    }

    /// Which pair and slice it is, in words.
    pub(crate) fn caption(&self, case: usize) -> Option<String> {
        let view = self.get(case)?;
        Some(format!("{}, slice {} of {}", view.name, view.z + 1, view.shape[0]))
    }

    /// What the panels of [`Views::example`] show, in a sentence.
    pub(crate) fn legend(&self, before: bool) -> String {
        match (self.labels, before) {
            (true, true) => {
                "From left to right: the true objects (yellow), those found before training and those found now (blue)."
            }
            (true, false) => "At the left the true objects (yellow), at the right those that were found (blue).",
            (false, true) => {
                "From left to right: the image, the true stain, the stain predicted before training and the one predicted now."
            }
            (false, false) => "From left to right: the image, the true stain, the predicted one.",
        }
        .to_owned()
    }

    /// Truth, what was found before (where it is known) and after beside one another, as PNG; a stain after its input.
    pub(crate) fn example(&self, case: usize, before: Option<&Section>, after: &Section) -> Option<Vec<u8>> {
        let view = self.get(case)?;
        let mut panels = Vec::new();
        if self.labels {
            panels.push(Panel::gray(&view.image).outlined(&view.truth, TRUE));
            panels.extend(before.map(|b| Panel::gray(&view.image).outlined(b, FOUND)));
            panels.push(Panel::gray(&view.image).outlined(after, FOUND));
        } else {
            let limits = view.truth.limits();
            panels.push(Panel::gray(&view.image));
            panels.push(Panel::tinted(&view.truth, limits, STAIN));
            panels.extend(before.map(|b| Panel::tinted(b, limits, STAIN)));
            panels.push(Panel::tinted(after, limits, STAIN));
        }
        png(&panels)
    }

    /// The picture that is shown while a network is taught, as PNG: both outlines on one image, or the true stain and the predicted one.
    pub(crate) fn shown(&self, case: usize, found: &Section) -> Option<Vec<u8>> {
        let view = self.get(case)?;
        if self.labels {
            return png(&[Panel::gray(&view.image).outlined(&view.truth, TRUE).outlined(found, FOUND)]);
        }
        let limits = view.truth.limits();
        png(&[Panel::tinted(&view.truth, limits, STAIN), Panel::tinted(found, limits, STAIN)])
    }
}

/// Pairs that stand for all: the best one, the middle one, the worst one, each with what it is called.
pub(crate) fn examples(scores: &[PairScore]) -> Vec<(usize, &'static str)> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    let score = |i: usize| scores.get(i).map_or(f64::NEG_INFINITY, |s| s.score);
    order.sort_by(|a, b| score(*b).total_cmp(&score(*a)));
    let (best, middle, worst) = (order.first(), order.get(order.len() / 2), order.last());
    let named = match order.len() {
        0 => vec![],
        1 => vec![(best, "What was validated on")],
        2 => vec![(best, "The better one"), (worst, "The worse one")],
        _ => vec![(best, "The best"), (middle, "In the middle"), (worst, "The worst")],
    };
    named.into_iter().filter_map(|(i, name)| Some((*i?, name))).collect()
}

/// A picture, RGB.
struct Panel {
    height: usize,
    width: usize,
    /// By how much its section is magnified.
    factor: usize,
    rgb: Vec<u8>,
}

impl Panel {
    /// Every pixel of a section as `paint` has it, magnified where it is small.
    fn painted(section: &Section, paint: impl Fn(f32) -> [u8; 3]) -> Self {
        let longer = section.height.max(section.width).max(1);
        let factor = (PANEL / longer).clamp(1, MAX_MAGNIFICATION);
        let (height, width) = (section.height * factor, section.width * factor);
        let mut rgb = Vec::with_capacity(height * width * 3);
        for row in section.values.chunks(section.width.max(1)) {
            let line: Vec<u8> = row.iter().flat_map(|v| std::iter::repeat_n(paint(*v), factor).flatten()).collect();
            (0..factor).for_each(|_| rgb.extend_from_slice(&line));
        }
        Self { height, width, factor, rgb }
    }

    fn gray(section: &Section) -> Self {
        Self::tinted(section, section.limits(), [255; 3])
    }

    fn tinted(section: &Section, (low, high): (f32, f32), color: [u8; 3]) -> Self {
        let scale = 1.0 / (high - low).max(f32::MIN_POSITIVE);
        Self::painted(section, |v| {
            // What is no number is black.
            let share = ((v - low) * scale).clamp(0.0, 1.0);
            color.map(|c| (f32::from(c) * share) as u8)
        })
    }

    /// With lines along the inner borders of objects.
    fn outlined(mut self, labels: &Section, color: [u8; 3]) -> Self {
        if (labels.height * self.factor, labels.width * self.factor) != (self.height, self.width) {
            return self;
        }
        let thick = if self.factor > 1 { 2 } else { 1 };
        let at = |y: usize, x: usize| labels.label(y / self.factor, x / self.factor);
        let mut marked = Vec::new();
        for y in 0..self.height {
            for x in 0..self.width {
                let own = at(y, x);
                if own == 0 {
                    continue;
                }
                let edge = (1..=thick).any(|t| {
                    // The rim of the picture is no border of an object.
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

/// Panels of one height beside one another.
fn png(panels: &[Panel]) -> Option<Vec<u8>> {
    let height = panels.iter().map(|p| p.height).max()?;
    let width = panels.iter().map(|p| p.width).sum::<usize>() + GAP * panels.len().saturating_sub(1);
    let mut rgb = Vec::with_capacity(height * width * 3);
    for y in 0..height {
        for (i, panel) in panels.iter().enumerate() {
            if i > 0 {
                rgb.extend(std::iter::repeat_n(GROUND, GAP).flatten());
            }
            let row = y * panel.width * 3;
            match panel.rgb.get(row..row + panel.width * 3) {
                Some(line) => rgb.extend_from_slice(line),
                None => rgb.extend(std::iter::repeat_n(GROUND, panel.width).flatten()),
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
    fn large_slices_become_small_and_keep_their_shape() {
        let plane: Vec<f32> = (0..700 * 1000).map(|i| if i % 1000 < 500 { 3.0 } else { 8.0 }).collect();
        for labels in [true, false] {
            let small = Section::of(&plane, 700, 1000, labels).unwrap();
            assert_eq!((small.height, small.width), (224, 320));
            assert_eq!((small.label(0, 0), small.label(100, 159), small.label(223, 160)), (3, 3, 8));
        }
        // No label comes up that was not there.
        let labels = Section::of(&plane, 700, 1000, true).unwrap();
        assert!(labels.values.iter().all(|v| *v == 3.0 || *v == 8.0));
        assert!(Section::of(&plane, 700, 999, true).is_none() && Section::of(&[], 0, 0, true).is_none());
        let thin = Section::of(&[1.0; 5000], 1, 5000, false).unwrap();
        assert_eq!((thin.height, thin.width), (1, 320));
    }

    #[test]
    fn outlines_lie_on_the_rims_of_objects_and_nowhere_else() {
        // A square of 6 × 6 and one beside it, in 40 × 40 voxels.
        let mut plane = vec![0.0; 1600];
        for y in 10..16 {
            for x in 10..16 {
                plane[y * 40 + x] = 1.0;
                plane[y * 40 + x + 6] = 2.0;
            }
        }
        let labels = Section::of(&plane, 40, 40, true).unwrap();
        let image = Section::of(&[0.5; 1600], 40, 40, false).unwrap();
        let panel = Panel::gray(&image).outlined(&labels, TRUE);
        assert_eq!((panel.height, panel.width, panel.factor), (320, 320, 8));
        let colored = |y: usize, x: usize| panel.rgb[(y * 320 + x) * 3..][..3] == TRUE;
        // Rims are two pixels thick, inside the objects; also where they touch.
        for (y, x, is) in
            [(80, 100, true), (81, 100, true), (82, 100, false), (79, 100, false), (100, 127, true), (100, 128, true)]
        {
            assert_eq!(colored(y, x), is, "{y}, {x}");
        }
        let count = (0..320 * 320).filter(|i| colored(i / 320, i % 320)).count();
        assert_eq!(count, 2 * (48 * 48 - 44 * 44));
    }

    #[test]
    fn numbers_that_are_none_and_images_without_contrast_are_drawn() {
        for value in [f32::NAN, f32::INFINITY, 0.0] {
            let section = Section { height: 2, width: 2, values: vec![value; 4] };
            assert!(png(&[Panel::gray(&section)]).is_some());
        }
        assert!(png(&[]).is_none());
    }

    #[test]
    fn the_best_the_middle_and_the_worst_are_shown() {
        let of = |scores: &[f64]| {
            let all: Vec<PairScore> = scores
                .iter()
                .map(|score| PairScore { name: String::new(), score: *score, scores: BTreeMap::new() })
                .collect();
            examples(&all).into_iter().map(|(i, _)| i).collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), Vec::<usize>::new());
        assert_eq!(of(&[0.5]), [0]);
        assert_eq!(of(&[0.5, 0.7]), [1, 0]);
        assert_eq!(of(&[0.5, 0.7, 0.1, 0.6, 0.2]), [1, 0, 2]);
        assert_eq!(of(&[f64::NAN, 0.7, 0.1]).len(), 3);
    }

    #[test]
    fn the_fullest_slice_is_chosen() {
        let mut truth = vec![0.0; 3 * 4];
        assert_eq!(chosen_slice(&truth, [3, 2, 2], true), 1);
        truth[8] = 5.0;
        assert_eq!(chosen_slice(&truth, [3, 2, 2], true), 2);
        assert_eq!(chosen_slice(&truth, [3, 2, 2], false), 1);
    }
}

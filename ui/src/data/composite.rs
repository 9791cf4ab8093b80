//! Composites planes into one image: channels in their colors, labels outlined or filled.

use super::plane::{Plane, Values};
use cytoscope_formats::label_color;
use eframe::egui::{Color32, ColorImage};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Color maps for intensities, from dark to bright.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ColorMap {
    /// From black for low values to white for high ones.
    Gray,
    /// From white for low values to black for high ones.
    Inverted,
    /// From black to this color (RGB).
    Tint([u8; 3]),
    /// Perceptually uniform, black over purple and orange to pale yellow.
    Magma,
    /// Perceptually uniform, blue over green to yellow.
    Viridis,
    /// Black over red and yellow to white.
    Fire,
}

impl ColorMap {
    /// The selectable color maps with their names.
    pub const NAMED: [(&'static str, ColorMap); 11] = [
        ("Gray", ColorMap::Gray),
        ("Inverted gray", ColorMap::Inverted),
        ("Green", ColorMap::Tint([60, 220, 90])),
        ("Magenta", ColorMap::Tint([235, 70, 220])),
        ("Cyan", ColorMap::Tint([60, 210, 235])),
        ("Red", ColorMap::Tint([240, 70, 60])),
        ("Blue", ColorMap::Tint([90, 130, 255])),
        ("Yellow", ColorMap::Tint([240, 220, 70])),
        ("Magma", ColorMap::Magma),
        ("Viridis", ColorMap::Viridis),
        ("Fire", ColorMap::Fire),
    ];

    /// Name for the user; a color taken from the file is "Custom".
    pub fn name(self) -> &'static str {
        Self::NAMED.iter().find(|(_, m)| *m == self).map_or("Custom", |(n, _)| n)
    }

    /// The color of a value between 0 and 1, as RGB from 0 to 255.
    pub fn color(self, share: f32) -> [f32; 3] {
        let t = share.clamp(0.0, 1.0);
        match self {
            ColorMap::Gray => [t * 255.0; 3],
            ColorMap::Inverted => [(1.0 - t) * 255.0; 3],
            ColorMap::Tint(c) => c.map(|c| f32::from(c) * t),
            ColorMap::Magma => between(&[[0, 0, 4], [81, 18, 124], [183, 55, 121], [252, 137, 97], [252, 253, 191]], t),
            ColorMap::Viridis => {
                between(&[[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]], t)
            }
            ColorMap::Fire => between(&[[0, 0, 0], [150, 10, 60], [240, 90, 10], [255, 210, 60], [255, 255, 255]], t),
        }
    }
}

fn between(stops: &[[u8; 3]; 5], t: f32) -> [f32; 3] {
    let at = t * 4.0;
    let i = (at as usize).min(3);
    let share = at - i as f32;
    std::array::from_fn(|c| f32::from(stops[i][c]) * (1.0 - share) + f32::from(stops[i + 1][c]) * share)
}

/// How a layer is blended with those below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Blending {
    /// Intensities add up, as for fluorescence channels.
    Additive,
    /// The layer covers those below it, weighted by its opacity.
    Opaque,
}

/// How the intensities of a channel are shown: range, gamma and color.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Intensity {
    /// Colors from low to high values.
    pub map: ColorMap,
    /// Lower contrast limit, in stored values.
    pub low: f32,
    /// Upper contrast limit, in stored values.
    pub high: f32,
    /// Exponent of the contrast curve; below 1 brightens dark values.
    pub gamma: f32,
    /// Opacity from 0 to 1.
    pub opacity: f32,
    /// How the layer is blended with others.
    pub blending: Blending,
}

/// Whether labels are drawn as outlines, filled, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum LabelStyle {
    /// The border pixels of each label.
    Outline,
    /// All pixels of each label.
    Fill,
    /// Filled, with a stronger outline.
    Both,
}

/// Display settings of a label image.
#[derive(Debug, Clone, PartialEq)]
pub struct LabelDisplay {
    /// Whether labels are drawn as outlines, filled, or both.
    pub style: LabelStyle,
    /// Opacity of the fill from 0 to 1.
    pub opacity: f32,
    /// Label that is highlighted; `None` if no object is selected.
    pub selected: Option<u32>,
    /// Color of each label if colors carry a meaning (matched, missed, false); otherwise each label has its own.
    pub colors: Option<Arc<Vec<[u8; 3]>>>,
}

impl Default for LabelDisplay {
    fn default() -> Self {
        Self { style: LabelStyle::Outline, opacity: 0.45, selected: None, colors: None }
    }
}

impl LabelDisplay {
    /// The color of a label.
    pub fn color(&self, label: u32) -> [u8; 3] {
        match &self.colors {
            Some(colors) => colors.get(label as usize).copied().unwrap_or([160, 160, 160]),
            None => label_color(u64::from(label)),
        }
    }
}

/// A plane with its display settings.
#[derive(Debug, Clone)]
pub enum DisplayedPlane {
    /// Values drawn through contrast limits and a color map.
    Intensity(Arc<Plane>, Intensity),
    /// Labels drawn as outlines or filled.
    Labels(Arc<Plane>, LabelDisplay),
}

impl DisplayedPlane {
    /// The values without their display settings.
    pub fn plane(&self) -> &Arc<Plane> {
        match self {
            DisplayedPlane::Intensity(plane, _) | DisplayedPlane::Labels(plane, _) => plane,
        }
    }
}

/// Entries of the color lookup tables.
const STEPS: usize = 1024;

/// Pixels per band; bands are composited in parallel.
const BAND_PIXELS: usize = 1 << 16;

/// Composites planes, lowest first. Planes that differ in size from the first are skipped; without planes returns
/// `None`.
pub fn composite(planes: &[DisplayedPlane]) -> Option<ColorImage> {
    let size = planes.first()?.plane().size;
    let [height, width] = size;
    let rows = (BAND_PIXELS / width.max(1)).max(1);
    let fits = |s: &&DisplayedPlane| s.plane().size == size && s.plane().values.len() == height * width;
    let layers: Vec<Layer<'_>> = planes.iter().filter(fits).map(Layer::of).collect();
    let mut pixels = vec![Color32::BLACK; height * width];
    // Bands keep the sums in the CPU cache.
    pixels.par_chunks_mut(rows * width.max(1)).enumerate().for_each_init(Vec::new, |sum, (i, band)| {
        sum.clear();
        sum.resize(band.len(), [0f32; 3]);
        for layer in &layers {
            layer.add(sum, i * rows * width, size);
        }
        for (pixel, [r, g, b]) in band.iter_mut().zip(sum.iter()) {
            *pixel = Color32::from_rgb(*r as u8, *g as u8, *b as u8);
        }
    });
    Some(ColorImage::new([width, height], pixels))
}

/// A plane prepared for compositing.
enum Layer<'a> {
    /// Values, display settings and color lookup table.
    Intensity(&'a Values, &'a Intensity, Vec<[f32; 3]>),
    /// Labels and how they are drawn.
    Labels(&'a [u32], &'a LabelDisplay),
    /// Nothing to draw.
    Nothing,
}

impl<'a> Layer<'a> {
    fn of(shown: &'a DisplayedPlane) -> Self {
        match shown {
            DisplayedPlane::Intensity(plane, display) => {
                let share = |i: usize| (i as f32 / (STEPS - 1) as f32).powf(display.gamma.max(0.01));
                Layer::Intensity(&plane.values, display, (0..STEPS).map(|i| display.map.color(share(i))).collect())
            }
            DisplayedPlane::Labels(plane, display) => match &plane.values {
                Values::Labels(labels) => Layer::Labels(labels, display),
                _ => Layer::Nothing,
            },
        }
    }

    /// Blends the pixels from index `from` on into a band of an image of this size (height, width).
    fn add(&self, band: &mut [[f32; 3]], from: usize, size: [usize; 2]) {
        match self {
            Layer::Intensity(values, display, table) => {
                let scale =
                    if display.high > display.low { (STEPS - 1) as f32 / (display.high - display.low) } else { 0.0 };
                let opacity = display.opacity.clamp(0.0, 1.0);
                let put = |pixel: &mut [f32; 3], value: f32| {
                    // The cast turns NaN into 0.
                    let at = ((value - display.low) * scale).clamp(0.0, (STEPS - 1) as f32) as usize;
                    let color = table.get(at).copied().unwrap_or_default();
                    for (p, c) in pixel.iter_mut().zip(color) {
                        *p = match display.blending {
                            Blending::Additive => *p + c * opacity,
                            Blending::Opaque => *p * (1.0 - opacity) + c * opacity,
                        };
                    }
                };
                let to = from + band.len();
                match values {
                    Values::U8(v) => over(band, v.get(from..to), |p, v| put(p, f32::from(v))),
                    Values::U16(v) => over(band, v.get(from..to), |p, v| put(p, f32::from(v))),
                    Values::F32(v) => over(band, v.get(from..to), put),
                    Values::Labels(v) => over(band, v.get(from..to), |p, v| put(p, v as f32)),
                }
            }
            Layer::Labels(labels, display) => draw_labels(band, labels, from, size, display),
            Layer::Nothing => {}
        }
    }
}

fn over<T: Copy>(band: &mut [[f32; 3]], values: Option<&[T]>, put: impl Fn(&mut [f32; 3], T)) {
    band.iter_mut().zip(values.unwrap_or_default()).for_each(|(p, v)| put(p, *v));
}

fn draw_labels(
    band: &mut [[f32; 3]],
    labels: &[u32],
    from: usize,
    [height, width]: [usize; 2],
    display: &LabelDisplay,
) {
    let fill = display.opacity.clamp(0.0, 1.0);
    for (i, pixel) in band.iter_mut().enumerate() {
        let at = from + i;
        let Some(label) = labels.get(at).copied().filter(|l| *l > 0) else { continue };
        let (row, column) = (at / width, at % width);
        let differs = |there: usize| labels.get(there).is_some_and(|l| *l != label);
        let edge = display.style != LabelStyle::Fill
            && ((row > 0 && differs(at - width))
                || (row + 1 < height && differs(at + width))
                || (column > 0 && differs(at - 1))
                || (column + 1 < width && differs(at + 1)));
        let selected = display.selected == Some(label);
        let share = match (display.style, edge) {
            (_, true) => 1.0,
            (LabelStyle::Outline, false) => {
                if selected {
                    0.35
                } else {
                    0.0
                }
            }
            (_, false) => {
                if selected {
                    (fill + 0.3).min(1.0)
                } else {
                    fill
                }
            }
        };
        let color = if selected && edge { [255; 3] } else { display.color(label) };
        for (p, c) in pixel.iter_mut().zip(color) {
            *p = p.min(255.0) * (1.0 - share) + f32::from(c) * share;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::data::plane::{Orientation, PlaneAt};

    fn plane(size: [usize; 2], values: Values) -> Arc<Plane> {
        let at = PlaneAt::whole(Orientation::Xy, 0, [1, size[0], size[1]]);
        Arc::new(Plane { at, size, values })
    }

    fn display(map: ColorMap) -> Intensity {
        Intensity { map, low: 100.0, high: 300.0, gamma: 1.0, opacity: 1.0, blending: Blending::Additive }
    }

    #[test]
    fn contrast_limits_map_to_black_and_white_and_channels_add() {
        let values = plane([1, 4], Values::U16(vec![0, 100, 200, 400]));
        let gray = composite(&[DisplayedPlane::Intensity(values.clone(), display(ColorMap::Gray))]).unwrap();
        let at = |image: &ColorImage, i: usize| image.pixels[i].to_array()[..3].to_vec();
        assert_eq!((at(&gray, 0), at(&gray, 1), at(&gray, 3)), (vec![0; 3], vec![0; 3], vec![255; 3]));
        assert!(at(&gray, 2)[0].abs_diff(127) <= 1);
        let red = DisplayedPlane::Intensity(values.clone(), display(ColorMap::Tint([255, 0, 0])));
        let green = DisplayedPlane::Intensity(values, display(ColorMap::Tint([0, 255, 0])));
        assert_eq!(at(&composite(&[red, green]).unwrap(), 3), vec![255, 255, 0]);
    }

    #[test]
    fn labels_are_outlined_in_their_own_colors() {
        let mut labels = vec![0; 25];
        for r in 1..4 {
            for c in 1..4 {
                labels[r * 5 + c] = 9;
            }
        }
        let display = LabelDisplay { style: LabelStyle::Outline, opacity: 0.5, selected: None, colors: None };
        let image = composite(&[DisplayedPlane::Labels(plane([5, 5], Values::Labels(labels)), display)]).unwrap();
        let [r, g, b] = label_color(9);
        assert_eq!(image.pixels[6], Color32::from_rgb(r, g, b), "an edge");
        assert_eq!(image.pixels[12], Color32::BLACK, "the inside");
        assert_eq!(image.pixels[0], Color32::BLACK, "background");
    }
}

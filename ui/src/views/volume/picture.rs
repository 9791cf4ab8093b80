//! What a picture of volumes depends on, as the shader is told: two that are equal look the same.

use super::camera::Projection;
use super::content::{Intensities, Labels, Volume};
use super::grid::Grid;
use super::pipelines::LAYERS;
use crate::data::composite::{Blending, Intensity, LabelLook};
use eframe::egui::{Rect, pos2};
use std::sync::Arc;

/// Steps of the tables that colours are looked up in, as in the shader.
pub(super) const LUT_STEPS: usize = 1024;

/// Colours of labels in a row of their texture, as in the shader.
pub(super) const COLORS_ACROSS: usize = 1024;

/// Most labels that have a colour of their own.
const MAX_COLORS: usize = COLORS_ACROSS * 2048;

/// Optical depth of the whole diagonal at full brightness, when what lies before dims what lies behind.
const ATTENUATION: f64 = 10.0;

/// Pixels drawn in one frame at rest: larger pictures take several, so that the window answers even where the processor draws.
const BAND_PIXELS: u32 = 1 << 17;

/// Where the light comes from: right, down, away.
const LIGHT: [f64; 3] = [-0.5, -0.7, -0.65];

/// How volumes are projected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The brightest value along each line of sight.
    Maximum,
    /// The same, dimmed by what lies before it.
    Attenuated,
    /// Labels as lit surfaces.
    Labels,
}

impl Mode {
    /// Every one.
    pub const ALL: [Mode; 3] = [Mode::Maximum, Mode::Attenuated, Mode::Labels];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Maximum => "maximum intensity",
            Mode::Attenuated => "attenuated maximum intensity",
            Mode::Labels => "labels as surfaces",
        }
    }
}

/// What the shader is told, as a row of texels; the same fields in the same order. Whole numbers up to 2^24 are exact.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct Scene {
    origin: [f32; 4],
    origin_right: [f32; 4],
    origin_down: [f32; 4],
    direction: [f32; 4],
    direction_right: [f32; 4],
    direction_down: [f32; 4],
    size: [f32; 4],
    texel_um: [f32; 4],
    light: [f32; 4],
    what: [f32; 4],
    layers: [[f32; 4]; LAYERS],
}

/// All that a picture depends on.
#[derive(Clone)]
pub struct Picture {
    pub(super) scene: Scene,
    pub(super) size: [u32; 2],
    pub(super) lut: Vec<u8>,
    pub(super) layers: Vec<Arc<Volume>>,
    pub(super) labels: Option<(Arc<Volume>, Arc<Vec<u8>>)>,
    at_once: bool,
}

impl PartialEq for Picture {
    fn eq(&self, other: &Self) -> bool {
        let same_labels = match (&self.labels, &other.labels) {
            (None, None) => true,
            (Some((v, c)), Some((w, d))) => Arc::ptr_eq(v, w) && Arc::ptr_eq(c, d),
            _ => false,
        };
        self.scene == other.scene
            && self.size == other.size
            && same_labels
            && self.layers.len() == other.layers.len()
            && self.layers.iter().zip(&other.layers).all(|(a, b)| Arc::ptr_eq(a, b))
            && self.lut == other.lut
    }
}

/// What is to be drawn.
pub struct Shot<'a> {
    /// From where.
    pub projection: &'a Projection,
    /// The pane.
    pub rect: Rect,
    /// Pixels of the picture: width, height.
    pub size: [u32; 2],
    /// Voxels of the stack; the same for all layers.
    pub grid: Grid,
    /// Voxel size Z, Y, X of the stack.
    pub voxel_um: [f64; 3],
    /// How.
    pub mode: Mode,
    /// Length of a step in voxels of the volume.
    pub step: f32,
    /// Draw it in one frame, however large.
    pub at_once: bool,
    /// Intensities, lowest first.
    pub layers: Vec<(Arc<Volume>, Intensity)>,
    /// Labels and their colours ([`label_colors`]).
    pub labels: Option<(Arc<Volume>, Arc<Vec<u8>>)>,
    /// The label that stands out.
    pub selected: Option<u32>,
}

/// Colours of the labels of a volume, as rows of a texture.
pub fn label_colors(labels: &Labels, look: &LabelLook) -> Vec<u8> {
    let rows = labels.ids.len().min(MAX_COLORS).div_ceil(COLORS_ACROSS).max(1);
    let mut out = vec![128u8; rows * COLORS_ACROSS * 4];
    for (texel, id) in out.chunks_exact_mut(4).zip(&labels.ids) {
        let [r, g, b] = look.color(*id);
        texel.copy_from_slice(&[r, g, b, 255]);
    }
    out
}

/// One row of the table of colours.
fn lut_row(look: &Intensity) -> impl Iterator<Item = u8> + use<'_> {
    (0..LUT_STEPS).flat_map(|i| {
        let share = (i as f32 / (LUT_STEPS - 1) as f32).powf(look.gamma.max(0.01));
        let [r, g, b] = look.map.color(share);
        [r as u8, g as u8, b as u8, 255]
    })
}

fn wide(v: [f64; 3], w: f64) -> [f32; 4] {
    [v[0] as f32, v[1] as f32, v[2] as f32, w as f32]
}

impl Picture {
    /// Of what is to be drawn.
    pub fn new(shot: Shot<'_>) -> Self {
        let texel_um = shot.grid.texel_um(shot.voxel_um);
        let size_um = shot.grid.size_um(shot.voxel_um);
        let diagonal_um = super::camera::length(size_um).max(1e-9);
        let [w, h] = shot.size.map(|n| n.max(1) as f32);
        let corner = shot.rect.min;
        let right = pos2(corner.x + shot.rect.width() / w, corner.y);
        let down = pos2(corner.x, corner.y + shot.rect.height() / h);
        let [at, right, down] = [corner, right, down].map(|p| shot.projection.ray(p));
        let texels = |v: [f64; 3]| -> [f64; 3] { std::array::from_fn(|i| v[i] / texel_um[i]) };
        let minus = |a: [f64; 3], b: [f64; 3]| -> [f64; 3] { std::array::from_fn(|i| a[i] - b[i]) };
        let light = shot.projection.from_view(super::camera::scale(LIGHT, 1.0 / super::camera::length(LIGHT)));
        let mut layers = [[0f32; 4]; LAYERS];
        let mut lut = Vec::new();
        for (layer, (volume, look)) in layers.iter_mut().zip(&shot.layers) {
            if let Volume::Intensities(v) = &**volume {
                *layer = limits(v, look);
            }
            lut.extend(lut_row(look));
        }
        lut.resize(LAYERS * LUT_STEPS * 4, 0);
        let selected = match shot.labels.as_ref().map(|(v, _)| &**v) {
            Some(Volume::Labels(labels)) => labels.index_of(shot.selected),
            _ => 0,
        };
        let mode = match shot.mode {
            Mode::Maximum => 0.0,
            Mode::Attenuated => 1.0,
            Mode::Labels => 2.0,
        };
        Self {
            scene: Scene {
                origin: wide(texels(at.origin), 0.0),
                origin_right: wide(texels(minus(right.origin, at.origin)), 0.0),
                origin_down: wide(texels(minus(down.origin, at.origin)), 0.0),
                direction: wide(texels(at.direction), 0.0),
                direction_right: wide(texels(minus(right.direction, at.direction)), 0.0),
                direction_down: wide(texels(minus(down.direction, at.direction)), 0.0),
                size: wide(shot.grid.size_texels(), f64::from(shot.step)),
                texel_um: wide(texel_um, ATTENUATION / diagonal_um),
                light: wide(light, diagonal_um),
                what: [mode, shot.layers.len().min(LAYERS) as f32, selected as f32, 0.0],
                layers,
            },
            size: shot.size.map(|n| n.max(1)),
            lut,
            layers: shot.layers.into_iter().take(LAYERS).map(|(v, _)| v).collect(),
            labels: shot.labels,
            at_once: shot.at_once,
        }
    }

    /// Rows drawn in one frame.
    pub(super) fn band(&self) -> u32 {
        let [width, height] = self.size;
        if self.at_once { height } else { (BAND_PIXELS / width.max(1)).clamp(1, height) }
    }
}

/// A layer's texel of the scene: contrast limits as stored values.
fn limits(v: &Intensities, look: &Intensity) -> [f32; 4] {
    let low = (look.low - v.offset) / v.range;
    let scale = if look.high > look.low { v.range / (look.high - look.low) } else { 0.0 };
    let covers = if look.blending == Blending::Opaque { 1.0 } else { 0.0 };
    [low, scale, look.opacity.clamp(0.0, 1.0), covers]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::volume::content::Texels;

    #[test]
    fn the_shaders_agree_with_the_constants_here() {
        let march = include_str!("shader.wgsl");
        assert!(march.contains(&format!("const LUT_LAST: f32 = {}.0;", LUT_STEPS - 1)));
        assert!(march.contains(&format!("const COLORS_ACROSS: u32 = {COLORS_ACROSS}u;")));
        assert!(march.contains(&format!("const BLOCK: f32 = {}.0;", super::super::content::BLOCK)));
        assert!(march.contains(&format!("layers: array<vec4<f32>, {LAYERS}>")));
    }

    #[test]
    fn contrast_limits_are_those_of_the_values_before_they_were_stored() {
        let grid = Grid::of([1, 1, 1], false);
        let texels = Texels::F16(vec![0]);
        let v = Intensities { grid, blocks: texels.clone(), texels, offset: 100.0, range: 400.0 };
        let look = Intensity {
            map: crate::data::composite::ColorMap::Gray,
            low: 200.0,
            high: 300.0,
            gamma: 1.0,
            opacity: 1.0,
            blending: Blending::Additive,
        };
        let [low, scale, ..] = limits(&v, &look);
        let share = |value: f32| ((value - 100.0) / 400.0 - low) * scale;
        assert_eq!((share(200.0), share(300.0)), (0.0, 1.0));
        let none = Intensity { low: 5.0, high: 5.0, ..look };
        assert_eq!(limits(&v, &none)[1], 0.0);
    }
}

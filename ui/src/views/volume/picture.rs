//! All inputs of a rendered picture, in the form that the shader takes. Equal values give equal pictures.

use super::camera::Projection;
use super::content::{Intensities, Labels, Volume};
use super::grid::TexelGrid;
use super::pipelines::LAYERS;
use crate::data::composite::{Blending, Intensity, LabelDisplay};
use eframe::egui::{Rect, pos2};
use std::sync::Arc;

/// Entries of the color lookup tables, as in the shader.
pub(super) const LUT_STEPS: usize = 1024;

/// Width of the label color texture, as in the shader.
pub(super) const COLORS_ACROSS: usize = 1024;

/// Maximum number of label colors.
const MAX_COLORS: usize = COLORS_ACROSS * 2048;

/// Optical depth of the diagonal at full brightness in attenuated mode.
const ATTENUATION: f64 = 10.0;

/// Pixels drawn per frame at rest. Larger pictures take several frames, so that the window stays responsive even with
/// software rendering.
const BAND_PIXELS: u32 = 1 << 17;

/// Direction to the light: right, down, away.
const LIGHT: [f64; 3] = [-0.5, -0.7, -0.65];

/// How the 3-D view draws a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The highest intensity along each ray (maximum intensity projection).
    Maximum,
    /// Maximum intensity projection attenuated by the intensities in front.
    Attenuated,
    /// Labels as lit surfaces.
    Labels,
}

impl Mode {
    /// All modes, in the order of the menu.
    pub const ALL: [Mode; 3] = [Mode::Maximum, Mode::Attenuated, Mode::Labels];

    /// Returns the name that the window shows.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Maximum => "maximum intensity",
            Mode::Attenuated => "attenuated maximum intensity",
            Mode::Labels => "labels as surfaces",
        }
    }
}

/// Shader parameters as a row of texels, with the fields of `Scene` in `shader.wgsl`, which explains them. Integers up to
/// 2^24 are exact.
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

/// All inputs of a rendered picture.
#[derive(Clone)]
pub struct Picture {
    pub(super) scene: Scene,
    pub(super) size: [u32; 2],
    pub(super) lut: Vec<u8>,
    pub(super) layers: Vec<Arc<Volume>>,
    pub(super) labels: Option<(Arc<Volume>, Arc<Vec<u8>>)>,
    single_frame: bool,
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

/// What a picture is computed from.
pub struct PictureParams<'a> {
    /// How the camera projects the volume to the screen.
    pub projection: &'a Projection,
    /// Area of the pane on the screen.
    pub rect: Rect,
    /// Width and height in pixels.
    pub size: [u32; 2],
    /// Sampling grid, the same for all layers.
    pub grid: TexelGrid,
    /// Voxel size Z, Y, X of the stack in µm.
    pub voxel_um: [f64; 3],
    /// How a ray combines the voxels that it crosses.
    pub mode: Mode,
    /// Step length of rays in texels.
    pub step: f32,
    /// Whether to draw in one frame, whatever the size.
    pub single_frame: bool,
    /// Intensity layers, lowest first.
    pub layers: Vec<(Arc<Volume>, Intensity)>,
    /// Labels and their colors ([`label_colors`]).
    pub labels: Option<(Arc<Volume>, Arc<Vec<u8>>)>,
    /// Label that is drawn brighter than the others.
    pub selected: Option<u32>,
}

/// Colors of the labels of a volume, as rows of an RGBA texture.
pub fn label_colors(labels: &Labels, display: &LabelDisplay) -> Vec<u8> {
    let rows = labels.ids.len().min(MAX_COLORS).div_ceil(COLORS_ACROSS).max(1);
    let mut out = vec![128u8; rows * COLORS_ACROSS * 4];
    for (texel, id) in out.chunks_exact_mut(4).zip(&labels.ids) {
        let [r, g, b] = display.color(*id);
        texel.copy_from_slice(&[r, g, b, 255]);
    }
    out
}

/// One row of the color lookup table.
fn lut_row(display: &Intensity) -> impl Iterator<Item = u8> + use<'_> {
    (0..LUT_STEPS).flat_map(|i| {
        let share = (i as f32 / (LUT_STEPS - 1) as f32).powf(display.gamma.max(0.01));
        let [r, g, b] = display.map.color(share);
        [r as u8, g as u8, b as u8, 255]
    })
}

fn with_w(v: [f64; 3], w: f64) -> [f32; 4] {
    [v[0] as f32, v[1] as f32, v[2] as f32, w as f32]
}

impl Picture {
    /// Computes the shader parameters.
    pub fn new(params: PictureParams<'_>) -> Self {
        let texel_um = params.grid.texel_um(params.voxel_um);
        let size_um = params.grid.size_um(params.voxel_um);
        let diagonal_um = super::camera::length(size_um).max(1e-9);
        let [w, h] = params.size.map(|n| n.max(1) as f32);
        let corner = params.rect.min;
        let right = pos2(corner.x + params.rect.width() / w, corner.y);
        let down = pos2(corner.x, corner.y + params.rect.height() / h);
        let [at, right, down] = [corner, right, down].map(|p| params.projection.ray(p));
        let texels = |v: [f64; 3]| -> [f64; 3] { std::array::from_fn(|i| v[i] / texel_um[i]) };
        let minus = |a: [f64; 3], b: [f64; 3]| -> [f64; 3] { std::array::from_fn(|i| a[i] - b[i]) };
        let light = params.projection.from_view(super::camera::scale(LIGHT, 1.0 / super::camera::length(LIGHT)));
        let mut layers = [[0f32; 4]; LAYERS];
        let mut lut = Vec::new();
        for (layer, (volume, display)) in layers.iter_mut().zip(&params.layers) {
            if let Volume::Intensities(v) = &**volume {
                *layer = layer_params(v, display);
            }
            lut.extend(lut_row(display));
        }
        lut.resize(LAYERS * LUT_STEPS * 4, 0);
        let selected = match params.labels.as_ref().map(|(v, _)| &**v) {
            Some(Volume::Labels(labels)) => labels.label_index(params.selected),
            _ => 0,
        };
        let mode = match params.mode {
            Mode::Maximum => 0.0,
            Mode::Attenuated => 1.0,
            Mode::Labels => 2.0,
        };
        Self {
            scene: Scene {
                origin: with_w(texels(at.origin), 0.0),
                origin_right: with_w(texels(minus(right.origin, at.origin)), 0.0),
                origin_down: with_w(texels(minus(down.origin, at.origin)), 0.0),
                direction: with_w(texels(at.direction), 0.0),
                direction_right: with_w(texels(minus(right.direction, at.direction)), 0.0),
                direction_down: with_w(texels(minus(down.direction, at.direction)), 0.0),
                size: with_w(params.grid.size_texels(), f64::from(params.step)),
                texel_um: with_w(texel_um, ATTENUATION / diagonal_um),
                light: with_w(light, diagonal_um),
                what: [mode, params.layers.len().min(LAYERS) as f32, selected as f32, 0.0],
                layers,
            },
            size: params.size.map(|n| n.max(1)),
            lut,
            layers: params.layers.into_iter().take(LAYERS).map(|(v, _)| v).collect(),
            labels: params.labels,
            single_frame: params.single_frame,
        }
    }

    /// Number of rows drawn per frame.
    pub(super) fn rows_per_frame(&self) -> u32 {
        let [width, height] = self.size;
        if self.single_frame { height } else { (BAND_PIXELS / width.max(1)).clamp(1, height) }
    }
}

/// Parameters of a layer: contrast limits in normalized values, opacity and blending.
fn layer_params(v: &Intensities, display: &Intensity) -> [f32; 4] {
    let low = (display.low - v.offset) / v.range;
    let scale = if display.high > display.low { v.range / (display.high - display.low) } else { 0.0 };
    let opaque = if display.blending == Blending::Opaque { 1.0 } else { 0.0 };
    [low, scale, display.opacity.clamp(0.0, 1.0), opaque]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::views::volume::content::Texels;

    #[test]
    fn shader_constants_match() {
        let march = include_str!("shader.wgsl");
        assert!(march.contains(&format!("const LUT_LAST: f32 = {}.0;", LUT_STEPS - 1)));
        assert!(march.contains(&format!("const COLORS_ACROSS: u32 = {COLORS_ACROSS}u;")));
        assert!(march.contains(&format!("const BLOCK: f32 = {}.0;", super::super::content::BLOCK)));
        assert!(march.contains(&format!("layers: array<vec4<f32>, {LAYERS}>")));
    }

    #[test]
    fn contrast_limits_refer_to_original_values() {
        let grid = TexelGrid::of([1, 1, 1], &[]);
        let texels = Texels::F16(vec![0]);
        let v = Intensities { grid, blocks: texels.clone(), texels, offset: 100.0, range: 400.0 };
        let display = Intensity {
            map: crate::data::composite::ColorMap::Gray,
            low: 200.0,
            high: 300.0,
            gamma: 1.0,
            opacity: 1.0,
            blending: Blending::Additive,
        };
        let [low, scale, ..] = layer_params(&v, &display);
        let share = |value: f32| ((value - 100.0) / 400.0 - low) * scale;
        assert_eq!((share(200.0), share(300.0)), (0.0, 1.0));
        let none = Intensity { low: 5.0, high: 5.0, ..display };
        assert_eq!(layer_params(&v, &none)[1], 0.0);
    }
}

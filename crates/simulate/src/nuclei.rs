//! Fluorescent nuclei with chromatin texture, nucleoli, a rim, and individual brightness.

use crate::{
    Objects, Settings, SimulateError, SimulatedVolumes, Truth, debris,
    deformation::Deformation,
    exposure,
    grid::Grid,
    placement,
    progress::{ProgressRange, each_slab},
    random::{self, Purpose},
    shape::{self, Blob},
    texture::Texture,
    truth, visible_truth,
};
use rand::Rng;
use rayon::prelude::*;

/// Coarse and fine grains of chromatin: size relative to the radius of the nucleus, and weight.
const GRAINS: [(f64, f32); 2] = [(0.36, 0.65), (0.17, 0.35)];

/// A nucleus and its internal structure.
pub(crate) struct Nucleus {
    /// Shape and position.
    pub(crate) blob: Blob,
    /// Mean brightness relative to the average nucleus.
    brightness: f32,
    chromatin: Texture,
    /// Whether the chromatin is condensed, without grains and rim.
    even: bool,
    /// Centers and radii of nucleoli in µm.
    nucleoli: Vec<([f64; 3], f64)>,
    /// Centers and radii of bright spots in µm.
    spots: Vec<([f64; 3], f64)>,
}

impl Nucleus {
    /// Draws the nucleus of the `index`-th placed body, from its own random stream.
    fn new(blob: Blob, index: usize, settings: &Settings) -> Self {
        let mut rng = random::stream(settings.seed, Purpose::Appearance, index);
        let brightness = random::log_normal(&mut rng, 1.0, settings.objects.brightness_spread) as f32;
        let chromatin = Texture::new(rng.random());
        let count = rng.random_range(1..=3usize);
        let nucleoli = (0..count)
            .map(|_| {
                let place = blob.point_um(random::unit_vector(&mut rng), rng.random_range(0.1..0.6));
                (place, blob.radius_um * rng.random_range(0.17..0.3))
            })
            .collect();
        match Deformation::new(settings, index).mitotic_brightness() {
            None => {
                let spots = spots(&blob, index, settings);
                Self { blob, brightness, chromatin, nucleoli, spots, even: false }
            }
            Some(times) => {
                let brightness = brightness * times as f32;
                Self { blob, brightness, chromatin, nucleoli: Vec::new(), spots: Vec::new(), even: true }
            }
        }
    }

    /// Mean brightness relative to the average nucleus.
    pub(crate) fn brightness(&self) -> f32 {
        self.brightness
    }

    /// The chromatin texture at a position: mean 0, standard deviation 0.26.
    pub(crate) fn chromatin(&self, position_um: [f64; 3]) -> f32 {
        GRAINS.iter().map(|(grain, weight)| weight * self.chromatin.at(position_um, grain * self.blob.radius_um)).sum()
    }

    /// Returns 1 inside a nucleolus and 0 outside, with a soft border of 0.3 µm.
    pub(crate) fn nucleolus(&self, position_um: [f64; 3]) -> f32 {
        inside(&self.nucleoli, position_um, 0.3)
    }

    /// Stain at a position inside the nucleus with the given relative radius; about 1 for the average nucleus.
    fn stain(&self, position_um: [f64; 3], relative_radius: f32, objects: &Objects) -> f32 {
        let texture = objects.texture as f32 * if self.even { 0.15 } else { 1.0 };
        let chromatin = 1.0 + texture * (2.0 * self.chromatin(position_um) + 0.3 * rim(relative_radius));
        let nucleoli = 1.0 - (1.2 * texture).min(0.9) * self.nucleolus(position_um);
        let body = (chromatin * nucleoli).max(0.08);
        if self.even {
            return self.brightness * body;
        }
        let spots = inside(&self.spots, position_um, 0.3 * objects.spots.size * self.blob.radius_um);
        let depth = 1.0 - objects.hollow as f32 * (1.0 - rim(relative_radius));
        self.brightness * (body * depth + objects.spots.brightness as f32 * spots)
    }
}

/// Draws the bright spots of the `index`-th nucleus, from their own random stream.
fn spots(blob: &Blob, index: usize, settings: &Settings) -> Vec<([f64; 3], f64)> {
    let wanted = settings.objects.spots;
    if wanted.count <= 0.0 || wanted.brightness <= 0.0 {
        return Vec::new();
    }
    let mut rng = random::stream(settings.seed, Purpose::Spots, index);
    let count = (wanted.count * rng.random_range(0.5..1.5)).round() as usize;
    (0..count)
        .map(|_| {
            let place = blob.point_um(random::unit_vector(&mut rng), rng.random_range(0.0..0.85));
            (place, blob.radius_um * wanted.size * rng.random_range(0.6..1.4))
        })
        .collect()
}

/// Whether a position is inside one of several balls: 0 outside, 1 inside, with a soft border of width `soft_um`.
fn inside(balls: &[([f64; 3], f64)], position_um: [f64; 3], soft_um: f64) -> f32 {
    let share = |(center, radius): &([f64; 3], f64)| {
        let distance = (0..3).map(|a| (position_um[a] - center[a]).powi(2)).sum::<f64>().sqrt();
        smooth_step(((radius - distance) / soft_um + 0.5) as f32)
    };
    balls.iter().map(share).fold(0.0, f32::max)
}

/// Weight of the rim: 0 deep inside a nucleus, 1 at its surface.
pub(crate) fn rim(relative_radius: f32) -> f32 {
    smooth_step((relative_radius - 0.7) / 0.3)
}

/// 0 below 0, 1 above 1, and 3t² - 2t³ between.
pub(crate) fn smooth_step(t: f32) -> f32 {
    let t = t.clamp(0.0, 1.0);
    t * t * (3.0 - 2.0 * t)
}

/// The placed nuclei and their labels.
pub(crate) struct Scene {
    /// Labels: 0, or 1 + index in `nuclei`.
    pub(crate) labels: Vec<u32>,
    /// Relative radius in the nearest nucleus; infinite beyond the limit.
    pub(crate) relative_radius: Vec<f32>,
    /// The labeled nuclei.
    pub(crate) nuclei: Vec<Nucleus>,
}

impl Scene {
    /// Places and labels nuclei. `limit` (at least 1) is the relative radius up to which distances to nuclei are
    /// computed. `spacing` is the size of the space reserved for a nucleus that does not touch others, relative to its
    /// own size.
    pub(crate) fn new(
        settings: &Settings,
        grid: &Grid,
        limit: f64,
        spacing: f64,
        progress: &ProgressRange<'_>,
    ) -> Result<Self, SimulateError> {
        let mut blobs = placement::place(settings, grid, spacing, &progress.part(0.0, 0.3))?;
        let pressed = settings.objects.pressed;
        if pressed.swell > 1.0 {
            blobs.iter_mut().for_each(|blob| *blob = blob.scaled(pressed.swell));
        }
        let cover = shape::cover(grid, &blobs, limit, pressed.gap, &progress.part(0.3, 0.9))?;
        let (mut labels, relative_radius) = (cover.owner, cover.relative_radius);
        if limit > 1.0 {
            labels.par_iter_mut().zip(&relative_radius).filter(|(_, r)| **r > 1.0).for_each(|(l, _)| *l = 0);
        }
        let kept = truth::clean_labels(&mut labels, grid, blobs.len());
        let nuclei = kept
            .into_iter()
            .filter_map(|old| {
                let index = old as usize - 1;
                Some(Nucleus::new(blobs.get(index)?.clone(), index, settings))
            })
            .collect();
        Ok(Self { labels, relative_radius, nuclei })
    }

    /// Light that each voxel emits; `photons` is the brightness of the average nucleus.
    pub(crate) fn light(
        &self,
        settings: &Settings,
        grid: &Grid,
        photons: f64,
        progress: &ProgressRange<'_>,
    ) -> Result<Vec<f32>, SimulateError> {
        let photons = photons as f32;
        let mut light = vec![0.0; grid.len()];
        let (plane, row) = (grid.plane(), grid.shape[2]);
        each_slab(&mut light, plane, progress, |z, slice| {
            for (i, value) in slice.iter_mut().enumerate() {
                let label = self.labels[z * plane + i] as usize;
                if label > 0 {
                    let position = [grid.position_um(0, z), grid.position_um(1, i / row), grid.position_um(2, i % row)];
                    let relative_radius = self.relative_radius[z * plane + i];
                    *value = photons * self.nuclei[label - 1].stain(position, relative_radius, &settings.objects);
                }
            }
        })?;
        Ok(light)
    }
}

/// Simulates a stack of nuclei and their labels.
pub(crate) fn simulate(
    settings: &Settings,
    grid: &Grid,
    progress: &ProgressRange<'_>,
) -> Result<SimulatedVolumes, SimulateError> {
    let scene = Scene::new(settings, grid, 1.0, 1.0, &progress.part(0.0, 0.3))?;
    let mut light = scene.light(settings, grid, settings.camera.photons, &progress.part(0.3, 0.42))?;
    let Scene { mut labels, nuclei, relative_radius } = scene;
    drop(relative_radius);
    let mean_light = visible_truth::mean_light(&labels, &light, nuclei.len(), settings, grid);
    debris::glow(&mut light, &labels, settings, grid, &progress.part(0.42, 0.43))?;
    debris::background(&mut light, &labels, settings, grid, &progress.part(0.43, 0.44))?;
    debris::scatter(&mut light, &labels, settings, grid);
    let peaks = visible_truth::outline(&mut labels, &nuclei, &mean_light, settings, grid, &progress.part(0.44, 0.55))?;
    let mut object_count = nuclei.len();
    if settings.truth != Truth::default() {
        let brightness: Vec<f64> = mean_light.iter().zip(peaks).map(|(light, peak)| light * f64::from(peak)).collect();
        let bright_enough = visible_truth::bright_enough(&brightness, settings.truth.least_brightness);
        labels.par_iter_mut().filter(|l| **l > 0 && !bright_enough[**l as usize - 1]).for_each(|l| *l = 0);
        object_count = truth::clean_labels(&mut labels, grid, nuclei.len()).len();
    }
    let raw = exposure::fluorescence(light, settings, grid, &progress.part(0.55, 1.0))?;
    Ok(SimulatedVolumes { raw, labels, object_count, target: None })
}

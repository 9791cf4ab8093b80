//! Space-filling cells with stained membranes.
//!
//! Cells are an additively weighted Voronoi partition: a point belongs to the seed i with the smallest
//! `|p - s_i| - w_i`, so every cell is star-shaped about its seed. Points are first displaced by a smooth field, so
//! that walls are curved. Seeds lie on a jittered lattice; the tissue consists of the fraction of seeds with the
//! highest values of a smooth, dome-like score, so its border follows cell walls. The distance to a wall between the
//! nearest seed 1 and another seed i is `(d_i - d_1) / |u_i - u_1|`, with u the unit vectors toward the seeds: exact
//! to first order at the wall.

use crate::{
    Settings, SimulateError, SimulatedVolumes, debris, exposure,
    grid::Grid,
    progress::{ProgressRange, for_each_slab_pair},
    random::{self, Purpose},
    settings::check_count,
    texture::Texture,
    truth,
};
use rand::Rng;
use std::ops::Range;

/// Largest displacement of a seed from its lattice point along each axis, in lattice spacings.
const JITTER: f64 = 0.36;

/// Largest absolute weight of a seed, in lattice spacings.
const MAX_WEIGHT: f64 = 0.15;

/// Brightness of a gap in a membrane, relative to the rest of the membrane.
const GAP_LIGHT: f32 = 0.1;

/// Number of points of a tube's center line from which distances are computed.
const TUBE_POINTS: usize = 48;

/// Largest distance of a seed beyond the nearest for which its wall is computed, in standard deviations of a membrane's
/// profile. As |u_i - u_1| is at most 2, an omitted wall contributes less than exp(-8) of its light.
const MEMBRANE_HORIZON: f64 = 8.0;

/// Number of lattice layers with seeds outside the field.
const LAYERS_OUTSIDE: i64 = 3;

/// Number of lattice layers around a brick that are searched for its seeds.
const LAYERS_AROUND: i64 = 3;

/// The seed of a cell.
#[derive(Debug, Clone, Copy)]
struct Seed {
    position_um: [f64; 3],
    weight_um: f64,
    brightness: f32,
    tissue: bool,
}

impl Seed {
    /// Weighted distance of a point in µm.
    fn distance_um(&self, point_um: [f64; 3]) -> f64 {
        length([0, 1, 2].map(|a| self.position_um[a] - point_um[a])) - self.weight_um
    }
}

fn length(v: [f64; 3]) -> f64 {
    (v[0] * v[0] + v[1] * v[1] + v[2] * v[2]).sqrt()
}

/// The lattice of seeds, and the noise fields of the tissue.
struct Tissue {
    spacing_um: f64,
    /// Number of lattice points along Z, Y, X, including those outside the field.
    counts: [i64; 3],
    seeds: Vec<Seed>,
    warp: [Texture; 3],
    patches: Texture,
    gaps: Texture,
    /// Displacement of walls, in lattice spacings.
    bend: f64,
}

impl Tissue {
    /// Places the seeds and selects those of the tissue.
    fn new(settings: &Settings, grid: &Grid) -> Result<Self, SimulateError> {
        let objects = &settings.objects;
        let extent = grid.extent_um();
        let volume: f64 = extent.iter().product();
        let spacing_um = match objects.count {
            Some(count) if count > 0 => {
                check_count(count as f64)?;
                let coarsest = grid.voxel_um.into_iter().fold(0.0, f64::max);
                (volume * objects.fill.max(1e-3) / count as f64).cbrt().max(2.0 * coarsest)
            }
            _ => objects.diameter_um,
        };
        let layers = extent.map(|e| (e / spacing_um).ceil() + 2.0 * LAYERS_OUTSIDE as f64);
        check_count(layers.iter().product())?;
        let counts = layers.map(|n| n as i64);

        let mut rng = random::stream(settings.seed, Purpose::Lattice, 0);
        let warp = [0; 3].map(|_| Texture::new(rng.random()));
        let (patches, border) = (Texture::new(rng.random()), Texture::new(rng.random()));
        let mut own = random::stream(settings.seed, Purpose::Tissue, 0);
        let gaps = Texture::new(own.random());
        let tube = objects.membranes.tube.then(|| tube_center_line(extent, &mut own));
        let mut seeds = Vec::with_capacity((counts[0] * counts[1] * counts[2]) as usize);
        let mut scores = Vec::with_capacity(seeds.capacity());
        for z in 0..counts[0] {
            for y in 0..counts[1] {
                for x in 0..counts[2] {
                    // Every other line is shifted by half a spacing, so that fewer corners join eight cells.
                    let shift = if (z + y) % 2 == 0 { 0.25 } else { 0.75 };
                    let position_um = [(z, 0.5), (y, 0.5), (x, shift)].map(|(i, offset)| {
                        let jitter = rng.random_range(-JITTER..=JITTER);
                        spacing_um * ((i - LAYERS_OUTSIDE) as f64 + offset + jitter)
                    });
                    let weight =
                        (objects.diameter_spread * 0.5 * random::normal(&mut rng)).clamp(-MAX_WEIGHT, MAX_WEIGHT);
                    let brightness = random::log_normal(&mut rng, 1.0, objects.brightness_spread) as f32;
                    seeds.push(Seed { position_um, weight_um: weight * spacing_um, brightness, tissue: false });
                    // A dome over the field, whose border is rough on the scale of a few cells.
                    let off_center = [0, 1, 2].map(|a| (position_um[a] / extent[a] - 0.5) * [0.5, 1.0, 1.0][a]);
                    let rough = f64::from(border.at(position_um, 4.0 * spacing_um));
                    let away = match &tube {
                        None => length(off_center),
                        Some(points) => nearest(points, position_um) / extent[1].max(extent[2]),
                    };
                    scores.push(-away + 0.12 * rough);
                }
            }
        }
        select_tissue(&mut seeds, &scores, extent, if objects.count == Some(0) { 0.0 } else { objects.fill });
        Ok(Self { spacing_um, counts, seeds, warp, patches, gaps, bend: objects.membranes.bend })
    }

    /// Finds the seeds (indices) that can be nearest to a point within `radius_um` of `center_um`, or contribute a wall
    /// there, sorted by their distance from the center.
    fn candidates(&self, center_um: [f64; 3], radius_um: f64, wall_um: f64, found: &mut Vec<(f64, u32)>) {
        found.clear();
        let range = |a: usize| -> Range<i64> {
            let at = (center_um[a] / self.spacing_um).floor() as i64 + LAYERS_OUTSIDE;
            (at - LAYERS_AROUND).clamp(0, self.counts[a])..(at + LAYERS_AROUND + 1).clamp(0, self.counts[a])
        };
        for z in range(0) {
            for y in range(1) {
                for x in range(2) {
                    let index = ((z * self.counts[1] + y) * self.counts[2] + x) as usize;
                    found.push((self.seeds[index].distance_um(center_um), index as u32));
                }
            }
        }
        // A weighted distance changes by at most the distance moved.
        let nearest = found.iter().map(|(d, _)| *d).fold(f64::INFINITY, f64::min);
        found.retain(|(d, _)| *d <= nearest + 2.0 * radius_um + wall_um);
        found.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    }

    /// A point displaced by the smooth field.
    fn warped(&self, p: [f64; 3]) -> [f64; 3] {
        let grain = 0.6 * self.spacing_um;
        [0, 1, 2].map(|a| p[a] + self.bend * self.spacing_um * f64::from(self.warp[a].at(p, grain)))
    }
}

/// Points of a curved line across the field: the center line of a tube.
fn tube_center_line(extent_um: [f64; 3], rng: &mut impl Rng) -> Vec<[f64; 3]> {
    let angle = rng.random_range(0.0..std::f64::consts::PI);
    let (bend, phase, tilt) = (rng.random_range(-0.3..0.3), rng.random_range(0.0..3.0), rng.random_range(-0.3..0.3));
    let point = |i: usize| {
        let along = 1.6 * (i as f64 / (TUBE_POINTS - 1) as f64 - 0.5);
        let across = bend * (3.0 * along + phase).sin();
        let (sin, cos) = angle.sin_cos();
        let off = [tilt * along, along * cos - across * sin, along * sin + across * cos];
        [0, 1, 2].map(|a| (0.5 + off[a]) * extent_um[a])
    };
    (0..TUBE_POINTS).map(point).collect()
}

/// Distance of a position to the nearest of several points, in µm.
fn nearest(points: &[[f64; 3]], position_um: [f64; 3]) -> f64 {
    let distance = |p: &[f64; 3]| length([0, 1, 2].map(|a| p[a] - position_um[a]));
    points.iter().map(distance).fold(f64::INFINITY, f64::min)
}

/// Selects as tissue the fraction `fill` of the seeds inside the field with the highest scores, and all seeds outside
/// the field with at least the same score.
fn select_tissue(seeds: &mut [Seed], scores: &[f64], extent_um: [f64; 3], fill: f64) {
    let inside = |s: &Seed| (0..3).all(|a| (0.0..=extent_um[a]).contains(&s.position_um[a]));
    let mut ranked: Vec<f64> = seeds.iter().zip(scores).filter(|(s, _)| inside(s)).map(|(_, f)| *f).collect();
    if ranked.is_empty() {
        // The field is smaller than a cell.
        ranked = scores.to_vec();
    }
    ranked.sort_by(|a, b| b.total_cmp(a));
    let chosen = (fill * ranked.len() as f64).ceil() as usize;
    let Some(lowest) = chosen.checked_sub(1).and_then(|last| ranked.get(last)).copied() else { return };
    seeds.iter_mut().zip(scores).for_each(|(s, f)| s.tissue = *f >= lowest);
}

/// Simulates a stack of cells and their labels.
pub(crate) fn simulate(
    settings: &Settings,
    grid: &Grid,
    progress: &ProgressRange<'_>,
) -> Result<SimulatedVolumes, SimulateError> {
    let tissue = Tissue::new(settings, grid)?;
    progress.at(0.03)?;
    let mut labels = vec![0u32; grid.len()];
    let mut light = vec![0.0f32; grid.len()];
    // The voxels of a brick share their candidates. Bricks are small compared with a cell, so there are few candidates.
    let brick = [0, 1, 2].map(|a| ((0.3 * tissue.spacing_um / grid.voxel_um[a]) as usize).clamp(1, 8));
    let layer = brick[0] * grid.plane();
    for_each_slab_pair((&mut labels[..], &mut light[..]), layer, &progress.part(0.03, 0.5), |i, labels, light| {
        paint_layer(&tissue, settings, grid, i * brick[0], brick, labels, light);
    })?;
    let kept = truth::clean_labels(&mut labels, grid, tissue.seeds.len());
    progress.at(0.55)?;
    debris::scatter(&mut light, &labels, settings, grid);
    let raw = exposure::fluorescence(light, settings, grid, &progress.part(0.55, 1.0))?;
    Ok(SimulatedVolumes { raw, labels, object_count: kept.len(), target: None })
}

/// Computes labels (1 + index of the seed) and light (photons) of the slices from `first` on.
fn paint_layer(
    tissue: &Tissue,
    settings: &Settings,
    grid: &Grid,
    first: usize,
    brick: [usize; 3],
    labels: &mut [u32],
    light: &mut [f32],
) {
    let (plane, row) = (grid.plane(), grid.shape[2]);
    let slices = labels.len() / plane;
    let painter = Painter::new(tissue, settings);
    let wall_um = MEMBRANE_HORIZON * painter.sigma_um;
    let (mut candidates, mut distances) = (Vec::new(), Vec::new());
    for y0 in (0..grid.shape[1]).step_by(brick[1]) {
        for x0 in (0..row).step_by(brick[2]) {
            let start = [first, y0, x0];
            let end = [first + slices, (y0 + brick[1]).min(grid.shape[1]), (x0 + brick[2]).min(row)];
            let center = [0, 1, 2].map(|a| 0.5 * (start[a] + end[a]) as f64 * grid.voxel_um[a]);
            let half = [0, 1, 2].map(|a| 0.5 * (end[a] - start[a]) as f64 * grid.voxel_um[a]);
            let radius = length(half) + tissue.bend * tissue.spacing_um * 3f64.sqrt();
            tissue.candidates(center, radius, wall_um, &mut candidates);
            for z in start[0]..end[0] {
                for y in start[1]..end[1] {
                    for x in start[2]..end[2] {
                        let point = [grid.position_um(0, z), grid.position_um(1, y), grid.position_um(2, x)];
                        let at = (z - first) * plane + y * row + x;
                        (labels[at], light[at]) = painter.voxel(point, &candidates, radius, &mut distances);
                    }
                }
            }
        }
    }
}

/// Computes the label and the light of a voxel.
struct Painter<'a> {
    tissue: &'a Tissue,
    photons: f32,
    texture: f32,
    cytoplasm: f32,
    /// Threshold of the gap noise, above which there is a gap.
    gaps_above: f32,
    /// Standard deviation of a membrane's profile in µm.
    sigma_um: f64,
}

impl<'a> Painter<'a> {
    fn new(tissue: &'a Tissue, settings: &Settings) -> Self {
        // The full width at half maximum of a Gaussian is 2.355 σ.
        let sigma_um = settings.objects.membrane_um.min(0.25 * tissue.spacing_um) / 2.355;
        let membranes = settings.objects.membranes;
        Self {
            tissue,
            photons: settings.camera.photons as f32,
            texture: settings.objects.texture as f32,
            cytoplasm: membranes.cytoplasm as f32,
            // The noise is approximately normal with standard deviation 0.35. The threshold is its quantile, in the
            // logistic approximation.
            gaps_above: if membranes.gaps > 0.0 {
                (0.35 * ((1.0 - membranes.gaps) / membranes.gaps).ln() / 1.702) as f32
            } else {
                f32::INFINITY
            },
            sigma_um,
        }
    }

    /// The label (0 outside the tissue) and the photons at a point within `radius_um` of the center for which the
    /// candidates were found. `distances` is a buffer that is reused between calls.
    fn voxel(
        &self,
        point_um: [f64; 3],
        candidates: &[(f64, u32)],
        radius_um: f64,
        distances: &mut Vec<f64>,
    ) -> (u32, f32) {
        let seeds = &self.tissue.seeds;
        let warped = self.tissue.warped(point_um);
        let horizon = MEMBRANE_HORIZON * self.sigma_um;
        distances.clear();
        let (mut distance, mut own) = (f64::INFINITY, 0u32);
        for (at_center, i) in candidates {
            // All further candidates are too far away to contribute.
            if at_center - radius_um > distance + horizon {
                break;
            }
            let d = seeds[*i as usize].distance_um(warped);
            distances.push(d);
            if d < distance || (d == distance && *i < own) {
                (distance, own) = (d, *i);
            }
        }
        let seed = &seeds[own as usize];
        let toward = |s: &Seed| {
            let offset = [0, 1, 2].map(|a| s.position_um[a] - warped[a]);
            let l = length(offset).max(1e-9);
            offset.map(|o| o / l)
        };
        let own_direction = toward(seed);
        let mut membrane = 0.0f32;
        for ((_, i), d) in candidates.iter().zip(distances.iter()) {
            let other = &seeds[*i as usize];
            let excess = d - distance;
            // There are no walls between two cells outside the tissue.
            if *i == own || excess > horizon || !(seed.tissue || other.tissue) {
                continue;
            }
            let direction = toward(other);
            let turn = length([0, 1, 2].map(|a| direction[a] - own_direction[a])).max(0.05);
            let t = excess / (turn * self.sigma_um);
            let brightness = match (seed.tissue, other.tissue) {
                (true, true) => (seed.brightness * other.brightness).sqrt(),
                (true, false) => seed.brightness,
                _ => other.brightness,
            };
            membrane = membrane.max(brightness * (-0.5 * t * t).exp() as f32);
        }
        let patches =
            if membrane > 0.01 { self.tissue.patches.at(point_um, 0.12 * self.tissue.spacing_um) } else { 0.0 };
        if membrane > 0.01 && self.gaps_above.is_finite() {
            let above = self.tissue.gaps.at(point_um, 0.2 * self.tissue.spacing_um) - self.gaps_above;
            membrane *= 1.0 - (1.0 - GAP_LIGHT) * (8.0 * above + 0.5).clamp(0.0, 1.0);
        }
        let inside = if seed.tissue { self.cytoplasm * seed.brightness } else { 0.0 };
        let photons = self.photons * (membrane * (1.0 + self.texture * patches)).max(inside);
        (if seed.tissue { own + 1 } else { 0 }, photons)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn candidates_of_a_brick_include_the_nearest_seed() {
        let mut settings = Settings::new(Kind::Cells, [30, 90, 90], 5);
        settings.objects.diameter_spread = 0.5;
        let grid = settings.check().unwrap();
        let tissue = Tissue::new(&settings, &grid).unwrap();
        let mut rng = random::stream(8, Purpose::Lattice, 1);
        let mut candidates = Vec::new();
        for _ in 0..300 {
            let center = grid.extent_um().map(|e| rng.random_range(0.0..e));
            tissue.candidates(center, 2.5, 1.8, &mut candidates);
            let direction = random::unit_vector(&mut rng);
            let point = [0, 1, 2].map(|a| center[a] + 2.4 * direction[a]);
            let nearest = |seeds: &mut dyn Iterator<Item = u32>| {
                seeds.map(|i| tissue.seeds[i as usize].distance_um(point)).fold(f64::INFINITY, f64::min)
            };
            let nearest_of_all = nearest(&mut (0..tissue.seeds.len() as u32));
            assert_eq!(nearest(&mut candidates.iter().map(|(_, i)| *i)), nearest_of_all);
        }
    }

    #[test]
    fn the_tissue_has_the_requested_fraction_of_seeds() {
        let settings = Settings::new(Kind::Cells, [60, 300, 300], 5);
        let grid = settings.check().unwrap();
        let tissue = Tissue::new(&settings, &grid).unwrap();
        let extent = grid.extent_um();
        let inside: Vec<&Seed> =
            tissue.seeds.iter().filter(|s| (0..3).all(|a| (0.0..=extent[a]).contains(&s.position_um[a]))).collect();
        let share = inside.iter().filter(|s| s.tissue).count() as f64 / inside.len() as f64;
        assert!((share - 0.8).abs() < 0.02, "{share}");
    }
}

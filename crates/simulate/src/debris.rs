//! Light that does not come from nuclei: cell bodies, polar bodies, fragments of dead cells, out-of-focus ghosts.

use crate::{
    Settings, SimulateError,
    grid::Grid,
    nuclei::smooth_step,
    placement_space::PlacementSpace,
    progress::{ProgressRange, each_slab},
    random::{self, Purpose},
    shape::Blob,
    texture::Texture,
};
use rand::Rng;

/// Range of diameters of debris, relative to a nucleus.
const SIZES: (f64, f64) = (0.2, 1.1);

/// Spread of the brightness between pieces: standard deviation of its logarithm.
const SPREAD: f64 = 0.6;

/// Parameters of the light between nuclei: grain size in µm, modulation depth, and margin around the clusters of nuclei
/// (in diameters of a nucleus).
const GLOW: (f64, f32, f64) = (6.0, 0.8, 0.7);

/// Adds the light between nuclei; `labels` are the bodies of the nuclei.
pub(crate) fn glow(
    light: &mut [f32],
    labels: &[u32],
    settings: &Settings,
    grid: &Grid,
    progress: &ProgressRange<'_>,
) -> Result<(), SimulateError> {
    let objects = &settings.objects;
    if objects.glow <= 0.0 {
        return Ok(());
    }
    let (space, (grain_um, depth, margin)) = (PlacementSpace::new(settings, grid, 0.0), GLOW);
    let texture = Texture::new(random::stream(settings.seed, Purpose::Glow, 0).random());
    let (photons, margin_um) = ((settings.camera.photons * objects.glow) as f32, margin * objects.diameter_um);
    let (plane, row) = (grid.plane(), grid.shape[2]);
    each_slab(light, plane, progress, |z, slice| {
        for (i, (value, label)) in slice.iter_mut().zip(&labels[z * plane..]).enumerate() {
            let position = [grid.position_um(0, z), grid.position_um(1, i / row), grid.position_um(2, i % row)];
            if *label == 0 && space.near(position, margin_um) {
                *value += photons * (1.0 + depth * texture.at(position, grain_um));
            }
        }
    })
}

/// Number of octaves of the structured background, each with half the size and half the strength of the previous one.
const OCTAVES: i32 = 4;

/// Adds the structured background outside nuclei; `labels` are the bodies of the nuclei.
pub(crate) fn background(
    light: &mut [f32],
    labels: &[u32],
    settings: &Settings,
    grid: &Grid,
    progress: &ProgressRange<'_>,
) -> Result<(), SimulateError> {
    let wanted = settings.objects.background;
    if wanted.strength <= 0.0 {
        return Ok(());
    }
    let mut rng = random::stream(settings.seed, Purpose::Background, 0);
    let octaves: Vec<(Texture, f64, f32)> =
        (0..OCTAVES).map(|i| (Texture::new(rng.random()), wanted.grain_um * 0.5f64.powi(i), 0.5f32.powi(i))).collect();
    let photons = (settings.camera.photons * wanted.strength) as f32;
    let ridges = wanted.ridges as f32;
    let (plane, row) = (grid.plane(), grid.shape[2]);
    each_slab(light, plane, progress, |z, slice| {
        for (i, (value, label)) in slice.iter_mut().zip(&labels[z * plane..]).enumerate() {
            if *label != 0 {
                continue;
            }
            let position = [grid.position_um(0, z), grid.position_um(1, i / row), grid.position_um(2, i % row)];
            let noise: f32 = octaves.iter().map(|(t, grain, weight)| weight * t.at(position, *grain)).sum();
            // Clouds: noise about 1 with a standard deviation of 0.4. Ridges: high where the noise passes through 0.
            let clouds = (1.0 + 2.0 * noise).max(0.0);
            let sheets = 4.0 * (1.0 - 4.0 * noise.abs()).max(0.0).powi(2);
            *value += photons * ((1.0 - ridges) * clouds + ridges * sheets);
        }
    })
}

/// Adds the light of debris outside nuclei; `labels` are the bodies of the nuclei.
pub(crate) fn scatter(light: &mut [f32], labels: &[u32], settings: &Settings, grid: &Grid) {
    let (objects, space) = (&settings.objects, PlacementSpace::new(settings, grid, 0.0));
    for piece in 0..objects.debris.count {
        let mut rng = random::stream(settings.seed, Purpose::Debris, piece);
        let size = (rng.random_range(SIZES.0.ln()..SIZES.1.ln())).exp();
        let mut blob = Blob::random(&mut rng, size * objects.diameter_um);
        blob.center_um = space.debris_position(&mut rng);
        let brightness = random::log_normal(&mut rng, objects.debris.brightness, SPREAD);
        let texture = Texture::new(rng.random());
        let photons = (settings.camera.photons * brightness) as f32;
        let [slices, rows, columns] = blob.voxels(grid);
        for z in slices {
            for y in rows.clone() {
                for x in columns.clone() {
                    let position = [grid.position_um(0, z), grid.position_um(1, y), grid.position_um(2, x)];
                    let radius = blob.relative_radius(position) as f32;
                    let at = (z * grid.shape[1] + y) * grid.shape[2] + x;
                    if radius < 1.0 && labels[at] == 0 {
                        let grain = 1.0 + texture.at(position, 0.5 * blob.radius_um);
                        light[at] += photons * grain * smooth_step(2.5 * (1.0 - radius));
                    }
                }
            }
        }
    }
}

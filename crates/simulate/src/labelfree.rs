//! Label-free pairs: a bright-field focus stack of cells, and the fluorescence of their nuclei.
//!
//! Cells are bodies of cytoplasm around nuclei, with vesicles. Each voxel has a difference δn of the refractive index
//! from the medium and an absorption µ (1/µm). The values are similar to those measured in living cells, where the
//! index of the nucleus is lower than that of the cytoplasm and the index of the nucleolus is higher (Schürmann et al.,
//! Journal of Biophotonics 9, 2016).
//!
//! The image at focus z is that of a weak object: every object slice z', at defocus Δ = z - z', adds to the background
//!
//! ```text
//! I(z)/I₀ = 1 - Σ_z' w(Δ) · dz · G_σ(Δ) ∗ µ(z')  -  ∇² Σ_z' w(Δ) · Δ · dz · G_σ(Δ) ∗ δn(z')
//! ```
//!
//! The second sum is the transport-of-intensity equation ∂I/∂z = -∇·(I ∇φ)/k with the slice's phase φ = k · δn · dz
//! (Teague, JOSA 73, 1983; Streibl, Optics Communications 49, 1984): a denser spot acts as a lens, bright if the focus
//! is above it (Δ > 0), dark if it is below, and invisible in focus. G is a Gaussian in the plane whose variance
//! increases with defocus, σ(Δ)² = σ_psf² + (½ Δ tan θ)², because the condenser's light cone of half angle θ blurs
//! out-of-focus structures over a disk of radius Δ tan θ. The window w = cos²(π/2 · Δ/(range + dz)) limits the sum to
//! the defocus range.

use crate::{
    Optics, Settings, SimulateError, SimulatedVolumes,
    exposure::Illumination,
    grid::Grid,
    noise,
    nuclei::{Nucleus, Scene, rim, smooth_step},
    optics,
    progress::{ProgressRange, each_slab, for_each_slab_pair},
    random::{self, Purpose},
    shape::items_by_slice,
    texture::Texture,
};
use rand::Rng;
use std::f64::consts::FRAC_PI_2;

/// Radius of a cell relative to its nucleus.
const CELL: f64 = 1.55;

/// Refractive index of water, to which the condenser's aperture refers.
const WATER: f64 = 1.33;

/// Difference of the refractive index from the medium.
mod index_difference {
    pub(super) const CYTOPLASM: f32 = 0.020;
    pub(super) const NUCLEUS: f32 = 0.014;
    pub(super) const ENVELOPE: f32 = 0.008;
    pub(super) const NUCLEOLUS: f32 = 0.014;
    pub(super) const VESICLE: f32 = 0.035;
}

/// Absorption in 1/µm.
mod absorption {
    pub(super) const CYTOPLASM: f32 = 0.001;
    pub(super) const NUCLEUS: f32 = 0.004;
    pub(super) const NUCLEOLUS: f32 = 0.003;
    pub(super) const VESICLE: f32 = 0.02;
}

/// Brightness of the fluorescence target: photons of the average nucleus.
const TARGET_PHOTONS: f64 = 100.0;

/// A droplet in the cytoplasm.
struct Vesicle {
    center_um: [f64; 3],
    radius_um: f64,
}

/// Simulates a bright-field stack, the labels of the nuclei, and their fluorescence.
pub(crate) fn simulate(
    settings: &Settings,
    grid: &Grid,
    progress: &ProgressRange<'_>,
) -> Result<SimulatedVolumes, SimulateError> {
    let scene = Scene::new(settings, grid, CELL, 1.4, &progress.part(0.0, 0.25))?;
    let mut target = scene.light(settings, grid, TARGET_PHOTONS, &progress.part(0.25, 0.3))?;
    optics::blur(&mut target, &mut Vec::new(), grid, settings.optics.psf_sigma_um, &progress.part(0.3, 0.35))?;
    let (index_rise, absorbed) = optical_properties(&scene, settings, grid, &progress.part(0.35, 0.45))?;
    let Scene { labels, nuclei, relative_radius } = scene;
    drop(relative_radius);

    let mut image = contrast(index_rise, absorbed, &settings.optics, grid, &progress.part(0.45, 0.85))?;
    let light = Illumination::new(settings, grid);
    let camera = &settings.camera;
    each_slab(&mut image, grid.plane(), &progress.part(0.85, 0.87), |_, slice| {
        for (y, line) in slice.chunks_exact_mut(grid.shape[2]).enumerate() {
            let y_um = grid.position_um(1, y);
            for (x, value) in line.iter_mut().enumerate() {
                // The weak-object formula can give impossible values if the object is not weak.
                let relative = f64::from((1.0 + *value).clamp(0.02, 4.0));
                let photons = camera.photons * light.at([0.0, y_um, grid.position_um(2, x)]) * relative;
                *value = (photons + camera.background_photons) as f32;
            }
        }
    })?;
    let raw = noise::expose(&mut image, grid, camera, settings.seed, &progress.part(0.87, 1.0))?;
    Ok(SimulatedVolumes { raw, labels, object_count: nuclei.len(), target: Some(target) })
}

/// δn and µ (1/µm) of every voxel.
fn optical_properties(
    scene: &Scene,
    settings: &Settings,
    grid: &Grid,
    progress: &ProgressRange<'_>,
) -> Result<(Vec<f32>, Vec<f32>), SimulateError> {
    let texture = settings.objects.texture as f32;
    let granules = Texture::new(random::stream(settings.seed, Purpose::Texture, 0).random());
    let vesicles: Vec<Vesicle> =
        scene.nuclei.iter().enumerate().flat_map(|(i, n)| vesicles(n, i, settings.seed)).collect();
    let slices =
        items_by_slice(grid, vesicles.iter().map(|v| (v.center_um[0] - v.radius_um, v.center_um[0] + v.radius_um)));
    let (plane, row) = (grid.plane(), grid.shape[2]);
    let mut index_rise = vec![0.0; grid.len()];
    let mut absorbed = vec![0.0; grid.len()];
    for_each_slab_pair((&mut index_rise[..], &mut absorbed[..]), plane, progress, |z, index_rise, absorbed| {
        let z_um = grid.position_um(0, z);
        for (i, (rise, loss)) in index_rise.iter_mut().zip(absorbed.iter_mut()).enumerate() {
            let (label, radius) = (scene.labels[z * plane + i] as usize, scene.relative_radius[z * plane + i]);
            let position = [z_um, grid.position_um(1, i / row), grid.position_um(2, i % row)];
            if label > 0 {
                (*rise, *loss) = nucleus(&scene.nuclei[label - 1], position, radius, texture);
            } else if radius.is_finite() {
                let body = smooth_step((CELL as f32 - radius) / 0.2);
                *rise = index_difference::CYTOPLASM * body * (1.0 + texture * granules.at(position, 0.9));
                *loss = absorption::CYTOPLASM * body;
            }
        }
        for vesicle in slices[z].iter().map(|v| &vesicles[*v as usize]) {
            paint(vesicle, grid, z_um, index_rise, absorbed, |i| scene.labels[z * plane + i] == 0);
        }
    })?;
    Ok((index_rise, absorbed))
}

/// δn and µ at a position in a nucleus.
fn nucleus(nucleus: &Nucleus, position_um: [f64; 3], relative_radius: f32, texture: f32) -> (f32, f32) {
    let (chromatin, nucleolus) = (1.0 + texture * nucleus.chromatin(position_um), nucleus.nucleolus(position_um));
    (
        index_difference::NUCLEUS * chromatin
            + index_difference::ENVELOPE * rim(relative_radius).powi(3)
            + index_difference::NUCLEOLUS * nucleolus,
        absorption::NUCLEUS * chromatin + absorption::NUCLEOLUS * nucleolus,
    )
}

/// Draws the vesicles of a cell: 10 to 24, with radii of 0.25 to 0.55 µm, between its nucleus and its border.
fn vesicles(nucleus: &Nucleus, index: usize, seed: u64) -> Vec<Vesicle> {
    let mut rng = random::stream(seed, Purpose::Vesicles, index);
    let count = rng.random_range(10..=24usize);
    (0..count)
        .map(|_| {
            let direction = random::unit_vector(&mut rng);
            let center_um = nucleus.blob.point_um(direction, rng.random_range(1.12..1.45));
            Vesicle { center_um, radius_um: rng.random_range(0.25..0.55) }
        })
        .collect()
}

/// Adds a vesicle with a soft border to the voxels of a slice for which `free` is true.
fn paint(
    vesicle: &Vesicle,
    grid: &Grid,
    z_um: f64,
    index_rise: &mut [f32],
    absorbed: &mut [f32],
    free: impl Fn(usize) -> bool,
) {
    let [cz, cy, cx] = vesicle.center_um;
    let radius = vesicle.radius_um;
    for y in grid.range(1, cy - radius, cy + radius) {
        for x in grid.range(2, cx - radius, cx + radius) {
            let offset = [z_um - cz, grid.position_um(1, y) - cy, grid.position_um(2, x) - cx];
            let distance = offset.iter().map(|o| o * o).sum::<f64>().sqrt();
            let amount = smooth_step(((radius - distance) / 0.2) as f32);
            let at = y * grid.shape[2] + x;
            if amount > 0.0 && free(at) {
                index_rise[at] += index_difference::VESICLE * amount;
                absorbed[at] += absorption::VESICLE * amount;
            }
        }
    }
}

/// `I/I₀ - 1` at every focus, according to the formula of this module.
fn contrast(
    index_rise: Vec<f32>,
    absorbed: Vec<f32>,
    optics: &Optics,
    grid: &Grid,
    progress: &ProgressRange<'_>,
) -> Result<Vec<f32>, SimulateError> {
    let mut image = through_focus(&index_rise, true, optics, grid, &progress.part(0.0, 0.45))?;
    drop(index_rise);
    optics::laplacian_slices(&mut image, grid, &progress.part(0.45, 0.5))?;
    let mut loss = through_focus(&absorbed, false, optics, grid, &progress.part(0.5, 0.95))?;
    for_each_slab_pair((&mut image[..], &mut loss[..]), grid.plane(), &progress.part(0.95, 1.0), |_, image, loss| {
        image.iter_mut().zip(loss).for_each(|(i, l)| *i = -*i - *l);
    })?;
    Ok(image)
}

/// `Σ_z' w(Δ) · dz · G_σ(Δ) ∗ field(z')` at every focus, with an additional factor Δ if `signed`. The field is zero
/// outside the stack.
fn through_focus(
    field: &[f32],
    signed: bool,
    optics: &Optics,
    grid: &Grid,
    progress: &ProgressRange<'_>,
) -> Result<Vec<f32>, SimulateError> {
    let dz_um = grid.voxel_um[0];
    let range_um = optics.defocus_range_um;
    let steps = ((range_um / dz_um) as usize).min(grid.shape[0] - 1);
    let spread = 0.5 * (optics.condenser_na / WATER).asin().tan();
    let [_, sigma_y, sigma_x] = optics.psf_sigma_um;
    let plane = grid.plane();
    let mut sum = vec![0.0f32; field.len()];
    let mut blurred = Vec::with_capacity(field.len());
    for step in usize::from(signed)..=steps {
        let stage = progress.part(step as f64 / (steps + 1) as f64, (step + 1) as f64 / (steps + 1) as f64);
        let defocus_um = step as f64 * dz_um;
        let sigma = [sigma_y, sigma_x].map(|s| s.hypot(spread * defocus_um));
        blurred.clear();
        blurred.extend_from_slice(field);
        optics::blur_slices(&mut blurred, grid, sigma, &stage.part(0.0, 0.9))?;
        let window = (FRAC_PI_2 * defocus_um / (range_um + dz_um)).cos().powi(2);
        let weight = (window * dz_um * if signed { defocus_um } else { 1.0 }) as f32;
        // The slice below the focus has the defocus +Δ, the slice above -Δ.
        let (below, above) = (weight, if signed { -weight } else { weight });
        each_slab(&mut sum, plane, &stage.part(0.9, 1.0), |z, slice| {
            let mut add = |from: usize, weight: f32| {
                let source = &blurred[from * plane..(from + 1) * plane];
                slice.iter_mut().zip(source).for_each(|(s, b)| *s += weight * b);
            };
            if z >= step {
                add(z - step, below);
            }
            if step > 0 && z + step < grid.shape[0] {
                add(z + step, above);
            }
        })?;
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    fn settings() -> (Settings, Grid) {
        let settings = Settings::new(Kind::LabelFree, [21, 41, 41], 1);
        let grid = settings.check().unwrap();
        (settings, grid)
    }

    /// A ball with a radius of 1.5 µm in the middle.
    fn ball(grid: &Grid, value: f32) -> Vec<f32> {
        (0..grid.len())
            .map(|i| {
                let at = [i / (41 * 41), i / 41 % 41, i % 41];
                let middle = [10, 20, 20];
                let square: f64 =
                    (0..3).map(|a| ((at[a] as f64 - f64::from(middle[a])) * grid.voxel_um[a]).powi(2)).sum();
                if square.sqrt() < 1.5 { value } else { 0.0 }
            })
            .collect()
    }

    #[test]
    fn a_dense_ball_is_bright_above_dark_below_and_faint_in_focus() {
        let (settings, grid) = settings();
        let none = vec![0.0; grid.len()];
        let image = contrast(ball(&grid, 0.02), none, &settings.optics, &grid, &ProgressRange::new(&|_| true)).unwrap();
        let center = |z: usize| image[(z * 41 + 20) * 41 + 20];
        assert!(center(13) > 0.01, "{}", center(13));
        assert!((center(13) + center(7)).abs() < 1e-5, "contrast is odd in defocus");
        assert!(center(10).abs() < 1e-5);
        // Light is redistributed, not created: the mean of a slice is unchanged.
        let mean = image[13 * 41 * 41..14 * 41 * 41].iter().sum::<f32>() / (41.0 * 41.0);
        assert!(mean.abs() < 1e-4, "{mean}");
    }

    #[test]
    fn an_absorbing_ball_is_dark_on_both_sides_and_darkest_in_focus() {
        let (settings, grid) = settings();
        let none = vec![0.0; grid.len()];
        let image = contrast(none, ball(&grid, 0.05), &settings.optics, &grid, &ProgressRange::new(&|_| true)).unwrap();
        let center = |z: usize| image[(z * 41 + 20) * 41 + 20];
        assert!((center(13) - center(7)).abs() < 1e-5);
        assert!(center(10) < center(13) && center(13) < -0.01, "{} {}", center(10), center(13));
        // 0.05/µm over 3 µm absorbs 15 %, minus the part outside the window.
        assert!((-0.16..-0.08).contains(&center(10)), "{}", center(10));
    }

    #[test]
    fn without_defocus_range_only_absorption_is_visible() {
        let (mut settings, grid) = settings();
        settings.optics.defocus_range_um = 0.0;
        let image =
            contrast(ball(&grid, 0.02), vec![0.0; grid.len()], &settings.optics, &grid, &ProgressRange::new(&|_| true))
                .unwrap();
        assert!(image.iter().all(|v| v.abs() < 1e-9));
    }
}

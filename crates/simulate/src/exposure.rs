//! From light in focus to camera counts: point-spread function, haze, uneven illumination, attenuation, noise.

use crate::{
    Optics, Settings, SimulateError,
    grid::Grid,
    noise, optics,
    progress::{ProgressRange, each_slab, for_each_slab_pair},
    random::{self, Purpose},
    settings::MAX_HAZE,
    texture::Texture,
};
use rand::Rng;

/// Illumination of the field: `1 - unevenness · d²`, with d the distance from a random brightest position, relative to
/// the largest distance.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Illumination {
    brightest_um: [f64; 2],
    per_um2: f64,
    /// Bias field: its noise, grain size in µm and strength.
    bias: Option<(Texture, f64, f64)>,
}

impl Illumination {
    /// Draws the illumination. The brightest position lies in the middle third of the field.
    pub(crate) fn new(settings: &Settings, grid: &Grid) -> Self {
        let mut rng = random::stream(settings.seed, Purpose::Illumination, 0);
        let [_, height, width] = grid.extent_um();
        let brightest_um = [height, width].map(|e| e * rng.random_range(1.0 / 3.0..2.0 / 3.0));
        let farthest = |edge: f64, at: f64| at.max(edge - at).powi(2);
        let largest = farthest(height, brightest_um[0]) + farthest(width, brightest_um[1]);
        let strength = settings.optics.bias;
        let bias = (strength > 0.0).then(|| {
            let seed = random::stream(settings.seed, Purpose::Bias, 0).random();
            (Texture::new(seed), 0.5 * grid.extent_um().into_iter().fold(0.0, f64::max), strength)
        });
        Self { brightest_um, per_um2: settings.optics.unevenness / largest, bias }
    }

    /// The light at a position, relative to the brightest position without bias field.
    pub(crate) fn at(&self, position_um: [f64; 3]) -> f64 {
        let ([y, x], [_, y_um, x_um]) = (self.brightest_um, position_um);
        let field = 1.0 - self.per_um2 * ((y_um - y).powi(2) + (x_um - x).powi(2));
        match &self.bias {
            None => field,
            Some((noise, grain_um, strength)) => field * (strength * f64::from(noise.at(position_um, *grain_um))).exp(),
        }
    }
}

/// Blurs light with the point-spread function and its tails; `scratch` is overwritten.
pub(crate) fn focus(
    signal: &mut Vec<f32>,
    scratch: &mut Vec<f32>,
    grid: &Grid,
    optics: &Optics,
    progress: &ProgressRange<'_>,
) -> Result<(), SimulateError> {
    optics::blur(signal, scratch, grid, optics.psf_sigma_um, &progress.part(0.0, 0.4))?;
    if optics.tail_share > 0.0 {
        spread(signal, scratch, grid, optics.tail_sigma_um, |_| optics.tail_share, &progress.part(0.4, 1.0))?;
    }
    Ok(())
}

/// Blurs a fraction of the light, which may depend on the slice.
fn spread(
    signal: &mut [f32],
    scratch: &mut Vec<f32>,
    grid: &Grid,
    sigma_um: [f64; 3],
    share: impl Fn(usize) -> f64 + Sync,
    progress: &ProgressRange<'_>,
) -> Result<(), SimulateError> {
    let mut wide = signal.to_vec();
    optics::blur(&mut wide, scratch, grid, sigma_um, &progress.part(0.0, 0.95))?;
    let slabs = (signal, &mut wide[..]);
    for_each_slab_pair(slabs, grid.plane(), &progress.part(0.95, 1.0), |z, signal, wide| {
        let share = share(z) as f32;
        signal.iter_mut().zip(wide).for_each(|(s, w)| *s = (1.0 - share) * *s + share * *w);
    })
}

/// Distance in µm along Z, Y, X up to which [`focus`] spreads a relevant amount of light.
pub(crate) fn reach_um(optics: &Optics) -> [f64; 3] {
    // Tails contain only a fraction of the light, so two of their standard deviations suffice.
    let tail = |a: usize| if optics.tail_share > 0.0 { 2.0 * optics.tail_sigma_um[a] } else { 0.0 };
    [0, 1, 2].map(|a| 3.0 * optics.psf_sigma_um[a] + tail(a))
}

/// Camera counts of a fluorescence stack, from the light that each voxel emits (photons, before any blur):
/// `light · depth · ((1 - haze) · PSF∗signal + haze · wide∗PSF∗signal) + light · background`, then the camera noise.
pub(crate) fn fluorescence(
    mut signal: Vec<f32>,
    settings: &Settings,
    grid: &Grid,
    progress: &ProgressRange<'_>,
) -> Result<Vec<u16>, SimulateError> {
    let optics = &settings.optics;
    let mut scratch = Vec::new();
    focus(&mut signal, &mut scratch, grid, optics, &progress.part(0.0, 0.25))?;
    if optics.haze > 0.0 || optics.haze_per_um > 0.0 {
        let share = |z: usize| (optics.haze + optics.haze_per_um * grid.position_um(0, z)).min(MAX_HAZE);
        spread(&mut signal, &mut scratch, grid, optics.haze_sigma_um, share, &progress.part(0.25, 0.68))?;
    }
    drop(scratch);
    let light = Illumination::new(settings, grid);
    let background = settings.camera.background_photons;
    each_slab(&mut signal, grid.plane(), &progress.part(0.68, 0.72), |z, slice| {
        let z_um = grid.position_um(0, z);
        let depth = (-optics.attenuation_per_um * z_um).exp();
        for (y, line) in slice.chunks_exact_mut(grid.shape[2]).enumerate() {
            let y_um = grid.position_um(1, y);
            for (x, value) in line.iter_mut().enumerate() {
                let photons = light.at([z_um, y_um, grid.position_um(2, x)]) * (depth * f64::from(*value) + background);
                *value = photons as f32;
            }
        }
    })?;
    let smoothing = settings.camera.smoothing_voxels;
    if smoothing <= 0.0 {
        return noise::expose(&mut signal, grid, &settings.camera, settings.seed, &progress.part(0.72, 1.0));
    }
    let counts = noise::expose(&mut signal, grid, &settings.camera, settings.seed, &progress.part(0.72, 0.9))?;
    signal.iter_mut().zip(counts).for_each(|(s, c)| *s = f32::from(c));
    let sigma_um = [0.5, 1.0, 1.0];
    let sigma_um = [0, 1, 2].map(|a| sigma_um[a] * smoothing * grid.voxel_um[a]);
    optics::blur(&mut signal, &mut Vec::new(), grid, sigma_um, &progress.part(0.9, 1.0))?;
    // A cast from float saturates at both ends of 16 bits.
    Ok(signal.into_iter().map(|s| s.round() as u16).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn the_light_falls_to_the_requested_unevenness() {
        let settings = Settings::new(Kind::Nuclei, [1, 50, 80], 6);
        let grid = settings.check().unwrap();
        let light = Illumination::new(&settings, &grid);
        let [_, height, width] = grid.extent_um();
        let corners = [(0.0, 0.0), (0.0, width), (height, 0.0), (height, width)].map(|(y, x)| light.at([0.0, y, x]));
        let darkest = corners.into_iter().fold(1.0, f64::min);
        assert!((darkest - (1.0 - settings.optics.unevenness)).abs() < 1e-9);
        assert!((light.at([0.0, light.brightest_um[0], light.brightest_um[1]]) - 1.0).abs() < 1e-12);
    }
}

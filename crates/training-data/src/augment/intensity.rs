//! Intensity augmentation: illumination, optics and camera, applied to a normalized patch `[Z][Y][X]` but not to the
//! target.

use super::AugmentOptions;
use crate::error::TrainingDataError;
use crate::normalize::Scaling;
use cytoscope_objects::smooth::gaussian;
use rand::{Rng, RngCore};
use std::sync::OnceLock;

/// Random parameters of the intensity augmentation of a patch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct IntensityParams {
    /// Illumination: slopes along Y and X, and curvature.
    light: Option<[f64; 3]>,
    /// Fraction of the intensity at the dark end, and whether that is the first slice.
    attenuation: Option<(f64, bool)>,
    /// Sigma along Z, Y, X in voxels.
    blur: Option<[f64; 3]>,
    /// Number of averaged slices, and start of the first group.
    slices: Option<(usize, usize)>,
    /// Standard deviation of the photon noise where the intensity is one standard deviation of the stack above its darkest
    /// values, in standard deviations of the stack.
    photons: Option<f64>,
    /// Standard deviation of the constant noise, in standard deviations of the stack.
    gaussian: Option<f64>,
    /// Factor of the differences from the mean of the patch.
    contrast: Option<f64>,
    /// Added to all values, in standard deviations of the stack.
    brightness: Option<f64>,
    /// Exponent of the values, relative to the minimum and the maximum of the patch.
    gamma: Option<f64>,
}

impl IntensityParams {
    /// Draws the parameters; the number of random numbers does not depend on the options.
    pub fn draw(options: &AugmentOptions, rng: &mut impl Rng) -> Self {
        let mut unit = || rng.random::<f64>();
        let mut changes = Self::default();
        let (u, angle, bend) = (unit(), unit() * std::f64::consts::TAU, unit() * 2.0 - 1.0);
        if u < options.illumination.probability {
            let s = options.illumination.strength;
            changes.light = Some([s * angle.sin(), s * angle.cos(), s * bend].map(|v| v / 1.5));
        }
        let (u, kept, end) = (unit(), 1.0 - unit() * options.attenuation.strength, unit() < 0.5);
        if u < options.attenuation.probability {
            changes.attenuation = Some((kept.max(0.01), end));
        }
        let (u, z, yx) = (unit(), unit() * options.blur.sigma_z, unit() * options.blur.sigma_yx);
        if u < options.blur.probability {
            // A sigma below a quarter of a voxel has no visible effect.
            changes.blur = Some([z, yx, yx].map(|s| if s < 0.25 { 0.0 } else { s }));
        }
        let (u, n, phase) = (unit(), unit(), unit());
        if u < options.anisotropy.probability {
            let max = options.anisotropy.max_slices.max(2);
            let count = 2 + ((n * (max - 1) as f64) as usize).min(max - 2);
            changes.slices = Some((count, (phase * count as f64) as usize % count));
        }
        let mut pick = |p: f64, low: f64, high: f64| {
            let (u, at) = (unit(), unit());
            (u < p).then_some(low + (high - low) * at)
        };
        changes.photons = pick(options.photon_noise.probability, 0.0, options.photon_noise.strength);
        changes.gaussian = pick(options.gaussian_noise.probability, 0.0, options.gaussian_noise.strength);
        changes.contrast = pick(options.contrast.probability, options.contrast.min.ln(), options.contrast.max.ln());
        let shift = options.brightness.strength;
        changes.brightness = pick(options.brightness.probability, -shift, shift);
        changes.gamma = pick(options.gamma.probability, options.gamma.min.ln(), options.gamma.max.ln());
        changes.contrast = changes.contrast.map(f64::exp);
        changes.gamma = changes.gamma.map(f64::exp);
        changes
    }

    /// Applies the augmentation to a patch that was normalized by `scaling`.
    pub fn apply(
        &self,
        image: &mut [f32],
        shape: [usize; 3],
        scaling: &Scaling,
        rng: &mut impl RngCore,
    ) -> Result<(), TrainingDataError> {
        if let Some(light) = self.light {
            illuminate(image, shape, light, scaling.dark);
        }
        if let Some((kept, first)) = self.attenuation {
            attenuate(image, shape, kept, first, scaling.dark);
        }
        if let Some(sigma) = self.blur {
            gaussian(image, shape, sigma)?;
        }
        if let Some((count, phase)) = self.slices {
            coarse_slices(image, shape, count, phase);
        }
        noise(
            image,
            self.photons.unwrap_or(0.0) as f32,
            self.gaussian.unwrap_or(0.0) as f32,
            scaling.dark,
            scaling.std,
            rng,
        );
        stretch(image, self.contrast.unwrap_or(1.0), self.brightness.unwrap_or(0.0) * f64::from(scaling.std));
        if let Some(power) = self.gamma {
            gamma(image, power as f32);
        }
        Ok(())
    }
}

/// Multiplies by a factor that changes slowly along Y and X and is about 1 in the center.
fn illuminate(image: &mut [f32], [_, ny, nx]: [usize; 3], [sy, sx, bend]: [f64; 3], dark: f32) {
    let across = |n: usize| move |i: usize| (2.0 * i as f64 + 1.0) / n as f64 - 1.0;
    let (along_y, along_x) = (across(ny), across(nx));
    let columns: Vec<f32> = (0..nx).map(along_x).map(|u| (sx * u + bend * 0.5 * u * u) as f32).collect();
    for (row, values) in image.chunks_exact_mut(nx).enumerate() {
        let v = along_y(row % ny);
        let row_factor = (1.0 + sy * v + bend * 0.5 * v * v) as f32;
        values.iter_mut().zip(&columns).for_each(|(o, c)| *o = dark + (*o - dark) * (row_factor + c).max(0.0));
    }
}

/// Attenuates the intensity exponentially from slice to slice.
fn attenuate(image: &mut [f32], [nz, ny, nx]: [usize; 3], kept: f64, first: bool, dark: f32) {
    if nz < 2 {
        return;
    }
    for (z, plane) in image.chunks_exact_mut(ny * nx).enumerate() {
        let depth = if first { nz - 1 - z } else { z } as f64 / (nz - 1) as f64;
        let factor = kept.powf(depth) as f32;
        plane.iter_mut().for_each(|o| *o = dark + (*o - dark) * factor);
    }
}

/// Averages groups of slices, and interpolates between the centers of the groups.
fn coarse_slices(image: &mut [f32], [nz, ny, nx]: [usize; 3], count: usize, phase: usize) {
    if nz < 2 * count {
        return;
    }
    let plane = ny * nx;
    // Groups start at `phase`; the first and the last group may be smaller.
    let mut starts: Vec<usize> = (phase..nz).step_by(count).collect();
    if phase > 0 {
        starts.insert(0, 0);
    }
    let mut means: Vec<(f32, Vec<f32>)> = Vec::with_capacity(starts.len());
    for (i, start) in starts.iter().enumerate() {
        let end = starts.get(i + 1).copied().unwrap_or(nz);
        let mut mean = vec![0.0f32; plane];
        let share = 1.0 / (end - start) as f32;
        for slice in image[start * plane..end * plane].chunks_exact(plane) {
            mean.iter_mut().zip(slice).for_each(|(m, v)| *m += share * v);
        }
        means.push(((start + end - 1) as f32 / 2.0, mean));
    }
    for (z, slice) in image.chunks_exact_mut(plane).enumerate() {
        let z = z as f32;
        let above = means.iter().position(|(at, _)| *at >= z).unwrap_or(means.len() - 1);
        let below = if means[above].0 > z { above.saturating_sub(1) } else { above };
        let (low, high) = (&means[below], &means[above]);
        let span = high.0 - low.0;
        let share = if span > 0.0 { ((z - low.0) / span).clamp(0.0, 1.0) } else { 0.0 };
        slice.iter_mut().zip(low.1.iter().zip(&high.1)).for_each(|(o, (a, b))| *o = a + (b - a) * share);
    }
}

/// Returns quantiles of the normal distribution at the centers of equally likely intervals, so that a random index
/// gives a normally distributed value.
fn normal_table() -> &'static [f32; TABLE] {
    static TABLE_CELL: OnceLock<Box<[f32; TABLE]>> = OnceLock::new();
    TABLE_CELL.get_or_init(|| {
        let mut table = Box::new([0.0; TABLE]);
        // Numerical integration of the density; each quantile is where the integral reaches the center of its interval.
        let step = 1.0 / 4096.0;
        let (mut x, mut sum) = (-6.0f64, 0.0f64);
        let density = |x: f64| (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
        for (i, value) in table.iter_mut().enumerate() {
            let middle = (i as f64 + 0.5) / TABLE as f64;
            while sum < middle && x < 6.0 {
                sum += density(x + step / 2.0) * step;
                x += step;
            }
            *value = x as f32;
        }
        table
    })
}

/// Number of quantiles in the table.
const TABLE: usize = 4096;

/// Adds photon noise and constant noise in one pass.
fn noise(image: &mut [f32], photons: f32, constant: f32, dark: f32, std: f32, rng: &mut impl RngCore) {
    let positive = std.is_finite() && std > 0.0;
    if !positive || (photons <= 0.0 && constant <= 0.0) {
        return;
    }
    let table = normal_table();
    let mut bytes = [0u8; 512];
    let (photons2, constant2) = (photons * photons * std, constant * constant * std * std);
    for chunk in image.chunks_mut(bytes.len() / 2) {
        rng.fill_bytes(&mut bytes);
        for (v, b) in chunk.iter_mut().zip(bytes.chunks_exact(2)) {
            let draw = table[usize::from(u16::from_le_bytes([b[0], b[1]])) & (TABLE - 1)];
            let variance = photons2 * (*v - dark).max(0.0) + constant2;
            *v += draw * variance.sqrt();
        }
    }
}

/// Computes `(v − mean) · contrast + mean + shift`.
fn stretch(image: &mut [f32], contrast: f64, shift: f64) {
    if contrast == 1.0 && shift == 0.0 {
        return;
    }
    let sum: f64 = image.chunks(4096).map(|c| f64::from(c.iter().sum::<f32>())).sum();
    let mean = sum / image.len().max(1) as f64;
    let (gain, offset) = (contrast as f32, (mean - mean * contrast + shift) as f32);
    image.iter_mut().for_each(|v| *v = *v * gain + offset);
}

/// Raises values, relative to the minimum and the maximum, to a power by means of a table.
fn gamma(image: &mut [f32], power: f32) {
    const STEPS: usize = 1024;
    let (low, high) = image.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), v| (l.min(*v), h.max(*v)));
    let range = high - low;
    if !range.is_finite() || range <= 0.0 {
        return;
    }
    // The table is indexed by the square root, because the power function is steep near 0.
    let curve: Vec<f32> =
        (0..STEPS + 2).map(|i| low + range * ((i as f32 / STEPS as f32).powi(2)).powf(power)).collect();
    for v in image.iter_mut() {
        let at = ((*v - low) / range).clamp(0.0, 1.0).sqrt() * STEPS as f32;
        let i = (at as usize).min(STEPS);
        if let Some([a, b]) = curve.get(i..i + 2) {
            *v = a + (b - a) * (at - i as f32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn the_table_is_normally_distributed() {
        let table = normal_table();
        let n = TABLE as f64;
        let mean = table.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
        let variance = table.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / n;
        let fourth = table.iter().map(|v| f64::from(*v).powi(4)).sum::<f64>() / n;
        assert!(
            mean.abs() < 1e-3 && (variance - 1.0).abs() < 2e-3 && (fourth - 3.0).abs() < 0.05,
            "{mean} {variance} {fourth}"
        );
    }

    #[test]
    fn noise_has_the_requested_standard_deviation() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let deviation = |image: &[f32], about: f32| {
            (image.iter().map(|v| f64::from(v - about).powi(2)).sum::<f64>() / image.len() as f64).sqrt()
        };
        let mut image = vec![3.0f32; 100_000];
        noise(&mut image, 0.0, 0.2, -1.0, 2.0, &mut rng);
        assert!((deviation(&image, 3.0) - 0.4).abs() < 0.005);
        // Photon noise at a signal of four standard deviations is twice that at one.
        let mut image = vec![7.0f32; 100_000];
        noise(&mut image, 0.1, 0.0, -1.0, 2.0, &mut rng);
        assert!((deviation(&image, 7.0) - 0.4).abs() < 0.005);
    }

    #[test]
    fn gamma_keeps_the_range_and_the_order() {
        let mut image: Vec<f32> = (0..1000).map(|i| i as f32 / 100.0 - 3.0).collect();
        let before = image.clone();
        gamma(&mut image, 0.6);
        assert!((image[0] - before[0]).abs() < 1e-5 && (image[999] - before[999]).abs() < 1e-4);
        assert!(image.windows(2).all(|w| w[0] <= w[1]));
        let (low, range) = (before[0], before[999] - before[0]);
        for (v, b) in image.iter().zip(&before) {
            let want = low + range * ((b - low) / range).powf(0.6);
            assert!((v - want).abs() < 0.02, "{v} {want}");
        }
    }

    #[test]
    fn coarse_slices_keep_gradients_and_attenuate_single_slices() {
        let mut image: Vec<f32> = (0..12).flat_map(|z| [z as f32; 4]).collect();
        coarse_slices(&mut image, [12, 2, 2], 3, 1);
        for z in 2..10 {
            assert!((image[z * 4] - z as f32).abs() < 1e-5, "{image:?}");
        }
        let mut spike = vec![0.0f32; 12];
        spike[6] = 3.0;
        coarse_slices(&mut spike, [12, 1, 1], 3, 0);
        assert!(spike.iter().all(|v| *v <= 1.0 + 1e-6));
    }

    #[test]
    fn zero_probabilities_change_nothing() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let changes = IntensityParams::draw(&AugmentOptions::none(), &mut rng);
        assert_eq!(changes, IntensityParams::default());
        let mut image = vec![1.0, 2.0, 3.0];
        let scaling = Scaling { gain: 1.0, offset: 0.0, std: 1.0, dark: 0.0, missing: 0.0 };
        changes.apply(&mut image, [1, 1, 3], &scaling, &mut rng).unwrap();
        assert_eq!(image, [1.0, 2.0, 3.0]);
    }
}

//! The camera: photon (Poisson) noise, read noise, gain, offset and 16 bits.

use crate::{Camera, SimulateError, grid::Grid, progress::ProgressRange, progress::for_each_slab_pair, random};
use rand::Rng;

/// Smallest mean for which Poisson numbers are approximated by normal ones.
const EXACT_BELOW: f64 = 30.0;

/// Largest number of terms of the exact method. Less than 1e-30 of the distribution with mean [`EXACT_BELOW`] is beyond
/// it.
const MAX_TERMS: usize = 128;

/// `1/k`, which avoids a division for each term.
const RECIPROCAL: [f64; MAX_TERMS] = {
    let mut table = [0.0; MAX_TERMS];
    let mut k = 1;
    while k < MAX_TERMS {
        table[k] = 1.0 / k as f64;
        k += 1;
    }
    table
};

/// Standard normal random numbers, generated in pairs.
#[derive(Default)]
struct Normals {
    second: Option<f64>,
}

impl Normals {
    fn draw(&mut self, rng: &mut impl Rng) -> f64 {
        if let Some(second) = self.second.take() {
            return second;
        }
        let (now, later) = random::normal_pair(rng);
        self.second = Some(later);
        now
    }

    /// A Poisson random number: exact (inversion of the distribution function) for means below 30; otherwise
    /// `m + √m g + (g² - 1)/6`, rounded (the Cornish-Fisher expansion). Its mean is exact, its variance including
    /// rounding is `m + 5/36` (0.5 % too large at a mean of 30), and its skewness is correct to first order.
    fn poisson(&mut self, rng: &mut impl Rng, mean: f64) -> f64 {
        if mean <= 0.0 || mean.is_nan() {
            return 0.0;
        }
        if mean >= EXACT_BELOW {
            let g = self.draw(rng);
            return (mean + mean.sqrt() * g + (g * g - 1.0) / 6.0).round().max(0.0);
        }
        let u: f64 = rng.random();
        let mut term = (-mean).exp();
        let mut sum = term;
        let mut k = 0;
        while u > sum && k + 1 < MAX_TERMS {
            k += 1;
            term *= mean * RECIPROCAL[k];
            sum += term;
        }
        k as f64
    }
}

/// Camera counts for the mean number of photons of every voxel: `offset + gain · (Poisson(mean) + read noise)`, rounded
/// and clamped to 16 bits. Each slice has its own random stream.
pub(crate) fn expose(
    photons: &mut [f32],
    grid: &Grid,
    camera: &Camera,
    seed: u64,
    progress: &ProgressRange<'_>,
) -> Result<Vec<u16>, SimulateError> {
    let mut counts = vec![0u16; photons.len()];
    for_each_slab_pair((photons, &mut counts[..]), grid.plane(), progress, |z, photons, counts| {
        let mut rng = random::stream(seed, random::Purpose::Camera, z);
        let mut normals = Normals::default();
        for (count, mean) in counts.iter_mut().zip(photons) {
            let caught = normals.poisson(&mut rng, f64::from(*mean));
            let read = camera.read_noise_photons * normals.draw(&mut rng);
            // A cast from float saturates at both ends of 16 bits.
            *count = (camera.offset_counts + camera.gain_counts_per_photon * (caught + read)).round() as u16;
        }
    })?;
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poisson_draws_have_the_moments_of_the_distribution() {
        for (i, mean) in [0.3, 4.0, 29.5, 30.5, 200.0, 5000.0].into_iter().enumerate() {
            let mut rng = random::stream(11, random::Purpose::Camera, i);
            let mut normals = Normals::default();
            let n = 200_000;
            let draws: Vec<f64> = (0..n).map(|_| normals.poisson(&mut rng, mean)).collect();
            let average = draws.iter().sum::<f64>() / f64::from(n);
            let central = |p: i32| draws.iter().map(|d| (d - average).powi(p)).sum::<f64>() / f64::from(n);
            // Poisson: mean = variance = third central moment. Standard errors: √(m/n), ~m √((2 + 1/m)/n), and for the
            // third, of skewness, ~√((6 + …)/n).
            let count = f64::from(n);
            assert!((average - mean).abs() < 5.0 * (mean / count).sqrt() + 0.001 * mean, "mean {mean}: {average}");
            let variance_error = 5.0 * mean * ((2.0 + 1.0 / mean) / count).sqrt() + 0.004 * mean;
            // Rounding a continuous random number adds 1/12 to the variance.
            let rounding = if mean >= EXACT_BELOW { 1.0 / 12.0 } else { 0.0 };
            assert!((central(2) - mean - rounding).abs() < variance_error, "mean {mean}: variance {}", central(2));
            let skewness = central(3) / central(2).powf(1.5);
            assert!((skewness - mean.powf(-0.5)).abs() < 0.05, "mean {mean}: skewness {skewness}");
        }
    }

    #[test]
    fn small_means_follow_the_exact_probabilities() {
        let mut rng = random::stream(5, random::Purpose::Camera, 0);
        let (mut normals, n, mean) = (Normals::default(), 100_000, 2.5f64);
        let mut seen = [0usize; 12];
        for _ in 0..n {
            let k = normals.poisson(&mut rng, mean) as usize;
            seen[k.min(11)] += 1;
        }
        let mut expected = f64::from(n) * (-mean).exp();
        for (k, seen) in seen.iter().enumerate().take(9) {
            assert!((*seen as f64 - expected).abs() < 5.0 * expected.sqrt() + 1.0, "{k}: {seen} for {expected}");
            expected *= mean / (k as f64 + 1.0);
        }
    }

    #[test]
    fn no_light_gives_the_offset_and_counts_saturate() {
        let grid = Grid { shape: [1, 1, 3], voxel_um: [1.0; 3] };
        let camera = Camera {
            photons: 1.0,
            background_photons: 0.0,
            read_noise_photons: 0.0,
            gain_counts_per_photon: 1.0,
            offset_counts: 5.0,
            smoothing_voxels: 0.0,
        };
        let mut photons = [0.0, -3.0, 1e9];
        let counts = expose(&mut photons, &grid, &camera, 1, &ProgressRange::new(&|_| true)).unwrap();
        assert_eq!(counts, [5, 5, u16::MAX]);
    }
}

//! Random numbers: one ChaCha8 stream per object or slice, so that they do not depend on the order of threads.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::f64::consts::TAU;

/// Use of a random stream; each use has its own family of streams.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    /// Positions and shapes of objects.
    Placement = 1,
    /// Internal structure of one object.
    Appearance = 2,
    /// Photon and read noise of one slice.
    Camera = 3,
    /// Illumination of the field.
    Illumination = 4,
    /// Seeds of space-filling cells.
    Lattice = 5,
    /// Textures that do not belong to an object.
    Texture = 6,
    /// Vesicles of one cell.
    Vesicles = 7,
    /// Deformation of one body.
    Form = 8,
    /// One piece of debris.
    Debris = 9,
    /// Positions of clusters of objects.
    Clusters = 10,
    /// Settings drawn from ranges.
    Varied = 11,
    /// Light between objects.
    Glow = 12,
    /// Bright spots inside one nucleus.
    Spots = 13,
    /// Structured background.
    Background = 14,
    /// Bias field.
    Bias = 15,
    /// Center line of a tube of tissue, and the gaps of its membranes.
    Tissue = 16,
}

/// Creates the random stream of one object or slice.
pub(crate) fn stream(seed: u64, purpose: Purpose, index: usize) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(((purpose as u64) << 48) | index as u64);
    rng
}

/// Two independent standard normal random numbers (Box and Muller 1958).
pub(crate) fn normal_pair(rng: &mut impl Rng) -> (f64, f64) {
    // 1 - u is in (0, 1], so its logarithm is finite.
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    let (sin, cos) = (TAU * rng.random::<f64>()).sin_cos();
    (radius * cos, radius * sin)
}

/// A standard normal random number.
pub(crate) fn normal(rng: &mut impl Rng) -> f64 {
    normal_pair(rng).0
}

/// A log-normal random number with a given mean, whose logarithm has the standard deviation `spread`.
pub(crate) fn log_normal(rng: &mut impl Rng, mean: f64, spread: f64) -> f64 {
    mean * (spread * normal(rng) - 0.5 * spread * spread).exp()
}

/// A uniformly distributed direction.
pub(crate) fn unit_vector(rng: &mut impl Rng) -> [f64; 3] {
    let z = rng.random_range(-1.0..=1.0f64);
    let (sin, cos) = (TAU * rng.random::<f64>()).sin_cos();
    let radius = (1.0 - z * z).max(0.0).sqrt();
    [z, radius * sin, radius * cos]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_differ_by_purpose_and_index_and_repeat() {
        let draw = |p, i| stream(3, p, i).random::<u64>();
        assert_eq!(draw(Purpose::Appearance, 1), draw(Purpose::Appearance, 1));
        assert_ne!(draw(Purpose::Appearance, 1), draw(Purpose::Appearance, 2));
        assert_ne!(draw(Purpose::Appearance, 1), draw(Purpose::Camera, 1));
    }

    #[test]
    fn log_normal_has_the_requested_mean() {
        let mut rng = stream(1, Purpose::Appearance, 0);
        let n = 40_000;
        let mean = (0..n).map(|_| log_normal(&mut rng, 8.0, 0.3)).sum::<f64>() / f64::from(n);
        // The standard error is 8 · 0.31 / sqrt(40000) = 0.012.
        assert!((mean - 8.0).abs() < 0.06, "{mean}");
    }
}

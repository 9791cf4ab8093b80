//! Random numbers: one ChaCha8 stream for each object or slice, so that no draw depends on another thread.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::f64::consts::TAU;

/// What a stream is drawn for; each has its own family of streams.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    /// Where objects lie and how they are shaped.
    Placement = 1,
    /// How one object looks inside.
    Looks = 2,
    /// Photon and read noise of one slice.
    Camera = 3,
    /// The illumination of the field.
    Illumination = 4,
    /// The seeds of space-filling cells.
    Lattice = 5,
    /// Fields of texture that belong to no object.
    Texture = 6,
    /// The vesicles of one cell.
    Vesicles = 7,
    /// What one body is besides its random shape.
    Form = 8,
    /// One piece of debris.
    Debris = 9,
    /// Where clusters of objects lie.
    Clusters = 10,
    /// Settings drawn over ranges.
    Varied = 11,
    /// The light between objects.
    Glow = 12,
    /// Bright spots inside one nucleus.
    Spots = 13,
    /// Structured background.
    Background = 14,
    /// Slow factor on the light.
    Bias = 15,
    /// The course of a tube of tissue, and the gaps of its membranes.
    Tissue = 16,
}

/// The stream of one object or slice.
pub(crate) fn stream(seed: u64, purpose: Purpose, index: usize) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(((purpose as u64) << 48) | index as u64);
    rng
}

/// Two independent standard normal draws (Box and Muller 1958).
pub(crate) fn normal_pair(rng: &mut impl Rng) -> (f64, f64) {
    // 1 - u lies in (0, 1]: its logarithm is finite.
    let radius = (-2.0 * (1.0 - rng.random::<f64>()).ln()).sqrt();
    let (sin, cos) = (TAU * rng.random::<f64>()).sin_cos();
    (radius * cos, radius * sin)
}

/// A standard normal draw.
pub(crate) fn normal(rng: &mut impl Rng) -> f64 {
    normal_pair(rng).0
}

/// A log-normal draw of a given mean, whose logarithm has the standard deviation `spread`.
pub(crate) fn log_normal(rng: &mut impl Rng, mean: f64, spread: f64) -> f64 {
    mean * (spread * normal(rng) - 0.5 * spread * spread).exp()
}

/// A direction drawn uniformly from the sphere.
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
        assert_eq!(draw(Purpose::Looks, 1), draw(Purpose::Looks, 1));
        assert_ne!(draw(Purpose::Looks, 1), draw(Purpose::Looks, 2));
        assert_ne!(draw(Purpose::Looks, 1), draw(Purpose::Camera, 1));
    }

    #[test]
    fn log_normal_has_the_mean_asked_for() {
        let mut rng = stream(1, Purpose::Looks, 0);
        let n = 40_000;
        let mean = (0..n).map(|_| log_normal(&mut rng, 8.0, 0.3)).sum::<f64>() / f64::from(n);
        // The standard error is 8 · 0.31 / sqrt(40000) = 0.012.
        assert!((mean - 8.0).abs() < 0.06, "{mean}");
    }
}

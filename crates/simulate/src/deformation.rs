//! Deformation of a body in addition to its random shape: stretched along the axes, flattened, or mitotic.

use crate::{
    Settings, Stretch,
    options::MAX_STRETCH,
    random::{self, Purpose},
    shape::Blob,
};
use rand::Rng;

/// Ratio of width to thickness of a flat body.
const FLATNESS: f64 = 2.0;

/// Range of diameters of mitotic nuclei, relative to the original diameter.
const MITOTIC_SIZES: std::ops::Range<f64> = 0.55..0.8;

/// Range of the brightness of mitotic nuclei, relative to other nuclei.
const MITOTIC_BRIGHTNESS: std::ops::Range<f64> = 2.0..4.5;

/// Range of the ratio of width to thickness of mitotic nuclei: from balls to plates.
const MITOTIC_FLATNESS: std::ops::Range<f64> = 1.0..2.5;

/// Size and brightness of a mitotic nucleus, relative to other nuclei.
#[derive(Debug, Clone, Copy)]
struct Mitosis {
    size: f64,
    brightness: f64,
}

/// The random deformation of a body. It has its own random stream, so that it does not affect other random numbers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deformation {
    /// Factors along Z, Y, X.
    stretch: Option<[f64; 3]>,
    /// Ratio of width to thickness, and the direction of the thickness if the position does not determine it.
    flat: Option<(f64, [f64; 3])>,
    mitosis: Option<Mitosis>,
}

impl Deformation {
    /// Draws the deformation of the `index`-th placed body.
    pub(crate) fn new(settings: &Settings, index: usize) -> Self {
        let (stretch, mitotic) = (settings.objects.stretch, settings.objects.mitotic);
        if stretch == Stretch::NONE && mitotic <= 0.0 {
            return Self { stretch: None, flat: None, mitosis: None };
        }
        let mut rng = random::stream(settings.seed, Purpose::Form, index);
        let along_z = stretch.spread * random::normal(&mut rng).clamp(-2.5, 2.5);
        let is_flat = rng.random::<f64>() < stretch.flat;
        let direction = random::unit_vector(&mut rng);
        let [z, y, x] = stretch.zyx;
        let factors = [(z * along_z.exp()).clamp(1.0 / MAX_STRETCH, MAX_STRETCH), y, x];
        let flat = is_flat.then_some((FLATNESS, direction));
        if rng.random::<f64>() >= mitotic {
            return Self { stretch: Some(factors), flat, mitosis: None };
        }
        let mitosis = Mitosis {
            size: rng.random_range(MITOTIC_SIZES),
            brightness: rng.random_range(MITOTIC_BRIGHTNESS.start.ln()..MITOTIC_BRIGHTNESS.end.ln()).exp(),
        };
        let flat = Some((rng.random_range(MITOTIC_FLATNESS), direction));
        Self { stretch: Some(factors), flat, mitosis: Some(mitosis) }
    }

    /// Applies the parts of the deformation that do not depend on the position.
    pub(crate) fn shaped(&self, blob: Blob) -> Blob {
        let blob = self.stretch.map_or(blob.clone(), |factors| blob.stretched(factors));
        self.mitosis.map_or(blob.clone(), |m| blob.scaled(m.size))
    }

    /// Flattens a shaped body; `None` if it is not to be flattened. `outward` is the direction of the thickness, if the
    /// position determines it.
    pub(crate) fn flattened(&self, blob: &Blob, outward: Option<[f64; 3]>) -> Option<Blob> {
        let (flatness, direction) = self.flat?;
        // Plates of mitotic nuclei have random directions.
        let outward = outward.filter(|_| self.mitosis.is_none());
        Some(blob.flattened(outward.unwrap_or(direction), flatness))
    }

    /// Brightness of a mitotic body relative to others; `None` if it is not mitotic. Mitotic bodies have no texture.
    pub(crate) fn mitotic_brightness(&self) -> Option<f64> {
        self.mitosis.map(|m| m.brightness)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn flat_fraction_and_stretch_match_the_settings() {
        let mut settings = Settings::new(Kind::Nuclei, [8, 32, 32], 3);
        settings.objects.stretch = Stretch { zyx: [1.6, 1.0, 1.0], spread: 0.2, flat: 0.3 };
        let deformations: Vec<Deformation> = (0..2000).map(|i| Deformation::new(&settings, i)).collect();
        let flat = deformations.iter().filter(|f| f.flat.is_some()).count();
        assert!((500..700).contains(&flat), "{flat}");
        let logs: Vec<f64> = deformations.iter().filter_map(|f| f.stretch).map(|s| s[0].ln()).collect();
        let mean = logs.iter().sum::<f64>() / 2000.0;
        let deviation = (logs.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / 2000.0).sqrt();
        assert!((mean - 1.6f64.ln()).abs() < 0.02 && (deviation - 0.2).abs() < 0.02, "{mean} ± {deviation}");
    }
}

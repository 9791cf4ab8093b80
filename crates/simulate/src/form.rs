//! What a body is besides its random shape: drawn out along the axes, flat, or dividing.

use crate::{
    Settings, Stretch,
    options::MAX_STRETCH,
    random::{self, Purpose},
    shape::Blob,
};
use rand::Rng;

/// Width over thickness of a flat body.
const FLATNESS: f64 = 2.0;

/// Diameters of dividing nuclei as shares of what they had.
const MITOTIC_SIZES: std::ops::Range<f64> = 0.55..0.8;

/// Brightness of dividing nuclei over that of others.
const MITOTIC_BRIGHTNESS: std::ops::Range<f64> = 2.0..4.5;

/// Width over thickness of dividing nuclei: from balls to plates.
const MITOTIC_FLATNESS: std::ops::Range<f64> = 1.0..2.5;

/// A dividing nucleus against others.
#[derive(Debug, Clone, Copy)]
struct Mitosis {
    size: f64,
    brightness: f64,
}

/// A body's own draws; they come from a stream of their own, so that they shift no other draw.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Form {
    /// Factors along Z, Y, X.
    stretch: Option<[f64; 3]>,
    /// Width over thickness, and the direction of the thickness where the place says none.
    flat: Option<(f64, [f64; 3])>,
    mitosis: Option<Mitosis>,
}

impl Form {
    /// The form of the `index`-th body placed.
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

    /// A body with everything of this form that does not depend on its place.
    pub(crate) fn shaped(&self, blob: Blob) -> Blob {
        let blob = self.stretch.map_or(blob.clone(), |factors| blob.stretched(factors));
        self.mitosis.map_or(blob.clone(), |m| blob.scaled(m.size))
    }

    /// A shaped body made flat where this form is; `outward` is the direction of its thickness where its place has one.
    pub(crate) fn flattened(&self, blob: &Blob, outward: Option<[f64; 3]>) -> Option<Blob> {
        let (flatness, direction) = self.flat?;
        // Plates of dividing nuclei stand any way.
        let outward = outward.filter(|_| self.mitosis.is_none());
        Some(blob.flattened(outward.unwrap_or(direction), flatness))
    }

    /// How much brighter than others this body is, where it divides: such a body has no texture either.
    pub(crate) fn mitotic_brightness(&self) -> Option<f64> {
        self.mitosis.map(|m| m.brightness)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn a_share_of_the_bodies_is_flat_and_the_stretch_spreads_about_its_mean() {
        let mut settings = Settings::new(Kind::Nuclei, [8, 32, 32], 3);
        settings.objects.stretch = Stretch { zyx: [1.6, 1.0, 1.0], spread: 0.2, flat: 0.3 };
        let forms: Vec<Form> = (0..2000).map(|i| Form::new(&settings, i)).collect();
        let flat = forms.iter().filter(|f| f.flat.is_some()).count();
        assert!((500..700).contains(&flat), "{flat}");
        let logs: Vec<f64> = forms.iter().filter_map(|f| f.stretch).map(|s| s[0].ln()).collect();
        let mean = logs.iter().sum::<f64>() / 2000.0;
        let deviation = (logs.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / 2000.0).sqrt();
        assert!((mean - 1.6f64.ln()).abs() < 0.02 && (deviation - 0.2).abs() < 0.02, "{mean} ± {deviation}");
    }
}

//! Optional features of a simulation. Each is off by default and then does not change the result.

use crate::{SimulateError, settings::within};
use serde::{Deserialize, Serialize};

/// Largest factor by which a body is stretched or compressed along an axis.
pub(crate) const MAX_STRETCH: f64 = 5.0;

/// Stretching of bodies along the axes of the stack. The volume is preserved: only the ratios of the factors matter.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stretch {
    /// Mean factors along Z, Y, X, each 0.2 to 5: `[1.6, 1.0, 1.0]` makes bodies 1.6 times as long along Z as in the
    /// plane.
    pub zyx: [f64; 3],
    /// Spread of the factor along Z between bodies: standard deviation of its logarithm, 0 to 0.5.
    pub spread: f64,
    /// Fraction of the bodies that are also flat, 0 to 1: half as thick as wide, in random directions.
    pub flat: f64,
}

impl Stretch {
    /// No stretching.
    pub const NONE: Self = Self { zyx: [1.0; 3], spread: 0.0, flat: 0.0 };

    /// Returns an error for values outside their ranges.
    pub(crate) fn check(&self) -> Result<(), SimulateError> {
        for factor in self.zyx {
            within("objects.stretch.zyx", factor, 1.0 / MAX_STRETCH..=MAX_STRETCH)?;
        }
        within("objects.stretch.spread", self.spread, 0.0..=0.5)?;
        within("objects.stretch.flat", self.flat, 0.0..=1.0)
    }
}

impl Default for Stretch {
    fn default() -> Self {
        Self::NONE
    }
}

/// How the outline of a nucleus is defined in the ground truth.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TruthOutline {
    /// The border of its body.
    #[default]
    Body,
    /// The visible border: where the light of the nucleus, after blurring by the objective, falls to a fraction of its
    /// peak. A voxel with light of several nuclei belongs to the brightest one.
    Visible {
        /// The fraction of the peak, 0.02 to 0.9; manual outlines correspond to about 0.2 to 0.25.
        share: f64,
        /// Weight of a level common to the whole stack, 0 to 1, because annotators see all nuclei with the same
        /// contrast. With 0, the fraction refers to the peak of each nucleus; with 1, to the brightness of bright
        /// nuclei (the 75th percentile of the stack); in between, to their geometric mean with this weight. With a
        /// common level, outlines of dim nuclei are smaller and those of bright nuclei larger.
        #[serde(default)]
        common: f64,
    },
}

/// Which objects are in the ground truth, and their outlines; nuclei only.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Truth {
    /// Which voxels the true labels count as part of an object.
    pub outline: TruthOutline,
    /// Nuclei with a brightness below this fraction (0 to 1) of that of bright nuclei (the 75th percentile of the
    /// stack) are in the image but not in the ground truth. 0 keeps all nuclei. The brightness is the mean light of the
    /// body after attenuation, uneven illumination and, with visible outlines, blur.
    pub least_brightness: f64,
}

impl Truth {
    /// Returns an error for values outside their ranges.
    pub(crate) fn check(&self) -> Result<(), SimulateError> {
        if let TruthOutline::Visible { share, common } = self.outline {
            within("truth.outline.visible.share", share, 0.02..=0.9)?;
            within("truth.outline.visible.common", common, 0.0..=1.0)?;
        }
        within("truth.least_brightness", self.least_brightness, 0.0..=1.0)
    }
}

/// Faint bodies and fragments that are in the image but not in the ground truth; nuclei only.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Debris {
    /// Number of pieces in the stack, 0 to 10 000. Their diameters are 0.2 to 1.1 times that of a nucleus.
    pub count: usize,
    /// Mean brightness of the pieces relative to the average nucleus, 0 to 10.
    pub brightness: f64,
}

impl Debris {
    /// No debris.
    pub const NONE: Self = Self { count: 0, brightness: 0.15 };

    /// Returns an error for values outside their ranges.
    pub(crate) fn check(&self) -> Result<(), SimulateError> {
        within("objects.debris.count", self.count as f64, 0.0..=10_000.0)?;
        within("objects.debris.brightness", self.brightness, 0.0..=10.0)
    }
}

impl Default for Debris {
    fn default() -> Self {
        Self::NONE
    }
}

/// Appearance of membranes and tissue; cells only.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Membranes {
    /// Bending of walls: displacement relative to the distance between neighbors, 0 to 0.3.
    pub bend: f64,
    /// Fraction of the membrane that is only weakly stained, 0 to 0.6, in patches of a fifth of a cell.
    pub gaps: f64,
    /// Brightness of the cytoplasm relative to the membrane, 0 to 1.
    pub cytoplasm: f64,
    /// Whether the tissue is a bent tube, like glands and roots, instead of a dome.
    pub tube: bool,
}

impl Membranes {
    /// Nearly flat walls without gaps, in a dome-shaped tissue.
    pub const PLAIN: Self = Self { bend: 0.06, gaps: 0.0, cytoplasm: 0.07, tube: false };

    /// Returns an error for values outside their ranges.
    pub(crate) fn check(&self) -> Result<(), SimulateError> {
        within("objects.membranes.bend", self.bend, 0.0..=0.3)?;
        within("objects.membranes.gaps", self.gaps, 0.0..=0.6)?;
        within("objects.membranes.cytoplasm", self.cytoplasm, 0.0..=1.0)
    }
}

impl Default for Membranes {
    fn default() -> Self {
        Self::PLAIN
    }
}

/// How neighboring nuclei press against each other, as in tissue. Nuclei only.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pressed {
    /// Size of a body relative to the space that it was placed in, 1 to 1.6. Above 1, bodies overlap the space of their
    /// neighbors, and are divided by flat faces there.
    pub swell: f64,
    /// Width of the dark gap between divided bodies, relative to their radius, 0 to 0.5.
    pub gap: f64,
}

impl Pressed {
    /// Bodies as they were placed.
    pub const NONE: Self = Self { swell: 1.0, gap: 0.0 };

    /// Returns an error for values outside their ranges.
    pub(crate) fn check(&self) -> Result<(), SimulateError> {
        within("objects.pressed.swell", self.swell, 1.0..=1.6)?;
        within("objects.pressed.gap", self.gap, 0.0..=0.5)
    }
}

impl Default for Pressed {
    fn default() -> Self {
        Self::NONE
    }
}

/// Bright spots inside nuclei (chromocenters, nuclear bodies, foci).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spots {
    /// Mean number of spots per nucleus, 0 to 100.
    pub count: f64,
    /// Light that a spot adds, relative to the brightness of the nucleus, 0 to 20.
    pub brightness: f64,
    /// Diameter of a spot relative to that of the nucleus, 0.02 to 0.5.
    pub size: f64,
}

impl Spots {
    /// No spots.
    pub const NONE: Self = Self { count: 0.0, brightness: 0.0, size: 0.15 };

    /// Returns an error for values outside their ranges.
    pub(crate) fn check(&self) -> Result<(), SimulateError> {
        within("objects.spots.count", self.count, 0.0..=100.0)?;
        within("objects.spots.brightness", self.brightness, 0.0..=20.0)?;
        within("objects.spots.size", self.size, 0.02..=0.5)
    }
}

impl Default for Spots {
    fn default() -> Self {
        Self::NONE
    }
}

/// Structured background that does not belong to nuclei: fractal noise, from smooth clouds to filaments.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Background {
    /// Mean brightness relative to the average nucleus, 0 to 2.
    pub strength: f64,
    /// Size of the coarsest grains in µm, 0.1 to 1000; three finer octaves are added.
    pub grain_um: f64,
    /// 0 for clouds, 1 for filaments and sheets (ridges of the noise).
    pub ridges: f64,
}

impl Background {
    /// No structured background.
    pub const NONE: Self = Self { strength: 0.0, grain_um: 10.0, ridges: 0.0 };

    /// Returns an error for values outside their ranges.
    pub(crate) fn check(&self) -> Result<(), SimulateError> {
        within("objects.background.strength", self.strength, 0.0..=2.0)?;
        within("objects.background.grain_um", self.grain_um, 0.1..=1000.0)?;
        within("objects.background.ridges", self.ridges, 0.0..=1.0)
    }
}

impl Default for Background {
    fn default() -> Self {
        Self::NONE
    }
}

/// How nuclei are distributed in the volume.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Placement {
    /// Anywhere in the field; nuclei may be cut by its borders.
    #[default]
    Field,
    /// In balls or shells surrounded by empty space, such as embryos and spheroids. `fill` is then the fraction of
    /// their volume that nuclei occupy, and flat nuclei are parallel to their surface.
    Clusters {
        /// Number of balls in the field, 1 to 1000. They may overlap.
        count: usize,
        /// Largest distance of the center of a nucleus from the center of the ball in µm, 1 to 2000.
        radius_um: f64,
        /// Radius of the cavity relative to `radius_um`: from 0 (a ball) to 0.95 (a thin shell).
        hollow: f64,
    },
}

impl Placement {
    /// Returns an error for values outside their ranges.
    pub(crate) fn check(&self) -> Result<(), SimulateError> {
        let Self::Clusters { count, radius_um, hollow } = *self else { return Ok(()) };
        within("objects.placement.clusters.count", count as f64, 1.0..=1000.0)?;
        within("objects.placement.clusters.radius_um", radius_um, 1.0..=2000.0)?;
        within("objects.placement.clusters.hollow", hollow, 0.0..=0.95)
    }
}

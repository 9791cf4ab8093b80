//! Options beyond the defaults of a kind; each is off, and changes no byte, until it is asked for.

use crate::{SimulateError, settings::within};
use serde::{Deserialize, Serialize};

/// The most that a body is drawn out, or pressed together, along an axis.
pub(crate) const MAX_STRETCH: f64 = 5.0;

/// How bodies are drawn out along the axes of the stack. A body keeps its volume: only the ratios of the factors count.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stretch {
    /// Mean factors along Z, Y, X, each 0.2 to 5: `[1.6, 1.0, 1.0]` makes bodies 1.6 times as long along Z as in the plane.
    pub zyx: [f64; 3],
    /// Spread of the factor along Z from body to body: standard deviation of its logarithm, 0 to 0.5.
    pub spread: f64,
    /// Share of the bodies that are flat besides, 0 to 1: half as thick as they are wide, turned any way.
    pub flat: f64,
}

impl Stretch {
    /// Bodies as they are.
    pub const NONE: Self = Self { zyx: [1.0; 3], spread: 0.0, flat: 0.0 };

    /// Refuses values outside their ranges.
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

/// Where the outline of a nucleus lies in the truth.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum TruthOutline {
    /// Where its body ends.
    #[default]
    Body,
    /// Where it is seen to end: where its own light, as the objective blurs it, falls to a share of its peak. A voxel that
    /// shows several nuclei belongs to the one that sends it the most light.
    Visible {
        /// The share of the peak, 0.02 to 0.9; people draw outlines at about 0.2 to 0.25.
        share: f64,
        /// How far one level holds for the whole stack, 0 to 1: who draws outlines sees all nuclei at one contrast. At 0 the
        /// share is of each nucleus' own peak, at 1 of the light of the bright nuclei's bodies (the 75th percentile of the
        /// stack), between of their geometric mean with this weight: dim nuclei are drawn small, bright ones large.
        #[serde(default)]
        common: f64,
    },
}

/// Which objects the truth tells of, and how; nuclei only.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Truth {
    /// Where outlines lie.
    pub outline: TruthOutline,
    /// Nuclei whose light is less than this share, 0 to 1, of the bright nuclei's (the 75th percentile of the stack) are in
    /// the image and not in the truth. 0 keeps all. Light is the mean of the body, less what is lost in depth, to uneven
    /// light and, with visible outlines, to blur.
    pub least_brightness: f64,
}

impl Truth {
    /// Refuses values outside their ranges.
    pub(crate) fn check(&self) -> Result<(), SimulateError> {
        if let TruthOutline::Visible { share, common } = self.outline {
            within("truth.outline.visible.share", share, 0.02..=0.9)?;
            within("truth.outline.visible.common", common, 0.0..=1.0)?;
        }
        within("truth.least_brightness", self.least_brightness, 0.0..=1.0)
    }
}

/// Faint bodies and crumbs that are in the image and never in the truth; nuclei only.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Debris {
    /// Pieces in the stack, 0 to 10 000. Their diameters are 0.2 to 1.1 of a nucleus'.
    pub count: usize,
    /// Their mean brightness relative to the average nucleus, 0 to 10.
    pub brightness: f64,
}

impl Debris {
    /// None.
    pub const NONE: Self = Self { count: 0, brightness: 0.15 };

    /// Refuses values outside their ranges.
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

/// How membranes and tissue look; cells only.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Membranes {
    /// How far walls are bent: displacement in distances of neighbours, 0 to 0.3.
    pub bend: f64,
    /// Share of the membrane that is hardly stained, 0 to 0.6, in patches of a fifth of a cell.
    pub gaps: f64,
    /// Light inside a cell relative to its membrane, 0 to 1.
    pub cytoplasm: f64,
    /// Whether the tissue is a bent tube, as glands and roots are, instead of a dome.
    pub tube: bool,
}

impl Membranes {
    /// Nearly flat walls without gaps, in a dome.
    pub const PLAIN: Self = Self { bend: 0.06, gaps: 0.0, cytoplasm: 0.07, tube: false };

    /// Refuses values outside their ranges.
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

/// Bright spots inside nuclei (chromocentres, nuclear bodies, foci).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spots {
    /// Spots in a nucleus on average, 0 to 100.
    pub count: f64,
    /// Light of a spot above that around it, relative to the nucleus' own, 0 to 20.
    pub brightness: f64,
    /// Diameter of a spot as a share of the nucleus', 0.02 to 0.5.
    pub size: f64,
}

impl Spots {
    /// None.
    pub const NONE: Self = Self { count: 0.0, brightness: 0.0, size: 0.15 };

    /// Refuses values outside their ranges.
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

/// Structured light that belongs to no nucleus: fractal noise, from smooth clouds to filaments.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Background {
    /// Its mean light relative to the average nucleus, 0 to 2.
    pub strength: f64,
    /// Size of its coarsest grains in µm, 0.1 to 1000; three finer octaves are added.
    pub grain_um: f64,
    /// 0 for clouds, 1 for filaments and sheets (ridges of the noise).
    pub ridges: f64,
}

impl Background {
    /// None.
    pub const NONE: Self = Self { strength: 0.0, grain_um: 10.0, ridges: 0.0 };

    /// Refuses values outside their ranges.
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

/// Where nuclei may lie.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Placement {
    /// Anywhere in the field, and cut by its edges.
    #[default]
    Field,
    /// In balls or shells with empty space around them, such as embryos and spheroids; `fill` is then the share of theirs
    /// that nuclei take up, and flat nuclei lie along their surface.
    Clusters {
        /// Balls in the field, 1 to 1000. They may run into each other.
        count: usize,
        /// Radius in µm up to which centres of nuclei lie, 1 to 2000.
        radius_um: f64,
        /// Radius of the hollow inside as a share of `radius_um`: 0 = a ball, to 0.95 = a thin shell.
        hollow: f64,
    },
}

impl Placement {
    /// Refuses values outside their ranges.
    pub(crate) fn check(&self) -> Result<(), SimulateError> {
        let Self::Clusters { count, radius_um, hollow } = *self else { return Ok(()) };
        within("objects.placement.clusters.count", count as f64, 1.0..=1000.0)?;
        within("objects.placement.clusters.radius_um", radius_um, 1.0..=2000.0)?;
        within("objects.placement.clusters.hollow", hollow, 0.0..=0.95)
    }
}

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

//! The physical size of a voxel.

use serde::{Deserialize, Serialize};

/// Size of a voxel in µm along Z, Y, X; `None` where a file does not say.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct VoxelSize {
    /// Distance of two slices in µm.
    pub z: Option<f64>,
    /// Distance of two rows in µm.
    pub y: Option<f64>,
    /// Distance of two columns in µm.
    pub x: Option<f64>,
}

impl VoxelSize {
    /// A fully known voxel size in µm.
    pub fn new_um(z: f64, y: f64, x: f64) -> Self {
        Self { z: Some(z), y: Some(y), x: Some(x) }
    }

    /// The sizes `[z, y, x]` in µm, with 1 µm where the size is unknown, not finite or not positive.
    pub fn zyx_or_unit(self) -> [f64; 3] {
        [self.z, self.y, self.x].map(|s| s.filter(|v| v.is_finite() && *v > 0.0).unwrap_or(1.0))
    }

    /// The sizes `[z, y, x]` in µm when all three are known, finite and positive.
    pub fn zyx(self) -> Option<[f64; 3]> {
        let ok = |s: Option<f64>| s.filter(|v| v.is_finite() && *v > 0.0);
        Some([ok(self.z)?, ok(self.y)?, ok(self.x)?])
    }

    /// Volume of one voxel in µm³ (unknown sizes count as 1 µm).
    pub fn volume_um3(self) -> f64 {
        self.zyx_or_unit().iter().product()
    }
}

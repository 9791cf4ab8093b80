//! What a network is to learn from a label patch.

pub(crate) mod distance;
pub(crate) mod gaps;
pub(crate) mod make;

pub use gaps::GapWeight;

use crate::error::{SamplesError, check_range};
use serde::{Deserialize, Serialize};

/// The target's channels. All of them are made from the augmented label patch, so distances are true ones in µm of the patch's grid.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum TargetKind {
    /// 1 in objects, 0 elsewhere.
    Semantic,
    /// Foreground, and height: the distance of a voxel to the nearest one that is not of its object, divided by the greatest
    /// such distance in the object; 0 outside objects.
    Instances,
    /// Foreground, and a band: voxels of objects that have a voxel of another object or of background beside them or within a width.
    Boundary {
        /// Width of the band in µm.
        width_um: f64,
    },
    /// Foreground, and `tanh(distance / scale)` of the distance of a voxel to the nearest one that is not of its object.
    Distance {
        /// Scale in µm.
        scale_um: f64,
    },
    /// Foreground, and the unit vector (Z, Y, X, in µm) to the voxel of the object that is nearest to its centroid; 0 there and outside.
    Flow,
    /// The target image's intensities as they are.
    Regression,
}

impl TargetKind {
    /// Number of channels.
    pub fn channels(&self) -> usize {
        match self {
            TargetKind::Semantic | TargetKind::Regression => 1,
            TargetKind::Instances | TargetKind::Boundary { .. } | TargetKind::Distance { .. } => 2,
            TargetKind::Flow => 4,
        }
    }

    /// Names of the channels, in order.
    pub fn channel_names(&self) -> &'static [&'static str] {
        match self {
            TargetKind::Semantic => &["foreground"],
            TargetKind::Instances => &["foreground", "height"],
            TargetKind::Boundary { .. } => &["foreground", "boundary"],
            TargetKind::Distance { .. } => &["foreground", "distance"],
            TargetKind::Flow => &["foreground", "flow_z", "flow_y", "flow_x"],
            TargetKind::Regression => &["intensity"],
        }
    }

    /// Whether the target is made of labels.
    pub fn of_labels(&self) -> bool {
        !matches!(self, TargetKind::Regression)
    }

    /// Whether an object has to be seen beyond the patch to be measured.
    pub(crate) fn needs_margin(&self) -> bool {
        !matches!(self, TargetKind::Semantic | TargetKind::Regression)
    }

    pub(crate) fn check(&self) -> Result<(), SamplesError> {
        let um = "a length above 0 and up to 1 000 000 µm";
        match self {
            TargetKind::Boundary { width_um } => check_range("the width of the boundary", *width_um, 1e-9..=1e6, um),
            TargetKind::Distance { scale_um } => check_range("the scale of the distance", *scale_um, 1e-9..=1e6, um),
            _ => Ok(()),
        }
    }
}

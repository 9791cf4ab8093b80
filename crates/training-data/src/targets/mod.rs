//! Training targets, computed from label patches.

pub(crate) mod channels;
pub(crate) mod gaps;

pub use gaps::GapWeight;

use crate::error::{TrainingDataError, check_range};
use serde::{Deserialize, Serialize};

/// Kind of a training target. All channels are computed from the augmented label patch, so distances are correct in µm.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum TargetKind {
    /// 1 in objects, 0 elsewhere.
    Semantic,
    /// Foreground, and height: the distance of a voxel to the nearest voxel outside its object, divided by the maximum
    /// of this distance in the object; 0 outside objects.
    Instances,
    /// Foreground, and boundary: voxels of objects that are adjacent to, or within a width of, another object or
    /// background.
    Boundary {
        /// Width of the boundary in µm.
        width_um: f64,
    },
    /// Foreground, and `tanh(distance / scale)`, with the distance of a voxel to the nearest voxel outside its object.
    Distance {
        /// Distance in µm at which the target is tanh(1) = 0.76.
        scale_um: f64,
    },
    /// Foreground, and flow: the unit vector (Z, Y, X) toward the center of the object, which is its voxel closest to the
    /// centroid; 0 at the center and outside objects.
    Flow,
    /// Intensities of the target image.
    Regression,
}

impl TargetKind {
    /// Returns the number of channels; for regression, the number for each stain.
    pub fn channels(&self) -> usize {
        match self {
            TargetKind::Semantic | TargetKind::Regression => 1,
            TargetKind::Instances | TargetKind::Boundary { .. } | TargetKind::Distance { .. } => 2,
            TargetKind::Flow => 4,
        }
    }

    /// Returns the names of the channels in order.
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

    /// Returns whether the target is computed from labels.
    pub fn is_from_labels(&self) -> bool {
        !matches!(self, TargetKind::Regression)
    }

    /// Returns whether objects beyond the patch border affect the target.
    pub(crate) fn needs_margin(&self) -> bool {
        !matches!(self, TargetKind::Semantic | TargetKind::Regression)
    }

    pub(crate) fn check(&self) -> Result<(), TrainingDataError> {
        let um = "a length above 0 and up to 1 000 000 µm";
        match self {
            TargetKind::Boundary { width_um } => check_range("the width of the boundary", *width_um, 1e-9..=1e6, um),
            TargetKind::Distance { scale_um } => check_range("the scale of the distance", *scale_um, 1e-9..=1e6, um),
            _ => Ok(()),
        }
    }
}

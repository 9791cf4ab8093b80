//! Settings of the architecture of a network that is trained from scratch.

use crate::error::wrong_use;
use cytoscope_pipeline::JobError;
use serde::{Deserialize, Serialize};

/// Architecture of the U-Net that is trained from scratch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkConfig {
    /// Channels of each level, from the finest to the coarsest.
    pub filters: Vec<usize>,
    /// Stride along Z, Y, X into each level after the first; derived from the voxel size if empty.
    pub strides: Vec<[usize; 3]>,
    /// Convolutions per block.
    pub convs_per_block: usize,
    /// Factor k of the compression kx / (1 + |kx|) of the input, which reduces the difference between bright and dim
    /// objects; 0 disables it. For segmentation only.
    pub compress: f32,
    /// Deep supervision: during training, coarser levels have their own outputs, whose loss weight is halved from
    /// level to level. The trained network has a single output.
    pub deep_supervision: bool,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            filters: vec![16, 32, 64],
            strides: Vec::new(),
            convs_per_block: 2,
            compress: 4.0,
            deep_supervision: false,
        }
    }
}

impl NetworkConfig {
    /// Checks that a network can be built from the settings.
    ///
    /// # Errors
    /// [`JobError::WrongUse`] for the first setting that is out of range.
    pub(super) fn check(&self) -> Result<(), JobError> {
        let levels = self.filters.len();
        if !(1..=6).contains(&levels) {
            return Err(wrong_use(format!("network.filters has {levels} levels: expected 1 to 6")));
        }
        if let Some(filters) = self.filters.iter().find(|filters| !(1..=1024).contains(*filters)) {
            return Err(wrong_use(format!("network.filters has {filters}: expected 1 to 1024 in each level")));
        }
        if !(1..=8).contains(&self.convs_per_block) {
            let found = self.convs_per_block;
            return Err(wrong_use(format!("network.convs_per_block is {found}: expected 1 to 8")));
        }
        if !(0.0..=1000.0).contains(&self.compress) {
            return Err(wrong_use(format!("network.compress is {:?}: expected 0 to 1000", self.compress)));
        }
        let strides = self.strides.len();
        if strides > 0 && strides + 1 != levels {
            return Err(wrong_use(format!(
                "network.strides has {strides} entries, but network.filters {levels}: expected one entry fewer"
            )));
        }
        if let Some(stride) = self.strides.iter().flatten().find(|stride| !(1..=4).contains(*stride)) {
            return Err(wrong_use(format!("network.strides has {stride}: expected 1 to 4 along Z, Y, X")));
        }
        Ok(())
    }
}

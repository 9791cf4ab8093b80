//! The plan of a pass: its slabs and bands, and the memory that it needs beside the network's buffers.

use super::grid::{CACHED_SLICES, READ_SLICES};
use super::pass::QUEUED_SLABS;
use cytoscope_engine::RollingPlan;
use serde::{Deserialize, Serialize};

/// How a volume passes through the network once, instead of in tiles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PassPlan {
    /// Slices that pass together.
    pub slab_slices: usize,
    /// Bands of rows, each of which passes from the first slice to the last; 1 if whole slices pass. Bands overlap by
    /// the receptive field along Y.
    pub bands: usize,
    /// Computed multiply-accumulates relative to those of the untiled network; above 1 where bands overlap.
    pub work: f64,
}

/// A pass that fits the memory budget.
pub(super) struct PlannedPass {
    /// Z, Y, X of the volume, extended to what the network accepts.
    pub tile: [usize; 3],
    /// The first slice that passes.
    pub first_z: usize,
    pub plan: Box<dyn RollingPlan>,
    pub peak_bytes: u64,
}

impl PlannedPass {
    /// Returns the computed multiply-accumulates relative to those of the untiled network.
    pub(super) fn work(&self) -> f64 {
        self.plan.macs() as f64 / self.plan.untiled_macs().max(1) as f64
    }
}

/// The sizes that determine the memory of the stages of a pass.
pub(super) struct PassSizes {
    /// Z, Y, X of the volume, extended to what the network accepts.
    pub tile: [usize; 3],
    /// Z, Y, X of the volume on the model's grid.
    pub shape: [usize; 3],
    /// Z, Y, X of the input.
    pub zyx: [usize; 3],
    /// Channels of the network's input and output.
    pub channels: [usize; 2],
    /// Slices on each side that an output slice depends on.
    pub reach_z: usize,
    /// Bytes of a slice as stored in the file.
    pub read_slice_bytes: u64,
}

impl PassSizes {
    /// Returns the bytes that reading, the queues, storing and writing hold with slabs of `slab_slices` slices.
    pub(super) fn bytes(&self, slab_slices: usize) -> u64 {
        let [inputs, outputs] = self.channels.map(|n| n as u64);
        let slice = |rows: usize, columns: usize| (rows * columns) as u64 * 4;
        let (model_bytes, own_bytes) = (slice(self.tile[1], self.tile[2]), slice(self.zyx[1], self.zyx[2]));
        let is_resampled = self.shape != self.zyx;
        // The slices that are read, on the input's grid, and those that the reader caches while it replaces the cache.
        let scale = self.zyx[0].div_ceil(self.shape[0].max(1));
        let (sources, cached) =
            if is_resampled { ((slab_slices + 2) * scale, 2 * CACHED_SLICES) } else { (slab_slices, 0) };
        let read = (sources + cached + READ_SLICES) as u64 * own_bytes * inputs;
        let stored = 2 * READ_SLICES as u64 * self.read_slice_bytes;
        // The slabs that wait, the one in the network, and copies of the one being read.
        let copies = usize::from(self.tile != self.shape) + 2 * usize::from(is_resampled);
        let slabs = ((QUEUED_SLABS + 1 + copies) * slab_slices) as u64 * model_bytes * inputs;
        // At the end of the stack, the slices in the last receptive field come out together. They are cropped or copied
        // once while earlier ones wait.
        let last = slab_slices + self.reach_z;
        let passed_on = (3 * last + QUEUED_SLABS * slab_slices) as u64 * model_bytes * outputs;
        // A slice of the maps is resampled from a few slices of the prediction.
        let sources = if is_resampled { 2 + 2 * self.shape[0].div_ceil(self.zyx[0].max(1)) } else { 1 };
        let maps = sources as u64 * model_bytes + 2 * own_bytes * outputs;
        read + stored + slabs + passed_on + maps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_holds_slabs_and_not_the_stack() {
        let sizes = |depth| PassSizes {
            tile: [depth, 512, 512],
            shape: [depth, 512, 512],
            zyx: [depth, 512, 512],
            channels: [1, 1],
            reach_z: 12,
            read_slice_bytes: 2 * 512 * 512,
        };
        assert_eq!(sizes(64).bytes(8), sizes(1024).bytes(8));
        // A slab is read, one waits and one is in the network; on the way out, one waits and three are passed on.
        let slab_bytes = 8 * 512 * 512 * 4;
        assert_eq!(sizes(64).bytes(16) - sizes(64).bytes(8), (3 + 4) * slab_bytes);
    }
}

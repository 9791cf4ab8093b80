//! Facts about a run besides its spans: the input of [`crate::advise`].

use crate::device::{RunDevice, RunPrecision};
use crate::memory::bytes_text;
use crate::{DeviceMemoryPeak, MachinePeak, MemoryPeak, Slowdown};
use serde::{Deserialize, Serialize};

/// Number of voxels that larger tiles must compute at most, relative to the present ones, to be worth a change.
const WORTHWHILE_WORK: f64 = 0.9;
/// Maximum factor by which tiles are enlarged along an axis.
const MAX_ENLARGED: usize = 4;

/// Facts about a whole run. What was not measured is `None` or empty.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunFacts {
    /// Wall time of the whole run in seconds.
    pub wall_secs: f64,
    /// CPU time of the process in seconds, summed over threads.
    pub cpu_secs: Option<f64>,
    /// Number of threads that the run computed with.
    pub threads: Option<usize>,
    /// Number of cores that the process may use.
    pub cores: Option<usize>,
    /// Peak resident memory in bytes.
    pub peak_bytes: Option<u64>,
    /// The sampled peak of the memory, and what ran then; only with a trace.
    pub memory_peak: Option<MemoryPeak>,
    /// The sampled peak of the memory of devices, and what ran then; only with a trace, and of runs on a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_memory_peak: Option<DeviceMemoryPeak>,
    /// Measured peak rates of the machine, with the threads of the run; only of runs on the CPU whose operators were
    /// timed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine_peak: Option<MachinePeak>,
    /// Bytes of memory of the machine, or of the process' control group if it allows fewer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Whether the same work became slower during the run; only of runs whose spans were recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowdown: Option<Slowdown>,
    /// Seconds in which devices were found and compared, and networks checked; `None` if that was not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify_secs: Option<f64>,
    /// Facts of each predicted input; empty for other jobs.
    pub inputs: Vec<InputFacts>,
    /// Facts of the training run; `None` for other jobs.
    pub training: Option<TrainingFacts>,
}

impl RunFacts {
    /// Returns whether all work of a prediction or training run was done on the CPU; `false` for other jobs.
    pub fn is_on_cpu(&self) -> bool {
        let training_device = self.training.iter().map(|training| &training.device);
        let mut devices = self.inputs.iter().map(|input| &input.device).chain(training_device).peekable();
        devices.peek().is_some() && devices.all(RunDevice::is_cpu)
    }

    /// Returns whether a device other than the CPU ran networks or training steps.
    pub fn used_gpu(&self) -> bool {
        let training_device = self.training.iter().map(|training| &training.device);
        let mut devices = self.inputs.iter().map(|input| &input.device).chain(training_device);
        devices.any(|device| !device.is_cpu() && !device.as_str().is_empty())
    }
}

/// Facts about the prediction of one input.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct InputFacts {
    /// Name of the input.
    pub name: String,
    /// Wall time in seconds.
    pub seconds: f64,
    /// Number of predicted voxels.
    pub voxels: u64,
    /// Whether it has a single slice.
    pub is_plane: bool,
    /// Device that computed the network.
    pub device: RunDevice,
    /// Number format of the network.
    pub precision: RunPrecision,
    /// Measured times that the choice of the device is based on.
    pub measured: Vec<DeviceTime>,
    /// How the input was tiled.
    pub tiles: Option<TileFacts>,
    /// Visibility of tile seams: how much more neighboring voxels differ across borders of tiles than beside them, as a share.
    pub seam_energy: Option<f64>,
    /// The object diameter, for models with a nominal one.
    pub diameter: Option<DiameterFacts>,
    /// Traffic between the host and the device; `None` on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic: Option<DeviceTraffic>,
    /// Seconds of the copies between host and device; `None` on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfer_secs: Option<f64>,
    /// Seconds in which the network was run on the device, without these copies; `None` on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compute_secs: Option<f64>,
    /// Number of objects at all time points; `None` if none were searched for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub objects: Option<u64>,
}

/// Traffic between the host and a device that has its own memory, and how often both wait for each other. Runs
/// that only serve to time kernels are not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceTraffic {
    /// Number of runs of the network; in training, of the graphs of a step.
    pub runs: u64,
    /// Steps of all runs. A step is one or more kernel launches; the library that launches them does not report how many.
    pub steps: u64,
    /// Tensors copied to the device: weights and inputs.
    pub uploads: u64,
    /// Their size in bytes.
    pub uploaded_bytes: u64,
    /// Tensors copied from the device.
    pub downloads: u64,
    /// Their size in bytes.
    pub downloaded_bytes: u64,
    /// How often the host waited for the device, downloads not included.
    pub synchronizations: u64,
}

impl DeviceTraffic {
    /// Returns the sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            runs: self.runs.saturating_add(other.runs),
            steps: self.steps.saturating_add(other.steps),
            uploads: self.uploads.saturating_add(other.uploads),
            uploaded_bytes: self.uploaded_bytes.saturating_add(other.uploaded_bytes),
            downloads: self.downloads.saturating_add(other.downloads),
            downloaded_bytes: self.downloaded_bytes.saturating_add(other.downloaded_bytes),
            synchronizations: self.synchronizations.saturating_add(other.synchronizations),
        }
    }

    /// Returns the numbers and sizes of the transfers in one line.
    pub fn text(&self) -> String {
        let count = |n: u64, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        format!(
            "{} ({}), {} ({}), {} in {}",
            count(self.uploads, "upload"),
            bytes_text(self.uploaded_bytes),
            count(self.downloads, "download"),
            bytes_text(self.downloaded_bytes),
            count(self.synchronizations, "synchronization"),
            count(self.runs, "run")
        )
    }
}

/// Time of a model's probe on a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceTime {
    /// Device that ran the probe.
    pub device: RunDevice,
    /// Shortest time of a run in ms.
    pub best_ms: f64,
}

/// How neighboring tiles are joined to one map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Joining {
    /// Halos are cropped, so that tiles meet without overlap.
    Crop,
    /// Overlapping tiles are averaged with Gaussian weights, as in MONAI.
    Gaussian,
}

/// Why an input was cut into tiles, instead of passing through the network once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TileReason {
    /// The network normalizes over the tile.
    NormalizesOverTile,
    /// A pass needs more memory than it may use.
    Memory {
        /// A memory budget in bytes with which a pass is expected to fit.
        pass_budget_bytes: u64,
    },
}

/// How an input was tiled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TileFacts {
    /// How tiles were joined.
    pub joining: Joining,
    /// Whether the network allows cropping: its normalization does not depend on the tile.
    pub crop_possible: bool,
    /// Tile size Z, Y, X in voxels.
    pub tile_zyx: [usize; 3],
    /// Number of tiles of one time point.
    pub count: u64,
    /// Voxels that the network computed, halos included.
    pub computed_voxels: u64,
    /// Voxels that were kept; of those that several tiles overlap, each is counted once.
    pub kept_voxels: u64,
    /// Planned peak memory in bytes.
    pub planned_bytes: u64,
    /// The memory budget that the user gave, in bytes; `None` without one, and if the user also gave the tile size.
    pub budget_bytes: Option<u64>,
    /// Shape Z, Y, X of the volume that was cut into tiles; `None` in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grid_zyx: Option<[usize; 3]>,
    /// Voxels that were cropped from each side of a tile, Z, Y, X.
    #[serde(default)]
    pub halo_zyx: [usize; 3],
    /// Why the input was cut into tiles, if a change of model or memory would avoid that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<TileReason>,
}

impl TileFacts {
    /// Returns the share of the computed voxels that was discarded or computed again: halos, overlaps, and filling up to
    /// whole tiles.
    pub(crate) fn discarded_share(&self) -> f64 {
        if self.computed_voxels == 0 {
            return 0.0;
        }
        (1.0 - self.kept_voxels as f64 / self.computed_voxels as f64).max(0.0)
    }

    /// Returns a larger tile. Its edges are doubled along the axes that lose most to the halo, in the plane before Z.
    /// They are multiplied by up to four if tiles of twice the edge fit the volume so badly that they save next to
    /// nothing. An axis along which one tile covers the volume stays as it is. `None` if no axis can be larger.
    pub(crate) fn larger_tile(&self) -> Option<[usize; 3]> {
        let saves = |tile: &[usize; 3]| match (self.work(self.tile_zyx), self.work(*tile)) {
            (Some(now), Some(then)) => then <= WORTHWHILE_WORK * now,
            _ => true,
        };
        let saving = (2..=MAX_ENLARGED).filter_map(|factor| self.enlarged_tile(factor)).find(saves);
        saving.or_else(|| self.enlarged_tile(2))
    }

    /// Returns the tile of [`TileFacts::larger_tile`] with edges that are `factor` times as long.
    fn enlarged_tile(&self, factor: usize) -> Option<[usize; 3]> {
        let [z, y, x] = self.tile_zyx;
        let [halo_z, halo_y, halo_x] = self.halo_zyx;
        let [grid_z, grid_y, grid_x] = self.grid_zyx.unwrap_or([usize::MAX; 3]);
        let lost = |halo: usize, edge: usize, grid: usize| {
            if edge < grid { 2.0 * halo as f64 / edge.max(1) as f64 } else { 0.0 }
        };
        let in_plane = lost(halo_y, y, grid_y).max(lost(halo_x, x, grid_x));
        // Networks for single slices have tiles of one slice.
        let can_be_deeper = self.grid_zyx.is_some() && z > 1 && z < grid_z;
        let can_be_wider = y < grid_y || x < grid_x;
        if can_be_deeper && (!can_be_wider || lost(halo_z, z, grid_z) > in_plane) {
            return Some([z.saturating_mul(factor), y, x]);
        }
        let enlarged = |edge: usize, grid: usize| if edge < grid { edge.saturating_mul(factor) } else { edge };
        can_be_wider.then(|| [z, enlarged(y, grid_y), enlarged(x, grid_x)])
    }

    /// Returns the share of the work that tiles of `larger` voxels would save, because less of it is halo. Tiles without a known
    /// halo would save [`TileFacts::discarded_share`] at most.
    pub(crate) fn saved_share(&self, larger: [usize; 3]) -> f64 {
        let discarded = self.discarded_share();
        match (self.work(self.tile_zyx), self.work(larger)) {
            (Some(now), Some(then)) => (1.0 - then / now).clamp(0.0, discarded),
            _ => discarded,
        }
    }

    /// Returns the number of voxels that cropped tiles of this size compute; `None` if the halo or the volume is unknown, or if
    /// nothing would be left of a tile.
    fn work(&self, tile: [usize; 3]) -> Option<f64> {
        let grid = self.grid_zyx.filter(|_| self.halo_zyx != [0; 3])?;
        let along = |axis: usize| {
            let (edge, extent) = (tile[axis], grid[axis]);
            if edge >= extent {
                return Some(extent as f64);
            }
            // The tiles at the border keep the halo there.
            let halos = self.halo_zyx[axis].saturating_mul(2);
            let kept = edge.checked_sub(halos).filter(|kept| *kept > 0)?;
            Some((extent - halos).div_ceil(kept) as f64 * edge as f64)
        };
        (0..3).map(along).product()
    }
}

/// Certainty of an estimated object diameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DiameterCertainty {
    /// No objects were found, so the diameter is a default.
    None,
    /// Few objects, or measurements that differ.
    Low,
    /// Some objects, and similar measurements.
    Medium,
    /// Many objects, and nearly equal measurements.
    High,
}

/// The object diameter of a prediction.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DiameterFacts {
    /// The diameter in µm, or in voxels if the voxel size is unknown.
    pub diameter: f64,
    /// Whether the voxel size is known.
    pub has_voxel_size: bool,
    /// Certainty of the estimate, and the number of objects it is based on; `None` if the diameter was given.
    pub estimate: Option<(DiameterCertainty, u64)>,
    /// Voxel size Z, Y, X in the unit of the diameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub voxel_zyx: Option<[f64; 3]>,
}

/// Facts about a training run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrainingFacts {
    /// Mean duration of a step in seconds.
    pub step_secs: f64,
    /// Part of it that was spent waiting for patches, in seconds.
    pub stalled_secs: f64,
    /// Number of data workers.
    pub workers: usize,
    /// Maximum number of patches that the data workers prepare in advance; 0 if unknown.
    #[serde(skip_serializing_if = "is_zero")]
    pub prefetch: usize,
    /// Device that ran the steps.
    pub device: RunDevice,
    /// Patches per batch; 0 if unknown.
    #[serde(skip_serializing_if = "is_zero")]
    pub batch: usize,
    /// Batches whose gradients are accumulated before each optimizer step; 0 if unknown.
    #[serde(skip_serializing_if = "is_zero")]
    pub accumulate: usize,
    /// A batch size for which the device has memory, if it is larger.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub larger_batch: Option<usize>,
    /// Multiply-accumulates that a step computes a second time to save memory, relative to those of a step that does not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recomputed_share: Option<f64>,
    /// Traffic of the training steps between the host and the device; `None` on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traffic: Option<DeviceTraffic>,
    /// Seconds of the copies between host and device in the whole run; `None` on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub transfer_secs: Option<f64>,
}

impl TrainingFacts {
    /// Returns the patches per second; `None` if the duration of a step or the number of its patches is unknown.
    pub fn samples_per_sec(&self) -> Option<f64> {
        let patches = self.batch.saturating_mul(self.accumulate);
        (patches > 0 && self.step_secs > 0.0).then(|| patches as f64 / self.step_secs)
    }

    /// Returns the share of a step that was spent waiting for patches, 0 to 1; `None` if the duration of a step is unknown.
    pub fn data_wait_share(&self) -> Option<f64> {
        let share = self.stalled_secs / self.step_secs;
        share.is_finite().then(|| share.clamp(0.0, 1.0))
    }
}

/// Returns whether a number is 0, which stands for an unknown one.
fn is_zero(number: &usize) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_grow_along_the_axes_that_lose_most() {
        let tiles = |tile_zyx, halo_zyx, grid_zyx| TileFacts {
            joining: Joining::Crop,
            crop_possible: true,
            tile_zyx,
            count: 9,
            computed_voxels: 2,
            kept_voxels: 1,
            planned_bytes: 0,
            budget_bytes: None,
            grid_zyx,
            halo_zyx,
            reason: None,
        };
        let larger = |tile, halo, grid| tiles(tile, halo, Some(grid)).larger_tile();
        assert_eq!(tiles([8, 64, 64], [0; 3], None).larger_tile(), Some([8, 128, 128]), "an earlier version");
        assert_eq!(larger([28, 128, 128], [12, 12, 12], [64, 512, 512]), Some([56, 128, 128]));
        assert_eq!(larger([28, 128, 128], [2, 40, 40], [64, 512, 512]), Some([28, 256, 256]));
        assert_eq!(larger([8, 64, 64], [0; 3], [8, 64, 200]), Some([8, 64, 128]), "the other axes are covered");
        assert_eq!(larger([8, 64, 64], [0; 3], [20, 64, 64]), Some([16, 64, 64]));
        assert_eq!(larger([1, 64, 64], [0; 3], [20, 64, 64]), None, "a network for single slices");
        // Four tiles of 160 cover 324 voxels, and so do two of 320, which is the same work.
        assert_eq!(larger([40, 160, 160], [24, 48, 48], [40, 324, 324]), Some([40, 480, 480]));
    }

    #[test]
    fn larger_tiles_save_what_they_lose_less_to_the_halo() {
        let saved = |halo_zyx, grid_z, larger| {
            let tiles = TileFacts {
                joining: Joining::Crop,
                crop_possible: true,
                tile_zyx: [28, 128, 128],
                count: 9,
                computed_voxels: 20,
                kept_voxels: 1,
                planned_bytes: 0,
                budget_bytes: None,
                grid_zyx: Some([grid_z, 512, 512]),
                halo_zyx,
                reason: None,
            };
            tiles.saved_share(larger)
        };
        // Of 28 slices, 4 are kept, and 12 more at each end of the stack: ten tiles, instead of two of 56 slices.
        assert!((saved([12, 0, 0], 64, [56, 128, 128]) - (1.0 - 112.0 / 280.0)).abs() < 1e-9);
        assert!((saved([12, 0, 0], 56, [56, 128, 128]) - (1.0 - 56.0 / 224.0)).abs() < 1e-9, "one tile");
        // Two tiles are enough for 32 slices.
        assert!((saved([12, 0, 0], 32, [56, 128, 128]) - (1.0 - 32.0 / 56.0)).abs() < 1e-9);
        assert!((saved([0; 3], 64, [56, 128, 128]) - 0.95).abs() < 1e-9, "an unknown halo");
        assert!((saved([14, 0, 0], 64, [56, 128, 128]) - 0.95).abs() < 1e-9, "a halo of a whole tile");
    }

    #[test]
    fn rates_of_a_training_run_need_the_patches_of_a_step() {
        let facts = TrainingFacts { step_secs: 0.5, stalled_secs: 0.125, batch: 2, ..TrainingFacts::default() };
        assert_eq!((facts.samples_per_sec(), facts.data_wait_share()), (None, Some(0.25)));
        let known = TrainingFacts { accumulate: 3, ..facts };
        assert_eq!(known.samples_per_sec(), Some(12.0));
        let none = TrainingFacts { step_secs: 0.0, stalled_secs: 0.0, ..known };
        assert_eq!((none.samples_per_sec(), none.data_wait_share()), (None, None));
    }

    #[test]
    fn traffic_is_one_line_with_sizes() {
        let traffic = DeviceTraffic {
            runs: 1,
            uploads: 3,
            uploaded_bytes: 5 << 20,
            downloads: 1,
            downloaded_bytes: 2048,
            synchronizations: 2,
            ..DeviceTraffic::default()
        };
        let both = traffic.plus(DeviceTraffic { runs: 2, steps: 9, ..traffic });
        assert_eq!((both.runs, both.steps, both.uploads, both.downloaded_bytes), (3, 9, 6, 4096));
        assert_eq!(traffic.text(), "3 uploads (5 MiB), 1 download (2 KiB), 2 synchronizations in 1 run");
    }
}

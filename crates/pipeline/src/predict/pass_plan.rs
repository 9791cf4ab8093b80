//! The plan of a pass: its slabs and bands, and the memory that it needs beside the network's buffers.

use super::grid::{CACHED_SLICES, READ_SLICES, maps, sources};
use super::pass::QUEUED_SLABS;
use cytoscope_engine::{Band, RollingPlan};
use cytoscope_storage::counted;
use cytoscope_volume::resample::AxisMap;
use cytoscope_volume::tile::Span;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// How a volume passes through the network once, instead of in tiles.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PassPlan {
    /// Slices that pass together.
    pub slab_slices: usize,
    /// Bands of rows, each of which passes from the first slice to the last; 1 if whole slices pass. Bands overlap by
    /// the receptive field along Y.
    pub bands: usize,
    /// Bands of columns, each of which passes in bands of rows; 1 if whole rows pass.
    #[serde(default = "one_band", skip_serializing_if = "is_one_band")]
    pub bands_x: usize,
    /// Multiply-accumulates and reading of the stack, relative to the untiled network; above 1 where bands overlap.
    pub work: f64,
}

impl PassPlan {
    /// Returns the slabs and bands as a clause.
    pub fn text(&self) -> String {
        let slabs = format!("one pass in slabs of {}", counted(self.slab_slices, "slice"));
        let bands = match [self.bands, self.bands_x] {
            [1, 1] => return slabs,
            [y, 1] => format!("{y} bands along Y"),
            [1, x] => format!("{x} bands along X"),
            [y, x] => format!("{y}×{x} bands along Y and X"),
        };
        format!("{slabs} and {bands}, {:.2}× the untiled work", self.work)
    }
}

/// The bands along X of plans that state none.
fn one_band() -> usize {
    1
}

fn is_one_band(bands: &usize) -> bool {
    *bands == 1
}

/// The rows and columns of all slices that pass together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PassBand {
    /// Number of the band of rows in the session of the network.
    pub index: usize,
    /// Rows that the band reads and computes.
    pub rows: Band,
    /// Columns that the band reads and computes.
    pub columns: Span,
}

/// Returns the bands of a pass in their order: those of rows for each range of columns.
pub(super) fn pass_bands(rows: &[Band], columns: &[Span]) -> Vec<PassBand> {
    let mut bands = Vec::with_capacity(rows.len() * columns.len());
    for columns in columns {
        for (index, rows) in rows.iter().cloned().enumerate() {
            bands.push(PassBand { index, rows, columns: *columns });
        }
    }
    bands
}

/// Returns the rows and columns of a band that are in a volume of shape Z, Y, X; at least one of each.
pub(super) fn inside(band: &PassBand, [_, rows, columns]: [usize; 3]) -> [Range<usize>; 2] {
    let part = |start: usize, end: usize, extent: usize| {
        let first = start.min(extent.saturating_sub(1));
        first..end.min(extent).max(first + 1)
    };
    let PassBand { rows: Band { fed, .. }, columns: Span { start, len, .. }, .. } = band;
    [part(fed.start, fed.end, rows), part(*start, start + len, columns)]
}

/// A pass that fits the memory budget.
pub(super) struct PlannedPass {
    /// Z, Y, X of the volume, extended to what the network accepts.
    pub tile: [usize; 3],
    /// The first slice that passes.
    pub first_z: usize,
    /// Slabs, bands of rows and buffers of the network, not allocated yet.
    pub plan: Box<dyn RollingPlan>,
    /// Bands of columns, all of the same length.
    pub columns: Vec<Span>,
    /// Highest memory of the job during the pass and the segmentation after it, in bytes.
    pub peak_bytes: u64,
    /// Maximum memory of finding objects during the pass, in bytes; part of `peak_bytes`.
    pub objects_bytes: u64,
    /// Voxels of the input that are read in all bands, and those that an untiled network reads.
    pub read_voxels: [u64; 2],
}

/// Multiply-accumulates of the network that take about as long as reading, converting and resampling a voxel.
const MACS_PER_READ_VOXEL: f64 = 200.0;

impl PlannedPass {
    /// Returns the computed multiply-accumulates, and the reading of the stack, relative to those of the untiled network.
    pub(super) fn work(&self) -> f64 {
        let [read, untiled] = self.read_voxels.map(|voxels| voxels as f64 * MACS_PER_READ_VOXEL);
        // The plan is that of one band of columns, as if the volume had no others.
        let whole = self.tile[2] as f64 / self.width().max(1) as f64;
        (self.macs() as f64 + read) / (self.plan.untiled_macs().max(1) as f64 * whole + untiled)
    }

    /// Returns the columns that pass together.
    pub(super) fn width(&self) -> usize {
        self.columns.first().map_or(self.tile[2], |columns| columns.len)
    }

    /// Returns the multiply-accumulates of the whole pass.
    pub(super) fn macs(&self) -> u64 {
        self.plan.macs().saturating_mul(self.columns.len() as u64)
    }

    /// Returns a lower bound of the bytes that each voxel takes in a session for a tile.
    pub(super) fn bytes_per_voxel(&self) -> f64 {
        let [depth, rows, _] = self.tile;
        self.plan.untiled_bytes() as f64 / (depth * rows * self.width()).max(1) as f64
    }

    /// Returns whether whole slices pass.
    pub(super) fn is_whole(&self) -> bool {
        self.plan.bands().len() == 1 && self.columns.len() == 1
    }
}

/// The sizes that determine the memory of the stages of a pass, and of reading a volume for tiles.
pub(super) struct PassSizes {
    /// Z, Y, X of the volume, extended to what the network accepts.
    pub tile: [usize; 3],
    /// Z, Y, X of the volume on the model's grid.
    pub shape: [usize; 3],
    /// Z, Y, X of the input.
    pub zyx: [usize; 3],
    /// Channels of the network's input and output.
    pub channels: [usize; 2],
    /// Bytes of a slice as stored in the file.
    pub read_slice_bytes: u64,
    /// Whether softmax is applied to a copy of what is stored.
    pub has_softmax: bool,
}

impl PassSizes {
    /// Returns the bytes that reading, the queues, storing and writing hold with slabs of `slab_slices` slices in bands of
    /// `part` rows and columns.
    pub(super) fn bytes(&self, slab_slices: usize, part: [usize; 2]) -> u64 {
        self.reading_bytes(slab_slices, part) + self.storing_bytes(slab_slices, part) + self.map_bytes()
    }

    /// Returns the voxels of the input that are read for the slices from `first_z` on, in bands and by an untiled network. Many
    /// files store rows as a whole, so whole rows count for a band of columns.
    pub(super) fn read_voxels(&self, bands: &[PassBand], first_z: usize) -> [u64; 2] {
        let maps = maps(self.zyx, self.shape);
        let area_of = |band: &PassBand| {
            let [rows, _] = sources(maps.as_ref(), inside(band, self.shape));
            rows.len() * self.zyx[2]
        };
        let whole = self.zyx[1] * self.zyx[2];
        let area = if bands.len() > 1 { bands.iter().map(area_of).sum() } else { whole };
        let slices = self.zyx[0] * self.tile[0].saturating_sub(first_z) / self.tile[0].max(1);
        [area, whole].map(|area| (area * slices * self.channels[0]) as u64)
    }

    fn is_resampled(&self) -> bool {
        self.shape != self.zyx
    }

    /// Returns the bytes of a slice of one channel, as floats, on the grid that the network runs on and on the input's.
    fn slice_bytes(&self) -> [u64; 2] {
        let slice = |rows: usize, columns: usize| (rows * columns) as u64 * 4;
        [slice(self.tile[1], self.tile[2]), slice(self.zyx[1], self.zyx[2])]
    }

    /// Like [`PassSizes::slice_bytes`], of bands of `part` rows and columns, with the input that they are computed from.
    fn part_bytes(&self, part: [usize; 2]) -> [u64; 2] {
        let own = |axis: usize| {
            let (extent, shape) = (self.zyx[axis], self.shape[axis].max(1));
            // A voxel is resampled from the voxels around its own position.
            let around = if extent == shape { 0 } else { 2 * extent.div_ceil(shape) + 2 };
            ((part[axis - 1] * extent).div_ceil(shape) + around).min(extent)
        };
        [part[0] * part[1], own(1) * own(2)].map(|voxels| voxels as u64 * 4)
    }

    /// Returns the bytes of the slices of the input that `slices` of the model's grid are computed from, if it is resampled;
    /// otherwise 0.
    pub(super) fn resampled_bytes(&self, slices: usize) -> u64 {
        let [_, own_bytes] = self.slice_bytes();
        if self.is_resampled() { self.source_bytes(slices, own_bytes) } else { 0 }
    }

    /// Returns the bytes of the slices of the input that `slices` of the model's grid are computed from, as they are read;
    /// `own_bytes` are those of the part of one slice that is read.
    fn source_bytes(&self, slices: usize, own_bytes: u64) -> u64 {
        let inputs = self.channels[0] as u64;
        let is_resampled = self.is_resampled();
        let sources = if is_resampled { self.source_slices(slices) } else { slices };
        // The last slices that are read, which the reader keeps for each channel.
        let cached = if is_resampled { sources.min(CACHED_SLICES) } else { 0 };
        // A few slices at once are decoded and converted, twice as stored and once as floats; of one channel at a time.
        let decoded = sources.min(READ_SLICES) as u64;
        let fresh = decoded * (2 * self.read_slice_bytes + own_bytes);
        // The cache of a channel is held while it is replaced.
        fresh + sources as u64 * own_bytes + cached as u64 * own_bytes * (inputs + 1)
    }

    /// Returns the most slices of the input that `slices` neighboring slices of the model's grid are computed from.
    fn source_slices(&self, slices: usize) -> usize {
        let (depth, map) = (self.shape[0], AxisMap::new(self.zyx[0], self.shape[0]));
        let sources = |z: usize| map.sources(z..(z + slices).min(depth)).len();
        (0..depth).map(sources).max().unwrap_or(0)
    }

    /// Returns the bytes of the slabs that are read, wait, or are packed for the network.
    fn reading_bytes(&self, slab_slices: usize, part: [usize; 2]) -> u64 {
        let ([model_bytes, own_bytes], inputs) = (self.part_bytes(part), self.channels[0] as u64);
        // The slab that is read, those that wait, and the one that is packed; the network releases it then.
        let copies = usize::from(self.tile != self.shape) + usize::from(self.is_resampled());
        let slabs = ((QUEUED_SLABS + 1 + copies) * slab_slices) as u64 * model_bytes * inputs;
        // Several channels are read one by one and joined.
        let joined = if inputs > 1 { slab_slices as u64 * model_bytes * inputs } else { 0 };
        self.source_bytes(slab_slices, own_bytes) + slabs + joined
    }

    /// Returns the bytes of the finished slices, which leave the network slab by slab, also at the end of the stack: those
    /// that have just been computed, those that wait, and those that are stored, perhaps cropped to the volume.
    fn storing_bytes(&self, slab_slices: usize, part: [usize; 2]) -> u64 {
        let [model_bytes, _] = self.part_bytes(part);
        let is_cropped = self.tile != self.shape || part[1] < self.tile[2];
        let copies = usize::from(is_cropped) + usize::from(self.has_softmax);
        ((QUEUED_SLABS + 2 + copies) * slab_slices) as u64 * model_bytes * self.channels[1] as u64
    }

    /// Returns the bytes of one slice of the maps while it is read from the stored slices, resampled and written.
    fn map_bytes(&self) -> u64 {
        let [model_bytes, own_bytes] = self.slice_bytes();
        // It is resampled from a few slices of the prediction; each is read through a buffer.
        let sources = if self.is_resampled() { 2 + 2 * self.shape[0].div_ceil(self.zyx[0].max(1)) } else { 1 };
        (sources + 1) as u64 * model_bytes + (self.channels[1] + 1) as u64 * own_bytes
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
            read_slice_bytes: 2 * 512 * 512,
            has_softmax: false,
        };
        let whole = [512, 512];
        assert_eq!(sizes(64).bytes(8, whole), sizes(1024).bytes(8, whole));
        // Before the network, one slab is being read, one waits and one is being packed; after it, one was just
        // computed, one waits and one is being stored.
        let slab_bytes = 8 * 512 * 512 * 4;
        assert_eq!(sizes(64).bytes(16, whole) - sizes(64).bytes(8, whole), (3 + 3) * slab_bytes);
        // A band of a quarter of the rows holds a quarter of them.
        let quarter = [128, 512];
        assert_eq!(sizes(64).bytes(16, quarter) - sizes(64).bytes(8, quarter), (3 + 3) * slab_bytes / 4);
    }

    #[test]
    fn a_resampled_slab_holds_the_slices_that_it_is_computed_from() {
        let sizes = |channels: [usize; 2]| PassSizes {
            tile: [48, 512, 512],
            shape: [48, 512, 512],
            zyx: [120, 512, 512],
            channels,
            read_slice_bytes: 0,
            has_softmax: false,
        };
        // Two slices are computed from seven at most: those that are decoded, all of them, and the old and the new cache.
        assert_eq!(sizes([1, 1]).source_slices(2), 7);
        assert_eq!(sizes([1, 1]).source_bytes(2, 10), 10 * (7 + 7 + 2 * 7));
        assert_eq!(sizes([2, 1]).source_bytes(2, 10), 10 * (7 + 7 + 3 * 7));
        // A tile with all slices.
        let decoded_and_cached = READ_SLICES as u64 + 2 * CACHED_SLICES as u64;
        assert_eq!(sizes([1, 1]).source_bytes(48, 10), 10 * (120 + decoded_and_cached));
    }

    #[test]
    fn bands_read_the_rows_that_they_share_again() {
        let sizes = |zyx| PassSizes {
            tile: [20, 60, 48],
            shape: [20, 59, 48],
            zyx,
            channels: [2, 1],
            read_slice_bytes: 0,
            has_softmax: false,
        };
        let band = |fed| Band { fed, kept: 0..1 };
        let columns = Span { start: 0, len: 48, keep_start: 0, keep_len: 48 };
        // The last row is the last one of the volume after it was extended to what the network accepts.
        let rows = [band(0..32), band(28..60)];
        let bands = pass_bands(&rows, &[columns]);
        assert_eq!(sizes([20, 59, 48]).read_voxels(&bands, 0), [(32 + 31) * 48 * 20 * 2, 59 * 48 * 20 * 2]);
        assert_eq!(sizes([20, 59, 48]).read_voxels(&bands[..1], 10), [59 * 48 * 10 * 2; 2]);
        // Two rows of the stack for each row of the grid; the resampled rows depend on a few more.
        let [read, untiled] = sizes([20, 118, 48]).read_voxels(&bands, 0);
        assert_eq!(untiled, 118 * 48 * 20 * 2);
        let rows = read / (48 * 20 * 2);
        assert!((2 * (32 + 31)..=2 * (32 + 31) + 6).contains(&rows), "{rows} rows");
        // Rows are read for each half of the columns.
        let halves = [
            Span { start: 0, len: 28, keep_start: 0, keep_len: 24 },
            Span { start: 20, len: 28, keep_start: 24, keep_len: 24 },
        ];
        let bands = pass_bands(&[band(0..32), band(28..60)], &halves);
        assert_eq!(bands.iter().map(|band| band.index).collect::<Vec<usize>>(), [0, 1, 0, 1]);
        assert_eq!(sizes([20, 59, 48]).read_voxels(&bands, 0)[0], 2 * (32 + 31) * 48 * 20 * 2);
    }
}

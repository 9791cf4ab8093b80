//! Memory that a chain of steps holds while it is read, estimated from its boxes without reading anything.

use crate::block::{count, dilated, halves, lengths};
use crate::chain::{Chain, MAX_WARPED_VOXELS, SLAB_VOXELS};
use crate::resolve::{Operation, Stage};
use cytoscope_volume::BoxZyx;

/// Bytes of a value of a box.
const VALUE_BYTES: u64 = size_of::<f32>() as u64;
/// Bytes of a voxel that a step of whole slices holds besides its input and output: a copy, bins, sorted values.
const SLICE_STEP_BYTES: u64 = 12;
/// Bytes of the histogram of one tile of CLAHE, as a mapping; there are up to four times as many tiles as requested.
const TILE_BYTES: u64 = 4 * 256 * VALUE_BYTES;

fn bytes(bounds: &BoxZyx) -> u64 {
    (count(bounds) as u64).saturating_mul(VALUE_BYTES)
}

impl Chain {
    /// Returns the maximum number of bytes that are held while `slices` whole slices of the output are read at a time,
    /// in order. They consist of all boxes between the steps, the slices of `stacks` stacks that are kept for the next
    /// read, and the slabs in which [`Chain::statistics`] reads the stack. `stored_bytes` is the size of a voxel in the
    /// source.
    pub fn peak_bytes(&self, slices: usize, stored_bytes: usize, stacks: usize) -> u64 {
        let read = self.slab_bytes(self.stages.len(), slices, stored_bytes);
        let has_range = |stage: &Stage| stage.operation.stack_percentiles().is_some();
        let statistics = self.stages.iter().enumerate().filter(|(_, stage)| has_range(stage)).map(|(index, stage)| {
            let [_, ny, nx] = stage.from;
            self.slab_bytes(index, (SLAB_VOXELS / (ny * nx).max(1)).max(1), stored_bytes)
        });
        let kept = (0..self.stages.len()).map(|level| self.kept_bytes(level)).fold(0, u64::saturating_add);
        // Statistics of one stack are computed with another set of kept slices.
        let kept = kept.saturating_mul(stacks as u64 + u64::from(self.statistics_passes() > 0));
        statistics.fold(read, u64::max).saturating_add(kept)
    }

    /// Returns the bytes of the slices that are kept before the step `level`.
    fn kept_bytes(&self, level: usize) -> u64 {
        let [_, ny, nx] = self.shape_before(level);
        (self.kept_slices(level) as u64).saturating_mul((ny * nx) as u64).saturating_mul(VALUE_BYTES)
    }

    /// Returns the shape before the step `level`, or that of the output.
    fn shape_before(&self, level: usize) -> [usize; 3] {
        self.stages.get(level).map_or(self.shape_zyx(), |stage| stage.from)
    }

    /// Returns the bytes that computing some slices before the step `level` holds. Boxes at the ends of a stack are
    /// smaller, and those of a warp depend on their place, so that several places are tried.
    fn slab_bytes(&self, level: usize, slices: usize, stored_bytes: usize) -> u64 {
        let [depth, ny, nx] = self.shape_before(level);
        let slices = slices.clamp(1, depth.max(1));
        let last = depth.saturating_sub(slices);
        let at = |z: usize| self.level_bytes(level, &[z..(z + slices).min(depth), 0..ny, 0..nx], stored_bytes);
        [0, last / 2, last].into_iter().map(at).fold(0, u64::max)
    }

    /// Returns the bytes that computing a box before the step `level` holds, its values included.
    fn level_bytes(&self, level: usize, bounds: &BoxZyx, stored_bytes: usize) -> u64 {
        let computed = self.computed_bytes(level, bounds, stored_bytes);
        if self.kept_slices(level) == 0 {
            return computed;
        }
        // The values are joined with kept ones, and some of them are copied to be kept.
        computed.saturating_add(bytes(bounds)).saturating_add(self.kept_bytes(level).min(bytes(bounds)))
    }

    fn computed_bytes(&self, level: usize, bounds: &BoxZyx, stored_bytes: usize) -> u64 {
        let Some((index, stage)) = level.checked_sub(1).and_then(|index| Some((index, self.stages.get(index)?))) else {
            let stored = (count(bounds) as u64).saturating_mul(stored_bytes as u64);
            return bytes(bounds).saturating_add(stored);
        };
        let sources = stage.sources(bounds);
        if matches!(stage.operation, Operation::Affine(_))
            && count(&sources) > MAX_WARPED_VOXELS
            && let Some(parts) = halves(bounds)
        {
            let part = parts.iter().map(|part| self.computed_bytes(level, part, stored_bytes)).fold(0, u64::max);
            return bytes(bounds).saturating_add(part);
        }
        let applied = bytes(&sources).saturating_add(stage.applied_bytes(&sources, bounds));
        self.level_bytes(index, &sources, stored_bytes).max(applied)
    }
}

impl Stage {
    /// Returns the bytes that computing `bounds` from the box `sources` takes in addition to `sources`.
    fn applied_bytes(&self, sources: &BoxZyx, bounds: &BoxZyx) -> u64 {
        let threads = rayon::current_num_threads();
        let [_, source_rows, source_columns] = lengths(sources);
        let slice = (source_rows * source_columns) as u64;
        let slices_bytes = |bytes_of_voxel: u64| {
            (threads.min(bounds[0].len()) as u64).saturating_mul(slice).saturating_mul(bytes_of_voxel)
        };
        // Rows with a margin, for each thread.
        let rows = (4 * threads * source_columns) as u64 * VALUE_BYTES;
        let besides = match &self.operation {
            // These change values in place, or select some of them.
            Operation::Stretch(_) | Operation::Invert | Operation::Crop(_) => return 0,
            Operation::Gaussian(_) => slices_bytes(VALUE_BYTES),
            Operation::Median(radius) => {
                let window: u64 = radius.iter().map(|r| 2 * *r as u64 + 1).product();
                // Values, and references to the rows that they are in.
                window.saturating_mul(threads as u64 * 4 * VALUE_BYTES)
            }
            Operation::Tophat(ellipse) => {
                let [y, x] = ellipse.reach();
                bytes(&dilated(bounds, [0, y, x], self.from))
            }
            Operation::RollingBall(_) | Operation::Affine(_) => 0,
            Operation::Clahe { tiles, .. } => {
                let mappings = (*tiles as u64).saturating_mul(*tiles as u64).saturating_mul(TILE_BYTES);
                slices_bytes(SLICE_STEP_BYTES).saturating_add(mappings.saturating_mul(threads as u64))
            }
            Operation::NormalizeSlices(_) => slices_bytes(SLICE_STEP_BYTES),
        };
        bytes(bounds).saturating_add(besides).saturating_add(rows)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
    use super::*;
    use crate::PreprocessStep;
    use cytoscope_volume::VoxelSize;

    fn chain(steps: &[&str], shape: [usize; 3]) -> Chain {
        let steps: Vec<PreprocessStep> = steps.iter().map(|step| step.parse().unwrap()).collect();
        Chain::new(&steps, shape, VoxelSize::new_um(1.0, 1.0, 1.0)).unwrap()
    }

    #[test]
    fn the_peak_has_the_boxes_between_the_steps() {
        let [ny, nx] = [100, 200];
        let slices = |n: usize| (n * ny * nx) as u64 * VALUE_BYTES;
        // A sigma of 2 voxels reaches 8 slices to both sides; 16 of them are kept.
        let gaussian = chain(&["gaussian:sigma=2"], [60, ny, nx]);
        let [reach, _, _] = match gaussian.reaches()[0] {
            crate::Reach::Voxels(zyx) => zyx,
            other => panic!("{other:?}"),
        };
        let input_and_output = slices(8 + 2 * reach) + slices(8);
        let peak = gaussian.peak_bytes(8, 2, 1);
        assert!(peak >= input_and_output + slices(2 * reach), "{peak}");
        assert!(peak <= 4 * input_and_output + slices(rayon::current_num_threads()), "{peak}");
        // Each further stack keeps its own slices.
        assert_eq!(gaussian.peak_bytes(8, 2, 3) - peak, 2 * slices(2 * reach));
        // More steps hold no less, and the depth of the stack does not matter.
        let two = ["gaussian:sigma=2", "tophat:radius=10"];
        let more = chain(&two, [60, ny, nx]).peak_bytes(8, 2, 1);
        assert!(more >= peak);
        assert_eq!(more, chain(&two, [6000, ny, nx]).peak_bytes(8, 2, 1));
        // Statistics read the stack in slabs: values and what is stored.
        let slab_voxels = (SLAB_VOXELS / (ny * nx) * ny * nx) as u64;
        let stretch = chain(&["stretch:low=1:high=99"], [6000, ny, nx]);
        assert!(stretch.peak_bytes(8, 2, 1) >= slab_voxels * (VALUE_BYTES + 2));
    }
}

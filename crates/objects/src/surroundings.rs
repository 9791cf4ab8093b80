//! How much of the surroundings of components is foreground: tissue, or scattered objects.

use crate::components::label_runs;
use std::collections::VecDeque;
use std::ops::Range;

/// Blocks per window along each axis: the foreground is averaged over blocks of voxels first.
const BLOCKS_PER_WINDOW: f64 = 7.0;

/// Blocks of voxels of a volume.
#[derive(Debug, Clone, Copy)]
struct Blocks {
    /// Shape of the volume Z, Y, X.
    shape: [usize; 3],
    /// Voxels per block along Z, Y, X.
    size: [usize; 3],
    /// Number of blocks along Z, Y, X.
    counts: [usize; 3],
}

impl Blocks {
    /// Returns the parts of a run of voxels of row `y` by blocks: the index of the block in its layer, and the number of voxels.
    fn parts(&self, y: usize, run: Range<usize>) -> impl Iterator<Item = (usize, usize)> + use<> {
        let (width, row) = (self.size[2], y / self.size[1] * self.counts[2]);
        let mut start = run.start;
        std::iter::from_fn(move || {
            let end = ((start / width + 1) * width).min(run.end);
            let part = (start < run.end).then(|| (row + start / width, end - start));
            start = end;
            part
        })
    }
}

/// How much of the surroundings of each voxel is foreground. Slices of the foreground are added one after the other; only the
/// sums of the blocks around those that were asked for last are held.
#[derive(Debug)]
pub(crate) struct Surroundings {
    blocks: Blocks,
    /// Number of blocks of a window on either side of its center along Z, Y, X.
    reach: [usize; 3],
    /// Voxels, and those of the foreground, of the layers of blocks from `first_layer` on; the last one may lack slices.
    layers: VecDeque<Vec<[f32; 2]>>,
    first_layer: usize,
    /// Number of slices so far.
    added: usize,
    /// The layer that was asked for last, with the shares of foreground around its blocks, 0 to 1.
    around: Option<(usize, Vec<f32>)>,
}

impl Surroundings {
    /// Starts without slices. The foreground will be averaged over windows of `window_um` around each block.
    pub(crate) fn new(shape: [usize; 3], voxel_um: [f64; 3], window_um: f64) -> Self {
        let block =
            |a: usize| ((window_um / BLOCKS_PER_WINDOW / voxel_um[a]).round() as usize).clamp(1, shape[a].max(1));
        let size = [0, 1, 2].map(block);
        let counts = [0, 1, 2].map(|a| shape[a].div_ceil(size[a]).max(1));
        let reach =
            [0, 1, 2].map(|a| (0.5 * (window_um / voxel_um[a] / size[a] as f64 - 1.0)).round().max(0.0) as usize);
        let blocks = Blocks { shape, size, counts };
        Self { blocks, reach, layers: VecDeque::new(), first_layer: 0, added: 0, around: None }
    }

    /// Adds the next slice: the runs of foreground voxels, each with its row.
    pub(crate) fn add_slice(&mut self, runs: impl Iterator<Item = (usize, Range<usize>)>) {
        let Blocks { shape: [_, ny, nx], size, counts } = self.blocks;
        if self.added.is_multiple_of(size[0]) {
            self.layers.push_back(vec![[0.0; 2]; counts[1] * counts[2]]);
        }
        self.added += 1;
        let Some(layer) = self.layers.back_mut() else { return };
        for y in 0..ny {
            for (block, voxels) in self.blocks.parts(y, 0..nx) {
                layer[block][0] += voxels as f32;
            }
        }
        for (y, run) in runs {
            for (block, voxels) in self.blocks.parts(y, run) {
                layer[block][1] += voxels as f32;
            }
        }
    }

    /// Returns the memory in bytes that is held.
    pub(crate) fn bytes(&self) -> u64 {
        let layer = self.blocks.counts[1] * self.blocks.counts[2];
        (self.layers.len() * layer * size_of::<[f32; 2]>() + layer * size_of::<f32>()) as u64
    }

    /// Computes the shares of foreground around the voxels of slice `z` for [`Surroundings::add_shares`]; returns `false` while
    /// slices around it are missing. Earlier slices can no longer be requested.
    pub(crate) fn compute_slice_shares(&mut self, z: usize) -> bool {
        let Blocks { shape, size, counts } = self.blocks;
        let layer = z / size[0];
        if self.around.as_ref().is_some_and(|(known, _)| *known == layer) {
            return true;
        }
        let end = layer + self.reach[0].min(counts[0] - 1 - layer) + 1;
        if self.added < (end * size[0]).min(shape[0]) {
            return false;
        }
        let first = layer.saturating_sub(self.reach[0]);
        while self.first_layer < first {
            self.layers.pop_front();
            self.first_layer += 1;
        }
        // At the border of the volume, only its inside counts.
        let mut sums = vec![[0.0; 2]; counts[1] * counts[2]];
        for layer_sums in self.layers.iter().take(end - first) {
            for (sum, value) in sums.iter_mut().zip(layer_sums) {
                *sum = [sum[0] + value[0], sum[1] + value[1]];
            }
        }
        for axis in [1, 2] {
            sums = summed(&sums, [1, counts[1], counts[2]], axis, self.reach[axis]);
        }
        let around = sums.into_iter().map(|[voxels, foreground]| foreground / voxels.max(1.0)).collect();
        self.around = Some((layer, around));
        true
    }

    /// Adds the shares of foreground around the voxels of a run of row `y`, in the slice of which
    /// [`Surroundings::compute_slice_shares`] was asked last, to a sum and a number of voxels.
    pub(crate) fn add_shares(&self, y: usize, run: Range<usize>, (sum, count): &mut (f64, u64)) {
        let Some((_, around)) = &self.around else { return };
        for (block, voxels) in self.blocks.parts(y, run) {
            *sum += f64::from(around[block]) * voxels as f64;
            *count += voxels as u64;
        }
    }
}

/// Returns the mean of shares that were added by [`Surroundings::add_shares`].
pub(crate) fn mean_share((sum, voxels): (f64, u64)) -> f64 {
    sum / voxels.max(1) as f64
}

/// Sums over `reach` neighbors on either side along an axis.
fn summed(values: &[[f32; 2]], counts: [usize; 3], axis: usize, reach: usize) -> Vec<[f32; 2]> {
    let step = [counts[1] * counts[2], counts[2], 1][axis];
    let sum = |at: usize| {
        let index = at / step % counts[axis];
        let (before, after) = (reach.min(index), reach.min(counts[axis] - 1 - index));
        let line = values.iter().skip(at - before * step).step_by(step).take(before + after + 1);
        line.fold([0.0; 2], |sum, value| [sum[0] + value[0], sum[1] + value[1]])
    };
    (0..values.len()).map(sum).collect()
}

/// Returns, for each label `1..=count` (index 0 is unused), the mean share of foreground within a window of `window_um`
/// around its voxels: 0 to 1.
pub(crate) fn fill_around(
    labels: &[u32],
    shape: [usize; 3],
    voxel_um: [f64; 3],
    count: u32,
    window_um: f64,
) -> Vec<f64> {
    let width = shape[2].max(1);
    let runs = |slice: &'_ [u32]| {
        let rows = slice.chunks_exact(width).enumerate();
        rows.flat_map(|(y, row)| label_runs(row).map(move |(label, run)| (label, y, run))).collect::<Vec<_>>()
    };
    let slices = || labels.chunks_exact((shape[1] * shape[2]).max(1)).map(runs).enumerate();
    let mut surroundings = Surroundings::new(shape, voxel_um, window_um);
    slices().for_each(|(_, runs)| surroundings.add_slice(runs.into_iter().map(|(_, y, run)| (y, run))));
    let mut shares = vec![(0.0, 0); count as usize + 1];
    for (z, runs) in slices() {
        if !surroundings.compute_slice_shares(z) {
            break;
        }
        for (label, y, run) in runs {
            if let Some(share) = shares.get_mut(label as usize) {
                surroundings.add_shares(y, run, share);
            }
        }
    }
    shares.into_iter().map(mean_share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_in_tissue_have_more_foreground_around_them_than_a_lone_one() {
        let shape = [12, 60, 60];
        let mut labels = vec![0u32; shape.iter().product()];
        // The left third is filled completely; a cube of 4 voxels lies far from it.
        for (i, label) in labels.iter_mut().enumerate() {
            let [z, y, x] = [i / 3600, i / 60 % 60, i % 60];
            if x < 20 {
                *label = 1;
            } else if (4..8).contains(&z) && (28..32).contains(&y) && (48..52).contains(&x) {
                *label = 2;
            }
        }
        let fill = fill_around(&labels, shape, [1.0; 3], 2, 12.0);
        // Within half a window of its border, between 1 and 1/2 of the tissue's surroundings are foreground: on average
        // (14 · 1 + 6 · 0.75) / 20.
        assert!((fill[1] - 0.925).abs() < 0.03, "{fill:?}");
        // 64 voxels in a window of 12 x 12 x 12, of which the center differs by block.
        assert!((0.02..0.07).contains(&fill[2]), "{fill:?}");
    }

    #[test]
    fn a_window_larger_than_the_volume_sees_all_of_it() {
        let labels: Vec<u32> = (0..2 * 5 * 7).map(|i| u32::from(i % 5 == 0)).collect();
        let fill = fill_around(&labels, [2, 5, 7], [2.0, 0.5, 0.5], 1, 1000.0);
        assert!((fill[1] - 0.2).abs() < 1e-6, "{fill:?}");
    }
}

//! How much of the surroundings of components is foreground: tissue, or scattered objects.

/// Blocks per window along each axis: the foreground is averaged over blocks of voxels first.
const BLOCKS_PER_WINDOW: f64 = 7.0;

/// Blocks of voxels of a volume.
#[derive(Debug, Clone, Copy)]
struct Blocks {
    /// Number of voxels of a row.
    width: usize,
    /// Voxels per block along Z, Y, X.
    size: [usize; 3],
    /// Number of blocks along Z, Y, X.
    counts: [usize; 3],
}

impl Blocks {
    /// Returns the rows of a slice, each with its first block.
    fn rows<'l>(&self, z: usize, labels: &'l [u32]) -> impl Iterator<Item = (usize, &'l [u32])> + use<'l> {
        let Self { width, size, counts } = *self;
        let rows = labels.chunks_exact(width.max(1)).enumerate();
        rows.map(move |(y, row)| ((z / size[0] * counts[1] + y / size[1]) * counts[2], row))
    }
}

/// The foreground of a volume in blocks; its slices are added one after the other.
pub(crate) struct Surroundings {
    blocks: Blocks,
    /// Number of blocks of a window on either side of its center along Z, Y, X.
    reach: [usize; 3],
    /// Voxels, and those of the foreground.
    sums: Vec<[f32; 2]>,
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
        let blocks = Blocks { width: shape[2], size, counts };
        Self { blocks, reach, sums: vec![[0.0f32; 2]; counts.iter().product()] }
    }

    /// Adds a slice; labels above 0 are foreground.
    pub(crate) fn add_slice(&mut self, z: usize, labels: &[u32]) {
        for (first, row) in self.blocks.rows(z, labels) {
            for (sum, part) in self.sums.iter_mut().skip(first).zip(row.chunks(self.blocks.size[2])) {
                sum[0] += part.len() as f32;
                sum[1] += part.iter().filter(|label| **label > 0).count() as f32;
            }
        }
    }

    /// Averages the foreground, to be related to the labels `1..=count`. At the border of the volume, only its inside counts.
    pub(crate) fn averaged(self, count: u32) -> Shares {
        let Self { blocks, reach, mut sums } = self;
        for (axis, reach) in reach.into_iter().enumerate() {
            sums = summed(&sums, blocks.counts, axis, reach);
        }
        let around = sums.into_iter().map(|[voxels, foreground]| foreground / voxels.max(1.0)).collect();
        Shares { blocks, around, of_labels: vec![(0.0, 0); count as usize + 1] }
    }
}

/// The share of foreground around the voxels of labels, whose slices are added one after the other.
pub(crate) struct Shares {
    blocks: Blocks,
    /// Share of foreground around each block, 0 to 1.
    around: Vec<f32>,
    /// Sum over the voxels of each label, and their number.
    of_labels: Vec<(f64, u64)>,
}

impl Shares {
    /// Adds the shares around the labeled voxels of slice `z`.
    pub(crate) fn add_slice(&mut self, z: usize, labels: &[u32]) {
        for (first, row) in self.blocks.rows(z, labels) {
            for (share, part) in self.around.iter().skip(first).zip(row.chunks(self.blocks.size[2])) {
                for label in part.iter().filter(|label| **label > 0) {
                    if let Some((sum, voxels)) = self.of_labels.get_mut(*label as usize) {
                        *sum += f64::from(*share);
                        *voxels += 1;
                    }
                }
            }
        }
    }

    /// Returns the mean share of each label (index 0 is unused): 0 to 1.
    pub(crate) fn of_labels(self) -> Vec<f64> {
        self.of_labels.into_iter().map(|(sum, voxels)| sum / voxels.max(1) as f64).collect()
    }
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
    let slices = || labels.chunks_exact((shape[1] * shape[2]).max(1)).enumerate();
    let mut surroundings = Surroundings::new(shape, voxel_um, window_um);
    slices().for_each(|(z, slice)| surroundings.add_slice(z, slice));
    let mut shares = surroundings.averaged(count);
    slices().for_each(|(z, slice)| shares.add_slice(z, slice));
    shares.of_labels()
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

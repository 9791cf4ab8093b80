//! How much of the surroundings of components is foreground: tissue, or scattered objects.

/// Blocks per window along each axis: the foreground is averaged over blocks of voxels first.
const BLOCKS_PER_WINDOW: f64 = 7.0;

/// Foreground voxels in blocks of a volume.
struct Blocks {
    /// Voxels per block along Z, Y, X.
    size: [usize; 3],
    /// Number of blocks along Z, Y, X.
    counts: [usize; 3],
    /// Share of foreground around each block, 0 to 1.
    shares: Vec<f32>,
}

impl Blocks {
    /// Averages the foreground (labels above 0) over windows of `window_um` around each block. At the border of the volume,
    /// only its inside counts.
    fn new(labels: &[u32], shape: [usize; 3], voxel_um: [f64; 3], window_um: f64) -> Self {
        let block =
            |a: usize| ((window_um / BLOCKS_PER_WINDOW / voxel_um[a]).round() as usize).clamp(1, shape[a].max(1));
        let size = [0, 1, 2].map(block);
        let counts = [0, 1, 2].map(|a| shape[a].div_ceil(size[a]).max(1));
        // Voxels, and those of the foreground.
        let mut sums = vec![[0.0f32; 2]; counts.iter().product()];
        for (line, row) in labels.chunks_exact(shape[2].max(1)).enumerate() {
            let (z, y) = (line / shape[1].max(1), line % shape[1].max(1));
            let first = (z / size[0] * counts[1] + y / size[1]) * counts[2];
            for (sum, part) in sums.iter_mut().skip(first).zip(row.chunks(size[2])) {
                sum[0] += part.len() as f32;
                sum[1] += part.iter().filter(|label| **label > 0).count() as f32;
            }
        }
        for axis in 0..3 {
            let reach = (0.5 * (window_um / voxel_um[axis] / size[axis] as f64 - 1.0)).round().max(0.0) as usize;
            sums = summed(&sums, counts, axis, reach);
        }
        let shares = sums.into_iter().map(|[voxels, foreground]| foreground / voxels.max(1.0)).collect();
        Self { size, counts, shares }
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
    let blocks = Blocks::new(labels, shape, voxel_um, window_um);
    let mut sums = vec![(0.0f64, 0u64); count as usize + 1];
    for (line, row) in labels.chunks_exact(shape[2].max(1)).enumerate() {
        let (z, y) = (line / shape[1].max(1), line % shape[1].max(1));
        let first = (z / blocks.size[0] * blocks.counts[1] + y / blocks.size[1]) * blocks.counts[2];
        for (share, part) in blocks.shares.iter().skip(first).zip(row.chunks(blocks.size[2])) {
            for label in part.iter().filter(|label| **label > 0) {
                if let Some((sum, voxels)) = sums.get_mut(*label as usize) {
                    *sum += f64::from(*share);
                    *voxels += 1;
                }
            }
        }
    }
    sums.into_iter().map(|(sum, voxels)| sum / voxels.max(1) as f64).collect()
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

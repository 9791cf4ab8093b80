//! How the weight gradient with matrix units divides its work: numbers only, so that unit tests need neither Burn nor a
//! device.

/// Voxels of a row, input channels of a step, and output channels of a block: the edge of a matrix.
pub(super) const EDGE: usize = 16;
/// Planes of a cube.
pub(super) const PLANES: usize = 8;
/// Number of cubes if there are enough boxes: a few for each multiprocessor.
const CUBES: usize = 512;

/// Returns the number of groups of rows for a kernel of `taps` taps: planes with the same taps divide the rows.
pub(super) fn row_groups(taps: usize) -> usize {
    PLANES / taps.clamp(1, PLANES)
}

/// Returns the number of parts of the output that cubes add up separately, for this many blocks of input and output
/// channels. It keeps the number of cubes near [`CUBES`], and is at least one and at most the number of boxes.
pub(super) fn part_limit(channel_blocks: usize, row_groups: usize, boxes: usize) -> usize {
    (CUBES / channel_blocks / row_groups).clamp(1, boxes)
}

/// Returns an upper bound of the number of sums, for this number of weights and taps: a cube has the sums of one block of
/// channels. If there are so many blocks that all voxels are one part, each group of rows has a sum for every weight.
pub(super) fn max_sums(weights: usize, taps: usize) -> usize {
    (weights * row_groups(taps)).max(CUBES * EDGE * EDGE * taps)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The planned memory must hold the sums of kernels of one tap and many channels, whose rows are divided most.
    #[test]
    fn no_gradient_has_more_sums_than_are_planned() {
        for taps in [1, 2, 3, 4, 8, 9, 27, 125] {
            for channel_blocks in [1, 2, 63, 64, 65, 100, 511, 512, 513, 4096] {
                for boxes in [1usize, 7, 512, 100_000] {
                    let row_groups = row_groups(taps);
                    let part_boxes = boxes.div_ceil(part_limit(channel_blocks, row_groups, boxes));
                    let weights = channel_blocks * EDGE * EDGE * taps;
                    let sums = boxes.div_ceil(part_boxes) * row_groups * weights;
                    let planned = max_sums(weights, taps);
                    assert!(
                        sums <= planned,
                        "{sums} of {planned}: {taps} taps, {channel_blocks} blocks, {boxes} boxes"
                    );
                }
            }
        }
    }
}

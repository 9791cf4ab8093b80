//! Padding of blocked buffers with a constant, and cropping, along D, H, W.

use crate::parallel::for_each_row;
use crate::{Blocked, KernelError, check_moved};
use std::ops::Range;

/// Values that are written where there is no input voxel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Filling<T> {
    /// Value that is written to every channel of the image.
    pub value: T,
    /// The element that represents 0, for the unused channels of the last block.
    pub zero: T,
}

/// Pads or crops an image: output voxel `p` is input voxel `p - before`, or the filling if there is none.
///
/// # Errors
/// [`KernelError`] if buffers and layouts do not fit.
pub fn pad<T: Copy + Send + Sync>(
    before: [isize; 3],
    filling: Filling<T>,
    input: &[T],
    in_layout: &Blocked,
    output: &mut [T],
    out_layout: &Blocked,
) -> Result<(), KernelError> {
    check_moved(input, in_layout, output, out_layout)?;
    let block = in_layout.block;
    let [rows, columns] = [1, 2].map(|a| inside(before[a], in_layout.dims[a], out_layout.dims[a]));
    let slices = inside(before[0], in_layout.dims[0], out_layout.dims[0]);
    for_each_row(output, out_layout, |b, d, h, out| {
        let used = in_layout.channels.saturating_sub(b * block).min(block);
        if !slices.contains(&d) || !rows.contains(&h) || columns.is_empty() {
            return fill(out, block, used, filling);
        }
        let row = in_layout.row_start(b, moved(d, before[0]), moved(h, before[1]));
        let from = row + moved(columns.start, before[2]) * block;
        let copied = columns.start * block..columns.end * block;
        out[copied.clone()].copy_from_slice(&input[from..from + copied.len()]);
        fill(&mut out[..copied.start], block, used, filling);
        fill(&mut out[copied.end..], block, used, filling);
    });
    Ok(())
}

/// Returns the positions of an output of length `output` that lie in the input.
fn inside(before: isize, input: usize, output: usize) -> Range<usize> {
    let length = output as isize;
    let start = before.clamp(0, length);
    start as usize..before.saturating_add_unsigned(input).clamp(start, length) as usize
}

/// Returns the input position of an output position that lies in the input.
fn moved(at: usize, before: isize) -> usize {
    at.wrapping_add_signed(-before)
}

/// Fills the first `used` channels of each voxel with the value and the others with zero.
fn fill<T: Copy>(voxels: &mut [T], block: usize, used: usize, filling: Filling<T>) {
    for voxel in voxels.chunks_exact_mut(block) {
        voxel[..used].fill(filling.value);
        voxel[used..].fill(filling.zero);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reorder;

    #[test]
    fn every_voxel_is_the_one_before_it_or_the_filling() -> Result<(), KernelError> {
        let dims = [3usize, 4, 5];
        for (channels, block) in [(3, 1), (3, 4), (18, 16)] {
            for (before, after) in
                [([1, 0, 2], [0, 3, 1]), ([-1, 0, -2], [0, -1, -1]), ([2, -1, 0], [-3, 2, 0]), ([-3, 0, 0], [1, 0, 0])]
            {
                let out: [usize; 3] = std::array::from_fn(|a| dims[a].wrapping_add_signed(before[a] + after[a]));
                let (from, to) =
                    (Blocked::new(channels, dims, [1, 0, 1], block), Blocked::new(channels, out, [0, 1, 2], block));
                let dense: Vec<f32> = (0..channels * 60).map(|v| v as f32 + 1.0).collect();
                let (mut input, mut output) = (vec![0.0; from.len()], vec![0.0; to.len()]);
                reorder::pack(&dense, &from, 0.0, &mut input)?;
                pad(before, Filling { value: -7.0, zero: 0.0 }, &input, &from, &mut output, &to)?;
                let mut expected = Vec::new();
                for c in 0..channels {
                    for z in 0..out[0] {
                        for y in 0..out[1] {
                            for x in 0..out[2] {
                                let at = [z, y, x].map(|p| p as isize);
                                let at: [isize; 3] = std::array::from_fn(|a| at[a] - before[a]);
                                let is_inside = (0..3).all(|a| (0..dims[a] as isize).contains(&at[a]));
                                let index = (at[0] * 4 + at[1]) * 5 + at[2] + c as isize * 60;
                                expected.push(if is_inside { index as f32 + 1.0 } else { -7.0 });
                            }
                        }
                    }
                }
                let mut blocked = vec![0.0; to.len()];
                reorder::pack(&expected, &to, 0.0, &mut blocked)?;
                assert!(
                    output == blocked,
                    "{channels} channels in blocks of {block}, {before:?} before, {after:?} after"
                );
            }
        }
        Ok(())
    }
}

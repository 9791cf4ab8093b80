//! The middle slice of a stack, by which its values are checked before the whole stack is read.

use crate::Context;
use crate::stack::Stack;
use std::ops::Range;

/// Maximum number of rows and columns of the part in the middle.
const MAX_PART: usize = 512;
/// Maximum number of voxels of a slice that is read at once, 16 MiB of floats. Of a larger one, only the parts are read.
const MAX_WHOLE: usize = 4 << 20;

/// Parts of the middle slice of a stack.
#[derive(Debug, PartialEq)]
pub(crate) struct MiddleSlice {
    /// Values of the part in the middle, row by row.
    pub(crate) part: Vec<f32>,
    /// Number of values in a row of [`Self::part`].
    pub(crate) part_width: usize,
    /// Values of the middle row of the slice.
    pub(crate) row: Vec<f32>,
    /// Values of the middle column of the slice.
    pub(crate) column: Vec<f32>,
}

impl MiddleSlice {
    /// Reads the middle slice of a channel; `None` if it cannot be read, which is reported when the stack is.
    pub(crate) fn read(context: &Context, stack: &Stack, channel: usize) -> Option<Self> {
        Self::read_at_once(context, stack, channel, MAX_WHOLE)
    }

    /// Same as [`Self::read`]; slices of up to `max_whole` voxels are read at once.
    fn read_at_once(context: &Context, stack: &Stack, channel: usize, max_whole: usize) -> Option<Self> {
        let [_, ny, nx] = stack.extents.zyx;
        let [row, column] = [middle(ny, 1), middle(nx, 1)];
        if stack.slice_len() > max_whole {
            let (part, part_width) = middle_values(context, stack, channel)?;
            let row = values(context, stack, channel, [row, 0..nx])?;
            let column = values(context, stack, channel, [0..ny, column])?;
            return Some(Self { part, part_width, row, column });
        }
        let slice = values(context, stack, channel, [0..ny, 0..nx])?;
        let cut = |[rows, columns]: [Range<usize>; 2]| -> Vec<f32> {
            let lines = slice.chunks_exact(nx.max(1)).skip(rows.start).take(rows.len());
            lines.filter_map(|line| line.get(columns.clone())).flatten().copied().collect()
        };
        let [part_rows, part_columns] = [middle(ny, MAX_PART), middle(nx, MAX_PART)];
        let part_width = part_columns.len();
        let part = cut([part_rows, part_columns]);
        Some(Self { part, part_width, row: cut([row, 0..nx]), column: cut([0..ny, column]) })
    }
}

/// Returns the values in the middle of the middle slice of a stack, row by row, and their number in a row; `None` if they cannot
/// be read, which is reported when the stack is.
pub(crate) fn middle_values(context: &Context, stack: &Stack, channel: usize) -> Option<(Vec<f32>, usize)> {
    let [_, ny, nx] = stack.extents.zyx;
    let [rows, columns] = [middle(ny, MAX_PART), middle(nx, MAX_PART)];
    let width = columns.len();
    Some((values(context, stack, channel, [rows, columns])?, width))
}

/// Returns the range of at most `most` positions in the middle of an axis.
fn middle(length: usize, most: usize) -> Range<usize> {
    let start = length.saturating_sub(most) / 2;
    start..start + length.min(most)
}

/// Reads rows and columns of the middle slice.
fn values(context: &Context, stack: &Stack, channel: usize, [rows, columns]: [Range<usize>; 2]) -> Option<Vec<f32>> {
    let part = stack.windowed(&[middle(stack.extents.zyx[0], 1), rows, columns]);
    let slices = part.extents.zyx[0];
    Some(part.read(context, channel, 0..slices).ok()?.to_f32())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;
    use cytoscope_formats::image_in_memory;
    use cytoscope_volume::{Array, Axes, VoxelSize};
    use std::path::Path;

    #[test]
    fn the_parts_of_a_slice_are_the_same_if_it_is_read_at_once() {
        // The value of a voxel is its number; the middle slice is the second one.
        let (depth, ny, nx) = (4, 3, 600);
        let all: Vec<f32> = (0..depth * ny * nx).map(|i| i as f32).collect();
        let array = Array::new(Axes::zyx(), vec![depth, ny, nx], all).unwrap();
        let image = image_in_memory(Path::new("a"), array, VoxelSize::default()).unwrap();
        let (context, stack) = (Context::default(), Stack::new(&image, 0));
        let at_once = MiddleSlice::read(&context, &stack, 0).unwrap();
        let first = |y: usize, x: usize| ((ny + y) * nx + x) as f32;
        assert_eq!((at_once.part_width, at_once.part.len(), at_once.part[0]), (512, 3 * 512, first(0, 44)));
        assert_eq!((at_once.row.len(), at_once.row[0]), (600, first(1, 0)));
        assert_eq!(at_once.column, [first(0, 299), first(1, 299), first(2, 299)]);
        assert_eq!(MiddleSlice::read_at_once(&context, &stack, 0, 1799).unwrap(), at_once);
    }
}

//! Crops of stacks that are too large to be validated completely.

use crate::stacks::Stack;
use cytoscope_training_data::StackWindow;
use std::convert::Infallible;

/// Bisection steps in the search for the edge length of a box: enough for single-voxel precision on any stack.
const HALVINGS: usize = 60;

fn volume(zyx: [usize; 3]) -> usize {
    zyx.iter().fold(1usize, |n, v| n.saturating_mul(*v))
}

/// Returns the size along Z, Y, X of a box within `shape` that has about the same length in µm along each axis and at
/// most `voxels` voxels.
fn box_size(shape: [usize; 3], voxel_um: [f64; 3], voxels: usize) -> [usize; 3] {
    let with_edge = |um: f64| -> [usize; 3] {
        std::array::from_fn(|a| ((um / voxel_um[a].max(f64::MIN_POSITIVE)) as usize).clamp(1, shape[a].max(1)))
    };
    let (mut fits, mut too_long) = (0.0, shape.iter().zip(voxel_um).map(|(n, um)| *n as f64 * um).fold(0.0, f64::max));
    for _ in 0..HALVINGS {
        let edge = (fits + too_long) / 2.0;
        if volume(with_edge(edge)) <= voxels { fits = edge } else { too_long = edge }
    }
    with_edge(fits)
}

/// Returns the start of the range of `size` positions with the highest sum of `counts`. If successive ranges have the same
/// sum, it is the middle one.
fn fullest_range(counts: &[u64], size: usize) -> usize {
    let mut sum: u64 = counts.iter().take(size).sum();
    let (mut most, mut first, mut last) = (sum, 0, 0);
    for (before, (gone, added)) in counts.iter().zip(counts.iter().skip(size)).enumerate() {
        sum = sum + added - gone;
        let start = before + 1;
        if sum > most {
            (most, first, last) = (sum, start, start);
        } else if sum == most && start == last + 1 {
            last = start;
        }
    }
    usize::midpoint(first, last)
}

/// Returns a window of this size with many voxels of objects in a stack of this shape. It is chosen axis by axis: the slices
/// with the most such voxels, within them the rows, and within these the columns. `count` returns the number of such voxels in
/// a window for each position along an axis.
///
/// # Errors
/// Those of `count`.
fn fullest_window<E>(
    shape: [usize; 3],
    size_zyx: [usize; 3],
    mut count: impl FnMut(&StackWindow, usize) -> Result<Vec<u64>, E>,
) -> Result<StackWindow, E> {
    let mut window = StackWindow { start_zyx: [0; 3], size_zyx: shape };
    for axis in 0..3 {
        if size_zyx[axis] < shape[axis] {
            window.start_zyx[axis] = fullest_range(&count(&window, axis)?, size_zyx[axis]);
            window.size_zyx[axis] = size_zyx[axis];
        }
    }
    Ok(window)
}

/// Adds the number of voxels of objects in labels of this size Z, Y, X to `counts`, at their position along an axis; voxels
/// that are background or `ignored` do not count.
fn count_objects(values: &[f32], size: [usize; 3], ignored: Option<f32>, axis: usize, counts: &mut [u64]) {
    let [_, ny, nx] = size;
    for (row, values) in values.chunks_exact(nx.max(1)).enumerate() {
        for (x, _) in values.iter().enumerate().filter(|(_, v)| **v > 0.0 && Some(**v) != ignored) {
            let at = [row / ny.max(1), row % ny.max(1), x][axis];
            if let Some(count) = counts.get_mut(at) {
                *count += 1;
            }
        }
    }
}

/// Where the voxels of objects lie in a stack that is read slice by slice.
struct ObjectRows {
    /// Number of rows of a slice.
    rows: usize,
    /// Number of voxels of objects in each row of each slice.
    counts: Vec<u64>,
    /// One bit for each voxel of each row, set for objects; empty for rows without objects. `None` if columns do not matter.
    bits: Option<Vec<Vec<u64>>>,
}

impl ObjectRows {
    /// Adds the next slice, whose rows have `columns` voxels.
    fn add_slice(&mut self, values: &[f32], columns: usize, ignored: f32) {
        let is_object = |value: &f32| *value > 0.0 && *value != ignored;
        for row in values.chunks_exact(columns.max(1)) {
            let count = row.iter().copied().filter(|value| is_object(value)).count() as u64;
            self.counts.push(count);
            let Some(bits) = &mut self.bits else { continue };
            let words = row.chunks(64).map(|values| {
                values.iter().enumerate().fold(0u64, |word, (i, value)| word | (u64::from(is_object(value)) << i))
            });
            bits.push(if count > 0 { words.collect() } else { Vec::new() });
        }
    }

    /// Returns the number of voxels of objects in a window for each position along an axis. Along Z and Y, the window must
    /// have all columns.
    fn counts(&self, window: &StackWindow, axis: usize) -> Vec<u64> {
        let ([z0, y0, x0], [nz, ny, nx]) = (window.start_zyx, window.size_zyx);
        let mut counts = vec![0u64; window.size_zyx[axis]];
        for (z, y) in (0..nz).flat_map(|z| (0..ny).map(move |y| (z, y))) {
            let row = (z0 + z) * self.rows + y0 + y;
            if axis < 2 {
                counts[[z, y][axis]] += self.counts.get(row).copied().unwrap_or(0);
                continue;
            }
            let Some(words) = self.bits.as_ref().and_then(|bits| bits.get(row)).filter(|words| !words.is_empty())
            else {
                continue;
            };
            for (count, x) in counts.iter_mut().zip(x0..x0 + nx) {
                *count += words.get(x / 64).map_or(0, |word| (word >> (x % 64)) & 1);
            }
        }
        counts
    }
}

/// Returns the window of this size that [`fullest_window`] finds in a stack of labels. `read_slice` returns a slice; it is
/// called once for each. At most one bit per voxel and a count per row are kept of the stack.
///
/// # Errors
/// Those of `read_slice`.
pub(crate) fn fullest_window_of_slices<E>(
    shape: [usize; 3],
    size_zyx: [usize; 3],
    ignored: f32,
    mut read_slice: impl FnMut(usize) -> Result<Vec<f32>, E>,
) -> Result<StackWindow, E> {
    let [depth, rows, columns] = shape;
    let bits = (size_zyx[2] < columns).then(Vec::new);
    let mut objects = ObjectRows { rows, counts: Vec::new(), bits };
    for z in 0..depth {
        objects.add_slice(&read_slice(z)?, columns, ignored);
    }
    fullest_window(shape, size_zyx, |window, axis| Ok(objects.counts(window, axis)))
}

/// Returns a window with at most `voxels` voxels where most voxels of objects are, or `None` if the whole stack is no
/// larger.
pub(crate) fn crop_window(
    truth: &Stack,
    voxel_um: [f64; 3],
    ignored: Option<f32>,
    voxels: usize,
) -> Option<StackWindow> {
    let shape = truth.1;
    if volume(shape) <= voxels {
        return None;
    }
    let count = |window: &StackWindow, axis: usize| -> Result<Vec<u64>, Infallible> {
        let mut counts = vec![0; window.size_zyx[axis]];
        count_objects(&crop(truth, window).0, window.size_zyx, ignored, axis, &mut counts);
        Ok(counts)
    };
    fullest_window(shape, box_size(shape, voxel_um, voxels), count).ok()
}

/// Returns the values inside a window of a stack.
pub(crate) fn crop((values, shape): &Stack, window: &StackWindow) -> Stack {
    let ([z0, y0, x0], [nz, ny, nx]) = (window.start_zyx, window.size_zyx);
    let rows = (z0..z0 + nz).flat_map(|z| (y0..y0 + ny).map(move |y| (z * shape[1] + y) * shape[2] + x0));
    let values = rows.flat_map(|row| values.get(row..row + nx).unwrap_or_default().iter().copied()).collect();
    (values, window.size_zyx)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn the_crop_is_where_objects_are_and_isotropic_in_um() {
        let shape = [20, 100, 200];
        let mut values = vec![0.0f32; 20 * 100 * 200];
        // One object around z 4, y 80, x 150; slice 19 has the ignore label everywhere.
        for (z, y, x) in (2..7).flat_map(|z| (70..91).flat_map(move |y| (140..161).map(move |x| (z, y, x)))) {
            values[(z * 100 + y) * 200 + x] = 3.0;
        }
        values[19 * 20_000..].fill(255.0);
        let truth = (values, shape);
        assert!(
            crop_window(&truth, [2.0, 0.5, 0.5], Some(255.0), 400_000).is_none(),
            "the whole stack is small enough"
        );
        let window = crop_window(&truth, [2.0, 0.5, 0.5], Some(255.0), 16_000).unwrap();
        // 10 slices of 2 µm, 40 rows and columns of 0.5 µm: a cube of 20 µm.
        assert_eq!(window.size_zyx, [10, 40, 40]);
        assert_eq!(window.start_zyx, [1, 55, 130]);
        let (cut, cut_shape) = crop(&truth, &window);
        assert_eq!((cut.len(), cut_shape), (16_000, [10, 40, 40]));
        assert_eq!(cut.iter().filter(|v| **v == 3.0).count(), 5 * 21 * 21, "the whole object");
        // A single-slice stack keeps its slice, and an empty stack is cropped in its middle.
        let empty = (vec![0.0; 90 * 300], [1, 90, 300]);
        let window = crop_window(&empty, [1.0; 3], None, 10_000).unwrap();
        assert_eq!((window.size_zyx, window.start_zyx), ([1, 90, 111], [0, 0, 94]));
    }

    #[test]
    fn the_crop_of_annotations_that_lie_far_apart_holds_some_of_them() {
        // Two slices are annotated, each with an object; their centroid lies between, where nothing is known.
        let shape = [40, 20, 30];
        let mut values = vec![255.0f32; 40 * 600];
        for (z, from, size) in [(3, 2, 4), (36, 10, 6)] {
            values[z * 600..(z + 1) * 600].fill(0.0);
            for (y, x) in (from..from + size).flat_map(|y| (from..from + size).map(move |x| (y, x))) {
                values[z * 600 + y * 30 + x] = 1.0;
            }
        }
        let truth = (values, shape);
        let window = crop_window(&truth, [1.0; 3], Some(255.0), 1000).unwrap();
        assert_eq!(window.size_zyx, [10, 10, 10]);
        let (cut, _) = crop(&truth, &window);
        assert_eq!(cut.iter().filter(|v| **v == 1.0).count(), 36, "{window:?}");
    }

    #[test]
    fn the_window_of_a_stack_that_is_read_once_is_that_of_one_in_memory() {
        let shape = [9, 20, 150];
        // Objects of different sizes, one of them with the ignore label 9, and one beyond the first word of bits.
        let mut values = vec![0.0f32; 9 * 20 * 150];
        for (label, z, y, x, edge) in
            [(1.0, 1, 2, 5, 4), (9.0, 0, 0, 40, 9), (2.0, 5, 11, 100, 4), (3.0, 6, 12, 120, 3)]
        {
            for (dz, dy, dx) in (0..edge).flat_map(|z| (0..edge).flat_map(move |y| (0..edge).map(move |x| (z, y, x)))) {
                values[((z + dz) * 20 + y + dy) * 150 + x + dx] = label;
            }
        }
        let truth = (values, shape);
        for size in [[4, 20, 150], [9, 5, 150], [9, 20, 30], [4, 8, 30], [2, 3, 70]] {
            let expected = fullest_window(shape, size, |window, axis| -> Result<Vec<u64>, Infallible> {
                let mut counts = vec![0; window.size_zyx[axis]];
                count_objects(&crop(&truth, window).0, window.size_zyx, Some(9.0), axis, &mut counts);
                Ok(counts)
            });
            let mut read = Vec::new();
            let found = fullest_window_of_slices(shape, size, 9.0, |z| -> Result<Vec<f32>, Infallible> {
                read.push(z);
                Ok(truth.0[z * 3000..(z + 1) * 3000].to_vec())
            });
            assert_eq!(found, expected, "{size:?}");
            assert_eq!(read, (0..9).collect::<Vec<_>>(), "each slice is read once");
        }
    }

    #[test]
    fn the_fullest_range_is_in_the_middle_of_equal_ones() {
        assert_eq!(fullest_range(&[0, 0, 3, 1, 0, 0], 2), 2);
        assert_eq!(fullest_range(&[0, 0, 0, 5, 0, 0, 0], 3), 2);
        assert_eq!(fullest_range(&[1, 0, 0, 0, 1], 2), 0);
        assert_eq!((fullest_range(&[0; 9], 3), fullest_range(&[2; 4], 4), fullest_range(&[], 3)), (3, 0, 0));
    }
}

//! Crops of stacks that are too large to be validated completely.

use crate::stacks::Stack;
use cytoscope_training_data::StackWindow;

/// Bisection steps in the search for the edge length of a box: enough for single-voxel precision on any stack.
const HALVINGS: usize = 60;

fn volume(zyx: [usize; 3]) -> usize {
    zyx.iter().fold(1usize, |n, v| n.saturating_mul(*v))
}

/// Returns the size along Z, Y, X of a box within `shape` that has about the same length in µm along each axis and at
/// most `voxels` voxels.
fn size_of_box(shape: [usize; 3], voxel_um: [f64; 3], voxels: usize) -> [usize; 3] {
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

/// Returns the centroid of the voxels that are neither background nor `ignored`, or the middle of the stack if there
/// are none.
fn center((values, shape): &Stack, ignored: Option<f32>) -> [f64; 3] {
    let (mut sum, mut count) = ([0.0; 3], 0.0);
    for (i, _) in values.iter().enumerate().filter(|(_, v)| **v > 0.0 && Some(**v) != ignored) {
        let at = [i / (shape[1] * shape[2]), i / shape[2] % shape[1], i % shape[2]];
        at.iter().zip(&mut sum).for_each(|(at, sum)| *sum += *at as f64);
        count += 1.0;
    }
    if count == 0.0 { shape.map(|n| n as f64 / 2.0) } else { sum.map(|s| s / count) }
}

/// Returns a window with at most `voxels` voxels around the centroid of the foreground, or `None` if the whole stack is
/// no larger.
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
    let size_zyx = size_of_box(shape, voxel_um, voxels);
    let center = center(truth, ignored);
    let start_zyx = std::array::from_fn(|a| {
        let start = (center[a] - size_zyx[a] as f64 / 2.0).max(0.0) as usize;
        start.min(shape[a].saturating_sub(size_zyx[a]))
    });
    Some(StackWindow { start_zyx, size_zyx })
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
    fn the_crop_is_centered_on_objects_and_isotropic_in_um() {
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
        assert_eq!(window.start_zyx, [0, 60, 130]);
        let (cut, cut_shape) = crop(&truth, &window);
        assert_eq!((cut.len(), cut_shape), (16_000, [10, 40, 40]));
        assert_eq!(cut.iter().filter(|v| **v == 3.0).count(), 5 * 21 * 21, "the whole object");
        // A single-slice stack keeps its slice, and an empty stack is cropped in its middle.
        let empty = (vec![0.0; 90 * 300], [1, 90, 300]);
        let window = crop_window(&empty, [1.0; 3], None, 10_000).unwrap();
        assert_eq!((window.size_zyx, window.start_zyx), ([1, 90, 111], [0, 0, 94]));
    }
}

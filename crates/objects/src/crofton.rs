//! Weights with which the surface of digitized objects is estimated from crossings along lines, by Crofton's formula:
//! Legland, Kiêu & Devaux, "Computation of Minkowski measures on 2D and 3D binary images", Image Analysis & Stereology 26
//! (2007), 83–92.
//!
//! A line meets the surface of an object wherever one of two neighboring voxels belongs to it. The lines in one direction
//! through all voxels sample the surface with a density of one line per cross section of a voxel. The estimate averages the
//! directions to all neighbors of a voxel, each with the share of all directions that are closest to it.

use std::f64::consts::{FRAC_PI_2, PI};

/// The directions Z, Y, X to the 26 neighbors of a voxel, without those that are opposite to another one. Those in a slice
/// come first.
pub(crate) const DIRECTIONS: [[i8; 3]; 13] = [
    [0, 0, 1],
    [0, 1, 0],
    [0, 1, 1],
    [0, 1, -1],
    [1, 0, 0],
    [1, 0, 1],
    [1, 0, -1],
    [1, 1, 0],
    [1, -1, 0],
    [1, 1, 1],
    [1, 1, -1],
    [1, -1, 1],
    [1, -1, -1],
];

/// Number of the directions in a slice.
pub(crate) const IN_SLICE: usize = 4;
/// Index of the direction along Z.
pub(crate) const ALONG_Z: usize = IN_SLICE;

/// Number of sampled directions, with which the shares are precise to about 1 % for voxels up to twice as long along an axis, and
/// the surface of a ball for all voxels. Smaller shares are less precise, but count less.
const SAMPLES: u32 = 1 << 14;

/// Surface in µm² for which a crossing along each of [`DIRECTIONS`] stands, for voxels of `voxel_um` (Z, Y, X).
pub(crate) fn surface_weights(voxel_um: [f64; 3]) -> [f64; DIRECTIONS.len()] {
    // A Fibonacci lattice samples the sphere evenly.
    let golden_angle = PI * (3.0 - 5f64.sqrt());
    let points = (0..SAMPLES).map(|i| {
        let z = 1.0 - f64::from(2 * i + 1) / f64::from(SAMPLES);
        let (radius, angle) = ((1.0 - z * z).sqrt(), f64::from(i) * golden_angle);
        [z, radius * angle.sin(), radius * angle.cos()]
    });
    let volume: f64 = voxel_um.iter().product();
    // The surface is four times the mean number of intersections per area of lines; a crossing is half of a chord.
    weights(&DIRECTIONS, voxel_um, points, 2.0 * volume)
}

/// Perimeter in µm for which a crossing along each of [`DIRECTIONS`] stands in a single slice, for pixels of `voxel_um` (Z, Y,
/// X); 0 for directions out of the slice.
pub(crate) fn perimeter_weights(voxel_um: [f64; 3]) -> [f64; DIRECTIONS.len()] {
    let points = (0..SAMPLES).map(|i| {
        let angle = PI * f64::from(i) / f64::from(SAMPLES);
        [0.0, angle.sin(), angle.cos()]
    });
    let area = voxel_um[1] * voxel_um[2];
    weights(&DIRECTIONS[..IN_SLICE], voxel_um, points, FRAC_PI_2 * area)
}

/// The share of `points`, which are unit vectors, that is closest to each direction or its opposite, times `scale`, divided by
/// the distance of neighbors in that direction.
fn weights(
    directions: &[[i8; 3]],
    voxel_um: [f64; 3],
    points: impl ExactSizeIterator<Item = [f64; 3]>,
    scale: f64,
) -> [f64; DIRECTIONS.len()] {
    let dot = |a: [f64; 3], b: [f64; 3]| a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
    let steps = directions.iter().map(|step| [0, 1, 2].map(|axis| f64::from(step[axis]) * voxel_um[axis]));
    let lengths_and_units: Vec<(f64, [f64; 3])> = steps
        .map(|step| {
            let length = dot(step, step).sqrt();
            (length, step.map(|s| s / length))
        })
        .collect();
    let mut weights = [0.0; DIRECTIONS.len()];
    let share = scale / points.len() as f64;
    for point in points {
        let mut closest = (0, -1.0);
        for (k, (_, unit)) in lengths_and_units.iter().enumerate() {
            let cosine = dot(point, *unit).abs();
            if cosine > closest.1 {
                closest = (k, cosine);
            }
        }
        weights[closest.0] += share / lengths_and_units[closest.0].0;
    }
    weights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equivalent_directions_have_equal_weights() {
        // Along the axes, diagonal in a plane of two axes, and diagonal in space.
        let shares = [0.091556, 0.073961, 0.070391];
        for (direction, weight) in DIRECTIONS.iter().zip(surface_weights([1.0; 3])) {
            let axes = direction.iter().filter(|step| **step != 0).count();
            let share = weight * (axes as f64).sqrt() / 2.0;
            assert!((share - shares[axes - 1]).abs() < 1e-3, "{direction:?}: {share}");
        }
        let flat = perimeter_weights([7.0, 1.0, 1.0]);
        for (direction, weight) in DIRECTIONS.iter().zip(flat) {
            let axes = direction[1..].iter().filter(|step| **step != 0).count();
            let expected = if direction[0] == 0 { PI / 8.0 / (axes as f64).sqrt() } else { 0.0 };
            assert!((weight - expected).abs() < 1e-3, "{direction:?}: {weight}");
        }
    }
}

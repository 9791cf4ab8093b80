//! Watershed from the h-maxima of a height map, in one pass.
//!
//! Voxels are visited from the highest down. A voxel without a visited neighbor starts a basin. A voxel that touches
//! several basins joins those whose peak rises less than `h` above it (their dynamic is below `h`, so they are not
//! h-maxima) to the basin with the highest peak. If it still touches two basins, it goes to the basin of its highest
//! neighbor. This is equivalent to an h-maxima transform followed by a marker-controlled watershed.

use crate::ObjectsError;
use crate::components::{Connectivity, UnionFind};
use crate::error::check_len;
use cytoscope_volume::statistics::order_key;

/// Labels the basins of `height` inside `mask` from 1 on; returns the labels and their number.
///
/// # Errors
/// [`ObjectsError`] if a volume does not match the shape, or `h` is negative or NaN.
pub fn flood(
    height: &[f32],
    mask: &[bool],
    shape_zyx: [usize; 3],
    h: f32,
    connectivity: Connectivity,
) -> Result<(Vec<u32>, u32), ObjectsError> {
    check_len("height map", height.len(), shape_zyx)?;
    check_len("mask", mask.len(), shape_zyx)?;
    if h.is_nan() || h < 0.0 {
        return Err(ObjectsError::Parameter { what: "seed height", expected: "0 or more", got: h.to_string() });
    }
    if height.len() >= u32::MAX as usize {
        return Err(ObjectsError::TooManyObjects { limit: u32::MAX });
    }
    let order = descending(height, mask);
    let [nz, ny, nx] = shape_zyx;
    let steps = neighbors(connectivity);
    let mut labels = vec![0u32; height.len()];
    let mut sets = UnionFind::default();
    sets.push();
    let mut peaks: Vec<f32> = vec![0.0];
    for packed in order {
        let i = (packed & 0xFFFF_FFFF) as usize;
        let (z, y, x) = (i / (ny * nx), i / nx % ny, i % nx);
        let own_height = height[i].min(f32::MAX);
        let inner = z > 0 && y > 0 && x > 0 && z + 1 < nz && y + 1 < ny && x + 1 < nx;
        let (mut best, mut steepest, mut steepest_height) = (0u32, 0u32, f32::NEG_INFINITY);
        let mut several = false;
        let visit = |f: &mut dyn FnMut(usize)| {
            for [dz, dy, dx] in steps {
                if !inner {
                    let fits = |at: usize, d: isize, n: usize| at.checked_add_signed(d).is_some_and(|v| v < n);
                    if !(fits(z, *dz, nz) && fits(y, *dy, ny) && fits(x, *dx, nx)) {
                        continue;
                    }
                }
                f(i.wrapping_add_signed((dz * ny as isize + dy) * nx as isize + dx));
            }
        };
        visit(&mut |j| {
            if labels[j] == 0 {
                return;
            }
            let root = sets.find(labels[j]);
            if best == 0 {
                best = root;
            } else if root != best {
                several = true;
                if peaks[root as usize] > peaks[best as usize] {
                    best = root;
                }
            }
            if height[j] > steepest_height {
                (steepest, steepest_height) = (root, height[j]);
            }
        });
        if best == 0 {
            labels[i] = sets.push();
            peaks.push(own_height);
            continue;
        }
        if several {
            visit(&mut |j| {
                if labels[j] != 0 {
                    let root = sets.find(labels[j]);
                    // A basin whose peak is as high as this voxel is a part of the same plateau.
                    let peak = peaks[root as usize];
                    if root != best && (peak <= own_height || peak - own_height < h) {
                        sets.attach(root, best);
                    }
                }
            });
        }
        labels[i] = steepest;
    }
    let count = number_in_order(&mut labels, &mut sets, peaks.len());
    Ok((labels, count))
}

/// Returns the voxels of the mask from the highest to the lowest: the index in the lower half of each number.
fn descending(height: &[f32], mask: &[bool]) -> Vec<u64> {
    // With the exact capacity, the list is not copied while it grows.
    let mut order: Vec<u64> = Vec::with_capacity(mask.iter().filter(|inside| **inside).count());
    for (i, (value, inside)) in height.iter().zip(mask).enumerate() {
        if *inside {
            order.push(u64::from(!order_key(*value)) << 32 | i as u64);
        }
    }
    order.sort_unstable();
    order
}

/// Replaces each label by a number from 1 on for its set, in the order of the volume. Returns the number of sets;
/// `label_count` is the number of labels, 0 included.
fn number_in_order(labels: &mut [u32], sets: &mut UnionFind, label_count: usize) -> u32 {
    let mut names = vec![0u32; label_count];
    let mut count = 0;
    for label in labels.iter_mut().filter(|l| **l != 0) {
        let root = sets.find(*label) as usize;
        if names[root] == 0 {
            count += 1;
            names[root] = count;
        }
        *label = names[root];
    }
    count
}

fn neighbors(connectivity: Connectivity) -> &'static [[isize; 3]] {
    const FACES: [[isize; 3]; 6] = [[-1, 0, 0], [0, -1, 0], [0, 0, -1], [0, 0, 1], [0, 1, 0], [1, 0, 0]];
    const CORNERS: [[isize; 3]; 26] = {
        let mut all = [[0; 3]; 26];
        let (mut i, mut n) = (0, 0);
        while i < 27 {
            if i != 13 {
                all[n] = [i as isize / 9 - 1, i as isize / 3 % 3 - 1, i as isize % 3 - 1];
                n += 1;
            }
            i += 1;
        }
        all
    };
    match connectivity {
        Connectivity::Faces => &FACES,
        Connectivity::Corners => &CORNERS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ridge(values: &[f32], h: f32) -> (Vec<u32>, u32) {
        flood(values, &vec![true; values.len()], [1, 1, values.len()], h, Connectivity::Faces).unwrap()
    }

    #[test]
    fn only_peaks_that_rise_by_h_become_basins() {
        let line = [1.0, 5.0, 3.0, 4.0, 1.0, 6.0, 2.0];
        assert_eq!(ridge(&line, 0.0).1, 3);
        // The middle peak rises by 1 above the saddle to its left.
        assert_eq!(ridge(&line, 1.5).1, 2);
        assert_eq!(ridge(&line, 1.5).0, [1, 1, 1, 1, 2, 2, 2]);
        // The left peak rises by 4 above the saddle to the highest.
        assert_eq!(ridge(&line, 4.5).1, 1);
    }

    #[test]
    fn a_plateau_is_one_basin() {
        assert_eq!(ridge(&[2.0, 2.0, 2.0, 2.0], 0.1).1, 1);
        // A plateau in the form of a U, whose ends are visited before what connects them.
        let rows = [[2.0, 0.0, 2.0], [2.0, 0.0, 2.0], [2.0, 2.0, 2.0]].concat();
        let inside: Vec<bool> = rows.iter().map(|height| *height > 1.0).collect();
        for h in [0.0, 0.1] {
            assert_eq!(flood(&rows, &inside, [1, 3, 3], h, Connectivity::Faces).unwrap().1, 1, "{h}");
        }
        assert!(flood(&[1.0], &[true], [1, 1, 1], -1.0, Connectivity::Faces).is_err());
    }
}

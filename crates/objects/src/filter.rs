//! Removal and renumbering of objects.

use crate::components::boxes;
use crate::selection::touches_border;

/// Removes objects with fewer than `min_voxels` voxels and, if requested, those that touch the faces of the volume, and
/// renumbers the others `1..=n` in their order. Returns `n`.
///
/// Faces along an axis of length 1 do not count as a border. `count` is the largest label.
pub fn filter_and_relabel(
    labels: &mut [u32],
    shape_zyx: [usize; 3],
    count: u32,
    min_voxels: u64,
    drop_border: bool,
) -> u32 {
    let mut voxels = vec![0u64; count as usize + 1];
    for label in labels.iter() {
        if let Some(n) = voxels.get_mut(*label as usize) {
            *n += 1;
        }
    }
    let mut keep: Vec<bool> = voxels.iter().map(|n| *n > 0 && *n >= min_voxels).collect();
    if drop_border {
        for (i, found) in boxes(labels, shape_zyx, count).into_iter().enumerate() {
            if found.is_some_and(|bounds| touches_border(bounds, shape_zyx)) {
                keep[i + 1] = false;
            }
        }
    }
    let mut new_labels = vec![0u32; keep.len()];
    let mut next = 0;
    for (new_label, keep) in new_labels.iter_mut().zip(keep).skip(1) {
        if keep {
            next += 1;
            *new_label = next;
        }
    }
    for label in labels.iter_mut() {
        *label = new_labels.get(*label as usize).copied().unwrap_or(0);
    }
    next
}

/// Fills holes in each XY slice: background that is not 4-connected to the slice's border.
pub fn fill_holes(mask: &mut [bool], shape_zyx: [usize; 3]) {
    let [_, ny, nx] = shape_zyx;
    if ny < 3 || nx < 3 {
        return;
    }
    let mut outside = vec![false; ny * nx];
    let mut stack = Vec::new();
    for plane in mask.chunks_exact_mut(ny * nx) {
        outside.fill(false);
        for y in 0..ny {
            for x in 0..nx {
                if y == 0 || x == 0 || y + 1 == ny || x + 1 == nx {
                    stack.push(y * nx + x);
                }
            }
        }
        while let Some(i) = stack.pop() {
            if outside[i] || plane[i] {
                continue;
            }
            outside[i] = true;
            let (y, x) = (i / nx, i % nx);
            let steps =
                [(y > 0, i.wrapping_sub(nx)), (y + 1 < ny, i + nx), (x > 0, i.wrapping_sub(1)), (x + 1 < nx, i + 1)];
            stack.extend(steps.iter().filter(|(there, _)| *there).map(|(_, j)| *j));
        }
        plane.iter_mut().zip(&outside).for_each(|(m, o)| *m = !*o);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_border_objects_are_removed_and_the_rest_renumbered() {
        let mut labels = vec![
            1, 0, 0, 0, 0, //
            0, 0, 2, 0, 0, //
            0, 0, 2, 0, 3, //
            0, 4, 0, 0, 0, //
            0, 0, 0, 0, 0,
        ];
        assert_eq!(filter_and_relabel(&mut labels.clone(), [1, 5, 5], 4, 2, false), 1);
        assert_eq!(filter_and_relabel(&mut labels, [1, 5, 5], 4, 1, true), 2);
        assert_eq!(labels[7], 1);
        assert_eq!(labels[16], 2);
        assert_eq!(labels.iter().filter(|l| **l > 0).count(), 3);
    }

    #[test]
    fn holes_are_filled_but_open_bays_are_not() {
        let mut mask: Vec<bool> = "######.##.##.######.#####".chars().map(|c| c == '#').collect();
        fill_holes(&mut mask, [1, 5, 5]);
        let text: String = mask.iter().map(|m| if *m { '#' } else { '.' }).collect();
        // The two gaps on the right edge stay; the two inside are closed.
        assert_eq!(text, "#########.#########.#####");
    }
}

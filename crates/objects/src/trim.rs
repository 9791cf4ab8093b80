//! Trims objects to the voxels that exceed a higher threshold than that of the foreground.

/// Sets the voxels of objects whose value in `map` is below `level` to 0, slice by slice. With `keeps_holes`, only those are
/// set that are connected to the border of their object through one another, so that the inside of hollow objects stays. The
/// border of the volume `[Z][Y][X]` is not a border of an object. `labels` and `map` have one element per voxel of the volume.
pub(crate) fn trim(labels: &mut [u32], map: &[f32], shape: [usize; 3], level: f32, keeps_holes: bool) {
    let [_, ny, nx] = shape;
    let mut waiting = Vec::new();
    for (labels, map) in labels.chunks_exact_mut((ny * nx).max(1)).zip(map.chunks_exact((ny * nx).max(1))) {
        if !keeps_holes {
            labels.iter_mut().zip(map).filter(|(_, value)| **value < level).for_each(|(label, _)| *label = 0);
            continue;
        }
        let is_low = |labels: &[u32], at: usize| labels[at] > 0 && map[at] < level;
        let at_border = |at: usize| neighbors(at, [ny, nx]).any(|other| labels[other] != labels[at]);
        // Each with the object that it belonged to.
        waiting.extend((0..labels.len()).filter(|at| is_low(labels, *at) && at_border(*at)).map(|at| (at, labels[at])));
        waiting.iter().for_each(|(at, _)| labels[*at] = 0);
        while let Some((at, object)) = waiting.pop() {
            for other in neighbors(at, [ny, nx]) {
                if labels[other] == object && is_low(labels, other) {
                    labels[other] = 0;
                    waiting.push((other, object));
                }
            }
        }
    }
}

/// The neighbors of a voxel in its slice.
fn neighbors(at: usize, [ny, nx]: [usize; 2]) -> impl Iterator<Item = usize> {
    let (y, x) = (at / nx, at % nx);
    let all = [(y > 0, at.wrapping_sub(nx)), (y + 1 < ny, at + nx), (x > 0, at.wrapping_sub(1)), (x + 1 < nx, at + 1)];
    all.into_iter().filter(|(inside, _)| *inside).map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two objects side by side in 6 x 9 voxels. The left one is hollow, and its border to the right one is dim.
    fn objects() -> (Vec<u32>, Vec<f32>) {
        let labels = [
            [0, 0, 0, 0, 0, 0, 0, 0, 0],
            [0, 1, 1, 1, 1, 2, 2, 2, 0],
            [0, 1, 1, 1, 1, 2, 2, 2, 0],
            [0, 1, 1, 1, 1, 2, 2, 2, 0],
            [0, 1, 1, 1, 1, 2, 2, 2, 0],
            [0, 0, 0, 0, 0, 0, 0, 0, 0],
        ];
        let map = [
            [1, 1, 1, 1, 1, 1, 1, 1, 1],
            [1, 9, 9, 9, 6, 6, 9, 9, 1],
            [1, 9, 6, 9, 6, 6, 9, 9, 1],
            [1, 9, 6, 9, 6, 6, 9, 9, 1],
            [1, 9, 9, 9, 6, 6, 9, 9, 1],
            [1, 1, 1, 1, 1, 1, 1, 1, 1],
        ];
        (labels.concat(), map.concat().into_iter().map(|v: u8| f32::from(v) / 10.0).collect())
    }

    fn count(labels: &[u32], object: u32) -> usize {
        labels.iter().filter(|label| **label == object).count()
    }

    #[test]
    fn dim_voxels_between_objects_go_and_holes_stay() {
        let (mut labels, map) = objects();
        trim(&mut labels, &map, [1, 6, 9], 0.7, true);
        assert_eq!([1, 2].map(|object| count(&labels, object)), [12, 8]);
        let (mut labels, map) = objects();
        trim(&mut labels, &map, [1, 6, 9], 0.7, false);
        assert_eq!([1, 2].map(|object| count(&labels, object)), [10, 8]);
    }

    #[test]
    fn the_border_of_the_volume_is_no_border_of_an_object() {
        let mut labels = vec![1; 2 * 3 * 4];
        let map = vec![0.0; labels.len()];
        trim(&mut labels, &map, [2, 3, 4], 0.5, true);
        assert_eq!(count(&labels, 1), 24);
        trim(&mut labels, &map, [2, 3, 4], 0.5, false);
        assert_eq!(count(&labels, 1), 0);
    }
}

//! Labels that fill most of an image: probably those of the background, or of voxels that are not annotated.

/// Minimum size of a dominant object as a multiple of that of the next smaller one.
const FACTOR: u64 = 5;

/// Returns the label of an object that fills more than half of an image of `voxels` voxels and is at least five times as large as
/// any other one, with the share of the image that it fills. `sizes` are the labels of all objects with their numbers of voxels.
/// A single object is not dominant.
///
/// ```
/// use cytoscope_objects::dominant::dominant_label;
///
/// assert_eq!(dominant_label([(1, 10), (7, 60), (3, 12)], 100), Some((7, 0.6)));
/// ```
pub fn dominant_label(sizes: impl IntoIterator<Item = (u32, u64)>, voxels: u64) -> Option<(u32, f64)> {
    let mut by_size: Vec<(u64, u32)> = sizes.into_iter().map(|(label, size)| (size, label)).collect();
    by_size.sort_unstable();
    let (largest, label) = by_size.pop()?;
    let (second, _) = by_size.pop()?;
    let is_dominant = largest > voxels / 2 && largest / FACTOR >= second;
    is_dominant.then(|| (label, largest as f64 / voxels as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_labels_that_are_much_larger_than_all_others_are_dominant() {
        assert_eq!(dominant_label([(65_535, 80), (1, 10), (2, 10)], 100), Some((65_535, 0.8)));
        for (sizes, voxels) in [
            // Half of the image, cells that share it, a single object, and none.
            (vec![(1, 50), (2, 5)], 100),
            (vec![(1, 60), (2, 13)], 100),
            (vec![(1, 90)], 100),
            (vec![], 100),
        ] {
            assert_eq!(dominant_label(sizes.clone(), voxels), None, "{sizes:?}");
        }
    }
}

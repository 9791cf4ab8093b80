//! The object diameter of a stack: the diameter of the sphere with the volume of the median object.

/// Minimum number of whole objects; with fewer, cut objects are included.
const MIN_WHOLE_OBJECTS: usize = 3;
/// In stacks of up to this many slices, objects that reach the first or last slice still count as whole.
const FLAT_SLICES: usize = 4;

/// Returns the diameter of a sphere from its volume, in the corresponding unit of length.
pub fn of_sphere(volume: f64) -> f64 {
    (6.0 / std::f64::consts::PI * volume).cbrt()
}

/// Whether a side of a stack of `shape` (Z, Y, X) cuts an object that extends from voxel `low` to voxel `high`. In
/// stacks of a few slices every object is cut along Z, so only the sides along Y and X count there.
pub fn is_cut(low: [usize; 3], high: [usize; 3], shape: [usize; 3]) -> bool {
    (0..3).any(|a| (a > 0 || shape[0] > FLAT_SLICES) && (low[a] == 0 || high[a] + 1 >= shape[a]))
}

/// Returns the objects that no side of the stack cuts, or all of them if fewer than three are whole.
pub fn whole<T>(objects: Vec<T>, is_cut: impl Fn(&T) -> bool) -> Vec<T> {
    if objects.iter().filter(|o| !is_cut(o)).count() < MIN_WHOLE_OBJECTS {
        return objects;
    }
    objects.into_iter().filter(|o| !is_cut(o)).collect()
}

/// Returns the median diameter of objects, each given by its number of voxels and whether a side of the stack cuts it.
/// `voxel` is the voxel size along Z, Y, X, and the result is in its unit. `None` without objects.
pub fn median(objects: Vec<(u64, bool)>, voxel: [f64; 3]) -> Option<f64> {
    let mut voxels: Vec<u64> = whole(objects, |o| o.1).into_iter().map(|o| o.0).collect();
    voxels.sort_unstable();
    Some(of_sphere(*voxels.get(voxels.len() / 2)? as f64 * voxel.iter().product::<f64>()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn cut_objects_are_left_out_if_enough_are_whole() {
        // A sphere of diameter 10 µm has 523.6 µm³: 262 voxels of 2 µm³.
        let voxel = [2.0, 1.0, 1.0];
        let three = vec![(262, false), (30, true), (262, false), (31, true), (262, false), (32, true), (33, true)];
        assert!((median(three.clone(), voxel).unwrap() - 10.0).abs() < 0.01);
        let two = three[..3].iter().chain(&three[5..]).copied().collect();
        assert!(median(two, voxel).unwrap() < 6.0, "two whole objects are too few");
        assert_eq!(median(Vec::new(), voxel), None);
    }

    #[test]
    fn first_and_last_slices_of_thin_stacks_do_not_cut_objects() {
        assert!(is_cut([0, 3, 3], [4, 5, 5], [20, 10, 10]));
        assert!(is_cut([2, 3, 3], [4, 5, 9], [20, 10, 10]));
        assert!(!is_cut([2, 3, 3], [4, 5, 8], [20, 10, 10]));
        assert!(!is_cut([0, 3, 3], [2, 5, 8], [3, 10, 10]));
        assert!(is_cut([0, 0, 3], [2, 5, 8], [3, 10, 10]));
    }
}

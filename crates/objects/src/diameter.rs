//! The usual diameter of the objects in a stack: that of the sphere with the volume of the median object.

/// Fewest whole objects for which those that a side of the stack cuts are left out.
const FEWEST_WHOLE: usize = 3;
/// Slices up to which an object that reaches the first or the last of them still counts as whole.
const FLAT_SLICES: usize = 4;

/// The diameter of the sphere with a volume, in the unit of length that the volume is the cube of.
pub fn of_sphere(volume: f64) -> f64 {
    (6.0 / std::f64::consts::PI * volume).cbrt()
}

/// Whether a side of a stack of `shape` Z, Y, X cuts an object that reaches from voxel `low` to voxel `high`. Stacks of few
/// slices cut every object along Z, so there only the sides along Y and X count.
pub fn is_cut(low: [usize; 3], high: [usize; 3], shape: [usize; 3]) -> bool {
    (0..3).any(|a| (a > 0 || shape[0] > FLAT_SLICES) && (low[a] == 0 || high[a] + 1 >= shape[a]))
}

/// Those of some objects that no side of their stack cuts, or all of them where fewer than three are whole.
pub fn whole<T>(objects: Vec<T>, is_cut: impl Fn(&T) -> bool) -> Vec<T> {
    if objects.iter().filter(|o| !is_cut(o)).count() < FEWEST_WHOLE {
        return objects;
    }
    objects.into_iter().filter(|o| !is_cut(o)).collect()
}

/// The median diameter of objects, each given by its voxels and whether a side of the stack cuts it; in the unit of `voxel`,
/// the size of a voxel along Z, Y, X. `None` without objects.
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
    fn objects_that_a_side_cuts_are_left_out_where_enough_are_whole() {
        // A sphere of diameter 10 µm has 523.6 µm³: 262 voxels of 2 µm³.
        let voxel = [2.0, 1.0, 1.0];
        let three = vec![(262, false), (30, true), (262, false), (31, true), (262, false), (32, true), (33, true)];
        assert!((median(three.clone(), voxel).unwrap() - 10.0).abs() < 0.01);
        let two = three[..3].iter().chain(&three[5..]).copied().collect();
        assert!(median(two, voxel).unwrap() < 6.0, "two whole objects say too little");
        assert_eq!(median(Vec::new(), voxel), None);
    }

    #[test]
    fn slices_of_thin_stacks_cut_nothing() {
        assert!(is_cut([0, 3, 3], [4, 5, 5], [20, 10, 10]));
        assert!(is_cut([2, 3, 3], [4, 5, 9], [20, 10, 10]));
        assert!(!is_cut([2, 3, 3], [4, 5, 8], [20, 10, 10]));
        assert!(!is_cut([0, 3, 3], [2, 5, 8], [3, 10, 10]));
        assert!(is_cut([0, 0, 3], [2, 5, 8], [3, 10, 10]));
    }
}

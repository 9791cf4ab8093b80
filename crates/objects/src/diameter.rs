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

/// An object of a stack whose labels may be known in some voxels only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownObject {
    /// Number of its known voxels.
    pub voxels: u64,
    /// Number of its known voxels in the slice that has the most of them.
    pub section: u64,
    /// First voxel of its bounding box along Z, Y, X.
    pub low: [usize; 3],
    /// Last voxel of its bounding box along Z, Y, X.
    pub high: [usize; 3],
    /// Whether one of its voxels shares a face with a voxel whose label is not known: the object may continue there.
    pub is_partial: bool,
}

/// Returns the median diameter of the objects of a stack of `shape` (Z, Y, X) in which some voxels have no known label.
/// `voxel` is the voxel size along Z, Y, X, and the result is in its unit. `None` without objects.
///
/// If at least half of the objects are known completely, it is the median of these. If only a few slices are known, this holds
/// for specks alone; then the largest known section of each object counts, and the result is the diameter of a circle with
/// their median area, because the largest section of a sphere has the diameter of the sphere. In a random slice, half of all
/// spheres show a section of at least 0.87 of their diameter. In stacks of a few slices, where all objects are cut along Z,
/// every slice of an object is assumed to have the area of that section.
pub fn median_of_known(objects: &[KnownObject], shape: [usize; 3], voxel: [f64; 3]) -> Option<f64> {
    let complete: Vec<&KnownObject> = objects.iter().filter(|o| !o.is_partial).collect();
    if 2 * complete.len() >= objects.len() {
        return median(complete.into_iter().map(|o| (o.voxels, is_cut(o.low, o.high, shape))).collect(), voxel);
    }
    let [nz, ny, nx] = shape;
    // The first and the last slice do not cut a section.
    let uncut = whole(objects.to_vec(), |o| is_cut(o.low, o.high, [1, ny, nx]));
    let mut sections: Vec<u64> = uncut.into_iter().map(|o| o.section).collect();
    sections.sort_unstable();
    let area = *sections.get(sections.len() / 2)? as f64 * voxel[1] * voxel[2];
    if nz <= FLAT_SLICES {
        return Some(of_sphere(area * voxel[0] * nz as f64));
    }
    Some(2.0 * (area / std::f64::consts::PI).sqrt())
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

    /// Returns objects of these numbers of voxels and largest sections, in the middle of a stack of 20 × 50 × 50 voxels.
    fn objects(sizes: &[(u64, u64, bool)]) -> Vec<KnownObject> {
        let object = |(voxels, section, is_partial): &(u64, u64, bool)| KnownObject {
            voxels: *voxels,
            section: *section,
            low: [5, 20, 20],
            high: [9, 29, 29],
            is_partial: *is_partial,
        };
        sizes.iter().map(object).collect()
    }

    #[test]
    fn objects_of_known_slices_have_the_diameter_of_their_largest_section() {
        let (shape, voxel) = ([20, 50, 50], [2.0, 0.5, 0.5]);
        let known = |sizes: &[(u64, u64, bool)]| median_of_known(&objects(sizes), shape, voxel).unwrap();
        // Circles with a diameter of 20 and of 10 voxels, 10 µm and 5 µm; the number of voxels does not matter.
        let (large, small) = ((628, 314, true), (157, 79, true));
        assert!((known(&[large, small, large]) - 10.0).abs() < 0.01);
        assert!((known(&[small, small, large]) - 5.0).abs() < 0.02);
        // A completely known speck of 8 voxels does not change that.
        assert!((known(&[large, small, large, (8, 4, false)]) - 10.0).abs() < 0.01);
        // A sphere of 10 µm has 523.6 µm³, and a voxel 0.5 µm³.
        let complete = (1047, 100, false);
        assert!((known(&[complete, small, complete, (8, 4, true)]) - 10.0).abs() < 0.01);
        assert_eq!(median_of_known(&[], shape, voxel), None);
        // Objects that Y or X cuts are left out, those at the first slice are not.
        let mut cut = objects(&[small, small, small, small, large, large, large]);
        cut.iter_mut().take(4).for_each(|o| o.low[1] = 0);
        cut.iter_mut().skip(4).for_each(|o| o.low[0] = 0);
        assert!((median_of_known(&cut, shape, voxel).unwrap() - 10.0).abs() < 0.01);
    }

    #[test]
    fn without_unknown_voxels_the_median_is_that_of_the_volumes() {
        let all = objects(&[(262, 50, false), (30, 10, false), (300, 60, false)]);
        let voxel = [2.0, 1.0, 1.0];
        let sizes = all.iter().map(|o| (o.voxels, false)).collect();
        assert_eq!(median_of_known(&all, [20, 50, 50], voxel), median(sizes, voxel));
        // In a single slice, an object of which a part is unknown is measured as one that is known completely.
        let one = |is_partial| median_of_known(&objects(&[(30, 30, is_partial)]), [1, 50, 50], voxel);
        assert_eq!(one(true), one(false));
    }
}

//! The object diameter of a stack: the diameter of the sphere with the volume of the median object. In stacks of up to
//! [`FLAT_SLICES`] slices, which show sections of objects, it is the diameter of the circle with the area of the median
//! object's largest section.

use std::ops::RangeInclusive;

/// Minimum number of whole objects; with fewer, cut objects are included.
const MIN_WHOLE_OBJECTS: usize = 3;
/// In stacks of up to this many slices, objects that reach the first or last slice still count as whole, and their
/// diameters are those of their largest sections.
pub const FLAT_SLICES: usize = 4;
/// Plausible ratios of object lengths along Z to those in the plane; microscopes elongate objects along Z.
pub const PLAUSIBLE_ELONGATION: RangeInclusive<f64> = 0.7..=1.9;
/// Most likely ratio.
pub const LIKELY_ELONGATION: f64 = 1.2;

/// Returns the diameter of a sphere from its volume, in the corresponding unit of length.
pub fn sphere_diameter(volume: f64) -> f64 {
    (6.0 / std::f64::consts::PI * volume).cbrt()
}

/// Returns the diameter of a circle from its area, in the corresponding unit of length.
pub fn circle_diameter(area: f64) -> f64 {
    2.0 * (area / std::f64::consts::PI).sqrt()
}

/// Returns the minimum number of voxels of a sphere of this volume in a stack of `slices` slices that shows its middle. `voxel`
/// is the voxel size along Z, Y, X, and the volume is in its unit.
pub fn min_sphere_voxels(volume: f64, slices: usize, voxel: [f64; 3]) -> f64 {
    let whole_voxels = volume / voxel.iter().product::<f64>();
    let (diameter, depth) = (sphere_diameter(volume), slices.saturating_sub(1) as f64 * voxel[0]);
    if depth >= diameter {
        return whole_voxels;
    }
    // The mean area of the sections within half the depth on both sides of the center.
    let area = std::f64::consts::PI * (diameter.powi(2) / 4.0 - depth.powi(2) / 12.0);
    let shown = slices as f64 * area / (voxel[1] * voxel[2]);
    // With slices farther apart than the sphere is wide, one of them shows a section.
    if slices == 1 { shown } else { shown.min(whole_voxels) }
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
/// spheres show a section of at least 0.87 of their diameter. Sections count in stacks of up to [`FLAT_SLICES`] slices, too,
/// because all objects are cut along Z there.
pub fn median_known_diameter(objects: &[KnownObject], shape: [usize; 3], voxel: [f64; 3]) -> Option<f64> {
    let complete: Vec<KnownObject> = objects.iter().filter(|o| !o.is_partial).copied().collect();
    let are_known = 2 * complete.len() >= objects.len();
    let counted = if are_known { complete } else { objects.to_vec() };
    let [nz, ny, nx] = shape;
    let are_spheres = are_known && nz > FLAT_SLICES;
    // The first and the last slice do not cut a section.
    let sides = if are_spheres { shape } else { [1, ny, nx] };
    let uncut = whole(counted, |o| is_cut(o.low, o.high, sides));
    let mut sizes: Vec<u64> = uncut.iter().map(|o| if are_spheres { o.voxels } else { o.section }).collect();
    sizes.sort_unstable();
    let size = *sizes.get(sizes.len() / 2)? as f64;
    let [_, y, x] = voxel;
    Some(if are_spheres {
        sphere_diameter(size * voxel.iter().product::<f64>())
    } else {
        circle_diameter(size * y * x)
    })
}

/// Returns the slice spacing, in voxels along X, of a stack of `shape` (Z, Y, X) whose voxel size is unknown: `assumed` or,
/// if its objects would then have an implausible elongation along Z, the spacing that gives them a likely one. Stacks of a
/// few slices, and objects most of which are not known completely, show no elongation.
pub fn likely_spacing(objects: &[KnownObject], shape: [usize; 3], assumed: f64) -> f64 {
    let complete: Vec<KnownObject> = objects.iter().filter(|o| !o.is_partial).copied().collect();
    if shape[0] <= FLAT_SLICES || 2 * complete.len() < objects.len() {
        return assumed;
    }
    let elongation = |o: &KnownObject| {
        let [z, y, x] = [0, 1, 2].map(|a| (o.high[a] + 1).saturating_sub(o.low[a]).max(1) as f64);
        z * assumed / (y * x).sqrt()
    };
    let mut ratios: Vec<f64> = whole(complete, |o| is_cut(o.low, o.high, shape)).iter().map(elongation).collect();
    ratios.sort_by(f64::total_cmp);
    match ratios.get(ratios.len() / 2) {
        Some(ratio) if !PLAUSIBLE_ELONGATION.contains(ratio) => assumed * LIKELY_ELONGATION / ratio,
        _ => assumed,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    #[test]
    fn cut_objects_are_left_out_if_enough_are_whole() {
        // A sphere of diameter 10 µm has 523.6 µm³: 262 voxels of 2 µm³.
        let (shape, voxel) = ([20, 50, 50], [2.0, 1.0, 1.0]);
        let mut seven = objects(&[262, 30, 262, 31, 262, 32, 33].map(|voxels| (voxels, 9, false)));
        [1, 3, 5, 6].into_iter().for_each(|i| seven[i].low[1] = 0);
        assert!((median_known_diameter(&seven, shape, voxel).unwrap() - 10.0).abs() < 0.01);
        seven.remove(4);
        assert!(median_known_diameter(&seven, shape, voxel).unwrap() < 6.0, "two whole objects are too few");
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
    fn an_implausible_slice_spacing_is_replaced_by_a_likely_one() {
        // Objects of 5 slices with 10 × 10 voxels each.
        let shape = [20, 50, 50];
        let some = |is_partial: bool| objects(&[(300, 78, is_partial); 4]);
        // As long as wide at a spacing of 2: plausible.
        assert_eq!(likely_spacing(&some(false), shape, 2.0), 2.0);
        // Half as long as wide at a spacing of 1, and twice as long at 4: 2.4 makes them longer than wide by a fifth.
        for assumed in [1.0, 4.0] {
            assert!((likely_spacing(&some(false), shape, assumed) - 2.4).abs() < 1e-9);
        }
        for (known, shape) in [(some(true), shape), (some(false), [4, 50, 50]), (Vec::new(), shape)] {
            assert_eq!(likely_spacing(&known, shape, 1.0), 1.0);
        }
    }

    #[test]
    fn objects_of_known_slices_have_the_diameter_of_their_largest_section() {
        let (shape, voxel) = ([20, 50, 50], [2.0, 0.5, 0.5]);
        let known = |sizes: &[(u64, u64, bool)]| median_known_diameter(&objects(sizes), shape, voxel).unwrap();
        // Circles with a diameter of 20 and of 10 voxels, 10 µm and 5 µm; the number of voxels does not matter.
        let (large, small) = ((628, 314, true), (157, 79, true));
        assert!((known(&[large, small, large]) - 10.0).abs() < 0.01);
        assert!((known(&[small, small, large]) - 5.0).abs() < 0.02);
        // A completely known speck of 8 voxels does not change that.
        assert!((known(&[large, small, large, (8, 4, false)]) - 10.0).abs() < 0.01);
        // A sphere of 10 µm has 523.6 µm³, and a voxel 0.5 µm³.
        let complete = (1047, 100, false);
        assert!((known(&[complete, small, complete, (8, 4, true)]) - 10.0).abs() < 0.01);
        assert_eq!(median_known_diameter(&[], shape, voxel), None);
        // Objects that Y or X cuts are left out, those at the first slice are not.
        let mut cut = objects(&[small, small, small, small, large, large, large]);
        cut.iter_mut().take(4).for_each(|o| o.low[1] = 0);
        cut.iter_mut().skip(4).for_each(|o| o.low[0] = 0);
        assert!((median_known_diameter(&cut, shape, voxel).unwrap() - 10.0).abs() < 0.01);
    }

    #[test]
    fn objects_of_few_slices_have_the_diameter_of_their_sections_at_any_slice_spacing() {
        // Circles of 10 µm in pixels of 0.5 µm, in one to four slices of which two show them.
        for (slices, spacing) in [(1, 1.0), (1, 5.0), (3, 0.5), (4, 2.0)] {
            let all = objects(&[(600, 314, false), (628, 314, false), (500, 79, false)]);
            let found = median_known_diameter(&all, [slices, 50, 50], [spacing, 0.5, 0.5]).unwrap();
            assert!((found - 10.0).abs() < 0.01, "{slices} {spacing}: {found}");
        }
    }

    #[test]
    fn thin_stacks_show_few_voxels_of_a_sphere() {
        // A sphere of 10 µm: 523.6 µm³, with a middle section of 78.5 µm².
        let volume = std::f64::consts::PI / 6.0 * 1000.0;
        let voxels = |slices, voxel| min_sphere_voxels(volume, slices, voxel);
        assert!((voxels(1, [1.0, 0.5, 0.5]) - 314.2).abs() < 0.1);
        assert!((voxels(1, [20.0, 0.5, 0.5]) - 314.2).abs() < 0.1, "the spacing of a single slice says nothing");
        assert!((voxels(40, [1.0, 0.5, 0.5]) - 2094.4).abs() < 0.1);
        // Three slices at 0 and ±2 µm: sections of 78.5 and twice 66.0 µm².
        let three = voxels(3, [2.0, 0.5, 0.5]);
        assert!((three / 842.0 - 1.0).abs() < 0.07, "{three}");
        assert!(voxels(2, [30.0, 0.5, 0.5]) <= 69.9, "slices may miss the middle");
        let all: Vec<f64> = (1..30).map(|slices| voxels(slices, [1.0, 0.5, 0.5])).collect();
        assert!(all.windows(2).all(|pair| pair[0] <= pair[1]), "{all:?}");
    }

    #[test]
    fn without_unknown_voxels_the_median_is_that_of_the_volumes() {
        // A sphere of 10 µm: 262 voxels of 2 µm³.
        let all = objects(&[(262, 50, false), (30, 10, false), (300, 60, false)]);
        assert!((median_known_diameter(&all, [20, 50, 50], [2.0, 1.0, 1.0]).unwrap() - 10.0).abs() < 0.01);
        // In a single slice, an object of which a part is unknown is measured as one that is known completely.
        let one = |is_partial| median_known_diameter(&objects(&[(30, 30, is_partial)]), [1, 50, 50], [2.0, 1.0, 1.0]);
        assert_eq!(one(true), one(false));
    }
}

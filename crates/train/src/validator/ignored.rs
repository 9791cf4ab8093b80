//! Predicted objects in images of which only a part is annotated.

use std::collections::HashMap;

/// Numbers of voxels of a predicted object in slices where some of its voxels are annotated.
#[derive(Clone, Copy, Default)]
struct Counts {
    all: u64,
    annotated: u64,
    /// Those of the annotated voxels that belong to true objects.
    true_object: u64,
}

impl Counts {
    /// Returns whether only the rim of the object is annotated, as background: it is then not known whether the object is a
    /// false one. An object in a slice that is annotated as a whole is never a rim.
    fn is_rim(self) -> bool {
        2 * self.annotated < self.all && 2 * self.true_object < self.annotated
    }
}

/// Removes predicted objects of which only the rim is annotated from labels, axes Z, Y, X. Such an object may be a true one beside
/// an annotated object.
pub(super) fn remove_rims(found: &mut [f32], truth: &[f32], ignored: f32, [_, ny, nx]: [usize; 3]) {
    let plane = (ny * nx).max(1);
    let mut objects: HashMap<u32, Counts> = HashMap::new();
    for (truth, found) in truth.chunks(plane).zip(found.chunks(plane)) {
        let mut in_slice: HashMap<u32, Counts> = HashMap::new();
        for (truth, label) in truth.iter().zip(found).filter(|(_, label)| **label >= 1.0) {
            let counts = in_slice.entry(*label as u32).or_default();
            counts.all += 1;
            if *truth != ignored {
                counts.annotated += 1;
                counts.true_object += u64::from(*truth >= 1.0);
            }
        }
        for (label, counts) in in_slice.into_iter().filter(|(_, counts)| counts.annotated > 0) {
            let sum = objects.entry(label).or_default();
            sum.all += counts.all;
            sum.annotated += counts.annotated;
            sum.true_object += counts.true_object;
        }
    }
    let is_rim = |label: f32| label >= 1.0 && objects.get(&(label as u32)).is_some_and(|counts| counts.is_rim());
    found.iter_mut().filter(|label| is_rim(**label)).for_each(|label| *label = 0.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what is left of predicted labels; 9 is the ignore label.
    fn left(truth: &[f32], found: &[f32], shape: [usize; 3]) -> Vec<f32> {
        let mut left = found.to_vec();
        remove_rims(&mut left, truth, 9.0, shape);
        left
    }

    #[test]
    fn objects_of_which_only_the_rim_is_annotated_are_removed() {
        // An annotated object with a rim of two background voxels, beside voxels that are not annotated.
        let truth = [1.0, 1.0, 1.0, 0.0, 0.0, 9.0, 9.0, 9.0];
        let beside = [1.0, 1.0, 1.0, 0.0, 2.0, 2.0, 2.0, 2.0];
        assert_eq!(left(&truth, &beside, [1, 1, 8]), [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
        for counted in [
            // A false object most of whose voxels are annotated, one that is known nowhere, and one that merges objects.
            [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 0.0, 0.0],
            [1.0, 1.0, 1.0, 0.0, 0.0, 2.0, 2.0, 2.0],
            [0.0, 0.0, 3.0, 0.0, 3.0, 3.0, 3.0, 3.0],
        ] {
            assert_eq!(left(&truth, &counted, [1, 1, 8]), counted);
        }
    }

    #[test]
    fn false_objects_in_an_annotated_slice_stay() {
        let (slice, unknown) = ([0.0f32; 4], [9.0f32; 4]);
        let truth = [slice, unknown, unknown, unknown].concat();
        let found = [2.0f32, 2.0, 0.0, 0.0].repeat(4);
        assert_eq!(left(&truth, &found, [4, 1, 4]), found);
    }
}

//! Removes predicted objects that partly annotated images say too little about, before they are scored.

use cytoscope_objects::rims::{Annotation, Rims};

/// Removes predicted objects of which only the rim is annotated ([`Rims`]) from labels, axes Z, Y, X.
pub(super) fn remove_rims(found: &mut [f32], truth: &[f32], ignored: f32, [_, ny, nx]: [usize; 3]) {
    let plane = (ny * nx).max(1);
    let number = |label: f32| if label >= 1.0 { label as u32 } else { 0 };
    let annotation = |truth: f32| Annotation::of(truth == ignored, truth >= 1.0);
    let mut rims = Rims::default();
    for (truth, found) in truth.chunks(plane).zip(found.chunks(plane)) {
        rims.add_slice(truth.iter().zip(found).map(|(truth, label)| (number(*label), annotation(*truth))));
    }
    let rims = rims.labels();
    found.iter_mut().filter(|label| rims.contains(&number(**label))).for_each(|label| *label = 0.0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the predicted labels that remain; 9 is the ignore label.
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

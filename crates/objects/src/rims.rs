//! Finds predicted objects of which only the rim is annotated, as background, in partly annotated images: it is unknown
//! whether such an object is false, so scores leave it out.

use std::collections::{HashMap, HashSet};

/// What is known about a voxel of the ground truth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Annotation {
    /// The voxel is not annotated.
    Unknown,
    /// The voxel is annotated as background.
    Background,
    /// The voxel belongs to a true object.
    Object,
}

impl Annotation {
    /// Returns what is known about a voxel. One that is not annotated belongs to no object, whatever its label.
    pub fn of(is_unknown: bool, is_object: bool) -> Self {
        match (is_unknown, is_object) {
            (true, _) => Self::Unknown,
            (false, false) => Self::Background,
            (false, true) => Self::Object,
        }
    }
}

/// Numbers of voxels of a predicted object in slices where some of its voxels are annotated.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    all: u64,
    annotated: u64,
    /// Those of the annotated voxels that belong to true objects.
    true_object: u64,
}

impl Counts {
    fn add(&mut self, other: Counts) {
        self.all += other.all;
        self.annotated += other.annotated;
        self.true_object += other.true_object;
    }

    fn add_voxel(&mut self, annotation: Annotation) {
        self.all += 1;
        self.annotated += u64::from(annotation != Annotation::Unknown);
        self.true_object += u64::from(annotation == Annotation::Object);
    }

    /// Returns whether only the rim of the object is annotated, as background: it is then not known whether the object is a
    /// false one. An object in a slice that is annotated as a whole is never a rim.
    fn is_rim(self) -> bool {
        self.annotated > 0 && 2 * self.annotated < self.all && 2 * self.true_object < self.annotated
    }
}

/// Finds predicted objects of which only the rim is annotated, slice by slice. Such an object may be a true one beside an
/// annotated object, so it does not count as a false object.
#[derive(Debug, Clone, Default)]
pub struct Rims {
    objects: HashMap<u32, Counts>,
}

impl Rims {
    /// Adds a slice, in any order of slices: the label of the predicted object at each voxel, 0 for none, and what is known
    /// about the voxel.
    pub fn add_slice(&mut self, voxels: impl IntoIterator<Item = (u32, Annotation)>) {
        let mut in_slice: HashMap<u32, Counts> = HashMap::new();
        let mut add_run = |label: u32, counts: Counts| {
            if label > 0 {
                in_slice.entry(label).or_default().add(counts);
            }
        };
        let (mut label, mut counts) = (0, Counts::default());
        for (next, annotation) in voxels {
            if next != label {
                add_run(label, counts);
                (label, counts) = (next, Counts::default());
            }
            counts.add_voxel(annotation);
        }
        add_run(label, counts);
        for (label, counts) in in_slice.into_iter().filter(|(_, counts)| counts.annotated > 0) {
            self.objects.entry(label).or_default().add(counts);
        }
    }

    /// Returns the labels of the objects of which only the rim is annotated.
    pub fn labels(&self) -> HashSet<u32> {
        self.objects.iter().filter(|(_, counts)| counts.is_rim()).map(|(label, _)| *label).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns which predicted objects are rims in slices of `plane` voxels; in the ground truth, 9 is unknown.
    fn rims(truth: &[u32], predicted: &[u32], plane: usize) -> Vec<u32> {
        let mut rims = Rims::default();
        for (truth, predicted) in truth.chunks(plane).zip(predicted.chunks(plane)) {
            rims.add_slice(predicted.iter().zip(truth).map(|(label, value)| match value {
                9 => (*label, Annotation::Unknown),
                0 => (*label, Annotation::Background),
                _ => (*label, Annotation::Object),
            }));
        }
        let mut labels: Vec<u32> = rims.labels().into_iter().collect();
        labels.sort_unstable();
        labels
    }

    #[test]
    fn an_object_is_a_rim_if_less_than_half_of_it_is_annotated_and_mostly_as_background() {
        // An annotated object with a rim of two background voxels, beside voxels that are not annotated.
        let truth = [1, 1, 1, 0, 0, 9, 9, 9, 9];
        for (predicted, expected) in [
            ([1, 1, 1, 0, 5, 5, 5, 0, 0], vec![5]),
            // In parts, with another object in between.
            ([1, 1, 1, 5, 0, 5, 6, 5, 5], vec![5]),
            // Half of it is annotated, nothing of it is, or it covers a true object, too.
            ([1, 1, 1, 5, 5, 5, 5, 0, 0], Vec::new()),
            ([1, 1, 1, 0, 0, 5, 5, 5, 5], Vec::new()),
            ([1, 1, 5, 0, 5, 5, 5, 5, 5], Vec::new()),
        ] {
            assert_eq!(rims(&truth, &predicted, 9), expected, "{predicted:?}");
        }
    }

    #[test]
    fn only_slices_in_which_an_object_is_annotated_count() {
        // The object has two voxels in each of three slices. In the first one, both are annotated as background.
        let predicted = [5, 5, 0, 5, 5, 0, 5, 5, 0];
        assert!(rims(&[0, 0, 0, 9, 9, 9, 9, 9, 9], &predicted, 3).is_empty());
        // As a single slice, a third of it is annotated.
        assert_eq!(rims(&[0, 0, 0, 9, 9, 9, 9, 9, 9], &predicted, 9), [5]);
    }
}

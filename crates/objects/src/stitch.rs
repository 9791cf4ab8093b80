//! Stitching of labels across overlapping slabs, so that a stack of any length is segmented in bounded memory.

use std::collections::{BTreeMap, BTreeSet};

/// Minimum share of the smaller overlap region that two objects must have in common to be the same object.
const SHARE: f64 = 0.5;

/// Assigns final numbers to the labels of consecutive slabs: an object of a new slab that shares most of its overlap
/// with an object of the previous slab takes its number, others get new numbers.
#[derive(Debug, Default)]
pub struct Stitcher {
    /// Final labels of the previous slab in the slices that the next slab overlaps.
    tail: Vec<u32>,
    /// Number of objects so far, which is the largest final number.
    count: u32,
}

impl Stitcher {
    /// Creates a stitcher before the first slab.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of objects so far.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Renumbers a slab in place. Its first `overlap` voxels must be the slices passed to the last
    /// [`Stitcher::keep_tail`] call.
    pub fn renumber(&mut self, labels: &mut [u32], overlap: usize) {
        let overlap = overlap.min(self.tail.len()).min(labels.len());
        let mut final_labels = continued(&labels[..overlap], &self.tail);
        for label in labels.iter_mut().filter(|l| **l > 0) {
            *label = *final_labels.entry(*label).or_insert_with(|| {
                self.count += 1;
                self.count
            });
        }
    }

    /// Stores the final labels that the next slab will overlap.
    pub fn keep_tail(&mut self, labels: &[u32]) {
        self.tail.clear();
        self.tail.extend_from_slice(labels);
    }
}

/// Returns the labels `new` of a slab that continue objects of the previous slab, with the numbers of these objects, from the
/// voxels that both slabs contain. Each object is continued by one label at most: the one with which it shares most voxels.
fn continued(new: &[u32], old: &[u32]) -> BTreeMap<u32, u32> {
    let mut shared: BTreeMap<(u32, u32), u64> = BTreeMap::new();
    let (mut new_voxels, mut old_voxels): (BTreeMap<u32, u64>, BTreeMap<u32, u64>) = Default::default();
    for (new, old) in new.iter().zip(old) {
        if *new > 0 {
            *new_voxels.entry(*new).or_default() += 1;
        }
        if *old > 0 {
            *old_voxels.entry(*old).or_default() += 1;
        }
        if *new > 0 && *old > 0 {
            *shared.entry((*new, *old)).or_default() += 1;
        }
    }
    let mut pairs: Vec<_> = shared.into_iter().collect();
    pairs.sort_by_key(|((new, old), voxels)| (std::cmp::Reverse(*voxels), *new, *old));
    let mut final_labels = BTreeMap::new();
    let mut taken = BTreeSet::new();
    for ((new, old), voxels) in pairs {
        let voxels_of = |counts: &BTreeMap<u32, u64>, label: u32| counts.get(&label).copied().unwrap_or(0);
        let smaller = voxels_of(&new_voxels, new).min(voxels_of(&old_voxels, old));
        let is_same = voxels as f64 >= SHARE * smaller as f64;
        if is_same && !final_labels.contains_key(&new) && taken.insert(old) {
            final_labels.insert(new, old);
        }
    }
    final_labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_across_a_cut_keep_their_number() {
        let mut stitcher = Stitcher::new();
        let mut first = vec![1, 1, 0, 2, 2, 2];
        stitcher.renumber(&mut first, 0);
        assert_eq!(first, [1, 1, 0, 2, 2, 2]);
        stitcher.keep_tail(&first[3..]);
        let mut second = vec![5, 5, 5, 5, 0, 9];
        stitcher.renumber(&mut second, 3);
        assert_eq!(second, [2, 2, 2, 2, 0, 3]);
        assert_eq!(stitcher.count(), 3);
    }

    #[test]
    fn one_label_continues_an_object_that_the_next_slab_divides() {
        let mut stitcher = Stitcher::new();
        let mut first = vec![1; 5];
        stitcher.renumber(&mut first, 0);
        stitcher.keep_tail(&first);
        let mut second = vec![7, 7, 4, 4, 4, 7];
        stitcher.renumber(&mut second, 5);
        assert_eq!(second, [2, 2, 1, 1, 1, 2], "label 4 shares more voxels");
    }

    #[test]
    fn objects_that_share_less_than_half_of_the_smaller_one_are_different() {
        let mut stitcher = Stitcher::new();
        let mut first = vec![1, 1, 1, 0, 0];
        stitcher.renumber(&mut first, 0);
        stitcher.keep_tail(&first);
        let mut second = vec![0, 0, 3, 3, 3];
        stitcher.renumber(&mut second, 5);
        assert_eq!(second, [0, 0, 2, 2, 2]);
    }
}

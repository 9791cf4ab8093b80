//! Stitching of labels across overlapping slabs, so that a stack of any length is segmented in bounded memory.

use std::collections::BTreeMap;

/// Assigns final numbers to the labels of consecutive slabs: an object of a new slab that shares most of its overlap
/// with an object of the previous slab takes its number, others get new numbers.
#[derive(Debug, Default)]
pub struct Stitcher {
    /// Final labels of the previous slab in the slices that the next slab overlaps.
    tail: Vec<u32>,
    next: u32,
}

/// Minimum share of the smaller overlap region that two objects must have in common to be the same object.
const SHARE: f64 = 0.5;

impl Stitcher {
    /// Creates a stitcher before the first slab.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of objects so far.
    pub fn count(&self) -> u32 {
        self.next
    }

    /// Renumbers a slab in place. Its first `overlap` voxels must be the slices passed to the last
    /// [`Stitcher::keep_tail`] call.
    pub fn renumber(&mut self, labels: &mut [u32], overlap: usize) {
        let overlap = overlap.min(self.tail.len()).min(labels.len());
        let mut shared: BTreeMap<(u32, u32), u64> = BTreeMap::new();
        let (mut size_new, mut size_old): (BTreeMap<u32, u64>, BTreeMap<u32, u64>) = Default::default();
        for (new, old) in labels[..overlap].iter().zip(&self.tail) {
            if *new > 0 {
                *size_new.entry(*new).or_default() += 1;
            }
            if *old > 0 {
                *size_old.entry(*old).or_default() += 1;
            }
            if *new > 0 && *old > 0 {
                *shared.entry((*new, *old)).or_default() += 1;
            }
        }
        // Largest shared part first; each old object is continued by one new object only.
        let mut pairs: Vec<_> = shared.into_iter().collect();
        pairs.sort_by_key(|((new, old), n)| (std::cmp::Reverse(*n), *new, *old));
        let mut name: BTreeMap<u32, u32> = BTreeMap::new();
        let mut taken: BTreeMap<u32, u32> = BTreeMap::new();
        for ((new, old), n) in pairs {
            let smaller = size_new.get(&new).copied().unwrap_or(0).min(size_old.get(&old).copied().unwrap_or(0));
            if n as f64 >= SHARE * smaller as f64 && !name.contains_key(&new) && !taken.contains_key(&old) {
                name.insert(new, old);
                taken.insert(old, new);
            }
        }
        for label in labels.iter_mut().filter(|l| **l > 0) {
            *label = *name.entry(*label).or_insert_with(|| {
                self.next += 1;
                self.next
            });
        }
    }

    /// Stores the final labels that the next slab will overlap.
    pub fn keep_tail(&mut self, labels: &[u32]) {
        self.tail.clear();
        self.tail.extend_from_slice(labels);
    }
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
}

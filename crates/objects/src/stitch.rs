//! Joining the labels of slabs that overlap, so that a stack of any length is labelled in bounded memory.

use std::collections::BTreeMap;

/// Gives each slab's labels their final numbers: an object of a new slab that shares most of its overlap with one of the
/// slab before takes its number, the others get new ones.
#[derive(Debug, Default)]
pub struct Stitcher {
    /// Final labels of the last slab's slices that the next slab overlaps.
    tail: Vec<u32>,
    next: u32,
}

/// Least share of the smaller overlap that two objects must have in common to be one.
const SHARE: f64 = 0.5;

impl Stitcher {
    /// Nothing seen yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Numbers given so far.
    pub fn count(&self) -> u32 {
        self.next
    }

    /// Renumbers a slab in place. Its first `overlap` voxels are those of the tail kept by the last call
    /// ([`Stitcher::keep_tail`]).
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
        // Greatest common part first; an old object goes to one new object only.
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

    /// Keeps the final labels that the next slab will overlap.
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

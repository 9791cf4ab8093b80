//! Index of the chunks that contain each label, so that edits of a label need not search the volume.

use std::collections::{BTreeMap, HashMap};

/// Number of voxels of each label per chunk; background is not counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct LabelIndex {
    /// For each label, its chunks in ascending order with the number of voxels.
    chunk_counts: BTreeMap<u32, Vec<(u32, u32)>>,
    /// Number of foreground voxels of each chunk.
    foreground_counts: Vec<u32>,
}

impl LabelIndex {
    /// The index of a volume of `chunks` chunks that are all background.
    pub fn new(chunks: usize) -> Self {
        Self { chunk_counts: BTreeMap::new(), foreground_counts: vec![0; chunks] }
    }

    /// Adds `delta` (which may be negative) to the number of voxels of a label in a chunk.
    pub fn add(&mut self, label: u32, chunk: u32, delta: i64) {
        if label == 0 || delta == 0 {
            return;
        }
        let sum = |n: u32| u32::try_from(i64::from(n) + delta).unwrap_or(0);
        if let Some(n) = self.foreground_counts.get_mut(chunk as usize) {
            *n = sum(*n);
        }
        let counts = self.chunk_counts.entry(label).or_default();
        match counts.binary_search_by_key(&chunk, |p| p.0) {
            Ok(i) => {
                counts[i].1 = sum(counts[i].1);
                if counts[i].1 == 0 {
                    counts.remove(i);
                }
            }
            Err(i) => counts.insert(i, (chunk, sum(0))),
        }
        if counts.is_empty() {
            self.chunk_counts.remove(&label);
        }
    }

    /// Adds changes of the number of voxels, by label and chunk; see [`LabelIndex::add`].
    pub fn apply(&mut self, deltas: &HashMap<(u32, u32), i64>) {
        deltas.iter().for_each(|((label, chunk), delta)| self.add(*label, *chunk, *delta));
    }

    /// Chunks of a label in ascending order, with the number of its voxels in each.
    pub fn chunk_counts(&self, label: u32) -> &[(u32, u32)] {
        self.chunk_counts.get(&label).map_or(&[], Vec::as_slice)
    }

    /// Number of voxels of a label in the volume; 0 for background.
    pub fn voxels(&self, label: u32) -> u64 {
        self.chunk_counts(label).iter().map(|p| u64::from(p.1)).sum()
    }

    /// Number of voxels of a label in one chunk; 0 for background.
    pub fn voxels_in(&self, label: u32, chunk: u32) -> u32 {
        let counts = self.chunk_counts(label);
        counts.binary_search_by_key(&chunk, |p| p.0).map_or(0, |i| counts[i].1)
    }

    /// Number of voxels of a chunk that are not background.
    pub fn foreground_count(&self, chunk: usize) -> u32 {
        self.foreground_counts.get(chunk).copied().unwrap_or(0)
    }

    /// Labels that have voxels, in ascending order, without background.
    pub fn labels(&self) -> impl Iterator<Item = u32> + '_ {
        self.chunk_counts.keys().copied()
    }

    /// Number of labels that have voxels, without background.
    pub fn label_count(&self) -> usize {
        self.chunk_counts.len()
    }

    /// The largest label that has voxels; 0 if all voxels are background.
    pub fn max_label(&self) -> u32 {
        self.chunk_counts.last_key_value().map_or(0, |(l, _)| *l)
    }
}

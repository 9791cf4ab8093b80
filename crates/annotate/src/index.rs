//! Index of the chunks that contain each label, so that edits of a label need not search the volume.

use std::collections::{BTreeMap, HashMap};

/// Number of voxels of each label per chunk; background is not counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct LabelIndex {
    /// For each label, its chunks in ascending order with the number of voxels.
    pieces: BTreeMap<u32, Vec<(u32, u32)>>,
    /// Number of foreground voxels of each chunk.
    filled: Vec<u32>,
}

impl LabelIndex {
    pub fn new(chunks: usize) -> Self {
        Self { pieces: BTreeMap::new(), filled: vec![0; chunks] }
    }

    /// Adds `delta` (which may be negative) to the number of voxels of a label in a chunk.
    pub fn add(&mut self, label: u32, chunk: u32, delta: i64) {
        if label == 0 || delta == 0 {
            return;
        }
        let sum = |n: u32| u32::try_from(i64::from(n) + delta).unwrap_or(0);
        if let Some(n) = self.filled.get_mut(chunk as usize) {
            *n = sum(*n);
        }
        let pieces = self.pieces.entry(label).or_default();
        match pieces.binary_search_by_key(&chunk, |p| p.0) {
            Ok(i) => {
                pieces[i].1 = sum(pieces[i].1);
                if pieces[i].1 == 0 {
                    pieces.remove(i);
                }
            }
            Err(i) => pieces.insert(i, (chunk, sum(0))),
        }
        if pieces.is_empty() {
            self.pieces.remove(&label);
        }
    }

    pub fn apply(&mut self, deltas: &HashMap<(u32, u32), i64>) {
        deltas.iter().for_each(|((label, chunk), delta)| self.add(*label, *chunk, *delta));
    }

    /// Chunks of a label in ascending order, with the number of its voxels in each.
    pub fn pieces(&self, label: u32) -> &[(u32, u32)] {
        self.pieces.get(&label).map_or(&[], Vec::as_slice)
    }

    pub fn voxels(&self, label: u32) -> u64 {
        self.pieces(label).iter().map(|p| u64::from(p.1)).sum()
    }

    pub fn voxels_in(&self, label: u32, chunk: u32) -> u32 {
        let pieces = self.pieces(label);
        pieces.binary_search_by_key(&chunk, |p| p.0).map_or(0, |i| pieces[i].1)
    }

    pub fn filled(&self, chunk: usize) -> u32 {
        self.filled.get(chunk).copied().unwrap_or(0)
    }

    pub fn labels(&self) -> impl Iterator<Item = u32> + '_ {
        self.pieces.keys().copied()
    }

    pub fn label_count(&self) -> usize {
        self.pieces.len()
    }

    pub fn max_label(&self) -> u32 {
        self.pieces.last_key_value().map_or(0, |(l, _)| *l)
    }
}

//! Index of the chunks that contain each label, so that edits of a label need not search the volume.

use std::collections::{BTreeMap, HashMap};

/// Number of changes of a label up to which they are added one by one. Each may move all later chunks of the label.
const MAX_SINGLE_CHANGES: usize = 64;

/// Label, chunk, and change of the number of the label's voxels in the chunk.
type LabelDelta = (u32, u32, i64);

/// Returns a number of voxels after a change; 0 if there is no such number.
fn changed(count: u32, delta: i64) -> u32 {
    u32::try_from(i64::from(count).saturating_add(delta)).unwrap_or(0)
}

/// Number of voxels of each label per chunk; background is not counted.
#[derive(Debug, Clone, Default)]
pub(crate) struct LabelIndex {
    /// For each label, its chunks in ascending order with the number of voxels.
    chunk_counts: BTreeMap<u32, Vec<(u32, u32)>>,
    /// Number of foreground voxels of each chunk.
    foreground_counts: Vec<u32>,
    /// Number of pairs of a label and a chunk that contains it.
    pieces: u64,
}

impl LabelIndex {
    /// The index of a volume of `chunks` chunks that are all background.
    pub fn new(chunks: usize) -> Self {
        Self { chunk_counts: BTreeMap::new(), foreground_counts: vec![0; chunks], pieces: 0 }
    }

    /// Adds `delta` (which may be negative) to the number of voxels of a label in a chunk.
    pub fn add(&mut self, label: u32, chunk: u32, delta: i64) {
        if label == 0 || delta == 0 {
            return;
        }
        let sum = |n: u32| changed(n, delta);
        self.add_foreground(chunk, delta);
        let counts = self.chunk_counts.entry(label).or_default();
        let before = counts.len() as u64;
        match counts.binary_search_by_key(&chunk, |p| p.0) {
            Ok(i) => {
                counts[i].1 = sum(counts[i].1);
                if counts[i].1 == 0 {
                    counts.remove(i);
                }
            }
            Err(i) if sum(0) > 0 => counts.insert(i, (chunk, sum(0))),
            Err(_) => {}
        }
        self.pieces = self.pieces.saturating_sub(before).saturating_add(counts.len() as u64);
        if counts.is_empty() {
            self.chunk_counts.remove(&label);
        }
    }

    /// Adds changes of the number of voxels, by label and chunk; see [`LabelIndex::add`].
    pub fn apply(&mut self, deltas: &HashMap<(u32, u32), i64>) {
        if deltas.len() <= MAX_SINGLE_CHANGES {
            deltas.iter().for_each(|((label, chunk), delta)| self.add(*label, *chunk, *delta));
            return;
        }
        let mut sorted: Vec<LabelDelta> =
            deltas.iter().map(|((label, chunk), delta)| (*label, *chunk, *delta)).collect();
        sorted.sort_unstable();
        for changes in sorted.chunk_by(|a, b| a.0 == b.0) {
            match changes.first() {
                Some((label, ..)) if changes.len() > MAX_SINGLE_CHANGES => self.merge(*label, changes),
                _ => changes.iter().for_each(|(label, chunk, delta)| self.add(*label, *chunk, *delta)),
            }
        }
    }

    /// Adds changes of one label, sorted by chunk, in one pass over its chunks.
    fn merge(&mut self, label: u32, deltas: &[LabelDelta]) {
        if label == 0 {
            return;
        }
        let mut before = self.chunk_counts.remove(&label).unwrap_or_default().into_iter().peekable();
        self.pieces = self.pieces.saturating_sub(before.len() as u64);
        let mut merged = Vec::with_capacity(before.len() + deltas.len());
        for (_, chunk, delta) in deltas {
            self.add_foreground(*chunk, *delta);
            while let Some(unchanged) = before.next_if(|(of, _)| of < chunk) {
                merged.push(unchanged);
            }
            let count = before.next_if(|(of, _)| of == chunk).map_or(0, |(_, count)| count);
            let count = changed(count, *delta);
            if count > 0 {
                merged.push((*chunk, count));
            }
        }
        merged.extend(before);
        self.pieces = self.pieces.saturating_add(merged.len() as u64);
        if !merged.is_empty() {
            self.chunk_counts.insert(label, merged);
        }
    }

    fn add_foreground(&mut self, chunk: u32, delta: i64) {
        if let Some(n) = self.foreground_counts.get_mut(chunk as usize) {
            *n = changed(*n, delta);
        }
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

    /// Number of pairs of a label and a chunk that contains it.
    pub fn pieces(&self) -> u64 {
        self.pieces
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_changes_at_once_are_those_one_by_one() {
        let (mut single, mut together) = (LabelIndex::new(300), LabelIndex::new(300));
        let rounds: [&dyn Fn(u32) -> i64; 4] = [
            &|chunk| i64::from(chunk % 3),
            &|chunk| if chunk % 2 == 0 { 5 } else { -i64::from(chunk % 3) },
            &|chunk| i64::from(chunk == 299),
            &|_| -1_000_000,
        ];
        for round in rounds {
            let deltas: HashMap<(u32, u32), i64> =
                (0..300).flat_map(|chunk| [((0, chunk), -7), ((9, chunk), round(chunk)), ((chunk, 5), 1)]).collect();
            deltas.iter().for_each(|((label, chunk), delta)| single.add(*label, *chunk, *delta));
            together.apply(&deltas);
            let counts = |index: &LabelIndex| -> Vec<(u32, Vec<(u32, u32)>)> {
                index.labels().map(|label| (label, index.chunk_counts(label).to_vec())).collect()
            };
            assert_eq!(counts(&together), counts(&single));
            let pieces = counts(&together).iter().map(|(_, chunks)| chunks.len() as u64).sum::<u64>();
            assert_eq!([together.pieces(), single.pieces()], [pieces; 2]);
            assert_eq!(together.foreground_counts, single.foreground_counts);
        }
    }

    /// The sizes are such that work growing with the square of a count would take minutes.
    #[test]
    fn a_label_in_many_chunks_is_updated_in_linear_time() {
        let count = 1u32 << 20;
        let mut index = LabelIndex::new(count as usize);
        for first in [0, 1] {
            let deltas: HashMap<(u32, u32), i64> = (0..count / 2).map(|i| ((1, 2 * i + first), 1)).collect();
            index.apply(&deltas);
        }
        assert_eq!(index.voxels(1), u64::from(count));
    }
}

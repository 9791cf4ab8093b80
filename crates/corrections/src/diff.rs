//! The differences made by an edit: runs of (index, old label, new label) per chunk, in packed form.
//!
//! Packed form, with all numbers in LEB128: for each chunk in ascending order, its distance from the previous chunk
//! (for the first: its index), the number of pairs (old, new), the pairs, the number of runs, and for each run its
//! distance from the end of the previous run, its length and, if there are several pairs, the index of its pair. The
//! undo history and the journal use the same bytes. Parsed bytes are not trusted.

use crate::chunks::ChunkGrid;
use crate::geometry::{BoundsZyx, extend_bounds};
use std::collections::HashMap;

/// Appends a number in LEB128.
pub(crate) fn put(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Reads a number in LEB128 and removes it from the front.
pub(crate) fn take(bytes: &mut &[u8]) -> Result<u64, &'static str> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first().ok_or("it ends inside a number")?;
        *bytes = rest;
        let part = u64::from(byte & 0x7f);
        if part << shift >> shift != part {
            break;
        }
        value |= part << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("a number has more than 64 bits")
}

/// Like [`take`], for 32 bits.
pub(crate) fn take_u32(bytes: &mut &[u8]) -> Result<u32, &'static str> {
    u32::try_from(take(bytes)?).map_err(|_| "a number has more than 32 bits")
}

/// A change of `len` voxels of a chunk, from index `start` on, from one label to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LabelRun {
    /// Index of the first voxel in its chunk, in C order.
    pub start: u32,
    /// Number of voxels, at least 1.
    pub len: u32,
    /// Label of all voxels of the run before the edit.
    pub old: u32,
    /// Label of all voxels of the run after the edit, other than `old`.
    pub new: u32,
}

/// The runs of an edit in progress. No voxel may be in two runs.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    lists: Vec<(u32, Vec<LabelRun>)>,
    place: HashMap<u32, usize>,
    current: usize,
    /// Changes of the number of voxels per label and chunk since the last update of the index.
    pub deltas: HashMap<(u32, u32), i64>,
    /// The box around all changes since the last report.
    pub unreported_bounds: Option<BoundsZyx>,
    /// Number of voxels changed since the last report.
    pub unreported_voxels: u64,
}

impl Runs {
    /// Adds a run of a chunk, and counts it in `deltas` and in the number of unreported voxels.
    pub fn push(&mut self, chunk: u32, run: LabelRun) {
        if self.lists.get(self.current).is_none_or(|l| l.0 != chunk) {
            self.current = *self.place.entry(chunk).or_insert(self.lists.len());
            if self.current == self.lists.len() {
                self.lists.push((chunk, Vec::new()));
            }
        }
        self.unreported_voxels += u64::from(run.len);
        *self.deltas.entry((run.old, chunk)).or_default() -= i64::from(run.len);
        *self.deltas.entry((run.new, chunk)).or_default() += i64::from(run.len);
        let Some((_, list)) = self.lists.get_mut(self.current) else { return };
        if let Some(last) = list.last_mut()
            && last.start + last.len == run.start
            && (last.old, last.new) == (run.old, run.new)
        {
            last.len += run.len;
        } else {
            list.push(run);
        }
    }

    /// Packs the runs; `None` if nothing changed.
    pub fn pack(mut self, grid: &ChunkGrid) -> Option<EditDiff> {
        self.lists.sort_unstable_by_key(|l| l.0);
        let mut bytes = Vec::new();
        let (mut before, mut voxels, mut bounds) = (0, 0, None);
        for (chunk, mut runs) in self.lists.into_iter().filter(|l| !l.1.is_empty()) {
            runs.sort_unstable_by_key(|r| r.start);
            put(&mut bytes, u64::from(chunk - before));
            before = chunk;
            let mut pairs: Vec<(u32, u32)> = runs.iter().map(|r| (r.old, r.new)).collect();
            pairs.sort_unstable();
            pairs.dedup();
            put(&mut bytes, pairs.len() as u64);
            for (old, new) in &pairs {
                put(&mut bytes, u64::from(*old));
                put(&mut bytes, u64::from(*new));
            }
            put(&mut bytes, runs.len() as u64);
            let mut end = 0;
            for run in runs {
                debug_assert!(run.start >= end, "a voxel is in two runs of one edit");
                put(&mut bytes, u64::from(run.start - end));
                put(&mut bytes, u64::from(run.len));
                if pairs.len() > 1 {
                    put(&mut bytes, pairs.binary_search(&(run.old, run.new)).unwrap_or(0) as u64);
                }
                end = run.start + run.len;
                voxels += u64::from(run.len);
                extend_bounds(&mut bounds, grid.run_bounds(chunk as usize, run.start as usize, run.len as usize));
            }
        }
        Some(EditDiff { bytes: bytes.into(), voxels, bounds: bounds? })
    }
}

/// The packed differences of an edit, checked against the grid of the volume, with their box and number of voxels.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EditDiff {
    bytes: Box<[u8]>,
    /// Number of changed voxels.
    pub voxels: u64,
    /// The smallest box around the changed voxels.
    pub bounds: BoundsZyx,
}

impl EditDiff {
    /// Parses packed differences and checks them against a grid.
    pub fn parse(bytes: &[u8], grid: &ChunkGrid) -> Result<Self, &'static str> {
        let (mut voxels, mut bounds) = (0, None);
        decode(bytes, grid, &mut |chunk, run| {
            voxels += u64::from(run.len);
            extend_bounds(&mut bounds, grid.run_bounds(chunk as usize, run.start as usize, run.len as usize));
        })?;
        let bounds = bounds.ok_or("it changes nothing")?;
        Ok(Self { bytes: bytes.into(), voxels, bounds })
    }

    /// The differences in packed form, as the journal stores them.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Calls `f` for each run, chunk by chunk in ascending order.
    pub fn each(&self, grid: &ChunkGrid, f: &mut dyn FnMut(u32, LabelRun)) {
        // The bytes were checked when this value was created.
        let _ = decode(&self.bytes, grid, f);
    }
}

fn decode(mut bytes: &[u8], grid: &ChunkGrid, f: &mut dyn FnMut(u32, LabelRun)) -> Result<(), &'static str> {
    let rest = &mut bytes;
    let mut chunk: Option<u64> = None;
    let mut pairs = Vec::new();
    while !rest.is_empty() {
        let step = take(rest)?;
        let at = match chunk {
            None => step,
            Some(_) if step == 0 => return Err("a chunk occurs twice"),
            Some(before) => before.checked_add(step).ok_or("a chunk is outside the volume")?,
        };
        chunk = Some(at);
        let number = u32::try_from(at).ok().filter(|c| (*c as usize) < grid.chunk_count());
        let number = number.ok_or("a chunk is outside the volume")?;
        let len = grid.chunk_voxels(number as usize) as u64;
        let count = take(rest)?;
        // A pair needs at least two bytes, so the count cannot exceed half of the remaining bytes.
        if count == 0 || count > rest.len() as u64 / 2 {
            return Err("it has more pairs of labels than bytes");
        }
        pairs.clear();
        for _ in 0..count {
            let pair = (take_u32(rest)?, take_u32(rest)?);
            if pair.0 == pair.1 {
                return Err("a run changes nothing");
            }
            pairs.push(pair);
        }
        let runs = take(rest)?;
        if runs == 0 {
            return Err("a chunk has no runs");
        }
        let mut end = 0u64;
        for _ in 0..runs {
            let start = end.checked_add(take(rest)?).ok_or("a run extends beyond its chunk")?;
            let run = take(rest)?;
            let which = if count > 1 { take(rest)? } else { 0 };
            end = start.checked_add(run).filter(|e| *e <= len && run > 0).ok_or("a run extends beyond its chunk")?;
            let pair = usize::try_from(which).ok().and_then(|w| pairs.get(w)).ok_or("a run has no pair of labels")?;
            f(number, LabelRun { start: start as u32, len: run as u32, old: pair.0, new: pair.1 });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn numbers_round_trip(value in any::<u64>(), tail in any::<u8>()) {
            let mut bytes = Vec::new();
            put(&mut bytes, value);
            bytes.push(tail);
            let mut rest = &bytes[..];
            prop_assert_eq!(take(&mut rest), Ok(value));
            prop_assert_eq!(rest, &[tail]);
        }

        #[test]
        fn arbitrary_bytes_are_refused_or_valid(bytes in prop::collection::vec(prop_oneof![0u8..4, any::<u8>()], 0..60)) {
            let grid = ChunkGrid::new([40, 70, 9]).unwrap();
            let mut last = None;
            if decode(&bytes, &grid, &mut |chunk, run| {
                assert!((run.start + run.len) as usize <= grid.chunk_voxels(chunk as usize) && run.len > 0);
                assert!(last.is_none_or(|l| l < (chunk, run.start)));
                last = Some((chunk, run.start + run.len - 1));
            }).is_ok() && !bytes.is_empty() {
                prop_assert!(EditDiff::parse(&bytes, &grid).is_ok());
            }
        }
    }

    #[test]
    fn runs_round_trip_with_their_bounds() {
        let grid = ChunkGrid::new([40, 70, 9]).unwrap();
        let mut runs = Runs::default();
        let given = [
            (3, LabelRun { start: 4, len: 2, old: 0, new: 70_000 }),
            (0, LabelRun { start: 600, len: 9, old: 1, new: 70_000 }),
            (0, LabelRun { start: 10, len: 1, old: 0, new: 70_000 }),
        ];
        given.iter().for_each(|(c, r)| runs.push(*c, *r));
        let diff = runs.pack(&grid).unwrap();
        let mut seen = Vec::new();
        diff.each(&grid, &mut |c, r| seen.push((c, r)));
        assert_eq!(seen, [given[2], given[1], given[0]]);
        assert_eq!(EditDiff::parse(diff.bytes(), &grid).unwrap(), diff);
        assert_eq!(diff.voxels, 12);
        // 600 is z 1, y 2, x 6 of a chunk of 64 × 9 columns; the run continues in the next row; chunk 3 starts at z 32,
        // y 64.
        assert_eq!(diff.bounds, BoundsZyx { start: [0, 1, 0], end: [33, 65, 9] });
        assert_eq!(Runs::default().pack(&grid), None);
    }
}

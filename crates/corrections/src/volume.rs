//! An editable label volume: chunks, and an index of the chunks of each label.

use crate::chunks::{Chunk, ChunkGrid, LabelSnapshot};
use crate::diff::{EditDiff, LabelRun, Runs};
use crate::geometry::{BoundsZyx, Scope, extend_bounds};
use crate::index::LabelIndex;
use crate::limits::{self, Limits, MAX_BOX_VOXELS};
use crate::{CorrectionError, Fingerprint, SliceAxis};
use cytoscope_volume::VoxelSize;
use rayon::prelude::*;
use std::collections::HashMap;
use std::ops::Range;

/// Labels being corrected: axes Z, Y, X, 0 = background, in chunks ([`crate::CHUNK_ZYX`]).
///
/// They are changed only by edits ([`crate::Session::apply`]).
#[derive(Debug, Clone)]
pub struct LabelVolume {
    labels: LabelSnapshot,
    index: LabelIndex,
}

/// Direction in which differences are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    Forward,
    Backward,
}

impl Direction {
    /// Returns a run whose old and new label are those of this direction.
    fn orient(self, run: LabelRun) -> LabelRun {
        match self {
            Direction::Forward => run,
            Direction::Backward => LabelRun { old: run.new, new: run.old, ..run },
        }
    }
}

impl LabelVolume {
    /// Creates a volume of background.
    ///
    /// # Errors
    /// [`CorrectionError::TooLarge`] or [`CorrectionError::BadParameter`] for a shape above the limits or with an empty
    /// axis.
    pub fn new(shape_zyx: [usize; 3], voxel_size_um: VoxelSize) -> Result<Self, CorrectionError> {
        let grid = ChunkGrid::new(shape_zyx)?;
        let index = LabelIndex::new(grid.chunk_count());
        Ok(Self { labels: LabelSnapshot::empty(grid, voxel_size_um), index })
    }

    /// Creates a volume from labels in C order.
    ///
    /// # Errors
    /// Same as [`LabelVolume::new`]; [`CorrectionError::BadParameter`] if the number of labels does not match the shape.
    pub fn from_dense(
        shape_zyx: [usize; 3],
        voxel_size_um: VoxelSize,
        labels: &[u32],
    ) -> Result<Self, CorrectionError> {
        let grid = ChunkGrid::new(shape_zyx)?;
        if shape_zyx.iter().product::<usize>() != labels.len() {
            return Err(CorrectionError::BadParameter {
                what: "the number of labels",
                got: format!("{} for shape {shape_zyx:?}", labels.len()),
                expected: "one label per voxel",
            });
        }
        let [_, ny, nx] = shape_zyx;
        let chunks = (0..grid.chunk_count()).map(|chunk| {
            let b = grid.bounds(chunk);
            let rows =
                b.rows().flat_map(|(z, y)| &labels[(z * ny + y) * nx + b.start[2]..(z * ny + y) * nx + b.end[2]]);
            Chunk::from_values(&rows.copied().collect::<Vec<_>>())
        });
        let chunks = chunks.collect();
        Self::from_snapshot(LabelSnapshot { grid, chunks, voxel_size_um }, &Limits::default())
    }

    /// Creates a volume from a snapshot and counts its labels.
    ///
    /// # Errors
    /// [`CorrectionError::TooLarge`] if there are more pairs of label and chunk than the limits allow.
    pub(crate) fn from_snapshot(labels: LabelSnapshot, limits: &Limits) -> Result<Self, CorrectionError> {
        let count = |(i, chunk): (usize, &Chunk)| {
            let mut found: HashMap<u32, u32> = HashMap::new();
            chunk.each_run(0..labels.grid.chunk_voxels(i), |_, len, value| {
                if value != 0 {
                    *found.entry(value).or_default() += len as u32;
                }
            });
            found
        };
        let mut index = LabelIndex::new(labels.chunks.len());
        let mut pieces = 0u64;
        // Only some chunks at a time: for noise, the table of counts is as large as the chunk.
        for (n, group) in labels.chunks.chunks(256).enumerate() {
            let counted: Vec<_> = group.par_iter().enumerate().map(|(i, c)| count((n * 256 + i, c))).collect();
            for (i, found) in counted.into_iter().enumerate() {
                pieces += found.len() as u64;
                let next_step = "check that this is a label image and not intensities";
                limits::check_label_pieces(pieces, limits, next_step)?;
                found.into_iter().for_each(|(label, len)| index.add(label, (n * 256 + i) as u32, i64::from(len)));
            }
        }
        Ok(Self { labels, index })
    }

    /// Returns a copy of the current labels that later edits do not change. Takes microseconds, because chunks are
    /// shared until they are modified.
    pub fn snapshot(&self) -> LabelSnapshot {
        self.labels.clone()
    }

    /// The current labels, read-only.
    pub fn labels(&self) -> &LabelSnapshot {
        &self.labels
    }

    /// Number of voxels along Z, Y, X.
    pub fn shape_zyx(&self) -> [usize; 3] {
        self.labels.grid.shape
    }

    /// Returns the distance between voxel centers along Z, Y, X in µm.
    pub fn voxel_size_um(&self) -> VoxelSize {
        self.labels.voxel_size_um
    }

    /// The label of a voxel; `None` outside the volume.
    pub fn get(&self, zyx: [usize; 3]) -> Option<u32> {
        self.labels.get(zyx)
    }

    /// The labels of one slice, row by row.
    ///
    /// # Errors
    /// [`CorrectionError::OutOfBounds`] if the slice does not exist.
    pub fn slice(&self, axis: SliceAxis, index: usize) -> Result<Vec<u32>, CorrectionError> {
        self.labels.slice(axis, index)
    }

    /// See [`LabelSnapshot::fingerprint`].
    pub fn fingerprint(&self) -> Fingerprint {
        self.labels.fingerprint()
    }

    /// Labels in use, in ascending order.
    pub fn labels_in_use(&self) -> impl Iterator<Item = u32> + '_ {
        self.index.labels()
    }

    /// Number of labels in use.
    pub fn label_count(&self) -> usize {
        self.index.label_count()
    }

    /// Number of voxels of a label; 0 for background and labels that do not exist.
    pub fn voxel_count(&self, label: u32) -> u64 {
        self.index.voxels(label)
    }

    /// Returns an unused label: one above the largest, or the smallest unused one if the largest is `u32::MAX`.
    ///
    /// # Errors
    /// [`CorrectionError::NoFreeLabel`] if all labels are in use.
    pub fn next_free_label(&self) -> Result<u32, CorrectionError> {
        if let Some(next) = self.index.max_label().checked_add(1) {
            return Ok(next);
        }
        let gap = self.index.labels().zip(1..).find(|(label, wanted)| label != wanted);
        gap.map(|(_, free)| free).ok_or(CorrectionError::NoFreeLabel)
    }

    /// Returns `count` unused labels in ascending order: those above the largest, or the smallest unused ones if there are too few
    /// above it.
    ///
    /// # Errors
    /// [`CorrectionError::NoFreeLabel`] if fewer labels are unused.
    pub(crate) fn free_labels(&self, count: usize) -> Result<Vec<u32>, CorrectionError> {
        let max_label = self.index.max_label();
        let last = u32::try_from(count).ok().and_then(|count| max_label.checked_add(count));
        if let Some(last) = last {
            return Ok((max_label..last).map(|label| label + 1).collect());
        }
        let mut used = self.index.labels().peekable();
        let mut free = Vec::new();
        for label in 1..=u32::MAX {
            if free.len() == count {
                break;
            }
            if used.peek() == Some(&label) {
                used.next();
            } else {
                free.push(label);
            }
        }
        if free.len() == count { Ok(free) } else { Err(CorrectionError::NoFreeLabel) }
    }

    /// The smallest box around a label; `None` if it does not exist. Only the chunks with the label are searched.
    pub fn label_bounds(&self, label: u32) -> Option<BoundsZyx> {
        self.bounds_within(label, &BoundsZyx::whole(self.shape_zyx()))
    }

    /// The smallest box around the part of a label inside a box.
    pub(crate) fn bounds_within(&self, label: u32, within: &BoundsZyx) -> Option<BoundsZyx> {
        let mut found = None;
        self.for_each_run(label, within, |z, y, xs| {
            extend_bounds(&mut found, BoundsZyx { start: [z, y, xs.start], end: [z + 1, y + 1, xs.end] });
        });
        found
    }

    /// Like [`LabelVolume::bounds_within`], with an error for background and labels that do not exist.
    pub(crate) fn bounds_in(&self, label: u32, scope: Scope) -> Result<BoundsZyx, CorrectionError> {
        let within = scope.bounds(self.shape_zyx())?;
        self.bounds_within(label, &within).ok_or(CorrectionError::NoSuchLabel { label, place: scope.name() })
    }

    /// Like [`LabelVolume::bounds_in`], with an error for boxes above [`MAX_BOX_VOXELS`].
    pub(crate) fn checked_bounds(&self, label: u32, scope: Scope) -> Result<BoundsZyx, CorrectionError> {
        let bounds = self.bounds_in(label, scope)?;
        check_box(&bounds)?;
        Ok(bounds)
    }

    /// Calls `f(z, y, xs)` for each run of a label along X inside a box; runs end at chunk boundaries.
    pub(crate) fn for_each_run(&self, label: u32, within: &BoundsZyx, mut f: impl FnMut(usize, usize, Range<usize>)) {
        for (chunk, _) in self.index.chunk_counts(label) {
            let chunk = *chunk as usize;
            let own = self.labels.grid.bounds(chunk);
            let Some(part) = own.intersection(within) else { continue };
            let [_, ny, nx] = own.size();
            for (z, y) in part.rows() {
                let row = ((z - own.start[0]) * ny + y - own.start[1]) * nx;
                let range = row + part.start[2] - own.start[2]..row + part.end[2] - own.start[2];
                self.labels.chunks[chunk].each_run(range, |start, len, value| {
                    if value == label {
                        let x = own.start[2] + start - row;
                        f(z, y, x..x + len);
                    }
                });
            }
        }
    }

    /// Mask of a label inside a box, in C order.
    pub(crate) fn label_mask(&self, label: u32, bounds: &BoundsZyx) -> Vec<bool> {
        let [nz, ny, nx] = bounds.size();
        let mut mask = vec![false; nz * ny * nx];
        self.for_each_run(label, bounds, |z, y, xs| {
            let row = ((z - bounds.start[0]) * ny + y - bounds.start[1]) * nx;
            mask[row + xs.start - bounds.start[2]..row + xs.end - bounds.start[2]].fill(true);
        });
        mask
    }

    /// For each index along an axis, whether that slice contains the label.
    pub(crate) fn slices_with(&self, label: u32, axis: SliceAxis) -> Vec<bool> {
        let shape = self.shape_zyx();
        let mut found = vec![false; shape[axis.index()]];
        self.for_each_run(label, &BoundsZyx::whole(shape), |z, y, xs| match axis {
            SliceAxis::Z => found[z] = true,
            SliceAxis::Y => found[y] = true,
            SliceAxis::X => found[xs].fill(true),
        });
        found
    }

    /// Applies differences forward or backward.
    ///
    /// # Errors
    /// If the labels do not match the differences; nothing is changed then.
    pub(crate) fn apply_diff(&mut self, diff: &EditDiff, direction: Direction) -> Result<(), &'static str> {
        let mut deltas: HashMap<(u32, u32), i64> = HashMap::new();
        apply_diff_to_snapshot(&mut self.labels, diff, direction, |chunk, run| {
            *deltas.entry((run.old, chunk)).or_default() -= i64::from(run.len);
            *deltas.entry((run.new, chunk)).or_default() += i64::from(run.len);
        })?;
        self.index.apply(&deltas);
        let mut chunks: Vec<u32> = deltas.keys().map(|k| k.1).collect();
        chunks.sort_unstable();
        chunks.dedup();
        chunks.into_iter().for_each(|c| self.compact(c));
        Ok(())
    }

    /// Memory in bytes of the chunks that differences change.
    pub(crate) fn touched_bytes(&self, diff: &EditDiff) -> u64 {
        let (mut total, mut last): (u64, Option<u32>) = (0, None);
        diff.each(&self.labels.grid, &mut |chunk, _| {
            if last != Some(chunk) {
                total = total.saturating_add(self.labels.chunks[chunk as usize].stored_bytes());
                last = Some(chunk);
            }
        });
        total
    }

    /// Largest memory in bytes by which the labels grow if differences are applied in any direction.
    pub(crate) fn growth_bytes(&self, diff: &EditDiff) -> u64 {
        let (mut total, mut last): (u64, Option<(u32, u64)>) = (0, None);
        diff.each(&self.labels.grid, &mut |chunk, run| {
            let voxels = self.labels.grid.chunk_voxels(chunk as usize) as u64;
            let is_wide = run.old.max(run.new) > u32::from(u16::MAX);
            let needed = match &self.labels.chunks[chunk as usize] {
                Chunk::Uniform(_) if u64::from(run.len) == voxels => 0,
                Chunk::Uniform(_) if is_wide => 4 * voxels,
                Chunk::Uniform(_) => 2 * voxels,
                Chunk::Narrow(_) if is_wide => 2 * voxels,
                Chunk::Narrow(_) | Chunk::Wide(_) => 0,
            };
            // Of all runs of a chunk, the one that needs most counts.
            let counted = last.filter(|(of, _)| *of == chunk).map_or(0, |(_, counted)| counted);
            total = total.saturating_add(needed.saturating_sub(counted));
            last = Some((chunk, needed.max(counted)));
        });
        total
    }

    /// Number of pairs of a label and a chunk that contains it.
    pub(crate) fn label_pieces(&self) -> u64 {
        self.index.pieces()
    }

    /// Number of pairs of a label and a chunk that contains it, once differences are applied.
    fn label_pieces_after(&self, diff: &EditDiff, direction: Direction) -> u64 {
        let (mut change, mut last) = (0i64, 0u32);
        let mut deltas: HashMap<u32, i64> = HashMap::new();
        diff.each(&self.labels.grid, &mut |chunk, run| {
            if chunk != last {
                change += self.piece_change(last, deltas.drain());
                last = chunk;
            }
            let run = direction.orient(run);
            *deltas.entry(run.old).or_default() -= i64::from(run.len);
            *deltas.entry(run.new).or_default() += i64::from(run.len);
        });
        change += self.piece_change(last, deltas.drain());
        self.index.pieces().saturating_add_signed(change)
    }

    /// How many labels a chunk gets and loses by changes of their numbers of voxels.
    fn piece_change(&self, chunk: u32, deltas: impl Iterator<Item = (u32, i64)>) -> i64 {
        let of_label = |(label, delta): (u32, i64)| {
            let before = i64::from(self.index.voxels_in(label, chunk));
            i64::from(before + delta > 0) - i64::from(before > 0)
        };
        deltas.filter(|(label, _)| *label != 0).map(of_label).sum()
    }

    /// Refuses differences with which the labels may need too much memory, whichever direction they are applied in, or with
    /// which they would have too many pairs of label and chunk; `stored_bytes` is the memory of the labels. The same
    /// differences are refused when they are made and when a journal is replayed, so that every journal can be replayed.
    pub(crate) fn check_growth(
        &self,
        diff: &EditDiff,
        direction: Direction,
        stored_bytes: u64,
        limits: &Limits,
        next_step: &'static str,
    ) -> Result<(), CorrectionError> {
        match self.growth_bytes(diff) {
            0 => {}
            growth => limits::check_stored_bytes(stored_bytes.saturating_add(growth), limits, next_step)?,
        }
        let pieces = self.index.pieces();
        // A run has more than one byte and adds at most one pair: only close to the limit are they counted.
        if pieces.saturating_add(diff.bytes().len() as u64) <= limits.max_label_pieces {
            return Ok(());
        }
        let after = self.label_pieces_after(diff, direction);
        if after <= pieces { Ok(()) } else { limits::check_label_pieces(after, limits, next_step) }
    }

    /// Largest memory in bytes that the chunks changed by differences need, however they are stored.
    pub(crate) fn widest_bytes(&self, diff: &EditDiff) -> u64 {
        let (mut total, mut last): (u64, Option<u32>) = (0, None);
        diff.each(&self.labels.grid, &mut |chunk, _| {
            if last != Some(chunk) {
                total = total.saturating_add(4 * self.labels.grid.chunk_voxels(chunk as usize) as u64);
                last = Some(chunk);
            }
        });
        total
    }

    /// Stores a chunk as one value if all its voxels are equal, and with 16 bits if its labels allow it, so that the memory of
    /// the labels depends on them alone and not on earlier edits.
    fn compact(&mut self, chunk: u32) {
        let at = chunk as usize;
        let candidate = self.labels.chunks[at].get(0);
        let uniform = match candidate {
            0 => self.index.foreground_count(at) == 0,
            label => self.index.voxels_in(label, chunk) as usize == self.labels.grid.chunk_voxels(at),
        };
        if uniform {
            self.labels.chunks[at] = Chunk::Uniform(candidate);
        } else if let Chunk::Wide(values) = &self.labels.chunks[at]
            && values.iter().all(|value| *value <= u32::from(u16::MAX))
        {
            let narrow = values.iter().map(|value| *value as u16).collect();
            self.labels.chunks[at] = Chunk::Narrow(narrow);
        }
    }
}

/// Applies differences to chunks and calls `each` for every applied run.
fn apply_diff_to_snapshot(
    labels: &mut LabelSnapshot,
    diff: &EditDiff,
    direction: Direction,
    mut each: impl FnMut(u32, LabelRun),
) -> Result<(), &'static str> {
    let grid = labels.grid;
    let range = |run: LabelRun| run.start as usize..(run.start + run.len) as usize;
    let mut fits = true;
    diff.each(&grid, &mut |chunk, run| {
        let run = direction.orient(run);
        labels.chunks[chunk as usize].each_run(range(run), |_, _, value| fits &= value == run.old);
    });
    if !fits {
        return Err("the labels do not match its differences");
    }
    diff.each(&grid, &mut |chunk, run| {
        let run = direction.orient(run);
        let len = grid.chunk_voxels(chunk as usize);
        labels.chunks[chunk as usize].write(len, range(run), run.new, |_| true, |_, _, _| {});
        each(chunk, run);
    });
    Ok(())
}

/// Returns an error for a box above [`MAX_BOX_VOXELS`].
pub(crate) fn check_box(bounds: &BoundsZyx) -> Result<(), CorrectionError> {
    limits::check(
        "the number of voxels of the box around the label",
        bounds.voxels(),
        "MAX_BOX_VOXELS",
        MAX_BOX_VOXELS,
        "edit slice by slice, or split the label first",
    )
}

/// Writes labels to a volume and records the changes.
pub(crate) struct LabelWriter<'a> {
    volume: &'a mut LabelVolume,
    runs: &'a mut Runs,
}

impl<'a> LabelWriter<'a> {
    /// Begins writing; changes are added to `runs`. The volume's index is updated when the writer is dropped.
    pub fn new(volume: &'a mut LabelVolume, runs: &'a mut Runs) -> Self {
        Self { volume, runs }
    }

    /// The labels as written so far; the index does not count these changes yet.
    pub fn volume(&self) -> &LabelVolume {
        self.volume
    }

    /// Sets the voxels of a row to a label where `allow` returns true for the old label. The row must be inside the
    /// volume.
    pub fn row(&mut self, z: usize, y: usize, xs: Range<usize>, new: u32, allow: impl Fn(u32) -> bool) {
        let grid = self.volume.labels.grid;
        let mut x = xs.start;
        while x < xs.end {
            let (chunk, local) = grid.locate([z, y, x]);
            let own = grid.bounds(chunk);
            let end = xs.end.min(own.end[2]);
            let len = own.size().iter().product();
            let runs = &mut *self.runs;
            let range = local..local + end - x;
            self.volume.labels.chunks[chunk].write(len, range, new, &allow, |start, len, old| {
                let from = x + start - local;
                extend_bounds(
                    &mut runs.unreported_bounds,
                    BoundsZyx { start: [z, y, from], end: [z + 1, y + 1, from + len] },
                );
                runs.push(chunk as u32, LabelRun { start: start as u32, len: len as u32, old, new });
            });
            x = end;
        }
    }

    /// Sets the voxels of a box: `choose(i)` is the label of the i-th voxel in C order, or `None` to keep its label.
    pub fn fill_box(&mut self, bounds: &BoundsZyx, choose: impl Fn(usize) -> Option<u32>, allow: impl Fn(u32) -> bool) {
        let nx = bounds.size()[2];
        for (n, (z, y)) in bounds.rows().enumerate() {
            let mut x = 0;
            while x < nx {
                let chosen = choose(n * nx + x);
                let start = x;
                while x < nx && choose(n * nx + x) == chosen {
                    x += 1;
                }
                if let Some(new) = chosen {
                    self.row(z, y, bounds.start[2] + start..bounds.start[2] + x, new, &allow);
                }
            }
        }
    }
}

impl Drop for LabelWriter<'_> {
    /// Updates the index and stores chunks that became uniform as one value.
    fn drop(&mut self) {
        let deltas = std::mem::take(&mut self.runs.deltas);
        self.volume.index.apply(&deltas);
        let mut chunks: Vec<u32> = deltas.keys().map(|k| k.1).collect();
        chunks.sort_unstable();
        chunks.dedup();
        chunks.into_iter().for_each(|c| self.volume.compact(c));
    }
}

//! Connected components of a mask, by run-length encoding and union-find.

use crate::ObjectsError;
use crate::error::check_len;
use std::ops::Range;

/// Voxels that count as neighbors of a voxel (`connectivity` in scikit-image).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Connectivity {
    /// Voxels that share a face (6 neighbors). Files of earlier versions contain `Faces`.
    #[default]
    #[serde(alias = "Faces")]
    Faces,
    /// Voxels that share a face, an edge or a corner (26 neighbors). Files of earlier versions contain `Corners`.
    #[serde(alias = "Corners")]
    Corners,
}

/// Disjoint sets of numbers.
#[derive(Debug, Default)]
pub(crate) struct UnionFind {
    parent: Vec<u32>,
}

impl UnionFind {
    pub(crate) fn push(&mut self) -> u32 {
        let id = self.parent.len() as u32;
        self.parent.push(id);
        id
    }

    pub(crate) fn find(&mut self, mut a: u32) -> u32 {
        while self.parent[a as usize] != a {
            let grand = self.parent[self.parent[a as usize] as usize];
            self.parent[a as usize] = grand;
            a = grand;
        }
        a
    }

    /// Joins two sets; the smaller root stays the root.
    pub(crate) fn join(&mut self, a: u32, b: u32) -> u32 {
        let (a, b) = (self.find(a), self.find(b));
        let (low, high) = (a.min(b), a.max(b));
        self.parent[high as usize] = low;
        low
    }

    /// Makes `b`'s root the root of `a`'s set.
    pub(crate) fn attach(&mut self, a: u32, b: u32) {
        let (a, b) = (self.find(a), self.find(b));
        self.parent[a as usize] = b;
    }
}

/// Voxels of a row that are in the mask: first and end. Runs are numbered in scan order.
#[derive(Debug, Clone, Copy)]
struct Run {
    start: u32,
    end: u32,
}

/// Returns the runs of consecutive values of a row where `mask(value)` is true: index of the first one, and end.
pub(crate) fn runs_where<T: Copy>(values: &[T], mask: impl Fn(T) -> bool) -> impl Iterator<Item = (u32, u32)> {
    let mut x = 0;
    std::iter::from_fn(move || {
        while x < values.len() && !mask(values[x]) {
            x += 1;
        }
        let start = x;
        while x < values.len() && mask(values[x]) {
            x += 1;
        }
        (start < x).then_some((start as u32, x as u32))
    })
}

/// The connected components of a mask whose rows arrive one after the other, in the order of the volume.
#[derive(Debug)]
pub struct Components {
    shape_zyx: [usize; 3],
    connectivity: Connectivity,
    /// Sets of connected runs, by index in `runs`.
    sets: UnionFind,
    runs: Vec<Run>,
    /// First run of each row, and the number of runs.
    row_starts: Vec<usize>,
}

impl Components {
    /// Starts with no rows.
    pub fn new(shape_zyx: [usize; 3], connectivity: Connectivity) -> Self {
        Self { shape_zyx, connectivity, sets: UnionFind::default(), runs: Vec::new(), row_starts: vec![0] }
    }

    /// Returns the number of runs of voxels so far, which determine the memory: 12 bytes for each.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Adds the next row: the voxels where `mask(value)` is true are in the mask.
    ///
    /// # Errors
    /// [`ObjectsError::TooManyObjects`] if there are more runs than label numbers.
    pub fn add_row<T: Copy>(&mut self, values: &[T], mask: impl Fn(T) -> bool) -> Result<(), ObjectsError> {
        let (row, first) = (self.row_starts.len() - 1, self.runs.len());
        for (start, end) in runs_where(values, mask) {
            if self.runs.len() >= u32::MAX as usize {
                return Err(ObjectsError::TooManyObjects { limit: u32::MAX });
            }
            self.runs.push(Run { start, end });
            self.sets.push();
        }
        let ny = self.shape_zyx[1].max(1);
        let (z, y) = (row / ny, row % ny);
        if y > 0 {
            self.join(row - 1, first);
        }
        if z > 0 {
            self.join(row - ny, first);
            if self.connectivity == Connectivity::Corners {
                if y > 0 {
                    self.join(row - ny - 1, first);
                }
                if y + 1 < ny {
                    self.join(row - ny + 1, first);
                }
            }
        }
        self.row_starts.push(self.runs.len());
        Ok(())
    }

    /// Joins the runs from number `first` on with those of an earlier row that they touch.
    fn join(&mut self, other_row: usize, first: usize) {
        let touch = u32::from(self.connectivity == Connectivity::Corners);
        let (mut i, mut j) = (self.row_starts[other_row], first);
        let other_end = self.row_starts[other_row + 1];
        while i < other_end && j < self.runs.len() {
            let (a, b) = (self.runs[i], self.runs[j]);
            if a.start < b.end + touch && b.start < a.end + touch {
                self.sets.join(i as u32, j as u32);
            }
            if a.end < b.end { i += 1 } else { j += 1 }
        }
    }

    /// Returns the number of components.
    pub fn count(mut self) -> usize {
        (0..self.runs.len() as u32).filter(|id| self.sets.find(*id) == *id).count()
    }

    /// Numbers the components from 1 on in scan order and overwrites `labels`. Returns the number of components.
    ///
    /// # Errors
    /// [`ObjectsError::Length`] if `labels` does not match the shape.
    pub fn finish(self, labels: &mut [u32]) -> Result<u32, ObjectsError> {
        check_len("labels", labels.len(), self.shape_zyx)?;
        let mut sets = self.sets;
        let mut numbers = vec![0u32; self.runs.len()];
        let mut count = 0;
        for (row, target) in labels.chunks_exact_mut(self.shape_zyx[2].max(1)).enumerate() {
            target.fill(0);
            let ids = match self.row_starts.get(row..row + 2) {
                Some(&[first, end]) => first..end,
                _ => 0..0,
            };
            for (id, run) in ids.clone().zip(&self.runs[ids]) {
                let number = &mut numbers[sets.find(id as u32) as usize];
                if *number == 0 {
                    count += 1;
                    *number = count;
                }
                target[run.start as usize..run.end as usize].fill(*number);
            }
        }
        Ok(count)
    }
}

/// Smallest and largest index (inclusive) of an object along Z, Y, X.
pub(crate) type Bounds = ([usize; 3], [usize; 3]);

/// Labels the connected components of voxels where `mask(value)` is true from 1 on in scan order; `labels` is
/// overwritten. Returns the number of components.
///
/// # Errors
/// [`ObjectsError::Length`] if a volume does not match the shape; [`ObjectsError::TooManyObjects`] beyond `u32`.
pub fn label<T: Copy>(
    volume: &[T],
    shape_zyx: [usize; 3],
    connectivity: Connectivity,
    mask: impl Fn(T) -> bool,
    labels: &mut [u32],
) -> Result<u32, ObjectsError> {
    check_len("volume", volume.len(), shape_zyx)?;
    check_len("labels", labels.len(), shape_zyx)?;
    let mut components = Components::new(shape_zyx, connectivity);
    for row in volume.chunks_exact(shape_zyx[2].max(1)) {
        components.add_row(row, &mask)?;
    }
    components.finish(labels)
}

/// Returns the runs of equal labels in consecutive voxels, without background: each label with its range.
pub(crate) fn label_runs(labels: &[u32]) -> impl Iterator<Item = (u32, Range<usize>)> {
    let mut end = 0;
    let runs = labels.chunk_by(|a, b| a == b).map(move |run| {
        let start = end;
        end += run.len();
        (run[0], start..end)
    });
    runs.filter(|(label, _)| *label != 0)
}

/// Returns the bounding box of each label `1..=count`: smallest and largest index (inclusive) along Z, Y, X; `None` for
/// labels that do not occur.
pub fn boxes(labels: &[u32], shape_zyx: [usize; 3], count: u32) -> Vec<Option<([usize; 3], [usize; 3])>> {
    let [_, ny, nx] = shape_zyx;
    let mut boxes: Vec<Option<([usize; 3], [usize; 3])>> = vec![None; count as usize];
    if nx == 0 {
        return boxes;
    }
    for (row, values) in labels.chunks_exact(nx).enumerate() {
        let (z, y) = (row / ny, row % ny);
        for (label, run) in label_runs(values) {
            let Some(slot) = boxes.get_mut(label as usize - 1) else { continue };
            let (low, high) = slot.get_or_insert(([z, y, run.start], [z, y, run.end - 1]));
            *low = [low[0].min(z), low[1].min(y), low[2].min(run.start)];
            *high = [high[0].max(z), high[1].max(y), high[2].max(run.end - 1)];
        }
    }
    boxes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn equals_flood_filling(bits in prop::collection::vec(any::<bool>(), 4 * 5 * 6), corners in any::<bool>()) {
            let shape = [4, 5, 6];
            let connectivity = if corners { Connectivity::Corners } else { Connectivity::Faces };
            let mut labels = vec![9; 120];
            let count = label(&bits, shape, connectivity, |b| b, &mut labels).unwrap();
            let mut want = vec![0u32; 120];
            let mut next = 0;
            for seed in 0..120 {
                if !bits[seed] || want[seed] != 0 { continue; }
                next += 1;
                let mut stack = vec![seed];
                want[seed] = next;
                while let Some(i) = stack.pop() {
                    let at = [i / 30, i / 6 % 5, i % 6];
                    for d in 0..27usize {
                        let step = [d / 9, d / 3 % 3, d % 3];
                        let far: usize = step.iter().map(|s| usize::from(*s != 1)).sum();
                        if far == 0 || (!corners && far > 1) { continue; }
                        let to: Vec<usize> = (0..3).map(|a| (at[a] + step[a]).wrapping_sub(1)).collect();
                        if (0..3).any(|a| to[a] >= shape[a]) { continue; }
                        let j = to[0] * 30 + to[1] * 6 + to[2];
                        if bits[j] && want[j] == 0 { want[j] = next; stack.push(j); }
                    }
                }
            }
            prop_assert_eq!(count, next);
            prop_assert_eq!(labels, want);
        }
    }
}

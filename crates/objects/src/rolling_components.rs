//! Connected components of a mask whose slices arrive one after the other, and are forgotten once they are not needed.

use crate::ObjectsError;
use crate::components::{Bounds, runs_where};
use std::collections::VecDeque;
use std::ops::Range;

/// Set of a run that was not yet assigned to one.
const NO_SET: u32 = u32::MAX;

/// Voxels of a row that are in the mask: first and end, and the set that they belong to.
#[derive(Debug, Clone, Copy)]
struct Run {
    start: u32,
    end: u32,
    set: u32,
}

/// A component, or the part of it that has arrived.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Component {
    /// Position among the components in the order of their first voxels; the positions have gaps.
    pub order: u64,
    /// Its bounding box.
    pub bounds: Bounds,
    pub voxels: u64,
}

/// A set of runs, or a part of one that was joined with others.
#[derive(Debug)]
struct Set {
    parent: u32,
    /// The next part of the same set; the last one is followed by the first.
    next: u32,
    /// Number of parts.
    parts: u32,
    component: Component,
}

/// Disjoint sets of runs. Numbers of sets that were released are used again.
#[derive(Debug, Default)]
struct Sets {
    sets: Vec<Set>,
    free: Vec<u32>,
    /// Sets that further slices may change, and sets that were joined with them in the last slice.
    open: Vec<u32>,
    /// Number of sets so far, including those that were released.
    begun: u64,
}

impl Sets {
    fn root(&self, mut set: u32) -> u32 {
        while self.sets[set as usize].parent != set {
            set = self.sets[set as usize].parent;
        }
        set
    }

    fn begin(&mut self) -> Result<u32, ObjectsError> {
        let component = Component { order: self.begun, bounds: ([usize::MAX; 3], [0; 3]), voxels: 0 };
        self.begun += 1;
        let id = match self.free.pop() {
            Some(id) => id,
            None if self.sets.len() < NO_SET as usize => self.sets.len() as u32,
            None => return Err(ObjectsError::TooManyObjects { limit: NO_SET }),
        };
        let set = Set { parent: id, next: id, parts: 1, component };
        match self.sets.get_mut(id as usize) {
            Some(slot) => *slot = set,
            None => self.sets.push(set),
        }
        self.open.push(id);
        Ok(id)
    }

    /// Adds a run of row `y` in slice `z` to its set.
    fn add(&mut self, run: &Run, z: usize, y: usize) {
        let root = self.root(run.set);
        let Component { bounds: (low, high), voxels, .. } = &mut self.sets[root as usize].component;
        *low = [low[0].min(z), low[1].min(y), low[2].min(run.start as usize)];
        *high = [high[0].max(z), high[1].max(y), high[2].max(run.end as usize - 1)];
        *voxels += u64::from(run.end - run.start);
    }

    /// Joins two sets.
    fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.root(a), self.root(b));
        if a == b {
            return;
        }
        // The larger set keeps its root, so that roots are near.
        let (root, other) = if self.sets[a as usize].parts < self.sets[b as usize].parts { (b, a) } else { (a, b) };
        let Set { next, parts, component, .. } = self.sets[other as usize];
        let (low, high) = component.bounds;
        let kept = &mut self.sets[root as usize];
        let kept_component = &mut kept.component;
        kept_component.order = kept_component.order.min(component.order);
        kept_component.voxels += component.voxels;
        for axis in 0..3 {
            kept_component.bounds.0[axis] = kept_component.bounds.0[axis].min(low[axis]);
            kept_component.bounds.1[axis] = kept_component.bounds.1[axis].max(high[axis]);
        }
        kept.parts += parts;
        let after = std::mem::replace(&mut kept.next, next);
        let joined = &mut self.sets[other as usize];
        (joined.next, joined.parent) = (after, root);
    }

    /// Assigns the runs of a row to the sets of the runs of a neighboring row that they touch.
    fn join_rows(&mut self, neighbors: &[Run], row: &mut [Run]) {
        let (mut i, mut j) = (0, 0);
        while let (Some(a), Some(b)) = (neighbors.get(i), row.get_mut(j)) {
            if a.start < b.end && b.start < a.end {
                if b.set == NO_SET {
                    b.set = self.root(a.set);
                } else {
                    self.join(a.set, b.set);
                }
            }
            if a.end < b.end { i += 1 } else { j += 1 }
        }
    }

    /// Returns the sets that no further slice can change, if `z` was the last slice so far.
    fn close(&mut self, z: usize, is_last: bool) -> Vec<u32> {
        let (mut closed, sets) = (Vec::new(), &self.sets);
        self.open.retain(|id| {
            let set = &sets[*id as usize];
            let is_closed = is_last || set.component.bounds.1[0] < z;
            if set.parent == *id && is_closed {
                closed.push(*id);
            }
            set.parent == *id && !is_closed
        });
        closed
    }

    /// Allows the numbers of a set to be used again.
    fn release(&mut self, root: u32) {
        let mut part = root;
        loop {
            self.free.push(part);
            part = self.sets[part as usize].next;
            if part == root {
                return;
            }
        }
    }
}

/// A slice that is held.
#[derive(Debug, Default)]
struct HeldSlice {
    runs: Vec<Run>,
    /// End of each row in `runs`.
    row_ends: Vec<u32>,
    /// Components of which this is the last slice.
    ended: Vec<u32>,
}

impl HeldSlice {
    /// Returns the runs of a row.
    fn row(&self, y: usize) -> &[Run] {
        let start = y.checked_sub(1).and_then(|before| self.row_ends.get(before)).copied().unwrap_or(0);
        let end = self.row_ends.get(y).copied().unwrap_or(start);
        self.runs.get(start as usize..end as usize).unwrap_or_default()
    }

    /// Adds the runs of the next row, without sets.
    fn add_row<T: Copy>(&mut self, values: &[T], mask: impl Fn(T) -> bool) {
        self.runs.extend(runs_where(values, mask).map(|(start, end)| Run { start, end, set: NO_SET }));
        self.row_ends.push(self.runs.len() as u32);
    }
}

/// The connected components (voxels that share a face) of a mask whose slices arrive one after the other. A component is
/// closed once no further slice can change it; it is known by its number until its last slice is forgotten.
#[derive(Debug)]
pub(crate) struct RollingComponents {
    shape_zyx: [usize; 3],
    sets: Sets,
    /// The slices that are held, from slice `first` on.
    slices: VecDeque<HeldSlice>,
    first: usize,
    /// Number of runs in these slices.
    runs: usize,
}

impl RollingComponents {
    /// Starts with no slices.
    pub(crate) fn new(shape_zyx: [usize; 3]) -> Self {
        Self { shape_zyx, sets: Sets::default(), slices: VecDeque::new(), first: 0, runs: 0 }
    }

    /// Returns the number of slices so far.
    pub(crate) fn added(&self) -> usize {
        self.first + self.slices.len()
    }

    /// Returns the number of slices, from the first on, of which all components are closed.
    pub(crate) fn settled(&self) -> usize {
        let first_of = |id: &u32| self.component(*id).bounds.0[0];
        self.sets.open.iter().map(first_of).min().unwrap_or_else(|| self.added())
    }

    /// Returns the number of slices that were forgotten.
    pub(crate) fn forgotten(&self) -> usize {
        self.first
    }

    /// Returns the memory in bytes that is held.
    pub(crate) fn bytes(&self) -> u64 {
        let rows = self.slices.len() * self.shape_zyx[1];
        let sets = self.sets.sets.len() * size_of::<Set>();
        (self.runs * size_of::<Run>() + rows * size_of::<u32>() + sets) as u64
    }

    /// Adds the next slice: the voxels where `mask(value)` is true are in the mask. Returns the numbers of the components that
    /// are closed now.
    ///
    /// # Errors
    /// [`ObjectsError::TooManyObjects`] if there are more components than numbers.
    pub(crate) fn add_slice<T: Copy>(
        &mut self,
        values: &[T],
        mask: impl Fn(T) -> bool,
    ) -> Result<Vec<u32>, ObjectsError> {
        let z = self.added();
        let mut slice = HeldSlice::default();
        let mut above = 0..0;
        for (y, row) in values.chunks_exact(self.shape_zyx[2].max(1)).enumerate() {
            let start = slice.runs.len();
            slice.add_row(row, &mask);
            let (earlier, own) = slice.runs.split_at_mut(start);
            self.sets.join_rows(earlier.get(above).unwrap_or_default(), own);
            if let Some(before) = self.slices.back() {
                self.sets.join_rows(before.row(y), own);
            }
            for run in own {
                if run.set == NO_SET {
                    run.set = self.sets.begin()?;
                }
                self.sets.add(run, z, y);
            }
            above = start..slice.runs.len();
        }
        self.runs += slice.runs.len();
        self.slices.push_back(slice);
        let closed = self.sets.close(z, z + 1 == self.shape_zyx[0]);
        for id in &closed {
            let last = self.component(*id).bounds.1[0];
            if let Some(slice) = last.checked_sub(self.first).and_then(|at| self.slices.get_mut(at)) {
                slice.ended.push(*id);
            }
        }
        Ok(closed)
    }

    /// Returns the component with this number.
    pub(crate) fn component(&self, number: u32) -> Component {
        self.sets.sets[number as usize].component
    }

    /// Returns the runs of a row of a held slice: first voxel, end and number of the component.
    pub(crate) fn row(&self, z: usize, y: usize) -> impl Iterator<Item = (usize, usize, u32)> + '_ {
        self.row_part(z, y, 0..self.shape_zyx[2])
    }

    /// Like [`RollingComponents::row`], for the runs that reach into these columns.
    pub(crate) fn row_part(
        &self,
        z: usize,
        y: usize,
        columns: Range<usize>,
    ) -> impl Iterator<Item = (usize, usize, u32)> + '_ {
        let slice = z.checked_sub(self.first).and_then(|at| self.slices.get(at));
        let runs = slice.map_or(&[][..], |slice| slice.row(y));
        let first = runs.partition_point(|run| run.end as usize <= columns.start);
        let runs = runs.iter().skip(first).take_while(move |run| (run.start as usize) < columns.end);
        runs.map(|run| (run.start as usize, run.end as usize, self.sets.root(run.set)))
    }

    /// Forgets the first of the held slices, all of whose components must be closed. The components that end in this slice are
    /// passed to `each` and forgotten, too.
    pub(crate) fn forget_slice(&mut self, mut each: impl FnMut(u32, &Component)) {
        let Some(slice) = self.slices.pop_front() else { return };
        self.first += 1;
        self.runs -= slice.runs.len();
        for id in slice.ended {
            each(id, &self.component(id));
            self.sets.release(id);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use crate::components::{Connectivity, label};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn components_are_those_of_the_whole_mask_and_memory_is_used_again(
            bits in prop::collection::vec(prop::bool::weighted(0.4), 12 * 5 * 7),
        ) {
            let shape = [12, 5, 7];
            let mut whole = vec![0u32; bits.len()];
            let count = label(&bits, shape, Connectivity::Faces, |b| b, &mut whole).unwrap();
            let mut rolling = RollingComponents::new(shape);
            let mut labels = vec![0u32; bits.len()];
            let (mut numbers, mut voxels, mut most_sets) = (BTreeMap::new(), 0, 0);
            for slice in bits.chunks_exact(35) {
                rolling.add_slice(slice, |b| b).unwrap();
                most_sets = most_sets.max(rolling.sets.sets.len());
                while rolling.forgotten() < rolling.settled() {
                    let z = rolling.forgotten();
                    for y in 0..5 {
                        for (start, end, id) in rolling.row(z, y) {
                            let order = rolling.component(id).order;
                            let next = numbers.len() as u32 + 1;
                            let number = *numbers.entry(order).or_insert(next);
                            labels[(z * 5 + y) * 7 + start..(z * 5 + y) * 7 + end].fill(number);
                        }
                    }
                    rolling.forget_slice(|_, component| voxels += component.voxels);
                }
            }
            prop_assert_eq!(rolling.forgotten(), 12);
            prop_assert_eq!(numbers.len() as u32, count);
            prop_assert_eq!(labels, whole);
            prop_assert_eq!(voxels, bits.iter().filter(|b| **b).count() as u64);
            prop_assert_eq!((rolling.runs, rolling.sets.free.len()), (0, rolling.sets.sets.len()));
        }
    }

    #[test]
    fn memory_does_not_grow_with_the_number_of_slices() {
        let mut rolling = RollingComponents::new([1000, 4, 8]);
        let mut most = 0;
        for z in 0..1000 {
            // A row of three voxels in two of three slices.
            let slice: Vec<bool> = (0..32).map(|i| z % 3 < 2 && (9..12).contains(&i)).collect();
            rolling.add_slice(&slice, |b| b).unwrap();
            while rolling.forgotten() < rolling.settled() {
                rolling.forget_slice(|_, component| {
                    assert_eq!(component.voxels, 6 - 3 * u64::from(component.bounds.1[0] == 999))
                });
            }
            most = most.max(rolling.bytes());
        }
        assert!(most < 1000, "{most} bytes");
    }
}

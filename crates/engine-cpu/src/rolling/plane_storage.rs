//! Where the planes of a value lie in its buffer.

use std::ops::Range;

/// Requirements of a buffer during a pass.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Need {
    /// Planes that are held at once.
    pub held: usize,
    /// Planes that are read or written together.
    pub together: usize,
    /// Whether planes are kept from one slab to the next.
    pub is_kept: bool,
}

/// The planes of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlaneStorage {
    /// Planes that the buffer has capacity for.
    pub capacity: usize,
    /// Length of a ring: plane `p` lies at position `p` modulo this length. If the capacity is greater, the positions after
    /// it repeat the first ones, so that planes that are read together lie side by side. `None` for a buffer whose planes
    /// move to its start when its end is reached.
    ring_len: Option<usize>,
}

impl PlaneStorage {
    /// A buffer for `capacity` planes that move to its start when its end is reached.
    pub(crate) fn moving(capacity: usize) -> Self {
        Self { capacity, ring_len: None }
    }

    /// A ring, in which planes do not move. A skip connection waits in it.
    pub(crate) fn ring(need: &Need) -> Self {
        let ring_len = need.held.max(1);
        Self { capacity: ring_len + need.together.saturating_sub(1), ring_len: Some(ring_len) }
    }

    /// A ring whose length is a multiple of `step` and that repeats no planes: they lie side by side within the ring, but not
    /// across its end.
    pub(crate) fn plain_ring(need: &Need, step: usize) -> Self {
        let ring_len = need.held.max(1).next_multiple_of(step.max(1));
        Self { capacity: ring_len, ring_len: Some(ring_len) }
    }

    /// Returns the length of a ring that repeats no planes; `None` for other buffers.
    pub(crate) fn plain_ring_len(&self) -> Option<usize> {
        self.ring_len.filter(|len| *len == self.capacity)
    }

    /// Returns the position of a plane in a ring that repeats none; `None` for other buffers.
    pub(crate) fn ring_position(&self, plane: isize) -> Option<usize> {
        let len = isize::try_from(self.plain_ring_len()?).ok()?;
        usize::try_from(plane.rem_euclid(len)).ok()
    }

    /// Returns whether the planes before `end` fit into a buffer whose first plane is `base`, without moving any.
    pub(crate) fn has_room_to(&self, end: isize, base: isize) -> bool {
        self.ring_len.is_some() || end.saturating_sub(base) <= self.capacity as isize
    }

    /// Returns the position of the first of these planes; the others follow it. Outside a ring, plane `base` is at
    /// position 0. `None` if the planes are not in the buffer.
    pub(crate) fn position(&self, planes: &Range<isize>, base: isize) -> Option<usize> {
        let count = usize::try_from(planes.end - planes.start).ok()?;
        let first = match self.ring_len {
            Some(ring_len) => planes.start.rem_euclid(ring_len as isize),
            None => planes.start - base,
        };
        let first = usize::try_from(first).ok()?;
        (first + count <= self.capacity).then_some(first)
    }

    /// Returns the copies to make after these planes were written, each as the range of source positions and the first target
    /// position. A plane beyond the end of a ring is copied to its start, and one at the start to the positions that repeat it.
    /// Empty ranges are not copied.
    pub(crate) fn repeats(&self, planes: &Range<isize>) -> [(Range<usize>, usize); 2] {
        let none = (0..0, 0);
        let (Some(ring_len), Some(first)) = (self.ring_len, self.position(planes, 0)) else {
            return [none.clone(), none];
        };
        let end = first + planes.len();
        let beyond =
            if end > ring_len { (first.max(ring_len)..end, first.max(ring_len) - ring_len) } else { none.clone() };
        let repeated = self.capacity - ring_len;
        let within = if first < repeated { (first..end.min(repeated), first + ring_len) } else { none };
        [beyond, within]
    }

    /// Returns the number of planes that [`Self::repeats`] copies.
    pub(crate) fn repeated(&self, planes: &Range<isize>) -> usize {
        self.repeats(planes).iter().map(|(from, _)| from.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_of_a_ring_are_side_by_side_also_across_its_end() {
        let storage = PlaneStorage::ring(&Need { held: 5, together: 3, is_kept: true });
        let mut cells = vec![None; storage.capacity];
        for first in (-2isize..40).step_by(2) {
            let written = first..first + 2;
            let at = storage.position(&written, 0);
            for plane in written.clone() {
                let place = at.and_then(|at| cells.get_mut(at + (plane - first) as usize));
                assert!(place.map(|place| *place = Some(plane)).is_some(), "plane {plane}");
            }
            for (from, to) in storage.repeats(&written) {
                cells.copy_within(from, to);
            }
            for start in (written.end - 5).max(-2)..=written.end - 3 {
                let found = storage.position(&(start..start + 3), 0).and_then(|at| cells.get(at..at + 3));
                let expected: Vec<Option<isize>> = (start..start + 3).map(Some).collect();
                assert_eq!(found, (start >= -2).then_some(expected.as_slice()));
            }
        }
        assert_eq!(storage.position(&(0..8), 0), None, "more planes than the ring repeats");
    }

    #[test]
    fn planes_of_a_plain_ring_are_side_by_side_up_to_its_end() {
        let storage = PlaneStorage::plain_ring(&Need { held: 5, together: 3, is_kept: true }, 2);
        assert_eq!((storage.capacity, storage.plain_ring_len()), (6, Some(6)));
        assert_eq!(storage.position(&(10..12), 0), Some(4));
        assert_eq!(storage.position(&(11..13), 0), None);
        assert_eq!((storage.ring_position(13), storage.ring_position(-1)), (Some(1), Some(5)));
        assert_eq!(storage.repeated(&(11..12)), 0);
        assert!(storage.has_room_to(100, 0));
        let moving = PlaneStorage::moving(6);
        assert_eq!((moving.plain_ring_len(), moving.ring_position(0)), (None, None));
    }

    #[test]
    fn planes_outside_a_buffer_have_no_position() {
        let storage = PlaneStorage::moving(4);
        assert_eq!(storage.position(&(5..9), 5), Some(0));
        assert_eq!(storage.position(&(6..10), 5), None);
        assert_eq!(storage.position(&(4..5), 5), None);
        assert_eq!(storage.repeated(&(5..9)), 0);
        assert!(storage.has_room_to(9, 5) && !storage.has_room_to(10, 5));
    }
}

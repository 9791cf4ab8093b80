//! Borrows one range of the arena mutably and the rest for reading.

use crate::context::StepError;
use crate::step::Slot;
use std::ops::Range;

/// The readable parts of the arena before and after a range that is being written.
pub(crate) struct Split<'a> {
    before: &'a [f32],
    after: &'a [f32],
    written: Range<usize>,
}

impl<'a> Split<'a> {
    /// Splits the arena at `written`; returns the readable rest and the writable range, or `None` if it is out of
    /// bounds.
    pub(crate) fn new(arena: &'a mut [f32], written: Range<usize>) -> Option<(Self, &'a mut [f32])> {
        if written.end > arena.len() {
            return None;
        }
        let (before, rest) = arena.split_at_mut(written.start);
        let (target, after) = rest.split_at_mut(written.len());
        Some((Self { before, after, written }, target))
    }

    /// Returns a range of the readable parts, or `None` if it overlaps the written range or is out of bounds.
    pub(crate) fn read(&self, range: Range<usize>) -> Option<&'a [f32]> {
        if range.end <= self.written.start {
            self.before.get(range)
        } else {
            let shift = self.written.end;
            self.after.get(range.start.checked_sub(shift)?..range.end - shift)
        }
    }

    /// Returns one image of a slot.
    ///
    /// # Errors
    /// [`StepError::Overlap`] if it overlaps the written range or is out of bounds.
    pub(crate) fn image(&self, slot: &Slot, image: usize) -> Result<&'a [f32], StepError> {
        self.read(slot.range(image)).ok_or(StepError::Overlap)
    }
}

//! One part of the arena written while others are read.

use std::ops::Range;

/// Splits the arena into the range written and what lies before and after it.
pub(crate) struct Split<'a> {
    before: &'a [f32],
    after: &'a [f32],
    written: Range<usize>,
}

impl<'a> Split<'a> {
    pub(crate) fn new(arena: &'a mut [f32], written: Range<usize>) -> Option<(Self, &'a mut [f32])> {
        if written.end > arena.len() {
            return None;
        }
        let (before, rest) = arena.split_at_mut(written.start);
        let (target, after) = rest.split_at_mut(written.len());
        Some((Self { before, after, written }, target))
    }

    pub(crate) fn read(&self, range: Range<usize>) -> Option<&'a [f32]> {
        if range.end <= self.written.start {
            self.before.get(range)
        } else {
            let shift = self.written.end;
            self.after.get(range.start.checked_sub(shift)?..range.end - shift)
        }
    }
}

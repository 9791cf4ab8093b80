//! The undo history, with limited memory.

use crate::diff::EditDiff;
use std::collections::VecDeque;

/// Memory of a step in bytes, without its differences and name.
const STEP_BYTES: u64 = size_of::<UndoStep>() as u64 + 64;

/// One edit that can be undone and redone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UndoStep {
    /// Number of the state after the step; numbers increase and are never reused.
    pub id: u64,
    /// Name of the edit, as menus show it: "Paint 3".
    pub name: String,
    /// The voxels that the edit changed, with their old and new labels.
    pub diff: EditDiff,
}

impl UndoStep {
    fn bytes(&self) -> u64 {
        STEP_BYTES + (self.name.len() + self.diff.bytes().len()) as u64
    }
}

/// Steps that can be undone, newest last, and undone steps, next to redo last.
#[derive(Debug, Clone)]
pub(crate) struct History {
    done: VecDeque<UndoStep>,
    undone: Vec<UndoStep>,
    bytes: u64,
    budget_bytes: u64,
    /// Number of the state before the oldest step that can be undone.
    floor: u64,
    next_id: u64,
}

impl History {
    /// An empty history of at most `budget_bytes`, whose current state has the number `floor` and whose first
    /// step gets the number `next_id`.
    pub fn new(budget_bytes: u64, floor: u64, next_id: u64) -> Self {
        Self { done: VecDeque::new(), undone: Vec::new(), bytes: 0, budget_bytes, floor, next_id }
    }

    /// Number of the next step.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Number of the current state.
    pub fn state(&self) -> u64 {
        self.done.back().map_or(self.floor, |s| s.id)
    }

    /// Number of the state before the oldest step that can be undone.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Memory of all steps in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Steps that can be undone, newest last.
    pub fn done(&self) -> &VecDeque<UndoStep> {
        &self.done
    }

    /// Steps that can be redone, next to redo last.
    pub fn undone(&self) -> &[UndoStep] {
        &self.undone
    }

    /// Adds a step and removes all undone steps. Returns how many of the oldest steps were dropped.
    pub fn push(&mut self, step: UndoStep) -> usize {
        self.bytes -= self.undone.drain(..).map(|s| s.bytes()).sum::<u64>();
        self.next_id = self.next_id.max(step.id.saturating_add(1));
        self.bytes += step.bytes();
        self.done.push_back(step);
        self.trim(self.budget_bytes)
    }

    /// Sets the memory budget and drops the oldest steps that do not fit. Returns how many were dropped.
    pub fn trim(&mut self, budget_bytes: u64) -> usize {
        self.budget_bytes = budget_bytes;
        let mut dropped = 0;
        while self.bytes > self.budget_bytes {
            let Some(oldest) = self.done.pop_front() else { break };
            self.bytes -= oldest.bytes();
            self.floor = oldest.id;
            dropped += 1;
        }
        // If no step is left to undo, the steps to redo can still exceed the budget: those redone last are dropped
        // first.
        let mut surplus = 0;
        while self.bytes > self.budget_bytes {
            let Some(step) = self.undone.get(surplus) else { break };
            self.bytes -= step.bytes();
            surplus += 1;
        }
        self.undone.drain(..surplus);
        dropped
    }

    /// The step with this index, counted from the oldest one that can be undone to the one that is redone last.
    pub fn step(&self, index: usize) -> Option<&UndoStep> {
        match index.checked_sub(self.done.len()) {
            None => self.done.get(index),
            Some(undone) => self.undone.iter().rev().nth(undone),
        }
    }

    /// The step that an undo reverts.
    pub fn to_undo(&self) -> Option<&UndoStep> {
        self.done.back()
    }

    /// The step that a redo repeats.
    pub fn to_redo(&self) -> Option<&UndoStep> {
        self.undone.last()
    }

    /// Marks the newest step as undone.
    pub fn undo(&mut self) {
        self.undone.extend(self.done.pop_back());
    }

    /// Marks the last undone step as redone.
    pub fn redo(&mut self) {
        self.done.extend(self.undone.pop());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunks::ChunkGrid;
    use crate::diff::{LabelRun, Runs};

    fn step(id: u64) -> UndoStep {
        let mut runs = Runs::default();
        runs.push(0, LabelRun { start: id as u32, len: 1, old: 0, new: 1 });
        UndoStep { id, name: format!("Paint {id}"), diff: runs.pack(&ChunkGrid::new([9, 9, 9]).unwrap()).unwrap() }
    }

    #[test]
    fn the_oldest_steps_are_dropped_first() {
        let mut history = History::new(3 * step(1).bytes(), 0, 1);
        assert_eq!((1..=3).map(|i| history.push(step(i))).collect::<Vec<_>>(), [0, 0, 0]);
        assert_eq!(history.push(step(4)), 1);
        assert_eq!((history.floor(), history.state(), history.next_id()), (1, 4, 5));
        history.undo();
        assert_eq!(history.to_redo().map(|s| s.id), Some(4));
        assert_eq!(
            (0..4).map(|index| history.step(index).map(|s| s.id)).collect::<Vec<_>>(),
            [Some(2), Some(3), Some(4), None]
        );
        assert_eq!(history.push(step(5)), 0, "removing the undone step frees memory");
        assert_eq!(history.done().iter().map(|s| s.id).collect::<Vec<_>>(), [2, 3, 5]);
        assert!(history.to_redo().is_none());
        // Steps to redo are dropped from the one that is redone last; the size is such that work growing with its square would
        // take minutes.
        let mut undone = History::new(u64::MAX, 0, 1);
        let one = step(1);
        for id in 1..=300_000 {
            undone.push(UndoStep { id, ..one.clone() });
        }
        (1..=300_000).for_each(|_| undone.undo());
        undone.trim(2 * one.bytes());
        assert_eq!(undone.undone().iter().map(|s| s.id).collect::<Vec<_>>(), [2, 1]);
        let mut tiny = History::new(1, 0, 1);
        assert_eq!((tiny.push(step(1)), tiny.state(), tiny.to_undo()), (1, 1, None));
    }
}

//! Steps that can be undone and redone, in bounded memory.

use crate::patch::Patch;
use std::collections::VecDeque;

/// Memory counted for a step beside its differences and name.
const STEP_BYTES: u64 = size_of::<Step>() as u64 + 64;

/// One edit as it can be undone and redone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    /// Number of the state after it: given once, in rising order.
    pub id: u64,
    pub name: String,
    pub patch: Patch,
}

impl Step {
    fn bytes(&self) -> u64 {
        STEP_BYTES + (self.name.len() + self.patch.bytes().len()) as u64
    }
}

/// Done steps, the newest last, and undone ones, the next to redo last.
#[derive(Debug, Clone)]
pub(crate) struct History {
    done: VecDeque<Step>,
    undone: Vec<Step>,
    bytes: u64,
    budget_bytes: u64,
    /// Number of the state before the oldest step that can be undone.
    floor: u64,
    next_id: u64,
}

impl History {
    pub fn new(budget_bytes: u64, floor: u64, next_id: u64) -> Self {
        Self { done: VecDeque::new(), undone: Vec::new(), bytes: 0, budget_bytes, floor, next_id }
    }

    /// Number for the next step.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// Number of the present state.
    pub fn state(&self) -> u64 {
        self.done.back().map_or(self.floor, |s| s.id)
    }

    /// Number of the state before the oldest step that can be undone.
    pub fn floor(&self) -> u64 {
        self.floor
    }

    /// Memory that the steps take.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Steps that can be undone, the newest last.
    pub fn done(&self) -> &VecDeque<Step> {
        &self.done
    }

    /// Steps that can be redone, the next last.
    pub fn undone(&self) -> &[Step] {
        &self.undone
    }

    /// Adds a step; what was undone before it is gone. Gives how many of the oldest steps were dropped for it.
    pub fn push(&mut self, step: Step) -> usize {
        self.bytes -= self.undone.drain(..).map(|s| s.bytes()).sum::<u64>();
        self.next_id = self.next_id.max(step.id.saturating_add(1));
        self.bytes += step.bytes();
        self.done.push_back(step);
        self.trim(self.budget_bytes)
    }

    /// Sets the budget, and drops the oldest steps that do not fit; gives how many.
    pub fn trim(&mut self, budget_bytes: u64) -> usize {
        self.budget_bytes = budget_bytes;
        let mut dropped = 0;
        while self.bytes > self.budget_bytes {
            let Some(oldest) = self.done.pop_front() else { break };
            self.bytes -= oldest.bytes();
            self.floor = oldest.id;
            dropped += 1;
        }
        // With nothing left to undo, what is left to redo can be over the budget: the last to be redone goes first.
        while self.bytes > self.budget_bytes && !self.undone.is_empty() {
            self.bytes -= self.undone.remove(0).bytes();
        }
        dropped
    }

    /// The step that would be undone.
    pub fn to_undo(&self) -> Option<&Step> {
        self.done.back()
    }

    /// The step that would be redone.
    pub fn to_redo(&self) -> Option<&Step> {
        self.undone.last()
    }

    /// Notes that the newest step was undone.
    pub fn undo(&mut self) {
        self.undone.extend(self.done.pop_back());
    }

    /// Notes that the newest undone step was redone.
    pub fn redo(&mut self) {
        self.done.extend(self.undone.pop());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chunks::Grid;
    use crate::patch::{Run, Runs};

    fn step(id: u64) -> Step {
        let mut runs = Runs::default();
        runs.push(0, Run { start: id as u32, len: 1, old: 0, new: 1 });
        Step { id, name: format!("Paint {id}"), patch: runs.pack(&Grid::new([9, 9, 9]).unwrap()).unwrap() }
    }

    #[test]
    fn the_oldest_steps_are_dropped_first() {
        let mut history = History::new(3 * step(1).bytes(), 0, 1);
        assert_eq!((1..=3).map(|i| history.push(step(i))).collect::<Vec<_>>(), [0, 0, 0]);
        assert_eq!(history.push(step(4)), 1);
        assert_eq!((history.floor(), history.state(), history.next_id()), (1, 4, 5));
        history.undo();
        assert_eq!(history.to_redo().map(|s| s.id), Some(4));
        assert_eq!(history.push(step(5)), 0, "the undone step makes room");
        assert_eq!(history.done().iter().map(|s| s.id).collect::<Vec<_>>(), [2, 3, 5]);
        assert!(history.to_redo().is_none());
        let mut tiny = History::new(1, 0, 1);
        assert_eq!((tiny.push(step(1)), tiny.state(), tiny.to_undo()), (1, 1, None));
    }
}

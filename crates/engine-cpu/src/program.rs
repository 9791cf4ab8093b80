//! The result of lowering: steps on slots of one arena.

use crate::step::{ProgramStep, Slot};
use cytoscope_engine::CompileReport;
use cytoscope_graph::{Graph, ValueId};

/// A lowered graph, ready to run.
pub(crate) struct Program {
    /// The prepared graph; holds the constants and the nodes that the reference executor runs.
    pub graph: Graph,
    /// Steps of the program, in execution order.
    pub steps: Vec<ProgramStep>,
    /// Index of the first step of the backward pass; `None` for graphs without one.
    pub backward_from: Option<usize>,
    /// Placement of blocked values in the arena.
    pub slots: Vec<Slot>,
    /// Length of the arena in 32-bit words.
    pub arena_len: usize,
    /// Number of moments that a run stores.
    pub moments: usize,
    /// Number of run-time quantizations.
    pub ranges: usize,
    /// For each step, the dense values that are not read afterwards.
    pub dead_after: Vec<Vec<ValueId>>,
    /// Bytes that must be available before the arena is allocated.
    pub needed_bytes: u64,
    /// The report for the caller.
    pub report: CompileReport,
}

/// Returns the size of an arena of this many words.
pub(crate) fn arena_bytes(words: usize) -> u64 {
    (words as u64).saturating_mul(size_of::<f32>() as u64)
}

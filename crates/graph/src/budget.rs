//! Limits on the cost of preparing a graph, and how preparation is interrupted.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use crate::error::{GraphError, Result};
use crate::graph::Graph;
use crate::infer::Info;
use crate::ops::Op;

/// Bytes of constants that constant folding and shape inference may create in total, on top of the allowance for the
/// graph's own constants. Shape arithmetic needs kilobytes; the position table of a large transformer needs a few
/// megabytes.
pub(crate) const FOLDED_BYTES: u64 = 256 << 20;
/// Additional bytes allowed per byte of the graph's own constants: dequantizing to `f32` makes bytes four times as
/// large, to `f64` eight times.
pub(crate) const FOLDED_TIMES: u64 = 8;
/// Elementary operations (multiply-accumulates, elements moved) that constant folding and shape inference may do in
/// total: about two seconds of the naive executor.
pub(crate) const FOLDED_WORK: u64 = 1 << 30;

/// Tells the code that prepares a graph whether to stop. Clones share the same callback.
#[derive(Clone, Default)]
pub struct Interrupt(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Interrupt {
    /// Stops as soon as `should_stop` returns true. It is called often, on the preparing thread.
    pub fn new(should_stop: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(should_stop)))
    }

    /// Whether a stop was requested.
    pub fn is_set(&self) -> bool {
        self.0.as_ref().is_some_and(|should_stop| should_stop())
    }

    /// Returns an error if a stop was requested.
    ///
    /// # Errors
    /// [`GraphError::Interrupted`].
    pub fn check(&self) -> Result<()> {
        if self.is_set() { Err(GraphError::Interrupted) } else { Ok(()) }
    }
}

impl fmt::Debug for Interrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Interrupt" } else { "Interrupt(never)" })
    }
}

/// Memory and work left for computing values while a graph is prepared, shared by all passes.
#[derive(Debug)]
pub struct Budget {
    bytes: Cell<u64>,
    work: Cell<u64>,
    interrupt: Interrupt,
}

impl Budget {
    /// Returns the budget of a graph that is prepared once.
    pub fn new(graph: &Graph, interrupt: Interrupt) -> Self {
        Self::with_constant_bytes(graph.initializer_bytes() as u64, interrupt)
    }

    /// Returns the budget of a graph whose constants take `constants` bytes.
    pub fn with_constant_bytes(constants: u64, interrupt: Interrupt) -> Self {
        let bytes = FOLDED_BYTES.saturating_add(constants.saturating_mul(FOLDED_TIMES));
        Self { bytes: Cell::new(bytes), work: Cell::new(FOLDED_WORK), interrupt }
    }

    /// Returns the number of bytes that may still be allocated.
    pub fn bytes_left(&self) -> u64 {
        self.bytes.get()
    }

    /// Returns the number of elementary operations that may still be spent.
    pub fn work_left(&self) -> u64 {
        self.work.get()
    }

    /// Returns an error if a stop was requested.
    ///
    /// # Errors
    /// [`GraphError::Interrupted`].
    pub fn check(&self) -> Result<()> {
        self.interrupt.check()
    }

    /// Deducts the cost of computing these outputs. Returns false and deducts nothing if the cost exceeds the budget or
    /// is unknown.
    pub fn try_spend(&self, op: &Op, inputs: &[Option<&Info>], outputs: &[Info]) -> bool {
        let Some((bytes, work)) = operator_cost(op, inputs, outputs) else { return false };
        let left = (u128::from(self.bytes.get()).checked_sub(bytes), u128::from(self.work.get()).checked_sub(work));
        let (Some(bytes), Some(work)) = left else { return false };
        self.bytes.set(u64::try_from(bytes).unwrap_or(0));
        self.work.set(u64::try_from(work).unwrap_or(0));
        true
    }
}

/// Peak bytes that an operator holds while it computes (outputs included, inputs not) and its approximate number of
/// elementary operations. `None` if a shape is not fixed.
pub fn operator_cost(op: &Op, inputs: &[Option<&Info>], outputs: &[Info]) -> Option<(u128, u128)> {
    let elements = |info: &Info| {
        let shape = info.fixed_shape()?;
        Some(shape.iter().fold(1u128, |t, n| t.saturating_mul(*n as u128)))
    };
    let mut read = 0u128;
    for info in inputs.iter().flatten() {
        read = read.saturating_add(elements(info)?);
    }
    let (mut output_elements, mut bytes) = (0u128, 0u128);
    for info in outputs {
        let count = elements(info)?;
        output_elements = output_elements.saturating_add(count);
        let size = info.dtype.map_or(8, |t| t.size_bytes()) as u128;
        bytes = bytes.saturating_add(count.saturating_mul(size));
    }
    let shape = |i: usize| inputs.get(i).copied().flatten().and_then(Info::fixed_shape);
    let after_first =
        |i: usize| shape(i).map_or(1, |s| s.iter().skip(1).fold(1u128, |t, n| t.saturating_mul(*n as u128)));
    let last = |i: usize| shape(i).and_then(|s| s.last().copied()).unwrap_or(1) as u128;
    let window = |kernel: &[usize]| kernel.iter().fold(1u128, |t, n| t.saturating_mul(*n as u128));
    // Element-wise functions are computed in f64; operators that only move elements are not.
    let mut held = if op.moves_only() { 0 } else { read.saturating_add(output_elements).saturating_mul(8) };
    let work = match op {
        Op::Conv(_) | Op::FusedConv { .. } | Op::ConvInteger(_) => output_elements.saturating_mul(after_first(1)),
        Op::QLinearConv(_) => output_elements.saturating_mul(after_first(3)),
        Op::ConvTranspose(_) => shape(0).map_or(1, |s| window(&s)).saturating_mul(after_first(1)),
        Op::MatMul | Op::MatMulInteger | Op::QLinearMatMul => output_elements.saturating_mul(last(0)),
        Op::Gemm { .. } => {
            output_elements.saturating_mul(shape(0).map_or(1, |s| s.iter().copied().max().unwrap_or(1)) as u128)
        }
        Op::MaxPool(a) | Op::AveragePool(a) => output_elements.saturating_mul(window(&a.kernel)),
        Op::Einsum { equation } => {
            let shapes: Vec<Vec<usize>> = (0..inputs.len()).filter_map(shape).collect();
            crate::einsum::einsum_products(equation, &shapes)
        }
        Op::TopK { .. } => read.saturating_mul(64),
        op if op.is_training_only() => output_elements.saturating_add(read).saturating_mul(64),
        other => {
            let to = outputs.first().and_then(Info::fixed_shape);
            match other.with_operator(|o| o.cost(shape(0).as_deref(), to.as_deref())) {
                Some(cost) => {
                    let (at_least, work) = cost?;
                    held = held.max(at_least);
                    work
                }
                None => 0,
            }
        }
    };
    let moved = read.saturating_add(output_elements).saturating_mul(4);
    Some((bytes.saturating_add(held), work.saturating_add(moved)))
}

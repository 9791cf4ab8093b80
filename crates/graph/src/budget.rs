//! What preparing a graph may cost in all, and how it is stopped.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use crate::error::{GraphError, Result};
use crate::graph::Graph;
use crate::infer::Info;
use crate::op::{Op, ResizeMode};

/// Bytes of constants that folding and shape inference may make in all, over what the graph's own constants account for.
/// Arithmetic on shapes needs kilobytes; a table of positions of a large transformer some megabytes.
pub(crate) const FOLDED_BYTES: u64 = 256 << 20;
/// Further bytes for each byte of the graph's own constants: bytes that are dequantized to `f32` become four times as large, to
/// `f64` eight times.
pub(crate) const FOLDED_TIMES: u64 = 8;
/// Elementary operations (multiply-accumulates, elements moved) that folding and shape inference may do in all: about two seconds
/// of the naive executor.
pub(crate) const FOLDED_WORK: u64 = 1 << 30;

/// Tells whoever prepares a graph whether to stop. Clones ask the same.
#[derive(Clone, Default)]
pub struct Interrupt(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Interrupt {
    /// Stops as soon as `asked` gives true. It is called often, from the thread that prepares.
    pub fn new(asked: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(asked)))
    }

    /// Whether to stop.
    pub fn is_set(&self) -> bool {
        self.0.as_ref().is_some_and(|asked| asked())
    }

    /// Goes on unless stopping was asked for.
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

/// Memory and work left for computing values while a graph is prepared, shared by all passes over it.
#[derive(Debug)]
pub struct Budget {
    bytes: Cell<u64>,
    work: Cell<u64>,
    interrupt: Interrupt,
}

impl Budget {
    /// The budget of a graph that is prepared once.
    pub fn new(graph: &Graph, interrupt: Interrupt) -> Self {
        Self::of_bytes(graph.initializer_bytes() as u64, interrupt)
    }

    /// The budget of a graph whose constants have so many bytes.
    pub(crate) fn of_bytes(constants: u64, interrupt: Interrupt) -> Self {
        let bytes = FOLDED_BYTES.saturating_add(constants.saturating_mul(FOLDED_TIMES));
        Self { bytes: Cell::new(bytes), work: Cell::new(FOLDED_WORK), interrupt }
    }

    /// Bytes left.
    pub fn bytes_left(&self) -> u64 {
        self.bytes.get()
    }

    /// Elementary operations left.
    pub fn work_left(&self) -> u64 {
        self.work.get()
    }

    /// Goes on unless stopping was asked for.
    ///
    /// # Errors
    /// [`GraphError::Interrupted`].
    pub fn check(&self) -> Result<()> {
        self.interrupt.check()
    }

    /// Takes what computing these outputs costs. False, and nothing taken, where that is more than is left or not known.
    pub(crate) fn takes(&self, op: &Op, inputs: &[Option<&Info>], outputs: &[Info]) -> bool {
        let Some((bytes, work)) = cost(op, inputs, outputs) else { return false };
        let left = (u128::from(self.bytes.get()).checked_sub(bytes), u128::from(self.work.get()).checked_sub(work));
        let (Some(bytes), Some(work)) = left else { return false };
        self.bytes.set(u64::try_from(bytes).unwrap_or(0));
        self.work.set(u64::try_from(work).unwrap_or(0));
        true
    }
}

/// Most values that an operator holds while it computes, outputs included and inputs not, in bytes; and about how many
/// elementary operations it does. `None` where a shape is open.
pub(crate) fn cost(op: &Op, inputs: &[Option<&Info>], outputs: &[Info]) -> Option<(u128, u128)> {
    let elements = |info: &Info| {
        let shape = info.fixed_shape()?;
        Some(shape.iter().fold(1u128, |t, n| t.saturating_mul(*n as u128)))
    };
    let mut read = 0u128;
    for info in inputs.iter().flatten() {
        read = read.saturating_add(elements(info)?);
    }
    let (mut made, mut bytes) = (0u128, 0u128);
    for info in outputs {
        let count = elements(info)?;
        made = made.saturating_add(count);
        let size = info.dtype.map_or(8, |t| t.size_bytes()) as u128;
        bytes = bytes.saturating_add(count.saturating_mul(size));
    }
    let shape = |i: usize| inputs.get(i).copied().flatten().and_then(Info::fixed_shape);
    let after_first =
        |i: usize| shape(i).map_or(1, |s| s.iter().skip(1).fold(1u128, |t, n| t.saturating_mul(*n as u128)));
    let last = |i: usize| shape(i).and_then(|s| s.last().copied()).unwrap_or(1) as u128;
    let window = |kernel: &[usize]| kernel.iter().fold(1u128, |t, n| t.saturating_mul(*n as u128));
    // Functions of values are computed in f64; what only moves elements is not.
    let mut held = if crate::reference::moves_only(op) { 0 } else { read.saturating_add(made).saturating_mul(8) };
    let work = match op {
        Op::Conv(_) | Op::FusedConv { .. } | Op::ConvInteger(_) => made.saturating_mul(after_first(1)),
        Op::QLinearConv(_) => made.saturating_mul(after_first(3)),
        Op::ConvTranspose(_) => shape(0).map_or(1, |s| window(&s)).saturating_mul(after_first(1)),
        Op::MatMul | Op::MatMulInteger | Op::QLinearMatMul => made.saturating_mul(last(0)),
        Op::Gemm { .. } => made.saturating_mul(shape(0).map_or(1, |s| s.iter().copied().max().unwrap_or(1)) as u128),
        Op::MaxPool(a) | Op::AveragePool(a) => made.saturating_mul(window(&a.kernel)),
        Op::Einsum { equation } => {
            let shapes: Vec<Vec<usize>> = (0..inputs.len()).filter_map(shape).collect();
            crate::reference::einsum_products(equation, &shapes)
        }
        Op::Resize(a) => {
            // Axis by axis, the first ones first: what lies between may be larger than both ends.
            let (from, to) = (shape(0)?, outputs.first()?.fixed_shape()?);
            let between = from.iter().zip(&to).fold(1u128, |t, (a, b)| t.saturating_mul(*a.max(b) as u128));
            held = held.max(between.saturating_mul(24));
            let longest = from.iter().chain(&to).copied().max().unwrap_or(1) as u128;
            let taps = match (a.antialias, a.mode) {
                (true, _) => longest.saturating_mul(16).saturating_add(32),
                (false, ResizeMode::Cubic) => 8,
                _ => 4,
            };
            between.saturating_mul(taps).saturating_mul(from.len() as u128)
        }
        Op::TopK { .. } => read.saturating_mul(64),
        op if op.is_of_training() => made.saturating_add(read).saturating_mul(64),
        _ => 0,
    };
    let moved = read.saturating_add(made).saturating_mul(4);
    Some((bytes.saturating_add(held), work.saturating_add(moved)))
}

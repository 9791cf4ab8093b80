//! Lowers a prepared graph to a program: plans its nodes, decides which values share buffers ([`sharing`], [`placement`]),
//! emits the steps ([`mod@emit`]) and places the buffers ([`arena`]). Inference and training differ in the rules of
//! [`crate::purpose::Purpose`] only.

pub(crate) mod arena;
mod emit;
pub(crate) mod placement;
pub(crate) mod sharing;

use crate::plan::{self, Plan, Plans};
use crate::prepare::Prepared;
use crate::program::{Program, arena_bytes};
use crate::step::ProgramStep;
use cytoscope_engine::{CompileReport, EngineError};
use cytoscope_graph::{Graph, Interrupt, Op, ValueId};
use cytoscope_kernels::{Isa, KernelError};
use emit::{Emitted, Emitter};
use std::collections::BTreeSet;

/// Why a graph cannot be lowered. All of these are bugs of the engine.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LowerError {
    /// A value is read before it is computed.
    #[error("value \"{0}\" is read before it is computed")]
    NotComputed(String),
    /// Kernels cannot store a value that a step reads or computes.
    #[error("value \"{0}\" has no layout")]
    NoLayout(String),
    /// A value has no fixed shape.
    #[error("value \"{0}\" has no fixed shape")]
    UnknownShape(String),
    /// A plan has fewer inputs than its steps read.
    #[error("a step lacks its input {0}")]
    MissingInput(usize),
    /// A plan has no output for a step that computes a blocked value.
    #[error("a step lacks its output")]
    MissingOutput,
    /// A value has no place in a pass over a stack.
    #[error("value {0} has no place in the pass")]
    NoPlace(usize),
    /// A kernel refused the weights.
    #[error("weights cannot be packed: {0}")]
    Weights(#[from] KernelError),
}

impl From<LowerError> for EngineError {
    fn from(error: LowerError) -> Self {
        Self::Internal { place: "lowering".to_owned(), reason: error.to_string().into() }
    }
}

/// Lowers a prepared graph.
pub(crate) fn lower(prepared: Prepared, isa: Isa, interrupt: &Interrupt) -> Result<Program, EngineError> {
    let plans = plan::plan(&prepared, isa, interrupt)?;
    let Prepared { mut graph, purpose, .. } = prepared;
    let placement = sharing::place(&graph, &plans, purpose.sharing());
    let Plans { nodes, dequantized, dyn_dequantized, ranges, moments, .. } = plans;
    let mut emitter = Emitter::new(&graph, &placement, &dequantized, &dyn_dequantized);
    let (mut weight_bytes, mut backward_from) = (0, None);
    for (index, (node, plan)) in graph.nodes.iter().zip(nodes).enumerate() {
        interrupt.check()?;
        match plan {
            Plan::Absorbed => {}
            Plan::Reference => emitter.reference(index)?,
            Plan::Kernel(planned) => {
                weight_bytes += planned.weight_bytes();
                emitter.kernel(*planned)?;
            }
        }
        // Gradients are appended to the graph after all losses.
        if matches!(node.op, Op::Loss(_)) {
            backward_from = Some(emitter.step_count());
        }
    }
    for output in &graph.outputs {
        emitter.require_dense(*output)?;
    }
    let Emitted { steps, slots, arena_len, dead_after, fallbacks } = emitter.finish();
    drop_packed_constants(&mut graph, &steps);
    weight_bytes += graph.initializer_bytes() as u64;
    let report = CompileReport {
        fallbacks,
        arena_bytes: arena_bytes(arena_len),
        weight_bytes,
        macs: steps.iter().map(|s| s.macs).sum(),
        backend: isa.to_string(),
    };
    let needed_bytes = report.arena_bytes + report.weight_bytes;
    Ok(Program { steps, backward_from, slots, arena_len, moments, ranges, dead_after, needed_bytes, report, graph })
}

/// Removes constants that were packed into kernels; keeps those that a step or the caller still reads.
fn drop_packed_constants(graph: &mut Graph, steps: &[ProgramStep]) {
    let mut read: BTreeSet<ValueId> = graph.outputs.iter().copied().collect();
    steps.iter().for_each(|step| read.extend(step.op.dense_inputs(graph)));
    graph.initializers.retain(|id, _| read.contains(id));
}

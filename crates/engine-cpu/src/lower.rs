//! Lowers a prepared graph to steps on slots of one arena.

pub(crate) mod plan;

pub(crate) use plan::transposed_shape;

use crate::emit::{Emitted, Emitter, Part, Program, Work, arena_bytes};
use crate::placement::Placement;
use crate::prepare::Prepared;
use crate::step::ProgramStep;
use cytoscope_engine::{CompileReport, EngineError};
use cytoscope_graph::{Graph, Interrupt, ValueId};
use cytoscope_kernels::Isa;
pub(crate) use plan::{Dequantized, DynamicDequantized};
use plan::{Plan, PlanKind, Plans};
use std::collections::{BTreeMap, BTreeSet};

/// Lowers a prepared graph; with `integers`, quantized convolutions run on bytes.
pub(crate) fn lower(
    prepared: Prepared,
    isa: Isa,
    integers: bool,
    interrupt: &Interrupt,
) -> Result<Program, EngineError> {
    let Plans {
        nodes: plans,
        dequantized,
        dyn_dequantized,
        ranges,
        zero_points,
        halves,
        moments,
        integer_convolutions,
    } = plan::plan(&prepared, isa, integers, interrupt)?;
    let Prepared { mut graph, optimizations, .. } = prepared;
    if integers && integer_convolutions == 0 {
        return Err(EngineError::NotQuantized { engine: "cpu" });
    }
    let mut placement = Placement::new(&graph);
    zero_points.iter().for_each(|(value, zero)| placement.store_as_bytes(*value, *zero));
    halves.iter().for_each(|value| placement.store_as_f16(*value));
    // The bytes of floats that are dequantized only when something reads them.
    let bytes_of = |value: ValueId| {
        dequantized.get(&value).map(|d| d.bytes).or_else(|| dyn_dequantized.get(&value).map(|r| r.bytes))
    };
    let sharing = if optimizations.shared_buffers { Sharing::All } else { Sharing::None };
    share_buffers(&graph, &plans, &bytes_of, &mut placement, sharing);
    let mut emitter = Emitter::new(&graph, &placement, &dequantized, &dyn_dequantized);
    let mut weight_bytes = 0;
    for (index, plan) in plans.into_iter().enumerate() {
        interrupt.check()?;
        match plan {
            Plan::Absorbed => {}
            Plan::Reference => emitter.reference(index)?,
            Plan::Kernel(planned) => {
                weight_bytes += planned.weight_bytes();
                kernel(&mut emitter, &graph.nodes[index].name, *planned)?;
            }
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
    let backward_from = None;
    Ok(Program { steps, backward_from, slots, arena_len, moments, ranges, dead_after, needed_bytes, report, graph })
}

/// Removes constants that were packed into kernels; keeps those that a step or the caller still reads.
fn drop_packed_constants(graph: &mut Graph, steps: &[ProgramStep]) {
    let mut read: BTreeSet<ValueId> = graph.outputs.iter().copied().collect();
    steps.iter().for_each(|step| read.extend(step.op.dense_inputs(graph)));
    graph.initializers.retain(|id, _| read.contains(id));
}

/// Counts how often each value is read: by steps, by nodes of the reference executor, and as a graph output. `bytes_of`
/// returns the bytes of a dequantized value; reading the value also reads them.
fn reads(graph: &Graph, plans: &[Plan], bytes_of: &impl Fn(ValueId) -> Option<ValueId>) -> BTreeMap<ValueId, usize> {
    let mut reads: BTreeMap<ValueId, usize> = BTreeMap::new();
    let mut count = |id: ValueId| {
        for id in [Some(id), bytes_of(id)].into_iter().flatten() {
            *reads.entry(id).or_default() += 1;
        }
    };
    for (node, plan) in graph.nodes.iter().zip(plans) {
        match plan {
            Plan::Absorbed => {}
            Plan::Reference => node.inputs.iter().flatten().for_each(|id| count(*id)),
            Plan::Kernel(planned) => planned.inputs.iter().for_each(|id| count(*id)),
        }
    }
    graph.outputs.iter().for_each(|id| count(*id));
    reads
}

/// Which values share buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Every value has a buffer of its own.
    None,
    /// Results of in-place steps, and the parts of concatenations that nothing else reads.
    WithoutSkips,
    /// Results of in-place steps, and all parts of concatenations, also those that other nodes read (skip connections).
    All,
}

/// Lets in-place steps and the parts of concatenations share buffers, and sets the borders.
pub(crate) fn share_buffers(
    graph: &Graph,
    plans: &[Plan],
    bytes_of: &impl Fn(ValueId) -> Option<ValueId>,
    placement: &mut Placement<'_>,
    sharing: Sharing,
) {
    let with_skips = sharing == Sharing::All;
    let reads = reads(graph, plans, bytes_of);
    let graph_inputs: BTreeSet<ValueId> = graph.inputs.iter().copied().collect();
    let read_once = |value: &ValueId| reads.get(value) == Some(&1);
    let is_intermediate = |value: &ValueId| graph.constant(*value).is_none() && !graph_inputs.contains(value);
    let kernels = || plans.iter().filter_map(|p| if let Plan::Kernel(k) = p { Some(k.as_ref()) } else { None });
    for planned in kernels() {
        if let Some((input, width)) = planned.border {
            placement.require_border(input, width);
        }
        let Some(first) = planned.inputs.first() else { continue };
        let is_shared = sharing != Sharing::None;
        if is_shared && planned.kind.works_in_place() && read_once(first) && is_intermediate(first) {
            placement.alias_in_place(*first, planned.output);
        }
    }
    // In reverse order, so that it is already known whether a concatenation's buffer is overwritten later.
    let is_shared = |p: &&plan::KernelPlan| sharing != Sharing::None && matches!(p.kind, PlanKind::Joined { .. });
    let concatenations: Vec<_> = kernels().filter(is_shared).collect();
    for planned in concatenations.into_iter().rev() {
        let PlanKind::Joined { blocks, tables } = &planned.kind else { continue };
        let overwritten = placement.is_overwritten(planned.output);
        for ((input, block), table) in planned.inputs.iter().zip(blocks).zip(tables) {
            // A part that is read again, even as another operand of this node, must not be overwritten.
            if table.is_none() && is_intermediate(input) && (read_once(input) || (with_skips && !overwritten)) {
                placement.alias_into(*input, planned.output, *block);
            }
        }
    }
    placement.propagate_borders();
}

/// Emits the steps of a node that runs on kernels.
fn kernel(emitter: &mut Emitter<'_>, node: &str, planned: plan::KernelPlan) -> Result<(), EngineError> {
    let name = format!("{} {node}", planned.label);
    let work = Work { macs: planned.macs, weight_bytes: planned.weight_bytes() };
    let (inputs, output) = (&planned.inputs, planned.output);
    if let PlanKind::Joined { blocks, tables } = planned.kind {
        let parts =
            inputs.iter().copied().zip(blocks).zip(tables).map(|((value, block), table)| Part { value, block, table });
        return emitter.concat(parts.collect(), output, &name);
    }
    let (slots, of_outputs) = emitter.open(inputs, &[], &[output])?;
    let Some(of_output) = of_outputs.first() else { return Ok(()) };
    let ops = planned.kind.into_steps(&slots, *of_output);
    emitter.group(ops, inputs, &[output], &name, work)
}

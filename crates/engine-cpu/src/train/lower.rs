//! Lowers a prepared training graph to steps on slots of one arena.

use super::kind::Plan;
use super::plan::{Plans, plan};
use crate::emit::{Emitted, Emitter, Part, Program, Work, arena_bytes};
use crate::placement::Placement;
use crate::window::{border, input_gradient_border};
use cytoscope_engine::{CompileReport, EngineError};
use cytoscope_graph::{Graph, Op, ValueId, op_name};
use cytoscope_graph_passes::analysis;
use cytoscope_kernels::Isa;
use cytoscope_kernels::pointwise::Binary;
use std::collections::{BTreeMap, BTreeSet};

/// Lowers a training graph with concrete shapes.
pub(crate) fn lower(graph: Graph, isa: Isa) -> Result<Program, EngineError> {
    let Plans { nodes: plans, moments } = plan(&graph);
    let mut placement = Placement::new(&graph);
    borders(&graph, &plans, &mut placement)?;
    share_buffers(&graph, &plans, &mut placement);
    placement.propagate_borders();
    // Bytes are inputs of no training kernel.
    let (dequantized, dyn_dequantized) = (BTreeMap::new(), BTreeMap::new());
    let mut emitter = Emitter::new(&graph, &placement, &dequantized, &dyn_dequantized);
    let (mut macs, mut backward_from) = (0u64, None);
    for (index, (node, plan)) in graph.nodes.iter().zip(plans).enumerate() {
        let work = Work { macs: analysis::node_macs(&graph, node).unwrap_or(0), weight_bytes: 0 };
        macs += work.macs;
        match plan {
            Plan::Absorbed => {}
            Plan::Reference => emitter.reference(index)?,
            plan => kernel(&mut emitter, &graph, &format!("{} {}", op_name(&node.op), node.name), plan, work)?,
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
    let report = CompileReport {
        fallbacks,
        arena_bytes: arena_bytes(arena_len),
        weight_bytes: graph.initializer_bytes() as u64,
        macs,
        backend: isa.to_string(),
    };
    let needed_bytes = report.arena_bytes;
    let ranges = 0;
    Ok(Program { steps, backward_from, slots, arena_len, moments, ranges, dead_after, needed_bytes, report, graph })
}

/// Emits the steps of a node that runs on kernels.
fn kernel(emitter: &mut Emitter<'_>, graph: &Graph, name: &str, plan: Plan, work: Work) -> Result<(), EngineError> {
    match plan {
        Plan::Joined { inputs, blocks, output } => {
            let parts = inputs.into_iter().zip(blocks).map(|(value, block)| Part { value, block, table: None });
            emitter.concat(parts.collect(), output, name)
        }
        Plan::Slice { x, block, output } => emitter.slice(x, block, output, name),
        plan => {
            let (inputs, outputs) = (plan.inputs(), plan.outputs());
            emitter.open(&inputs, &plan.parameters(), &outputs)?;
            let layout = outputs.first().and_then(|id| Placement::plain_layout(graph, *id));
            let channels = layout.map_or(0, |(l, _)| l.channels);
            let ops = plan.into_steps(channels, &mut |id| emitter.slot(id))?;
            emitter.group(ops, &inputs, &outputs, name, work)
        }
    }
}

/// Sets the borders that convolutions and their gradients read.
fn borders(graph: &Graph, plans: &[Plan], placement: &mut Placement<'_>) -> Result<(), EngineError> {
    let dims = |id: ValueId| match Placement::plain_layout(graph, id) {
        Some((layout, _)) => Ok(layout.dims),
        None => Err(EngineError::Internal {
            place: "borders".to_owned(),
            reason: format!("value \"{}\" has no layout", graph.value(id).name),
        }),
    };
    for plan in plans {
        match plan {
            Plan::Conv { x, shape, output, .. } => {
                placement.require_border(*x, border(shape, dims(*x)?, dims(*output)?));
            }
            Plan::ConvGradient { x, dy, shape, dx, dw, .. } => {
                if dw.is_some() {
                    placement.require_border(*x, border(shape, dims(*x)?, dims(*dy)?));
                }
                if dx.is_some() {
                    placement.require_border(*dy, input_gradient_border(shape, dims(*x)?, dims(*dy)?));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Lets in-place operators, concatenations and slices share buffers.
fn share_buffers(graph: &Graph, plans: &[Plan], placement: &mut Placement<'_>) {
    let uses = uses(graph, plans);
    let made: BTreeSet<ValueId> = plans.iter().flat_map(Plan::outputs).collect();
    // Values whose buffers hold other values, too.
    let mut viewed: BTreeSet<ValueId> = BTreeSet::new();
    for plan in plans {
        if let Plan::Joined { inputs, blocks, output } = plan {
            // If a value occurs several times, its first position is written in place and the others are copied.
            for (input, block) in inputs.iter().zip(blocks).filter(|(i, _)| made.contains(i)) {
                placement.alias_into(*input, *output, *block);
                viewed.insert(*output);
            }
        }
    }
    share_slices(graph, plans, &uses, &made, &mut viewed, placement);
    for plan in plans {
        let in_place = match plan {
            Plan::ConvGradient { accumulate_into: Some(_), dx, .. } => *dx,
            Plan::Unary { output, .. } | Plan::Binary { f: Binary::Add, output, .. } => Some(*output),
            _ => None,
        };
        let (Some(output), Some(first)) = (in_place, plan.inputs().first().copied()) else { continue };
        let alike = Placement::plain_layout(graph, first) == Placement::plain_layout(graph, output);
        let free = made.contains(&first) && !viewed.contains(&first) && uses.get(&first) == Some(&1);
        if alike && free && !placement.alias_into(first, output, 0) {
            placement.alias_into(output, first, 0);
        }
    }
}

/// Counts how often each value is read; inputs, outputs and constants of the graph count as read elsewhere, too.
fn uses(graph: &Graph, plans: &[Plan]) -> BTreeMap<ValueId, usize> {
    let mut uses: BTreeMap<ValueId, usize> = BTreeMap::new();
    for plan in plans {
        plan.inputs().into_iter().for_each(|id| *uses.entry(id).or_default() += 1);
    }
    for (node, plan) in graph.nodes.iter().zip(plans) {
        if matches!(plan, Plan::Reference) {
            node.inputs.iter().flatten().for_each(|id| *uses.entry(*id).or_default() += 1);
        }
    }
    for id in graph.outputs.iter().chain(&graph.inputs).chain(graph.initializers.keys()) {
        *uses.entry(*id).or_default() += 2;
    }
    uses
}

/// Lets the slices of a value that nothing else reads share its buffer, and adds such values to `viewed`.
fn share_slices(
    graph: &Graph,
    plans: &[Plan],
    uses: &BTreeMap<ValueId, usize>,
    made: &BTreeSet<ValueId>,
    viewed: &mut BTreeSet<ValueId>,
    placement: &mut Placement<'_>,
) {
    // The slices of each sliced value: first channel block and output.
    let mut slices: BTreeMap<ValueId, Vec<(usize, ValueId)>> = BTreeMap::new();
    for plan in plans {
        if let Plan::Slice { x, block, output } = plan {
            slices.entry(*x).or_default().push((*block, *output));
        }
    }
    for plan in plans {
        // If a value is read only by its slices, they can share its buffer.
        if let Plan::Slice { x, block, output } = plan {
            let Some(slices) = slices.get(x) else { continue };
            let alone = uses.get(x) == Some(&slices.len()) && are_disjoint(graph, slices);
            if made.contains(x) && alone && placement.alias_into(*output, *x, *block) {
                viewed.insert(*x);
            }
        }
    }
}

/// Returns whether the slices (first block, output) of one value have no channel block in common.
fn are_disjoint(graph: &Graph, slices: &[(usize, ValueId)]) -> bool {
    let blocks = |id: ValueId| Placement::plain_layout(graph, id).map_or(0, |(l, _)| l.channels.div_ceil(l.block));
    let mut ranges: Vec<(usize, usize)> = slices.iter().map(|(first, id)| (*first, first + blocks(*id))).collect();
    ranges.sort_unstable();
    ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0)
}

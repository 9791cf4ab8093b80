//! Turns plans into steps on one arena: the order of steps, and the place and lifetime of each tensor.

use super::kind::Plan;
use super::plan::Plans;
use crate::arena::{self, Request};
use crate::placement::Placement;
use crate::session::internal;
use crate::step::{Elem, Slot};
use crate::window::border;
use cytoscope_engine::{EngineError, OpFallback};
use cytoscope_graph::{Graph, ValueId, op_name};
use cytoscope_kernels::Isa;
use cytoscope_kernels::pointwise::Binary;
use cytoscope_kernels::train::InputGradient;
use cytoscope_passes::analysis;
use std::collections::{BTreeMap, BTreeSet};

/// One step of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// Copies a dense tensor into its slot.
    Pack(ValueId),
    /// Copies a slot into a dense tensor.
    Unpack(ValueId),
    /// Fills the border of a buffer with zeros; the buffer is named by its owner.
    ClearBorder(ValueId),
    /// Runs the plan of a node.
    Plan(usize),
    /// Runs a node with the reference executor.
    Reference(usize),
}

/// A training graph, ready to run.
pub(crate) struct Program {
    pub graph: Graph,
    pub plans: Vec<Plan>,
    pub steps: Vec<Step>,
    pub slots: BTreeMap<ValueId, Slot>,
    pub arena_len: usize,
    pub moments: usize,
    /// For each step, the dense values that can be freed after it.
    pub dead_after: Vec<Vec<ValueId>>,
    pub fallbacks: Vec<OpFallback>,
    pub macs: u64,
}

pub(crate) fn emit(graph: Graph, plans: Plans, isa: Isa) -> Result<Program, EngineError> {
    let Plans { nodes: plans, moments } = plans;
    let mut placement = Placement::new(&graph);
    borders(&graph, &plans, isa, &mut placement)?;
    share_buffers(&graph, &plans, &mut placement);
    placement.propagate_borders();
    let dense = graph.inputs.iter().chain(graph.initializers.keys()).copied().collect();
    let mut emitter = Emitter {
        graph: &graph,
        placement: &placement,
        steps: Vec::new(),
        blocked: BTreeSet::new(),
        dense,
        lifetimes: BTreeMap::new(),
    };
    let mut fallbacks: BTreeMap<String, usize> = BTreeMap::new();
    let mut macs = 0u64;
    for (index, plan) in plans.iter().enumerate() {
        let node = &graph.nodes[index];
        macs += analysis::node_macs(&graph, node).unwrap_or(0);
        match plan {
            Plan::Absorbed => {}
            Plan::Reference => {
                for input in node.inputs.iter().flatten() {
                    emitter.require_dense(*input)?;
                }
                // These run on dense tensors by design, so they are not reported as fallbacks.
                if !matches!(op_name(&node.op), "Loss" | "LossGradient" | "GlobalNorm" | "Update") {
                    *fallbacks.entry(op_name(&node.op).to_owned()).or_default() += 1;
                }
                emitter.steps.push(Step::Reference(index));
                emitter.dense.extend(node.outputs.iter().flatten());
            }
            plan => emitter.kernel(index, plan)?,
        }
    }
    for output in &graph.outputs {
        emitter.require_dense(*output)?;
    }
    let Emitter { steps, lifetimes, .. } = emitter;
    let roots: Vec<ValueId> = lifetimes.keys().copied().collect();
    let requests: Vec<Request> = lifetimes.values().cloned().collect();
    let (starts, arena_len) = arena::place(&requests);
    let start_of: BTreeMap<ValueId, usize> = roots.into_iter().zip(starts).collect();
    let mut slots = BTreeMap::new();
    for id in (0..graph.values.len() as u32).map(ValueId) {
        let (root, block) = placement.root(id);
        let (Some(start), Some((layout, images)), Some((whole, _))) =
            (start_of.get(&root), placement.layout(id), placement.layout(root))
        else {
            continue;
        };
        let start = start + block * layout.block_stride();
        slots.insert(id, Slot { layout, elem: Elem::F32, images, start, image_stride: whole.len() });
    }
    let dead_after = last_uses(&graph, &plans, &steps);
    let fallbacks = fallbacks.into_iter().map(|(op, count)| OpFallback { op, count }).collect();
    Ok(Program { plans, steps, slots, arena_len, moments, dead_after, fallbacks, macs, graph })
}

/// Sets the borders that convolutions and their gradients read.
fn borders(graph: &Graph, plans: &[Plan], isa: Isa, placement: &mut Placement<'_>) -> Result<(), EngineError> {
    let dims = |id: ValueId| Placement::plain_layout(graph, id).map(|(l, _)| l.dims).unwrap_or_default();
    for plan in plans {
        match plan {
            Plan::Conv { x, shape, output, .. } => placement.require_border(*x, border(shape, dims(*x), dims(*output))),
            Plan::ConvGradient { x, weight, dy, shape, dx, dw, .. } => {
                if dw.is_some() {
                    placement.require_border(*x, border(shape, dims(*x), dims(*dy)));
                }
                if dx.is_some() {
                    let zeros = super::plan::graph_shape(graph, *weight).unwrap_or_default();
                    let channels = [0, 1].map(|i| zeros.get(i).copied().unwrap_or(0));
                    let count = zeros.iter().product();
                    let block = Placement::plain_layout(graph, *dy).map_or(1, |(l, _)| l.block);
                    let packed = InputGradient::new(isa, &vec![0.0; count], channels, shape, block)
                        .map_err(|e| internal("borders", e.to_string()))?;
                    placement.require_border(*dy, packed.border(dims(*x), dims(*dy)));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Lets in-place operators, concatenations and slices share buffers.
fn share_buffers(graph: &Graph, plans: &[Plan], placement: &mut Placement<'_>) {
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
    let made: BTreeSet<ValueId> = plans.iter().flat_map(Plan::outputs).collect();
    // Values whose buffers hold other values, too.
    let mut viewed: BTreeSet<ValueId> = BTreeSet::new();
    for plan in plans {
        if let Plan::Concat { inputs, blocks, output } = plan {
            // If a value occurs several times, its first position is written in place and the others are copied.
            for (input, block) in inputs.iter().zip(blocks).filter(|(i, _)| made.contains(i)) {
                placement.alias_into(*input, *output, *block);
                viewed.insert(*output);
            }
        }
    }
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

/// Returns whether the slices (first block, output) of one value have no channel block in common.
fn are_disjoint(graph: &Graph, slices: &[(usize, ValueId)]) -> bool {
    let blocks = |id: ValueId| Placement::plain_layout(graph, id).map_or(0, |(l, _)| l.channels.div_ceil(l.block));
    let mut ranges: Vec<(usize, usize)> = slices.iter().map(|(first, id)| (*first, first + blocks(*id))).collect();
    ranges.sort_unstable();
    ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0)
}

struct Emitter<'a> {
    graph: &'a Graph,
    placement: &'a Placement<'a>,
    steps: Vec<Step>,
    blocked: BTreeSet<ValueId>,
    dense: BTreeSet<ValueId>,
    lifetimes: BTreeMap<ValueId, Request>,
}

impl Emitter<'_> {
    fn fail(&self, place: &str, id: ValueId) -> EngineError {
        internal(place, format!("value \"{}\"", self.graph.value(id).name))
    }

    /// Extends the lifetime of a value's buffer to the next step; at the first use, its border is cleared.
    fn touch(&mut self, id: ValueId) -> Result<(), EngineError> {
        let root = self.placement.root(id).0;
        if !self.lifetimes.contains_key(&root) {
            let (layout, images) = self.placement.layout(root).ok_or_else(|| self.fail("layout", root))?;
            let at = self.steps.len();
            self.lifetimes.insert(root, Request { len: layout.len().saturating_mul(images), first: at, last: at });
            if layout.halo != [0; 3] {
                self.steps.push(Step::ClearBorder(root));
            }
        }
        let at = self.steps.len();
        if let Some(life) = self.lifetimes.get_mut(&root) {
            life.last = at;
        }
        Ok(())
    }

    fn require_blocked(&mut self, id: ValueId) -> Result<(), EngineError> {
        if !self.blocked.contains(&id) {
            if !self.dense.contains(&id) {
                return Err(self.fail("order of steps", id));
            }
            self.touch(id)?;
            self.steps.push(Step::Pack(id));
            self.blocked.insert(id);
        }
        Ok(())
    }

    fn require_dense(&mut self, id: ValueId) -> Result<(), EngineError> {
        if !self.dense.contains(&id) {
            if !self.blocked.contains(&id) {
                return Err(self.fail("order of steps", id));
            }
            self.touch(id)?;
            self.steps.push(Step::Unpack(id));
            self.dense.insert(id);
        }
        Ok(())
    }

    fn kernel(&mut self, index: usize, plan: &Plan) -> Result<(), EngineError> {
        let inputs = plan.inputs();
        for input in &inputs {
            self.require_blocked(*input)?;
        }
        for parameter in plan.parameters() {
            self.require_dense(parameter)?;
        }
        let outputs = plan.outputs();
        // The first round may emit steps that clear borders; the second one then records the index of this step.
        for id in outputs.iter().chain(&inputs) {
            self.touch(*id)?;
        }
        for id in outputs.iter().chain(&inputs) {
            self.touch(*id)?;
        }
        self.steps.push(Step::Plan(index));
        self.blocked.extend(outputs);
        self.dense.extend(plan.dense_outputs());
        Ok(())
    }
}

/// Returns for each step the dense values that it reads last.
fn last_uses(graph: &Graph, plans: &[Plan], steps: &[Step]) -> Vec<Vec<ValueId>> {
    let mut last: BTreeMap<ValueId, usize> = BTreeMap::new();
    for (i, step) in steps.iter().enumerate() {
        match step {
            Step::Pack(id) | Step::Unpack(id) => _ = last.insert(*id, i),
            Step::Reference(node) => {
                let node = &graph.nodes[*node];
                last.extend(node.inputs.iter().chain(&node.outputs).flatten().map(|id| (*id, i)));
            }
            Step::Plan(at) => last.extend(plans[*at].parameters().into_iter().map(|id| (id, i))),
            Step::ClearBorder(_) => {}
        }
    }
    let mut dead = vec![Vec::new(); steps.len()];
    for (id, step) in last {
        if !graph.outputs.contains(&id) && graph.constant(id).is_none() {
            dead[step].push(id);
        }
    }
    dead
}

//! From plans to steps on one arena: in which order, where each tensor lies, and for how long.

use super::kind::Plan;
use super::plan::Plans;
use crate::arena::{self, Request};
use crate::places::Places;
use crate::session::internal;
use crate::step::{Elem, Slot};
use crate::window::border;
use cytoscope_engine::{EngineError, OpFallback};
use cytoscope_graph::{Graph, ValueId, analysis, op_name};
use cytoscope_kernels::Isa;
use cytoscope_kernels::pointwise::Binary;
use cytoscope_kernels::train::InputGradient;
use std::collections::{BTreeMap, BTreeSet};

/// One step of a run.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// A dense tensor into its blocks.
    Pack(ValueId),
    /// Blocks into a dense tensor.
    Unpack(ValueId),
    /// Zeros around a buffer, by the value it belongs to.
    ClearBorder(ValueId),
    /// The plan of a node.
    Plan(usize),
    /// A node that the reference executor runs.
    Reference(usize),
}

/// A step graph laid out.
pub(crate) struct Program {
    pub graph: Graph,
    pub plans: Vec<Plan>,
    pub steps: Vec<Step>,
    pub slots: BTreeMap<ValueId, Slot>,
    pub arena_len: usize,
    pub moments: usize,
    /// Dense values to let go of after each step.
    pub dead_after: Vec<Vec<ValueId>>,
    pub fallbacks: Vec<OpFallback>,
    pub macs: u64,
}

pub(crate) fn emit(graph: Graph, plans: Plans, isa: Isa) -> Result<Program, EngineError> {
    let Plans { nodes: plans, moments } = plans;
    let mut places = Places::new(&graph);
    borders(&graph, &plans, isa, &mut places)?;
    share(&graph, &plans, &mut places);
    places.settle_borders();
    let dense = graph.inputs.iter().chain(graph.initializers.keys()).copied().collect();
    let mut emitter = Emitter {
        graph: &graph,
        places: &places,
        steps: Vec::new(),
        blocked: BTreeSet::new(),
        dense,
        lives: BTreeMap::new(),
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
                    emitter.need_dense(*input)?;
                }
                // Losses are meant to be run so, and optimizers have kernels on dense tensors.
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
        emitter.need_dense(*output)?;
    }
    let Emitter { steps, lives, .. } = emitter;
    let roots: Vec<ValueId> = lives.keys().copied().collect();
    let requests: Vec<Request> = lives.values().cloned().collect();
    let (starts, arena_len) = arena::place(&requests);
    let start_of: BTreeMap<ValueId, usize> = roots.into_iter().zip(starts).collect();
    let mut slots = BTreeMap::new();
    for id in (0..graph.values.len() as u32).map(ValueId) {
        let (root, block) = places.root(id);
        let (Some(start), Some((layout, images)), Some((whole, _))) =
            (start_of.get(&root), places.layout(id), places.layout(root))
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

/// Asks for the borders that convolutions and their gradients read.
fn borders(graph: &Graph, plans: &[Plan], isa: Isa, places: &mut Places<'_>) -> Result<(), EngineError> {
    let dims = |id: ValueId| Places::plain_layout(graph, id).map(|(l, _)| l.dims).unwrap_or_default();
    for plan in plans {
        match plan {
            Plan::Conv { x, shape, output, .. } => places.need_border(*x, border(shape, dims(*x), dims(*output))),
            Plan::ConvGradient { x, weight, dy, shape, dx, dw, .. } => {
                if dw.is_some() {
                    places.need_border(*x, border(shape, dims(*x), dims(*dy)));
                }
                if dx.is_some() {
                    let zeros = super::plan::graph_shape(graph, *weight).unwrap_or_default();
                    let channels = [0, 1].map(|i| zeros.get(i).copied().unwrap_or(0));
                    let count = zeros.iter().product();
                    let block = Places::plain_layout(graph, *dy).map_or(1, |(l, _)| l.block);
                    let packed = InputGradient::new(isa, &vec![0.0; count], channels, shape, block)
                        .map_err(|e| internal("borders", e.to_string()))?;
                    places.need_border(*dy, packed.border(dims(*x), dims(*dy)));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// Work in place, concatenations and their gradients without a copy.
fn share(graph: &Graph, plans: &[Plan], places: &mut Places<'_>) {
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
    // Values in whose buffers others lie.
    let mut viewed: BTreeSet<ValueId> = BTreeSet::new();
    for plan in plans {
        if let Plan::Concat { inputs, blocks, output } = plan {
            // Of a value that is several parts, the first lies in place and the others are copied.
            for (input, block) in inputs.iter().zip(blocks).filter(|(i, _)| made.contains(i)) {
                places.put_into(*input, *output, *block);
                viewed.insert(*output);
            }
        }
    }
    // Each sliced value with its slices: first block and result.
    let mut slices: BTreeMap<ValueId, Vec<(usize, ValueId)>> = BTreeMap::new();
    for plan in plans {
        if let Plan::Slice { x, block, output } = plan {
            slices.entry(*x).or_default().push((*block, *output));
        }
    }
    for plan in plans {
        // A whole that is only sliced is never looked at itself: its slices may be written in their places.
        if let Plan::Slice { x, block, output } = plan {
            let Some(slices) = slices.get(x) else { continue };
            let alone = uses.get(x) == Some(&slices.len()) && are_apart(graph, slices);
            if made.contains(x) && alone && places.put_into(*output, *x, *block) {
                viewed.insert(*x);
            }
        }
    }
    for plan in plans {
        let in_place = match plan {
            Plan::ConvGradient { onto: Some(_), dx, .. } => *dx,
            Plan::Unary { output, .. } | Plan::Binary { f: Binary::Add, output, .. } => Some(*output),
            _ => None,
        };
        let (Some(output), Some(first)) = (in_place, plan.inputs().first().copied()) else { continue };
        let alike = Places::plain_layout(graph, first) == Places::plain_layout(graph, output);
        let free = made.contains(&first) && !viewed.contains(&first) && uses.get(&first) == Some(&1);
        if alike && free && !places.put_into(first, output, 0) {
            places.put_into(output, first, 0);
        }
    }
}

/// Whether no two slices (first block, result) of one value share a block of channels.
fn are_apart(graph: &Graph, slices: &[(usize, ValueId)]) -> bool {
    let blocks = |id: ValueId| Places::plain_layout(graph, id).map_or(0, |(l, _)| l.channels.div_ceil(l.block));
    let mut ranges: Vec<(usize, usize)> = slices.iter().map(|(first, id)| (*first, first + blocks(*id))).collect();
    ranges.sort_unstable();
    ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0)
}

struct Emitter<'a> {
    graph: &'a Graph,
    places: &'a Places<'a>,
    steps: Vec<Step>,
    blocked: BTreeSet<ValueId>,
    dense: BTreeSet<ValueId>,
    lives: BTreeMap<ValueId, Request>,
}

impl Emitter<'_> {
    fn fail(&self, place: &str, id: ValueId) -> EngineError {
        internal(place, format!("value \"{}\"", self.graph.value(id).name))
    }

    /// Notes that the next step touches a value's buffer; at its birth its border is cleared.
    fn touch(&mut self, id: ValueId) -> Result<(), EngineError> {
        let root = self.places.root(id).0;
        if !self.lives.contains_key(&root) {
            let (layout, images) = self.places.layout(root).ok_or_else(|| self.fail("layout", root))?;
            let at = self.steps.len();
            self.lives.insert(root, Request { len: layout.len().saturating_mul(images), first: at, last: at });
            if layout.halo != [0; 3] {
                self.steps.push(Step::ClearBorder(root));
            }
        }
        let at = self.steps.len();
        if let Some(life) = self.lives.get_mut(&root) {
            life.last = at;
        }
        Ok(())
    }

    fn need_blocked(&mut self, id: ValueId) -> Result<(), EngineError> {
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

    fn need_dense(&mut self, id: ValueId) -> Result<(), EngineError> {
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
            self.need_blocked(*input)?;
        }
        for parameter in plan.parameters() {
            self.need_dense(parameter)?;
        }
        let outputs = plan.outputs();
        // Births first: their borders are cleared before the step.
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

/// For each step, the dense values it is the last to read.
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

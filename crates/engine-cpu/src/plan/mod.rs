//! Decides which nodes run on kernels, and with what parameters. What a plan is does not depend on the purpose; the rules
//! that find plans do: [`mod@inference`] packs, folds and quantizes constant weights, [`mod@training`] reads weights at every
//! run and plans gradients.

mod elementwise;
mod gradient_kind;
mod inference;
mod kind;
mod moves;
mod training;

pub(crate) use kind::{KernelPlan, Plan, PlanKind};

use crate::lower::LowerError;
use crate::lower::placement::Placement;
use crate::prepare::{Prepared, StoredWeight};
use crate::purpose::Purpose;
use cytoscope_engine::EngineError;
use cytoscope_graph::{Graph, Interrupt, Node, Op, Tensor, ValueId, op_name};
use cytoscope_graph_passes::analysis;
use cytoscope_kernels::conv::Activation;
use cytoscope_kernels::{Blocked, Isa, KernelError};
use elementwise::leaky;
use inference::PendingTerm;
use std::collections::{BTreeMap, BTreeSet};

/// A float value that is stored as bytes with a constant scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Dequantized {
    /// Value of the graph that holds the bytes.
    pub bytes: ValueId,
    /// Difference in value between neighboring bytes.
    pub scale: f32,
    /// The byte that represents 0 (signed types are stored with an offset of 128).
    pub zero_point: u8,
}

/// A float value that is stored as bytes with a scale computed at run time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DynamicDequantized {
    /// Value of the graph that holds the bytes.
    pub bytes: ValueId,
    /// Index of the run-time quantization.
    pub ranges: usize,
}

/// The plans of all nodes, and properties of their values.
pub(crate) struct Plans {
    /// For each node of the graph, in the same order, how it is executed.
    pub nodes: Vec<Plan>,
    /// Float values that are stored as bytes.
    pub dequantized: BTreeMap<ValueId, Dequantized>,
    /// Float values that are stored as bytes with a run-time scale.
    pub dyn_dequantized: BTreeMap<ValueId, DynamicDequantized>,
    /// Number of run-time quantizations.
    pub ranges: usize,
    /// Zero point of every value stored as bytes.
    pub zero_points: BTreeMap<ValueId, u8>,
    /// Values stored as 16-bit floats.
    pub halves: BTreeSet<ValueId>,
    /// Number of moments that a run stores.
    pub moments: usize,
}

impl Plans {
    /// Returns the bytes of a float value that is dequantized only when something reads it.
    pub(crate) fn byte_value(&self, value: ValueId) -> Option<ValueId> {
        let dynamic = || self.dyn_dequantized.get(&value).map(|d| d.bytes);
        self.dequantized.get(&value).map(|d| d.bytes).or_else(dynamic)
    }
}

/// Plans every node of a prepared graph.
///
/// # Errors
/// [`EngineError::NotQuantized`] if convolutions were to run on bytes and none can; an error if `interrupt` is set.
pub(crate) fn plan(prepared: &Prepared, isa: Isa, interrupt: &Interrupt) -> Result<Plans, EngineError> {
    let mut planner = Planner::new(prepared, isa);
    for index in 0..prepared.graph.nodes.len() {
        interrupt.check()?;
        if planner.plans[index].is_none() {
            planner.plan_node(index).map_err(LowerError::from)?;
        }
    }
    if planner.purpose.integers() && planner.integer_convolutions == 0 {
        return Err(EngineError::NotQuantized { engine: "cpu" });
    }
    let mut nodes: Vec<Plan> = planner.plans.into_iter().map(|p| p.unwrap_or(Plan::Reference)).collect();
    if planner.purpose == Purpose::Training {
        training::fuse_gradients(&prepared.graph, &mut nodes);
    }
    Ok(Plans {
        nodes,
        dequantized: planner.dequantized,
        dyn_dequantized: planner.dyn_dequantized,
        ranges: planner.ranges,
        zero_points: planner.zero_points,
        halves: planner.halves,
        moments: planner.moments,
    })
}

/// Counts how often each value is read: by steps, by nodes of the reference executor, and as a graph output. `byte_value`
/// returns the bytes of a dequantized value; reading the value also reads them.
pub(crate) fn reads(
    graph: &Graph,
    plans: &[Plan],
    bytes_of: impl Fn(ValueId) -> Option<ValueId>,
) -> BTreeMap<ValueId, usize> {
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

/// A plan, and the following nodes that are fused into it.
type Fused = (KernelPlan, Vec<usize>);

struct Planner<'a> {
    graph: &'a Graph,
    purpose: Purpose,
    stored: &'a BTreeMap<ValueId, StoredWeight>,
    isa: Isa,
    consumers: BTreeMap<ValueId, Vec<usize>>,
    producers: BTreeMap<ValueId, usize>,
    /// Inputs of the graph.
    inputs: BTreeSet<ValueId>,
    /// Outputs of the graph.
    outputs: BTreeSet<ValueId>,
    /// Values that a plan computes in blocked form.
    blocked: BTreeSet<ValueId>,
    plans: Vec<Option<Plan>>,
    /// Index of the plan that computes a value.
    plan_of: BTreeMap<ValueId, usize>,
    moments: usize,
    /// In training, the moments of each normalized value, which its gradient reads, too.
    moments_of: BTreeMap<ValueId, usize>,
    dequantized: BTreeMap<ValueId, Dequantized>,
    dyn_dequantized: BTreeMap<ValueId, DynamicDequantized>,
    /// Run-time quantizations by their scale output.
    range_by_scale: BTreeMap<ValueId, DynamicDequantized>,
    ranges: usize,
    zero_points: BTreeMap<ValueId, u8>,
    halves: BTreeSet<ValueId>,
    pending: BTreeMap<ValueId, PendingTerm>,
    plane_moments: BTreeMap<ValueId, usize>,
    /// Number of convolutions that run on integers.
    integer_convolutions: usize,
}

impl<'a> Planner<'a> {
    fn new(prepared: &'a Prepared, isa: Isa) -> Self {
        let graph = &prepared.graph;
        Self {
            graph,
            purpose: prepared.purpose,
            stored: &prepared.stored,
            isa,
            consumers: graph.consumers(),
            producers: graph.producers(),
            inputs: graph.inputs.iter().copied().collect(),
            outputs: graph.outputs.iter().copied().collect(),
            blocked: BTreeSet::new(),
            plans: graph.nodes.iter().map(|_| None).collect(),
            plan_of: BTreeMap::new(),
            moments: 0,
            moments_of: BTreeMap::new(),
            dequantized: BTreeMap::new(),
            dyn_dequantized: BTreeMap::new(),
            range_by_scale: BTreeMap::new(),
            ranges: 0,
            zero_points: BTreeMap::new(),
            halves: BTreeSet::new(),
            pending: BTreeMap::new(),
            plane_moments: BTreeMap::new(),
            integer_convolutions: 0,
        }
    }

    fn layout(&self, value: ValueId) -> Option<(Blocked, usize)> {
        Placement::plain_layout(self.graph, value)
    }

    fn constant(&self, node: &Node, input: usize) -> Option<&'a Tensor> {
        self.graph.constant(node.input(input)?).map(|t| t.as_ref())
    }

    fn spatial_lengths(&self, value: ValueId) -> Option<Vec<usize>> {
        self.graph.value(value).fixed_shape()?.get(2..).map(<[usize]>::to_vec)
    }

    /// Returns the only consumer of a value that is not a graph output.
    fn sole_consumer(&self, value: ValueId) -> Option<usize> {
        match self.consumers.get(&value).map(Vec::as_slice) {
            Some([one]) if !self.outputs.contains(&value) => Some(*one),
            _ => None,
        }
    }

    /// Returns the only consumer, if it has no plan yet.
    fn unplanned_consumer(&self, value: ValueId) -> Option<usize> {
        self.sole_consumer(value).filter(|i| self.plans.get(*i).is_some_and(Option::is_none))
    }

    fn new_moments(&mut self) -> usize {
        self.moments += 1;
        self.moments - 1
    }

    /// Plans a node together with the nodes fused into it.
    fn plan_node(&mut self, index: usize) -> Result<(), KernelError> {
        let graph = self.graph;
        let node = &graph.nodes[index];
        let found = match self.purpose {
            Purpose::Training => self.training_kernel(index, node),
            Purpose::Inference { .. } => {
                if self.dequantize(node) {
                    self.plans[index] = Some(Plan::Absorbed);
                    return Ok(());
                }
                if self.chain(index, node) {
                    return Ok(());
                }
                self.inference_kernel(node)?
            }
        };
        let Some((mut planned, mut fused)) = found else {
            self.plans[index] = Some(Plan::Reference);
            return Ok(());
        };
        planned.macs = analysis::node_macs(graph, node).unwrap_or(0);
        self.absorb(&mut planned, &mut fused);
        self.record(index, fused, planned);
        Ok(())
    }

    /// Stores a plan at the last of the nodes that it covers; the others are absorbed.
    fn record(&mut self, index: usize, fused: Vec<usize>, planned: KernelPlan) {
        let mut at = index;
        for next in fused {
            self.plans[at] = Some(Plan::Absorbed);
            at = next;
        }
        if let Some(output) = planned.output {
            self.blocked.insert(output);
            self.plan_of.insert(output, at);
        }
        self.plans[at] = Some(Plan::Kernel(Box::new(planned)));
    }

    /// Fuses a following (leaky) ReLU and quantization into a step whose epilogue can apply them.
    fn absorb(&mut self, planned: &mut KernelPlan, fused: &mut Vec<usize>) {
        if !self.purpose.fuses() {
            return;
        }
        if let PlanKind::PlanarNorm { activation, .. } = &mut planned.kind {
            if let Some((next, act, output)) = planned.output.and_then(|v| self.next_leaky(v)) {
                *activation = act;
                self.fuse(planned, fused, next, output);
            }
            return;
        }
        if !planned.kind.epilogue_is_last() {
            return;
        }
        let plain =
            planned.kind.epilogue_mut().is_some_and(|e| e.activation == Activation::None && e.quantizer.is_none());
        if plain && let Some((next, act, output)) = planned.output.and_then(|v| self.next_leaky(v)) {
            if let Some(epilogue) = planned.kind.epilogue_mut() {
                epilogue.activation = act;
            }
            self.fuse(planned, fused, next, output);
        }
        // Training steps compute no bytes.
        let unquantized =
            self.purpose != Purpose::Training && planned.kind.epilogue_mut().is_some_and(|e| e.quantizer.is_none());
        if unquantized && let Some((next, quantizer, output)) = planned.output.and_then(|v| self.next_quantize(v)) {
            if let Some(epilogue) = planned.kind.epilogue_mut() {
                epilogue.quantizer = Some(quantizer);
            }
            self.zero_points.insert(output, quantizer.zero_point);
            self.fuse(planned, fused, next, output);
        }
    }

    /// Returns the (leaky) ReLU that is the only consumer of a value: node, activation and output.
    fn next_leaky(&self, value: ValueId) -> Option<(usize, Activation, ValueId)> {
        let next = self.unplanned_consumer(value)?;
        let node = &self.graph.nodes[next];
        let Op::Activation(act) = node.op else { return None };
        Some((next, leaky(act)?, node.output(0)?))
    }

    fn fuse(&self, planned: &mut KernelPlan, fused: &mut Vec<usize>, next: usize, output: ValueId) {
        planned.output = Some(output);
        planned.label += " + ";
        planned.label += op_name(&self.graph.nodes[next].op);
        fused.push(next);
    }
}

//! Decides which nodes run on kernels, and with what parameters.

mod bytes;
mod chain;
mod float;
mod kind;

pub(crate) use float::transposed_shape;
pub(crate) use kind::{KernelPlan, Plan, PlanKind};

use crate::placement::Placement;
use crate::prepare::{Prepared, StoredWeight};
use crate::steps::Term;
use cytoscope_engine::EngineError;
use cytoscope_graph::{Activation as Act, Graph, Interrupt, Node, Op, Tensor, UnaryOp, ValueId, op_name};
use cytoscope_graph_passes::analysis;
use cytoscope_kernels::conv::Activation;
use cytoscope_kernels::pointwise::Unary;
use cytoscope_kernels::pool::Pool;
use cytoscope_kernels::{Blocked, Isa, KernelError};
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
    /// Number of convolutions that run on integers.
    pub integer_convolutions: usize,
}

/// Plans every node of a prepared graph; with `integers`, quantized convolutions run on bytes.
pub(crate) fn plan(prepared: &Prepared, isa: Isa, integers: bool, interrupt: &Interrupt) -> Result<Plans, EngineError> {
    let graph = &prepared.graph;
    let mut planner = Planner {
        graph,
        stored: &prepared.stored,
        isa,
        integers,
        consumers: graph.consumers(),
        producers: graph.producers(),
        inputs: graph.inputs.iter().copied().collect(),
        outputs: graph.outputs.iter().copied().collect(),
        blocked: BTreeSet::new(),
        dequantized: BTreeMap::new(),
        dyn_dequantized: BTreeMap::new(),
        range_by_scale: BTreeMap::new(),
        ranges: 0,
        zero_points: BTreeMap::new(),
        halves: BTreeSet::new(),
        plans: graph.nodes.iter().map(|_| None).collect(),
        plan_of: BTreeMap::new(),
        pending: BTreeMap::new(),
        plane_moments: BTreeMap::new(),
        moments: 0,
        integer_convolutions: 0,
        fuses: integers || prepared.optimizations.fusion,
    };
    for index in 0..graph.nodes.len() {
        interrupt.check()?;
        if planner.plans[index].is_none() {
            planner.plan_node(index).map_err(internal)?;
        }
    }
    Ok(Plans {
        nodes: planner.plans.into_iter().map(|p| p.unwrap_or(Plan::Reference)).collect(),
        dequantized: planner.dequantized,
        dyn_dequantized: planner.dyn_dequantized,
        ranges: planner.ranges,
        zero_points: planner.zero_points,
        halves: planner.halves,
        moments: planner.moments,
        integer_convolutions: planner.integer_convolutions,
    })
}

fn internal(error: KernelError) -> EngineError {
    EngineError::Internal { place: "packing weights".to_owned(), reason: error.to_string() }
}

/// Returns ReLU and leaky ReLU as a kernel epilogue, `None` for other activations.
fn leaky(activation: Act) -> Option<Activation> {
    match activation {
        Act::Relu => Some(Activation::Leaky { slope: 0.0 }),
        Act::LeakyRelu { alpha } => Some(Activation::Leaky { slope: alpha }),
        _ => None,
    }
}

fn unary(activation: Act) -> Option<Unary> {
    Some(match activation {
        Act::Relu => Unary::Leaky { slope: 0.0 },
        Act::LeakyRelu { alpha } => Unary::Leaky { slope: alpha },
        Act::Sigmoid => Unary::Sigmoid,
        Act::Silu => Unary::Silu,
        Act::Softsign => Unary::Softsign,
        Act::Clip { min, max } => Unary::Clip { min, max },
        _ => return None,
    })
}

/// A term of a sum whose other term is not planned yet: its input, the moments to compute of it, and the term.
struct PendingTerm {
    input: ValueId,
    moments: Option<usize>,
    term: Term,
    label: String,
}

struct Planner<'a> {
    graph: &'a Graph,
    stored: &'a BTreeMap<ValueId, StoredWeight>,
    isa: Isa,
    integers: bool,
    consumers: BTreeMap<ValueId, Vec<usize>>,
    producers: BTreeMap<ValueId, usize>,
    /// Inputs of the graph.
    inputs: BTreeSet<ValueId>,
    /// Outputs of the graph.
    outputs: BTreeSet<ValueId>,
    blocked: BTreeSet<ValueId>,
    dequantized: BTreeMap<ValueId, Dequantized>,
    dyn_dequantized: BTreeMap<ValueId, DynamicDequantized>,
    /// Run-time quantizations by their scale output.
    range_by_scale: BTreeMap<ValueId, DynamicDequantized>,
    ranges: usize,
    zero_points: BTreeMap<ValueId, u8>,
    halves: BTreeSet<ValueId>,
    plans: Vec<Option<Plan>>,
    /// Index of the plan that computes a value.
    plan_of: BTreeMap<ValueId, usize>,
    pending: BTreeMap<ValueId, PendingTerm>,
    plane_moments: BTreeMap<ValueId, usize>,
    moments: usize,
    integer_convolutions: usize,
    /// Whether activations and quantizations are computed inside the step before them.
    fuses: bool,
}

type PlanResult = Result<Option<KernelPlan>, KernelError>;

impl<'a> Planner<'a> {
    fn layout(&self, value: ValueId) -> Option<(Blocked, usize)> {
        Placement::plain_layout(self.graph, value)
    }

    fn constant(&self, node: &Node, input: usize) -> Option<&'a Tensor> {
        self.graph.constant(node.input(input)?).map(|t| t.as_ref())
    }

    fn floats(&self, node: &Node, input: usize) -> Option<&'a [f32]> {
        self.constant(node, input)?.as_f32()
    }

    /// Returns an optional float constant: `Some(None)` if the input is absent, `None` if it is present but not
    /// constant.
    #[allow(clippy::option_option)]
    fn optional_floats(&self, node: &Node, input: usize) -> Option<Option<&'a [f32]>> {
        if node.input(input).is_none() { Some(None) } else { self.floats(node, input).map(Some) }
    }

    fn spatial_lengths(&self, value: ValueId) -> Option<Vec<usize>> {
        self.graph.value(value).fixed_shape()?.get(2..).map(<[usize]>::to_vec)
    }

    /// Returns whether a value is in blocked form, or can be brought into it cheaply.
    fn is_cheap_in_blocks(&self, value: ValueId) -> bool {
        self.blocked.contains(&value)
            || self.dequantized.contains_key(&value)
            || self.dyn_dequantized.contains_key(&value)
            || (self.inputs.contains(&value) && self.layout(value).is_some_and(|(l, _)| l.channels == 1))
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
        if self.dequantize(node) {
            self.plans[index] = Some(Plan::Absorbed);
            return Ok(());
        }
        if self.chain(index, node) {
            return Ok(());
        }
        let (planned, mut fused) = match self.bytes(node)? {
            Some((planned, fused)) => (Some(planned), fused),
            None => (self.float_kernel(node)?, Vec::new()),
        };
        let Some(mut planned) = planned else {
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
        self.blocked.insert(planned.output);
        let mut at = index;
        for next in fused {
            self.plans[at] = Some(Plan::Absorbed);
            at = next;
        }
        self.plan_of.insert(planned.output, at);
        self.plans[at] = Some(Plan::Kernel(Box::new(planned)));
    }

    /// Returns the float kernel plan of a node, if there is one.
    fn float_kernel(&self, node: &Node) -> PlanResult {
        let (Some(input), Some(output)) = (node.input(0), node.output(0)) else { return Ok(None) };
        if node.outputs.iter().skip(1).any(Option::is_some) || self.layout(output).is_none() {
            return Ok(None);
        }
        let whole = |kind: PlanKind| KernelPlan {
            kind,
            inputs: vec![input],
            output,
            border: None,
            label: op_name(&node.op).to_owned(),
            macs: 0,
        };
        let is_float_input = self.layout(input).is_some()
            && self.graph.constant(input).is_none()
            && self.graph.value(input).dtype == Some(cytoscope_graph::ElementType::F32);
        let is_cheap = is_float_input && self.is_cheap_in_blocks(input);
        if let Op::Binary(op) = &node.op {
            return Ok(self.binary(*op, node, output).map(|(kind, inputs)| KernelPlan { inputs, ..whole(kind) }));
        }
        if !is_float_input {
            return Ok(None);
        }
        Ok(match &node.op {
            Op::Conv(attrs) => return self.conv(node, attrs, None, false, whole),
            Op::FusedConv { conv, activation, residual } => {
                return self.conv(node, conv, *activation, *residual, whole);
            }
            Op::ConvTranspose(_) => return self.conv_transpose(node, whole),
            Op::InstanceNormalization { epsilon } => {
                self.floats(node, 1).zip(self.floats(node, 2)).map(|(scale, bias)| {
                    whole(PlanKind::PlanarNorm {
                        scale: scale.to_vec(),
                        bias: bias.to_vec(),
                        epsilon: *epsilon,
                        activation: Activation::None,
                    })
                })
            }
            Op::BatchNormalization { epsilon } => self.batch_norm(node, *epsilon).map(whole),
            Op::Activation(act) if is_cheap => unary(*act).map(|f| whole(PlanKind::Unary(f))),
            Op::Unary(UnaryOp::Abs) if is_cheap => Some(whole(PlanKind::Unary(Unary::Abs))),
            Op::Unary(UnaryOp::Neg) if is_cheap => Some(whole(PlanKind::Unary(Unary::Neg))),
            Op::Identity if is_cheap => Some(whole(PlanKind::Unary(Unary::Affine { gain: 1.0, offset: 0.0 }))),
            Op::MaxPool(attrs) => self
                .spatial_lengths(input)
                .map(|s| whole(PlanKind::Pool(Pool::Max, crate::window::pool_shape(attrs, &s)))),
            Op::AveragePool(attrs) => self.spatial_lengths(input).and_then(|s| {
                let kind = if attrs.count_include_pad { Pool::AverageWithPadding } else { Pool::Average };
                let plain = !attrs.ceil_mode || !attrs.count_include_pad;
                plain.then(|| whole(PlanKind::Pool(kind, crate::window::pool_shape(attrs, &s))))
            }),
            Op::Pad { mode } => self.pad(node, *mode, input).map(whole),
            op if op.joined_axis().is_some() => {
                self.concat(node).map(|(kind, inputs)| KernelPlan { inputs, ..whole(kind) })
            }
            _ => self.resize(node, input, output).map(whole),
        })
    }

    /// Fuses a following (leaky) ReLU and quantization into a step whose epilogue can apply them.
    fn absorb(&mut self, planned: &mut KernelPlan, fused: &mut Vec<usize>) {
        if !self.fuses {
            return;
        }
        if let PlanKind::PlanarNorm { activation, .. } = &mut planned.kind {
            if let Some((next, act, output)) = self.next_leaky(planned.output) {
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
        if plain && let Some((next, act, output)) = self.next_leaky(planned.output) {
            if let Some(epilogue) = planned.kind.epilogue_mut() {
                epilogue.activation = act;
            }
            self.fuse(planned, fused, next, output);
        }
        let unquantized = planned.kind.epilogue_mut().is_some_and(|e| e.quantizer.is_none());
        if unquantized && let Some((next, quantizer, output)) = self.next_quantize(planned.output) {
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
        planned.output = output;
        planned.label += " + ";
        planned.label += op_name(&self.graph.nodes[next].op);
        fused.push(next);
    }
}

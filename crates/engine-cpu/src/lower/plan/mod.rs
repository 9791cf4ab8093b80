//! Which nodes our kernels take, and with what parameters.

mod bytes;
mod chain;
mod float;
mod kind;

pub(crate) use float::exact_transpose;
pub(crate) use kind::{Plan, PlanKind, Planned};

use crate::places::Places;
use crate::prepare::{Prepared, StoredWeight};
use crate::step::Term;
use cytoscope_engine::EngineError;
use cytoscope_graph::{Activation as Act, Graph, Interrupt, Node, Op, Tensor, UnaryOp, ValueId, analysis, op_name};
use cytoscope_kernels::conv::Activation;
use cytoscope_kernels::pointwise::Unary;
use cytoscope_kernels::pool::Pool;
use cytoscope_kernels::{Blocked, Isa, KernelError};
use std::collections::{BTreeMap, BTreeSet};

/// A float value that is bytes with a scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Dequantized {
    /// The bytes.
    pub bytes: ValueId,
    /// Step of one byte.
    pub scale: f32,
    /// The byte of 0 (signed types count from −128).
    pub zero_point: u8,
}

/// A float value that is bytes with a scale found at run time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Ranged {
    /// The bytes.
    pub bytes: ValueId,
    /// Which quantization.
    pub ranges: usize,
}

/// Plans for every node, and what was found out on the way.
pub(crate) struct Plans {
    pub nodes: Vec<Plan>,
    /// Float values that exist as bytes.
    pub dequantized: BTreeMap<ValueId, Dequantized>,
    /// Float values that exist as bytes of run-time scale.
    pub ranged: BTreeMap<ValueId, Ranged>,
    /// Run-time quantizations.
    pub ranges: usize,
    /// The byte of 0 of every value kept as bytes.
    pub zero_points: BTreeMap<ValueId, u8>,
    /// Values kept as 16-bit floats.
    pub halves: BTreeSet<ValueId>,
    /// Moments kept while running.
    pub moments: usize,
    /// Convolutions that run on integers.
    pub integer_convolutions: usize,
}

/// A plan for every node of a prepared graph; `integers` runs quantized convolutions on bytes.
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
        ranged: BTreeMap::new(),
        range_of: BTreeMap::new(),
        ranges: 0,
        zero_points: BTreeMap::new(),
        halves: BTreeSet::new(),
        plans: graph.nodes.iter().map(|_| None).collect(),
        made_by: BTreeMap::new(),
        waiting: BTreeMap::new(),
        plane_moments: BTreeMap::new(),
        moments: 0,
        integer_convolutions: 0,
    };
    for index in 0..graph.nodes.len() {
        interrupt.check()?;
        if planner.plans[index].is_none() {
            planner.place(index).map_err(internal)?;
        }
    }
    Ok(Plans {
        nodes: planner.plans.into_iter().map(|p| p.unwrap_or(Plan::Reference)).collect(),
        dequantized: planner.dequantized,
        ranged: planner.ranged,
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

/// ReLU and leaky ReLU as the kernels' epilogue.
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

/// A term of a pass that waits for the other one: its input, moments to be taken of it, and the term.
struct Waiting {
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
    /// Of the graph.
    inputs: BTreeSet<ValueId>,
    /// Of the graph.
    outputs: BTreeSet<ValueId>,
    blocked: BTreeSet<ValueId>,
    dequantized: BTreeMap<ValueId, Dequantized>,
    ranged: BTreeMap<ValueId, Ranged>,
    /// Scale values of run-time quantizations.
    range_of: BTreeMap<ValueId, Ranged>,
    ranges: usize,
    zero_points: BTreeMap<ValueId, u8>,
    halves: BTreeSet<ValueId>,
    plans: Vec<Option<Plan>>,
    /// The plan that makes a value.
    made_by: BTreeMap<ValueId, usize>,
    waiting: BTreeMap<ValueId, Waiting>,
    plane_moments: BTreeMap<ValueId, usize>,
    moments: usize,
    integer_convolutions: usize,
}

type Tried = Result<Option<Planned>, KernelError>;

impl<'a> Planner<'a> {
    fn layout(&self, value: ValueId) -> Option<(Blocked, usize)> {
        Places::plain_layout(self.graph, value)
    }

    fn constant(&self, node: &Node, input: usize) -> Option<&'a Tensor> {
        self.graph.constant(node.input(input)?).map(|t| t.as_ref())
    }

    fn floats(&self, node: &Node, input: usize) -> Option<&'a [f32]> {
        self.constant(node, input)?.as_f32()
    }

    /// An optional constant of floats: `None` if it is there but no constant.
    #[allow(clippy::option_option)]
    fn optional_floats(&self, node: &Node, input: usize) -> Option<Option<&'a [f32]>> {
        if node.input(input).is_none() { Some(None) } else { self.floats(node, input).map(Some) }
    }

    fn spatial_lengths(&self, value: ValueId) -> Option<Vec<usize>> {
        self.graph.value(value).fixed_shape()?.get(2..).map(<[usize]>::to_vec)
    }

    /// Whether a value is, or can cheaply be, in blocks.
    fn near(&self, value: ValueId) -> bool {
        self.blocked.contains(&value)
            || self.dequantized.contains_key(&value)
            || self.ranged.contains_key(&value)
            || (self.inputs.contains(&value) && self.layout(value).is_some_and(|(l, _)| l.channels == 1))
    }

    /// The only consumer of a value that is no graph output.
    fn sole_consumer(&self, value: ValueId) -> Option<usize> {
        match self.consumers.get(&value).map(Vec::as_slice) {
            Some([one]) if !self.outputs.contains(&value) => Some(*one),
            _ => None,
        }
    }

    /// The only consumer, if it has no plan yet.
    fn next(&self, value: ValueId) -> Option<usize> {
        self.sole_consumer(value).filter(|i| self.plans.get(*i).is_some_and(Option::is_none))
    }

    fn new_moments(&mut self) -> usize {
        self.moments += 1;
        self.moments - 1
    }

    /// Plans a node, with those it takes in.
    fn place(&mut self, index: usize) -> Result<(), KernelError> {
        let graph = self.graph;
        let node = &graph.nodes[index];
        if self.dequantize(node) {
            self.plans[index] = Some(Plan::Absorbed);
            return Ok(());
        }
        if self.chain(index, node) {
            return Ok(());
        }
        let (planned, mut taken) = match self.bytes(node)? {
            Some((planned, taken)) => (Some(planned), taken),
            None => (self.node(node)?, Vec::new()),
        };
        let Some(mut planned) = planned else {
            self.plans[index] = Some(Plan::Reference);
            return Ok(());
        };
        planned.macs = analysis::node_macs(graph, node).unwrap_or(0);
        self.absorb(&mut planned, &mut taken);
        self.settle(index, taken, planned);
        Ok(())
    }

    /// Keeps a plan at the last of the nodes it took.
    fn settle(&mut self, index: usize, taken: Vec<usize>, planned: Planned) {
        self.blocked.insert(planned.output);
        let mut at = index;
        for next in taken {
            self.plans[at] = Some(Plan::Absorbed);
            at = next;
        }
        self.made_by.insert(planned.output, at);
        self.plans[at] = Some(Plan::Kernel(Box::new(planned)));
    }

    /// A step for a node, if there is a kernel for it as it stands.
    fn node(&self, node: &Node) -> Tried {
        let (Some(input), Some(output)) = (node.input(0), node.output(0)) else { return Ok(None) };
        if node.outputs.iter().skip(1).any(Option::is_some) || self.layout(output).is_none() {
            return Ok(None);
        }
        let whole = |kind: PlanKind| Planned {
            kind,
            inputs: vec![input],
            output,
            border: None,
            label: op_name(&node.op).to_owned(),
            macs: 0,
        };
        let seed = self.layout(input).is_some()
            && self.graph.constant(input).is_none()
            && self.graph.value(input).dtype == Some(cytoscope_graph::ElementType::F32);
        let follows = seed && self.near(input);
        if let Op::Binary(op) = &node.op {
            return Ok(self.binary(*op, node, output).map(|(kind, inputs)| Planned { inputs, ..whole(kind) }));
        }
        if !seed {
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
            Op::Activation(act) if follows => unary(*act).map(|f| whole(PlanKind::Unary(f))),
            Op::Unary(UnaryOp::Abs) if follows => Some(whole(PlanKind::Unary(Unary::Abs))),
            Op::Unary(UnaryOp::Neg) if follows => Some(whole(PlanKind::Unary(Unary::Neg))),
            Op::Identity if follows => Some(whole(PlanKind::Unary(Unary::Affine { gain: 1.0, offset: 0.0 }))),
            Op::MaxPool(attrs) => self
                .spatial_lengths(input)
                .map(|s| whole(PlanKind::Pool(Pool::Max, crate::window::pool_shape(attrs, &s)))),
            Op::AveragePool(attrs) => self.spatial_lengths(input).and_then(|s| {
                let kind = if attrs.count_include_pad { Pool::AverageWithPadding } else { Pool::Average };
                let plain = !attrs.ceil_mode || !attrs.count_include_pad;
                plain.then(|| whole(PlanKind::Pool(kind, crate::window::pool_shape(attrs, &s))))
            }),
            Op::Resize(attrs) => self.resize(node, attrs, input, output).map(whole),
            Op::Pad { mode } => self.pad(node, *mode, input).map(whole),
            Op::Concat { axis } => self.concat(node, *axis).map(|(kind, inputs)| Planned { inputs, ..whole(kind) }),
            _ => None,
        })
    }

    /// Takes a following (leaky) rectifier and quantization into a step that can do them on the way out.
    fn absorb(&mut self, planned: &mut Planned, taken: &mut Vec<usize>) {
        if let PlanKind::PlanarNorm { activation, .. } = &mut planned.kind {
            if let Some((next, act, output)) = self.next_leaky(planned.output) {
                *activation = act;
                self.take(planned, taken, next, output);
            }
            return;
        }
        if !planned.kind.ends() {
            return;
        }
        let plain = planned.kind.end().is_some_and(|e| e.activation == Activation::None && e.quantizer.is_none());
        if plain && let Some((next, act, output)) = self.next_leaky(planned.output) {
            if let Some(end) = planned.kind.end() {
                end.activation = act;
            }
            self.take(planned, taken, next, output);
        }
        let open = planned.kind.end().is_some_and(|e| e.quantizer.is_none());
        if open && let Some((next, quantizer, output)) = self.next_quantize(planned.output) {
            if let Some(end) = planned.kind.end() {
                end.quantizer = Some(quantizer);
            }
            self.zero_points.insert(output, quantizer.zero_point);
            self.take(planned, taken, next, output);
        }
    }

    /// The (leaky) rectifier that alone follows a value.
    fn next_leaky(&self, value: ValueId) -> Option<(usize, Activation, ValueId)> {
        let next = self.next(value)?;
        let node = &self.graph.nodes[next];
        let Op::Activation(act) = node.op else { return None };
        Some((next, leaky(act)?, node.output(0)?))
    }

    fn take(&self, planned: &mut Planned, taken: &mut Vec<usize>, next: usize, output: ValueId) {
        planned.output = output;
        planned.label += " + ";
        planned.label += op_name(&self.graph.nodes[next].op);
        taken.push(next);
    }
}

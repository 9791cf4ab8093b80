//! Which nodes our kernels take, and with what parameters.

use crate::places::Places;
use crate::step::Kind;
use crate::window::{border, conv_shape, pad_table, pool_shape, resize_table, three};
use cytoscope_engine::EngineError;
use cytoscope_graph::{
    Activation as Act, BinaryOp, ConvAttrs, Graph, Node, Op, PadMode, Padding, ResizeAttrs, Tensor, UnaryOp, ValueId,
    analysis, op_name,
};
use cytoscope_kernels::conv::{Activation, ConvShape, PackedConv};
use cytoscope_kernels::pointwise::{Binary, Unary};
use cytoscope_kernels::pool::Pool;
use cytoscope_kernels::resize::Tap;
use cytoscope_kernels::{Blocked, CHANNEL_BLOCK, Isa, KernelError};
use std::collections::{BTreeMap, BTreeSet};

/// What becomes of a node.
pub(crate) enum Plan {
    /// Part of a later node's step.
    Absorbed,
    /// Run by the reference executor.
    Reference,
    /// Run by a kernel.
    Kernel(Box<Planned>),
}

/// A node (with those it absorbed) as a kernel runs it.
pub(crate) struct Planned {
    pub kind: PlanKind,
    /// Values read; the first is the one in-place work happens on.
    pub inputs: Vec<ValueId>,
    pub output: ValueId,
    /// The border an input needs.
    pub border: Option<(ValueId, [usize; 3])>,
    pub label: String,
    pub macs: u64,
}

/// Parameters of a kernel step, without slots.
pub(crate) enum PlanKind {
    Conv {
        weights: PackedConv,
        shape: ConvShape,
        activation: Activation,
        residual: bool,
        planar: bool,
        post: Option<Unary>,
    },
    ConvTranspose {
        taps: Vec<PackedConv>,
        kernel: [usize; 3],
        activation: Activation,
    },
    InstanceNorm {
        scale: Vec<f32>,
        bias: Vec<f32>,
        epsilon: f32,
        residual: bool,
        activation: Activation,
    },
    Affine {
        scale: Vec<f32>,
        shift: Vec<f32>,
    },
    Unary(Unary),
    Binary(Binary),
    Pool(Pool, ConvShape),
    Resize(Box<[Vec<Tap>; 3]>),
    Concat {
        blocks: Vec<usize>,
    },
}

impl PlanKind {
    pub(crate) fn works_in_place(&self) -> bool {
        matches!(self, Self::InstanceNorm { .. } | Self::Affine { .. } | Self::Unary(_))
    }

    /// The steps, given the slots of the inputs and the output.
    pub(crate) fn into_steps(self, inputs: &[usize], output: usize) -> Vec<Kind> {
        let Some(&input) = inputs.first() else { return Vec::new() };
        let second = inputs.get(1).copied();
        match self {
            Self::Conv { weights, shape, activation, residual, planar, post } => {
                let residual = second.filter(|_| residual);
                let mut steps = if planar && residual.is_some() {
                    // Few channels: the kernel adds no residual there, so that is a step of its own.
                    let channels = 0..weights.out_channels();
                    let one = channels.clone().map(|_| 1.0).collect();
                    let zero = channels.map(|_| 0.0).collect();
                    let conv =
                        Kind::Conv { input, weights, shape, activation: Activation::None, residual: None, output };
                    vec![conv, Kind::Affine { input: output, scale: one, shift: zero, residual, activation, output }]
                } else {
                    vec![Kind::Conv { input, weights, shape, activation, residual, output }]
                };
                steps.extend(post.map(|f| Kind::Unary { f, input: output, output }));
                steps
            }
            Self::ConvTranspose { taps, kernel, activation } => {
                vec![Kind::ConvTranspose { input, taps, kernel, activation, output }]
            }
            Self::InstanceNorm { scale, bias, epsilon, residual, activation } => {
                vec![Kind::InstanceNorm {
                    input,
                    scale,
                    bias,
                    epsilon,
                    residual: second.filter(|_| residual),
                    activation,
                    output,
                }]
            }
            Self::Affine { scale, shift } => {
                vec![Kind::Affine { input, scale, shift, residual: None, activation: Activation::None, output }]
            }
            Self::Unary(f) => vec![Kind::Unary { f, input, output }],
            Self::Binary(f) => second.map(|b| Kind::Binary { f, a: input, b, output }).into_iter().collect(),
            Self::Pool(kind, shape) => vec![Kind::Pool { kind, shape, input, output }],
            Self::Resize(tables) => vec![Kind::Resize { tables, input, output }],
            Self::Concat { .. } => Vec::new(),
        }
    }
}

impl Planned {
    pub(crate) fn weight_bytes(&self) -> u64 {
        let bytes = match &self.kind {
            PlanKind::Conv { weights, .. } => weights.size_bytes(),
            PlanKind::ConvTranspose { taps, .. } => taps.iter().map(PackedConv::size_bytes).sum(),
            _ => 0,
        };
        bytes as u64
    }
}

/// A plan for every node of a prepared graph.
pub(crate) fn plan(graph: &Graph, isa: Isa) -> Result<Vec<Plan>, EngineError> {
    let mut planner = Planner { graph, isa, consumers: graph.consumers(), blocked: BTreeSet::new() };
    let mut plans: Vec<Option<Plan>> = graph.nodes.iter().map(|_| None).collect();
    for index in 0..graph.nodes.len() {
        if plans[index].is_some() {
            continue;
        }
        let node = &graph.nodes[index];
        let Some(mut planned) = planner.node(node).map_err(internal)? else {
            plans[index] = Some(Plan::Reference);
            continue;
        };
        planned.macs = analysis::node_macs(graph, node).unwrap_or(0);
        let tail = planner.absorb(&mut planned, &plans);
        planner.blocked.insert(planned.output);
        let mut at = index;
        for next in tail {
            plans[at] = Some(Plan::Absorbed);
            at = next;
        }
        plans[at] = Some(Plan::Kernel(Box::new(planned)));
    }
    Ok(plans.into_iter().map(|p| p.unwrap_or(Plan::Reference)).collect())
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
        Act::Clip { min, max } => Unary::Clip { min, max },
        _ => return None,
    })
}

struct Planner<'a> {
    graph: &'a Graph,
    isa: Isa,
    consumers: BTreeMap<ValueId, Vec<usize>>,
    blocked: BTreeSet<ValueId>,
}

type Tried = Result<Option<Planned>, KernelError>;

impl Planner<'_> {
    fn layout(&self, value: ValueId) -> Option<(Blocked, usize)> {
        Places::plain_layout(self.graph, value)
    }

    fn constant(&self, node: &Node, input: usize) -> Option<&Tensor> {
        self.graph.constant(node.input(input)?).map(|t| t.as_ref())
    }

    fn floats(&self, node: &Node, input: usize) -> Option<&[f32]> {
        self.constant(node, input)?.as_f32()
    }

    fn spatial_lengths(&self, value: ValueId) -> Option<Vec<usize>> {
        self.graph.value(value).fixed_shape()?.get(2..).map(<[usize]>::to_vec)
    }

    /// The only consumer of a value that is no graph output.
    fn sole_consumer(&self, value: ValueId) -> Option<usize> {
        match self.consumers.get(&value).map(Vec::as_slice) {
            Some([one]) if !self.graph.outputs.contains(&value) => Some(*one),
            _ => None,
        }
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
        let seed = self.layout(input).is_some() && self.graph.constant(input).is_none();
        let follows = seed && self.blocked.contains(&input);
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
                    whole(PlanKind::InstanceNorm {
                        scale: scale.to_vec(),
                        bias: bias.to_vec(),
                        epsilon: *epsilon,
                        residual: false,
                        activation: Activation::None,
                    })
                })
            }
            Op::BatchNormalization { epsilon } => self.batch_norm(node, *epsilon).map(whole),
            Op::Activation(act) if follows => unary(*act).map(|f| whole(PlanKind::Unary(f))),
            Op::Unary(UnaryOp::Abs) if follows => Some(whole(PlanKind::Unary(Unary::Abs))),
            Op::Unary(UnaryOp::Neg) if follows => Some(whole(PlanKind::Unary(Unary::Neg))),
            Op::Identity if follows => Some(whole(PlanKind::Unary(Unary::Affine { gain: 1.0, offset: 0.0 }))),
            Op::MaxPool(attrs) => {
                self.spatial_lengths(input).map(|s| whole(PlanKind::Pool(Pool::Max, pool_shape(attrs, &s))))
            }
            Op::AveragePool(attrs) => self.spatial_lengths(input).and_then(|s| {
                let kind = if attrs.count_include_pad { Pool::AverageWithPadding } else { Pool::Average };
                let plain = !attrs.ceil_mode || !attrs.count_include_pad;
                plain.then(|| whole(PlanKind::Pool(kind, pool_shape(attrs, &s))))
            }),
            Op::Resize(attrs) => self.resize(node, attrs, input, output).map(whole),
            Op::Pad { mode } => self.pad(node, *mode, input).map(whole),
            Op::Concat { axis } => self.concat(node, *axis).map(|(kind, inputs)| Planned { inputs, ..whole(kind) }),
            _ => None,
        })
    }

    fn conv(
        &self,
        node: &Node,
        attrs: &ConvAttrs,
        activation: Option<Act>,
        residual: bool,
        whole: impl Fn(PlanKind) -> Planned,
    ) -> Tried {
        let (Some(input), Some(output), Some(w)) = (node.input(0), node.output(0), self.constant(node, 1)) else {
            return Ok(None);
        };
        let (Some((in_layout, _)), Some((out_layout, _)), Some(weights)) =
            (self.layout(input), self.layout(output), w.as_f32())
        else {
            return Ok(None);
        };
        // What the kernel's epilogue cannot do is a step of its own, in place.
        let (epilogue, post) = match activation.map(|act| (leaky(act), unary(act))) {
            None => (Activation::None, None),
            Some((Some(act), _)) => (act, None),
            Some((None, Some(f))) => (Activation::None, Some(f)),
            Some((None, None)) => return Ok(None),
        };
        let lengths = self.spatial_lengths(input).unwrap_or_default();
        let bias = if node.input(2).is_some() {
            let Some(bias) = self.floats(node, 2) else { return Ok(None) };
            Some(bias)
        } else {
            None
        };
        let fits = attrs.group == 1 && attrs.kernel.len() == lengths.len() && w.shape().len() == lengths.len() + 2;
        let (Some(&co), Some(&ci)) = (w.shape().first(), w.shape().get(1)) else { return Ok(None) };
        if !fits || ci != in_layout.channels || co != out_layout.channels {
            return Ok(None);
        }
        let mut inputs = vec![input];
        if residual {
            let Some(extra) = node.input(3).filter(|r| self.layout(*r) == self.layout(output)) else { return Ok(None) };
            inputs.push(extra);
        }
        let shape = conv_shape(attrs, &lengths);
        let taps = shape.kernel.iter().product();
        let weights = PackedConv::new(self.isa, weights, bias, co, ci, taps, in_layout.block)?;
        let width = border(&shape, in_layout.dims, out_layout.dims);
        let planar = out_layout.block == 1;
        let kind = PlanKind::Conv { weights, shape, activation: epilogue, residual, planar, post };
        Ok(Some(Planned { inputs, border: Some((input, width)), ..whole(kind) }))
    }

    fn conv_transpose(&self, node: &Node, whole: impl Fn(PlanKind) -> Planned) -> Tried {
        let Op::ConvTranspose(attrs) = &node.op else { return Ok(None) };
        let (Some(input), Some(output), Some(w)) = (node.input(0), node.output(0), self.constant(node, 1)) else {
            return Ok(None);
        };
        let (Some((in_layout, _)), Some((out_layout, _)), Some(weights)) =
            (self.layout(input), self.layout(output), w.as_f32())
        else {
            return Ok(None);
        };
        let axes = attrs.kernel.len();
        let exact = attrs.group == 1
            && attrs.kernel == attrs.strides
            && attrs.dilations.iter().all(|d| *d == 1)
            && attrs.output_padding.iter().all(|p| *p == 0)
            && attrs.output_shape.is_none()
            && attrs.padding == Padding::none(axes)
            && w.shape().len() == axes + 2;
        let bias = if node.input(2).is_some() {
            let Some(bias) = self.floats(node, 2) else { return Ok(None) };
            Some(bias)
        } else {
            None
        };
        let (Some(&ci), Some(&co)) = (w.shape().first(), w.shape().get(1)) else { return Ok(None) };
        if !exact || ci != in_layout.channels || co != out_layout.channels {
            return Ok(None);
        }
        let kernel = three(&attrs.kernel, 1);
        let count: usize = kernel.iter().product();
        let taps = (0..count)
            .map(|t| {
                // [I][O][taps] -> [O][I] of this tap.
                let tap: Vec<f32> = (0..co * ci).map(|oi| weights[((oi % ci) * co + oi / ci) * count + t]).collect();
                PackedConv::new(self.isa, &tap, bias, co, ci, 1, in_layout.block)
            })
            .collect::<Result<Vec<_>, _>>()?;
        Ok(Some(whole(PlanKind::ConvTranspose { taps, kernel, activation: Activation::None })))
    }

    fn batch_norm(&self, node: &Node, epsilon: f32) -> Option<PlanKind> {
        let (scale, bias) = (self.floats(node, 1)?, self.floats(node, 2)?);
        let (mean, variance) = (self.floats(node, 3)?, self.floats(node, 4)?);
        let gain: Vec<f32> = scale.iter().zip(variance).map(|(s, v)| s / (v + epsilon).sqrt()).collect();
        let shift = bias.iter().zip(mean.iter().zip(&gain)).map(|(b, (m, g))| b - m * g).collect();
        Some(PlanKind::Affine { scale: gain, shift })
    }

    /// Two tensors of one shape, or a tensor and a constant number or number a channel.
    fn binary(&self, op: BinaryOp, node: &Node, output: ValueId) -> Option<(PlanKind, Vec<ValueId>)> {
        let (a, b) = (node.input(0)?, node.input(1)?);
        let (layout, images) = self.layout(output)?;
        let same = |v: ValueId| self.layout(v) == Some((layout, images));
        match (self.graph.constant(a), self.graph.constant(b)) {
            (None, None) => {
                let f = match op {
                    BinaryOp::Add => Binary::Add,
                    BinaryOp::Sub => Binary::Sub,
                    BinaryOp::Mul => Binary::Mul,
                    BinaryOp::Div => Binary::Div,
                    BinaryOp::Max => Binary::Max,
                    BinaryOp::Min => Binary::Min,
                    _ => return None,
                };
                let near = self.blocked.contains(&a) || self.blocked.contains(&b);
                (near && same(a) && same(b)).then(|| (PlanKind::Binary(f), vec![a, b]))
            }
            (None, Some(c)) if same(a) && self.blocked.contains(&a) => {
                let c = per_channel(c, self.graph.value(output).shape.as_ref()?.len(), layout.channels)?;
                let ones = vec![1.0; c.len()];
                let zeros = vec![0.0; c.len()];
                let (scale, shift) = match op {
                    BinaryOp::Add => (ones, c),
                    BinaryOp::Sub => (ones, c.iter().map(|v| -v).collect()),
                    BinaryOp::Mul => (c, zeros),
                    BinaryOp::Div => (c.iter().map(|v| 1.0 / v).collect(), zeros),
                    _ => return None,
                };
                Some((PlanKind::Affine { scale, shift }, vec![a]))
            }
            (Some(c), None) if same(b) && self.blocked.contains(&b) => {
                let c = per_channel(c, self.graph.value(output).shape.as_ref()?.len(), layout.channels)?;
                let (scale, shift) = match op {
                    BinaryOp::Add => (vec![1.0; c.len()], c),
                    BinaryOp::Sub => (vec![-1.0; c.len()], c),
                    BinaryOp::Mul => (c.clone(), vec![0.0; c.len()]),
                    _ => return None,
                };
                Some((PlanKind::Affine { scale, shift }, vec![b]))
            }
            _ => None,
        }
    }

    fn resize(&self, node: &Node, attrs: &ResizeAttrs, input: ValueId, output: ValueId) -> Option<PlanKind> {
        let (from, to) = (self.graph.value(input).fixed_shape()?, self.graph.value(output).fixed_shape()?);
        if from.len() != to.len() || from.get(..2) != to.get(..2) || attrs.axes.is_some() {
            return None;
        }
        let scales = self.floats(node, 2).filter(|s| s.len() == from.len());
        let mut tables: [Vec<Tap>; 3] = std::array::from_fn(|_| vec![Tap { low: 0, high: 0, weight: 0.0 }]);
        for axis in 2..from.len() {
            let table = resize_table(attrs, from[axis], to[axis], scales.map(|s| s[axis]))?;
            tables[3 + axis - from.len()] = table;
        }
        Some(PlanKind::Resize(Box::new(tables)))
    }

    fn pad(&self, node: &Node, mode: PadMode, input: ValueId) -> Option<PlanKind> {
        if mode == PadMode::Constant || node.input(3).is_some() {
            return None;
        }
        let shape = self.graph.value(input).fixed_shape()?;
        let pads = self.constant(node, 1)?.as_i64()?;
        let rank = shape.len();
        if pads.len() != 2 * rank || [0, 1, rank, rank + 1].iter().any(|i| pads[*i] != 0) {
            return None;
        }
        let mut tables: [Vec<Tap>; 3] = std::array::from_fn(|_| vec![Tap { low: 0, high: 0, weight: 0.0 }]);
        for axis in 2..rank {
            tables[3 + axis - rank] = pad_table(mode, shape[axis], pads[axis], pads[rank + axis])?;
        }
        Some(PlanKind::Resize(Box::new(tables)))
    }

    /// Along channels, where every part starts on a block and some part is blocked already.
    fn concat(&self, node: &Node, axis: i64) -> Option<(PlanKind, Vec<ValueId>)> {
        let output = node.output(0)?;
        let rank = self.graph.value(output).shape.as_ref()?.len() as i64;
        let (whole, images) = self.layout(output)?;
        if axis != 1 && axis + rank != 1 {
            return None;
        }
        let inputs: Vec<ValueId> = node.inputs.iter().copied().collect::<Option<_>>()?;
        if !inputs.iter().any(|v| self.blocked.contains(v)) || inputs.iter().any(|v| self.graph.constant(*v).is_some())
        {
            return None;
        }
        let mut channels = 0;
        let mut blocks = Vec::with_capacity(inputs.len());
        for value in &inputs {
            let (part, n) = self.layout(*value)?;
            if channels % whole.block != 0 || part.block != whole.block || part.dims != whole.dims || n != images {
                return None;
            }
            blocks.push(channels / whole.block);
            channels += part.channels;
        }
        let aligned = inputs.iter().rev().skip(1).all(|v| {
            self.layout(*v).is_some_and(|(p, _)| p.channels % if whole.block == 1 { 1 } else { CHANNEL_BLOCK } == 0)
        });
        aligned.then_some((PlanKind::Concat { blocks }, inputs))
    }

    /// Takes a following residual addition and (leaky) rectifier into a step that can do them on the way out; gives the nodes
    /// taken, in order.
    fn absorb(&self, planned: &mut Planned, plans: &[Option<Plan>]) -> Vec<usize> {
        let free = |index: &usize| plans.get(*index).is_some_and(Option::is_none);
        let mut taken = Vec::new();
        if let PlanKind::InstanceNorm { residual, activation: Activation::None, .. } = &mut planned.kind
            && let Some(next) = self.sole_consumer(planned.output).filter(free)
            && let Op::Binary(BinaryOp::Add) = self.graph.nodes[next].op
        {
            let node = &self.graph.nodes[next];
            let other = node.inputs.iter().flatten().find(|v| **v != planned.output).copied();
            if let (Some(other), Some(output)) = (other, node.output(0))
                && self.layout(other) == self.layout(planned.output)
                && self.layout(other).is_some()
                && self.graph.constant(other).is_none()
            {
                *residual = true;
                planned.inputs.push(other);
                planned.output = output;
                planned.label += " + Add";
                taken.push(next);
            }
        }
        let slot = match &mut planned.kind {
            PlanKind::InstanceNorm { activation, .. }
            | PlanKind::ConvTranspose { activation, .. }
            | PlanKind::Conv { activation, post: None, .. } => activation,
            _ => return taken,
        };
        if *slot == Activation::None
            && let Some(next) = self.sole_consumer(planned.output).filter(free)
            && let Op::Activation(act) = self.graph.nodes[next].op
            && let (Some(epilogue), Some(output)) = (leaky(act), self.graph.nodes[next].output(0))
        {
            *slot = epilogue;
            planned.output = output;
            planned.label += " + ";
            planned.label += op_name(&self.graph.nodes[next].op);
            taken.push(next);
        }
        taken
    }
}

/// A constant as one number a channel: a scalar, or a shape of ones but for the channel axis.
fn per_channel(constant: &Tensor, rank: usize, channels: usize) -> Option<Vec<f32>> {
    let values = constant.as_f32()?;
    if let [one] = values {
        return (constant.shape().len() <= rank).then(|| vec![*one; channels]);
    }
    let shape = constant.shape();
    // Broadcasting aligns the last axes; the channel axis is the second of `rank`.
    let channel_axis = (shape.len() + 1).checked_sub(rank)?;
    let fits = shape.iter().enumerate().all(|(i, n)| if i == channel_axis { *n == channels } else { *n == 1 });
    (fits && values.len() == channels).then(|| values.to_vec())
}

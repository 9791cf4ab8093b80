//! Plans each node of a training graph.

use super::kind::{Plan, Term};
use crate::concat::{channel_parts, first_blocks};
use crate::lower::transposed_shape;
use crate::placement::Placement;
use crate::steps::Norm;
use crate::window::{conv_shape, pool_shape, to_3d};
use cytoscope_graph::{Activation as Act, BinaryOp, ConvAttrs, Graph, Node, Op, ReduceOp, ValueId};
use cytoscope_kernels::conv::{Activation, TransposedShape};
use cytoscope_kernels::pointwise::{Binary, Unary};
use cytoscope_kernels::pool::Pool;
use cytoscope_kernels::resize::Tap;
use cytoscope_kernels::train::Derivative;
use cytoscope_kernels::{Blocked, CHANNEL_BLOCK};
use std::collections::{BTreeMap, BTreeSet};

/// The plans of all nodes, and the number of moments that they use.
pub(crate) struct Plans {
    pub nodes: Vec<Plan>,
    pub moments: usize,
}

pub(crate) fn plan(graph: &Graph) -> Plans {
    let mut planner = Planner {
        graph,
        consumers: graph.consumers(),
        producers: graph.producers(),
        blocked: BTreeSet::new(),
        plans: graph.nodes.iter().map(|_| None).collect(),
        moments_of: BTreeMap::new(),
        moments: 0,
    };
    for index in 0..graph.nodes.len() {
        if planner.plans[index].is_none() {
            planner.plan_node(index);
        }
    }
    let mut nodes: Vec<Plan> = planner.plans.into_iter().map(|p| p.unwrap_or(Plan::Reference)).collect();
    fuse_relu_gradients_into_norms(graph, &mut nodes);
    fuse_gradient_sums(graph, &mut nodes);
    Plans { nodes, moments: planner.moments }
}

/// Counts how often each value is read, including as a graph output.
fn reads(graph: &Graph, plans: &[Plan]) -> BTreeMap<ValueId, usize> {
    let mut reads: BTreeMap<ValueId, usize> = BTreeMap::new();
    for (node, plan) in graph.nodes.iter().zip(plans) {
        let of_node = node.inputs.iter().flatten().copied().filter(|_| matches!(plan, Plan::Reference));
        for id in of_node.chain(plan.inputs()) {
            *reads.entry(id).or_default() += 1;
        }
    }
    graph.outputs.iter().for_each(|id| *reads.entry(*id).or_default() += 1);
    reads
}

/// Returns the index of the plan that computes each blocked value.
fn producing_plans(plans: &[Plan]) -> BTreeMap<ValueId, usize> {
    plans.iter().enumerate().flat_map(|(i, p)| p.outputs().into_iter().map(move |id| (id, i))).collect()
}

/// Fuses the gradient of a (leaky) ReLU into that of the norm before it: the sign of the ReLU's input follows from the
/// norm's input.
fn fuse_relu_gradients_into_norms(graph: &Graph, plans: &mut [Plan]) {
    let (reads, producing_plans) = (reads(graph, plans), producing_plans(plans));
    for index in 0..plans.len() {
        let Plan::NormGradient { x, dy, activation: Activation::None, .. } = &plans[index] else { continue };
        let (x, dy) = (*x, *dy);
        let Some(maker) = producing_plans.get(&dy).copied().filter(|_| reads.get(&dy) == Some(&1)) else { continue };
        let Plan::UnaryGradient { y, dy: before, of: Derivative::Leaky { slope }, .. } = plans[maker] else { continue };
        let of_x = matches!(
            producing_plans.get(&y).map(|m| &plans[*m]),
            Some(Plan::Apply { terms, .. }) if terms.len() == 1 && terms.first().is_some_and(|t| t.x == x)
        );
        if of_x && let Plan::NormGradient { dy, activation, .. } = &mut plans[index] {
            *dy = before;
            *activation = Activation::Leaky { slope };
            plans[maker] = Plan::Absorbed;
        }
    }
}

/// Fuses the sum of two gradients into the convolution gradient that computes the later one.
fn fuse_gradient_sums(graph: &Graph, plans: &mut [Plan]) {
    let (reads, mut producing_plans) = (reads(graph, plans), producing_plans(plans));
    for index in 0..plans.len() {
        let Plan::Binary { f: Binary::Add, a, b, output } = plans[index] else { continue };
        for (late, early) in [(a, b), (b, a)] {
            let (Some(at), Some(before)) = (producing_plans.get(&late).copied(), producing_plans.get(&early).copied())
            else {
                continue;
            };
            let alone = reads.get(&late) == Some(&1) && before < at;
            if let (true, Plan::ConvGradient { dx, accumulate_into, .. }) = (alone, &mut plans[at])
                && accumulate_into.is_none()
            {
                (*dx, *accumulate_into) = (Some(output), Some(early));
                producing_plans.insert(output, at);
                plans[index] = Plan::Absorbed;
                break;
            }
        }
    }
}

struct Planner<'g> {
    graph: &'g Graph,
    consumers: BTreeMap<ValueId, Vec<usize>>,
    producers: BTreeMap<ValueId, usize>,
    /// Values that a plan computes in blocked form.
    blocked: BTreeSet<ValueId>,
    plans: Vec<Option<Plan>>,
    moments_of: BTreeMap<ValueId, usize>,
    moments: usize,
}

/// Returns the negative slope of a (leaky) ReLU, `None` for other activations.
fn slope(act: Act) -> Option<f32> {
    match act {
        Act::Relu => Some(0.0),
        Act::LeakyRelu { alpha } => Some(alpha),
        _ => None,
    }
}

fn unary(act: Act) -> Option<Unary> {
    Some(match act {
        Act::Relu => Unary::Leaky { slope: 0.0 },
        Act::LeakyRelu { alpha } => Unary::Leaky { slope: alpha },
        Act::Sigmoid => Unary::Sigmoid,
        Act::Silu => Unary::Silu,
        Act::Clip { min, max } => Unary::Clip { min, max },
        _ => return None,
    })
}

impl Planner<'_> {
    fn layout(&self, id: ValueId) -> Option<(Blocked, usize)> {
        Placement::plain_layout(self.graph, id)
    }

    /// Returns a value's layout and batch size if it is stored in blocks of full width.
    fn full_block_layout(&self, id: ValueId) -> Option<(Blocked, usize)> {
        self.layout(id).filter(|(l, _)| l.block == CHANNEL_BLOCK)
    }

    fn lengths(&self, id: ValueId) -> Option<Vec<usize>> {
        self.graph.value(id).fixed_shape()?.get(2..).map(<[usize]>::to_vec)
    }

    /// Returns the only consumer of a value that is not an output of the graph, if it has no plan yet.
    fn unplanned_consumer(&self, id: ValueId) -> Option<usize> {
        match self.consumers.get(&id).map(Vec::as_slice) {
            Some([one]) if !self.graph.outputs.contains(&id) && self.plans.get(*one).is_some_and(Option::is_none) => {
                Some(*one)
            }
            _ => None,
        }
    }

    fn plan_node(&mut self, index: usize) {
        let graph = self.graph;
        let node = &graph.nodes[index];
        let plan = self.kernel_plan(index, node);
        let Some((plan, last)) = plan else {
            self.plans[index] = Some(Plan::Reference);
            return;
        };
        self.mark_blocked(&plan);
        if last != index {
            self.plans[index] = Some(Plan::Absorbed);
        }
        self.plans[last] = Some(plan);
    }

    fn mark_blocked(&mut self, plan: &Plan) {
        self.blocked.extend(plan.outputs());
    }

    /// Returns the plan of a node, and the index of the last node that it covers.
    fn kernel_plan(&mut self, index: usize, node: &Node) -> Option<(Plan, usize)> {
        if let Op::Vjp(of) = &node.op {
            return Some((self.gradient(node, of)?, index));
        }
        let (x, output) = (node.input(0)?, node.output(0)?);
        let here = |plan: Plan| Some((plan, index));
        match &node.op {
            Op::Conv(a) => self.conv(index, node, a),
            Op::ConvTranspose(a) => {
                let weight = node.input(1)?;
                let shape = graph_shape(self.graph, weight)?;
                self.layout(x)?;
                let (outputs, _) = self.layout(output)?;
                let kernel = to_3d(&a.kernel, 1);
                let found = transposed_shape(a, &shape, &self.lengths(x)?, outputs.dims)?;
                (found == TransposedShape::exact(kernel))
                    .then_some((Plan::Transposed { x, weight, bias: node.input(2), kernel, output }, index))
            }
            Op::InstanceNormalization { .. } => self.norm(index, node, false),
            Op::BatchNormalizationTraining { .. } => self.norm(index, node, true),
            Op::Activation(act) if self.blocked.contains(&x) => {
                self.layout(output)?;
                here(Plan::Unary { f: unary(*act)?, x, output })
            }
            Op::FakeQuantize { scales, low, high, .. } if self.blocked.contains(&x) => {
                let [scale] = scales[..] else { return None };
                self.layout(output)?;
                here(Plan::Unary { f: Unary::FakeQuantize { scale, low: *low, high: *high }, x, output })
            }
            Op::Binary(op) => self.binary(index, node, *op),
            Op::MaxPool(a) if node.outputs.iter().skip(1).all(Option::is_none) => {
                self.layout(x)?;
                here(Plan::Pool { pool: Pool::Max, shape: pool_shape(a, &self.lengths(x)?), x, output })
            }
            Op::AveragePool(a) if !a.ceil_mode && self.blocked.contains(&x) => {
                let pool = if a.count_include_pad { Pool::AverageWithPadding } else { Pool::Average };
                here(Plan::Pool { pool, shape: pool_shape(a, &self.lengths(x)?), x, output })
            }
            op if op.joined_axis().is_some() => {
                let whole = self.full_block_layout(output)?;
                let inputs = channel_parts(self.graph, node)?;
                if !inputs.iter().any(|i| self.blocked.contains(i)) {
                    return None;
                }
                let blocks = first_blocks(whole, inputs.iter().map(|i| self.full_block_layout(*i)))?;
                here(Plan::Joined { inputs, blocks, output })
            }
            Op::Slice if self.blocked.contains(&x) => {
                let one = |i: usize| node.input(i).and_then(|id| self.graph.constant(id)?.to_i64_vec());
                let (start, axis) = (one(1)?, one(3)?);
                let ([start], [1]) = (&start[..], &axis[..]) else { return None };
                let (whole, _) = self.full_block_layout(x)?;
                let (part, _) = self.full_block_layout(output)?;
                let start = usize::try_from(*start).ok()?;
                let ends_on_block =
                    start + part.channels == whole.channels || part.channels.is_multiple_of(CHANNEL_BLOCK);
                (node.input(4).is_none()
                    && start.is_multiple_of(CHANNEL_BLOCK)
                    && ends_on_block
                    && part.dims == whole.dims)
                    .then_some((Plan::Slice { x, block: start / CHANNEL_BLOCK, output }, index))
            }
            Op::Reduce { kind: ReduceOp::Sum, .. } if self.blocked.contains(&x) => {
                // The gradient of a bias: a sum over all axes but the channel axis, then a reshape to one axis.
                let axes = self.graph.constant(node.input(1)?)?.to_i64_vec()?;
                let rank = graph_shape(self.graph, x)?.len() as i64;
                let next = self.unplanned_consumer(output)?;
                let end = self.graph.nodes.get(next)?;
                let fits = axes == (0..rank).filter(|a| *a != 1).collect::<Vec<_>>()
                    && matches!(end.op, Op::Reshape { .. })
                    && graph_shape(self.graph, end.output(0)?)?.len() == 1;
                fits.then_some((Plan::ChannelSums { x, output: end.output(0)? }, next))
            }
            op if self.blocked.contains(&x) => {
                let to = graph_shape(self.graph, output)?;
                here(Plan::Resample { tables: self.tables(node, op, x, &to)?, x, output })
            }
            _ => None,
        }
    }

    fn conv(&mut self, index: usize, node: &Node, a: &ConvAttrs) -> Option<(Plan, usize)> {
        let (x, weight, output) = (node.input(0)?, node.input(1)?, node.output(0)?);
        self.layout(x)?;
        let (to, _) = self.layout(output)?;
        if a.group != 1 || graph_shape(self.graph, weight)?.len() != self.lengths(x)?.len() + 2 {
            return None;
        }
        let shape = conv_shape(a, &self.lengths(x)?);
        // A (leaky) ReLU that is the only reader is fused into the epilogue.
        let next = self.unplanned_consumer(output);
        if let Some(next) = next
            && let Op::Activation(act) = self.graph.nodes[next].op
            && let (Some(slope), Some(y)) = (slope(act), self.graph.nodes[next].output(0))
        {
            let activation = Activation::Leaky { slope };
            let bias = node.input(2);
            return Some((Plan::Conv { x, weight, bias, shape, activation, moments: None, output: y }, next));
        }
        // The convolution computes the moments if a norm reads its output.
        let normed = self.consumers.get(&output).is_some_and(|all| {
            all.iter().any(|i| {
                matches!(
                    self.graph.nodes[*i].op,
                    Op::InstanceNormalization { .. } | Op::BatchNormalizationTraining { .. }
                )
            })
        });
        let moments = (normed && to.block == CHANNEL_BLOCK).then(|| self.moments_for(output));
        let bias = node.input(2);
        Some((Plan::Conv { x, weight, bias, shape, activation: Activation::None, moments, output }, index))
    }

    /// Returns the index of a tensor's moments, allocating it if needed.
    fn moments_for(&mut self, of: ValueId) -> usize {
        if let Some(known) = self.moments_of.get(&of) {
            return *known;
        }
        self.moments += 1;
        self.moments_of.insert(of, self.moments - 1);
        self.moments - 1
    }

    /// Returns the index of the moments of a tensor, or of an equal tensor that was computed before.
    fn known_moments(&self, of: ValueId) -> Option<usize> {
        let own = self.moments_of.get(&of).copied();
        own.or_else(|| self.moments_of.iter().find(|(id, _)| self.is_same_computation(**id, of, 8)).map(|(_, m)| *m))
    }

    /// Returns whether two tensors are the results of the same computation, looking back at most `depth` operators.
    fn is_same_computation(&self, a: ValueId, b: ValueId, depth: usize) -> bool {
        let maker = |id: ValueId| self.producers.get(&id).and_then(|i| self.graph.nodes.get(*i));
        a == b
            || depth > 0
                && matches!((maker(a), maker(b)), (Some(m), Some(n)) if m.op == n.op
                && m.output(0) == Some(a)
                && n.output(0) == Some(b)
                && m.inputs.len() == n.inputs.len()
                && m.inputs.iter().zip(&n.inputs).all(|pair| match pair {
                    (Some(a), Some(b)) => self.is_same_computation(*a, *b, depth - 1),
                    (a, b) => a == b,
                }))
    }

    /// Returns a normalization as a term, and the moments to compute for it unless a convolution computes them.
    fn norm_term(&mut self, node: &Node) -> Option<(Term, Option<(ValueId, usize)>)> {
        let (epsilon, batch) = match node.op {
            Op::InstanceNormalization { epsilon } => (epsilon, false),
            Op::BatchNormalizationTraining { epsilon } => (epsilon, true),
            _ => return None,
        };
        let (x, scale, bias) = (node.input(0)?, node.input(1)?, node.input(2)?);
        self.full_block_layout(x)?;
        let known = self.moments_of.contains_key(&x);
        let maker = self.producers.get(&x).map(|m| (&self.graph.nodes[*m].op, &self.plans[*m]));
        let from_convolution = matches!(maker, Some((Op::Conv(a), None)) if a.group == 1);
        let moments = self.moments_for(x);
        let new_moments = (!known && !from_convolution).then_some((x, moments));
        Some((Term { x, norm: Some(Norm { moments, scale, bias, epsilon, batch }) }, new_moments))
    }

    /// Plans a norm with the nodes that follow: a sum with another norm or tensor, and a (leaky) ReLU.
    fn norm(&mut self, index: usize, node: &Node, batch: bool) -> Option<(Plan, usize)> {
        let (term, new_moments) = self.norm_term(node)?;
        let mut new_moments: Vec<(ValueId, usize)> = new_moments.into_iter().collect();
        let statistic = |node: &Node, term: &Term| {
            let moments = term.norm.map_or(0, |n| n.moments);
            (moments, node.output(1), node.output(2))
        };
        let mut statistics = Vec::new();
        if batch {
            statistics.push(statistic(node, &term));
        }
        let mut terms = vec![term];
        let mut output = node.output(0)?;
        let mut last = index;
        if let Some(next) = self.unplanned_consumer(output)
            && let Op::Binary(BinaryOp::Add) = self.graph.nodes[next].op
        {
            let graph = self.graph;
            let sum = &graph.nodes[next];
            let other = sum.inputs.iter().flatten().copied().find(|v| *v != output);
            let other = other.filter(|v| self.full_block_layout(*v) == self.full_block_layout(output));
            if let Some(other) = other {
                let maker = self.producers.get(&other).copied();
                let second = maker.filter(|m| *m > index && *m < next && self.plans[*m].is_none());
                let alone = self.unplanned_consumer(other) == Some(next);
                let second = second.filter(|_| alone).and_then(|m| Some((m, self.norm_term(&graph.nodes[m])?)));
                if let Some((m, (term, more))) = second {
                    new_moments.extend(more);
                    terms.push(term);
                    if let (Op::BatchNormalizationTraining { .. }, Some(term)) = (&graph.nodes[m].op, terms.last()) {
                        statistics.push(statistic(&graph.nodes[m], term));
                    }
                    self.plans[m] = Some(Plan::Absorbed);
                    output = sum.output(0)?;
                    last = next;
                } else if self.blocked.contains(&other) {
                    terms.push(Term { x: other, norm: None });
                    output = sum.output(0)?;
                    last = next;
                }
            }
        }
        let mut activation = Activation::None;
        if let Some(next) = self.unplanned_consumer(output)
            && let Op::Activation(act) = self.graph.nodes[next].op
            && let Some(slope) = slope(act)
        {
            activation = Activation::Leaky { slope };
            if last != index {
                self.plans[last] = Some(Plan::Absorbed);
            }
            output = self.graph.nodes[next].output(0)?;
            last = next;
        }
        Some((Plan::Apply { terms, new_moments, activation, statistics, output }, last))
    }

    fn binary(&mut self, index: usize, node: &Node, op: BinaryOp) -> Option<(Plan, usize)> {
        let (a, b, output) = (node.input(0)?, node.input(1)?, node.output(0)?);
        let f = crate::elementwise::binary(op)?;
        let layout = self.layout(output)?;
        let fits = self.layout(a) == Some(layout) && self.layout(b) == Some(layout);
        let is_blocked = self.blocked.contains(&a) || self.blocked.contains(&b);
        let constant = self.graph.constant(a).is_some() || self.graph.constant(b).is_some();
        (fits && is_blocked && !constant).then_some((Plan::Binary { f, a, b, output }, index))
    }

    /// Returns the interpolation tables of a resize (Z, Y, X); `None` for any other operator.
    fn tables(&self, node: &Node, of: &Op, from: ValueId, to: &[usize]) -> Option<Box<[Vec<Tap>; 3]>> {
        let from = graph_shape(self.graph, from)?;
        // The last input of a gradient node is the output's gradient, not an argument of the resize.
        let count = node.inputs.len() - usize::from(matches!(node.op, Op::Vjp(_)));
        crate::resize::tables(self.graph, of, node.inputs.get(..count)?, &from, to)
    }

    fn gradient(&mut self, node: &Node, of: &Op) -> Option<Plan> {
        let dy = node.inputs.last().copied().flatten()?;
        let x = node.input(0)?;
        match of {
            Op::Conv(a) => {
                let weight = node.input(1)?;
                let lengths = self.lengths(x)?;
                self.layout(x)?;
                self.layout(dy)?;
                if a.group != 1 || graph_shape(self.graph, weight)?.len() != lengths.len() + 2 {
                    return None;
                }
                let shape = conv_shape(a, &lengths);
                let (dx, dw, db) = (node.output(0), node.output(1), node.output(2));
                Some(Plan::ConvGradient { x, weight, dy, shape, dx, dw, db, accumulate_into: None })
            }
            Op::InstanceNormalization { epsilon } | Op::BatchNormalizationTraining { epsilon } => {
                self.full_block_layout(x)?;
                let moments = self.known_moments(x)?;
                let batch = matches!(of, Op::BatchNormalizationTraining { .. });
                let (scale, bias) = (node.input(1)?, node.input(2)?);
                let norm = Norm { moments, scale, bias, epsilon: *epsilon, batch };
                let (dx, d_scale, d_bias) = (node.output(0), node.output(1), node.output(2));
                Some(Plan::NormGradient { x, dy, norm, activation: Activation::None, dx, d_scale, d_bias })
            }
            Op::Activation(act) => {
                let slope = slope(*act)?;
                self.blocked.contains(&x).then_some(())?;
                let output = node.output(0)?;
                self.layout(output)?;
                Some(Plan::UnaryGradient { y: x, dy, of: Derivative::Leaky { slope }, output })
            }
            Op::FakeQuantize { scales, low, high, .. } if self.blocked.contains(&x) => {
                let [scale] = scales[..] else { return None };
                let output = node.output(0)?;
                self.layout(output)?;
                let of = Derivative::Within { min: (low - 0.5) * scale, max: (high + 0.5) * scale };
                Some(Plan::UnaryGradient { y: x, dy, of, output })
            }
            Op::MaxPool(a) => {
                self.layout(x)?;
                let (output, shape) = (node.output(0)?, pool_shape(a, &self.lengths(x)?));
                Some(Plan::PoolGradient { pool: Pool::Max, shape, x, dy, output })
            }
            Op::AveragePool(a) if !a.ceil_mode => {
                self.layout(x)?;
                let pool = if a.count_include_pad { Pool::AverageWithPadding } else { Pool::Average };
                let (output, shape) = (node.output(0)?, pool_shape(a, &self.lengths(x)?));
                Some(Plan::PoolGradient { pool, shape, x, dy, output })
            }
            _ => {
                self.layout(x)?;
                let to = graph_shape(self.graph, dy)?;
                Some(Plan::ResampleGradient { tables: self.tables(node, of, x, &to)?, dy, output: node.output(0)? })
            }
        }
    }
}

/// Returns the shape of a value, if all axes are known.
pub(crate) fn graph_shape(graph: &Graph, id: ValueId) -> Option<Vec<usize>> {
    graph.value(id).fixed_shape()
}

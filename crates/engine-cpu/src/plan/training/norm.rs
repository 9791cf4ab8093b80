//! Rules for normalizations whose parameters are trained, with the nodes that follow.

use crate::plan::{Fused, KernelPlan, Plan, PlanKind, Planner};
use crate::steps::{Affine, MergeMoments, Norm, Term};
use cytoscope_graph::{BinaryOp, Node, Op, ValueId, op_name};
use cytoscope_kernels::conv::Activation;

/// A pass under construction.
struct Pass {
    inputs: Vec<ValueId>,
    moments: Vec<(usize, usize)>,
    statistics: Vec<MergeMoments>,
    terms: Vec<Term>,
}

/// A normalization as a term of a pass.
struct NormTerm {
    x: ValueId,
    norm: Norm,
    /// Whether it computes its moments itself; otherwise the convolution before it does.
    computes_moments: bool,
    /// Where the moments of a batch norm are merged into those of the batch.
    statistics: Option<MergeMoments>,
}

impl Pass {
    fn add(&mut self, x: ValueId, affine: Affine) {
        self.terms.push(Term { slot: self.inputs.len(), plane: false, affine });
        self.inputs.push(x);
    }

    fn add_norm(&mut self, term: NormTerm) {
        if term.computes_moments {
            self.moments.push((self.inputs.len(), term.norm.moments));
        }
        self.statistics.extend(term.statistics);
        self.add(term.x, Affine::OfTensors(term.norm));
    }
}

/// The second operand of the sum after a normalization.
enum Addend {
    /// Another normalization and its node.
    Norm(NormTerm, usize),
    Tensor(ValueId),
}

impl Planner<'_> {
    /// Returns the index of a tensor's moments, allocating it if needed.
    pub(super) fn moments_for(&mut self, value: ValueId) -> usize {
        if let Some(known) = self.moments_of.get(&value) {
            return *known;
        }
        let moments = self.new_moments();
        self.moments_of.insert(value, moments);
        moments
    }

    /// Returns a normalization as a term.
    fn trained_norm(&mut self, node: &Node) -> Option<NormTerm> {
        let (epsilon, batch) = match node.op {
            Op::InstanceNormalization { epsilon } => (epsilon, false),
            Op::BatchNormalizationTraining { epsilon } => (epsilon, true),
            _ => return None,
        };
        let (x, scale, bias) = (node.input(0)?, node.input(1)?, node.input(2)?);
        self.full_block_layout(x)?;
        let is_known = self.moments_of.contains_key(&x);
        let maker = self.producers.get(&x).map(|m| (&self.graph.nodes[*m].op, &self.plans[*m]));
        let from_convolution = matches!(maker, Some((Op::Conv(a), None)) if a.group == 1);
        let moments = self.moments_for(x);
        let statistics = batch.then(|| MergeMoments { moments, mean: node.output(1), variance: node.output(2) });
        let norm = Norm { moments, scale, bias, epsilon, batch };
        Some(NormTerm { x, norm, computes_moments: !is_known && !from_convolution, statistics })
    }

    /// Plans a norm with the nodes that follow: a sum with another norm or tensor, and a (leaky) ReLU.
    pub(super) fn norm(&mut self, index: usize, node: &Node) -> Option<Fused> {
        let mut output = node.output(0)?;
        let term = self.trained_norm(node)?;
        let mut pass = Pass { inputs: Vec::new(), moments: Vec::new(), statistics: Vec::new(), terms: Vec::new() };
        pass.add_norm(term);
        let (mut label, mut fused) = (op_name(&node.op).to_owned(), Vec::new());
        if let Some((next, addend, sum)) = self.addend(index, output) {
            match addend {
                Addend::Norm(term, at) => {
                    pass.add_norm(term);
                    self.plans[at] = Some(Plan::Absorbed);
                }
                Addend::Tensor(value) => {
                    let channels = self.layout(value).map_or(0, |(l, _)| l.channels);
                    pass.add(value, Affine::Fixed { scale: vec![1.0; channels], shift: vec![0.0; channels] });
                }
            }
            (output, label) = (sum, label + " + Add");
            fused.push(next);
        }
        let mut activation = Activation::None;
        if let Some((next, act, result)) = self.next_leaky(output) {
            label = label + " + " + op_name(&self.graph.nodes[next].op);
            (activation, output) = (act, result);
            fused.push(next);
        }
        let Pass { inputs, moments, statistics, terms } = pass;
        let kind = PlanKind::Chain { moments, statistics, terms, activation, quantizer: None, head: None };
        Some((KernelPlan { label, ..KernelPlan::new(node, kind, inputs, Some(output)) }, fused))
    }

    /// Returns the addition that is the only consumer of the norm at `index`, its other operand if it can be part of the
    /// same pass, and the sum.
    fn addend(&mut self, index: usize, value: ValueId) -> Option<(usize, Addend, ValueId)> {
        let graph = self.graph;
        let next = self.unplanned_consumer(value)?;
        let sum = &graph.nodes[next];
        let Op::Binary(BinaryOp::Add) = sum.op else { return None };
        let result = sum.output(0)?;
        let other = sum.inputs.iter().flatten().copied().find(|v| *v != value)?;
        if self.full_block_layout(other) != self.full_block_layout(value) {
            return None;
        }
        let later = self.producers.get(&other).copied();
        let later = later.filter(|p| *p > index && *p < next && self.plans[*p].is_none());
        let later = later.filter(|_| self.unplanned_consumer(other) == Some(next));
        if let Some((term, at)) = later.and_then(|p| Some((self.trained_norm(&graph.nodes[p])?, p))) {
            return Some((next, Addend::Norm(term, at), result));
        }
        self.blocked.contains(&other).then_some((next, Addend::Tensor(other), result))
    }

    /// Returns the index of the moments of a tensor, or of an equal tensor that was computed before.
    pub(super) fn known_moments(&self, value: ValueId) -> Option<usize> {
        let own = self.moments_of.get(&value).copied();
        own.or_else(|| self.moments_of.iter().find(|(id, _)| self.is_same_computation(**id, value, 8)).map(|(_, m)| *m))
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
}

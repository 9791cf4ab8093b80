//! Normalisations with what follows them: one statistics pass (in the convolution before, where there is one), one apply pass
//! with residual, activation, quantization and a final convolution to few channels.

use super::kind::PlanHead;
use super::{Plan, PlanKind, Planned, Planner, Waiting};
use crate::step::{Affine, Term};
use cytoscope_graph::{BinaryOp, Node, Op, Padding, ValueId, op_name};
use cytoscope_kernels::CHANNEL_BLOCK;
use cytoscope_kernels::conv::{Activation, Quantizer};

/// 16-bit floats stay below this.
const HALF_ROOM: f64 = 60_000.0;

/// Values of fewer voxels are not kept as 16-bit floats: the memory is nothing, and where the voxels of a channel are all alike
/// (as a single one is) a norm multiplies the rounding by 1 / √ε.
const HALF_VOXELS: usize = 64;

/// A pass as far as it is known.
struct Chain {
    inputs: Vec<ValueId>,
    moments: Vec<(usize, usize)>,
    terms: Vec<Term>,
    label: String,
}

impl Chain {
    fn add(&mut self, waiting: Waiting) {
        let position = self.inputs.len();
        self.inputs.push(waiting.input);
        self.moments.extend(waiting.moments.map(|m| (position, m)));
        self.terms.push(Term { slot: position, ..waiting.term });
        if !self.label.is_empty() {
            self.label += ", ";
        }
        self.label += &waiting.label;
    }
}

impl Planner<'_> {
    /// Plans an instance or group normalisation in blocks with what follows it. False if it is none.
    pub(super) fn chain(&mut self, index: usize, node: &Node) -> bool {
        let Some(output) = self.normalises(node) else { return false };
        let Some(waiting) = self.norm_term(node) else { return false };
        let mut chain = Chain { inputs: Vec::new(), moments: Vec::new(), terms: Vec::new(), label: String::new() };
        let mut taken = Vec::new();
        let mut current = output;
        if let Some((next, other, sum)) = self.next_add(output) {
            let later = self.producers.get(&other).copied().filter(|p| *p > index && self.plans[*p].is_none());
            let waits = later.is_some_and(|p| {
                self.normalises(&self.graph.nodes[p]) == Some(other) && self.sole_consumer(other) == Some(next)
            });
            if waits {
                self.waiting.insert(output, waiting);
                self.plans[index] = Some(Plan::Absorbed);
                return true;
            }
            // The slot worked on in place comes first: an own float buffer rather than a plane or another's.
            let first = match self.waiting.remove(&other) {
                Some(first) => first,
                None => self.plain_term(other),
            };
            let mut both = [first, waiting];
            both.sort_by_key(|w| (w.term.plane, matches!(w.term.affine, Affine::Fixed { .. })));
            both.into_iter().for_each(|w| chain.add(w));
            current = sum;
            chain.label += " + Add";
            taken.push(next);
        } else {
            chain.add(waiting);
        }
        let mut activation = Activation::None;
        if let Some((next, act, output)) = self.next_leaky(current) {
            activation = act;
            current = output;
            chain.label += " + ";
            chain.label += op_name(&self.graph.nodes[next].op);
            taken.push(next);
        }
        let mut quantizer = None;
        let mut head = None;
        if let Some((next, q, bytes)) = self.next_quantize(current) {
            quantizer = Some(q);
            let through = self.next(bytes).filter(|i| matches!(self.graph.nodes[*i].op, Op::DequantizeLinear { .. }));
            let real = through.and_then(|i| self.graph.nodes[i].output(0).map(|v| (i, v)));
            if let Some((dequantize, real)) = real
                && let Some((conv, h, output)) = self.next_head(real, current)
            {
                // The head's weights count in steps of the quantizer.
                let scale = 1.0 / q.inverse_scale;
                let weights = h.weights.iter().map(|w| w * scale).collect();
                head = Some(PlanHead { weights, ..h });
                taken.extend([next, dequantize, conv]);
                current = output;
                chain.label += " + QuantizeLinear + Conv";
            } else {
                taken.push(next);
                current = bytes;
                self.zero_points.insert(bytes, q.zero_point);
                chain.label += " + QuantizeLinear";
            }
        } else if let Some((conv, h, output)) = self.next_head(current, current) {
            head = Some(h);
            taken.push(conv);
            current = output;
            chain.label += " + Conv";
        }
        let macs = head.as_ref().map_or(0, |h| {
            let voxels = self.layout(current).map_or(0, |(l, images)| l.voxels() * images);
            (h.weights.len() * voxels) as u64
        });
        let Chain { inputs, moments, terms, label } = chain;
        let kind = PlanKind::Chain { moments, terms, activation, quantizer, head };
        self.settle(index, taken, Planned { kind, inputs, output: current, border: None, label, macs });
        true
    }

    /// The output of an instance or group normalisation in whole blocks with known parameters.
    fn normalises(&self, node: &Node) -> Option<ValueId> {
        norm_of(node, 1)?;
        let (input, output) = (node.input(0)?, node.output(0)?);
        let (layout, _) = self.layout(output)?;
        let fits = layout.block == CHANNEL_BLOCK
            && self.layout(input) == self.layout(output)
            && self.graph.constant(input).is_none()
            && [1, 2].iter().all(|i| self.floats(node, *i).is_some_and(|v| v.len() == layout.channels));
        fits.then_some(output)
    }

    /// The term of a normalisation: where its input comes from, and how its moments are got.
    fn norm_term(&mut self, node: &Node) -> Option<Waiting> {
        let (input, gamma, beta) = (node.input(0)?, self.floats(node, 1)?.to_vec(), self.floats(node, 2)?.to_vec());
        let label = op_name(&node.op).to_owned();
        let channels = gamma.len();
        let (epsilon, groups) = norm_of(node, channels)?;
        let waiting = |input: ValueId, moments: usize, own: bool, plane: bool, affine: Affine| Waiting {
            input,
            moments: own.then_some(moments),
            term: Term { slot: 0, plane, affine },
            label: label.clone(),
        };
        if groups == channels
            && let Some((plane, weights)) = self.plane_convolution(input)
        {
            let known = self.plane_moments.get(&plane).copied();
            let moments = known.unwrap_or_else(|| self.new_moments());
            self.plane_moments.insert(plane, moments);
            let affine = Affine::PlaneNorm { moments, weights, gamma, beta, epsilon };
            return Some(waiting(plane, moments, known.is_none(), true, affine));
        }
        if let Some(d) = self.dequantized.get(&input).copied() {
            let moments = self.new_moments();
            let factor = vec![1.0 / d.scale; channels];
            let affine = Affine::Norm { moments, gamma, beta, epsilon, factor, groups };
            return Some(waiting(d.bytes, moments, true, false, affine));
        }
        let moments = self.new_moments();
        let (own, factor) = match self.moments_of_convolution(input, moments) {
            Some(factor) => (false, factor),
            None => (true, vec![1.0; channels]),
        };
        Some(waiting(input, moments, own, false, Affine::Norm { moments, gamma, beta, epsilon, factor, groups }))
    }

    /// A value as a term as it stands.
    fn plain_term(&self, value: ValueId) -> Waiting {
        let channels = self.layout(value).map_or(0, |(l, _)| l.channels);
        let (input, scale, shift) = match self.dequantized.get(&value) {
            Some(d) => (d.bytes, d.scale, -d.scale * f32::from(d.zero_point)),
            None => (value, 1.0, 0.0),
        };
        let affine = Affine::Fixed { scale: vec![scale; channels], shift: vec![shift; channels] };
        Waiting { input, moments: None, term: Term { slot: 0, plane: false, affine }, label: String::new() }
    }

    /// The addition that alone follows a value, its other operand, and its output.
    fn next_add(&self, value: ValueId) -> Option<(usize, ValueId, ValueId)> {
        let next = self.next(value)?;
        let node = &self.graph.nodes[next];
        let Op::Binary(BinaryOp::Add) = node.op else { return None };
        let other = node.inputs.iter().flatten().find(|v| **v != value).copied()?;
        let fits = self.layout(other) == self.layout(value) && self.graph.constant(other).is_none();
        fits.then_some((next, other, node.output(0)?))
    }

    /// If a value is a 1×1×1 convolution of one plane that nothing else reads: the plane and the weights. The convolution
    /// need not be computed then.
    fn plane_convolution(&mut self, value: ValueId) -> Option<(ValueId, Vec<f32>)> {
        self.sole_consumer(value)?;
        let at = *self.made_by.get(&value)?;
        let Some(Plan::Kernel(planned)) = self.plans.get(at)?.as_ref() else { return None };
        let (PlanKind::Conv { shape, end, .. } | PlanKind::ConvInt8 { shape, end, .. }) = &planned.kind else {
            return None;
        };
        let plane = self.graph.nodes[at].input(0)?;
        let (layout, _) = self.layout(plane)?;
        let plain = shape.kernel == [1; 3]
            && shape.stride == [1; 3]
            && shape.pad_before == [0; 3]
            && end.activation == Activation::None
            && end.residual.is_none()
            && end.quantizer.is_none()
            && planned.kind.ends()
            && (layout.channels, layout.block) == (1, 1);
        if !plain {
            return None;
        }
        let weights = self.floats(&self.graph.nodes[at], 1)?.to_vec();
        self.plans[at] = Some(Plan::Absorbed);
        self.made_by.remove(&value);
        self.blocked.remove(&value);
        Some((plane, weights))
    }

    /// Has the convolution that makes a value gather its moments on the way, if it can; gives the factors by which what is
    /// stored differs from the value.
    fn moments_of_convolution(&mut self, value: ValueId, moments: usize) -> Option<Vec<f32>> {
        let alone = self.sole_consumer(value).is_some();
        let (layout, _) = self.layout(value)?;
        let at = *self.made_by.get(&value)?;
        let Some(Plan::Kernel(planned)) = self.plans.get_mut(at)?.as_mut() else { return None };
        if !planned.kind.ends() || layout.block != CHANNEL_BLOCK {
            return None;
        }
        let range = match &planned.kind {
            PlanKind::ConvInt8 { weights, end, .. }
                if alone && end.residual.is_none() && end.dynamic.is_none() && layout.voxels() >= HALF_VOXELS =>
            {
                let scale = end.scale.as_deref().unwrap_or_default();
                let bias = end.bias.as_deref().unwrap_or_default();
                let spread = weights.spread();
                let greatest = spread.iter().zip(scale).map(|(s, m)| f64::from(*s) * f64::from(*m));
                let greatest =
                    greatest.enumerate().map(|(c, g)| g + f64::from(bias.get(c).copied().unwrap_or(0.0).abs()));
                Some(greatest.collect::<Vec<f64>>())
            }
            PlanKind::ConvInt8 { .. } | PlanKind::Conv { .. } => None,
            _ => return None,
        };
        let end = planned.kind.end()?;
        if end.activation != Activation::None || end.quantizer.is_some() || end.moments.is_some() {
            return None;
        }
        end.moments = Some(moments);
        let Some(greatest) = range else { return Some(vec![1.0; layout.channels]) };
        // Sums cannot exceed `greatest`, so that this power of two keeps them within 16-bit floats.
        let factor: Vec<f32> = greatest
            .iter()
            .map(|g| if *g > 0.0 { (HALF_ROOM / g).log2().floor().clamp(-100.0, 100.0).exp2() as f32 } else { 1.0 })
            .collect();
        for values in [&mut end.scale, &mut end.bias].into_iter().flatten() {
            values.iter_mut().zip(&factor).for_each(|(v, f)| *v *= f);
        }
        self.halves.insert(value);
        Some(factor)
    }

    /// The 1×1×1 convolution to few channels that alone follows a value of the layout of `like`, and its output.
    fn next_head(&self, value: ValueId, like: ValueId) -> Option<(usize, PlanHead, ValueId)> {
        let next = self.next(value)?;
        let node = &self.graph.nodes[next];
        let Op::Conv(attrs) = &node.op else { return None };
        let output = node.output(0)?;
        let (from, to) = (self.layout(like)?.0, self.layout(output)?.0);
        let axes = attrs.kernel.len();
        let plain = attrs.group == 1
            && attrs.kernel.iter().chain(&attrs.strides).all(|n| *n == 1)
            && attrs.padding == Padding::none(axes)
            && node.input(0) == Some(value)
            && (to.block, to.dims) == (1, from.dims);
        let weights = self.floats(node, 1)?.to_vec();
        let bias = self.optional_floats(node, 2)?.map_or_else(|| vec![0.0; to.channels], <[f32]>::to_vec);
        let fits = weights.len() == to.channels * from.channels && bias.len() == to.channels;
        (plain && fits).then_some((next, PlanHead { channels: from.channels, weights, bias }, output))
    }

    /// The quantization to bytes that alone follows a value, and its output.
    pub(super) fn next_quantize(&self, value: ValueId) -> Option<(usize, Quantizer, ValueId)> {
        let next = self.next(value)?;
        let (quantizer, output) = self.quantizer(&self.graph.nodes[next])?;
        Some((next, quantizer, output))
    }
}

/// ε and the number of groups of an instance or group normalisation of so many channels.
fn norm_of(node: &Node, channels: usize) -> Option<(f32, usize)> {
    match node.op {
        Op::InstanceNormalization { epsilon } => Some((epsilon, channels)),
        Op::GroupNormalization { epsilon, groups } => Some((epsilon, groups)),
        _ => None,
    }
}

//! Plans normalizations with the nodes that follow: one statistics pass (fused into a preceding convolution), and one
//! apply pass with residual, activation, quantization and a final 1×1×1 convolution to few channels.

use super::PendingTerm;
use crate::plan::kind::PlanHead;
use crate::plan::{KernelPlan, Plan, PlanKind, Planner};
use crate::steps::{Affine, Term};
use cytoscope_graph::{BinaryOp, Node, Op, Padding, ValueId, op_name};
use cytoscope_kernels::CHANNEL_BLOCK;
use cytoscope_kernels::conv::{Activation, Quantizer};

/// Largest magnitude stored as a 16-bit float, with a margin below the format's maximum of 65,504.
const F16_LIMIT: f64 = 60_000.0;

/// Values with fewer voxels are not stored as 16-bit floats: they save little memory, and if all voxels of a channel
/// are equal (a single voxel always is), a norm amplifies the rounding error by 1 / √ε.
const F16_MIN_VOXELS: usize = 64;

/// A pass under construction.
struct Chain {
    inputs: Vec<ValueId>,
    moments: Vec<(usize, usize)>,
    terms: Vec<Term>,
    label: String,
}

impl Chain {
    fn add(&mut self, pending: PendingTerm) {
        let position = self.inputs.len();
        self.inputs.push(pending.input);
        self.moments.extend(pending.moments.map(|m| (position, m)));
        self.terms.push(Term { slot: position, ..pending.term });
        if !self.label.is_empty() {
            self.label += ", ";
        }
        self.label += &pending.label;
    }
}

impl Planner<'_> {
    /// Plans a blocked instance or group normalization with the nodes that follow it. Returns false for other nodes.
    pub(in crate::plan) fn chain(&mut self, index: usize, node: &Node) -> bool {
        let Some(output) = self.norm_output(node) else { return false };
        let Some(pending) = self.norm_term(node) else { return false };
        let mut chain = Chain { inputs: Vec::new(), moments: Vec::new(), terms: Vec::new(), label: String::new() };
        let mut fused = Vec::new();
        let mut current = output;
        if let Some((next, other, sum)) = self.next_add(output) {
            let later = self.producers.get(&other).copied().filter(|p| *p > index && self.plans[*p].is_none());
            let other_is_later_norm = later.is_some_and(|p| {
                self.norm_output(&self.graph.nodes[p]) == Some(other) && self.sole_consumer(other) == Some(next)
            });
            if other_is_later_norm {
                self.pending.insert(output, pending);
                self.plans[index] = Some(Plan::Absorbed);
                return true;
            }
            // The first term is overwritten in place: prefer a normalized float buffer over a plane or a plain tensor.
            let first = match self.pending.remove(&other) {
                Some(first) => first,
                None => self.plain_term(other),
            };
            let mut both = [first, pending];
            both.sort_by_key(|w| (w.term.plane, matches!(w.term.affine, Affine::Fixed { .. })));
            both.into_iter().for_each(|w| chain.add(w));
            current = sum;
            chain.label += " + Add";
            fused.push(next);
        } else {
            chain.add(pending);
        }
        let mut activation = Activation::None;
        if let Some((next, act, output)) = self.next_leaky(current) {
            activation = act;
            current = output;
            chain.label += " + ";
            chain.label += op_name(&self.graph.nodes[next].op);
            fused.push(next);
        }
        let mut quantizer = None;
        let mut head = None;
        if let Some((next, q, bytes)) = self.next_quantize(current) {
            quantizer = Some(q);
            let through = self.unplanned_consumer(bytes).filter(|i| self.dequantizes(&self.graph.nodes[*i], bytes, q));
            let real = through.and_then(|i| self.graph.nodes[i].output(0).map(|v| (i, v)));
            if let Some((dequantize, real)) = real
                && let Some((conv, h, output)) = self.next_head(real, current)
            {
                // The head reads quantized values, so the quantizer's scale goes into its weights.
                let scale = 1.0 / q.inverse_scale;
                let weights = h.weights.iter().map(|w| w * scale).collect();
                head = Some(PlanHead { weights, ..h });
                fused.extend([next, dequantize, conv]);
                current = output;
                chain.label += " + QuantizeLinear + Conv";
            } else {
                fused.push(next);
                current = bytes;
                self.zero_points.insert(bytes, q.zero_point);
                chain.label += " + QuantizeLinear";
            }
        } else if let Some((conv, h, output)) = self.next_head(current, current) {
            head = Some(h);
            fused.push(conv);
            current = output;
            chain.label += " + Conv";
        }
        let macs = head.as_ref().map_or(0, |h| {
            let voxels = self.layout(current).map_or(0, |(l, images)| l.voxels() * images);
            (h.weights.len() * voxels) as u64
        });
        let Chain { inputs, moments, terms, label } = chain;
        let kind = PlanKind::Chain { moments, statistics: Vec::new(), terms, activation, quantizer, head };
        let planned = KernelPlan { label, macs, ..KernelPlan::new(node, kind, inputs, Some(current)) };
        self.record(index, fused, planned);
        true
    }

    /// Returns the output of an instance or group normalization with constant parameters, in blocks of full width.
    fn norm_output(&self, node: &Node) -> Option<ValueId> {
        norm_parameters(node, 1)?;
        let (input, output) = (node.input(0)?, node.output(0)?);
        let (layout, _) = self.layout(output)?;
        let fits = layout.block == CHANNEL_BLOCK
            && self.layout(input) == self.layout(output)
            && self.graph.constant(input).is_none()
            && [1, 2].iter().all(|i| self.floats(node, *i).is_some_and(|v| v.len() == layout.channels));
        fits.then_some(output)
    }

    /// Returns the term of a normalization: where its input comes from, and how its moments are computed.
    fn norm_term(&mut self, node: &Node) -> Option<PendingTerm> {
        let (input, gamma, beta) = (node.input(0)?, self.floats(node, 1)?.to_vec(), self.floats(node, 2)?.to_vec());
        let label = op_name(&node.op).to_owned();
        let channels = gamma.len();
        let (epsilon, groups) = norm_parameters(node, channels)?;
        let pending = |input: ValueId, moments: usize, own: bool, plane: bool, affine: Affine| PendingTerm {
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
            return Some(pending(plane, moments, known.is_none(), true, affine));
        }
        if let Some(d) = self.dequantized.get(&input).copied() {
            let moments = self.new_moments();
            let factor = vec![1.0 / d.scale; channels];
            let affine = Affine::Norm { moments, gamma, beta, epsilon, factor, groups };
            return Some(pending(d.bytes, moments, true, false, affine));
        }
        let moments = self.new_moments();
        let (own, factor) = match self.fuse_moments_into_convolution(input, moments) {
            Some(factor) => (false, factor),
            None => (true, vec![1.0; channels]),
        };
        Some(pending(input, moments, own, false, Affine::Norm { moments, gamma, beta, epsilon, factor, groups }))
    }

    /// Returns a value as an unscaled term. Of a dequantized value, the bytes are read: the product of scale and zero point is
    /// rounded before it is subtracted, so that the term can differ from `(byte - zero point) · scale` by up to 2⁻¹⁶ of a
    /// quantization step, also where that is 0. What reads the sum rounds it more.
    fn plain_term(&self, value: ValueId) -> PendingTerm {
        let channels = self.layout(value).map_or(0, |(l, _)| l.channels);
        let (input, scale, shift) = match self.dequantized.get(&value) {
            Some(d) => (d.bytes, d.scale, -d.scale * f32::from(d.zero_point)),
            None => (value, 1.0, 0.0),
        };
        let affine = Affine::Fixed { scale: vec![scale; channels], shift: vec![shift; channels] };
        PendingTerm { input, moments: None, term: Term { slot: 0, plane: false, affine }, label: String::new() }
    }

    /// Returns the addition that is the only consumer of a value, its other operand, and its output.
    fn next_add(&self, value: ValueId) -> Option<(usize, ValueId, ValueId)> {
        let next = self.unplanned_consumer(value)?;
        let node = &self.graph.nodes[next];
        let Op::Binary(BinaryOp::Add) = node.op else { return None };
        let other = node.inputs.iter().flatten().find(|v| **v != value).copied()?;
        let fits = self.layout(other) == self.layout(value) && self.graph.constant(other).is_none();
        fits.then_some((next, other, node.output(0)?))
    }

    /// If a value is a 1×1×1 convolution of one plane that nothing else reads, removes that convolution from the plan
    /// and returns the plane and the weights.
    fn plane_convolution(&mut self, value: ValueId) -> Option<(ValueId, Vec<f32>)> {
        self.sole_consumer(value)?;
        let at = *self.plan_of.get(&value)?;
        let Some(Plan::Kernel(planned)) = self.plans.get(at)?.as_ref() else { return None };
        let (PlanKind::Conv { shape, epilogue, .. } | PlanKind::ConvInt8 { shape, epilogue, .. }) = &planned.kind
        else {
            return None;
        };
        let plane = self.graph.nodes[at].input(0)?;
        let (layout, _) = self.layout(plane)?;
        let plain = shape.kernel == [1; 3]
            && shape.stride == [1; 3]
            && shape.pad_before == [0; 3]
            && epilogue.activation == Activation::None
            && epilogue.residual.is_none()
            && epilogue.quantizer.is_none()
            && planned.kind.epilogue_is_last()
            && (layout.channels, layout.block) == (1, 1);
        if !plain {
            return None;
        }
        let weights = self.floats(&self.graph.nodes[at], 1)?.to_vec();
        self.plans[at] = Some(Plan::Absorbed);
        self.plan_of.remove(&value);
        self.blocked.remove(&value);
        Some((plane, weights))
    }

    /// Lets the convolution that computes a value also compute its moments, if it can. Returns the factor of each
    /// channel by which the stored values differ from the true ones.
    fn fuse_moments_into_convolution(&mut self, value: ValueId, moments: usize) -> Option<Vec<f32>> {
        let alone = self.sole_consumer(value).is_some();
        let (layout, _) = self.layout(value)?;
        let at = *self.plan_of.get(&value)?;
        let Some(Plan::Kernel(planned)) = self.plans.get_mut(at)?.as_mut() else { return None };
        if !planned.kind.epilogue_is_last() || layout.block != CHANNEL_BLOCK {
            return None;
        }
        let range = match &planned.kind {
            PlanKind::ConvInt8 { weights, epilogue, .. }
                if alone
                    && epilogue.residual.is_none()
                    && epilogue.dynamic.is_none()
                    && layout.voxels() >= F16_MIN_VOXELS =>
            {
                let scale = epilogue.scale.as_deref().unwrap_or_default();
                let bias = epilogue.bias.as_deref().unwrap_or_default();
                let spread = weights.max_abs_sums();
                let greatest = spread.iter().zip(scale).map(|(s, m)| f64::from(*s) * f64::from(*m));
                let greatest =
                    greatest.enumerate().map(|(c, g)| g + f64::from(bias.get(c).copied().unwrap_or(0.0).abs()));
                Some(greatest.collect::<Vec<f64>>())
            }
            PlanKind::ConvInt8 { .. } | PlanKind::Conv { .. } => None,
            _ => return None,
        };
        let epilogue = planned.kind.epilogue_mut()?;
        if epilogue.activation != Activation::None || epilogue.quantizer.is_some() || epilogue.moments.is_some() {
            return None;
        }
        epilogue.moments = Some(moments);
        let Some(greatest) = range else { return Some(vec![1.0; layout.channels]) };
        // The sums cannot exceed `greatest`; this power of two keeps them within 16-bit floats.
        let factor: Vec<f32> = greatest
            .iter()
            .map(|g| if *g > 0.0 { (F16_LIMIT / g).log2().floor().clamp(-100.0, 100.0).exp2() as f32 } else { 1.0 })
            .collect();
        for values in [&mut epilogue.scale, &mut epilogue.bias].into_iter().flatten() {
            values.iter_mut().zip(&factor).for_each(|(v, f)| *v *= f);
        }
        self.halves.insert(value);
        Some(factor)
    }

    /// Returns the 1×1×1 convolution to few channels that is the only consumer of a value, and its output. `like` is a
    /// value with the same layout.
    fn next_head(&self, value: ValueId, like: ValueId) -> Option<(usize, PlanHead, ValueId)> {
        let next = self.unplanned_consumer(value)?;
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

    /// Returns the quantize node that is the only consumer of a value, its quantizer and its output.
    pub(in crate::plan) fn next_quantize(&self, value: ValueId) -> Option<(usize, Quantizer, ValueId)> {
        let next = self.unplanned_consumer(value)?;
        let (quantizer, output) = self.quantizer(&self.graph.nodes[next])?;
        Some((next, quantizer, output))
    }
}

/// Returns ε and the number of groups of an instance or group normalization of `channels` channels.
fn norm_parameters(node: &Node, channels: usize) -> Option<(f32, usize)> {
    match node.op {
        Op::InstanceNormalization { epsilon } => Some((epsilon, channels)),
        Op::GroupNormalization { epsilon, groups } => Some((epsilon, groups)),
        _ => None,
    }
}

//! Plans quantized tensors: which stay bytes, and which convolutions run on them.

use super::FusedPlanResult;
use super::float::{ConvParts, TransposedParts};
use crate::plan::{Dequantized, DynamicDequantized, KernelPlan, PlanKind, Planner};
use crate::prepare::StoredWeight;
use crate::steps::{Affine, DynamicScale, Epilogue, Term};
use crate::window::pool_shape;
use cytoscope_graph::{Activation as Act, ConvAttrs, ConvTransposeAttrs, ElementType, Node, Op, Tensor, ValueId};
use cytoscope_kernels::conv::{Activation, PackedConvInt8, Quantizer, Transposed};
use cytoscope_kernels::pool::Pool;
use cytoscope_kernels::{CHANNEL_BLOCK, KernelError};

impl Planner<'_> {
    /// Returns scale and zero point of a per-tensor 8-bit quantize or dequantize node; `dtype` is the 8-bit type.
    fn quantization(&self, node: &Node, dtype: Option<ElementType>) -> Option<(f32, u8)> {
        let [scale] = self.floats(node, 1)? else { return None };
        let zero = match node.input(2) {
            None => 0,
            Some(_) => *self.constant(node, 2)?.to_f64_vec().first()? as i64,
        };
        let zero = match dtype? {
            ElementType::U8 => zero,
            ElementType::I8 => zero + 128,
            _ => return None,
        };
        (scale.is_finite() && *scale > 0.0).then_some((*scale, u8::try_from(zero).ok()?))
    }

    /// Returns the quantizer of a quantize node, and its output.
    pub(super) fn quantizer(&self, node: &Node) -> Option<(Quantizer, ValueId)> {
        let Op::QuantizeLinear { block_size: 0, .. } = node.op else { return None };
        let output = node.output(0)?;
        self.layout(output)?;
        let (scale, zero_point) = self.quantization(node, self.graph.value(output).dtype)?;
        Some((Quantizer::new(scale, zero_point), output))
    }

    /// Returns whether a node dequantizes `bytes` with the scale and zero point of the quantizer that made them.
    pub(super) fn dequantizes(&self, node: &Node, bytes: ValueId, quantizer: Quantizer) -> bool {
        let reads = matches!(node.op, Op::DequantizeLinear { block_size: 0, .. }) && node.input(0) == Some(bytes);
        let found = self.quantization(node, self.graph.value(bytes).dtype).filter(|_| reads);
        found.is_some_and(|(scale, zero_point)| Quantizer::new(scale, zero_point) == quantizer)
    }

    /// Records that a dequantize node's output is stored as bytes. Returns false if the node cannot be treated so.
    pub(in crate::plan) fn dequantize(&mut self, node: &Node) -> bool {
        let Op::DequantizeLinear { block_size: 0, .. } = node.op else { return false };
        let (Some(bytes), Some(output)) = (node.input(0), node.output(0)) else { return false };
        if let Some(dyn_dequantized) = node.input(1).and_then(|scale| self.range_by_scale.get(&scale)).copied() {
            let own = dyn_dequantized.bytes == bytes && self.layout(output).is_some();
            if own {
                self.dyn_dequantized.insert(output, dyn_dequantized);
            }
            return own;
        }
        let known = self.blocked.contains(&bytes) || self.inputs.contains(&bytes);
        let fits = self.layout(bytes).is_some() && self.layout(output).is_some() && known;
        let Some((scale, zero_point)) = self.quantization(node, self.graph.value(bytes).dtype).filter(|_| fits) else {
            return false;
        };
        if *self.zero_points.entry(bytes).or_insert(zero_point) != zero_point {
            return false;
        }
        self.dequantized.insert(output, Dequantized { bytes, scale, zero_point });
        true
    }

    /// Plans a `DynamicQuantizeLinear` node whose outputs are read only by the matching dequantize nodes.
    fn dynamic(&mut self, node: &Node, input: ValueId, output: ValueId) -> Option<KernelPlan> {
        let (scale, zero) = (node.output(1)?, node.output(2)?);
        let readers = [output, scale, zero].map(|v| self.consumers.get(&v).cloned().unwrap_or_default());
        let own = |i: &usize| {
            let reader = &self.graph.nodes[*i];
            matches!(reader.op, Op::DequantizeLinear { .. })
                && [reader.input(0), reader.input(1), reader.input(2)] == [Some(output), Some(scale), Some(zero)]
        };
        let is_graph_output = [output, scale, zero].iter().any(|v| self.outputs.contains(v));
        let (layout, _) = self.layout(input)?;
        // With few channels, bytes pay off only if all readers are convolutions.
        let for_convolutions = |i: &usize| {
            let real = self.graph.nodes[*i].output(0);
            let next = real.and_then(|v| self.consumers.get(&v)).cloned().unwrap_or_default();
            let conv = |n: &usize| matches!(&self.graph.nodes[*n].op, Op::Conv(a) | Op::FusedConv { conv: a, .. } if a.group == 1);
            !next.is_empty() && next.iter().all(conv) && !real.is_some_and(|v| self.outputs.contains(&v))
        };
        let fits = self.purpose.integers()
            && !is_graph_output
            && readers.iter().flatten().all(own)
            && (layout.block == CHANNEL_BLOCK || readers.iter().flatten().all(for_convolutions))
            && self.graph.value(input).dtype == Some(ElementType::F32)
            && self.graph.constant(input).is_none()
            && self.layout(output).is_some();
        if !fits {
            return None;
        }
        let ranges = self.ranges;
        self.ranges += 1;
        self.range_by_scale.insert(scale, DynamicDequantized { bytes: output, ranges });
        self.zero_points.insert(output, 0);
        Some(KernelPlan::new(node, PlanKind::DynamicQuantize(ranges), vec![input], Some(output)))
    }

    /// Plans a node on bytes, if its inputs are stored as bytes.
    pub(super) fn bytes(&mut self, node: &Node) -> FusedPlanResult {
        let (Some(input), Some(output)) = (node.input(0), node.output(0)) else { return Ok(None) };
        if node.op == Op::DynamicQuantizeLinear {
            return Ok(self.dynamic(node, input, output).map(|p| (p, Vec::new())));
        }
        if node.outputs.iter().skip(1).any(Option::is_some) || self.layout(output).is_none() {
            return Ok(None);
        }
        match &node.op {
            Op::QuantizeLinear { .. } => return Ok(self.quantize(node, input).map(|p| (p, Vec::new()))),
            Op::Conv(attrs) => return self.conv_int8(node, attrs, None, false),
            Op::FusedConv { conv, activation, residual } => return self.conv_int8(node, conv, *activation, *residual),
            Op::ConvTranspose(attrs) => return self.conv_transpose_int8(node, attrs),
            _ => {}
        }
        if let Some(planned) = self.joined_bytes(node) {
            return Ok(Some(planned));
        }
        // Operators that select or map single values stay in bytes if input and output are bytes.
        let Some(from) = self.dequantized.get(&input).copied() else { return Ok(None) };
        let Some((next, quantizer, result)) = self.next_quantize(output) else { return Ok(None) };
        let same = Quantizer::new(from.scale, from.zero_point) == quantizer;
        let kind = match &node.op {
            Op::Activation(_) | Op::Unary(_) => self.lookup_table(node, from, quantizer).map(PlanKind::Translate),
            Op::MaxPool(attrs) if same => {
                self.spatial_lengths(input).map(|s| PlanKind::Pool(Pool::Max, pool_shape(attrs, &s)))
            }
            _ if same => self.byte_move(node, input, output),
            _ => None,
        };
        Ok(kind.map(|kind| {
            self.zero_points.insert(result, quantizer.zero_point);
            (KernelPlan::new(node, kind, vec![from.bytes], Some(result)), vec![next])
        }))
    }

    /// Plans a quantize node that could not be fused into the step before it.
    fn quantize(&mut self, node: &Node, input: ValueId) -> Option<KernelPlan> {
        let (quantizer, output) = self.quantizer(node)?;
        self.zero_points.insert(output, quantizer.zero_point);
        if let Some(from) = self.dequantized.get(&input).copied() {
            let table = byte_table(from, quantizer, |t| Some(t.clone()))?;
            return Some(KernelPlan::new(node, PlanKind::Translate(table), vec![from.bytes], Some(output)));
        }
        let (layout, _) = self.layout(input)?;
        if self.graph.constant(input).is_some() || self.graph.value(input).dtype != Some(ElementType::F32) {
            return None;
        }
        let kind = if layout.block == CHANNEL_BLOCK {
            let affine = Affine::Fixed { scale: vec![1.0; layout.channels], shift: vec![0.0; layout.channels] };
            PlanKind::Chain {
                moments: Vec::new(),
                statistics: Vec::new(),
                terms: vec![Term { slot: 0, plane: false, affine }],
                activation: Activation::None,
                quantizer: Some(quantizer),
                head: None,
            }
        } else {
            PlanKind::QuantizePlanes(quantizer)
        };
        Some(KernelPlan::new(node, kind, vec![input], Some(output)))
    }

    /// Returns an element-wise function as a table from byte to byte.
    fn lookup_table(&self, node: &Node, from: Dequantized, to: Quantizer) -> Option<Box<[u8; 256]>> {
        byte_table(from, to, |values| cytoscope_reference::eval(&node.op, &[Some(values)], 1).ok()?.into_iter().next())
    }

    /// Returns the operands of an int8 convolution: the input's bytes, its run-time quantization if any, the weights as
    /// signed bytes, and the stored weight.
    fn int8_operands(&self, node: &Node) -> Option<(Dequantized, Option<usize>, Vec<i8>, &StoredWeight)> {
        if !self.purpose.integers() {
            return None;
        }
        let input = node.input(0)?;
        // Run-time scale and zero point are 1 and 0 here; the actual ones are applied at run time.
        let dyn_dequantized = self
            .dyn_dequantized
            .get(&input)
            .map(|r| (Dequantized { bytes: r.bytes, scale: 1.0, zero_point: 0 }, r.ranges));
        let (from, ranges) = match (self.dequantized.get(&input), dyn_dequantized) {
            (Some(from), _) => (*from, None),
            (None, Some((from, ranges))) => (from, Some(ranges)),
            (None, None) => return None,
        };
        let stored = self.stored.get(&node.input(1)?)?;
        let signed = |v: i32| i8::try_from(v - stored.zero).ok();
        let weights: Option<Vec<i8>> = match (stored.values.as_i8(), stored.values.as_u8()) {
            (Some(v), _) => v.iter().map(|v| signed(i32::from(*v))).collect(),
            (_, Some(v)) => v.iter().map(|v| signed(i32::from(*v))).collect(),
            _ => None,
        };
        Some((from, ranges, weights?, stored))
    }

    fn conv_int8(
        &mut self,
        node: &Node,
        attrs: &ConvAttrs,
        activation: Option<Act>,
        residual: bool,
    ) -> FusedPlanResult {
        let Some((from, ranges, weights, stored)) = self.int8_operands(node) else { return Ok(None) };
        let found = self.conv_parts(node, attrs, (activation, residual), from.bytes, &stored.values);
        // The kernel for narrow blocks cannot add a residual.
        let Some(parts) = found.filter(|parts| !(residual && parts.planar)) else { return Ok(None) };
        let ConvParts { of, shape, in_block, bias, epilogue, post, inputs, borders, .. } = parts;
        let Some(scale) = output_scales(stored, 0, from.scale, of.out_channels) else { return Ok(None) };
        let dynamic = ranges.map(|ranges| {
            let per_output = weights.len() / of.out_channels.max(1);
            let sum = |w: &[i8]| w.iter().map(|v| i32::from(*v)).sum::<i32>() as f32;
            DynamicScale { ranges, weight_sums: weights.chunks_exact(per_output.max(1)).map(sum).collect() }
        });
        let packed = PackedConvInt8::new(self.isa, &weights, from.zero_point, of, in_block);
        let Some(weights) = unless_overflow(packed)? else { return Ok(None) };
        let epilogue = Epilogue { scale: Some(scale), bias: bias.map(<[f32]>::to_vec), dynamic, ..epilogue };
        self.integer_convolutions += 1;
        let kind = PlanKind::ConvInt8 { weights, shape, epilogue, post };
        let planned = KernelPlan::new(node, kind, inputs, node.output(0));
        Ok(Some((KernelPlan { borders, ..planned }, Vec::new())))
    }

    fn conv_transpose_int8(&mut self, node: &Node, attrs: &ConvTransposeAttrs) -> FusedPlanResult {
        let Some((from, ranges, weights, stored)) = self.int8_operands(node) else { return Ok(None) };
        if ranges.is_some() {
            // The sum of the weights differs from tap to tap, so the zero point cannot be folded into the bias.
            return Ok(None);
        }
        let Some(parts) = self.transposed_parts(node, attrs, from.bytes, &stored.values) else { return Ok(None) };
        let TransposedParts { shape, channels, in_block, bias, borders } = parts;
        let Some(scale) = output_scales(stored, 1, from.scale, channels[1]) else { return Ok(None) };
        let packed =
            Transposed::<PackedConvInt8>::new_int8(self.isa, &weights, from.zero_point, channels, &shape, in_block);
        let Some(weights) = unless_overflow(packed)? else { return Ok(None) };
        let epilogue = Epilogue { scale: Some(scale), bias: bias.map(<[f32]>::to_vec), ..Epilogue::default() };
        let kind = PlanKind::ConvTransposeInt8 { weights, shape, epilogue };
        self.integer_convolutions += 1;
        let planned = KernelPlan::new(node, kind, vec![from.bytes], node.output(0));
        Ok(Some((KernelPlan { borders, ..planned }, Vec::new())))
    }
}

/// Returns packed weights, or `None` if their sums could overflow: the convolution is then computed in floats.
fn unless_overflow<P>(packed: Result<P, KernelError>) -> Result<Option<P>, KernelError> {
    match packed {
        Err(KernelError::SumOverflow { .. }) => Ok(None),
        other => other.map(Some),
    }
}

/// Returns the scale of an integer convolution's sums, by output channel.
fn output_scales(stored: &StoredWeight, axis: usize, input_scale: f32, channels: usize) -> Option<Vec<f32>> {
    match stored.scales.as_slice() {
        [one] => Some(vec![input_scale * one; channels]),
        many if many.len() == channels && stored.axis == axis => Some(many.iter().map(|s| s * input_scale).collect()),
        _ => None,
    }
}

/// Returns the table that dequantizes each byte, applies `f`, and quantizes the result.
pub(in crate::plan) fn byte_table(
    from: Dequantized,
    to: Quantizer,
    f: impl Fn(&Tensor) -> Option<Tensor>,
) -> Option<Box<[u8; 256]>> {
    let real = |q: u8| (f32::from(q) - f32::from(from.zero_point)) * from.scale;
    let values = f(&Tensor::vector((0..=255u8).map(real).collect::<Vec<f32>>()))?;
    let zero = f32::from(to.zero_point);
    let bytes: Vec<u8> = values
        .as_f32()?
        .iter()
        .map(|v| ((v * to.inverse_scale).max(-zero).min(255.0 - zero).round_ties_even() + zero) as u8)
        .collect();
    bytes.try_into().ok().map(Box::new)
}

//! Plans single nodes on float kernels.

use super::PlanResult;
use crate::plan::concat::{channel_parts, first_blocks};
use crate::plan::elementwise::{binary, leaky, unary};
use crate::plan::{KernelPlan, PlanKind, Planner, resize};
use crate::steps::Epilogue;
use crate::window::{border, conv_shape, pad_table, to_3d};
use cytoscope_graph::infer::rules::pad_plan;
use cytoscope_graph::{Activation as Act, BinaryOp, ConvAttrs, ConvTransposeAttrs, Node, PadMode, Tensor, ValueId};
use cytoscope_kernels::conv::{Activation, ConvShape, PackedConv, Transposed, TransposedShape, WeightShape};
use cytoscope_kernels::pointwise::Unary;
use cytoscope_kernels::resize::Tap;
use cytoscope_kernels::{Blocked, CHANNEL_BLOCK};

/// A convolution of floats or bytes before its weights are packed.
pub(super) struct ConvParts<'a> {
    pub of: WeightShape,
    pub shape: ConvShape,
    /// Channels of a block of the input.
    pub in_block: usize,
    pub bias: Option<&'a [f32]>,
    /// The activation and the residual.
    pub epilogue: Epilogue,
    /// The activation, if the epilogue cannot compute it.
    pub post: Option<Unary>,
    /// Whether the output is stored in narrow blocks.
    pub planar: bool,
    pub inputs: Vec<ValueId>,
    pub borders: Vec<(ValueId, [usize; 3])>,
}

/// A transposed convolution of floats or bytes before its weights are packed.
pub(super) struct TransposedParts<'a> {
    pub shape: TransposedShape,
    /// Input and output channels.
    pub channels: [usize; 2],
    /// Channels of a block of the input.
    pub in_block: usize,
    pub bias: Option<&'a [f32]>,
    pub borders: Vec<(ValueId, [usize; 3])>,
}

impl<'a> Planner<'a> {
    /// Splits a fused activation into the kernel's epilogue and a separate in-place step.
    fn split_activation(activation: Option<Act>) -> Option<(Activation, Option<Unary>)> {
        match activation.map(|act| (leaky(act), unary(act))) {
            None => Some((Activation::None, None)),
            Some((Some(act), _)) => Some((act, None)),
            Some((None, Some(f))) => Some((Activation::None, Some(f))),
            Some((None, None)) => None,
        }
    }

    /// Plans a float convolution with constant weights.
    pub(super) fn conv(&self, node: &Node, attrs: &ConvAttrs, activation: Option<Act>, residual: bool) -> PlanResult {
        let (Some(input), Some(w)) = (node.input(0), self.constant(node, 1)) else { return Ok(None) };
        let (Some(weights), Some(parts)) = (w.as_f32(), self.conv_parts(node, attrs, (activation, residual), input, w))
        else {
            return Ok(None);
        };
        let ConvParts { of, shape, in_block, bias, epilogue, post, planar, inputs, borders } = parts;
        let weights = PackedConv::new(self.isa, weights, bias, of, in_block)?;
        let kind = PlanKind::Conv { weights, shape, epilogue, planar, post };
        Ok(Some(KernelPlan { borders, ..KernelPlan::new(node, kind, inputs, node.output(0)) }))
    }

    /// Returns the parts of a convolution that reads the value `from`: the node's input, or the bytes that it is stored as.
    /// `None` if no kernel can run the convolution.
    pub(super) fn conv_parts(
        &self,
        node: &Node,
        attrs: &ConvAttrs,
        (activation, residual): (Option<Act>, bool),
        from: ValueId,
        weight: &Tensor,
    ) -> Option<ConvParts<'a>> {
        let (input, output) = (node.input(0)?, node.output(0)?);
        let ((in_layout, _), (out_layout, _)) = (self.layout(from)?, self.layout(output)?);
        let (activation, post) = Self::split_activation(activation)?;
        let bias = self.optional_floats(node, 2)?;
        let lengths = self.spatial_lengths(input).unwrap_or_default();
        let of = weight_shape(attrs, weight, &lengths)?;
        if of.in_channels != in_layout.channels || of.out_channels != out_layout.channels {
            return None;
        }
        let mut inputs = vec![from];
        if residual {
            inputs.push(node.input(3).filter(|r| self.layout(*r) == self.layout(output))?);
        }
        let shape = conv_shape(attrs, &lengths);
        let borders = vec![(from, border(&shape, in_layout.dims, out_layout.dims))];
        let epilogue = Epilogue { residual: residual.then_some(1), activation, ..Epilogue::default() };
        let planar = out_layout.block != CHANNEL_BLOCK;
        Some(ConvParts { of, shape, in_block: in_layout.block, bias, epilogue, post, planar, inputs, borders })
    }

    /// Plans a transposed convolution without groups and dilations whose kernel is not shorter than its stride.
    pub(super) fn conv_transpose(&self, node: &Node, attrs: &ConvTransposeAttrs) -> PlanResult {
        let (Some(input), Some(w)) = (node.input(0), self.constant(node, 1)) else { return Ok(None) };
        let (Some(weights), Some(parts)) = (w.as_f32(), self.transposed_parts(node, attrs, input, w)) else {
            return Ok(None);
        };
        let TransposedParts { shape, channels, in_block, bias, borders } = parts;
        let weights = Transposed::<PackedConv>::new(self.isa, weights, bias, channels, &shape, in_block)?;
        let kind = PlanKind::ConvTranspose { weights, shape, epilogue: Epilogue::default() };
        Ok(Some(KernelPlan { borders, ..KernelPlan::new(node, kind, vec![input], node.output(0)) }))
    }

    /// As [`Self::conv_parts`], for a transposed convolution.
    pub(super) fn transposed_parts(
        &self,
        node: &Node,
        attrs: &ConvTransposeAttrs,
        from: ValueId,
        weight: &Tensor,
    ) -> Option<TransposedParts<'a>> {
        let ((in_layout, _), (out_layout, _)) = (self.layout(from)?, self.layout(node.output(0)?)?);
        let bias = self.optional_floats(node, 2)?;
        let channels = [*weight.shape().first()?, *weight.shape().get(1)?];
        if channels != [in_layout.channels, out_layout.channels] {
            return None;
        }
        let shape = transposed_shape(attrs, weight.shape(), &self.spatial_lengths(from)?, out_layout.dims)?;
        let borders = vec![(from, shape.border(in_layout.dims, out_layout.dims))];
        Some(TransposedParts { shape, channels, in_block: in_layout.block, bias, borders })
    }

    pub(super) fn batch_norm(&self, node: &Node, epsilon: f32) -> Option<PlanKind> {
        let (scale, bias) = (self.floats(node, 1)?, self.floats(node, 2)?);
        let (mean, variance) = (self.floats(node, 3)?, self.floats(node, 4)?);
        let gain: Vec<f32> = scale.iter().zip(variance).map(|(s, v)| s / (v + epsilon).sqrt()).collect();
        let shift = bias.iter().zip(mean.iter().zip(&gain)).map(|(b, (m, g))| b - m * g).collect();
        Some(PlanKind::Affine { scale: gain, shift })
    }

    /// Plans a binary operator on two tensors of the same shape, or on a tensor and a constant scalar or per-channel
    /// vector.
    pub(super) fn binary(&self, op: BinaryOp, node: &Node, output: ValueId) -> Option<(PlanKind, Vec<ValueId>)> {
        let (a, b) = (node.input(0)?, node.input(1)?);
        let (layout, images) = self.layout(output)?;
        let same = |v: ValueId| self.layout(v) == Some((layout, images));
        match (self.graph.constant(a), self.graph.constant(b)) {
            (None, None) => {
                let f = binary(op)?;
                let is_cheap_in_blocks = self.is_cheap_in_blocks(a) || self.is_cheap_in_blocks(b);
                (is_cheap_in_blocks && same(a) && same(b)).then(|| (PlanKind::Binary(f), vec![a, b]))
            }
            (None, Some(c)) if same(a) && self.is_cheap_in_blocks(a) => {
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
            (Some(c), None) if same(b) && self.is_cheap_in_blocks(b) => {
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

    /// Plans a resize that the kernel supports; `None` for any other operator.
    pub(in crate::plan) fn resize(&self, node: &Node, input: ValueId, output: ValueId) -> Option<PlanKind> {
        let (from, to) = (self.graph.value(input).fixed_shape()?, self.graph.value(output).fixed_shape()?);
        resize::tables(self.graph, &node.op, &node.inputs, &from, &to).map(PlanKind::Resample)
    }

    /// Plans padding and cropping along the spatial axes by constant amounts.
    pub(super) fn pad(&self, node: &Node, mode: PadMode, input: ValueId) -> Option<PlanKind> {
        let shape = self.graph.value(input).fixed_shape()?;
        let rank = shape.len();
        let axes = match node.input(3) {
            Some(_) => Some(self.constant(node, 3)?.as_i64()?),
            None => None,
        };
        let amounts = pad_plan(rank, self.constant(node, 1)?.as_i64()?, axes).ok()?;
        let (outer, spatial) = amounts.split_at_checked(2)?;
        if !(1..=3).contains(&spatial.len()) || outer.iter().any(|amounts| *amounts != (0, 0)) || shape.contains(&0) {
            return None;
        }
        let mut tables: [Vec<Tap>; 3] = std::array::from_fn(|_| vec![Tap { low: 0, high: 0, weight: 0.0 }]);
        let mut from_input = true;
        for (axis, (before, after)) in (2..rank).zip(spatial) {
            match pad_table(mode, shape[axis], *before, *after) {
                Some(table) => tables[3 + axis - rank] = table,
                None => from_input = false,
            }
        }
        if from_input {
            return Some(PlanKind::Resample(Box::new(tables)));
        }
        if mode != PadMode::Constant {
            return None;
        }
        let value = match node.input(2) {
            Some(_) => self.floats(node, 2)?.first().copied().unwrap_or_default(),
            None => 0.0,
        };
        let mut all = [0isize; 3];
        for (to, (before, _)) in all.iter_mut().rev().zip(spatial.iter().rev()) {
            *to = isize::try_from(*before).ok()?;
        }
        Some(PlanKind::Pad { before: all, value })
    }

    /// Plans a concatenation along channels if at least one part is blocked.
    pub(super) fn concat(&self, node: &Node) -> Option<(PlanKind, Vec<ValueId>)> {
        let (whole, images) = self.layout(node.output(0)?)?;
        let inputs = channel_parts(self.graph, node)?;
        if !inputs.iter().any(|v| self.is_cheap_in_blocks(*v))
            || inputs.iter().any(|v| self.graph.constant(*v).is_some())
        {
            return None;
        }
        let parts = inputs.iter().map(|value| self.layout(*value)).collect::<Option<Vec<_>>>()?;
        let tables = inputs.iter().map(|_| None).collect();
        Some((joined((whole, images), &parts, tables)?, inputs))
    }
}

/// Returns how the parts of a concatenation along the channels are joined, each converted by its table, if any: side by
/// side in one buffer if every part starts at a block boundary of `whole`, else by copying their channels. `None` if the
/// parts do not fit.
pub(super) fn joined(
    whole: (Blocked, usize),
    parts: &[(Blocked, usize)],
    tables: Vec<Option<Box<[u8; 256]>>>,
) -> Option<PlanKind> {
    if let Some(blocks) = first_blocks(whole, parts.iter().copied().map(Some)) {
        return Some(PlanKind::Joined { blocks, tables });
    }
    let (layout, images) = whole;
    let fits = parts.iter().all(|(part, n)| part.dims == layout.dims && *n == images);
    let channels = parts.iter().map(|(part, _)| part.channels).sum::<usize>();
    (fits && channels == layout.channels).then_some(PlanKind::Join { tables })
}

/// Returns the dimensions of a convolution's weight, or `None` if it does not match the attributes.
fn weight_shape(attrs: &ConvAttrs, weight: &Tensor, lengths: &[usize]) -> Option<WeightShape> {
    let shape = weight.shape();
    if attrs.kernel.len() != lengths.len() || shape.len() != lengths.len() + 2 || attrs.group == 0 {
        return None;
    }
    let (out_channels, per_group) = (*shape.first()?, *shape.get(1)?);
    let taps = shape.get(2..)?.iter().product();
    Some(WeightShape { out_channels, in_channels: per_group.checked_mul(attrs.group)?, taps, groups: attrs.group })
}

/// Returns the geometry of a transposed convolution from an input of these lengths to `outputs` voxels, or `None` if the
/// kernels do not support it: groups, dilations, a kernel shorter than the stride, zeros before the first output, or, with
/// a kernel of the stride's length, outputs that are cropped or added at the end only.
pub(in crate::plan) fn transposed_shape(
    attrs: &ConvTransposeAttrs,
    weight_shape: &[usize],
    lengths: &[usize],
    outputs: [usize; 3],
) -> Option<TransposedShape> {
    let is_plain = attrs.group == 1
        && attrs.dilations.iter().all(|d| *d == 1)
        && weight_shape.get(2..) == Some(attrs.kernel.as_slice())
        && lengths.len() <= 3;
    let long_enough = attrs.kernel.iter().zip(&attrs.strides).all(|(kernel, stride)| kernel >= stride && *stride > 0);
    if !is_plain || !long_enough {
        return None;
    }
    let before = attrs.geometry(lengths).ok()?.before;
    let before: Vec<usize> = before.into_iter().map(|b| usize::try_from(b).ok()).collect::<Option<_>>()?;
    let (kernel, stride, pad_before) = (to_3d(&attrs.kernel, 1), to_3d(&attrs.strides, 1), to_3d(&before, 0));
    let shape = TransposedShape { kernel, stride, pad_before };
    let inputs = to_3d(lengths, 1);
    let fills = (0..3).all(|axis| outputs[axis] == inputs[axis] * kernel[axis]);
    (fills || shape != TransposedShape::exact(kernel)).then_some(shape)
}

/// Returns a constant as one number per channel: a scalar, or a tensor that varies along the channel axis only.
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

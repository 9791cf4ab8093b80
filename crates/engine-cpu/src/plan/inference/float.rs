//! Plans single nodes on float kernels.

use super::PlanResult;
use crate::plan::elementwise::{binary, leaky, unary};
use crate::plan::{KernelPlan, PlanKind, Planner};
use crate::steps::{Epilogue, FloatWeights};
use crate::window::{border, conv_shape, to_3d};
use cytoscope_graph::{Activation as Act, BinaryOp, ConvAttrs, ConvTransposeAttrs, Node, Tensor, ValueId};
use cytoscope_kernels::CHANNEL_BLOCK;
use cytoscope_kernels::conv::{
    Activation, ConvShape, PackedConv, PackedConvBf16, Transposed, TransposedShape, WeightShape,
};
use cytoscope_kernels::pointwise::Unary;

/// A convolution of floats or bytes before its weights are packed.
pub(super) struct ConvParts<'a> {
    /// Channels, groups and taps of the weights.
    pub of: WeightShape,
    /// How the kernel moves over the input along Z, Y, X.
    pub shape: ConvShape,
    /// Channels of a block of the input.
    pub in_block: usize,
    /// Bias of each output channel; `None` means 0.
    pub bias: Option<&'a [f32]>,
    /// The activation and the residual.
    pub epilogue: Epilogue,
    /// The activation, if the epilogue cannot compute it.
    pub post: Option<Unary>,
    /// Whether the output is stored in narrow blocks.
    pub planar: bool,
    /// Blocked values that are read: the input or its bytes, then the residual, if there is one.
    pub inputs: Vec<ValueId>,
    /// Values that need a border, with its width along Z, Y, X.
    pub borders: Vec<(ValueId, [usize; 3])>,
}

/// A transposed convolution of floats or bytes before its weights are packed.
pub(super) struct TransposedParts<'a> {
    /// How the kernel moves over the output along Z, Y, X.
    pub shape: TransposedShape,
    /// Input and output channels.
    pub channels: [usize; 2],
    /// Channels of a block of the input.
    pub in_block: usize,
    /// Bias of each output channel; `None` means 0.
    pub bias: Option<&'a [f32]>,
    /// Values that need a border, with its width along Z, Y, X.
    pub borders: Vec<(ValueId, [usize; 3])>,
}

impl<'a> Planner<'a> {
    /// Splits a fused activation into the kernel's epilogue and a separate in-place step.
    fn split_activation(activation: Option<Act>) -> (Activation, Option<Unary>) {
        match activation.map(|act| (leaky(act), unary(act))) {
            None => (Activation::None, None),
            Some((Some(act), _)) => (act, None),
            Some((None, f)) => (Activation::None, Some(f)),
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
        let in_bf16 = self.purpose.multiplies_bf16() && !planar;
        let weights = if in_bf16 && PackedConvBf16::supports(self.isa, &of, &shape, in_block) {
            FloatWeights::Bf16(PackedConvBf16::new(self.isa, weights, bias, of, &shape, in_block)?)
        } else {
            FloatWeights::F32(PackedConv::new(self.isa, weights, bias, of, in_block)?)
        };
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
        let (activation, post) = Self::split_activation(activation);
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

    /// Like [`Self::conv_parts`], for a transposed convolution.
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

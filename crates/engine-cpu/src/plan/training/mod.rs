//! Rules for the steps of training: weights are tensors of the run, values that the backward pass reads are kept, and
//! gradients are planned like other operators. Parameter gradients, losses and everything without a kernel are dense
//! tensors.

mod fuse;
mod gradient;
mod norm;

pub(super) use fuse::fuse_gradients;

use super::elementwise::{binary, unary};
use super::gradient_kind::GradientKind;
use super::inference::transposed_shape;
use super::{Fused, KernelPlan, PlanKind, Planner};
use crate::steps::Epilogue;
use crate::window::{border, conv_shape, pool_shape, to_3d};
use cytoscope_graph::{Activation, BinaryOp, ConvAttrs, ConvTransposeAttrs, Node, Op, ReduceOp, ValueId};
use cytoscope_kernels::conv::TransposedShape;
use cytoscope_kernels::pointwise::Unary;
use cytoscope_kernels::pool::Pool;
use cytoscope_kernels::{Blocked, CHANNEL_BLOCK};

impl Planner<'_> {
    /// Returns a value's layout and batch size if it is stored in blocks of full width.
    pub(super) fn full_block_layout(&self, value: ValueId) -> Option<(Blocked, usize)> {
        self.layout(value).filter(|(l, _)| l.block == CHANNEL_BLOCK)
    }

    fn shape(&self, value: ValueId) -> Option<Vec<usize>> {
        self.graph.value(value).fixed_shape()
    }

    /// Returns the kernel plan of a node of a training step, if there is one.
    pub(super) fn training_kernel(&mut self, index: usize, node: &Node) -> Option<Fused> {
        match &node.op {
            Op::Vjp(of) => return Some((self.gradient(node, of)?, Vec::new())),
            Op::InstanceNormalization { .. } | Op::BatchNormalizationTraining { .. } => return self.norm(index, node),
            Op::Reduce { kind: ReduceOp::Sum, .. } => return self.bias_gradient(node),
            _ => {}
        }
        let (x, output) = (node.input(0)?, node.output(0)?);
        let is_blocked = self.blocked.contains(&x);
        let (kind, inputs) = match &node.op {
            Op::Conv(attrs) => return Some((self.conv_of_tensors(node, attrs)?, Vec::new())),
            Op::Binary(op) => self.plan_binary_of_tensors(node, *op)?,
            Op::ConvTranspose(attrs) => (self.plan_conv_transpose_of_tensors(node, attrs)?, vec![x]),
            // The gradients of other activations have no kernel, and read a dense tensor.
            Op::Activation(
                act @ (Activation::Relu
                | Activation::LeakyRelu { .. }
                | Activation::Sigmoid
                | Activation::Silu
                | Activation::Clip { .. }),
            ) if is_blocked => {
                self.layout(output)?;
                (PlanKind::Unary(unary(*act)), vec![x])
            }
            Op::FakeQuantize { scales, low, high, .. } if is_blocked => {
                let [scale] = scales[..] else { return None };
                self.layout(output)?;
                (PlanKind::Unary(Unary::FakeQuantize { scale, low: *low, high: *high }), vec![x])
            }
            Op::MaxPool(attrs) if node.outputs.iter().skip(1).all(Option::is_none) => {
                self.layout(x)?;
                (PlanKind::Pool(Pool::Max, pool_shape(attrs, &self.spatial_lengths(x)?)), vec![x])
            }
            Op::AveragePool(attrs) if !attrs.ceil_mode && is_blocked => {
                let pool = if attrs.count_include_pad { Pool::AverageWithPadding } else { Pool::Average };
                (PlanKind::Pool(pool, pool_shape(attrs, &self.spatial_lengths(x)?)), vec![x])
            }
            _ => self.training_move(node, x, output)?,
        };
        Some((KernelPlan::new(node, kind, inputs, Some(output)), Vec::new()))
    }

    /// Plans a convolution, which also computes the moments if a norm reads its output.
    fn conv_of_tensors(&mut self, node: &Node, attrs: &ConvAttrs) -> Option<KernelPlan> {
        let (x, weight, output) = (node.input(0)?, node.input(1)?, node.output(0)?);
        let ((from, _), (to, _)) = (self.layout(x)?, self.layout(output)?);
        let lengths = self.spatial_lengths(x)?;
        if attrs.group != 1 || self.shape(weight)?.len() != lengths.len() + 2 {
            return None;
        }
        let shape = conv_shape(attrs, &lengths);
        let is_norm = |i: &usize| {
            matches!(self.graph.nodes[*i].op, Op::InstanceNormalization { .. } | Op::BatchNormalizationTraining { .. })
        };
        let is_normed = self.consumers.get(&output).is_some_and(|readers| readers.iter().any(is_norm));
        let moments = (is_normed && to.block == CHANNEL_BLOCK).then(|| self.moments_for(output));
        let epilogue = Epilogue { moments, ..Epilogue::default() };
        let kind = PlanKind::ConvOfTensors { weight, bias: node.input(2), shape, epilogue };
        let borders = vec![(x, border(&shape, from.dims, to.dims))];
        Some(KernelPlan { borders, ..KernelPlan::new(node, kind, vec![x], Some(output)) })
    }

    /// Plans a transposed convolution whose kernel size equals its stride.
    fn plan_conv_transpose_of_tensors(&self, node: &Node, attrs: &ConvTransposeAttrs) -> Option<PlanKind> {
        let (x, weight) = (node.input(0)?, node.input(1)?);
        self.layout(x)?;
        let (outputs, _) = self.layout(node.output(0)?)?;
        let kernel = to_3d(&attrs.kernel, 1);
        let found = transposed_shape(attrs, &self.shape(weight)?, &self.spatial_lengths(x)?, outputs.dims)?;
        (found == TransposedShape::exact(kernel)).then_some(PlanKind::ConvTransposeOfTensors {
            weight,
            bias: node.input(2),
            kernel,
        })
    }

    /// Plans the gradient of a bias: a sum over all axes but the channel axis, then a reshape to one axis.
    fn bias_gradient(&self, node: &Node) -> Option<Fused> {
        let (x, sum) = (node.input(0).filter(|x| self.blocked.contains(x))?, node.output(0)?);
        let axes = self.constant(node, 1)?.to_i64_vec()?;
        let rank = self.shape(x)?.len() as i64;
        let next = self.unplanned_consumer(sum)?;
        let end = self.graph.nodes.get(next)?;
        let output = end.output(0)?;
        let fits = axes == (0..rank).filter(|a| *a != 1).collect::<Vec<_>>()
            && matches!(end.op, Op::Reshape { .. })
            && self.shape(output)?.len() == 1;
        let kind = PlanKind::Gradient(GradientKind::ChannelSums(output));
        fits.then(|| (KernelPlan::new(node, kind, vec![x], None), vec![next]))
    }

    /// Plans a binary operator on two tensors of the same shape.
    fn plan_binary_of_tensors(&self, node: &Node, op: BinaryOp) -> Option<(PlanKind, Vec<ValueId>)> {
        let (a, b) = (node.input(0)?, node.input(1)?);
        let f = binary(op)?;
        let layout = self.layout(node.output(0)?)?;
        let fits = self.layout(a) == Some(layout) && self.layout(b) == Some(layout);
        let is_blocked = self.blocked.contains(&a) || self.blocked.contains(&b);
        let is_constant = self.graph.constant(a).is_some() || self.graph.constant(b).is_some();
        (fits && is_blocked && !is_constant).then(|| (PlanKind::Binary(f), vec![a, b]))
    }
}

//! Rules for gradients: vector-Jacobian products of operators with kernels.

use crate::plan::elementwise::leaky;
use crate::plan::gradient_kind::GradientKind;
use crate::plan::{KernelPlan, PlanKind, Planner};
use crate::steps::Norm;
use crate::window::{border, conv_shape, input_gradient_border, pool_shape};
use cytoscope_graph::{ConvAttrs, Node, Op, ValueId};
use cytoscope_kernels::conv::Activation;
use cytoscope_kernels::pool::Pool;
use cytoscope_kernels::train::Derivative;

impl Planner<'_> {
    /// Plans the gradient of an operator with a kernel.
    pub(super) fn gradient(&self, node: &Node, forward_op: &Op) -> Option<KernelPlan> {
        let (x, dy) = (node.input(0)?, node.inputs.last().copied().flatten()?);
        let plan = |kind: GradientKind, inputs: Vec<ValueId>, output: Option<ValueId>| {
            KernelPlan::new(node, PlanKind::Gradient(kind), inputs, output)
        };
        match forward_op {
            Op::Conv(attrs) => return self.conv_gradient(node, attrs, x, dy),
            Op::InstanceNormalization { epsilon } | Op::BatchNormalizationTraining { epsilon } => {
                self.full_block_layout(x)?;
                let moments = self.known_moments(x)?;
                let batch = matches!(forward_op, Op::BatchNormalizationTraining { .. });
                let norm = Norm { moments, scale: node.input(1)?, bias: node.input(2)?, epsilon: *epsilon, batch };
                let (d_scale, d_bias) = (node.output(1), node.output(2));
                let kind = GradientKind::Norm { norm, activation: Activation::None, d_scale, d_bias };
                return Some(plan(kind, vec![dy, x], node.output(0)));
            }
            _ => {}
        }
        let output = node.output(0)?;
        let (kind, inputs) = match forward_op {
            Op::Activation(act) => {
                let Activation::Leaky { slope } = leaky(*act)? else { return None };
                self.blocked.contains(&x).then_some(())?;
                self.layout(output)?;
                (GradientKind::Unary(Derivative::Leaky { slope }), vec![dy, x])
            }
            Op::FakeQuantize { scales, low, high, .. } if self.blocked.contains(&x) => {
                let [scale] = scales[..] else { return None };
                self.layout(output)?;
                let derivative = Derivative::Within { min: (low - 0.5) * scale, max: (high + 0.5) * scale };
                (GradientKind::Unary(derivative), vec![dy, x])
            }
            Op::MaxPool(attrs) => {
                self.layout(x)?;
                (GradientKind::Pool(Pool::Max, pool_shape(attrs, &self.spatial_lengths(x)?)), vec![x, dy])
            }
            Op::AveragePool(attrs) if !attrs.ceil_mode => {
                self.layout(x)?;
                let pool = if attrs.count_include_pad { Pool::AverageWithPadding } else { Pool::Average };
                (GradientKind::Pool(pool, pool_shape(attrs, &self.spatial_lengths(x)?)), vec![x, dy])
            }
            _ => self.move_gradient(node, forward_op, x, dy)?,
        };
        Some(plan(kind, inputs, Some(output)))
    }

    /// Plans the requested gradients of a convolution.
    fn conv_gradient(&self, node: &Node, attrs: &ConvAttrs, x: ValueId, dy: ValueId) -> Option<KernelPlan> {
        let weight = node.input(1)?;
        let lengths = self.spatial_lengths(x)?;
        let ((from, _), (to, _)) = (self.layout(x)?, self.layout(dy)?);
        if attrs.group != 1 || self.shape(weight)?.len() != lengths.len() + 2 {
            return None;
        }
        let shape = conv_shape(attrs, &lengths);
        let (dx, d_weight, d_bias) = (node.output(0), node.output(1), node.output(2));
        let mut borders = Vec::new();
        if d_weight.is_some() {
            borders.push((x, border(&shape, from.dims, to.dims)));
        }
        if dx.is_some() {
            borders.push((dy, input_gradient_border(&shape, from.dims, to.dims)));
        }
        let kind = GradientKind::Conv { weight, shape, d_weight, d_bias, accumulates: false };
        Some(KernelPlan { borders, ..KernelPlan::new(node, PlanKind::Gradient(kind), vec![x, dy], dx) })
    }
}

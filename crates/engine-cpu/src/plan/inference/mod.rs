//! Rules for inference: weights are constants.

mod bytes;
mod chain;
mod float;

pub(super) use bytes::byte_table;
pub(super) use float::transposed_shape;

use super::elementwise::unary;
use super::{Fused, KernelPlan, PlanKind, Planner};
use crate::steps::Term;
use crate::window::pool_shape;
use cytoscope_graph::{ElementType, Node, Op, UnaryOp, ValueId};
use cytoscope_kernels::KernelError;
use cytoscope_kernels::conv::Activation;
use cytoscope_kernels::pointwise::Unary;
use cytoscope_kernels::pool::Pool;

/// A term of a sum whose other term is not planned yet: its input, the moments to compute of it, and the term.
pub(super) struct PendingTerm {
    input: ValueId,
    moments: Option<usize>,
    term: Term,
    label: String,
}

type PlanResult = Result<Option<KernelPlan>, KernelError>;

/// Result of a rule that may fuse following nodes.
type FusedPlanResult = Result<Option<Fused>, KernelError>;

impl<'a> Planner<'a> {
    pub(super) fn floats(&self, node: &Node, input: usize) -> Option<&'a [f32]> {
        self.constant(node, input)?.as_f32()
    }

    /// Returns an optional float constant: `Some(None)` if the input is absent, `None` if it is present but not
    /// constant.
    #[allow(clippy::option_option)]
    fn optional_floats(&self, node: &Node, input: usize) -> Option<Option<&'a [f32]>> {
        if node.input(input).is_none() { Some(None) } else { self.floats(node, input).map(Some) }
    }

    /// Returns whether a value is in blocked form, or can be brought into it cheaply.
    pub(super) fn is_cheap_in_blocks(&self, value: ValueId) -> bool {
        self.blocked.contains(&value)
            || self.dequantized.contains_key(&value)
            || self.dyn_dequantized.contains_key(&value)
            || (self.inputs.contains(&value) && self.layout(value).is_some_and(|(l, _)| l.channels == 1))
    }

    /// Returns the kernel plan of a node: on bytes if its inputs are stored as bytes.
    pub(super) fn inference_kernel(&mut self, node: &Node) -> FusedPlanResult {
        Ok(match self.bytes(node)? {
            Some(found) => Some(found),
            None => self.float_kernel(node)?.map(|planned| (planned, Vec::new())),
        })
    }

    /// Returns the float kernel plan of a node, if there is one.
    fn float_kernel(&self, node: &Node) -> PlanResult {
        let (Some(input), Some(output)) = (node.input(0), node.output(0)) else { return Ok(None) };
        if node.outputs.iter().skip(1).any(Option::is_some) || self.layout(output).is_none() {
            return Ok(None);
        }
        let plan = |kind: PlanKind, inputs: Vec<ValueId>| KernelPlan::new(node, kind, inputs, Some(output));
        let is_float_input = self.layout(input).is_some()
            && self.graph.constant(input).is_none()
            && self.graph.value(input).dtype == Some(ElementType::F32);
        let is_cheap = is_float_input && self.is_cheap_in_blocks(input);
        if let Op::Binary(op) = &node.op {
            return Ok(self.binary(*op, node, output).map(|(kind, inputs)| plan(kind, inputs)));
        }
        if !is_float_input {
            return Ok(None);
        }
        let kind = match &node.op {
            Op::Conv(attrs) => return self.conv(node, attrs, None, false),
            Op::FusedConv { conv, activation, residual } => return self.conv(node, conv, *activation, *residual),
            Op::ConvTranspose(attrs) => return self.conv_transpose(node, attrs),
            Op::InstanceNormalization { epsilon } => {
                self.floats(node, 1).zip(self.floats(node, 2)).map(|(scale, bias)| PlanKind::PlanarNorm {
                    scale: scale.to_vec(),
                    bias: bias.to_vec(),
                    epsilon: *epsilon,
                    activation: Activation::None,
                })
            }
            Op::BatchNormalization { epsilon } => self.batch_norm(node, *epsilon),
            Op::Activation(act) if is_cheap => Some(PlanKind::Unary(unary(*act))),
            Op::Unary(UnaryOp::Abs) if is_cheap => Some(PlanKind::Unary(Unary::Abs)),
            Op::Unary(UnaryOp::Neg) if is_cheap => Some(PlanKind::Unary(Unary::Neg)),
            // GELU is written with it in opsets before 20.
            Op::Unary(UnaryOp::Erf) if is_cheap => Some(PlanKind::Unary(Unary::Erf)),
            Op::Identity if is_cheap => Some(PlanKind::Unary(Unary::Affine { gain: 1.0, offset: 0.0 })),
            Op::MaxPool(attrs) => self.spatial_lengths(input).map(|s| PlanKind::Pool(Pool::Max, pool_shape(attrs, &s))),
            Op::AveragePool(attrs) => self.spatial_lengths(input).and_then(|s| {
                let kind = if attrs.count_include_pad { Pool::AverageWithPadding } else { Pool::Average };
                let plain = !attrs.ceil_mode || !attrs.count_include_pad;
                plain.then(|| PlanKind::Pool(kind, pool_shape(attrs, &s)))
            }),
            _ => return Ok(self.float_move(node, input, output).map(|(kind, inputs)| plan(kind, inputs))),
        };
        Ok(kind.map(|kind| plan(kind, vec![input])))
    }
}

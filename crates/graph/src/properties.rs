//! Properties of operators, so that passes and engines need not name them.

use crate::error::Result;
use crate::graph::{Graph, Node, ValueId};
use crate::ops::{AxisEffect, AxisLengths, Op};

impl Op {
    /// Whether the operator produces, reads or computes with quantized values.
    pub fn is_quantized_op(&self) -> bool {
        matches!(
            self,
            Self::QuantizeLinear { .. }
                | Self::DequantizeLinear { .. }
                | Self::DynamicQuantizeLinear
                | Self::QLinearConv(_)
                | Self::QLinearMatMul
                | Self::ConvInteger(_)
                | Self::MatMulInteger
        )
    }

    /// Whether the operator exists only during training.
    pub fn is_training_only(&self) -> bool {
        matches!(
            self,
            Self::Vjp(_)
                | Self::BatchNormalizationTraining { .. }
                | Self::FakeQuantize { .. }
                | Self::Loss(_)
                | Self::GlobalNorm
                | Self::LossScale(_)
                | Self::Update(_)
        )
    }

    /// Whether the operator only moves elements, so that it works for any element type.
    pub fn moves_only(&self) -> bool {
        let stated = self.with_operator(|o| o.moves_only());
        stated.unwrap_or(matches!(
            self,
            Self::Identity
                | Self::Reshape { .. }
                | Self::Transpose { .. }
                | Self::Squeeze
                | Self::Unsqueeze
                | Self::Flatten { .. }
                | Self::Expand
                | Self::Tile
                | Self::Split { .. }
                | Self::Slice
                | Self::Pad { .. }
                | Self::Gather { .. }
                | Self::GatherElements { .. }
                | Self::GatherNd { .. }
                | Self::ScatterNd
                | Self::Shape { .. }
                | Self::Size
                | Self::Where
                | Self::Cast { .. }
                | Self::ConstantOfShape { .. }
                | Self::DepthToSpace { .. }
                | Self::SpaceToDepth { .. }
        ))
    }

    /// The axis along which the output holds all inputs side by side; negative counts from the end. `None` for any
    /// other operator.
    pub fn joined_axis(&self) -> Option<i64> {
        self.with_operator(|o| o.joined_axis()).flatten()
    }

    /// Whether each voxel of the output is a sum of input voxels of the same channel, with weights that do not depend
    /// on the voxels.
    pub fn resamples_linearly(&self) -> bool {
        let stated = self.with_operator(|o| o.resamples_linearly());
        stated.unwrap_or(matches!(self, Self::AveragePool(_) | Self::GlobalAveragePool))
    }

    /// Whether the gradients of the inputs are computed by [`Op::Vjp`] of the operator, and not composed of other
    /// operators. Operators that only move elements can be differentiated by `Vjp`, too.
    pub fn has_vjp(&self) -> bool {
        let stated = self.with_operator(|o| o.has_vjp());
        stated.unwrap_or(matches!(
            self,
            Self::Conv(_)
                | Self::Activation(_)
                | Self::InstanceNormalization { .. }
                | Self::GroupNormalization { .. }
                | Self::LayerNormalization { .. }
                | Self::BatchNormalizationTraining { .. }
                | Self::AveragePool(_)
                | Self::MaxPool(_)
                | Self::FakeQuantize { .. }
                | Self::Loss(_)
        ))
    }

    /// Returns which positions along an axis of its first input the output depends on; `None` if the operator does not
    /// state them.
    ///
    /// # Errors
    /// [`crate::GraphError::Misused`] if an axis of the operator does not exist.
    pub fn axis_effect(&self, lengths: &AxisLengths) -> Result<Option<AxisEffect>> {
        self.with_operator(|o| o.axis_effect(lengths)).transpose()
    }
}

impl Node {
    /// Returns the inputs whose elements the node only moves to its output, so that all may be stored as bytes with one
    /// scale; `output_rank` is the number of axes of its output. `None` if the node computes new values or its operator
    /// does not state them.
    pub fn moved_inputs(&self, output_rank: Option<usize>) -> Option<Vec<ValueId>> {
        self.op.with_operator(|o| o.moved_inputs(self, output_rank)).flatten()
    }

    /// Returns the node that computes for each slice of a stack (batch, channel, Z, Y, X) what this node computes for an image
    /// (batch, channel, Y, X). Constants that it reads in addition are added to `graph`. `None` if its operator does not state
    /// such a node.
    pub fn over_slices(&self, graph: &mut Graph) -> Option<Self> {
        self.op.with_operator(|o| o.over_slices(self, graph)).flatten()
    }
}

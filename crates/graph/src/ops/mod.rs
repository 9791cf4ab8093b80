//! The operators of a graph, with typed attributes whose defaults are resolved.
//!
//! Differences between opsets are removed at import: attributes that later became inputs *are* inputs here, so an
//! executor sees one form, that of the newest opset. The order and meaning of inputs and outputs is ONNX's unless a
//! variant says otherwise. Absent optional inputs are `None`, and trailing ones may be missing from
//! [`crate::Node::inputs`] altogether.

mod concat;
mod grid_sample;
mod operator;
mod resize;

use crate::functions::{Activation, BinaryOp, DepthOrder, PadMode, ReduceOp, UnaryOp};
use crate::geometry::{ConvAttrs, ConvTransposeAttrs, PoolAttrs};
use crate::loss::Loss;
use crate::loss_scale::LossScale;
use crate::opname::{activation_name, binary_name, gradient_name, reduce_name, unary_name};
use crate::optimizer::Optimizer;
use crate::tensor::{ElementType, Tensor};
use concat::Concat;
use operator::Operator;

pub use grid_sample::{GridMode, GridPadding, GridSampleAttrs};
pub use operator::{AxisEffect, AxisLengths, axis_over_slices};
pub use resize::{AspectPolicy, CoordinateMode, NearestMode, ResizeAttrs, ResizeMode};

/// The operation of a node.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Op {
    /// `[x, w, b?]`: x `[n, c, spatial…]`, w `[m, c / group, kernel…]`, b `[m]`.
    Conv(ConvAttrs),
    /// `[x, w, b?]`: w `[c, m / group, kernel…]`.
    ConvTranspose(ConvTransposeAttrs),
    /// Created by passes, never in a file: `[x, w, b?, residual?]`; activation(conv(x, w, b) + residual). With `residual`
    /// there are always four inputs.
    FusedConv {
        /// The convolution.
        conv: ConvAttrs,
        /// Applied last.
        activation: Option<Activation>,
        /// Whether the fourth input, which has the output's shape, is added before the activation.
        residual: bool,
    },
    /// `[x, scale, bias, mean, variance]`, inference form: (x − mean) / √(variance + ε) · scale + bias.
    BatchNormalization {
        /// ε, which is added to the variance.
        epsilon: f32,
    },
    /// `[x, scale, bias]`: per sample and channel over the spatial axes, variance divided by N.
    InstanceNormalization {
        /// ε, which is added to the variance.
        epsilon: f32,
    },
    /// `[x, scale, bias]`, scale and bias per channel: per sample and group of channels.
    GroupNormalization {
        /// Number of groups of consecutive channels, which are normalized together.
        groups: usize,
        /// ε, which is added to the variance.
        epsilon: f32,
    },
    /// `[x, scale, bias?]` -> `[y, mean?, inverse standard deviation?]`: over the axes from `axis` on.
    LayerNormalization {
        /// First normalized axis; negative counts from the end.
        axis: i64,
        /// ε, which is added to the variance.
        epsilon: f32,
    },
    /// `[x]`: x / ‖x‖ₚ along `axis`.
    LpNormalization {
        /// Axis over which norms are computed; negative counts from the end.
        axis: i64,
        /// 1 or 2.
        p: i64,
    },
    /// `[x]`
    Activation(Activation),
    /// `[x, slope]`: slope broadcast to x.
    PRelu,
    /// `[x, min?, max?]`, scalars.
    Clip,
    /// `[x]`
    Softmax {
        /// The axis along which the outputs sum to one.
        axis: i64,
    },
    /// `[x]`
    LogSoftmax {
        /// The axis along which the exponentials of the outputs sum to one.
        axis: i64,
    },
    /// `[x]` -> `[y, indices?]`
    MaxPool(PoolAttrs),
    /// `[x]`
    AveragePool(PoolAttrs),
    /// `[x]`: spatial axes become 1.
    GlobalAveragePool,
    /// `[x]`: spatial axes become 1.
    GlobalMaxPool,
    /// `[x, roi?, scales?, sizes?]`; exactly one of scales and sizes. `Upsample` is imported as this.
    Resize(ResizeAttrs),
    /// `[x, grid]`: x `[n, c, lengths…]`, grid `[n, places…, axes]`, positions from −1 to 1 along the axes of x, last axis
    /// first.
    GridSample(GridSampleAttrs),
    /// `[x…]`
    Concat {
        /// Axis to concatenate along; negative counts from the end.
        axis: i64,
    },
    /// `[x, lengths?]`; without lengths, one equal part per output (the last one may be shorter).
    Split {
        /// The axis that is split.
        axis: i64,
    },
    /// `[x, starts, ends, axes?, steps?]`
    Slice,
    /// `[x, pads, value?, axes?]`; negative pads crop.
    Pad {
        /// Padding mode.
        mode: PadMode,
    },
    /// `[x]`
    Unary(UnaryOp),
    /// `[a, b]`, broadcast.
    Binary(BinaryOp),
    /// `[condition, a, b]`, broadcast.
    Where,
    /// `[a, b]` as numpy's `matmul`.
    MatMul,
    /// `[a, b, c?]`: alpha·a′·b′ + beta·c.
    #[expect(missing_docs, reason = "the formula above says it")]
    Gemm { alpha: f32, beta: f32, trans_a: bool, trans_b: bool },
    /// `[x, axes?]`
    Reduce {
        /// Kind of reduction.
        kind: ReduceOp,
        /// Whether reduced axes are kept with length 1.
        keep_dims: bool,
        /// Without axes: copy instead of reducing over all.
        noop_with_empty_axes: bool,
    },
    /// `[x]` -> i64 position of the largest or smallest element.
    ArgReduce {
        /// Largest instead of smallest.
        max: bool,
        /// Axis to search along; negative counts from the end.
        axis: i64,
        /// Whether the axis is kept with length 1.
        keep_dims: bool,
        /// Of equal elements, take the last.
        last: bool,
    },
    /// `[x, k]` -> `[values, indices]`
    TopK {
        /// Axis to search along; negative counts from the end.
        axis: i64,
        /// Largest instead of smallest.
        largest: bool,
    },
    /// `[x, shape]`
    Reshape {
        /// A zero in shape means length zero, not "copy".
        allow_zero: bool,
    },
    /// `[x]`
    Transpose {
        /// Output axis i is input axis perm\[i\]; empty: reversed.
        perm: Vec<usize>,
    },
    /// `[x, axes?]`; without axes, every axis of length 1 is removed.
    Squeeze,
    /// `[x, axes]`
    Unsqueeze,
    /// `[x]` -> two axes.
    Flatten {
        /// First axis of the second part.
        axis: i64,
    },
    /// `[x, shape]`, broadcast both ways.
    Expand,
    /// `[x, repeats]`
    Tile,
    /// `[x, indices]`
    Gather {
        /// Axis of `x` that the indices refer to; negative counts from the end.
        axis: i64,
    },
    /// `[x, indices]`
    GatherElements {
        /// Axis of `x` that the indices refer to; negative counts from the end.
        axis: i64,
    },
    /// `[x, indices]`
    GatherNd {
        /// Number of leading axes shared by x and indices.
        batch_dims: usize,
    },
    /// `[x, indices, updates]`, no reduction.
    ScatterNd,
    /// `[x]` -> i64 vector.
    Shape {
        /// First axis, clamped.
        start: i64,
        /// Axis after the last, clamped; `None`: all.
        end: Option<i64>,
    },
    /// `[x]` -> i64 scalar, the number of elements.
    Size,
    /// `[x]`
    Cast {
        /// Type of the result.
        to: ElementType,
    },
    /// `[shape]`
    ConstantOfShape {
        /// One element, repeated.
        value: Tensor,
    },
    /// `[start, limit, delta]`, scalars.
    Range,
    /// `[x]`, a copy. `Dropout` is imported as this.
    Identity,
    /// `[x]`: (n, c·b², h, w) -> (n, c, h·b, w·b).
    DepthToSpace {
        /// b
        block: usize,
        /// Order of the channels.
        order: DepthOrder,
    },
    /// `[x]`: (n, c, h·b, w·b) -> (n, c·b², h, w).
    SpaceToDepth {
        /// b
        block: usize,
    },
    /// `[x, k?]`: lower or upper triangle of the last two axes.
    Trilu {
        /// Upper instead of lower triangle.
        upper: bool,
    },
    /// `[x, axis]`
    CumSum {
        /// Whether the element itself is excluded.
        exclusive: bool,
        /// Whether to sum from the end.
        reverse: bool,
    },
    /// `[a, b…]`
    Einsum {
        /// The equation in numpy's notation, without spaces.
        equation: String,
    },
    /// `[x, scale, zero_point?]`: saturate(round half to even(x / scale) + zero point).
    QuantizeLinear {
        /// The axis of per-channel (or blocked) scales.
        axis: i64,
        /// Elements along `axis` that share a scale; 0: not blocked.
        block_size: usize,
        /// Type of the result.
        to: ElementType,
    },
    /// `[q, scale, zero_point?]`: (q − zero point)·scale, in the scale's type.
    DequantizeLinear {
        /// The axis of per-channel (or blocked) scales.
        axis: i64,
        /// Elements along `axis` that share a scale; 0: not blocked.
        block_size: usize,
    },
    /// `[x]` -> `[q (u8), scale, zero point]`
    DynamicQuantizeLinear,
    /// `[x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias (i32)?]`
    QLinearConv(ConvAttrs),
    /// `[a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero]`
    QLinearMatMul,
    /// `[x, w, x_zero?, w_zero?]` -> i32
    ConvInteger(ConvAttrs),
    /// `[a, b, a_zero?, b_zero?]` -> i32
    MatMulInteger,
    /// Created by differentiation, never in a file. Vector-Jacobian product of an operator with one output: `[its
    /// inputs…, dy]` -> `[gradients of its inputs…]`. For monotonic activations such as (leaky) ReLU, y may be given in
    /// place of x.
    Vjp(Box<Op>),
    /// Training only, never in a file: `[x, scale, bias]` -> `[y, mean?, variance?]`, normalized with the statistics of
    /// the batch per channel (variance divided by N).
    BatchNormalizationTraining {
        /// ε, which is added to the variance.
        epsilon: f32,
    },
    /// Training only, never in a file: `[x]` -> clamp(round half to even(x / scale), low, high)·scale, the composition
    /// of [`Op::QuantizeLinear`] and [`Op::DequantizeLinear`]. Its derivative is taken as 1 inside the clamping range
    /// and 0 outside (straight-through estimator).
    FakeQuantize {
        /// One scale, or one for each index along `axis`.
        scales: Vec<f32>,
        /// The axis that `scales` run along.
        axis: usize,
        /// Smallest quantization level, relative to the zero point.
        low: f32,
        /// Largest quantization level, relative to the zero point.
        high: f32,
    },
    /// Training only, never in a file: see [`Loss`].
    Loss(Loss),
    /// Training only, never in a file: `[g…]` -> root of the sum of all squares, a scalar.
    GlobalNorm,
    /// Training only, never in a file: see [`LossScale`].
    LossScale(LossScale),
    /// Training only, never in a file: see [`Optimizer`].
    Update(Optimizer),
}

impl Op {
    /// Calls `query` with the operator, if it has its own file; `None` for the others.
    pub(crate) fn with_operator<R>(&self, query: impl FnOnce(&dyn Operator) -> R) -> Option<R> {
        match self {
            Self::Concat { axis } => Some(query(&Concat { axis: *axis })),
            Self::GridSample(attrs) => Some(query(attrs)),
            Self::Resize(attrs) => Some(query(attrs)),
            _ => None,
        }
    }
}

/// Returns the ONNX operator type of `op`; operators that exist only here, such as `FusedConv`, have names of their
/// own.
pub fn op_name(op: &Op) -> &'static str {
    match op {
        Op::Conv(_) => "Conv",
        Op::ConvTranspose(_) => "ConvTranspose",
        Op::FusedConv { .. } => "FusedConv",
        Op::BatchNormalization { .. } => "BatchNormalization",
        Op::InstanceNormalization { .. } => "InstanceNormalization",
        Op::GroupNormalization { .. } => "GroupNormalization",
        Op::LayerNormalization { .. } => "LayerNormalization",
        Op::LpNormalization { .. } => "LpNormalization",
        Op::Activation(a) => activation_name(a),
        Op::PRelu => "PRelu",
        Op::Clip => "Clip",
        Op::Softmax { .. } => "Softmax",
        Op::LogSoftmax { .. } => "LogSoftmax",
        Op::MaxPool(_) => "MaxPool",
        Op::AveragePool(_) => "AveragePool",
        Op::GlobalAveragePool => "GlobalAveragePool",
        Op::GlobalMaxPool => "GlobalMaxPool",
        Op::Resize(_) => "Resize",
        Op::GridSample(_) => "GridSample",
        Op::Concat { .. } => "Concat",
        Op::Split { .. } => "Split",
        Op::Slice => "Slice",
        Op::Pad { .. } => "Pad",
        Op::Unary(kind) => unary_name(*kind),
        Op::Binary(kind) => binary_name(*kind),
        Op::Where => "Where",
        Op::MatMul => "MatMul",
        Op::Gemm { .. } => "Gemm",
        Op::Reduce { kind, .. } => reduce_name(*kind),
        Op::ArgReduce { max: true, .. } => "ArgMax",
        Op::ArgReduce { max: false, .. } => "ArgMin",
        Op::TopK { .. } => "TopK",
        Op::Reshape { .. } => "Reshape",
        Op::Transpose { .. } => "Transpose",
        Op::Squeeze => "Squeeze",
        Op::Unsqueeze => "Unsqueeze",
        Op::Flatten { .. } => "Flatten",
        Op::Expand => "Expand",
        Op::Tile => "Tile",
        Op::Gather { .. } => "Gather",
        Op::GatherElements { .. } => "GatherElements",
        Op::GatherNd { .. } => "GatherND",
        Op::ScatterNd => "ScatterND",
        Op::Shape { .. } => "Shape",
        Op::Size => "Size",
        Op::Cast { .. } => "Cast",
        Op::ConstantOfShape { .. } => "ConstantOfShape",
        Op::Range => "Range",
        Op::Identity => "Identity",
        Op::DepthToSpace { .. } => "DepthToSpace",
        Op::SpaceToDepth { .. } => "SpaceToDepth",
        Op::Trilu { .. } => "Trilu",
        Op::CumSum { .. } => "CumSum",
        Op::Einsum { .. } => "Einsum",
        Op::QuantizeLinear { .. } => "QuantizeLinear",
        Op::DequantizeLinear { .. } => "DequantizeLinear",
        Op::DynamicQuantizeLinear => "DynamicQuantizeLinear",
        Op::QLinearConv(_) => "QLinearConv",
        Op::QLinearMatMul => "QLinearMatMul",
        Op::ConvInteger(_) => "ConvInteger",
        Op::MatMulInteger => "MatMulInteger",
        Op::Vjp(of) => gradient_name(of),
        Op::BatchNormalizationTraining { .. } => "BatchNormalizationTraining",
        Op::FakeQuantize { .. } => "FakeQuantize",
        Op::Loss(_) => "Loss",
        Op::GlobalNorm => "GlobalNorm",
        Op::LossScale(_) => "LossScale",
        Op::Update(_) => "Update",
    }
}

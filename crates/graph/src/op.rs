//! The operators of a graph, with typed attributes whose defaults are resolved.
//!
//! Differences between opsets are removed at import: attributes that later became inputs *are* inputs here, so an
//! executor sees one form, that of the newest opset, whatever the file's age. The order and meaning of inputs and
//! outputs is ONNX's unless a variant says otherwise. Absent optional inputs are `None`, and trailing ones may be
//! missing from [`crate::Node::inputs`] altogether.

use crate::geometry::{ConvAttrs, ConvTransposeAttrs, PoolAttrs};
use crate::tensor::{ElementType, Tensor};
use crate::training::{Loss, Optimizer};

/// A function applied to each element, with its own parameters: what follows a convolution, alone or fused.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// max(x, 0)
    Relu,
    /// x for x ≥ 0, alpha·x below
    #[expect(missing_docs, reason = "the formula above says it")]
    LeakyRelu { alpha: f32 },
    /// x for x ≥ 0, alpha·(eˣ − 1) below
    #[expect(missing_docs, reason = "the formula above says it")]
    Elu { alpha: f32 },
    /// max(0, x) + min(0, alpha·(e^(x/alpha) − 1))
    #[expect(missing_docs, reason = "the formula above says it")]
    Celu { alpha: f32 },
    /// gamma·x for x > 0, gamma·alpha·(eˣ − 1) below
    #[expect(missing_docs, reason = "the formula above says it")]
    Selu { alpha: f32, gamma: f32 },
    /// x·Φ(x); with `tanh` the approximation 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))
    #[expect(missing_docs, reason = "the formula above says it")]
    Gelu { tanh: bool },
    /// x·σ(x), also called Swish. Files hold it as `Sigmoid` and `Mul`; the fusion pass finds it.
    Silu,
    /// σ(x) = 1 / (1 + e⁻ˣ)
    Sigmoid,
    /// clamp(alpha·x + beta, 0, 1)
    #[expect(missing_docs, reason = "the formula above says it")]
    HardSigmoid { alpha: f32, beta: f32 },
    /// x·clamp(x/6 + 1/2, 0, 1)
    HardSwish,
    /// x·tanh(ln(1 + eˣ))
    Mish,
    /// tanh(x)
    Tanh,
    /// ln(1 + eˣ)
    Softplus,
    /// x / (1 + |x|)
    Softsign,
    /// x for x > alpha, else 0
    #[expect(missing_docs, reason = "the formula above says it")]
    ThresholdedRelu { alpha: f32 },
    /// clamp(x, min, max) with constant bounds (made by the fusion pass out of [`Op::Clip`]).
    #[expect(missing_docs, reason = "the formula above says it")]
    Clip { min: f32, max: f32 },
}

/// A function of one element that keeps the type (except [`UnaryOp::IsNaN`], which gives bool).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "ONNX's own names")]
pub enum UnaryOp {
    Abs,
    Neg,
    Reciprocal,
    Sqrt,
    Exp,
    Log,
    Erf,
    Floor,
    Ceil,
    /// To the nearest integer, halves to even.
    Round,
    Sign,
    Sin,
    Cos,
    Tan,
    Asin,
    Acos,
    Atan,
    Sinh,
    Cosh,
    /// Logical not, on bool.
    Not,
    IsNaN,
}

/// A function of two elements, with numpy broadcasting. N-ary `Min`, `Max`, `Sum` and `Mean` become chains of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "ONNX's own names")]
pub enum BinaryOp {
    Add,
    Sub,
    Mul,
    /// Integers divide towards zero.
    Div,
    /// Result has the type of the base.
    Pow,
    Min,
    Max,
    /// Remainder: sign of the divisor, or of the dividend when `fmod`.
    Mod {
        fmod: bool,
    },
    Equal,
    Greater,
    GreaterOrEqual,
    Less,
    LessOrEqual,
    And,
    Or,
    Xor,
}

impl BinaryOp {
    /// Whether the result is bool whatever the operands' type.
    pub fn is_comparison(self) -> bool {
        matches!(
            self,
            Self::Equal
                | Self::Greater
                | Self::GreaterOrEqual
                | Self::Less
                | Self::LessOrEqual
                | Self::And
                | Self::Or
                | Self::Xor
        )
    }
}

/// What a reduction makes out of the elements it sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "ONNX's own names")]
pub enum ReduceOp {
    Sum,
    Mean,
    Max,
    Min,
    Prod,
    L1,
    L2,
    LogSum,
    LogSumExp,
    SumSquare,
}

/// How [`Op::Pad`] fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PadMode {
    /// With a value.
    Constant,
    /// Mirrored, the border element not repeated.
    Reflect,
    /// With the border element.
    Edge,
    /// From the other end.
    Wrap,
}

/// Interpolation of [`Op::Resize`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "ONNX's own names")]
pub enum ResizeMode {
    Nearest,
    Linear,
    Cubic,
}

/// How an output position becomes an input position in [`Op::Resize`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "ONNX's own names")]
pub enum CoordinateMode {
    HalfPixel,
    HalfPixelSymmetric,
    PytorchHalfPixel,
    AlignCorners,
    Asymmetric,
    TfHalfPixelForNn,
    TfCropAndResize,
}

/// Which neighbour nearest resizing takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "ONNX's own names")]
pub enum NearestMode {
    RoundPreferFloor,
    RoundPreferCeil,
    Floor,
    Ceil,
}

/// How the `sizes` of [`Op::Resize`] are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "ONNX's own names")]
pub enum AspectPolicy {
    Stretch,
    NotLarger,
    NotSmaller,
}

/// Attributes of [`Op::Resize`].
#[derive(Debug, Clone, PartialEq)]
pub struct ResizeAttrs {
    /// Interpolation.
    pub mode: ResizeMode,
    /// Coordinate transformation.
    pub coordinates: CoordinateMode,
    /// Rounding of the nearest mode.
    pub nearest: NearestMode,
    /// Coefficient of the cubic kernel.
    pub cubic_coeff_a: f32,
    /// Cubic and linear: weights outside the input count as zero and the rest is renormalised.
    pub exclude_outside: bool,
    /// Value outside, with [`CoordinateMode::TfCropAndResize`].
    pub extrapolation_value: f32,
    /// Widen the kernel when shrinking.
    pub antialias: bool,
    /// Axes that scales and sizes speak of; `None`: all.
    pub axes: Option<Vec<i64>>,
    /// What sizes mean.
    pub policy: AspectPolicy,
}

impl ResizeAttrs {
    /// Nearest neighbour by whole factors: output `o` takes input `o / factor`.
    pub fn nearest() -> Self {
        Self {
            mode: ResizeMode::Nearest,
            coordinates: CoordinateMode::Asymmetric,
            nearest: NearestMode::Floor,
            cubic_coeff_a: -0.75,
            exclude_outside: false,
            extrapolation_value: 0.0,
            antialias: false,
            axes: None,
            policy: AspectPolicy::Stretch,
        }
    }
}

/// Order of the block elements in [`Op::DepthToSpace`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DepthOrder {
    /// Block position is the slower part of the channel.
    Dcr,
    /// Block position is the faster part of the channel (PyTorch's pixel shuffle).
    Crd,
}

/// What a node does.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Op {
    /// `[x, w, b?]`: x `[n, c, spatial…]`, w `[m, c / group, kernel…]`, b `[m]`.
    Conv(ConvAttrs),
    /// `[x, w, b?]`: w `[c, m / group, kernel…]`.
    ConvTranspose(ConvTransposeAttrs),
    /// Made by [`crate::passes::fuse_activations`], never in a file: `[x, w, b?, residual?]`;
    /// activation(conv(x, w, b) + residual). With `residual` there are always four inputs.
    FusedConv {
        /// The convolution.
        conv: ConvAttrs,
        /// Applied last.
        activation: Option<Activation>,
        /// Whether the fourth input, of the output's shape, is added before the activation.
        residual: bool,
    },
    /// `[x, scale, bias, mean, variance]`, inference form: (x − mean) / √(variance + ε) · scale + bias.
    BatchNormalization {
        /// ε
        epsilon: f32,
    },
    /// `[x, scale, bias]`: per sample and channel over the spatial axes, variance divided by N.
    InstanceNormalization {
        /// ε
        epsilon: f32,
    },
    /// `[x, scale, bias]`, scale and bias per channel: per sample and group of channels.
    GroupNormalization {
        /// Number of groups.
        groups: usize,
        /// ε
        epsilon: f32,
    },
    /// `[x, scale, bias?]` -> `[y, mean?, inverse standard deviation?]`: over the axes from `axis` on.
    LayerNormalization {
        /// First normalised axis; negative counts from the end.
        axis: i64,
        /// ε
        epsilon: f32,
    },
    /// `[x]`: x / ‖x‖ₚ along `axis`.
    LpNormalization {
        /// The axis.
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
        /// The axis that sums to one.
        axis: i64,
    },
    /// `[x]`
    LogSoftmax {
        /// The axis whose exponentials sum to one.
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
    /// `[x, roi?, scales?, sizes?]`; exactly one of scales and sizes. `Upsample` becomes this.
    Resize(ResizeAttrs),
    /// `[x…]`
    Concat {
        /// The axis along which they are put side by side.
        axis: i64,
    },
    /// `[x, lengths?]`; without lengths, equal parts (the last one shorter), one an output.
    Split {
        /// The axis cut.
        axis: i64,
    },
    /// `[x, starts, ends, axes?, steps?]`
    Slice,
    /// `[x, pads, value?, axes?]`; negative pads cut.
    Pad {
        /// Filling.
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
        /// What is made.
        kind: ReduceOp,
        /// Keep reduced axes with length 1.
        keep_dims: bool,
        /// Without axes: copy instead of reducing all.
        noop_with_empty_axes: bool,
    },
    /// `[x]` -> i64 position of the largest (or smallest).
    ArgReduce {
        /// Largest, else smallest.
        max: bool,
        /// The axis searched.
        axis: i64,
        /// Keep it with length 1.
        keep_dims: bool,
        /// Of equals, take the last.
        last: bool,
    },
    /// `[x, k]` -> `[values, indices]`
    TopK {
        /// The axis searched.
        axis: i64,
        /// Largest, else smallest.
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
    /// `[x, axes?]`; without axes every axis of length 1 goes.
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
        /// The axis indexed.
        axis: i64,
    },
    /// `[x, indices]`
    GatherElements {
        /// The axis indexed.
        axis: i64,
    },
    /// `[x, indices]`
    GatherNd {
        /// Leading axes shared.
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
    /// `[x]`, a copy. `Dropout` becomes this.
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
        /// Upper, else lower.
        upper: bool,
    },
    /// `[x, axis]`
    CumSum {
        /// Leave the element itself out.
        exclusive: bool,
        /// From the end.
        reverse: bool,
    },
    /// `[a, b…]`
    Einsum {
        /// As numpy's, without spaces.
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
    /// Made by [`crate::passes::differentiate`], never in a file. Vector-Jacobian product of an operator with one output:
    /// `[its inputs…, dy]` -> `[gradient of its inputs…]`. For activations that rise with their input, such as the (leaky)
    /// rectifier, x may be given as y.
    Vjp(Box<Op>),
    /// Made for training, never in a file: `[x, scale, bias]` -> `[y, mean?, variance?]`, normalised with the statistics of the
    /// batch by channel (variance divided by N).
    BatchNormalizationTraining {
        /// ε
        epsilon: f32,
    },
    /// Made for training, never in a file: `[x]` -> clamp(round half to even(x / scale), low, high)·scale, what
    /// [`Op::QuantizeLinear`] and [`Op::DequantizeLinear`] make of it together. Its derivative is taken as 1 where nothing is cut
    /// off, else 0 (straight-through estimator).
    FakeQuantize {
        /// One scale, or one for each index along `axis`.
        scales: Vec<f32>,
        /// The axis of several scales.
        axis: usize,
        /// Least step, counted from the one that stands for 0.
        low: f32,
        /// Greatest step.
        high: f32,
    },
    /// Made for training, never in a file: see [`Loss`].
    Loss(Loss),
    /// Made for training, never in a file: `[g…]` -> root of the sum of all squares, a scalar.
    GlobalNorm,
    /// Made for training, never in a file: see [`Optimizer`].
    Update(Optimizer),
}

impl Op {
    /// Whether the operator makes, reads or computes with quantized values.
    pub fn is_of_bytes(&self) -> bool {
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

    /// Whether the operator exists only while a network is taught.
    pub fn is_of_training(&self) -> bool {
        matches!(
            self,
            Self::Vjp(_)
                | Self::BatchNormalizationTraining { .. }
                | Self::FakeQuantize { .. }
                | Self::Loss(_)
                | Self::GlobalNorm
                | Self::Update(_)
        )
    }
}

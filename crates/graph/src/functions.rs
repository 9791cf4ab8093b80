//! Functions of elements, reductions and modes that operators have as attributes.

/// An element-wise activation function with its parameters, standalone or fused into a convolution.
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
    /// x·σ(x), also called Swish. Files store it as `Sigmoid` and `Mul`; the fusion pass recognizes it.
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
    /// clamp(x, min, max) with constant bounds (created by the fusion pass from [`crate::Op::Clip`]).
    #[expect(missing_docs, reason = "the formula above says it")]
    Clip { min: f32, max: f32 },
}

/// A function of one element that keeps the type (except [`UnaryOp::IsNaN`], which returns bool).
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
    /// To the nearest integer, ties to even.
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
    Asinh,
    Acosh,
    Atanh,
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
    /// Integer division truncates toward zero.
    Div,
    /// Result has the type of the base.
    Pow,
    Min,
    Max,
    /// Remainder, with the sign of the divisor, or of the dividend with `fmod`.
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
    /// Whether the result is bool regardless of the operand type.
    pub fn returns_bool(self) -> bool {
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

/// How the elements along the reduced axes are combined.
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

/// Padding mode of [`crate::Op::Pad`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PadMode {
    /// Pads with a constant value.
    Constant,
    /// Mirrors at the border; the border element is not repeated.
    Reflect,
    /// Repeats the element at the border.
    Edge,
    /// Wraps around to the opposite end.
    Wrap,
}

/// Order of the block elements in [`crate::Op::DepthToSpace`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DepthOrder {
    /// Block position is the slower part of the channel.
    Dcr,
    /// Block position is the faster part of the channel (PyTorch's pixel shuffle).
    Crd,
}

//! ONNX names of functions, and names of gradients.

use crate::functions::{Activation, BinaryOp, ReduceOp, UnaryOp};
use crate::ops::Op;

/// Returns the ONNX operator type of an activation; [`Activation::Silu`] and [`Activation::Clip`] have none of their
/// own.
pub fn activation_name(activation: &Activation) -> &'static str {
    match activation {
        Activation::Relu => "Relu",
        Activation::LeakyRelu { .. } => "LeakyRelu",
        Activation::Elu { .. } => "Elu",
        Activation::Celu { .. } => "Celu",
        Activation::Selu { .. } => "Selu",
        Activation::Gelu { .. } => "Gelu",
        Activation::Silu => "Silu",
        Activation::Sigmoid => "Sigmoid",
        Activation::HardSigmoid { .. } => "HardSigmoid",
        Activation::HardSwish => "HardSwish",
        Activation::Mish => "Mish",
        Activation::Tanh => "Tanh",
        Activation::Softplus => "Softplus",
        Activation::Softsign => "Softsign",
        Activation::ThresholdedRelu { .. } => "ThresholdedRelu",
        Activation::Clip { .. } => "Clip",
    }
}

pub(crate) fn gradient_name(op: &Op) -> &'static str {
    match op {
        Op::Conv(_) => "ConvGradient",
        Op::Activation(_) => "ActivationGradient",
        Op::InstanceNormalization { .. } => "InstanceNormalizationGradient",
        Op::BatchNormalizationTraining { .. } => "BatchNormalizationGradient",
        Op::MaxPool(_) => "MaxPoolGradient",
        Op::AveragePool(_) => "AveragePoolGradient",
        Op::FakeQuantize { .. } => "FakeQuantizeGradient",
        Op::Loss(_) => "LossGradient",
        other => other.with_operator(|o| o.gradient_name()).unwrap_or("Gradient"),
    }
}

pub(crate) fn unary_name(kind: UnaryOp) -> &'static str {
    match kind {
        UnaryOp::Abs => "Abs",
        UnaryOp::Neg => "Neg",
        UnaryOp::Reciprocal => "Reciprocal",
        UnaryOp::Sqrt => "Sqrt",
        UnaryOp::Exp => "Exp",
        UnaryOp::Log => "Log",
        UnaryOp::Erf => "Erf",
        UnaryOp::Floor => "Floor",
        UnaryOp::Ceil => "Ceil",
        UnaryOp::Round => "Round",
        UnaryOp::Sign => "Sign",
        UnaryOp::Sin => "Sin",
        UnaryOp::Cos => "Cos",
        UnaryOp::Tan => "Tan",
        UnaryOp::Asin => "Asin",
        UnaryOp::Acos => "Acos",
        UnaryOp::Atan => "Atan",
        UnaryOp::Sinh => "Sinh",
        UnaryOp::Cosh => "Cosh",
        UnaryOp::Asinh => "Asinh",
        UnaryOp::Acosh => "Acosh",
        UnaryOp::Atanh => "Atanh",
        UnaryOp::Not => "Not",
        UnaryOp::IsNaN => "IsNaN",
    }
}

pub(crate) fn binary_name(kind: BinaryOp) -> &'static str {
    match kind {
        BinaryOp::Add => "Add",
        BinaryOp::Sub => "Sub",
        BinaryOp::Mul => "Mul",
        BinaryOp::Div => "Div",
        BinaryOp::Pow => "Pow",
        BinaryOp::Min => "Min",
        BinaryOp::Max => "Max",
        BinaryOp::Mod { .. } => "Mod",
        BinaryOp::Equal => "Equal",
        BinaryOp::Greater => "Greater",
        BinaryOp::GreaterOrEqual => "GreaterOrEqual",
        BinaryOp::Less => "Less",
        BinaryOp::LessOrEqual => "LessOrEqual",
        BinaryOp::And => "And",
        BinaryOp::Or => "Or",
        BinaryOp::Xor => "Xor",
    }
}

pub(crate) fn reduce_name(kind: ReduceOp) -> &'static str {
    match kind {
        ReduceOp::Sum => "ReduceSum",
        ReduceOp::Mean => "ReduceMean",
        ReduceOp::Max => "ReduceMax",
        ReduceOp::Min => "ReduceMin",
        ReduceOp::Prod => "ReduceProd",
        ReduceOp::L1 => "ReduceL1",
        ReduceOp::L2 => "ReduceL2",
        ReduceOp::LogSum => "ReduceLogSum",
        ReduceOp::LogSumExp => "ReduceLogSumExp",
        ReduceOp::SumSquare => "ReduceSumSquare",
    }
}

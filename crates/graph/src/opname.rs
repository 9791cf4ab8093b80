//! ONNX names of all operators, for messages, export and the table of supported operators.

use crate::op::{Activation, BinaryOp, Op, ReduceOp, UnaryOp};

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

fn gradient_name(of: &Op) -> &'static str {
    match of {
        Op::Conv(_) => "ConvGradient",
        Op::Activation(_) => "ActivationGradient",
        Op::InstanceNormalization { .. } => "InstanceNormalizationGradient",
        Op::BatchNormalizationTraining { .. } => "BatchNormalizationGradient",
        Op::MaxPool(_) => "MaxPoolGradient",
        Op::AveragePool(_) => "AveragePoolGradient",
        Op::Resize(_) => "ResizeGradient",
        Op::FakeQuantize { .. } => "FakeQuantizeGradient",
        Op::Loss(_) => "LossGradient",
        _ => "Gradient",
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
        Op::Update(_) => "Update",
    }
}

fn unary_name(kind: UnaryOp) -> &'static str {
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
        UnaryOp::Not => "Not",
        UnaryOp::IsNaN => "IsNaN",
    }
}

fn binary_name(kind: BinaryOp) -> &'static str {
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

fn reduce_name(kind: ReduceOp) -> &'static str {
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

//! Which kernel runs each element-wise operator.

use cytoscope_graph::{Activation as Act, BinaryOp};
use cytoscope_kernels::conv::Activation;
use cytoscope_kernels::pointwise::{Binary, Unary};

/// Returns the kernel of a binary operator; `None` if there is none, so that the reference executor runs it.
pub(super) fn binary(op: BinaryOp) -> Option<Binary> {
    Some(match op {
        BinaryOp::Add => Binary::Add,
        BinaryOp::Sub => Binary::Sub,
        BinaryOp::Mul => Binary::Mul,
        BinaryOp::Div => Binary::Div,
        BinaryOp::Max => Binary::Max,
        BinaryOp::Min => Binary::Min,
        _ => return None,
    })
}

/// Returns ReLU and leaky ReLU as a kernel epilogue, `None` for other activations.
pub(super) fn leaky(activation: Act) -> Option<Activation> {
    match activation {
        Act::Relu => Some(Activation::Leaky { slope: 0.0 }),
        Act::LeakyRelu { alpha } => Some(Activation::Leaky { slope: alpha }),
        _ => None,
    }
}

/// Returns the kernel of an activation.
pub(super) fn unary(activation: Act) -> Unary {
    match activation {
        Act::Relu => Unary::Leaky { slope: 0.0 },
        Act::LeakyRelu { alpha } => Unary::Leaky { slope: alpha },
        Act::Elu { alpha } => Unary::Elu { alpha },
        Act::Celu { alpha } => Unary::Celu { alpha },
        Act::Selu { alpha, gamma } => Unary::Selu { alpha, gamma },
        Act::Gelu { tanh: false } => Unary::Gelu,
        Act::Gelu { tanh: true } => Unary::GeluTanh,
        Act::Silu => Unary::Silu,
        Act::Sigmoid => Unary::Sigmoid,
        Act::HardSigmoid { alpha, beta } => Unary::HardSigmoid { alpha, beta },
        Act::HardSwish => Unary::HardSwish,
        Act::Mish => Unary::Mish,
        Act::Tanh => Unary::Tanh,
        Act::Softplus => Unary::Softplus,
        Act::Softsign => Unary::Softsign,
        Act::ThresholdedRelu { alpha } => Unary::Threshold { alpha },
        Act::Clip { min, max } => Unary::Clip { min, max },
    }
}

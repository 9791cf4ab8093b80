//! Which kernel runs each element-wise operator.

use cytoscope_graph::BinaryOp;
use cytoscope_kernels::pointwise::Binary;

/// Returns the kernel of a binary operator; `None` if there is none, so that the reference executor runs it.
pub(crate) fn binary(op: BinaryOp) -> Option<Binary> {
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

//! Import of the operators that ONNX Runtime's optimization makes of several (in files that it saves with its extended
//! optimizations). They become those operators again.

use super::layers::conv;
use super::{Importer, Pending};
use crate::proto::AttributeValue;
use cytoscope_graph::{Activation, BinaryOp, Op, Result, Tensor, ValueId};

/// Returns the last operator that `node`, of ONNX Runtime's own domain, becomes; `None` if it is not handled here.
pub(super) fn convert(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Option<Op>> {
    Ok(Some(match node.op_type {
        "FusedConv" => fused_conv(im, node)?,
        "FusedGemm" => fused_gemm(im, node)?,
        "FusedMatMul" => fused_matmul(im, node)?,
        "Gelu" => Op::Activation(Activation::Gelu { tanh: false }),
        "BiasGelu" => {
            let inputs = [node.input(0), node.input(1)];
            let sum = im.emit(&format!("{}_sum", node.name), Op::Binary(BinaryOp::Add), &inputs)?;
            node.inputs = vec![Some(sum)];
            Op::Activation(Activation::Gelu { tanh: false })
        }
        _ => return Ok(None),
    }))
}

/// Makes `y` the only input of `node`; returns the activation, or a copy without one.
fn activated(node: &mut Pending<'_>, y: ValueId, activation: Option<Activation>) -> Op {
    node.inputs = vec![Some(y)];
    activation.map_or(Op::Identity, Op::Activation)
}

/// `[x, w, b?, z?]`: activation(conv(x, w, b) + z).
fn fused_conv(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Op> {
    let op = Op::Conv(conv(im, node, 1)?);
    let numbers = match node.attributes.get("activation_params") {
        None => Vec::new(),
        Some(AttributeValue::Floats(numbers)) => numbers.clone(),
        Some(_) => return Err(node.unsupported("parameters of an activation that are not numbers")),
    };
    let number = |index: usize, default: f32| Ok(numbers.get(index).copied().unwrap_or(default));
    let activation = activation(node, number)?;
    let mut inputs: Vec<Option<ValueId>> = node.inputs.iter().take(3).copied().collect();
    while inputs.last() == Some(&None) {
        inputs.pop();
    }
    let mut y = im.emit(&format!("{}_conv", node.name), op, &inputs)?;
    if let Some(z) = node.input(3) {
        y = im.emit(&format!("{}_sum", node.name), Op::Binary(BinaryOp::Add), &[Some(y), Some(z)])?;
    }
    Ok(activated(node, y, activation))
}

/// `[a, b, c?]`: activation(alpha·a′·b′ + beta·c).
fn fused_gemm(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Op> {
    let attributes = &node.attributes;
    let op = Op::Gemm {
        alpha: attributes.float("alpha", 1.0)?,
        beta: attributes.float("beta", 1.0)?,
        trans_a: attributes.flag("transA", false)?,
        trans_b: attributes.flag("transB", false)?,
    };
    let names = ["activation_alpha", "activation_beta"];
    let number = |index: usize, default: f32| names.get(index).map_or(Ok(default), |n| attributes.float(n, default));
    let activation = activation(node, number)?;
    let inputs = node.inputs.clone();
    let y = im.emit(&format!("{}_gemm", node.name), op, &inputs)?;
    Ok(activated(node, y, activation))
}

/// Returns the activation of a fused layer, if it has one. `number` returns its parameter of an index, in ONNX's order, or
/// the default.
fn activation(node: &Pending<'_>, number: impl Fn(usize, f32) -> Result<f32>) -> Result<Option<Activation>> {
    let name = node.attributes.text("activation", "")?;
    Ok(Some(match name.as_str() {
        "" => return Ok(None),
        "Relu" => Activation::Relu,
        "Sigmoid" => Activation::Sigmoid,
        "Tanh" => Activation::Tanh,
        "Softplus" => Activation::Softplus,
        "Softsign" => Activation::Softsign,
        "LeakyRelu" => Activation::LeakyRelu { alpha: number(0, 0.01)? },
        "Elu" => Activation::Elu { alpha: number(0, 1.0)? },
        "ThresholdedRelu" => Activation::ThresholdedRelu { alpha: number(0, 1.0)? },
        "HardSigmoid" => Activation::HardSigmoid { alpha: number(0, 0.2)?, beta: number(1, 0.5)? },
        "Clip" => Activation::Clip { min: number(0, f32::MIN)?, max: number(1, f32::MAX)? },
        other => return Err(node.unsupported(format!("activation \"{other}\""))),
    }))
}

/// `[a, b]`: alpha·a′·b′, where a′ and b′ may have their last two axes swapped.
fn fused_matmul(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Op> {
    for name in ["transBatchA", "transBatchB"] {
        if node.attributes.flag(name, false)? {
            return Err(node.unsupported(format!("{name} other than 0")));
        }
    }
    let (a, b) = (swapped(im, node, 0, "transA")?, swapped(im, node, 1, "transB")?);
    let alpha = node.attributes.float("alpha", 1.0)?;
    node.inputs = vec![a, b];
    if alpha == 1.0 {
        return Ok(Op::MatMul);
    }
    let dtype = im.info(a).and_then(|info| info.dtype).ok_or_else(|| node.unsupported("an input of unknown type"))?;
    let product = im.emit(&format!("{}_product", node.name), Op::MatMul, &[a, b])?;
    let alpha = im.add_constant(&format!("{}_alpha", node.name), Tensor::scalar(alpha).cast(dtype))?;
    node.inputs = vec![Some(product), Some(alpha)];
    Ok(Op::Binary(BinaryOp::Mul))
}

/// Returns input `index`, with its last two axes swapped if the attribute `flag` says so.
fn swapped(im: &mut Importer<'_>, node: &Pending<'_>, index: usize, flag: &str) -> Result<Option<ValueId>> {
    let x = node.input(index);
    if !node.attributes.flag(flag, false)? {
        return Ok(x);
    }
    let rank = im.rank(x).filter(|rank| *rank >= 2);
    let rank = rank.ok_or_else(|| node.unsupported(format!("{flag} for an undetermined number of axes")))?;
    let mut perm: Vec<usize> = (0..rank).collect();
    perm.swap(rank - 1, rank - 2);
    im.emit(&format!("{}_swapped", node.name), Op::Transpose { perm }, &[x]).map(Some)
}

//! Import of the operators of ONNX Runtime's own domain that its quantization writes (`QuantFormat.QOperator`, and
//! `QuantizeLinear` and `DequantizeLinear` with 16 bits), and of those that its optimization fuses. The former become the
//! operator on floats between `DequantizeLinear` and `QuantizeLinear`.

use super::layers::{dequantize, pool, quantize, softmax_of};
use super::{Importer, Pending, UNKNOWN, fused};
use cytoscope_graph::{Activation, BinaryOp, ElementType, Op, Result, ValueId};

/// Domain of ONNX Runtime's own operators.
pub(super) const DOMAIN: &str = "com.microsoft";
/// Domain of its layers whose channels are in blocks, which its full optimization writes.
pub(super) const CHANNELS_IN_BLOCKS: &str = "com.microsoft.nchwc";

/// Returns the last operator that `node`, of the domain [`DOMAIN`], becomes.
pub(super) fn convert(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Op> {
    let op = match node.op_type {
        "QLinearAdd" => Op::Binary(BinaryOp::Add),
        "QLinearMul" => Op::Binary(BinaryOp::Mul),
        "QLinearLeakyRelu" => Op::Activation(Activation::LeakyRelu { alpha: node.attributes.float("alpha", 0.01)? }),
        "QLinearSigmoid" => Op::Activation(Activation::Sigmoid),
        "QLinearConcat" => return concat(im, node),
        "QLinearGlobalAveragePool" => {
            refuse_channels_last(node)?;
            Op::GlobalAveragePool
        }
        "QLinearAveragePool" => {
            refuse_channels_last(node)?;
            Op::AveragePool(pool(im, node)?)
        }
        "QGemm" => return gemm(im, node),
        "QLinearSoftmax" => return softmax(im, node),
        "QLinearWhere" => return choice(im, node),
        "QuantizeLinear" => return quantize(im, node),
        "DequantizeLinear" => return dequantize(im, node),
        _ => return fused::convert(im, node)?.ok_or_else(|| node.unsupported(UNKNOWN)),
    };
    let operands = if matches!(op, Op::Binary(_)) { 2 } else { 1 };
    let mut inputs = Vec::new();
    for operand in 0..operands {
        inputs.push(Some(dequantized(im, node, 3 * operand)?));
    }
    let result = im.emit(&format!("{}_float", node.name), op, &inputs)?;
    quantized(im, node, result, 3 * operands, 0)
}

fn refuse_channels_last(node: &Pending<'_>) -> Result<()> {
    if node.attributes.flag("channels_last", false)? {
        return Err(node.unsupported("channels as the last axis"));
    }
    Ok(())
}

/// Dequantizes input `index`, which scale and zero point follow.
fn dequantized(im: &mut Importer<'_>, node: &Pending<'_>, index: usize) -> Result<ValueId> {
    let inputs = [node.input(index), node.input(index + 1), node.input(index + 2)];
    let op = Op::DequantizeLinear { axis: 1, block_size: 0 };
    im.emit(&format!("{}_dequantized", node.name), op, &inputs)
}

/// Returns the quantization of a result with the scale at input `index` and the zero point after it. Without a zero point, it has
/// the type of the input `like`, as in ONNX Runtime.
fn quantized(im: &Importer<'_>, node: &mut Pending<'_>, result: ValueId, index: usize, like: usize) -> Result<Op> {
    let (scale, zero) = (node.input(index), node.input(index + 1));
    let known = im.info(zero.or(node.input(like))).and_then(|info| info.dtype);
    let to = known.ok_or_else(|| node.unsupported("a result whose type is not known"))?;
    node.inputs = vec![Some(result), scale, zero];
    Ok(Op::QuantizeLinear { axis: 1, block_size: 0, to })
}

/// `[y scale, y zero point, then each part with its scale and zero point]`
fn concat(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Op> {
    node.require("axis")?;
    let axis = node.attributes.int("axis", 1)?;
    let mut parts = Vec::new();
    for index in (2..node.inputs.len()).step_by(3) {
        parts.push(Some(dequantized(im, node, index)?));
    }
    let result = im.emit(&format!("{}_float", node.name), Op::concat(axis), &parts)?;
    quantized(im, node, result, 0, 2)
}

/// `[x, scale, zero point, y scale, y zero point]`; the attribute `opset` says which definition of `Softmax` applies.
fn softmax(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Op> {
    node.require("opset")?;
    let opset = node.attributes.int("opset", 13)?;
    let axis = node.attributes.int("axis", if opset < 13 { 1 } else { -1 })?;
    let x = dequantized(im, node, 0)?;
    let (op, inputs) = softmax_of(im, &node.name, Some(x), Op::Softmax { axis }, opset)?;
    let result = im.emit(&format!("{}_float", node.name), op, &inputs)?;
    quantized(im, node, result, 3, 0)
}

/// `[condition, x, scale, zero point, y, scale, zero point, result's scale, result's zero point]`
fn choice(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Op> {
    let inputs = [node.input(0), Some(dequantized(im, node, 1)?), Some(dequantized(im, node, 4)?)];
    let result = im.emit(&format!("{}_float", node.name), Op::Where, &inputs)?;
    quantized(im, node, result, 7, 1)
}

/// `[a, scale, zero point, b, scale, zero point, c?, y scale?, y zero point?]`, where c is an i32 whose scale is the product of
/// those of a and b.
fn gemm(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Op> {
    let name = node.name.clone();
    let alpha = node.attributes.float("alpha", 1.0)?;
    let gemm = Op::Gemm {
        alpha,
        // ONNX Runtime multiplies the sum of the product and c by alpha.
        beta: alpha,
        trans_a: node.attributes.flag("transA", false)?,
        trans_b: node.attributes.flag("transB", false)?,
    };
    // The columns of the result are the rows of a transposed b.
    let column_axis = if matches!(gemm, Op::Gemm { trans_b: true, .. }) { 0 } else { 1 };
    let a = dequantized(im, node, 0)?;
    let b = [node.input(3), node.input(4), node.input(5)];
    let b = im.emit(&format!("{name}_b"), Op::DequantizeLinear { axis: column_axis, block_size: 0 }, &b)?;
    let mut inputs = vec![Some(a), Some(b)];
    if let Some(c) = node.input(6) {
        let scale = im.emit(&format!("{name}_scale"), Op::Binary(BinaryOp::Mul), &[node.input(1), node.input(4)])?;
        let c = im.emit(&format!("{name}_c"), Op::Cast { to: ElementType::F32 }, &[Some(c)])?;
        inputs.push(Some(im.emit(&format!("{name}_bias"), Op::Binary(BinaryOp::Mul), &[Some(c), Some(scale)])?));
    }
    if node.input(7).is_none() {
        node.inputs = inputs;
        return Ok(gemm);
    }
    let result = im.emit(&format!("{name}_float"), gemm, &inputs)?;
    quantized(im, node, result, 7, 0)
}

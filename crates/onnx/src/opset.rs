//! The opset of a file: the oldest one that has all operators of a graph, so that older programs read the file.

use cytoscope_graph::infer::{Info, resolve_axis};
use cytoscope_graph::{Activation, ElementType, Graph, Node, Op, PadMode, ReduceOp, ValueId, op_name};
use std::collections::BTreeMap;

/// Types, shapes and known values of a graph.
type Infos = BTreeMap<ValueId, Info>;

/// Opset of files without newer operators: that of ONNX 1.12.
pub(crate) const OLDEST_OPSET: i64 = 17;

/// Opset of files in which convolutions and some other operators compute in bfloat16: that of ONNX 1.17.
const BF16_OPSET: i64 = 22;

/// Opset of files in which `TopK` computes in bfloat16, the newest one that is written: that of ONNX 1.19.
pub(crate) const NEWEST_WRITTEN_OPSET: i64 = 24;

/// Returns the version of the file format for an opset: the newest one that existed when the opset was introduced.
pub(crate) fn ir_version(opset: i64) -> i64 {
    match opset {
        ..=18 => 8,
        19 | 20 => 9,
        21 | 22 => 10,
        23 => 11,
        _ => 12,
    }
}

/// Returns the opset that a graph is written in.
pub(crate) fn graph_opset(graph: &Graph, infos: &Infos) -> i64 {
    let opset_of = |node: &Node| if is_new_in_bf16(node, infos) { BF16_OPSET } else { node_opset(node, graph, infos) };
    graph.nodes.iter().map(opset_of).fold(OLDEST_OPSET, i64::max)
}

/// Whether a node computes in bfloat16, which its operator does from [`BF16_OPSET`] on.
fn is_new_in_bf16(node: &Node, infos: &Infos) -> bool {
    let dtype = node.input(0).and_then(|id| infos.get(&id)?.dtype);
    let names = [
        &["Conv", "ConvTranspose", "FusedConv", "InstanceNormalization", "LpNormalization", "GridSample"][..],
        &["AveragePool", "MaxPool", "GlobalAveragePool", "GlobalMaxPool", "Round"],
        &["Elu", "HardSigmoid", "HardSwish", "Mish", "Selu", "Softplus", "Softsign", "ThresholdedRelu"],
        &["Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh"],
    ];
    dtype == Some(ElementType::BF16) && names.iter().any(|names| names.contains(&op_name(&node.op)))
}

/// Returns the element type of a node's first input, if ONNX's operator has it in no opset. Files of other programs with such
/// nodes are read nevertheless.
pub(crate) fn missing_type(node: &Node, infos: &Infos) -> Option<ElementType> {
    use ElementType::{BF16, F32, F64, I16, I32, I64};
    let dtype = node.input(0).and_then(|id| infos.get(&id)?.dtype)?;
    let is_missing = match &node.op {
        Op::Activation(Activation::Celu { .. }) | Op::FusedConv { activation: Some(Activation::Celu { .. }), .. } => {
            dtype != F32
        }
        Op::Range => !matches!(dtype, F32 | F64 | I16 | I32 | I64),
        Op::Einsum { .. } => dtype == BF16,
        _ => false,
    };
    is_missing.then_some(dtype)
}

/// Returns the oldest opset, from [`OLDEST_OPSET`] on, in which a node can be written. The differences are those of ONNX's
/// changelog (<https://github.com/onnx/onnx/blob/main/docs/Changelog.md>); operators that are not listed have the same
/// form, for the types of this program, in all opsets from 17 to 24, except for bfloat16.
fn node_opset(node: &Node, graph: &Graph, infos: &Infos) -> i64 {
    let dtype = |input: usize| infos.get(&node.input(input)?)?.dtype;
    let is_half = |input: usize| dtype(input).is_some_and(ElementType::is_half);
    match &node.op {
        Op::Activation(activation) | Op::FusedConv { activation: Some(activation), .. } => activation_opset(activation),
        Op::AveragePool(attrs) if attrs.dilations.iter().any(|n| *n != 1) => 19,
        Op::Split { axis } if node.input(1).is_none() && !splits_evenly(node, *axis, infos) => 18,
        Op::Pad { mode: PadMode::Wrap } => 19,
        Op::Pad { .. } if node.input(3).is_some() => 18,
        Op::Reduce { kind: ReduceOp::Max | ReduceOp::Min, .. } if dtype(0) == Some(ElementType::Bool) => 20,
        Op::Reduce { kind, noop_with_empty_axes, .. }
            if has_axes_attribute(*kind, OLDEST_OPSET)
                && axes_attribute(node, *noop_with_empty_axes, graph).is_none() =>
        {
            18
        }
        Op::ConstantOfShape { value } if value.dtype() == ElementType::BF16 => 20,
        // In opset 18, scale and bias are per group.
        Op::GroupNormalization { .. } => 21,
        Op::QuantizeLinear { block_size, to, .. } => {
            // Before opset 21, the type is that of the zero point, or uint8 without one.
            let is_stated = if node.input(2).is_some() { dtype(2) == Some(*to) } else { *to == ElementType::U8 };
            let is_8_bit = matches!(to, ElementType::U8 | ElementType::I8);
            match (*block_size == 0 && is_8_bit && is_stated, is_half(0) || is_half(1)) {
                (false, _) => 21,
                (true, true) => 19,
                (true, false) => OLDEST_OPSET,
            }
        }
        Op::DequantizeLinear { block_size, .. } => {
            let is_16_bit = matches!(dtype(0), Some(ElementType::I16 | ElementType::U16));
            match (*block_size > 0 || is_16_bit, is_half(1)) {
                (true, _) => 21,
                (false, true) => 19,
                (false, false) => OLDEST_OPSET,
            }
        }
        Op::TopK { .. } if dtype(0) == Some(ElementType::BF16) => NEWEST_WRITTEN_OPSET,
        Op::QLinearMatMul if [1, 4, 6].into_iter().any(is_half) => 21,
        other => crate::ops::oldest_opset(other).unwrap_or(OLDEST_OPSET),
    }
}

fn activation_opset(activation: &Activation) -> i64 {
    match activation {
        Activation::Mish => 18,
        Activation::Gelu { .. } => 20,
        _ => OLDEST_OPSET,
    }
}

/// Whether the parts of a split without lengths are known to be equal. Before opset 18, they have to be.
fn splits_evenly(node: &Node, axis: i64, infos: &Infos) -> bool {
    let shape = node.input(0).and_then(|id| infos.get(&id)?.shape.as_ref());
    let length = shape.and_then(|shape| shape.get(resolve_axis(axis, shape.len()).ok()?)?.fixed());
    length.is_some_and(|length| length.is_multiple_of(node.outputs.len().max(1)))
}

/// Whether a reduction has its axes as an attribute, instead of an input.
pub(crate) fn has_axes_attribute(kind: ReduceOp, opset: i64) -> bool {
    kind != ReduceOp::Sum && opset < 18
}

/// Returns the axes of a reduction as an attribute, which is left out if they are empty: then all axes are reduced.
/// `None` if they are not constant, or empty and nothing is reduced.
pub(crate) fn axes_attribute(node: &Node, noop_with_empty_axes: bool, graph: &Graph) -> Option<Vec<i64>> {
    let axes = match node.input(1) {
        Some(id) => graph.constant(id)?.to_i64_vec()?,
        None => Vec::new(),
    };
    (!axes.is_empty() || !noop_with_empty_axes).then_some(axes)
}

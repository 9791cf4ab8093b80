//! Import of all other operators: arithmetic, products, reductions, and operators that move elements.

use super::{Importer, Pending, UNKNOWN};
use crate::proto::{AttributeValue, ExternalData, TensorProto, tensor_from_proto};
use cytoscope_graph::{BinaryOp, DepthOrder, ElementType, GraphError, Op, PadMode, ReduceOp, Result, Tensor, UnaryOp};

/// Returns the tensor of a `Constant` node.
pub(super) fn constant(im: &mut Importer<'_>, node: &Pending<'_>) -> Result<Tensor> {
    for name in ["value", "value_float", "value_int", "value_floats", "value_ints"] {
        return Ok(match node.attributes.get(name) {
            None => continue,
            Some(AttributeValue::Tensor(t)) => im.stored(copied(t))?,
            Some(AttributeValue::Float(v)) => Tensor::scalar(*v),
            Some(AttributeValue::Int(v)) => Tensor::scalar(*v),
            Some(AttributeValue::Floats(v)) => Tensor::vector(v.clone()),
            Some(AttributeValue::Ints(v)) => Tensor::vector(v.clone()),
            Some(_) => return Err(node.unsupported(format!("attribute \"{name}\" with a value of this type"))),
        });
    }
    Err(node.unsupported("a constant that is not numeric"))
}

/// Copies a tensor of an attribute; its bytes stay borrowed.
fn copied<'a>(proto: &TensorProto<'a>) -> TensorProto<'a> {
    TensorProto {
        name: proto.name,
        dims: proto.dims.clone(),
        data_type: proto.data_type,
        raw: proto.raw,
        floats: proto.floats.clone(),
        ints: proto.ints.clone(),
        doubles: proto.doubles.clone(),
        uints: proto.uints.clone(),
        external: proto.external.clone(),
        is_external: proto.is_external,
        has_strings: proto.has_strings,
    }
}

/// ONNX names of the element-wise functions of one element.
const UNARY: [(&str, UnaryOp); 24] = [
    ("Abs", UnaryOp::Abs),
    ("Neg", UnaryOp::Neg),
    ("Reciprocal", UnaryOp::Reciprocal),
    ("Sqrt", UnaryOp::Sqrt),
    ("Exp", UnaryOp::Exp),
    ("Log", UnaryOp::Log),
    ("Erf", UnaryOp::Erf),
    ("Floor", UnaryOp::Floor),
    ("Ceil", UnaryOp::Ceil),
    ("Round", UnaryOp::Round),
    ("Sign", UnaryOp::Sign),
    ("Sin", UnaryOp::Sin),
    ("Cos", UnaryOp::Cos),
    ("Tan", UnaryOp::Tan),
    ("Asin", UnaryOp::Asin),
    ("Acos", UnaryOp::Acos),
    ("Atan", UnaryOp::Atan),
    ("Sinh", UnaryOp::Sinh),
    ("Cosh", UnaryOp::Cosh),
    ("Asinh", UnaryOp::Asinh),
    ("Acosh", UnaryOp::Acosh),
    ("Atanh", UnaryOp::Atanh),
    ("Not", UnaryOp::Not),
    ("IsNaN", UnaryOp::IsNaN),
];

/// ONNX names of the element-wise functions of two elements.
const BINARY: [(&str, BinaryOp); 13] = [
    ("Add", BinaryOp::Add),
    ("Sub", BinaryOp::Sub),
    ("Mul", BinaryOp::Mul),
    ("Div", BinaryOp::Div),
    ("Pow", BinaryOp::Pow),
    ("Equal", BinaryOp::Equal),
    ("Greater", BinaryOp::Greater),
    ("GreaterOrEqual", BinaryOp::GreaterOrEqual),
    ("Less", BinaryOp::Less),
    ("LessOrEqual", BinaryOp::LessOrEqual),
    ("And", BinaryOp::And),
    ("Or", BinaryOp::Or),
    ("Xor", BinaryOp::Xor),
];

/// ONNX names of the reductions.
const REDUCE: [(&str, ReduceOp); 10] = [
    ("ReduceSum", ReduceOp::Sum),
    ("ReduceMean", ReduceOp::Mean),
    ("ReduceMax", ReduceOp::Max),
    ("ReduceMin", ReduceOp::Min),
    ("ReduceProd", ReduceOp::Prod),
    ("ReduceL1", ReduceOp::L1),
    ("ReduceL2", ReduceOp::L2),
    ("ReduceLogSum", ReduceOp::LogSum),
    ("ReduceLogSumExp", ReduceOp::LogSumExp),
    ("ReduceSumSquare", ReduceOp::SumSquare),
];

pub(super) fn convert(im: &mut Importer<'_>, node: &mut Pending<'_>, wanted: &[&str]) -> Result<Op> {
    let find = |name: &str| UNARY.iter().find(|(n, _)| *n == name).map(|(_, k)| *k);
    if let Some(kind) = find(node.op_type) {
        return Ok(Op::Unary(kind));
    }
    if let Some(&(_, kind)) = BINARY.iter().find(|(n, _)| *n == node.op_type) {
        old_broadcast(im, node)?;
        return Ok(Op::Binary(kind));
    }
    if let Some(&(_, kind)) = REDUCE.iter().find(|(n, _)| *n == node.op_type) {
        list_input(im, node, "axes", 1)?;
        return Ok(Op::Reduce {
            kind,
            keep_dims: node.attributes.flag("keepdims", true)?,
            noop_with_empty_axes: node.attributes.flag("noop_with_empty_axes", false)?,
        });
    }
    if let Some(op) = computing(im, node)? {
        return Ok(op);
    }
    if let Some(op) = moving(im, node, wanted)? {
        return Ok(op);
    }
    if let Some(op) = indexing(im, node)? {
        return Ok(op);
    }
    Err(match node.op_type {
        "Loop" | "Scan" => node.unsupported("loops are not implemented; export the model without them"),
        _ => node.unsupported(UNKNOWN),
    })
}

/// Returns an operator that computes with its inputs: products, reductions, searches.
fn computing(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Option<Op>> {
    let a = &node.attributes;
    Ok(Some(match node.op_type {
        "Min" | "Max" | "Sum" | "Mean" => chain(im, node)?,
        "Mod" => Op::Binary(BinaryOp::Mod { fmod: a.flag("fmod", false)? }),
        "Where" => Op::Where,
        "MatMul" => Op::MatMul,
        "MatMulInteger" => Op::MatMulInteger,
        "QLinearMatMul" => Op::QLinearMatMul,
        "Gemm" => {
            a.int("broadcast", 1)?;
            Op::Gemm {
                alpha: a.float("alpha", 1.0)?,
                beta: a.float("beta", 1.0)?,
                trans_a: a.flag("transA", false)?,
                trans_b: a.flag("transB", false)?,
            }
        }
        "ArgMax" | "ArgMin" => Op::ArgReduce {
            max: node.op_type == "ArgMax",
            axis: a.int("axis", 0)?,
            keep_dims: a.flag("keepdims", true)?,
            last: a.flag("select_last_index", false)?,
        },
        "TopK" => {
            list_input(im, node, "k", 1)?;
            node.attributes.int("sorted", 1)?;
            Op::TopK { axis: node.attributes.int("axis", -1)?, largest: node.attributes.flag("largest", true)? }
        }
        "CumSum" => Op::CumSum { exclusive: a.flag("exclusive", false)?, reverse: a.flag("reverse", false)? },
        "Einsum" => Op::Einsum { equation: equation(im, node)? },
        _ => return Ok(None),
    }))
}

/// Returns the equation of an `Einsum`, with letters for the axes of an ellipsis.
fn equation(im: &Importer<'_>, node: &Pending<'_>) -> Result<String> {
    const ELLIPSIS: &str = "...";
    node.require("equation")?;
    let equation = node.attributes.text("equation", "")?.replace(' ', "");
    if !equation.contains(ELLIPSIS) {
        return Ok(equation);
    }
    let (left, right) = equation.split_once("->").map_or((equation.as_str(), None), |(l, r)| (l, Some(r)));
    let mut counts = Vec::new();
    for (index, term) in left.split(',').enumerate() {
        let named = term.chars().filter(|c| *c != '.').count();
        let rank = im.rank(node.input(index)).filter(|rank| *rank >= named);
        let rank = rank.ok_or_else(|| node.unsupported(format!("\"{equation}\" for this number of axes")))?;
        counts.push(if term.contains(ELLIPSIS) { rank - named } else { 0 });
    }
    let most = counts.iter().copied().max().unwrap_or(0);
    let unused: Vec<char> = ('A'..='Z').chain('a'..='z').filter(|c| !equation.contains(*c)).take(most).collect();
    // Shorter ellipses are aligned with the last axes of the longest.
    let expand = |term: &str, count: usize| {
        let letters: String = unused.iter().skip(most - count).collect();
        term.replacen(ELLIPSIS, &letters, 1)
    };
    let terms: Vec<String> = left.split(',').zip(&counts).map(|(term, count)| expand(term, *count)).collect();
    let result = right.map_or_else(
        || {
            let is_single = |c: &char| c.is_ascii_alphabetic() && left.matches(*c).count() == 1;
            let mut single: Vec<char> = left.chars().filter(is_single).collect();
            single.sort_unstable();
            unused.iter().copied().chain(single).collect()
        },
        |right| expand(right, most),
    );
    Ok(format!("{}->{result}", terms.join(",")))
}

/// Returns an operator that moves the elements of its input to another place or shape.
fn moving(im: &mut Importer<'_>, node: &mut Pending<'_>, wanted: &[&str]) -> Result<Option<Op>> {
    let a = &node.attributes;
    Ok(Some(match node.op_type {
        "Split" => {
            list_input(im, node, "split", 1)?;
            node.attributes.int("num_outputs", 0)?;
            Op::Split { axis: node.attributes.int("axis", 0)? }
        }
        "Slice" => {
            if node.opset < 10 {
                for (name, index) in [("starts", 1), ("ends", 2), ("axes", 3)] {
                    list_input(im, node, name, index)?;
                }
            }
            Op::Slice
        }
        "Pad" => pad(im, node)?,
        "Reshape" => {
            list_input(im, node, "shape", 1)?;
            Op::Reshape { allow_zero: node.attributes.flag("allowzero", false)? }
        }
        "Transpose" => {
            let rank = im.rank(node.input(0));
            let perm = node.attributes.sizes("perm")?;
            Op::Transpose { perm: perm.unwrap_or_else(|| (0..rank.unwrap_or(0)).rev().collect()) }
        }
        "Squeeze" => {
            list_input(im, node, "axes", 1)?;
            Op::Squeeze
        }
        "Unsqueeze" => {
            list_input(im, node, "axes", 1)?;
            Op::Unsqueeze
        }
        "Flatten" => Op::Flatten { axis: a.int("axis", 1)? },
        "Expand" => Op::Expand,
        "Tile" => Op::Tile,
        "Identity" => Op::Identity,
        "Dropout" => {
            dropout(node, wanted)?;
            Op::Identity
        }
        "DepthToSpace" => {
            node.require("blocksize")?;
            let order = match a.text("mode", "DCR")?.as_str() {
                "DCR" => DepthOrder::Dcr,
                "CRD" => DepthOrder::Crd,
                other => return Err(node.unsupported(format!("mode \"{other}\""))),
            };
            Op::DepthToSpace { block: a.size("blocksize", 1)?, order }
        }
        "SpaceToDepth" => {
            node.require("blocksize")?;
            Op::SpaceToDepth { block: a.size("blocksize", 1)? }
        }
        "Trilu" => Op::Trilu { upper: a.flag("upper", true)? },
        _ => return Ok(None),
    }))
}

/// Returns an operator that reads positions or shapes, or creates a tensor.
fn indexing(im: &Importer<'_>, node: &Pending<'_>) -> Result<Option<Op>> {
    let a = &node.attributes;
    Ok(Some(match node.op_type {
        "Gather" => Op::Gather { axis: a.int("axis", 0)? },
        "GatherElements" => Op::GatherElements { axis: a.int("axis", 0)? },
        "GatherND" => Op::GatherNd { batch_dims: a.size("batch_dims", 0)? },
        "ScatterND" => {
            let reduction = a.text("reduction", "none")?;
            if reduction != "none" {
                return Err(node.unsupported(format!("reduction \"{reduction}\"")));
            }
            Op::ScatterNd
        }
        "Shape" => {
            let end = if a.has("end") { Some(a.int("end", 0)?) } else { None };
            Op::Shape { start: a.int("start", 0)?, end }
        }
        "Size" => Op::Size,
        "Cast" => {
            // This affects only 8-bit floats of type e8m0, which are not supported.
            a.text("round_mode", "up")?;
            Op::Cast { to: cast_type(node)? }
        }
        "ConstantOfShape" => {
            let value = match a.get("value") {
                Some(AttributeValue::Tensor(t)) => tensor_from_proto(copied(t), &ExternalData::Refused, im.limits)?,
                None => Tensor::vector(vec![0.0f32]),
                Some(_) => return Err(node.unsupported("a value that is not a tensor")),
            };
            Op::ConstantOfShape { value }
        }
        "Range" => Op::Range,
        _ => return Ok(None),
    }))
}

/// Turns an attribute that became an input in a later opset into that input.
fn list_input(im: &mut Importer<'_>, node: &mut Pending<'_>, name: &str, index: usize) -> Result<()> {
    if let Some(values) = node.attributes.ints(name)? {
        let id = im.add_ints(&format!("{}_{name}", node.name), &values)?;
        node.set_input(index, Some(id));
    }
    Ok(())
}

/// Before opset 7, the second operand was broadcast along the axis given by an attribute.
fn old_broadcast(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<()> {
    if node.opset >= 7 {
        return Ok(());
    }
    node.attributes.int("broadcast", 0)?;
    let axis = node.attributes.ints("axis")?.and_then(|v| v.first().copied());
    let Some(axis) = axis else { return Ok(()) };
    let (Some(a), Some(b)) = (im.rank(node.input(0)), im.rank(node.input(1))) else {
        return Err(node.unsupported("broadcasting along an axis of tensors of unknown rank"));
    };
    let axis = cytoscope_graph::infer::resolve_axis(axis, a.max(1))?;
    let behind = a.checked_sub(axis + b).ok_or_else(|| {
        GraphError::malformed(format!("node \"{}\": broadcasting {b} axes at axis {axis} of {a}", node.name))
    })?;
    if behind > 0 {
        let axes: Vec<i64> = (b as i64..(b + behind) as i64).collect();
        let axes = im.add_ints(&format!("{}_axes", node.name), &axes)?;
        let wide = im.emit(&format!("{}_wide", node.name), Op::Unsqueeze, &[node.input(1), Some(axes)])?;
        node.set_input(1, Some(wide));
    }
    Ok(())
}

/// Converts n-ary minimum, maximum, sum and mean to a chain of binary operators.
fn chain(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Op> {
    let kind = match node.op_type {
        "Min" => BinaryOp::Min,
        "Max" => BinaryOp::Max,
        _ => BinaryOp::Add,
    };
    let all: Vec<_> = node.inputs.iter().flatten().copied().collect();
    let count = all.len();
    let Some((&first, rest)) = all.split_first() else {
        return Err(GraphError::malformed(format!("node \"{}\" has no inputs", node.name)));
    };
    let mean = node.op_type == "Mean" && count > 1;
    let mut total = first;
    let emitted = if mean { rest } else { rest.split_last().map_or(rest, |(_, r)| r) };
    for &next in emitted {
        total = im.emit(&format!("{}_part", node.name), Op::Binary(kind), &[Some(total), Some(next)])?;
    }
    if mean {
        let dtype = im.info(Some(first)).and_then(|i| i.dtype).unwrap_or(ElementType::F32);
        let n = im.add_constant(&format!("{}_count", node.name), Tensor::scalar(count as f64).cast(dtype))?;
        node.inputs = vec![Some(total), Some(n)];
        return Ok(Op::Binary(BinaryOp::Div));
    }
    match rest.last() {
        None => {
            node.inputs = vec![Some(first)];
            Ok(Op::Identity)
        }
        Some(&last) => {
            node.inputs = vec![Some(total), Some(last)];
            Ok(Op::Binary(kind))
        }
    }
}

fn pad(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Op> {
    let mode = match node.attributes.text("mode", "constant")?.as_str() {
        "constant" => PadMode::Constant,
        "reflect" => PadMode::Reflect,
        "edge" => PadMode::Edge,
        "wrap" => PadMode::Wrap,
        other => return Err(node.unsupported(format!("mode \"{other}\""))),
    };
    if node.opset < 11 {
        list_input(im, node, if node.opset < 2 { "paddings" } else { "pads" }, 1)?;
        let value = node.attributes.float("value", 0.0)?;
        if mode == PadMode::Constant && value != 0.0 {
            let dtype = im.info(node.input(0)).and_then(|i| i.dtype).unwrap_or(ElementType::F32);
            let id = im.add_constant(&format!("{}_value", node.name), Tensor::scalar(value).cast(dtype))?;
            node.set_input(2, Some(id));
        }
    }
    Ok(Op::Pad { mode })
}

/// Returns the element type of a `TensorProto.DataType` given as an attribute; `None` if it is not supported.
pub(crate) fn onnx_type(code: i64) -> Option<ElementType> {
    i32::try_from(code).ok().and_then(ElementType::from_onnx_code)
}

fn cast_type(node: &Pending<'_>) -> Result<ElementType> {
    match node.attributes.get("to") {
        Some(AttributeValue::Int(code)) => {
            onnx_type(*code).ok_or_else(|| node.unsupported(format!("a cast to ONNX type {code}")))
        }
        Some(AttributeValue::Text(name)) => {
            let name = String::from_utf8_lossy(name).to_lowercase();
            let name = match name.as_str() {
                "float" => "float32",
                "double" => "float64",
                other => other,
            };
            let found = ElementType::ALL.into_iter().find(|t| t.name() == name);
            found.ok_or_else(|| node.unsupported(format!("a cast to \"{name}\"")))
        }
        _ => Err(GraphError::malformed(format!("node \"{}\": Cast without a type", node.name))),
    }
}

/// Converts Dropout to a copy: in inference it has no effect.
fn dropout(node: &mut Pending<'_>, wanted: &[&str]) -> Result<()> {
    node.attributes.float("ratio", 0.5)?;
    node.attributes.int("seed", 0)?;
    node.attributes.int("is_test", 1)?;
    if wanted.iter().skip(1).any(|o| !o.is_empty()) {
        return Err(node.unsupported("the mask output"));
    }
    node.inputs.truncate(1);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::attributes::Attributes;
    use super::super::{Importer, Pending, UNKNOWN, convert};
    use cytoscope_graph::{GraphError, GraphLimits};

    /// The table lists exactly the operators that the converters accept.
    #[test]
    fn the_table_lists_exactly_the_converted_operators() {
        let limits = GraphLimits::default();
        let known = |op_type: &str| {
            let budget = cytoscope_graph::Budget::with_constant_bytes(0, cytoscope_graph::Interrupt::default());
            let mut importer = Importer::new(17, &limits, budget);
            let mut node = Pending {
                name: "n".into(),
                op_type,
                opset: 17,
                attributes: Attributes::new(&[], None).unwrap(),
                inputs: Vec::new(),
                outputs: Vec::new(),
            };
            let result = convert(&mut importer, &mut node, &["y"]);
            !matches!(result, Err(GraphError::UnsupportedOp { why, .. }) if why == UNKNOWN)
        };
        for row in crate::supported_operators().filter(|r| !matches!(r.name, "Constant" | "If")) {
            assert!(known(row.name), "{} is in the table but not converted", row.name);
        }
        assert!(!known("NonMaxSuppression"));
        let listed = |name: &str| crate::supported_operators().any(|r| r.name == name);
        let tables = super::UNARY
            .iter()
            .map(|r| r.0)
            .chain(super::BINARY.iter().map(|r| r.0))
            .chain(super::REDUCE.iter().map(|r| r.0));
        for name in tables {
            assert!(listed(name), "{name} is converted but not in the table");
        }
    }
}

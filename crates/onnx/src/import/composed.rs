//! Import of operators that are composed of others.

use super::{Importer, Pending};
use cytoscope_graph::{
    BinaryOp, Dim, ElementType, GraphError, Op, Padding, PoolAttrs, ReduceOp, Result, Tensor, UnaryOp, ValueId,
    check_limit,
};

/// Returns the last operator that `node` is composed of; `None` for operators that are not composed.
pub(super) fn convert(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Option<Op>> {
    Ok(Some(match node.op_type {
        "CastLike" => cast_like(im, node)?,
        "IsInf" => is_inf(im, node)?,
        "Shrink" => shrink(im, node)?,
        "RMSNormalization" => rms_normalization(im, node)?,
        "MeanVarianceNormalization" => mean_variance_normalization(im, node)?,
        "LRN" => local_response_normalization(im, node)?,
        "GlobalLpPool" => global_lp_pool(im, node)?,
        "Hardmax" => hardmax(im, node)?,
        "OneHot" => one_hot(im, node)?,
        _ => return Ok(None),
    }))
}

/// Adds an f32 constant with the type of `like`.
fn number(im: &mut Importer<'_>, node: &Pending<'_>, value: f32, like: Option<ValueId>) -> Result<Option<ValueId>> {
    let dtype = im.info(like).and_then(|info| info.dtype);
    let dtype = dtype.ok_or_else(|| node.unsupported("an input of unknown type"))?;
    im.add_constant(&format!("{}_number", node.name), Tensor::scalar(value).cast(dtype)).map(Some)
}

/// Adds an element-wise operator of two values.
fn binary(
    im: &mut Importer<'_>,
    node: &Pending<'_>,
    kind: BinaryOp,
    a: Option<ValueId>,
    b: Option<ValueId>,
) -> Result<Option<ValueId>> {
    im.emit(&format!("{}_part", node.name), Op::Binary(kind), &[a, b]).map(Some)
}

fn unary(im: &mut Importer<'_>, node: &Pending<'_>, kind: UnaryOp, x: Option<ValueId>) -> Result<Option<ValueId>> {
    im.emit(&format!("{}_part", node.name), Op::Unary(kind), &[x]).map(Some)
}

/// Adds the mean over `axes`, which are kept with length 1.
fn mean(im: &mut Importer<'_>, node: &Pending<'_>, x: Option<ValueId>, axes: &[i64]) -> Result<Option<ValueId>> {
    let axes = im.add_ints(&format!("{}_axes", node.name), axes)?;
    let op = Op::Reduce { kind: ReduceOp::Mean, keep_dims: true, noop_with_empty_axes: false };
    im.emit(&format!("{}_mean", node.name), op, &[x, Some(axes)]).map(Some)
}

/// Returns the axis, counted from the first one, that an attribute of the node states for an input with `rank` axes.
fn resolve_axis(node: &Pending<'_>, axis: i64, rank: i64) -> Result<i64> {
    if (-rank..rank).contains(&axis) {
        return Ok(if axis < 0 { axis + rank } else { axis });
    }
    Err(GraphError::malformed(format!("node \"{}\": axis {axis} of an input with {rank} axes", node.name)))
}

/// Returns the number of axes of the input, which must be known.
fn rank(im: &Importer<'_>, node: &Pending<'_>) -> Result<i64> {
    let rank = im.rank(node.input(0)).ok_or_else(|| node.unsupported("an undetermined number of axes"))?;
    Ok(rank as i64)
}

fn cast_like(im: &Importer<'_>, node: &mut Pending<'_>) -> Result<Op> {
    // This affects only 8-bit floats of type e8m0, which are not supported.
    node.attributes.text("round_mode", "up")?;
    let to = im.info(node.input(1)).and_then(|info| info.dtype);
    let to = to.ok_or_else(|| node.unsupported("a target of unknown type"))?;
    node.inputs.truncate(1);
    Ok(Op::Cast { to })
}

fn is_inf(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Op> {
    let detects = |name: &str| node.attributes.flag(name, true);
    let (negative, positive) = (detects("detect_negative")?, detects("detect_positive")?);
    let x = node.input(0);
    let (x, infinity) = match (negative, positive) {
        (true, true) => (unary(im, node, UnaryOp::Abs, x)?, f32::INFINITY),
        (false, true) => (x, f32::INFINITY),
        (true, false) => (x, f32::NEG_INFINITY),
        // No number is less than itself, and neither is NaN.
        (false, false) => {
            node.inputs = vec![x, x];
            return Ok(Op::Binary(BinaryOp::Less));
        }
    };
    let infinity = number(im, node, infinity, x)?;
    node.inputs = vec![x, infinity];
    Ok(Op::Binary(BinaryOp::Equal))
}

/// x + bias below −lambd, x − bias above lambd, 0 between.
fn shrink(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Op> {
    let (lambd, bias) = (node.attributes.float("lambd", 0.5)?, node.attributes.float("bias", 0.0)?);
    let x = node.input(0);
    let (low, high) = (number(im, node, -lambd, x)?, number(im, node, lambd, x)?);
    let (bias, zero) = (number(im, node, bias, x)?, number(im, node, 0.0, x)?);
    let (is_low, is_high) = (binary(im, node, BinaryOp::Less, x, low)?, binary(im, node, BinaryOp::Greater, x, high)?);
    let (raised, lowered) = (binary(im, node, BinaryOp::Add, x, bias)?, binary(im, node, BinaryOp::Sub, x, bias)?);
    let rest = im.emit(&format!("{}_part", node.name), Op::Where, &[is_high, lowered, zero])?;
    node.inputs = vec![is_low, raised, Some(rest)];
    Ok(Op::Where)
}

/// x / √(mean(x²) + ε) · scale, over the axes from `axis` on.
fn rms_normalization(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Op> {
    let (axis, epsilon) = (node.attributes.int("axis", -1)?, node.attributes.float("epsilon", 1e-5)?);
    let (x, scale) = (node.input(0), node.input(1));
    let rank = rank(im, node)?;
    let axes: Vec<i64> = (resolve_axis(node, axis, rank)?..rank).collect();
    let square = binary(im, node, BinaryOp::Mul, x, x)?;
    let mean = mean(im, node, square, &axes)?;
    let epsilon = number(im, node, epsilon, x)?;
    let raised = binary(im, node, BinaryOp::Add, mean, epsilon)?;
    let root = unary(im, node, UnaryOp::Sqrt, raised)?;
    let normalized = binary(im, node, BinaryOp::Div, x, root)?;
    node.inputs = vec![normalized, scale];
    Ok(Op::Binary(BinaryOp::Mul))
}

/// (x − mean) / (standard deviation + 1e-9), over `axes`.
fn mean_variance_normalization(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Op> {
    let axes = node.attributes.ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let x = node.input(0);
    let center = mean(im, node, x, &axes)?;
    let centered = binary(im, node, BinaryOp::Sub, x, center)?;
    let square = binary(im, node, BinaryOp::Mul, centered, centered)?;
    let variance = mean(im, node, square, &axes)?;
    let deviation = unary(im, node, UnaryOp::Sqrt, variance)?;
    let epsilon = number(im, node, 1e-9, x)?;
    let raised = binary(im, node, BinaryOp::Add, deviation, epsilon)?;
    node.inputs = vec![centered, raised];
    Ok(Op::Binary(BinaryOp::Div))
}

/// x / (bias + alpha · mean of x² over the nearest `size` channels)^beta; channels that do not exist count as 0.
fn local_response_normalization(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Op> {
    node.require("size")?;
    let size = node.attributes.size("size", 1)?;
    let (alpha, beta) = (node.attributes.float("alpha", 1e-4)?, node.attributes.float("beta", 0.75)?);
    let bias = node.attributes.float("bias", 1.0)?;
    let x = node.input(0);
    let channels = im.info(x).and_then(|info| info.shape.as_ref()?.get(1).and_then(Dim::fixed));
    let channels = channels.ok_or_else(|| node.unsupported("a number of channels that is not fixed"))?;
    let name = node.name.clone();
    let shape = im.emit(&format!("{name}_shape"), Op::Shape { start: 0, end: None }, &[x])?;
    let square = binary(im, node, BinaryOp::Mul, x, x)?;
    // The channels become the first of two spatial axes.
    let flat = im.add_ints(&format!("{name}_flat"), &[0, 1, channels as i64, -1])?;
    let reshape = || Op::Reshape { allow_zero: false };
    let image = im.emit(&format!("{name}_image"), reshape(), &[square, Some(flat)])?;
    let before = size.saturating_sub(1) / 2;
    let pool = PoolAttrs {
        kernel: vec![size, 1],
        strides: vec![1, 1],
        dilations: vec![1, 1],
        padding: Padding::Explicit { before: vec![before, 0], after: vec![size.saturating_sub(1) - before, 0] },
        ceil_mode: false,
        count_include_pad: true,
        column_major_indices: false,
    };
    let means = im.emit(&format!("{name}_means"), Op::AveragePool(pool), &[Some(image)])?;
    let means = im.emit(&format!("{name}_back"), reshape(), &[Some(means), Some(shape)])?;
    let (alpha, beta, bias) = (number(im, node, alpha, x)?, number(im, node, beta, x)?, number(im, node, bias, x)?);
    let scaled = binary(im, node, BinaryOp::Mul, Some(means), alpha)?;
    let raised = binary(im, node, BinaryOp::Add, scaled, bias)?;
    let divisor = binary(im, node, BinaryOp::Pow, raised, beta)?;
    node.inputs = vec![x, divisor];
    Ok(Op::Binary(BinaryOp::Div))
}

/// The norm of each channel.
fn global_lp_pool(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Op> {
    let kind = match node.attributes.int("p", 2)? {
        1 => ReduceOp::L1,
        2 => ReduceOp::L2,
        p => return Err(node.unsupported(format!("p = {p}"))),
    };
    let axes: Vec<i64> = (2..rank(im, node)?).collect();
    let axes = im.add_ints(&format!("{}_axes", node.name), &axes)?;
    node.set_input(1, Some(axes));
    Ok(Op::Reduce { kind, keep_dims: true, noop_with_empty_axes: true })
}

/// 1 at the first maximum along an axis, 0 elsewhere; before opset 13, along all axes from `axis` on.
fn hardmax(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Op> {
    let axis = node.attributes.int("axis", if node.opset < 13 { 1 } else { -1 })?;
    let rank = rank(im, node)?;
    let axis = resolve_axis(node, axis, rank)?;
    if node.opset < 13 && axis + 1 != rank {
        return Err(node.unsupported("several axes at once"));
    }
    let x = node.input(0);
    let length = im.info(x).and_then(|info| info.shape.as_ref()?.get(usize::try_from(axis).ok()?)?.fixed());
    let length = length.ok_or_else(|| node.unsupported("an axis whose length is not fixed"))?;
    check_limit("folded_elements", "the positions of a Hardmax", length as u128, im.limits.folded_elements as u128)?;
    let dtype = im.info(x).and_then(|info| info.dtype).ok_or_else(|| node.unsupported("an input of unknown type"))?;
    let position = Op::ArgReduce { max: true, axis, keep_dims: true, last: false };
    let position = im.emit(&format!("{}_position", node.name), position, &[x])?;
    let mut shape = vec![1; rank as usize];
    if let Some(n) = shape.get_mut(axis as usize) {
        *n = length;
    }
    let all = Tensor::new(shape, (0..length as i64).collect::<Vec<i64>>())?;
    let all = im.add_constant(&format!("{}_positions", node.name), all)?;
    let found = binary(im, node, BinaryOp::Equal, Some(position), Some(all))?;
    node.inputs = vec![found];
    Ok(Op::Cast { to: dtype })
}

/// `[indices, depth, [off, on]]`: a new axis of length `depth`, with on at the index, which counts from the end if it is
/// negative, and off elsewhere.
fn one_hot(im: &mut Importer<'_>, node: &mut Pending<'_>) -> Result<Op> {
    let rank = rank(im, node)? + 1;
    let axis = resolve_axis(node, node.attributes.int("axis", -1)?, rank)?;
    let depth = im.info(node.input(1)).and_then(|info| info.value.as_ref()?.to_f64_vec().first().copied());
    let depth = depth.ok_or_else(|| node.unsupported("a depth that is not constant"))?;
    if depth.is_nan() || depth < 1.0 {
        return Err(GraphError::malformed(format!("node \"{}\": a depth of {depth}", node.name)));
    }
    check_limit("folded_elements", "the depth of a OneHot", depth as u128, im.limits.folded_elements as u128)?;
    let depth = depth as i64;
    let name = node.name.clone();
    let indices = im.emit(&format!("{name}_indices"), Op::Cast { to: ElementType::I64 }, &[node.input(0)])?;
    let axes = im.add_ints(&format!("{name}_axes"), &[axis])?;
    let places = im.emit(&format!("{name}_wide"), Op::Unsqueeze, &[Some(indices), Some(axes)])?;
    let mut shape = vec![1; rank as usize];
    if let Some(n) = shape.get_mut(axis as usize) {
        *n = depth as usize;
    }
    // The indices of each position: counted from the start, and from the end.
    let mut found = Vec::new();
    for first in [0, -depth] {
        let own = Tensor::new(shape.clone(), (first..first + depth).collect::<Vec<i64>>())?;
        let own = im.add_constant(&format!("{name}_own"), own)?;
        found.push(binary(im, node, BinaryOp::Equal, Some(places), Some(own))?);
    }
    let found = binary(im, node, BinaryOp::Or, found.first().copied().flatten(), found.last().copied().flatten())?;
    let zero = im.add_constant(&format!("{name}_zero"), Tensor::scalar(0i64))?;
    let one = im.add_constant(&format!("{name}_one"), Tensor::scalar(1i64))?;
    let off = im.emit(&format!("{name}_off"), Op::Gather { axis: 0 }, &[node.input(2), Some(zero)])?;
    let on = im.emit(&format!("{name}_on"), Op::Gather { axis: 0 }, &[node.input(2), Some(one)])?;
    node.inputs = vec![found, Some(on), Some(off)];
    Ok(Op::Where)
}

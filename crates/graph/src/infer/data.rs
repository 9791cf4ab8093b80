//! Shape inference of products, reductions, indexing, casts and quantization.

use super::{FLOATS, Info, OpInputs, fixed, resolve_axis, shape_text};
use crate::error::{GraphError, Result};
use crate::graph::Dim;
use crate::ops::Op;
use crate::tensor::ElementType;

const BYTES: [ElementType; 2] = [ElementType::I8, ElementType::U8];
const INDICES: [ElementType; 2] = [ElementType::I32, ElementType::I64];

pub(super) fn infer(op: &Op, args: &OpInputs<'_>) -> Result<Option<Vec<Info>>> {
    Ok(Some(match op {
        Op::MatMul => {
            let dtype = args.same_type([0, 1])?;
            vec![Info::new(dtype, matmul(args.need(0)?, args.need(1)?)?)]
        }
        Op::MatMulInteger => {
            args.types(0, &BYTES)?;
            args.types(1, &BYTES)?;
            vec![Info::new(Some(ElementType::I32), matmul(args.need(0)?, args.need(1)?)?)]
        }
        Op::QLinearMatMul => {
            for index in 0..8 {
                args.need(index)?;
            }
            args.types(0, &BYTES)?;
            args.types(3, &BYTES)?;
            vec![Info::new(args.need(7)?.dtype, matmul(args.need(0)?, args.need(3)?)?)]
        }
        Op::Gemm { trans_a, trans_b, .. } => vec![gemm(*trans_a, *trans_b, args)?],
        Op::Reduce { keep_dims, noop_with_empty_axes, .. } => vec![reduce(*keep_dims, *noop_with_empty_axes, args)?],
        Op::ArgReduce { axis, keep_dims, .. } => vec![arg_reduce(*axis, *keep_dims, args)?],
        Op::TopK { axis, .. } => top_k(*axis, args)?,
        Op::Gather { axis } => vec![gather(*axis, args)?],
        Op::GatherElements { axis } => vec![gather_elements(*axis, args)?],
        Op::GatherNd { batch_dims } => vec![gather_nd(*batch_dims, args)?],
        Op::ScatterNd => vec![scatter_nd(args)?],
        Op::Cast { to } => vec![Info::new(Some(*to), args.need(0)?.shape.clone())],
        Op::QuantizeLinear { axis, block_size, to } => {
            args.types(
                0,
                &[ElementType::F32, ElementType::F64, ElementType::F16, ElementType::BF16, ElementType::I32],
            )?;
            let x = args.need(0)?;
            scale_fits(x, args.need(1)?, args.get(2), *axis, *block_size)?;
            let zero = args.get(2).and_then(|z| z.dtype);
            vec![Info::new(zero.or(Some(*to)), x.shape.clone())]
        }
        Op::DequantizeLinear { axis, block_size } => {
            let x = args.need(0)?;
            let scale = args.need(1)?;
            args.types(1, &FLOATS)?;
            scale_fits(x, scale, args.get(2), *axis, *block_size)?;
            vec![Info::new(scale.dtype, x.shape.clone())]
        }
        Op::DynamicQuantizeLinear => {
            args.types(0, &[ElementType::F32])?;
            let x = args.need(0)?;
            vec![
                Info::new(Some(ElementType::U8), x.shape.clone()),
                Info::new(Some(ElementType::F32), Some(Vec::new())),
                Info::new(Some(ElementType::U8), Some(Vec::new())),
            ]
        }
        Op::Einsum { equation } => vec![einsum(equation, args)?],
        _ => return Ok(None),
    }))
}

/// Returns the shape of numpy's `matmul`.
fn matmul(a: &Info, b: &Info) -> Result<Option<Vec<Dim>>> {
    let (Some(a), Some(b)) = (&a.shape, &b.shape) else { return Ok(None) };
    let bad = || {
        let got = format!("shapes {} and {}", shape_text(a), shape_text(b));
        GraphError::misused("matmul", got, "at least one axis each, with equal inner lengths")
    };
    let (a_lead, m, k1) = match a.as_slice() {
        [] => return Err(bad()),
        [k] => (&[][..], None, k),
        [lead @ .., m, k] => (lead, Some(m), k),
    };
    let (b_lead, k2, n) = match b.as_slice() {
        [] => return Err(bad()),
        [k] => (&[][..], k, None),
        [lead @ .., k, n] => (lead, k, Some(n)),
    };
    if let (Dim::Fixed(x), Dim::Fixed(y)) = (k1, k2)
        && x != y
    {
        return Err(bad());
    }
    let mut shape = super::elementwise::broadcast_dims(a_lead, b_lead)?;
    shape.extend(m.into_iter().chain(n).cloned());
    Ok(Some(shape))
}

fn gemm(trans_a: bool, trans_b: bool, args: &OpInputs<'_>) -> Result<Info> {
    let dtype = args.same_type([0, 1, 2])?;
    let (Some(a), Some(b)) = (&args.need(0)?.shape, &args.need(1)?.shape) else { return Ok(Info::new(dtype, None)) };
    let ([a0, a1], [b0, b1]) = (a.as_slice(), b.as_slice()) else {
        let got = format!("shapes {} and {}", shape_text(a), shape_text(b));
        return Err(GraphError::misused("gemm", got, "two axes each"));
    };
    let (m, k1) = if trans_a { (a1, a0) } else { (a0, a1) };
    let (k2, n) = if trans_b { (b1, b0) } else { (b0, b1) };
    if let (Dim::Fixed(x), Dim::Fixed(y)) = (k1, k2)
        && x != y
    {
        return Err(GraphError::misused("gemm", format!("inner lengths {x} and {y}"), "equal lengths"));
    }
    if let Some(c) = args.get(2).and_then(Info::fixed_shape) {
        super::elementwise::broadcast_onto(&c, &[m.fixed(), n.fixed()])?;
    }
    Ok(Info::new(dtype, Some(vec![m.clone(), n.clone()])))
}

fn arg_reduce(axis: i64, keep_dims: bool, args: &OpInputs<'_>) -> Result<Info> {
    let x = args.need(0)?;
    let shape = x.shape.as_ref().map(|s| {
        let axis = resolve_axis(axis, s.len())?;
        if s.get(axis) == Some(&Dim::Fixed(0)) {
            return Err(GraphError::misused("length of the searched axis", "0", "at least 1"));
        }
        Ok(without_axes(s, &[axis], keep_dims))
    });
    Ok(Info::new(Some(ElementType::I64), shape.transpose()?))
}

fn gather(axis: i64, args: &OpInputs<'_>) -> Result<Info> {
    args.types(1, &INDICES)?;
    let (x, indices) = (args.need(0)?, args.need(1)?);
    let shape = match (&x.shape, &indices.shape) {
        (Some(s), Some(i)) => {
            let axis = resolve_axis(axis, s.len())?;
            let (head, tail) = s.split_at(axis);
            Some([head, i, tail.get(1..).unwrap_or_default()].concat())
        }
        _ => None,
    };
    Ok(Info::new(x.dtype, shape))
}

fn gather_elements(axis: i64, args: &OpInputs<'_>) -> Result<Info> {
    args.types(1, &INDICES)?;
    let (x, indices) = (args.need(0)?, args.need(1)?);
    if let (Some(a), Some(b)) = (&x.shape, &indices.shape) {
        let axis = resolve_axis(axis, a.len())?;
        let fits = a.len() == b.len()
            && a.iter().zip(b).enumerate().all(|(i, (x, y))| match (x.fixed(), y.fixed()) {
                (Some(x), Some(y)) => i == axis || y <= x,
                _ => true,
            });
        if !fits {
            let expected = format!("at most {} on every axis except {axis}", shape_text(a));
            return Err(GraphError::misused("shape of the indices", shape_text(b), expected));
        }
    }
    Ok(Info::new(x.dtype, indices.shape.clone()))
}

fn einsum(equation: &str, args: &OpInputs<'_>) -> Result<Info> {
    let dtype = args.same_type(0..args.inputs.len())?;
    let shapes: Option<Vec<Vec<usize>>> =
        (0..args.inputs.len()).map(|i| args.get(i).and_then(Info::fixed_shape)).collect();
    let shape = match shapes {
        Some(shapes) => Some(fixed(&crate::einsum::einsum_plan(equation, &shapes)?.output_lengths())),
        None => None,
    };
    Ok(Info::new(dtype, shape))
}

/// Returns a shape without these axes or, if they are kept, with the length 1 in their place.
fn without_axes(shape: &[Dim], axes: &[usize], keep: bool) -> Vec<Dim> {
    let mut out = Vec::new();
    for (i, d) in shape.iter().enumerate() {
        if !axes.contains(&i) {
            out.push(d.clone());
        } else if keep {
            out.push(Dim::Fixed(1));
        }
    }
    out
}

/// Returns the axes that a reduction covers.
///
/// # Errors
/// [`GraphError::Misused`] if an axis does not exist.
pub fn reduced_axes(rank: usize, axes: Option<&[i64]>, noop: bool) -> Result<Vec<usize>> {
    match axes {
        Some(axes) if !axes.is_empty() => axes.iter().map(|&a| resolve_axis(a, rank)).collect(),
        _ if noop => Ok(Vec::new()),
        _ => Ok((0..rank).collect()),
    }
}

fn reduce(keep: bool, noop: bool, args: &OpInputs<'_>) -> Result<Info> {
    let x = args.need(0)?;
    let Some(shape) = &x.shape else { return Ok(Info::new(x.dtype, None)) };
    let axes = match args.get(1) {
        None => reduced_axes(shape.len(), None, noop)?,
        Some(info) => match info.ints() {
            Some(axes) => reduced_axes(shape.len(), Some(&axes), noop)?,
            None if keep => {
                let unknown = shape.iter().map(|d| super::free(format!("{d}_reduced"))).collect();
                return Ok(Info::new(x.dtype, Some(unknown)));
            }
            None => return Ok(Info::new(x.dtype, None)),
        },
    };
    Ok(Info::new(x.dtype, Some(without_axes(shape, &axes, keep))))
}

fn top_k(axis: i64, args: &OpInputs<'_>) -> Result<Vec<Info>> {
    let x = args.need(0)?;
    let k = args.need(1)?.ints().and_then(|v| v.first().copied());
    let shape = x.shape.as_ref().map(|s| {
        let axis = resolve_axis(axis, s.len())?;
        let mut s = s.clone();
        if let Some(d) = s.get_mut(axis) {
            *d = match (k.map(usize::try_from), d.fixed()) {
                (Some(Ok(k)), n) if n.is_none_or(|n| k <= n) => Dim::Fixed(k),
                (None, _) => Dim::Free("k".into()),
                (_, n) => {
                    let got = k.map_or_else(String::new, |k| k.to_string());
                    let expected = n.map_or_else(|| "0 or more".to_owned(), |n| format!("0 to {n}"));
                    return Err(GraphError::misused("k", got, expected));
                }
            };
        }
        Ok(s)
    });
    let shape = shape.transpose()?;
    Ok(vec![Info::new(x.dtype, shape.clone()), Info::new(Some(ElementType::I64), shape)])
}

fn gather_nd(batch: usize, args: &OpInputs<'_>) -> Result<Info> {
    args.types(1, &[ElementType::I64])?;
    let (x, indices) = (args.need(0)?, args.need(1)?);
    let (Some(s), Some(i)) = (&x.shape, &indices.shape) else { return Ok(Info::new(x.dtype, None)) };
    let Some(Some(depth)) = i.last().map(Dim::fixed) else { return Ok(Info::new(x.dtype, None)) };
    if batch >= i.len() || batch + depth > s.len() || depth == 0 {
        let most = s.len().saturating_sub(batch);
        let expected =
            format!("more than {batch} axes, the last one of length 1 to {most}, for data of shape {}", shape_text(s));
        return Err(GraphError::misused("shape of the indices", shape_text(i), expected));
    }
    for (a, b) in s.iter().zip(i).take(batch) {
        if let (Some(a), Some(b)) = (a.fixed(), b.fixed())
            && a != b
        {
            return Err(GraphError::misused("batch axes", b.to_string(), a.to_string()));
        }
    }
    let lead = i.split_last().map(|(_, lead)| lead).unwrap_or_default();
    let shape = [lead, s.get(batch + depth..).unwrap_or_default()].concat();
    Ok(Info::new(x.dtype, Some(shape)))
}

fn scatter_nd(args: &OpInputs<'_>) -> Result<Info> {
    args.types(1, &[ElementType::I64])?;
    let dtype = args.same_type([0, 2])?;
    let x = args.need(0)?;
    let (indices, updates) = (args.need(1)?, args.need(2)?);
    if let (Some(s), Some(i), Some(u)) = (x.fixed_shape(), indices.fixed_shape(), updates.fixed_shape()) {
        let depth = i.last().copied().unwrap_or(0);
        let lead = i.split_last().map(|(_, lead)| lead).unwrap_or_default();
        let Some(tail) = s.get(depth..).filter(|_| depth > 0) else {
            let expected = format!("a last axis of length 1 to {}", s.len());
            return Err(GraphError::misused("shape of the indices", format!("{i:?}"), expected));
        };
        let expected = [lead, tail].concat();
        if expected != u {
            return Err(GraphError::misused("shape of the updates", format!("{u:?}"), format!("{expected:?}")));
        }
    }
    Ok(Info::new(dtype, x.shape.clone()))
}

/// Checks scale and zero point of a quantize or dequantize operator against the tensor.
fn scale_fits(x: &Info, scale: &Info, zero: Option<&Info>, axis: i64, block: usize) -> Result<()> {
    let (Some(shape), Some(s)) = (&x.shape, scale.fixed_shape()) else { return Ok(()) };
    if let Some(z) = zero.and_then(Info::fixed_shape)
        && super::elements(&z) != super::elements(&s)
    {
        return Err(GraphError::misused("shape of the zero point", format!("{z:?}"), format!("{s:?}, as the scale")));
    }
    let bad = |expected: String| Err(GraphError::misused("shape of the scale", format!("{s:?}"), expected));
    match s.as_slice() {
        _ if block > 0 => {
            let axis = resolve_axis(axis, shape.len())?;
            let fits =
                s.len() == shape.len()
                    && shape.iter().zip(&s).enumerate().all(|(i, (d, &n))| {
                        d.fixed().is_none_or(|d| n == if i == axis { d.div_ceil(block) } else { d })
                    });
            if fits { Ok(()) } else { bad(format!("{} in blocks of {block} along axis {axis}", shape_text(shape))) }
        }
        [] | [1] => Ok(()),
        [n] => {
            let axis = resolve_axis(axis, shape.len())?;
            match shape.get(axis).and_then(Dim::fixed) {
                Some(d) if d != *n => bad(format!("[{d}], the length of axis {axis}")),
                _ => Ok(()),
            }
        }
        _ => bad("at most one axis".into()),
    }
}

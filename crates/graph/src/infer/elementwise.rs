//! Shape inference of element-wise operators, and broadcasting.

use super::{FLOATS, Info, OpInputs, shape_text};
use crate::error::{GraphError, Result};
use crate::functions::{BinaryOp, UnaryOp};
use crate::graph::Dim;
use crate::ops::Op;
use crate::tensor::ElementType;

/// Returns the broadcast shape of two shapes (numpy's rule: aligned at the end, length 1 is repeated).
///
/// # Errors
/// [`GraphError::Misused`] if two lengths differ and neither is 1.
pub fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
    let rank = a.len().max(b.len());
    let at = |s: &[usize], i: usize| (i + s.len()).checked_sub(rank).and_then(|i| s.get(i)).copied().unwrap_or(1);
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Ok(x),
            (1, y) => Ok(y),
            (x, 1) => Ok(x),
            _ => Err(GraphError::misused("shapes", format!("{a:?} and {b:?}"), "shapes that broadcast")),
        })
        .collect()
}

/// Checks that `small` broadcasts to `large` (unknown lengths fit) without enlarging it.
pub(crate) fn broadcast_onto(small: &[usize], large: &[Option<usize>]) -> Result<()> {
    let fits = small.len() <= large.len()
        && small.iter().rev().zip(large.iter().rev()).all(|(&s, l)| s == 1 || l.is_none_or(|l| l == s));
    if fits {
        Ok(())
    } else {
        let lengths: Vec<_> = large.iter().map(|n| n.map_or_else(|| "?".to_owned(), |n| n.to_string())).collect();
        let expected = format!("a shape that broadcasts to [{}]", lengths.join(", "));
        Err(GraphError::misused("shape", format!("{small:?}"), expected))
    }
}

pub(super) fn broadcast_dims(a: &[Dim], b: &[Dim]) -> Result<Vec<Dim>> {
    let rank = a.len().max(b.len());
    let one = Dim::Fixed(1);
    let at = |s: &[Dim], i: usize| {
        (i + s.len()).checked_sub(rank).and_then(|i| s.get(i)).cloned().unwrap_or_else(|| one.clone())
    };
    (0..rank)
        .map(|i| match (at(a, i), at(b, i)) {
            (x, y) if x == y => Ok(x),
            (Dim::Fixed(1), y) => Ok(y),
            (x, Dim::Fixed(1)) => Ok(x),
            (Dim::Fixed(_), Dim::Fixed(_)) => {
                let got = format!("{} and {}", shape_text(a), shape_text(b));
                Err(GraphError::misused("shapes", got, "shapes that broadcast"))
            }
            (x @ Dim::Fixed(_), _) => Ok(x),
            (_, y) => Ok(y),
        })
        .collect()
}

fn all_broadcast(args: &OpInputs<'_>, count: usize) -> Result<Option<Vec<Dim>>> {
    let mut shape = Some(Vec::new());
    for index in 0..count {
        let info = args.need(index)?;
        shape = match (shape, &info.shape) {
            (Some(a), Some(b)) => Some(broadcast_dims(&a, b)?),
            _ => None,
        };
    }
    Ok(shape)
}

pub(super) fn infer(op: &Op, args: &OpInputs<'_>) -> Result<Vec<Info>> {
    let x = args.need(0)?;
    let keep = |dtype| Info::new(dtype, x.shape.clone());
    Ok(vec![match op {
        Op::Activation(_) | Op::Identity | Op::Trilu { .. } | Op::CumSum { .. } | Op::LpNormalization { .. } => {
            check_shape_keeping(op, x, args)?;
            keep(x.dtype)
        }
        Op::Softmax { axis } | Op::LogSoftmax { axis } => {
            args.types(0, &FLOATS)?;
            if let Some(rank) = x.rank() {
                super::resolve_axis(*axis, rank)?;
            }
            keep(x.dtype)
        }
        Op::Clip => {
            args.same_type([0, 1, 2])?;
            for index in [1, 2] {
                if let Some(s) = args.get(index).and_then(Info::fixed_shape)
                    && super::elements(&s) != 1
                {
                    return Err(GraphError::misused("shape of a bound", format!("{s:?}"), "one element"));
                }
            }
            keep(x.dtype)
        }
        Op::PRelu => {
            args.types(0, &FLOATS)?;
            let dtype = args.same_type([0, 1])?;
            if let (Some(slope), Some(shape)) = (args.need(1)?.fixed_shape(), &x.shape) {
                broadcast_onto(&slope, &shape.iter().map(Dim::fixed).collect::<Vec<_>>())?;
            }
            keep(dtype)
        }
        Op::Unary(UnaryOp::IsNaN) => {
            args.types(0, &FLOATS)?;
            keep(Some(ElementType::Bool))
        }
        Op::Unary(kind) => {
            match kind {
                UnaryOp::Not => args.types(0, &[ElementType::Bool])?,
                UnaryOp::Abs | UnaryOp::Neg | UnaryOp::Sign => {
                    if x.dtype == Some(ElementType::Bool) {
                        return Err(GraphError::misused("element type", "bool", "a number"));
                    }
                }
                _ => args.types(0, &FLOATS)?,
            }
            keep(x.dtype)
        }
        Op::Binary(kind) => binary(*kind, x, args)?,
        Op::Where => {
            args.types(0, &[ElementType::Bool])?;
            let dtype = args.same_type([1, 2])?;
            Info::new(dtype, all_broadcast(args, 3)?)
        }
        other => return Err(GraphError::unsupported(format!("no shape rule for {}", crate::ops::op_name(other)))),
    }])
}

/// Checks the input of an operator that keeps type and shape.
fn check_shape_keeping(op: &Op, x: &Info, args: &OpInputs<'_>) -> Result<()> {
    if let Op::Activation(a) = op {
        let relu = matches!(a, crate::functions::Activation::Relu);
        if !relu || x.dtype == Some(ElementType::Bool) {
            args.types(0, &FLOATS)?;
        }
    }
    if let (Op::LpNormalization { axis, .. }, Some(rank)) = (op, x.rank()) {
        args.types(0, &FLOATS)?;
        super::resolve_axis(*axis, rank)?;
    }
    if let (Op::Trilu { .. }, Some(rank @ (0 | 1))) = (op, x.rank()) {
        return Err(GraphError::misused("axes", rank.to_string(), "at least 2"));
    }
    Ok(())
}

fn binary(kind: BinaryOp, x: &Info, args: &OpInputs<'_>) -> Result<Info> {
    match kind {
        BinaryOp::Pow => {}
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => {
            args.types(0, &[ElementType::Bool])?;
            args.types(1, &[ElementType::Bool])?;
        }
        _ => {
            args.same_type([0, 1])?;
        }
    }
    let arithmetic = !kind.returns_bool();
    if arithmetic && x.dtype == Some(ElementType::Bool) {
        return Err(GraphError::misused("element type", "bool", "a number"));
    }
    let dtype = match kind {
        BinaryOp::Pow => x.dtype,
        k if k.returns_bool() => Some(ElementType::Bool),
        _ => args.same_type([0, 1])?,
    };
    Ok(Info::new(dtype, all_broadcast(args, 2)?))
}

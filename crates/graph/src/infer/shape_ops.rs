//! Shape inference of operators that move elements without computing on them.

use super::{Info, OpInputs, fixed, map_dim, resolve_axis};
use crate::error::{GraphError, Result};
use crate::functions::PadMode;
use crate::graph::Dim;
use crate::limits::checked_elements;
use crate::ops::Op;
use crate::tensor::ElementType;

pub(super) fn infer(op: &Op, args: &OpInputs<'_>) -> Result<Option<Vec<Info>>> {
    Ok(Some(match op {
        Op::Split { axis } => split(*axis, args)?,
        Op::Slice => vec![slice(args)?],
        Op::Pad { mode } => vec![pad(*mode, args)?],
        Op::Reshape { allow_zero } => vec![reshape(*allow_zero, args)?],
        Op::Transpose { perm } => vec![transpose(perm, args)?],
        Op::Squeeze => vec![squeeze(args)?],
        Op::Unsqueeze => vec![unsqueeze(args)?],
        Op::Flatten { axis } => vec![flatten(*axis, args)?],
        Op::Expand => vec![expand(args)?],
        Op::Tile => vec![tile(args)?],
        Op::Shape { start, end } => {
            let length = args.need(0)?.rank().map(|rank| {
                let (a, b) = shape_range(rank, *start, *end);
                vec![Dim::Fixed(b.saturating_sub(a))]
            });
            vec![Info::new(Some(ElementType::I64), length)]
        }
        Op::Size => vec![Info::new(Some(ElementType::I64), Some(Vec::new()))],
        Op::ConstantOfShape { value } => {
            args.types(0, &[ElementType::I64])?;
            if value.len() != 1 {
                return Err(GraphError::misused("value", value.len().to_string(), "one element"));
            }
            let shape = args.need(0)?.ints().map(|s| lengths(&s)).transpose()?;
            check_expanded(shape.as_deref(), "ConstantOfShape", args)?;
            vec![Info::new(Some(value.dtype()), shape.map(|s| fixed(&s)))]
        }
        Op::Range => vec![range(args)?],
        Op::DepthToSpace { block, .. } => vec![depth_space(*block, args, true)?],
        Op::SpaceToDepth { block } => vec![depth_space(*block, args, false)?],
        _ => return Ok(None),
    }))
}

/// Returns the first axis of a `Shape` operator and the one after its last.
pub fn shape_range(rank: usize, start: i64, end: Option<i64>) -> (usize, usize) {
    let clamp = |v: i64| (if v < 0 { v.saturating_add(rank as i64) } else { v }).clamp(0, rank as i64) as usize;
    let a = clamp(start);
    (a, end.map_or(rank, clamp).max(a))
}

fn lengths(values: &[i64]) -> Result<Vec<usize>> {
    values
        .iter()
        .map(|&v| {
            usize::try_from(v).map_err(|_| GraphError::misused("shape", format!("{values:?}"), "no negative lengths"))
        })
        .collect()
}

/// Resolves axes of which each must occur once.
fn distinct_axes(axes: &[i64], rank: usize) -> Result<Vec<usize>> {
    let resolved: Vec<usize> = axes.iter().map(|&axis| resolve_axis(axis, rank)).collect::<Result<_>>()?;
    let mut sorted = resolved.clone();
    sorted.sort_unstable();
    sorted.dedup();
    if sorted.len() == resolved.len() {
        Ok(resolved)
    } else {
        Err(GraphError::misused("axes", format!("{axes:?}"), "each axis once"))
    }
}

/// Checks the size limit of tensors expanded from few elements.
fn check_expanded(shape: Option<&[usize]>, what: &str, args: &OpInputs<'_>) -> Result<()> {
    let Some(shape) = shape else { return Ok(()) };
    checked_elements(shape, "tensor_elements", what, args.limits.tensor_elements)?;
    Ok(())
}

/// Returns the lengths of the parts when an axis of `length` is split into `parts` (the last one may be shorter).
fn equal_parts(length: usize, parts: usize) -> Vec<usize> {
    let chunk = length.div_ceil(parts.max(1));
    (0..parts).map(|i| length.saturating_sub(i * chunk).min(chunk)).collect()
}

fn split(axis: i64, args: &OpInputs<'_>) -> Result<Vec<Info>> {
    let x = args.need(0)?;
    let Some(shape) = &x.shape else { return Ok(vec![Info::new(x.dtype, None); args.outputs]) };
    let axis = resolve_axis(axis, shape.len())?;
    let length = shape.get(axis).and_then(Dim::fixed);
    let parts = match (args.get(1), length) {
        (Some(s), _) => s.ints().map(|s| lengths(&s)).transpose()?,
        (None, Some(n)) => Some(equal_parts(n, args.outputs)),
        (None, None) => None,
    };
    if let (Some(parts), Some(n)) = (&parts, length)
        && (parts.iter().fold(0usize, |a, &b| a.saturating_add(b)) != n || parts.len() != args.outputs)
    {
        return Err(GraphError::misused(
            "split",
            format!("{parts:?}"),
            format!("{} lengths with sum {n}", args.outputs),
        ));
    }
    Ok((0..args.outputs)
        .map(|i| {
            let mut shape = shape.clone();
            if let Some(d) = shape.get_mut(axis) {
                *d = match parts.as_ref().and_then(|p| p.get(i)) {
                    Some(&n) => Dim::Fixed(n),
                    None => super::free(format!("{d}_{i}")),
                };
            }
            Info::new(x.dtype, Some(shape))
        })
        .collect())
}

/// The part of one axis that a slice takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AxisSlice {
    /// Index of the first element.
    pub start: isize,
    /// Distance between elements; negative if the slice runs backwards.
    pub step: isize,
    /// Number of elements.
    pub length: usize,
}

/// Returns start, step and length of a slice of an axis of length `n` as ONNX defines them: like numpy, except that a backward
/// slice from before the first element begins at the first.
///
/// # Errors
/// [`GraphError::Misused`] if `step` is 0.
pub fn slice_axis(n: usize, start: i64, end: i64, step: i64) -> Result<AxisSlice> {
    if step == 0 {
        return Err(GraphError::misused("step of a slice", "0", "a step other than 0"));
    }
    if n == 0 {
        return Ok(AxisSlice { start: 0, step: step as isize, length: 0 });
    }
    let n = n as i64;
    let norm = |v: i64| if v < 0 { v.saturating_add(n) } else { v };
    let (start, end) = if step > 0 {
        (norm(start).clamp(0, n), norm(end).clamp(0, n))
    } else {
        (norm(start).clamp(0, n - 1), norm(end).clamp(-1, n - 1))
    };
    let span = if step > 0 { end - start } else { start - end };
    let length = if span > 0 { (span as u64).div_ceil(step.unsigned_abs()) as usize } else { 0 };
    Ok(AxisSlice { start: start as isize, step: step as isize, length })
}

/// Returns, for each axis of a tensor of `rank` axes, the part that the slice takes; `None` for axes that it does not
/// slice.
///
/// # Errors
/// [`GraphError::Misused`] if the lists differ in length, or an axis does not exist or occurs twice.
pub fn slice_plan(
    rank: usize,
    starts: &[i64],
    ends: &[i64],
    axes: Option<&[i64]>,
    steps: Option<&[i64]>,
) -> Result<Vec<Option<(i64, i64, i64)>>> {
    let count = starts.len();
    if ends.len() != count || axes.is_some_and(|a| a.len() != count) || steps.is_some_and(|s| s.len() != count) {
        return Err(GraphError::misused("slice", "lists of different lengths", format!("{count} of each")));
    }
    let first_axes: Vec<i64> = (0..count as i64).collect();
    let axes = distinct_axes(axes.unwrap_or(&first_axes), rank)?;
    let mut plan = vec![None; rank];
    for (i, ((&start, &end), axis)) in starts.iter().zip(ends).zip(axes).enumerate() {
        let step = steps.and_then(|s| s.get(i)).copied().unwrap_or(1);
        if let Some(slot) = plan.get_mut(axis) {
            *slot = Some((start, end, step));
        }
    }
    Ok(plan)
}

fn slice(args: &OpInputs<'_>) -> Result<Info> {
    let x = args.need(0)?;
    let (starts, ends) = (args.need(1)?.ints(), args.need(2)?.ints());
    let optional = |i: usize| match args.get(i) {
        None => Some(None),
        Some(info) => info.ints().map(Some),
    };
    let Some(shape) = &x.shape else { return Ok(Info::new(x.dtype, None)) };
    let (Some(starts), Some(ends), Some(axes), Some(steps)) = (starts, ends, optional(3), optional(4)) else {
        let unknown = shape.iter().map(|d| super::free(format!("{d}_cut"))).collect();
        return Ok(Info::new(x.dtype, Some(unknown)));
    };
    let plan = slice_plan(shape.len(), &starts, &ends, axes.as_deref(), steps.as_deref())?;
    let dims = shape.iter().zip(plan).map(|(d, p)| match p {
        None => Ok(d.clone()),
        Some((start, end, step)) => map_dim(d, |n| Ok(slice_axis(n, start, end, step)?.length)),
    });
    Ok(Info::new(x.dtype, Some(dims.collect::<Result<_>>()?)))
}

/// Returns the numbers of elements added before and after each of `rank` axes.
///
/// # Errors
/// [`GraphError::Misused`] if `pads` does not have two entries per axis, or an axis does not exist or occurs twice.
pub fn pad_plan(rank: usize, pads: &[i64], axes: Option<&[i64]>) -> Result<Vec<(i64, i64)>> {
    let all: Vec<i64> = (0..rank as i64).collect();
    let axes = axes.unwrap_or(&all);
    if pads.len() != 2 * axes.len() {
        return Err(GraphError::misused("pads", pads.len().to_string(), (2 * axes.len()).to_string()));
    }
    let (before, after) = pads.split_at(axes.len());
    let mut plan = vec![(0, 0); rank];
    for ((axis, &b), &a) in distinct_axes(axes, rank)?.into_iter().zip(before).zip(after) {
        if let Some(slot) = plan.get_mut(axis) {
            *slot = (b, a);
        }
    }
    Ok(plan)
}

/// Returns the position along an axis of length `n` that padding with [`crate::PadMode::Wrap`] reads for position `at`, which is
/// counted from the first element, so that padding before it has negative positions. Negative amounts crop first: what remains is
/// repeated. `None` if nothing remains.
pub fn wrapped_position(at: i64, n: i64, (before, after): (i64, i64)) -> Option<i64> {
    let first = before.min(0).checked_neg()?;
    let kept = n.checked_sub(first)?.checked_add(after.min(0)).filter(|kept| *kept > 0)?;
    Some(first + at.wrapping_sub(first).rem_euclid(kept))
}

/// Refuses padding that copies elements of an axis that has none, or of which none remain.
fn check_copied(mode: PadMode, n: usize, (before, after): (i64, i64)) -> Result<()> {
    let added = before.max(after);
    if mode == PadMode::Constant || added <= 0 {
        return Ok(());
    }
    let kept = n as i128 + i128::from(before.min(0)) + i128::from(after.min(0));
    let found = || format!("{before} before and {after} after an axis of length {n}");
    if kept < 1 {
        return Err(GraphError::misused("pads", found(), "at least one element that remains"));
    }
    if mode == PadMode::Reflect && kept < n as i128 && i128::from(added) >= kept {
        return Err(GraphError::misused("pads", found(), format!("less than the {kept} elements that remain")));
    }
    Ok(())
}

fn pad(mode: PadMode, args: &OpInputs<'_>) -> Result<Info> {
    let x = args.need(0)?;
    args.same_type([0, 2])?;
    if let Some(s) = args.get(2).and_then(Info::fixed_shape)
        && super::elements(&s) != 1
    {
        return Err(GraphError::misused("shape of the pad value", format!("{s:?}"), "one element"));
    }
    let pads = args.need(1)?;
    let axes = args.get(3).map(Info::ints);
    let Some(shape) = &x.shape else { return Ok(Info::new(x.dtype, None)) };
    let (Some(pads), None | Some(Some(_))) = (pads.ints(), &axes) else {
        let unknown = shape.iter().map(|d| super::free(format!("{d}_padded"))).collect();
        return Ok(Info::new(x.dtype, Some(unknown)));
    };
    let plan = pad_plan(shape.len(), &pads, axes.flatten().as_deref())?;
    let dims = shape.iter().zip(plan).map(|(d, (before, after))| {
        map_dim(d, |n| {
            let length = n as i128 + i128::from(before) + i128::from(after);
            let length = usize::try_from(length)
                .map_err(|_| GraphError::misused("pads", length.to_string(), "no negative length"))?;
            check_copied(mode, n, (before, after))?;
            Ok(length)
        })
    });
    let dims: Vec<Dim> = dims.collect::<Result<_>>()?;
    if let Some(shape) = dims.iter().map(Dim::fixed).collect::<Option<Vec<_>>>() {
        check_expanded(Some(&shape), "Pad", args)?;
    }
    Ok(Info::new(x.dtype, Some(dims)))
}

/// Returns the concrete target shape of a `Reshape`.
pub(crate) fn reshape_target(input: &[usize], target: &[i64], allow_zero: bool) -> Result<Vec<usize>> {
    let total = super::elements(input);
    let mut shape = Vec::with_capacity(target.len());
    let mut open = None;
    for (axis, &n) in target.iter().enumerate() {
        shape.push(match n {
            -1 if open.is_none() => {
                open = Some(axis);
                1
            }
            0 if !allow_zero => *input.get(axis).ok_or_else(|| {
                let expected = format!("zeros only for axes of the input of shape {input:?}");
                GraphError::misused("target of reshape", format!("{target:?}"), expected)
            })?,
            n => usize::try_from(n)
                .map_err(|_| GraphError::misused("target of reshape", format!("{target:?}"), "at most one −1"))?,
        });
    }
    let rest = shape.iter().try_fold(1usize, |t, &n| t.checked_mul(n)).unwrap_or(usize::MAX);
    let fits = match open {
        Some(axis) => {
            let divides = rest > 0 && total.is_multiple_of(rest);
            if let Some(n) = shape.get_mut(axis) {
                *n = total.checked_div(rest).unwrap_or(0);
            }
            divides || total == 0
        }
        None => rest == total,
    };
    if fits {
        Ok(shape)
    } else {
        let expected = format!("a shape that can become {target:?}");
        Err(GraphError::misused("input of reshape", format!("shape {input:?}"), expected))
    }
}

fn reshape(allow_zero: bool, args: &OpInputs<'_>) -> Result<Info> {
    let x = args.need(0)?;
    let target = args.need(1)?;
    let Some(wanted) = target.ints() else {
        let rank =
            target.shape.as_ref().and_then(|s| s.first()).and_then(Dim::fixed).filter(|&r| r <= args.limits.rank);
        let shape = rank.map(|r| (0..r).map(|i| super::free(format!("reshaped_{i}"))).collect());
        return Ok(Info::new(x.dtype, shape));
    };
    if let Some(input) = x.fixed_shape() {
        return Ok(Info::new(x.dtype, Some(fixed(&reshape_target(&input, &wanted, allow_zero)?))));
    }
    let copied = |axis: usize| x.shape.as_ref().and_then(|s| s.get(axis)).cloned();
    let dims = wanted.iter().enumerate().map(|(axis, &n)| match n {
        0 if !allow_zero => copied(axis).unwrap_or_else(|| super::free(format!("reshaped_{axis}"))),
        n => usize::try_from(n).map_or_else(|_| super::free(format!("reshaped_{axis}")), Dim::Fixed),
    });
    Ok(Info::new(x.dtype, Some(dims.collect())))
}

/// Validates a permutation; an empty one means reversed axes.
///
/// # Errors
/// [`GraphError::Misused`] if it is not a permutation of `rank` axes.
pub fn permutation(perm: &[usize], rank: usize) -> Result<Vec<usize>> {
    let full: Vec<usize> = if perm.is_empty() { (0..rank).rev().collect() } else { perm.to_vec() };
    let mut sorted = full.clone();
    sorted.sort_unstable();
    if sorted.iter().copied().eq(0..rank) {
        Ok(full)
    } else {
        Err(GraphError::misused("perm", format!("{perm:?}"), format!("a permutation of {rank} axes")))
    }
}

fn transpose(perm: &[usize], args: &OpInputs<'_>) -> Result<Info> {
    let x = args.need(0)?;
    let Some(shape) = &x.shape else { return Ok(Info::new(x.dtype, None)) };
    let perm = permutation(perm, shape.len())?;
    Ok(Info::new(x.dtype, Some(perm.iter().filter_map(|&p| shape.get(p).cloned()).collect())))
}

fn squeeze(args: &OpInputs<'_>) -> Result<Info> {
    let x = args.need(0)?;
    let Some(shape) = &x.shape else { return Ok(Info::new(x.dtype, None)) };
    let gone: Vec<usize> = match args.get(1) {
        None => (0..shape.len()).filter(|&i| shape.get(i) == Some(&Dim::Fixed(1))).collect(),
        Some(axes) => match axes.ints() {
            Some(axes) => axes.iter().map(|&a| resolve_axis(a, shape.len())).collect::<Result<_>>()?,
            None => return Ok(Info::new(x.dtype, None)),
        },
    };
    for &axis in &gone {
        if let Some(Dim::Fixed(n)) = shape.get(axis)
            && *n != 1
        {
            return Err(GraphError::misused(format!("length of squeezed axis {axis}"), n.to_string(), "1"));
        }
    }
    let kept = shape.iter().enumerate().filter(|(i, _)| !gone.contains(i)).map(|(_, d)| d.clone());
    Ok(Info::new(x.dtype, Some(kept.collect())))
}

fn unsqueeze(args: &OpInputs<'_>) -> Result<Info> {
    let x = args.need(0)?;
    let (Some(shape), Some(axes)) = (&x.shape, args.need(1)?.ints()) else { return Ok(Info::new(x.dtype, None)) };
    let rank = shape.len() + axes.len();
    crate::limits::check_limit("rank", "Unsqueeze", rank as u128, args.limits.rank as u128)?;
    let axes = distinct_axes(&axes, rank)?;
    let mut old = shape.iter();
    let mut dims = Vec::with_capacity(rank);
    for i in 0..rank {
        dims.push(if axes.contains(&i) { Dim::Fixed(1) } else { old.next().cloned().unwrap_or(Dim::Fixed(1)) });
    }
    Ok(Info::new(x.dtype, Some(dims)))
}

fn flatten(axis: i64, args: &OpInputs<'_>) -> Result<Info> {
    let x = args.need(0)?;
    let Some(shape) = &x.shape else { return Ok(Info::new(x.dtype, None)) };
    let at = if axis == shape.len() as i64 { shape.len() } else { resolve_axis(axis, shape.len().max(1))? };
    let product = |dims: &[Dim], name: &str| {
        let all: Option<usize> = dims.iter().try_fold(1usize, |t, d| t.checked_mul(d.fixed()?));
        all.map_or_else(|| super::free(format!("flat_{name}")), Dim::Fixed)
    };
    let (a, b) = shape.split_at(at.min(shape.len()));
    Ok(Info::new(x.dtype, Some(vec![product(a, "0"), product(b, "1")])))
}

fn expand(args: &OpInputs<'_>) -> Result<Info> {
    let x = args.need(0)?;
    let (Some(shape), Some(target)) = (&x.shape, args.need(1)?.ints()) else { return Ok(Info::new(x.dtype, None)) };
    let dims = super::elementwise::broadcast_dims(shape, &fixed(&lengths(&target)?))?;
    if let Some(shape) = dims.iter().map(Dim::fixed).collect::<Option<Vec<_>>>() {
        check_expanded(Some(&shape), "Expand", args)?;
    }
    Ok(Info::new(x.dtype, Some(dims)))
}

fn tile(args: &OpInputs<'_>) -> Result<Info> {
    let x = args.need(0)?;
    let (Some(shape), Some(repeats)) = (&x.shape, args.need(1)?.ints()) else { return Ok(Info::new(x.dtype, None)) };
    if repeats.len() != shape.len() {
        return Err(GraphError::misused("repeats", repeats.len().to_string(), shape.len().to_string()));
    }
    let repeats = lengths(&repeats)?;
    let dims: Vec<Dim> =
        shape.iter().zip(&repeats).map(|(d, &r)| map_dim(d, |n| Ok(n.saturating_mul(r)))).collect::<Result<_>>()?;
    if let Some(shape) = dims.iter().map(Dim::fixed).collect::<Option<Vec<_>>>() {
        check_expanded(Some(&shape), "Tile", args)?;
    }
    Ok(Info::new(x.dtype, Some(dims)))
}

/// Returns the number of elements of a range: max(0, ⌈(limit − start) / delta⌉).
///
/// # Errors
/// [`GraphError::Misused`] if the number is not finite.
pub fn range_length(start: f64, limit: f64, delta: f64) -> Result<usize> {
    let n = ((limit - start) / delta).ceil();
    if n < 1e15 {
        // A range that does not reach its limit is empty.
        Ok(n.max(0.0) as usize)
    } else {
        Err(GraphError::misused("range", format!("{start}..{limit} by {delta}"), "a finite number of steps"))
    }
}

fn range(args: &OpInputs<'_>) -> Result<Info> {
    let dtype = args.same_type([0, 1, 2])?;
    let mut ends = Vec::new();
    for index in 0..3 {
        let info = args.need(index)?;
        if let Some(shape) = info.fixed_shape().filter(|shape| super::elements(shape) != 1) {
            return Err(GraphError::misused("shape of an input of range", format!("{shape:?}"), "one element"));
        }
        ends.extend(info.value.as_ref().and_then(|v| v.to_f64_vec().first().copied()));
    }
    let [start, limit, delta] = ends.as_slice() else {
        return Ok(Info::new(dtype, Some(vec![Dim::Free("range".into())])));
    };
    let n = range_length(*start, *limit, *delta)?;
    check_expanded(Some(&[n]), "Range", args)?;
    Ok(Info::new(dtype, Some(fixed(&[n]))))
}

fn depth_space(block: usize, args: &OpInputs<'_>, to_space: bool) -> Result<Info> {
    let x = args.need(0)?;
    let Some(shape) = &x.shape else { return Ok(Info::new(x.dtype, None)) };
    let [n, c, h, w] = shape.as_slice() else {
        return Err(GraphError::misused("axes", shape.len().to_string(), "4"));
    };
    let square = block.checked_mul(block).filter(|&b| b > 0);
    let square =
        square.ok_or_else(|| GraphError::misused("block size", block.to_string(), "a small positive number"))?;
    let times = |d: &Dim, f: usize| map_dim(d, |n| Ok(n.saturating_mul(f)));
    let over = |d: &Dim, f: usize| {
        map_dim(d, |n| {
            if n.is_multiple_of(f) {
                Ok(n / f)
            } else {
                Err(GraphError::misused("length", n.to_string(), format!("a multiple of {f}")))
            }
        })
    };
    let dims = if to_space {
        vec![n.clone(), over(c, square)?, times(h, block)?, times(w, block)?]
    } else {
        vec![n.clone(), times(c, square)?, over(h, block)?, over(w, block)?]
    };
    Ok(Info::new(x.dtype, Some(dims)))
}

#[cfg(test)]
mod tests {
    use super::range_length;

    #[test]
    fn a_range_has_a_finite_number_of_steps() {
        for (start, limit, delta, expected) in
            [(0.0, 10.0, 3.0, 4), (10.0, 0.0, -5.0, 2), (3.0, 3.0, 1.0, 0), (3.0, 0.0, 1.0, 0)]
        {
            assert_eq!(range_length(start, limit, delta).ok(), Some(expected), "{start}..{limit} by {delta}");
        }
        for (start, limit, delta) in [(0.0, 1.0, 0.0), (3.0, 3.0, 0.0), (f64::NAN, 3.0, 1.0), (0.0, 1.0, f64::NAN)] {
            assert!(range_length(start, limit, delta).is_err(), "{start}..{limit} by {delta}");
        }
    }
}

//! Operators that move elements.

use super::{Call, typed};
use cytoscope_graph::infer::resolve_axis;
use cytoscope_graph::infer::rules::{
    pad_plan, permutation, range_length, shape_range, slice_axis, slice_plan, wrapped_position,
};
use cytoscope_graph::{
    DepthOrder, GraphError, Op, PadMode, Result, Scalar, Tensor, TensorData, op_name, with_tensor_data,
};

/// Returns the distance in elements between neighbors along each axis.
pub(super) fn strides(shape: &[usize]) -> Vec<usize> {
    let mut result = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        result[axis - 1] = result[axis] * shape[axis];
    }
    result
}

/// Returns the strides that read an array of shape `from` as if it had shape `to`.
pub(super) fn broadcast_strides(from: &[usize], to: &[usize]) -> Vec<usize> {
    let x_strides = strides(from);
    let missing = to.len() - from.len();
    (0..to.len())
        .map(|axis| match axis.checked_sub(missing) {
            Some(a) if from[a] != 1 => x_strides[a],
            _ => 0,
        })
        .collect()
}

/// Collects the element at `source(coordinates)` for each output position; `None` gives `fill`.
fn pick<T: Scalar>(v: &[T], shape: &[usize], fill: T, source: impl Fn(&[usize]) -> Option<usize>) -> TensorData {
    let total: usize = shape.iter().product();
    let mut position = vec![0; shape.len()];
    let mut out = Vec::with_capacity(total);
    for _ in 0..total {
        out.push(source(&position).and_then(|i| v.get(i).copied()).unwrap_or(fill));
        for axis in (0..shape.len()).rev() {
            position[axis] += 1;
            if position[axis] < shape[axis] {
                break;
            }
            position[axis] = 0;
        }
    }
    T::wrap(out)
}

/// Like [`pick`], for a tensor of any type, without fill.
pub(super) fn gather(x: &Tensor, shape: &[usize], source: impl Fn(&[usize]) -> usize) -> Result<Tensor> {
    let data = with_tensor_data!(x.data(), v => pick(v, shape, Default::default(), |p| Some(source(p))));
    Tensor::from_data(shape, data)
}

/// Broadcasts `x` to `shape`.
pub(super) fn stretched(x: &Tensor, shape: &[usize]) -> Result<Tensor> {
    if x.shape() == shape {
        return Ok(x.clone());
    }
    let steps = broadcast_strides(x.shape(), shape);
    gather(x, shape, |p| p.iter().zip(&steps).map(|(p, s)| p * s).sum())
}

/// Returns the result of `Shape` or `Size` for an input of this shape.
pub fn shape_values(op: &Op, shape: &[usize]) -> Option<Tensor> {
    match op {
        Op::Shape { start, end } => {
            let (a, b) = shape_range(shape.len(), *start, *end);
            Some(Tensor::vector(shape.get(a..b)?.iter().map(|&n| n as i64).collect()))
        }
        Op::Size => Some(Tensor::scalar(shape.iter().product::<usize>() as i64)),
        _ => None,
    }
}

pub(super) fn eval(op: &Op, call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.need(0)?;
    Ok(vec![match op {
        Op::Identity => x.clone(),
        Op::Reshape { .. } | Op::Squeeze | Op::Unsqueeze | Op::Flatten { .. } => x.clone().reshaped(call.shape(0)?)?,
        Op::Shape { .. } | Op::Size => shape_values(op, x.shape()).ok_or_else(|| GraphError::malformed("Shape"))?,
        Op::Cast { to } => x.cast(*to),
        Op::Expand => stretched(x, call.shape(0)?)?,
        Op::Transpose { perm } => {
            let perm = permutation(perm, x.rank())?;
            let x_strides = strides(x.shape());
            let steps: Vec<usize> = perm.iter().map(|&p| x_strides[p]).collect();
            gather(x, call.shape(0)?, |p| p.iter().zip(&steps).map(|(p, s)| p * s).sum())?
        }
        Op::Tile => {
            let x_strides = strides(x.shape());
            gather(x, call.shape(0)?, |p| p.iter().zip(&x_strides).zip(x.shape()).map(|((p, s), n)| p % n * s).sum())?
        }
        Op::Concat { axis } => concat(*axis, call)?,
        Op::Split { axis } => return split(*axis, call),
        Op::Slice => slice(call)?,
        Op::Pad { mode } => pad(*mode, call)?,
        Op::ConstantOfShape { value } => with_tensor_data!(value.data(), v => repeat(v, call.shape(0)?))?,
        Op::Range => {
            let ends: Vec<f64> = (0..3).filter_map(|i| call.get(i)?.to_f64_vec().first().copied()).collect();
            let [start, limit, delta] = ends.as_slice() else {
                return Err(GraphError::misused("range", format!("{} ends", ends.len()), "3"));
            };
            let n = range_length(*start, *limit, *delta)?;
            Tensor::vector((0..n).map(|i| start + i as f64 * delta).collect::<Vec<f64>>()).cast(x.dtype())
        }
        Op::DepthToSpace { block, order } => {
            let (s, x_strides) = (x.shape(), strides(x.shape()));
            let channels = s[1] / (block * block);
            gather(x, call.shape(0)?, |p| {
                let (by, bx) = (p[2] % block, p[3] % block);
                let c = match order {
                    DepthOrder::Dcr => (by * block + bx) * channels + p[1],
                    DepthOrder::Crd => p[1] * block * block + by * block + bx,
                };
                p[0] * x_strides[0] + c * x_strides[1] + p[2] / block * x_strides[2] + p[3] / block
            })?
        }
        Op::SpaceToDepth { block } => {
            let (s, x_strides) = (x.shape(), strides(x.shape()));
            gather(x, call.shape(0)?, |p| {
                let (c, b) = (p[1] % s[1], p[1] / s[1]);
                p[0] * x_strides[0]
                    + c * x_strides[1]
                    + (p[2] * block + b / block) * x_strides[2]
                    + p[3] * block
                    + b % block
            })?
        }
        Op::Trilu { upper } => {
            let k = call.ints(1)?.and_then(|v| v.first().copied()).unwrap_or(0);
            let x_strides = strides(x.shape());
            let rank = x.rank();
            let keep = |p: &[usize]| {
                let offset = p[rank - 1] as i64 - p[rank - 2] as i64;
                let inside = if *upper { offset >= k } else { offset <= k };
                inside.then(|| p.iter().zip(&x_strides).map(|(p, s)| p * s).sum())
            };
            let data = with_tensor_data!(x.data(), v => pick(v, x.shape(), Default::default(), keep));
            Tensor::from_data(x.shape(), data)?
        }
        other => return Err(GraphError::unsupported(format!("operator {}", op_name(other)))),
    }])
}

fn repeat<T: Scalar>(value: &[T], shape: &[usize]) -> Result<Tensor> {
    Tensor::new(shape, vec![value.first().copied().unwrap_or_default(); shape.iter().product()])
}

fn concat(axis: i64, call: &Call<'_>) -> Result<Tensor> {
    fn compute<T: Scalar>(_: &[T], axis: usize, call: &Call<'_>) -> Result<TensorData> {
        let shape = call.shape(0)?;
        let outer: usize = shape[..axis].iter().product();
        let mut parts = Vec::with_capacity(call.inputs.len());
        for index in 0..call.inputs.len() {
            let t = call.need(index)?;
            parts.push((typed::<T>(t)?, t.shape()[axis..].iter().product::<usize>()));
        }
        let mut out = Vec::with_capacity(shape.iter().product());
        for block in 0..outer {
            for (values, length) in &parts {
                out.extend_from_slice(&values[block * length..][..*length]);
            }
        }
        Ok(T::wrap(out))
    }
    let x = call.need(0)?;
    let axis = resolve_axis(axis, x.rank())?;
    let data = with_tensor_data!(x.data(), v => compute(v, axis, call))?;
    Tensor::from_data(call.shape(0)?, data)
}

fn split(axis: i64, call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.need(0)?;
    let axis = resolve_axis(axis, x.rank())?;
    let x_strides = strides(x.shape());
    let mut first = 0;
    let mut parts = Vec::new();
    for shape in &call.shapes {
        let offset = first * x_strides[axis];
        parts.push(gather(x, shape, |p| offset + p.iter().zip(&x_strides).map(|(p, s)| p * s).sum::<usize>())?);
        first += shape[axis];
    }
    Ok(parts)
}

fn slice(call: &Call<'_>) -> Result<Tensor> {
    let x = call.need(0)?;
    let (starts, ends) = (call.need_ints(1)?, call.need_ints(2)?);
    let (axes, steps) = (call.ints(3)?, call.ints(4)?);
    let plan = slice_plan(x.rank(), &starts, &ends, axes.as_deref(), steps.as_deref())?;
    let x_strides = strides(x.shape());
    let mut offset = 0isize;
    let mut jumps = Vec::with_capacity(x_strides.len());
    for ((&n, &stride), p) in x.shape().iter().zip(&x_strides).zip(plan) {
        let stride = stride as isize;
        match p {
            None => jumps.push(stride),
            Some((start, end, step)) => {
                let c = slice_axis(n, start, end, step)?;
                offset += c.start * stride;
                // A step longer than the axis is never taken; its product could overflow.
                jumps.push(c.step.wrapping_mul(stride));
            }
        }
    }
    gather(x, call.shape(0)?, |p| {
        let at = offset + p.iter().zip(&jumps).map(|(&p, j)| p as isize * j).sum::<isize>();
        at.max(0) as usize
    })
}

/// Returns the position in 0..n that padding by `amounts` reads for position `i`, or `None` for the constant.
fn padded_source(i: i64, n: i64, mode: PadMode, amounts: (i64, i64)) -> Option<usize> {
    let inside = match mode {
        _ if (0..n).contains(&i) => i,
        PadMode::Constant => return None,
        _ if n == 0 => return None,
        PadMode::Edge => i.clamp(0, n - 1),
        PadMode::Wrap => wrapped_position(i, n, amounts)?,
        PadMode::Reflect if n == 1 => 0,
        PadMode::Reflect => {
            let period = 2 * (n - 1);
            let r = i.rem_euclid(period);
            r.min(period - r)
        }
    };
    usize::try_from(inside).ok()
}

fn pad(mode: PadMode, call: &Call<'_>) -> Result<Tensor> {
    fn compute<T: Scalar>(
        v: &[T],
        shape: &[usize],
        fill: Option<&Tensor>,
        f: impl Fn(&[usize]) -> Option<usize>,
    ) -> Result<TensorData> {
        let fill = match fill {
            Some(t) => typed::<T>(t)?.first().copied().unwrap_or_default(),
            None => T::default(),
        };
        Ok(pick(v, shape, fill, f))
    }
    let x = call.need(0)?;
    let plan = pad_plan(x.rank(), &call.need_ints(1)?, call.ints(3)?.as_deref())?;
    let x_strides = strides(x.shape());
    let source = |p: &[usize]| {
        let mut at = 0;
        for (((&p, &n), stride), amounts) in p.iter().zip(x.shape()).zip(&x_strides).zip(&plan) {
            at += padded_source((p as i64).wrapping_sub(amounts.0), n as i64, mode, *amounts)? * stride;
        }
        Some(at)
    };
    let data = with_tensor_data!(x.data(), v => compute(v, call.shape(0)?, call.get(2), source))?;
    Tensor::from_data(call.shape(0)?, data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_wraps_around_what_cropping_leaves() -> Result<()> {
        // As ONNX Runtime pads.
        let cases: [([i64; 2], &[f32]); 5] = [
            ([2, 1], &[2.0, 3.0, 0.0, 1.0, 2.0, 3.0, 0.0]),
            ([2, -1], &[1.0, 2.0, 0.0, 1.0, 2.0]),
            ([-1, 2], &[1.0, 2.0, 3.0, 1.0, 2.0]),
            ([-2, 3], &[2.0, 3.0, 2.0, 3.0, 2.0]),
            ([-1, -1], &[1.0, 2.0]),
        ];
        let x = Tensor::vector(vec![0.0f32, 1.0, 2.0, 3.0]);
        for (amounts, expected) in cases {
            let pads = Tensor::vector(amounts.to_vec());
            let made = crate::eval(&Op::Pad { mode: PadMode::Wrap }, &[Some(&x), Some(&pads)], 1)?;
            assert_eq!(made.first().and_then(Tensor::as_f32), Some(expected), "{amounts:?}");
        }
        Ok(())
    }
}

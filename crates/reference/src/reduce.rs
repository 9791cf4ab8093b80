//! Reductions, arg-reductions, top-k and cumulative sums.

use rayon::prelude::*;

use super::shape_ops::strides;
use super::{Call, wrong_type};
use cytoscope_graph::infer::resolve_axis;
use cytoscope_graph::infer::rules::reduced_axes;
use cytoscope_graph::{ElementType, GraphError, Op, ReduceOp, Result, Scalar, Tensor, op_name, with_tensor_data};

pub(super) fn eval(op: &Op, call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.need(0)?;
    match op {
        Op::Reduce { kind, noop_with_empty_axes, .. } => {
            let axes = reduced_axes(x.rank(), call.ints(1)?.as_deref(), *noop_with_empty_axes)?;
            Ok(vec![reduce(*kind, x, &axes, call.shape(0)?)?])
        }
        Op::ArgReduce { max, axis, last, .. } => {
            let lines = Lines::new(x, *axis)?;
            let values = x.to_f64_vec();
            let found = lines.starts().map(|start| {
                let mut best = (0, values[start]);
                for i in 1..lines.length {
                    let v = values[start + i * lines.step];
                    if (if *max { v > best.1 } else { v < best.1 }) || (*last && v == best.1) {
                        best = (i as i64, v);
                    }
                }
                best.0
            });
            Ok(vec![Tensor::new(call.shape(0)?, found.collect::<Vec<i64>>())?])
        }
        Op::TopK { axis, largest } => top_k(*axis, *largest, x, call),
        Op::CumSum { exclusive, reverse } => {
            let axis = call.ints(1)?.and_then(|v| v.first().copied()).unwrap_or(0);
            let lines = Lines::new(x, axis)?;
            let values = x.to_f64_vec();
            let mut out = vec![0.0; values.len()];
            for start in lines.starts() {
                let mut sum = 0.0;
                for i in 0..lines.length {
                    let i = if *reverse { lines.length - 1 - i } else { i };
                    let at = start + i * lines.step;
                    let with = sum + values[at];
                    out[at] = if *exclusive { sum } else { with };
                    sum = with;
                }
            }
            Ok(vec![Tensor::new(x.shape(), out)?.cast(x.dtype())])
        }
        other => Err(GraphError::unsupported(op_name(other))),
    }
}

/// The lines of a tensor along one axis.
struct Lines {
    length: usize,
    step: usize,
    outer: usize,
}

impl Lines {
    fn new(x: &Tensor, axis: i64) -> Result<Self> {
        let axis = resolve_axis(axis, x.rank())?;
        let shape = x.shape();
        Ok(Self {
            length: shape[axis],
            step: shape[axis + 1..].iter().product(),
            outer: shape[..axis].iter().product(),
        })
    }

    /// Returns the first element of each line, in C order of the other axes.
    fn starts(&self) -> impl Iterator<Item = usize> + '_ {
        let empty = self.length == 0;
        (0..if empty { 0 } else { self.outer })
            .flat_map(move |o| (0..self.step).map(move |i| o * self.length * self.step + i))
    }
}

fn top_k(axis: i64, largest: bool, x: &Tensor, call: &Call<'_>) -> Result<Vec<Tensor>> {
    let lines = Lines::new(x, axis)?;
    let shape = call.shape(0)?;
    let k = shape[resolve_axis(axis, x.rank())?];
    let values = x.to_f64_vec();
    let total: usize = shape.iter().product();
    let (mut best, mut at) = (vec![0.0; total], vec![0i64; total]);
    for (line, start) in lines.starts().enumerate() {
        let mut order: Vec<usize> = (0..lines.length).collect();
        let key = |i: &usize| values[start + i * lines.step];
        order.sort_by(|a, b| if largest { key(b).total_cmp(&key(a)) } else { key(a).total_cmp(&key(b)) });
        for (rank, i) in order.into_iter().take(k).enumerate() {
            let target = (line / lines.step * k + rank) * lines.step + line % lines.step;
            best[target] = key(&i);
            at[target] = i as i64;
        }
    }
    Ok(vec![Tensor::new(shape, best)?.cast(x.dtype()), Tensor::new(shape, at)?])
}

fn reduce(kind: ReduceOp, x: &Tensor, axes: &[usize], output: &[usize]) -> Result<Tensor> {
    let x_strides = strides(x.shape());
    // Offsets of the reduced elements from the first one, and positions of the first ones.
    let offsets = |keep: bool| {
        let mut all = vec![0usize];
        for (axis, (&n, &s)) in x.shape().iter().zip(&x_strides).enumerate() {
            if axes.contains(&axis) != keep {
                all = all.iter().flat_map(|&o| (0..n).map(move |i| o + i * s)).collect();
            }
        }
        all
    };
    let (inner, starts) = (offsets(false), offsets(true));
    fn extreme<T: Scalar>(v: &[T], max: bool, inner: &[usize], starts: &[usize], output: &[usize]) -> Result<Tensor> {
        let none = T::from_f64(if max { f64::NEG_INFINITY } else { f64::INFINITY });
        let better = |a: T, b: T| if max { b > a } else { b < a };
        let one = |s: &usize| {
            inner
                .iter()
                .map(|o| v[s + o])
                .reduce(|a, b| if better(a, b) || b.partial_cmp(&b).is_none() { b } else { a })
        };
        Tensor::new(output, starts.par_iter().map(|s| one(s).unwrap_or(none)).collect::<Vec<T>>())
    }
    if matches!(kind, ReduceOp::Max | ReduceOp::Min) {
        let max = kind == ReduceOp::Max;
        return with_tensor_data!(x.data(), v => extreme(v, max, &inner, &starts, output));
    }
    match x.dtype() {
        ElementType::Bool => Err(wrong_type(ElementType::Bool)),
        t if t.is_float() => {
            let results = reduce_floats(kind, x, &inner, &starts);
            Ok(Tensor::new(output, results)?.cast(t))
        }
        t => {
            let values = x.to_i64_vec().ok_or_else(|| wrong_type(t))?;
            let results = reduce_integers(kind, &values, &inner, &starts);
            Ok(Tensor::new(output, results)?.cast(t))
        }
    }
}

/// Reduces floats; `starts` are the first elements of the reduced sets, `inner` the offsets of their elements.
fn reduce_floats(kind: ReduceOp, x: &Tensor, inner: &[usize], starts: &[usize]) -> Vec<f64> {
    fn floats<T: Scalar>(
        v: &[T],
        f: impl Fn(&mut dyn Iterator<Item = f64>) -> f64 + Sync,
        inner: &[usize],
        starts: &[usize],
    ) -> Vec<f64> {
        starts.par_iter().map(|s| f(&mut inner.iter().map(|o| v[s + o].to_f64()))).collect()
    }
    let n = inner.len();
    let f = |values: &mut dyn Iterator<Item = f64>| match kind {
        ReduceOp::Sum => values.sum(),
        ReduceOp::Mean => values.sum::<f64>() / n as f64,
        ReduceOp::Prod => values.product(),
        ReduceOp::L1 => values.map(f64::abs).sum(),
        ReduceOp::L2 => values.map(|v| v * v).sum::<f64>().sqrt(),
        ReduceOp::LogSum => values.sum::<f64>().ln(),
        ReduceOp::LogSumExp => {
            let all: Vec<f64> = values.collect();
            let max = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            if max.is_finite() {
                max + all.iter().map(|v| (v - max).exp()).sum::<f64>().ln()
            } else if all.iter().any(|v| v.is_nan()) {
                f64::NAN
            } else {
                max
            }
        }
        ReduceOp::SumSquare => values.map(|v| v * v).sum(),
        ReduceOp::Max => values.fold(f64::NEG_INFINITY, f64::max),
        ReduceOp::Min => values.fold(f64::INFINITY, f64::min),
    };
    with_tensor_data!(x.data(), v => floats(v, f, inner, starts))
}

/// Reduces integers, wrapping on overflow; see [`reduce_floats`].
fn reduce_integers(kind: ReduceOp, values: &[i64], inner: &[usize], starts: &[usize]) -> Vec<i64> {
    let n = inner.len();
    starts
        .par_iter()
        .map(|s| {
            let line = inner.iter().map(|o| values[s + o]);
            let sum = |it: &mut dyn Iterator<Item = i64>| it.fold(0i64, i64::wrapping_add);
            match kind {
                ReduceOp::Prod => line.fold(1, i64::wrapping_mul),
                ReduceOp::Mean => sum(&mut line.into_iter()).checked_div(n as i64).unwrap_or(0),
                ReduceOp::L1 => sum(&mut line.map(i64::wrapping_abs)),
                ReduceOp::SumSquare => sum(&mut line.map(|v| v.wrapping_mul(v))),
                ReduceOp::L2 => (sum(&mut line.map(|v| v.wrapping_mul(v))) as f64).sqrt() as i64,
                ReduceOp::LogSum => (sum(&mut line.into_iter()) as f64).ln() as i64,
                ReduceOp::LogSumExp => line.map(|v| (v as f64).exp()).sum::<f64>().ln() as i64,
                _ => sum(&mut line.into_iter()),
            }
        })
        .collect()
}

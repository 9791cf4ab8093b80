//! Reductions, arg-reductions, top-k and cumulative sums.

use rayon::prelude::*;

use super::shape_ops::strides;
use super::{Call, value_range, wrong_type};
use cytoscope_graph::infer::resolve_axis;
use cytoscope_graph::infer::rules::reduced_axes;
use cytoscope_graph::{
    ElementType, GraphError, Op, ReduceOp, Result, Scalar, Tensor, TensorData, op_name, with_tensor_data,
};
use std::cmp::Ordering;

pub(super) fn eval(op: &Op, call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.need(0)?;
    match op {
        Op::Reduce { kind, noop_with_empty_axes, .. } => {
            let axes = reduced_axes(x.rank(), call.ints(1)?.as_deref(), *noop_with_empty_axes)?;
            Ok(vec![reduce(*kind, x, &axes, call.shape(0)?)?])
        }
        Op::ArgReduce { max, axis, last, .. } => {
            let lines = Lines::new(x, *axis)?;
            let found = with_tensor_data!(x.data(), v => lines.extremes(v, *max, *last));
            Ok(vec![Tensor::new(call.shape(0)?, found)?])
        }
        Op::TopK { axis, largest } => top_k(*axis, *largest, x, call),
        Op::CumSum { exclusive, reverse } => {
            let axis = call.ints(1)?.and_then(|v| v.first().copied()).unwrap_or(0);
            let lines = Lines::new(x, axis)?;
            let way = [*exclusive, *reverse];
            // The sums of integers are exact, and wrap.
            let sums = if x.dtype().is_float() {
                Tensor::new(x.shape(), lines.sums(&x.to_f64_vec(), way, |a, b| a + b))?
            } else {
                let values = x.to_i64_vec().ok_or_else(|| wrong_type(x.dtype()))?;
                Tensor::new(x.shape(), lines.sums(&values, way, i64::wrapping_add))?
            };
            Ok(vec![sums.cast(x.dtype())])
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

    /// Returns the position of the largest (or smallest) element of each line; of several equal ones, the first (or last).
    fn extremes<T: Scalar>(&self, values: &[T], max: bool, last: bool) -> Vec<i64> {
        let one = |start: usize| {
            let mut best = (0, values[start]);
            for i in 1..self.length {
                let v = values[start + i * self.step];
                if (if max { v > best.1 } else { v < best.1 }) || (last && v == best.1) {
                    best = (i as i64, v);
                }
            }
            best.0
        };
        self.starts().map(one).collect()
    }

    /// Returns the positions in the line from `start` on, in the order of their elements; equal ones in their own order.
    fn order<T: Scalar>(&self, values: &[T], start: usize, largest_first: bool) -> Vec<usize> {
        let key = |i: &usize| values[start + i * self.step];
        let mut order: Vec<usize> = (0..self.length).collect();
        order.sort_by(|a, b| {
            let by_value = ascending(key(a), key(b));
            if largest_first { by_value.reverse() } else { by_value }
        });
        order
    }

    /// Returns the sums of each line up to its elements.
    fn sums<T: Scalar>(&self, values: &[T], [exclusive, reverse]: [bool; 2], add: impl Fn(T, T) -> T) -> Vec<T> {
        let mut out = vec![T::default(); values.len()];
        for start in self.starts() {
            let mut sum = T::default();
            for i in 0..self.length {
                let i = if reverse { self.length - 1 - i } else { i };
                let at = start + i * self.step;
                let with = add(sum, values[at]);
                out[at] = if exclusive { sum } else { with };
                sum = with;
            }
        }
        out
    }
}

/// Orders values of one type; zeros of both signs are equal, and NaN of either sign is greater than any number.
fn ascending<T: Scalar>(a: T, b: T) -> Ordering {
    let is_nan = |v: T| v.partial_cmp(&v).is_none();
    a.partial_cmp(&b).unwrap_or_else(|| is_nan(a).cmp(&is_nan(b)))
}

fn top_k(axis: i64, largest: bool, x: &Tensor, call: &Call<'_>) -> Result<Vec<Tensor>> {
    fn picked<T: Scalar>(v: &[T], sources: &[usize]) -> TensorData {
        T::wrap(sources.iter().map(|&i| v.get(i).copied().unwrap_or_default()).collect())
    }
    let lines = Lines::new(x, axis)?;
    let shape = call.shape(0)?;
    let k = shape[resolve_axis(axis, x.rank())?];
    let total: usize = shape.iter().product();
    let (mut sources, mut at) = (vec![0usize; total], vec![0i64; total]);
    for (line, start) in lines.starts().enumerate() {
        let order = with_tensor_data!(x.data(), v => lines.order(v, start, largest));
        for (rank, i) in order.into_iter().take(k).enumerate() {
            let target = (line / lines.step * k + rank) * lines.step + line % lines.step;
            sources[target] = start + i * lines.step;
            at[target] = i as i64;
        }
    }
    let best = with_tensor_data!(x.data(), v => picked(v, &sources));
    Ok(vec![Tensor::from_data(shape, best)?, Tensor::new(shape, at)?])
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
        // ONNX: the result of an empty set is the smallest (or largest) value of the type.
        let (low, high) = value_range(T::TYPE);
        let none = T::from_f64(if max { low } else { high });
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
            let values: Vec<i128> = match x.data() {
                TensorData::U64(v) => v.iter().map(|&v| v.into()).collect(),
                _ => x.to_i64_vec().ok_or_else(|| wrong_type(t))?.into_iter().map(i128::from).collect(),
            };
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
        ReduceOp::LogSumExp => log_sum_exp(&values.collect::<Vec<f64>>()),
        ReduceOp::SumSquare => values.map(|v| v * v).sum(),
        ReduceOp::Max => values.fold(f64::NEG_INFINITY, f64::max),
        ReduceOp::Min => values.fold(f64::INFINITY, f64::min),
    };
    with_tensor_data!(x.data(), v => floats(v, f, inner, starts))
}

/// Returns the logarithm of the sum of the exponentials; NaN if one of the values is.
fn log_sum_exp(values: &[f64]) -> f64 {
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if max.is_finite() {
        max + values.iter().map(|v| (v - max).exp()).sum::<f64>().ln()
    } else if values.iter().any(|v| v.is_nan()) {
        f64::NAN
    } else {
        max
    }
}

/// Reduces integers. Sums and products are exact up to 128 bits, then wrap to 64; see [`reduce_floats`].
fn reduce_integers(kind: ReduceOp, values: &[i128], inner: &[usize], starts: &[usize]) -> Vec<i64> {
    let n = inner.len() as i128;
    let sum = |it: &mut dyn Iterator<Item = i128>| it.fold(0i128, i128::wrapping_add);
    starts
        .par_iter()
        .map(|s| {
            let mut line = inner.iter().map(|o| values[s + o]);
            let wide = match kind {
                ReduceOp::Prod => line.fold(1, i128::wrapping_mul),
                ReduceOp::Mean => sum(&mut line).checked_div(n).unwrap_or(0),
                ReduceOp::L1 => sum(&mut line.map(i128::abs)),
                ReduceOp::SumSquare => sum(&mut line.map(|v| v.wrapping_mul(v))),
                ReduceOp::L2 => line.map(|v| (v as f64).powi(2)).sum::<f64>().sqrt() as i128,
                ReduceOp::LogSum => i128::from((sum(&mut line) as f64).ln() as i64),
                ReduceOp::LogSumExp => i128::from(log_sum_exp(&line.map(|v| v as f64).collect::<Vec<f64>>()) as i64),
                _ => sum(&mut line),
            };
            wide as i64
        })
        .collect()
}

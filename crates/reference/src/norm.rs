//! Normalizations and softmax. Statistics are computed in f64 in two passes; the variance divides by N.

use rayon::prelude::*;

use super::{Call, typed, wrong_type};
use cytoscope_graph::infer::resolve_axis;
use cytoscope_graph::{ElementType, GraphError, Op, Result, Scalar, Tensor, op_name};

pub(super) fn eval(op: &Op, call: &Call<'_>) -> Result<Vec<Tensor>> {
    match call.need(0)?.dtype() {
        ElementType::F32 => compute::<f32>(op, call),
        ElementType::F64 => compute::<f64>(op, call),
        other => Err(wrong_type(other)),
    }
}

fn compute<T: Scalar>(op: &Op, call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.need(0)?;
    let shape = x.shape();
    let values = typed::<T>(x)?;
    let parameter = |i: usize| call.get(i).map(Tensor::to_f64_vec).unwrap_or_default();
    let channels = shape.get(1).copied().unwrap_or(1).max(1);
    let spatial: usize = shape.iter().skip(2).product();
    let result: Vec<T> = match op {
        Op::BatchNormalization { epsilon } => {
            let (scale, bias, mean, variance) = (parameter(1), parameter(2), parameter(3), parameter(4));
            let factor: Vec<f64> =
                scale.iter().zip(&variance).map(|(s, v)| s / (v + f64::from(*epsilon)).sqrt()).collect();
            per_block(values, spatial, |index, block, out| {
                let c = index % channels;
                for (o, v) in out.iter_mut().zip(block) {
                    *o = T::from_f64((v.to_f64() - mean[c]) * factor[c] + bias[c]);
                }
            })
        }
        Op::InstanceNormalization { epsilon } | Op::GroupNormalization { epsilon, .. } => {
            let groups = if let Op::GroupNormalization { groups, .. } = op { *groups } else { channels };
            let (scale, bias) = (parameter(1), parameter(2));
            let in_group = channels / groups;
            per_block(values, spatial * in_group, |index, block, out| {
                let (mean, inverse) = statistics(block, f64::from(*epsilon));
                for (at, (o, v)) in out.iter_mut().zip(block).enumerate() {
                    let c = index % groups * in_group + at / spatial;
                    *o = T::from_f64((v.to_f64() - mean) * inverse * scale[c] + bias[c]);
                }
            })
        }
        Op::LayerNormalization { axis, epsilon } => return layer_norm(*axis, *epsilon, values, call),
        Op::Softmax { axis } | Op::LogSoftmax { axis } => {
            let log = matches!(op, Op::LogSoftmax { .. });
            along(values, shape, *axis, |line| {
                let max = line.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = line.iter().map(|v| (v - max).exp()).sum();
                for v in line.iter_mut() {
                    *v = if log { *v - max - sum.ln() } else { (*v - max).exp() / sum };
                }
            })?
        }
        Op::LpNormalization { axis, p } => along(values, shape, *axis, |line| {
            let norm = if *p == 1 {
                line.iter().map(|v| v.abs()).sum::<f64>()
            } else {
                line.iter().map(|v| v * v).sum::<f64>().sqrt()
            };
            for v in line.iter_mut() {
                *v = if norm == 0.0 { 0.0 } else { *v / norm };
            }
        })?,
        other => return Err(GraphError::unsupported(op_name(other))),
    };
    Ok(vec![Tensor::new(shape, result)?])
}

fn per_block<T: Scalar>(values: &[T], block: usize, f: impl Fn(usize, &[T], &mut [T]) + Sync) -> Vec<T> {
    let mut out = vec![T::default(); values.len()];
    if block > 0 {
        out.par_chunks_mut(block).zip(values.par_chunks(block)).enumerate().for_each(|(i, (o, v))| f(i, v, o));
    }
    out
}

/// Returns the mean and 1 / √(variance + ε).
fn statistics<T: Scalar>(block: &[T], epsilon: f64) -> (f64, f64) {
    let n = block.len().max(1) as f64;
    let mean = block.iter().map(|v| v.to_f64()).sum::<f64>() / n;
    let variance = block.iter().map(|v| (v.to_f64() - mean).powi(2)).sum::<f64>() / n;
    (mean, 1.0 / (variance + epsilon).sqrt())
}

/// Applies `f` to each line along `axis`.
fn along<T: Scalar>(values: &[T], shape: &[usize], axis: i64, f: impl Fn(&mut [f64])) -> Result<Vec<T>> {
    let axis = resolve_axis(axis, shape.len())?;
    let length = shape[axis];
    let inner: usize = shape[axis + 1..].iter().product();
    let outer: usize = shape[..axis].iter().product();
    let mut out = values.to_vec();
    let mut line = vec![0.0; length];
    for (a, b) in (0..outer).flat_map(|a| (0..inner).map(move |b| (a, b))) {
        let at = |i: usize| (a * length + i) * inner + b;
        for (i, slot) in line.iter_mut().enumerate() {
            *slot = values[at(i)].to_f64();
        }
        f(&mut line);
        for (i, v) in line.iter().enumerate() {
            out[at(i)] = T::from_f64(*v);
        }
    }
    Ok(out)
}

fn layer_norm<T: Scalar>(axis: i64, epsilon: f32, values: &[T], call: &Call<'_>) -> Result<Vec<Tensor>> {
    let x = call.need(0)?;
    let axis = resolve_axis(axis, x.rank())?;
    let block: usize = x.shape()[axis..].iter().product();
    let stretched = |i: usize| -> Result<Option<Vec<f64>>> {
        // Scale and bias broadcast to x; they repeat for each block unless they also vary over the leading axes.
        call.get(i)
            .map(|t| {
                let full = if t.rank() + axis > x.rank() { x.shape() } else { &x.shape()[axis..] };
                Ok(super::shape_ops::stretched(t, full)?.to_f64_vec())
            })
            .transpose()
    };
    let (scale, bias) = (stretched(1)?, stretched(2)?);
    let pick = |v: &Option<Vec<f64>>, index: usize, at: usize, none: f64| match v {
        Some(v) if v.len() > block => v[index * block + at],
        Some(v) => v[at],
        None => none,
    };
    let out = per_block(values, block, |index, chunk, out| {
        let (mean, inverse) = statistics(chunk, f64::from(epsilon));
        for (at, (o, v)) in out.iter_mut().zip(chunk).enumerate() {
            let normal = (v.to_f64() - mean) * inverse;
            *o = T::from_f64(normal * pick(&scale, index, at, 1.0) + pick(&bias, index, at, 0.0));
        }
    });
    let mut results = vec![Tensor::new(x.shape(), out)?];
    if call.shapes.len() > 1 {
        let pairs: Vec<(f64, f64)> = values.chunks(block.max(1)).map(|c| statistics(c, f64::from(epsilon))).collect();
        let (means, inverses): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
        let kind = call.types.get(1).copied().flatten().unwrap_or(ElementType::F32);
        results.push(Tensor::new(call.shape(1)?, means)?.cast(kind));
        if call.shapes.len() > 2 {
            results.push(Tensor::new(call.shape(2)?, inverses)?.cast(kind));
        }
    }
    Ok(results)
}

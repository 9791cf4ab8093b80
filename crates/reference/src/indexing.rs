//! Gather and scatter operators. Every index is checked.

use super::shape_ops::{gather, strides};
use super::{Call, typed};
use cytoscope_graph::infer::resolve_axis;
use cytoscope_graph::{GraphError, Op, Result, Scalar, Tensor, TensorData, op_name, with_tensor_data};

/// Resolves an index into an axis of length `n`; negative ones count from the end.
fn position(index: i64, n: usize) -> Result<usize> {
    let at = if index < 0 { index.saturating_add(n as i64) } else { index };
    usize::try_from(at)
        .ok()
        .filter(|&i| i < n)
        .ok_or_else(|| GraphError::misused("index", index.to_string(), format!("an index into {n} elements")))
}

pub(super) fn eval(op: &Op, call: &Call<'_>) -> Result<Tensor> {
    let x = call.need(0)?;
    let indices = call.need_ints(1)?;
    let shape = call.shape(0)?;
    let x_strides = strides(x.shape());
    match op {
        Op::Gather { axis } => {
            let axis = resolve_axis(*axis, x.rank())?;
            let n = x.shape()[axis];
            let at: Vec<usize> = indices.iter().map(|&i| position(i, n)).collect::<Result<_>>()?;
            let index_shape = call.need(1)?.shape();
            let (steps, depth) = (strides(index_shape), index_shape.len());
            gather(x, shape, |p| {
                let row: usize = p[axis..axis + depth].iter().zip(&steps).map(|(p, s)| p * s).sum();
                let head: usize = p[..axis].iter().zip(&x_strides).map(|(p, s)| p * s).sum();
                let tail: usize = p[axis + depth..].iter().zip(&x_strides[axis + 1..]).map(|(p, s)| p * s).sum();
                head + at[row] * x_strides[axis] + tail
            })
        }
        Op::GatherElements { axis } => {
            let axis = resolve_axis(*axis, x.rank())?;
            let n = x.shape()[axis];
            let at: Vec<usize> = indices.iter().map(|&i| position(i, n)).collect::<Result<_>>()?;
            let steps = strides(shape);
            gather(x, shape, |p| {
                let i: usize = p.iter().zip(&steps).map(|(p, s)| p * s).sum();
                p.iter().enumerate().map(|(a, p)| x_strides[a] * if a == axis { at[i] } else { *p }).sum()
            })
        }
        Op::GatherNd { batch_dims } => {
            let index_shape = call.need(1)?.shape();
            let depth = index_shape.last().copied().unwrap_or(1);
            let lead = index_shape.len() - 1;
            let mut at = Vec::with_capacity(indices.len() / depth.max(1));
            for tuple in indices.chunks(depth.max(1)) {
                let mut offset = 0;
                for (i, &index) in tuple.iter().enumerate() {
                    offset += position(index, x.shape()[batch_dims + i])? * x_strides[batch_dims + i];
                }
                at.push(offset);
            }
            let steps = strides(&index_shape[..lead]);
            gather(x, shape, |p| {
                let row: usize = p[..lead].iter().zip(&steps).map(|(p, s)| p * s).sum();
                let batch: usize = p[..*batch_dims].iter().zip(&x_strides).map(|(p, s)| p * s).sum();
                let tail: usize = p[lead..].iter().zip(&x_strides[batch_dims + depth..]).map(|(p, s)| p * s).sum();
                batch + at[row] + tail
            })
        }
        Op::ScatterNd => {
            fn compute<T: Scalar>(v: &[T], updates: &Tensor, at: &[usize], each: usize) -> Result<TensorData> {
                let mut out = v.to_vec();
                for (&start, block) in at.iter().zip(typed::<T>(updates)?.chunks(each.max(1))) {
                    if let Some(target) = out.get_mut(start..start + block.len()) {
                        target.copy_from_slice(block);
                    }
                }
                Ok(T::wrap(out))
            }
            let depth = call.need(1)?.shape().last().copied().unwrap_or(1);
            let each: usize = x.shape().get(depth..).unwrap_or_default().iter().product();
            let mut at = Vec::new();
            for tuple in indices.chunks(depth.max(1)) {
                let mut offset = 0;
                for (i, &index) in tuple.iter().enumerate() {
                    offset += position(index, x.shape()[i])? * x_strides[i];
                }
                at.push(offset);
            }
            let data = with_tensor_data!(x.data(), v => compute(v, call.need(2)?, &at, each))?;
            Tensor::from_data(shape, data)
        }
        other => Err(GraphError::unsupported(op_name(other))),
    }
}

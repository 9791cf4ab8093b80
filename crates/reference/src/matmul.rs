//! Matrix products and Einstein sums.

use rayon::prelude::*;

use super::conv::Accumulate;
use super::shape_ops::broadcast_strides;
use super::{Call, typed, wrong_type};
use cytoscope_graph::einsum::{EinsumPlan, einsum_plan};
use cytoscope_graph::{BinaryOp, ElementType, GraphError, Op, Result, Tensor, op_name};

pub(super) fn eval(op: &Op, call: &Call<'_>) -> Result<Tensor> {
    let a = call.need(0)?;
    let shape = call.shape(0)?;
    match op {
        Op::MatMul => {
            let b = call.need(1)?;
            match a.dtype() {
                ElementType::F32 => Tensor::new(shape, product::<f32>(typed(a)?, a.shape(), typed(b)?, b.shape())?),
                ElementType::F64 => Tensor::new(shape, product::<f64>(typed(a)?, a.shape(), typed(b)?, b.shape())?),
                ElementType::I32 => Tensor::new(shape, product::<i32>(typed(a)?, a.shape(), typed(b)?, b.shape())?),
                ElementType::I64 | ElementType::U32 | ElementType::U64 => {
                    let values = product::<i64>(&integers(a)?, a.shape(), &integers(b)?, b.shape())?;
                    Ok(Tensor::new(shape, values)?.cast(a.dtype()))
                }
                other => Err(wrong_type(other)),
            }
        }
        Op::Gemm { alpha, beta, trans_a, trans_b } => gemm(*alpha, *beta, *trans_a, *trans_b, call),
        Op::MatMulInteger => {
            let b = call.need(1)?;
            let x = super::quant::without_zero(a, call.get(2), a.rank().saturating_sub(2))?;
            let y = super::quant::without_zero(b, call.get(3), b.rank().saturating_sub(1))?;
            Tensor::new(shape, product::<i32>(&x, a.shape(), &y, b.shape())?)
        }
        Op::QLinearMatMul => {
            let b = call.need(3)?;
            let x = super::quant::without_zero(a, call.get(2), a.rank().saturating_sub(2))?;
            let y = super::quant::without_zero(b, call.get(5), b.rank().saturating_sub(1))?;
            let sums = Tensor::new(shape, product::<i32>(&x, a.shape(), &y, b.shape())?)?;
            let last = shape.len().saturating_sub(1);
            super::quant::requantize(&sums, call.need(1)?, call.need(4)?, call.need(6)?, call.need(7)?, last)
        }
        Op::Einsum { equation } => {
            let shapes: Vec<Vec<usize>> = call.inputs.iter().flatten().map(|t| t.shape().to_vec()).collect();
            let plan = einsum_plan(equation, &shapes)?;
            let sums = if a.dtype().is_float() {
                let values: Vec<Vec<f64>> = call.inputs.iter().flatten().map(|t| t.to_f64_vec()).collect();
                Tensor::new(shape, einsum(&plan, &values))?
            } else {
                let values: Vec<Vec<i64>> = call.inputs.iter().flatten().map(|t| integers(t)).collect::<Result<_>>()?;
                Tensor::new(shape, einsum(&plan, &values))?
            };
            Ok(sums.cast(a.dtype()))
        }
        other => Err(GraphError::unsupported(op_name(other))),
    }
}

/// Returns integers in 64 bits; products and sums of unsigned ones have the same bits.
fn integers(t: &Tensor) -> Result<Vec<i64>> {
    t.to_i64_vec().ok_or_else(|| wrong_type(t.dtype()))
}

/// numpy's `matmul`; the shapes have been checked.
fn product<T: Accumulate>(a: &[T], a_shape: &[usize], b: &[T], b_shape: &[usize]) -> Result<Vec<T>> {
    let (a_lead, m, k) = match a_shape {
        [lead @ .., m, k] => (lead, *m, *k),
        [k] => (&[][..], 1, *k),
        [] => (&[][..], 1, 1),
    };
    let (b_lead, n) = match b_shape {
        [lead @ .., _, n] => (lead, *n),
        _ => (&[][..], 1),
    };
    let lead = cytoscope_graph::infer::rules::broadcast(a_lead, b_lead)?;
    let (sa, sb) = (broadcast_strides(a_lead, &lead), broadcast_strides(b_lead, &lead));
    let batches: usize = lead.iter().product();
    let mut out = vec![T::default(); batches * m * n];
    if out.is_empty() {
        return Ok(out);
    }
    out.par_chunks_mut(n).enumerate().for_each(|(index, row)| {
        let (i, mut rest) = (index % m, index / m);
        let (mut at, mut bt) = (0, 0);
        for axis in (0..lead.len()).rev() {
            at += rest % lead[axis] * sa[axis];
            bt += rest % lead[axis] * sb[axis];
            rest /= lead[axis];
        }
        let (a, b) = (&a[(at * m + i) * k..][..k], &b[bt * k * n..][..k * n]);
        for (&x, line) in a.iter().zip(b.chunks_exact(n)) {
            for (o, &y) in row.iter_mut().zip(line) {
                *o = o.add_product(x, y);
            }
        }
    });
    Ok(out)
}

fn gemm(alpha: f32, beta: f32, trans_a: bool, trans_b: bool, call: &Call<'_>) -> Result<Tensor> {
    let flip = |t: &Tensor, yes: bool| -> Result<Tensor> {
        if !yes {
            return Ok(t.clone());
        }
        let op = Op::Transpose { perm: vec![1, 0] };
        super::eval(&op, &[Some(t)], 1)?.pop().ok_or_else(|| GraphError::malformed("Transpose"))
    };
    let (a, b) = (flip(call.need(0)?, trans_a)?, flip(call.need(1)?, trans_b)?);
    let one = |op: Op, x: &Tensor, y: &Tensor| {
        super::eval(&op, &[Some(x), Some(y)], 1)?.pop().ok_or_else(|| GraphError::malformed("Gemm"))
    };
    let scaled = |t: Tensor, factor: f32| -> Result<Tensor> {
        if factor == 1.0 {
            return Ok(t);
        }
        if !t.dtype().is_float() {
            let values = t.to_f64_vec().into_iter().map(|v| v * f64::from(factor)).collect::<Vec<f64>>();
            return Ok(Tensor::new(t.shape(), values)?.cast(t.dtype()));
        }
        one(Op::Binary(BinaryOp::Mul), &t, &Tensor::scalar(factor).cast(t.dtype()))
    };
    let y = scaled(one(Op::MatMul, &a, &b)?, alpha)?;
    // As in BLAS, a factor of 0 means that c is not read: NaN in it has no effect.
    match call.get(2).filter(|_| beta != 0.0) {
        Some(c) => one(Op::Binary(BinaryOp::Add), &y, &scaled(c.clone(), beta)?),
        None => Ok(y),
    }
}

/// Computes an Einstein sum of operands in C order.
fn einsum<T: Accumulate>(plan: &EinsumPlan, values: &[Vec<T>]) -> Vec<T> {
    let one = T::from_f64(1.0);
    let (kept, summed) = plan.lengths.split_at(plan.output);
    let total: usize = kept.iter().product();
    let inner: usize = summed.iter().product();
    let offsets = |mut index: usize, lengths: &[usize], first: usize| -> Vec<usize> {
        let mut at = vec![0; values.len()];
        for axis in (0..lengths.len()).rev() {
            for (slot, s) in at.iter_mut().zip(&plan.strides) {
                *slot += index % lengths[axis] * s[first + axis];
            }
            index /= lengths[axis];
        }
        at
    };
    let inner_offsets: Vec<Vec<usize>> = (0..inner).map(|i| offsets(i, summed, plan.output)).collect();
    (0..total)
        .into_par_iter()
        .map(|o| {
            let base = offsets(o, kept, 0);
            inner_offsets.iter().fold(T::default(), |sum, i| {
                let factors = values.iter().zip(base.iter().zip(i)).map(|(v, (a, b))| v[a + b]);
                sum.add_product(factors.fold(one, |product, factor| T::default().add_product(product, factor)), one)
            })
        })
        .collect()
}

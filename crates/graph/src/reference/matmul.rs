//! Matrix products and Einstein sums.

use rayon::prelude::*;

use super::conv::Accumulate;
use super::shape_ops::broadcast_strides;
use super::{Call, typed, wrong_type};
use crate::error::{GraphError, Result};
use crate::op::{BinaryOp, Op};
use crate::tensor::{ElementType, Tensor};

pub(super) fn eval(op: &Op, call: &Call<'_>) -> Result<Tensor> {
    let a = call.need(0)?;
    let shape = call.shape(0)?;
    match op {
        Op::MatMul => {
            let b = call.need(1)?;
            match a.dtype() {
                ElementType::F32 => Tensor::new(shape, product::<f32>(typed(a)?, a.shape(), typed(b)?, b.shape())),
                ElementType::F64 => Tensor::new(shape, product::<f64>(typed(a)?, a.shape(), typed(b)?, b.shape())),
                ElementType::I32 => Tensor::new(shape, product::<i32>(typed(a)?, a.shape(), typed(b)?, b.shape())),
                ElementType::I64 | ElementType::U32 | ElementType::U64 => {
                    let values = product::<f64>(&a.to_f64_vec(), a.shape(), &b.to_f64_vec(), b.shape());
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
            Tensor::new(shape, product::<i32>(&x, a.shape(), &y, b.shape()))
        }
        Op::QLinearMatMul => {
            let b = call.need(3)?;
            let x = super::quant::without_zero(a, call.get(2), a.rank().saturating_sub(2))?;
            let y = super::quant::without_zero(b, call.get(5), b.rank().saturating_sub(1))?;
            let sums = Tensor::new(shape, product::<i32>(&x, a.shape(), &y, b.shape()))?;
            let last = shape.len().saturating_sub(1);
            super::quant::requantize(&sums, call.need(1)?, call.need(4)?, call.need(6)?, call.need(7)?, last)
        }
        Op::Einsum { equation } => {
            let shapes: Vec<Vec<usize>> = call.inputs.iter().flatten().map(|t| t.shape().to_vec()).collect();
            let plan = einsum_plan(equation, &shapes)?;
            let values: Vec<Vec<f64>> = call.inputs.iter().flatten().map(|t| t.to_f64_vec()).collect();
            Ok(Tensor::new(shape, plan.run(&values))?.cast(a.dtype()))
        }
        other => Err(GraphError::unsupported(crate::opname::op_name(other))),
    }
}

/// numpy's `matmul`; the shapes have been checked.
fn product<T: Accumulate>(a: &[T], a_shape: &[usize], b: &[T], b_shape: &[usize]) -> Vec<T> {
    let (a_lead, m, k) = match a_shape {
        [lead @ .., m, k] => (lead, *m, *k),
        [k] => (&[][..], 1, *k),
        [] => (&[][..], 1, 1),
    };
    let (b_lead, n) = match b_shape {
        [lead @ .., _, n] => (lead, *n),
        _ => (&[][..], 1),
    };
    let lead = crate::infer::rules::broadcast(a_lead, b_lead).unwrap_or_default();
    let (sa, sb) = (broadcast_strides(a_lead, &lead), broadcast_strides(b_lead, &lead));
    let batches: usize = lead.iter().product();
    let mut out = vec![T::default(); batches * m * n];
    if out.is_empty() {
        return out;
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
    out
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
        one(Op::Binary(BinaryOp::Mul), &t, &Tensor::scalar(factor).cast(t.dtype()))
    };
    let y = scaled(one(Op::MatMul, &a, &b)?, alpha)?;
    match call.get(2) {
        Some(c) => one(Op::Binary(BinaryOp::Add), &y, &scaled(c.clone(), beta)?),
        None => Ok(y),
    }
}

/// An Einstein sum: label lengths, and for each operand the stride of each label.
#[derive(Debug)]
pub(crate) struct EinsumPlan {
    /// Lengths of the labels, output labels first.
    lengths: Vec<usize>,
    output: usize,
    strides: Vec<Vec<usize>>,
}

/// Returns the number of products that an Einsum sums; the maximum if the equation does not fit its inputs.
pub(crate) fn einsum_products(equation: &str, shapes: &[Vec<usize>]) -> u128 {
    let plan = einsum_plan(equation, shapes);
    plan.map_or(u128::MAX, |p| p.lengths.iter().fold(1u128, |t, n| t.saturating_mul(*n as u128)))
}

/// Parses an equation such as `bhid,bhjd->bhij` (letters only, no ellipsis) into labels, lengths and strides.
pub(crate) fn einsum_plan(equation: &str, shapes: &[Vec<usize>]) -> Result<EinsumPlan> {
    let bad = |why: &str| GraphError::misused("einsum", format!("\"{equation}\" on {shapes:?}"), why);
    let (left, right) = match equation.split_once("->") {
        Some((l, r)) => (l, Some(r)),
        None => (equation, None),
    };
    let operands: Vec<Vec<char>> = left.split(',').map(|o| o.chars().collect()).collect();
    if operands.len() != shapes.len() || !left.chars().all(|c| c.is_ascii_alphabetic() || c == ',') {
        return Err(bad("letters, one group per input"));
    }
    let mut output: Vec<char> = match right {
        Some(r) => r.chars().collect(),
        None => {
            let mut once: Vec<char> =
                left.chars().filter(|c| *c != ',' && left.chars().filter(|d| d == c).count() == 1).collect();
            once.sort_unstable();
            once
        }
    };
    let count = output.len();
    for c in operands.iter().flatten() {
        if !output.contains(c) {
            output.push(*c);
        }
    }
    let mut lengths = vec![0usize; output.len()];
    let mut strides = Vec::new();
    for (labels, shape) in operands.iter().zip(shapes) {
        if labels.len() != shape.len() {
            return Err(bad("one letter per axis"));
        }
        let own = super::shape_ops::strides(shape);
        let mut step = vec![0; output.len()];
        for ((label, &n), s) in labels.iter().zip(shape).zip(own) {
            let at = output.iter().position(|c| c == label).unwrap_or(0);
            match lengths.get_mut(at) {
                Some(l) if *l == 0 || *l == n => *l = n,
                _ => return Err(bad("equal lengths for each letter")),
            }
            if let Some(slot) = step.get_mut(at) {
                *slot += s;
            }
        }
        strides.push(step);
    }
    if output.iter().take(count).any(|c| !left.contains(*c)) {
        return Err(bad("output letters that occur in the inputs"));
    }
    let allowed = crate::GraphLimits::default().tensor_elements;
    crate::limits::checked_elements(&lengths, "tensor_elements", "the products of an Einsum", allowed)?;
    Ok(EinsumPlan { lengths, output: count, strides })
}

impl EinsumPlan {
    /// Returns the shape of the result.
    pub(crate) fn output_lengths(&self) -> Vec<usize> {
        self.lengths.iter().take(self.output).copied().collect()
    }

    fn run(&self, values: &[Vec<f64>]) -> Vec<f64> {
        let (kept, summed) = self.lengths.split_at(self.output);
        let total: usize = kept.iter().product();
        let inner: usize = summed.iter().product();
        let offsets = |mut index: usize, lengths: &[usize], first: usize| -> Vec<usize> {
            let mut at = vec![0; values.len()];
            for axis in (0..lengths.len()).rev() {
                for (slot, s) in at.iter_mut().zip(&self.strides) {
                    *slot += index % lengths[axis] * s[first + axis];
                }
                index /= lengths[axis];
            }
            at
        };
        let inner_offsets: Vec<Vec<usize>> = (0..inner).map(|i| offsets(i, summed, self.output)).collect();
        (0..total)
            .into_par_iter()
            .map(|o| {
                let base = offsets(o, kept, 0);
                inner_offsets
                    .iter()
                    .map(|i| values.iter().zip(base.iter().zip(i)).map(|(v, (a, b))| v[a + b]).product::<f64>())
                    .sum()
            })
            .collect()
    }
}

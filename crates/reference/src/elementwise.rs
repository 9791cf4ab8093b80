//! Element-wise functions of one, two or three inputs, with broadcasting.

use rayon::prelude::*;

use super::{Call, typed, wrong_type};
use cytoscope_graph::{
    Activation, BinaryOp, ElementType, GraphError, Op, Result, Scalar, Tensor, TensorData, UnaryOp, op_name,
    with_tensor_data,
};

pub(super) fn eval(op: &Op, call: &Call<'_>) -> Result<Tensor> {
    let x = call.need(0)?;
    match op {
        Op::Activation(a) => match x.data() {
            TensorData::F32(_) | TensorData::F64(_) => map_float(x, |v| activate(a, v)),
            _ => with_tensor_data!(x.data(), v => relu(v, x.shape())),
        },
        Op::Unary(UnaryOp::Not) => Tensor::new(x.shape(), typed::<bool>(x)?.iter().map(|v| !v).collect::<Vec<_>>()),
        Op::Unary(UnaryOp::IsNaN) => {
            Tensor::new(x.shape(), x.to_f64_vec().into_iter().map(f64::is_nan).collect::<Vec<_>>())
        }
        Op::Unary(kind) => unary(*kind, x),
        Op::Clip => clip(x, call.get(1), call.get(2)),
        Op::PRelu => {
            let slope = super::shape_ops::stretched(call.need(1)?, x.shape())?;
            let f = |v: f64, s: f64| if v < 0.0 { v * s } else { v };
            let values: Vec<f64> = x.to_f64_vec().into_iter().zip(slope.to_f64_vec()).map(|(v, s)| f(v, s)).collect();
            Ok(Tensor::new(x.shape(), values)?.cast(x.dtype()))
        }
        Op::Binary(kind) => binary(*kind, x, call.need(1)?, call.shape(0)?),
        Op::Where => {
            let shape = call.shape(0)?;
            let condition = super::shape_ops::stretched(x, shape)?;
            let (a, b) = (
                super::shape_ops::stretched(call.need(1)?, shape)?,
                super::shape_ops::stretched(call.need(2)?, shape)?,
            );
            let condition = typed::<bool>(&condition)?.to_vec();
            fn pick<T: Scalar>(c: &[bool], a: &[T], b: &Tensor) -> Result<TensorData> {
                let b = typed::<T>(b)?;
                Ok(T::wrap(c.iter().zip(a).zip(b).map(|((&c, &a), &b)| if c { a } else { b }).collect()))
            }
            let data = with_tensor_data!(a.data(), v => pick(&condition, v, &b))?;
            Tensor::from_data(shape, data)
        }
        other => Err(GraphError::unsupported(op_name(other))),
    }
}

/// Elements per task.
const CHUNK: usize = 1 << 14;

fn map_float(x: &Tensor, f: impl Fn(f64) -> f64 + Sync) -> Result<Tensor> {
    fn compute<T: Scalar>(v: &[T], f: impl Fn(f64) -> f64 + Sync) -> TensorData {
        let mut out = vec![T::default(); v.len()];
        out.par_chunks_mut(CHUNK).zip(v.par_chunks(CHUNK)).for_each(|(o, v)| {
            for (o, v) in o.iter_mut().zip(v) {
                *o = T::from_f64(f(v.to_f64()));
            }
        });
        T::wrap(out)
    }
    let data = match x.data() {
        TensorData::F32(v) => compute(v, f),
        TensorData::F64(v) => compute(v, f),
        _ => return Err(wrong_type(x.dtype())),
    };
    Tensor::from_data(x.shape(), data)
}

fn relu<T: Scalar>(v: &[T], shape: &[usize]) -> Result<Tensor> {
    let zero = T::default();
    Tensor::new(shape, v.iter().map(|&x| if x < zero { zero } else { x }).collect::<Vec<T>>())
}

/// Returns 1 / (1 + e⁻ˣ) without overflow.
pub(crate) fn sigmoid(x: f64) -> f64 {
    if x >= 0.0 { 1.0 / (1.0 + (-x).exp()) } else { x.exp() / (1.0 + x.exp()) }
}

/// Returns ln(1 + eˣ) without overflow.
pub(crate) fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// Returns the value of an activation in f64 (formulas: the ONNX operators with the same names).
pub fn activate(activation: &Activation, x: f64) -> f64 {
    let f = f64::from;
    match *activation {
        Activation::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        Activation::LeakyRelu { alpha } => {
            if x < 0.0 {
                f(alpha) * x
            } else {
                x
            }
        }
        Activation::Elu { alpha } => {
            if x < 0.0 {
                f(alpha) * x.exp_m1()
            } else {
                x
            }
        }
        Activation::Celu { alpha } => {
            if x < 0.0 {
                f(alpha) * (x / f(alpha)).exp_m1()
            } else {
                x
            }
        }
        Activation::Selu { alpha, gamma } => f(gamma) * if x > 0.0 { x } else { f(alpha) * x.exp_m1() },
        Activation::Gelu { tanh: false } => 0.5 * x * (1.0 + libm::erf(x * std::f64::consts::FRAC_1_SQRT_2)),
        Activation::Gelu { tanh: true } => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
        }
        Activation::Silu => x * sigmoid(x),
        Activation::Sigmoid => sigmoid(x),
        Activation::HardSigmoid { alpha, beta } => (f(alpha) * x + f(beta)).clamp(0.0, 1.0),
        Activation::HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
        Activation::Mish => x * softplus(x).tanh(),
        Activation::Tanh => x.tanh(),
        Activation::Softplus => softplus(x),
        Activation::Softsign => x / (1.0 + x.abs()),
        Activation::ThresholdedRelu { alpha } => {
            if x > f(alpha) {
                x
            } else {
                0.0
            }
        }
        // Max first, then min, so that the upper bound wins if the bounds cross.
        Activation::Clip { min, max } => {
            let low = if x < f(min) { f(min) } else { x };
            if low > f(max) { f(max) } else { low }
        }
    }
}

fn unary(kind: UnaryOp, x: &Tensor) -> Result<Tensor> {
    let f: fn(f64) -> f64 = match kind {
        UnaryOp::Abs => f64::abs,
        UnaryOp::Neg => |v| -v,
        UnaryOp::Reciprocal => f64::recip,
        UnaryOp::Sqrt => f64::sqrt,
        UnaryOp::Exp => f64::exp,
        UnaryOp::Log => f64::ln,
        UnaryOp::Erf => libm::erf,
        UnaryOp::Floor => f64::floor,
        UnaryOp::Ceil => f64::ceil,
        UnaryOp::Round => f64::round_ties_even,
        UnaryOp::Sign => |v| if v == 0.0 || v.is_nan() { v } else { v.signum() },
        UnaryOp::Sin => f64::sin,
        UnaryOp::Cos => f64::cos,
        UnaryOp::Tan => f64::tan,
        UnaryOp::Asin => f64::asin,
        UnaryOp::Acos => f64::acos,
        UnaryOp::Atan => f64::atan,
        UnaryOp::Sinh => f64::sinh,
        UnaryOp::Cosh => f64::cosh,
        UnaryOp::Asinh => f64::asinh,
        UnaryOp::Acosh => f64::acosh,
        UnaryOp::Atanh => f64::atanh,
        UnaryOp::Not | UnaryOp::IsNaN => return Err(wrong_type(x.dtype())),
    };
    macro_rules! whole {
        ($v:expr) => {{
            let v = $v.iter().map(|&i| match kind {
                UnaryOp::Abs => i.wrapping_abs(),
                UnaryOp::Neg => i.wrapping_neg(),
                _ => i.signum(),
            });
            Tensor::new(x.shape(), v.collect::<Vec<_>>())
        }};
    }
    macro_rules! natural {
        ($v:expr) => {{
            let v = $v.iter().map(|&i| match kind {
                UnaryOp::Abs => i,
                UnaryOp::Neg => i.wrapping_neg(),
                _ => i.min(1),
            });
            Tensor::new(x.shape(), v.collect::<Vec<_>>())
        }};
    }
    match x.data() {
        TensorData::I8(v) => whole!(v),
        TensorData::I16(v) => whole!(v),
        TensorData::I32(v) => whole!(v),
        TensorData::I64(v) => whole!(v),
        TensorData::U8(v) => natural!(v),
        TensorData::U16(v) => natural!(v),
        TensorData::U32(v) => natural!(v),
        TensorData::U64(v) => natural!(v),
        _ => map_float(x, f),
    }
}

fn clip(x: &Tensor, min: Option<&Tensor>, max: Option<&Tensor>) -> Result<Tensor> {
    fn compute<T: Scalar>(v: &[T], min: Option<&Tensor>, max: Option<&Tensor>) -> Result<TensorData> {
        let bound = |t: Option<&Tensor>| -> Result<Option<T>> {
            Ok(match t {
                Some(t) => typed::<T>(t)?.first().copied(),
                None => None,
            })
        };
        let (min, max) = (bound(min)?, bound(max)?);
        let one = |mut v: T| {
            v = min.filter(|m| v < *m).unwrap_or(v);
            max.filter(|m| v > *m).unwrap_or(v)
        };
        Ok(T::wrap(v.iter().map(|&v| one(v)).collect()))
    }
    let data = with_tensor_data!(x.data(), v => compute(v, min, max))?;
    Tensor::from_data(x.shape(), data)
}

/// Arithmetic of one element type: integers wrap, division truncates toward zero and returns zero for a zero divisor.
trait Arithmetic: Scalar {
    fn apply(kind: BinaryOp, a: Self, b: Self) -> Self;
}

macro_rules! float_arithmetic {
    ($($t:ty),*) => {$(
        impl Arithmetic for $t {
            #[inline(always)]
            fn apply(kind: BinaryOp, a: Self, b: Self) -> Self {
                match kind {
                    BinaryOp::Add => a + b,
                    BinaryOp::Sub => a - b,
                    BinaryOp::Mul => a * b,
                    BinaryOp::Div => a / b,
                    BinaryOp::Min => if a.is_nan() || a < b { a } else { b },
                    BinaryOp::Max => if a.is_nan() || a > b { a } else { b },
                    BinaryOp::Mod { fmod: true } => a % b,
                    BinaryOp::Mod { fmod: false } => { let r = a % b; if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r } }
                    _ => a,
                }
            }
        }
    )*};
}
float_arithmetic!(f32, f64);

macro_rules! int_arithmetic {
    ($($t:ty),*) => {$(
        impl Arithmetic for $t {
            #[inline(always)]
            fn apply(kind: BinaryOp, a: Self, b: Self) -> Self {
                match kind {
                    BinaryOp::Add => a.wrapping_add(b),
                    BinaryOp::Sub => a.wrapping_sub(b),
                    BinaryOp::Mul => a.wrapping_mul(b),
                    BinaryOp::Div => if b == 0 { 0 } else { a.wrapping_div(b) },
                    BinaryOp::Min => a.min(b),
                    BinaryOp::Max => a.max(b),
                    BinaryOp::Mod { fmod } => {
                        let r = if b == 0 { 0 } else { a.wrapping_rem(b) };
                        #[allow(unused_comparisons, reason = "one macro for signed and unsigned")]
                        if !fmod && r != 0 && (r < 0) != (b < 0) { r.wrapping_add(b) } else { r }
                    }
                    _ => a,
                }
            }
        }
    )*};
}
int_arithmetic!(i8, u8, i16, u16, i32, u32, i64, u64);

/// Combines two broadcast arrays row by row.
fn combine<A: Scalar, B: Scalar, O: Scalar>(
    (a, a_shape): (&[A], &[usize]),
    (b, b_shape): (&[B], &[usize]),
    shape: &[usize],
    f: impl Fn(A, B) -> O + Sync,
) -> Vec<O> {
    let total: usize = shape.iter().product();
    let mut out = vec![O::default(); total];
    if total == 0 {
        return out;
    }
    if a_shape == shape && b_shape == shape {
        out.par_chunks_mut(CHUNK).zip(a.par_chunks(CHUNK)).zip(b.par_chunks(CHUNK)).for_each(|((o, a), b)| {
            for ((o, &a), &b) in o.iter_mut().zip(a).zip(b) {
                *o = f(a, b);
            }
        });
        return out;
    }
    let (sa, sb) =
        (super::shape_ops::broadcast_strides(a_shape, shape), super::shape_ops::broadcast_strides(b_shape, shape));
    let row = shape.last().copied().unwrap_or(1).max(1);
    let (ia, ib) = (sa.last().copied().unwrap_or(0), sb.last().copied().unwrap_or(0));
    out.par_chunks_mut(row).enumerate().for_each(|(index, o)| {
        let (mut rest, mut at, mut bt) = (index, 0, 0);
        for axis in (0..shape.len().saturating_sub(1)).rev() {
            let position = rest % shape[axis];
            rest /= shape[axis];
            at += position * sa[axis];
            bt += position * sb[axis];
        }
        for (i, o) in o.iter_mut().enumerate() {
            *o = f(a[at + i * ia], b[bt + i * ib]);
        }
    });
    out
}

fn binary(kind: BinaryOp, a: &Tensor, b: &Tensor, shape: &[usize]) -> Result<Tensor> {
    fn arithmetic<T: Arithmetic>(kind: BinaryOp, a: &Tensor, b: &Tensor, shape: &[usize]) -> Result<Tensor> {
        let (x, y) = ((typed::<T>(a)?, a.shape()), (typed::<T>(b)?, b.shape()));
        let values = match kind {
            // Matching on the kind outside the loop keeps the loops simple.
            BinaryOp::Add => combine(x, y, shape, |a, b| T::apply(BinaryOp::Add, a, b)),
            BinaryOp::Mul => combine(x, y, shape, |a, b| T::apply(BinaryOp::Mul, a, b)),
            BinaryOp::Sub => combine(x, y, shape, |a, b| T::apply(BinaryOp::Sub, a, b)),
            other => combine(x, y, shape, move |a, b| T::apply(other, a, b)),
        };
        Tensor::new(shape, values)
    }
    fn compare<T: Scalar>(kind: BinaryOp, a: &Tensor, b: &Tensor, shape: &[usize]) -> Result<Tensor> {
        let f = move |a: T, b: T| match kind {
            BinaryOp::Equal => a == b,
            BinaryOp::Greater => a > b,
            BinaryOp::GreaterOrEqual => a >= b,
            BinaryOp::Less => a < b,
            _ => a <= b,
        };
        Tensor::new(shape, combine((typed::<T>(a)?, a.shape()), (typed::<T>(b)?, b.shape()), shape, f))
    }
    fn power<T: Scalar>(a: &[T], a_shape: &[usize], b: &Tensor, shape: &[usize]) -> Result<Tensor> {
        let e = b.to_f64_vec();
        let f = |a: T, e: f64| T::from_f64(a.to_f64().powf(e));
        Tensor::new(shape, combine((a, a_shape), (&e, b.shape()), shape, f))
    }
    match kind {
        BinaryOp::Pow => with_tensor_data!(a.data(), v => power(v, a.shape(), b, shape)),
        BinaryOp::And | BinaryOp::Or | BinaryOp::Xor => {
            let f = move |a: bool, b: bool| match kind {
                BinaryOp::And => a && b,
                BinaryOp::Or => a || b,
                _ => a != b,
            };
            Tensor::new(shape, combine((typed(a)?, a.shape()), (typed(b)?, b.shape()), shape, f))
        }
        _ if kind.returns_bool() => {
            fn by_type<T: Scalar>(_: &[T], kind: BinaryOp, a: &Tensor, b: &Tensor, shape: &[usize]) -> Result<Tensor> {
                compare::<T>(kind, a, b, shape)
            }
            with_tensor_data!(a.data(), v => by_type(v, kind, a, b, shape))
        }
        _ => match a.dtype() {
            ElementType::F32 => arithmetic::<f32>(kind, a, b, shape),
            ElementType::F64 => arithmetic::<f64>(kind, a, b, shape),
            ElementType::I8 => arithmetic::<i8>(kind, a, b, shape),
            ElementType::U8 => arithmetic::<u8>(kind, a, b, shape),
            ElementType::I16 => arithmetic::<i16>(kind, a, b, shape),
            ElementType::U16 => arithmetic::<u16>(kind, a, b, shape),
            ElementType::I32 => arithmetic::<i32>(kind, a, b, shape),
            ElementType::U32 => arithmetic::<u32>(kind, a, b, shape),
            ElementType::I64 => arithmetic::<i64>(kind, a, b, shape),
            ElementType::U64 => arithmetic::<u64>(kind, a, b, shape),
            other => Err(wrong_type(other)),
        },
    }
}

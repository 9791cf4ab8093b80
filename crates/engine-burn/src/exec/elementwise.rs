//! Runs element-wise functions and reductions.

use super::{Image, is_half};
use crate::kernels::{Curve, DeviceBackend, Training};
use burn_tensor::{FloatDType, Tensor, backend::Backend};
use cytoscope_graph::{Activation, BinaryOp, ReduceOp, UnaryOp};

/// Bounds numbers on both sides; NaN stays NaN, which Burn's `clamp` turns into a bound.
pub(super) fn bounded<B: Backend>(x: Image<B>, min: f32, max: f32) -> Image<B> {
    x.clamp_min(min).clamp_max(max)
}

/// tanh with bounded arguments, because some graphics drivers overflow for large ones. In f32, tanh(15) is 1.
pub(super) fn tanh<B: Backend>(x: Image<B>) -> Image<B> {
    bounded(x, -15.0, 15.0).tanh()
}

/// 1 / (1 + e⁻ˣ).
pub(super) fn sigmoid<B: Backend>(x: Image<B>) -> Image<B> {
    // The bound keeps e⁻ˣ finite in f32.
    x.clamp_min(-85.0).neg().exp().add_scalar(1.0).recip()
}

/// ln(1 + eˣ) without overflow.
pub(super) fn softplus<B: Backend>(x: Image<B>) -> Image<B> {
    x.clone().clamp_min(0.0) + x.abs().neg().exp().log1p()
}

/// alpha·(eˣ − 1) where x is negative, 0 elsewhere.
fn negative_part<B: Backend>(x: Image<B>, alpha: f32) -> Image<B> {
    x.clamp_max(0.0).exp().sub_scalar(1.0).mul_scalar(alpha)
}

/// Applies an activation to each element; NaN stays NaN, except for `ThresholdedRelu`, which is 0 there, as in ONNX.
pub(super) fn activate<B: Backend>(x: Image<B>, activation: Activation) -> Image<B> {
    let above = |x: &Image<B>| x.clone().clamp_min(0.0);
    match activation {
        Activation::Relu => x.clamp_min(0.0),
        Activation::LeakyRelu { alpha } => above(&x) + x.clamp_max(0.0).mul_scalar(alpha),
        Activation::Elu { alpha } => above(&x) + negative_part(x, alpha),
        Activation::Celu { alpha } => above(&x) + negative_part(x.div_scalar(alpha), alpha).clamp_max(0.0),
        Activation::Selu { alpha, gamma } => (above(&x) + negative_part(x, alpha)).mul_scalar(gamma),
        Activation::Gelu { tanh: false } => {
            let half = x.clone().mul_scalar(0.5);
            half * x.mul_scalar(std::f32::consts::FRAC_1_SQRT_2).erf().add_scalar(1.0)
        }
        Activation::Gelu { tanh: true } => {
            let cube = x.clone() * x.clone() * x.clone();
            let inner = (x.clone() + cube.mul_scalar(0.044_715)).mul_scalar((2.0 / std::f64::consts::PI).sqrt());
            x.mul_scalar(0.5) * tanh(inner).add_scalar(1.0)
        }
        Activation::Silu => x.clone() * sigmoid(x),
        Activation::Sigmoid => sigmoid(x),
        Activation::HardSigmoid { alpha, beta } => bounded(x.mul_scalar(alpha).add_scalar(beta), 0.0, 1.0),
        Activation::HardSwish => x.clone() * x.div_scalar(6.0).add_scalar(0.5).clamp(0.0, 1.0),
        Activation::Mish => x.clone() * tanh(softplus(x)),
        Activation::Tanh => tanh(x),
        Activation::Softplus => softplus(x),
        Activation::Softsign => x.clone() / x.abs().add_scalar(1.0),
        Activation::ThresholdedRelu { alpha } => {
            let is_above = x.clone().greater_elem(alpha);
            x.mask_fill(is_above.bool_not(), 0.0)
        }
        Activation::Clip { min, max } => {
            // Shader languages have no infinite literals.
            let x = if min > f32::MIN { x.clamp_min(min) } else { x };
            if max < f32::MAX { x.clamp_max(max) } else { x }
        }
    }
}

/// Applies a function to each element; `None` for functions that Burn does not have.
pub(super) fn unary<B: Backend>(x: Image<B>, op: UnaryOp) -> Option<Image<B>> {
    Some(match op {
        UnaryOp::Abs => x.abs(),
        UnaryOp::Neg => x.neg(),
        UnaryOp::Reciprocal => x.recip(),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Exp => x.exp(),
        UnaryOp::Log => x.log(),
        UnaryOp::Erf => x.erf(),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Round => x.round(),
        UnaryOp::Sign => {
            let is_nan = x.clone().is_nan();
            x.sign().mask_fill(is_nan, f32::NAN)
        }
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        _ => return None,
    })
}

/// Adds two tensors of the same form, and applies an activation. Returns `None` if their forms differ.
pub(super) fn sum<B: DeviceBackend>(a: Image<B>, b: Image<B>, activation: Curve) -> Option<Image<B>> {
    B::train(&Training::Add(activation), vec![a, b])?.pop()
}

/// Returns the larger (or smaller) of each two elements. If one of them is NaN, so is the result: of a number and NaN, Burn's
/// `max_pair` and `min_pair` return the first.
pub(super) fn extreme<B: Backend, const D: usize>(a: Tensor<B, D>, b: Tensor<B, D>, max: bool) -> Tensor<B, D> {
    // If the first operand of `mask_where` has fewer elements than the result, Burn's kernel may compute only as many.
    let (own, other) = (a.dims(), b.dims());
    let form: [usize; D] = std::array::from_fn(|axis| if own[axis] == 1 { other[axis] } else { own[axis] });
    let whole = |x: Tensor<B, D>| -> Tensor<B, D> { if x.dims() == form { x } else { x.expand(form) } };
    let (a, b) = (whole(a), whole(b));
    let is_nan = b.clone().is_nan();
    let chosen = if max { a.max_pair(b.clone()) } else { a.min_pair(b.clone()) };
    chosen.mask_where(is_nan, b)
}

/// Combines two tensors whose axes have equal lengths or length 1; comparisons give 0 and 1. `None` for functions that Burn does
/// not have.
pub(super) fn binary<B: DeviceBackend>(a: Image<B>, b: Image<B>, op: BinaryOp) -> Option<Image<B>> {
    if op == BinaryOp::Add
        && let Some(y) = sum(a.clone(), b.clone(), Curve::IDENTITY)
    {
        return Some(y);
    }
    Some(match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::Min => extreme(a, b, false),
        BinaryOp::Max => extreme(a, b, true),
        BinaryOp::Pow => a.powf(b),
        BinaryOp::Equal => a.equal(b).float(),
        BinaryOp::Greater => a.greater(b).float(),
        BinaryOp::GreaterOrEqual => a.greater_equal(b).float(),
        BinaryOp::Less => a.lower(b).float(),
        BinaryOp::LessOrEqual => a.lower_equal(b).float(),
        _ => return None,
    })
}

/// Combines each element with a number, which is the first operand if `reversed`; `None` for functions that Burn does not have.
pub(super) fn scalar<B: Backend>(x: Image<B>, op: BinaryOp, value: f32, reversed: bool) -> Option<Image<B>> {
    Some(match (op, reversed) {
        (BinaryOp::Add, _) => x.add_scalar(value),
        (BinaryOp::Mul, _) => x.mul_scalar(value),
        (BinaryOp::Sub, false) => x.sub_scalar(value),
        (BinaryOp::Sub, true) => x.neg().add_scalar(value),
        (BinaryOp::Div, false) => x.div_scalar(value),
        (BinaryOp::Div, true) => x.recip().mul_scalar(value),
        (BinaryOp::Min, _) => x.clamp_max(value),
        (BinaryOp::Max, _) => x.clamp_min(value),
        (BinaryOp::Pow, false) if value == 2.0 => x.clone() * x,
        (BinaryOp::Pow, false) if value == 0.5 => x.sqrt(),
        (BinaryOp::Pow, false) if value == 0.0 => x.powf_scalar(value),
        (BinaryOp::Pow, false) => {
            // Some drivers return 0 for NaN.
            let is_nan = x.clone().is_nan();
            x.powf_scalar(value).mask_fill(is_nan, f32::NAN)
        }
        (BinaryOp::Pow, true) => {
            let base = Tensor::full([1; 5], value, &x.device());
            base.powf(x)
        }
        _ => return None,
    })
}

/// Reduces runs of neighboring axes one after the other: each of `runs` gives the number of elements before the axes, of the axes
/// and after them. If there are any, the results are one axis (axes L, 1, 1, 1, 1). `None` for kinds that Burn does not have.
pub(super) fn reduce<B: Backend>(x: Image<B>, kind: ReduceOp, runs: &[[usize; 3]]) -> Option<Image<B>> {
    if is_half(&x) {
        // Long sums need the range and precision of 32 bits.
        let dtype = x.dtype();
        return Some(reduce(x.cast(FloatDType::F32), kind, runs)?.cast(dtype));
    }
    let mut x = match kind {
        ReduceOp::L1 => x.abs(),
        ReduceOp::L2 | ReduceOp::SumSquare => x.clone() * x,
        _ => x,
    };
    for &[outer, length, inner] in runs {
        let fold = match kind {
            ReduceOp::Max => Fold::Max,
            ReduceOp::Min => Fold::Min,
            ReduceOp::Mean | ReduceOp::Sum | ReduceOp::L1 | ReduceOp::L2 | ReduceOp::SumSquare => Fold::Sum,
            _ => return None,
        };
        let line: Tensor<B, 3> = x.reshape([outer, length, inner]);
        let y = match fold {
            Fold::Sum => folded(line, fold),
            Fold::Max | Fold::Min => extreme_of_lines(line, matches!(fold, Fold::Max)),
        };
        let y = if kind == ReduceOp::Mean { y.div_scalar(length as f32) } else { y };
        x = y.reshape([outer, inner, 1, 1, 1]);
    }
    Some(if kind == ReduceOp::L2 { x.sqrt() } else { x })
}

/// Returns the maximum (or minimum) of the middle axis of `[outer, length, inner]`: NaN if an element is NaN, and −∞ (or ∞) if all
/// elements are. Burn's reductions ignore NaN, and begin with the lowest (or greatest) finite number.
fn extreme_of_lines<B: Backend>(line: Tensor<B, 3>, max: bool) -> Tensor<B, 3> {
    let (is_number, empty) = if max {
        (line.clone().greater_equal_elem(f32::MIN), f32::NEG_INFINITY)
    } else {
        (line.clone().lower_equal_elem(f32::MAX), f32::INFINITY)
    };
    // 2 where an element is NaN, otherwise 1 where one is a number, otherwise 0.
    let kind = is_number.float() + line.clone().is_nan().float().mul_scalar(2.0);
    let kind = folded(kind, Fold::Max);
    let found = folded(line, if max { Fold::Max } else { Fold::Min });
    let found = found.mask_fill(kind.clone().lower_elem(0.5), empty);
    found.mask_fill(kind.greater_elem(1.5), f32::NAN)
}

/// Bound for the numbers that a search does not look for, such as −∞ in a search for the maximum: with them, the sum by which NaN
/// is detected would be infinite.
const SEARCH_BOUND: f32 = 1e30;

/// Returns the position of the largest (or smallest) element of each line along an axis; of several equal elements, that of the
/// first (or last). Lines with NaN, or with infinity as the result, have the position NaN, so that an overflow in a network does
/// not go unnoticed.
pub(super) fn arg_reduce<B: Backend>(
    x: Image<B>,
    positions: Image<B>,
    axis: usize,
    [max, last]: [bool; 2],
) -> Option<Image<B>> {
    let x = if is_half(&x) { x.cast(FloatDType::F32) } else { x };
    let x = if max { x.clamp_min(-SEARCH_BOUND) } else { x.clamp_max(SEARCH_BOUND) };
    let form = x.dims();
    let (mut kept, length) = (form, form[axis]);
    kept[axis] = 1;
    let runs = [[form[..axis].iter().product(), length, form[axis + 1..].iter().product()]];
    let along = |x: Image<B>, kind: ReduceOp| -> Option<Image<B>> { Some(reduce(x, kind, &runs)?.reshape(kept)) };
    let best = along(x.clone(), if max { ReduceOp::Max } else { ReduceOp::Min })?;
    let is_other = x.clone().equal(best).bool_not();
    let none = if last { -1.0 } else { length as f32 };
    let all: Image<B> = positions.clone().expand(form);
    let chosen = all.mask_fill(is_other, none);
    let position = along(chosen, if last { ReduceOp::Max } else { ReduceOp::Min })?;
    // The first position is 0: the product is 0, or NaN if the sum is not finite.
    let zero = positions.slice_dim(axis, 0..1usize);
    Some(position + along(x, ReduceOp::Sum)? * zero)
}

/// How the elements of an axis are combined.
#[derive(Clone, Copy)]
pub(super) enum Fold {
    Sum,
    Max,
    Min,
}

/// Largest number of elements folded at once. Longer axes are folded in parts: that gives more parallelism and more
/// accurate sums, and Mesa's software Vulkan silently ends loops after 65,535 iterations.
const MAX_LOOP_LENGTH: usize = 2048;

/// Folds the middle axis of `[outer, length, inner]` to length 1.
pub(super) fn folded<B: Backend>(x: Tensor<B, 3>, fold: Fold) -> Tensor<B, 3> {
    fn one<B: Backend, const D: usize>(x: Tensor<B, D>, axis: usize, fold: Fold) -> Tensor<B, D> {
        match fold {
            Fold::Sum => x.sum_dim(axis),
            Fold::Max => x.max_dim(axis),
            Fold::Min => x.min_dim(axis),
        }
    }
    let [outer, length, inner] = x.dims();
    if length <= MAX_LOOP_LENGTH {
        if inner == 1 {
            return one(x.reshape([outer, length]), 1, fold).reshape([outer, 1, 1]);
        }
        return one(x, 1, fold);
    }
    if let Some(each) = (64..=MAX_LOOP_LENGTH).rev().find(|n| length.is_multiple_of(*n)) {
        let parts = length / each;
        let parted: Tensor<B, 3> = if inner == 1 {
            one(x.reshape([outer, parts, each]), 2, fold)
        } else {
            one(x.reshape([outer, parts, each, inner]), 2, fold).reshape([outer, parts, inner])
        };
        return folded(parted, fold);
    }
    let looped_len = length / MAX_LOOP_LENGTH * MAX_LOOP_LENGTH;
    let (a, b) = (x.clone().slice_dim(1, 0..looped_len), x.slice_dim(1, looped_len..length));
    let (a, b) = (folded(a, fold), folded(b, fold));
    match fold {
        Fold::Sum => a + b,
        Fold::Max => extreme(a, b, true),
        Fold::Min => extreme(a, b, false),
    }
}

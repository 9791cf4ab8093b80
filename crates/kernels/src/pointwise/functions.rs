//! Functions of one element, without branches that keep the compiler from using vector instructions.

/// Returns `e^x` by range reduction to ±ln 2 / 2 and a polynomial of degree 6; the relative error is below 2e-7.
#[inline(always)]
pub(super) fn exp(x: f32) -> f32 {
    let x = x.clamp(-87.0, 88.0);
    let n = (x * std::f32::consts::LOG2_E).round_ties_even();
    let r = n.mul_add(-0.693_145_75, x);
    let r = n.mul_add(-1.428_606_8e-6, r);
    let mut p = 1.0 / 720.0f32;
    for c in [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p.mul_add(r, c);
    }
    // Multiply by 2^n; n is an integer in -126..=127 after the clamp.
    p * f32::from_bits((((n as i32) + 127) as u32) << 23)
}

/// Returns `e^x - 1` as [`exp`] does; near 0, too, the relative error is below 2e-7.
#[inline(always)]
pub(super) fn exp_m1(x: f32) -> f32 {
    let x = x.clamp(-87.0, 88.0);
    let n = (x * std::f32::consts::LOG2_E).round_ties_even();
    let r = n.mul_add(-0.693_145_75, x);
    let r = n.mul_add(-1.428_606_8e-6, r);
    let mut p = 1.0 / 5040.0f32;
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0] {
        p = p.mul_add(r, c);
    }
    let power = f32::from_bits((((n as i32) + 127) as u32) << 23);
    power.mul_add(p * r, power - 1.0)
}

/// Returns `x · p(x²) / q(x²)` for polynomials with these coefficients, that of the highest power first.
#[inline(always)]
fn odd_ratio<const P: usize, const Q: usize>(x: f32, p: [f32; P], q: [f32; Q]) -> f32 {
    let square = x * x;
    let at = |of: &[f32]| of.iter().fold(0.0f32, |sum, c| sum.mul_add(square, *c));
    x * at(&p) / at(&q)
}

/// Returns `tanh(x)` as the ratio of polynomials that Eigen uses; the relative error is below 3e-7.
#[inline(always)]
pub(super) fn tanh(x: f32) -> f32 {
    let p = [
        -2.760_768_4e-16,
        2.000_188e-13,
        -8.604_672e-11,
        5.122_297_3e-8,
        1.485_722_35e-5,
        6.372_619_5e-4,
        4.893_524_6e-3,
    ];
    let q = [1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_7e-3, 4.893_525e-3];
    if x.abs() < 7.905_311 { odd_ratio(x, p, q) } else { x.clamp(-1.0, 1.0) }
}

/// Returns the error function as the ratio of polynomials that Eigen uses; the relative error is below 4e-7.
#[inline(always)]
pub(super) fn erf(x: f32) -> f32 {
    let p = [
        -2.726_142_4e-10,
        2.770_681_5e-8,
        -2.101_024e-6,
        -5.692_506_2e-5,
        -7.349_906_4e-4,
        -2.954_6e-3,
        -1.609_603_3e-2,
    ];
    let q = [-1.456_607_15e-5, -2.133_740_5e-4, -1.682_827e-3, -7.373_329_3e-3, -1.426_473_9e-2];
    if x.abs() < 4.0 { odd_ratio(x, p, q) } else { x.clamp(-1.0, 1.0) }
}

/// Returns `ln(1 + e^x)`; the logarithm of 1 + t is the series of 2 · artanh(t / (2 + t)) for t in 0 to 1.
#[inline(always)]
pub(super) fn softplus(x: f32) -> f32 {
    let t = exp(-x.abs());
    let s = t / (2.0 + t);
    let square = s * s;
    let mut p = 1.0 / 13.0f32;
    for c in [1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0] {
        p = p.mul_add(square, c);
    }
    let small = 2.0 * s * p;
    if x > 0.0 { x + small } else { small }
}

/// Below this, [`exp`] is constant.
const VANISHING: f32 = -87.0;

/// Returns `x / (1 + e^-x)`; the second factor of `x · sigmoid(x)` is 0 below [`VANISHING`], so that -∞ becomes NaN.
#[inline(always)]
pub(super) fn silu(x: f32) -> f32 {
    if x < VANISHING { x * 0.0 } else { x / (1.0 + exp(-x)) }
}

/// Returns `x · tanh(ln(1 + e^x))`, where the second factor is a ratio of polynomials in e^x; it is 1 from 20 on, and 0 below
/// [`VANISHING`], so that -∞ becomes NaN.
#[inline(always)]
pub(super) fn mish(x: f32) -> f32 {
    let e = exp(if x > 20.0 { 20.0 } else { x });
    let n = e * (e + 2.0);
    let factor = n / (n + 2.0);
    x * if x < VANISHING { 0.0 } else { factor }
}

/// Returns the value, or the limit that it exceeds; `high` if the limits cross. NaN stays NaN.
#[inline(always)]
pub(super) fn bounded(x: f32, low: f32, high: f32) -> f32 {
    let raised = if x < low { low } else { x };
    if raised > high { high } else { raised }
}

#[cfg(test)]
mod tests {
    use super::{exp, mish, silu};

    #[test]
    fn exp_is_accurate_over_its_range() {
        for i in -8700..8700 {
            let x = i as f32 / 100.0;
            let (got, want) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((got - want).abs() <= 3e-7 * want, "exp({x}) = {got}, expected {want}");
        }
    }

    #[test]
    fn silu_and_mish_vanish_far_below_zero() {
        for x in [-80.0f32, -87.0, -88.0, -200.0, -1e30, -1e38, f32::MIN] {
            let wide = f64::from(x);
            let (by_sigmoid, by_softplus) = (wide / (1.0 + (-wide).exp()), wide * wide.exp().ln_1p().tanh());
            for (got, want) in [(silu(x), by_sigmoid), (mish(x), by_softplus)] {
                assert!((f64::from(got) - want).abs() <= 1e-5 * want.abs() + 2e-36, "{x}: {got}, expected {want}");
            }
        }
        // -∞ · 0
        assert!(silu(f32::NEG_INFINITY).is_nan() && mish(f32::NEG_INFINITY).is_nan());
        assert!(silu(f32::NAN).is_nan() && mish(f32::NAN).is_nan());
    }
}

//! Element-wise arithmetic on blocked buffers.

use crate::parallel::{Shared, for_each, multiversion};
use crate::{Blocked, Isa, KernelError, check_len, same_image};

/// An element-wise function of one operand.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Unary {
    /// `x` where positive, else `slope · x`.
    Leaky {
        /// Slope of the negative side; 0 is ReLU.
        slope: f32,
    },
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `x · sigmoid(x)`.
    Silu,
    /// `x / (1 + |x|)`.
    Softsign,
    /// `x` clamped to `min..=max`.
    Clip {
        /// Lower limit.
        min: f32,
        /// Upper limit.
        max: f32,
    },
    /// `x · gain + offset`.
    Affine {
        /// Factor.
        gain: f32,
        /// Added after scaling.
        offset: f32,
    },
    /// `clamp(round(x / scale), low, high) · scale`, halves to even.
    FakeQuantize {
        /// Size of a quantization step.
        scale: f32,
        /// Smallest integer.
        low: f32,
        /// Largest integer.
        high: f32,
    },
    /// `|x|`.
    Abs,
    /// `-x`.
    Neg,
}

/// An element-wise function of two operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binary {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a · b`
    Mul,
    /// `a / b`
    Div,
    /// `max(a, b)`
    Max,
    /// `min(a, b)`
    Min,
}

/// Computes `output = f(input)`. Borders are not changed.
///
/// # Errors
/// [`KernelError`] if the buffers and layouts do not fit.
pub fn unary(
    isa: Isa,
    f: Unary,
    input: &[f32],
    in_layout: &Blocked,
    output: &mut [f32],
    out_layout: &Blocked,
) -> Result<(), KernelError> {
    check_len("input", input.len(), in_layout.len())?;
    check_len("output", output.len(), out_layout.len())?;
    same_image(in_layout, out_layout)?;
    rows(output, out_layout, |b, d, h, out| {
        let at = in_layout.row_start(b, d, h);
        out.copy_from_slice(&input[at..at + out.len()]);
        unary_row(isa, f, out);
    });
    Ok(())
}

/// Computes `values = f(values)`. The border is not changed.
///
/// # Errors
/// [`KernelError`] if the buffer does not fit the layout.
pub fn unary_in_place(isa: Isa, f: Unary, values: &mut [f32], layout: &Blocked) -> Result<(), KernelError> {
    check_len("values", values.len(), layout.len())?;
    rows(values, layout, |_, _, _, out| unary_row(isa, f, out));
    Ok(())
}

/// Computes `output = f(a, b)`. Borders are not changed.
///
/// # Errors
/// [`KernelError`] if the buffers and layouts do not fit.
pub fn binary(
    isa: Isa,
    f: Binary,
    a: (&[f32], &Blocked),
    b: (&[f32], &Blocked),
    output: &mut [f32],
    out_layout: &Blocked,
) -> Result<(), KernelError> {
    check_len("first input", a.0.len(), a.1.len())?;
    check_len("second input", b.0.len(), b.1.len())?;
    check_len("output", output.len(), out_layout.len())?;
    same_image(a.1, out_layout)?;
    same_image(b.1, out_layout)?;
    rows(output, out_layout, |block, d, h, out| {
        let (at_a, at_b) = (a.1.row_start(block, d, h), b.1.row_start(block, d, h));
        out.copy_from_slice(&a.0[at_a..at_a + out.len()]);
        binary_row(isa, f, out, &b.0[at_b..at_b + out.len()]);
    });
    Ok(())
}

/// Copies an image into another layout with the same channels. The border is not changed.
///
/// # Errors
/// [`KernelError`] if the buffers do not fit or the block sizes differ.
pub fn copy<T: Copy + Send + Sync>(
    input: &[T],
    in_layout: &Blocked,
    output: &mut [T],
    out_layout: &Blocked,
) -> Result<(), KernelError> {
    check_len("input", input.len(), in_layout.len())?;
    check_len("output", output.len(), out_layout.len())?;
    same_image(in_layout, out_layout)?;
    rows(output, out_layout, |b, d, h, out| {
        let at = in_layout.row_start(b, d, h);
        out.copy_from_slice(&input[at..at + out.len()]);
    });
    Ok(())
}

/// Copies bytes into another layout with the same channels, mapping each through `table`. The border is not changed.
///
/// # Errors
/// As [`copy`].
pub fn translate(
    input: &[u8],
    in_layout: &Blocked,
    table: &[u8; 256],
    output: &mut [u8],
    out_layout: &Blocked,
) -> Result<(), KernelError> {
    check_len("input", input.len(), in_layout.len())?;
    check_len("output", output.len(), out_layout.len())?;
    same_image(in_layout, out_layout)?;
    rows(output, out_layout, |b, d, h, out| {
        let at = in_layout.row_start(b, d, h);
        let row = &input[at..at + out.len()];
        out.iter_mut().zip(row).for_each(|(o, i)| *o = table[usize::from(*i)]);
    });
    Ok(())
}

/// [`translate`] in place.
///
/// # Errors
/// [`KernelError`] if the buffer does not fit the layout.
pub fn translate_in_place(table: &[u8; 256], values: &mut [u8], layout: &Blocked) -> Result<(), KernelError> {
    check_len("values", values.len(), layout.len())?;
    rows(values, layout, |_, _, _, row| row.iter_mut().for_each(|v| *v = table[usize::from(*v)]));
    Ok(())
}

/// Calls `f(block, d, h, row)` for every row of an image, in parallel over slices.
pub(crate) fn rows<T: Send>(
    values: &mut [T],
    layout: &Blocked,
    f: impl Fn(usize, usize, usize, &mut [T]) + Sync + Send,
) {
    let [depth, height, _] = layout.dims;
    let shared = Shared::new(values);
    for_each(layout.blocks() * depth, |task| {
        let (b, d) = (task / depth, task % depth);
        for h in 0..height {
            // SAFETY: each task has its own slice and block and so writes its own rows; `Shared::slice` checks the
            // bounds.
            f(b, d, h, unsafe { shared.slice(layout.row_start(b, d, h), layout.row_len()) });
        }
    });
}

/// Returns `e^x` by range reduction to ±ln 2 / 2 and a polynomial of degree 6; the relative error is below 2e-7.
#[inline(always)]
fn exp(x: f32) -> f32 {
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

multiversion! {
    fn unary_row(f: Unary, row: &mut [f32]) {
        match f {
            Unary::Leaky { slope } => row.iter_mut().for_each(|x| *x = if *x < 0.0 { *x * slope } else { *x }),
            Unary::Sigmoid => row.iter_mut().for_each(|x| *x = 1.0 / (1.0 + exp(-*x))),
            Unary::Silu => row.iter_mut().for_each(|x| *x /= 1.0 + exp(-*x)),
            Unary::Softsign => row.iter_mut().for_each(|x| *x /= 1.0 + x.abs()),
            Unary::Clip { min, max } => row.iter_mut().for_each(|x| *x = x.max(min).min(max)),
            Unary::Affine { gain, offset } => row.iter_mut().for_each(|x| *x = x.mul_add(gain, offset)),
            Unary::FakeQuantize { scale, low, high } => {
                row.iter_mut().for_each(|x| *x = (*x / scale).round_ties_even().max(low).min(high) * scale);
            }
            Unary::Abs => row.iter_mut().for_each(|x| *x = x.abs()),
            Unary::Neg => row.iter_mut().for_each(|x| *x = -*x),
        }
    }
}

multiversion! {
    fn binary_row(f: Binary, a: &mut [f32], b: &[f32]) {
        let pairs = a.iter_mut().zip(b);
        match f {
            Binary::Add => pairs.for_each(|(a, b)| *a += b),
            Binary::Sub => pairs.for_each(|(a, b)| *a -= b),
            Binary::Mul => pairs.for_each(|(a, b)| *a *= b),
            Binary::Div => pairs.for_each(|(a, b)| *a /= b),
            Binary::Max => pairs.for_each(|(a, b)| *a = a.max(*b)),
            Binary::Min => pairs.for_each(|(a, b)| *a = a.min(*b)),
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn exp_is_accurate_over_its_range() {
        for i in -8700..8700 {
            let x = i as f32 / 100.0;
            let (got, want) = (f64::from(super::exp(x)), f64::from(x).exp());
            assert!((got - want).abs() <= 3e-7 * want, "exp({x}) = {got}, expected {want}");
        }
    }
}

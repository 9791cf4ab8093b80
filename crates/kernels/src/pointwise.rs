//! Element-wise arithmetic on blocked buffers.

mod functions;

use crate::parallel::{for_each_row, multiversion};
use crate::{Blocked, Isa, KernelError, check_len, same_image};
use functions::{bounded, erf, exp, exp_m1, mish, silu, softplus, tanh};

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
    /// `x` where not negative, else `alpha · (e^x - 1)`.
    Elu {
        /// Negative of the limit at -∞.
        alpha: f32,
    },
    /// `max(0, x) + min(0, alpha · (e^(x / alpha) - 1))`.
    Celu {
        /// Negative of the limit at -∞.
        alpha: f32,
    },
    /// `gamma · x` where positive, else `gamma · alpha · (e^x - 1)`.
    Selu {
        /// Negative of the limit at -∞, divided by `gamma`.
        alpha: f32,
        /// Slope of the positive side.
        gamma: f32,
    },
    /// `x · (1 + erf(x / √2)) / 2`.
    Gelu,
    /// `x · (1 + tanh(√(2 / π) · (x + 0.044715 · x³))) / 2`.
    GeluTanh,
    /// `clamp(alpha · x + beta, 0, 1)`.
    HardSigmoid {
        /// Factor.
        alpha: f32,
        /// Added after scaling.
        beta: f32,
    },
    /// `x · clamp(x / 6 + 1 / 2, 0, 1)`.
    HardSwish,
    /// `x · tanh(ln(1 + e^x))`.
    Mish,
    /// `tanh(x)`.
    Tanh,
    /// `ln(1 + e^x)`.
    Softplus,
    /// `x` where greater than `alpha`, else 0.
    Threshold {
        /// Greatest value that becomes 0.
        alpha: f32,
    },
    /// The error function.
    Erf,
    /// `x` clamped to `min..=max`; `max` if the limits cross. NaN stays NaN.
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
    /// `clamp(round(x / scale), low, high) · scale`, halves to even. NaN stays NaN.
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
    /// `max(a, b)`; NaN if one of them is NaN.
    Max,
    /// `min(a, b)`; NaN if one of them is NaN.
    Min,
}

/// Computes `output = f(input)`. Borders are not changed; unused channels are 0, also if `f(0)` is not.
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
    let clears = changes_zero(isa, f);
    for_each_row(output, out_layout, |b, d, h, out| {
        let at = in_layout.row_start(b, d, h);
        out.copy_from_slice(&input[at..at + out.len()]);
        unary_row(isa, f, out);
        if clears {
            clear_unused(out_layout, b, out);
        }
    });
    Ok(())
}

/// Computes `values = f(values)`. The border is not changed; unused channels are 0, also if `f(0)` is not.
///
/// # Errors
/// [`KernelError`] if the buffer does not fit the layout.
pub fn unary_in_place(isa: Isa, f: Unary, values: &mut [f32], layout: &Blocked) -> Result<(), KernelError> {
    check_len("values", values.len(), layout.len())?;
    let clears = changes_zero(isa, f);
    for_each_row(values, layout, |b, _, _, out| {
        unary_row(isa, f, out);
        if clears {
            clear_unused(layout, b, out);
        }
    });
    Ok(())
}

/// Returns whether a function of 0 is not 0.
fn changes_zero(isa: Isa, f: Unary) -> bool {
    let mut value = 0.0f32;
    unary_row(isa, f, std::slice::from_mut(&mut value));
    value != 0.0
}

/// Sets the unused channels in a row of channel block `b` to 0; only the last block can have any.
fn clear_unused(layout: &Blocked, b: usize, row: &mut [f32]) {
    let used = layout.channels.saturating_sub(b * layout.block);
    if used < layout.block {
        row.chunks_exact_mut(layout.block).for_each(|voxel| voxel[used..].fill(0.0));
    }
}

/// Computes `output = f(a, b)`. Borders are not changed; unused channels are 0.
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
    for_each_row(output, out_layout, |block, d, h, out| {
        let (at_a, at_b) = (a.1.row_start(block, d, h), b.1.row_start(block, d, h));
        out.copy_from_slice(&a.0[at_a..at_a + out.len()]);
        binary_row(isa, f, out, &b.0[at_b..at_b + out.len()]);
        // There, 0 was divided by 0.
        if f == Binary::Div {
            clear_unused(out_layout, block, out);
        }
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
    for_each_row(output, out_layout, |b, d, h, out| {
        let at = in_layout.row_start(b, d, h);
        out.copy_from_slice(&input[at..at + out.len()]);
    });
    Ok(())
}

/// Copies bytes into another layout with the same channels, mapping each through `table`, also those of unused channels. The
/// border is not changed.
///
/// # Errors
/// Same as [`copy`].
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
    for_each_row(output, out_layout, |b, d, h, out| {
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
    for_each_row(values, layout, |_, _, _, row| row.iter_mut().for_each(|v| *v = table[usize::from(*v)]));
    Ok(())
}

/// Dequantizes bytes: `(byte − zero_point) · scale`, which is exactly 0 for the zero point, so that comparisons with 0 hold.
/// Borders are not changed; unused channels are 0.
///
/// # Errors
/// [`KernelError`] if the buffers and layouts do not fit.
pub fn dequantize(
    isa: Isa,
    bytes: (&[u8], &Blocked),
    scale: f32,
    zero_point: u8,
    output: &mut [f32],
    out_layout: &Blocked,
) -> Result<(), KernelError> {
    check_len("bytes", bytes.0.len(), bytes.1.len())?;
    check_len("output", output.len(), out_layout.len())?;
    same_image(bytes.1, out_layout)?;
    let zero = f32::from(zero_point);
    for_each_row(output, out_layout, |b, d, h, out| {
        let at = bytes.1.row_start(b, d, h);
        dequantize_row(isa, &bytes.0[at..at + out.len()], scale, zero, out);
        clear_unused(out_layout, b, out);
    });
    Ok(())
}

multiversion! {
    fn dequantize_row(bytes: &[u8], scale: f32, zero: f32, row: &mut [f32]) {
        for (v, q) in row.iter_mut().zip(bytes) {
            *v = (f32::from(*q) - zero) * scale;
        }
    }
}

multiversion! {
    fn unary_row(f: Unary, row: &mut [f32]) {
        match f {
            // -∞ · 0 would be NaN.
            Unary::Leaky { slope: 0.0 } => row.iter_mut().for_each(|x| *x = if *x < 0.0 { 0.0 } else { *x }),
            Unary::Leaky { slope } => row.iter_mut().for_each(|x| *x = if *x < 0.0 { *x * slope } else { *x }),
            Unary::Sigmoid => row.iter_mut().for_each(|x| *x = 1.0 / (1.0 + exp(-*x))),
            Unary::Silu => row.iter_mut().for_each(|x| *x = silu(*x)),
            Unary::Softsign => row.iter_mut().for_each(|x| *x /= 1.0 + x.abs()),
            Unary::Elu { alpha } => {
                row.iter_mut().for_each(|x| *x = if *x < 0.0 { alpha * exp_m1(*x) } else { *x });
            }
            Unary::Celu { alpha } => {
                let inverse = 1.0 / alpha;
                row.iter_mut().for_each(|x| *x = if *x < 0.0 { alpha * exp_m1(*x * inverse) } else { *x });
            }
            Unary::Selu { alpha, gamma } => {
                let low = gamma * alpha;
                row.iter_mut().for_each(|x| *x = if *x < 0.0 { low * exp_m1(*x) } else { *x * gamma });
            }
            Unary::Gelu => {
                row.iter_mut().for_each(|x| *x *= 0.5 * erf(*x * std::f32::consts::FRAC_1_SQRT_2) + 0.5);
            }
            Unary::GeluTanh => row.iter_mut().for_each(|x| {
                let cubic = (*x * *x).mul_add(0.044_715 * *x, *x);
                *x *= 0.5 * tanh(0.797_884_6 * cubic) + 0.5;
            }),
            Unary::HardSigmoid { alpha, beta } => {
                row.iter_mut().for_each(|x| *x = x.mul_add(alpha, beta).clamp(0.0, 1.0));
            }
            Unary::HardSwish => {
                row.iter_mut().for_each(|x| *x *= x.mul_add(1.0 / 6.0, 0.5).clamp(0.0, 1.0));
            }
            Unary::Mish => row.iter_mut().for_each(|x| *x = mish(*x)),
            Unary::Tanh => row.iter_mut().for_each(|x| *x = tanh(*x)),
            Unary::Softplus => row.iter_mut().for_each(|x| *x = softplus(*x)),
            Unary::Threshold { alpha } => row.iter_mut().for_each(|x| *x = if *x > alpha { *x } else { 0.0 }),
            Unary::Erf => row.iter_mut().for_each(|x| *x = erf(*x)),
            Unary::Clip { min, max } => row.iter_mut().for_each(|x| *x = bounded(*x, min, max)),
            Unary::Affine { gain, offset } => row.iter_mut().for_each(|x| *x = x.mul_add(gain, offset)),
            Unary::FakeQuantize { scale, low, high } => {
                row.iter_mut().for_each(|x| *x = bounded((*x / scale).round_ties_even(), low, high) * scale);
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
            // Of NaN and a number, `f32::max` and `f32::min` return the number.
            Binary::Max => pairs.for_each(|(a, b)| *a = if *b > *a || b.is_nan() { *b } else { *a }),
            Binary::Min => pairs.for_each(|(a, b)| *a = if *b < *a || b.is_nan() { *b } else { *a }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Binary, Unary, binary, binary_row, dequantize, unary, unary_in_place, unary_row};
    use crate::{Blocked, Isa, KernelError, reorder};

    /// Activations of -30, -4.5, -2, -0.001, 0.5, 3 and 40, computed in double precision.
    const ACTIVATIONS: [(Unary, [f64; 7]); 12] = [
        (Unary::Elu { alpha: 0.5 }, [-0.5, -0.494_445_501_7, -0.432_332_358_4, -0.000_499_750_107, 0.5, 3.0, 40.0]),
        (
            Unary::Celu { alpha: 2.0 },
            [-1.999_999_388, -1.789_201_551, -1.264_241_118, -0.000_999_750_089_1, 0.5, 3.0, 40.0],
        ),
        (
            Unary::Selu { alpha: 1.5, gamma: 1.25 },
            [-1.875, -1.854_170_631, -1.621_246_344, -0.001_874_062_901, 0.625, 3.75, 50.0],
        ),
        (
            Unary::Gelu,
            [0.0, -1.528_952_906e-5, -0.045_500_263_9, -0.000_499_601_081_5, 0.345_731_230_6, 2.995_950_306, 40.0],
        ),
        (
            Unary::GeluTanh,
            [0.0, -5.136_737_412e-6, -0.045_402_305_91, -0.000_499_601_081_5, 0.345_714_009_8, 2.996_362_608, 40.0],
        ),
        (Unary::HardSigmoid { alpha: 0.25, beta: 0.5 }, [0.0, 0.0, 0.0, 0.49975, 0.625, 1.0, 1.0]),
        (Unary::HardSwish, [0.0, 0.0, -0.333_333_333_3, -0.000_499_833_357_1, 0.291_666_666_7, 3.0, 40.0]),
        (
            Unary::Mish,
            [
                -2.807_286_891e-12,
                -0.049_712_829_31,
                -0.252_501_482_7,
                -0.000_599_680_012_5,
                0.375_245_211_3,
                2.986_535_005,
                40.0,
            ],
        ),
        (
            Unary::Tanh,
            [-1.0, -0.999_753_210_8, -0.964_027_580_1, -0.000_999_999_714_2, 0.462_117_157_3, 0.995_054_753_7, 1.0],
        ),
        (
            Unary::Softplus,
            [9.357_622_969e-14, 0.011_047_744_85, 0.126_928_011, 0.692_647_305_5, 0.974_076_984_2, 3.048_587_352, 40.0],
        ),
        (Unary::Threshold { alpha: 1.0 }, [0.0, 0.0, 0.0, 0.0, 0.0, 3.0, 40.0]),
        (
            Unary::Erf,
            [-1.0, -0.999_999_999_8, -0.995_322_265, -0.001_128_378_845, 0.520_499_877_8, 0.999_977_909_5, 1.0],
        ),
    ];

    #[test]
    fn activations_are_accurate_near_zero_and_far_from_it() {
        for (f, wanted) in ACTIVATIONS {
            let mut row = [-30.0, -4.5, -2.0, -0.001, 0.5, 3.0, 40.0];
            unary_row(Isa::detect(), f, &mut row);
            for (got, want) in row.into_iter().zip(wanted) {
                let error = (f64::from(got) - want).abs();
                assert!(error <= 5e-7 * want.abs() + 5e-7, "{f:?}: {got}, expected {want}");
            }
        }
    }

    #[test]
    fn relu_of_negative_infinity_is_zero() {
        let mut row = [f32::NEG_INFINITY, -1.0, 2.0, f32::INFINITY, f32::NAN];
        unary_row(Isa::detect(), Unary::Leaky { slope: 0.0 }, &mut row);
        assert_eq!(row[..4], [0.0, 0.0, 2.0, f32::INFINITY]);
        assert!(row[4].is_nan());
    }

    /// An overflow in a network must reach its output, where it is detected. `Threshold` is 0 there, as in ONNX.
    #[test]
    fn nan_stays_nan() {
        let others = [
            Unary::Leaky { slope: 0.0 },
            Unary::Leaky { slope: 0.2 },
            Unary::Sigmoid,
            Unary::Silu,
            Unary::Softsign,
            Unary::Clip { min: 0.0, max: 6.0 },
            Unary::Affine { gain: 2.0, offset: 1.0 },
            Unary::FakeQuantize { scale: 0.25, low: -3.0, high: 4.0 },
            Unary::Abs,
            Unary::Neg,
        ];
        let accurate = ACTIVATIONS.map(|(f, _)| f).into_iter().filter(|f| !matches!(f, Unary::Threshold { .. }));
        for f in accurate.chain(others) {
            let mut row = [f32::NAN; 17];
            unary_row(Isa::detect(), f, &mut row);
            assert!(row.iter().all(|v| v.is_nan()), "{f:?}: {row:?}");
        }
        for f in [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Max, Binary::Min] {
            for (a, b) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
                let mut row = [a; 17];
                binary_row(Isa::detect(), f, &mut row, &[b; 17]);
                assert!(row.iter().all(|v| v.is_nan()), "{f:?} of {a} and {b}: {row:?}");
            }
        }
    }

    #[test]
    fn the_upper_limit_applies_if_the_limits_cross() {
        let mut row = [-1.0, 1.5, 3.0];
        unary_row(Isa::detect(), Unary::Clip { min: 2.0, max: 1.0 }, &mut row);
        assert_eq!(row, [1.0; 3]);
    }

    /// Kernels multiply unused channels by weights of 0, which gives NaN if they hold NaN or infinities.
    #[test]
    fn unused_channels_stay_zero() -> Result<(), KernelError> {
        // The second block has two channels.
        let (isa, layout) = (Isa::detect(), Blocked::new(18, [1, 2, 3], [0, 1, 0], 16));
        let packed = |dense: &[f32]| {
            let mut blocked = vec![0.0; layout.len()];
            reorder::pack(dense, &layout, 0.0, &mut blocked).map(|()| blocked)
        };
        let is_clear = |blocked: &[f32]| {
            let mut dense = vec![0.0; layout.channels * layout.voxels()];
            reorder::unpack(blocked, &layout, &mut dense)?;
            Ok::<bool, KernelError>(packed(&dense)? == blocked)
        };
        let x = packed(&[-0.5; 18 * 6])?;
        let others = [
            Unary::Sigmoid,
            Unary::HardSigmoid { alpha: 0.2, beta: 0.5 },
            Unary::Clip { min: 1.0, max: 2.0 },
            Unary::Affine { gain: 1.0, offset: f32::INFINITY },
        ];
        for f in ACTIVATIONS.map(|(f, _)| f).into_iter().chain(others) {
            let mut y = packed(&[0.0; 18 * 6])?;
            unary(isa, f, &x, &layout, &mut y, &layout)?;
            assert!(is_clear(&y)?, "{f:?}: {y:?}");
            let mut values = x.clone();
            unary_in_place(isa, f, &mut values, &layout)?;
            assert!(values == y, "{f:?} in place");
        }
        for f in [Binary::Add, Binary::Sub, Binary::Mul, Binary::Div, Binary::Max, Binary::Min] {
            let mut y = packed(&[0.0; 18 * 6])?;
            binary(isa, f, (&x, &layout), (&x, &layout), &mut y, &layout)?;
            assert!(is_clear(&y)?, "{f:?}: {y:?}");
        }
        Ok(())
    }

    #[test]
    fn the_zero_point_is_dequantized_to_exactly_zero() -> Result<(), KernelError> {
        // The product of this scale and zero point is rounded.
        let (scale, zero_point) = (0.013f32, 113u8);
        let layout = Blocked::new(18, [1, 2, 3], [0, 1, 0], 16);
        let dense: Vec<u8> = (0..18 * 6).map(|i| zero_point + i % 3).collect();
        // Unused channels may hold any byte.
        let mut bytes = vec![7u8; layout.len()];
        reorder::pack(&dense, &layout, 7, &mut bytes)?;
        let expected: Vec<f32> = dense.iter().map(|q| f32::from(q - zero_point) * scale).collect();
        let mut blocked = vec![0.0f32; layout.len()];
        reorder::pack(&expected, &layout, 0.0, &mut blocked)?;
        let mut found = vec![0.0f32; layout.len()];
        dequantize(Isa::detect(), (&bytes, &layout), scale, zero_point, &mut found, &layout)?;
        assert_eq!(found, blocked);
        Ok(())
    }
}

//! Gradients of normalizations (instance norm, training-mode batch norm) fused with the activation that follows: a pass
//! that computes sums, and a pass that applies them.

use super::pointwise::kept_where_positive;
use crate::conv::Activation;
use crate::lanes::{Lanes, with_lanes};
use crate::parallel::{Shared, for_each};
use crate::{Blocked, CHANNEL_BLOCK, Isa, KernelError, check_len, same_image};

/// Norm and activation applied to a convolution's output `x`: `activation(x · scale[c] + shift[c])`.
///
/// For a norm with weight `γ` and bias `β`, `scale = γ · inverse_deviation` and `shift = β − mean · scale`.
#[derive(Clone, Copy)]
pub struct Activated<'a> {
    /// Scale of each channel.
    pub scale: &'a [f32],
    /// Shift of each channel.
    pub shift: &'a [f32],
    /// Applied last; its derivative at 0 is that of the negative side.
    pub activation: Activation,
}

/// Coefficients, by channel, of the gradient of a norm's input: `g_factor · g + x_factor · x + constant`, where `g`
/// is the gradient before the activation.
#[derive(Debug, Clone, PartialEq)]
pub struct NormFactors {
    /// Coefficient of `g`.
    pub g_factor: Vec<f32>,
    /// Coefficient of `x`.
    pub x_factor: Vec<f32>,
    /// Constant that is added to every voxel.
    pub constant: Vec<f32>,
}

impl NormFactors {
    /// Computes the coefficients for a norm with weights `weight` over `count` voxels per channel, from the sums of
    /// [`norm_gradient_sums`]. For a batch norm, voxels and sums are those of all images.
    ///
    /// # Errors
    /// [`KernelError::Length`] if the channels differ.
    pub fn new(
        weight: &[f32],
        mean: &[f32],
        inverse_deviation: &[f32],
        sums: &[(f64, f64)],
        count: usize,
    ) -> Result<Self, KernelError> {
        check_len("means", mean.len(), weight.len())?;
        check_len("inverse deviations", inverse_deviation.len(), weight.len())?;
        check_len("sums", sums.len(), weight.len())?;
        let mut factors = Self { g_factor: Vec::new(), x_factor: Vec::new(), constant: Vec::new() };
        for c in 0..weight.len() {
            let (mean, inverse) = (f64::from(mean[c]), f64::from(inverse_deviation[c]));
            let gain = f64::from(weight[c]) * inverse;
            let (mean_g, mean_gx) = (sums[c].0 / count.max(1) as f64, sums[c].1 / count.max(1) as f64);
            factors.g_factor.push(gain as f32);
            factors.x_factor.push((-gain * inverse * mean_gx) as f32);
            factors.constant.push((gain * (inverse * mean * mean_gx - mean_g)) as f32);
        }
        Ok(factors)
    }
}

/// Computes the gradients of a norm's bias and weight: for each channel, the sums of `g` and of
/// `g · (x − mean) · inverse_deviation` over the voxels, where `g = gradient · activation'(x · scale + shift)`.
///
/// Rows are summed in `f32` lanes, the sums of rows in `f64` in a fixed order.
///
/// # Errors
/// [`KernelError`] if the buffers, layouts and channels do not fit.
#[allow(clippy::too_many_arguments)]
pub fn norm_gradient_sums(
    isa: Isa,
    input: &[f32],
    in_layout: &Blocked,
    gradient: &[f32],
    layout: &Blocked,
    after: &Activated<'_>,
    mean: &[f32],
    inverse_deviation: &[f32],
) -> Result<Vec<(f64, f64)>, KernelError> {
    check(input, in_layout, gradient, layout)?;
    check_len("inverse deviations", inverse_deviation.len(), layout.channels)?;
    let [scale, shift, mean] = [lanes(after.scale, layout)?, lanes(after.shift, layout)?, lanes(mean, layout)?];
    let [depth, height, _] = layout.dims;
    let mut partial = vec![[0.0f64; 2 * CHANNEL_BLOCK]; layout.blocks() * depth];
    let shared = Shared::new(&mut partial);
    for_each(layout.blocks() * depth, |task| {
        let (b, d) = (task / depth, task % depth);
        // SAFETY: each task has its own sums; `Shared::slice` checks the bounds.
        let own = unsafe { shared.slice(task, 1) };
        for h in 0..height {
            let from = Sources {
                len: layout.row_len(),
                input: input[in_layout.row_start(b, d, h)..].as_ptr(),
                gradient: gradient[layout.row_start(b, d, h)..].as_ptr(),
                scale: &scale[b],
                shift: &shift[b],
                slope: after.activation.slope(),
            };
            // SAFETY: `check` ensures that input and gradient hold all rows of the layout, so both pointers reach
            // `from.len` values.
            let sums = unsafe { sum_row(isa, &from, &mean[b]) };
            own[0].iter_mut().zip(sums).for_each(|(t, s)| *t += f64::from(s));
        }
    });
    Ok((0..layout.channels)
        .map(|c| {
            let (b, lane) = (c / layout.block, c % layout.block);
            let total = |at: usize| -> f64 {
                let own = partial[b * depth..(b + 1) * depth].iter();
                if layout.block == 1 {
                    own.map(|s| s[at..at + CHANNEL_BLOCK].iter().sum::<f64>()).sum()
                } else {
                    own.map(|s| s[at + lane]).sum()
                }
            };
            (total(0), total(CHANNEL_BLOCK) * f64::from(inverse_deviation[c]))
        })
        .collect())
}

/// Computes the gradient of a norm's input by applying `factors` to `g = gradient · activation'(x · scale + shift)` and
/// `x`. The result is added to `in_gradient` if `accumulate`, else written there.
///
/// # Errors
/// [`KernelError`] if the buffers, layouts and channels do not fit.
#[allow(clippy::too_many_arguments)]
pub fn norm_gradient(
    isa: Isa,
    input: &[f32],
    in_layout: &Blocked,
    gradient: &[f32],
    layout: &Blocked,
    after: &Activated<'_>,
    factors: &NormFactors,
    accumulate: bool,
    in_gradient: &mut [f32],
    in_gradient_layout: &Blocked,
) -> Result<(), KernelError> {
    check(input, in_layout, gradient, layout)?;
    check_len("gradient of the input", in_gradient.len(), in_gradient_layout.len())?;
    same_image(in_gradient_layout, layout)?;
    let [scale, shift] = [lanes(after.scale, layout)?, lanes(after.shift, layout)?];
    let [g_factor, x_factor, constant] =
        [lanes(&factors.g_factor, layout)?, lanes(&factors.x_factor, layout)?, lanes(&factors.constant, layout)?];
    let target = Shared::new(in_gradient);
    let [depth, height, _] = layout.dims;
    let len = layout.row_len();
    for_each(layout.blocks() * depth, |task| {
        let (b, d) = (task / depth, task % depth);
        for h in 0..height {
            let from = Sources {
                len,
                input: input[in_layout.row_start(b, d, h)..].as_ptr(),
                gradient: gradient[layout.row_start(b, d, h)..].as_ptr(),
                scale: &scale[b],
                shift: &shift[b],
                slope: after.activation.slope(),
            };
            let to = Targets {
                factors: [&g_factor[b], &x_factor[b], &constant[b]],
                values: target.pointer(in_gradient_layout.row_start(b, d, h), len),
                accumulate,
            };
            // SAFETY: `check` ensures that input and gradient hold all rows, `pointer` checked the target, and each
            // task writes its own rows.
            unsafe { apply_row(isa, &from, &to) };
        }
    });
    Ok(())
}

fn check(input: &[f32], in_layout: &Blocked, gradient: &[f32], layout: &Blocked) -> Result<(), KernelError> {
    check_len("input", input.len(), in_layout.len())?;
    check_len("gradient", gradient.len(), layout.len())?;
    same_image(in_layout, layout)?;
    crate::check_that(matches!(layout.block, 1 | CHANNEL_BLOCK), "block of floats", "1 or 16", layout.block)
}

/// Returns values by channel as lanes of each block; planes repeat their channel's value.
fn lanes(values: &[f32], layout: &Blocked) -> Result<Vec<[f32; CHANNEL_BLOCK]>, KernelError> {
    check_len("values by channel", values.len(), layout.channels)?;
    let of = |b: usize, i: usize| if layout.block == 1 { b } else { b * layout.block + i };
    Ok((0..layout.blocks()).map(|b| std::array::from_fn(|i| values.get(of(b, i)).copied().unwrap_or(0.0))).collect())
}

/// Inputs of one row.
struct Sources<'a> {
    len: usize,
    input: *const f32,
    gradient: *const f32,
    scale: &'a [f32; CHANNEL_BLOCK],
    shift: &'a [f32; CHANNEL_BLOCK],
    slope: f32,
}

/// Output of one row.
struct Targets<'a> {
    factors: [&'a [f32; CHANNEL_BLOCK]; 3],
    values: *mut f32,
    accumulate: bool,
}

/// Loads up to 16 values; those past `left` are 0.
///
/// # Safety
/// The CPU must support `L`, and `from` must reach `left` values, or 16 if there are more.
#[inline(always)]
pub(super) unsafe fn load<L: Lanes>(from: *const f32, left: usize) -> L {
    // SAFETY: the caller guarantees `left` readable values at `from` and a CPU that supports `L`; at most 16 values are
    // copied to `held`.
    unsafe {
        if left >= CHANNEL_BLOCK {
            return L::load(from);
        }
        let mut held = [0.0f32; CHANNEL_BLOCK];
        std::ptr::copy_nonoverlapping(from, held.as_mut_ptr(), left);
        L::load(held.as_ptr())
    }
}

/// Stores up to 16 values, or adds them to those at `to` if `accumulate`.
///
/// # Safety
/// The CPU must support `L`, and `to` must reach `left` values, or 16 if there are more.
#[inline(always)]
pub(super) unsafe fn store<L: Lanes>(values: L, to: *mut f32, left: usize, accumulate: bool) {
    // SAFETY: the caller guarantees `left` values at `to` and a CPU that supports `L`; fewer than 16 values are copied.
    unsafe {
        let values = if accumulate { values.add(load::<L>(to, left)) } else { values };
        if left >= CHANNEL_BLOCK {
            return values.store(to);
        }
        std::ptr::copy_nonoverlapping(values.to_array().as_ptr(), to, left);
    }
}

/// Returns the input and the gradient before the activation.
#[inline(always)]
unsafe fn before<L: Lanes>(from: &Sources<'_>, (scale, shift, slope): (L, L, L), at: usize) -> (L, L) {
    // SAFETY: the caller guarantees `at < from.len` and sources of `from.len` values, so `left` values follow; the CPU
    // supports `L`.
    unsafe {
        let left = from.len - at;
        let x = load::<L>(from.input.add(at), left);
        let z = x.mul_then_add(scale, shift);
        let gradient = load::<L>(from.gradient.add(at), left);
        let is_relu = from.slope == 0.0;
        (x, if is_relu { kept_where_positive(gradient, z) } else { gradient.where_positive(z, slope) })
    }
}

with_lanes! {
    /// Returns the sums of a row: 16 of the gradient, 16 of its products with the input minus the mean.
    unsafe fn sum_row<L>(from: &Sources<'_>, mean: &[f32; CHANNEL_BLOCK]) -> [f32; 2 * CHANNEL_BLOCK] {
        // SAFETY: the caller guarantees sources of `from.len` values, and scale, shift and mean are arrays of 16;
        // `with_lanes` checked the CPU.
        unsafe {
            let own = (L::load(from.scale.as_ptr()), L::load(from.shift.as_ptr()), L::splat(from.slope));
            let mean = L::load(mean.as_ptr());
            let mut sums = [[L::splat(0.0); 2]; 2];
            let mut at = 0;
            while at + 2 * CHANNEL_BLOCK <= from.len {
                for chain in 0..2 {
                    let (x, g) = before::<L>(from, own, at + chain * CHANNEL_BLOCK);
                    sums[chain][0] = sums[chain][0].add(g);
                    sums[chain][1] = g.mul_then_add(x.sub(mean), sums[chain][1]);
                }
                at += 2 * CHANNEL_BLOCK;
            }
            while at < from.len {
                let (x, g) = before::<L>(from, own, at);
                sums[0][0] = sums[0][0].add(g);
                sums[0][1] = g.mul_then_add(x.sub(mean), sums[0][1]);
                at += CHANNEL_BLOCK;
            }
            let mut out = [0.0; 2 * CHANNEL_BLOCK];
            for i in 0..2 {
                sums[0][i].add(sums[1][i]).store(out[i * CHANNEL_BLOCK..].as_mut_ptr());
            }
            out
        }
    }
}

with_lanes! {
    /// Writes a row.
    unsafe fn apply_row<L>(from: &Sources<'_>, to: &Targets<'_>) {
        // SAFETY: the caller guarantees sources and target of `from.len` values, and the factors are arrays of 16;
        // `with_lanes` checked the CPU.
        unsafe {
            let own = (L::load(from.scale.as_ptr()), L::load(from.shift.as_ptr()), L::splat(from.slope));
            let [g_factor, x_factor, constant] = to.factors.map(|f| f.as_ptr());
            let (g_factor, x_factor, constant) = (L::load(g_factor), L::load(x_factor), L::load(constant));
            for at in (0..from.len).step_by(CHANNEL_BLOCK) {
                let left = from.len - at;
                let (x, g) = before::<L>(from, own, at);
                let values = g.mul_then_add(g_factor, x.mul_then_add(x_factor, constant));
                store(values, to.values.add(at), left, to.accumulate);
            }
        }
    }
}

//! Element-wise gradients, sums of images, and sums by channel.

use super::norm::{load, store};
use crate::lanes::{Lanes, with_lanes};
use crate::parallel::{Shared, for_each, for_each_row};
use crate::{Blocked, CHANNEL_BLOCK, Isa, KernelError, check_len, check_that, same_image};

/// The derivative of an element-wise function, computed from its output or its input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Derivative {
    /// Derivative of leaky ReLU with a non-negative slope, from input or output: 1 where positive, else the slope.
    Leaky {
        /// Slope of the negative side; 0 is ReLU.
        slope: f32,
    },
    /// 1 where the input is in `min..=max`, else 0.
    Within {
        /// Lower end of the range.
        min: f32,
        /// Upper end of the range.
        max: f32,
    },
}

/// Computes the gradient of an activation's input from its output (or input, as [`Derivative`] requires) and the
/// output's gradient. The result is added to `in_gradient` if `accumulate`, else written there; borders are not
/// changed.
///
/// # Errors
/// [`KernelError`] if the buffers and layouts do not fit.
#[allow(clippy::too_many_arguments)]
pub fn activation_gradient(
    isa: Isa,
    of: Derivative,
    output: &[f32],
    out_layout: &Blocked,
    gradient: &[f32],
    layout: &Blocked,
    accumulate: bool,
    in_gradient: &mut [f32],
    in_layout: &Blocked,
) -> Result<(), KernelError> {
    check_len("output", output.len(), out_layout.len())?;
    check_len("gradient", gradient.len(), layout.len())?;
    check_len("gradient of the input", in_gradient.len(), in_layout.len())?;
    same_image(out_layout, in_layout)?;
    same_image(layout, in_layout)?;
    for_each_row(in_gradient, in_layout, |b, d, h, row| {
        let y = &output[out_layout.row_start(b, d, h)..][..row.len()];
        let g = &gradient[layout.row_start(b, d, h)..][..row.len()];
        // SAFETY: all three slices have the length of a row.
        unsafe { derivative_row(isa, of, y, g, accumulate, row) };
    });
    Ok(())
}

/// Returns the gradient where `of` is positive, else 0, which the product of an infinite gradient and 0 would not be.
///
/// # Safety
/// The CPU must support `L`.
#[inline(always)]
pub(super) unsafe fn kept_where_positive<L: Lanes>(gradient: L, of: L) -> L {
    // SAFETY: the caller guarantees a CPU that supports `L`; only registers are used.
    unsafe {
        let one = L::splat(1.0);
        gradient.where_equal(one.where_positive(of, L::splat(0.0)), one)
    }
}

with_lanes! {
    /// Multiplies a row of the gradient by the derivative.
    unsafe fn derivative_row<L>(derivative: Derivative, y: &[f32], gradient: &[f32], accumulate: bool, to: &mut [f32]) {
        let len = to.len();
        // SAFETY: the caller guarantees slices of equal length, and `load` and `store` stay within it; `with_lanes`
        // checked the CPU.
        unsafe {
            match derivative {
                Derivative::Leaky { slope: 0.0 } => {
                    for at in (0..len).step_by(CHANNEL_BLOCK) {
                        let g = load::<L>(gradient.as_ptr().add(at), len - at);
                        let v = kept_where_positive(g, load::<L>(y.as_ptr().add(at), len - at));
                        store(v, to.as_mut_ptr().add(at), len - at, accumulate);
                    }
                }
                Derivative::Leaky { slope } => {
                    let slope = L::splat(slope);
                    for at in (0..len).step_by(CHANNEL_BLOCK) {
                        let g = load::<L>(gradient.as_ptr().add(at), len - at);
                        let v = g.where_positive(load::<L>(y.as_ptr().add(at), len - at), slope);
                        store(v, to.as_mut_ptr().add(at), len - at, accumulate);
                    }
                }
                Derivative::Within { min, max } => {
                    let (zero, one, min, max) = (L::splat(0.0), L::splat(1.0), L::splat(min), L::splat(max));
                    for at in (0..len).step_by(CHANNEL_BLOCK) {
                        let g = load::<L>(gradient.as_ptr().add(at), len - at);
                        let x = load::<L>(y.as_ptr().add(at), len - at);
                        // Only values beyond an end are outside, so that the ends count as inside.
                        let below = one.where_positive(min.sub(x), zero);
                        let outside = below.add(one.where_positive(x.sub(max), zero));
                        store(g.where_equal(outside, zero), to.as_mut_ptr().add(at), len - at, accumulate);
                    }
                }
            }
        }
    }
}

/// Computes `target += factor · source`. The border is not changed.
///
/// # Errors
/// [`KernelError`] if the buffers and layouts do not fit.
pub fn add(
    isa: Isa,
    factor: f32,
    source: &[f32],
    from: &Blocked,
    target: &mut [f32],
    to: &Blocked,
) -> Result<(), KernelError> {
    check_len("source", source.len(), from.len())?;
    check_len("target", target.len(), to.len())?;
    same_image(from, to)?;
    for_each_row(target, to, |b, d, h, row| {
        let source = &source[from.row_start(b, d, h)..][..row.len()];
        // SAFETY: both slices have the length of a row.
        unsafe { add_row(isa, factor, source, row) };
    });
    Ok(())
}

with_lanes! {
    /// Adds a row to another.
    unsafe fn add_row<L>(factor: f32, source: &[f32], to: &mut [f32]) {
        // SAFETY: the caller guarantees slices of equal length, and `load` and `store` stay within it; `with_lanes`
        // checked the CPU.
        unsafe {
            let factor = L::splat(factor);
            for at in (0..to.len()).step_by(CHANNEL_BLOCK) {
                let left = to.len() - at;
                let v = load::<L>(source.as_ptr().add(at), left).mul(factor);
                store(v, to.as_mut_ptr().add(at), left, true);
            }
        }
    }
}

/// Returns the sum of each channel over the voxels. Rows are summed in `f32` lanes, the sums of rows in `f64` in a
/// fixed order.
///
/// # Errors
/// [`KernelError`] if the buffer does not fit the layout.
pub fn channel_sums(isa: Isa, input: &[f32], layout: &Blocked) -> Result<Vec<f64>, KernelError> {
    check_len("input", input.len(), layout.len())?;
    check_that(matches!(layout.block, 1 | CHANNEL_BLOCK), "block of floats", "1 or 16", layout.block)?;
    let [depth, height, _] = layout.dims;
    let mut partial = vec![[0.0f64; CHANNEL_BLOCK]; layout.blocks() * depth];
    let shared = Shared::new(&mut partial);
    for_each(layout.blocks() * depth, |task| {
        // SAFETY: each task has its own sums; `Shared::slice` checks the bounds.
        let own = unsafe { shared.slice(task, 1) };
        for h in 0..height {
            let row = &input[layout.row_start(task / depth, task % depth, h)..][..layout.row_len()];
            // SAFETY: `row_sums` reads only the slice that it is given.
            let sums = unsafe { row_sums(isa, row) };
            own[0].iter_mut().zip(sums).for_each(|(t, s)| *t += f64::from(s));
        }
    });
    Ok((0..layout.channels)
        .map(|c| {
            let own = partial[c / layout.block * depth..][..depth].iter();
            match layout.block {
                1 => own.map(|s| s.iter().sum::<f64>()).sum(),
                block => own.map(|s| s[c % block]).sum(),
            }
        })
        .collect())
}

with_lanes! {
    /// Returns the sums of a row by lane.
    unsafe fn row_sums<L>(row: &[f32]) -> [f32; CHANNEL_BLOCK] {
        // SAFETY: every load starts inside the row and `load` stops at its end; `with_lanes` checked the CPU.
        unsafe {
            let mut sums = [L::splat(0.0); 2];
            let mut at = 0;
            while at + 2 * CHANNEL_BLOCK <= row.len() {
                sums[0] = sums[0].add(L::load(row.as_ptr().add(at)));
                sums[1] = sums[1].add(L::load(row.as_ptr().add(at + CHANNEL_BLOCK)));
                at += 2 * CHANNEL_BLOCK;
            }
            while at < row.len() {
                sums[0] = sums[0].add(load::<L>(row.as_ptr().add(at), row.len() - at));
                at += CHANNEL_BLOCK;
            }
            sums[0].add(sums[1]).to_array()
        }
    }
}

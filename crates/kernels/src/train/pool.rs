//! Gradients of pooling. Each task owns one slice of the input's gradient and walks all windows that reach it.

use super::clear_slice;
use crate::conv::ConvShape;
use crate::parallel::{Shared, for_each, multiversion};
use crate::pool::{Pool, taps};
use crate::{Blocked, CHANNEL_BLOCK, Isa, KernelError, check_len, check_moved, check_that, same_image};

/// Gradient of a pool's input, from its output's: added to `in_gradient` if `accumulate`, else written there; borders are left as
/// they are.
///
/// The pool's input is needed for [`Pool::Max`] alone: the gradient goes to the first of a window's greatest voxels, in the order
/// of D, H, W.
///
/// # Errors
/// [`KernelError`] if the buffers and layouts do not fit, or the input of a max pool is missing.
#[allow(clippy::too_many_arguments)]
pub fn pool_gradient(
    isa: Isa,
    kind: Pool,
    shape: &ConvShape,
    input: Option<(&[f32], &Blocked)>,
    gradient: &[f32],
    layout: &Blocked,
    accumulate: bool,
    in_gradient: &mut [f32],
    in_layout: &Blocked,
) -> Result<(), KernelError> {
    check_moved(gradient, layout, in_gradient, in_layout)?;
    check_that(matches!(layout.block, 1 | CHANNEL_BLOCK), "block of floats", "1 or 16", layout.block)?;
    let steps = [shape.stride, shape.dilation];
    check_that(steps.iter().flatten().all(|s| *s > 0), "strides and dilations", "above 0", format!("{steps:?}"))?;
    if let Some((values, of)) = input {
        check_len("input", values.len(), of.len())?;
        same_image(of, in_layout)?;
    }
    check_that(kind != Pool::Max || input.is_some(), "input of a max pool", "given", "none")?;
    let input = if kind == Pool::Max { input } else { None };
    let inside: Vec<Vec<usize>> = (0..layout.dims[2]).map(|w| taps(shape, in_layout, 2, w).collect()).collect();
    let window: usize = shape.kernel.iter().product();
    let depth = in_layout.dims[0];
    let shared = Shared::new(in_gradient);
    for_each(in_layout.blocks() * depth, |task| {
        let (b, id) = (task / depth, task % depth);
        let start = in_layout.row_start(b, id, 0);
        let Some(rows) = in_layout.dims[1].checked_sub(1) else { return };
        // SAFETY: each task owns one slice of one block.
        let own = unsafe { shared.slice(start, rows * in_layout.row_stride() + in_layout.row_len()) };
        if !accumulate {
            clear_slice(own, in_layout);
        }
        for d in windows(shape, 0, id, layout.dims[0]) {
            let slices: Vec<usize> = taps(shape, in_layout, 0, d).collect();
            for h in 0..layout.dims[1] {
                let lines: Vec<usize> = taps(shape, in_layout, 1, h).collect();
                let at = layout.row_start(b, d, h);
                let row = Row {
                    gradient: &gradient[at..at + layout.row_len()],
                    inside: &inside,
                    whole: if kind == Pool::AverageWithPadding { window } else { 0 },
                    slices: slices.len(),
                };
                match input {
                    Some((values, of)) => {
                        let rows: Vec<(usize, usize)> = slices
                            .iter()
                            .flat_map(|d| lines.iter().map(move |h| (d, h)))
                            .map(|(d, h)| {
                                let to = if *d == id { h * in_layout.row_stride() } else { ELSEWHERE };
                                (of.row_start(b, *d, *h), to)
                            })
                            .collect();
                        max_row(isa, &row, layout.block, values, &rows, own);
                    }
                    None => {
                        let rows: Vec<usize> = lines.iter().map(|h| h * in_layout.row_stride()).collect();
                        average_row(isa, &row, layout.block, &rows, own);
                    }
                }
            }
        }
    });
    Ok(())
}

/// Output positions along an axis whose windows cover an input position.
fn windows(shape: &ConvShape, axis: usize, at: usize, extent: usize) -> impl Iterator<Item = usize> {
    let (stride, dilation, pad) = (shape.stride[axis], shape.dilation[axis], shape.pad_before[axis]);
    (0..shape.kernel[axis])
        .rev()
        .filter_map(move |k| (at + pad).checked_sub(k * dilation))
        .filter(move |first| first.is_multiple_of(stride) && first / stride < extent)
        .map(move |first| first / stride)
}

/// Stands for a row that is not of the task's slice.
const ELSEWHERE: usize = usize::MAX;

/// A row of windows.
struct Row<'a> {
    gradient: &'a [f32],
    /// Input positions along W by window.
    inside: &'a [Vec<usize>],
    /// Voxels that a mean is taken over; 0 stands for those inside the image.
    whole: usize,
    /// Input slices of the windows.
    slices: usize,
}

multiversion! {
    fn max_row(row: &Row<'_>, block: usize, input: &[f32], rows: &[(usize, usize)], own: &mut [f32]) {
        if block == CHANNEL_BLOCK { max_of::<CHANNEL_BLOCK>(row, input, rows, own) } else { max_of::<1>(row, input, rows, own) }
    }
}

/// `rows` are those of the windows: where each starts in the input and in the task's slice.
#[inline(always)]
fn max_of<const B: usize>(row: &Row<'_>, input: &[f32], rows: &[(usize, usize)], own: &mut [f32]) {
    for (g, inside) in row.gradient.chunks_exact(B).zip(row.inside) {
        let mut best = [f32::NEG_INFINITY; B];
        let mut place = [0u32; B];
        let mut count = 0u32;
        for (from, _) in rows {
            for w in inside {
                let source = &input[from + w * B..from + (w + 1) * B];
                for i in 0..B {
                    let better = source[i] > best[i] || source[i].is_nan();
                    best[i] = if better { source[i] } else { best[i] };
                    place[i] = if better { count } else { place[i] };
                }
                count += 1;
            }
        }
        count = 0;
        for (_, to) in rows {
            for w in inside {
                if *to != ELSEWHERE {
                    let target = &mut own[to + w * B..to + (w + 1) * B];
                    for i in 0..B {
                        target[i] += if place[i] == count { g[i] } else { 0.0 };
                    }
                }
                count += 1;
            }
        }
    }
}

multiversion! {
    fn average_row(row: &Row<'_>, block: usize, rows: &[usize], own: &mut [f32]) {
        if block == CHANNEL_BLOCK { average_of::<CHANNEL_BLOCK>(row, rows, own) } else { average_of::<1>(row, rows, own) }
    }
}

#[inline(always)]
fn average_of<const B: usize>(row: &Row<'_>, rows: &[usize], own: &mut [f32]) {
    for (g, inside) in row.gradient.chunks_exact(B).zip(row.inside) {
        let count = if row.whole > 0 { row.whole } else { (row.slices * rows.len() * inside.len()).max(1) };
        let share = 1.0 / count as f32;
        for to in rows {
            for w in inside {
                let target = &mut own[to + w * B..to + (w + 1) * B];
                for i in 0..B {
                    target[i] += g[i] * share;
                }
            }
        }
    }
}

//! Gradients of pooling. Each task owns some slices of the input's gradient and processes all windows that overlap
//! them.

use super::clear_slice;
use crate::conv::ConvShape;
use crate::lanes::with_lanes;
use crate::parallel::{Shared, for_each, multiversion};
use crate::pool::{Pool, taps};
use crate::{Blocked, CHANNEL_BLOCK, Isa, KernelError, check_len, check_moved, check_that, same_image};

/// Computes the gradient of pooling's input from that of its output. The result is added to `in_gradient` if
/// `accumulate`, else written there; borders are not changed.
///
/// The input is needed only for [`Pool::Max`], whose gradient goes to the first of a window's largest voxels in the
/// order of D, H, W.
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
    let [depth, height, _] = in_layout.dims;
    if in_layout.voxels() == 0 {
        return Ok(());
    }
    let thick = SLICE_STEPS * shape.stride[0];
    let chunks = depth.div_ceil(thick);
    let shared = Shared::new(in_gradient);
    for_each(in_layout.blocks() * chunks, |task| {
        let (b, first) = (task / chunks, task % chunks * thick);
        let end = (first + thick).min(depth);
        let (slice, line) = (in_layout.slice_stride(), in_layout.row_stride());
        let len = (end - first - 1) * slice + (height - 1) * line + in_layout.row_len();
        // SAFETY: each task has its own range of slices of its own block; `Shared::slice` checks the bounds.
        let own = unsafe { shared.slice(in_layout.row_start(b, first, 0), len) };
        if !accumulate {
            own.chunks_mut(slice).for_each(|slice| clear_slice(slice, in_layout));
        }
        for d in windows(shape, first, end, layout.dims[0]) {
            let slices: Vec<usize> = taps(shape, in_layout, 0, d).collect();
            for h in 0..layout.dims[1] {
                let lines: Vec<usize> = taps(shape, in_layout, 1, h).collect();
                let at = layout.row_start(b, d, h);
                let row = Row {
                    gradient: &gradient[at..at + layout.row_len()],
                    inside: &inside,
                    whole: if kind == Pool::AverageWithPadding { window } else { 0 },
                    rows: slices.len() * lines.len(),
                };
                let places = slices.iter().flat_map(|d| lines.iter().map(move |h| (*d, *h)));
                let own_row = |d: usize, h: usize| (first..end).contains(&d).then(|| (d - first) * slice + h * line);
                match input {
                    Some((values, of)) => {
                        let rows: Vec<_> = places.map(|(d, h)| (of.row_start(b, d, h), own_row(d, h))).collect();
                        max_row(isa, &row, layout.block, values, &rows, own);
                    }
                    None => {
                        let rows: Vec<usize> = places.filter_map(|(d, h)| own_row(d, h)).collect();
                        average_row(isa, &row, layout.block, &rows, own);
                    }
                }
            }
        }
    });
    Ok(())
}

/// Number of slices per task, in strides. Windows that overlap the slices of two tasks are processed by both.
const SLICE_STEPS: usize = 2;

/// Returns the output slices whose windows may overlap input slices `first..end`.
fn windows(shape: &ConvShape, first: usize, end: usize, extent: usize) -> std::ops::Range<usize> {
    let (stride, pad) = (shape.stride[0], shape.pad_before[0]);
    let reach = (shape.kernel[0].max(1) - 1) * shape.dilation[0];
    (first + pad).saturating_sub(reach).div_ceil(stride)..((end - 1 + pad) / stride + 1).min(extent)
}

/// Windows of one output row, and the gradient of their results.
struct Row<'a> {
    gradient: &'a [f32],
    /// Input positions along W by window.
    inside: &'a [Vec<usize>],
    /// Number of voxels that a mean is over; 0 means those inside the image.
    whole: usize,
    /// Number of input rows that each window covers.
    rows: usize,
}

/// Adds a row's gradient to the first of each window's largest voxels. `rows` are the input rows of the windows: where
/// each starts in the input, and in the task's slices if it is among them.
fn max_row(isa: Isa, row: &Row<'_>, block: usize, input: &[f32], rows: &[(usize, Option<usize>)], own: &mut [f32]) {
    if block != CHANNEL_BLOCK {
        return max_planes(row, input, rows, own);
    }
    let reach = row.inside.iter().flatten().max().map_or(0, |w| (w + 1) * CHANNEL_BLOCK);
    let within = |(from, to): &(usize, Option<usize>)| {
        from + reach <= input.len() && to.is_none_or(|to| to + reach <= own.len())
    };
    assert!(rows.iter().all(within), "windows reach outside their image");
    // SAFETY: the assertion shows that the voxels of every window lie within both buffers.
    unsafe { max_blocks(isa, row, input, rows, own) };
}

with_lanes! {
    /// Implements [`max_row`] for blocks of 16 channels.
    unsafe fn max_blocks<L>(row: &Row<'_>, input: &[f32], rows: &[(usize, Option<usize>)], own: &mut [f32]) {
        // SAFETY: the caller guarantees that every window lies within both buffers, and `g` holds 16 values;
        // `with_lanes` checked the CPU.
        unsafe {
            for (g, inside) in row.gradient.chunks_exact(CHANNEL_BLOCK).zip(row.inside) {
                // The largest voxels and their indices.
                let mut best = [L::splat(f32::NEG_INFINITY), L::splat(0.0)];
                let mut number = 0.0;
                for (from, _) in rows {
                    for w in inside {
                        let x = L::load(input.as_ptr().add(from + w * CHANNEL_BLOCK));
                        best = L::greater(best, [x, L::splat(number)]);
                        number += 1.0;
                    }
                }
                let g = L::load(g.as_ptr());
                number = 0.0;
                for (_, to) in rows {
                    let Some(to) = to else {
                        number += inside.len() as f32;
                        continue;
                    };
                    for w in inside {
                        let at = own.as_mut_ptr().add(to + w * CHANNEL_BLOCK);
                        g.where_equal(best[1], L::splat(number)).add(L::load(at)).store(at);
                        number += 1.0;
                    }
                }
            }
        }
    }
}

fn max_planes(row: &Row<'_>, input: &[f32], rows: &[(usize, Option<usize>)], own: &mut [f32]) {
    for (g, inside) in row.gradient.iter().zip(row.inside) {
        let mut best = f32::NEG_INFINITY;
        let mut place = rows.first().and_then(|(_, to)| Some((*to)? + inside.first()?));
        for (from, to) in rows {
            for w in inside {
                let v = input[from + w];
                if v > best || v.is_nan() {
                    (best, place) = (v, to.map(|to| to + w));
                }
            }
        }
        if let Some(place) = place {
            own[place] += g;
        }
    }
}

multiversion! {
    fn average_row(row: &Row<'_>, block: usize, rows: &[usize], own: &mut [f32]) {
        if block == CHANNEL_BLOCK { average_rows::<CHANNEL_BLOCK>(row, rows, own) } else { average_rows::<1>(row, rows, own) }
    }
}

#[inline(always)]
fn average_rows<const B: usize>(row: &Row<'_>, rows: &[usize], own: &mut [f32]) {
    for (g, inside) in row.gradient.chunks_exact(B).zip(row.inside) {
        let count = if row.whole > 0 { row.whole } else { (row.rows * inside.len()).max(1) };
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

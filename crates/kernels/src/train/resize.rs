//! Gradient of resampling: the transposed tables of [`crate::resize`]. Each task owns one slice of the input's
//! gradient.

use super::clear_slice;
use crate::parallel::{Shared, for_each, multiversion};
use crate::resize::{Tap, check_tables};
use crate::{Blocked, CHANNEL_BLOCK, Isa, KernelError, check_moved, check_that};

/// Computes the gradient of the input of [`crate::resize::resize`] with the same tables from that of its output. The
/// result is added to `in_gradient` if `accumulate`, else written there; borders are not changed.
///
/// # Errors
/// [`KernelError`] if buffers, layouts and tables do not fit.
#[allow(clippy::too_many_arguments)]
pub fn resize_gradient(
    isa: Isa,
    tables: &[Vec<Tap>; 3],
    gradient: &[f32],
    layout: &Blocked,
    accumulate: bool,
    in_gradient: &mut [f32],
    in_layout: &Blocked,
) -> Result<(), KernelError> {
    check_moved(gradient, layout, in_gradient, in_layout)?;
    check_that(matches!(layout.block, 1 | CHANNEL_BLOCK), "block of floats", "1 or 16", layout.block)?;
    check_tables(tables, in_layout, layout)?;
    // Output slices that read each input slice, and their weights.
    let mut readers: Vec<Vec<(usize, f32)>> = vec![Vec::new(); in_layout.dims[0]];
    for (d, tap) in tables[0].iter().enumerate() {
        for (at, share) in shares(tap) {
            readers[at].push((d, share));
        }
    }
    let depth = in_layout.dims[0];
    let shared = Shared::new(in_gradient);
    for_each(in_layout.blocks() * depth, |task| {
        let (b, id) = (task / depth, task % depth);
        let Some(rows) = in_layout.dims[1].checked_sub(1) else { return };
        let start = in_layout.row_start(b, id, 0);
        // SAFETY: each task has its own slice of its own block; `Shared::slice` checks the bounds.
        let own = unsafe { shared.slice(start, rows * in_layout.row_stride() + in_layout.row_len()) };
        if !accumulate {
            clear_slice(own, in_layout);
        }
        let mut along = vec![0.0f32; in_layout.row_len()];
        for &(d, share) in &readers[id] {
            for (h, tap) in tables[1].iter().enumerate() {
                let at = layout.row_start(b, d, h);
                along.fill(0.0);
                spread_row(isa, &gradient[at..at + layout.row_len()], &tables[2], layout.block, &mut along);
                for (ih, part) in shares(tap) {
                    let target = &mut own[ih * in_layout.row_stride()..][..along.len()];
                    add_row(isa, share * part, &along, target);
                }
            }
        }
    });
    Ok(())
}

/// Returns the source positions that an output position reads, with their weights.
fn shares(tap: &Tap) -> impl Iterator<Item = (usize, f32)> + use<> {
    [(tap.low, 1.0 - tap.weight), (tap.high, tap.weight)].into_iter().filter(|(_, share)| *share != 0.0)
}

multiversion! {
    fn spread_row(row: &[f32], table: &[Tap], block: usize, along: &mut [f32]) {
        if block == CHANNEL_BLOCK { spread::<CHANNEL_BLOCK>(row, table, along) } else { spread::<1>(row, table, along) }
    }
}

#[inline(always)]
fn spread<const B: usize>(row: &[f32], table: &[Tap], along: &mut [f32]) {
    for (g, tap) in row.chunks_exact(B).zip(table) {
        let low = &mut along[tap.low * B..(tap.low + 1) * B];
        for i in 0..B {
            low[i] += (1.0 - tap.weight) * g[i];
        }
        if tap.weight != 0.0 {
            let high = &mut along[tap.high * B..(tap.high + 1) * B];
            for i in 0..B {
                high[i] += tap.weight * g[i];
            }
        }
    }
}

multiversion! {
    fn add_row(share: f32, row: &[f32], target: &mut [f32]) {
        target.iter_mut().zip(row).for_each(|(t, v)| *t += share * v);
    }
}

//! Resampling of blocked buffers along D, H, W with a table of source positions and weights for each axis.

use crate::parallel::{Shared, for_each, multiversion};
use crate::{Blocked, CHANNEL_BLOCK, Isa, KernelError, check_len, check_moved, check_that};

/// One output position along an axis: `(1 - weight) · source[low] + weight · source[high]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tap {
    /// First source position.
    pub low: usize,
    /// Second source position.
    pub high: usize,
    /// Weight of the second position.
    pub weight: f32,
}

/// Resamples an image. `tables[axis]` has one [`Tap`] per output position; for nearest neighbor all weights are 0.
///
/// # Errors
/// [`KernelError`] if buffers, layouts and tables do not fit.
pub fn resize(
    isa: Isa,
    tables: &[Vec<Tap>; 3],
    input: &[f32],
    in_layout: &Blocked,
    output: &mut [f32],
    out_layout: &Blocked,
) -> Result<(), KernelError> {
    check_moved(input, in_layout, output, out_layout)?;
    check_tables(tables, in_layout, out_layout)?;
    let block = in_layout.block;
    let [depth, height, _] = out_layout.dims;
    let runs = runs(&tables[2]);
    let shared = Shared::new(output);
    for_each(out_layout.blocks() * depth, |task| {
        let (b, d) = (task / depth, task % depth);
        let td = tables[0][d];
        for h in 0..height {
            let th = tables[1][h];
            // SAFETY: each task has its own slice and block and so writes its own rows; `Shared::slice` checks the
            // bounds.
            let out = unsafe { shared.slice(out_layout.row_start(b, d, h), out_layout.row_len()) };
            if let (Some(runs), true) = (&runs, td.weight == 0.0 && th.weight == 0.0) {
                if h > 0 && tables[1][h - 1] == th {
                    // SAFETY: the row before is this task's own, too, and does not overlap the one that is written.
                    out.copy_from_slice(unsafe {
                        shared.slice(out_layout.row_start(b, d, h - 1), out_layout.row_len())
                    });
                    continue;
                }
                let row = in_layout.row_start(b, td.low, th.low);
                for (to, from, len) in runs {
                    let source = &input[row + from * block..row + (from + len) * block];
                    out[to * block..(to + len) * block].copy_from_slice(source);
                }
                continue;
            }
            let corners = [
                (in_layout.row_start(b, td.low, th.low), (1.0 - td.weight) * (1.0 - th.weight)),
                (in_layout.row_start(b, td.low, th.high), (1.0 - td.weight) * th.weight),
                (in_layout.row_start(b, td.high, th.low), td.weight * (1.0 - th.weight)),
                (in_layout.row_start(b, td.high, th.high), td.weight * th.weight),
            ];
            if block == CHANNEL_BLOCK {
                blend_row(isa, &tables[2], input, &corners, out);
            } else {
                blend_narrow_row(&tables[2], input, &corners, block, out);
            }
        }
    });
    Ok(())
}

multiversion! {
    /// Interpolates a row of voxels of 16 channels between rows of the input, each given by its start and its share.
    fn blend_row(taps: &[Tap], input: &[f32], corners: &[(usize, f32); 4], row: &mut [f32]) {
        for (tap, target) in taps.iter().zip(row.chunks_exact_mut(CHANNEL_BLOCK)) {
            let mut sum = [0.0f32; CHANNEL_BLOCK];
            for (start, share) in corners {
                if *share == 0.0 {
                    continue;
                }
                let Some(low) = input[start + tap.low * CHANNEL_BLOCK..].first_chunk::<CHANNEL_BLOCK>() else { continue };
                if tap.weight == 0.0 {
                    for c in 0..CHANNEL_BLOCK {
                        sum[c] += share * low[c];
                    }
                    continue;
                }
                let Some(high) = input[start + tap.high * CHANNEL_BLOCK..].first_chunk::<CHANNEL_BLOCK>() else { continue };
                let (a, b) = (share * (1.0 - tap.weight), share * tap.weight);
                for c in 0..CHANNEL_BLOCK {
                    sum[c] += a * low[c] + b * high[c];
                }
            }
            target.copy_from_slice(&sum);
        }
    }
}

/// Like [`blend_row`], for blocks of few channels.
fn blend_narrow_row(taps: &[Tap], input: &[f32], corners: &[(usize, f32); 4], block: usize, row: &mut [f32]) {
    for (tap, target) in taps.iter().zip(row.chunks_exact_mut(block)) {
        target.fill(0.0);
        for (start, share) in corners {
            if *share == 0.0 {
                continue;
            }
            let low = &input[start + tap.low * block..start + (tap.low + 1) * block];
            if tap.weight == 0.0 {
                target.iter_mut().zip(low).for_each(|(t, l)| *t += share * l);
            } else {
                let high = &input[start + tap.high * block..start + (tap.high + 1) * block];
                let (a, b) = (share * (1.0 - tap.weight), share * tap.weight);
                target.iter_mut().zip(low.iter().zip(high)).for_each(|(t, (l, h))| *t += a * l + b * h);
            }
        }
    }
}

/// Checks that the tables map the lengths of the input to the lengths of the output.
pub(crate) fn check_tables(
    tables: &[Vec<Tap>; 3],
    in_layout: &Blocked,
    out_layout: &Blocked,
) -> Result<(), KernelError> {
    for axis in 0..3 {
        check_len("resize table", tables[axis].len(), out_layout.dims[axis])?;
        let extent = in_layout.dims[axis];
        check_that(
            tables[axis].iter().all(|t| t.low < extent && t.high < extent),
            "resize table",
            format!("positions below {extent}"),
            "a position beyond the input",
        )?;
    }
    Ok(())
}

/// Resamples bytes without interpolation (all weights 0): nearest neighbor, and padding with existing voxels.
///
/// # Errors
/// [`KernelError`] if buffers, layouts and tables do not fit, or a table interpolates.
pub fn pick_bytes(
    tables: &[Vec<Tap>; 3],
    input: &[u8],
    in_layout: &Blocked,
    output: &mut [u8],
    out_layout: &Blocked,
) -> Result<(), KernelError> {
    check_moved(input, in_layout, output, out_layout)?;
    for axis in 0..3 {
        check_len("resize table", tables[axis].len(), out_layout.dims[axis])?;
        let extent = in_layout.dims[axis];
        let fits = tables[axis].iter().all(|t| t.low < extent && t.weight == 0.0);
        check_that(fits, "resize table", format!("positions below {extent}, no interpolation"), "another table")?;
    }
    let block = in_layout.block;
    let [depth, height, _] = out_layout.dims;
    // Tables with interpolation were refused above.
    let runs = runs(&tables[2]).unwrap_or_default();
    let shared = Shared::new(output);
    for_each(out_layout.blocks() * depth, |task| {
        let (b, d) = (task / depth, task % depth);
        for h in 0..height {
            // SAFETY: each task has its own slice and block and so writes its own rows; `Shared::slice` checks the
            // bounds.
            let out = unsafe { shared.slice(out_layout.row_start(b, d, h), out_layout.row_len()) };
            if h > 0 && tables[1][h - 1] == tables[1][h] {
                // SAFETY: the row before is this task's own, too, and does not overlap the one that is written.
                out.copy_from_slice(unsafe { shared.slice(out_layout.row_start(b, d, h - 1), out_layout.row_len()) });
                continue;
            }
            let row = in_layout.row_start(b, tables[0][d].low, tables[1][h].low);
            for (to, from, len) in &runs {
                let source = &input[row + from * block..row + (from + len) * block];
                out[to * block..(to + len) * block].copy_from_slice(source);
            }
        }
    });
    Ok(())
}

/// Turns a table without interpolation into copies (output position, input position, length); `None` if it
/// interpolates.
fn runs(table: &[Tap]) -> Option<Vec<(usize, usize, usize)>> {
    let mut runs: Vec<(usize, usize, usize)> = Vec::new();
    for (to, tap) in table.iter().enumerate() {
        if tap.weight != 0.0 {
            return None;
        }
        match runs.last_mut() {
            Some((_, from, len)) if *from + *len == tap.low => *len += 1,
            _ => runs.push((to, tap.low, 1)),
        }
    }
    Some(runs)
}

//! Between dense `[C][D][H][W]` and blocked buffers.

use crate::parallel::{Shared, for_each};
use crate::{Blocked, KernelError, check_len};

/// Fills a blocked buffer, border and spare channels included (with zeros), from a dense `[C][D][H][W]` image.
///
/// # Errors
/// [`KernelError::Length`] if a buffer does not fit the layout.
pub fn pack(dense: &[f32], layout: &Blocked, blocked: &mut [f32]) -> Result<(), KernelError> {
    check_len("dense image", dense.len(), layout.channels * layout.voxels())?;
    check_len("blocked image", blocked.len(), layout.len())?;
    let [_, dims_h, dims_w] = layout.dims;
    let (slice, row) = (layout.slice_stride(), layout.row_stride());
    let padded_depth = layout.padded()[0];
    let shared = Shared::new(blocked);
    for_each(layout.blocks() * padded_depth, |task| {
        let (b, pd) = (task / padded_depth, task % padded_depth);
        // SAFETY: each task owns one padded slice of one block.
        let out = unsafe { shared.slice(b * layout.block_stride() + pd * slice, slice) };
        out.fill(0.0);
        let Some(d) = pd.checked_sub(layout.halo[0]).filter(|d| *d < layout.dims[0]) else { return };
        for c in 0..layout.block.min(layout.channels - b * layout.block) {
            let channel = &dense[(b * layout.block + c) * layout.voxels() + d * dims_h * dims_w..];
            for h in 0..dims_h {
                let at = (h + layout.halo[1]) * row + layout.halo[2] * layout.block;
                let source = &channel[h * dims_w..(h + 1) * dims_w];
                if layout.block == 1 {
                    out[at..at + dims_w].copy_from_slice(source);
                } else {
                    let target = out[at + c..].iter_mut().step_by(layout.block);
                    target.zip(source).for_each(|(t, s)| *t = *s);
                }
            }
        }
    });
    Ok(())
}

/// Writes a blocked image as a dense `[C][D][H][W]` one.
///
/// # Errors
/// [`KernelError::Length`] if a buffer does not fit the layout.
pub fn unpack(blocked: &[f32], layout: &Blocked, dense: &mut [f32]) -> Result<(), KernelError> {
    check_len("blocked image", blocked.len(), layout.len())?;
    check_len("dense image", dense.len(), layout.channels * layout.voxels())?;
    let [depth, dims_h, dims_w] = layout.dims;
    let shared = Shared::new(dense);
    for_each(layout.channels * depth, |task| {
        let (c, d) = (task / depth, task % depth);
        // SAFETY: each task owns one dense slice of one channel.
        let out = unsafe { shared.slice(task * dims_h * dims_w, dims_h * dims_w) };
        for h in 0..dims_h {
            let at = layout.row_start(c / layout.block, d, h);
            let source = blocked[at + c % layout.block..].iter().step_by(layout.block);
            out[h * dims_w..(h + 1) * dims_w].iter_mut().zip(source).for_each(|(t, s)| *t = *s);
        }
    });
    Ok(())
}

/// Sets the border and the spare channels of a blocked buffer to zero, whatever it held.
///
/// # Errors
/// [`KernelError::Length`] if the buffer does not fit the layout.
pub fn clear_border(layout: &Blocked, blocked: &mut [f32]) -> Result<(), KernelError> {
    check_len("blocked image", blocked.len(), layout.len())?;
    if layout.halo == [0; 3] {
        return Ok(());
    }
    let [depth, height, _] = layout.dims;
    let padded = layout.padded();
    let (slice, row) = (layout.slice_stride(), layout.row_stride());
    let shared = Shared::new(blocked);
    for_each(layout.blocks() * padded[0], |task| {
        let pd = task % padded[0];
        // SAFETY: each task owns one padded slice of one block.
        let out = unsafe { shared.slice(task * slice, slice) };
        if pd < layout.halo[0] || pd >= layout.halo[0] + depth {
            return out.fill(0.0);
        }
        let edge = layout.halo[2] * layout.block;
        for ph in 0..padded[1] {
            let line = &mut out[ph * row..(ph + 1) * row];
            if ph < layout.halo[1] || ph >= layout.halo[1] + height {
                line.fill(0.0);
            } else {
                line[..edge].fill(0.0);
                line[row - edge..].fill(0.0);
            }
        }
    });
    Ok(())
}

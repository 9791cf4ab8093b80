//! Conversion between dense `[C][D][H][W]` and blocked buffers.

use crate::conv::Quantizer;
use crate::parallel::{Shared, for_each, for_each_row, multiversion};
use crate::{Blocked, Isa, KernelError, check_len, check_that};

/// Converts a dense `[C][D][H][W]` image to a blocked buffer. Border and unused channels are set to `zero`.
///
/// # Errors
/// [`KernelError::Length`] if a buffer does not fit the layout.
pub fn pack<T: Copy + Send + Sync>(
    dense: &[T],
    layout: &Blocked,
    zero: T,
    blocked: &mut [T],
) -> Result<(), KernelError> {
    check_len("dense image", dense.len(), layout.channels * layout.voxels())?;
    check_len("blocked image", blocked.len(), layout.len())?;
    let [_, dims_h, dims_w] = layout.dims;
    let (slice, row) = (layout.slice_stride(), layout.row_stride());
    let padded_depth = layout.padded()[0];
    let shared = Shared::new(blocked);
    for_each(layout.blocks() * padded_depth, |task| {
        let (b, pd) = (task / padded_depth, task % padded_depth);
        // SAFETY: each task has its own padded slice of its own block; `Shared::slice` checks the bounds.
        let out = unsafe { shared.slice(b * layout.block_stride() + pd * slice, slice) };
        out.fill(zero);
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

/// Converts a blocked image to a dense `[C][D][H][W]` one.
///
/// # Errors
/// [`KernelError::Length`] if a buffer does not fit the layout.
pub fn unpack<T: Copy + Send + Sync>(blocked: &[T], layout: &Blocked, dense: &mut [T]) -> Result<(), KernelError> {
    check_len("blocked image", blocked.len(), layout.len())?;
    check_len("dense image", dense.len(), layout.channels * layout.voxels())?;
    let [depth, dims_h, dims_w] = layout.dims;
    let shared = Shared::new(dense);
    for_each(layout.channels * depth, |task| {
        let (c, d) = (task / depth, task % depth);
        // SAFETY: each task has its own slice of its own channel; `Shared::slice` checks the bounds.
        let out = unsafe { shared.slice(task * dims_h * dims_w, dims_h * dims_w) };
        for h in 0..dims_h {
            let at = layout.row_start(c / layout.block, d, h);
            let source = blocked[at + c % layout.block..].iter().step_by(layout.block);
            out[h * dims_w..(h + 1) * dims_w].iter_mut().zip(source).for_each(|(t, s)| *t = *s);
        }
    });
    Ok(())
}

/// Sets the border of a blocked buffer to `zero`.
///
/// # Errors
/// [`KernelError::Length`] if the buffer does not fit the layout.
pub fn clear_border<T: Copy + Send + Sync>(layout: &Blocked, zero: T, blocked: &mut [T]) -> Result<(), KernelError> {
    check_len("blocked image", blocked.len(), layout.len())?;
    if layout.halo == [0; 3] {
        return Ok(());
    }
    let [depth, height, _] = layout.dims;
    let padded = layout.padded();
    let (slice, row) = (layout.slice_stride(), layout.row_stride());
    let shared = Shared::new(blocked);
    for_each(layout.blocks() * padded[0], |task| {
        let (b, pd) = (task / padded[0], task % padded[0]);
        // SAFETY: each task has its own padded slice of its own block; `Shared::slice` checks the bounds.
        let out = unsafe { shared.slice(b * layout.block_stride() + pd * slice, slice) };
        if pd < layout.halo[0] || pd >= layout.halo[0] + depth {
            return out.fill(zero);
        }
        let edge = layout.halo[2] * layout.block;
        for ph in 0..padded[1] {
            let line = &mut out[ph * row..(ph + 1) * row];
            if ph < layout.halo[1] || ph >= layout.halo[1] + height {
                line.fill(zero);
            } else {
                line[..edge].fill(zero);
                line[row - edge..].fill(zero);
            }
        }
    });
    Ok(())
}

/// Quantizes planes of floats (block size 1) to blocks of bytes. Unused channels of the written voxels get the zero
/// point.
///
/// # Errors
/// [`KernelError`] if the buffers and layouts do not fit.
pub fn quantize_planes(
    isa: Isa,
    planes: &[f32],
    from: &Blocked,
    quantizer: Quantizer,
    bytes: &mut [u8],
    to: &Blocked,
) -> Result<(), KernelError> {
    check_planes(planes.len(), from, bytes.len(), to)?;
    let width = to.dims[2];
    for_each_row(bytes, to, |b, d, h, row| {
        row.fill(quantizer.zero_point);
        for c in 0..to.block.min(to.channels - b * to.block) {
            let at = from.row_start(b * to.block + c, d, h);
            let plane = &planes[at..at + width];
            if to.block == 4 {
                quantize_row(isa, plane, quantizer, c, row);
            } else {
                for (q, v) in row[c..].iter_mut().step_by(to.block).zip(plane) {
                    *q = quantizer.byte(*v);
                }
            }
        }
    });
    Ok(())
}

multiversion! {
    fn quantize_row(plane: &[f32], quantizer: Quantizer, channel: usize, row: &mut [u8]) {
        // Whole quads are rewritten, so that the compiler can vectorize.
        let keep = !(0xffu32 << (8 * channel));
        for (quad, v) in row.chunks_exact_mut(4).zip(plane) {
            let bits = u32::from_le_bytes([quad[0], quad[1], quad[2], quad[3]]) & keep;
            let bits = bits | u32::from(quantizer.byte(*v)) << (8 * channel);
            quad.copy_from_slice(&bits.to_le_bytes());
        }
    }
}

/// Dequantizes blocks of bytes to planes of floats: `(byte − zero_point) · scale`.
///
/// # Errors
/// [`KernelError`] if the buffers and layouts do not fit.
pub fn dequantize_planes(
    bytes: &[u8],
    from: &Blocked,
    scale: f32,
    zero_point: u8,
    planes: &mut [f32],
    to: &Blocked,
) -> Result<(), KernelError> {
    check_planes(planes.len(), to, bytes.len(), from)?;
    for_each_row(planes, to, |c, d, h, row| {
        let at = from.row_start(c / from.block, d, h) + c % from.block;
        let source = bytes[at..].iter().step_by(from.block);
        row.iter_mut().zip(source).for_each(|(v, q)| *v = (f32::from(*q) - f32::from(zero_point)) * scale);
    });
    Ok(())
}

fn check_planes(planes: usize, floats: &Blocked, bytes: usize, blocks: &Blocked) -> Result<(), KernelError> {
    check_len("planes", planes, floats.len())?;
    check_len("bytes", bytes, blocks.len())?;
    check_that(
        (floats.channels, floats.dims, floats.block) == (blocks.channels, blocks.dims, 1),
        "planes",
        format!("{blocks:?} in planes"),
        format!("{floats:?}"),
    )
}

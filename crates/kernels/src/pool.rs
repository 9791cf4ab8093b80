//! Max and average pooling on blocked buffers.

use crate::conv::ConvShape;
use crate::parallel::{for_each_row, multiversion};
use crate::{Blocked, Isa, KernelError, check_moved};

/// How the voxels of a pooling window are combined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pool {
    /// The maximum over the voxels inside the image.
    Max,
    /// The mean over the whole window, with zeros for padding.
    AverageWithPadding,
    /// The mean over the voxels inside the image.
    Average,
}

/// Pools windows of `shape`. Voxels outside the image are treated as [`Pool`] says; the input's border is not read.
///
/// # Errors
/// [`KernelError`] if the buffers and layouts do not fit.
pub fn pool(
    isa: Isa,
    kind: Pool,
    shape: &ConvShape,
    input: &[f32],
    in_layout: &Blocked,
    output: &mut [f32],
    out_layout: &Blocked,
) -> Result<(), KernelError> {
    check_moved(input, in_layout, output, out_layout)?;
    let block = in_layout.block;
    let window: usize = shape.kernel.iter().product();
    for_each_row(output, out_layout, |b, d, h, out| {
        for (w, target) in out.chunks_exact_mut(block).enumerate() {
            target.fill(if kind == Pool::Max { f32::NEG_INFINITY } else { 0.0 });
            let mut inside = 0usize;
            for id in taps(shape, in_layout, 0, d) {
                for ih in taps(shape, in_layout, 1, h) {
                    let row = in_layout.row_start(b, id, ih);
                    for iw in taps(shape, in_layout, 2, w) {
                        let source = &input[row + iw * block..row + (iw + 1) * block];
                        accumulate(isa, kind == Pool::Max, target, source);
                        inside += 1;
                    }
                }
            }
            let count = if kind == Pool::AverageWithPadding { window } else { inside.max(1) };
            if kind != Pool::Max {
                target.iter_mut().for_each(|x| *x /= count as f32);
            }
        }
    });
    Ok(())
}

/// Max pooling of bytes, as [`pool`] with [`Pool::Max`]. Quantization is monotonic, so this is also the maximum of the
/// values.
///
/// # Errors
/// [`KernelError`] if the buffers and layouts do not fit.
pub fn max_bytes(
    isa: Isa,
    shape: &ConvShape,
    input: &[u8],
    in_layout: &Blocked,
    output: &mut [u8],
    out_layout: &Blocked,
) -> Result<(), KernelError> {
    check_moved(input, in_layout, output, out_layout)?;
    let block = in_layout.block;
    for_each_row(output, out_layout, |b, d, h, out| {
        for (w, target) in out.chunks_exact_mut(block).enumerate() {
            target.fill(0);
            for id in taps(shape, in_layout, 0, d) {
                for ih in taps(shape, in_layout, 1, h) {
                    let row = in_layout.row_start(b, id, ih);
                    for iw in taps(shape, in_layout, 2, w) {
                        keep_maximum(isa, target, &input[row + iw * block..row + (iw + 1) * block]);
                    }
                }
            }
        }
    });
    Ok(())
}

multiversion! {
    fn keep_maximum(target: &mut [u8], source: &[u8]) {
        target.iter_mut().zip(source).for_each(|(t, s)| *t = (*t).max(*s));
    }
}

/// Returns the input positions along `axis`, inside the image, that the window of output position `at` covers.
pub(crate) fn taps(shape: &ConvShape, layout: &Blocked, axis: usize, at: usize) -> impl Iterator<Item = usize> {
    let (first, step) = (at * shape.stride[axis], shape.dilation[axis].max(1));
    let (pad, extent) = (shape.pad_before[axis], layout.dims[axis]);
    // A window may be much longer than the image: taps outside are not visited. This is the first tap at or after a position.
    let tap_at = |position: usize| {
        let distance = position.saturating_sub(first);
        // Most windows are not dilated. A division takes about as long as combining a tap.
        let tap = if step == 1 { distance } else { distance.div_ceil(step) };
        tap.min(shape.kernel[axis])
    };
    (tap_at(pad)..tap_at(pad.saturating_add(extent))).map(move |k| first + k * step - pad)
}

multiversion! {
    fn accumulate(max: bool, target: &mut [f32], source: &[f32]) {
        if max {
            target.iter_mut().zip(source).for_each(|(t, s)| *t = if *s > *t || s.is_nan() { *s } else { *t });
        } else {
            target.iter_mut().zip(source).for_each(|(t, s)| *t += s);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_taps_of_a_window_are_those_inside_the_image() {
        let layout = Blocked::new(1, [1, 1, 5], [0; 3], 1);
        let shape = |kernel: usize, stride: usize, dilation: usize, pad: usize| ConvShape {
            kernel: [1, 1, kernel],
            stride: [1, 1, stride],
            dilation: [1, 1, dilation],
            pad_before: [0, 0, pad],
        };
        for (kernel, stride, dilation) in
            (1..8usize).flat_map(|k| (1..3usize).flat_map(move |s| (1..4usize).map(move |d| (k, s, d))))
        {
            for (pad, at) in (0..7usize).flat_map(|pad| (0..9usize).map(move |at| (pad, at))) {
                let inside =
                    (0..kernel).filter_map(|k| (at * stride + k * dilation).checked_sub(pad)).filter(|i| *i < 5);
                let window = shape(kernel, stride, dilation, pad);
                let found = taps(&window, &layout, 2, at);
                assert!(
                    found.eq(inside),
                    "{kernel} taps, stride {stride}, dilation {dilation}, padding {pad}, at {at}"
                );
            }
        }
        // A window that would take seconds to visit.
        assert!(taps(&shape(1 << 31, 1, 1, 1 << 30), &layout, 2, 0).eq(0..5));
    }
}

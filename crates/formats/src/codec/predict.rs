//! Byte order, and predictors 2 (horizontal differences) and 3 (floating point), in place.

use crate::{
    meta::ByteOrder,
    tiff::page::{Layout, Predictor},
};

/// Converts decompressed bytes of whole-byte samples to samples in native byte order, with the predictor undone.
pub(super) fn undo(layout: &Layout, order: ByteOrder, bytes: &mut [u8]) {
    let size = layout.dtype.size_bytes();
    if layout.predictor == Predictor::Float {
        return undo_float(layout, bytes);
    }
    to_native(order, size, bytes);
    if layout.predictor == Predictor::Horizontal {
        let stride = layout.chunk_samples();
        for row in bytes.chunks_exact_mut(layout.chunk_width * stride * size) {
            match size {
                1 => undo_row::<1>(row, stride, |a, b| [a[0].wrapping_add(b[0])]),
                2 => undo_row::<2>(row, stride, |a, b| {
                    u16::from_ne_bytes(a).wrapping_add(u16::from_ne_bytes(b)).to_ne_bytes()
                }),
                4 => undo_row::<4>(row, stride, |a, b| {
                    u32::from_ne_bytes(a).wrapping_add(u32::from_ne_bytes(b)).to_ne_bytes()
                }),
                _ => undo_row::<8>(row, stride, |a, b| {
                    u64::from_ne_bytes(a).wrapping_add(u64::from_ne_bytes(b)).to_ne_bytes()
                }),
            }
        }
    }
}

/// Converts samples between the given and the native byte order, in place.
pub(crate) fn to_native(order: ByteOrder, size: usize, bytes: &mut [u8]) {
    if order == ByteOrder::NATIVE {
        return;
    }
    match size {
        2 => bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|b| b.reverse()),
        4 => bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|b| b.reverse()),
        8 => bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|b| b.reverse()),
        _ => {}
    }
}

fn undo_row<const N: usize>(row: &mut [u8], stride: usize, add: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    let (samples, _) = row.as_chunks_mut::<N>();
    match stride {
        1 => {
            let mut sum = [0; N];
            for s in samples {
                sum = add(sum, *s);
                *s = sum;
            }
        }
        3 => {
            let mut sum = [[0; N]; 3];
            for pixel in samples.as_chunks_mut::<3>().0 {
                for (s, t) in pixel.iter_mut().zip(&mut sum) {
                    *t = add(*t, *s);
                    *s = *t;
                }
            }
        }
        _ => {
            let mut sum = vec![[0; N]; stride];
            for pixel in samples.chunks_exact_mut(stride) {
                for (s, t) in pixel.iter_mut().zip(&mut sum) {
                    *t = add(*t, *s);
                    *s = *t;
                }
            }
        }
    }
}

/// Undoes predictor 3: each row holds the most significant bytes of all samples, then the next bytes, and so on, and
/// all bytes of the row are differences.
fn undo_float(layout: &Layout, bytes: &mut [u8]) {
    let size = layout.dtype.size_bytes();
    let stride = layout.chunk_samples();
    let count = layout.chunk_width * stride;
    let mut planes = vec![0u8; count * size];
    for row in bytes.chunks_exact_mut(count * size) {
        undo_row::<1>(row, stride, |a, b| [a[0].wrapping_add(b[0])]);
        planes.copy_from_slice(row);
        for (p, plane) in planes.chunks_exact(count).enumerate() {
            let at = if cfg!(target_endian = "little") { size - 1 - p } else { p };
            for (sample, byte) in row.chunks_exact_mut(size).zip(plane) {
                if let Some(b) = sample.get_mut(at) {
                    *b = *byte;
                }
            }
        }
    }
}

/// Replaces samples by their differences to the previous pixel, row by row (predictor 2).
pub(crate) fn horizontal_differences(bytes: &mut [u8], row_bytes: usize, stride: usize, size: usize) {
    for row in bytes.chunks_exact_mut(row_bytes) {
        match size {
            1 => difference_row::<1>(row, stride, |a, b| [a[0].wrapping_sub(b[0])]),
            2 => difference_row::<2>(row, stride, |a, b| {
                u16::from_ne_bytes(a).wrapping_sub(u16::from_ne_bytes(b)).to_ne_bytes()
            }),
            4 => difference_row::<4>(row, stride, |a, b| {
                u32::from_ne_bytes(a).wrapping_sub(u32::from_ne_bytes(b)).to_ne_bytes()
            }),
            _ => {}
        }
    }
}

fn difference_row<const N: usize>(row: &mut [u8], stride: usize, sub: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    let (samples, _) = row.as_chunks_mut::<N>();
    for i in (stride..samples.len()).rev() {
        samples[i] = sub(samples[i], samples[i - stride]);
    }
}

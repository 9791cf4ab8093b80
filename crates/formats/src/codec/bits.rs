//! Samples of 1 to 31 bits, packed row by row, most significant bit first regardless of the file's byte order.

use crate::tiff::page::Layout;

/// Unpacks rows into the page's sample type.
pub(super) fn unpack(layout: &Layout, packed: &[u8], out: &mut [u8]) {
    let row_samples = layout.chunk_width * layout.chunk_samples();
    let size = layout.dtype.size_bytes();
    let row_bytes = (row_samples * layout.bits as usize).div_ceil(8);
    for (row, out_row) in packed.chunks_exact(row_bytes).zip(out.chunks_exact_mut(row_samples * size)) {
        let mut bytes = row.iter();
        let (mut held, mut have) = (0u64, 0u32);
        for o in out_row.chunks_exact_mut(size) {
            while have < layout.bits {
                held = (held << 8) | u64::from(bytes.next().copied().unwrap_or(0));
                have += 8;
            }
            have -= layout.bits;
            let value = (held >> have) & ((1 << layout.bits) - 1);
            store(o, value);
        }
    }
}

fn store(o: &mut [u8], value: u64) {
    match o {
        [a] => *a = value as u8,
        [_, _] => o.copy_from_slice(&(value as u16).to_ne_bytes()),
        [_, _, _, _] => o.copy_from_slice(&(value as u32).to_ne_bytes()),
        _ => {}
    }
}

fn load(o: &[u8]) -> u64 {
    match *o {
        [a] => u64::from(a),
        [a, b] => u64::from(u16::from_ne_bytes([a, b])),
        [a, b, c, d] => u64::from(u32::from_ne_bytes([a, b, c, d])),
        _ => 0,
    }
}

/// Undoes horizontal differencing, modulo the width of a sample.
pub(super) fn undo_horizontal(layout: &Layout, out: &mut [u8]) {
    let stride = layout.chunk_samples();
    let size = layout.dtype.size_bytes();
    let mask = (1u64 << layout.bits) - 1;
    for row in out.chunks_exact_mut(layout.chunk_width * stride * size) {
        let mut before = vec![0u64; stride];
        for pixel in row.chunks_exact_mut(stride * size) {
            for (o, b) in pixel.chunks_exact_mut(size).zip(&mut before) {
                *b = (*b + load(o)) & mask;
                store(o, *b);
            }
        }
    }
}

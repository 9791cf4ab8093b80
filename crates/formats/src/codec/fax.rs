//! CCITT group 4 strips and tiles. Each is wrapped in a TIFF file of one strip and decoded by the `tiff` crate. White is 0,
//! as in libtiff.

use crate::{error::Fault, tiff::page::Layout};
use std::io::Cursor;
use tiff::decoder::{Decoder, Limits};

/// Decodes a chunk of `rows` rows into `out` (1-bit, packed row by row).
pub(super) fn decode(layout: &Layout, encoded: &[u8], rows: usize, out: &mut [u8]) -> Result<(), Fault> {
    let fault = |e: tiff::TiffError| Fault::malformed(format!("a strip or tile is not valid CCITT group 4 data ({e})"));
    let mut limits = Limits::default();
    limits.decoding_buffer_size = out.len();
    limits.intermediate_buffer_size = out.len().max(encoded.len());
    let file = wrap(layout.chunk_width, rows, encoded)?;
    let mut decoder = Decoder::new(Cursor::new(file)).map_err(fault)?.with_limits(limits);
    decoder.read_chunk_bytes(0, out).map_err(fault)
}

/// Returns a little-endian TIFF file whose only strip is `encoded`.
fn wrap(width: usize, rows: usize, encoded: &[u8]) -> Result<Vec<u8>, Fault> {
    const ENTRIES: [u16; 9] = [256, 257, 258, 259, 262, 273, 277, 278, 279];
    const LONG: u16 = 4;
    const FIRST_IFD: u32 = 8;
    let long = |n: usize| {
        u32::try_from(n)
            .map_err(|_| Fault::malformed(format!("a fax strip or tile of {n} pixels or bytes is too large")))
    };
    // Header, number of entries, 12 bytes an entry, offset of the next directory.
    let data_at = FIRST_IFD + 2 + 12 * ENTRIES.len() as u32 + 4;
    let [width, rows, bytes] = [long(width)?, long(rows)?, long(encoded.len())?];
    let mut file = Vec::with_capacity(data_at as usize + encoded.len());
    file.extend(b"II*\0");
    file.extend(FIRST_IFD.to_le_bytes());
    file.extend((ENTRIES.len() as u16).to_le_bytes());
    // Width, height, bits per sample, compression, black is zero, strip offset, samples per pixel, rows per strip, bytes.
    for (tag, value) in ENTRIES.into_iter().zip([width, rows, 1, 4, 1, data_at, 1, rows, bytes]) {
        file.extend(tag.to_le_bytes());
        file.extend(LONG.to_le_bytes());
        file.extend(1u32.to_le_bytes());
        file.extend(value.to_le_bytes());
    }
    file.extend([0; 4]);
    file.extend(encoded);
    Ok(file)
}

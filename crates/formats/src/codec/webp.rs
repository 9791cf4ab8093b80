//! WebP strips and tiles.

use super::too_short;
use crate::{error::Fault, tiff::page::Layout};
use image_webp::WebPDecoder;
use std::io::Cursor;

/// Decodes a chunk of `rows` rows into `out` (8-bit, 3 or 4 samples interleaved).
pub(super) fn decode(layout: &Layout, encoded: &[u8], rows: usize, out: &mut [u8]) -> Result<(), Fault> {
    let fault =
        |e: image_webp::DecodingError| Fault::malformed(format!("a strip or tile is not valid WebP data ({e})"));
    let (width, samples) = (layout.chunk_width, layout.chunk_samples());
    let mut decoder = WebPDecoder::new(Cursor::new(encoded)).map_err(fault)?;
    let (found_width, found_height) = decoder.dimensions();
    let found_samples = if decoder.has_alpha() { 4 } else { 3 };
    // As for JPEG, the last strip may be stored with as many rows as the others, but no more.
    let heights = rows..=layout.chunk_height.max(rows);
    if found_width as usize != width || !heights.contains(&(found_height as usize)) || found_samples > samples {
        return Err(Fault::malformed(format!(
            "a WebP strip or tile is {found_width}x{found_height} with {found_samples} samples; {width}x{rows} with \
             {samples} were expected"
        )));
    }
    let mut pixels = vec![0u8; width * found_height as usize * found_samples];
    decoder.set_memory_limit(pixels.len().saturating_mul(4).max(1 << 20));
    decoder.read_image(&mut pixels).map_err(fault)?;
    if found_samples == samples {
        let from = pixels.get(..out.len()).ok_or_else(|| too_short(layout.codec, pixels.len(), out.len()))?;
        out.copy_from_slice(from);
        return Ok(());
    }
    // An opaque image is stored without its alpha channel.
    for (to, from) in out.chunks_exact_mut(samples).zip(pixels.chunks_exact(found_samples)) {
        let (color, alpha) = to.split_at_mut(found_samples);
        color.copy_from_slice(from);
        alpha.fill(u8::MAX);
    }
    Ok(())
}

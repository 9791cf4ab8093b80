//! JPEG strips and tiles of TIFF, with the shared tables of their page, and subblocks of CZI; YCbCr is converted to RGB.

use crate::{error::Fault, tiff::page::Layout};
use zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions};
use zune_jpeg::JpegDecoder;

/// Decodes a chunk of `rows` rows into `out` (8-bit, samples interleaved).
pub(super) fn decode(layout: &Layout, encoded: &[u8], tables: &[u8], rows: usize, out: &mut [u8]) -> Result<(), Fault> {
    let samples = layout.chunk_samples();
    let width = layout.chunk_width;
    // The tables are a JPEG stream without an image: its markers are inserted before those of the chunk.
    let stream: Vec<u8> = match (tables.strip_suffix(&[0xFF, 0xD9]), encoded.strip_prefix(&[0xFF, 0xD8])) {
        (Some(head), Some(rest)) if head.len() > 2 => [head, rest].concat(),
        _ => encoded.to_vec(),
    };
    let fault = |e: String| Fault::malformed(format!("a strip or tile is not valid JPEG data ({e})"));
    // A strip may be stored with more rows than remain in the page, but never with more than a full chunk.
    let options = DecoderOptions::default()
        .set_max_width(width)
        .set_max_height(layout.chunk_height.max(rows))
        .set_strict_mode(true);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(&stream), options);
    decoder.decode_headers().map_err(|e| fault(e.to_string()))?;
    let stored = decoder.input_colorspace().ok_or_else(|| fault("no components".into()))?;
    let wanted = if layout.ycbcr && samples == 3 { ColorSpace::RGB } else { stored };
    decoder.set_options(options.jpeg_set_out_colorspace(wanted));
    let (got_width, got_height) = decoder.dimensions().ok_or_else(|| fault("no dimensions".into()))?;
    if wanted.num_components() != samples || got_width != width || got_height < rows {
        return Err(Fault::malformed(format!(
            "a JPEG strip or tile is {got_width}x{got_height} with {} samples; {width}x{rows} with {samples} were expected",
            wanted.num_components()
        )));
    }
    let pixels = decoder.decode().map_err(|e| fault(e.to_string()))?;
    let from = pixels.get(..out.len()).ok_or_else(|| fault(format!("only {} bytes", pixels.len())))?;
    out.copy_from_slice(from);
    Ok(())
}

/// Decodes an image of `[width, height, samples]` (8-bit, one sample or three). CZI stores blue in place of the red of JPEG, as
/// in its uncompressed pixels, according to Bio-Formats and czifile, which read it so; no such file written by ZEN was
/// available.
pub(crate) fn decode_blue_first(encoded: &[u8], [width, height, samples]: [usize; 3]) -> Result<Vec<u8>, Fault> {
    let fault = |e: String| Fault::malformed(format!("a subblock is not valid JPEG data ({e})"));
    // A larger image is refused before memory is allocated.
    let options = DecoderOptions::default().set_max_width(width).set_max_height(height).set_strict_mode(true);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(encoded), options);
    decoder.decode_headers().map_err(|e| fault(e.to_string()))?;
    let stored = decoder.input_colorspace().ok_or_else(|| fault("no components".into()))?;
    let wanted = if samples == 3 { ColorSpace::RGB } else { stored };
    decoder.set_options(options.jpeg_set_out_colorspace(wanted));
    let (got_width, got_height) = decoder.dimensions().ok_or_else(|| fault("no dimensions".into()))?;
    if stored.num_components() != samples || (got_width, got_height) != (width, height) {
        return Err(Fault::malformed(format!(
            "a JPEG image is {got_width}x{got_height} with {} samples; {width}x{height} with {samples} were expected",
            stored.num_components()
        )));
    }
    decoder.decode().map_err(|e| fault(e.to_string()))
}

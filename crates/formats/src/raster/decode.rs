//! Headers and pixels of PNG and JPEG files.

use crate::{
    codec::to_native,
    error::{Fault, Remedy},
    fields::Fields,
    limits::Limits,
    meta::ByteOrder,
    source::Source,
};
use std::io::Cursor;
use zune_core::{bytestream::ZCursor, colorspace::ColorSpace, options::DecoderOptions};
use zune_jpeg::JpegDecoder;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Codec {
    Png,
    Jpeg,
}

impl Codec {
    /// The codec for the first bytes of a file.
    pub fn of(head: &[u8]) -> Option<Self> {
        match head {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1A, b'\n', ..] => Some(Codec::Png),
            [0xFF, 0xD8, 0xFF, ..] => Some(Codec::Jpeg),
            _ => None,
        }
    }
}

/// Size and sample type of an image; equal for all files of a series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Header {
    /// Format of the file.
    pub codec: Codec,
    /// Pixels along X.
    pub width: usize,
    /// Pixels along Y.
    pub height: usize,
    /// Samples per pixel: 1 (gray or palette), 2 (gray and alpha), 3 (RGB) or 4 (RGB and alpha).
    pub samples: usize,
    /// Stored bits per sample: 1, 2, 4, 8 or 16.
    pub bits: u32,
    /// Whether the samples are indices of a palette, which cannot be compared with gray values.
    pub is_palette: bool,
}

/// Length of the part of a PNG file that is its header, in bytes.
const PNG_HEADER: usize = 29;
/// Largest number of segments before the image header of a JPEG file.
const MAX_JPEG_SEGMENTS: usize = 65_536;

impl Header {
    /// Reads the header of a file; no pixels are decoded.
    pub fn read(source: &Source) -> Result<Self, Fault> {
        let head = source.read_vec(0, source.len().min(PNG_HEADER as u64) as usize)?;
        match Codec::of(&head) {
            Some(Codec::Png) => Self::png(&head),
            Some(Codec::Jpeg) => Self::jpeg(source),
            None => Err(Fault::malformed("it is neither a PNG nor a JPEG image")),
        }
    }

    fn png(head: &[u8]) -> Result<Self, Fault> {
        let f = Fields::big(head);
        if f.slice(12, 4)? != b"IHDR" {
            return Err(Fault::malformed("the PNG image does not begin with its header"));
        }
        let (width, height) = (f.u32(16)? as usize, f.u32(20)? as usize);
        let bits = u32::from(f.u8(24)?);
        let color_type = f.u8(25)?;
        let samples = match (color_type, bits) {
            (0, 1 | 2 | 4 | 8 | 16) | (3, 1 | 2 | 4 | 8) => 1,
            (4, 8 | 16) => 2,
            (2, 8 | 16) => 3,
            (6, 8 | 16) => 4,
            (kind, _) => {
                return Err(Fault::malformed(format!("the PNG header has color type {kind} with {bits} bits")));
            }
        };
        non_empty(Self { codec: Codec::Png, width, height, samples, bits, is_palette: color_type == 3 })
    }

    /// Finds the frame header among the segments of a JPEG file.
    fn jpeg(source: &Source) -> Result<Self, Fault> {
        let mut at = 2u64;
        for _ in 0..MAX_JPEG_SEGMENTS {
            let mut head = [0; 4];
            source.read_at(at, &mut head)?;
            let [0xFF, marker, a, b] = head else {
                return Err(Fault::malformed(format!("there is no JPEG marker at byte {at}")));
            };
            let length = u64::from(u16::from_be_bytes([a, b]));
            match marker {
                // Fill bytes before a marker.
                0xFF => at += 1,
                0xC0..=0xCF if !matches!(marker, 0xC4 | 0xC8 | 0xCC) => {
                    let frame = source.read_vec(at + 4, 6)?;
                    return Self::jpeg_frame(marker, &frame);
                }
                0xD9 | 0xDA => break,
                // Markers without content.
                0x01 | 0xD0..=0xD8 => at += 2,
                _ => at += 2 + length.max(2),
            }
        }
        Err(Fault::malformed("the JPEG image has no frame header"))
    }

    fn jpeg_frame(marker: u8, frame: &[u8]) -> Result<Self, Fault> {
        let f = Fields::big(frame);
        let (bits, height, width) = (f.u8(0)?, f.u16(1)? as usize, f.u16(3)? as usize);
        let components = f.u8(5)?;
        let unsupported = match (marker, bits, components) {
            (0xC0..=0xC2, 8, 1 | 3) => None,
            (0xC0..=0xC2, 8, 4) => Some("its colors are CMYK".to_owned()),
            (0xC0..=0xC2, bits, _) if bits != 8 => Some(format!("its samples have {bits} bits")),
            (0xC0..=0xC2, ..) => Some(format!("a pixel has {components} samples")),
            _ => Some("it is a lossless or arithmetic-coded JPEG".to_owned()),
        };
        if let Some(problem) = unsupported {
            return Err(Fault::unsupported(problem, "save it as PNG or TIFF"));
        }
        let samples = usize::from(components);
        non_empty(Self { codec: Codec::Jpeg, width, height, samples, bits: 8, is_palette: false })
    }

    /// Size of the decoded samples in bytes.
    fn decoded_bytes(&self) -> Option<usize> {
        let sample = if self.bits == 16 { 2 } else { 1 };
        self.width.checked_mul(self.height)?.checked_mul(self.samples)?.checked_mul(sample)
    }
}

fn non_empty(header: Header) -> Result<Header, Fault> {
    if header.width == 0 || header.height == 0 {
        return Err(Fault::malformed("the image has no pixels"));
    }
    Ok(header)
}

/// Largest number of bytes that one stored byte can decode to.
const MAX_RATIO: u64 = 4096;

/// Returns the size in bytes of the samples that a file of `stored` bytes decodes to. Sizes above the limit, or that the file
/// cannot have, are refused.
pub(super) fn checked_bytes(stored: u64, header: &Header, limits: &Limits) -> Result<usize, Fault> {
    let decoded = header.decoded_bytes().unwrap_or(usize::MAX);
    let limit = limits.max_chunk_bytes;
    for (what, bytes) in [("the size of the file in bytes", stored), ("the size of a slice in bytes", decoded as u64)] {
        if bytes > limit {
            return Err(Fault::over(what, bytes, "max_chunk_bytes", limit, Remedy::SmallerChunks));
        }
    }
    if decoded as u64 > stored.saturating_mul(MAX_RATIO) {
        return Err(Fault::malformed(format!("an image of {stored} bytes cannot decode to {decoded}")));
    }
    Ok(decoded)
}

/// Decodes a file to samples in native byte order, axes C, Y, X.
pub(super) fn decode(source: &Source, header: &Header, limits: &Limits) -> Result<Vec<u8>, Fault> {
    let decoded = checked_bytes(source.len(), header, limits)?;
    let file = source.read_vec(0, source.len() as usize)?;
    let interleaved = match header.codec {
        Codec::Png => decode_png(&file, header, decoded)?,
        Codec::Jpeg => decode_jpeg(&file, header)?,
    };
    if interleaved.len() < decoded {
        return Err(Fault::malformed(format!("the image decodes to {} bytes, not {decoded}", interleaved.len())));
    }
    let sample = if header.bits == 16 { 2 } else { 1 };
    let mut separate = separated(interleaved, header.samples, sample);
    separate.truncate(decoded);
    // PNG is big-endian; samples of one byte do not change.
    to_native(ByteOrder::Big, sample, &mut separate);
    Ok(separate)
}

/// Memory of the PNG decoder apart from its output, in bytes.
const PNG_WORK_BYTES: usize = 64 << 20;

fn decode_png(file: &[u8], header: &Header, decoded: usize) -> Result<Vec<u8>, Fault> {
    let fault = |e: png::DecodingError| Fault::malformed(format!("the image is not valid PNG data ({e})"));
    let limits = png::Limits { bytes: decoded.saturating_add(PNG_WORK_BYTES) };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(file), limits);
    // Values as stored: palette images are indices, and nothing is scaled.
    decoder.set_transformations(png::Transformations::IDENTITY);
    let mut reader = decoder.read_info().map_err(fault)?;
    let size = reader.output_buffer_size().filter(|n| *n <= decoded);
    let size = size.ok_or_else(|| Fault::malformed("the PNG data are larger than the header states"))?;
    let mut rows = vec![0; size];
    let frame = reader.next_frame(&mut rows).map_err(fault)?;
    if (frame.width as usize, frame.height as usize) != (header.width, header.height) {
        return Err(Fault::malformed("the first frame of the PNG is smaller than the image"));
    }
    if header.bits >= 8 {
        return Ok(rows);
    }
    Ok(unpacked(&rows, header, frame.line_size))
}

/// Spreads samples of 1, 2 or 4 bits to one byte each; rows begin at whole bytes.
fn unpacked(rows: &[u8], header: &Header, line_size: usize) -> Vec<u8> {
    let bits = header.bits as usize;
    let mask = (1u8 << bits) - 1;
    let sample = |row: &[u8], x: usize| {
        let byte = row.get(x * bits / 8).copied().unwrap_or(0);
        (byte >> (8 - bits - (x * bits) % 8)) & mask
    };
    rows.chunks_exact(line_size.max(1)).flat_map(|row| (0..header.width).map(move |x| sample(row, x))).collect()
}

fn decode_jpeg(file: &[u8], header: &Header) -> Result<Vec<u8>, Fault> {
    let fault = |e: String| Fault::malformed(format!("the image is not valid JPEG data ({e})"));
    let space = if header.samples == 1 { ColorSpace::Luma } else { ColorSpace::RGB };
    let options = DecoderOptions::default()
        .set_max_width(header.width)
        .set_max_height(header.height)
        .set_strict_mode(true)
        .jpeg_set_out_colorspace(space);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(file), options);
    decoder.decode_headers().map_err(|e| fault(e.to_string()))?;
    if decoder.dimensions() != Some((header.width, header.height)) {
        return Err(fault("its size changes".to_owned()));
    }
    decoder.decode().map_err(|e| fault(e.to_string()))
}

/// Moves the samples of each pixel into separate planes.
fn separated(interleaved: Vec<u8>, samples: usize, size: usize) -> Vec<u8> {
    if samples == 1 {
        return interleaved;
    }
    let pixels = interleaved.chunks_exact(samples * size);
    (0..samples)
        .flat_map(|s| pixels.clone().flat_map(move |p| p.get(s * size..(s + 1) * size).unwrap_or_default()))
        .copied()
        .collect()
}

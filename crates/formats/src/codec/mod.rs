//! Decodes the bytes of a strip or tile to samples in native byte order. No decoder writes beyond its output buffer.

mod bits;
mod deflate;
mod fax;
mod jpeg;
mod jpeg_xr;
mod lzw;
mod packbits;
mod predict;
mod stream;
mod webp;
pub(crate) use deflate::{compress as deflate_compress, decode as inflate};
pub(crate) use jpeg::decode_blue_first as decode_jpeg_blue_first;
pub(crate) use jpeg_xr::decode_blue_first;
pub(crate) use lzw::decode as lzw_decode;
pub(crate) use predict::{horizontal_differences, to_native};
pub(crate) use stream::{bz2_up_to, lzma_up_to};
pub(crate) use zstandard::{LEVEL as ZSTD_LEVEL, compress as zstd_compress};
pub(crate) mod zstandard;

use crate::{
    error::{Fault, RESAVE},
    file_format::StoredCompression,
    meta::ByteOrder,
    tiff::page::{Layout, Predictor},
};

/// Advice for pages in JPEG 2000, which are mostly those of slides of Aperio.
const JPEG_2000_ADVICE: &str = "convert the file to a tiled TIFF with JPEG, LZW or no compression, for example with QuPath \
                                (File > Export images > OME TIFF) or bfconvert -compression LZW";

/// How the pixels of a page are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Codec {
    Raw,
    Lzw,
    Jpeg,
    Deflate,
    PackBits,
    Zstd,
    Lzma,
    /// CCITT group 4, decoded by the `tiff` crate.
    Fax4,
    /// WebP, lossy or lossless, with 8 bits per color.
    WebP,
    /// JPEG XR, lossy or lossless, with 8, 16 or 32 bits per sample.
    JpegXr,
}

impl Codec {
    /// The codec for a value of the Compression tag (259).
    pub fn from_tag(value: u64) -> Result<Self, Fault> {
        let unsupported = match value {
            0 | 1 => return Ok(Codec::Raw),
            5 => return Ok(Codec::Lzw),
            7 | 33007 => return Ok(Codec::Jpeg),
            8 | 32946 => return Ok(Codec::Deflate),
            32773 => return Ok(Codec::PackBits),
            34925 => return Ok(Codec::Lzma),
            34926 | 50000 => return Ok(Codec::Zstd),
            4 => return Ok(Codec::Fax4),
            34927 | 50001 => return Ok(Codec::WebP),
            34934 | 22610 => return Ok(Codec::JpegXr),
            2 => "CCITT modified Huffman (fax)",
            3 => "CCITT group 3 (fax)",
            6 => "old-style JPEG",
            9 | 10 => "JBIG",
            32766 => "NeXT",
            32809 => "ThunderScan",
            32895..=32898 => "IT8",
            33003 | 33004 | 33005 | 34712 => {
                let found = format!("JPEG 2000 compression ({value}) is not supported");
                return Err(Fault::unsupported(found, JPEG_2000_ADVICE));
            }
            34676 | 34677 => "SGI LogLuv",
            34887 => "LERC",
            34892 => "lossy JPEG (DNG)",
            34933 => "PNG",
            50002 | 52546 => "JPEG XL",
            other => return Err(Fault::unsupported(format!("unknown compression {other}"), RESAVE)),
        };
        Err(Fault::unsupported(format!("{unsupported} compression ({value}) is not supported"), RESAVE))
    }

    /// The compression that the codec decodes, as in messages and reports.
    pub fn compression(self) -> StoredCompression {
        match self {
            Codec::Raw => StoredCompression::None,
            Codec::Lzw => StoredCompression::Lzw,
            Codec::Jpeg => StoredCompression::Jpeg,
            Codec::Deflate => StoredCompression::Deflate,
            Codec::PackBits => StoredCompression::PackBits,
            Codec::Zstd => StoredCompression::Zstd,
            Codec::Lzma => StoredCompression::Lzma,
            Codec::Fax4 => StoredCompression::CcittGroup4,
            Codec::WebP => StoredCompression::WebP,
            Codec::JpegXr => StoredCompression::JpegXr,
        }
    }

    /// Whether the Predictor tag applies to this codec.
    pub fn takes_predictor(self) -> bool {
        matches!(self, Codec::Raw | Codec::Lzw | Codec::Deflate | Codec::Zstd | Codec::Lzma)
    }

    /// Largest number of bytes that one stored byte can decode to. A chunk that declares more is refused before memory
    /// is allocated.
    pub fn max_ratio(self) -> u64 {
        match self {
            Codec::Raw => 1,
            Codec::PackBits => 64,
            Codec::Lzw | Codec::Deflate | Codec::Jpeg => 4096,
            // A blank row of a fax takes one bit, a blank image in WebP a few bytes, 16 × 16 blank pixels in JPEG XR some bits.
            Codec::Zstd | Codec::Lzma | Codec::Fax4 | Codec::WebP | Codec::JpegXr => 1 << 17,
        }
    }
}

/// Decodes one chunk of `rows` rows into `out`, which holds exactly its samples.
///
/// `tables` are the JPEG tables of the page, or empty.
pub(crate) fn decode_chunk(
    layout: &Layout,
    order: ByteOrder,
    encoded: &mut [u8],
    tables: &[u8],
    rows: usize,
    out: &mut [u8],
) -> Result<(), Fault> {
    if layout.bits_reversed && !matches!(layout.codec, Codec::Jpeg | Codec::JpegXr) {
        encoded.iter_mut().for_each(|b| *b = b.reverse_bits());
    }
    if layout.codec == Codec::Jpeg {
        return jpeg::decode(layout, encoded, tables, rows, out);
    }
    if layout.codec == Codec::JpegXr {
        return jpeg_xr::decode(layout, encoded, rows, out);
    }
    let row_bytes = layout.packed_row_bytes().unwrap_or(usize::MAX);
    let packed_len = row_bytes.saturating_mul(rows);
    // The last strip may be stored with as many rows as the others.
    let padded_len = row_bytes.saturating_mul(layout.chunk_height).max(packed_len);
    if layout.whole_bytes() {
        if out.len() != packed_len {
            return Err(Fault::malformed("a strip or tile does not match its page"));
        }
        decompress(layout, encoded, rows, out, padded_len)?;
        predict::undo(layout, order, out);
    } else {
        let mut packed = vec![0u8; packed_len];
        decompress(layout, encoded, rows, &mut packed, padded_len)?;
        bits::unpack(layout, &packed, out);
        if layout.predictor == Predictor::Horizontal {
            bits::undo_horizontal(layout, out);
        }
    }
    Ok(())
}

fn decompress(layout: &Layout, encoded: &[u8], rows: usize, out: &mut [u8], padded_len: usize) -> Result<(), Fault> {
    let codec = layout.codec;
    match codec {
        Codec::Raw => {
            let from = encoded.get(..out.len()).ok_or_else(|| too_short(codec, encoded.len(), out.len()))?;
            out.copy_from_slice(from);
            Ok(())
        }
        Codec::Lzw => lzw::decode(encoded, out),
        Codec::Deflate => deflate::decode(encoded, out, padded_len),
        Codec::PackBits => packbits::decode(encoded, out),
        Codec::Zstd => zstandard::decode(encoded, out, padded_len),
        Codec::Lzma => lzma(encoded, out, padded_len),
        Codec::Fax4 => fax::decode(layout, encoded, rows, out),
        Codec::WebP => webp::decode(layout, encoded, rows, out),
        Codec::Jpeg | Codec::JpegXr => Err(Fault::malformed("unexpected JPEG data")),
    }
}

/// Decodes LZMA data into `out`, which must be filled exactly; data that continue, up to `padded_len` bytes, are cut off.
fn lzma(encoded: &[u8], out: &mut [u8], padded_len: usize) -> Result<(), Fault> {
    let invalid = |reason: String| Fault::malformed(format!("a strip or tile is not valid LZMA data ({reason})"));
    let (filled, more) = stream::lzma_into(encoded, out).map_err(invalid)?;
    if filled < out.len() {
        return Err(too_short(Codec::Lzma, filled, out.len()));
    }
    if more && padded_len == out.len() {
        return Err(Fault::malformed("a strip or tile decodes to more bytes than its page can hold"));
    }
    Ok(())
}

/// The error for a chunk that decodes to too few bytes.
fn too_short(codec: Codec, got: usize, expected: usize) -> Fault {
    Fault::malformed(format!(
        "a strip or tile ({}) decodes to {got} bytes; {expected} were expected",
        codec.compression()
    ))
}

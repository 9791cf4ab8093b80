//! The pixel layout of one page (IFD), validated once.

use super::ifd::{Container, Entry, Ifd, tag};
use crate::{
    codec::Codec,
    error::{Fault, RESAVE},
};
use cytoscope_volume::DType;
use std::sync::Arc;

/// Parameters for decoding the strips or tiles of a page; shared by the pages of a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Pixels along X.
    pub width: usize,
    /// Pixels along Y.
    pub height: usize,
    /// Number of samples per pixel, such as 3 for RGB.
    pub samples: usize,
    /// Number of stored bits per sample.
    pub bits: u32,
    /// Type of the samples after decoding.
    pub dtype: DType,
    /// Compression of strips and tiles.
    pub codec: Codec,
    /// Transformation of the samples before compression.
    pub predictor: Predictor,
    /// Whether each sample is stored in its own plane.
    pub planar: bool,
    /// Whether colors are stored as YCbCr, which the JPEG decoder converts to RGB.
    pub ycbcr: bool,
    /// Whether samples are indices of a palette.
    pub palette: bool,
    /// Whether 0 is shown as white.
    pub white_is_zero: bool,
    /// Whether the first sample of a byte is in its lowest bits.
    pub bits_reversed: bool,
    /// Whether the page is stored in tiles, otherwise in strips.
    pub tiled: bool,
    /// Pixels along X of a tile; of a strip, all of a row.
    pub chunk_width: usize,
    /// Pixels along Y of a tile or strip.
    pub chunk_height: usize,
    /// NewSubfileType bit 0: a lower resolution of another page.
    pub reduced: bool,
}

/// Width, height, samples per pixel, bits per sample, sample type, whether reduced, whether planar.
pub(crate) type StackKey = (usize, usize, usize, u32, DType, bool, bool);

/// Transformation of the samples before compression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Predictor {
    None,
    Horizontal,
    Float,
}

impl Layout {
    /// Number of chunks along X, along Y, and of sample planes.
    pub fn grid(&self) -> (usize, usize, usize) {
        let planes = if self.planar { self.samples } else { 1 };
        (self.width.div_ceil(self.chunk_width), self.height.div_ceil(self.chunk_height), planes)
    }

    /// Interleaved samples per pixel of a chunk.
    pub fn chunk_samples(&self) -> usize {
        if self.planar { 1 } else { self.samples }
    }

    /// Number of rows stored in the chunk row `row`.
    pub fn rows_in(&self, row: usize) -> usize {
        if self.tiled {
            self.chunk_height
        } else {
            self.chunk_height.min(self.height.saturating_sub(row.saturating_mul(self.chunk_height)))
        }
    }

    /// Whether the stored samples have the width of the sample type, so that only the byte order may differ.
    pub fn whole_bytes(&self) -> bool {
        self.bits as usize == self.dtype.size_bytes() * 8
    }

    /// Bytes of one row of a chunk before compression, if the number fits `usize`.
    pub fn packed_row_bytes(&self) -> Option<usize> {
        let bits = self.chunk_width.checked_mul(self.chunk_samples())?.checked_mul(self.bits as usize)?;
        Some(bits.div_ceil(8))
    }

    /// Bytes of a decoded plane, if the number fits `usize`.
    pub fn plane_bytes(&self) -> Option<usize> {
        self.width.checked_mul(self.height)?.checked_mul(self.samples)?.checked_mul(self.dtype.size_bytes())
    }

    /// Properties that all planes of a stack have in common.
    pub fn stack_key(&self) -> StackKey {
        (self.width, self.height, self.samples, self.bits, self.dtype, self.reduced, self.planar)
    }

    /// Whether two pages can be planes of one stack.
    pub fn stacks_with(&self, other: &Layout) -> bool {
        self.stack_key() == other.stack_key()
    }

    /// Whether the pages of two files can be slices of one stack: their samples have the same meaning, too. Pages of one file may
    /// differ in that, because some programs store the colors of a channel as a palette.
    pub fn is_slice_with(&self, other: &Layout) -> bool {
        self.stacks_with(other) && (self.palette, self.white_is_zero) == (other.palette, other.white_is_zero)
    }
}

/// One page: its layout, and where its pixels are.
#[derive(Debug, Clone)]
pub(crate) struct Page {
    /// How strips or tiles are decoded.
    pub layout: Arc<Layout>,
    /// Where each strip or tile begins.
    pub offsets: Entry,
    /// Stored size of each strip or tile in bytes; `None` if the page does not state it.
    pub counts: Option<Entry>,
    /// Tables that all JPEG strips or tiles share.
    pub jpeg_tables: Option<Entry>,
    /// Offsets of SubIFDs; `None` for most pages.
    pub sub_ifds: Option<Entry>,
}

impl Page {
    /// Reads a page from its directory. `like` is a layout that is shared if it is the same.
    pub fn parse(file: &Container, ifd: &Ifd, like: Option<&Arc<Layout>>) -> Result<Page, Fault> {
        let layout = layout(file, ifd)?;
        let (offsets_tag, counts_tag) = if ifd.get(tag::TILE_OFFSETS).is_some() && layout.tiled {
            (tag::TILE_OFFSETS, tag::TILE_COUNTS)
        } else {
            (tag::STRIP_OFFSETS, tag::STRIP_COUNTS)
        };
        let offsets = *ifd
            .get(offsets_tag)
            .ok_or_else(|| Fault::malformed(format!("a page has no tag {offsets_tag}, the offsets of its pixels")))?;
        let layout = match like {
            Some(shared) if **shared == layout => Arc::clone(shared),
            _ => Arc::new(layout),
        };
        Ok(Page {
            layout,
            offsets,
            counts: ifd.get(counts_tag).copied(),
            jpeg_tables: ifd.get(tag::JPEG_TABLES).copied(),
            sub_ifds: ifd.get(tag::SUB_IFDS).copied(),
        })
    }

    /// The stored sizes of the strips or tiles. `None` if they are not stated, or if the page is a single uncompressed one:
    /// its size follows from the layout, and some programs state 0.
    pub fn stated_counts(&self) -> Option<&Entry> {
        let is_one_raw = self.layout.codec == Codec::Raw && self.offsets.count == 1;
        self.counts.as_ref().filter(|_| !is_one_raw)
    }
}

/// Largest edge of a CCITT group 4 strip or tile in pixels.
const MAX_FAX_EDGE: usize = 65_535;
/// Largest edge in pixels of a tile that is more than twice as long as its page. Tiles of usual sizes may be larger than a small
/// page, and an edge is rounded up to a multiple of 16.
const MAX_TILE_EDGE: usize = 16_384;

fn layout(file: &Container, ifd: &Ifd) -> Result<Layout, Fault> {
    let width = extent(file, ifd, tag::WIDTH, "width")?;
    let height = extent(file, ifd, tag::HEIGHT, "height")?;
    let samples = file.integer_or(ifd, tag::SAMPLES, 1)?;
    if samples == 0 || samples > u64::from(u16::MAX) {
        return Err(Fault::malformed(format!("a page has {samples} samples per pixel")));
    }
    // Of a page whose number of slices is not known, only the first one would be read.
    let depth = file.integer_or(ifd, tag::IMAGE_DEPTH, 1)?;
    if depth > 1 {
        let problem = format!("a page holds {depth} slices (tag ImageDepth), which is not supported");
        return Err(Fault::unsupported(
            problem,
            "save each slice as a page; Python's tifffile does without volumetric=True",
        ));
    }
    let same = |tag: u16, name: &str, default: u64| -> Result<u64, Fault> {
        let Some(entry) = ifd.get(tag) else { return Ok(default) };
        let mut all = file.integers(entry, 0, entry.count.min(samples))?;
        if tag == tag::BITS {
            all = bits_per_sample(file, entry, all);
        }
        let first = all.first().copied().unwrap_or(default);
        if all.iter().any(|v| *v != first) {
            return Err(Fault::unsupported(
                format!("the samples of a pixel differ in their {name} ({all:?})"),
                "save the image with samples of one type",
            ));
        }
        Ok(first)
    };
    let bits = same(tag::BITS, "number of bits", 1)?;
    let format = same(tag::SAMPLE_FORMAT, "format", 1)?;
    let dtype = dtype(format, bits)?;
    let photometric = file.integer_or(ifd, tag::PHOTOMETRIC, 1)?;
    let codec = Codec::from_tag(file.integer_or(ifd, tag::COMPRESSION, 1)?)?;
    let predictor = predictor(file, ifd, codec, dtype)?;
    let planar = match file.integer_or(ifd, tag::PLANAR, 1)? {
        2 => samples > 1,
        0 | 1 => false,
        other => return Err(Fault::malformed(format!("planar configuration {other} is not 1 or 2"))),
    };
    let ycbcr = photometric == 6;
    check_codec(file, ifd, codec, ycbcr, (samples, bits, dtype))?;
    let reduced = file.integer_or(ifd, tag::NEW_SUBFILE_TYPE, 0)? & 1 == 1;
    let bits_reversed = file.integer_or(ifd, tag::FILL_ORDER, 1)? == 2;
    let tiled = ifd.get(tag::TILE_WIDTH).is_some() && ifd.get(tag::TILE_HEIGHT).is_some();
    let (chunk_width, chunk_height) = chunk_size(file, ifd, tiled, (width, height))?;
    if codec == Codec::Fax4 && chunk_width.max(chunk_height) > MAX_FAX_EDGE {
        return Err(Fault::unsupported(
            format!(
                "CCITT group 4 compression of strips or tiles of {chunk_width}x{chunk_height} pixels is not supported"
            ),
            RESAVE,
        ));
    }
    Ok(Layout {
        width,
        height,
        samples: samples as usize,
        bits: bits as u32,
        dtype,
        codec,
        predictor,
        planar,
        ycbcr,
        palette: photometric == 3,
        white_is_zero: photometric == 0,
        bits_reversed,
        tiled,
        chunk_width,
        chunk_height,
        reduced,
    })
}

/// The bits per sample of a page. LSM files may store those of two channels elsewhere in the file, although they would fit
/// into the tag, which then holds their position; tifffile handles this in the same way.
fn bits_per_sample(file: &Container, entry: &Entry, stated: Vec<u64>) -> Vec<u64> {
    // The caller refuses a page whose samples have valid, but different numbers of bits.
    if stated.iter().all(|bits| (1..=64).contains(bits)) {
        return stated;
    }
    let elsewhere = file.two_shorts_elsewhere(entry);
    let is_usual = |found: &[u64; 2]| found.iter().all(|bits| matches!(*bits, 8 | 12 | 16 | 32));
    elsewhere.filter(is_usual).map_or(stated, |found| found.to_vec())
}

/// Reads a length that must be positive.
fn extent(file: &Container, ifd: &Ifd, tag: u16, name: &str) -> Result<usize, Fault> {
    let entry = ifd.get(tag).ok_or_else(|| Fault::malformed(format!("a page has no {name} (tag {tag})")))?;
    let n = file.integer(entry)?;
    if n == 0 || n > i32::MAX as u64 {
        return Err(Fault::malformed(format!("a page has an invalid {name}: {n}")));
    }
    Ok(n as usize)
}

fn predictor(file: &Container, ifd: &Ifd, codec: Codec, dtype: DType) -> Result<Predictor, Fault> {
    Ok(match file.integer_or(ifd, tag::PREDICTOR, 1)? {
        _ if !codec.takes_predictor() => Predictor::None,
        1 => Predictor::None,
        2 => Predictor::Horizontal,
        3 if dtype.is_float() => Predictor::Float,
        other => {
            return Err(Fault::unsupported(
                format!(
                    "predictor {other} on {dtype} samples is not supported: expected none (1), horizontal (2) or, for floats, \
                    floating point (3)"
                ),
                RESAVE,
            ));
        }
    })
}

/// Refuses subsampled colors and samples that the compression cannot hold.
fn check_codec(
    file: &Container,
    ifd: &Ifd,
    codec: Codec,
    ycbcr: bool,
    (samples, bits, dtype): (u64, u64, DType),
) -> Result<(), Fault> {
    if ycbcr && codec != Codec::Jpeg {
        let entry = ifd.get(tag::YCBCR_SUBSAMPLING);
        let sub = entry.map_or(Ok(vec![2, 2]), |e| file.integers(e, 0, 2))?;
        if sub != [1, 1] {
            return Err(Fault::unsupported("the colors are subsampled YCbCr without JPEG", "save the image as RGB"));
        }
    }
    if codec == Codec::Jpeg && (bits != 8 || dtype != DType::U8) {
        return Err(Fault::unsupported(
            format!("JPEG compression of {bits}-bit {dtype} samples is not supported"),
            RESAVE,
        ));
    }
    if codec == Codec::WebP && (dtype != DType::U8 || bits != 8 || !matches!(samples, 3 | 4)) {
        return Err(Fault::unsupported(
            format!("WebP compression of {samples} samples of {bits}-bit {dtype} is not supported"),
            RESAVE,
        ));
    }
    if codec == Codec::JpegXr && bits != 8 * dtype.size_bytes() as u64 {
        return Err(Fault::unsupported(
            format!("JPEG XR compression of {bits}-bit {dtype} samples is not supported"),
            RESAVE,
        ));
    }
    if codec == Codec::Fax4 && (bits != 1 || samples != 1) {
        return Err(Fault::unsupported(
            format!("CCITT group 4 compression of {samples} samples of {bits} bits is not supported"),
            RESAVE,
        ));
    }
    Ok(())
}

/// Returns width and height of a tile or strip.
fn chunk_size(
    file: &Container,
    ifd: &Ifd,
    tiled: bool,
    (width, height): (usize, usize),
) -> Result<(usize, usize), Fault> {
    Ok(if tiled {
        let across = extent(file, ifd, tag::TILE_WIDTH, "tile width")?;
        let down = extent(file, ifd, tag::TILE_HEIGHT, "tile height")?;
        let is_too_large = |edge: usize, page_edge: usize| edge > page_edge.saturating_mul(2).max(MAX_TILE_EDGE);
        if is_too_large(across, width) || is_too_large(down, height) {
            return Err(Fault::malformed(format!(
                "a page of {width}x{height} pixels has tiles of {across}x{down} pixels, far larger than the page (limit \
                 MAX_TILE_EDGE = {MAX_TILE_EDGE})"
            )));
        }
        (across, down)
    } else {
        let rows = file.integer_or(ifd, tag::ROWS_PER_STRIP, u64::from(u32::MAX))?;
        if rows == 0 {
            return Err(Fault::malformed("a page has strips of 0 rows"));
        }
        (width, rows.min(height as u64) as usize)
    })
}

fn dtype(format: u64, bits: u64) -> Result<DType, Fault> {
    Ok(match (format, bits) {
        (1 | 4, 1..=8) => DType::U8,
        (1 | 4, 9..=16) => DType::U16,
        (1 | 4, 17..=32) => DType::U32,
        (1 | 4, 64) => DType::U64,
        (2, 8) => DType::I8,
        (2, 16) => DType::I16,
        (2, 32) => DType::I32,
        (2, 64) => DType::I64,
        (3, 16) => DType::F16,
        (3, 32) => DType::F32,
        (3, 64) => DType::F64,
        (5 | 6, _) => {
            return Err(Fault::unsupported("the samples are complex numbers", "save their parts as channels"));
        }
        (1..=4, 1..=128) => {
            let name = ["", "unsigned", "signed", "floating point", "untyped"].get(format as usize).unwrap_or(&"");
            return Err(Fault::unsupported(
                format!("{bits}-bit {name} samples are not supported"),
                "save it with 8, 16, 32 or 64 bits per sample",
            ));
        }
        _ => return Err(Fault::malformed(format!("a page has {bits}-bit samples of format {format}"))),
    })
}

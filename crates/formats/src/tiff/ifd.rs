//! The TIFF container: header, image file directories (IFDs) and tag values, with all sizes checked.

use crate::{
    error::{Fault, Remedy},
    limits::Limits,
    meta::ByteOrder,
    source::Source,
};

/// Tags that are read or written.
pub(crate) mod tag {
    /// `NewSubfileType`: bit 0 marks a lower resolution of another page.
    pub const NEW_SUBFILE_TYPE: u16 = 254;
    /// `ImageWidth` in pixels.
    pub const WIDTH: u16 = 256;
    /// `ImageLength`: height in pixels.
    pub const HEIGHT: u16 = 257;
    /// `BitsPerSample`, one number for each sample of a pixel.
    pub const BITS: u16 = 258;
    /// `Compression`: 1 for none, 5 for LZW, 8 for Deflate, and others.
    pub const COMPRESSION: u16 = 259;
    /// `PhotometricInterpretation`: 0 and 1 for gray, 2 for RGB, 3 for a palette, 6 for YCbCr.
    pub const PHOTOMETRIC: u16 = 262;
    /// `FillOrder`: 2 if the first sample of a byte is in its lowest bits.
    pub const FILL_ORDER: u16 = 266;
    /// `ImageDescription`: free text, OME-XML, or ImageJ's metadata.
    pub const DESCRIPTION: u16 = 270;
    /// `StripOffsets`: where each strip begins, in bytes.
    pub const STRIP_OFFSETS: u16 = 273;
    /// `Orientation`: 1 if the first row is at the top and the first column at the left, and others to 8.
    pub const ORIENTATION: u16 = 274;
    /// `SamplesPerPixel`.
    pub const SAMPLES: u16 = 277;
    /// `RowsPerStrip`.
    pub const ROWS_PER_STRIP: u16 = 278;
    /// `StripByteCounts`: stored size of each strip.
    pub const STRIP_COUNTS: u16 = 279;
    /// `XResolution`: pixels per unit of length along X.
    pub const X_RESOLUTION: u16 = 282;
    /// `YResolution`: pixels per unit of length along Y.
    pub const Y_RESOLUTION: u16 = 283;
    /// `PlanarConfiguration`: 1 if the samples of a pixel are side by side, 2 if each sample has its own plane.
    pub const PLANAR: u16 = 284;
    /// `ResolutionUnit`: 1 for none, 2 for inches, 3 for centimeters; of Python's tifffile, 4 for millimeters, 5 for
    /// micrometers.
    pub const RESOLUTION_UNIT: u16 = 296;
    /// `Predictor`: 1 for none, 2 for horizontal differences, 3 for those of floats.
    pub const PREDICTOR: u16 = 317;
    /// `TileWidth` in pixels.
    pub const TILE_WIDTH: u16 = 322;
    /// `TileLength`: height of a tile in pixels.
    pub const TILE_HEIGHT: u16 = 323;
    /// `TileOffsets`: where each tile begins, in bytes.
    pub const TILE_OFFSETS: u16 = 324;
    /// `TileByteCounts`: stored size of each tile.
    pub const TILE_COUNTS: u16 = 325;
    /// `SubIFDs`: offsets of directories that belong to this one, such as lower resolutions.
    pub const SUB_IFDS: u16 = 330;
    /// `ExtraSamples`: 0 for samples of any meaning, 2 for transparency.
    pub const EXTRA_SAMPLES: u16 = 338;
    /// `SampleFormat`: 1 for unsigned integers, 2 for signed ones, 3 for floats.
    pub const SAMPLE_FORMAT: u16 = 339;
    /// `SMinSampleValue`: value shown as black.
    pub const S_MIN: u16 = 340;
    /// `SMaxSampleValue`: value shown as white.
    pub const S_MAX: u16 = 341;
    /// `JPEGTables`: quantization and Huffman tables that all strips or tiles share.
    pub const JPEG_TABLES: u16 = 347;
    /// `YCbCrSubSampling`: pixels along X and Y that share their color.
    pub const YCBCR_SUBSAMPLING: u16 = 530;
    /// `ImageDepth`: number of slices in a page.
    pub const IMAGE_DEPTH: u16 = 32997;
    /// ImageJ's `MetaDataByteCounts`: length of each part of [`IJ_METADATA`], its header first.
    pub const IJ_METADATA_COUNTS: u16 = 50838;
    /// ImageJ's `MetaData`: slice labels, display ranges and color tables.
    pub const IJ_METADATA: u16 = 50839;
}

/// One entry of a directory: tag, type, count, and the value or its offset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    /// One of the numbers in [`tag`], or any other.
    pub tag: u16,
    kind: u16,
    /// Number of values; 1 for a text means one byte.
    pub count: u64,
    data: [u8; 8],
}

/// One directory: its entries, and the offset of the next directory (0 for none).
#[derive(Debug, Clone)]
pub(crate) struct Ifd {
    /// Entries in the order of the file.
    pub entries: Vec<Entry>,
    /// Offset in bytes; 0 for the last directory.
    pub next: u64,
}

impl Ifd {
    /// The entry of a tag, if the directory has it.
    pub fn get(&self, tag: u16) -> Option<&Entry> {
        self.entries.iter().find(|e| e.tag == tag)
    }
}

fn kind_size(kind: u16) -> Option<u64> {
    Some(match kind {
        1 | 2 | 6 | 7 => 1,
        3 | 8 => 2,
        4 | 9 | 11 | 13 => 4,
        5 | 10 | 12 | 16 | 17 | 18 => 8,
        _ => return None,
    })
}

/// Reads the directories and tag values of one file.
#[derive(Debug)]
pub(crate) struct Container {
    /// The bytes of the file.
    pub source: Source,
    /// Byte order of all numbers.
    pub order: ByteOrder,
    /// Whether it is a BigTIFF, with counts and offsets of 64 bits.
    pub big: bool,
    /// Offset of the first directory in bytes.
    pub first_ifd: u64,
    /// Limits that apply to this file.
    pub limits: Limits,
}

/// Whether the first bytes of a file are those of a TIFF.
pub(crate) fn looks_like_tiff(head: &[u8]) -> bool {
    matches!(head.get(..4), Some(b"II*\0" | b"MM\0*" | b"II+\0" | b"MM\0+"))
}

impl Container {
    /// Reads the header of a TIFF or BigTIFF file and checks its limits.
    pub fn open(source: Source, limits: Limits) -> Result<Self, Fault> {
        let mut head = [0u8; 16];
        let have = source.len().min(16) as usize;
        if have < 8 {
            return Err(Fault::malformed(format!("the file has {have} bytes, too few for a TIFF header")));
        }
        source.read_at(0, head.get_mut(..have).unwrap_or_default())?;
        let order = match &head[..2] {
            b"II" => ByteOrder::Little,
            b"MM" => ByteOrder::Big,
            _ => return Err(Fault::malformed("the file does not begin with II or MM, as TIFF files do")),
        };
        let magic = order.u16([head[2], head[3]]);
        let be = order;
        let (big, first_ifd) = match magic {
            42 => (false, u64::from(be.u32([head[4], head[5], head[6], head[7]]))),
            43 if have == 16 && be.u16([head[4], head[5]]) == 8 => {
                let [_, _, _, _, _, _, _, _, a, b, c, d, e, f, g, h] = head;
                (true, be.u64([a, b, c, d, e, f, g, h]))
            }
            43 => return Err(Fault::malformed("the BigTIFF header does not have 8-byte offsets")),
            other => {
                return Err(Fault::malformed(format!("the TIFF version is {other}, not 42 (classic) or 43 (BigTIFF)")));
            }
        };
        Ok(Self { source, order, big, first_ifd, limits })
    }

    /// Reads the directory at an offset of the file.
    pub fn read_ifd(&self, offset: u64) -> Result<Ifd, Fault> {
        let (head, entry_len, link) = if self.big { (8u64, 20usize, 8usize) } else { (2, 12, 4) };
        let mut bytes = [0u8; 8];
        self.source.read_at(offset, bytes.get_mut(..head as usize).unwrap_or_default()).map_err(|f| match f {
            Fault::Malformed(..) => {
                Fault::malformed(format!("a page directory at offset {offset} is past the end of the file"))
            }
            other => other,
        })?;
        let count = if self.big { self.order.u64(bytes) } else { u64::from(self.order.u16([bytes[0], bytes[1]])) };
        if count == 0 {
            return Err(Fault::malformed(format!("the page directory at offset {offset} is empty")));
        }
        if count > self.limits.max_ifd_entries {
            return Err(Fault::over(
                "the number of tags of a page",
                count,
                "max_ifd_entries",
                self.limits.max_ifd_entries,
                Remedy::CopyAgain,
            ));
        }
        let body_at = offset.saturating_add(head);
        let body_len = count as usize * entry_len;
        let with_link = self.source.holds(body_at, (body_len + link) as u64);
        let body = self.source.read_vec(body_at, if with_link { body_len + link } else { body_len })?;
        let incomplete = || Fault::malformed(format!("the page directory at offset {offset} is incomplete"));
        let (rows, tail) = body.split_at_checked(body_len).ok_or_else(incomplete)?;
        let entries = rows.chunks_exact(entry_len).map(|row| self.entry(row)).collect();
        let next = match *tail {
            [a, b, c, d] => u64::from(self.order.u32([a, b, c, d])),
            [a, b, c, d, e, f, g, h] => self.order.u64([a, b, c, d, e, f, g, h]),
            _ => 0,
        };
        Ok(Ifd { entries, next })
    }

    fn entry(&self, row: &[u8]) -> Entry {
        let at = |i: usize| row.get(i).copied().unwrap_or(0);
        let count = if self.big {
            self.order.u64([at(4), at(5), at(6), at(7), at(8), at(9), at(10), at(11)])
        } else {
            u64::from(self.order.u32([at(4), at(5), at(6), at(7)]))
        };
        let data = if self.big {
            [at(12), at(13), at(14), at(15), at(16), at(17), at(18), at(19)]
        } else {
            [at(8), at(9), at(10), at(11), 0, 0, 0, 0]
        };
        Entry { tag: self.order.u16([at(0), at(1)]), kind: self.order.u16([at(2), at(3)]), count, data }
    }

    /// The bytes of elements `start..start + count` of a value, and the size of one element.
    fn raw(&self, entry: &Entry, start: u64, count: u64) -> Result<(Vec<u8>, usize), Fault> {
        let Some(size) = kind_size(entry.kind) else {
            return Err(Fault::malformed(format!("tag {} has the unknown type {}", entry.tag, entry.kind)));
        };
        if start.checked_add(count).is_none_or(|end| end > entry.count) {
            return Err(Fault::malformed(format!(
                "tag {} has {} values; {} were expected",
                entry.tag,
                entry.count,
                start.saturating_add(count)
            )));
        }
        let bytes = count.checked_mul(size).filter(|n| *n <= self.limits.max_metadata_bytes).ok_or_else(|| {
            let limit = self.limits.max_metadata_bytes;
            Fault::over(
                &format!("the size of tag {}", entry.tag),
                count.saturating_mul(size),
                "max_metadata_bytes",
                limit,
                Remedy::CopyAgain,
            )
        })?;
        let inline = if self.big { 8 } else { 4 };
        let skip = start.saturating_mul(size);
        if entry.count.saturating_mul(size) <= inline {
            let from = entry.data.get(skip as usize..).and_then(|d| d.get(..bytes as usize));
            let from = from.ok_or_else(|| Fault::malformed(format!("tag {} is incomplete", entry.tag)))?;
            return Ok((from.to_vec(), size as usize));
        }
        let offset = if self.big {
            self.order.u64(entry.data)
        } else {
            let [a, b, c, d, ..] = entry.data;
            u64::from(self.order.u32([a, b, c, d]))
        };
        let at = offset.saturating_add(skip);
        Ok((self.source.read_vec(at, bytes as usize)?, size as usize))
    }

    /// The position that a value of 32-bit integers states, for tags that have more data there than they declare; `None` for
    /// other types and in BigTIFF.
    pub fn longs_at(&self, entry: &Entry) -> Option<u64> {
        let [a, b, c, d, ..] = entry.data;
        (entry.kind == 4 && entry.count > 0 && !self.big).then(|| u64::from(self.order.u32([a, b, c, d])))
    }

    /// The two numbers of 16 bits at the position that a value states, though they would fit into the value; `None` for
    /// other values and in BigTIFF.
    pub fn two_shorts_elsewhere(&self, entry: &Entry) -> Option<[u64; 2]> {
        let [a, b, c, d, ..] = entry.data;
        let at = (entry.kind == 3 && entry.count == 2 && !self.big).then(|| u64::from(self.order.u32([a, b, c, d])))?;
        let bytes = self.source.read_vec(at, 4).ok()?;
        let [e, f, g, h] = *bytes.first_chunk::<4>()?;
        Some([self.order.u16([e, f]), self.order.u16([g, h])].map(u64::from))
    }

    /// The position in the file of a value of fractions, for tags that have more data there than they declare; `None` for
    /// other types and in BigTIFF.
    pub fn rational_at(&self, entry: &Entry) -> Option<u64> {
        let [a, b, c, d, ..] = entry.data;
        (entry.kind == 5 && entry.count > 0 && !self.big).then(|| u64::from(self.order.u32([a, b, c, d])))
    }

    /// Elements `start..start + count` of an unsigned integer value.
    pub fn integers(&self, entry: &Entry, start: u64, count: u64) -> Result<Vec<u64>, Fault> {
        if !matches!(entry.kind, 1 | 3 | 4 | 13 | 16 | 18) {
            return Err(Fault::malformed(format!(
                "tag {} has type {}; an integer was expected",
                entry.tag, entry.kind
            )));
        }
        let (bytes, size) = self.raw(entry, start, count)?;
        Ok(bytes
            .chunks_exact(size)
            .map(|b| match *b {
                [a] => u64::from(a),
                [a, b] => u64::from(self.order.u16([a, b])),
                [a, b, c, d] => u64::from(self.order.u32([a, b, c, d])),
                [a, b, c, d, e, f, g, h] => self.order.u64([a, b, c, d, e, f, g, h]),
                _ => 0,
            })
            .collect())
    }

    /// The first element of an unsigned integer value; 0 if it is empty.
    pub fn integer(&self, entry: &Entry) -> Result<u64, Fault> {
        Ok(self.integers(entry, 0, 1)?.first().copied().unwrap_or(0))
    }

    /// The first integer of a tag, or a default if the directory does not have the tag.
    pub fn integer_or(&self, ifd: &Ifd, tag: u16, default: u64) -> Result<u64, Fault> {
        ifd.get(tag).map_or(Ok(default), |e| self.integer(e))
    }

    /// The first element of a tag of any numeric type, if it is readable and finite. For resolutions and display
    /// ranges.
    pub fn number(&self, ifd: &Ifd, tag: u16) -> Option<f64> {
        let entry = ifd.get(tag)?;
        let (b, _) = self.raw(entry, 0, 1).ok()?;
        let o = self.order;
        let value = match (entry.kind, b.as_slice()) {
            (5, &[a, b, c, d, e, f, g, h]) => f64::from(o.u32([a, b, c, d])) / f64::from(o.u32([e, f, g, h])),
            (10, &[a, b, c, d, e, f, g, h]) => {
                f64::from(o.u32([a, b, c, d]) as i32) / f64::from(o.u32([e, f, g, h]) as i32)
            }
            (12, &[a, b, c, d, e, f, g, h]) => f64::from_bits(o.u64([a, b, c, d, e, f, g, h])),
            (11, &[a, b, c, d]) => f64::from(f32::from_bits(o.u32([a, b, c, d]))),
            (6, &[a]) => f64::from(a as i8),
            (8, &[a, b]) => f64::from(o.u16([a, b]) as i16),
            (9, &[a, b, c, d]) => f64::from(o.u32([a, b, c, d]) as i32),
            _ => self.integer(entry).ok()? as f64,
        };
        value.is_finite().then_some(value)
    }

    /// The bytes of a value as stored.
    pub fn bytes(&self, entry: &Entry) -> Result<Vec<u8>, Fault> {
        Ok(self.raw(entry, 0, entry.count)?.0)
    }

    /// The text of a value up to the first NUL: UTF-8 if it is valid, otherwise Latin-1.
    pub fn text(&self, entry: &Entry) -> Result<String, Fault> {
        let mut bytes = self.bytes(entry)?;
        if let Some(end) = bytes.iter().position(|b| *b == 0) {
            bytes.truncate(end);
        }
        Ok(String::from_utf8(bytes).unwrap_or_else(|e| e.as_bytes().iter().map(|b| char::from(*b)).collect()))
    }
}

//! Segments of a CZI file: the file header, the directory of subblocks, and the headers of subblocks.

use crate::{
    error::{Fault, Remedy},
    fields::Fields,
    limits::Limits,
    source::Source,
};

/// First bytes of a CZI file.
pub(crate) const MAGIC: &[u8] = b"ZISRAWFILE";
/// Length of the header of every segment in bytes: its name, allocated size and used size.
const SEGMENT: usize = 32;
/// Bytes of the directory segment before its entries.
const BEFORE_ENTRIES: usize = SEGMENT + 128;
/// Bytes of an entry before its dimensions, and of one dimension.
const ENTRY: (usize, usize) = (32, 20);
/// Largest number of dimensions of a subblock.
const MAX_DIMENSIONS: usize = 64;
/// Smallest distance from the header of a subblock to its metadata in bytes.
const BEFORE_METADATA: u64 = 256;
/// Bytes of the metadata segment before its XML.
const BEFORE_XML: u64 = 32 + 256;

/// Positions of the directory and of the metadata in the file; 0 if there are none.
pub(super) struct FileHeader {
    /// Position of the segment that lists the subblocks, in bytes.
    pub directory_at: u64,
    /// Position of the segment with the XML metadata, in bytes.
    pub metadata_at: u64,
}

impl FileHeader {
    /// Reads the header. A later part of a CZI of several files is an error.
    pub fn read(source: &Source) -> Result<Self, Fault> {
        let bytes = source.read_vec(0, 104)?;
        let f = Fields::little(&bytes);
        if f.i32(80)? != 0 {
            return Err(Fault::unsupported("this is a later part of a CZI of several files", "open its first file"));
        }
        let negative = |_| Fault::malformed("the CZI states a negative position in the file");
        let at = |field: usize| f.i64(field).and_then(|position| u64::try_from(position).map_err(negative));
        Ok(Self { directory_at: at(84)?, metadata_at: at(92)? })
    }
}

/// A subblock: a tile of one plane.
#[derive(Debug, Clone)]
pub(super) struct Subblock {
    /// Sample type and samples per pixel as CZI numbers them, such as 1 for 16-bit gray.
    pub pixel_type: i32,
    /// Compression as CZI numbers it, such as 0 for none, 5 and 6 for Zstandard.
    pub compression: i32,
    /// Position of its segment in the file.
    pub at: u64,
    /// Bytes of its entry, which its segment repeats.
    entry_bytes: u64,
    /// Whether it is a lower resolution of other subblocks.
    pub is_pyramid: bool,
    /// Whether it states its scene.
    pub has_scene: bool,
    /// First index along time, Z, channel and scene.
    pub t: i32,
    /// Slice.
    pub z: i32,
    /// Channel.
    pub c: i32,
    /// Scene; 0 if the subblock states none.
    pub scene: i32,
    /// Left and top edge in pixels of the whole scan.
    pub x: i64,
    /// Top edge in pixels of the whole scan.
    pub y: i64,
    /// Extents in pixels of the full resolution.
    pub width: usize,
    /// Extent along Y in pixels of the full resolution.
    pub height: usize,
    /// Extents that are stored; smaller in a lower resolution.
    pub stored_width: usize,
    /// Stored extent along Y.
    pub stored_height: usize,
}

/// Reads the directory. A subblock of a kind that is not supported is an error.
pub(super) fn read(source: &Source, at: u64, limits: &Limits) -> Result<Vec<Subblock>, Fault> {
    let head = source.read_vec(at, SEGMENT + 4)?;
    let f = Fields::little(&head);
    if !f.slice(0, 16)?.starts_with(b"ZISRAWDIRECTORY") {
        return Err(Fault::malformed("the directory of the CZI is not where its header says"));
    }
    let negative = |what: &str| Fault::malformed(format!("the CZI states a negative {what}"));
    let count = u64::try_from(f.i32(SEGMENT)?).map_err(|_| negative("number of subblocks"))?;
    if count > limits.max_pages {
        return Err(Fault::over("the number of subblocks", count, "max_pages", limits.max_pages, Remedy::Split));
    }
    let used = u64::try_from(f.i64(24)?).map_err(|_| negative("size of its directory"))?;
    if used > limits.max_metadata_bytes {
        return Err(Fault::over(
            "the size of the directory",
            used,
            "max_metadata_bytes",
            limits.max_metadata_bytes,
            Remedy::Split,
        ));
    }
    let start = at.saturating_add(BEFORE_ENTRIES as u64);
    let left = source.len().saturating_sub(start).min(used);
    let entries = source.read_vec(start, left as usize)?;
    let f = Fields::little(&entries);
    let mut subblocks = Vec::new();
    let mut next = 0;
    for _ in 0..count {
        let (subblock, length) = entry(&f, next)?;
        subblocks.push(subblock);
        next += length;
    }
    Ok(subblocks)
}

/// The entry at a position of the directory, and its length.
fn entry(f: &Fields<'_>, at: usize) -> Result<(Subblock, usize), Fault> {
    if f.slice(at, 2)? != b"DV" {
        return Err(Fault::unsupported(
            "the CZI has subblocks of a version other than \"DV\"",
            "save it again with ZEN, or export it as OME-TIFF",
        ));
    }
    if f.i32(at + 14)? != 0 {
        return Err(Fault::unsupported(
            "parts of the CZI are in other files",
            "save it as one file with ZEN, or export it as OME-TIFF",
        ));
    }
    let dimensions = usize::try_from(f.i32(at + 28)?).ok().filter(|n| *n <= MAX_DIMENSIONS);
    let dimensions = dimensions.ok_or_else(|| Fault::malformed("a subblock of the CZI has too many dimensions"))?;
    let length = ENTRY.0 + dimensions * ENTRY.1;
    let mut found = Subblock {
        pixel_type: f.i32(at + 2)?,
        compression: f.i32(at + 18)?,
        at: u64::try_from(f.i64(at + 6)?).unwrap_or(u64::MAX),
        entry_bytes: length as u64,
        is_pyramid: false,
        has_scene: false,
        t: 0,
        z: 0,
        c: 0,
        scene: 0,
        x: 0,
        y: 0,
        width: 1,
        height: 1,
        stored_width: 1,
        stored_height: 1,
    };
    for i in 0..dimensions {
        read_dimension(f, at + ENTRY.0 + i * ENTRY.1, &mut found)?;
    }
    Ok((found, length))
}

/// Reads a dimension of an entry, at a position of the directory, into its subblock.
fn read_dimension(f: &Fields<'_>, at: usize, found: &mut Subblock) -> Result<(), Fault> {
    let (name, start, size, stored) = (f.slice(at, 4)?, f.i32(at + 4)?, f.i32(at + 8)?, f.i32(at + 16)?);
    let pixels = |count: i32| {
        let pixels = usize::try_from(count).ok().filter(|n| *n > 0);
        pixels.ok_or_else(|| Fault::malformed(format!("a subblock of the CZI is {count} pixels long")))
    };
    // 0 stands for the full resolution.
    let extents =
        || -> Result<(usize, usize), Fault> { Ok((pixels(size)?, pixels(if stored == 0 { size } else { stored })?)) };
    let one = |index: &mut i32| {
        *index = start;
        match size {
            0 | 1 => Ok(()),
            _ => Err(Fault::unsupported(
                "a subblock of the CZI has several planes",
                "export it as OME-TIFF, for example with Fiji",
            )),
        }
    };
    match name.first() {
        Some(b'X') => {
            found.x = i64::from(start);
            (found.width, found.stored_width) = extents()?;
        }
        Some(b'Y') => {
            found.y = i64::from(start);
            (found.height, found.stored_height) = extents()?;
        }
        Some(b'T') => one(&mut found.t)?,
        Some(b'Z') => one(&mut found.z)?,
        Some(b'C') => one(&mut found.c)?,
        Some(b'S') => {
            one(&mut found.scene)?;
            found.has_scene = true;
        }
        // The number of a mosaic's tile: its position is in X and Y.
        Some(b'M') => {}
        Some(other) if start != 0 => {
            return Err(Fault::unsupported(
                format!("the CZI has several indices along its axis {}", char::from(*other)),
                "export the rotation, illumination, phase or view as OME-TIFF, for example with Fiji",
            ));
        }
        _ => {}
    }
    if matches!(name.first(), Some(b'X' | b'Y')) && stored != 0 && stored != size {
        found.is_pyramid = true;
    }
    Ok(())
}

impl Subblock {
    /// Position and number of bytes of the stored pixels.
    pub fn data(&self, source: &Source) -> Result<(u64, u64), Fault> {
        let head = source.read_vec(self.at, SEGMENT + 16)?;
        let f = Fields::little(&head);
        if !f.slice(0, 16)?.starts_with(b"ZISRAWSUBBLOCK") {
            return Err(Fault::malformed("a subblock of the CZI is not where its directory says"));
        }
        let positive =
            |value: i64| u64::try_from(value).map_err(|_| Fault::malformed("a subblock has a negative size"));
        let metadata = positive(i64::from(f.i32(SEGMENT)?))?;
        let count = positive(f.i64(SEGMENT + 8)?)?;
        let before = BEFORE_METADATA.max(16 + self.entry_bytes);
        let start = self.at.saturating_add(SEGMENT as u64).saturating_add(before).saturating_add(metadata);
        if !source.holds(start, count) {
            return Err(Fault::malformed("the pixels of a subblock are past the end of the file"));
        }
        Ok((start, count))
    }
}

/// The XML of the metadata segment; empty if there is none.
pub(super) fn xml(source: &Source, at: u64, limits: &Limits) -> Result<String, Fault> {
    if at == 0 {
        return Ok(String::new());
    }
    let head = source.read_vec(at, SEGMENT + 4)?;
    let f = Fields::little(&head);
    if !f.slice(0, 16)?.starts_with(b"ZISRAWMETADATA") {
        return Err(Fault::malformed("the metadata of the CZI are not where its header says"));
    }
    let size = u64::from(f.u32(SEGMENT)?);
    if size > limits.max_metadata_bytes {
        return Err(Fault::over(
            "the size of the metadata",
            size,
            "max_metadata_bytes",
            limits.max_metadata_bytes,
            Remedy::CopyAgain,
        ));
    }
    let bytes = source.read_vec(at.saturating_add(BEFORE_XML), size as usize)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

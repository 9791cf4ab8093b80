//! Chunks of an ND2 file and the map of them at its end.
//!
//! A chunk is a header (magic number, length of the name, length of the data), the name padded with zeros, and the data.

use super::EXPORT;
use crate::{
    error::{Fault, Remedy},
    fields::Fields,
    limits::Limits,
    source::Source,
};
use flate2::read::ZlibDecoder;
use std::{
    collections::HashMap,
    io::{self, Read},
};

/// First bytes of an ND2 file and of each of its chunks.
pub(crate) const MAGIC: &[u8] = &[0xDA, 0xCE, 0xBE, 0x0A];
/// First bytes of a JPEG 2000 file, which ND2 files were before 2009.
pub(crate) const JPEG_2000: &[u8] = b"\0\0\0\x0cjP  ";

/// Names of the metadata chunks that are used.
pub(super) const ATTRIBUTES: &[u8] = b"ImageAttributesLV!";
pub(super) const EXPERIMENT: &[u8] = b"ImageMetadataLV!";
pub(super) const PICTURE: &[u8] = b"ImageMetadataSeqLV|0!";

const SIGNATURE: &[u8] = b"ND2 FILE SIGNATURE CHUNK NAME01!";
const MAP_NAME: &[u8] = b"ND2 FILEMAP SIGNATURE NAME 0001!";
const MAP_END: &[u8] = b"ND2 CHUNK MAP SIGNATURE 0000001!";
const FRAME: &[u8] = b"ImageDataSeq|";
/// Bytes of the header of a chunk.
const HEADER: u64 = 16;
/// Bytes before the tree of compressed metadata.
const BEFORE_COMPRESSED: usize = 12;

/// Refuses files of versions before 3.
pub(super) fn check_version(source: &Source) -> Result<(), Fault> {
    let head = source.read_vec(0, 112)?;
    let f = Fields::little(&head);
    if f.slice(16, SIGNATURE.len())? != SIGNATURE {
        return Err(Fault::malformed("the header of the ND2 file is not valid"));
    }
    match f.slice(48, 6)? {
        [b'V', b'e', b'r', b'3'..=b'9', b'.', _] => Ok(()),
        version => Err(Fault::unsupported(
            format!(
                "this ND2 file has version {:?}; version 3 and later are supported",
                String::from_utf8_lossy(version)
            ),
            EXPORT,
        )),
    }
}

/// Position and length of the data of the chunk at `offset`, which must have this name.
pub(super) fn locate_data(source: &Source, offset: u64, name: &[u8]) -> Result<(u64, u64), Fault> {
    let elsewhere = || {
        let name = String::from_utf8_lossy(name).into_owned();
        Fault::malformed(format!("the chunk {name} of the ND2 file is not where its map says"))
    };
    let head = source.read_vec(offset, HEADER as usize)?;
    let f = Fields::little(&head);
    let (name_bytes, count) = (u64::from(f.u32(4)?), f.u64(8)?);
    if !head.starts_with(MAGIC) || name_bytes < name.len() as u64 {
        return Err(elsewhere());
    }
    if source.read_vec(offset.saturating_add(HEADER), name.len())? != name {
        return Err(elsewhere());
    }
    let at = offset.saturating_add(HEADER).saturating_add(name_bytes);
    if !source.holds(at, count) {
        let name = String::from_utf8_lossy(name).into_owned();
        return Err(Fault::malformed(format!("the chunk {name} of the ND2 file is past its end")));
    }
    Ok((at, count))
}

/// Positions of the chunks in the file.
#[derive(Debug, Default)]
pub(super) struct ChunkMap {
    named: HashMap<&'static [u8], u64>,
    /// Positions of the frames, by their index.
    pub frames: HashMap<u64, u64>,
}

impl ChunkMap {
    /// Reads the map.
    pub fn read(source: &Source, limits: &Limits) -> Result<Self, Fault> {
        let unfinished = || Fault::malformed("the ND2 file has no map of its chunks at its end");
        let tail_at = source.len().checked_sub(40).ok_or_else(unfinished)?;
        let tail = source.read_vec(tail_at, 40)?;
        if !tail.starts_with(MAP_END) {
            return Err(unfinished());
        }
        let (at, count) = locate_data(source, Fields::little(&tail).u64(32)?, MAP_NAME)?;
        check_size("the size of the chunk map", count, limits, Remedy::Split)?;
        let bytes = source.read_vec(at, count as usize)?;
        let mut map = Self::default();
        let mut rest = bytes.as_slice();
        loop {
            let end = rest.iter().position(|b| *b == b'!').ok_or_else(unfinished)?;
            let (name, after) = rest.split_at(end + 1);
            if name == MAP_END {
                return Ok(map);
            }
            let (numbers, after) = after.split_at_checked(16).ok_or_else(unfinished)?;
            map.add(name, Fields::little(numbers).u64(0)?);
            if map.frames.len() as u64 > limits.max_pages {
                let count = map.frames.len() as u64;
                return Err(Fault::over("the number of frames", count, "max_pages", limits.max_pages, Remedy::Split));
            }
            rest = after;
        }
    }

    fn add(&mut self, name: &[u8], offset: u64) {
        if let Some(known) = [ATTRIBUTES, EXPERIMENT, PICTURE].into_iter().find(|known| *known == name) {
            self.named.insert(known, offset);
        } else if let Some(index) = name.strip_prefix(FRAME).and_then(|n| n.strip_suffix(b"!"))
            && let Some(index) = std::str::from_utf8(index).ok().and_then(|n| n.parse().ok())
        {
            self.frames.insert(index, offset);
        }
    }

    /// Position and length of the data of a frame; `None` if the file has no such frame.
    pub fn frame(&self, source: &Source, index: u64) -> Result<Option<(u64, u64)>, Fault> {
        let Some(offset) = self.frames.get(&index) else { return Ok(None) };
        locate_data(source, *offset, format!("ImageDataSeq|{index}!").as_bytes()).map(Some)
    }

    /// The tree of a metadata chunk as bytes; `None` if there is no such chunk.
    pub fn metadata(&self, source: &Source, name: &[u8], limits: &Limits) -> Result<Option<Vec<u8>>, Fault> {
        let Some(offset) = self.named.get(name) else { return Ok(None) };
        let (at, count) = locate_data(source, *offset, name)?;
        check_size("the size of the metadata", count, limits, Remedy::CopyAgain)?;
        let bytes = source.read_vec(at, count as usize)?;
        // The letter L marks compressed metadata.
        if bytes.first() != Some(&b'L') {
            return Ok(Some(bytes));
        }
        let mut expanded = Vec::new();
        let packed = bytes.get(BEFORE_COMPRESSED..).unwrap_or_default();
        let read =
            ZlibDecoder::new(packed).take(limits.max_metadata_bytes.saturating_add(1)).read_to_end(&mut expanded);
        read.map_err(|e: io::Error| {
            Fault::malformed(format!("the metadata of the ND2 file are not valid zlib data ({e})"))
        })?;
        check_size("the size of the metadata", expanded.len() as u64, limits, Remedy::CopyAgain)?;
        Ok(Some(expanded))
    }
}

fn check_size(what: &str, count: u64, limits: &Limits, remedy: Remedy) -> Result<(), Fault> {
    if count > limits.max_metadata_bytes {
        return Err(Fault::over(what, count, "max_metadata_bytes", limits.max_metadata_bytes, remedy));
    }
    Ok(())
}

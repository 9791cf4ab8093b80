//! Parts of a LIF file: the header with XML, and the blocks of memory after it, one after the other.

use super::EXPORT;
use crate::{
    error::{Fault, Remedy},
    fields::Fields,
    limits::Limits,
    source::Source,
};

/// First bytes of a LIF file and of each of its blocks.
const MAGIC: [u8; 4] = [0x70, 0, 0, 0];
/// Byte before each number of a header but the first two.
const MARK: u8 = 0x2A;
/// Position of the first mark.
const MARK_AT: usize = 8;
/// Bytes before the XML: two numbers, a mark, and the number of UTF-16 units.
const HEADER: usize = 13;

/// Whether the first bytes of a file are those of a LIF file.
pub(crate) fn looks_like_lif(head: &[u8]) -> bool {
    head.starts_with(&MAGIC) && head.get(MARK_AT) == Some(&MARK)
}

/// Returns the XML of the header, and the position of the first block.
pub(super) fn xml(source: &Source, limits: &Limits) -> Result<(String, u64), Fault> {
    let head = source.read_vec(0, HEADER)?;
    let bytes = u64::from(Fields::little(&head).u32(MARK_AT + 1)?) * 2;
    if bytes > limits.max_metadata_bytes {
        let (what, limit) = ("the size of the metadata", limits.max_metadata_bytes);
        return Err(Fault::over(what, bytes, "max_metadata_bytes", limit, Remedy::Split));
    }
    let text = source.read_vec(HEADER as u64, bytes as usize)?;
    let units: Vec<u16> = text.as_chunks::<2>().0.iter().map(|unit| u16::from_le_bytes(*unit)).collect();
    Ok((String::from_utf16_lossy(&units), HEADER as u64 + bytes))
}

/// The pixels of an image: position and length in bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Block {
    pub at: u64,
    pub length: u64,
}

/// Finds the block of a name among those that begin at a position. Lengths have 32 bits in version 1 and 64 bits in version 2.
pub(super) fn find(source: &Source, first: u64, version: u32, name: &str, limits: &Limits) -> Result<Block, Fault> {
    let name: Vec<u8> = name.encode_utf16().flat_map(u16::to_le_bytes).collect();
    // A mark, the length of the block, a mark, and the number of UTF-16 units of its name.
    let length_bytes: usize = if version == 1 { 4 } else { 8 };
    let head_bytes = MARK_AT + 1 + length_bytes + 1 + 4;
    let (mut at, mut count) = (first, 0u64);
    while at < source.len() {
        let head = source.read_vec(at, head_bytes)?;
        let fields = Fields::little(&head);
        let second_mark = MARK_AT + 1 + length_bytes;
        if !looks_like_lif(&head) || fields.u8(second_mark)? != MARK {
            return Err(Fault::malformed(format!("the LIF file has no block at byte {at}")));
        }
        let length = if version == 1 { u64::from(fields.u32(MARK_AT + 1)?) } else { fields.u64(MARK_AT + 1)? };
        let name_bytes = u64::from(fields.u32(second_mark + 1)?) * 2;
        let name_at = at.saturating_add(head_bytes as u64);
        let data_at = name_at.saturating_add(name_bytes);
        if name_bytes == name.len() as u64 && source.read_vec(name_at, name.len())? == name {
            if !source.holds(data_at, length) {
                return Err(Fault::malformed("the pixels of this image are past the end of the LIF file"));
            }
            return Ok(Block { at: data_at, length });
        }
        count += 1;
        if count > limits.max_pages {
            let what = "the number of blocks of the LIF file";
            return Err(Fault::over(what, count, "max_pages", limits.max_pages, Remedy::Split));
        }
        at = data_at.saturating_add(length);
    }
    Err(Fault::unsupported("the LIF file does not contain the pixels of this image", EXPORT))
}

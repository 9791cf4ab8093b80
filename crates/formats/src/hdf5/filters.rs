//! Filters of chunks that the library does not have: registered compressions other than deflate and szip.

use super::bitshuffle;
use crate::{
    error::Fault,
    file_format::StoredCompression,
    ome_zarr::{BytesCodec, decode_one},
};
use hdf5_reader::{FilterRegistry, error::Error, filters};

/// Numbers of filters, as registered at the HDF Group.
const BZIP2: u16 = 307;
const LZF: u16 = 32_000;
const BLOSC: u16 = 32_001;
const LZ4: u16 = 32_004;
const BITSHUFFLE: u16 = 32_008;
const ZSTD: u16 = 32_015;
/// Shortest repetition in LZF in bytes.
const MIN_REPEATED: usize = 3;
/// Length of a repetition from which a byte is added to it.
const LONG: usize = 7;

/// The filters of the library and those of this module; none returns more than `max_bytes`.
pub(super) fn registry(max_bytes: usize) -> FilterRegistry {
    let mut registry = FilterRegistry::new();
    registry.register(
        LZF,
        Box::new(move |filter, data, _| {
            // The filter's third value is the size of a chunk. A chunk that would grow is stored as it is, which its mask says.
            let len = filter.client_data.get(2).map_or(max_bytes, |len| *len as usize).min(max_bytes);
            lzf(data, len).ok_or_else(|| damaged("LZF"))
        }),
    );
    registry.register(LZ4, Box::new(move |_, data, _| lz4(data, max_bytes)));
    registry.register(
        BITSHUFFLE,
        Box::new(move |filter, data, _| bitshuffle::decode(&filter.client_data, data, max_bytes)),
    );
    for (number, codec) in [(BLOSC, BytesCodec::Blosc), (BZIP2, BytesCodec::Bz2), (ZSTD, BytesCodec::Zstd)] {
        registry.register(number, Box::new(move |_, data, _| decoded(codec, data.to_vec(), max_bytes)));
    }
    registry
}

/// The compression that a filter stands for; `None` for one that only reorders bytes or adds a checksum.
pub(super) fn compression(number: u16) -> Option<StoredCompression> {
    match number {
        filters::FILTER_DEFLATE => Some(StoredCompression::Zlib),
        filters::FILTER_SZIP => Some(StoredCompression::Szip),
        LZF => Some(StoredCompression::Lzf),
        BITSHUFFLE => Some(StoredCompression::Bitshuffle),
        BLOSC => Some(StoredCompression::Blosc),
        BZIP2 => Some(StoredCompression::Bz2),
        LZ4 => Some(StoredCompression::Lz4),
        ZSTD => Some(StoredCompression::Zstd),
        _ => None,
    }
}

pub(super) fn damaged(what: &str) -> Error {
    Error::DecompressionError(format!("a chunk is not valid {what} data"))
}

pub(super) fn decoded(codec: BytesCodec, encoded: Vec<u8>, max_bytes: usize) -> Result<Vec<u8>, Error> {
    decode_one(codec, encoded, max_bytes).map_err(|fault| match fault {
        Fault::Malformed(problem, _) => Error::DecompressionError(problem.into_owned()),
        _ => damaged(codec.name()),
    })
}

/// Decodes the format of the filter LZ4: the decoded length (8 bytes) and the length of a block (4 bytes), then blocks after
/// their stored lengths (4 bytes), all big-endian. A block that would grow is stored as it is.
fn lz4(encoded: &[u8], max_bytes: usize) -> Result<Vec<u8>, Error> {
    let wrong = || damaged("LZ4");
    let (len, rest) = encoded.split_first_chunk::<8>().ok_or_else(wrong)?;
    let (block_len, mut rest) = rest.split_first_chunk::<4>().ok_or_else(wrong)?;
    let len = usize::try_from(u64::from_be_bytes(*len)).ok().filter(|len| *len <= max_bytes).ok_or_else(wrong)?;
    let block_len = (u32::from_be_bytes(*block_len) as usize).min(len);
    let mut out = Vec::new();
    while out.len() < len {
        let (stored, after) = rest.split_first_chunk::<4>().ok_or_else(wrong)?;
        let stored = u32::from_be_bytes(*stored) as usize;
        let (block, after) = after.split_at_checked(stored).ok_or_else(wrong)?;
        rest = after;
        let expected = block_len.min(len - out.len());
        if expected == 0 {
            return Err(wrong());
        }
        if stored == expected {
            out.extend_from_slice(block);
            continue;
        }
        let framed = [&(expected as u32).to_le_bytes(), block].concat();
        out.extend(decoded(BytesCodec::Lz4, framed, expected)?);
    }
    Ok(out)
}

/// Decodes LZF of at most `max_bytes`: runs of bytes, and repetitions of bytes before them. `None` if it is damaged.
fn lzf(encoded: &[u8], max_bytes: usize) -> Option<Vec<u8>> {
    let mut out: Vec<u8> = Vec::new();
    let mut rest = encoded;
    while let Some((first, after)) = rest.split_first() {
        let first = usize::from(*first);
        rest = after;
        if first < 32 {
            let (bytes, after) = rest.split_at_checked(first + 1)?;
            out.extend_from_slice(bytes);
            rest = after;
        } else {
            let mut count = first >> 5;
            if count == LONG {
                let (more, after) = rest.split_first()?;
                count += usize::from(*more);
                rest = after;
            }
            let (low, after) = rest.split_first()?;
            rest = after;
            let distance = (((first & 31) << 8) | usize::from(*low)) + 1;
            let start = out.len().checked_sub(distance)?;
            // A repetition may overlap itself: its bytes repeat those before it.
            let mut left = count + MIN_REPEATED - 1;
            while left > 0 {
                let part = left.min(out.len() - start);
                out.extend_from_within(start..start + part);
                left -= part;
            }
        }
        if out.len() > max_bytes {
            return None;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn lzf_repeats_bytes_and_is_limited() {
        // Two bytes, then six bytes from a distance of two, then one byte.
        let encoded = [1, 10, 20, 4 << 5, 1, 0, 30];
        assert_eq!(lzf(&encoded, 9).unwrap(), [10, 20, 10, 20, 10, 20, 10, 20, 30]);
        assert_eq!(lzf(&encoded, 8), None, "longer than allowed");
        // A long repetition: 7 + 10 + 2 bytes of the one before it.
        assert_eq!(lzf(&[0, 5, 7 << 5, 10, 0], 20).unwrap(), [5; 20]);
        for damaged in [&[1, 10][..], &[0, 5, 7 << 5, 10], &[0, 5, 1 << 5], &[0, 5, 1 << 5, 1]] {
            assert_eq!(lzf(damaged, 100), None, "{damaged:?}");
        }
    }

    #[test]
    fn lz4_blocks_are_decoded_or_copied() {
        // Five bytes in blocks of four: the first one is compressed as four literals (a token and the bytes).
        let mut encoded = [5u64.to_be_bytes().as_slice(), &4u32.to_be_bytes(), &5u32.to_be_bytes()].concat();
        encoded.extend([4 << 4, 1, 2, 3, 4, 0, 0, 0, 1, 9]);
        assert_eq!(lz4(&encoded, 5).unwrap(), [1, 2, 3, 4, 9]);
        assert!(lz4(&encoded, 4).is_err(), "longer than allowed");
        for end in 0..encoded.len() {
            assert!(lz4(&encoded[..end], 5).is_err(), "cut at {end}");
        }
        // Blocks of no bytes would never end.
        encoded[8..12].fill(0);
        assert!(lz4(&encoded, 5).is_err());
    }
}

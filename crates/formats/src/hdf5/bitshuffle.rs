//! The filter Bitshuffle: the lowest bits of the samples of a block, then the next bits, and so on. The blocks may be compressed.
//!
//! Format: <https://github.com/kiyo-masui/bitshuffle>.

use super::filters::{damaged, decoded};
use crate::ome_zarr::BytesCodec;
use hdf5_reader::error::Error;

/// Places of the bytes of a sample, the samples of a block and the compression among the values of the filter.
const SIZE_AT: usize = 2;
const BLOCK_AT: usize = 3;
const COMPRESSION_AT: usize = 4;
/// Numbers of compressions.
const PLAIN: usize = 0;
const LZ4: usize = 2;
const ZSTD: usize = 3;
/// The number of samples of a block is a multiple of this one. Samples that are left at the end are stored as they are.
const STEP: usize = 8;
/// Bytes of a block and fewest samples in it, if the filter states none.
const DEFAULT_BLOCK_BYTES: usize = 8192;
const MIN_DEFAULT_BLOCK: usize = 128;

/// Decodes a chunk with these values of the filter to at most `max_bytes`. Compressed chunks begin with their decoded length (8
/// bytes) and the length of a block (4 bytes); each block follows its stored length (4 bytes), all big-endian.
pub(super) fn decode(values: &[u32], encoded: &[u8], max_bytes: usize) -> Result<Vec<u8>, Error> {
    let wrong = || damaged("Bitshuffle");
    let value = |at: usize| values.get(at).map_or(0, |value| *value as usize);
    let codec = match value(COMPRESSION_AT) {
        PLAIN => None,
        LZ4 => Some(BytesCodec::Lz4),
        ZSTD => Some(BytesCodec::Zstd),
        _ => return Err(wrong()),
    };
    let size = value(SIZE_AT);
    let (len, block, mut rest) = if codec.is_none() {
        (encoded.len(), value(BLOCK_AT), encoded)
    } else {
        let (len, rest) = encoded.split_first_chunk::<8>().ok_or_else(wrong)?;
        let (stated, rest) = rest.split_first_chunk::<4>().ok_or_else(wrong)?;
        let len = usize::try_from(u64::from_be_bytes(*len)).map_err(|_| wrong())?;
        let block = (u32::from_be_bytes(*stated) as usize).checked_div(size).ok_or_else(wrong)?;
        (len, block, rest)
    };
    if size == 0 || len > max_bytes || len % size != 0 {
        return Err(wrong());
    }
    let block = match block {
        0 => (DEFAULT_BLOCK_BYTES / size / STEP * STEP).max(MIN_DEFAULT_BLOCK),
        stated => stated / STEP * STEP,
    };
    let (mut out, mut left) = (Vec::new(), len / size);
    while left >= STEP {
        let count = block.min(left / STEP * STEP);
        if count == 0 {
            return Err(wrong());
        }
        let (bytes, after) = block_bytes(codec, rest, count * size)?;
        join_bits(&bytes, size, &mut out);
        (rest, left) = (after, left - count);
    }
    if rest.len() != left * size {
        return Err(wrong());
    }
    out.extend_from_slice(rest);
    Ok(out)
}

/// Returns the bits of the next block, which has `len` bytes, and what follows it.
fn block_bytes(codec: Option<BytesCodec>, encoded: &[u8], len: usize) -> Result<(Vec<u8>, &[u8]), Error> {
    let wrong = || damaged("Bitshuffle");
    let Some(codec) = codec else {
        let (block, rest) = encoded.split_at_checked(len).ok_or_else(wrong)?;
        return Ok((block.to_vec(), rest));
    };
    let (stored, rest) = encoded.split_first_chunk::<4>().ok_or_else(wrong)?;
    let (block, rest) = rest.split_at_checked(u32::from_be_bytes(*stored) as usize).ok_or_else(wrong)?;
    let framed = match codec {
        BytesCodec::Lz4 => [&(len as u32).to_le_bytes(), block].concat(),
        _ => block.to_vec(),
    };
    let bytes = decoded(codec, framed, len)?;
    if bytes.len() == len { Ok((bytes, rest)) } else { Err(wrong()) }
}

/// Appends the samples of `size` bytes whose bits these are. A row holds one bit of all samples.
fn join_bits(bits: &[u8], size: usize, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + bits.len(), 0);
    let samples = out.get_mut(start..).unwrap_or_default();
    let row = bits.len() / size / STEP;
    for (byte, rows) in bits.chunks_exact((row * STEP).max(1)).enumerate() {
        for column in 0..row {
            let eight: [u8; STEP] = std::array::from_fn(|bit| rows.get(bit * row + column).copied().unwrap_or(0));
            let turned = transposed(u64::from_le_bytes(eight)).to_le_bytes();
            for (sample, value) in turned.into_iter().enumerate() {
                if let Some(target) = samples.get_mut((column * STEP + sample) * size + byte) {
                    *target = value;
                }
            }
        }
    }
}

/// Exchanges rows and columns of 8 × 8 bits: bit `i` of byte `k` becomes bit `k` of byte `i` (Hacker's Delight, section 7-3).
fn transposed(mut bits: u64) -> u64 {
    for (shift, mask) in [(7, 0x00AA_00AA_00AA_00AA), (14, 0x0000_CCCC_0000_CCCC), (28, 0x0000_0000_F0F0_F0F0)] {
        let swapped = (bits ^ (bits >> shift)) & mask;
        bits ^= swapped ^ (swapped << shift);
    }
    bits
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    // What hdf5plugin writes for 0, 300 … 5400 in blocks of 8 samples of 2 bytes, not compressed and with LZ4.
    const BLOCKS: [[u8; 16]; 2] = [
        [0, 0, 170, 102, 180, 146, 36, 56, 106, 76, 112, 128, 0, 0, 0, 0],
        [0, 0, 170, 102, 180, 109, 73, 142, 165, 54, 56, 63, 192, 0, 0, 0],
    ];
    const REST: [u8; 6] = [192, 18, 236, 19, 24, 21];

    fn expected() -> Vec<u8> {
        (0..19u16).flat_map(|i| (300 * i).to_le_bytes()).collect()
    }

    fn compressed() -> Vec<u8> {
        let mut encoded = [&38u64.to_be_bytes()[..], &16u32.to_be_bytes()].concat();
        for block in BLOCKS {
            // 16 literals in LZ4: a token, what is added to its length, and the bytes.
            encoded.extend([0, 0, 0, 18, 240, 1]);
            encoded.extend(block);
        }
        encoded.extend(REST);
        encoded
    }

    #[test]
    fn blocks_of_bits_become_samples() {
        let plain = [&BLOCKS.concat()[..], &REST].concat();
        assert_eq!(decode(&[0, 4, 2, 8, 0], &plain, 38).unwrap(), expected());
        assert_eq!(decode(&[0, 4, 2, 8, 2], &compressed(), 38).unwrap(), expected());
        assert_eq!(decode(&[0, 4, 2, 0, 2], &compressed(), 100).unwrap(), expected(), "the block size of the chunk");
    }

    #[test]
    fn damaged_chunks_are_refused() {
        let encoded = compressed();
        for end in 0..encoded.len() {
            assert!(decode(&[0, 4, 2, 8, 2], &encoded[..end], 38).is_err(), "cut at {end}");
        }
        assert!(decode(&[0, 4, 2, 8, 2], &encoded, 37).is_err(), "longer than allowed");
        for values in [&[][..], &[0, 4, 0, 8, 2], &[0, 4, 2, 8, 7], &[0, 4, 5, 8, 2], &[0, 4, 2, 4, 0]] {
            assert!(decode(values, &encoded, 1000).is_err(), "{values:?}");
        }
        // Blocks of fewer than eight samples would never end.
        let mut small = encoded;
        small[8..12].copy_from_slice(&8u32.to_be_bytes());
        assert!(decode(&[0, 4, 2, 8, 2], &small, 38).is_err());
    }
}

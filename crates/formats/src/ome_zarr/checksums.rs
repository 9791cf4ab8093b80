//! Checksums of 4 bytes before or after the data of a chunk.

use crate::error::Fault;
use std::borrow::Cow;
use zarrs::array::codec::Crc32cCodec;
use zarrs::array::{BytesRepresentation, BytesToBytesCodecTraits, CodecOptions};

/// Bytes of a checksum.
pub(crate) const CHECKSUM_BYTES: usize = 4;

/// How a checksum is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checksum {
    Crc32,
    Crc32c,
    Adler32,
    /// The checksum of HDF5's data.
    Fletcher32,
    /// The checksum of HDF5's metadata.
    JenkinsLookup3 {
        /// What is added to the initial state.
        initial: u32,
    },
}

impl Checksum {
    /// Returns the name in messages and in the metadata of arrays.
    pub fn name(self) -> &'static str {
        match self {
            Self::Crc32 => "crc32",
            Self::Crc32c => "crc32c",
            Self::Adler32 => "adler32",
            Self::Fletcher32 => "fletcher32",
            Self::JenkinsLookup3 { .. } => "jenkins_lookup3",
        }
    }

    /// Whether numcodecs stores the checksum before the data unless the metadata state where it is.
    pub fn is_first(self) -> bool {
        matches!(self, Self::Crc32 | Self::Adler32)
    }

    /// Removes the checksum at the end of the bytes, or states why it is not theirs.
    pub fn verified(self, mut bytes: Vec<u8>) -> Result<Vec<u8>, String> {
        let Some((data, stored)) = bytes.split_last_chunk::<CHECKSUM_BYTES>() else {
            return Err("it is shorter than its checksum".to_owned());
        };
        let computed = match self {
            Self::Crc32 => libdeflater::crc32(data),
            Self::Adler32 => libdeflater::adler32(data),
            Self::Fletcher32 => fletcher32(data),
            Self::JenkinsLookup3 { initial } => jenkins_lookup3(data, initial),
            Self::Crc32c => {
                let size = BytesRepresentation::UnboundedSize;
                let decoded = Crc32cCodec::new().decode(Cow::Owned(bytes), &size, &CodecOptions::default());
                return decoded.map(Cow::into_owned).map_err(|e| e.to_string());
            }
        };
        let stored = u32::from_le_bytes(*stored);
        if computed != stored {
            return Err(format!("its checksum is {computed:08x}, but {stored:08x} is stored"));
        }
        let len = data.len();
        bytes.truncate(len);
        Ok(bytes)
    }
}

/// Appends the CRC-32C checksum of the bytes.
pub(crate) fn with_checksum(bytes: Vec<u8>) -> Result<Vec<u8>, Fault> {
    let encoded = Crc32cCodec::new().encode(Cow::Owned(bytes), &CodecOptions::default());
    encoded.map(Cow::into_owned).map_err(|e| Fault::malformed(format!("the checksum failed ({e})")))
}

/// Pairs of bytes after which the sums are reduced, before they exceed 32 bits.
const PAIRS_AT_ONCE: usize = 360;

/// The Fletcher-32 checksum of HDF5: sums of 16-bit numbers, most significant byte first.
fn fletcher32(data: &[u8]) -> u32 {
    let reduced = |sum: u32| (sum & 0xffff) + (sum >> 16);
    let (mut first, mut second) = (0u32, 0u32);
    for block in data.chunks(2 * PAIRS_AT_ONCE) {
        for pair in block.chunks(2) {
            // A last byte alone is the most significant one.
            let number = pair.iter().fold(0, |number, byte| (number << 8) | u32::from(*byte));
            first += if pair.len() == 2 { number } else { number << 8 };
            second += first;
        }
        (first, second) = (reduced(first), reduced(second));
    }
    (reduced(second) << 16) | reduced(first)
}

/// Bytes that are mixed into the state of lookup3 at once.
const BLOCK_BYTES: usize = 12;

/// Bob Jenkins' hash `hashlittle` (<https://burtleburtle.net/bob/c/lookup3.c>).
fn jenkins_lookup3(data: &[u8], initial: u32) -> u32 {
    let start = 0xdead_beef_u32.wrapping_add(data.len() as u32).wrapping_add(initial);
    let (mut a, mut b, mut c) = (start, start, start);
    // The last block has 1 to 12 bytes.
    let (blocks, last) = data.split_at(data.len().saturating_sub(1) / BLOCK_BYTES * BLOCK_BYTES);
    for block in blocks.chunks(BLOCK_BYTES) {
        let [x, y, z] = block_words(block);
        (a, b, c) = (a.wrapping_add(x), b.wrapping_add(y), c.wrapping_add(z));
        for bits in [4, 6, 8, 16, 19, 4] {
            a = a.wrapping_sub(c) ^ c.rotate_left(bits);
            c = c.wrapping_add(b);
            (a, b, c) = (b, c, a);
        }
    }
    if last.is_empty() {
        return c;
    }
    let [x, y, z] = block_words(last);
    (a, b, c) = (a.wrapping_add(x), b.wrapping_add(y), c.wrapping_add(z));
    for bits in [14, 11, 25, 16, 4, 14, 24] {
        c = (c ^ b).wrapping_sub(b.rotate_left(bits));
        (a, b, c) = (b, c, a);
    }
    // What was computed last; the letters were exchanged after it.
    b
}

/// The three words of a block, little-endian, after it was filled with zeros.
fn block_words(block: &[u8]) -> [u32; 3] {
    let mut filled = [0; BLOCK_BYTES];
    filled.iter_mut().zip(block).for_each(|(slot, byte)| *slot = *byte);
    let [a, b, c, d, e, f, g, h, i, j, k, l] = filled;
    [[a, b, c, d], [e, f, g, h], [i, j, k, l]].map(u32::from_le_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_numcodecs() {
        // What numcodecs 0.16 computes for the numbers 1, 8, 15, ..., 7 × n - 6, modulo 256.
        let data = |n: usize| (0..n).map(|i| (7 * i + 1) as u8).collect::<Vec<u8>>();
        for (checksum, n, expected) in [
            (Checksum::Crc32, 5, 0x4a346871),
            (Checksum::Crc32c, 5, 0x3efa0bdc),
            (Checksum::Adler32, 5, 0x00a0004c),
            (Checksum::Fletcher32, 5, 0x3e442d1e),
            (Checksum::Crc32, 64, 0x7806812c),
            (Checksum::Crc32c, 64, 0xaa6ab286),
            (Checksum::Adler32, 64, 0x38ed1c61),
            (Checksum::Fletcher32, 64, 0x42b24e2e),
            (Checksum::Fletcher32, 2000, 0x35733f9c),
            (Checksum::Fletcher32, 1441, 0x54b0e537),
            (Checksum::JenkinsLookup3 { initial: 0 }, 1, 0x04ec883b),
            (Checksum::JenkinsLookup3 { initial: 0 }, 5, 0xb21735c1),
            (Checksum::JenkinsLookup3 { initial: 7 }, 5, 0x2706d443),
            (Checksum::JenkinsLookup3 { initial: 0 }, 11, 0x75299b1b),
            (Checksum::JenkinsLookup3 { initial: 0 }, 12, 0x38919c27),
            (Checksum::JenkinsLookup3 { initial: 0 }, 13, 0xe1f0cbae),
            (Checksum::JenkinsLookup3 { initial: 0 }, 24, 0xff0cb32c),
            (Checksum::JenkinsLookup3 { initial: 0 }, 64, 0x88ea27e0),
            (Checksum::JenkinsLookup3 { initial: 0xffff_fff0 }, 64, 0x0c73e936),
            (Checksum::JenkinsLookup3 { initial: 0 }, 1441, 0xe5eeb302),
        ] {
            let sealed = [data(n), u32::to_le_bytes(expected).to_vec()].concat();
            assert_eq!(checksum.verified(sealed.clone()), Ok(data(n)), "{} of {n} bytes", checksum.name());
            for at in [0, n / 2, n, n + 3] {
                let mut damaged = sealed.clone();
                damaged[at] ^= 4;
                assert!(checksum.verified(damaged).is_err(), "{} of {n} bytes, damaged at {at}", checksum.name());
            }
            assert!(checksum.verified(vec![0; 3]).is_err(), "{}", checksum.name());
        }
    }
}

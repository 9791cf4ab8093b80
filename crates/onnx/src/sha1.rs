//! SHA-1 (FIPS 180-4), in which ONNX states the checksums of external files.

use std::fmt::Write as _;
use std::io::Write;

/// Bytes of a block.
const BLOCK: usize = 64;

/// The digest of the bytes that are written to it.
pub(crate) struct Sha1 {
    state: [u32; 5],
    /// Bytes of a block that is not full.
    pending: Vec<u8>,
    /// Number of all bytes.
    length: u64,
}

impl Sha1 {
    pub(crate) fn new() -> Self {
        let state = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476, 0xc3d2_e1f0];
        Self { state, pending: Vec::new(), length: 0 }
    }

    /// Returns the digest as 40 hexadecimal digits.
    pub(crate) fn finish(mut self) -> String {
        let bits = self.length.wrapping_mul(8);
        // A 1 bit, zeros, and the number of bits at the end of a block.
        self.pending.push(0x80);
        let padded = (self.pending.len() + 8).next_multiple_of(BLOCK) - 8;
        self.pending.resize(padded, 0);
        self.pending.extend(bits.to_be_bytes());
        self.compress_blocks();
        self.state.iter().fold(String::new(), |mut text, word| {
            // Writing to a string does not fail.
            let _ = write!(text, "{word:08x}");
            text
        })
    }

    /// Adds all full blocks to the state.
    fn compress_blocks(&mut self) {
        for block in self.pending.chunks_exact(BLOCK) {
            compress(&mut self.state, block);
        }
        let rest = self.pending.len() % BLOCK;
        self.pending.drain(..self.pending.len() - rest);
    }
}

impl Write for Sha1 {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.length = self.length.wrapping_add(bytes.len() as u64);
        self.pending.extend_from_slice(bytes);
        self.compress_blocks();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Adds a block of 64 bytes to the state.
fn compress(state: &mut [u32; 5], block: &[u8]) {
    let mut words = [0u32; 80];
    for (word, bytes) in words.iter_mut().zip(block.chunks_exact(4)) {
        *word = bytes.iter().fold(0, |word, byte| (word << 8) | u32::from(*byte));
    }
    for i in 16..words.len() {
        words[i] = (words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16]).rotate_left(1);
    }
    let [mut a, mut b, mut c, mut d, mut e] = *state;
    for (round, word) in words.into_iter().enumerate() {
        let (mixed, constant) = match round {
            0..20 => ((b & c) | (!b & d), 0x5a82_7999),
            20..40 => (b ^ c ^ d, 0x6ed9_eba1),
            40..60 => ((b & c) | (b & d) | (c & d), 0x8f1b_bcdc),
            _ => (b ^ c ^ d, 0xca62_c1d6u32),
        };
        let next = a.rotate_left(5).wrapping_add(mixed).wrapping_add(e).wrapping_add(constant).wrapping_add(word);
        (a, b, c, d, e) = (next, a, b.rotate_left(30), c, d);
    }
    for (sum, value) in state.iter_mut().zip([a, b, c, d, e]) {
        *sum = sum.wrapping_add(value);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use super::*;

    /// The examples of FIPS 180, and lengths around that of a block, whose digests are those of Python's hashlib.
    #[test]
    fn digests_are_those_of_the_standard() {
        let digest = |bytes: &[u8], part: usize| {
            let mut sha1 = Sha1::new();
            bytes.chunks(part).for_each(|part| sha1.write_all(part).unwrap());
            sha1.finish()
        };
        for (bytes, expected) in [
            (Vec::new(), "da39a3ee5e6b4b0d3255bfef95601890afd80709"),
            (b"abc".to_vec(), "a9993e364706816aba3e25717850c26c9cd0d89d"),
            (vec![b'a'; 1_000_000], "34aa973cd4c4daa4f61eeb2bdbad27316534016f"),
            (vec![b'x'; 55], "cef734ba81a024479e09eb5a75b6ddae62e6abf1"),
            (vec![b'x'; 56], "901305367c259952f4e7af8323f480d59f81335b"),
            (vec![b'x'; 63], "0ddc4e0cccd9a12850deb5abb0853a4425559fec"),
            (vec![b'x'; 64], "bb2fa3ee7afb9f54c6dfb5d021f14b1ffe40c163"),
            (vec![b'x'; 65], "78c741ddc482e4cdf8c474a0876347a0905b6233"),
            (vec![b'x'; 119], "4300320394f7ee239bcdce7d3b8bcee173a0cd5c"),
            (vec![b'x'; 120], "ceb2821639c4b6dcb10bce0e522ca2e608ce056d"),
        ] {
            for part in [1 << 13, 7] {
                assert_eq!(digest(&bytes, part), expected, "{} bytes", bytes.len());
            }
        }
    }
}

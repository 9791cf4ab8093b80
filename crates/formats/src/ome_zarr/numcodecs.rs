//! Codecs of the Python package numcodecs: LZ4 blocks after their length, and filters that reorder bytes or store differences.

use crate::meta::ByteOrder;

/// Shortest repetition in an LZ4 block in bytes.
const MIN_REPEATED: usize = 4;
/// Value of a length's first digits from which further bytes are added to it.
const LONG: usize = 15;

/// Decodes an LZ4 block that follows its decoded length (4 bytes, little-endian). `None` if it is damaged or longer than
/// `max_bytes`.
pub(crate) fn lz4(encoded: &[u8], max_bytes: usize) -> Option<Vec<u8>> {
    let (stated, mut rest) = encoded.split_first_chunk::<4>()?;
    let len = usize::try_from(u32::from_le_bytes(*stated)).ok().filter(|len| *len <= max_bytes)?;
    let mut out = Vec::with_capacity(len);
    loop {
        let (token, after) = rest.split_first()?;
        let token = *token;
        rest = after;
        let literals = length(usize::from(token >> 4), &mut rest)?;
        let (bytes, after) = rest.split_at_checked(literals)?;
        rest = after;
        if bytes.len() > len - out.len() {
            return None;
        }
        out.extend_from_slice(bytes);
        if rest.is_empty() {
            break;
        }
        let (distance, after) = rest.split_first_chunk::<2>()?;
        rest = after;
        let distance = usize::from(u16::from_le_bytes(*distance));
        let count = length(usize::from(token & 15), &mut rest)?.checked_add(MIN_REPEATED)?;
        let start = out.len().checked_sub(distance).filter(|_| distance > 0)?;
        if count > len - out.len() {
            return None;
        }
        // A repetition may overlap itself: its bytes repeat those before it.
        let mut left = count;
        while left > 0 {
            let part = left.min(out.len() - start);
            out.extend_from_within(start..start + part);
            left -= part;
        }
    }
    (out.len() == len).then_some(out)
}

/// A length whose first digits are in the token.
fn length(first: usize, rest: &mut &[u8]) -> Option<usize> {
    let mut total = first;
    let mut continues = first == LONG;
    while continues {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        total = total.checked_add(usize::from(*byte))?;
        continues = *byte == u8::MAX;
    }
    Some(total)
}

/// Restores elements of `size` bytes of which first all first bytes are stored, then all second ones, and so on. `None` if there
/// is a part of an element.
pub(crate) fn unshuffled(shuffled: &[u8], size: usize) -> Option<Vec<u8>> {
    if size == 0 || !shuffled.len().is_multiple_of(size) {
        return None;
    }
    let mut out = vec![0; shuffled.len()];
    for (place, bytes) in shuffled.chunks_exact((shuffled.len() / size).max(1)).enumerate() {
        for (element, byte) in out.chunks_exact_mut(size).zip(bytes) {
            if let Some(slot) = element.get_mut(place) {
                *slot = *byte;
            }
        }
    }
    Some(out)
}

/// Restores integers of `size` bytes: the first one is stored as it is, each other one as the difference from the one before.
/// `None` if the bytes end within a number.
pub(crate) fn summed(mut bytes: Vec<u8>, size: usize, order: ByteOrder) -> Option<Vec<u8>> {
    if size == 0 || !bytes.len().is_multiple_of(size) {
        return None;
    }
    let mut sum = 0u64;
    for element in bytes.chunks_exact_mut(size) {
        let from_low = |value: u64, byte: &u8| (value << 8) | u64::from(*byte);
        let difference = match order {
            ByteOrder::Little => element.iter().rev().fold(0, from_low),
            ByteOrder::Big => element.iter().fold(0, from_low),
        };
        sum = sum.wrapping_add(difference);
        let digits = sum.to_le_bytes();
        match order {
            ByteOrder::Little => element.iter_mut().zip(digits).for_each(|(byte, digit)| *byte = digit),
            ByteOrder::Big => element.iter_mut().rev().zip(digits).for_each(|(byte, digit)| *byte = digit),
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    /// What numcodecs 0.16 writes for 1, 2, 3, 4 ten times, 7, 9.
    const REPEATED: [u8; 18] = [42, 0, 0, 0, 79, 1, 2, 3, 4, 4, 0, 14, 80, 2, 3, 4, 7, 9];
    /// What numcodecs 0.16 writes for 5 and 299 zeros.
    const LONG_RUN: [u8; 17] = [44, 1, 0, 0, 47, 5, 0, 1, 0, 255, 19, 80, 0, 0, 0, 0, 0];

    #[test]
    fn lz4_blocks_of_numcodecs_are_decoded() {
        let repeated = [[1, 2, 3, 4].repeat(10), vec![7, 9]].concat();
        assert_eq!(lz4(&REPEATED, 42).unwrap(), repeated);
        assert_eq!(lz4(&LONG_RUN, 1000).unwrap(), [vec![5], vec![0; 299]].concat());
        assert_eq!(lz4(&[0, 0, 0, 0, 0], 0).unwrap(), [0; 0]);
    }

    #[test]
    fn damaged_lz4_blocks_are_refused() {
        assert_eq!(lz4(&REPEATED, 41), None, "longer than allowed");
        for end in 0..REPEATED.len() {
            assert_eq!(lz4(&REPEATED[..end], 42), None, "cut at {end}");
        }
        // A repetition from before the start, and one of distance 0.
        for distance in [0, 5] {
            let mut damaged = REPEATED;
            damaged[9] = distance;
            assert_eq!(lz4(&damaged, 42), None, "distance {distance}");
        }
        // The block is longer or shorter than stated.
        for stated in [41, 43] {
            let mut damaged = REPEATED;
            damaged[0] = stated;
            assert_eq!(lz4(&damaged, 100), None, "{stated} bytes stated");
        }
    }

    #[test]
    fn shuffled_bytes_and_differences_are_restored() {
        assert_eq!(unshuffled(&[1, 3, 5, 2, 4, 6], 2).unwrap(), [1, 2, 3, 4, 5, 6]);
        assert_eq!((unshuffled(&[1, 2, 3], 2), unshuffled(&[1], 0)), (None, None));
        assert_eq!(unshuffled(&[], 2).unwrap(), [0; 0]);
        // 500, 255, 256: differences of -245 and 1.
        let little = vec![0xf4, 0x01, 0x0b, 0xff, 0x01, 0x00];
        let big: Vec<u8> = little.chunks(2).flat_map(|pair| [pair[1], pair[0]]).collect();
        assert_eq!(summed(little, 2, ByteOrder::Little).unwrap(), [0xf4, 0x01, 0xff, 0x00, 0x00, 0x01]);
        assert_eq!(summed(big, 2, ByteOrder::Big).unwrap(), [0x01, 0xf4, 0x00, 0xff, 0x01, 0x00]);
        assert_eq!(summed(vec![1], 2, ByteOrder::Little), None);
    }
}

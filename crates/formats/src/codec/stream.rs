//! BZ2 and LZMA, decoded by readers that stop at a limit.

use bzip2::bufread::MultiBzDecoder;
use liblzma::{
    bufread::XzDecoder,
    stream::{CONCATENATED, Stream},
};
use std::io::Read;

/// Largest memory of an LZMA decoder in bytes. Data of the highest preset need about 65 MiB.
const MAX_LZMA_MEMORY: u64 = 128 << 20;

/// Decodes BZ2 data of at most `max_bytes`; an error says why they cannot be decoded.
pub(crate) fn bz2_up_to(encoded: &[u8], max_bytes: usize) -> Result<Vec<u8>, String> {
    read_up_to(MultiBzDecoder::new(encoded), max_bytes)
}

/// Decodes LZMA data in an `.xz` or `.lzma` container of at most `max_bytes`; an error says why they cannot be decoded.
pub(crate) fn lzma_up_to(encoded: &[u8], max_bytes: usize) -> Result<Vec<u8>, String> {
    read_up_to(lzma_reader(encoded)?, max_bytes)
}

/// Decodes LZMA data, as [`lzma_up_to`], until `out` is full. Returns the number of bytes, and whether more follow.
pub(crate) fn lzma_into(encoded: &[u8], out: &mut [u8]) -> Result<(usize, bool), String> {
    let mut decoder = lzma_reader(encoded)?;
    let mut filled = 0;
    while let Some(rest) = out.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match decoder.read(rest).map_err(|e| e.to_string())? {
            0 => return Ok((filled, false)),
            count => filled += count,
        }
    }
    // The checksum of the data is verified at their end.
    let more = decoder.read(&mut [0]).map_err(|e| e.to_string())?;
    Ok((filled, more > 0))
}

fn lzma_reader(encoded: &[u8]) -> Result<XzDecoder<&[u8]>, String> {
    let decoder = Stream::new_auto_decoder(MAX_LZMA_MEMORY, CONCATENATED).map_err(|e| e.to_string())?;
    Ok(XzDecoder::new_stream(encoded, decoder))
}

fn read_up_to(decoder: impl Read, max_bytes: usize) -> Result<Vec<u8>, String> {
    let mut out = Vec::with_capacity(max_bytes);
    let mut limited = decoder.take((max_bytes as u64).saturating_add(1));
    limited.read_to_end(&mut out).map_err(|e| e.to_string())?;
    if out.len() > max_bytes {
        return Err(format!("they decode to more than {max_bytes} bytes"));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    type Decode = fn(&[u8], usize) -> Result<Vec<u8>, String>;

    // What Python's modules bz2 (level 1) and lzma (formats xz and alone) write for 1, 2, 3, 4 ten times, 7, 9.
    const BZ2: &[u8] = &[
        66, 90, 104, 49, 49, 65, 89, 38, 83, 89, 201, 163, 233, 82, 0, 0, 0, 64, 0, 60, 160, 32, 0, 48, 192, 4, 80,
        201, 98, 26, 39, 9, 4, 235, 226, 238, 72, 167, 10, 18, 25, 52, 125, 42, 64,
    ];
    const XZ: &[u8] = &[
        253, 55, 122, 88, 90, 0, 0, 4, 230, 214, 180, 70, 2, 0, 33, 1, 22, 0, 0, 0, 116, 47, 229, 163, 224, 0, 41, 0,
        12, 93, 0, 0, 128, 157, 97, 235, 218, 198, 97, 140, 70, 243, 246, 0, 201, 47, 197, 67, 243, 167, 220, 7, 0, 1,
        40, 42, 87, 210, 96, 166, 31, 182, 243, 125, 1, 0, 0, 0, 0, 4, 89, 90,
    ];
    const ALONE: &[u8] = &[
        93, 0, 0, 128, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 128, 157, 97, 235, 218, 198, 97, 141, 203, 11,
        73, 255, 255, 73, 136, 0, 0,
    ];
    /// The same data with a dictionary of 256 MiB, in xz.
    const LARGE_DICTIONARY: &[u8] = &[
        253, 55, 122, 88, 90, 0, 0, 4, 230, 214, 180, 70, 2, 0, 33, 1, 32, 0, 0, 0, 9, 136, 165, 118, 224, 0, 41, 0,
        12, 93, 0, 0, 128, 157, 97, 235, 218, 198, 97, 140, 70, 243, 246, 0, 201, 47, 197, 67, 243, 167, 220, 7, 0, 1,
        40, 42, 87, 210, 96, 166, 31, 182, 243, 125, 1, 0, 0, 0, 0, 4, 89, 90,
    ];
    const CASES: [(&str, Decode, &[u8]); 3] =
        [("bz2", bz2_up_to, BZ2), ("xz", lzma_up_to, XZ), ("alone", lzma_up_to, ALONE)];

    #[test]
    fn data_of_python_are_decoded_up_to_a_limit() {
        let wanted: Vec<u8> = [[1, 2, 3, 4].repeat(10), vec![7, 9]].concat();
        for (name, decode, encoded) in CASES {
            assert_eq!(decode(encoded, 42).unwrap(), wanted, "{name}");
            assert_eq!(decode(encoded, 1000).unwrap(), wanted, "{name}");
            let refused = decode(encoded, 41).unwrap_err();
            assert!(refused.contains("more than 41 bytes"), "{name}: {refused}");
        }
        // Streams that follow each other are one.
        assert_eq!(lzma_up_to(&[XZ, XZ].concat(), 84).unwrap(), wanted.repeat(2));
        assert_eq!(bz2_up_to(&[BZ2, BZ2].concat(), 84).unwrap(), wanted.repeat(2));
    }

    #[test]
    fn lzma_data_fill_a_buffer() {
        let wanted: Vec<u8> = [[1, 2, 3, 4].repeat(10), vec![7, 9]].concat();
        for encoded in [XZ, ALONE] {
            for (len, filled, more) in [(41, 41, true), (42, 42, false), (50, 42, false)] {
                let mut out = vec![0; len];
                assert_eq!(lzma_into(encoded, &mut out).unwrap(), (filled, more), "{len}");
                assert_eq!(out.get(..filled), wanted.get(..filled), "{len}");
            }
        }
        let mut damaged = XZ.to_vec();
        damaged[40] ^= 1;
        assert!(lzma_into(&damaged, &mut [0; 42]).is_err());
    }

    #[test]
    fn damaged_data_are_refused() {
        for (name, decode, encoded) in CASES {
            for end in 1..encoded.len() {
                assert!(decode(&encoded[..end], 42).is_err(), "{name} cut at {end}");
            }
        }
        for (name, decode, encoded) in CASES.into_iter().take(2) {
            for place in 0..encoded.len() {
                let mut damaged = encoded.to_vec();
                damaged[place] ^= 0x55;
                assert!(decode(&damaged, 42).is_err(), "{name} damaged at {place}");
            }
        }
        let refused = lzma_up_to(LARGE_DICTIONARY, 42).unwrap_err();
        assert!(refused.contains("memory limit"), "{refused}");
    }
}

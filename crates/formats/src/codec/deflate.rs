//! Deflate with a zlib header and an Adler-32 checksum.

use super::{
    Codec,
    inflate::{Inflater, PADDING, Stop},
    short,
};
use crate::error::Fault;
use std::{cell::RefCell, io};

thread_local! {
    static DECODER: RefCell<Inflater> = RefCell::new(Inflater::new());
}

/// Decodes exactly `out`; data that go on up to `padded_len` bytes are cut.
pub(super) fn decode(mut encoded: Vec<u8>, out: &mut [u8], padded_len: usize) -> Result<(), Fault> {
    let header = encoded.first_chunk::<2>().map(|b| u16::from_be_bytes(*b));
    if !header.is_some_and(|h| (h >> 8) & 15 == 8 && h & 32 == 0 && h % 31 == 0) {
        return Err(Fault::malformed("a strip or tile does not begin as Deflate data do"));
    }
    let checksum_len = 4;
    encoded.extend([0; PADDING]);
    let body = encoded.get(2..).unwrap_or_default();
    DECODER.with_borrow_mut(|decoder| {
        let mut padded;
        let (decoded, read) = match decoder.run(body, out) {
            Err(Stop::Full) if padded_len > out.len() => {
                padded = vec![0; padded_len];
                let (got, read) = decoder.run(body, &mut padded).map_err(fault)?;
                let kept = padded.get(..out.len()).unwrap_or_default();
                out.copy_from_slice(kept);
                (padded.get(..got).unwrap_or_default(), read)
            }
            other => {
                let (got, read) = other.map_err(fault)?;
                (out.get(..got).unwrap_or_default(), read)
            }
        };
        let stored = body.get(read..read + checksum_len).and_then(|b| b.first_chunk::<4>());
        if stored.map(|b| u32::from_be_bytes(*b)) != Some(simd_adler32::adler32(&decoded)) {
            return Err(Fault::malformed("a strip or tile of Deflate data has a wrong checksum"));
        }
        if decoded.len() < out.len() { Err(short(Codec::Deflate, decoded.len(), out.len())) } else { Ok(()) }
    })
}

fn fault(stop: Stop) -> Fault {
    Fault::malformed(match stop {
        Stop::Bad => "a strip or tile is not valid Deflate data",
        Stop::Full => "a strip or tile decodes to more bytes than its page can hold",
    })
}

thread_local! {
    static ENCODER: RefCell<libdeflater::Compressor> =
        RefCell::new(libdeflater::Compressor::new(libdeflater::CompressionLvl::default()));
}

/// Compresses a strip, with a zlib header.
pub(crate) fn compress(samples: &[u8]) -> io::Result<Vec<u8>> {
    ENCODER.with_borrow_mut(|encoder| {
        let mut out = vec![0; encoder.zlib_compress_bound(samples.len())];
        let len = encoder.zlib_compress(samples, &mut out).map_err(io::Error::other)?;
        out.truncate(len);
        Ok(out)
    })
}

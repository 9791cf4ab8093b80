//! Deflate with a zlib header.

use super::{Codec, too_short};
use crate::error::Fault;
use libdeflater::{DecompressionError, Decompressor};
use std::{cell::RefCell, io};

thread_local! {
    static DECODER: RefCell<Decompressor> = RefCell::new(Decompressor::new());
}

/// Decodes into `out`, which must be filled exactly; data that continue, up to `padded_len` bytes, are cut off.
pub(crate) fn decode(encoded: &[u8], out: &mut [u8], padded_len: usize) -> Result<(), Fault> {
    DECODER.with_borrow_mut(|decoder| {
        let got = match decoder.zlib_decompress(encoded, out) {
            Err(DecompressionError::InsufficientSpace) if padded_len > out.len() => {
                let mut padded = vec![0; padded_len];
                let got = decoder.zlib_decompress(encoded, &mut padded).map_err(|e| fault(&e))?;
                let len = out.len();
                out.copy_from_slice(padded.get(..len).unwrap_or_default());
                got.min(len)
            }
            other => other.map_err(|e| fault(&e))?,
        };
        if got == out.len() { Ok(()) } else { Err(too_short(Codec::Deflate, got, out.len())) }
    })
}

fn fault(error: &DecompressionError) -> Fault {
    Fault::malformed(match error {
        DecompressionError::BadData => "a strip or tile is not valid Deflate data",
        DecompressionError::InsufficientSpace => "a strip or tile decodes to more bytes than its page can hold",
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

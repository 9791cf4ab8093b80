//! Zstandard frames.

use super::{Codec, too_short};
use crate::error::Fault;
use std::{cell::RefCell, io};
use zstd::bulk::Decompressor;

thread_local! {
    static DECODER: RefCell<Option<Decompressor<'static>>> = const { RefCell::new(None) };
}

/// Calls `decode` with the decoder of this thread.
fn with_decoder<T>(decode: impl FnOnce(&mut Decompressor<'static>) -> Result<T, Fault>) -> Result<T, Fault> {
    DECODER.with_borrow_mut(|slot| {
        decode(match slot {
            Some(decoder) => decoder,
            None => slot.insert(Decompressor::new().map_err(|e| Fault::Io("starting the Zstd decoder", e))?),
        })
    })
}

/// Decodes a frame of at most `max_bytes`.
pub(crate) fn decode_up_to(encoded: &[u8], max_bytes: usize) -> Result<io::Result<Vec<u8>>, Fault> {
    with_decoder(|decoder| Ok(decoder.decompress(encoded, max_bytes)))
}

/// Decodes into `out`, which must be filled exactly; data that continue, up to `padded_len` bytes, are cut off.
pub(super) fn decode(encoded: &[u8], out: &mut [u8], padded_len: usize) -> Result<(), Fault> {
    with_decoder(|decoder| {
        let fault = |e: io::Error| Fault::malformed(format!("a strip or tile is not valid Zstd data ({e})"));
        let got = match decoder.decompress_to_buffer(encoded, out) {
            Ok(got) => got,
            Err(_) if padded_len > out.len() => {
                let mut padded = vec![0; padded_len];
                let got = decoder.decompress_to_buffer(encoded, padded.as_mut_slice()).map_err(fault)?;
                let len = out.len();
                out.copy_from_slice(padded.get(..len).unwrap_or_default());
                got.min(len)
            }
            Err(e) => return Err(fault(e)),
        };
        if got == out.len() { Ok(()) } else { Err(too_short(Codec::Zstd, got, out.len())) }
    })
}

/// Compression level: the library's default.
pub(crate) const LEVEL: i32 = 3;

/// Compresses a strip into one frame whose header contains its size.
pub(crate) fn compress(samples: &[u8]) -> io::Result<Vec<u8>> {
    zstd::bulk::compress(samples, LEVEL)
}

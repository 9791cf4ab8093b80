//! Codecs of chunks that map bytes to bytes. No decoder returns more bytes than the chunk's metadata allow.

use super::numcodecs;
use crate::codec::{bz2_up_to, lzma_up_to, zstandard};
use crate::error::Fault;
use crate::file_format::StoredCompression;
use crate::meta::ByteOrder;
use libdeflater::Decompressor;
use serde_json::{Map, Value};
use std::borrow::Cow;
use zarrs::array::codec::{Crc32cCodec, blosc_decompress_bytes, blosc_validate};
use zarrs::array::{BytesRepresentation, BytesToBytesCodecTraits, CodecOptions};

/// A codec that maps bytes to bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BytesCodec {
    Gzip,
    Zlib,
    Zstd,
    Bz2,
    /// LZMA in an `.xz` or `.lzma` container.
    Lzma,
    /// Blosc 1 with any of its compressors and shuffles; the frame states which.
    Blosc,
    /// A checksum of 4 bytes after the data.
    Crc32c,
    /// An LZ4 block after its length, as numcodecs writes it.
    Lz4,
    /// All first bytes of the elements, then all second bytes, and so on.
    Shuffle {
        /// Bytes of an element.
        size: usize,
    },
    /// Differences between consecutive integers.
    Delta {
        /// Bytes of a number.
        size: usize,
        /// Byte order of the numbers.
        order: ByteOrder,
    },
}

/// Size in bytes of the elements of a shuffle that does not state it.
const DEFAULT_ELEMENT_BYTES: u64 = 4;

/// Bytes of a CRC-32C checksum.
pub(crate) const CHECKSUM_BYTES: usize = 4;

impl BytesCodec {
    /// Returns the codec with this name and these settings in Zarr 2 or 3.
    pub fn parse(name: &str, settings: &Map<String, Value>) -> Result<Self, Fault> {
        Ok(match name {
            "gzip" | "numcodecs.gzip" => Self::Gzip,
            "zlib" | "numcodecs.zlib" => Self::Zlib,
            "zstd" | "numcodecs.zstd" => Self::Zstd,
            "bz2" | "numcodecs.bz2" => Self::Bz2,
            "lzma" | "numcodecs.lzma" => lzma(settings)?,
            "blosc" | "numcodecs.blosc" => Self::Blosc,
            "crc32c" => Self::Crc32c,
            "lz4" | "numcodecs.lz4" => Self::Lz4,
            "shuffle" | "numcodecs.shuffle" => {
                let size = settings.get("elementsize").map_or(Some(DEFAULT_ELEMENT_BYTES), Value::as_u64);
                let size = size.and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0);
                Self::Shuffle {
                    size: size.ok_or_else(|| Fault::malformed("the elements of its shuffle have no size"))?,
                }
            }
            other => {
                return Err(Fault::unsupported(
                    format!("its chunks are stored with the codec {other:?}, which is not supported"),
                    "write it again with the codec zstd, blosc, gzip, zlib or lz4",
                ));
            }
        })
    }

    /// Returns the name of the codec in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Zlib => "zlib",
            Self::Zstd => "zstd",
            Self::Bz2 => "bz2",
            Self::Lzma => "lzma",
            Self::Blosc => "blosc",
            Self::Crc32c => "crc32c",
            Self::Lz4 => "lz4",
            Self::Shuffle { .. } => "shuffle",
            Self::Delta { .. } => "delta",
        }
    }

    /// The compression of the codec; `None` for a checksum and for filters.
    pub fn compression(self) -> Option<StoredCompression> {
        match self {
            Self::Gzip => Some(StoredCompression::Gzip),
            Self::Zlib => Some(StoredCompression::Zlib),
            Self::Zstd => Some(StoredCompression::Zstd),
            Self::Bz2 => Some(StoredCompression::Bz2),
            Self::Lzma => Some(StoredCompression::Lzma),
            Self::Blosc => Some(StoredCompression::Blosc),
            Self::Lz4 => Some(StoredCompression::Lz4),
            Self::Crc32c | Self::Shuffle { .. } | Self::Delta { .. } => None,
        }
    }
}

/// The value of `format` in the settings of LZMA for data without a container.
const RAW_LZMA: u64 = 3;

/// The codec LZMA, provided that its data have a container, which states how they are decoded.
fn lzma(settings: &Map<String, Value>) -> Result<BytesCodec, Fault> {
    if settings.get("format").and_then(Value::as_u64) == Some(RAW_LZMA) {
        let problem =
            "its chunks are stored with the codec \"lzma\" without a container (format 3), which is not supported";
        return Err(Fault::unsupported(problem, "write it again with format 1 of lzma, or with the codec zstd"));
    }
    Ok(BytesCodec::Lzma)
}

/// Decodes a chunk that was encoded by `codecs`, in their order, from `len` bytes.
pub(crate) fn decode(codecs: &[BytesCodec], encoded: Vec<u8>, len: usize) -> Result<Vec<u8>, Fault> {
    let mut bytes = encoded;
    for (i, codec) in codecs.iter().enumerate().rev() {
        // Compressed data that are encoded again may be slightly larger than the decoded chunk.
        let max_bytes = if i == 0 { len } else { len.saturating_add(len / 8).saturating_add(1 << 16) };
        bytes = decode_one(*codec, bytes, max_bytes)?;
    }
    if bytes.len() != len {
        return Err(Fault::malformed(format!("a chunk has {} bytes; {len} were expected", bytes.len())));
    }
    Ok(bytes)
}

/// Reasons why a chunk cannot be decoded.
const DAMAGED_CHUNK: &str = "it is damaged, or longer than expected";
const PART_OF_ELEMENT: &str = "it ends within an element";

fn decode_one(codec: BytesCodec, encoded: Vec<u8>, max_bytes: usize) -> Result<Vec<u8>, Fault> {
    let invalid = |reason: String| Fault::malformed(format!("a chunk is not valid {} data ({reason})", codec.name()));
    let mut out: Vec<u8>;
    let len = match codec {
        BytesCodec::Gzip => {
            out = vec![0; max_bytes];
            Decompressor::new().gzip_decompress(&encoded, &mut out).map_err(|e| invalid(e.to_string()))?
        }
        BytesCodec::Zlib => {
            out = vec![0; max_bytes];
            Decompressor::new().zlib_decompress(&encoded, &mut out).map_err(|e| invalid(e.to_string()))?
        }
        BytesCodec::Zstd => {
            return zstandard::decode_up_to(&encoded, max_bytes)?.map_err(|e| invalid(e.to_string()));
        }
        BytesCodec::Bz2 => return bz2_up_to(&encoded, max_bytes).map_err(invalid),
        BytesCodec::Lzma => return lzma_up_to(&encoded, max_bytes).map_err(invalid),
        BytesCodec::Blosc => {
            let Some(len) = blosc_validate(&encoded) else { return Err(invalid("its header is damaged".to_owned())) };
            if len > max_bytes {
                return Err(invalid(format!("it states {len} bytes; {max_bytes} were expected")));
            }
            return blosc_decompress_bytes(&encoded, len, 1).map_err(|e| invalid(e.to_string()));
        }
        BytesCodec::Crc32c => {
            let size = BytesRepresentation::UnboundedSize;
            let decoded = Crc32cCodec::new().decode(Cow::Owned(encoded), &size, &CodecOptions::default());
            return decoded.map(Cow::into_owned).map_err(|e| invalid(e.to_string()));
        }
        BytesCodec::Lz4 => {
            return numcodecs::lz4(&encoded, max_bytes).ok_or_else(|| invalid(DAMAGED_CHUNK.to_owned()));
        }
        BytesCodec::Shuffle { size } => {
            return numcodecs::unshuffled(&encoded, size).ok_or_else(|| invalid(PART_OF_ELEMENT.to_owned()));
        }
        BytesCodec::Delta { size, order } => {
            return numcodecs::summed(encoded, size, order).ok_or_else(|| invalid(PART_OF_ELEMENT.to_owned()));
        }
    };
    out.truncate(len);
    Ok(out)
}

/// Appends the CRC-32C checksum of the bytes.
pub(crate) fn with_checksum(bytes: Vec<u8>) -> Result<Vec<u8>, Fault> {
    let encoded = Crc32cCodec::new().encode(Cow::Owned(bytes), &CodecOptions::default());
    encoded.map(Cow::into_owned).map_err(|e| Fault::malformed(format!("the checksum failed ({e})")))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
    use super::*;

    #[test]
    fn chunks_that_decode_to_more_than_declared_are_refused() {
        let zeros = vec![0u8; 1 << 20];
        let bomb = zstd::bulk::compress(&zeros, 3).unwrap();
        assert!(bomb.len() < 1000);
        assert!(matches!(decode(&[BytesCodec::Zstd], bomb.clone(), 1 << 10), Err(Fault::Malformed(..))));
        assert_eq!(decode(&[BytesCodec::Zstd], bomb, 1 << 20).unwrap(), zeros);
    }

    #[test]
    fn lzma_without_a_container_is_refused() {
        let settings = |format: Value| Map::from_iter([("format".to_owned(), format)]);
        for name in ["lzma", "numcodecs.lzma"] {
            assert_eq!(BytesCodec::parse(name, &settings(Value::from(1))).unwrap(), BytesCodec::Lzma);
            let Err(Fault::Unsupported(problem, next_step)) = BytesCodec::parse(name, &settings(Value::from(3))) else {
                panic!("{name} without a container is read")
            };
            assert!(problem.contains("format 3") && next_step.contains("zstd"), "{problem}; {next_step}");
        }
        assert_eq!(BytesCodec::parse("lzma", &Map::new()).unwrap(), BytesCodec::Lzma);
    }

    #[test]
    fn blosc_headers_that_state_a_wrong_size_are_refused() {
        // Version 2, LZ4, not split, 1 byte per sample, 2 GiB declared in blocks of 64 KiB, 16 bytes stored.
        let mut header = vec![2, 1, 0x20, 1];
        for value in [0x7fff_0000u32, 1 << 16, 16] {
            header.extend(value.to_le_bytes());
        }
        assert!(matches!(decode(&[BytesCodec::Blosc], header, 4096), Err(Fault::Malformed(..))));
        assert!(matches!(decode(&[BytesCodec::Blosc], vec![2, 1], 4096), Err(Fault::Malformed(..))));
    }

    #[test]
    fn checksums_are_verified() {
        // The check value of CRC-32C (RFC 3720, appendix B.4): 32 zeros.
        let mut sealed = with_checksum(vec![0; 32]).unwrap();
        assert_eq!(sealed.get(32..), Some(&0x8A91_36AAu32.to_le_bytes()[..]));
        assert_eq!(decode(&[BytesCodec::Crc32c], sealed.clone(), 32).unwrap(), vec![0; 32]);
        sealed[3] ^= 1;
        assert!(matches!(decode(&[BytesCodec::Crc32c], sealed, 32), Err(Fault::Malformed(..))));
    }
}

//! Codecs of chunks. No decoder returns more bytes than the chunk's metadata allow.

use super::checksums::{CHECKSUM_BYTES, Checksum};
use super::filters::{Filter, SampleType};
use super::{numcodecs, pcodec};
use crate::codec::{bz2_up_to, lzma_up_to, zstandard};
use crate::error::Fault;
use crate::file_format::StoredCompression;
use crate::meta::ByteOrder;
use cytoscope_volume::DType;
use libdeflater::Decompressor;
use serde_json::{Map, Value};
use zarrs::array::codec::{blosc_decompress_bytes, blosc_validate};

/// A codec that maps bytes to bytes, or a filter that maps the bytes of samples to those of other samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum BytesCodec {
    Gzip,
    Zlib,
    Zstd,
    Bz2,
    /// LZMA in an `.xz` or `.lzma` container.
    Lzma,
    /// Blosc 1 with any of its compressors and shuffles; the frame states which.
    Blosc,
    /// A checksum before or after the data.
    Checksum {
        kind: Checksum,
        is_first: bool,
    },
    /// An LZ4 block after its length, as numcodecs writes it.
    Lz4,
    /// All first bytes of the elements, then all second bytes, and so on.
    Shuffle {
        /// Bytes of an element.
        size: usize,
    },
    Filter(Filter),
    /// PCodec of samples of a type. Only filters may come before it.
    Pcodec(DType),
}

/// Size in bytes of the elements of a shuffle that does not state it.
const DEFAULT_ELEMENT_BYTES: u64 = 4;

impl BytesCodec {
    /// CRC-32C after the data.
    pub const CRC_32C: Self = Self::Checksum { kind: Checksum::Crc32c, is_first: false };

    /// Whether a name in Zarr 2 or 3 is that of PCodec, which depends on the samples: see [`Self::pcodec`].
    pub fn is_pcodec(name: &str) -> bool {
        matches!(name, "pcodec" | "numcodecs.pcodec")
    }

    /// Returns PCodec of samples of the type that the codecs `before` it store.
    ///
    /// # Errors
    /// [`Fault::Unsupported`] for big-endian samples and after codecs of bytes: numcodecs writes neither.
    pub fn pcodec(samples: SampleType, before: &[Self]) -> Result<Self, Fault> {
        let next_step =
            "write it again with little-endian samples and pcodec as the compressor, or with the codec zstd";
        if samples.order == ByteOrder::Big && samples.dtype.size_bytes() > 1 {
            let problem = "its chunks are stored with the codec \"pcodec\" in big-endian order, which is not supported";
            return Err(Fault::unsupported(problem, next_step));
        }
        match before.iter().find(|codec| !matches!(codec, Self::Filter(_))) {
            None => Ok(Self::Pcodec(samples.dtype)),
            Some(codec) => {
                let problem = format!("its codec \"pcodec\" comes after the codec {:?}", codec.name());
                Err(Fault::unsupported(problem, next_step))
            }
        }
    }

    /// Returns the codec with this name and these settings in Zarr 2 or 3, provided that it is neither a filter nor PCodec.
    pub fn parse(name: &str, settings: &Map<String, Value>) -> Result<Self, Fault> {
        Ok(match name.strip_prefix("numcodecs.").unwrap_or(name) {
            "gzip" => Self::Gzip,
            "zlib" => Self::Zlib,
            "zstd" => Self::Zstd,
            "bz2" => Self::Bz2,
            "lzma" => lzma(settings)?,
            "blosc" => Self::Blosc,
            "crc32" => checksum(Checksum::Crc32, settings)?,
            "crc32c" => checksum(Checksum::Crc32c, settings)?,
            "adler32" => checksum(Checksum::Adler32, settings)?,
            "fletcher32" => Self::Checksum { kind: Checksum::Fletcher32, is_first: false },
            "jenkins_lookup3" => Self::Checksum { kind: jenkins_lookup3(settings)?, is_first: false },
            "lz4" => Self::Lz4,
            "shuffle" => {
                let size = settings.get("elementsize").map_or(Some(DEFAULT_ELEMENT_BYTES), Value::as_u64);
                let size = size.and_then(|size| usize::try_from(size).ok()).filter(|size| *size > 0);
                Self::Shuffle {
                    size: size.ok_or_else(|| Fault::malformed("the elements of its shuffle have no size"))?,
                }
            }
            _ => {
                return Err(Fault::unsupported(
                    format!("its chunks are stored with the codec {name:?}, which is not supported"),
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
            Self::Checksum { kind, .. } => kind.name(),
            Self::Lz4 => "lz4",
            Self::Shuffle { .. } => "shuffle",
            Self::Filter(filter) => filter.name(),
            Self::Pcodec(_) => "pcodec",
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
            Self::Pcodec(_) => Some(StoredCompression::Pcodec),
            Self::Checksum { .. } | Self::Shuffle { .. } | Self::Filter(_) => None,
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

/// The codec that stores a checksum at the place that its settings state.
fn checksum(kind: Checksum, settings: &Map<String, Value>) -> Result<BytesCodec, Fault> {
    let is_first = match settings.get("location") {
        None | Some(Value::Null) => kind.is_first(),
        Some(Value::String(place)) if place == "start" => true,
        Some(Value::String(place)) if place == "end" => false,
        Some(_) => {
            let problem = format!("the place of its checksum {:?} is neither \"start\" nor \"end\"", kind.name());
            return Err(Fault::malformed(problem));
        }
    };
    Ok(BytesCodec::Checksum { kind, is_first })
}

/// The checksum `jenkins_lookup3` with the initial value of its settings. numcodecs can compute it of a prefix before the data,
/// but no program stores a prefix in the metadata of an array, so its form there is unknown.
fn jenkins_lookup3(settings: &Map<String, Value>) -> Result<Checksum, Fault> {
    if settings.get("prefix").is_some_and(|prefix| !prefix.is_null()) {
        let problem = "the checksum \"jenkins_lookup3\" of its chunks has a prefix, which is not supported";
        return Err(Fault::unsupported(problem, "write it again without a prefix, or without this checksum"));
    }
    let initial = settings.get("initval").map_or(Some(0), Value::as_u64).and_then(|value| u32::try_from(value).ok());
    let wrong = || Fault::malformed("the initval of its checksum \"jenkins_lookup3\" is not a whole number of 32 bits");
    Ok(Checksum::JenkinsLookup3 { initial: initial.ok_or_else(wrong)? })
}

/// Number of bytes that the filters in `codecs` make of `len` bytes.
pub(crate) fn filtered_bytes(codecs: &[BytesCodec], len: usize) -> usize {
    codecs.iter().fold(len, |len, codec| match codec {
        BytesCodec::Filter(filter) => filter.stored_bytes(len),
        _ => len,
    })
}

/// Decodes a chunk that was encoded by `codecs`, in their order, from `len` bytes.
pub(crate) fn decode(codecs: &[BytesCodec], encoded: Vec<u8>, len: usize) -> Result<Vec<u8>, Fault> {
    let mut bytes = encoded;
    for (i, codec) in codecs.iter().enumerate().rev() {
        let before = codecs.get(..i).unwrap_or_default();
        let filtered = filtered_bytes(before, len);
        let max_bytes = match before.iter().all(|codec| matches!(codec, BytesCodec::Filter(_))) {
            true => filtered,
            // Compressed data that are encoded again may be slightly larger than the decoded chunk.
            false => filtered.saturating_add(filtered / 8).saturating_add(1 << 16),
        };
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

/// Decodes data of one codec to at most `max_bytes`.
pub(crate) fn decode_one(codec: BytesCodec, encoded: Vec<u8>, max_bytes: usize) -> Result<Vec<u8>, Fault> {
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
        BytesCodec::Checksum { kind, is_first } => {
            let mut sealed = encoded;
            if is_first && sealed.len() >= CHECKSUM_BYTES {
                sealed.rotate_left(CHECKSUM_BYTES);
            }
            return kind.verified(sealed).map_err(invalid);
        }
        BytesCodec::Lz4 => {
            return numcodecs::lz4(&encoded, max_bytes).ok_or_else(|| invalid(DAMAGED_CHUNK.to_owned()));
        }
        BytesCodec::Shuffle { size } => {
            return numcodecs::unshuffled(&encoded, size).ok_or_else(|| invalid(PART_OF_ELEMENT.to_owned()));
        }
        BytesCodec::Filter(filter) => return filter.decode(encoded, max_bytes).map_err(invalid),
        BytesCodec::Pcodec(dtype) => return pcodec::decode(&encoded, dtype, max_bytes).map_err(invalid),
    };
    out.truncate(len);
    Ok(out)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test")]
    use super::*;
    use crate::ome_zarr::checksums::with_checksum;

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
        assert_eq!(decode(&[BytesCodec::CRC_32C], sealed.clone(), 32).unwrap(), vec![0; 32]);
        sealed[3] ^= 1;
        assert!(matches!(decode(&[BytesCodec::CRC_32C], sealed, 32), Err(Fault::Malformed(..))));
    }
}

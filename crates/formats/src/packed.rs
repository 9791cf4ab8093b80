//! Images that are compressed with gzip or zlib as a whole.

use crate::{
    error::{Fault, Remedy},
    limits::Limits,
    source::Source,
};
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use std::{
    io::Read,
    sync::{Mutex, OnceLock},
};

/// Largest number of bytes that one byte of Deflate, in gzip and zlib, can expand to.
pub(crate) const MAX_GZIP_RATIO: u64 = 1032;

/// The error of expanding a gzip file.
pub(crate) fn gzip_fault(error: std::io::Error) -> Fault {
    expanding_fault("gzip", error)
}

fn expanding_fault(format: &str, error: std::io::Error) -> Fault {
    match error.kind() {
        std::io::ErrorKind::InvalidInput | std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof => {
            Fault::malformed(format!("its {format} data are invalid ({error})"))
        }
        _ => Fault::Io("reading", error),
    }
}

/// Compressed bytes, which cannot be read from the middle: they are decompressed as a whole when pixels are first read.
#[derive(Debug)]
pub(crate) struct Packed {
    source: Source,
    /// Whether the bytes are in the zlib format and not in that of gzip.
    is_zlib: bool,
    /// Bytes to expand.
    needed: u64,
    limits: Limits,
    expanded: OnceLock<Source>,
    /// Held while the file is expanded, so that this happens once.
    expanding: Mutex<()>,
}

impl Packed {
    /// The samples, and the bytes before them that count for `needed`, in a source that is compressed with gzip as a whole.
    pub fn new(source: Source, needed: u64, limits: Limits) -> Self {
        Self { source, is_zlib: false, needed, limits, expanded: OnceLock::new(), expanding: Mutex::new(()) }
    }

    /// The same in the zlib format.
    pub fn zlib(source: Source, needed: u64, limits: Limits) -> Self {
        Self { is_zlib: true, ..Self::new(source, needed, limits) }
    }

    fn expanded(&self) -> Result<&Source, Fault> {
        if let Some(expanded) = self.expanded.get() {
            return Ok(expanded);
        }
        // A panic in another reader does not invalidate the lock, which holds no data.
        let _guard = self.expanding.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(expanded) = self.expanded.get() {
            return Ok(expanded);
        }
        let limit = self.limits.max_expanded_bytes;
        if self.needed > limit {
            return Err(Fault::over(
                "the expanded size in bytes",
                self.needed,
                "max_expanded_bytes",
                limit,
                if self.is_zlib { Remedy::SaveUncompressed } else { Remedy::Expand },
            ));
        }
        let mut bytes = Vec::new();
        let stream = self.source.reader();
        let expanded = if self.is_zlib {
            ZlibDecoder::new(stream).take(self.needed).read_to_end(&mut bytes)
        } else {
            MultiGzDecoder::new(stream).take(self.needed).read_to_end(&mut bytes)
        };
        expanded.map_err(|error| expanding_fault(if self.is_zlib { "zlib" } else { "gzip" }, error))?;
        if (bytes.len() as u64) < self.needed {
            return Err(Fault::malformed(format!(
                "it expands to {} bytes; {} were expected",
                bytes.len(),
                self.needed
            )));
        }
        Ok(self.expanded.get_or_init(|| Source::memory(bytes)))
    }
}

/// The bytes of an image: of the file, or expanded.
#[derive(Debug)]
pub(crate) enum Data {
    Plain(Source),
    Packed(Packed),
}

impl Data {
    /// The bytes, which are expanded when they are first asked for.
    pub fn source(&self) -> Result<&Source, Fault> {
        match self {
            Self::Plain(source) => Ok(source),
            Self::Packed(packed) => packed.expanded(),
        }
    }
}

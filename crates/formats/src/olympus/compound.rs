//! OLE2 compound files: a file system in a file, whose folders are called storages and whose files are called streams.

use crate::{
    error::{Fault, Remedy},
    limits::SHARED_SLACK_BYTES,
    source::{Counters, InnerBytes, Source, SourceReader},
};
use cfb::CompoundFile;
use cytoscope_storage::limited::LimitedReader;
use std::{
    collections::HashMap,
    fmt,
    io::{self, Read, Seek, SeekFrom},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};

/// First bytes of a compound file.
pub(crate) const MAGIC: &[u8] = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1";

/// The streams of all storages of a compound file may have this many times the bytes of the file: in a valid file, each byte
/// belongs to one stream.
const MAX_SHARING: u64 = 2;
/// Longest path of a storage or stream in bytes; those of an OIB have two names of at most 31 characters. The paths of storages deep
/// inside each other would together be far longer than the file.
const MAX_PATH_BYTES: usize = 1024;

/// An open compound file. Its streams are read one after the other.
pub(crate) struct Compound {
    file: Mutex<CompoundFile<LimitedReader<SourceReader<Source>>>>,
    /// Path and length of each stream, by its name without storages.
    streams: HashMap<String, (PathBuf, u64)>,
    counters: Arc<Counters>,
}

impl fmt::Debug for Compound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compound").field("streams", &self.streams.len()).finish_non_exhaustive()
    }
}

impl Compound {
    /// Reads the directory. The decoding of streams is added to `counters`.
    pub fn open(source: Source, counters: Arc<Counters>) -> Result<Self, Fault> {
        let length = source.len();
        // The tables of sectors and streams are parts of the file, each of which is read once. Tables that refer to one sector
        // many times would fill the memory.
        let max_bytes = length.saturating_add(SHARED_SLACK_BYTES);
        let (reader, limit) = LimitedReader::new(source.into_reader(), max_bytes, "its tables overlap");
        let file = CompoundFile::open(reader).map_err(fault)?;
        limit.lift();
        let (mut streams, mut total) = (HashMap::new(), 0u64);
        for entry in file.walk() {
            let path_bytes = entry.path().as_os_str().len();
            if path_bytes > MAX_PATH_BYTES {
                let (what, limit) = ("the length of a path in the compound file in bytes", MAX_PATH_BYTES as u64);
                return Err(Fault::over(what, path_bytes as u64, "MAX_PATH_BYTES", limit, Remedy::CopyAgain));
            }
            if entry.is_stream() {
                total = total.saturating_add(entry.len());
                streams.insert(entry.name().to_owned(), (entry.path().to_owned(), entry.len()));
            }
        }
        if total > length.saturating_mul(MAX_SHARING).saturating_add(SHARED_SLACK_BYTES) {
            return Err(Fault::malformed(format!("its streams have {total} bytes, but the file has {length}")));
        }
        Ok(Self { file: Mutex::new(file), streams, counters })
    }

    /// Returns the stream of a name in any storage; `None` if there is none.
    pub fn stream(self: &Arc<Self>, name: &str) -> Option<Stream> {
        let (path, length) = self.streams.get(name)?;
        Some(Stream { compound: Arc::clone(self), path: path.clone(), length: *length })
    }
}

/// A stream of a compound file.
#[derive(Debug, Clone)]
pub(crate) struct Stream {
    compound: Arc<Compound>,
    path: PathBuf,
    length: u64,
}

impl Stream {
    /// The bytes of the stream.
    pub fn source(&self) -> Source {
        Source::within(Arc::new(self.clone()), self.length, Arc::clone(&self.compound.counters))
    }
}

impl InnerBytes for Stream {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Fault> {
        // A panic in another reader leaves no half-changed state: every read opens the stream again.
        let mut file = self.compound.file.lock().unwrap_or_else(PoisonError::into_inner);
        let mut stream = file.open_stream(&self.path).map_err(fault)?;
        stream.seek(SeekFrom::Start(offset)).map_err(fault)?;
        stream.read_exact(into).map_err(fault)
    }
}

/// Separates errors of the operating system from damaged files.
fn fault(error: io::Error) -> Fault {
    use io::ErrorKind::{InvalidData, InvalidInput, NotFound, Other, UnexpectedEof};
    let is_of_file = matches!(error.kind(), InvalidData | InvalidInput | NotFound | Other | UnexpectedEof);
    if is_of_file && error.raw_os_error().is_none() {
        return Fault::malformed(format!("the compound file is damaged ({error})"));
    }
    Fault::Io("reading", error)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn storages_deep_inside_each_other_are_refused() {
        let open = |depth: usize| {
            let storage = format!("/{}", "a".repeat(31)).repeat(depth);
            let mut file = CompoundFile::create(io::Cursor::new(Vec::new())).unwrap();
            file.create_storage_all(&storage).unwrap();
            file.create_stream(format!("{storage}/s")).unwrap();
            file.flush().unwrap();
            Compound::open(Source::memory(file.into_inner().into_inner()), Arc::default())
        };
        assert!(open(31).is_ok_and(|file| file.streams.contains_key("s")));
        assert!(matches!(open(33), Err(Fault::OverLimit(problem, _)) if problem.contains("MAX_PATH_BYTES")));
    }
}

//! Access to HDF5 files: their bytes for the library, its errors, and the texts and numbers of attributes.

use super::{EXPORT, filters, links};
use crate::{
    error::Fault,
    limits::Limits,
    names::on_disk,
    source::{Counters, InnerBytes, Source},
};
use hdf5_reader::{
    Dataset, Datatype, ExternalLinkResolver, H5Type, Hdf5File, OpenOptions, RawAttribute, Storage, StorageBuffer,
    StringSize, VarLenKind, error::Error, group::Group, messages::attribute::AttributeMessage,
    object_header::ObjectHeader,
};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// Largest object header in bytes: those of valid files have a few thousand.
pub(super) const MAX_HEADER_BYTES: usize = 4 << 20;
/// Bytes that one call for metadata may read: a multiple of the file's length, and bytes that are added for small files.
const METADATA_BYTES: [u64; 2] = [4, 16 << 20];
/// Bytes of a reference to a text, beside the address.
const LENGTH_AND_INDEX_BYTES: usize = 8;
/// Largest number of linked files that stay open.
const MAX_OPEN_FILES: usize = 128;
/// Largest number of texts of an attribute; the rest is left out.
const MAX_TEXTS: usize = 64;
/// Largest number of numbers of an attribute; the rest is left out.
const MAX_NUMBERS: usize = 64;
/// Largest number of characters of a name or text; the rest is left out.
pub(super) const MAX_TEXT_CHARS: usize = 255;

thread_local! {
    /// Bytes that the library may still read for its present call.
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
    /// Name of the file to which the library has followed a link in its present call.
    static LINKED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A dataset.
pub(super) struct Found {
    pub dataset: Dataset,
    /// Whether it is in a linked file.
    pub is_linked: bool,
}

/// What a group contains.
pub(super) enum Member {
    Group(Group),
    Dataset(Box<Dataset>),
}

/// The bytes of a file, for the library.
struct Bytes(Arc<Source>);

impl Storage for Bytes {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn read_range(&self, offset: u64, len: usize) -> Result<StorageBuffer, Error> {
        let left = LEFT.get();
        if left != u64::MAX {
            let left = left.checked_sub(len as u64);
            LEFT.set(left.ok_or_else(|| Error::ResourceLimit("its metadata share too many bytes".to_owned()))?);
        }
        match self.0.read_vec(offset, len) {
            Ok(bytes) => Ok(StorageBuffer::from_vec(bytes)),
            Err(Fault::Io(_, error)) => Err(Error::Io(error)),
            Err(_) => {
                let available = self.0.len().saturating_sub(offset);
                Err(Error::UnexpectedEof { offset, needed: len as u64, available })
            }
        }
    }
}

/// An open file, and the files in its folder that its links name.
#[derive(Clone)]
pub(super) struct File {
    hdf5: Hdf5File,
    pub source: Arc<Source>,
    linked: Arc<Linked>,
}

impl std::fmt::Debug for File {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("File").field("source", &self.source).finish_non_exhaustive()
    }
}

impl File {
    /// Opens a file; `folder` is the one that contains it.
    pub fn open(source: Source, folder: &Path, limits: &Limits, counters: &Arc<Counters>) -> Result<Self, Fault> {
        let source = Arc::new(source);
        let linked = Arc::new(Linked {
            folder: folder.to_owned(),
            limits: limits.clone(),
            counters: Arc::clone(counters),
            files: Mutex::default(),
            bytes: AtomicU64::new(0),
        });
        let options = options(limits).with_external_link_resolver(Arc::clone(&linked) as Arc<dyn ExternalLinkResolver>);
        let bytes = Arc::new(Bytes(Arc::clone(&source)));
        let hdf5 = Hdf5File::from_storage_with_options(bytes, options).map_err(fault)?;
        let superblock = hdf5.superblock();
        let (found, stated) = (source.len(), superblock.base_address.saturating_add(superblock.eof_address));
        if found < stated {
            return Err(Fault::malformed(format!("the HDF5 file has {found} bytes, but states that it has {stated}")));
        }
        Ok(Self { hdf5, source, linked })
    }

    /// Length in bytes of the file and of the linked files that have been opened.
    pub fn total_bytes(&self) -> u64 {
        self.source.len().saturating_add(self.linked.bytes.load(Ordering::Relaxed))
    }

    /// Paths of the linked files that have been opened.
    pub fn linked_paths(&self) -> Vec<PathBuf> {
        let files = self.linked.files.lock().unwrap_or_else(PoisonError::into_inner);
        let mut names: Vec<&String> = files.keys().collect();
        names.sort();
        let folder = &self.linked.folder;
        names.into_iter().map(|name| folder.join(on_disk(folder, Path::new(name)))).collect()
    }

    /// Bytes of an address in the file.
    pub fn address_bytes(&self) -> usize {
        usize::from(self.hdf5.superblock().offset_size)
    }

    /// Calls the library for metadata. A file whose parts refer to the same bytes many times could make it read, and keep in
    /// memory, any number of them.
    fn metadata<T>(&self, call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
        let [times, more] = METADATA_BYTES;
        let before = LEFT.replace(self.total_bytes().saturating_mul(times).saturating_add(more));
        let result = call();
        LEFT.set(before);
        result
    }

    /// The outermost group.
    pub fn root(&self) -> Result<Group, Fault> {
        self.metadata(|| self.hdf5.root_group()).map_err(fault)
    }

    /// A group in a group; `None` if there is none of this name.
    pub fn group(&self, parent: &Group, name: &str) -> Result<Option<Group>, Fault> {
        present(self.metadata(|| parent.group(name)))
    }

    /// The dataset at a path; `None` if there is none.
    pub fn dataset(&self, path: &str) -> Result<Option<Found>, Fault> {
        LINKED.set(None);
        let found = present(self.metadata(|| self.hdf5.dataset(path)))?;
        let is_linked = LINKED.take().is_some();
        Ok(found.map(|dataset| Found { dataset, is_linked }))
    }

    /// The names in a group, in alphabetical order, whether what they stand for can be read or not.
    pub fn names(&self, group: &Group) -> Result<Vec<String>, Fault> {
        self.metadata(|| links::names(group)).map_err(fault)
    }

    /// The group or dataset of a name in a group, and the name of the linked file that contains it, if a link was followed; `None`
    /// if it is neither.
    pub fn member(&self, group: &Group, name: &str) -> Result<Option<(Member, Option<String>)>, Fault> {
        LINKED.set(None);
        let member = match self.group(group, name)? {
            Some(inner) => Some(Member::Group(inner)),
            None => present(self.metadata(|| group.dataset(name)))?.map(|found| Member::Dataset(Box::new(found))),
        };
        let linked = LINKED.take();
        Ok(member.map(|member| (member, linked)))
    }

    /// The header of a dataset; `None` if it is in a linked file, to whose bytes its address refers.
    pub fn header(&self, found: &Found) -> Result<Option<Arc<ObjectHeader>>, Fault> {
        if found.is_linked {
            return Ok(None);
        }
        self.metadata(|| self.hdf5.get_or_parse_header(found.dataset.address())).map(Some).map_err(fault)
    }

    /// The attributes of a group.
    pub fn group_attributes<'a>(&'a self, group: &'a Group) -> Result<Attributes<'a>, Fault> {
        let stored = self.metadata(|| group.raw_attributes()).map_err(fault)?;
        let reference_bytes = LENGTH_AND_INDEX_BYTES + usize::from(group.offset_size());
        let resolve = move |reference: &[u8]| self.metadata(|| group.resolve_vlen_reference_bytes(reference, 1));
        Ok(Attributes { stored, reference_bytes, resolve: Box::new(resolve) })
    }

    /// The attributes of a dataset.
    pub fn dataset_attributes<'a>(&'a self, dataset: &'a Dataset) -> Result<Attributes<'a>, Fault> {
        let stored = self.metadata(|| dataset.raw_attributes()).map_err(fault)?;
        let reference_bytes = dataset.vlen_reference_size();
        let resolve = move |reference: &[u8]| self.metadata(|| dataset.resolve_vlen_reference_bytes(reference, 1));
        Ok(Attributes { stored, reference_bytes, resolve: Box::new(resolve) })
    }
}

/// What a call returned, or `None` if it did not find the object.
fn present<T>(result: Result<T, Error>) -> Result<Option<T>, Fault> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_absent(&error) => Ok(None),
        Err(error) => Err(fault(error)),
    }
}

fn max_chunk_bytes(limits: &Limits) -> usize {
    usize::try_from(limits.max_chunk_bytes).unwrap_or(usize::MAX)
}

/// Options of the library. It keeps no decoded chunks: the image has a cache of its own.
fn options(limits: &Limits) -> OpenOptions {
    let max_chunk_bytes = max_chunk_bytes(limits);
    let max_read_bytes = usize::try_from(limits.max_read_bytes).unwrap_or(usize::MAX);
    OpenOptions::default()
        .with_chunk_cache_bytes(0)
        .with_filter_registry(filters::registry(max_chunk_bytes))
        .with_max_chunk_bytes(max_chunk_bytes)
        .with_max_read_bytes(max_read_bytes)
        .with_max_object_header_bytes(MAX_HEADER_BYTES)
}

/// Opens the files that external links name, if they are in the same folder. Links in these files are not followed.
struct Linked {
    folder: PathBuf,
    limits: Limits,
    counters: Arc<Counters>,
    files: Mutex<HashMap<String, Hdf5File>>,
    /// Length in bytes of all of them.
    bytes: AtomicU64,
}

impl Linked {
    /// The bytes of a file that is opened for each read.
    fn closed(&self, name: &str, len: u64) -> Source {
        let (folder, counters) = (self.folder.clone(), Arc::clone(&self.counters));
        Source::within(Arc::new(Closed { folder, name: name.to_owned(), counters }), len, Arc::clone(&self.counters))
    }
}

/// A linked file that does not stay open: an image may have more files than a process may open.
#[derive(Debug)]
struct Closed {
    folder: PathBuf,
    name: String,
    counters: Arc<Counters>,
}

impl InnerBytes for Closed {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<(), Fault> {
        match Source::named(&self.folder, &self.name, Arc::clone(&self.counters))? {
            Some(source) => source.read_at(offset, into),
            None => Err(Fault::Io("reading", std::io::ErrorKind::NotFound.into())),
        }
    }
}

impl ExternalLinkResolver for Linked {
    fn resolve_external_link(&self, name: &str) -> Result<Option<Hdf5File>, Error> {
        LINKED.set(Some(name.to_owned()));
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = files.get(name) {
            return Ok(Some(file.clone()));
        }
        if files.len() as u64 >= self.limits.max_set_files {
            return Err(Error::ResourceLimit("it links to too many files".to_owned()));
        }
        let source = match Source::named(&self.folder, name, Arc::clone(&self.counters)) {
            Ok(Some(source)) => source,
            Ok(None) => return Err(linked(name, "which is not in its folder")),
            Err(Fault::Io(_, error)) => return Err(Error::Io(error)),
            Err(_) => return Err(linked(name, "which is not a file in its folder")),
        };
        self.bytes.fetch_add(source.len(), Ordering::Relaxed);
        let source = if files.len() < MAX_OPEN_FILES { source } else { self.closed(name, source.len()) };
        let file = Hdf5File::from_storage_with_options(Arc::new(Bytes(Arc::new(source))), options(&self.limits))?;
        files.insert(name.to_owned(), file.clone());
        Ok(Some(file))
    }
}

fn linked(name: &str, why: &str) -> Error {
    Error::UnsupportedEncoding(format!("it links to the file {name:?}, {why}"))
}

/// Converts an error of the library.
pub(super) fn fault(error: Error) -> Fault {
    match error {
        Error::Context { source, .. } => fault(*source),
        Error::Io(error) => Fault::Io("reading", error),
        // The size of chunks is checked before; this is a limit of metadata or of linked files.
        Error::ResourceLimit(problem) => {
            Fault::OverLimit(format!("the HDF5 file exceeds a limit: {problem}").into(), EXPORT.into())
        }
        Error::UnsupportedEncoding(problem) => {
            Fault::unsupported(format!("the HDF5 file cannot be read: {problem}"), EXPORT)
        }
        other => {
            // The library has many variants for what it does not support, and texts for the rest of it; all begin in this way.
            let problem = other.to_string();
            if problem.starts_with("unsupported") {
                Fault::unsupported(format!("the HDF5 file cannot be read: {problem}"), EXPORT)
            } else {
                Fault::malformed(format!("the HDF5 file is damaged: {problem}"))
            }
        }
    }
}

/// Whether an error says that there is no object of a name.
fn is_absent(error: &Error) -> bool {
    match error {
        Error::Context { source, .. } => is_absent(source),
        Error::GroupNotFound(_) | Error::DatasetNotFound(_) => true,
        _ => false,
    }
}

/// Returns the bytes of a text that is stored elsewhere, to which a reference refers.
type Resolve<'a> = Box<dyn Fn(&[u8]) -> Result<Vec<u8>, Error> + 'a>;

/// The attributes of a group or dataset, which are decoded when they are asked for.
pub(super) struct Attributes<'a> {
    stored: Vec<RawAttribute>,
    reference_bytes: usize,
    resolve: Resolve<'a>,
}

impl Attributes<'_> {
    fn find(&self, name: &str) -> Option<&AttributeMessage> {
        self.stored.iter().find(|attribute| attribute.name() == name).map(RawAttribute::message)
    }

    /// The text of an attribute without its end: of a string, or of an array of characters, as Imaris writes it.
    pub fn text(&self, name: &str) -> Option<String> {
        Some(self.long_text(name)?.trim().chars().take(MAX_TEXT_CHARS).collect())
    }

    /// The whole text of an attribute.
    pub fn long_text(&self, name: &str) -> Option<String> {
        let attribute = self.find(name)?;
        match attribute.datatype {
            Datatype::String { size: StringSize::Fixed(_), .. } => Some(from_bytes(&attribute.raw_data)),
            _ => Some(self.list(name)?.concat()),
        }
    }

    /// The texts of an attribute with an array of strings; an unset one is empty.
    pub fn list(&self, name: &str) -> Option<Vec<String>> {
        let attribute = self.find(name)?;
        match attribute.datatype {
            Datatype::String { size: StringSize::Fixed(bytes), .. } => {
                Some(attribute.raw_data.chunks((bytes as usize).max(1)).map(from_bytes).collect())
            }
            Datatype::String { size: StringSize::Variable, .. } | Datatype::VarLen { kind: VarLenKind::String, .. } => {
                let references = attribute.raw_data.chunks_exact(self.reference_bytes.max(1)).take(MAX_TEXTS);
                references.map(|reference| Some(from_bytes(&(self.resolve)(reference).ok()?))).collect()
            }
            _ => None,
        }
    }

    /// The numbers of an attribute of floats, or of integers that are no characters.
    pub fn numbers(&self, name: &str) -> Option<Vec<f64>> {
        let AttributeMessage { datatype, raw_data, .. } = self.find(name)?;
        match datatype {
            Datatype::FloatingPoint { size: 8, .. } => decoded::<f64>(raw_data, datatype, |number| number),
            Datatype::FloatingPoint { size: 4, .. } => decoded::<f32>(raw_data, datatype, f64::from),
            Datatype::FixedPoint { size: 2, signed: true, .. } => decoded::<i16>(raw_data, datatype, f64::from),
            Datatype::FixedPoint { size: 2, signed: false, .. } => decoded::<u16>(raw_data, datatype, f64::from),
            Datatype::FixedPoint { size: 4, signed: true, .. } => decoded::<i32>(raw_data, datatype, f64::from),
            Datatype::FixedPoint { size: 4, signed: false, .. } => decoded::<u32>(raw_data, datatype, f64::from),
            Datatype::FixedPoint { size: 8, signed: true, .. } => {
                decoded::<i64>(raw_data, datatype, |number| number as f64)
            }
            Datatype::FixedPoint { size: 8, signed: false, .. } => {
                decoded::<u64>(raw_data, datatype, |number| number as f64)
            }
            _ => None,
        }
    }
}

/// The numbers that an attribute of a type holds.
fn decoded<T: H5Type>(raw_data: &[u8], datatype: &Datatype, to_f64: impl Fn(T) -> f64) -> Option<Vec<f64>> {
    let each = raw_data.chunks_exact(size_of::<T>().max(1)).take(MAX_NUMBERS);
    each.map(|bytes| T::from_bytes(bytes, datatype).ok().map(&to_f64)).collect()
}

/// A text up to its end; bytes that are not UTF-8 are those of Latin-1.
fn from_bytes(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let bytes = bytes.get(..end).unwrap_or_default();
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().map(|byte| char::from(*byte)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_of_linked_files_does_not_advise_smaller_chunks() {
        let fault = fault(Error::ResourceLimit("it links to too many files".to_owned()));
        let Fault::OverLimit(problem, next_step) = fault else { panic!("it is over a limit") };
        assert!(problem.contains("too many files") && next_step.as_str() == EXPORT, "{problem}");
    }

    #[test]
    fn what_the_library_does_not_support_is_not_said_to_be_damaged() {
        let is_unsupported = |error: Error| matches!(fault(error), Fault::Unsupported(..));
        assert!(is_unsupported(Error::UnsupportedSuperblockVersion(9)));
        assert!(is_unsupported(Error::Other("unsupported fixed array header version 7".to_owned())));
        assert!(!is_unsupported(Error::InvalidMagic));
    }
}

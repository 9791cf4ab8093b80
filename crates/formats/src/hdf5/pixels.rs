//! Reading of regions: the chunks of datasets that a region touches are decoded in parallel and copied into it.

use super::{
    EXPORT,
    chunk_tree::{ADDRESS_BYTES, ChunkTree},
    file::{File, Found, fault},
    samples,
};
use crate::{
    chunk_cache::{BATCH_BYTES, Cache, KEPT_WHOLE_BYTES, Key},
    chunk_grid::{self, Chunk, MAX_CHUNKS_PER_READ, Part, c_strides},
    codec,
    error::{Fault, FormatError, Remedy},
    file_format::StoredCompression,
    huge_pages,
    limits::Limits,
    meta::ByteOrder,
    reader::{Pixels, no_level},
};
use cytoscope_volume::{DType, Region, Samples};
use hdf5_reader::{
    Dataset, FilterRegistry, SliceInfo, SliceInfoElem, filters,
    messages::{HdfMessage, filter_pipeline::FilterDescription, layout::DataLayout},
};
use rayon::prelude::*;
use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

/// Largest part of a dataset without chunks that is read at once, in bytes; at least one row is.
const PIECE_BYTES: usize = 4 << 20;
/// Largest number of bytes that one stored byte is expected to decode to.
const MAX_RATIO: u64 = 4096;

/// Bytes that a filter may return beyond the size of a chunk and an eighth of it.
const SLACK_BYTES: u64 = 1 << 16;

/// Where the datasets of an image are in its file.
#[derive(Debug)]
pub(super) enum Places {
    /// One dataset, at this path.
    One(String),
    /// A stack for each level, time point and channel, in the groups of Imaris.
    Imaris,
    /// A stack for each time point and view setup with these numbers, in the groups of BigDataViewer. Any may be missing.
    Views { times: Vec<u32>, setups: Vec<u32> },
}

impl Places {
    /// The path of a dataset.
    fn path(&self, level: usize, t: usize, c: usize) -> Option<String> {
        Some(match self {
            Self::One(path) => path.clone(),
            Self::Imaris => stack(level, t, c),
            Self::Views { times, setups } => cells(*times.get(t)?, *setups.get(c)?, level),
        })
    }
}

/// The path of a stack of Imaris.
pub(super) fn stack(level: usize, t: usize, c: usize) -> String {
    format!("/DataSet/ResolutionLevel {level}/TimePoint {t}/Channel {c}/Data")
}

/// The path of a level of a view of BigDataViewer.
pub(super) fn cells(time: u32, setup: u32, level: usize) -> String {
    format!("/t{time:05}/s{setup:02}/{level}/cells")
}

/// A dataset whose samples can be read.
pub(super) struct Stored {
    dataset: Dataset,
    pub shape: Vec<usize>,
    /// Extents of its chunks, or of what is read at once.
    piece_shape: Vec<usize>,
    is_chunked: bool,
    /// How its chunks are found and decoded; `None` if the library does so.
    chunks: Option<Chunks>,
    pub dtype: DType,
    pub order: ByteOrder,
    pub compression: StoredCompression,
}

/// The index of the chunks of a dataset, and their filters in the order in which they were applied.
struct Chunks {
    /// `None` if no chunk is stored.
    tree: Option<ChunkTree>,
    filters: Vec<FilterDescription>,
    /// The filters by their numbers. None returns much more than a chunk.
    registry: FilterRegistry,
}

impl Stored {
    /// Checks the type, the layout and the size of the chunks of a dataset.
    pub fn new(file: &File, found: Found, limits: &Limits) -> Result<Self, Fault> {
        let header = file.header(&found)?;
        let dataset = found.dataset;
        let unsupported = |problem: String| Fault::unsupported(problem, EXPORT);
        let Some((dtype, order)) = samples::type_of(dataset.dtype()).filter(|_| !samples::is_odd_float(&dataset))
        else {
            let name = dataset.name();
            return Err(unsupported(format!("the samples of the dataset {name:?} are not numbers of 8 to 64 bits")));
        };
        let shape = extents(dataset.shape())?;
        let mut compression = StoredCompression::None;
        let (mut tree, mut filters) = (None, Vec::new());
        if let Some(header) = header {
            for message in &header.messages {
                match message {
                    HdfMessage::ExternalFiles(_) => {
                        return Err(unsupported("its samples are in other files than the HDF5 file".to_owned()));
                    }
                    HdfMessage::FilterPipeline(pipeline) => {
                        let found = pipeline.filters.iter().find_map(|filter| super::filters::compression(filter.id));
                        compression = found.unwrap_or(compression);
                        filters.clone_from(&pipeline.filters);
                    }
                    HdfMessage::DataLayout(message) => tree = tree_of(file, &message.layout, shape.len()),
                    _ => {}
                }
            }
        }
        let chunks = dataset.chunks();
        let is_chunked = chunks.is_some();
        let piece_shape = match chunks {
            Some(chunks) => chunks.into_iter().map(|extent| extent as usize).collect(),
            None => pieces(&shape, dtype.size_bytes()),
        };
        if piece_shape.len() != shape.len() || piece_shape.contains(&0) {
            return Err(Fault::malformed("the chunks of a dataset have no extent"));
        }
        let bytes = piece_shape.iter().fold(dtype.size_bytes() as u64, |bytes, n| bytes.saturating_mul(*n as u64));
        let limit = limits.max_chunk_bytes;
        if is_chunked && bytes > limit {
            return Err(Fault::over(
                "the size of a chunk in bytes",
                bytes,
                "max_chunk_bytes",
                limit,
                Remedy::SmallerChunks,
            ));
        }
        // Filters such as checksums add some bytes.
        let most = bytes.saturating_add(bytes / 8).saturating_add(SLACK_BYTES);
        let registry = super::filters::registry(usize::try_from(most).unwrap_or(usize::MAX));
        let chunks = tree.map(|tree| Chunks { tree, filters, registry });
        Ok(Self { dataset, shape, piece_shape, is_chunked, chunks, dtype, order, compression })
    }

    /// Bytes of a chunk, or of what is read at once.
    fn piece_bytes(&self) -> usize {
        self.piece_shape.iter().fold(self.dtype.size_bytes(), |bytes, n| bytes.saturating_mul(*n))
    }

    /// Reads a box: a whole chunk, if the dataset has chunks.
    fn read_box(&self, file: &File, first: &[usize], size: &[usize]) -> Result<Vec<u8>, Fault> {
        match &self.chunks {
            Some(chunks) => self.read_chunk(file, chunks, first),
            None => self.read(first, size),
        }
    }

    /// Reads the chunk whose first sample has these indices, as bytes in native order.
    fn read_chunk(&self, file: &File, chunks: &Chunks, first: &[usize]) -> Result<Vec<u8>, Fault> {
        let entry = chunks.tree.as_ref().map(|tree| tree.find(&file.source, first)).transpose()?.flatten();
        let (len, sample_bytes) = (self.piece_bytes(), self.dtype.size_bytes());
        let mut samples = match entry {
            Some(entry) => {
                let encoded = file.source.read_vec(entry.at, entry.bytes as usize)?;
                let registry = Some(&chunks.registry);
                let (applied, skipped) = (chunks.filters.as_slice(), entry.skipped_filters);
                // A byte more, so that longer data are not cut off.
                let max_bytes = Some(len.saturating_add(1));
                filters::apply_pipeline_with_limit(&encoded, applied, skipped, sample_bytes, registry, max_bytes)
                    .map_err(fault)?
            }
            None => {
                let fill = self.dataset.fill_value().and_then(|fill| fill.value.as_deref());
                match fill.filter(|fill| fill.len() == sample_bytes && fill.iter().any(|byte| *byte != 0)) {
                    Some(fill) => fill.repeat(len / sample_bytes),
                    None => vec![0; len],
                }
            }
        };
        if samples.len() != len {
            return Err(Fault::malformed(format!("a chunk has {} bytes; {len} were expected", samples.len())));
        }
        codec::to_native(self.order, sample_bytes, &mut samples);
        Ok(samples)
    }

    /// Reads a box with the library.
    fn read(&self, first: &[usize], size: &[usize]) -> Result<Vec<u8>, Fault> {
        let along = |(first, size): (&usize, &usize)| SliceInfoElem::Slice {
            start: *first as u64,
            end: first.saturating_add(*size) as u64,
            step: 1,
        };
        let selection = SliceInfo { selections: first.iter().zip(size).map(along).collect() };
        samples::read(&self.dataset, &selection, self.dtype.size_bytes())
    }
}

/// The tree that finds the chunks of a dataset, which is empty if none is stored; `None` if it has another index.
fn tree_of(file: &File, layout: &DataLayout, rank: usize) -> Option<Option<ChunkTree>> {
    match layout {
        DataLayout::Chunked { address: u64::MAX, .. } => Some(None),
        DataLayout::Chunked { address, chunk_indexing: None, .. } if file.address_bytes() == ADDRESS_BYTES => {
            Some(Some(ChunkTree { root: *address, rank }))
        }
        _ => None,
    }
}

/// The extents of a dataset.
pub(super) fn extents(shape: &[u64]) -> Result<Vec<usize>, Fault> {
    let extents: Option<Vec<usize>> =
        shape.iter().map(|n| usize::try_from(*n).ok().filter(|n| *n <= isize::MAX as usize)).collect();
    extents.ok_or_else(|| Fault::malformed("a dataset is too large"))
}

/// The extents of what is read at once of an array without chunks: whole rows and slices, as far as they fit.
fn pieces(shape: &[usize], sample_bytes: usize) -> Vec<usize> {
    let mut left = PIECE_BYTES / sample_bytes;
    let mut pieces: Vec<usize> = shape
        .iter()
        .rev()
        .enumerate()
        .map(|(i, n)| {
            let extent = if i == 0 { *n } else { (*n).min(left) }.max(1);
            left /= extent;
            extent
        })
        .collect();
    pieces.reverse();
    pieces
}

/// Datasets by level, time point and channel; `None` if they are missing.
type Datasets = HashMap<(usize, usize, usize), Option<Arc<Stored>>>;

/// An open image.
#[derive(Debug)]
pub(super) struct Image {
    file: File,
    places: Places,
    /// Extents along T, Z, C, Y, X, S of the levels, full resolution first.
    levels: Vec<[usize; 6]>,
    /// The index in T, Z, C, Y, X, S of each axis of the datasets.
    canonical: Vec<usize>,
    /// Type of the samples in the file, whose bytes are those of the type that is read.
    stored: DType,
    dtype: DType,
    datasets: Mutex<Datasets>,
    cache: Cache,
    limits: Limits,
    /// The opened file, and others that belong to it.
    paths: Vec<PathBuf>,
    /// Bytes of a decoded chunk, and the largest number of bytes of all chunks of the full resolution.
    chunk_bytes: usize,
    all_bytes: u64,
}

impl std::fmt::Debug for Stored {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stored").field("shape", &self.shape).finish_non_exhaustive()
    }
}

/// What an image is made of.
pub(super) struct ImageParts {
    pub file: File,
    pub places: Places,
    pub levels: Vec<[usize; 6]>,
    pub canonical: Vec<usize>,
    pub dtype: DType,
    pub paths: Vec<PathBuf>,
}

/// Part of a read: a box of a dataset, and where its samples go.
struct Job {
    stored: Arc<Stored>,
    /// Key of the chunk; `None` if it is not kept.
    key: Option<Key>,
    /// The box that is read: its first sample, and its extents.
    first: Vec<usize>,
    shape: Vec<usize>,
    /// The part of the box that is copied.
    part: Part,
    /// Position in the region of the first sample of the dataset's part.
    offset: usize,
}

impl Image {
    /// Makes an image; `first` is a dataset of its full resolution.
    pub fn new(parts: ImageParts, first: &Stored, limits: &Limits) -> Self {
        let ImageParts { file, places, levels, canonical, dtype, paths } = parts;
        let chunk_bytes = if first.is_chunked { first.piece_bytes() } else { 0 };
        let along = |skipped: &[usize]| -> u64 {
            let of = canonical.iter().zip(first.shape.iter().zip(&first.piece_shape));
            let counts =
                of.map(|(axis, (n, piece))| if skipped.contains(axis) { 1 } else { n.div_ceil(*piece) as u64 });
            counts.fold(chunk_bytes as u64, u64::saturating_mul)
        };
        let [t, _, c, ..] = levels.first().copied().unwrap_or([1; 6]);
        let per_axis = |axis: usize, n: usize| if canonical.contains(&axis) { 1 } else { n as u64 };
        // Slices are often read one after another: the chunks that hold a slice of all channels are kept.
        let slice_bytes = usize::try_from(along(&[0, 1]).saturating_mul(per_axis(2, c))).unwrap_or(usize::MAX);
        let all_bytes = along(&[]).saturating_mul(per_axis(0, t)).saturating_mul(per_axis(2, c));
        let cache = Cache::new(slice_bytes.saturating_add(slice_bytes / 4));
        Self {
            file,
            places,
            levels,
            canonical,
            stored: first.dtype,
            dtype,
            datasets: Mutex::default(),
            cache,
            limits: limits.clone(),
            paths,
            chunk_bytes,
            all_bytes,
        }
    }

    /// The dataset of a level, time point and channel; `None` if it is missing, as views of BigDataViewer may be.
    fn dataset(&self, level: usize, t: usize, c: usize) -> Result<Option<Arc<Stored>>, Fault> {
        let known = || self.datasets.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known().get(&(level, t, c)) {
            return Ok(found.clone());
        }
        let Some(path) = self.places.path(level, t, c) else { return Ok(None) };
        let found = match self.file.dataset(&path)? {
            Some(found) => {
                let stored = Stored::new(&self.file, found, &self.limits)?;
                Some(Arc::new(self.checked(level, &path, stored)?))
            }
            // A stack is missing as a whole.
            None if matches!(self.places, Places::Views { .. }) && (level == 0 || self.dataset(0, t, c)?.is_none()) => {
                None
            }
            None => return Err(Fault::malformed(format!("the file has no dataset {path:?}"))),
        };
        known().insert((level, t, c), found.clone());
        Ok(found)
    }

    /// Checks that a dataset has the type and the extents of its level; those of Imaris may be padded.
    fn checked(&self, level: usize, path: &str, stored: Stored) -> Result<Stored, Fault> {
        let extents = self.levels.get(level).copied().unwrap_or_default();
        let needed = self.canonical.iter().map(|axis| extents.get(*axis).copied().unwrap_or(1));
        let may_be_padded = matches!(self.places, Places::Imaris);
        let fits = stored.shape.len() == self.canonical.len()
            && stored.shape.iter().zip(needed).all(|(n, needed)| *n == needed || may_be_padded && *n > needed);
        if !fits || stored.dtype != self.stored {
            return Err(Fault::malformed(format!("the dataset {path:?} differs from the first one of the image")));
        }
        Ok(stored)
    }

    fn read_region(&self, level: usize, region: &Region) -> Result<Samples, Fault> {
        let (Ok(start), Ok(size)) =
            (<[usize; 6]>::try_from(region.start.as_slice()), <[usize; 6]>::try_from(region.size.as_slice()))
        else {
            return Err(Fault::Misused("the region does not have six axes".into(), "give T, Z, C, Y, X, S".into()));
        };
        let len = region.len().map_err(|e| Fault::malformed(e.to_string()))?;
        if len == 0 {
            return Ok(Samples::zeros(self.dtype, 0));
        }
        let sample_bytes = self.dtype.size_bytes();
        let bytes = (len as u64).saturating_mul(sample_bytes as u64);
        let level_extents = self.levels.get(level).copied().unwrap_or_default();
        let is_kept = size != level_extents || bytes <= KEPT_WHOLE_BYTES as u64;
        let strides = c_strides(&size);
        let jobs = self.jobs(level, &start, &size, &strides, is_kept)?;
        // Chunks that are not stored are found only when they are read, but a small file may state any extents.
        let stored = self.file.total_bytes().saturating_mul(MAX_RATIO);
        let limit = self.limits.max_unstored_bytes;
        if bytes > stored.saturating_add(limit) {
            let what = "the size of the region that the file cannot store, in bytes";
            return Err(Fault::over(what, bytes - stored, "max_unstored_bytes", limit, Remedy::Crop));
        }
        let mut samples = huge_pages::zeros(self.dtype, len);
        self.run(&jobs, &self.pick(&strides), samples.as_bytes_mut())?;
        Ok(samples)
    }

    /// The values of T, Z, C, Y, X, S that belong to the axes of the datasets.
    fn pick(&self, of: &[usize]) -> Vec<usize> {
        self.canonical.iter().filter_map(|axis| of.get(*axis).copied()).collect()
    }

    /// The parts of a region in all datasets.
    fn jobs(
        &self,
        level: usize,
        start: &[usize; 6],
        size: &[usize; 6],
        strides: &[usize],
        is_kept: bool,
    ) -> Result<Vec<Job>, Fault> {
        // A dataset with an axis of time or channels holds all of them.
        let range = |axis: usize| {
            if self.canonical.contains(&axis) { 0..1 } else { start[axis]..start[axis] + size[axis] }
        };
        let (first, extents) = (self.pick(start), self.pick(size));
        let channels = self.levels.get(level).map_or(1, |shape| shape[2]);
        let mut jobs = Vec::new();
        for t in range(0) {
            for c in range(2) {
                let Some(stored) = self.dataset(level, t, c)? else { continue };
                let place = |axis: usize, at: usize| {
                    let in_region = if self.canonical.contains(&axis) { 0 } else { at - start[axis] };
                    in_region * strides.get(axis).copied().unwrap_or(0)
                };
                let offset = place(0, t) + place(2, c);
                // The chunks of datasets may differ, so that each is counted for itself.
                let index = t.saturating_mul(channels).saturating_add(c);
                let stack = index.saturating_mul(self.levels.len()).saturating_add(level);
                let parts = chunk_grid::parts(&stored.piece_shape, &first, &extents)?;
                jobs.extend(parts.into_iter().map(|part| job(stack, &stored, part, offset, is_kept)));
                if jobs.len() > MAX_CHUNKS_PER_READ {
                    let (what, limit) = ("the number of chunks in one read", MAX_CHUNKS_PER_READ as u64);
                    let count = jobs.len() as u64;
                    return Err(Fault::over(what, count, "MAX_CHUNKS_PER_READ", limit, Remedy::LargerChunks));
                }
            }
        }
        Ok(jobs)
    }

    /// Number of chunks that are decoded before they are copied.
    fn chunks_at_once(&self, piece_bytes: usize) -> usize {
        let bytes = BATCH_BYTES.min(self.cache.max_bytes());
        (bytes / piece_bytes.max(1)).clamp(1, 4 * rayon::current_num_threads())
    }

    /// Decodes batches of jobs in parallel, and copies their samples one after another.
    fn run(&self, jobs: &[Job], strides: &[usize], out: &mut [u8]) -> Result<(), Fault> {
        let sample_bytes = self.dtype.size_bytes();
        let largest = jobs.iter().map(|job| job.stored.piece_bytes()).max().unwrap_or(1);
        for batch in jobs.chunks(self.chunks_at_once(largest)) {
            let boxes: Vec<Arc<Vec<u8>>> = match batch {
                [only] => vec![self.decoded(only)?],
                _ => batch.par_iter().map(|job| self.decoded(job)).collect::<Result<_, Fault>>()?,
            };
            for (job, samples) in batch.iter().zip(boxes) {
                let box_strides = c_strides(&job.shape);
                let chunk = Chunk {
                    samples: samples.as_slice(),
                    strides: &box_strides,
                    first: &job.part.in_chunk,
                    sample_bytes,
                };
                let out = out.get_mut(job.offset * sample_bytes..).unwrap_or_default();
                chunk.copy(&job.part.size, &job.part.in_region, strides, out);
            }
        }
        Ok(())
    }

    /// The samples of the box of a job.
    fn decoded(&self, job: &Job) -> Result<Arc<Vec<u8>>, Fault> {
        if let Some(samples) = job.key.and_then(|key| self.cache.get(key)) {
            return Ok(samples);
        }
        let started = Instant::now();
        let samples = Arc::new(job.stored.read_box(&self.file, &job.first, &job.shape)?);
        self.file.source.count_decoded(started.elapsed(), samples.len());
        if let Some(key) = job.key {
            self.cache.insert(key, Arc::clone(&samples));
        }
        Ok(samples)
    }
}

/// The job that reads a part of a dataset, which is the one with the number `stack` among those of all levels: its whole chunk, or,
/// if there are no chunks, the part alone.
fn job(stack: usize, stored: &Arc<Stored>, mut part: Part, offset: usize, is_kept: bool) -> Job {
    let corner: Vec<usize> =
        part.at.iter().zip(&stored.piece_shape).map(|(at, piece)| at.saturating_mul(*piece)).collect();
    if !stored.is_chunked {
        let first = corner.iter().zip(&part.in_chunk).map(|(corner, inside)| corner + inside).collect();
        part.in_chunk.fill(0);
        return Job { stored: Arc::clone(stored), key: None, first, shape: part.size.clone(), part, offset };
    }
    // The library does not return the samples of chunks that lie outside of the dataset.
    let inside = |(corner, (n, piece)): (&usize, (&usize, &usize))| n.saturating_sub(*corner).min(*piece);
    let shape: Vec<usize> = match &stored.chunks {
        Some(_) => stored.piece_shape.clone(),
        None => corner.iter().zip(stored.shape.iter().zip(&stored.piece_shape)).map(inside).collect(),
    };
    let at = part.at.iter().zip(stored.shape.iter().zip(&stored.piece_shape));
    let at = at.fold(0usize, |i, (at, (n, piece))| i.saturating_mul(n.div_ceil(*piece)).saturating_add(*at));
    let key = is_kept.then_some(Key::Chunk { level: stack, at });
    Job { stored: Arc::clone(stored), key, first: corner, shape, part, offset }
}

impl Pixels for Image {
    fn read(&self, path: &Path, region: &Region) -> Result<Samples, FormatError> {
        self.read_level(path, 0, region)
    }

    fn read_level(&self, path: &Path, level: usize, region: &Region) -> Result<Samples, FormatError> {
        if level >= self.levels.len() {
            return Err(no_level(path, level));
        }
        self.read_region(level, region).map_err(|fault| fault.at(path))
    }

    fn files(&self) -> Option<Vec<PathBuf>> {
        let mut paths = self.paths.clone();
        paths.extend(self.file.linked_paths());
        Some(paths)
    }

    fn cache_bytes(&self) -> u64 {
        let decoding = self.chunks_at_once(self.chunk_bytes).min(rayon::current_num_threads()) as u64;
        let decoding = decoding.saturating_mul(self.chunk_bytes as u64).min(self.all_bytes);
        self.all_bytes.min(self.cache.max_bytes() as u64).saturating_add(decoding)
    }

    fn limit_cache(&self, bytes: u64) {
        self.cache.limit(usize::try_from(bytes).unwrap_or(usize::MAX));
    }
}

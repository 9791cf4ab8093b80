//! Reading of regions: the chunks that overlap a region are decoded in parallel and copied into it.

use super::array::{ENTRY_BYTES, Shards, ZarrArray};
use super::checksums::CHECKSUM_BYTES;
use super::codecs::{self, BytesCodec};
use super::folder::Folder;
use crate::{
    chunk_cache::{BATCH_BYTES, Cache, KEPT_WHOLE_BYTES, Key},
    chunk_grid::{self, Chunk, Part},
    codec,
    error::{Fault, Remedy},
    huge_pages,
    limits::Limits,
    source::Source,
};
use cytoscope_volume::{Region, Samples};
use rayon::prelude::*;
use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

/// Largest number of bytes that one stored byte can decode to, and bytes that are added to every limit, so that tiny chunks are
/// not refused.
const MAX_RATIO: (usize, usize) = (1 << 17, 1 << 16);
/// Minimum number of layers of chunks per thread for which whole layers are decoded in parallel. With fewer layers, batches of
/// chunks are.
const LAYERS_PER_THREAD: usize = 4;
/// Offset and length of an inner chunk that is not stored.
const NOT_STORED: u64 = u64::MAX;

/// The arrays of an open image.
#[derive(Debug)]
pub(crate) struct OmeZarr {
    /// Where the files of chunks are: a folder, or a ZIP file.
    pub folder: Folder,
    /// Arrays of the levels, full resolution first. All have the same axes and sample type.
    pub levels: Vec<ZarrArray>,
    /// The index in T, Z, C, Y, X, S of each axis of the arrays.
    pub canonical: Vec<usize>,
    /// Whether it is a label image.
    pub is_labels: bool,
    /// Decoded chunks that later reads may need again.
    pub cache: Cache,
}

impl OmeZarr {
    /// Reads a region of a level, axes T, Z, C, Y, X, S, which has been checked against the level's shape.
    pub fn read(&self, level: usize, region: &Region, limits: &Limits) -> Result<Samples, Fault> {
        let Some(array) = self.levels.get(level) else { return Err(Fault::malformed(format!("no level {level}"))) };
        let len = region.len().map_err(|e| Fault::malformed(e.to_string()))?;
        let pick = |of: &[usize]| -> Vec<usize> { self.canonical.iter().filter_map(|i| of.get(*i).copied()).collect() };
        let (start, size) = (pick(&region.start), pick(&region.size));
        let mut parts = if len == 0 { Vec::new() } else { chunk_grid::parts(&array.chunk_shape, &start, &size)? };
        let is_expanded = self.expands_shards(array);
        if is_expanded {
            // Chunk after chunk of a shard, so that each shard is expanded once.
            parts.sort_by_cached_key(|part| linear(array, &array.file_shape, &file_of(array, &part.at)));
        }
        let sample_bytes = array.dtype.size_bytes();
        if len.saturating_mul(sample_bytes) as u64 > limits.max_unstored_bytes {
            // Metadata can state any shape, so this is found out before memory is allocated.
            self.refuse_unstored(level, array, &parts, limits)?;
        }
        let mut samples = huge_pages::zeros(array.dtype, len);
        let out = samples.as_bytes_mut();
        if array.fill.iter().any(|byte| *byte != 0) {
            out.chunks_exact_mut(sample_bytes).for_each(|sample| sample.copy_from_slice(&array.fill));
        }
        let strides = self.region_strides(&region.size);
        let kept = size != array.shape || len.saturating_mul(sample_bytes) <= KEPT_WHOLE_BYTES;
        let reading = Reading { of: self, level, array, strides, kept, unstored: Unstored::new(limits) };
        let layers = group_into_layers(&parts, &size, &reading.strides);
        let (batch, threads) = (self.chunks_at_once(array), rayon::current_num_threads());
        // Each thread holds a decoded chunk, so large chunks are read in batches, which bound their memory.
        if is_expanded {
            for of_shard in parts.chunk_by(|a, b| file_of(array, &a.at) == file_of(array, &b.at)) {
                reading.decode_batches(of_shard, batch, out)?;
            }
        } else if batch >= threads && layers.len() >= LAYERS_PER_THREAD * threads {
            reading.decode_layers(layers, out)?;
        } else {
            reading.decode_batches(&parts, batch, out)?;
        }
        Ok(samples)
    }

    /// Whether shards have to be expanded before their chunks can be read.
    fn expands_shards(&self, array: &ZarrArray) -> bool {
        array.shards.is_some() && self.folder.largest_expanded_bytes() > 0
    }

    /// The folder of the chunks of level 0; `None` in a ZIP file.
    pub fn chunk_folder(&self) -> Option<PathBuf> {
        Some(self.folder.on_disk()?.join(self.levels.first()?.path()))
    }

    /// Number of chunks that are decoded before they are copied. They stay in the cache until then.
    fn chunks_at_once(&self, array: &ZarrArray) -> usize {
        let bytes = BATCH_BYTES.min(self.cache.max_bytes());
        (bytes / array.chunk_bytes().max(1)).clamp(1, 4 * rayon::current_num_threads())
    }

    /// Returns the bytes that reading level 0 holds at most in addition to what it returns: the cache, the chunks that are
    /// being decoded, and a shard that was expanded.
    pub fn cache_bytes(&self) -> u64 {
        let Some(array) = self.levels.first() else { return 0 };
        let along = array.shape.iter().zip(&array.chunk_shape).map(|(n, chunk)| n.div_ceil((*chunk).max(1)) as u64);
        let count = along.fold(1u64, u64::saturating_mul);
        let chunk_bytes = array.chunk_bytes() as u64;
        let cached = count.saturating_mul(chunk_bytes).min(self.cache.max_bytes() as u64);
        let decoding = self.chunks_at_once(array).min(rayon::current_num_threads()) as u64;
        let expanded = if self.expands_shards(array) { self.folder.largest_expanded_bytes() } else { 0 };
        cached.saturating_add(decoding.min(count).saturating_mul(chunk_bytes)).saturating_add(expanded)
    }

    /// Lowers the limit of the cache, but not so far that it cannot keep the index of a shard: each chunk would then read it
    /// again.
    pub fn limit_cache(&self, bytes: usize) {
        let index_bytes = self.levels.iter().filter_map(|array| Some(array.index_bytes(array.shards?))).max();
        self.cache.limit(bytes.max(index_bytes.unwrap_or(0).saturating_mul(2)));
    }

    /// Strides in samples of a region's array, along the axes of the arrays.
    fn region_strides(&self, size: &[usize]) -> Vec<usize> {
        self.canonical.iter().map(|i| size.iter().skip(i + 1).product::<usize>()).collect()
    }

    /// Returns a decoded chunk in native byte order, and stores it in the cache if it is to be `kept`; `None` if it is not
    /// stored in the file.
    fn chunk(&self, level: usize, array: &ZarrArray, at: &[usize], kept: bool) -> Result<Option<Arc<Vec<u8>>>, Fault> {
        let key = Key::Chunk { level, at: linear(array, &array.chunk_shape, at) };
        if let Some(chunk) = self.cache.get(key) {
            return Ok(Some(chunk));
        }
        let Some((source, offset, stored)) = self.place(level, array, at)? else { return Ok(None) };
        let chunk = Arc::new(decode_chunk(array, &source, offset, stored)?);
        if kept {
            self.cache.insert(key, Arc::clone(&chunk));
        }
        Ok(Some(chunk))
    }

    /// Returns the file with a chunk, and the chunk's offset and length in it; `None` if the chunk is not stored.
    fn place(&self, level: usize, array: &ZarrArray, at: &[usize]) -> Result<Option<(Source, u64, u64)>, Fault> {
        let file_at = file_of(array, at);
        let key = array.file_key(&file_at);
        let Some(shards) = array.shards else {
            let file = self.folder.open(&key)?;
            return Ok(file.map(|file| {
                let stored = file.len();
                (file, 0, stored)
            }));
        };
        let Some(source) = self.folder.open_shard(&key)? else { return Ok(None) };
        let per_file = array.chunks_per_file();
        let inner: Vec<usize> = at.iter().zip(&per_file).map(|(at, n)| at % n).collect();
        let file = linear(array, &array.file_shape, &file_at);
        let index = self.shard_index(level, array, shards, &source, file)?;
        match entry(&index, &per_file, &inner) {
            Some((NOT_STORED, NOT_STORED)) => Ok(None),
            Some((offset, stored)) => Ok(Some((source, offset, stored))),
            None => Err(Fault::malformed("the index of a shard is too short")),
        }
    }

    /// Refuses a read in which more bytes than the limit are not stored. Chunks are looked up, not decoded.
    fn refuse_unstored(&self, level: usize, array: &ZarrArray, parts: &[Part], limits: &Limits) -> Result<(), Fault> {
        let unstored = Unstored::new(limits);
        let look_up = |part: &Part| -> Result<(), Fault> {
            let is_stored = match array.shards {
                // The file of a chunk that is compressed in a zip is not expanded.
                None => self.folder.holds(&array.file_key(&part.at))?,
                Some(_) => self.place(level, array, &part.at)?.is_some(),
            };
            if is_stored { Ok(()) } else { unstored.add(part.bytes(array.dtype.size_bytes())) }
        };
        if self.expands_shards(array) {
            // One shard after the other, so that each is expanded once.
            return parts.iter().try_for_each(look_up);
        }
        parts.par_iter().try_for_each(look_up)
    }

    /// Returns the entries of a shard's index: offset and length of each inner chunk, little-endian.
    fn shard_index(
        &self,
        level: usize,
        array: &ZarrArray,
        shards: Shards,
        source: &Source,
        at: usize,
    ) -> Result<Arc<Vec<u8>>, Fault> {
        let key = Key::ShardIndex { level, at };
        if let Some(index) = self.cache.get(key) {
            return Ok(index);
        }
        let stored = array.index_bytes(shards);
        let Some(last) = source.len().checked_sub(stored as u64) else {
            let what = format!("a shard has {} bytes, but its index has {stored}", source.len());
            return Err(Fault::malformed(what));
        };
        let bytes = source.read_vec(if shards.index_at_end { last } else { 0 }, stored)?;
        let index = match shards.index_has_checksum {
            true => codecs::decode(&[BytesCodec::CRC_32C], bytes, stored - CHECKSUM_BYTES)?,
            false => bytes,
        };
        check_entries(&index, source.len())?;
        let index = Arc::new(index);
        self.cache.insert(key, Arc::clone(&index));
        Ok(index)
    }
}

/// A read in progress.
struct Reading<'a> {
    of: &'a OmeZarr,
    level: usize,
    array: &'a ZarrArray,
    /// Strides in samples of the region, along the axes of the array.
    strides: Vec<usize>,
    /// Whether chunks stay in the cache.
    kept: bool,
    unstored: Unstored,
}

/// The parts of a read that lie in the same layer of chunks: a contiguous piece of the region.
struct Layer<'a> {
    parts: Vec<&'a Part>,
    /// Axis of the array along which layers follow each other.
    axis: usize,
    /// Size of the piece in samples.
    len: usize,
}

/// Counts the samples of a read that are not stored, up to a limit.
struct Unstored {
    bytes: AtomicU64,
    max_bytes: u64,
}

impl Unstored {
    fn new(limits: &Limits) -> Self {
        Self { bytes: AtomicU64::new(0), max_bytes: limits.max_unstored_bytes }
    }

    fn add(&self, bytes: usize) -> Result<(), Fault> {
        let total = self.bytes.fetch_add(bytes as u64, Ordering::Relaxed).saturating_add(bytes as u64);
        if total > self.max_bytes {
            let what = "the size of the chunks in one read that are not stored, in bytes";
            return Err(Fault::over(what, total, "max_unstored_bytes", self.max_bytes, Remedy::Crop));
        }
        Ok(())
    }
}

impl Reading<'_> {
    /// Decodes and copies layers in parallel, each chunk right after it is decoded.
    fn decode_layers(&self, layers: Vec<Layer<'_>>, out: &mut [u8]) -> Result<(), Fault> {
        let sample_bytes = self.array.dtype.size_bytes();
        let mut rest = out;
        let mut pieces = Vec::with_capacity(layers.len());
        for layer in layers {
            let len = (layer.len * sample_bytes).min(rest.len());
            let (piece, after) = rest.split_at_mut(len);
            rest = after;
            pieces.push((layer, piece));
        }
        pieces.into_par_iter().try_for_each(|(layer, piece)| {
            layer.parts.iter().try_for_each(|part| {
                let chunk = self.of.chunk(self.level, self.array, &part.at, self.kept)?;
                self.copy(part, Some(layer.axis), chunk.as_deref(), piece)
            })
        })
    }

    /// Decodes batches of chunks in parallel, and copies them one after another.
    fn decode_batches(&self, parts: &[Part], batch: usize, out: &mut [u8]) -> Result<(), Fault> {
        let decode = |part: &Part| self.of.chunk(self.level, self.array, &part.at, self.kept);
        for batch in parts.chunks(batch) {
            let chunks: Vec<Option<Arc<Vec<u8>>>> = match batch {
                [only] => vec![decode(only)?],
                _ => batch.par_iter().map(decode).collect::<Result<_, Fault>>()?,
            };
            for (part, chunk) in batch.iter().zip(chunks) {
                self.copy(part, None, chunk.as_deref(), out)?;
            }
        }
        Ok(())
    }

    /// Copies the part of a chunk into the region, or into the piece of it that starts with the part along the axis
    /// `layered`.
    fn copy(&self, part: &Part, layered: Option<usize>, chunk: Option<&Vec<u8>>, out: &mut [u8]) -> Result<(), Fault> {
        let Some(chunk) = chunk else {
            return self.unstored.add(part.bytes(self.array.dtype.size_bytes()));
        };
        let mut in_region = part.in_region.clone();
        if let Some(at) = layered.and_then(|axis| in_region.get_mut(axis)) {
            *at = 0;
        }
        let chunk = Chunk {
            samples: chunk,
            strides: &self.array.chunk_strides,
            first: &part.in_chunk,
            sample_bytes: self.array.dtype.size_bytes(),
        };
        chunk.copy(&part.size, &in_region, &self.strides, out);
        Ok(())
    }
}

/// Groups parts into layers along the axis that varies slowest in the region; `size` and `strides` are those of the region
/// along the axes of the array. Layers are in the order of the region.
fn group_into_layers<'a>(parts: &'a [Part], size: &[usize], strides: &[usize]) -> Vec<Layer<'a>> {
    let slowest =
        size.iter().zip(strides).enumerate().filter(|(_, (size, _))| **size > 1).max_by_key(|(_, (_, s))| **s);
    let Some((axis, (_, stride))) = slowest else { return Vec::new() };
    let mut layers = BTreeMap::<usize, Layer<'a>>::new();
    for part in parts {
        let (Some(start), Some(extent)) = (part.in_region.get(axis), part.size.get(axis)) else { return Vec::new() };
        let new = || Layer { parts: Vec::new(), axis, len: extent * stride };
        layers.entry(*start).or_insert_with(new).parts.push(part);
    }
    layers.into_values().collect()
}

/// Refuses the index of a shard whose chunks overlap: a small file could state an image of any size.
fn check_entries(index: &[u8], file_bytes: u64) -> Result<(), Fault> {
    let lengths = index.chunks_exact(ENTRY_BYTES).filter_map(|entry| {
        let (offset, length) = entry.split_first_chunk::<8>()?;
        let (offset, length) = (u64::from_le_bytes(*offset), u64::from_le_bytes(length.try_into().ok()?));
        ((offset, length) != (NOT_STORED, NOT_STORED)).then_some(length)
    });
    if lengths.fold(0, u64::saturating_add) > max_shared_bytes(file_bytes) {
        return Err(Fault::malformed("the chunks of a shard overlap in its file"));
    }
    Ok(())
}

/// Largest sum of the sizes of the parts of a file of `bytes` bytes. It is at most `bytes` in a valid file, in which each byte
/// belongs to one part.
pub(super) fn max_shared_bytes(bytes: u64) -> u64 {
    const SLACK_BYTES: u64 = 1 << 16;
    bytes.saturating_mul(2).saturating_add(SLACK_BYTES)
}

/// Position of the file with a chunk in the grid of files.
fn file_of(array: &ZarrArray, at: &[usize]) -> Vec<usize> {
    at.iter().zip(array.chunks_per_file()).map(|(at, n)| at / n).collect()
}

/// Offset and length of an inner chunk.
fn entry(index: &[u8], per_file: &[usize], inner: &[usize]) -> Option<(u64, u64)> {
    let i = inner.iter().zip(per_file).fold(0usize, |i, (at, n)| i * n + at);
    let entry = index.get(i * ENTRY_BYTES..(i + 1) * ENTRY_BYTES)?;
    let (offset, length) = entry.split_first_chunk::<8>()?;
    Some((u64::from_le_bytes(*offset), u64::from_le_bytes(length.try_into().ok()?)))
}

/// Reads and decodes a chunk stored at an offset of a file.
fn decode_chunk(array: &ZarrArray, source: &Source, offset: u64, stored: u64) -> Result<Vec<u8>, Fault> {
    let len = array.chunk_bytes();
    let stored_len = usize::try_from(stored).unwrap_or(usize::MAX);
    let compressed = array.codecs.iter().any(|codec| codec.compression().is_some());
    // Data that cannot be compressed grow slightly.
    let filtered = codecs::filtered_bytes(&array.codecs, len);
    let longest = filtered.saturating_add(filtered / 8).saturating_add(MAX_RATIO.1);
    let least = if compressed { filtered.saturating_sub(MAX_RATIO.1) / MAX_RATIO.0 } else { 0 };
    if stored_len > longest || stored_len < least {
        return Err(Fault::malformed(format!("a chunk of {len} bytes is stored in {stored}")));
    }
    let encoded = source.read_vec(offset, stored_len)?;
    let start = Instant::now();
    let mut decoded = codecs::decode(&array.codecs, encoded, len)?;
    codec::to_native(array.order, array.dtype.size_bytes(), &mut decoded);
    source.count_decoded(start.elapsed(), len);
    Ok(decoded)
}

/// The index of a position in the grid of boxes of a shape.
fn linear(array: &ZarrArray, box_shape: &[usize], at: &[usize]) -> usize {
    let grid = array.shape.iter().zip(box_shape).map(|(n, b)| n.div_ceil(*b));
    at.iter().zip(grid).fold(0usize, |i, (at, n)| i.saturating_mul(n).saturating_add(*at))
}

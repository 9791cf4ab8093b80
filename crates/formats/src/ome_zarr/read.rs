//! Reading of regions: the chunks that overlap a region are decoded in parallel and copied into it.

use super::array::{ENTRY_BYTES, Shards, ZarrArray};
use super::cache::{Cache, Key};
use super::codecs::{self, BytesCodec, CHECKSUM_BYTES};
use super::folder::Folder;
use crate::{codec, error::Fault, huge, limits::Limits, source::Source};
use cytoscope_volume::{Region, Samples};
use rayon::prelude::*;
use std::{path::PathBuf, sync::Arc, time::Instant};

/// Largest number of chunks that one read may touch.
pub(crate) const MAX_CHUNKS_PER_READ: usize = 1 << 20;
/// Largest number of bytes of decoded chunks that are held before they are copied; at least one chunk is.
const BATCH_BYTES: usize = 256 << 20;
/// Largest number of bytes that one stored byte can decode to, and bytes that any chunk may have.
const MAX_RATIO: (usize, usize) = (1 << 17, 1 << 16);
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

/// The part of a read that lies in one chunk: the chunk's position in the grid of chunks, and along each axis the first
/// sample in the chunk, the first sample in the region, and the extent.
struct Part {
    at: Vec<usize>,
    in_chunk: Vec<usize>,
    in_region: Vec<usize>,
    size: Vec<usize>,
}

impl OmeZarr {
    /// Reads a region of a level, axes T, Z, C, Y, X, S, which has been checked against the level's shape.
    pub fn read(&self, level: usize, region: &Region, limits: &Limits) -> Result<Samples, Fault> {
        let Some(array) = self.levels.get(level) else { return Err(Fault::malformed(format!("no level {level}"))) };
        let len = region.len().map_err(|e| Fault::malformed(e.to_string()))?;
        let pick = |of: &[usize]| -> Vec<usize> { self.canonical.iter().filter_map(|i| of.get(*i).copied()).collect() };
        let (start, size) = (pick(&region.start), pick(&region.size));
        let parts = if len == 0 { Vec::new() } else { parts(array, &start, &size)? };
        let mut samples = huge::zeros(array.dtype, len);
        let sample_bytes = array.dtype.size_bytes();
        let out = samples.as_bytes_mut();
        if array.fill.iter().any(|byte| *byte != 0) {
            out.chunks_exact_mut(sample_bytes).for_each(|sample| sample.copy_from_slice(&array.fill));
        }
        let strides = self.region_strides(&region.size);
        let batch = self.chunks_at_once(array);
        let mut unstored_bytes = 0u64;
        for batch in parts.chunks(batch) {
            let decode = |part: &Part| self.chunk(level, array, &part.at);
            let chunks: Vec<Option<Arc<Vec<u8>>>> = match batch {
                [only] => vec![decode(only)?],
                _ => batch.par_iter().map(decode).collect::<Result<_, Fault>>()?,
            };
            for (part, chunk) in batch.iter().zip(chunks) {
                let Some(chunk) = chunk else {
                    unstored_bytes += (part.size.iter().product::<usize>() * sample_bytes) as u64;
                    continue;
                };
                copy(array, part, &chunk, &strides, out);
            }
            if unstored_bytes > limits.max_unstored_bytes {
                let what = "the size of the chunks in one read that are not stored, in bytes";
                return Err(Fault::over(what, unstored_bytes, "max_unstored_bytes", limits.max_unstored_bytes));
            }
        }
        Ok(samples)
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

    /// Returns the bytes that reading level 0 holds at most in addition to what it returns: the cache, and the chunks that
    /// are being decoded.
    pub fn cache_bytes(&self) -> u64 {
        let Some(array) = self.levels.first() else { return 0 };
        let along = array.shape.iter().zip(&array.chunk_shape).map(|(n, chunk)| n.div_ceil((*chunk).max(1)) as u64);
        let count = along.fold(1u64, u64::saturating_mul);
        let chunk_bytes = array.chunk_bytes() as u64;
        let cached = count.saturating_mul(chunk_bytes).min(self.cache.max_bytes() as u64);
        let decoding = self.chunks_at_once(array).min(rayon::current_num_threads()) as u64;
        cached.saturating_add(decoding.min(count).saturating_mul(chunk_bytes))
    }

    /// Strides in samples of a region's array, along the axes of the arrays.
    fn region_strides(&self, size: &[usize]) -> Vec<usize> {
        self.canonical.iter().map(|i| size.iter().skip(i + 1).product::<usize>()).collect()
    }

    /// Returns a decoded chunk in native byte order; `None` if it is not stored.
    fn chunk(&self, level: usize, array: &ZarrArray, at: &[usize]) -> Result<Option<Arc<Vec<u8>>>, Fault> {
        let key = Key::Chunk { level, at: linear(array, &array.chunk_shape, at) };
        if let Some(chunk) = self.cache.get(key) {
            return Ok(Some(chunk));
        }
        let per_file = array.chunks_per_file();
        let file_at: Vec<usize> = at.iter().zip(&per_file).map(|(at, n)| at / n).collect();
        let Some(source) = self.folder.open(&array.file_key(&file_at))? else { return Ok(None) };
        let (offset, stored) = match array.shards {
            None => (0, source.len()),
            Some(shards) => {
                let inner: Vec<usize> = at.iter().zip(&per_file).map(|(at, n)| at % n).collect();
                let file = linear(array, &array.file_shape, &file_at);
                let index = self.shard_index(level, array, shards, &source, file)?;
                match entry(&index, &per_file, &inner) {
                    Some((NOT_STORED, NOT_STORED)) => return Ok(None),
                    Some(entry) => entry,
                    None => return Err(Fault::malformed("the index of a shard is too short")),
                }
            }
        };
        let chunk = Arc::new(decode_chunk(array, &source, offset, stored)?);
        self.cache.insert(key, Arc::clone(&chunk));
        Ok(Some(chunk))
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
            true => codecs::decode(&[BytesCodec::Crc32c], bytes, stored - CHECKSUM_BYTES)?,
            false => bytes,
        };
        let index = Arc::new(index);
        self.cache.insert(key, Arc::clone(&index));
        Ok(index)
    }
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
    let compressed = array.codecs.iter().any(|codec| codec.compresses());
    // Data that cannot be compressed grow slightly.
    let longest = len.saturating_add(len / 8).saturating_add(MAX_RATIO.1);
    let least = if compressed { len.saturating_sub(MAX_RATIO.1) / MAX_RATIO.0 } else { 0 };
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

/// The parts of a region that lie in each chunk.
fn parts(array: &ZarrArray, start: &[usize], size: &[usize]) -> Result<Vec<Part>, Fault> {
    let mut axes = Vec::with_capacity(start.len());
    let mut count = 1usize;
    for ((start, size), chunk) in start.iter().zip(size).zip(&array.chunk_shape) {
        let along = start / chunk..(start + size).div_ceil(*chunk);
        count = count.saturating_mul(along.len());
        axes.push((*start, start + size, *chunk, along));
    }
    if count > MAX_CHUNKS_PER_READ {
        let what = "the number of chunks in one read";
        return Err(Fault::over(what, count as u64, "MAX_CHUNKS_PER_READ", MAX_CHUNKS_PER_READ as u64));
    }
    let mut at: Vec<usize> = axes.iter().map(|a| a.3.start).collect();
    let mut parts = Vec::with_capacity(count);
    for _ in 0..count {
        let mut part = Part { at: at.clone(), in_chunk: Vec::new(), in_region: Vec::new(), size: Vec::new() };
        for ((start, end, chunk, _), at) in axes.iter().zip(&at) {
            let (low, high) = ((at * chunk).max(*start), (at + 1).saturating_mul(*chunk).min(*end));
            part.in_chunk.push(low - at * chunk);
            part.in_region.push(low - start);
            part.size.push(high.saturating_sub(low));
        }
        parts.push(part);
        for (at, axis) in at.iter_mut().zip(&axes).rev() {
            *at += 1;
            if *at < axis.3.end {
                break;
            }
            *at = axis.3.start;
        }
    }
    Ok(parts)
}

/// An axis of a copy: its extent, and the strides in bytes of the chunk and of the region.
#[derive(Clone, Copy)]
struct Step {
    size: usize,
    from: usize,
    to: usize,
}

/// Copies the part of a decoded chunk into a region.
fn copy(array: &ZarrArray, part: &Part, chunk: &[u8], region_strides: &[usize], out: &mut [u8]) {
    let bytes = array.dtype.size_bytes();
    let offset = |of: &[usize], strides: &[usize]| of.iter().zip(strides).map(|(i, s)| i * s).sum::<usize>() * bytes;
    let (from, to) = (offset(&part.in_chunk, &array.chunk_strides), offset(&part.in_region, region_strides));
    let mut steps: Vec<Step> = part
        .size
        .iter()
        .zip(array.chunk_strides.iter().zip(region_strides))
        .map(|(size, (from, to))| Step { size: *size, from: from * bytes, to: to * bytes })
        .filter(|step| step.size != 1)
        .collect();
    // The region is written in its own order, so that its innermost axis comes last.
    steps.sort_by_key(|step| std::cmp::Reverse(step.to));
    let run = match steps.last() {
        Some(last) if last.from == bytes && last.to == bytes => {
            let size = last.size;
            steps.pop();
            size * bytes
        }
        _ => bytes,
    };
    copy_steps(&steps, run, chunk, from, out, to);
}

/// Copies runs of bytes along the axes of `steps`.
fn copy_steps(steps: &[Step], run: usize, from: &[u8], at: usize, out: &mut [u8], to: usize) {
    match steps {
        [] => {
            if let (Some(from), Some(out)) = (from.get(at..at + run), out.get_mut(to..to + run)) {
                out.copy_from_slice(from);
            }
        }
        [step, rest @ ..] => {
            (0..step.size).for_each(|i| copy_steps(rest, run, from, at + i * step.from, out, to + i * step.to));
        }
    }
}

//! Writing of shards: chunks compressed with Zstandard in one file, followed by an index with a checksum.

use super::checksums::with_checksum;
use crate::{codec, error::Fault, meta::ByteOrder};
use rayon::prelude::*;

/// Position, extents and chunks of a shard in a slab, along Z, Y, X.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShardBox {
    /// First sample of the shard in the slab.
    pub start: [usize; 3],
    /// Extents of an inner chunk in samples, with the axes of the slab.
    pub chunk: [usize; 3],
    /// Number of inner chunks of a shard along each axis.
    pub chunks: [usize; 3],
}

/// Encodes a shard of a slab, whose samples are in native byte order; samples outside the slab are 0. Returns `None` if
/// all samples are 0: such a shard is not stored.
pub(crate) fn encode(
    slab: &[u8],
    slab_shape: [usize; 3],
    sample_bytes: usize,
    shard: &ShardBox,
) -> Result<Option<Vec<u8>>, Fault> {
    let [nz, ny, nx] = shard.chunks;
    let positions: Vec<[usize; 3]> = (0..nz * ny * nx).map(|i| [i / (ny * nx), i / nx % ny, i % nx]).collect();
    let encode_one = |at: &[usize; 3]| -> Result<Option<Vec<u8>>, Fault> {
        let start = [0, 1, 2].map(|axis| shard.start[axis] + at[axis] * shard.chunk[axis]);
        let Some(mut chunk) = gather(slab, slab_shape, sample_bytes, start, shard.chunk) else { return Ok(None) };
        codec::to_native(ByteOrder::Little, sample_bytes, &mut chunk);
        codec::zstd_compress(&chunk).map(Some).map_err(|e| Fault::Io("compressing", e))
    };
    let chunks: Vec<Option<Vec<u8>>> = positions.par_iter().map(encode_one).collect::<Result<_, Fault>>()?;
    if chunks.iter().all(Option::is_none) {
        return Ok(None);
    }
    let (mut file, mut index): (Vec<u8>, Vec<u8>) = (Vec::new(), Vec::new());
    for chunk in chunks {
        let (offset, length) = match &chunk {
            None => (u64::MAX, u64::MAX),
            Some(chunk) => (file.len() as u64, chunk.len() as u64),
        };
        index.extend(offset.to_le_bytes());
        index.extend(length.to_le_bytes());
        file.extend(chunk.unwrap_or_default());
    }
    file.extend(with_checksum(index)?);
    Ok(Some(file))
}

/// Copies a chunk out of a slab, padded with 0; `None` if all samples are 0.
fn gather(
    slab: &[u8],
    [depth, height, width]: [usize; 3],
    sample_bytes: usize,
    start: [usize; 3],
    size: [usize; 3],
) -> Option<Vec<u8>> {
    let mut chunk = vec![0u8; size.iter().product::<usize>() * sample_bytes];
    let [z0, y0, x0] = start;
    let row_bytes = size[2].min(width.saturating_sub(x0)) * sample_bytes;
    let mut is_empty = true;
    for z in z0..(z0 + size[0]).min(depth) {
        for y in y0..(y0 + size[1]).min(height) {
            let from = ((z * height + y) * width + x0) * sample_bytes;
            let to = ((z - z0) * size[1] + (y - y0)) * size[2] * sample_bytes;
            if let (Some(from), Some(to)) = (slab.get(from..from + row_bytes), chunk.get_mut(to..to + row_bytes)) {
                to.copy_from_slice(from);
                is_empty = is_empty && from.iter().all(|byte| *byte == 0);
            }
        }
    }
    (!is_empty).then_some(chunk)
}

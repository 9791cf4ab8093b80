//! Arrays in chunks: which chunks a region touches, and copies of their samples into it.

use crate::error::{Fault, Remedy};

/// Largest number of chunks that one read may touch.
pub(crate) const MAX_CHUNKS_PER_READ: usize = 1 << 20;

/// The part of a read that lies in one chunk: the chunk's position in the grid of chunks, and along each axis the first
/// sample in the chunk, the first sample in the region, and the extent.
#[derive(Debug)]
pub(crate) struct Part {
    pub at: Vec<usize>,
    pub in_chunk: Vec<usize>,
    pub in_region: Vec<usize>,
    pub size: Vec<usize>,
}

impl Part {
    /// Bytes of the part.
    pub fn bytes(&self, sample_bytes: usize) -> usize {
        self.size.iter().product::<usize>() * sample_bytes
    }
}

/// The parts of a region that lie in each chunk of an array; no extent of its chunks is 0.
pub(crate) fn parts(chunk_shape: &[usize], start: &[usize], size: &[usize]) -> Result<Vec<Part>, Fault> {
    let mut axes = Vec::with_capacity(start.len());
    let mut count = 1usize;
    for ((start, size), chunk) in start.iter().zip(size).zip(chunk_shape) {
        let along = start / chunk..(start + size).div_ceil(*chunk);
        count = count.saturating_mul(along.len());
        axes.push((*start, start + size, *chunk, along));
    }
    if count > MAX_CHUNKS_PER_READ {
        let what = "the number of chunks in one read";
        return Err(Fault::over(
            what,
            count as u64,
            "MAX_CHUNKS_PER_READ",
            MAX_CHUNKS_PER_READ as u64,
            Remedy::LargerChunks,
        ));
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

/// Strides in samples of an array in C order.
pub(crate) fn c_strides(shape: &[usize]) -> Vec<usize> {
    (0..shape.len()).map(|axis| shape.iter().skip(axis + 1).product()).collect()
}

/// Decoded samples of a chunk, from which a part is copied.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chunk<'a> {
    pub samples: &'a [u8],
    /// Strides in samples along the axes of the array.
    pub strides: &'a [usize],
    /// The first sample of the part along each axis.
    pub first: &'a [usize],
    pub sample_bytes: usize,
}

/// An axis of a copy: its extent, and the strides in bytes of the chunk and of the region.
#[derive(Clone, Copy)]
struct Step {
    size: usize,
    from: usize,
    to: usize,
}

impl Chunk<'_> {
    /// Copies a part of `size` samples to the position `in_region` of a region.
    pub fn copy(&self, size: &[usize], in_region: &[usize], region_strides: &[usize], out: &mut [u8]) {
        let bytes = self.sample_bytes;
        let offset =
            |of: &[usize], strides: &[usize]| of.iter().zip(strides).map(|(i, s)| i * s).sum::<usize>() * bytes;
        let (from, to) = (offset(self.first, self.strides), offset(in_region, region_strides));
        let mut steps: Vec<Step> = size
            .iter()
            .zip(self.strides.iter().zip(region_strides))
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
        copy_steps(&steps, run, self.samples, from, out, to);
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;

    #[test]
    fn a_region_is_put_together_from_its_chunks() {
        // An array of 5 × 7 samples, row after row of 10, in chunks of 2 × 3.
        let parts = parts(&[2, 3], &[1, 2], &[3, 4]).unwrap();
        assert_eq!(parts.len(), 4);
        assert_eq!(parts.iter().map(|part| part.bytes(1)).sum::<usize>(), 12);
        let mut out = [0u8; 12];
        for part in &parts {
            let row = |y: usize| (0..3).map(move |x| (10 * (2 * part.at[0] + y) + 3 * part.at[1] + x) as u8);
            let samples: Vec<u8> = (0..2).flat_map(row).collect();
            let chunk = Chunk { samples: &samples, strides: &[3, 1], first: &part.in_chunk, sample_bytes: 1 };
            chunk.copy(&part.size, &part.in_region, &[4, 1], &mut out);
        }
        assert_eq!(out, [12, 13, 14, 15, 22, 23, 24, 25, 32, 33, 34, 35]);
        assert!(matches!(super::parts(&[1, 1], &[0, 0], &[2048, 2048]), Err(Fault::OverLimit(..))));
    }
}

//! Samples at regular steps in a file: uncompressed, of one type, in any order of the axes.

use crate::{codec, error::Fault, huge_pages, meta::ByteOrder, source::Source};
use cytoscope_volume::{DType, Region, Samples};
use std::cmp::Reverse;

/// Largest part of the file in bytes that is read at once to pick samples from it.
pub(crate) const MAX_BLOCK_BYTES: usize = 1 << 20;
/// Largest gap in bytes between samples that are read at once: reading a gap of a page is faster than another call.
const MAX_GAP_BYTES: usize = 4096;

/// Type and positions of the samples.
#[derive(Debug, Clone)]
pub(crate) struct Dense {
    /// Byte order of the samples.
    pub order: ByteOrder,
    /// Type of the samples, in the file and when read.
    pub dtype: DType,
    /// Position of the first sample in bytes.
    pub data_at: u64,
    /// Number of samples along T, Z, C, Y, X, S.
    pub shape_full: [usize; 6],
    /// Strides in samples along T, Z, C, Y, X, S.
    pub strides: [usize; 6],
}

impl Dense {
    /// Size of all samples in bytes; `None` if it does not fit `u64`.
    pub fn data_bytes(&self) -> Option<u64> {
        let count = self.shape_full.iter().try_fold(1u64, |n, extent| n.checked_mul(*extent as u64))?;
        count.checked_mul(self.dtype.size_bytes() as u64)
    }

    /// Reads a region, axes T, Z, C, Y, X, S, which has been checked against the shape.
    pub fn read(&self, source: &Source, region: &Region) -> Result<Samples, Fault> {
        let len = region.len().map_err(|e| Fault::malformed(e.to_string()))?;
        let mut samples = huge_pages::zeros(self.dtype, len);
        let (Ok(start), Ok(size)) =
            (<[usize; 6]>::try_from(region.start.as_slice()), <[usize; 6]>::try_from(region.size.as_slice()))
        else {
            return Ok(samples);
        };
        let bytes = self.dtype.size_bytes();
        // Some of the colors of a voxel are picked, too: reading them one by one would take as many calls as there are voxels.
        if !self.is_last_axis_contiguous() || size[5] < self.shape_full[5] {
            self.read_strided(source, &start, &size, samples.as_bytes_mut())?;
            codec::to_native(self.order, bytes, samples.as_bytes_mut());
            return Ok(samples);
        }
        // The axes from `run` on are contiguous in the file and are read at once.
        let mut run = 6;
        let mut piece = 1;
        while run > 0 {
            let axis = run - 1;
            if size[axis] > 1 && self.strides[axis] != piece {
                break;
            }
            run = axis;
            piece *= size[axis];
            if size[axis] != self.shape_full[axis] {
                break;
            }
        }
        let mut index = [0usize; 6];
        for out in samples.as_bytes_mut().chunks_exact_mut(piece.max(1) * bytes) {
            let at: usize = (0..6).map(|i| (start[i] + index[i]) * self.strides[i]).sum();
            source.read_at(self.data_at + (at * bytes) as u64, out)?;
            for i in (0..run).rev() {
                index[i] += 1;
                if index[i] < size[i] {
                    break;
                }
                index[i] = 0;
            }
        }
        codec::to_native(self.order, bytes, samples.as_bytes_mut());
        Ok(samples)
    }

    /// Whether samples along the last axis longer than 1 follow each other in the file, as in C order.
    pub fn is_last_axis_contiguous(&self) -> bool {
        let last = self.shape_full.iter().zip(&self.strides).rfind(|(extent, _)| **extent > 1);
        last.is_none_or(|(_, stride)| *stride == 1)
    }

    /// Reads a region of samples in another order, such as Fortran order, into `out` in C order: block by block of the
    /// file, of which the samples of the region are picked.
    fn read_strided(
        &self,
        source: &Source,
        start: &[usize; 6],
        size: &[usize; 6],
        out: &mut [u8],
    ) -> Result<(), Fault> {
        if out.is_empty() {
            return Ok(());
        }
        let bytes = self.dtype.size_bytes();
        let mut steps = Vec::new();
        let mut distance = 1;
        for axis in (0..6).rev() {
            if size[axis] > 1 {
                steps.push(Step { count: size[axis], stored: self.strides[axis], read: distance });
            }
            distance *= size[axis];
        }
        steps.sort_by_key(|step| Reverse(step.stored));
        let first: usize = start.iter().zip(&self.strides).map(|(start, stride)| start * stride).sum();
        let counts = block_counts(&steps, bytes);
        let mut corner = vec![0usize; steps.len()];
        let mut stored: Vec<u8> = Vec::new();
        loop {
            let block: Vec<Step> = steps
                .iter()
                .zip(counts.iter().zip(&corner))
                .map(|(step, (count, at))| Step { count: (*count).min(step.count - at), ..*step })
                .collect();
            let from: usize = steps.iter().zip(&corner).map(|(step, at)| step.stored * at).sum();
            let to: usize = steps.iter().zip(&corner).map(|(step, at)| step.read * at).sum();
            stored.resize(span(&block) * bytes, 0);
            source.read_at(self.data_at + ((first + from) * bytes) as u64, &mut stored)?;
            match bytes {
                1 => pick::<1>(&stored, &block, to, out),
                2 => pick::<2>(&stored, &block, to, out),
                4 => pick::<4>(&stored, &block, to, out),
                _ => pick::<8>(&stored, &block, to, out),
            }
            if !advance(&mut corner, &counts, &steps) {
                return Ok(());
            }
        }
    }
}

/// Positions along one axis of a region. Distances are in samples.
#[derive(Debug, Clone, Copy)]
struct Step {
    /// Number of positions, at least 1.
    count: usize,
    /// Distance between neighbors in the file.
    stored: usize,
    /// Distance between neighbors in the region that is read.
    read: usize,
}

/// Number of samples in the file from the first to the last position.
fn span(steps: &[Step]) -> usize {
    steps.iter().fold(1, |span: usize, step| span.saturating_add((step.count - 1).saturating_mul(step.stored)))
}

/// Number of positions along each axis of a block that is read at once. The axes are sorted by their distances in the file,
/// the largest first.
fn block_counts(steps: &[Step], bytes: usize) -> Vec<usize> {
    let (max, max_gap) = (MAX_BLOCK_BYTES / bytes, MAX_GAP_BYTES / bytes);
    let mut counts = vec![1usize; steps.len()];
    // Samples of the file that the axes inside of the present one span; at most `max`.
    let mut inner = 1;
    for (count, step) in counts.iter_mut().zip(steps).rev() {
        if step.stored.saturating_sub(inner) > max_gap {
            break;
        }
        *count = step.count.min((max - inner) / step.stored.max(1) + 1);
        if *count < step.count {
            break;
        }
        inner += (step.count - 1) * step.stored;
    }
    counts
}

/// Moves to the next block of a region; false after the last one.
fn advance(corner: &mut [usize], counts: &[usize], steps: &[Step]) -> bool {
    for ((at, count), step) in corner.iter_mut().zip(counts).zip(steps).rev() {
        *at += count;
        if *at < step.count {
            return true;
        }
        *at = 0;
    }
    false
}

/// Copies the samples of a block, each of `N` bytes, to their places in the region; `to` is the place of the first one.
fn pick<const N: usize>(stored: &[u8], block: &[Step], to: usize, out: &mut [u8]) {
    let (stored, out) = (stored.as_chunks::<N>().0, out.as_chunks_mut::<N>().0);
    let (outer, inner) = match block.split_last() {
        Some((inner, outer)) => (outer, *inner),
        None => (block, Step { count: 1, stored: 1, read: 1 }),
    };
    let ones = vec![1usize; outer.len()];
    let mut at = vec![0usize; outer.len()];
    loop {
        let from: usize = outer.iter().zip(&at).map(|(step, at)| step.stored * at).sum();
        let to: usize = to + outer.iter().zip(&at).map(|(step, at)| step.read * at).sum::<usize>();
        for i in 0..inner.count {
            if let (Some(sample), Some(place)) = (stored.get(from + i * inner.stored), out.get_mut(to + i * inner.read))
            {
                *place = *sample;
            }
        }
        if !advance(&mut at, &ones, outer) {
            return;
        }
    }
}

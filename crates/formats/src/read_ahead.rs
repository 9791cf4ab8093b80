//! Reading ahead in arrays whose slices are spread over the file, as in Fortran order: reading one slice takes as long as
//! reading many, so the following slices are read with it and kept for the next reads.

use crate::{
    dense::{Dense, MAX_BLOCK_BYTES},
    error::Fault,
    source::Source,
};
use cytoscope_volume::{Array, Axes, Region, Samples};
use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

/// Largest number of bytes that are read ahead and kept for an image.
const MAX_READ_AHEAD_BYTES: usize = 512 << 20;

// Positions in T, Z, C, Y, X, S.
const T: usize = 0;
const Z: usize = 1;
const C: usize = 2;
const Y: usize = 3;
const X: usize = 4;

/// The slices that were read last. Several threads may read at the same time; one of them reads ahead.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    kept: Mutex<Option<Kept>>,
    max_bytes: AtomicUsize,
}

/// All samples of a region.
#[derive(Debug)]
struct Kept {
    region: Region,
    array: Array,
}

impl Kept {
    /// Returns the samples of a region; `None` if not all of them are kept.
    fn part(&self, region: &Region) -> Option<Samples> {
        let starts = region.start.iter().zip(&self.region.start);
        let start = starts.map(|(start, kept)| start.checked_sub(*kept)).collect::<Option<Vec<usize>>>()?;
        self.array.crop(&Region { start, size: region.size.clone() }).ok().map(Array::into_samples)
    }
}

impl Default for ReadAhead {
    fn default() -> Self {
        Self { kept: Mutex::default(), max_bytes: MAX_READ_AHEAD_BYTES.into() }
    }
}

impl ReadAhead {
    /// Reads a region, axes T, Z, C, Y, X, S, which has been checked against the shape.
    pub fn read(&self, layout: &Dense, source: &Source, region: &Region) -> Result<Samples, Fault> {
        if layout.is_last_axis_contiguous() {
            return layout.read(source, region);
        }
        let mut kept = self.lock();
        if let Some(samples) = kept.as_ref().and_then(|kept| kept.part(region)) {
            return Ok(samples);
        }
        let wide = self.widened(layout, region);
        if wide == *region {
            drop(kept);
            return layout.read(source, region);
        }
        // The memory of the last slices is free before that of the next ones is taken.
        *kept = None;
        let samples = layout.read(source, &wide)?;
        let array = Array::new(Axes::canonical(), wide.size.clone(), samples);
        let next = Kept { region: wide, array: array.map_err(|e| Fault::malformed(e.to_string()))? };
        let part = next.part(region);
        *kept = Some(next);
        drop(kept);
        part.map_or_else(|| layout.read(source, region), Ok)
    }

    /// Largest number of bytes that reading holds in addition to what it returns.
    pub fn held_bytes(&self, layout: &Dense) -> u64 {
        if layout.is_last_axis_contiguous() {
            return 0;
        }
        let kept_bytes = layout.data_bytes().unwrap_or(u64::MAX).min(self.max_bytes() as u64);
        kept_bytes.saturating_add(MAX_BLOCK_BYTES as u64)
    }

    /// Lowers the number of bytes that are read ahead and kept.
    pub fn limit(&self, bytes: u64) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.max_bytes.fetch_min(bytes, Ordering::Relaxed);
        let mut kept = self.lock();
        if kept.as_ref().is_some_and(|kept| kept.array.samples().as_bytes().len() > bytes) {
            *kept = None;
        }
    }

    fn max_bytes(&self) -> usize {
        self.max_bytes.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Kept>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the region with as many of the following slices, channels and time points as may be kept (at the end of
    /// an axis, of the preceding ones), provided that their samples lie between those of the region.
    fn widened(&self, layout: &Dense, region: &Region) -> Region {
        let mut wide = region.clone();
        let (Ok(start), Ok(size)) =
            (<[usize; 6]>::try_from(region.start.as_slice()), <[usize; 6]>::try_from(region.size.as_slice()))
        else {
            return wide;
        };
        // Only slabs and bands are followed by their neighbors, as a rule; they have whole rows.
        if region.is_empty() || size[X] < layout.shape_full[X] {
            return wide;
        }
        let farthest = [Y, X].into_iter().filter(|axis| size[*axis] > 1).map(|axis| layout.strides[axis]).max();
        let mut bytes = size.iter().fold(layout.dtype.size_bytes(), |bytes, n| bytes.saturating_mul(*n));
        for axis in [Z, C, T] {
            let extent = layout.shape_full[axis];
            if size[axis] == extent {
                continue;
            }
            let slice_bytes = bytes / size[axis];
            let count = (self.max_bytes() / slice_bytes.max(1)).min(extent);
            if count <= size[axis] || farthest.is_none_or(|stride| layout.strides[axis] > stride) {
                break;
            }
            wide = wide.with_range(axis, start[axis].min(extent - count), count);
            bytes = slice_bytes.saturating_mul(count);
            if count < extent {
                break;
            }
        }
        wide
    }
}

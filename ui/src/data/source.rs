//! Sources of planes: files read lazily, partial results, labels being corrected.

use super::levels::{ReducedLevel, level_for, levels_of};
use super::plane::{Orientation, Plane, PlaneAt, Values};
use cytoscope_formats::{FormatError, Image};
use cytoscope_pipeline::Extents;
use cytoscope_storage::io_problem;
use cytoscope_volume::{Array, Axis, Region, VolumeError};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Why a plane could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// A newer request replaced this one.
    #[error("no longer wanted")]
    Canceled,
    /// The file could not be read.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// Array shapes did not match, which is a bug.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// A temporary file could not be read.
    #[error("a partial result cannot be read: {}", io_problem(.0))]
    Io(#[from] std::io::Error),
}

/// A flag that cancels the reading of a plane.
#[derive(Debug, Default)]
pub struct Cancel(AtomicBool);

impl Cancel {
    /// Asks the reading to stop at its next check.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// # Errors
    /// [`SourceError::Canceled`] once cancellation was requested.
    pub fn check(&self) -> Result<(), SourceError> {
        if self.0.load(Ordering::Relaxed) { Err(SourceError::Canceled) } else { Ok(()) }
    }
}

/// A source of planes, readable from any thread.
pub trait PlaneSource: Send + Sync {
    /// Reads a plane.
    ///
    /// # Errors
    /// [`SourceError`] if the plane cannot be read or reading was canceled.
    fn plane(&self, at: &PlaneAt, cancel: &Cancel) -> Result<Plane, SourceError>;
}

/// Planes of an image file.
#[derive(Debug, Clone)]
pub struct FileSource {
    image: Image,
    extents: Extents,
    /// Levels that planes can be read from.
    levels: Vec<ReducedLevel>,
    /// Whether the file holds labels, which are reduced by subsampling; intensities are averaged.
    is_labels: bool,
}

/// Bytes read between two checks for cancellation.
const PART_BYTES: usize = 16 << 20;

impl FileSource {
    /// A source for an opened image.
    pub fn new(image: Image, is_labels: bool) -> Self {
        let (extents, levels) = (Extents::of(image.meta()), levels_of(image.meta()));
        Self { image, extents, levels, is_labels }
    }

    /// The region of a level with these rows of a plane. The plane begins with a block of the level along both axes.
    fn region(&self, at: &PlaneAt, level: ReducedLevel, rows: Range<usize>) -> Region {
        let meta = self.image.meta();
        let shape = meta.levels.get(level.index).map_or(&meta.shape_full, |l| &l.shape_full);
        let mut region = Region::whole(shape);
        let [normal_axis, row_axis, column_axis] = at.orientation.axes();
        let spatial = [Axis::Z, Axis::Y, Axis::X];
        let samples = self.extents.samples;
        let mut set = |axis: Axis, start: usize, size: usize| {
            if let Some(i) = meta.axes_full.position(axis) {
                let extent = shape.get(i).copied().unwrap_or(1);
                let start = start.min(extent.saturating_sub(1));
                region = region.clone().with_range(i, start, size.min(extent - start).max(1));
            }
        };
        set(Axis::T, at.time, 1);
        set(Axis::C, at.channel / samples, 1);
        set(Axis::S, at.channel % samples, 1);
        set(spatial[normal_axis], at.index / level.factors_zyx[normal_axis], 1);
        for (axis, range) in [(row_axis, &rows), (column_axis, &at.columns)] {
            let factor = level.factors_zyx[axis];
            let start = range.start / factor;
            set(spatial[axis], start, range.end.div_ceil(factor) - start);
        }
        region
    }
}

impl PlaneSource for FileSource {
    fn plane(&self, at: &PlaneAt, cancel: &Cancel) -> Result<Plane, SourceError> {
        let level = level_for(&self.levels, at);
        let [_, row_factor, column_factor] = at.orientation.axes().map(|axis| level.factors_zyx[axis]);
        let [row_step, column_step] = at.pixel_size();
        let reduction = [row_step / row_factor, column_step / column_factor];
        let size = at.size();
        let columns = at.columns.len().div_ceil(column_factor);
        let mut values = Values::empty(self.image.meta().dtype, self.is_labels);
        // Bands cover whole steps.
        let row_bytes = columns * self.image.meta().dtype.size_bytes();
        let band = (PART_BYTES / row_bytes.max(1)).max(1).next_multiple_of(reduction[0]) * row_factor;
        let mut start = at.rows.start;
        while start < at.rows.end {
            cancel.check()?;
            let end = (start + band).min(at.rows.end);
            let part = self.image.read(level.index, &self.region(at, level, start..end))?;
            let part = self.to_rows_and_columns(part, at.orientation)?;
            let got = [part.shape().first().copied().unwrap_or(0), part.shape().get(1).copied().unwrap_or(0)];
            // A level may lack the last, incomplete blocks.
            values.append(part.samples(), got, [(end - start).div_ceil(row_factor), columns], reduction);
            start = end;
        }
        values.resize(size[0] * size[1]);
        Ok(Plane { at: at.clone(), size, values })
    }
}

impl FileSource {
    /// Reorders a region to the rows and columns of the slice.
    fn to_rows_and_columns(&self, part: Array, orientation: Orientation) -> Result<Array, SourceError> {
        let [_, rows, columns] = orientation.axes();
        let spatial = [Axis::Z, Axis::Y, Axis::X];
        let axes = part.axes().clone();
        let extent = |axis| axes.position(axis).and_then(|i| part.shape().get(i)).copied().unwrap_or(1);
        let shape = vec![extent(spatial[rows]), extent(spatial[columns])];
        let transposed = match (axes.position(spatial[rows]), axes.position(spatial[columns])) {
            (Some(r), Some(c)) => r > c,
            _ => false,
        };
        if !transposed {
            return Ok(Array::new("YX".parse()?, shape, part.into_samples())?);
        }
        let swapped = Array::new("YX".parse()?, vec![shape[1], shape[0]], part.into_samples())?;
        let transposed_array = swapped.transpose(&"XY".parse()?)?;
        Ok(Array::new("YX".parse()?, shape, transposed_array.into_samples())?)
    }
}

#[cfg(test)]
#[path = "source_tests.rs"]
mod tests;

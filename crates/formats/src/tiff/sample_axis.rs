//! Stacks whose samples of a pixel are channels, slices or time points rather than the parts of a color.

use super::read::Stack;
use crate::{error::FormatError, reader::Pixels};
use cytoscope_volume::{Array, Axes, Axis, Region, Samples, VolumeError};
use std::path::{Path, PathBuf};

/// Index of S in the axes of a region.
const S: usize = 5;

/// A stack whose samples of a pixel run along another axis, along which it has a single plane.
#[derive(Debug)]
pub(crate) struct SamplesAlong {
    /// The planes as stored.
    pub stack: Stack,
    /// Index of the axis in T, Z, C, Y, X, S.
    pub axis: usize,
}

impl Pixels for SamplesAlong {
    fn read(&self, path: &Path, region: &Region) -> Result<Samples, FormatError> {
        self.read_level(path, 0, region)
    }

    fn read_level(&self, path: &Path, level: usize, region: &Region) -> Result<Samples, FormatError> {
        let bad = |e: VolumeError| FormatError::misused(path, e.to_string(), "read a smaller region");
        let along = |values: &[usize]| values.get(self.axis).copied().unwrap_or(0);
        let (start, size) = (along(&region.start), along(&region.size));
        let stored = region.clone().with_range(self.axis, 0, 1).with_range(S, start, size);
        let samples = self.stack.read(path, level, &stored)?;
        let array = Array::new(Axes::canonical(), stored.size, samples).map_err(bad)?;
        let mut order = Axis::CANONICAL;
        order.swap(self.axis, S);
        let order = Axes::new(order.to_vec()).map_err(bad)?;
        Ok(array.transpose(&order).map_err(bad)?.into_samples())
    }

    fn files(&self) -> Option<Vec<PathBuf>> {
        Some(self.stack.files.paths())
    }
}

//! A stack as jobs read it: one time point, slices in Z, channel by channel.

use crate::ops::{self, Reference, Statistics, Volume};
use crate::slice_statistics::{Chains, are_per_slice, resolve_slice_preprocessing};
use crate::{Context, JobError, Model};
use cytoscope_formats::{Image, ImageMeta};
use cytoscope_profile::Stage;
use cytoscope_volume::{Axis, DType, Region, Samples};
use std::ops::Range;

/// Indices of the axes in the shapes and regions of images.
pub(crate) mod axis_index {
    pub(crate) const T: usize = 0;
    pub(crate) const Z: usize = 1;
    pub(crate) const C: usize = 2;
    pub(crate) const Y: usize = 3;
    pub(crate) const X: usize = 4;
    pub(crate) const S: usize = 5;
}

/// Returns the error for a preprocessing step of a model that is not supported.
pub(crate) fn unsupported_step(model: &Model, step: &str) -> JobError {
    let next_step = "apply it to the stacks first, and remove it from the package";
    JobError::model(model.name.clone(), format!("preprocessing step {step} is not supported; {next_step}"))
}

/// Returns a number of channels as text, such as `1 channel` and `2 channels`.
pub(crate) fn channels_text(count: usize) -> String {
    format!("{count} channel{}", if count == 1 { "" } else { "s" })
}

/// Extents of an image's axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extents {
    /// Number of time points of the stack; 1 if it is not a time series.
    pub times: usize,
    /// Number of slices, rows and columns.
    pub zyx: [usize; 3],
    /// Number of channels; the samples of an RGB pixel count as channels.
    pub channels: usize,
    /// Samples per pixel, such as 3 for RGB.
    pub samples: usize,
}

impl Extents {
    /// Returns the extents of an image.
    pub fn of(meta: &ImageMeta) -> Self {
        let size = |axis| meta.axes_full.position(axis).and_then(|i| meta.shape_full.get(i)).copied().unwrap_or(1);
        Self {
            times: size(Axis::T),
            zyx: [size(Axis::Z), size(Axis::Y), size(Axis::X)],
            channels: size(Axis::C) * size(Axis::S),
            samples: size(Axis::S),
        }
    }

    pub(crate) fn is_rgb(&self) -> bool {
        self.samples > 1
    }
}

/// The readers of a job's images keep at most this fraction (1 / `READER_PARTS`) of the memory budget between reads.
pub(crate) const READER_PARTS: u64 = 4;

/// Limits what the readers of a job's images keep between reads, all together, to a part of the memory budget; without one, of
/// three quarters of the free memory.
pub(crate) fn limit_readers(images: &[&Image], budget_bytes: Option<u64>) {
    let budget_bytes = budget_bytes.unwrap_or_else(cytoscope_profile::default_budget_bytes);
    let each_bytes = budget_bytes / READER_PARTS / images.len().max(1) as u64;
    images.iter().for_each(|image| image.limit_cache(each_bytes));
}

/// One time point of an image.
#[derive(Clone)]
pub(crate) struct Stack {
    image: Image,
    /// Extents of the whole image, except for `zyx`, which is the size of the window.
    pub extents: Extents,
    time: usize,
    /// First voxel Z, Y, X of the window.
    origin: [usize; 3],
}

/// Voxels of a slab, unless another length is required.
const SLAB_VOXELS: usize = 4 << 20;

/// Returns the number of slices of a slab of about [`SLAB_VOXELS`] in a stack of shape Z, Y, X.
pub(crate) fn slab_slices([depth, ny, nx]: [usize; 3]) -> usize {
    (SLAB_VOXELS / (ny * nx).max(1)).clamp(1, depth.max(1))
}

impl Stack {
    pub(crate) fn new(image: &Image, time: usize) -> Self {
        Self { image: image.clone(), extents: Extents::of(image.meta()), time, origin: [0; 3] }
    }

    /// Returns the part of the stack in a window Z, Y, X, which must lie inside the stack.
    pub(crate) fn windowed(&self, window: &[Range<usize>; 3]) -> Self {
        let origin = std::array::from_fn(|a| self.origin[a] + window[a].start);
        let extents = Extents { zyx: std::array::from_fn(|a| window[a].len()), ..self.extents };
        Self { image: self.image.clone(), extents, time: self.time, origin }
    }

    /// Returns the index of the first slice of the window in the whole stack.
    pub(crate) fn first_slice(&self) -> usize {
        self.origin[0]
    }

    /// Returns the whole image.
    pub(crate) fn image(&self) -> &Image {
        &self.image
    }

    /// Returns the type of the samples.
    pub(crate) fn dtype(&self) -> DType {
        self.image.meta().dtype
    }

    /// Returns the number of voxels of a slice.
    pub(crate) fn slice_len(&self) -> usize {
        self.extents.zyx[1] * self.extents.zyx[2]
    }

    /// Reads slices `z` of one channel.
    pub(crate) fn read(&self, context: &Context, channel: usize, z: Range<usize>) -> Result<Samples, JobError> {
        let meta = self.image.meta();
        let mut region = Region::whole(&meta.shape_full);
        let (c, s) = (channel / self.extents.samples, channel % self.extents.samples);
        let [_, ny, nx] = self.extents.zyx;
        let [first_z, first_y, first_x] = self.origin;
        for (axis, start, size) in [
            (Axis::T, self.time, 1),
            (Axis::Z, first_z + z.start, z.len()),
            (Axis::Y, first_y, ny),
            (Axis::X, first_x, nx),
            (Axis::C, c, 1),
            (Axis::S, s, 1),
        ] {
            if let Some(i) = meta.axes_full.position(axis) {
                region = region.with_range(i, start, size);
            }
        }
        let mut span = context.recorder.span(Stage::Read, "slices").voxels(z.len() * self.slice_len());
        let before = self.image.decoded();
        let array = self.image.read(0, &region).map_err(|error| context.canceled_or(error))?;
        let after = self.image.decoded();
        if after.1 > before.1 {
            context.recorder.add(Stage::Decode, "strips", after.0.saturating_sub(before.0), after.1 - before.1);
        }
        span.add_bytes(array.samples().as_bytes().len());
        Ok(array.into_samples())
    }

    /// Reads the first row of the first slice and the last row of the last slice, so that a truncated or inconsistent
    /// file is refused before a long job starts.
    pub(crate) fn check_ends(&self) -> Result<(), JobError> {
        let [depth, ny, _] = self.extents.zyx;
        let meta = self.image.meta();
        for (z, y) in [(0, 0), (depth.saturating_sub(1), ny.saturating_sub(1))] {
            let mut region = Region::whole(&meta.shape_full);
            for (axis, start) in [(Axis::T, self.time), (Axis::Z, z), (Axis::C, 0), (Axis::Y, y)] {
                if let Some(i) = meta.axes_full.position(axis) {
                    region = region.with_range(i, start, 1);
                }
            }
            self.image.read(0, &region)?;
        }
        Ok(())
    }

    /// Resolves a model's preprocessing for some channels of this stack: one chain per channel, or one per channel and slice
    /// if the statistics are those of slices.
    ///
    /// # Errors
    /// [`JobError`] if the stack cannot be read, or a step is not supported.
    pub(crate) fn preprocessing(
        &self,
        context: &Context,
        model: &Model,
        channels: &[usize],
    ) -> Result<Chains, JobError> {
        let steps = model.inputs.iter().flat_map(|input| &input.preprocessing);
        if are_per_slice(model, self.extents.zyx[0], steps) {
            return resolve_slice_preprocessing(context, self, model, channels);
        }
        let mut tensors = self.input_tensors(context, model, channels);
        let mut chains = Vec::with_capacity(channels.len());
        for (input, channels) in model.inputs_with(channels) {
            let mut volume = StackChannels { stack: self, context, channels };
            let mut references = references(&mut tensors);
            let found = ops::resolve(&input.preprocessing, &mut volume, Statistics::Unprocessed, &mut references)?;
            chains.extend(found.map_err(|step| unsupported_step(model, &step))?);
        }
        Ok(Chains::Stack(chains))
    }

    /// Returns the input tensors of a model before preprocessing, with their ids; `channels` are the channels of all inputs.
    pub(crate) fn input_tensors<'a>(
        &'a self,
        context: &'a Context,
        model: &'a Model,
        channels: &'a [usize],
    ) -> Vec<(&'a str, StackChannels<'a>)> {
        let tensors = model.inputs_with(channels);
        tensors.map(|(input, channels)| (input.id.as_str(), StackChannels { stack: self, context, channels })).collect()
    }

    /// Returns the number of slices of a slab, see [`slab_slices`].
    pub(crate) fn slab_slices(&self) -> usize {
        slab_slices(self.extents.zyx)
    }
}

/// Selected channels of a stack, for statistics.
pub(crate) struct StackChannels<'a> {
    /// The stack, on its own grid and without preprocessing.
    pub stack: &'a Stack,
    /// Checked for cancellation between slabs; records the time of reading.
    pub context: &'a Context,
    /// Numbers of the channels in the image, from 0, in the order of the tensor's channels.
    pub channels: &'a [usize],
}

/// Returns input tensors as processing steps refer to them.
pub(crate) fn references<'r, 'a: 'r>(tensors: &'r mut [(&'a str, StackChannels<'a>)]) -> Vec<Reference<'r, JobError>> {
    tensors.iter_mut().map(|tensor| Reference { id: tensor.0, volume: &mut tensor.1 }).collect()
}

impl Volume for StackChannels<'_> {
    type Error = JobError;

    fn channels(&self) -> usize {
        self.channels.len()
    }

    fn each(&mut self, channel: usize, f: &mut dyn FnMut(Samples)) -> Result<(), JobError> {
        let Some(&channel) = self.channels.get(channel) else { return Ok(()) };
        let depth = self.stack.extents.zyx[0];
        let step = self.stack.slab_slices();
        for z in (0..depth).step_by(step) {
            self.context.check()?;
            let samples = self.stack.read(self.context, channel, z..(z + step).min(depth))?;
            let _span = self.context.recorder.span(Stage::Normalize, "statistics").voxels(samples.len());
            f(samples);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]
    use super::*;
    use cytoscope_formats::{OpenOptions, open};

    #[test]
    fn readers_of_arrays_in_fortran_order_share_a_quarter_of_the_budget() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f.npy");
        // 4 × 10 × 10 samples of 2 bytes, with a header of 128 bytes.
        let text = format!("{:<117}\n", "{'descr': '<u2', 'fortran_order': True, 'shape': (4, 10, 10), }");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((text.len() as u16).to_le_bytes());
        bytes.extend(text.as_bytes());
        bytes.extend(vec![0; 800]);
        std::fs::write(&path, bytes).unwrap();
        let image = || open(&path, &OpenOptions::default()).unwrap();
        let whole = image().cache_bytes();
        for (budget_bytes, kept) in [(Some(3200), 400), (Some(800), 100), (Some(1 << 20), 800), (None, 800)] {
            let (a, b) = (image(), image());
            limit_readers(&[&a, &b], budget_bytes);
            assert_eq!([a.cache_bytes(), b.cache_bytes()], [whole - 800 + kept; 2], "{budget_bytes:?}");
        }
    }
}

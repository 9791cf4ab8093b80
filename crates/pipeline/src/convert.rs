//! An image written in another format, slab by slab, samples untouched.

use crate::results::{Publication, kept_aside};
use crate::{Context, JobError};
use cytoscope_formats::{
    Compression, Container, ImageMeta, OpenOptions, StackWriter, WriteSpec, container_for_path, open,
};
use cytoscope_profile::Stage;
use cytoscope_storage::Overwrite;
use cytoscope_storage::target::check_file;
use cytoscope_volume::{Array, Axes, Axis, Region};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// A conversion: everything that decides its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ConvertJob {
    /// The image.
    pub input: PathBuf,
    /// Where it goes; the ending of its name picks the format.
    pub output: PathBuf,
    /// Series of a file with several, from 0.
    #[serde(default)]
    pub series: usize,
    /// Axes of the file where its own are wrong.
    #[serde(default)]
    pub axes: Option<Axes>,
    /// One channel only, from 0.
    #[serde(default)]
    pub channel: Option<usize>,
    /// One time point only, from 0.
    #[serde(default)]
    pub time: Option<usize>,
    /// Compression of an OME-TIFF.
    #[serde(default)]
    pub compression: Compression,
    /// What happens to a file that is there already.
    #[serde(default)]
    pub overwrite: Overwrite,
}

/// Bytes converted at a time.
const SLAB_BYTES: usize = 32 << 20;

impl ConvertJob {
    /// Runs the job. Memory stays at about a slab, however large the image.
    ///
    /// # Errors
    /// [`JobError`] for a name that stands for no format, a file that cannot be read or written, a channel or time point
    /// that is not there, or on cancelling; nothing half-written is left.
    pub fn run(&self, context: &Context) -> Result<(), JobError> {
        let container = container_for_path(&self.output)?;
        if self.compression != Compression::None && container != Container::OmeTiff {
            return Err(JobError::WrongUse(
                "--compression goes with .ome.tif: ImageJ TIFF and .npy are written plain".to_owned(),
            ));
        }
        let options = OpenOptions { series: self.series, axes: self.axes.clone(), ..OpenOptions::default() };
        let image = open(&self.input, &options)?;
        let files = image.files();
        let inputs: Vec<&Path> = files.iter().map(PathBuf::as_path).chain([self.input.as_path()]).collect();
        check_file(&self.output, &inputs, self.overwrite)?;
        let meta = image.meta().clone();
        let whole = self.region(&meta)?;
        let kept: Vec<usize> = (0..meta.axes_full.len()).filter(|i| whole.size[*i] != 1).collect();
        let axes = Axes::new(kept.iter().map(|i| meta.axes_full.as_slice()[*i]).collect())?;
        let shape: Vec<usize> = kept.iter().map(|i| whole.size[*i]).collect();
        let mut writer = StackWriter::create(&self.output, &self.spec(container, axes.clone(), shape, &meta))?;
        let slabs = Slabs::new(&whole, &kept, &meta);
        let mut meter = context.meter("convert", slabs.planes(), "planes");
        for (region, planes) in slabs {
            let slab = {
                let mut span = context.recorder.span(Stage::Read, "slab");
                let slab = image.read(0, &region)?;
                span.add_bytes(slab.samples().as_bytes().len());
                slab
            };
            let shape = kept.iter().map(|i| region.size[*i]).collect();
            let _span = context.recorder.span(Stage::Write, "slab").bytes(slab.samples().as_bytes().len());
            writer.write(&Array::new(axes.clone(), shape, slab.into_samples())?)?;
            meter.add(planes)?;
        }
        let mut publication = Publication::default();
        publication.add(writer.finish_unpublished()?);
        publication.publish(self.overwrite)?.iter().for_each(|aside| context.note(kept_aside(aside)));
        Ok(())
    }

    /// What of the image is taken.
    fn region(&self, meta: &ImageMeta) -> Result<Region, JobError> {
        let mut region = Region::whole(&meta.shape_full);
        for (axis, picked, name) in [(Axis::C, self.channel, "channel"), (Axis::T, self.time, "time point")] {
            let (Some(picked), Some(i)) = (picked, meta.axes_full.position(axis)) else { continue };
            let extent = meta.shape_full[i];
            if picked >= extent {
                return Err(JobError::Mismatch {
                    path: self.input.clone(),
                    problem: format!("{name} {picked} was asked for, the file has {extent}"),
                    next_step: format!("give one from 0 to {}", extent.saturating_sub(1)),
                });
            }
            region = region.with_range(i, picked, 1);
        }
        Ok(region)
    }

    fn spec(&self, container: Container, axes: Axes, shape: Vec<usize>, meta: &ImageMeta) -> WriteSpec {
        let mut spec = WriteSpec::new(container, axes, shape, meta.dtype);
        spec.compression = self.compression;
        spec.voxel_size_um = meta.voxel_size_um;
        spec.time_interval_secs = meta.time_interval_secs;
        spec.channels = match self.channel {
            Some(c) => meta.channels.get(c).cloned().into_iter().collect(),
            None => meta.channels.clone(),
        };
        spec.display_range = meta.display_range;
        spec
    }
}

/// The regions of an image in the order they are written: runs along the innermost axis outside a plane, the axes above it
/// one by one.
struct Slabs {
    whole: Region,
    /// Axes of more than one plane, outermost first.
    leading: Vec<usize>,
    /// Most planes in one region.
    run: usize,
    at: Vec<usize>,
    done: bool,
}

impl Slabs {
    fn new(whole: &Region, kept: &[usize], meta: &ImageMeta) -> Self {
        let of_plane = |i: &usize| matches!(meta.axes_full.as_slice()[*i], Axis::Y | Axis::X | Axis::S);
        let leading: Vec<usize> = kept.iter().copied().filter(|i| !of_plane(i)).collect();
        let plane_len: usize = (0..meta.axes_full.len()).filter(of_plane).map(|i| whole.size[i]).product();
        let run = (SLAB_BYTES / plane_len.saturating_mul(meta.dtype.size_bytes()).max(1)).max(1);
        Self { whole: whole.clone(), at: vec![0; leading.len()], leading, run, done: false }
    }

    fn planes(&self) -> u64 {
        self.leading.iter().map(|i| self.whole.size[*i] as u64).product()
    }
}

impl Iterator for Slabs {
    type Item = (Region, u64);

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let mut region = self.whole.clone();
        let mut planes = 1;
        for (n, (i, at)) in self.leading.iter().zip(&self.at).enumerate() {
            let innermost = n + 1 == self.leading.len();
            planes = if innermost { self.run.min(self.whole.size[*i] - at) } else { 1 };
            region = region.with_range(*i, self.whole.start[*i] + at, planes);
        }
        // The next place, as an odometer turns.
        self.done = true;
        let mut step = planes;
        for (i, at) in self.leading.iter().zip(&mut self.at).rev() {
            *at += step;
            if *at < self.whole.size[*i] {
                self.done = false;
                break;
            }
            *at = 0;
            step = 1;
        }
        Some((region, planes as u64))
    }
}

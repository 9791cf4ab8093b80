//! `cytoscope convert`: slab by slab, pixels untouched.

use super::failure::{Failure, Outcome};
use clap::{Args, ValueEnum};
use cytoscope_formats::{Compression, Container, OpenOptions, StackWriter, WriteSpec, container_for_path, open};
use cytoscope_volume::{Array, Axes, Axis, Region};
use std::path::PathBuf;

/// Options of `convert`.
#[derive(Args)]
pub(crate) struct Convert {
    /// The image.
    input: PathBuf,
    /// Where to write; its ending picks the format: .npy, .tif (ImageJ), .ome.tif.
    output: PathBuf,
    /// Series of a file with several, from 0.
    #[arg(long, default_value_t = 0)]
    series: usize,
    /// Axes of the file where its own are wrong, such as ZYX or TCYX.
    #[arg(long)]
    axes: Option<Axes>,
    /// Take one channel only, from 0.
    #[arg(long)]
    channel: Option<usize>,
    /// Take one time point only, from 0.
    #[arg(long)]
    time: Option<usize>,
    /// Compression of an OME-TIFF.
    #[arg(long, value_enum, default_value = "none")]
    compression: CompressionName,
}

#[derive(Clone, Copy, ValueEnum)]
enum CompressionName {
    None,
    Deflate,
    Zstd,
}

/// Bytes converted at a time.
const SLAB_BYTES: usize = 32 << 20;

impl Convert {
    pub(crate) fn run(self) -> Outcome {
        let container = container_for_path(&self.output)?;
        let compression = match self.compression {
            CompressionName::None => Compression::None,
            CompressionName::Deflate => Compression::Deflate,
            CompressionName::Zstd => Compression::Zstd,
        };
        if compression != Compression::None && container != Container::OmeTiff {
            return Err(Failure::wrong_use("--compression goes with .ome.tif: ImageJ TIFF and .npy are written plain"));
        }
        let image =
            open(&self.input, &OpenOptions { series: self.series, axes: self.axes.clone(), ..OpenOptions::default() })?;
        let meta = image.meta().clone();
        let mut whole = Region::whole(&meta.shape_full);
        for (axis, picked) in [(Axis::C, self.channel), (Axis::T, self.time)] {
            let (Some(picked), Some(i)) = (picked, meta.axes_full.position(axis)) else { continue };
            let extent = meta.shape_full[i];
            if picked >= extent {
                return Err(Failure::bad_input(format!(
                    "{}: {} {picked} was asked for, the file has {extent}",
                    self.input.display(),
                    if axis == Axis::C { "channel" } else { "time point" }
                )));
            }
            whole = whole.with_range(i, picked, 1);
        }
        let kept: Vec<usize> = (0..meta.axes_full.len()).filter(|i| whole.size[*i] != 1).collect();
        let axes = Axes::new(kept.iter().map(|i| meta.axes_full.as_slice()[*i]).collect())?;
        let shape: Vec<usize> = kept.iter().map(|i| whole.size[*i]).collect();
        let mut spec = WriteSpec::new(container, axes.clone(), shape, meta.dtype);
        spec.compression = compression;
        spec.voxel_size_um = meta.voxel_size_um;
        spec.time_interval_secs = meta.time_interval_secs;
        spec.channels = match self.channel {
            Some(c) => meta.channels.get(c).cloned().into_iter().collect(),
            None => meta.channels.clone(),
        };
        spec.display_range = meta.display_range;
        let mut writer = StackWriter::create(&self.output, &spec)?;
        // Slabs of planes along the outermost axis that is longer than one plane allows.
        let plane_axes = [Axis::Y, Axis::X, Axis::S];
        let leading: Vec<usize> =
            kept.iter().copied().filter(|i| !plane_axes.contains(&meta.axes_full.as_slice()[*i])).collect();
        let plane_bytes: usize = (0..meta.axes_full.len())
            .filter(|i| plane_axes.contains(&meta.axes_full.as_slice()[*i]))
            .map(|i| whole.size[i])
            .product::<usize>()
            .saturating_mul(meta.dtype.size_bytes());
        let mut at = vec![0usize; leading.len()];
        loop {
            // The innermost leading axis is taken in runs; the others one by one.
            let mut region = whole.clone();
            let mut run = 1;
            for (n, i) in leading.iter().enumerate() {
                let extent = whole.size[*i];
                let len =
                    if n + 1 == leading.len() { (SLAB_BYTES / plane_bytes.max(1)).clamp(1, extent - at[n]) } else { 1 };
                region = region.with_range(*i, whole.start[*i] + at[n], len);
                run = len;
            }
            let slab = image.read(0, &region)?;
            let shape = kept.iter().map(|i| region.size[*i]).collect();
            writer.write(&Array::new(axes.clone(), shape, slab.into_samples())?)?;
            let mut n = leading.len();
            let mut step = run;
            loop {
                if n == 0 {
                    return Ok(writer.finish()?);
                }
                n -= 1;
                at[n] += step;
                if at[n] < whole.size[leading[n]] {
                    break;
                }
                at[n] = 0;
                step = 1;
            }
        }
    }
}

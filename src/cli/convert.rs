//! `cytoscope convert`: slab by slab, pixels untouched.

use super::failure::Outcome;
use super::progress;
use clap::{Args, ValueEnum};
use cytoscope_formats::Compression;
use cytoscope_pipeline::ConvertJob;
use cytoscope_profile::Recorder;
use cytoscope_storage::Overwrite;
use cytoscope_volume::Axes;
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
    /// Replace files that exist already; an input is never replaced.
    #[arg(long)]
    force: bool,
    /// Tell progress as JSON lines on stderr.
    #[arg(long)]
    json_progress: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum CompressionName {
    None,
    Deflate,
    Zstd,
}

impl Convert {
    pub(crate) fn run(self) -> Outcome {
        let job = ConvertJob {
            input: self.input,
            output: self.output,
            series: self.series,
            axes: self.axes,
            channel: self.channel,
            time: self.time,
            compression: match self.compression {
                CompressionName::None => Compression::None,
                CompressionName::Deflate => Compression::Deflate,
                CompressionName::Zstd => Compression::Zstd,
            },
            overwrite: Overwrite::from_force(self.force),
        };
        Ok(job.run(&progress::context(self.json_progress, false, Recorder::totals_only()))?)
    }
}

//! `cytoscope convert`: rewrites an image in another file format, slab by slab, with unchanged pixel values unless
//! preprocessing steps are given.

use super::failure::{Failure, Outcome};
use super::measured::Measurement;
use super::options::{ReportOptions, StageTraceOption};
use super::{eprint_json, eprint_line, parse_um, print, progress};
use clap::{Args, ValueEnum};
use cytoscope_formats::{ChannelRef, Compression, SeriesChoice};
use cytoscope_pipeline::{ConvertJob, ConvertedSeries, Event, JobError, JobErrorKind};
use cytoscope_preprocess::PreprocessStep;
use cytoscope_storage::Overwrite;
use cytoscope_volume::Axes;
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub(crate) struct Convert {
    /// Image to convert.
    input: PathBuf,
    /// Output file; its extension selects the format: .npy, .tif (ImageJ), .ome.tif, .zarr (an OME-Zarr folder), .ozx or
    /// .zarr.zip (the same in one zip file), _seg.npy (Cellpose), .zip (ImageJ ROI set) or .roi (one
    /// ImageJ ROI).
    output: PathBuf,
    /// Label image of the input, to store in the OME-Zarr output.
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,
    /// Series (position, scene, well) to read from a multi-series file, by number from 0 or by name; all converts each series
    /// to its own file. The names of all but the first end in the number of the series (NAME_s1.tif).
    #[arg(long, default_value = "0", value_name = "N|NAME|all")]
    series: SeriesChoice,
    /// Axis order, such as ZYX or TCYX, to use instead of the file's own.
    #[arg(long)]
    axes: Option<Axes>,
    /// Voxel size Z,Y,X in µm, to use instead of the file's own and to write into the output.
    #[arg(long, value_name = "Z,Y,X", value_parser = parse_um)]
    voxel_size: Option<[f64; 3]>,
    /// Convert one channel only, by its number from 0 or its name; by default all.
    #[arg(long, value_name = "N|NAME")]
    channel: Option<ChannelRef>,
    /// Convert one time point only, counted from 0; by default all.
    #[arg(long)]
    time: Option<usize>,
    /// Stack that the regions of an ImageJ ROI set (.zip, .roi) are drawn on. Labels made from a set get its shape and voxel
    /// size; a set made from labels gets positions that Fiji shows in a stack of several channels.
    #[arg(long, value_name = "STACK")]
    like: Option<PathBuf>,
    /// Steps that are applied to the image first, in order, such as gaussian:sigma=1um,tophat:radius=15um; can be
    /// repeated. cytoscope predict --help lists them. The output has 32-bit floats unless all steps are crops.
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    preprocess: Vec<PreprocessStep>,
    /// Compression of an OME-TIFF output.
    #[arg(long, value_enum, default_value = "none")]
    compression: CompressionName,
    /// Overwrite existing files; an input is never overwritten. An existing OME-Zarr folder is moved aside.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    tracing: StageTraceOption,
    #[command(flatten)]
    report: ReportOptions,
}

/// Report of `convert --json` besides the measurements.
#[derive(Serialize)]
struct ConvertReport {
    #[serde(flatten)]
    outputs: ConvertedFiles,
    /// Texts of the notes, such as those on metadata that the output cannot state.
    notes: Vec<String>,
}

/// The output files in the report of `convert --json`.
#[derive(Serialize)]
#[serde(untagged)]
enum ConvertedFiles {
    /// Of one series.
    One { output: PathBuf },
    /// Of all series.
    All { outputs: Vec<PathBuf>, failed: Vec<FailedSeries> },
}

/// A series that could not be converted.
#[derive(Serialize)]
struct FailedSeries {
    series: usize,
    output: PathBuf,
    error: String,
    exit_code: i32,
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
            labels: self.labels,
            series: self.series,
            axes: self.axes,
            voxel_um: self.voxel_size,
            channel: self.channel,
            time: self.time,
            like: self.like,
            preprocess: self.preprocess,
            compression: match self.compression {
                CompressionName::None => Compression::None,
                CompressionName::Deflate => Compression::Deflate,
                CompressionName::Zstd => Compression::Zstd,
            },
            overwrite: Overwrite::from_force(self.force),
        };
        let measurement = Measurement::for_job(self.tracing.trace.as_deref(), &job, None)?;
        let context = progress::context(self.report.json_progress, self.report.json, measurement.recorder());
        let (context, notes) = progress::with_notes(context);
        if job.series == SeriesChoice::All {
            let (all, run) = measurement.finish(job.run_each_series(&context), 0)?;
            let written = || all.iter().filter(|one| one.result.is_ok()).map(|one| one.output.as_path());
            let run = run.with_results(written());
            if self.report.json {
                let outputs = converted_files(&all);
                run.print_json(&ConvertReport { outputs, notes: progress::taken(&notes) })?;
            } else {
                written().for_each(|output| print(&format!("wrote {}", output.display())));
                run.print_records();
            }
            return finish(all, self.report.json_progress.then_some(job.input.as_path()));
        }
        let ((), run) = measurement.finish(job.run(&context), 0)?;
        if self.report.json {
            let outputs = ConvertedFiles::One { output: job.output };
            return run.print_json(&ConvertReport { outputs, notes: progress::taken(&notes) });
        }
        print(&format!("wrote {}", job.output.display()));
        run.print_records();
        Ok(())
    }
}

/// Returns the outputs of all series, and those that failed.
fn converted_files(all: &[ConvertedSeries]) -> ConvertedFiles {
    let (mut outputs, mut failed) = (Vec::new(), Vec::new());
    for ConvertedSeries { series, output, result } in all {
        match result {
            Ok(()) => outputs.push(output.clone()),
            Err(error) => failed.push(FailedSeries {
                series: *series,
                output: output.clone(),
                error: error.to_string(),
                exit_code: error.kind().exit_code(),
            }),
        }
    }
    ConvertedFiles::All { outputs, failed }
}

/// Fails if any series could not be converted, with the kind of the first failure, or lack of resources if there is any. With
/// the path of the input, each failure is reported as a JSON line.
fn finish(all: Vec<ConvertedSeries>, json_input: Option<&Path>) -> Outcome {
    let count = all.len();
    let failed: Vec<(usize, JobError)> =
        all.into_iter().filter_map(|one| Some((one.series, one.result.err()?))).collect();
    let kinds = || failed.iter().map(|(_, error)| error.kind());
    let kind = kinds().find(|kind| *kind == JobErrorKind::OutOfResources).or_else(|| kinds().next());
    let Some(kind) = kind else { return Ok(()) };
    for (series, error) in &failed {
        match json_input {
            None => eprint_line(&format!("failed: series {series}: {error}")),
            Some(input) => eprint_json(&Event::Failed {
                input: input.to_owned(),
                reason: format!("series {series}: {error}"),
                names_input: error.names(input),
            }),
        }
    }
    Err(Failure::new(kind, format!("{} of {count} series could not be converted", failed.len())))
}

//! `cytoscope evaluate`: scores predictions, or a model, against ground truth.

use super::failure::Outcome;
use super::measured::{MeasuredRun, Measurement};
use super::options::StageTraceOption;
use super::values::chosen_channels;
use super::{PrecisionName, devices, parse_um, print, progress};
use clap::{ArgGroup, Args};
use cytoscope_engine::DeviceRequest;
use cytoscope_formats::{ChannelRef, SeriesChoice};
use cytoscope_objects::regression::Regression;
use cytoscope_objects::segmentation_errors::{ErrorSummary, Outcome as Kind, SizeUnit};
use cytoscope_pipeline::job_record::DeviceRecord;
use cytoscope_pipeline::predict::InputTensor;
use cytoscope_pipeline::{DiameterRequest, EvaluateJob, EvaluateReport, find_model};
use cytoscope_storage::{Overwrite, counted};
use cytoscope_train::EvaluateModelJob;
use cytoscope_volume::VoxelSize;
use std::path::{Path, PathBuf};

#[derive(Args)]
#[command(group(ArgGroup::new("written").args(["out", "trace"]).multiple(true)))]
pub(crate) struct Evaluate {
    /// Predictions: a file or a folder. If prediction and ground truth are images of integers, they are scored as labels,
    /// object by object; otherwise as stains, by intensity.
    #[arg(long, required_unless_present = "model", requires = "truth")]
    pred: Option<PathBuf>,
    /// Ground truth: a file, or a folder of files with matching names.
    #[arg(long, required_unless_present = "model", requires = "pred")]
    truth: Option<PathBuf>,
    /// Score a model instead of predictions: it predicts the images of --data in memory. A package (folder, .zip or .onnx) or
    /// the name of an installed model.
    #[arg(long, requires = "data",
          conflicts_with_all = ["pred", "truth", "series", "pred_channel", "truth_channel"])]
    model: Option<String>,
    /// Pairs of images and ground truth for --model: a folder or table (.csv) as for train.
    #[arg(long, value_name = "DIR|FILE.csv", requires = "model", conflicts_with_all = ["pred", "truth"])]
    data: Option<PathBuf>,
    /// Device of --model: auto (the fastest one, by measurement), cpu, cuda[:i] or wgpu[:i]; by default auto.
    #[arg(long, requires = "model", conflicts_with_all = ["pred", "truth"])]
    device: Option<DeviceRequest>,
    /// Numeric precision of --model: auto, f32, tf32, f16, bf16 or int8, as for predict; by default auto.
    #[arg(long, value_enum, requires = "model", conflicts_with_all = ["pred", "truth"], hide_possible_values = true)]
    precision: Option<PrecisionName>,
    /// Median diameter of the objects in µm for --model (in voxels if the voxel size is unknown), or auto to estimate it from
    /// each stack; by default auto.
    #[arg(long, value_name = "UM|auto", requires = "model", conflicts_with_all = ["pred", "truth"])]
    diameter: Option<DiameterRequest>,
    /// Channel of the images of --data to predict, by its number from 0 or its name; a model with several input channels uses
    /// the one of this number and the next ones. If the data specify a single channel for an image, that channel is used.
    #[arg(long, requires = "model", conflicts_with_all = ["pred", "truth"], value_name = "NAME|N")]
    channel: Option<ChannelRef>,
    /// Channels of the images of --data to predict, in the order of the model's inputs, by name or number, such as
    /// membrane,nuclei. If the data specify a single channel for an image, that channel is used.
    #[arg(long, value_delimiter = ',', value_name = "NAME|N", requires = "model",
          conflicts_with_all = ["channel", "pred", "truth"])]
    channels: Vec<ChannelRef>,
    /// Image of an input of --model, if the model has several: NAME=FILE, NAME=FILE:CHANNEL or, for a channel of the images,
    /// NAME=CHANNEL; can be repeated. FILE may be a folder with a file of the same name as each image. By default, each input
    /// is read from the channel of its name.
    #[arg(long = "input", value_name = "NAME=FILE|CHANNEL", requires = "model",
          conflicts_with_all = ["channel", "channels", "pred", "truth"])]
    input_tensors: Vec<InputTensor>,
    /// Ignore true objects with fewer voxels than this, and predicted objects that mostly overlap them: they count
    /// neither as hits nor as errors.
    #[arg(long, value_name = "VOXELS", default_value_t = 0)]
    ignore_below: u64,
    /// Label of voxels in the ground truth that are not annotated: they count neither as background nor as part of an object.
    /// Predicted objects do not count if only their rim is annotated, as background. By default, the label that --data
    /// states, if any.
    #[arg(long, value_name = "LABEL")]
    ignore_label: Option<i64>,
    /// Series of predictions and ground truth, by number from 0 or by name; ignored for files with a single series. An OME-Zarr
    /// with maps and labels counts as one series and is scored by its labels; the name of its image chooses the maps.
    #[arg(long, default_value = "0", value_name = "N|NAME")]
    series: SeriesChoice,
    /// Channel of the predictions to score, by name or number. Without this option and --truth-channel, all channels of
    /// stains are scored, paired by name or else in order, and the first channel of label images; a note says which are
    /// left out.
    #[arg(long, value_name = "NAME|N")]
    pred_channel: Option<ChannelRef>,
    /// Channel of the ground truth to score against, by name or number; by default the one with the name of the channel that
    /// --pred-channel chooses, or the first if that has no name.
    #[arg(long, value_name = "NAME|N")]
    truth_channel: Option<ChannelRef>,
    /// Voxel size Z,Y,X in µm for the diameters of objects, to use instead of the files' own.
    #[arg(long, value_name = "Z,Y,X", value_parser = parse_um)]
    voxel_size: Option<[f64; 3]>,
    /// Also write the scores to a file (.json), with a provenance record beside it.
    #[arg(long, value_name = "FILE.json")]
    out: Option<PathBuf>,
    /// Overwrite an existing file; an input is never overwritten.
    #[arg(long, requires = "written")]
    force: bool,
    #[command(flatten)]
    tracing: StageTraceOption,
    /// Print the scores as one JSON object.
    #[arg(long)]
    json: bool,
}

impl Evaluate {
    pub(crate) fn run(self) -> Outcome {
        if self.model.is_some() {
            return self.score_model();
        }
        let job = EvaluateJob {
            // The parser requires both unless there is a model.
            prediction: self.pred.unwrap_or_default(),
            truth: self.truth.unwrap_or_default(),
            ignore_below_voxels: self.ignore_below,
            ignore_label: self.ignore_label,
            series: self.series,
            prediction_channel: self.pred_channel,
            truth_channel: self.truth_channel,
            voxel_um: self.voxel_size,
            voxel_axes_um: VoxelSize::default(),
            out: self.out,
            overwrite: Overwrite::from_force(self.force),
        };
        let measurement = Measurement::for_job(self.tracing.trace.as_deref(), &job, None)?;
        let context = progress::context(false, self.json, measurement.recorder());
        let (report, run) = measurement.finish(job.run(&context), 0)?;
        print_report(&report, run, self.json, job.out.as_deref())
    }

    /// Scores a model on pairs of images and ground truth.
    fn score_model(self) -> Outcome {
        let (channel, channels) = chosen_channels(self.channel, self.channels);
        let job = EvaluateModelJob {
            model: self.model.unwrap_or_default(),
            data: self.data.unwrap_or_default(),
            device: self.device.unwrap_or_default(),
            cpu_because: None,
            precision: self.precision.and_then(PrecisionName::precision),
            diameter: self.diameter.unwrap_or_default(),
            channel,
            channels,
            channel_by_name: None,
            input_tensors: self.input_tensors,
            ignore_below_voxels: self.ignore_below,
            ignore_label: self.ignore_label,
            voxel_um: self.voxel_size,
            out: self.out,
            overwrite: Overwrite::from_force(self.force),
        };
        let model = find_model(&job.model)?;
        let measurement = Measurement::for_job(self.tracing.trace.as_deref(), &job, Some(&model))?;
        let context = progress::context(false, self.json, measurement.recorder());
        let devices = devices::found(job.device, &context.recorder);
        let (report, run) = measurement.finish(job.run(&context, &devices), 0)?;
        print_report(&report, run, self.json, job.out.as_deref())
    }
}

/// Prints the scores, as JSON with the measurements of the run, or as text with the file to which they were written.
fn print_report(report: &EvaluateReport, run: MeasuredRun, as_json: bool, written: Option<&Path>) -> Outcome {
    if as_json {
        return run.print_json(report);
    }
    print(&counted(report.pairs.len(), "pair"));
    if let (Some(DeviceRecord { id, name }), Some(precision)) = (&report.device, report.precision) {
        print(&format!("  predicted on {id} ({name}) in {precision}"));
    }
    for m in &report.instances {
        print(&format!(
            "  IoU ≥ {:.2}: F1 {:.4}  precision {:.4}  recall {:.4}  AP {:.4}  PQ {:.4}  mean matched IoU {:.4}  \
             ({} of {} objects)",
            m.threshold,
            m.f1,
            m.precision,
            m.recall,
            m.accuracy,
            m.panoptic_quality,
            m.mean_matched_score,
            m.tp,
            m.n_true
        ));
    }
    if let Some(ignored) = report.ignored.filter(|i| i.below_voxels > 0) {
        print(&format!(
            "    ignored: {} below {}, {} mostly on them",
            counted(ignored.true_objects, "true object"),
            counted(ignored.below_voxels, "voxel"),
            counted(ignored.predictions, "predicted object")
        ));
    }
    if let Some(errors) = &report.errors {
        error_lines(errors).iter().for_each(|line| print(line));
    }
    if let Some(r) = &report.regression {
        let mean = if report.channels.is_empty() { "" } else { "mean of the channels: " };
        print(&format!("  {mean}{}", regression_text(r)));
    }
    for channel in &report.channels {
        print(&format!("    {}: {}", channel.name, regression_text(&channel.regression)));
    }
    if let Some(traffic) = &report.traffic {
        print(&format!("  transfers: {}", traffic.text()));
    }
    for name in &report.unpaired {
        print(&format!("    no matching file: {}", name.display()));
    }
    if let Some(path) = written {
        print(&format!("wrote {}", path.display()));
    }
    run.print_records();
    Ok(())
}

/// Returns intensity scores as text.
fn regression_text(scores: &Regression) -> String {
    let [pearson, psnr, ssim, mse] = scores.texts();
    format!("Pearson {pearson}  PSNR {psnr}  SSIM {ssim}  MSE {mse}")
}

/// Returns the lines that report the error counts, and a table of them by object size.
fn error_lines(errors: &ErrorSummary) -> Vec<String> {
    let mut lines = vec![format!("  {}", errors.counts().join(", "))];
    if errors.sizes.is_empty() {
        return lines;
    }
    let unit = match errors.size_unit {
        SizeUnit::Um => "µm",
        SizeUnit::Voxel => "voxels",
    };
    let columns = [
        ("found", Kind::Found),
        ("merged", Kind::Merged),
        ("split", Kind::Split),
        ("inexact", Kind::Inexact),
        ("missed", Kind::Missed),
        ("false", Kind::False),
    ];
    let names: String = columns.iter().map(|(name, _)| format!("{name:>9}")).collect();
    lines.push(format!("  {:>19}{names}", format!("diameter in {unit}")));
    for bin in &errors.size_rows() {
        let counts: String = columns.iter().map(|(_, kind)| format!("{:>9}", bin.count(*kind))).collect();
        lines.push(format!("  {:>19}{counts}", format!("{} to {}", bin.from, bin.to)));
    }
    lines
}

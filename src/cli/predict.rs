//! `cytoscope predict`: segments stacks or predicts a stain.

use super::failure::{Failure, Outcome};
use super::measured::{MeasuredRun, RunClock, memory_sampler, recorder};
use super::options::{ImageOptions, TraceOptions, one_of};
use super::reports::{FailedInput, PredictCommandReport, PrintedInput};
use super::trace_path::check_trace;
use super::values::chosen_channels;
use super::{
    PrecisionName, devices, failed_inputs, machine_profile, note_line, parse_bytes, parse_threads, parse_zyx, print,
    print_json, progress,
};
use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use cytoscope_engine::DeviceRequest;
use cytoscope_formats::{is_zarr_name, is_zarr_zip_name};
use cytoscope_pipeline::devices::{DeviceChoice, Devices};
use cytoscope_pipeline::predict::{
    Blend, BlendRequest, ChannelRef, InputFailure, InputTensor, KeepSlices, TileRequest, expand_inputs, input_facts,
};
use cytoscope_pipeline::{
    DiameterRequest, InputReport, JobErrorKind, Note, Output, OutputTensor, PerformanceRequest, PredictJob,
    PredictOutcome, Rerun, ResultFormat, TableFormat, find_model, provenance,
};
use cytoscope_preprocess::PreprocessStep;
use cytoscope_profile::{RunFacts, bytes_text};
use cytoscope_storage::message;
use cytoscope_storage::message::Message;
use cytoscope_storage::setting::{GAUSSIAN_BLEND, INPUT, OVERLAP, RESUME};
use cytoscope_storage::target::check_extension;
use cytoscope_storage::{Overwrite, counted};
use cytoscope_training_data::Problem;
use cytoscope_volume::VoxelSize;
use std::path::{Path, PathBuf};

/// Refuses an output of a prediction whose name is that of a file, unless a folder with this name exists.
pub(super) fn check_out(out: &Path) -> Outcome {
    if out.is_dir() {
        return Ok(());
    }
    if is_zarr_zip_name(out) {
        return Ok(());
    }
    Ok(check_extension(out, &["", "zarr", "ozx", "zarr.zip"])?)
}

/// Returns the parser of `--outputs`.
fn outputs() -> impl TypedValueParser<Value = Output> {
    let value = |output: Output| match output {
        Output::Maps => PossibleValue::new(output.name()).alias(Output::EARLIER_MAPS),
        _ => PossibleValue::new(output.name()),
    };
    PossibleValuesParser::new(Output::ALL.map(value)).try_map(|word| word.parse::<Output>())
}

/// Arguments that a record replaces.
const RECORDED: [&str; 25] = [
    "inputs",
    "input_tensors",
    "output_tensor",
    "model",
    "format",
    "table_format",
    "device",
    "precision",
    "tile",
    "overlap",
    "blend",
    "outputs",
    "channel",
    "channels",
    "time",
    "series",
    "axes",
    "voxel_size",
    "diameter",
    "preprocess",
    "memory_budget",
    "threads",
    "performance",
    "resume",
    "keep_slices",
];

#[derive(Args)]
pub(crate) struct Predict {
    /// Stacks, or folders of stacks; may be omitted if --input gives a file.
    #[arg(required_unless_present_any = ["rerun", "input_tensors"])]
    inputs: Vec<PathBuf>,
    /// Model package (folder, .zip or .onnx) or name of an installed model.
    #[arg(long, default_value = "nuclei")]
    model: String,
    /// Folder for the results; created if it does not exist. A name that ends in .zarr is the OME-Zarr folder of maps and
    /// labels of one stack, and one that ends in .ozx or .zarr.zip is a zip file with this folder; the other results are
    /// written beside it.
    #[arg(long, required_unless_present = "rerun")]
    out: Option<PathBuf>,
    /// File format of maps and labels: auto (OME-Zarr for OME-Zarr inputs, TIFF for others), tiff or ome-zarr.
    #[arg(long, default_value = "auto", value_parser = one_of::<ResultFormat>(ResultFormat::ALL.map(ResultFormat::name)),
          hide_possible_values = true)]
    format: ResultFormat,
    /// Format of the tables: csv, parquet, or anndata, which is CSV for anndata.io.read_csv (rows named object_7 and so on,
    /// other columns numeric); by default csv.
    #[arg(long, value_name = "FORMAT",
          value_parser = one_of::<TableFormat>(TableFormat::ALL.map(TableFormat::name)), hide_possible_values = true)]
    table_format: Option<TableFormat>,
    /// Device: auto (the fastest one, by measurement), cpu, cuda[:i] or wgpu[:i].
    #[arg(long, default_value = "auto")]
    device: DeviceRequest,
    /// Numeric precision of the network: auto, f32, tf32, f16, bf16 or int8. auto is int8 if the model has it for the
    /// device, otherwise the fastest precision of the device whose error on the model's test tensor is small. cytoscope
    /// devices lists the precisions of each device.
    #[arg(long, value_enum, default_value = "auto", hide_possible_values = true)]
    precision: PrecisionName,
    /// Measure the speed and error of devices and precisions again, instead of using earlier measurements of this model.
    #[arg(long)]
    remeasure: bool,
    /// Tile size Z,Y,X in voxels; by default one pass over the stack without tiles if the network and the memory budget
    /// allow it, otherwise the size with the least redundant work.
    #[arg(long, value_name = "Z,Y,X", value_parser = parse_zyx)]
    tile: Option<[usize; 3]>,
    /// Fraction of a tile that overlaps its neighbor, from 0 to 0.9, for Gaussian blending; by default 0.25.
    #[arg(long)]
    overlap: Option<f64>,
    /// How tiles are joined: auto (no tiles but one pass over the stack, where that is possible; otherwise crop, or gaussian
    /// if the network's normalization depends on the tile), crop (identical to the untiled result) or gaussian (weighted
    /// mean of overlapping tiles). With crop or gaussian, the stack is always cut into tiles.
    #[arg(long, default_value = "auto", value_parser = one_of::<BlendRequest>(BlendRequest::names()),
          hide_possible_values = true)]
    blend: BlendRequest,
    /// Results to write: maps, labels, table, preview (a PNG of the middle slice), preprocessed (the stack after
    /// --preprocess); by default all that the model provides except the preview and the preprocessed stack.
    #[arg(long, value_delimiter = ',', value_parser = outputs(), hide_possible_values = true)]
    outputs: Vec<Output>,
    /// Channel to use as the model's input, by its number from 0 or its name; a model with several input channels uses
    /// the one of this number and the next ones.
    #[arg(long, value_name = "NAME|N")]
    channel: Option<ChannelRef>,
    /// Channels to use as the model's inputs, in their order, by name or number, such as membrane,nuclei.
    #[arg(long, value_delimiter = ',', value_name = "NAME|N", conflicts_with = "channel")]
    channels: Vec<ChannelRef>,
    /// Image of an input of the model, if the model has several: NAME=FILE, NAME=FILE:CHANNEL or, for a channel of the stack,
    /// NAME=CHANNEL; can be repeated. FILE may be a folder with a file of the same name as each stack. All images
    /// have the same shape and voxel size. By default, each input is read from the channel of its name.
    #[arg(long = "input", value_name = "NAME=FILE|CHANNEL", conflicts_with_all = ["channel", "channels"])]
    input_tensors: Vec<InputTensor>,
    /// Output of the model to predict, if the model has several: its name, or all to write the channels of all outputs to one
    /// file; by default the first one.
    #[arg(long, value_name = "NAME|all")]
    output_tensor: Option<OutputTensor>,
    /// Predict one time point only, counted from 0; by default all.
    #[arg(long)]
    time: Option<usize>,
    #[command(flatten)]
    image: ImageOptions,
    /// Median diameter of the objects in µm (in voxels if the voxel size is unknown), or auto to estimate it from each
    /// stack. Stacks are rescaled so that objects have the size the model was trained on.
    #[arg(long, value_name = "UM|auto", default_value = "auto")]
    diameter: DiameterRequest,
    /// Steps that are applied to the stacks first, in order, such as gaussian:sigma=1um,tophat:radius=15um; can be
    /// repeated. Steps and their parameters: gaussian:sigma, median:radius, tophat:radius, rolling-ball:radius[:height],
    /// clahe[:tiles][:clip], stretch[:low][:high], normalize-slices[:low][:high], invert, deskew:angle[:step], affine:matrix,
    /// and crop with z, y or x. Lengths are in voxels, or in µm if they end in um; the step of deskew is always in µm.
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    preprocess: Vec<PreprocessStep>,
    /// Maximum memory of the job, such as 2G or 512M; by default three quarters of the free memory.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    memory_budget: Option<u64>,
    /// Number of threads; 0 uses all cores. Unless it is 1, a pass over a stack reads and writes in two additional
    /// threads.
    #[arg(long, default_value_t = 0, value_parser = parse_threads)]
    threads: usize,
    /// Settings from the machine profile (cytoscope tune --save) for options that are not given: auto (the saved preset),
    /// off, fastest, least-memory or most-accurate.
    #[arg(long, value_name = "PRESET", default_value = "auto",
          value_parser = one_of::<PerformanceRequest>(PerformanceRequest::names()), hide_possible_values = true)]
    performance: PerformanceRequest,
    /// Skip inputs that already have results from a run with identical options, and continue an interrupted prediction after
    /// its last finished slice.
    #[arg(long)]
    resume: bool,
    /// Keep the finished slices beside the results until the prediction is complete, so that --resume can continue it:
    /// auto (predictions of at least 64 million voxels), always or never. A run with --resume always keeps them.
    #[arg(long, value_name = "WHEN", default_value = "auto",
          value_parser = one_of::<KeepSlices>(KeepSlices::ALL.map(KeepSlices::name)),
          hide_possible_values = true)]
    keep_slices: KeepSlices,
    /// Rerun the job recorded in a _provenance.json file. Inputs, model and settings come from the record and cannot be
    /// given.
    #[arg(long, value_name = "FILE.json", conflicts_with_all = RECORDED)]
    rerun: Option<PathBuf>,
    #[command(flatten)]
    tracing: TraceOptions,
    /// Overwrite existing files; an input is never overwritten.
    #[arg(long)]
    force: bool,
    /// Print the reports of all inputs as one JSON object.
    #[arg(long)]
    json: bool,
    /// Report progress as JSON lines on standard error.
    #[arg(long)]
    json_progress: bool,
}

/// A job that is ready to run.
struct Prepared {
    job: PredictJob,
    /// The devices to run it with, if they are already known.
    devices: Option<Devices>,
    /// For `--rerun`, the differences from the recorded run, one sentence each.
    differences: Vec<String>,
}

impl Predict {
    pub(crate) fn run(self) -> Outcome {
        let clock = RunClock::start();
        let Prepared { mut job, devices, differences } = self.prepare()?;
        check_out(&job.out)?;
        let recorder = recorder(self.tracing.trace.as_deref(), self.tracing.stages_only);
        let _sampler = memory_sampler(&recorder, self.tracing.trace.as_deref());
        let context = progress::context(self.json_progress, false, recorder.clone());
        if self.resume && self.keep_slices == KeepSlices::Never {
            context.note("--keep-slices never has no effect: with --resume, the finished slices are always kept");
        }
        if let Some(path) = &self.tracing.trace {
            let outputs: Vec<&Path> =
                Some(job.out.as_path()).filter(|out| is_zarr_name(out) || is_zarr_zip_name(out)).into_iter().collect();
            check_prediction_trace(path, &job, self.rerun.as_deref(), &outputs, Overwrite::from_force(self.force))?;
        }
        let (profile, devices) = match devices {
            Some(devices) => (None, devices),
            None => machine_profile::for_prediction(&mut job, self.performance, &context),
        };
        let devices = if self.remeasure { devices.measured_again() } else { devices };
        let result = job.run_profiled(&context, &devices, None, profile.as_ref());
        let inputs = result.as_ref().map_or_else(|_| Vec::new(), |outcome| input_facts(&job, &outcome.done));
        let run = MeasuredRun::new("predict", &recorder, RunFacts { inputs, ..clock.facts(job.threads) });
        let has_results = result.as_ref().is_ok_and(|outcome| !outcome.done.is_empty());
        let overwrite = Overwrite::from_force(self.force);
        run.write_trace(&recorder, self.tracing.trace.as_deref(), overwrite, has_results);
        let mut outcome = result?;
        for report in &mut outcome.done {
            report.notes.splice(..0, differences.iter().cloned().map(Note::from)).for_each(drop);
        }
        if self.json {
            print_json(&report(&outcome, run))?;
        } else {
            outcome.done.iter().for_each(print_report);
        }
        if let Some(first) = job.inputs.first().filter(|_| !self.json_progress) {
            report_failures(first, &outcome);
        }
        let is_resumable = !outcome.done.is_empty() && !self.resume && self.rerun.is_none();
        finish(&outcome).map_err(|failure| {
            let next_step = message!("predict again with {RESUME}, which skips the inputs that are finished");
            if is_resumable { failure.and_next(next_step) } else { failure }
        })
    }

    /// Returns the job of the options, or the recorded one for `--rerun`.
    fn prepare(&self) -> Result<Prepared, Failure> {
        if let Some(path) = &self.rerun {
            let Rerun { mut job, devices, notes } = provenance::read(path)?.rerun(devices::for_request)?;
            if let Some(out) = &self.out {
                job.out.clone_from(out);
            }
            job.overwrite = Overwrite::from_force(self.force);
            return Ok(Prepared { job, devices: Some(devices), differences: notes });
        }
        if self.overlap.is_some() && self.blend.blend() == Some(Blend::Crop) {
            return Err(Failure::wrong_use(message!(
                "{OVERLAP} applies to {GAUSSIAN_BLEND}: tiles that are cropped overlap by the network's receptive field"
            ))
            .and_next("leave out one of the options"));
        }
        if self.table_format.is_some() && !self.outputs.is_empty() && !self.outputs.contains(&Output::Table) {
            return Err(Failure::wrong_use("--table-format applies to the table, which --outputs does not contain")
                .and_next("add table to it, or leave --table-format out"));
        }
        let (channel, channels) = chosen_channels(self.channel.clone(), self.channels.clone());
        let job = PredictJob {
            inputs: command_stacks(&self.inputs, &self.input_tensors)?,
            model: self.model.clone(),
            out: self.out.clone().unwrap_or_default(),
            format: self.format,
            table_format: self.table_format.unwrap_or_default(),
            device: self.device,
            cpu_because: None,
            precision: self.precision.precision(),
            tiles: TileRequest {
                tile: self.tile,
                overlap: self.overlap,
                blend: self.blend.blend(),
                ..TileRequest::default()
            },
            outputs: self.outputs.iter().copied().collect(),
            channel,
            channels,
            input_tensors: self.input_tensors.clone(),
            output_tensor: self.output_tensor.clone(),
            time: self.time,
            series: self.image.series.clone(),
            axes: self.image.axes.clone(),
            voxel_um: self.image.voxel_size,
            voxel_axes_um: VoxelSize::default(),
            diameter: self.diameter,
            preprocess: self.preprocess.clone(),
            memory_budget_bytes: self.memory_budget,
            resume: self.resume,
            keep_slices: self.keep_slices,
            threads: self.threads,
            overwrite: Overwrite::from_force(self.force),
        };
        Ok(Prepared { job, devices: None, differences: Vec::new() })
    }
}

/// Checks that the trace of a command that reads the inputs of a prediction may be written; `record` is the provenance
/// record that the prediction comes from, if it does.
///
/// # Errors
/// Same as [`check_trace`], and the failure to find the inputs.
pub(super) fn check_prediction_trace(
    trace: &Path,
    job: &PredictJob,
    record: Option<&Path>,
    outputs: &[&Path],
    overwrite: Overwrite,
) -> Outcome {
    let files = expand_inputs(&job.inputs, job.axes.as_ref())?;
    let model = find_model(&job.model)?;
    let tensors = job.input_tensors.iter().filter_map(|tensor| tensor.file.as_ref());
    let inputs = job.inputs.iter().chain(&files).chain([&model]).chain(tensors).map(PathBuf::as_path).chain(record);
    check_trace(trace, &inputs.collect::<Vec<&Path>>(), outputs, overwrite)
}

/// Returns the stacks of a command: the given ones, or else the first file of an input of the model.
pub(super) fn command_stacks(given: &[PathBuf], tensors: &[InputTensor]) -> Result<Vec<PathBuf>, Failure> {
    if !given.is_empty() {
        return Ok(given.to_vec());
    }
    let first = tensors.iter().find_map(|tensor| tensor.file.clone());
    let next_step = message!("give a file or a folder, or the file of an input with {INPUT} NAME=FILE");
    first.map(|file| vec![file]).ok_or_else(|| Failure::wrong_use("no stack was given").and_next(next_step))
}

fn report(outcome: &PredictOutcome, run: MeasuredRun) -> PredictCommandReport {
    let failed = outcome.failed.iter().map(|f| FailedInput {
        input: f.input.clone(),
        error: f.message.clone(),
        exit_code: f.kind.exit_code(),
    });
    PredictCommandReport {
        inputs: outcome.done.iter().cloned().map(PrintedInput).collect(),
        failed: failed.collect(),
        run: run.record,
        advice: run.advice,
    }
}

fn print_report(report: &InputReport) {
    if report.resumed {
        return;
    }
    let [z, y, x] = report.shape_zyx;
    let objects = objects_text(&report.objects);
    let series = if report.series > 0 { format!(", series {}", report.series) } else { String::new() };
    print(&format!("{}{series}: {z}×{y}×{x} voxels{objects}, {:.1} s", report.input.display(), report.seconds));
    let DeviceChoice { id, name, why, .. } = &report.device;
    print(&format!("  on {id} ({name}) in {}: {why}", report.precision));
    if let Some(plan) = &report.plan {
        if let Some(pass) = &plan.pass {
            print(&format!("  {}", pass.text()));
        }
        let peak = report.actual_peak_bytes.map_or_else(String::new, |b| format!(", used {}", bytes_text(b)));
        print(&format!("  memory: planned {}{peak}", bytes_text(plan.stated_peak_bytes)));
    }
    if let Some(traffic) = &report.traffic {
        print(&format!("  transfers: {}", traffic.text()));
    }
    if let Some(profile) = &report.profile {
        print(&format!("  {}", profile.text()));
    }
    report.notes.iter().for_each(|note| print(&format!("  {}", note_line(note))));
    report.outputs.iter().for_each(|o| print(&format!("  wrote {}", o.path.display())));
}

/// Number of time points whose numbers of objects are printed.
const LISTED_TIMES: usize = 12;

/// Returns the number of objects, after a comma, from that of each time point; nothing without time points, as of a stain.
fn objects_text(objects: &[u32]) -> String {
    match objects {
        [] => String::new(),
        [n] => format!(", {}", counted(n, "object")),
        many => {
            let listed = many.iter().take(LISTED_TIMES).map(u32::to_string).collect::<Vec<_>>().join(", ");
            let more = if many.len() > LISTED_TIMES { ", …" } else { "" };
            let sum = counted(many.iter().sum::<u32>(), "object");
            format!(", {sum} at {} time points ({listed}{more})", many.len())
        }
    }
}

/// Reports the inputs that failed, if there are many; `first` is the first input of the command.
fn report_failures(first: &Path, outcome: &PredictOutcome) {
    let problem = |f: &InputFailure| failed_inputs::problem(&f.input, message_of(f), f.next_step.as_deref());
    let problems: Vec<Problem> = outcome.failed.iter().map(problem).collect();
    failed_inputs::report(first, outcome.failed.len() + outcome.done.len(), &problems);
}

/// Returns the message of an input that failed, with the settings that it names.
pub(super) fn message_of(failure: &InputFailure) -> Message {
    Message::new(failure.message.as_str(), &failure.settings)
}

/// Returns an error if any input failed: [`JobErrorKind::OutOfResources`] takes precedence, otherwise the first
/// failure's kind. Of several inputs, the failures were reported before.
pub(super) fn finish(outcome: &PredictOutcome) -> Outcome {
    let Some(first) = outcome.failed.first() else { return Ok(()) };
    if outcome.failed.len() + outcome.done.len() == 1 {
        return Err(Failure::new(first.kind, message_of(first)));
    }
    let kind = if outcome.failed.iter().any(|f| f.kind == JobErrorKind::OutOfResources) {
        JobErrorKind::OutOfResources
    } else {
        first.kind
    };
    let failed = outcome.failed.iter().map(|failure| failure.input.as_path());
    let count = outcome.failed.len() + outcome.done.len();
    Err(Failure::new(kind, failed_inputs::failed_text(failed, count)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_objects_of_each_time_point_are_listed_if_they_are_few() {
        assert_eq!(objects_text(&[]), "");
        assert_eq!(objects_text(&[1]), ", 1 object");
        assert_eq!(objects_text(&[2, 0, 3]), ", 5 objects at 3 time points (2, 0, 3)");
        let many = objects_text(&[1; LISTED_TIMES + 1]);
        assert!(many.starts_with(", 13 objects at 13 time points (1, 1,") && many.ends_with("1, …)"), "{many}");
    }
}

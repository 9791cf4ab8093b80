//! `cytoscope diameter`: estimates the median object diameter of stacks.

use super::failure::{Failure, Outcome};
use super::measured::Measurement;
use super::options::{ImageOptions, ThreadsOption, TraceOptions};
use super::predict::{check_prediction_trace, command_stacks};
use super::reports::FailedInput;
use super::values::chosen_channels;
use super::{devices, eprint_line, failed_inputs, print, progress};
use clap::Args;
use cytoscope_engine::{DeviceId, DeviceRequest, Precision};
use cytoscope_pipeline::devices::Devices;
use cytoscope_pipeline::predict::{ChannelRef, InputTensor, check_input_files};
use cytoscope_pipeline::{
    Certainty, Context, DiameterJob, DiameterRequest, JobErrorKind, Model, Note, ObjectDiameter, PredictJob,
};
use cytoscope_preprocess::PreprocessStep;
use cytoscope_storage::Overwrite;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

#[derive(Args)]
pub(crate) struct Diameter {
    /// Stacks, or folders of stacks; may be omitted if --input gives a file.
    #[arg(required_unless_present = "input_tensors")]
    inputs: Vec<PathBuf>,
    /// Model package (folder, .zip or .onnx) or name of an installed model. It must declare an object diameter.
    #[arg(long, default_value = "nuclei")]
    model: String,
    /// Device: auto (the fastest one, by measurement), cpu, cuda[:i] or wgpu[:i].
    #[arg(long, default_value = "auto")]
    device: DeviceRequest,
    /// Channel to use as the model's input, by its number from 0 or its name; a model with several input channels uses
    /// the one of this number and the next ones.
    #[arg(long, value_name = "NAME|N")]
    channel: Option<ChannelRef>,
    /// Channels to use as the model's inputs, in their order, by name or number, such as membrane,nuclei.
    #[arg(long, value_delimiter = ',', value_name = "NAME|N", conflicts_with = "channel")]
    channels: Vec<ChannelRef>,
    /// Image of an input of the model, if the model has several: NAME=FILE, NAME=FILE:CHANNEL or, for a channel of the stack,
    /// NAME=CHANNEL; can be repeated. FILE may be a folder with a file of the same name as each stack. By default, each
    /// input is read from the channel of its name.
    #[arg(long = "input", value_name = "NAME=FILE|CHANNEL", conflicts_with_all = ["channel", "channels"])]
    input_tensors: Vec<InputTensor>,
    /// Time point to use, counted from 0; by default the median of the estimates at the first, middle and last one.
    #[arg(long)]
    time: Option<usize>,
    #[command(flatten)]
    image: ImageOptions,
    /// Steps that are applied to the stack first, as for cytoscope predict; can be repeated.
    #[arg(long, value_name = "STEP", value_delimiter = ',')]
    preprocess: Vec<PreprocessStep>,
    #[command(flatten)]
    threading: ThreadsOption,
    #[command(flatten)]
    tracing: TraceOptions,
    /// Overwrite an existing trace; an input is never overwritten.
    #[arg(long, requires = "trace")]
    force: bool,
    /// Print the estimates of all stacks, and the inputs that failed, as one JSON object.
    #[arg(long)]
    json: bool,
}

impl Diameter {
    pub(crate) fn run(self) -> Outcome {
        let (channel, channels) = chosen_channels(self.channel, self.channels);
        let prediction = PredictJob {
            device: self.device,
            channel,
            channels,
            input_tensors: self.input_tensors.clone(),
            time: self.time,
            series: self.image.series,
            axes: self.image.axes,
            voxel_um: self.image.voxel_size,
            preprocess: self.preprocess,
            diameter: DiameterRequest::Auto,
            threads: self.threading.threads,
            ..PredictJob::new(command_stacks(&self.inputs, &self.input_tensors)?, self.model, PathBuf::new())
        };
        let overwrite = Overwrite::from_force(self.force);
        if let Some(trace) = &self.tracing.trace {
            check_prediction_trace(trace, &prediction, None, &[], overwrite)?;
        }
        let TraceOptions { trace, stages_only } = &self.tracing;
        let measurement = Measurement::start("diameter", trace.as_deref(), overwrite, *stages_only);
        let (context, notes) = progress::with_notes(progress::context(false, self.json, measurement.recorder()));
        let available = devices::found(self.device, &context.recorder);
        let inputs = prediction.stacks(&context)?;
        check_input_files(&self.input_tensors, inputs.len())?;
        // Those about devices and folders belong to no single input.
        let common_notes = progress::taken(&notes);
        let estimate = |input: &Path| -> Result<Value, Failure> {
            let prediction = PredictJob { inputs: vec![input.to_owned()], ..prediction.clone() };
            let estimated = DiameterJob { prediction }.run(&context, &available);
            let mut notes = progress::taken(&notes);
            let found = estimated?;
            if !self.json {
                print(&format!("{}: {}", input.display(), found.text()));
            }
            if is_assumed(&found) {
                notes.push(found.text().to_string());
            }
            Ok(json!({"input": input, "object_diameter": found, "notes": notes}))
        };
        let first = self.inputs.first().or(inputs.first()).cloned().unwrap_or_default();
        let ((estimates, failed), run) = measurement.finish(each(&first, &inputs, estimate), self.threading.threads)?;
        if self.json {
            let reported = failed.iter().map(|(input, failure)| FailedInput {
                input: input.clone(),
                error: failure.to_string(),
                exit_code: i32::from(failure.exit_code()),
            });
            run.print_json(
                &json!({"inputs": estimates, "notes": common_notes, "failed": reported.collect::<Vec<_>>()}),
            )?;
        }
        match failed.first() {
            Some((_, first)) => {
                let names = failed.iter().map(|(input, _)| input.as_path());
                Err(Failure::new(first.kind(), failed_inputs::failed_text(names, inputs.len())))
            }
            None => Ok(()),
        }
    }
}

/// Returns whether a diameter is assumed, because no objects were found to estimate it.
fn is_assumed(found: &ObjectDiameter) -> bool {
    found.estimate.is_some_and(|estimate| estimate.certainty == Certainty::None)
}

/// Returns the object diameter of runs that are compared, so that all of them predict on the same grid: the estimate with the
/// float network on the CPU, in µm, or in voxels if the voxel size is unknown. `None` if the model declares no object diameter,
/// or there are several stacks. If no objects are found, a note states the diameter that is assumed.
pub(super) fn comparison_diameter(
    model: &Model,
    prediction: PredictJob,
    context: &Context,
    note: impl FnOnce(Note),
) -> Result<Option<f64>, Failure> {
    if model.object_diameter_um.is_none() || prediction.stacks(context)?.len() != 1 {
        return Ok(None);
    }
    let device = DeviceRequest::Device(DeviceId::Cpu);
    let prediction =
        PredictJob { device, precision: Some(Precision::F32), diameter: DiameterRequest::Auto, ..prediction };
    let found = DiameterJob { prediction }.run(context, &Devices::cpu_only())?;
    if is_assumed(&found) {
        let (diameter, unit) = (found.diameter, found.unit.symbol());
        note(Note::info(format!(
            "no objects were found to estimate the object diameter: {diameter:.1} {unit} is assumed in all runs"
        )));
    }
    Ok(Some(found.diameter))
}

/// Inputs without an estimate, each with its failure.
type FailedInputs = Vec<(PathBuf, Failure)>;

/// Returns the estimates of all inputs, and the others with their failures, which it reports; `first` is the first input of the
/// command. A failure ends the command if it is that of the only input, if it was canceled, or if the options do not fit the
/// first input.
fn each(
    first: &Path,
    inputs: &[PathBuf],
    estimate: impl Fn(&Path) -> Result<Value, Failure>,
) -> Result<(Vec<Value>, FailedInputs), Failure> {
    let (mut found, mut failed, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    for (index, input) in inputs.iter().enumerate() {
        match estimate(input) {
            Ok(value) => found.push(value),
            Err(failure) => {
                let kind = failure.kind();
                let is_of_options = index == 0 && kind == JobErrorKind::WrongUse;
                if inputs.len() == 1 || kind == JobErrorKind::Canceled || is_of_options {
                    return Err(failure);
                }
                problems.push(failed_inputs::problem(input, failure.message().clone(), failure.next_step()));
                if failed_inputs::is_shown_at_once(inputs.len(), problems.len()) {
                    eprint_line(&format!("failed: {failure}"));
                }
                failed.push((input.clone(), failure));
            }
        }
    }
    failed_inputs::report(first, inputs.len(), &problems);
    Ok((found, failed))
}

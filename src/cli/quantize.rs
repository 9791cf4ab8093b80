//! `cytoscope quantize`: converts a model to 8-bit integers.

use super::failure::{Failure, Outcome};
use super::measured::Measurement;
use super::options::{ReportOptions, StageTraceOption};
use super::trace_path::check_trace;
use super::values::chosen_channels;
use super::{note_line, parse_um, print, progress};
use clap::{Args, ValueEnum};
use cytoscope_formats::ChannelRef;
use cytoscope_pipeline::predict::InputTensor;
use cytoscope_pipeline::{DiameterRequest, PredictJob, find_model};
use cytoscope_profile::bytes_text;
use cytoscope_quantize::{ACCURACY_BUDGET, QuantizeJob, QuantizeMode, QuantizeReport};
use cytoscope_storage::message;
use cytoscope_storage::setting::MODE;
use cytoscope_storage::{Overwrite, counted};
use cytoscope_train::{LimitedQuantization, QatLimitError, QatTrainer, minutes_problem};
use std::path::{Path, PathBuf};

// In the usage that clap writes, the package follows --calibrate, which would take it as one more stack.
#[derive(Args)]
#[command(override_usage = "cytoscope quantize <PACKAGE> --mode <MODE> --out <OUT> [OPTIONS]")]
pub(crate) struct Quantize {
    /// Model package (folder, .zip or .onnx) or name of an installed model.
    package: String,
    /// How activation ranges are determined: while the model runs (dynamic), once from calibration data (static), or
    /// static and followed by training if that loses too much accuracy (qat).
    #[arg(long, value_enum)]
    mode: Mode,
    /// Calibration data for the modes static and qat: stacks like those the model will be used on, or folders of them, all
    /// after this option; by default the package's test tensor.
    #[arg(long, num_args = 1.., value_name = "DIR|FILE")]
    calibrate: Vec<PathBuf>,
    /// Channel of the --calibrate stacks that is the model's input, by its number from 0 or its name; a model with several
    /// input channels uses the one of this number and the next ones.
    #[arg(long, requires = "calibrate", value_name = "NAME|N")]
    channel: Option<ChannelRef>,
    /// Channels of the --calibrate stacks by name or number, one for each input channel of the model (membrane,nuclei or 2,0).
    #[arg(long, value_delimiter = ',', value_name = "NAME|N", conflicts_with = "channel", requires = "calibrate")]
    channels: Vec<ChannelRef>,
    /// Image of an input of the model for --calibrate, if the model has several: NAME=FILE, NAME=FILE:CHANNEL or, for a
    /// channel of the stacks, NAME=CHANNEL; can be repeated. FILE may be a folder with a file of the same name as each
    /// stack. By default, each input is read from the channel of its name.
    #[arg(long = "input", value_name = "NAME=FILE|CHANNEL", requires = "calibrate",
          conflicts_with_all = ["channel", "channels"])]
    input_tensors: Vec<InputTensor>,
    /// Voxel size Z,Y,X in µm of the --calibrate stacks, to use instead of the files' own.
    #[arg(long, requires = "calibrate", value_name = "Z,Y,X", value_parser = parse_um)]
    voxel_size: Option<[f64; 3]>,
    /// Median diameter of the objects in the --calibrate stacks in µm (in voxels if the voxel size is unknown), or auto to
    /// estimate it from each stack; by default auto.
    #[arg(long, requires = "calibrate", value_name = "UM|auto")]
    diameter: Option<DiameterRequest>,
    /// Package to write: a folder or a .zip. If the name ends in .onnx, only the int8 network is written.
    #[arg(long)]
    out: PathBuf,
    /// Maximum relative L2 error of an output; layers are kept in float until it is met.
    #[arg(long, default_value_t = ACCURACY_BUDGET)]
    accuracy_budget: f64,
    /// Maximum minutes of quantization-aware training (--mode qat only); by default unlimited.
    #[arg(long)]
    minutes: Option<f64>,
    /// Maximum steps of quantization-aware training, one tile per step (--mode qat only); by default 240.
    #[arg(long)]
    steps: Option<u64>,
    /// Names of layers to keep in float, separated by commas; the report names the layers.
    #[arg(long, value_delimiter = ',', value_name = "LAYER")]
    keep_float: Vec<String>,
    /// Leave the float network out of the package: smaller, but it cannot run on GPUs.
    #[arg(long)]
    without_float: bool,
    #[command(flatten)]
    tracing: StageTraceOption,
    /// Replace an existing package that Cytoscope did not write, or that was changed, or an existing .onnx file: a file is
    /// overwritten, a folder is moved aside; an input is never replaced.
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    report: ReportOptions,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// Ranges are determined each time the model runs.
    Dynamic,
    /// Ranges are determined once, from calibration data.
    Static,
    /// Static; if the error exceeds the accuracy budget, quantization-aware training adapts the weights to rounding.
    Qat,
}

impl Mode {
    fn quantize_mode(self) -> QuantizeMode {
        match self {
            Self::Dynamic => QuantizeMode::Dynamic,
            Self::Static => QuantizeMode::Static,
            Self::Qat => QuantizeMode::Qat,
        }
    }
}

impl Quantize {
    pub(crate) fn run(self) -> Outcome {
        let mode = self.mode.quantize_mode();
        QatTrainer::limited(mode, self.minutes, self.steps).map_err(|error| {
            Failure::wrong_use(match error {
                QatLimitError::InvalidMinutes(minutes) => {
                    message!("--minutes {}", minutes_problem(minutes).unwrap_or_default())
                }
                QatLimitError::NoTraining => {
                    message!("--minutes and --steps apply to {MODE} qat only: the other modes do not train")
                }
            })
        })?;
        let overwrite = Overwrite::from_force(self.force);
        if let Some(path) = &self.tracing.trace {
            let model = find_model(&self.package)?;
            let tensors = self.input_tensors.iter().filter_map(|tensor| tensor.file.as_ref());
            let inputs: Vec<&Path> =
                self.calibrate.iter().chain(tensors).chain([&model]).map(PathBuf::as_path).collect();
            check_trace(path, &inputs, &[&self.out], overwrite)?;
        }
        let measurement = Measurement::start("quantize", self.tracing.trace.as_deref(), overwrite, true);
        let context = progress::context(self.report.json_progress, false, measurement.recorder());
        let plain = PredictJob::new(self.calibrate, self.package.clone(), PathBuf::new());
        let (channel, channels) = chosen_channels(self.channel, self.channels);
        let stacks = PredictJob {
            channel,
            channels,
            input_tensors: self.input_tensors,
            voxel_um: self.voxel_size,
            diameter: self.diameter.unwrap_or_default(),
            ..plain.clone()
        };
        let (calibrate, predictions) =
            if stacks == plain { (plain.inputs, Vec::new()) } else { (Vec::new(), vec![stacks]) };
        let quantization = QuantizeJob {
            model: self.package,
            out: self.out,
            mode,
            calibrate,
            predictions,
            accuracy_budget: self.accuracy_budget,
            keep_float: self.keep_float.into_iter().collect(),
            without_float: self.without_float,
            overwrite,
        };
        let result = LimitedQuantization { quantization, minutes: self.minutes, steps: self.steps }.run(&context);
        let (report, run) = measurement.finish(result, 0)?;
        let run = run.with_results([report.out.as_path()]);
        if self.report.json {
            return run.print_json(&report);
        }
        print_report(&report);
        run.print_records();
        Ok(())
    }
}

fn print_report(report: &QuantizeReport) {
    print(&format!("wrote {}: {}", report.out.display(), report.name));
    let share = 100.0 * report.int8_bytes as f64 / report.float_bytes.max(1) as f64;
    let (before, after) = (bytes_text(report.float_bytes), bytes_text(report.int8_bytes));
    print(&format!("  network: {before} as float, {after} as int8 ({share:.0} %)"));
    for t in &report.tile_times {
        let threads = counted(t.threads, "thread");
        print(&format!(
            "  tile {:?}, {threads}: CPU time {:.1} ms as float, {:.1} ms as int8 (wall time {:.1} and {:.1} ms)",
            report.tile_shape, t.f32_cpu_ms, t.int8_cpu_ms, t.f32_wall_ms, t.int8_wall_ms
        ));
    }
    let metric = report.agreement_metric.name();
    for o in &report.outputs {
        print(&format!(
            "  {}: relative L2 error {:.5}, maximum error {:.4}, {metric} {:.5} against the float network ({})",
            o.name,
            o.error.relative_l2,
            o.error.max_abs,
            o.error.agreement,
            counted(report.held_out_tiles, "held-out tile")
        ));
    }
    for c in &report.candidates {
        let mark = if (c.method, c.equalized) == (report.method, report.equalized) { " <- chosen" } else { "" };
        let method = c.method.map_or_else(|| "at run time".to_owned(), |m| m.to_string());
        let equalized = c.equalized.map_or_else(|| "not equalized".to_owned(), |s| format!("equalized, {s}"));
        print(&format!("    {method:18} {equalized:22} {:.5}{mark}", c.relative_l2));
    }
    for other in &report.other_methods {
        print(&format!("    {} for the tensor {}", other.method, other.tensor));
    }
    if let Some(t) = &report.qat {
        let unchanged_note = if t.kept { "" } else { "; no smaller, so the weights stay as they were" };
        print(&format!(
            "  quantization-aware training, {} in {:.0} s: relative L2 error {:.5} before, {:.5} after{unchanged_note}",
            counted(t.steps, "step"),
            t.seconds,
            t.before,
            t.after
        ));
    }
    if !report.bias_corrected.is_empty() {
        print(&format!("  bias corrected: {}", report.bias_corrected.join(", ")));
    }
    let all = counted(report.quantized_layers, "layer");
    print(&format!("  {all} in int8, {:.1} % of the operations in float", 100.0 * report.float_share_of_work));
    for l in &report.left_float {
        print(&format!("    {} in float: {}", l.name, l.why));
    }
    let verdict = if report.budget_met { "met" } else { "NOT met" };
    print(&format!("  accuracy budget {}: {verdict}", report.accuracy_budget));
    report.left_out.iter().for_each(|part| print(&format!("  left out: {part}")));
    report.notes.iter().for_each(|note| print(&format!("  {}", note_line(note))));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_the_names_by_which_other_commands_call_this_one() {
        for mode in Mode::value_variants() {
            let value = mode.to_possible_value().unwrap();
            assert_eq!(value.get_name(), mode.quantize_mode().name());
        }
        assert_eq!(Mode::value_variants().len(), QuantizeMode::ALL.len());
    }
}
